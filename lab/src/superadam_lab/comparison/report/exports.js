// Below each chart: its picture as SVG and PNG, its numbers as CSV.
function exportable(figure) {
  const svg = figure.querySelector("svg");
  if (!svg) return;
  const bar = document.createElement("div");
  bar.className = "exports";
  const button = (name, act) => {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = name;
    b.setAttribute("aria-label", `${svg.getAttribute("aria-label")}, as ${name}`);
    b.addEventListener("click", act);
    bar.appendChild(b);
  };
  button("SVG", () => saved(`${figure.id}.svg`, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg).text)}`));
  button("PNG", () => pixels(svg, (url) => saved(`${figure.id}.png`, url)));
  if (figure.values) button("CSV", () => saved(`${figure.id}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(table(figure.values))}`));
  figure.appendChild(bar);
}

function saved(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.appendChild(link);
  link.click();
  link.remove();
}

function table({ head, rows }) {
  const cell = (v) => v === null || v === undefined ? "" : typeof v === "number" ? String(v) : `"${String(v).replaceAll('"', '""')}"`;
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function set(e, attributes) {
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

/** A copy with the colours and letters that the page gives it. */
function painted(original) {
  const copy = original.cloneNode(true), theirs = [copy, ...copy.querySelectorAll("*")];
  [original, ...original.querySelectorAll("*")].forEach((e, i) => {
    const style = getComputedStyle(e);
    for (const name of ["fill", "stroke"]) if (style[name] !== "none" || e.hasAttribute(name)) theirs[i].setAttribute(name, style[name]);
    if (e.tagName !== "text") return;
    for (const name of ["font-size", "font-weight", "font-family", "paint-order", "stroke-width"]) theirs[i].setAttribute(name, style.getPropertyValue(name));
  });
  return copy;
}

/** The methods that are shown, below a chart that does not name them. Returns the height that they take. */
function named(copy, width, top) {
  const letters = getComputedStyle(document.getElementById("legend")), em = parseFloat(letters.fontSize) * 0.8;
  let x = 0, y = top + em;
  for (const button of document.querySelectorAll('#legend button[aria-pressed="true"]')) {
    const label = button.textContent, wide = 42 + 0.66 * em * label.length + 1.4 * em;
    if (x > 0 && x + wide > width) { x = 0; y += 1.7 * em; }
    const group = set(document.createElementNS(SVG, "g"), { transform: `translate(${x} ${y - 8})` });
    for (const e of button.querySelector("svg").children) group.appendChild(painted(e));
    const text = set(document.createElementNS(SVG, "text"), { x: 42, y: 8 + 0.35 * em, fill: letters.color, "font-size": em, "font-family": letters.fontFamily });
    text.textContent = label;
    group.appendChild(text);
    copy.appendChild(group);
    x += wide;
  }
  return y + em - top;
}

/** The picture by itself. */
function standalone(svg) {
  const copy = painted(svg), box = svg.viewBox.baseVal;
  copy.querySelectorAll(".cross").forEach((e) => e.remove());
  const height = box.height + (svg.querySelector("g[data-method] text") ? 0 : named(copy, box.width, box.height));
  const ground = set(document.createElementNS(SVG, "rect"), { width: box.width, height, fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(ground);
  set(copy, { xmlns: SVG, width: box.width, height, viewBox: `0 0 ${box.width} ${height}` });
  return { text: new XMLSerializer().serializeToString(copy), width: box.width, height };
}

function pixels(svg, done) {
  const image = new Image(), { text, width, height } = standalone(svg), times = 2;
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = times * width;
    canvas.height = times * height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    done(canvas.toDataURL("image/png"));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}
