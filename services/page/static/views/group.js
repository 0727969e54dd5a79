// One sample group: the rewards and advantages of its trajectories, and those that are kept.

import { el, empty, panel } from "../dom.js";
import { count, duration, fixed, number } from "../numbers.js";
import { trajectoryTable } from "./trajectories.js";

export async function group({ root, overview, here, ask }) {
  const found = await ask(`/groups/${encodeURIComponent(here.rest[0])}`);
  const { result } = found;
  const facts = [["task", found.task_id], ["status", found.status.replace("_", " ")], ["reason", found.reason], ["train step", found.train_step], ["attempts", found.attempts],
    ["admitted at version", found.admitted_version], ["oldest version", found.oldest_version], ["tokens", count(found.tokens)],
    ["rollout", result ? duration(result.rollout_s) : null], ["scored after", result ? duration(result.score_s) : null], ["not graded", result?.ungraded || null]];
  root.append(
    el("p", { class: "crumbs" }, el("a", { href: `#/${encodeURIComponent(overview.run_id)}/groups` }, "Groups"), ` / ${found.group_id}`),
    el("dl", { class: "facts panel" }, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    result ? panel("Rewards and advantages", bars(result)) : panel("Rewards and advantages", empty("Not scored yet, or from before rewards were kept.")),
    found.trajectories.length ? panel("Trajectories that are kept", trajectoryTable(found.trajectories.toReversed(), overview.run_id)) : panel("Trajectories", empty("None of this group is kept.", "Those of a few groups of each step are.")));
  return { async update() {}, destroy() {} };
}

// An answer's named rewards, where its grader gave several.
const names = (result, i) => Object.entries(result.named_rewards?.[i] ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");

function bars(result) {
  const top = Math.max(1e-9, ...result.rewards.map(Math.abs));
  const far = Math.max(1e-9, ...result.advantages.map((value) => Math.abs(value ?? 0)));
  const bar = (value, most, paint) => el("span", { class: "bar-cell" }, el("span", { class: `bar-fill ${value < 0 ? "less" : ""}`, style: { width: `${(50 * Math.abs(value ?? 0)) / most}%`, background: `var(--${paint})` } }));
  return el("div", { class: "scroll" }, el("table", { class: "bars" },
    el("thead", {}, el("tr", {}, el("th", { class: "number" }, "#"), el("th", {}, "verdict"), el("th", { class: "number" }, "reward"), el("th", {}, ""), el("th", { class: "number" }, "advantage"), el("th", {}, ""), el("th", { class: "number" }, "tokens"), el("th", { class: "number" }, "versions"))),
    el("tbody", {}, result.rewards.map((reward, i) => el("tr", {}, el("td", { class: "number" }, String(i)), el("td", {}, el("span", { class: `verdict ${reward > 0 ? "good" : "bad"}` }, result.verdicts[i])),
      el("td", { class: "number", title: names(result, i) }, number(reward)), el("td", {}, bar(reward, top, "blue")),
      el("td", { class: "number" }, fixed(result.advantages[i], 2)), el("td", {}, bar(result.advantages[i], far, (result.advantages[i] ?? 0) < 0 ? "red" : "green")),
      el("td", { class: "number" }, count(result.lengths[i])),
      el("td", { class: "number" }, result.oldest_versions[i] === result.newest_versions[i] ? String(result.oldest_versions[i]) : `${result.oldest_versions[i]}–${result.newest_versions[i]}`))))));
}
