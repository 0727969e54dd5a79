// Where learning happens: pass rates by what tasks have in common, and what became of each task.

import { chart } from "../../charts.js";
import { choice, el, empty, openingRow, refusal, replace } from "../../dom.js";
import { count, percent } from "../../numbers.js";
import { newest } from "../../questions.js";
import { heldout } from "./heldout.js";

const BY = { kind: "kind", difficulty: "difficulty", source: "source", first: "first pass rate" };
const NONE = "No graded group yet.";
const OUTCOMES = [
  ["never", "Never solved", "No answer of any group has passed: too hard, or its grader is wrong."],
  ["always", "Always solved", "Every answer of every group has passed: nothing is left to learn."],
  ["forgotten", "Forgotten", "At least half of the answers of a group passed, and none of the newest group."],
  ["learned", "Learned", "No answer of the first group passed, and at least half of the newest group."],
];

export async function tasks(view) {
  const { root, overview, ask } = view;
  const state = { by: localStorage.getItem("millrace.by") || "kind", figure: "rate", outcome: "" };
  const top = el("div", { class: "stack" });
  const answers = el("div", { class: "stack" });
  root.append(top, answers);
  let charts = [];
  const draw = newest(
    () => ask("/tasks", { by: state.by }),
    (found) => {
      charts.forEach((one) => one.destroy());
      charts = [];
      if (!found.labels.length) return void replace(top, el("div", { class: "panel" }, empty(NONE, "Rewards appear here by kind, difficulty and source of the tasks.")));
      if (!found.available.includes(state.by)) {
        [state.by] = found.available;
        return void draw();
      }
      charts = [curves(found, state)];
      replace(top, el("section", { class: "panel" }, el("div", { class: "bar" },
        choice("Sum up by", found.available.map((by) => [by, BY[by]]), state.by, (by) => choose("by", by)),
        choice("Figure", [["rate", "pass rate"], ["reward", "reward"]], state.figure, (figure) => choose("figure", figure))),
      charts[0].node, labels(found)), outcomes(found, state, choose, overview.run_id));
    },
    (problem) => replace(top, refusal(problem)));
  const choose = (name, value) => {
    state[name] = value;
    if (name === "by") localStorage.setItem("millrace.by", value);
    return draw();
  };
  await draw();
  const below = await heldout({ ...view, root: answers });
  return { async update() { await draw(); await below.update(); }, destroy() { charts.forEach((one) => one.destroy()); } };
}

function curves(found, state) {
  const title = state.figure === "rate" ? `Pass rate by ${BY[state.by]}` : `Mean reward by ${BY[state.by]}`;
  const help = state.figure === "rate" ? "Share of the answers to train tasks with a reward of 1 or more" : "Mean reward of the answers to train tasks";
  const series = found.labels.map((one) => ({ label: one.label, title: `${count(one.tasks)} tasks, ${count(one.groups)} groups`, values: one[state.figure] }));
  const settings = state.figure === "rate" ? { range: () => [0, 1], format: (value) => percent(value) } : {};
  return chart({ title, help, x: found.steps, series, height: 240, ...settings });
}

function labels(found) {
  const head = [["tasks", "Different tasks"], ["groups", "Graded sample groups"], ["early", "Pass rate of its groups in the first quarter of the train steps"], ["late", "Pass rate of its groups in the last quarter of the train steps"], ["change", "Late less early, in points"]];
  return el("div", { class: "scroll" }, el("table", { class: "labels" },
    el("thead", {}, el("tr", {}, el("th", {}, BY[found.by]), head.map(([name, help]) => el("th", { class: "number", title: help }, name)))),
    el("tbody", {}, found.labels.map((one) => el("tr", {}, el("td", {}, one.label), el("td", { class: "number" }, count(one.tasks)), el("td", { class: "number" }, count(one.groups)),
      el("td", { class: "number" }, percent(one.early)), el("td", { class: "number" }, percent(one.late)), el("td", { class: "number" }, one.early === null || one.late === null ? "–" : change(one.late - one.early)))))));
}

const change = (points) => el("span", { class: `verdict ${points > 0.005 ? "good" : points < -0.005 ? "bad" : ""}` }, `${points >= 0.005 ? "+" : ""}${Math.round(100 * points) || 0}`);

const groupsOf = (run, row) => `#/${encodeURIComponent(run)}/groups?task=${encodeURIComponent(row.task_id)}`;

function outcomes(found, state, choose, run) {
  const all = found.outcomes.all.count;
  state.outcome ||= (OUTCOMES.find(([name]) => found.outcomes[name].count) || OUTCOMES[0])[0];
  const [, , help] = OUTCOMES.find(([name]) => name === state.outcome);
  const { tasks: rows, count: total } = found.outcomes[state.outcome];
  return el("section", { class: "panel outcomes" }, el("h2", {}, `What became of ${count(all)} ${all === 1 ? "task" : "tasks"}`),
    choice("Outcome", OUTCOMES.map(([name, title]) => [name, `${title} ${count(found.outcomes[name].count)}`]), state.outcome, (name) => choose("outcome", name)),
    el("p", { class: "muted hint" }, help),
    rows.length ? el("div", { class: "scroll tall" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, "task"), ["groups", "first", "best", "newest"].map((name) => el("th", { class: "number" }, name)))),
      el("tbody", {}, rows.map((row) => openingRow(groupsOf(run, row), el("td", { class: "task" }, el("a", { href: groupsOf(run, row) }, row.task_id)),
        el("td", { class: "number" }, count(row.groups)), ["first", "best", "newest"].map((name) => el("td", { class: "number" }, percent(row[name])))))))) : empty("None."),
    total > rows.length ? el("p", { class: "muted" }, `The ${count(rows.length)} with most groups, of ${count(total)}.`) : null);
}
