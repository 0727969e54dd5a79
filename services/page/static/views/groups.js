// Every sample group of the ledger, a page at a time.

import { el, empty, openingRow, refusal, replace } from "../dom.js";
import { figures } from "../figures.js";
import { count, fixed } from "../numbers.js";
import { pages } from "../pages.js";
import { newest } from "../questions.js";

const ROWS = 50;
const STATUSES = ["trained", "filtered", "expired", "failed", "in_flight"];

export async function groups({ root, overview, here, ask }) {
  const state = { status: here.parameters.get("status") || "", step: here.parameters.get("step") || "", task: here.parameters.get("task") || "", sort: "newest", offset: 0 };
  const body = el("div", { class: "panel table-panel" });
  const meanings = await figures();
  const draw = newest(
    () => ask("/groups", { ...state, limit: ROWS }),
    (found) => replace(body, found.total ? [table(found.groups, overview.run_id, meanings), pages(state, found.total, draw, { rows: ROWS })] : empty("No sample group fits.", "Choose fewer conditions.")),
    (problem) => replace(body, refusal(problem)));
  root.append(filters(state, draw), body);
  await draw();
  return { update: draw, destroy() {} };
}

function filters(state, draw) {
  const again = (name, input) => () => { state[name] = input.value; state.offset = 0; draw(); };
  const select = (name, label, values) => {
    const input = el("select", { "aria-label": label }, values.map(([value, text]) => el("option", { value, selected: state[name] === value }, text)));
    input.addEventListener("change", again(name, input));
    return el("label", {}, label, input);
  };
  const field = (name, label, type) => {
    const input = el("input", { type, value: state[name], min: 0, "aria-label": label });
    let waiting = 0;
    input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(again(name, input), 200); });
    return el("label", {}, label, input);
  };
  return el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    select("status", "status", [["", "all"], ...STATUSES.map((one) => [one, one.replace("_", " ")])]),
    field("step", "train step", "number"),
    field("task", "task contains", "search"),
    select("sort", "order", [["newest", "newest first"], ["oldest", "oldest first"], ["tokens", "most tokens first"]]));
}

const HEADS = [
  ["group", "Its number, in the order of admission", true], ["task", "Id of its task"], ["status", "What became of it"],
  ["rewards", "A cell for each answer, as full as its reward, and their mean"], ["step", "Train step that closed it", true],
  ["version", "Oldest policy version of its tokens", true], ["attempts", "How often it was sampled", true], ["tokens", "Response tokens of all attempts", true],
];

function table(rows, run, meanings) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, HEADS.map(([name, help, isNumber]) => el("th", { class: isNumber ? "number" : null, title: help }, name)))),
    el("tbody", {}, rows.map((row) => openingRow(groupAddress(run, row.group_id),
      el("td", { class: "number" }, el("a", { href: groupAddress(run, row.group_id) }, String(row.group_id))),
      el("td", { class: "task" }, row.task_id),
      el("td", {}, el("span", { class: `status ${row.status}`, title: meanings[`ledger.${row.status}`] }, row.status.replace("_", " ")), row.reason ? el("small", { class: "muted" }, ` ${row.reason}`) : null),
      el("td", {}, strip(row.result)),
      el("td", { class: "number" }, row.train_step === null ? "–" : String(row.train_step)),
      el("td", { class: "number" }, row.oldest_version === null ? "–" : String(row.oldest_version)),
      el("td", { class: "number" }, String(row.attempts)),
      el("td", { class: "number" }, count(row.tokens)))))));
}

const groupAddress = (run, group) => `#/${encodeURIComponent(run)}/groups/${group}`;

// A cell for each trajectory, as full as its reward.
function strip(result) {
  if (!result) return "–";
  const { rewards } = result;
  const top = Math.max(1, ...rewards);
  const mean = rewards.reduce((sum, one) => sum + one, 0) / Math.max(1, rewards.length);
  const cells = rewards.slice(0, 64).map((reward) => el("span", { class: "cell", style: { background: `color-mix(in srgb, var(--green) ${Math.round(100 * Math.max(0, reward) / top)}%, var(--line))` } }));
  return el("span", { class: "strip", title: `rewards ${rewards.map((one) => fixed(one, 2)).join(", ")}` }, cells, el("span", { class: "mean" }, fixed(mean, 2)));
}
