// The configuration of a run as it was resolved, and its deployment.

import { choice, el, empty, panel, replace } from "../../dom.js";

export async function setup({ root, ask }) {
  const { config, deployment } = await ask("/setup");
  const state = { show: "changed", text: "" };
  const body = el("div", {});
  const bar = el("div", {});
  const draw = () => {
    replace(bar, choice("Keys", [["changed", `other than the default (${config.filter((row) => row.changed).length})`], ["all", `all (${config.length})`]], state.show, (show) => { state.show = show; draw(); }));
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = config.filter((row) => (state.show === "all" || row.changed) && words.every((word) => `${row.key} ${text(row.value)}`.toLowerCase().includes(word)));
    replace(body, rows.length ? table(rows) : empty("No key fits."));
  };
  const search = el("input", { type: "search", "aria-label": "search keys", placeholder: "search", oninput: (event) => { state.text = event.target.value; draw(); } });
  root.append(panel("Configuration, as it was resolved", config.length ? [el("div", { class: "bar" }, bar, search), body] : empty("config.yaml cannot be read.")),
    deployment ? panel("Deployment", el("pre", { class: "deployment" }, deployment)) : "");
  draw();
  return { async update() {}, destroy() {} };
}

const text = (value) => (value === null ? "null" : typeof value === "string" ? value : JSON.stringify(value));

function table(rows) {
  return el("div", { class: "scroll" }, el("table", { class: "setup" }, el("thead", {}, el("tr", {}, el("th", {}, "key"), el("th", {}, "value"), el("th", {}, "default"))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.changed ? "changed" : null }, el("td", { class: "mono" }, row.key), el("td", { class: "mono value" }, text(row.value)), el("td", { class: "mono muted value" }, "default" in row ? text(row.default) : "required"))))));
}
