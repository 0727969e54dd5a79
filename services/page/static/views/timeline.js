// Who did what when, and why nobody did anything: a lane for each replica, sandbox and trainer rank.

import { colour } from "../charts.js";
import { el, empty, refusal, replace } from "../dom.js";
import { duration, number, percent } from "../numbers.js";
import { newest } from "../questions.js";

const LANE = 30;
const GAP = 6;
const SLOTS = 74;
const LEFT = () => (innerWidth < 720 ? 84 : 170);
const AXIS = 24;
const PAINT = {
  generate: "blue", score: "purple", train: "green", forward_backward: "green", optimizer: "teal", critic: "blue",
  snapshot: "grey", checkpoint: "grey", evaluate: "teal", push: "orange", pause: "red",
};
const WHY = { weights: "orange", trainer: "green", score: "purple", batch: "teal", admission: "grey", rollout: "blue", replicas: "red", pause: "red", recovery: "red" };
const MEANING = {
  weights: "the trained weights are not on the replicas yet", trainer: "the slots' groups are being trained", score: "answers are being scored",
  batch: "finished groups wait for their batch", admission: "slots are free, nothing may or need be admitted", rollout: "groups are being sampled",
  replicas: "no replica has a lease", pause: "the run is paused", recovery: "the trainer is being brought back",
};
const USES = [["sampling", "blue"], ["scoring", "purple"], ["ready", "teal"], ["training", "green"], ["updating", "orange"]];

export async function timeline({ root, ask }) {
  const state = { since: null, until: null, found: null, hover: null, newest: 0 };
  const canvas = el("canvas", { class: "lanes", tabindex: 0, role: "img", "aria-label": "Timeline; arrow keys move, plus and minus zoom, 0 shows all" });
  const tip = el("div", { class: "tip", hidden: true });
  const said = el("p", { class: "muted range", role: "status" });
  const table = el("div", {});
  const choices = el("div", { class: "choice", role: "group", "aria-label": "Span of time" },
    [["all", 0], ["last 10 s", 10], ["last minute", 60], ["last 10 min", 600]].map(([text, seconds]) =>
      el("button", { type: "button", "aria-pressed": String(seconds === 0), onclick: (event) => recent(event.target, seconds) }, text)));
  const box = el("div", { class: "panel timeline" }, el("div", { class: "bar" }, choices, said), legend(), el("div", { class: "lanes-box" }, canvas, tip), table);
  root.append(box);

  const question = () => {
    if (state.newest) state.since = Math.max(0, (state.found?.last ?? 0) - state.newest);
    const bins = Math.max(60, Math.min(1200, Math.floor((box.clientWidth - LEFT()) / 2)));
    return ask("/timeline", { since: state.since, until: state.until, bins });
  };
  const show = (found) => {
    state.found = found;
    canvas.hidden = !found.lanes.length;
    if (canvas.hidden) return void replace(table, empty("No timeline.", "Runs write one since this version; it begins with the first answer."));
    said.textContent = `${duration(state.found.end - state.found.begin)} of ${duration(state.found.last - state.found.first)}, from ${duration(state.found.begin - state.found.first)}${state.found.lanes_left_out ? `; ${state.found.lanes_left_out} more lanes are not shown` : ""}`;
    draw(canvas, state);
    replace(table, shares(state.found));
  };
  const load = newest(question, show, (problem) => replace(table, refusal(problem)));
  const recent = (button, seconds) => {
    for (const one of choices.children) one.setAttribute("aria-pressed", String(one === button));
    Object.assign(state, { newest: seconds, since: null, until: null });
    load();
  };
  const zoom = (begin, end) => {
    const { first, last } = state.found;
    Object.assign(state, { newest: 0, since: Math.max(first, begin), until: Math.min(last, Math.max(end, begin + 0.01)) });
    for (const one of choices.children) one.setAttribute("aria-pressed", "false");
    load();
  };
  pointing(canvas, tip, state, { zoom, all: () => recent(choices.firstChild, 0), ask });
  const sized = new ResizeObserver(() => state.found?.lanes.length && draw(canvas, state));
  sized.observe(box);
  await load();
  return { update: load, repaint: () => canvas.hidden || draw(canvas, state), destroy() { sized.disconnect(); } };
}

function legend() {
  const entry = ([name, paint, text]) => el("span", { class: "entry" }, el("span", { class: "key box", style: { background: `var(--${paint})` } }), text || name);
  const work = [["generate", "blue"], ["score", "purple"], ["train", "green", "train (forward and backward)"], ["optimizer", "teal"], ["snapshot", "grey", "snapshot, checkpoint"], ["push", "orange", "push of weights"], ["pause", "red", "generation paused"]];
  return el("div", { class: "legend" }, work.map(entry), el("span", { class: "entry" }, el("span", { class: "key box idle" }), "idle, in the colour of its cause"));
}

const rows = (found) => found.lanes.map((lane, i) => ({ ...lane, top: AXIS + i * (LANE + GAP) }));

function draw(canvas, state) {
  const { found } = state;
  const left = LEFT();
  const width = canvas.parentElement.clientWidth;
  const height = AXIS + found.lanes.length * (LANE + GAP) + (found.slots ? SLOTS + 18 : 0);
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `12px ${colour("font")}`;
  pen.textBaseline = "middle";
  const room = width - left;
  grid(pen, found, left, room, height);
  for (const row of rows(found)) drawLane(pen, row, found, left, room);
  if (found.slots) drawSlots(pen, found, left, room, height - SLOTS);
  state.geometry = { left, room, height };
}

function grid(pen, found, left, room, height) {
  const span = found.end - found.begin;
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 86400].find((s) => span / s <= Math.max(3, room / 110)) || span;
  pen.fillStyle = colour("muted");
  pen.strokeStyle = colour("line");
  pen.textAlign = "left";
  const from = Math.ceil((found.begin - found.first) / step) * step;
  for (let at = from; at <= found.end - found.first; at += step) {
    const x = left + ((at + found.first - found.begin) / span) * room;
    pen.beginPath();
    pen.moveTo(x + 0.5, AXIS - 6);
    pen.lineTo(x + 0.5, height);
    pen.stroke();
    if (x < left + room - 30) pen.fillText(at >= 60 ? `${Math.floor(at / 60)}:${String(Math.round(at % 60)).padStart(2, "0")}` : `${number(at, 2)} s`, x + 3, 8);
  }
  for (const [at] of found.steps) {
    const x = left + ((at - found.begin) / span) * room;
    pen.fillStyle = colour("strong-line");
    pen.fillRect(x, AXIS - 4, 1, height - AXIS + 4);
  }
}

function drawLane(pen, row, found, left, room) {
  const bins = found.slots?.why.length || Object.values(row.busy)[0]?.length || 1;
  const wide = room / bins;
  pen.fillStyle = colour("ink");
  pen.textAlign = "left";
  pen.fillText(clip(pen, title(row.lane), left - 10), 0, row.top + LANE / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(left, row.top, room, LANE);
  const kinds = Object.entries(row.busy);
  const isReplica = row.lane.startsWith("replica");
  if (isReplica) idle(pen, row, found, left, wide);
  for (const [kind, values] of kinds.filter(([kind]) => kind !== "push" && kind !== "pause")) {
    const most = Math.max(1, ...values);
    const waits = kind.startsWith("wait: ");
    pen.fillStyle = colour(waits ? WHY[kind.slice(6)] || "grey" : PAINT[kind] || "blue");
    pen.globalAlpha = waits ? 0.25 : 0.9;
    stretches(values, left, wide, (value, x, width) => {
      const tall = kind === "generate" ? Math.max(2, (LANE * value) / most) : LANE * Math.min(1, Math.max(0.12, value));
      pen.fillRect(x, row.top + LANE - tall, width, tall);
    });
    pen.globalAlpha = 1;
  }
  for (const kind of ["push", "pause"]) {
    const values = row.busy[kind];
    if (!values) continue;
    pen.fillStyle = colour(PAINT[kind]);
    stretches(values.map((value) => value > 0), left, wide, (_, x, width) => pen.fillRect(x, kind === "push" ? row.top + LANE - 5 : row.top, Math.max(2, width), 5));
  }
}

// Equal neighbours become one rectangle on whole pixels: no seams.
function stretches(values, left, wide, paint) {
  let from = 0;
  for (let i = 1; i <= values.length; i += 1) {
    if (i < values.length && values[i] === values[from]) continue;
    const [x0, x1] = [Math.round(left + from * wide), Math.round(left + i * wide)];
    if (values[from]) paint(values[from], x0, Math.max(1, x1 - x0));
    from = i;
  }
}

function idle(pen, row, found, left, wide) {
  if (!found.slots) return;
  const busy = row.busy.generate;
  pen.globalAlpha = 0.25;
  stretches(found.slots.why.map((why, i) => (busy && busy[i] > 0 ? "" : why)), left, wide, (why, x, width) => {
    pen.fillStyle = colour(WHY[why]);
    pen.fillRect(x, row.top, width, LANE);
  });
  pen.globalAlpha = 1;
}

function drawSlots(pen, found, left, room, top) {
  const { columns } = found.slots;
  const bins = found.slots.why.length;
  const wide = room / bins;
  const most = Math.max(1, ...found.slots.why.map((_, i) => USES.reduce((sum, [name]) => sum + columns[name][i], columns.free[i])));
  pen.fillStyle = colour("ink");
  pen.textAlign = "left";
  pen.fillText(clip(pen, left < 100 ? "slots" : "admission slots", left - 10), 0, top + SLOTS / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(left, top, room, SLOTS - 2);
  pen.globalAlpha = 0.75;
  const all = found.slots.why.map((_, i) => USES.map(([name]) => columns[name][i]).join(" "));
  stretches(all, left, wide, (amounts, x, width) => {
    let base = top + SLOTS - 2;
    amounts.split(" ").forEach((amount, use) => {
      const tall = ((SLOTS - 2) * Number(amount)) / most;
      pen.fillStyle = colour(USES[use][1]);
      base -= tall;
      pen.fillRect(x, base, width, tall);
    });
  });
  pen.globalAlpha = 1;
}

function title(lane) {
  const [kind, ...rest] = lane.split(" ");
  const name = rest.join(" ");
  if (kind === "replica" && name.includes("replica")) return name;
  if (kind === "sandbox") return `sandbox ${name.split("/").pop()}`;
  if (kind === "replica" && innerWidth < 720) return name;
  return kind === "trainer" && name ? `${innerWidth < 720 ? "" : "trainer "}rank ${name}` : name ? `${kind} ${name}` : kind;
}

function clip(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let shown = text;
  while (shown.length > 3 && pen.measureText(`${shown}…`).width > room) shown = shown.slice(0, -1);
  return `${shown}…`;
}

function pointing(canvas, tip, state, { zoom, all, ask }) {
  let from = null;
  let asked = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const { left, room } = state.geometry;
    const share = Math.min(1, Math.max(0, (event.clientX - box.left - left) / room));
    return { share, time: state.found.begin + share * (state.found.end - state.found.begin), y: event.clientY - box.top, x: event.clientX - box.left };
  };
  canvas.addEventListener("pointerdown", (event) => { from = at(event); if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", (event) => {
    const to = at(event);
    if (from && event.pointerType === "mouse" && Math.abs(to.x - from.x) > 6) zoom(Math.min(from.time, to.time), Math.max(from.time, to.time));
    from = null;
  });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (event) => {
    if (!state.geometry) return;
    const place = at(event);
    const row = rows(state.found).find((one) => place.y >= one.top && place.y < one.top + LANE + GAP);
    const bin = Math.min((state.found.slots?.why.length || 1) - 1, Math.floor(place.share * (state.found.slots?.why.length || 1)));
    replace(tip, describe(state.found, row, bin, place));
    tip.hidden = place.x < state.geometry.left;
    tip.style.left = `${Math.max(0, Math.min(place.x + 14, canvas.clientWidth - 250))}px`;
    tip.style.top = `${place.y + 18}px`;
    clearTimeout(asked);
    asked = 0;
    if (!row || from) return;
    const slack = (state.found.end - state.found.begin) / state.geometry.room;
    asked = setTimeout(() => {
      const mine = asked; // the pointer may have gone on before the answer comes
      ask("/moment", { lane: row.lane, at: place.time, slack }).then(
        ({ spans }) => { if (mine === asked && !tip.hidden) tip.append(...details(spans)); },
        () => {}, // what the lane says of the time is shown already
      );
    }, 120);
  });
  canvas.addEventListener("keydown", (event) => {
    const { begin, end } = state.found;
    const span = end - begin;
    const moves = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "=": [0.25, -0.25], "-": [-0.5, 0.5] };
    if (event.key === "0") all();
    else if (moves[event.key]) { event.preventDefault(); zoom(begin + moves[event.key][0] * span, end + moves[event.key][1] * span); }
  });
}

function describe(found, row, bin, place) {
  const lines = [el("strong", {}, duration(place.time - found.first))];
  if (row) {
    lines.push(el("div", {}, title(row.lane)));
    for (const [kind, values] of Object.entries(row.busy)) if (values[bin] > 0) lines.push(el("div", {}, kind === "generate" ? `generates ${number(values[bin], 1)} answers` : kind.startsWith("wait: ") ? `waits: ${MEANING[kind.slice(6)] || kind.slice(6)}` : `${kind.replace("_", " ")} ${percent(Math.min(1, values[bin]))}`));
    const why = found.slots?.why[bin];
    if (row.lane.startsWith("replica") && !(row.busy.generate?.[bin] > 0) && why) lines.push(el("div", {}, `idle: ${MEANING[why]}`));
  } else if (found.slots && place.y > AXIS) {
    for (const [name] of [...USES, ["free"]]) lines.push(el("div", {}, `${name}: ${number(found.slots.columns[name][bin])}`));
  }
  return lines;
}

function details(spans) {
  return spans.slice(-6).map((span) => el("div", { class: "muted" }, [
    span.kind, duration(span.end - span.start), span.group !== undefined ? `group ${span.group}` : "", span.step !== undefined ? `step ${span.step}` : "",
    span.version !== undefined ? `version ${span.version}` : "", span.tokens !== undefined ? `${span.tokens} tokens` : "", span.verdict || "", span.error || "",
  ].filter(Boolean).join(" · ")));
}

// The same in words: the share of the time that each lane spent on what.
function shares(found) {
  const mean = (values) => values.reduce((sum, value) => sum + Math.min(1, value), 0) / values.length;
  const lines = found.lanes.map((lane) => {
    const kinds = Object.entries(lane.busy).map(([kind, values]) => [kind, mean(values)]);
    const why = {};
    if (lane.lane.startsWith("replica") && found.slots) {
      found.slots.why.forEach((cause, i) => { if (cause && !(lane.busy.generate?.[i] > 0)) why[cause] = (why[cause] || 0) + 1 / found.slots.why.length; });
    }
    const waits = [...kinds.filter(([kind]) => kind.startsWith("wait: ")).map(([kind, value]) => [kind.slice(6), value]), ...Object.entries(why)].sort((a, b) => b[1] - a[1]);
    return el("tr", {}, el("td", { title: lane.lane }, title(lane.lane)),
      el("td", {}, kinds.filter(([kind]) => !kind.startsWith("wait: ")).map(([kind, value]) => `${kind.replace("_", " and ")} ${percent(value, value < 0.01 ? 1 : 0)}`).join(", ") || "–"),
      el("td", {}, waits.map(([cause, value]) => `${cause} ${percent(value)}`).join(", ") || "–"));
  });
  return el("details", { open: innerWidth > 720 }, el("summary", {}, "Shares of this time"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "lane"), el("th", {}, "at work"), el("th", {}, "idle, by cause"))), el("tbody", {}, lines))));
}
