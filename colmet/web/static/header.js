// The header: colours, the time zone, the user, the sign-out, and the list of keys.

import { address, who } from "./api.js";
import { el, mark, say } from "./dom.js";
import { ownZone, setZone, zone, zoneText } from "./units.js";

const KEYS = [
  ["/", "search"],
  ["Arrow keys, Home, End", "from node to node, in the cells and in the map of the nodes; through the values of a chart"],
  ["Tab, Enter", "to each link, button and field"],
  ["?", "this list"],
  ["Esc", "close it"],
];
const UTC = "UTC";

/** Return a choice of former visits; null without one. */
function kept(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // the browser stores nothing
  }
}

/** Keep a choice for later visits; "" removes it. */
function keep(key, value) {
  try {
    if (value) localStorage.setItem(key, value);
    else localStorage.removeItem(key);
  } catch {
    // the choice lasts as long as the page
  }
}

// -- colours --

const theme = document.getElementById("theme");
theme.value = kept("colmet-theme") ?? "";
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  keep("colmet-theme", theme.value);
  dispatchEvent(new Event("colours"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("colours")));

// -- the time zone: the browser's (""), the head node's ("head") or UTC --

const zones = document.getElementById("zone");
let head = null; // name of the head node's time zone, if known

/** Return the name of a choice's zone. */
function nameOf(choice) {
  return choice === "utc" ? UTC : (choice === "head" && head) || ownZone();
}

/** Offer the known zones, each once, and use the chosen one. */
function offer() {
  const chosen = zoneText(nameOf(kept("colmet-zone")));
  const offered = new Map(); // text -> choice
  for (const choice of ["", "head", "utc"]) {
    const text = zoneText(nameOf(choice));
    if (!offered.has(text)) offered.set(text, choice);
  }
  zones.replaceChildren(...[...offered].map(([text, value]) =>
    el("option", { value, text: value === "head" ? `${text}, head node` : text, selected: text === chosen })));
  setZone(nameOf(zones.value));
}

zones.addEventListener("change", () => {
  keep("colmet-zone", zones.value);
  setZone(nameOf(zones.value));
  dispatchEvent(new Event("zone"));
});
offer();

// -- the user --

/** Show the user, and what the user may see and do. */
export async function greet() {
  const { user, admin, version, zone: theirs, sign_out: end } = await who(new AbortController().signal);
  const name = document.getElementById("who");
  say(name, user == null ? "open to all" : admin ? `${user} (sees all jobs)` : user);
  mark(name, "title", `${user == null ? "no login: everybody with access to this page sees all jobs" : "signed in"}; Colmet ${version}`);
  say(document.getElementById("jobs-link"), admin ? "Jobs" : "My jobs");
  for (const link of document.querySelectorAll("nav [data-admin]")) link.hidden = !admin;
  const out = document.getElementById("sign-out");
  out.hidden = !end;
  if (end) {
    out.href = address(end);
    if (end === "sign-out") out.addEventListener("click", leave);
  }
  const before = zone();
  head = theirs;
  try {
    if (head) zoneText(head);
  } catch {
    head = null; // another name of a zone than browsers have
  }
  offer();
  if (zone() !== before) dispatchEvent(new Event("zone"));
}

/** End the session. */
async function leave(event) {
  event.preventDefault();
  await fetch(event.currentTarget.href, { method: "POST" });
  location.assign(address("login"));
}

// -- keys --

const dialog = el("dialog", { "aria-labelledby": "keys-title" },
  el("h2", { id: "keys-title", text: "Keys" }),
  el("dl", { class: "keys" }, ...KEYS.map(([keys, text]) => el("div", {}, el("dt", {}, el("kbd", { text: keys })), el("dd", { text })))),
  el("button", { type: "button", text: "Close", onclick: () => dialog.close() }));
document.body.append(dialog);
const help = document.getElementById("help");
help.addEventListener("click", () => dialog.showModal());

/** Handle a key of the whole page; return whether it was one. */
export function pressed(event, seek) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return false;
  const done = { "/": seek, "?": () => dialog.showModal() }[event.key];
  if (!done) return false;
  event.preventDefault(); // behind the dialog, too: Firefox would open its own search
  if (!dialog.open) done();
  return true;
}
