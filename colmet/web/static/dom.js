// Elements. Text of others stays text: nothing here interprets markup.

import { sentence } from "./units.js";

/**
 * Make an element.
 * @param {string} name its tag
 * @param {Object} [attributes] `text` is its text, a function such as `onclick` a listener; false and null are skipped
 * @param {...(Node|string)} children
 */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Set an element's text, if it differs: a selection in it would be lost. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or remove an attribute, if it differs. */
export function mark(node, name, value) {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/**
 * Make the children of an element those of some things, in their order; nodes of known things stay, with the focus.
 * @param {Element} parent
 * @param {Array} things
 * @param {function} keyOf returns a unique text for a thing
 * @param {function} make returns a new node for a thing
 * @param {function} show (node, thing): writes the thing into its node
 */
export function keep(parent, things, keyOf, make, show) {
  const before = new Map();
  for (const node of [...parent.children]) {
    if (before.has(node.dataset.key)) node.remove(); // two things had the same key
    else before.set(node.dataset.key, node);
  }
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const place = [...parent.children].findIndex((node) => node.contains(focused));
  let next = parent.firstElementChild;
  for (const thing of things) {
    const key = String(keyOf(thing));
    let node = before.get(key);
    if (node === undefined) {
      node = make(thing);
      node.dataset.key = key;
    }
    before.delete(key);
    show(node, thing);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  for (const node of before.values()) node.remove();
  if (focused === null || document.activeElement === focused) return;
  // a moved node loses the focus; that of a removed one goes to the node in its place
  const heir = parent.children[Math.min(place, parent.children.length - 1)];
  (focused.isConnected ? focused : heir?.querySelector("a, button"))?.focus({ preventScroll: true });
}

/** Make a bar from 0 to 1, beside a text with the same value. */
export function bar() {
  return el("span", { class: "bar", "aria-hidden": "true" }, el("i"));
}

/** Set a bar to a share; null hides it. */
export function fill(node, share) {
  node.hidden = share == null;
  node.firstElementChild.style.width = `${(100 * Math.min(1, Math.max(0, share ?? 0))).toFixed(1)}%`;
}

/** A list of names and values: `show` expects [name, text, title] for each, and skips those without a text. */
export class Facts {
  constructor(label) {
    this.element = el("dl", { class: "facts", "aria-label": label });
  }

  show(facts) {
    keep(
      this.element,
      facts.filter(([, text]) => text != null),
      ([name]) => name,
      ([name]) => el("div", {}, el("dt", { text: name }), el("dd")),
      (node, [, text, title]) => {
        say(node.lastElementChild, text);
        mark(node.lastElementChild, "title", title);
      },
    );
  }
}

/** The warnings of the collector. */
export class Warnings {
  constructor() {
    this.element = el("ul", { class: "warnings", "aria-label": "Warnings", hidden: true });
  }

  show(texts) {
    this.element.hidden = !texts.length;
    keep(this.element, [...new Set(texts)], (text) => text, (text) => el("li", { text: sentence(text) }), () => {});
  }
}

/** Make a field to choose one of several values; `choices` are [value, text]. */
export function choice(label, choices, value, chosen) {
  const select = el("select", { onchange: () => chosen(select.value) });
  for (const [one, text] of choices) select.append(el("option", { value: one, text, selected: one === value }));
  return el("label", { class: "field" }, el("span", { text: label }), select);
}
