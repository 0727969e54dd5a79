// One answer, token by token, in the colours of what is known of each.

import { el, panel, replace } from "../dom.js";
import { fixed, number } from "../numbers.js";

const VERSION_PAINT = ["blue", "orange", "green", "purple", "teal", "red"];
const MODES = {
  version: "policy version", gap: "logprob gap, trainer − engine", advantage: "advantage", logprob: "behaviour logprob",
};

export function tokens(line) {
  const gaps = (line.trainer || []).map((value, i) => (value === null ? null : value - line.behaviour[i]));
  const known = { version: line.token_ids.map((_, i) => versionOf(line.spans, i)), gap: gaps, advantage: line.advantages || [], logprob: line.behaviour };
  const versions = [...new Set(known.version.map((one) => one?.[0]))];
  const has = (mode) => mode === "version" || known[mode].some((value) => value !== null && value !== undefined);
  const state = { mode: versions.length === 1 && has("gap") ? "gap" : "version" };
  const text = el("div", { class: "tokens", role: "group", "aria-label": "Tokens of the answer" });
  const key = el("div", { class: "legend token-legend" });
  const facts = el("p", { class: "token-facts", role: "status" }, "Point at a token, or go through them with the arrow keys.");
  const spans = line.token_ids.map((id, i) => token(line, i, id));
  const say = (i) => {
    const [version, replica] = known.version[i] || [];
    const parts = [`token ${i}`, `id ${line.token_ids[i]}`, `version ${version ?? "?"} on ${replica ?? "?"}`, `logprob ${fixed(line.behaviour[i], 4)}`];
    if (gaps[i] !== null && gaps[i] !== undefined) parts.push(`trainer ${fixed(line.trainer[i], 4)}`, `gap ${fixed(gaps[i], 4)}`);
    if (known.advantage[i] !== null && known.advantage[i] !== undefined) parts.push(`advantage ${fixed(known.advantage[i], 3)}`);
    if (!line.sampled[i]) parts.push("not sampled by the policy");
    facts.textContent = parts.join(" · ");
  };
  const paint = () => {
    const largest = Math.max(1e-6, ...known[state.mode === "version" ? "logprob" : state.mode].filter((v) => v !== null && v !== undefined).map(Math.abs));
    spans.forEach((span, i) => { span.style.background = background(state.mode, known, i, versions, largest); span.classList.toggle("none", !line.sampled[i]); });
    replace(key, keyOf(state.mode, versions, largest));
    for (const button of modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode));
  };
  const modes = el("div", { class: "choice", role: "group", "aria-label": "Colour by" }, Object.entries(MODES).filter(([mode]) => has(mode)).map(([mode, title]) =>
    el("button", { type: "button", dataset: { mode }, onclick: () => { state.mode = mode; paint(); } }, title)));
  text.append(...spans);
  text.addEventListener("pointerover", (event) => { if (event.target.dataset.i) say(Number(event.target.dataset.i)); });
  text.addEventListener("focusin", (event) => { if (event.target.dataset.i) say(Number(event.target.dataset.i)); });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    spans[Math.max(0, Math.min(spans.length - 1, Number(event.target.dataset.i) + step))].focus();
  });
  if (spans[0]) spans[0].tabIndex = 0;
  paint();
  const rest = line.tokens > line.token_ids.length ? el("p", { class: "muted" }, `${line.tokens - line.token_ids.length} further tokens are not kept.`) : null;
  return panel("Answer, token by token", el("div", { class: "bar" }, modes), key, text, facts, rest);
}

function token(line, i, id) {
  const piece = line.pieces ? line.pieces[i] : `${id} `;
  const shown = piece === "" ? "·" : piece.replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t");
  return el("span", { class: "token", tabindex: -1, dataset: { i } }, shown);
}

const versionOf = (spans, i) => {
  const span = (spans || []).find(([, start, end]) => i >= start && i < end);
  return span ? [span[0], span[3]] : null;
};

const mix = (paint, share) => `color-mix(in srgb, var(--${paint}) ${Math.round(8 + 42 * Math.min(1, share))}%, transparent)`;

function background(mode, known, i, versions, largest) {
  if (mode === "version") return `color-mix(in srgb, var(--${VERSION_PAINT[versions.indexOf(known.version[i]?.[0]) % VERSION_PAINT.length]}) 26%, transparent)`;
  const value = known[mode][i];
  if (value === null || value === undefined) return "transparent";
  if (mode === "logprob") return mix("orange", -value / largest);
  return Math.abs(value) < 1e-9 ? "transparent" : mix(value > 0 ? "green" : "red", Math.abs(value) / largest);
}

function keyOf(mode, versions, largest) {
  const entry = (paint, text, share = 1) => el("span", { class: "entry" }, el("span", { class: "key box", style: { background: mode === "version" ? `color-mix(in srgb, var(--${paint}) 40%, transparent)` : mix(paint, share) } }), text);
  if (mode === "version") return versions.map((version, i) => entry(VERSION_PAINT[i % VERSION_PAINT.length], `version ${version ?? "?"}`));
  if (mode === "logprob") return [entry("orange", "0, certain", 0), entry("orange", `−${number(largest)}, the least likely token`)];
  const less = mode === "gap" ? "less likely to the trainer than it was to the engine" : "to be made less likely";
  const more = mode === "gap" ? "more likely to the trainer" : "to be made more likely";
  return [entry("red", `down to −${number(largest)}: ${less}`), entry("green", `up to ${number(largest)}: ${more}`)];
}
