// The view of the nodes: totals, and a cell for each node, coloured by a measure.

import { ask, who } from "./api.js";
import { NODE_COLUMNS, NO_JOB, nodeAddress } from "./columns.js";
import { Facts, Warnings, choice, el, keep, mark, say } from "./dom.js";
import { MEASURES, classOf, classTexts, stepsOf } from "./node_measures.js";
import { Table, natural } from "./table.js";
import { count, share, size } from "./units.js";

const MOST_NODES = 5000; // cells
const AT_ONCE = 1000; // rows of one answer
const NO_NODE = "No node has been heard of: does colmet-node run there, and send to this collector?";
const POINT = "Point at a node, or go there with the keyboard.";
const ORDERS = [["", "name"], ["value", "value"]];

/** Return rows of all nodes, up to the most that are shown. */
export async function all(signal) {
  const first = await ask("api/v1/nodes", { limit: AT_ONCE }, signal);
  const rows = [...first.items];
  while (rows.length < Math.min(first.total, MOST_NODES)) {
    const next = await ask("api/v1/nodes", { limit: AT_ONCE, offset: rows.length }, signal);
    if (!next.items.length) break;
    rows.push(...next.items);
  }
  return { total: first.total, items: rows };
}

export class Nodes {
  title = "Nodes";

  constructor(context) {
    this.context = context;
    const { parameters } = context;
    this.text = parameters.get("text") ?? "";
    this.measure = MEASURES.find((one) => one.key === parameters.get("measure")) ?? MEASURES[0];
    this.order = parameters.get("order") === "value" ? "value" : "";
    this.answer = null;
    this.totals = new Facts("Totals");
    this.warnings = new Warnings();
    this.search = el("input", {
      type: "search", id: "search", value: this.text, maxlength: 255, autocomplete: "off", spellcheck: "false",
      placeholder: "part of a name", "aria-keyshortcuts": "/",
      oninput: () => this.#choose("text", this.search.value.trim()),
    });
    this.cells = new Cells();
    this.more = el("p", { class: "soft", hidden: true });
    this.table = new Table("Nodes", NODE_COLUMNS, (row) => row.node, { sort: "node", reverse: false }, () => this.#list());
    this.list = el("details", { ontoggle: () => this.#list() }, el("summary", { text: "Nodes as a table" }), this.table.element);
    this.element = el("div", {},
      el("h1", { text: "Nodes", tabindex: "-1" }),
      this.warnings.element, this.totals.element,
      el("section", { "aria-label": "Nodes by a measure" },
        el("div", { class: "tools" },
          choice("Measure", MEASURES.map((one) => [one.key, one.name]), this.measure.key, (value) => {
            this.measure = MEASURES.find((one) => one.key === value);
            this.#choose("measure", value);
          }),
          choice("Order by", ORDERS, this.order, (value) => this.#choose("order", value)),
          el("label", { class: "field search" }, el("span", { text: "Search" }), this.search)),
        this.cells.element, this.more, this.list));
  }

  seek() {
    this.search.focus();
    this.search.select();
  }

  close() {}

  #choose(key, value) {
    if (key !== "measure") this[key] = value;
    this.context.remember({ [key]: key === "measure" && value === MEASURES[0].key ? "" : value });
    if (this.answer) this.#show();
  }

  async refresh(signal) {
    const [visitor, totals, answer] = await Promise.all([who(signal), ask("api/v1/cluster", {}, signal), all(signal)]);
    this.visitor = visitor;
    this.answer = answer;
    this.#total(totals);
    this.#show();
  }

  #total({ nodes, warnings }) {
    this.warnings.show(warnings ?? []);
    this.totals.show([
      ["Nodes", `${count(nodes.heard)} heard`],
      ["Silent", nodes.silent ? count(nodes.silent) : null, "have sent nothing for a minute"],
      ["CPU", nodes.cpu == null ? null : share(nodes.cpu), "mean of the nodes"],
      ["Memory", nodes.memory == null ? null : `${size(nodes.memory)} of ${size(nodes.memory_total)}`],
      ["Load", nodes.load == null ? null : count(nodes.load), "running and waiting tasks, averaged over a minute"],
    ]);
  }

  #show() {
    const { total, items } = this.answer;
    const found = items.filter((row) => row.node.includes(this.text));
    const byName = (a, b) => natural(a.node, b.node);
    const value = (row) => (row.silent ? null : this.measure.value(row)) ?? -Infinity;
    this.rows = found.sort(this.order ? (a, b) => value(b) - value(a) || byName(a, b) : byName);
    this.cells.show(this.rows, this.measure, items.length ? "No node matches." : this.visitor.admin ? NO_NODE : NO_JOB);
    this.more.hidden = items.length >= total;
    say(this.more, `and ${count(total - items.length)} more: colmet top shows all`);
    this.#list();
  }

  #list() {
    if (this.list.open && this.rows) this.table.show(this.table.arranged(this.rows));
  }
}

/** A cell for each node, filled and coloured by a measure. Arrow keys move between cells. */
class Cells {
  constructor() {
    this.grid = el("ul", { class: "nodes", "aria-label": "Nodes; arrow keys move between them", onkeydown: (event) => this.#walk(event) });
    this.about = el("p", { class: "about", text: POINT });
    this.legend = el("ul", { class: "legend" });
    const describe = (event) => {
      const cell = event.target.closest("a");
      if (cell) say(this.about, cell.title);
    };
    this.grid.addEventListener("mouseover", describe);
    this.grid.addEventListener("focusin", (event) => {
      describe(event);
      this.#rove(event.target.closest("a"));
    });
    this.element = el("div", {}, this.legend, this.grid, this.about);
  }

  /** Show nodes by a measure; the text `none` if there are none. */
  show(rows, measure, none) {
    const steps = stepsOf(measure, rows.map((row) => (row.silent ? null : measure.value(row))));
    keep(this.grid, rows, (row) => row.node, () => {
      return el("li", {}, el("a", { class: "cell", tabindex: "-1" }, el("i")));
    }, (node, row) => {
      const cell = node.firstElementChild;
      const value = row.silent ? null : measure.value(row);
      const level = classOf(value, steps);
      mark(cell, "href", nodeAddress(row.node));
      mark(cell, "class", `cell ${row.silent ? "silent" : level === null ? "unknown" : `u${level}`}`);
      const text = described(row, measure);
      mark(cell, "title", text);
      mark(cell, "aria-label", text);
      const height = level === null ? "0" : `${measure.most ? Math.max(4, Math.min(100, (100 * value) / measure.most)).toFixed(0) : 20 * level + 18}%`;
      if (cell.firstElementChild.style.height !== height) cell.firstElementChild.style.height = height;
    });
    if (!this.grid.querySelector("a[tabindex='0']")) this.#rove(this.grid.querySelector("a"));
    if (!rows.length) say(this.about, none);
    else if (this.empty) say(this.about, POINT);
    this.empty = !rows.length;
    const focused = this.grid.contains(document.activeElement) ? document.activeElement.closest("a") : null;
    if (focused) say(this.about, focused.title);
    this.#explain(measure, steps);
  }

  #explain(measure, steps) {
    mark(this.legend, "aria-label", `Colours: ${measure.name}`);
    const keys = [...classTexts(measure, steps).map((text, n) => [`u${n}`, text]), ["silent", "silent"], ["unknown", "not measured"]];
    keep(this.legend, keys, ([kind]) => kind, ([kind]) => {
      const key = el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, el("i"));
      if (/^u/.test(kind)) key.firstElementChild.style.height = `${20 * Number(kind[1]) + 18}%`;
      return el("li", {}, key, el("span"));
    }, (node, [, text]) => say(node.lastElementChild, text));
  }

  #rove(cell) {
    for (const one of this.grid.querySelectorAll("a[tabindex='0']")) one.tabIndex = -1;
    if (cell) cell.tabIndex = 0; // all cells are one stop of the tab key
  }

  #walk(event) {
    const cells = [...this.grid.querySelectorAll("a")];
    const here = cells.indexOf(document.activeElement);
    const top = cells[0]?.offsetTop;
    const wide = cells.findIndex((cell) => cell.offsetTop !== top);
    const line = wide < 1 ? cells.length : wide;
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, ArrowUp: here - line, ArrowDown: here + line, Home: 0, End: cells.length - 1 }[event.key];
    if (here < 0 || to === undefined) return;
    event.preventDefault();
    cells[to]?.focus();
  }
}

function described(row, measure) {
  if (row.silent) return `${row.node}: silent`;
  const jobs = row.jobs == null ? "" : `, ${count(row.jobs)} ${row.jobs === 1 ? "job" : "jobs"}`;
  return `${row.node}: ${measure.text(row)}${jobs}`;
}
