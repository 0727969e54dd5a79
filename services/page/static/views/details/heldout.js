// Answers to held-out tasks, those of two evaluations next to each other.

import { el, empty, refusal, replace } from "../../dom.js";
import { count, number } from "../../numbers.js";
import { pages } from "../../pages.js";
import { newest } from "../../questions.js";

const ROWS = 20;
const CHANGES = [["", "all"], ["gained", "passes now"], ["lost", "passed before"], ["both", "passes at both"], ["neither", "passes at neither"]];

export async function heldout({ root, ask }) {
  const state = { name: "", before: "", after: "", change: "", offset: 0 };
  const box = el("section", { class: "panel" }, el("h2", {}, "Held-out answers, before and after"));
  const body = el("div", {});
  box.append(body);
  root.append(box);
  let shown = "";
  const isNew = (found) => shown !== (shown = JSON.stringify(found)); // an open list of choices stays open
  const draw = newest(
    () => ask("/heldout", { ...state, limit: ROWS }),
    (found) => isNew(found) && replace(body, found.before === null ? empty("No held-out answer is kept.", "Runs keep the first answer to each held-out task since this version.") : [filters(found, state, choose), found.total ? found.tasks.map(pair) : empty("No task fits.", "Choose another condition."), found.total > ROWS ? pages(state, found.total, draw, { rows: ROWS }) : null]),
    (problem) => replace(body, refusal(problem)));
  const choose = (name, value) => {
    Object.assign(state, { offset: 0, [name]: value });
    if (name === "name") Object.assign(state, { before: "", after: "" });
    draw();
  };
  await draw();
  return { update: draw };
}

function filters(found, state, choose) {
  const select = (name, label, options, chosen) => el("label", {}, label, el("select", { "aria-label": label, onchange: (event) => choose(name, event.target.value) },
    options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text))));
  const steps = found.steps.map((step) => [step, step ? `after step ${count(step)}` : "before training"]);
  return el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    found.sets.length > 1 ? select("name", "held-out set", found.sets.map((one) => [one, one]), found.name) : null,
    select("before", "left", steps, found.before), select("after", "right", steps, found.after),
    select("change", "tasks", CHANGES.map(([value, text]) => [value, value ? `${text} (${count(found.counts[value])})` : text]), state.change));
}

function pair(task) {
  return el("article", { class: `answer-pair ${task.change}` },
    el("p", { class: "prompt" }, el("span", { class: "muted" }, `${task.task_id} `), (task.before || task.after || {}).prompt || ""),
    el("div", { class: "pair" }, answer(task.before), answer(task.after)));
}

function answer(line) {
  if (!line) return el("div", { class: "answer-box muted" }, "not kept");
  return el("div", { class: "answer-box" }, el("pre", {}, line.answer || "(empty)"),
    el("p", { class: "muted", title: line.detail || null }, el("span", { class: `verdict ${line.reward > 0 ? "good" : "bad"}` }, line.verdict), ` reward ${number(line.reward)}, ${count(line.tokens)} tokens`));
}
