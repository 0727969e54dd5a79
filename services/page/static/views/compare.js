// Runs side by side: figures, what differs between their run files, curves over each other.

import { AXES, chart, PALETTE, placed, shareRange } from "../charts.js";
import { choice, el, panel, refusal, replace } from "../dom.js";
import { count, duration, number, percent } from "../numbers.js";
import { ask, file, newest } from "../questions.js";
import { again, compareAddress, isNumeric, runAddress } from "./runs.js";

const FORMATS = { share: (v) => percent(v, 1), seconds: duration, count };
const WAIT_MS = 120;

export async function compare(root, here, others) {
  const ids = here.parameters.getAll("run");
  const state = { by: here.parameters.get("by") in AXES ? here.parameters.get("by") : "step", smoothing: Number(here.parameters.get("smoothing")) || 0 };
  const question = async () => {
    const asked = { ...state };
    return { asked, ...(await ask("compare", { run: ids, ...asked })) };
  };
  const [table, keys, body] = [el("div", {}), el("div", {}), el("div", {})];
  let charts = [];
  let clock = null;
  const show = (found) => {
    if (found.asked.by !== state.by || found.asked.smoothing !== state.smoothing) return; // an answer that was overtaken
    clock?.saw(found);
    replace(table, panel("Runs, the best first", runTable(found, ids, state), tools(ids, others, state)));
    replace(keys, changed(found));
    const y = scrollY;
    charts.forEach((one) => one.destroy());
    charts = found.charts.map((one) => drawn(one, found.runs, state.by));
    replace(body, el("div", { class: "grid" }, charts.map((one) => el("div", { class: "panel" }, one.node))));
    scrollTo({ top: y });
  };
  const draw = newest(question, show, (problem) => replace(table, refusal(problem)));
  const kept = () => { history.replaceState(null, "", compareAddress(ids, state)); draw(); };
  const found = await question();
  root.append(table, keys, controls(state, kept), body);
  show(found);
  clock = again(found, show, question);
  return { ...clock, destroy() { clock.destroy(); charts.forEach((one) => one.destroy()); } };
}

const paintOf = (letter) => {
  const place = letter.charCodeAt(0) - 65;
  return { colour: PALETTE[place % PALETTE.length], dash: [undefined, [8, 3], [2, 3], [10, 3, 2, 3]][Math.floor(place / PALETTE.length)] };
};

const badge = (run) => el("span", { class: "letter", title: run.run_id, style: { background: `var(--${paintOf(run.letter).colour})` } }, run.letter);

function runTable({ runs, figures }, ids, state) {
  const without = (id) => compareAddress(ids.filter((one) => one !== id), state);
  return el("div", { class: "scroll" }, el("table", { class: "compared" },
    el("thead", {}, el("tr", {}, el("th", {}, ""), el("th", {}, "run"), figures.map((one) => el("th", { class: isNumeric(runs, one.name) ? "number" : null, title: one.definition }, one.title)), el("th", {}, ""))),
    el("tbody", {}, runs.map((run) => el("tr", {},
      el("td", {}, badge(run)),
      el("td", { class: "run-name" }, el("a", { href: runAddress(run.run_id) }, run.run_id)),
      figures.map((one) => el("td", { class: isNumeric(runs, one.name) ? "number" : "word" },
        one.name === "state" ? el("span", { class: `state ${run.values.state}` }, run.texts.state)
          : el("span", { class: run.best.includes(one.name) ? "best" : null, title: run.best.includes(one.name) ? "the best of these" : null }, run.texts[one.name]))),
      el("td", {}, runs.length > 1 ? el("a", { href: without(run.run_id), "aria-label": `Leave out ${run.run_id}`, title: "leave out" }, "✕") : null))))));
}

function tools(ids, others, state) {
  const left = others.filter((id) => !ids.includes(id));
  const add = el("select", { "aria-label": "Add a run", onchange: () => { if (add.value) location.hash = compareAddress([...ids, add.value], state); } },
    el("option", { value: "" }, "Add a run …"), left.map((id) => el("option", { value: id }, id)));
  return el("div", { class: "run-tools" }, left.length ? add : null,
    el("button", { type: "button", onclick: () => save(ids, state.smoothing) }, "Save as one file"));
}

async function save(ids, smoothing) {
  const link = el("a", { href: URL.createObjectURL(await file("report", { run: ids, smoothing })), download: ids.length === 1 ? `${ids[0]}.html` : `${ids.length}-runs.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function changed({ runs, changed: rows }) {
  if (runs.length < 2) return null;
  if (!rows.length) return panel("Changed keys", el("p", { class: "muted" }, "The run files are the same."));
  return panel("Changed keys", el("div", { class: "scroll" }, el("table", { class: "keys" },
    el("thead", {}, el("tr", {}, el("th", {}, "key"), runs.map((run) => el("th", {}, badge(run))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "mono" }, row.key), row.values.map((value) => el("td", { class: "mono word", title: value }, value))))))));
}

function controls(state, kept) {
  const axes = choice("Horizontal axis", Object.entries(AXES).map(([by, [title]]) => [by, title]), state.by, (by) => { state.by = by; kept(); });
  const told = el("output", {}, state.smoothing.toFixed(2));
  let waiting = 0;
  const slider = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing, "aria-label": "Smoothing", oninput: () => {
    state.smoothing = Number(slider.value);
    told.textContent = state.smoothing.toFixed(2);
    clearTimeout(waiting);
    waiting = setTimeout(kept, WAIT_MS);
  } });
  return el("div", { class: "compare-tools" }, axes, el("label", { title: "Weight of the steps before in a moving average" }, "smoothing", slider, told));
}

function drawn({ curve, dots, lines }, runs, by) {
  const shown = runs.filter((run) => lines[run.letter]);
  const x = [...new Set(shown.flatMap((run) => lines[run.letter].x))].sort((a, b) => a - b);
  const series = shown.flatMap((run) => {
    const line = lines[run.letter];
    const place = (values) => (dots ? placed : between)(x, line.x, values);
    const own = { label: run.letter, title: run.run_id, points: dots, ...paintOf(run.letter) };
    if (!line.smooth.length) return [{ ...own, values: place(line.y), carry: dots }];
    return [{ ...own, values: place(line.y), faint: true }, { ...own, values: place(line.smooth) }];
  });
  const range = curve.unit !== "share" ? undefined : dots ? () => [0, 1] : shareRange;
  return chart({ title: curve.title, help: curve.definition, x, series, xFormat: AXES[by][1], range, format: FORMATS[curve.unit] || number, height: 190 });
}

// The line between its points, at the places of all lines; nothing before its first and after its last.
function between(x, from, values) {
  let i = 0;
  return x.map((place) => {
    if (place < from[0] || place > from.at(-1)) return null;
    while (i < from.length - 2 && from[i + 1] < place) i += 1;
    if (place === from[i] || from.length === 1) return values[i];
    const share = (place - from[i]) / (from[i + 1] - from[i] || 1);
    return values[i] + share * (values[i + 1] - values[i]);
  });
}
