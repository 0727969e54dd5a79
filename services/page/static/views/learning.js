// Is it learning, and is it healthy: every number of a train step against the steps.

import { chart, shareRange } from "../charts.js";
import { el, empty, panel, replace } from "../dom.js";
import { figures } from "../figures.js";
import { count, duration, number, percent } from "../numbers.js";
import { notes } from "./details/notes.js";

const share = (u, low, high) => [Math.min(0, low ?? 0), Math.max(1, high ?? 1)];
const scientific = (value) => (value ? value.toExponential(1) : number(value));
const upward = (u, low, high) => [0, high ? high * 1.05 : 1];

const CHARTS = [
  ["Length of answers, tokens", "Mean response tokens of a batch, and of all that was sampled meanwhile",
    [["response_tokens_mean", "consumed"], ["sampled_tokens_mean", "sampled"]], {}],
  ["Entropy, nats", "Mean entropy of the policy over trained tokens", [["trainer.entropy", "entropy"]], {}],
  ["KL divergence, nats", "From the policy that sampled, and from the reference",
    [["trainer.kl_behaviour", "behaviour"], ["trainer.kl_proximal", "proximal"], ["trainer.kl_reference", "reference"]], {}],
  ["Clipped and masked tokens", "Share of trained tokens",
    [["trainer.clip_fraction_low", "clipped low"], ["trainer.clip_fraction_high", "clipped high"], ["trainer.truncated_fraction", "weight capped"], ["trainer.masked_fraction", "masked"]],
    { format: (v) => percent(v, 1), range: shareRange }],
  ["Engine against trainer, nats", "|logprob gap| of tokens sampled under the weights the trainer held (largest), and one version older (99th percentile)",
    [["trainer.mismatch_max", "largest, same version"], ["trainer.mismatch_p99_lag1", "p99, one version older"]], {}],
  ["Learning rate", "Of the step's last update", [["trainer.learning_rate", "learning rate"]], { range: upward, format: scientific }],
  ["Gradient norm", "Before clipping", [["trainer.grad_norm", "norm"]], {}],
  ["Loss", "", [["trainer.loss", "loss"]], {}],
  ["Staleness, versions", "Policy versions between sampling and training", [["staleness_mean", "mean"], ["staleness_max", "largest"]], { range: upward }],
  ["A step's time", "Seconds by what they went into",
    [["seconds.wait", "waiting for a batch"], ["seconds.train", "training"], ["seconds.save", "checkpoint"]], { format: duration, range: upward }],
  ["Rollout and score", "Of a sample group", [["rollout_s_mean", "rollout"], ["rollout_s_max", "slowest rollout"], ["score_s_mean", "last score after it"]], { format: duration, range: upward }],
  ["Generated tokens a second", "Over the whole step", [["tokens_per_second", "tokens/s"]], { format: count, range: upward }],
  ["Groups of a batch", "Filtered ones have equal rewards and teach nothing", [["groups_trained", "trained"], ["groups_filtered", "filtered"]], { format: count, range: upward }],
];

export async function learning(view) {
  const { root, overview, ask } = view;
  let charts = [];
  const said = el("div", { class: "notice" });
  const tiles = el("div", { class: "tiles" });
  const body = el("div", {});
  root.append(said, tiles, body);
  const state = { by: localStorage.getItem("millrace.x") || "step", known: overview };
  const meanings = await figures();

  const draw = async () => {
    const [{ columns, evaluations }, { alerts }] = await Promise.all([ask("/curves", { points: 800 }), ask("/alerts")]);
    replace(said, notice(state.known, alerts));
    replace(tiles, summary(state.known, evaluations, meanings));
    const y = scrollY;
    charts.forEach((one) => one.destroy());
    charts = columns.step?.length || evaluations.length ? curves(columns, evaluations, state.by, meanings) : [];
    const [main, ...others] = charts;
    replace(body, main
      ? [el("div", { class: "panel wide" }, axisChoice(state, draw), main.node), el("div", { class: "grid" }, others.map((one) => el("div", { class: "panel" }, one.node)))]
      : empty("No train step yet.", "The first point appears after the first step."));
    scrollTo({ top: y });
  };
  await draw();
  const written = await notes(view);
  return {
    async update(known) { state.known = known; await Promise.all([draw(), written.update()]); },
    destroy() { charts.forEach((one) => one.destroy()); },
  };
}

function notice(overview, alerts) {
  const bad = alerts.filter((one) => one.level === "bad").length;
  const link = `#/${encodeURIComponent(overview.run_id)}/log`;
  const note = alerts.length ? el("p", { class: `balance ${bad ? "bad" : "warn"}`, role: "status" }, el("a", { href: link }, alerts.length === 1 ? "One alert" : `${alerts.length} alerts`), `: ${alerts.slice(0, 3).map((one) => one.title).join("; ")}`) : null;
  return [note, overview.error ? panel("The run broke", el("pre", { class: "error" }, overview.error)) : null];
}

function axisChoice(state, draw) {
  const choose = (by) => () => { state.by = by; localStorage.setItem("millrace.x", by); draw(); };
  const button = (by, text) => el("button", { type: "button", "aria-pressed": String(state.by === by), onclick: choose(by) }, text);
  return el("div", { class: "choice axis-choice", role: "group", "aria-label": "Horizontal axis" }, button("step", "steps"), button("time", "time"));
}

function summary(overview, evaluations, meanings) {
  const last = overview.last || {};
  const rates = evaluations.filter((one) => one.pass_at?.["1"] !== undefined);
  const name = rates[0]?.name;
  const first = rates.find((one) => one.name === name && one.step === 0);
  const newest = rates.filter((one) => one.name === name).at(-1);
  const { flow } = overview;
  const sampled = flow ? flow.tokens.admitted : last.tokens_sampled;
  const evaluated = flow ? flow.tokens_evaluated : last.tokens_evaluated;
  const tile = (figure, title, value, detail) => el("div", { class: "tile", title: meanings[figure], dataset: { figure } }, el("span", { class: "muted" }, title), el("strong", {}, value), el("small", {}, detail || "\u00a0"));
  return [
    tile("heldout_pass_rate", "Held-out pass rate", newest ? percent(newest.pass_at["1"]) : "–", first && newest !== first ? `${percent(first.pass_at["1"])} before training` : newest ? `${name}, ${newest.graded} tasks` : "not measured"),
    tile("reward", "Reward", number(last.reward, 3), "mean of the last batch"),
    tile("policy_version", "Policy version", count(last.policy_version), `staleness up to ${number(last.staleness_max)}`),
    tile("tokens_sampled", "Tokens sampled", count(sampled), evaluated ? `and ${count(evaluated)} in evaluations` : last.tokens_per_second ? `${count(last.tokens_per_second)} a second` : ""),
    tile("truncated", "Answers cut off", percent(last.truncated, 1), "of the last batch"),
    tile("elapsed_s", "Time", duration(last.elapsed_s), last.recoveries ? `${last.recoveries} recoveries` : "no recovery"),
  ];
}

function curves(columns, evaluations, by, meanings) {
  const steps = columns.step || [];
  const time = columns.elapsed_s || [];
  const at = (step) => by === "step" ? step : when(steps, time, step);
  const x = by === "step" ? steps : time;
  const xFormat = by === "step" ? undefined : duration;
  const sets = [...new Set(evaluations.map((one) => one.name))];
  const wide = [...new Set([...x, ...evaluations.map((one) => at(one.step))])].sort((a, b) => a - b);
  const spread = (from, values) => {
    const known = new Map(from.map((place, i) => [place, values[i]]));
    return wide.map((place) => known.get(place) ?? null);
  };
  const rewards = { label: "mean reward", title: meanings.reward, values: spread(x, columns.reward || []) };
  if (columns.reward_low) rewards.band = [spread(x, columns.reward_low), spread(x, columns.reward_high)];
  const passes = sets.map((name) => {
    const own = evaluations.filter((one) => one.name === name && one.pass_at?.["1"] !== undefined);
    return { label: `pass@1, ${name}`, title: meanings.heldout_pass_rate, points: true, values: spread(own.map((one) => at(one.step)), own.map((one) => one.pass_at["1"])) };
  });
  const rest = CHARTS.map(([title, help, names, extra]) =>
    [title, help, names.filter(([name]) => columns[name]).map(([name, label]) => ({ label, title: meanings[name], values: columns[name] })), extra])
    .filter(([, , series]) => series.length)
    .map(([title, help, series, extra]) => chart({ title, help, x, series, xFormat, height: 150, ...extra }));
  return [chart({ title: "Reward and held-out pass rate", x: wide, series: [rewards, ...passes], height: 300, range: share, xFormat }), ...rest];
}

// Seconds at which a step was done, between those of the nearest lines.
function when(steps, time, step) {
  const next = steps.findIndex((one) => one >= step);
  if (next < 0) return time.at(-1) ?? 0;
  return next === 0 ? (step === steps[0] ? time[0] : 0) : steps[next] === step ? time[next] : time[next - 1];
}
