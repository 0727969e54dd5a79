// Notes that people write about the run.

import { el, panel, replace } from "../../dom.js";
import { ago } from "../../numbers.js";
import { newest, send } from "../../questions.js";

export async function notes({ root, overview, ask }) {
  const list = el("ul", { class: "notes" });
  const said = el("p", { class: "muted", role: "status" });
  const text = el("textarea", { "aria-label": "Note", maxlength: 4000, rows: 2, required: true, placeholder: "What did you see, or try?" });
  const author = el("input", { "aria-label": "Your name", maxlength: 80, placeholder: "your name", value: localStorage.getItem("millrace.author") || "" });
  const show = ({ notes: found }) => replace(list, found.map((note) => el("li", {}, el("p", { class: "muted" }, [note.author || "somebody", ` at step ${note.step}, `, ago(note.at)]), el("pre", {}, note.text))));
  const load = newest(() => ask("/notes"), show, (problem) => { said.textContent = problem.message; });
  const form = el("form", { class: "note-form", onsubmit: async (event) => {
    event.preventDefault();
    said.textContent = "";
    localStorage.setItem("millrace.author", author.value);
    try {
      show(await send(`runs/${encodeURIComponent(overview.run_id)}/notes`, { text: text.value, author: author.value }));
      text.value = "";
    } catch (problem) {
      said.textContent = problem.message;
    }
  } }, text, el("div", { class: "bar" }, author, el("button", { type: "submit" }, "Add note")), said);
  root.append(panel("Notes", list, form));
  await load();
  return { update: load };
}
