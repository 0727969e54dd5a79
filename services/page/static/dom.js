// Making elements. Text only ever becomes text: nothing here can turn a string into markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

export const el = (tag, properties, ...children) =>
  fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const replace = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
};

// A row that leads to an address wherever it is clicked; keyboards have the link in it.
export const openingRow = (address, ...cells) => el("tr", { class: "open", onclick: (event) => {
  if (!event.target.closest("a, label, button") && !getSelection().toString()) location.hash = address;
} }, cells);

// Buttons of which one is pressed. options: [[value, text]].
export function choice(label, options, chosen, act) {
  const box = el("div", { class: "choice", role: "group", "aria-label": label }, options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: (event) => {
      for (const one of box.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      act(value);
    } }, text)));
  return box;
}

export const panel = (title, ...children) =>
  el("section", { class: "panel" }, title ? el("h2", {}, title) : null, ...children);

export const refusal = (problem) => empty("This cannot be shown.", problem.message);

export const empty = (text, detail) =>
  el("div", { class: "empty" }, el("p", {}, text), detail ? el("p", { class: "muted" }, detail) : null);
