// The page: which run and which view, kept in the address; what is new comes as events.

import { repaint } from "./charts.js";
import { el, refusal, replace } from "./dom.js";
import { ago } from "./numbers.js";
import { ask, follow, FOLLOWING, Refused, remember } from "./questions.js";
import { compare } from "./views/compare.js";
import { group } from "./views/group.js";
import { groups } from "./views/groups.js";
import { learning } from "./views/learning.js";
import { ledger } from "./views/ledger.js";
import { log } from "./views/details/log.js";
import { replicas } from "./views/replicas.js";
import { compareAddress, runs } from "./views/runs.js";
import { setup } from "./views/details/setup.js";
import { tasks } from "./views/details/tasks.js";
import { timeline } from "./views/timeline.js";
import { trajectories } from "./views/trajectories.js";

const VIEWS = [
  ["learning", "Learning", learning],
  ["tasks", "Tasks", tasks],
  ["timeline", "Timeline", timeline],
  ["groups", "Groups", (view) => (view.here.rest[0] === undefined ? groups(view) : group(view))],
  ["trajectories", "Trajectories", trajectories],
  ["ledger", "Ledger", ledger],
  ["replicas", "Replicas", replicas],
  ["log", "Log", log],
  ["setup", "Setup", setup],
];
const REFRESH_MS = 1000;
const node = (id) => document.getElementById(id);
const main = node("main");

let here = null; // {run, view, rest, parameters}
let shown = null; // what the view gave: {update, destroy}
let stopFollowing = () => {};
let turn = 0;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [run, view, ...rest] = path.split("/").map(decodeURIComponent);
  return { run: run || null, view: view || "learning", rest, parameters: new URLSearchParams(query) };
}

const address = (run, view, ...rest) => `#/${[run, view, ...rest].map(encodeURIComponent).join("/")}`;

async function go() {
  const mine = (turn += 1);
  const before = here;
  main.setAttribute("aria-busy", "true");
  try {
    here = place();
    if (!here.run) {
      const found = await ask("runs");
      if (mine !== turn) return;
      if (found.runs.length === 1 && !here.parameters.has("run")) return void location.replace(address(found.runs[0].run_id, "learning"));
      leave();
      const chosen = here.parameters.getAll("run");
      heading(null, chosen.length ? sideBySide(chosen.length) : []);
      const made = chosen.length ? await compare(replace(main), here, found.runs.map((run) => run.run_id)) : runs(replace(main), found);
      if (mine === turn) shown = made;
      else made.destroy();
      return;
    }
    if (before?.run !== here.run) watch(here.run);
    const overview = await ask(`runs/${encodeURIComponent(here.run)}`);
    if (mine !== turn) return;
    heading(overview);
    const entry = VIEWS.find(([name]) => name === here.view) || VIEWS[0];
    shown?.destroy();
    shown = null;
    const made = await entry[2]({ root: replace(main), overview, here, ask: (path, p) => ask(`runs/${encodeURIComponent(here.run)}${path}`, p), current: () => mine === turn });
    if (mine === turn) shown = made;
    else made.destroy();
  } catch (problem) {
    if (mine === turn) fail(problem);
  } finally {
    if (mine === turn) main.setAttribute("aria-busy", "false");
  }
}

function leave() {
  stopFollowing();
  shown?.destroy();
  shown = null;
}

function fail(problem) {
  leave();
  here = null;
  if (problem instanceof Refused && problem.status === 401) return askForKey();
  replace(main, refusal(problem));
}

function askForKey() {
  const field = el("input", { type: "password", autocomplete: "off", "aria-label": "API key", required: true });
  const form = el("form", { class: "key-form", onsubmit: (event) => {
    event.preventDefault();
    remember(field.value);
    go();
  } }, el("h2", {}, "This page needs an API key"), el("p", { class: "muted" }, "It stays in this tab."), field, el("button", { type: "submit" }, "Open"));
  replace(main, form);
  field.focus();
}

function heading(overview, otherwise = []) {
  document.title = overview ? `${overview.run_id} · Millrace` : "Millrace";
  const tabs = overview ? VIEWS.map(([name, title]) =>
    el("a", { href: address(overview.run_id, name), "aria-current": here.view === name ? "page" : null }, title)) : [];
  replace(node("tabs"), tabs);
  node("tabs").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  replace(node("run-head"), overview ? runHead(overview) : otherwise);
}

const sideBySide = (several) => [el("a", { href: "#/" }, "Runs"), el("h1", {}, several === 1 ? "One run" : `${several} runs side by side`)];

function runHead(overview) {
  const { state } = overview.figures.values;
  const title = overview.status ? overview.status.detail : state === "unfinished" ? `Nothing says how it ended; last written ${ago(overview.written_at)}` : "";
  return [
    el("h1", { title: overview.path }, overview.run_id),
    el("span", { class: `state ${state}`, title }, overview.figures.texts.state),
    el("span", { class: "steps" }, `step ${overview.figures.texts.steps}`),
    el("progress", { max: overview.steps || 1, value: overview.step, "aria-label": "train steps" }),
    el("a", { href: compareAddress([overview.run_id]), title: "This run side by side with others" }, "compare"),
  ];
}

function watch(run) {
  stopFollowing();
  const ending = new AbortController();
  let due = false;
  let busy = false;
  const refresh = async () => {
    if (busy || ending.signal.aborted) return;
    busy = true;
    while (due && !ending.signal.aborted) {
      due = false;
      try {
        const overview = await ask(`runs/${encodeURIComponent(run)}`);
        if (ending.signal.aborted || here?.run !== run) break;
        heading(overview);
        await shown?.update(overview);
      } catch {
        // The stream says when the server is back.
      }
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    }
    busy = false;
  };
  let first = true;
  const changed = () => {
    if (first) return void (first = false); // the state that was just read
    due = true;
    refresh();
  };
  const linked = (how) => {
    const link = node("link");
    const on = how === FOLLOWING;
    link.className = on ? "link on" : "link off";
    link.textContent = how;
    if (!on) first = false;
  };
  follow(`runs/${encodeURIComponent(run)}/events`, changed, linked, ending.signal);
  stopFollowing = () => {
    ending.abort();
    node("link").textContent = "";
  };
}

function otherTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("millrace.theme", root.dataset.theme);
  repaint();
  shown?.repaint?.();
}

function keys(event) {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const index = Number(event.key) - 1;
  if (here?.run && index >= 0 && index < VIEWS.length) location.hash = address(here.run, VIEWS[index][0]);
  else if (event.key === "t") otherTheme();
}

node("theme").addEventListener("click", otherTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { repaint(); shown?.repaint?.(); });
addEventListener("hashchange", go);
addEventListener("keydown", keys);
go();
