// The view of the cluster: totals, a cell for each node, the jobs.

import { ask } from "./api.js";
import { JOB_COLUMNS, NODE_COLUMNS, NO_JOB, jobAddress, nodeAddress } from "./columns.js";
import { Facts, Warnings, choice, el, keep, mark, say } from "./dom.js";
import { Table, natural } from "./table.js";
import { NONE, cores, count, flow, share, size } from "./units.js";

const MOST_NODES = 5000; // in the grid
const AT_ONCE = 1000; // rows of one answer
const SIZES = ["50", "100", "200"];
const NOTHING = { running: "No job runs now.", ended: "No job has ended since the start of the collector.", all: "No job has been seen since the start of the collector." };
const NO_NODE = "No node has been heard of: does colmet-node run there, and send to this collector?";
const GRIDENGINE = "colmet-node does not see Grid Engine's jobs: the view Memory shows their hosts and memory.";
const POINT = "Point at a node, or go there with the keyboard.";
const STEPS = [0.2, 0.4, 0.6, 0.8]; // limits of a cell's colours
const PAUSE_MS = 250; // from the last key to the search

export class Cluster {
  title = "Cluster";

  constructor(context) {
    this.context = context;
    const asked = context.parameters;
    this.text = asked.get("text") ?? "";
    this.state = asked.get("state") ?? "running";
    this.offset = Math.max(0, Number(asked.get("offset")) || 0);
    this.limit = SIZES.includes(asked.get("limit")) ? asked.get("limit") : SIZES[0];
    const sort = JOB_COLUMNS.find((one) => one.sorts && one.key === asked.get("sort"))?.key ?? "cpu";
    this.totals = new Facts("Totals");
    this.warnings = new Warnings();
    this.nodes = new Nodes();
    this.table = new Table("Jobs", JOB_COLUMNS, (row) => row.job, { sort, reverse: asked.get("reverse") === "true" }, () => this.#changed());
    this.search = el("input", {
      type: "search", id: "search", value: this.text, maxlength: 255, autocomplete: "off", spellcheck: "false",
      placeholder: "number, user, node", "aria-keyshortcuts": "/",
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => {
          this.text = this.search.value.trim();
          this.#changed();
        }, PAUSE_MS);
      },
    });
    this.found = el("p", { class: "soft" });
    this.stored = el("a", { hidden: true });
    this.before = el("button", { type: "button", text: "Previous", onclick: () => this.#turn(-1) });
    this.after = el("button", { type: "button", text: "Next", onclick: () => this.#turn(1) });
    const states = [["running", "running"], ["ended", "ended"], ["all", "all"]];
    this.element = el("div", {},
      el("h1", { text: "Cluster", tabindex: "-1" }),
      this.warnings.element,
      this.totals.element,
      this.nodes.element,
      el("section", { "aria-labelledby": "jobs-title" },
        el("div", { class: "tools" },
          el("h2", { id: "jobs-title", text: "Jobs" }),
          el("label", { class: "field search" }, el("span", { text: "Search" }), this.search),
          choice("State", states, this.state, (value) => this.#choose(value)),
          choice("Rows", SIZES.map((one) => [one, one]), this.limit, (value) => { this.limit = value; this.#changed(); })),
        this.table.element,
        el("nav", { class: "pages", "aria-label": "Pages of jobs" }, this.before, this.found, this.stored, this.after)));
  }

  /** Move the focus to the search field. */
  seek() {
    this.search.focus();
    this.search.select();
  }

  close() {
    clearTimeout(this.timer);
  }

  /** Choose jobs by state; ended ones use no CPU, so they are sorted by time. */
  #choose(state) {
    this.state = state;
    const { sort } = this.table.order;
    if (state === "running" && sort === "last") this.table.arrange({ sort: "cpu", reverse: false });
    if (state !== "running" && sort === "cpu") this.table.arrange({ sort: "last", reverse: false });
    this.#changed();
  }

  #turn(by) {
    this.offset = Math.max(0, this.offset + by * Number(this.limit));
    this.#changed(this.offset);
  }

  #changed(offset = 0) {
    this.offset = offset;
    const { sort, reverse } = this.table.order;
    this.context.remember({
      text: this.text, offset: offset || "",
      state: this.state === "running" ? "" : this.state, limit: this.limit === SIZES[0] ? "" : this.limit,
      sort: sort === "cpu" ? "" : sort, reverse: reverse || "",
    });
    this.context.again();
  }

  async refresh(signal) {
    const { sort, reverse } = this.table.order;
    const asked = { state: this.state, text: this.text, sort, reverse, offset: this.offset, limit: this.limit };
    this.who ??= await ask("api/v1/whoami", {}, signal);
    await Promise.all([
      ask("api/v1/cluster", {}, signal).then((answer) => this.#total(answer)),
      ask("api/v1/jobs", asked, signal).then((answer) => this.#page(answer)),
      all(signal).then((answer) => this.#grid(answer, signal)),
    ]);
  }

  /** Show the nodes; ordinary users see those of their own jobs. */
  async #grid(answer, signal) {
    this.nodes.show(answer, this.who.gridengine ? GRIDENGINE : this.who.admin ? NO_NODE : NO_JOB);
  }

  #total({ nodes, jobs, messages, warnings }) {
    this.warnings.show(warnings ?? []);
    const silent = nodes.silent ? `, ${count(nodes.silent)} silent` : "";
    this.totals.show([
      ["Nodes", `${count(nodes.heard)} heard${silent}`],
      ["Nodes' CPU", nodes.cpu == null ? null : share(nodes.cpu)],
      ["Nodes' memory", nodes.memory == null ? null : `${size(nodes.memory)} of ${size(nodes.memory_total)}`],
      ["Jobs", `${count(jobs.running)} running`],
      ["Users", count(jobs.users)],
      ["Jobs' cores", jobs.cpu == null && jobs.cpus == null ? NONE : `${cores(jobs.cpu)} of ${cores(jobs.cpus)}`, "cores used, of those allocated to jobs"],
      ["Jobs' CPU", share(jobs.cpu_share)],
      ["Jobs' memory", size(jobs.memory)],
      ["Read", flow(jobs.read)],
      ["Written", flow(jobs.write)],
      ["GPUs", jobs.gpus == null ? null : count(jobs.gpus), "allocated to jobs"],
      ["Messages dropped", messages?.left_out ? count(messages.left_out) : null, "messages of nodes that did not reach this page: the machine was too slow"],
    ]);
  }

  /** Return the reason for an empty list of jobs. */
  #nothing() {
    const text = NOTHING[this.state] ?? NOTHING.all;
    return this.who.gridengine ? `${text} ${GRIDENGINE}` : text;
  }

  #page({ total, offset, items }) {
    if (!items.length && offset && total) {
      this.#changed(Math.floor((total - 1) / Number(this.limit)) * Number(this.limit)); // there are fewer now
      return;
    }
    this.table.element.classList.toggle("running", this.state === "running");
    this.table.show(items);
    say(this.found, items.length ? `${count(offset + 1)}–${count(offset + items.length)} of ${count(total)}` : this.text ? "No recent job matches." : this.#nothing());
    this.stored.hidden = items.length > 0 || !/^[1-9][0-9]{0,18}$/.test(this.text); // the list has recent jobs only; the view of a job reads the store, too
    say(this.stored, `Look for job ${this.text} in the store`);
    mark(this.stored, "href", jobAddress(this.text));
    for (const [button, off] of [[this.before, offset === 0], [this.after, offset + items.length >= total]]) {
      mark(button, "aria-disabled", off ? "true" : null); // not disabled: it would lose the focus
    }
  }
}

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

/** A cell for each node, filled and coloured by the use of its CPUs. Arrow keys move between cells. */
class Nodes {
  constructor() {
    this.rows = [];
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
    const keys = [["u0", "less than 20 %"], ["u1", "20 %"], ["u2", "40 %"], ["u3", "60 %"], ["u4", "80 % and more"], ["silent", "silent"], ["unknown", "unknown"]];
    const legend = el("ul", { class: "legend", "aria-label": "CPU use" },
      ...keys.map(([kind, text], n) => {
        const key = el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, el("i"));
        if (n < 5) key.firstElementChild.style.height = `${20 * n + 18}%`;
        return el("li", {}, key, text);
      }));
    this.table = new Table("Nodes", NODE_COLUMNS, (row) => row.node, { sort: "node", reverse: false }, () => this.#list());
    this.list = el("details", { ontoggle: () => this.#list() }, el("summary", { text: "Nodes as a table" }), this.table.element);
    this.more = el("p", { class: "soft", hidden: true });
    this.element = el("section", { "aria-labelledby": "nodes-title" },
      el("div", { class: "tools" }, el("h2", { id: "nodes-title", text: "Nodes by CPU use" }), legend),
      this.grid, this.about, this.more, this.list);
  }

  /** Show nodes; the text `none` if there are none. */
  show({ total, items }, none) {
    this.rows = [...items].sort((a, b) => natural(a.node, b.node));
    keep(this.grid, this.rows, (row) => row.node, () => {
      return el("li", {}, el("a", { class: "cell", tabindex: "-1" }, el("i")));
    }, (node, row) => {
      const cell = node.firstElementChild;
      mark(cell, "href", nodeAddress(row.node));
      mark(cell, "class", `cell ${kind(row)}`);
      const text = described(row);
      mark(cell, "title", text);
      mark(cell, "aria-label", text);
      const height = row.silent || row.cpu == null ? "0" : `${Math.max(4, 100 * row.cpu).toFixed(0)}%`;
      if (cell.firstElementChild.style.height !== height) cell.firstElementChild.style.height = height;
    });
    if (!this.grid.querySelector("a[tabindex='0']")) this.#rove(this.grid.querySelector("a"));
    if (!items.length) say(this.about, none);
    else if (this.empty) say(this.about, POINT);
    this.empty = !items.length;
    const focused = this.grid.contains(document.activeElement) ? document.activeElement.closest("a") : null;
    if (focused) say(this.about, focused.title);
    this.more.hidden = items.length >= total;
    say(this.more, `and ${count(total - items.length)} more: search for a job's node, or see colmet top`);
    this.#list();
  }

  #list() {
    if (this.list.open) this.table.show(this.table.arranged(this.rows));
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

function kind(row) {
  if (row.silent) return "silent";
  return row.cpu == null ? "unknown" : `u${STEPS.filter((step) => row.cpu >= step).length}`;
}

function described(row) {
  if (row.silent) return `${row.node}: silent`;
  const jobs = row.jobs == null ? "" : `, ${count(row.jobs)} ${row.jobs === 1 ? "job" : "jobs"}`;
  const memory = row.memory_share == null ? "" : `, memory ${share(row.memory_share)}`;
  return `${row.node}: CPU ${row.cpu == null ? NONE : share(row.cpu)}${memory}${jobs}`;
}
