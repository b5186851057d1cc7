// Fields that choose jobs. Their values are in the address.

import { Failure, ask, now } from "./api.js";
import { choice, el, mark, say } from "./dom.js";

const PAUSE_MS = 250; // from the last key to the request
const RECENT_S = 30 * 86400; // names of jobs within this time are suggested
const MOST_NAMES = 500;
const WIDE = "(min-width: 48rem)";
// key of the address: the group of usage with its names
const NAMED = { user: "user", project: "project", queue: "queue", host: "host" };

/** A form of filters: `text` and `state` are always shown, others on request. */
export class Filters {
  /**
   * @param {URLSearchParams} asked values of the address
   * @param {Array} states [value, text] of each state
   * @param {string} sought what can be searched for
   * @param {Array} keys names of the other filters
   * @param {boolean} suggests whether the archive has names for suggestions
   * @param {function} changed called after each change
   * @param {function} wants called when `refresh` has something to request
   */
  constructor(asked, states, sought, keys, suggests, changed, wants) {
    this.changed = changed;
    this.wants = wants;
    this.due = new Map(); // filter -> its list of suggestions, without names yet
    this.values = { text: asked.get("text") ?? "", state: asked.get("state") ?? states[0][0] };
    if (!states.some(([value]) => value === this.values.state)) this.values.state = states[0][0];
    this.common = states[0][0];
    this.search = this.#input("text", { type: "search", id: "search", placeholder: sought, "aria-keyshortcuts": "/" });
    this.state = choice("State", states, this.values.state, (value) => this.#set("state", value));
    this.others = {};
    for (const key of keys) {
      this.values[key] = asked.get(key) ?? "";
      if (key === "below" && !percent(this.values.below)) this.values.below = "";
      this.others[key] = this.#field(key, suggests);
    }
    this.summary = el("summary", { text: "Filters" });
    this.clear = el("button", { type: "button", text: "Clear", onclick: () => this.#clear() });
    this.more = el("details", { class: "filters", open: this.#chosen().length > 0 || matchMedia(WIDE).matches }, this.summary,
      el("div", { class: "tools" }, ...Object.values(this.others), this.clear));
    this.element = el("form", { role: "search", "aria-label": "Jobs", onsubmit: (event) => event.preventDefault() },
      el("div", { class: "tools" }, el("label", { class: "field search" }, el("span", { text: "Search" }), this.search), this.state),
      keys.length ? this.more : "");
    this.#count();
  }

  close() {
    clearTimeout(this.timer);
  }

  /**
   * Fill the lists of suggestions of fields that had the focus with the names of recent jobs, one list after the other.
   * @throws {Failure} the collector is busy: request them again later
   */
  async refresh(signal) {
    for (const [key, list] of this.due) {
      try {
        const { groups } = await ask("api/v1/usage", { by: NAMED[key], since: Math.floor(now() - RECENT_S) }, signal);
        const names = groups.map((one) => one.keys[0]).filter(Boolean).slice(0, MOST_NAMES).sort();
        list.replaceChildren(...names.map((value) => el("option", { value })));
      } catch (error) {
        if (!(error instanceof Failure) || error.status === 429) throw error;
        // names can be typed, too
      }
      this.due.delete(key);
    }
  }

  /** Move the focus to the search field. */
  seek() {
    this.search.focus();
    this.search.select();
  }

  /** Return the values for the address: the most common ones are empty. */
  address() {
    return { ...this.values, state: this.values.state === this.common ? "" : this.values.state };
  }

  /** Whether any choice is made. */
  get any() {
    return Object.values(this.address()).some((value) => value !== "");
  }

  #chosen() {
    return Object.keys(this.others).filter((key) => this.values[key] !== "");
  }

  #count() {
    const many = this.#chosen().length;
    say(this.summary, many ? `Filters (${many})` : "Filters");
    this.clear.hidden = !many;
  }

  #set(key, value) {
    if (this.values[key] === value) return;
    this.values[key] = value;
    this.#count();
    this.changed();
  }

  #clear() {
    for (const key of Object.keys(this.others)) {
      this.values[key] = "";
      this.others[key].querySelector("input").value = "";
    }
    this.#count();
    this.changed();
    this.summary.focus(); // the button is hidden now
  }

  #input(key, attributes) {
    const input = el("input", {
      value: this.values[key], maxlength: 255, autocomplete: "off", spellcheck: "false", ...attributes,
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.#set(key, input.validity.valid ? input.value.trim() : ""), PAUSE_MS);
      },
    });
    return input;
  }

  #field(key, suggests) {
    const label = { user: "User", project: "Project", queue: "Queue", host: "Host", below: "CPU efficiency below" }[key];
    if (key === "below") {
      const input = this.#input(key, { type: "number", min: 1, max: 100, step: 1 });
      return el("label", { class: "field" }, el("span", { text: label }), input, el("span", { text: "%" }));
    }
    const input = this.#input(key, { type: "text" });
    const field = el("label", { class: "field" }, el("span", { text: label }), input);
    if (suggests) {
      const names = el("datalist", { id: `names-of-${key}` });
      mark(input, "list", names.id);
      field.append(names);
      input.addEventListener("focus", () => {
        this.due.set(key, names);
        this.wants();
      }, { once: true });
    }
    return field;
  }
}

/** Return a share of a percentage; null for another text. */
export function percent(text) {
  return /^[1-9][0-9]?$|^100$/.test(text) ? Number(text) / 100 : null;
}
