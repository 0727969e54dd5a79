// The account of every sample group and every token, as a flow.

import { el, empty, panel, replace, svg } from "../dom.js";
import { figures } from "../figures.js";
import { count, percent } from "../numbers.js";

const ENDINGS = [["trained", "green"], ["filtered", "grey"], ["expired", "orange"], ["failed", "red"], ["in_flight", "blue"]];

export async function ledger({ root, overview }) {
  const body = el("div", { class: "stack" });
  root.append(body);
  const meanings = await figures();
  const draw = async (known) => {
    if (!known.flow) return void replace(body, empty("The ledger cannot be read.", known.ledger_problem));
    const { flow } = known;
    const endings = (counts) => ENDINGS.map(([name, paint]) => ({ name: name.replace("_", " "), value: counts[name], paint, help: meanings[`ledger.${name}`] }));
    const again = Object.entries(flow.again).map(([cause, value]) => ({ name: `sampled again: ${cause}`, value, paint: "purple" }));
    const tokens = [...endings(flow.tokens), ...again];
    replace(body, balance(flow),
      el("div", { class: "pair" },
        panel("Sample groups", river("admitted", flow.groups.admitted, endings(flow.groups))),
        panel("Response tokens", el("div", { title: meanings.tokens_sampled, dataset: { figure: "tokens_sampled" } }, river("sampled", flow.tokens.admitted, tokens)),
          flow.tokens_evaluated ? el("p", { class: "muted", title: meanings.tokens_evaluated }, `${count(flow.tokens_evaluated)} more in held-out evaluations, outside the ledger.`) : null)),
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

const sum = (sizes) => sizes.reduce((all, size) => all + size, 0);

function river(source, total, parts) {
  const live = parts.filter((part) => part.value > 0);
  if (!total) return empty("Nothing yet.");
  // Names stand above their amounts, so that all of it fits a phone.
  const [width, gap, bar, line, least] = [400, 10, 12, 16, 36];
  const room = Math.max(110, 36 * live.length);
  const shares = live.map((part) => Math.max(3, (room * part.value) / total));
  const scale = room / sum(shares);
  const sizes = shares.map((share) => share * scale);
  // A thin bank still has room for its two lines.
  const slots = sizes.map((size) => Math.max(size + gap, least));
  const height = sum(slots);
  const [x0, x1, text] = [102, 244, 266];
  const top = (height - room) / 2;
  let left = top;
  let right = 0;
  const drawn = live.map((part, i) => {
    const size = sizes[i];
    const [y0, y1] = [left, right + (slots[i] - size) / 2];
    left += size;
    right += slots[i];
    const [middle, centre] = [(x0 + x1) / 2, y1 + size / 2];
    const path = `M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1} L${x1},${y1 + size} C${middle},${y1 + size} ${middle},${y0 + size} ${x0},${y0 + size} Z`;
    const amount = `${count(part.value)} · ${percent(part.value / total, 1)}`;
    return svg("g", {}, svg("title", {}, `${part.name}: ${amount}${part.help ? `. ${part.help}` : ""}`),
      svg("path", { d: path, class: `stream ${part.paint}` }),
      svg("rect", { x: x1, y: y1, width: bar, height: size, class: `bank ${part.paint}` }),
      svg("text", { x: text, y: centre - line / 2, class: "name" }, part.name),
      svg("text", { x: text, y: centre + line / 2 }, amount));
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "river", role: "img", "aria-label": `${source}: ${count(total)}. ${live.map((p) => `${p.name} ${count(p.value)}`).join(", ")}` },
    svg("rect", { x: x0 - bar, y: top, width: bar, height: room, class: "bank ink" }),
    svg("text", { x: x0 - bar - 8, y: top + room / 2 - line / 2, class: "amount name" }, source),
    svg("text", { x: x0 - bar - 8, y: top + room / 2 + line / 2, class: "amount" }, count(total)), drawn);
}

function reasons(rows) {
  const known = rows.filter((row) => row.reason);
  if (!known.length) return null;
  return panel("Why", el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "status"), el("th", {}, "reason"), el("th", { class: "number" }, "groups"), el("th", { class: "number" }, "tokens"))),
    el("tbody", {}, known.map((row) => el("tr", {}, el("td", {}, row.status), el("td", {}, row.reason), el("td", { class: "number" }, count(row.groups)), el("td", { class: "number" }, count(row.tokens)))))));
}
