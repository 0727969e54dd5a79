// Every run with its figures; the chosen ones go side by side.

import { el, empty, openingRow, replace } from "../dom.js";
import { ago } from "../numbers.js";
import { ask } from "../questions.js";

const COLUMNS = ["state", "pass_final", "pass_best", "steps", "elapsed_s", "model", "algorithm"];
const SEARCHED = ["state", "model", "algorithm", "schedule"];
const LOOK_MS = 5000;

export const runAddress = (run) => `#/${encodeURIComponent(run)}/learning`;
export const compareAddress = (ids, more = {}) => `#/?${new URLSearchParams([...ids.map((id) => ["run", id]), ...Object.entries(more)])}`;

export const isNumeric = (list, name) => list.some((run) => typeof run.values[name] === "number");

export function runs(root, found) {
  if (!found.runs.length) {
    root.append(empty("No run yet.", "Start one with `millrace run RUN.yaml`; it appears here."));
    return again(found, () => dispatchEvent(new HashChangeEvent("hashchange")));
  }
  const state = { found, chosen: new Set(), sort: "begun_at", down: true, text: "" };
  const body = el("div", { class: "scroll" });
  const open = el("button", { type: "button", class: "main-button", onclick: () => { location.hash = compareAddress([...state.chosen]); } });
  const chosen = () => {
    open.disabled = state.chosen.size < 2;
    open.textContent = state.chosen.size < 2 ? "Compare: choose two or more" : `Compare ${state.chosen.size} runs`;
  };
  const draw = () => replace(body, table(state, draw, chosen));
  const search = el("input", { type: "search", placeholder: "run, model, algorithm or state", "aria-label": "Show runs whose name, model, algorithm or state contains", oninput: () => { state.text = search.value.toLowerCase(); draw(); } });
  root.append(el("section", { class: "panel" }, el("div", { class: "run-tools" }, el("h2", {}, "Runs"), search, open), body));
  draw();
  chosen();
  return again(found, (newer) => { state.found = newer; draw(); });
}

// Looks again as long as the view is there, and draws only what has changed.
export function again(first, draw, question = () => ask("runs")) {
  let last = JSON.stringify(first);
  const look = async () => {
    if (document.hidden) return;
    try {
      const found = await question();
      const text = JSON.stringify(found);
      if (text === last) return;
      last = text;
      draw(found);
    } catch {
      // As it was last; the next look asks again.
    }
  };
  const clock = setInterval(look, LOOK_MS);
  return { update: look, saw(found) { last = JSON.stringify(found); }, destroy() { clearInterval(clock); } };
}

function table(state, draw, chosen) {
  const heads = new Map(state.found.figures.map((one) => [one.name, one]));
  const rows = sorted(state.found.runs.filter((run) => fits(run, state.text)), state);
  const head = (name, title, help) => el("th", { class: COLUMNS.includes(name) && isNumeric(state.found.runs, name) ? "number" : null, "aria-sort": state.sort === name ? (state.down ? "descending" : "ascending") : null },
    el("button", { type: "button", class: "sort", title: help, onclick: () => { state.down = state.sort === name ? !state.down : isNumeric(state.found.runs, name); state.sort = name; draw(); } }, title));
  return el("table", { class: "runs" },
    el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "unseen" }, "compare")), head("run_id", "run"), COLUMNS.map((name) => head(name, heads.get(name).title, heads.get(name).definition)), head("begun_at", "begun"))),
    el("tbody", {}, rows.length ? rows.map((run) => row(run, state, chosen)) : el("tr", {}, el("td", { colspan: COLUMNS.length + 3, class: "muted" }, "No run fits."))));
}

const fits = (run, text) => !text || [run.run_id, ...SEARCHED.map((name) => run.texts[name])].some((one) => one.toLowerCase().includes(text));

// Runs without a value come last, whichever way the others go.
function sorted(rows, { sort, down }) {
  const way = down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [one.values[sort], other.values[sort]];
    if (a === b) return 0;
    if (a === null || b === null) return a === null ? 1 : -1;
    return way * (a < b ? -1 : 1);
  });
}

function row(run, state, chosen) {
  const id = run.run_id;
  const choose = el("input", { type: "checkbox", checked: state.chosen.has(id), "aria-label": `Compare ${id}`, onchange: () => {
    choose.checked &&= state.chosen.size < state.found.most_compared;
    if (choose.checked) state.chosen.add(id);
    else state.chosen.delete(id);
    chosen();
  } });
  const cell = (name) => el("td", { class: isNumeric(state.found.runs, name) ? "number" : "word" },
    name === "state" ? el("span", { class: `state ${run.values.state}` }, run.texts.state) : run.texts[name]);
  return openingRow(runAddress(id),
    el("td", { class: "choose" }, el("label", {}, choose)),
    el("td", { class: "run-name" }, el("a", { href: runAddress(id) }, id)),
    COLUMNS.map(cell), el("td", { class: "muted" }, run.values.begun_at ? ago(run.values.begun_at) : ""));
}
