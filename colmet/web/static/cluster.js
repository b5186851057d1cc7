// The view of the jobs: totals, and a row for each.

import { ask } from "./api.js";
import { JOB_COLUMNS, jobAddress } from "./columns.js";
import { Facts, Warnings, choice, el, mark, say } from "./dom.js";
import { Table } from "./table.js";
import { NONE, cores, count, flow, share, size } from "./units.js";

const SIZES = ["50", "100", "200"];
const NOTHING = { running: "No job runs now.", ended: "No job has ended since the start of the collector.", all: "No job has been seen since the start of the collector." };
const GRIDENGINE = "colmet-node does not see Grid Engine's jobs: the view Memory shows their hosts and memory.";
const PAUSE_MS = 250; // from the last key to the search

export class Cluster {
  title = "Jobs";

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
      el("h1", { text: "Jobs", tabindex: "-1" }),
      this.warnings.element,
      this.totals.element,
      el("section", { "aria-label": "List of jobs" },
        el("div", { class: "tools" },
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
    ]);
  }

  #total({ nodes, jobs, messages, warnings }) {
    this.warnings.show(warnings ?? []);
    const silent = nodes.silent ? `, ${count(nodes.silent)} silent` : "";
    this.totals.show([
      ["Nodes", `${count(nodes.heard)} heard${silent}`],
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
