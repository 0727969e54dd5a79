import { el, empty, panel } from "../dom.js";
import { ago } from "../numbers.js";

export function runs(root, found) {
  const rows = found.map((run) =>
    el("tr", {},
      el("td", {}, el("a", { href: `#/${encodeURIComponent(run.run_id)}/learning` }, run.run_id)),
      el("td", { class: "muted" }, run.made_at ? ago(run.made_at) : "")));
  root.append(
    found.length
      ? panel("Runs", el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "run"), el("th", {}, "begun"))), el("tbody", {}, rows)))
      : empty("No run yet.", "Start one with `millrace run RUN.yaml`; it appears here."));
  return { async update() {}, destroy() {} };
}
