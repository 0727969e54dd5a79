// How busy engines, CPUs and GPUs were, over the time of the run.

import { chart, shareRange } from "../../charts.js";
import { el, empty, panel, refusal, replace } from "../../dom.js";
import { count, duration, percent } from "../../numbers.js";
import { newest } from "../../questions.js";

const whole = () => [0, 1];
const upward = (plot, low, high) => [0, high ? high * 1.05 : 1];
const RESOURCES = [["cpu", "CPUs in use", "Share of all CPUs of a node"], ["gpu", "GPUs at work", "Share of the time in which a kernel runs, mean over the GPUs of a node"],
  ["memory", "Memory in use", "Share of a node's memory"], ["gpu_memory", "GPU memory in use", "Share of the memory of a node's GPUs"]];

export async function load({ root, ask }) {
  const body = el("div", {});
  root.append(panel("Engines and machines", body));
  let charts = [];
  const draw = newest(
    () => ask("/usage", { points: 300 }),
    ({ columns }) => {
      charts.forEach((one) => one.destroy());
      charts = columns.at?.length ? all(columns) : [];
      replace(body, charts.length ? el("div", { class: "grid inner" }, charts.map((one) => one.node)) : empty("No load is recorded.", "Runs write it every five seconds since this version."));
    },
    (problem) => replace(body, refusal(problem)));
  await draw();
  return { update: draw, destroy() { charts.forEach((one) => one.destroy()); } };
}

function all(columns) {
  const x = columns.at.map((at) => at - columns.at[0]);
  const common = { x, xFormat: duration, height: 140 };
  const engines = [["in_flight", "answers in flight"], ["waiting", "requests that wait in the router"], ["queued", "in the engines' queues"]];
  const found = engines.map(([name, label]) => ({ label, values: columns[`engines.${name}`] })).filter((one) => one.values);
  const charts = found.length ? [chart({ ...common, title: "Load of the engines", help: "As the router sees it", series: found, range: upward, format: count })] : [];
  if (columns["engines.kv_usage"]) charts.push(chart({ ...common, title: "KV cache in use", help: "Mean over busy replicas", series: [{ label: "share", values: columns["engines.kv_usage"] }], range: shareRange, format: (value) => percent(value, 1) }));
  for (const [name, title, help] of RESOURCES) {
    const series = Object.keys(columns).filter((key) => key.startsWith("nodes.") && key.endsWith(`.${name}`))
      .map((key) => ({ label: key.slice("nodes.".length, -name.length - 1), values: columns[key] }));
    if (series.length) charts.push(chart({ ...common, title, help, series: most(series), range: whole, format: (value) => percent(value) }));
  }
  return charts;
}

// Of many nodes, the mean and the extremes: a line for each would hide them all.
function most(series) {
  if (series.length <= 7) return series;
  const at = (choose) => series[0].values.map((_, i) => choose(series.map((one) => one.values[i]).filter((value) => value !== null)));
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  return [{ label: `mean of ${series.length} nodes`, values: at(mean) }, { label: "least", values: at((v) => (v.length ? Math.min(...v) : null)) }, { label: "most", values: at((v) => (v.length ? Math.max(...v) : null)) }];
}
