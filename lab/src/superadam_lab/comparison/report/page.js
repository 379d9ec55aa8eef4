"use strict";
// Draws the charts of a comparison as SVG, from the JSON in the page. No library, no network.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const shown = new Set(data.methods.map((_, i) => i));
const state = { ratio: "finals", task: 0, axis: "gradient_evaluations", split: "valid", scale: "log", profile: "gradient_evaluations", tuned: 0, key: 0 };
const AXES = { gradient_evaluations: "gradient evaluations", seconds: "seconds", epoch: "epochs" };
const RATIOS = { finals: "final loss", gradient_evaluations: "evaluations to target", seconds: "seconds to target" };

function control(place, title, key, options) {
  const names = Object.keys(options);
  if (names.length < 2) return;
  const set = make(place, "fieldset", { class: "switch" });
  make(set, "legend", {}, title);
  for (const name of names) {
    const l = make(set, "label");
    const input = make(l, "input", { type: "radio", name: place.id + "-" + key, value: name });
    input.checked = String(state[key]) === name;
    input.addEventListener("change", () => { state[key] = typeof state[key] === "number" ? Number(name) : name; controls(); draw(); });
    make(l, "span", {}, options[name]);
  }
}

// ---------------------------------------------------------------- the pointer

/** Values of all lines at the pointer. */
function pointer(figure, f, lines, show) {
  const cross = make(f.svg, "line", { y1: f.top, y2: f.bottom, stroke: "var(--quiet)", "stroke-dasharray": "2 2", visibility: "hidden", class: "cross" });
  const tip = make(figure, "div", { class: "tip", hidden: "" });
  const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  figure.onpointerleave = hide;
  figure.onpointermove = (event) => {
    const box = f.svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * f.width / box.width;
    if (at < f.left || at > f.right || !lines.length) return hide();
    const near = lines.map(({ i, points }) => [i, points.reduce((a, b) => Math.abs(f.X(b[0]) - at) < Math.abs(f.X(a[0]) - at) ? b : a)]);
    const x = near.reduce((a, b) => Math.abs(f.X(b[1][0]) - at) < Math.abs(f.X(a[1][0]) - at) ? b : a)[1][0];
    tip.replaceChildren();
    make(tip, "div", { class: "strong" }, show(x));
    for (const [i, [, y]] of near.filter(([, p]) => p[1] !== null).sort((a, b) => a[1][1] - b[1][1])) {
      const row = make(tip, "div");
      make(row, "i").style.background = color(i);
      row.append(`${figures(y)}  ${data.methods[i].label}`);
    }
    tip.hidden = false;
    cross.setAttribute("x1", f.X(x)); cross.setAttribute("x2", f.X(x)); cross.setAttribute("visibility", "visible");
    const place = f.X(x) * box.width / f.width;
    const after = place + 12 + tip.offsetWidth < box.width;
    tip.style.left = `${Math.max(0, after ? place + 12 : place - 12 - tip.offsetWidth)}px`;
    tip.style.top = `${f.top}px`;
  };
}

// ---------------------------------------------------------------- curves

function curves() {
  const task = data.tasks[state.task];
  const of = task.columns.filter((c) => c.startsWith(state.split + "_"));
  const loss = of.find((c) => c.endsWith("_loss")), score = of.find((c) => !c.endsWith("_loss"));
  for (const [figure, column] of [[$("loss-chart"), loss], [$("score-chart"), score]]) {
    figure.hidden = !column;
    if (column) curve(figure, task, column);
  }
}

function curve(figure, task, column) {
  const lines = [];
  for (const i of shown) {
    const c = task.curves[i];
    if (c && c[column]) lines.push({ i, points: c[state.axis].map((x, k) => [x, ...c[column][k]]).filter((p) => p[0] !== null) });
  }
  const filled = lines.filter((l) => l.points.length);
  const log = state.scale === "log" && !column.endsWith("accuracy") && !filled.some((l) => l.points.some((p) => p[1] !== null && p[1] <= 0));
  // What rises above every start is cut off, so that one diverging run does not flatten the others; of accuracies, the
  // first steep rise.
  const values = filled.flatMap((l) => l.points.map((p) => p[1]));
  const rising = column.endsWith("accuracy");
  const start = Math.max(...filled.map((l) => l.points[0][1]).filter((v) => v !== null));
  const known = values.filter((v) => v !== null).sort((a, b) => a - b);
  const kept = rising ? known.slice(Math.floor(known.length * 0.15)) : !Number.isFinite(start) ? values : values.filter((v) => v !== null && v <= start * (start > 0 ? 1.1 : 0.9));
  const target = column === task.measure ? task.target : null;
  const [low, high] = range(target === null ? kept : [...kept, target], log);
  const xs = filled.flatMap((l) => l.points.map((p) => p[0]));
  const name = column.replace(/^(train|valid|test)_/, "").replaceAll("_", " ");
  const words = { train: "training", valid: "validation", test: "test" }[state.split];
  const title = `${task.name}: ${words} ${name}`;
  const f = frame(figure, title, { low: 0, high: Math.max(...xs, 1e-9), label: AXES[state.axis] }, { low, high: rising ? Math.min(high, 1.005) : high, log });
  if (target !== null) make(f.plot, "line", { x1: f.left, x2: f.right, y1: f.Y(target), y2: f.Y(target), stroke: "var(--ink)", "stroke-dasharray": "3 3", class: "target" });
  for (const { i, points } of filled) {
    const band = points.filter((p) => p[2] !== null && p[3] !== null && (!log || p[2] > 0));
    if (band.length > 1) {
      const ring = [...band.map((p) => [f.X(p[0]), f.Y(p[2])]), ...band.toReversed().map((p) => [f.X(p[0]), f.Y(p[3])])];
      make(f.plot, "path", { d: path(ring) + "Z", fill: color(i), opacity: 0.13 });
    }
  }
  for (const { i, points } of filled) {
    make(f.plot, "path", { d: path(points.map((p) => [f.X(p[0]), p[1] === null ? null : f.Y(p[1])])), "data-method": i, ...stroke(i) });
    const every = Math.max(1, Math.ceil(points.length / 7));
    points.forEach((p, k) => { if ((k + i) % every === 0 && p[1] !== null) marker(f.plot, i, f.X(p[0]), f.Y(p[1])); });
  }
  pointer(figure, f, filled, (x) => `${figures(x)} ${AXES[state.axis]}`);
  figure.values = { head: ["method", AXES[state.axis], "median", "lowest", "highest"], rows: filled.flatMap(({ i, points }) => points.map((p) => [data.methods[i].id, ...p])) };
}

// ---------------------------------------------------------------- ratios to the baseline

function ratios() {
  const figure = $("ratio-chart"), em = rem();
  figure.replaceChildren();
  const width = Math.max(figure.clientWidth, 200), narrow = width < 42 * em;
  const groups = data.ratios.map((g) => ({ ...g, rows: g.rows.filter((r) => shown.has(r.method) && r[state.ratio]) })).filter((g) => g.rows.length);
  const place = (r) => ((v) => v === "inf" ? Infinity : v ?? Infinity)(r[state.ratio].estimate[0]);
  for (const g of groups) g.rows.sort((a, b) => place(a) - place(b) || a.method - b.method);
  const ends = groups.flatMap((g) => g.rows.flatMap((r) => r[state.ratio].estimate)).filter((v) => typeof v === "number" && v > 0);
  const bound = (v) => Math.min(Math.max(v, 1 / 20), 20);
  const [low, high] = range([...ends.map(bound), 0.8, 1.25], true, 0.06);
  const line = narrow ? 2.7 * em : 1.75 * em, head = 2.2 * em;
  const height = groups.reduce((h, g) => h + head + g.rows.length * line, 0) + 3 * em;
  const name = RATIOS[state.ratio];
  const svg = make(figure, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Ratio of ${name} to ${data.methods[0].label}, with 95 % intervals` });
  const left = narrow ? 0.5 * em : 14 * em, right = narrow ? width - 0.5 * em : width - 15 * em;
  const X = scale(low, high, left, right, true);
  const inside = (v) => v === "inf" ? right : Math.min(Math.max(X(v), left), right);
  const bottom = height - 2.6 * em;
  for (const v of ticks(low, high, true, narrow ? 4 : 8)) {
    make(svg, "line", { x1: X(v), x2: X(v), y1: 0, y2: bottom, stroke: "var(--grid)" });
    make(svg, "text", { x: X(v), y: bottom + 1.1 * em, "text-anchor": "middle", class: "tick" }, figures(v));
  }
  make(svg, "line", { x1: X(1), x2: X(1), y1: 0, y2: bottom, stroke: "var(--ink)", "stroke-width": 1.5 });
  make(svg, "text", { x: (left + right) / 2, y: height - 0.3 * em, "text-anchor": "middle", class: "tick" }, `${name}, times ${data.methods[0].label}’s: left of 1 is better`);
  figure.values = ratioValues(groups);
  let y = 0;
  for (const g of groups) {
    make(svg, "text", { x: 0, y: y + 1.5 * em, class: "strong" }, g.name);
    y += head;
    for (const r of g.rows) {
      const [value, a, b] = r[state.ratio].estimate, row = make(svg, "g", { "data-method": r.method });
      const middle = y + (narrow ? 1.95 * em : 0.85 * em), text = narrow ? y + 1.1 * em : middle + 0.3 * em;
      clipped(row, data.methods[r.method].label, 0, text, narrow ? width * 0.55 : left - em, "start");
      make(row, "text", { x: width, y: text, "text-anchor": "end", class: "tick over" }, r[state.ratio].text);
      if (value !== null) {
        const at = inside(value), from = X(1);
        make(row, "rect", { x: Math.min(at, from), y: middle - 0.3 * em, width: Math.abs(at - from), height: 0.6 * em, fill: color(r.method), opacity: 0.35 });
        if (a !== null) make(row, "line", { x1: inside(a), x2: inside(b), y1: middle, y2: middle, stroke: color(r.method), "stroke-width": 2.5 });
        for (const [v, side] of [[a, -1], [b, 1]]) {
          if (v === null) continue;
          const x = inside(v), beyond = v === "inf" || v < low || v > high;
          const d = beyond ? `M${x - 5 * side} ${middle - 4}L${x} ${middle}L${x - 5 * side} ${middle + 4}` : `M${x} ${middle - 4}V${middle + 4}`;
          make(row, "path", { d, stroke: color(r.method), "stroke-width": 2, fill: "none" });
        }
        if (value !== "inf") marker(row, r.method, at, middle, 4);
      }
      y += line;
    }
  }
}

function ratioValues(groups) {
  return { head: ["on", "method", `ratio of ${RATIOS[state.ratio]}`, "low", "high"], rows: groups.flatMap((g) => g.rows.map((r) => [g.name, data.methods[r.method].id, ...r[state.ratio].estimate])) };
}

// ---------------------------------------------------------------- profiles and trials

function profiles() {
  const all = data.profiles[state.profile];
  const lines = [...shown].filter((i) => all[i] && all[i].length).map((i) => ({ i, values: all[i] }));
  const finite = lines.flatMap((l) => l.values).filter((v) => v !== null);
  const high = Math.max(2, Math.min(Math.max(1, ...finite) * 1.1, 100));
  const f = frame($("profile-chart"), `Share of runs that reached the target`, { low: 1, high, log: true, label: `times the ${AXES[state.profile]} of the fastest` }, { low: 0, high: 1.02, format: (v) => `${Math.round(100 * v)} %` });
  $("profile-chart").values = { head: ["method", `times the ${AXES[state.profile]} of the fastest`], rows: lines.flatMap(({ i, values }) => values.map((v) => [data.methods[i].id, v === null ? "inf" : v])) };
  for (const { i, values } of lines) profileLine(f, i, values.map((v) => [v, 1 / values.length]));
}

function trials() {
  const task = data.tasks[state.tuned], key = data.space[state.key], figure = $("trial-chart");
  const lines = [...shown].filter((i) => task.trials[i] && task.trials[i].points.length).map((i) => {
    const points = task.trials[i].points.map(([o, y], k) => [o[key], y, k === task.trials[i].best]).filter((p) => typeof p[0] === "number");
    return { i, points: points.sort((a, b) => a[0] - b[0]) };
  }).filter((l) => l.points.length);
  if (!lines.length) { figure.replaceChildren(); make(figure, "p", { class: "quiet" }, "No tuning trials."); return; }
  const xs = lines.flatMap((l) => l.points.map((p) => p[0])), ys = lines.flatMap((l) => l.points.map((p) => p[1]));
  const xlog = xs.every((v) => v > 0), ylog = ys.every((v) => v === null || v > 0);
  const [xl, xh] = range(xs, xlog), [yl, yh] = range(ys, ylog, 0.08);
  const f = frame(figure, `${task.name}: final ${task.measure === "valid_loss" ? "validation" : "training"} loss`, { low: xl, high: xh, log: xlog, label: key }, { low: yl, high: yh, log: ylog });
  for (const { i, points } of lines) {
    make(f.plot, "path", { d: path(points.map((p) => [f.X(p[0]), p[1] === null ? null : f.Y(p[1])])), "data-method": i, ...stroke(i), opacity: 0.75 });
    for (const [x, y, best] of points) {
      if (y === null) { const a = f.X(x), b = f.top + 3 + (i % 4) * 5; make(f.plot, "path", { d: `M${a - 4} ${b - 4}l8 8m0 -8l-8 8`, stroke: color(i), "stroke-width": 1.8 }); continue; }
      marker(f.plot, i, f.X(x), f.Y(y), 3.2);
      if (best) make(f.plot, "circle", { cx: f.X(x), cy: f.Y(y), r: 8, fill: "none", stroke: color(i), "stroke-width": 2 });
    }
  }
  pointer(figure, f, lines, (x) => `${key} near ${figures(x)}`);
  figure.values = { head: ["method", key, "loss", "chosen"], rows: lines.flatMap(({ i, points }) => points.map((p) => [data.methods[i].id, p[0], p[1], p[2] ? 1 : 0])) };
}

// ---------------------------------------------------------------- switches

function legend() {
  data.methods.forEach((m, i) => entry($("legend"), i, m.label, m.id, true, (button) => {
    shown.has(i) ? shown.delete(i) : shown.add(i);
    button.setAttribute("aria-pressed", String(shown.has(i)));
    draw();
  }));
}

function controls() {
  const focus = document.activeElement, kept = focus && focus.name && [focus.name, focus.value];
  const named = (list) => Object.fromEntries(list.map((t, i) => [i, t.name ?? t]));
  const place = (id) => { $(id).replaceChildren(); return $(id); };
  const columns = data.tasks[state.task].columns;
  const splits = Object.fromEntries([["train", "train"], ["valid", "valid"], ["test", "test"]].filter(([k]) => columns.some((c) => c.startsWith(k + "_"))));
  if (!(state.split in splits)) state.split = Object.keys(splits)[0] ?? "train";
  control(place("ratio-controls"), "Ratio of", "ratio", RATIOS);
  const c = place("curve-controls");
  control(c, "Task", "task", named(data.tasks));
  control(c, "Against", "axis", AXES);
  control(c, "Data", "split", splits);
  control(c, "Scale", "scale", { log: "log", linear: "linear" });
  control(place("profile-controls"), "Time in", "profile", { gradient_evaluations: "gradient evaluations", seconds: "seconds" });
  const t = place("trial-controls");
  control(t, "Task", "tuned", named(data.tasks));
  control(t, "Option", "key", named(data.space));
  if (kept) document.querySelector(`input[name="${kept[0]}"][value="${kept[1]}"]`)?.focus();
}

function draw() {
  if (!data.tasks.length) return;
  ratios(); curves(); profiles(); trials();
  document.querySelectorAll("figure").forEach(exportable);
}

for (const input of document.querySelectorAll('input[name="theme"]'))
  input.addEventListener("change", () => {
    if (input.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = input.value;
  });
for (const input of document.querySelectorAll('input[name="moment"]'))
  input.addEventListener("change", () => { document.body.className = input.value; });
document.body.className = "end";
$("table-switch").hidden = false;
scrollHints();
if (data.tasks.length) {
  $("charts").hidden = false;
  legend(); controls(); draw();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}
})();
