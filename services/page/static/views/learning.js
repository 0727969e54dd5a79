// Is it learning, and is it healthy: every number of a train step against the steps.

import { AXES, chart, placed, shareRange } from "../charts.js";
import { choice, el, empty, panel, replace } from "../dom.js";
import { figures } from "../figures.js";
import { count, duration, number, percent } from "../numbers.js";
import { notes } from "./details/notes.js";

const share = (u, low, high) => [Math.min(0, low ?? 0), Math.max(1, high ?? 1)];
const scientific = (value) => (value ? value.toExponential(1) : number(value));
const upward = (u, low, high) => [0, high ? high * 1.05 : 1];

// Heading, columns with their names, and how they are drawn; what each counts is said by the server.
const CHARTS = [
  ["Length of answers, tokens",
    [["response_tokens_mean", "consumed"], ["sampled_tokens_mean", "sampled"]], {}],
  ["Entropy, nats", [["trainer.entropy", "entropy"]], {}],
  ["KL divergence, nats",
    [["trainer.kl_behaviour", "behaviour"], ["trainer.kl_proximal", "proximal"], ["trainer.kl_reference", "reference"]], {}],
  ["Clipped and masked tokens",
    [["trainer.clip_fraction_low", "clipped low"], ["trainer.clip_fraction_high", "clipped high"], ["trainer.truncated_fraction", "weight capped"], ["trainer.masked_fraction", "masked"]],
    { format: (v) => percent(v, 1), range: shareRange }],
  ["Engine against trainer, nats",
    [["trainer.mismatch_max", "largest, same version"], ["trainer.mismatch_p99_lag1", "p99, one version older"]], {}],
  ["Learning rate", [["trainer.learning_rate", "learning rate"]], { range: upward, format: scientific }],
  ["Gradient norm", [["trainer.grad_norm", "norm"]], {}],
  ["Loss", [["trainer.loss", "loss"]], {}],
  ["Staleness, versions", [["staleness_mean", "mean"], ["staleness_max", "largest"]], { range: upward }],
  ["A step's time",
    [["seconds.wait", "waiting for a batch"], ["seconds.train", "training"], ["seconds.save", "checkpoint"]], { format: duration, range: upward }],
  ["Rollout and score", [["rollout_s_mean", "rollout"], ["rollout_s_max", "slowest rollout"], ["score_s_mean", "last score after it"]], { format: duration, range: upward }],
  ["Tokens a second", [["tokens_per_second", "tokens/s"]], { format: count, range: upward }],
  ["Groups of a batch", [["groups_trained", "trained"], ["groups_filtered", "filtered"]], { format: count, range: upward }],
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
    const [found, { alerts }] = await Promise.all([ask("/curves", { points: 800 }), ask("/alerts")]);
    replace(said, notice(state.known, alerts));
    replace(tiles, summary(state.known, meanings));
    const y = scrollY;
    charts.forEach((one) => one.destroy());
    const by = state.by in found.axes ? state.by : "step";
    charts = found.axes.step || found.evaluations.length ? curves(found, by, meanings) : [];
    const [main, ...others] = charts;
    replace(body, main
      ? [el("div", { class: "panel wide" }, axisChoice(found.axes, by, state, draw), main.node), el("div", { class: "grid" }, others.map((one) => el("div", { class: "panel" }, one.node)))]
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

function axisChoice(axes, chosen, state, draw) {
  const offered = Object.entries(AXES).filter(([by]) => by in axes).map(([by, [title]]) => [by, title]);
  const box = choice("Horizontal axis", offered, chosen, (by) => { state.by = by; localStorage.setItem("millrace.x", by); draw(); });
  box.classList.add("axis-choice");
  return box;
}

// The same figures as in the list of runs, in the same words.
function summary(overview, meanings) {
  const { last, flow } = overview;
  const { values, texts } = overview.figures;
  const evaluated = flow ? flow.tokens_evaluated : last.tokens_evaluated;
  const trained = values.pass_final !== null;
  const before = values.pass_before === null ? "" : trained ? `${texts.pass_before} before training` : "before training";
  const best = values.pass_best > values.pass_final ? `best ${texts.pass_best} at step ${values.best_step}` : "";
  const beside = trained ? [before, best].filter(Boolean).join(", ") : before || "not measured";
  const tile = (figure, title, value, detail) => el("div", { class: "tile", title: meanings[figure], dataset: { figure } }, el("span", { class: "muted" }, title), el("strong", {}, value), el("small", {}, detail || "\u00a0"));
  return [
    tile("heldout_pass_rate", "Held-out pass rate", trained ? texts.pass_final : texts.pass_before, beside),
    tile("reward", "Reward", texts.reward, "mean of the last batch"),
    tile("policy_version", "Policy version", count(last.policy_version), `staleness up to ${number(last.staleness_max)}`),
    tile("tokens_sampled", "Tokens sampled", texts.tokens_sampled, evaluated ? `and ${count(evaluated)} in evaluations` : ""),
    tile("truncated", "Answers cut off", percent(last.truncated, 1), "of the last batch"),
    tile("elapsed_s", "Time", texts.elapsed_s, last.recoveries ? `${last.recoveries} recoveries` : "no recovery"),
  ];
}

function curves({ columns, axes, evaluations }, by, meanings) {
  const x = axes[by] || [];
  const xFormat = AXES[by][1];
  const sets = [...new Set(evaluations.map((one) => one.name))];
  const wide = [...new Set([...x, ...evaluations.map((one) => one.at[by])])].sort((a, b) => a - b);
  const rewards = { label: "mean reward", title: meanings.reward, values: placed(wide, x, columns.reward || []) };
  if (columns.reward_low) rewards.band = [placed(wide, x, columns.reward_low), placed(wide, x, columns.reward_high)];
  const passes = sets.map((name) => {
    const own = evaluations.filter((one) => one.name === name && one.pass_at?.["1"] !== undefined);
    return { label: `pass@1, ${name}`, title: meanings.heldout_pass_rate, points: true, carry: true, format: (v) => percent(v, 1), values: placed(wide, own.map((one) => one.at[by]), own.map((one) => one.pass_at["1"])) };
  });
  const named = Object.keys(columns).filter((name) => name.startsWith("rewards.")).map((name) => [name, name.slice("rewards.".length)]);
  const rest = [["Named rewards", named, {}], ...CHARTS].map(([title, names, extra]) =>
    [title, names.filter(([name]) => columns[name]).map(([name, label]) => ({ label, title: meanings[name.startsWith("rewards.") ? "rewards" : name], values: columns[name] })), extra])
    .filter(([, series]) => series.length)
    .map(([title, series, extra]) => chart({ title, help: series.map((one) => `${one.label}: ${one.title}`).join("\n"), x, series, xFormat, height: 150, ...extra }));
  return [chart({ title: "Reward and held-out pass rate", x: wide, series: [rewards, ...passes], height: 300, range: share, xFormat }), ...rest];
}
