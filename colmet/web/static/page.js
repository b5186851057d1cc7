// The page: the choice of the view, its refreshes, and messages for failed requests.

import { Failure, ask } from "./api.js";
import { el, mark, say } from "./dom.js";
import { greet, pressed } from "./header.js";
import { Jobs } from "./jobs.js";
import { when } from "./units.js";

const LONGEST_S = 60; // between two requests without an answer
const PERIOD_S = period(new URLSearchParams(location.search).get("every"), 5);
const VIEWS = {
  "": async () => Jobs,
  nodes: async () => (await import("./nodes.js")).Nodes,
  job: async () => (await import("./job.js")).Job,
  node: async () => (await import("./node.js")).Host,
  usage: async () => (await import("./usage.js")).Usage,
  health: async () => (await import("./health.js")).Health,
  memory: async () => (await import("./memory.js")).Memory,
};
const ABOVE = { job: "", node: "nodes" }; // the view that a view is reached from

const main = document.getElementById("main");
const state = document.getElementById("state");
const notice = document.getElementById("notice");
const pause = document.getElementById("pause");

let view = null;
let jobs = "#/"; // the list of jobs as it was left
let control = new AbortController(); // of the view's requests
let timer = 0;
let asking = false;
let wanted = false; // another request, right after the answer to this one
let paused = false;
let failures = 0;
let wrong = ""; // the last failure in a word or two
let answered = 0; // time of the last answer, ms

/** Seconds between two requests: those of `?every=`, if valid. */
function period(text, otherwise) {
  return /^[0-9]{1,4}$/.test(text ?? "") && Number(text) >= 1 ? Number(text) : otherwise;
}

// -- the view --

/** Parse a hash: the name of a view, its subject, and parameters. */
function route(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/");
  let what = "";
  try {
    what = decodeURIComponent(rest.join("/"));
  } catch {
    // not an address of this page
  }
  return { name: Object.hasOwn(VIEWS, name) ? name : "", what, parameters: new URLSearchParams(query) };
}

/** Keep choices in the address, without a step in the history. */
function remember(values) {
  const [path, query] = location.hash.split("?", 2);
  const parameters = new URLSearchParams(query);
  for (const [key, value] of Object.entries(values)) {
    if (value === "" || value == null || value === false) parameters.delete(key);
    else parameters.set(key, value);
  }
  const text = String(parameters);
  history.replaceState(null, "", `${path || "#/"}${text && `?${text}`}`);
}

async function go(first) {
  const { name, what, parameters } = route();
  control.abort();
  control = new AbortController();
  clearTimeout(timer);
  view?.close();
  view = null;
  const mine = control;
  let made;
  try {
    made = await VIEWS[name]();
  } catch (error) {
    await unloaded(error, mine.signal);
    return;
  }
  if (mine !== control) return; // another view was chosen meanwhile
  view = new made({ what, parameters, remember, again: () => soon(0), jobs });
  failures = 0;
  asking = false;
  document.title = `${view.title} – Colmet`;
  for (const link of document.querySelectorAll("header nav a")) {
    const one = link.hash.slice(2);
    mark(link, "aria-current", one === name ? "page" : one === (ABOVE[name] ?? name) ? "true" : null);
  }
  main.replaceChildren(view.element);
  delete main.dataset.shown;
  if (!first) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
  if (parameters.has("seek")) {
    remember({ seek: "" });
    view.seek?.();
  }
  await turn(true);
}

/** Name why the script of a view was not loaded: the collector does not answer, or the script is wrong. */
async function unloaded(error, signal) {
  let why = `${error.message}. The collector answers: it may have another version now.`;
  try {
    await ask("api/v1/whoami", {}, signal);
    console.error(error);
  } catch (failure) {
    if (signal.aborted) return; // another view was chosen meanwhile
    if (!(failure instanceof Failure)) throw failure;
    why = failure.message;
  }
  if (!signal.aborted) notify(`This view could not be loaded: ${why}`, true, "Reload", () => location.reload());
}

// -- refreshes --

function soon(seconds) {
  clearTimeout(timer);
  if (seconds === 0) {
    if (asking) wanted = true;
    else turn(true);
  } else timer = setTimeout(turn, 1000 * seconds);
}

/** Refresh the view; with `anyway`, for an action of the user, also while paused. */
async function turn(anyway = false) {
  if (asking || view === null || document.hidden || (paused && anyway !== true)) return;
  asking = true;
  wanted = false;
  const mine = control;
  let next = PERIOD_S;
  try {
    const asked = await view.refresh(mine.signal); // false: no request was needed
    if (mine !== control) return;
    failures = 0;
    if (asked !== false) answered = Date.now();
    notify("");
    if (!main.dataset.shown) performance.mark("colmet-shown");
    main.dataset.shown = "true";
  } catch (error) {
    if (mine !== control) return;
    const ours = !(error instanceof Failure);
    if (ours) console.error(error);
    const failure = ours ? new Failure(`The answer could not be shown: ${error.message}.`, 0) : error;
    failures += 1;
    wrong = { 0: "No answer", 401: "Signed out", 404: "Not found", 429: "Busy" }[failure.status] ?? "Failed";
    // without a login further requests are of no use
    next = failure.status === 401 ? null : Math.max(failure.after, Math.min(Math.max(LONGEST_S, PERIOD_S), PERIOD_S * 2 ** (failures - 1)));
    failed(failure, next);
  } finally {
    if (mine === control) {
      asking = false;
      status();
      if (next !== null) soon(wanted ? 0 : next);
    }
  }
}

function failed(error, next) {
  if (error.status === 401) {
    notify("You are no longer signed in.", true, "Sign in", () => location.reload());
    return;
  }
  const shown = answered ? ` The values shown are of ${when(answered / 1000)}.` : "";
  notify(`${error.message}${error.status === 404 ? "" : shown} Next try in ${Math.round(next)} s.`, true, "Try now", () => soon(0));
}

// -- messages --

/** Show a message above the view; an empty text removes it. */
function notify(text, bad = false, action = "", then = null) {
  mark(main, "class", bad && answered ? "stale" : null);
  if (notice.firstElementChild?.textContent === text || (!text && !notice.firstElementChild)) return;
  notice.replaceChildren();
  if (!text) return;
  notice.append(el("p", { text }));
  if (action) notice.append(el("button", { type: "button", text: action, onclick: then }));
}

function status() {
  const at = answered ? when(answered / 1000) : "";
  say(state, paused ? `Paused${at && ` at ${at}`}` : failures ? wrong : at && `Live, ${at}`);
  mark(state, "title", paused || failures ? null : `refreshed every ${PERIOD_S} s while visible`);
}

pause.addEventListener("click", () => {
  paused = !paused;
  mark(pause, "aria-pressed", String(paused));
  status();
  if (paused) clearTimeout(timer);
  else soon(0);
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused) soon(0);
});

// -- the header --

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the address of the view
  main.focus();
});

addEventListener("keydown", (event) => pressed(event, () => {
  if (view?.seek) view.seek();
  else location.hash = "#/?seek=1";
}));

addEventListener("hashchange", ({ oldURL }) => {
  const { hash } = new URL(oldURL);
  if (route(hash).name === "") jobs = hash || "#/";
  go(false);
});
addEventListener("zone", () => go(true)); // all times are others
go(true);
greet().catch((error) => {
  if (!(error instanceof Failure)) throw error; // the views report it, too
});
