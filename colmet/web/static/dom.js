// Elements. Text from elsewhere only ever becomes text: nothing here takes markup.

import { sentence } from "./units.js";

/**
 * An element.
 * @param {string} name its tag
 * @param {Object} [attributes] `text` is its text, a function `onclick` a listener; true, false, null: there or not
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

/** Set an element's text, if it is another one: what is selected in it stays so else. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or take away an attribute, if it changes. */
export function mark(node, name, value) {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/**
 * Let the children be those of some things, in their order; those that stay keep their nodes, and the focus.
 * @param {Element} parent
 * @param {Array} things
 * @param {function} keyOf a text for each, no two alike
 * @param {function} make its node
 * @param {function} show (node, thing): write it into its node
 */
export function keep(parent, things, keyOf, make, show) {
  const before = new Map();
  for (const node of [...parent.children]) {
    if (before.has(node.dataset.key)) node.remove(); // two things were alike after all
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
  // a node that is moved loses the focus; of one that is gone, what is in its place gets it
  const heir = parent.children[Math.min(place, parent.children.length - 1)];
  (focused.isConnected ? focused : heir?.querySelector("a, button"))?.focus({ preventScroll: true });
}

/** A bar from 0 to 1 beside a text that says the same. */
export function bar() {
  return el("span", { class: "bar", "aria-hidden": "true" }, el("i"));
}

/** Let a bar show a share; null: nothing is known. */
export function fill(node, share) {
  node.hidden = share == null;
  node.firstElementChild.style.width = `${(100 * Math.min(1, Math.max(0, share ?? 0))).toFixed(1)}%`;
}

/** A list of names and values: `show` takes [name, text, title] of each; those without a text are left out. */
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

/** What the collector warns of. */
export class Warnings {
  constructor() {
    this.element = el("ul", { class: "warnings", "aria-label": "Warnings", hidden: true });
  }

  show(texts) {
    this.element.hidden = !texts.length;
    keep(this.element, [...new Set(texts)], (text) => text, (text) => el("li", { text: sentence(text) }), () => {});
  }
}

/** A field in which one of several values is chosen: `choices` are [value, text]. */
export function choice(label, choices, value, chosen) {
  const select = el("select", { onchange: () => chosen(select.value) });
  for (const [one, text] of choices) select.append(el("option", { value: one, text, selected: one === value }));
  return el("label", { class: "field" }, el("span", { text: label }), select);
}
