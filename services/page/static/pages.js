// Going through a list a page at a time.

import { el } from "./dom.js";
import { count } from "./numbers.js";

export function pages(state, total, draw, { rows, back = "← Back", next = "Next →" }) {
  const move = (by) => () => { state.offset = Math.max(0, state.offset + by); draw(); };
  const last = Math.min(total, state.offset + rows);
  return el("div", { class: "pages" },
    el("button", { type: "button", disabled: state.offset === 0, onclick: move(-rows) }, back),
    el("span", { class: "muted" }, `${count(state.offset + 1)} to ${count(last)} of ${count(total)}`),
    el("button", { type: "button", disabled: last >= total, onclick: move(rows) }, next));
}
