"use strict";
// Sorts and filters the table, and draws profiles and ranks of what is left. The state is in the address, so that it can be linked.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const AXES = ["gradient evaluations", "seconds"];
const FARTHEST = 4, COLOURED = 10; // times the fastest; methods beside the baseline that have a colour
const body = $("board").tBodies[0], rows = [...body.rows], heads = [...$("board").tHead.rows[0].cells];
const state = { tasks: new Set(data.tasks.map((_, i) => i)), wanted: "", sort: 1, down: false, axis: 0 };
const off = new Set(); // of the profiles, by the legend

const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
const score = (times) => mean(times.map((t) => t === null ? 0 : Math.max(0, FARTHEST - t) / (FARTHEST - 1)));

/** Ranks and scores of a method on the tasks that are chosen. */
function summary(i) {
  const cells = [...state.tasks].map((t) => data.cells[i][t]).filter((c) => c);
  const times = [0, 1].map((axis) => mean(cells.filter((c) => c.times[axis].length).map((c) => score(c.times[axis]))));
  return { rank: mean(cells.map((c) => mean(c.ranks))), times, tasks: cells.length, blocks: mean(cells.map((c) => c.ranks.length)) };
}

const words = () => state.wanted.toLowerCase().split(",").map((w) => w.trim()).filter((w) => w);
const chosen = (i) => !words().length || words().some((w) => `${data.methods[i].id} ${data.methods[i].label}`.toLowerCase().includes(w));

function value(i, found) {
  if (state.sort === 0) return data.methods[i].label.toLowerCase();
  if (state.sort === 1) return found.rank;
  if (state.sort < 4) return found.times[state.sort - 2];
  const cell = data.cells[i][state.sort - 4];
  return cell ? cell.ratio : null;
}

function draw() {
  $("copied").replaceChildren();
  const found = rows.map((_, i) => summary(i));
  const order = rows.map((_, i) => i).sort((a, b) => {
    const [x, y] = [value(a, found[a]), value(b, found[b])];
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
  });
  for (const i of order) {
    const row = rows[i], numbers = [found[i].rank, ...found[i].times];
    numbers.forEach((v, k) => { row.cells[k + 1].textContent = v === null ? "–" : v.toFixed(2); });
    data.tasks.forEach((_, t) => { row.cells[t + 4].hidden = !state.tasks.has(t); });
    row.hidden = !chosen(i);
    body.appendChild(row);
  }
  heads.forEach((head, k) => {
    head.hidden = k >= 4 && !state.tasks.has(k - 4);
    head.setAttribute("aria-sort", k !== state.sort ? "none" : state.down ? "descending" : "ascending");
  });
  const left = order.filter((i) => chosen(i) && found[i].rank !== null);
  profiles(found, left);
  ranks(found, left);
  document.querySelectorAll("figure").forEach(exportable);
  remember();
}

/** Every task counts the same, and so does every seed of it. */
function runsOf(i) {
  const tasks = [...state.tasks].map((t) => data.cells[i][t]).filter((c) => c).map((c) => c.times[state.axis]).filter((times) => times.length);
  return tasks.flatMap((times) => times.map((t) => [t, 1 / times.length / tasks.length]));
}

function profiles(found, order) {
  const figure = $("profile-chart"), legend = $("legend");
  legend.replaceChildren();
  const lines = order.filter((i) => found[i].times[state.axis] !== null).sort((a, b) => found[b].times[state.axis] - found[a].times[state.axis]);
  const unit = AXES[state.axis];
  const f = frame(figure, "Share of runs that reached the target", { low: 1, high: FARTHEST, label: `times the ${unit} of the fastest` }, { low: 0, high: 1.02, format: (v) => `${Math.round(100 * v)} %` });
  const others = lines.filter((i) => data.methods[i].id !== data.baseline);
  const colours = new Map(others.slice(0, COLOURED).map((i, k) => [i, k + 1]));
  for (const i of lines) if (data.methods[i].id === data.baseline) colours.set(i, 0);
  for (const i of others.slice(COLOURED)) {
    const line = make(f.plot, "path", { d: path(profilePath(f, runsOf(i))), "data-method": data.methods[i].id, fill: "none", stroke: "var(--line)", "stroke-width": 1.2 });
    make(line, "title", {}, data.methods[i].label);
  }
  for (const [i, k] of [...colours].sort((a, b) => a[1] - b[1])) {
    entry(legend, k, data.methods[i].label, data.methods[i].id, !off.has(i), () => { off.has(i) ? off.delete(i) : off.add(i); draw(); });
    if (!off.has(i)) make(profileLine(f, k, runsOf(i)), "title", {}, data.methods[i].label);
  }
  $("profile-rest").hidden = others.length <= COLOURED;
  figure.values = { head: ["method", `times the ${unit} of the fastest`], rows: lines.flatMap((i) => runsOf(i).map(([t]) => [data.methods[i].id, t === null ? "inf" : t])) };
}

function ranks(found, order) {
  const figure = $("rank-chart");
  figure.replaceChildren();
  const lines = [...order].sort((a, b) => found[a].rank - found[b].rank);
  if (!lines.length) { make(figure, "p", { class: "quiet" }, "No method matches the filter."); return; }
  const em = rem();
  const width = Math.max(figure.clientWidth, 200), step = 1.5 * em, left = Math.min(14 * em, width * 0.42), right = width - 1.5 * em;
  const height = (lines.length + 2.2) * step, most = rows.length;
  // Nemenyi's difference is of methods that have run the same tasks and seeds.
  const complete = lines.filter((i) => found[i].tasks === state.tasks.size);
  const whole = complete.length ? Math.min(...complete.map((i) => found[i].blocks)) * state.tasks.size : 0;
  const critical = data.critical[most] !== null && whole ? data.critical[most] / Math.sqrt(whole) : null;
  const X = (v) => left + (v - 1) / Math.max(most - 1, 1) * (right - left);
  const svg = make(figure, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Mean ranks" });
  for (let v = 1; v <= most; v += Math.max(1, Math.ceil(most / 10))) {
    make(svg, "line", { x1: X(v), x2: X(v), y1: step * 0.9, y2: height - step, stroke: "var(--grid)" });
    make(svg, "text", { x: X(v), y: height - 0.3 * step, "text-anchor": "middle", class: "tick" }, String(v));
  }
  figure.values = { head: ["method", "mean rank", "critical difference"], rows: lines.map((i) => [data.methods[i].id, found[i].rank, complete.includes(i) ? critical : null]) };
  lines.forEach((i, k) => {
    const y = (k + 1.2) * step, at = found[i].rank, text = data.methods[i].label;
    const row = make(svg, "g", { "data-method": i });
    clipped(row, text, 0, y + 0.3 * em, left - em, "start");
    if (critical !== null && complete.includes(i)) make(row, "line", { x1: X(Math.max(1, at - critical / 2)), x2: X(Math.min(most, at + critical / 2)), y1: y, y2: y, stroke: "var(--m9)", "stroke-width": 0.4 * em, opacity: 0.35 });
    const dot = make(row, "circle", { cx: X(at), cy: y, r: 0.32 * em, fill: "var(--m9)" });
    make(dot, "title", {}, `${text}: ${at.toFixed(2)}`);
  });
}

// ---------------------------------------------------------------- the address, and the view as a file

function remember() {
  const parts = new URLSearchParams();
  if (state.tasks.size < data.tasks.length) parts.set("tasks", [...state.tasks].map((t) => data.tasks[t]).join("|"));
  if (state.wanted) parts.set("methods", state.wanted);
  if (state.sort !== 1 || state.down) parts.set("sort", `${state.sort}${state.down ? "d" : ""}`);
  if (state.axis) parts.set("time", "seconds");
  const hash = parts.toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const names = parts.has("tasks") ? parts.get("tasks").split("|") : data.tasks;
  state.tasks = new Set(data.tasks.map((t, i) => names.includes(t) ? i : -1).filter((i) => i >= 0));
  state.wanted = parts.get("methods") || "";
  const sort = /^(\d+)(d?)$/.exec(parts.get("sort") || "1") || ["", "1", ""];
  state.sort = Math.min(Number(sort[1]), heads.length - 1);
  state.down = sort[2] === "d";
  state.axis = parts.get("time") === "seconds" ? 1 : 0;
  document.querySelectorAll("input[name=time]").forEach((input, axis) => { input.checked = state.axis === axis; });
  $("wanted").value = state.wanted;
  document.querySelectorAll("#tasks input").forEach((box, t) => { box.checked = state.tasks.has(t); });
}

function asCsv() {
  const [head, ...rest] = [$("board").tHead.rows[0], ...body.rows].filter((row) => !row.hidden)
    .map((row) => [...row.cells].filter((c) => !c.hidden).map((c) => [...c.childNodes].map((n) => n.textContent).join(" ").trim()));
  saved("leaderboard-view.csv", `data:text/csv;charset=utf-8,${encodeURIComponent(table({ head, rows: rest }))}`);
}

/** A page that is opened as a file, or without TLS, may have no clipboard: then the link is shown, and selected. */
async function copyLink() {
  const said = $("copied");
  try {
    await navigator.clipboard.writeText(location.href);
    said.replaceChildren("Copied.");
  } catch {
    said.replaceChildren("Copy this: ");
    const field = make(said, "input", { readonly: "", "aria-label": "Link to this view" });
    field.value = location.href;
    field.select();
  }
}

data.tasks.forEach((task, t) => {
  const label = make($("tasks"), "label");
  const box = make(label, "input", { type: "checkbox" });
  box.addEventListener("change", () => { box.checked ? state.tasks.add(t) : state.tasks.delete(t); draw(); });
  label.append(` ${task}`);
});
$("wanted").addEventListener("input", (event) => { state.wanted = event.target.value; draw(); });
$("csv").addEventListener("click", asCsv);
$("copy").addEventListener("click", copyLink);
heads.forEach((head, k) => head.firstElementChild.addEventListener("click", () => {
  state.down = state.sort === k ? !state.down : k === 2 || k === 3;
  state.sort = k;
  draw();
}));
document.querySelectorAll("input[name=theme]").forEach((input) => input.addEventListener("change", () => {
  if (input.value === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = input.value;
}));
document.querySelectorAll("input[name=time]").forEach((input, axis) => input.addEventListener("change", () => { state.axis = axis; draw(); }));
addEventListener("hashchange", () => { recall(); draw(); });
addEventListener("resize", draw);
$("filters").hidden = false;
recall();
draw();
scrollHints();
})();
