// Lines over train steps, drawn by uPlot: one look, one legend, one cursor for all.

import { el } from "./dom.js";
import { duration, number, short } from "./numbers.js";

const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].flatMap((one) => [one, 2 * one, 5 * one]); // there is no half a step
const together = () => globalThis.uPlot.sync("steps");
const drawn = new Set();

export const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const PALETTE = ["blue", "orange", "green", "purple", "red", "teal", "grey"];

// What curves can be drawn over: heading, and a place on it as people read it.
export const AXES = { step: ["steps", undefined], time: ["time", duration], tokens: ["tokens", short] };

// Values at the places of `x`, null where there is none.
export function placed(x, from, values) {
  const known = new Map(from.map((place, i) => [place, values[i]]));
  return x.map((place) => known.get(place) ?? null);
}

function axis(extra) {
  return {
    stroke: () => colour("muted"),
    font: `11px ${colour("font-numbers")}`,
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false },
    ...extra,
  };
}

// series: [{label, values, title?, format?, colour?, dash?, points?, faint?, carry?, band?: [low, high]}], all as
// long as `x`. A faint line has no entry in the legend; at a place without a value, one with `carry` shows the value before.
export function chart({ title, help, x, series, height = 190, format = number, range, xFormat }) {
  const shown = series.filter((one) => one.values.some((value) => value !== null && value !== undefined));
  const figure = el("figure", { class: "chart", "aria-label": title });
  const cells = shown.map((one, index) => {
    const paint = `var(--${one.colour || PALETTE[index % PALETTE.length]})`;
    const value = el("output", { class: "value" }, "");
    const key = el("span", { class: one.points ? "key dot" : "key", style: { background: paint } });
    return { value, node: el("span", { class: "entry", hidden: one.faint, title: one.title }, key, el("span", {}, one.label), value) };
  });
  const place = el("output", { class: "place" }, "");
  figure.append(
    el("figcaption", {}, el("h3", { title: help }, title), place,
      el("div", { class: "legend" }, cells.map((cell) => cell.node))));
  const box = el("div", { class: "plot", style: { height: `${height}px` } });
  figure.append(box);
  if (!shown.length) {
    box.append(el("p", { class: "empty" }, "Nothing yet"));
    return { node: figure, destroy() {} };
  }
  return lively(figure, box, { x, shown, cells, place, height, format, range, xFormat });
}

function lively(figure, box, { x, shown, cells, place, height, format, range, xFormat }) {
  const say = (at) => {
    const index = at ?? x.length - 1;
    place.textContent = at === null || at === undefined ? "" : (xFormat || ((v) => `step ${v}`))(x[index]);
    shown.forEach((one, i) => {
      let j = index;
      while ((at === null || one.carry) && j > 0 && (one.values[j] === null || one.values[j] === undefined)) j -= 1;
      cells[i].value.textContent = (one.format || format)(one.values[j]);
    });
  };
  let plot = null;
  const make = () => {
    const width = box.clientWidth;
    if (!width) return;
    plot?.destroy();
    plot = new globalThis.uPlot(options({ shown, width, height, format, range, xFormat, say }), data(x, shown), box);
  };
  const seen = new ResizeObserver(() => {
    if (!plot) make();
    else if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height });
  });
  seen.observe(box);
  say(null);
  const self = { node: figure, repaint: make, destroy() { seen.disconnect(); plot?.destroy(); drawn.delete(self); } };
  drawn.add(self);
  return self;
}

// uPlot gives an axis without any height 0 to 100, which a share shows as 10,000 %.
const around = (plot, low, high) => {
  if (low === null || low === undefined) return [null, null];
  return low === 0 && high === 0 ? [0, 1] : globalThis.uPlot.rangeNum(low, high, 0.1, true);
};

// Of shares of a whole: from nothing up, and never above all of it.
export const shareRange = (plot, low, high) => [0, Math.min(1, Math.max(0.01, 1.1 * (high ?? 0)))];

const data = (x, shown) => [x, ...shown.flatMap((one) => (one.band ? [one.values, ...one.band] : [one.values]))];

function options({ shown, width, height, format, range, xFormat, say }) {
  const series = [{}];
  const bands = [];
  shown.forEach((one, index) => {
    const paint = () => `${colour(one.colour || PALETTE[index % PALETTE.length])}${one.faint ? "40" : ""}`;
    series.push({
      label: one.label,
      stroke: paint,
      width: one.points ? 1.5 : 1.75,
      dash: one.points ? [4, 4] : one.dash,
      spanGaps: true,
      points: one.points ? { show: true, size: 7, fill: paint, stroke: paint } : { show: one.values.filter((value) => value !== null && value !== undefined).length === 1 },
    });
    if (!one.band) return;
    for (let i = 0; i < 2; i += 1) series.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
    bands.push({ series: [series.length - 1, series.length - 2], fill: () => `${colour(one.colour || PALETTE[index])}22` });
  });
  return {
    width, height, series, bands,
    legend: { show: false },
    cursor: { sync: { key: together().key }, drag: { x: true, y: false }, points: { size: 6 } },
    scales: { x: { time: false }, y: { range: range || around } },
    axes: [
      axis({ size: 26, ...(xFormat ? {} : { incrs: WHOLE }), values: (_, ticks) => ticks.map((tick) => (xFormat ? xFormat(tick) : number(tick))) }),
      axis({ size: 52, values: (_, ticks) => ticks.map((tick) => format(tick)) }),
    ],
    hooks: {
      setCursor: [(plot) => say(plot.cursor.idx)],
      draw: [(plot) => { plot.root.dataset.top = plot.scales.y.max; }],
    },
  };
}

// The colours are read when something is drawn.
export const repaint = () => drawn.forEach((one) => one.repaint());
