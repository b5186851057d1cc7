// The view of the nodes: totals, and a cell for each node, coloured by a measure.

import { ask, now, who } from "./api.js";
import { NODE_COLUMNS, NO_JOB, nodeAddress } from "./columns.js";
import { Facts, Warnings, choice, el, keep, mark, say } from "./dom.js";
import { HeatMap, history } from "./heatmap.js";
import { MEASURES, classOf, classTexts, stepsOf } from "./node_measures.js";
import { Table, natural } from "./table.js";
import { count, share, size } from "./units.js";

const MOST_NODES = 5000; // cells
const AT_ONCE = 1000; // rows of one answer
const NO_NODE = "No node has been heard of: does colmet-node run there, and send to this collector?";
const POINT = "Point at a node, or go there with the keyboard.";
const ORDERS = [["", "name"], ["value", "value"]];
const TIMES = [["", "now"], ["hour", "last hour"], ["day", "last day"]];
const MAP_S = 30; // between two requests for the values over time

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
    this.time = TIMES.some(([value]) => value === parameters.get("time")) ? parameters.get("time") : "";
    this.answer = null;
    this.past = null; // values over time
    this.due = 0;
    this.times = el("span");
    this.totals = new Facts("Totals");
    this.warnings = new Warnings();
    this.search = el("input", {
      type: "search", id: "search", value: this.text, maxlength: 255, autocomplete: "off", spellcheck: "false",
      placeholder: "part of a name", "aria-keyshortcuts": "/",
      oninput: () => this.#choose("text", this.search.value.trim()),
    });
    this.legend = new Legend();
    this.cells = new Cells();
    this.map = new HeatMap();
    this.map.element.hidden = true;
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
          this.times,
          choice("Order by", ORDERS, this.order, (value) => this.#choose("order", value)),
          el("label", { class: "field search" }, el("span", { text: "Search" }), this.search)),
        this.legend.element, this.cells.element, this.map.element, this.more, this.list));
  }

  seek() {
    this.search.focus();
    this.search.select();
  }

  close() {
    this.map.close();
  }

  #choose(key, value) {
    if (key !== "measure") this[key] = value;
    this.context.remember({ [key]: key === "measure" && value === MEASURES[0].key ? "" : value });
    if (key === "time" || (key === "measure" && this.time)) {
      this.due = 0; // other values are needed
      this.context.again();
    } else if (this.answer) this.#show();
  }

  async refresh(signal) {
    this.visitor ??= await who(signal);
    if (!this.visitor.admin) this.time = ""; // values of all nodes over time are for administrators
    else if (!this.times.firstChild) this.times.append(choice("Time", TIMES, this.time, (value) => this.#choose("time", value)));
    const { time, measure } = this;
    const past = time && now() >= this.due ? history(measure.key, time, signal) : null;
    const [totals, answer] = await Promise.all([ask("api/v1/cluster", {}, signal), all(signal)]);
    const found = await past;
    if (time !== this.time || measure !== this.measure) return; // another choice was made meanwhile
    if (found) {
      this.past = found;
      this.due = now() + MAP_S;
    }
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
    const silent = new Set(items.filter((row) => row.silent).map((row) => row.node));
    this.cells.element.hidden = this.list.hidden = Boolean(this.time);
    this.map.element.hidden = !this.time;
    if (this.time) {
      this.more.hidden = true;
      this.map.show(this.past, this.measure, this.text, this.order === "value", silent);
      this.legend.show(this.measure, this.map.limits, true);
      return;
    }
    const found = items.filter((row) => row.node.includes(this.text));
    const byName = (a, b) => natural(a.node, b.node);
    const value = (row) => (row.silent ? null : this.measure.value(row)) ?? -Infinity;
    this.rows = found.sort(this.order ? (a, b) => value(b) - value(a) || byName(a, b) : byName);
    const steps = stepsOf(this.measure, this.rows.map((row) => (row.silent ? null : this.measure.value(row))));
    this.legend.show(this.measure, steps, false);
    this.cells.show(this.rows, this.measure, steps, items.length ? "No node matches." : this.visitor.admin ? NO_NODE : NO_JOB);
    this.more.hidden = items.length >= total;
    say(this.more, `and ${count(total - items.length)} more: colmet top shows all`);
    this.#list();
  }

  #list() {
    if (this.list.open && this.rows) this.table.show(this.table.arranged(this.rows));
  }
}

/** The meaning of the colours. */
class Legend {
  constructor() {
    this.element = el("ul", { class: "legend" });
  }

  /** Show the colours of a measure; `flat` without the heights of cells. */
  show(measure, steps, flat) {
    mark(this.element, "aria-label", `Colours: ${measure.name}`);
    const others = flat ? [["none", "not measured"]] : [["silent", "silent"], ["unknown", "not measured"]];
    const keys = [...classTexts(measure, steps).map((text, n) => [`u${n}`, text]), ...others];
    keep(this.element, keys, ([kind]) => kind, ([kind]) => el("li", {}, el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, el("i")), el("span")), (node, [kind, text]) => {
      const height = /^u/.test(kind) ? `${flat ? 100 : 20 * Number(kind[1]) + 18}%` : "0";
      node.firstElementChild.firstElementChild.style.height = height;
      say(node.lastElementChild, text);
    });
  }
}

/** A cell for each node, filled and coloured by a measure. Arrow keys move between cells. */
class Cells {
  constructor() {
    this.grid = el("ul", { class: "nodes", "aria-label": "Nodes; arrow keys move between them", onkeydown: (event) => this.#walk(event) });
    this.about = el("p", { class: "about", text: POINT });
    const describe = (event) => {
      const cell = event.target.closest("a");
      if (cell) say(this.about, cell.title);
    };
    this.grid.addEventListener("mouseover", describe);
    this.grid.addEventListener("focusin", (event) => {
      describe(event);
      this.#rove(event.target.closest("a"));
    });
    this.element = el("div", {}, this.grid, this.about);
  }

  /** Show nodes by a measure; the text `none` if there are none. */
  show(rows, measure, steps, none) {
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
