// Who serves which version now, and how each version got there.

import { el, empty, panel, refusal, replace } from "../dom.js";
import { count, duration } from "../numbers.js";
import { ask as askPage, newest } from "../questions.js";
import { load } from "./details/load.js";

export async function replicas(view) {
  const { root, ask } = view;
  const body = el("div", { class: "stack" });
  root.append(body);
  const draw = newest(
    () => Promise.all([askPage("live"), ask("/pushes", { limit: 100 })]),
    ([{ live }, { pushes }]) => replace(body, panel("Replicas", live ? members(live) : lastKnown(pushes)), panel("Pushes of weights", pushes.length ? pushTable(pushes) : empty("No push is recorded."))),
    (problem) => replace(body, refusal(problem)));
  await draw();
  const below = await load(view);
  const clock = setInterval(draw, 3000);
  return { async update() { await Promise.all([draw(), below.update()]); }, destroy() { clearInterval(clock); below.destroy(); } };
}

function members(live) {
  if (!live.members.length) return empty(live.problem ? "The cluster does not answer." : "No replica has registered.", live.problem);
  const load = live.load?.by_replica || {};
  const most = Math.max(1, ...Object.values(load));
  return [live.problem ? el("p", { class: "balance bad", role: "status" }, `As it was last; not everything answers: ${live.problem}`) : null,
    el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "replica"), el("th", {}, "state"), el("th", {}, "lease"), el("th", { class: "number" }, "version"), el("th", { class: "number" }, "answers in flight"), el("th", {}, ""), el("th", {}, "last trouble"))),
    el("tbody", {}, live.members.map((one) => el("tr", {}, el("td", {}, one.replica_id), el("td", {}, one.state), el("td", {}, el("span", { class: `verdict ${one.leased ? "good" : "bad"}` }, one.leased ? "leased" : "no lease")),
      el("td", { class: "number" }, one.committed_version === null ? "–" : `${one.committed_version}${one.committed_version === live.newest_version ? "" : ` of ${live.newest_version}`}`),
      el("td", { class: "number" }, count(load[one.replica_id] ?? 0)), el("td", {}, el("span", { class: "load" }, el("span", { style: { width: `${(100 * (load[one.replica_id] ?? 0)) / most}%` } }))), el("td", { class: "text" }, one.last_error || "–")))))),
    el("p", { class: "muted" }, live.load ? `${count(live.load.waiting)} requests wait in the router; KV cache ${live.load.kv_usage === null ? "idle" : `${Math.round(100 * live.load.kv_usage)}% used`}.` : "")];
}

function lastKnown(pushes) {
  const newest = new Map();
  for (const one of pushes) if (!one.error && !newest.has(one.lane)) newest.set(one.lane, one);
  if (!newest.size) return empty("No cluster here.", "While a run is in progress this shows state, lease, version and load of each replica.");
  return [el("p", { class: "muted" }, "From the run's files: the version that each replica committed last."), el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "replica"), el("th", { class: "number" }, "version"))),
    el("tbody", {}, [...newest].sort().map(([lane, one]) => el("tr", {}, el("td", {}, lane.replace(/^replica /, "")), el("td", { class: "number" }, String(one.version))))))];
}

function pushTable(pushes) {
  const longest = Math.max(1e-6, ...pushes.map((one) => one.end - one.start));
  const phase = (seconds, paint, name) => seconds ? el("span", { class: "phase", title: `${name}: ${duration(seconds)}`, style: { width: `${(100 * seconds) / longest}%`, background: `var(--${paint})` } }) : null;
  const rows = pushes.map((one) => {
    const took = one.end - one.start;
    const commit = one.commit_s ?? 0;
    const paused = Math.min(one.paused_s ?? 0, commit);
    const stage = one.stage_s ?? 0;
    const wait = Math.max(0, took - stage - commit);
    return el("tr", {}, el("td", { class: "number" }, String(one.version)), el("td", {}, one.lane.replace(/^replica /, "")),
      el("td", { class: "phases" }, one.error ? el("span", { class: "verdict bad" }, one.error) : [phase(stage, "blue", "stage"), phase(wait, "grey", "orders and waiting for others"), phase(commit - paused, "teal", "commit"), phase(paused, "red", "generation paused")]),
      el("td", { class: "number" }, duration(stage || null)), el("td", { class: "number" }, duration(commit || null)), el("td", { class: "number" }, duration(one.paused_s)), el("td", { class: "number" }, duration(took || null)));
  });
  const key = [["blue", "stage"], ["grey", "orders, others"], ["teal", "commit"], ["red", "generation paused"]].map(([paint, text]) => el("span", { class: "entry" }, el("span", { class: "key box", style: { background: `var(--${paint})` } }), text));
  return [el("div", { class: "legend" }, key), el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "number" }, "version"), el("th", {}, "replica"), el("th", {}, "phases"), ["stage", "commit", "paused", "in all"].map((name) => el("th", { class: "number" }, name)))), el("tbody", {}, rows)))];
}
