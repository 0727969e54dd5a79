// Who did what when, and why nobody did anything: a lane for each replica, sandbox and trainer rank.

import { choice, el, empty, refusal, replace } from "../dom.js";
import { duration, number, percent } from "../numbers.js";
import { newest } from "../questions.js";
import { drawLanes, GAP, isOnBand, isWait, isWork, labelWidth, LANE, PAINT, places, title, USES, WHY } from "./lanes.js";

const PART = 8; // pixels of a part of the time
const MOVES = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "=": [0.25, -0.25], "-": [-0.5, 0.5] };
const WORK = { generate: "generate", score: "score", train: "train", forward_backward: "forward and backward", optimizer: "optimizer", critic: "critic", snapshot: "snapshot", checkpoint: "checkpoint", turn: "turn on shared devices", evaluate: "evaluate", push: "push of weights", pause: "generation paused" };

export async function timeline({ root, ask }) {
  const state = { since: null, until: null, found: null, geometry: null, newest: 0 };
  const canvas = el("canvas", { class: "lanes", tabindex: 0, role: "img", "aria-label": "Timeline; arrow keys move, plus and minus zoom, 0 shows all" });
  const tip = el("div", { class: "tip", hidden: true });
  const said = el("p", { class: "muted range", role: "status" });
  const table = el("div", {});
  const words = el("p", { class: "waited", role: "status" });
  const sides = el("div", { class: "sides" });
  const keys = el("div", {});
  const choices = choice("Span of time", [[0, "all"], [10, "last 10 s"], [60, "last minute"], [600, "last 10 min"]], 0, (seconds) => {
    Object.assign(state, { newest: seconds, since: null, until: null });
    load();
  });
  const move = (text, help, by) => el("button", { type: "button", "aria-label": help, title: help, onclick: () => shift(by) }, text);
  const moves = el("div", { class: "choice", role: "group", "aria-label": "Move" },
    move("+", "zoom in", MOVES["+"]), move("−", "zoom out", MOVES["-"]), move("←", "earlier", MOVES.ArrowLeft), move("→", "later", MOVES.ArrowRight));
  const bar = el("div", { class: "bar" }, choices, moves, said);
  const lanes = el("div", { class: "lanes-box" }, canvas, tip);
  const box = el("div", { class: "panel timeline" }, words, sides, bar, lanes, keys, table);
  root.append(box);

  const question = () => {
    if (state.newest) state.since = Math.max(0, (state.found?.last ?? 0) - state.newest);
    const bins = Math.max(24, Math.min(400, Math.floor((box.clientWidth - labelWidth()) / PART)));
    return ask("/timeline", { since: state.since, until: state.until, bins });
  };
  const draw = () => { state.geometry = drawLanes(canvas, state.found); };
  const show = (found) => {
    state.found = found;
    canvas.hidden = !found.lanes.length;
    for (const part of [words, sides, bar, lanes, keys]) part.hidden = canvas.hidden;
    if (canvas.hidden) return void replace(table, empty("No timeline.", "Runs write one since this version; it begins with the first answer."));
    const near = found.lanes.filter((lane) => lane.spans).length;
    canvas.dataset.near = String(near);
    canvas.dataset.parts = String(found.slots?.why.length ?? 0);
    said.textContent = `${duration(state.found.end - state.found.begin)} of ${duration(state.found.last - state.found.first)}, from ${duration(state.found.begin - state.found.first)}${state.found.lanes_left_out ? `; ${state.found.lanes_left_out} more lanes are not shown` : ""}`;
    words.textContent = found.waited_most;
    replace(sides, side("trainer", found.at_work, found.idle.trainer, found.causes), found.slots ? side("rollout slots", null, found.idle.rollout, found.causes) : null);
    draw();
    replace(keys, legend(found));
    replace(table, shares(found));
  };
  const load = newest(question, show, (problem) => replace(table, refusal(problem)));
  const zoom = (begin, end) => {
    const { first, last } = state.found;
    Object.assign(state, { newest: 0, since: Math.max(first, begin), until: Math.min(last, Math.max(end, begin + 0.01)) });
    for (const one of choices.children) one.setAttribute("aria-pressed", "false");
    load();
  };
  const shift = ([low, high]) => {
    const { begin, end } = state.found;
    zoom(begin + low * (end - begin), end + high * (end - begin));
  };
  pointing(canvas, tip, state, { zoom, shift, all: () => choices.firstChild.click(), ask });
  const sized = new ResizeObserver(() => state.found?.lanes.length && draw());
  sized.observe(box);
  await load();
  return { update: load, repaint: () => canvas.hidden || draw(), destroy() { sized.disconnect(); } };
}

// One side's time as a band: at work, and idle by cause.
function side(name, work, causes, meanings) {
  const known = Object.entries(causes).filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]);
  const idle = known.reduce((sum, [, share]) => sum + share, 0);
  const busy = work ?? Math.max(0, 1 - idle);
  const part = (share, paint, text, help, light) => el("span", { class: `side-part ${light ? "idle" : ""}`, title: `${text} ${percent(share)}${help ? `: ${help}` : ""}`, style: { "flex-grow": share, "--paint": `var(--${paint})` } }, share >= 0.08 ? `${text} ${percent(share)}` : "");
  return el("div", { class: "side" }, el("span", { class: "muted" }, name), el("div", { class: "side-band", role: "img", "aria-label": `${name}: at work ${percent(busy)}, idle for ${known.map(([cause, share]) => `${cause} ${percent(share)}`).join(", ") || "nothing"}` },
    part(busy, name === "trainer" ? "green" : "blue", "at work"), known.map(([cause, share]) => part(share, WHY[cause] || "grey", cause, meanings[cause], true)), el("span", { class: "side-rest", style: { "flex-grow": Math.max(0, 1 - busy - idle) } })));
}

function legend(found) {
  const entry = (paint, text, help, light) => el("span", { class: "entry", title: help }, el("span", { class: `key box ${light ? "light" : ""}`, style: { "--paint": `var(--${paint})` } }), text);
  const kinds = [...new Set(found.lanes.flatMap((lane) => Object.keys(lane.share)))];
  const causes = [...new Set([...Object.keys(found.waits), ...Object.keys(found.slots?.idle || {})])];
  return [el("div", { class: "legend keys" }, Object.keys(WORK).filter((kind) => kinds.includes(kind)).map((kind) => entry(PAINT[kind], WORK[kind]))),
    causes.length ? el("div", { class: "legend keys" }, "idle: ", causes.map((cause) => entry(WHY[cause] || "grey", cause, found.causes[cause], true))) : null];
}

function pointing(canvas, tip, state, { zoom, shift, all, ask }) {
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
    const row = places(state.found).find((one) => place.y >= one.top && place.y < one.top + LANE + GAP);
    replace(tip, describe(state.found, row, place));
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
    if (event.key === "0") all();
    else if (MOVES[event.key]) { event.preventDefault(); shift(MOVES[event.key]); }
  });
}

function describe(found, row, place) {
  const lines = [el("strong", {}, duration(place.time - found.first))];
  const bin = (values) => values[Math.max(0, Math.min(values.length - 1, Math.floor(place.share * values.length)))];
  const idle = (causes) => Object.entries(causes).map(([cause, values]) => [cause, bin(values)]).filter(([, share]) => share >= 0.01)
    .map(([cause, share]) => el("div", {}, `${percent(share)} idle, ${cause}: ${found.causes[cause] || ""}`));
  if (row) {
    lines.push(el("div", {}, title(row.lane)));
    for (const [kind, values] of Object.entries(row.share)) {
      if (isWait(kind) || !(bin(values) > 0)) continue;
      const answers = kind === "generate" ? `, ${number(bin(row.busy.generate), 1)} answers at a time` : "";
      lines.push(el("div", {}, `${percent(bin(values))} ${WORK[kind] || kind}${answers}`));
    }
    if (row.lane === "trainer") lines.push(...idle(found.waits));
    if (row.lane.startsWith("replica") && found.slots && !(bin(row.share.generate || [0]) > 0.99)) lines.push(...idle(found.slots.idle).slice(0, 3));
  } else if (isOnBand(found, place.y)) {
    lines.push(...idle(found.waits));
  } else if (found.slots && place.y > LANE) {
    for (const [use] of [...USES, ["free"]]) lines.push(el("div", {}, `${use}: ${number(bin(found.slots.columns[use]), 1)} slots`));
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
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const list = (pairs) => pairs.filter(([, value]) => value >= 0.001).sort((a, b) => b[1] - a[1]).map(([kind, value]) => `${kind} ${percent(value, value < 0.01 ? 1 : 0)}`).join(", ") || "–";
  const lines = found.lanes.map((lane) => {
    const kinds = Object.entries(lane.share).map(([kind, values]) => [kind, mean(values)]);
    const work = kinds.filter(([kind]) => !isWait(kind)).map(([kind, value]) => [WORK[kind] || kind, value]);
    const asleep = 1 - Math.min(1, kinds.filter(([kind]) => isWork(kind)).reduce((sum, [, value]) => sum + value, 0));
    const all = Object.values(found.idle.rollout).reduce((sum, value) => sum + value, 0);
    const idle = lane.lane === "trainer" ? Object.entries(found.idle.trainer)
      : lane.lane.startsWith("replica") && all ? Object.entries(found.idle.rollout).map(([cause, value]) => [cause, (asleep * value) / all]) : [];
    return el("tr", {}, el("td", { title: lane.lane }, title(lane.lane)), el("td", {}, list(work)), el("td", {}, list(idle)));
  });
  return el("details", { open: innerWidth > 720 }, el("summary", {}, "Shares of this time"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "lane"), el("th", {}, "at work"), el("th", {}, "idle, by cause"))), el("tbody", {}, lines))));
}
