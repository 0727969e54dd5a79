// Draws the lanes of a timeline: from far what a part of the time went into, from near span by span.

import { colour } from "../charts.js";
import { number } from "../numbers.js";

export const LANE = 30;
export const GAP = 6;
const AXIS = 24;
const BAND = 46;
const SLOTS = 74;
const MOST_LEVELS = 6;
const IDLE = 0.3;
const STEPS_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 86400];
export const PAINT = {
  generate: "blue", score: "purple", train: "green", forward_backward: "green", optimizer: "teal", critic: "blue",
  snapshot: "grey", checkpoint: "grey", turn: "grey", evaluate: "teal", push: "orange", pause: "red",
};
export const WHY = {
  weights: "orange", trainer: "green", score: "purple", batch: "teal", admission: "grey", rollout: "blue",
  replicas: "red", pause: "red", recovery: "red", disk: "red", evaluation: "teal",
};
export const USES = [["sampling", "blue"], ["scoring", "purple"], ["ready", "teal"], ["training", "green"], ["updating", "orange"]];
export const labelWidth = () => (innerWidth < 720 ? 84 : 170);
export const isWait = (kind) => kind.startsWith("wait: ");
export const isWork = (kind) => !isWait(kind) && kind !== "push" && kind !== "pause";

// Where each lane is drawn: the band of idle times first.
export function places(found) {
  let top = AXIS + (hasBand(found) ? BAND + GAP + 4 : 0);
  return found.lanes.map((lane) => {
    const place = { ...lane, top };
    top += LANE + GAP;
    return place;
  });
}

const hasBand = (found) => Object.keys(found.waits).length > 0;
export const isOnBand = (found, y) => hasBand(found) && y >= AXIS && y < AXIS + BAND;
const below = (found) => AXIS + (hasBand(found) ? BAND + GAP + 4 : 0) + found.lanes.length * (LANE + GAP);

export function drawLanes(canvas, found) {
  const left = labelWidth();
  const width = canvas.parentElement.clientWidth;
  const height = below(found) + (found.slots ? SLOTS + 18 : 0);
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `12px ${colour("font")}`;
  pen.textBaseline = "middle";
  const area = { left, room: width - left, begin: found.begin, span: found.end - found.begin };
  drawTimes(pen, found, area, height);
  if (hasBand(found)) drawBand(pen, found, area);
  for (const row of places(found)) drawLane(pen, row, found, area);
  if (found.slots) drawSlots(pen, found, area, height - SLOTS);
  return { left, room: area.room };
}

const x = (area, at) => area.left + ((at - area.begin) / area.span) * area.room;

function drawTimes(pen, found, area, height) {
  const step = STEPS_S.find((s) => area.span / s <= Math.max(3, area.room / 110)) || area.span;
  pen.fillStyle = colour("muted");
  pen.strokeStyle = colour("line");
  pen.textAlign = "left";
  const from = Math.ceil((found.begin - found.first) / step) * step;
  for (let at = from; at <= found.end - found.first; at += step) {
    const place = x(area, at + found.first);
    pen.beginPath();
    pen.moveTo(place + 0.5, AXIS - 6);
    pen.lineTo(place + 0.5, height);
    pen.stroke();
    if (place < area.left + area.room - 30) pen.fillText(at >= 60 ? `${Math.floor(at / 60)}:${String(Math.round(at % 60)).padStart(2, "0")}` : `${number(at, 2)} s`, place + 3, 8);
  }
  if (found.steps.length * 12 > area.room) return; // marks closer than that are a fence
  pen.fillStyle = colour("strong-line");
  for (const [at] of found.steps) pen.fillRect(x(area, at), AXIS - 4, 1, height - AXIS + 4);
}

function name(pen, text, area, middle) {
  pen.fillStyle = colour("ink");
  pen.textAlign = "left";
  pen.fillText(clip(pen, text, area.left - 10), 0, middle);
}

// The trainer's time by what it went into: work below, waits by cause above.
function drawBand(pen, found, area) {
  name(pen, area.left < 100 ? "waits" : "what training waits for", area, AXIS + BAND / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(area.left, AXIS, area.room, BAND);
  const trainer = found.lanes.find((lane) => lane.lane === "trainer");
  const work = Object.entries(trainer?.share || {}).filter(([kind]) => isWork(kind)).map(([kind, values]) => [values, PAINT[kind], 0.9]);
  const waits = Object.entries(found.waits).map(([cause, values]) => [values, WHY[cause] || "grey", 0.5]);
  stack(pen, [...work, ...waits], area, AXIS, BAND);
}

function drawLane(pen, row, found, area) {
  name(pen, title(row.lane), area, row.top + LANE / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(area.left, row.top, area.room, LANE);
  const idle = row.lane.startsWith("replica") && found.slots ? idleParts(row, found.slots) : [];
  if (row.spans) {
    stack(pen, idle, area, row.top, LANE);
    drawSpans(pen, row, area);
    return;
  }
  const shares = Object.entries(row.share);
  const work = shares.filter(([kind]) => isWork(kind)).map(([kind, values]) => [values, PAINT[kind] || "blue", 0.9]);
  const waits = shares.filter(([kind]) => isWait(kind)).map(([kind, values]) => [values, WHY[kind.slice(6)] || "grey", IDLE]);
  stack(pen, [...work, ...waits, ...idle], area, row.top, LANE);
  for (const kind of ["push", "pause"]) if (row.share[kind]) drawStrip(pen, row, kind, area);
}

// A replica's idle time by what the admission slots wait for then.
function idleParts(row, slots) {
  const busy = row.share.generate;
  const causes = Object.entries(slots.idle);
  const all = slots.why.map((_, i) => causes.reduce((sum, [, values]) => sum + values[i], 0));
  return causes.map(([cause, values]) => [values.map((value, i) => (all[i] ? ((1 - (busy?.[i] ?? 0)) * value) / all[i] : 0)), WHY[cause] || "grey", IDLE]);
}

// Shares of each part of the time, one upon the other. Edges are whole pixels: no seams.
function stack(pen, layers, area, top, tall) {
  const base = new Float64Array(layers[0]?.[0].length || 0);
  for (const [values, paint, alpha] of layers) {
    pen.fillStyle = colour(paint);
    pen.globalAlpha = alpha;
    values.forEach((value, i) => {
      const low = Math.min(1, base[i]);
      const high = Math.min(1, low + value);
      base[i] = high;
      if (high - low < 0.004) return;
      const [x0, x1] = [Math.round(area.left + (i / values.length) * area.room), Math.round(area.left + ((i + 1) / values.length) * area.room)];
      pen.fillRect(x0, top + tall * (1 - high), x1 - x0, tall * (high - low));
    });
  }
  pen.globalAlpha = 1;
}

function drawStrip(pen, row, kind, area) {
  const values = row.share[kind];
  pen.fillStyle = colour(PAINT[kind]);
  values.forEach((value, i) => {
    const wide = area.room / values.length;
    if (value > 0) pen.fillRect(area.left + i * wide, kind === "push" ? row.top + LANE - 5 : row.top, Math.max(2, wide * value), 5);
  });
}

function drawSpans(pen, row, area) {
  for (const [kind, spans] of Object.entries(row.spans)) {
    const isStrip = kind === "push" || kind === "pause";
    pen.fillStyle = colour(isWait(kind) ? WHY[kind.slice(6)] || "grey" : PAINT[kind] || "blue");
    pen.globalAlpha = isWait(kind) ? IDLE : 0.9;
    const { levels, of } = isStrip ? { levels: 1, of: spans.map(() => 0) } : levelled(spans);
    spans.forEach(([start, end], i) => {
      const [from, to] = [Math.max(area.left, x(area, start)), Math.min(area.left + area.room, x(area, end))];
      const wide = Math.max(isStrip ? 2 : 1, to - from - (to - from > 3 ? 1 : 0)); // a gap between neighbours
      if (isStrip) return void pen.fillRect(from, kind === "push" ? row.top + LANE - 5 : row.top, wide, 5);
      const tall = LANE / levels;
      pen.fillRect(from, row.top + of[i] * tall, wide, tall - (levels > 1 ? 0.5 : 0));
    });
  }
  pen.globalAlpha = 1;
}

// Spans that overlap go below each other, as far as there is height for it.
function levelled(spans) {
  const ends = [];
  const order = spans.map((_, i) => i).sort((a, b) => spans[a][0] - spans[b][0]);
  const of = new Array(spans.length);
  for (const i of order) {
    let level = ends.findIndex((end) => end <= spans[i][0]);
    if (level < 0) level = ends.length;
    ends[level] = spans[i][1];
    of[i] = level;
  }
  const levels = Math.max(1, Math.min(MOST_LEVELS, ends.length));
  return { levels, of: of.map((level) => level % levels) };
}

function drawSlots(pen, found, area, top) {
  const { columns } = found.slots;
  const bins = found.slots.why.length;
  const most = Math.max(1, ...found.slots.why.map((_, i) => USES.reduce((sum, [use]) => sum + columns[use][i], columns.free[i])));
  name(pen, area.left < 100 ? "slots" : "admission slots", area, top + SLOTS / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(area.left, top, area.room, SLOTS - 2);
  stack(pen, USES.map(([use, paint]) => [Array.from({ length: bins }, (_, i) => columns[use][i] / most), paint, 0.75]), area, top, SLOTS - 2);
}

export function title(lane) {
  const [kind, ...rest] = lane.split(" ");
  const text = rest.join(" ");
  if (kind === "replica" && text.includes("replica")) return text;
  if (kind === "sandbox") return `sandbox ${text.split("/").pop()}`;
  if (kind === "replica" && innerWidth < 720) return text;
  return kind === "trainer" && text ? `${innerWidth < 720 ? "" : "trainer "}rank ${text}` : lane;
}

function clip(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 3 && pen.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return `${text.slice(0, end)}…`;
}
