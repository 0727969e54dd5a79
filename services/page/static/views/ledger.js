// The account of every sample group and every token, as a flow.

import { el, empty, panel, replace, svg } from "../dom.js";
import { count, percent, short } from "../numbers.js";

const ENDINGS = [["trained", "green"], ["filtered", "grey"], ["expired", "orange"], ["failed", "red"], ["in_flight", "blue"]];

export async function ledger({ root, overview }) {
  const body = el("div", { class: "stack" });
  root.append(body);
  const draw = async (known) => {
    if (!known.flow) return void replace(body, empty("The ledger cannot be read.", known.ledger_problem));
    const { flow } = known;
    const groups = ENDINGS.map(([name, paint]) => ({ name: name.replace("_", " "), value: flow.groups[name], paint }));
    const again = Object.entries(flow.again).map(([cause, value]) => ({ name: `sampled again: ${cause}`, value, paint: "purple" }));
    const tokens = [...ENDINGS.map(([name, paint]) => ({ name: name.replace("_", " "), value: flow.tokens[name], paint })), ...again];
    replace(body, balance(flow),
      panel("Sample groups", river("admitted", flow.groups.admitted, groups)),
      panel("Response tokens", river("sampled", flow.tokens.admitted, tokens)),
      reasons(flow.reasons));
  };
  await draw(overview);
  return { update: draw, destroy() {} };
}

function balance(flow) {
  const good = flow.imbalance === 0;
  return el("p", { class: `balance ${good ? "good" : "bad"}`, role: "status" },
    good ? "✓ The ledger balances: every group and every token is accounted for." : `✗ The ledger is off by ${count(flow.imbalance)}; this is a defect.`);
}

function river(source, total, parts) {
  const live = parts.filter((part) => part.value > 0);
  if (!total) return empty("Nothing yet.");
  const [width, height, gap, bar] = [720, Math.max(140, 46 * live.length), 10, 14];
  const room = height - gap * (live.length - 1);
  const sizes = live.map((part) => Math.max(3, (room * part.value) / total));
  const scale = room / sizes.reduce((sum, size) => sum + size, 0);
  let left = 0;
  let right = 0;
  const top = (height - room) / 2;
  const drawn = live.map((part, i) => {
    const size = sizes[i] * scale;
    const [y0, y1, x0, x1] = [top + left, right, 130, 430];
    left += size;
    right += size + gap;
    const middle = (x0 + x1) / 2;
    const path = `M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1} L${x1},${y1 + size} C${middle},${y1 + size} ${middle},${y0 + size} ${x0},${y0 + size} Z`;
    const label = `${part.name}: ${count(part.value)}, ${percent(part.value / total, 1)}`;
    return svg("g", {}, svg("title", {}, label),
      svg("path", { d: path, class: `stream ${part.paint}` }),
      svg("rect", { x: x1, y: y1, width: bar, height: size, class: `bank ${part.paint}` }),
      svg("text", { x: x1 + bar + 10, y: y1 + size / 2, class: "name" }, part.name),
      svg("text", { x: width - 4, y: y1 + size / 2, class: "amount" }, `${short(part.value)} · ${percent(part.value / total, 1)}`));
  });
  return el("div", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "river", role: "img", "aria-label": `${source}: ${count(total)}. ${live.map((p) => `${p.name} ${count(p.value)}`).join(", ")}` },
    svg("rect", { x: 116, y: top, width: bar, height: room, class: "bank ink" }),
    svg("text", { x: 104, y: height / 2 - 9, class: "amount name" }, source),
    svg("text", { x: 104, y: height / 2 + 9, class: "amount" }, count(total)), drawn));
}

function reasons(rows) {
  const known = rows.filter((row) => row.reason);
  if (!known.length) return null;
  return panel("Why", el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "status"), el("th", {}, "reason"), el("th", { class: "number" }, "groups"), el("th", { class: "number" }, "tokens"))),
    el("tbody", {}, known.map((row) => el("tr", {}, el("td", {}, row.status), el("td", {}, row.reason), el("td", { class: "number" }, count(row.groups)), el("td", { class: "number" }, count(row.tokens)))))));
}
