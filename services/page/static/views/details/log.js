// Alerts, and the run's log with search.

import { el, empty, panel, refusal, replace } from "../../dom.js";
import { count } from "../../numbers.js";
import { pages } from "../../pages.js";
import { newest } from "../../questions.js";

const ROWS = 100;
const KNOWN = new Set(["time", "level", "service", "event", "run"]);

export async function log({ root, here, ask }) {
  const state = { text: here.parameters.get("text") || "", level: here.parameters.get("level") || "", event: here.parameters.get("event") || "", offset: 0 };
  const top = el("div", {});
  const body = el("div", { class: "panel table-panel" });
  const events = el("select", { "aria-label": "event", onchange: (event) => choose("event", event.target.value) });
  const drawAlerts = newest(() => ask("/alerts"), ({ alerts }) => replace(top, alertPanel(alerts)), (problem) => replace(top, refusal(problem)));
  const draw = newest(
    () => ask("/log", { ...state, limit: ROWS }),
    (found) => {
      if (events.options.length !== found.events.length + 1) replace(events, ["", ...found.events].map((one) => el("option", { value: one, selected: one === state.event }, one || "all")));
      replace(body, found.total ? [table(found.lines), pages(state, found.total, draw, { rows: ROWS, back: "← Newer", next: "Older →" })] : empty("No line fits.", "The log of a run is in log.jsonl of its directory."));
    },
    (problem) => replace(body, refusal(problem)));
  const choose = (name, value) => { Object.assign(state, { offset: 0, [name]: value }); draw(); };
  let waiting = 0;
  const search = el("input", { type: "search", value: state.text, maxlength: 200, "aria-label": "words", oninput: (event) => { clearTimeout(waiting); waiting = setTimeout(choose, 200, "text", event.target.value); } });
  const level = el("select", { "aria-label": "level", onchange: (event) => choose("level", event.target.value) },
    [["", "all"], ["warning", "warnings and errors"]].map(([value, text]) => el("option", { value, selected: value === state.level }, text)));
  root.append(top, el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    el("label", {}, "words", search), el("label", {}, "level", level), el("label", {}, "event", events)), body);
  await Promise.all([draw(), drawAlerts()]);
  return { async update() { await Promise.all([draw(), drawAlerts()]); }, destroy() { clearTimeout(waiting); } };
}

function alertPanel(alerts) {
  if (!alerts.length) return el("p", { class: "balance good", role: "status" }, "✓ No alert: no warning in the log, and the figures of the newest steps are within bounds.");
  return panel(alerts.length === 1 ? "One alert" : `${count(alerts.length)} alerts`, el("ul", { class: "alerts" }, alerts.map((one) => el("li", { class: one.level },
    el("strong", {}, one.title), one.count > 1 ? el("span", { class: "muted" }, ` ${count(one.count)} times`) : null, one.newest ? el("span", { class: "muted" }, ` newest ${clock(one.newest)}`) : null,
    one.why ? el("p", { class: "muted" }, one.why) : null))));
}

const clock = (time) => String(time).replace("T", " ").replace(/\.\d+Z$/, "");

function table(lines) {
  return el("div", { class: "scroll" }, el("table", { class: "log" },
    el("thead", {}, el("tr", {}, ["time (UTC)", "level", "event", "fields"].map((name) => el("th", {}, name)))),
    el("tbody", {}, lines.map((line) => el("tr", {}, el("td", { class: "mono" }, clock(line.time ?? "")), el("td", {}, el("span", { class: `verdict ${line.level === "info" ? "" : "bad"}` }, String(line.level ?? ""))),
      el("td", {}, String(line.event ?? "")), el("td", { class: "fields mono" }, fields(line)))))));
}

const fields = (line) => Object.entries(line).filter(([name]) => !KNOWN.has(name)).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ");
