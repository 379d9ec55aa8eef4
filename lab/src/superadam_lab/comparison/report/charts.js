// What charts are made of: elements, colours, numbers, axes. For the report and the leaderboard.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 3"];

function make(parent, name, attributes = {}, text = null) {
  const html = !(parent.namespaceURI === SVG || name === "svg");
  const e = html ? document.createElement(name) : document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== null) e.textContent = text;
  parent.appendChild(e);
  return e;
}

const color = (i) => `var(--m${i === 0 ? 0 : 1 + (i - 1) % 10})`;
const dash = (i) => i === 0 ? "" : DASHES[(i - 1 + Math.floor((i - 1) / 10)) % DASHES.length];

function marker(parent, i, x, y, r = 3.5) {
  const shape = i % 7;
  const paint = { fill: color(i), stroke: "var(--paper)", "stroke-width": 0.8 };
  const polygon = (points) => make(parent, "polygon", { points: points.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" "), ...paint });
  if (shape === 0) return make(parent, "circle", { cx: x, cy: y, r, ...paint });
  if (shape === 1) return polygon([[-1, -1], [1, -1], [1, 1], [-1, 1]]);
  if (shape === 2) return polygon([[0, -1.3], [1.2, 1], [-1.2, 1]]);
  if (shape === 3) return polygon([[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]]);
  if (shape === 4) return polygon([[0, 1.3], [1.2, -1], [-1.2, -1]]);
  if (shape === 5) return polygon([[-0.4, -1.3], [0.4, -1.3], [0.4, -0.4], [1.3, -0.4], [1.3, 0.4], [0.4, 0.4], [0.4, 1.3], [-0.4, 1.3], [-0.4, 0.4], [-1.3, 0.4], [-1.3, -0.4], [-0.4, -0.4]]);
  return polygon([[-1.3, 0], [-0.6, -1.2], [0.6, -1.2], [1.3, 0], [0.6, 1.2], [-0.6, 1.2]]);
}

function stroke(i) {
  return { fill: "none", stroke: color(i), "stroke-width": i === 0 ? 2.6 : 1.9, "stroke-dasharray": dash(i), "stroke-linejoin": "round" };
}

/** Says above each table that is wider than its box that it can be scrolled, and fades it out at the right edge. */
function scrollHints() {
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "hint quiet";
    hint.textContent = "Scroll the table sideways to see all columns →";
    box.before(hint);
    const update = () => {
      const hidden = box.scrollWidth - box.clientWidth;
      hint.hidden = hidden <= 1;
      box.classList.toggle("more", hidden - box.scrollLeft > 1);
    };
    const watched = new ResizeObserver(update);
    for (const e of [box, box.firstElementChild]) watched.observe(e);
    box.addEventListener("scroll", update);
    update();
  }
}

// ---------------------------------------------------------------- numbers

function figures(v) {
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a >= 1e6 || a < 1e-4) return v.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return String(Number(v.toPrecision(3)));
}

function ticks(low, high, log, count) {
  if (log) {
    const found = [];
    const decades = Math.log10(high / low);
    const steps = decades > count ? [1] : decades > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const every = Math.max(1, Math.ceil(decades / count));
    for (let d = Math.floor(Math.log10(low)); d <= Math.ceil(Math.log10(high)); d++)
      if (d % every === 0 || decades <= count) for (const s of steps) found.push(Number((s * 10 ** d).toPrecision(3)));
    const inside = found.filter((v) => v >= low * 0.9999 && v <= high * 1.0001);
    if (inside.length >= 2) return inside;
  }
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * unit >= rough) * unit;
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return log ? found.filter((v) => v > 0) : found;
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  const s = (v) => from + (f(v) - a) / (b - a || 1) * (to - from);
  return Object.assign(s, { low, high, log });
}

function range(values, log, pad = 0.05) {
  const known = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
  if (!known.length) return log ? [0.1, 10] : [0, 1];
  let low = Math.min(...known), high = Math.max(...known);
  if (log) { const m = Math.max((high / low) ** pad, 1.02); return [low / m, high * m]; }
  const m = (high - low) * pad || Math.abs(high) * 0.1 || 1;
  return [low - m, high + m];
}

// ---------------------------------------------------------------- a chart with two axes

const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

function frame(figure, title, x, y) {
  figure.replaceChildren();
  const width = Math.max(figure.clientWidth, 200), em = rem();
  const height = Math.min(Math.max(width * 0.62, 230), 30 * em);
  const svg = make(figure, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
  const left = 3.6 * em, right = width - 1.1 * em, top = 1.9 * em, bottom = height - 2.9 * em;
  const X = scale(x.low, x.high, left, right, x.log), Y = scale(y.low, y.high, bottom, top, y.log);
  make(svg, "text", { x: 0, y: em, class: "strong" }, title);
  for (const v of ticks(y.low, y.high, y.log, 5)) {
    make(svg, "line", { x1: left, x2: right, y1: Y(v), y2: Y(v), stroke: "var(--grid)" });
    make(svg, "text", { x: left - 0.4 * em, y: Y(v) + 0.27 * em, "text-anchor": "end", class: "tick" }, (y.format || figures)(v));
  }
  let end = -Infinity;
  for (const v of ticks(x.low, x.high, x.log, Math.max(3, width / (7 * em)))) {
    make(svg, "line", { x1: X(v), x2: X(v), y1: bottom, y2: bottom + 0.3 * em, stroke: "var(--quiet)" });
    const text = (x.format || figures)(v), half = text.length * 0.24 * em;
    if (X(v) - half < end || X(v) + half > width) continue;
    make(svg, "text", { x: X(v), y: bottom + 1.2 * em, "text-anchor": "middle", class: "tick" }, text);
    end = X(v) + half + 0.5 * em;
  }
  make(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--quiet)" });
  make(svg, "text", { x: (left + right) / 2, y: height - 0.5 * em, "text-anchor": "middle", class: "tick" }, x.label);
  const id = "clip-" + figure.id;
  const clip = make(svg, "clipPath", { id });
  make(clip, "rect", { x: left, y: top - 4, width: right - left, height: bottom - top + 8 });
  const plot = make(svg, "g", { "clip-path": `url(#${id})` });
  return { svg, plot, X, Y, left, right, top, bottom, width, em };
}

function path(points) {
  let d = "", pen = false;
  for (const [x, y] of points) {
    if (x === null || y === null || !Number.isFinite(x) || !Number.isFinite(y)) { pen = false; continue; }
    d += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return d;
}

function clipped(parent, text, x, y, room, anchor) {
  const e = make(parent, "text", { x, y, "text-anchor": anchor, class: "over" }, text);
  const long = e.getComputedTextLength();
  if (long > room) { e.textContent = text.slice(0, Math.max(3, Math.floor(text.length * room / long) - 1)) + "…"; make(e, "title", {}, text); }
}

/** A performance profile, in the chart's units: the share of runs [factor, weight] that are within a factor of the fastest. null is a miss. */
function profilePath(f, runs) {
  const points = [[f.X(1), 0]];
  for (const [factor, weight] of runs.filter(([v]) => v !== null && v <= f.X.high).sort((a, b) => a[0] - b[0])) {
    const share = points.at(-1)[1] + weight;
    if (factor <= 1) points[0][1] = share;
    else points.push([f.X(factor), points.at(-1)[1]], [f.X(factor), share]);
  }
  return [...points, [f.right, points.at(-1)[1]]].map(([x, share]) => [x, f.Y(share)]);
}

function profileLine(f, i, runs) {
  const points = profilePath(f, runs), line = make(f.plot, "path", { d: path(points), "data-method": i, ...stroke(i) });
  for (const x of [f.left + 6 + (i % 4) * 12, f.right - 6 - (i % 4) * 12]) marker(f.plot, i, x, points.findLast((p) => p[0] <= x)[1]);
  return line;
}

/** An entry of the legend: a switch, with the line and the mark of the method. */
function entry(place, i, label, id, on, act) {
  const b = make(place, "button", { type: "button", "aria-pressed": String(on), title: id });
  const s = make(b, "svg", { viewBox: "0 0 36 16", "aria-hidden": "true" });
  make(s, "line", { x1: 0, x2: 36, y1: 8, y2: 8, ...stroke(i) });
  marker(s, i, 18, 8, 4);
  make(b, "span", {}, label);
  b.addEventListener("click", () => act(b));
}
