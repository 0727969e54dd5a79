// Trajectories that were kept: a list, and one of them token by token.

import { el, empty, openingRow, panel, refusal, replace } from "../dom.js";
import { count, fixed, number } from "../numbers.js";
import { pages } from "../pages.js";
import { newest } from "../questions.js";
import { tokens } from "./tokens.js";

const ROWS = 50;

export async function trajectories(view) {
  return view.here.rest[0] !== undefined ? one(view) : list(view);
}

const link = (run, ...parts) => `#/${[run, ...parts].map(encodeURIComponent).join("/")}`;

async function list({ root, overview, here, ask }) {
  const asked = here.parameters;
  const state = { step: asked.get("step") || "", group: asked.get("group") || "", verdict: asked.get("verdict") || "", mixed: "", offset: 0 };
  const body = el("div", { class: "panel table-panel" });
  const draw = newest(
    () => ask("/trajectories", { ...state, limit: ROWS }),
    (found) => replace(body, found.total
      ? [trajectoryTable(found.trajectories, overview.run_id), pages(state, found.total, draw, { rows: ROWS })]
      : empty("No trajectory fits.", "Of each train step the trajectories of a few groups are kept (orchestrator.sample_trajectories).")),
    (problem) => replace(body, refusal(problem)));
  root.append(filters(state, overview.verdicts || [], draw), body);
  await draw();
  return { update: draw, destroy() {} };
}

function filters(state, verdicts, draw) {
  const changed = (name, value) => { state[name] = value; state.offset = 0; draw(); };
  const field = (name, label) => {
    let waiting = 0;
    return el("label", {}, label, el("input", { type: "number", min: 0, value: state[name], oninput: (event) => { clearTimeout(waiting); waiting = setTimeout(changed, 200, name, event.target.value); } }));
  };
  return el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    field("step", "train step"), field("group", "group"),
    el("label", {}, "verdict", el("select", { onchange: (event) => changed("verdict", event.target.value) },
      ["", ...verdicts].map((one) => el("option", { value: one, selected: one === state.verdict }, one || "all")))),
    el("label", { class: "check" }, el("input", { type: "checkbox", onchange: (event) => changed("mixed", event.target.checked ? "true" : "") }), "several policy versions"));
}

export function trajectoryTable(rows, run) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["step", "group"].map((name) => el("th", { class: "number" }, name)), el("th", {}, "prompt"), el("th", {}, "answer"), el("th", {}, "verdict"),
      ["reward", "advantage", "tokens", "versions"].map((name) => el("th", { class: "number" }, name)))),
    el("tbody", {}, rows.map((row) => openingRow(link(run, "trajectories", row.number),
      el("td", { class: "number" }, String(row.step)), el("td", { class: "number" }, el("a", { href: link(run, "groups", row.group) }, String(row.group))),
      el("td", { class: "text" }, row.prompt),
      el("td", { class: "text mono" }, el("a", { href: link(run, "trajectories", row.number) }, row.answer || "(empty)")),
      el("td", {}, el("span", { class: `verdict ${row.reward > 0 ? "good" : "bad"}` }, row.verdict)),
      el("td", { class: "number" }, number(row.reward)), el("td", { class: "number" }, fixed(row.advantage, 2)),
      el("td", { class: "number" }, count(row.tokens)), el("td", { class: "number" }, (row.policy_versions || []).join(", ")))))));
}

async function one({ root, overview, here, ask }) {
  const run = overview.run_id;
  const line = await ask(`/trajectories/${encodeURIComponent(here.rest[0])}`);
  const facts = [["train step", line.step], ["group", line.group], ["task", line.task_id], ["reward", number(line.reward)], ["advantage", fixed(line.advantage, 3)],
    ["verdict", line.verdict], ["tokens", count(line.tokens)], ["policy versions", (line.policy_versions || []).join(", ")], ["ended by", line.finish_reason]];
  root.append(
    el("p", { class: "crumbs" }, el("a", { href: link(run, "trajectories") }, "Trajectories"), " / ", el("a", { href: link(run, "groups", line.group) }, `group ${line.group}`), ` / ${line.trajectory ?? line.number}`),
    el("dl", { class: "facts panel" }, facts.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    panel("Prompt", (line.messages || []).map((message) => el("div", { class: "message" }, el("span", { class: "role" }, String(message.role)), el("pre", {}, content(message.content))))),
    line.token_ids ? tokens(line) : panel("Answer", el("pre", { class: "answer" }, line.answer), el("p", { class: "muted" }, "Of this run only texts are kept.")),
    line.detail ? panel("What the grader said", el("pre", {}, line.detail)) : "");
  return { async update() {}, destroy() {} };
}

const content = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
