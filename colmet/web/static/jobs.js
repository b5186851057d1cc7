// The view of jobs: those of the archive, running and ended; of recent jobs where there is no archive.

import { ask, who } from "./api.js";
import { ARCHIVED_COLUMNS, STATES, VALUES } from "./archived.js";
import { GRIDENGINE, JOB_COLUMNS, NO_JOB, jobAddress } from "./columns.js";
import { choice, el, mark, say } from "./dom.js";
import { Filters, percent } from "./filters.js";
import { Table } from "./table.js";
import { Totals } from "./totals.js";
import { count } from "./units.js";

const SIZES = ["50", "100", "200"];
const ARCHIVE_S = 30; // between two requests for the same archived jobs
const CHECK_S = 60; // between two questions for an archive
const NUMBER = /^[1-9][0-9]{0,17}$/;
const TASK = /^[0-9]{1,18}[_.][0-9]{1,9}$/; // of an array: 17_3 by Slurm, 17.3 by Grid Engine
const NOTHING = { running: "No job runs now.", ended: "No job has ended since the start of the collector.", all: "No job has been seen since the start of the collector." };

/** Where the jobs are from: columns, first order, states, filters, and parameters of requests. */
const ARCHIVE = {
  path: "api/v1/archive/jobs", every: ARCHIVE_S, columns: ARCHIVED_COLUMNS, sort: "start", states: STATES, suggests: true,
  sought: "number or name", filters: ["user", "project", "queue", "host", "below"],
  keyOf: (row) => `${row.job} ${row.start}`,
  asked: ({ text, below, ...others }, table) => ({
    ...others, ...sought(text), efficiency_below: percent(below), columns: VALUES, footprint: true, sort: table.order.sort, ascending: table.rises,
  }),
  none: (values, any, admin) => (any ? "No job matches." : admin ? "The archive has no job." : "You have no job here so far: a job appears within a minute of its start."),
};
const RECENT = {
  path: "api/v1/jobs", every: 0, columns: JOB_COLUMNS, sort: "cpu", states: [["running", "running"], ["ended", "ended"], ["all", "all"]], suggests: false,
  sought: "number, user, node", filters: ["user", "host"],
  keyOf: (row) => row.job,
  asked: ({ host, ...others }, table) => ({ ...others, node: host, sort: table.order.sort, reverse: table.order.reverse }),
  none: ({ text, state }, any, admin) => (text ? "No recent job matches." : state === "running" && !admin ? NO_JOB : NOTHING[state]),
};

/** Return the condition of a text: a number, a task of an array, or a part of a name. */
function sought(text) {
  return { [NUMBER.test(text) ? "job" : TASK.test(text) ? "task" : "name"]: text };
}

export class Jobs {
  title = "Jobs";

  constructor(context) {
    this.context = context;
    const asked = context.parameters;
    this.offset = Math.max(0, Number(asked.get("offset")) || 0);
    this.limit = SIZES.includes(asked.get("limit")) ? asked.get("limit") : SIZES[0];
    this.heading = el("h1", { text: this.title, tabindex: "-1" });
    this.found = el("p", { class: "soft", role: "status" });
    this.stored = el("a", { hidden: true });
    this.before = el("button", { type: "button", text: "Previous", onclick: () => this.#turn(-1) });
    this.after = el("button", { type: "button", text: "Next", onclick: () => this.#turn(1) });
    this.size = choice("Rows", SIZES.map((one) => [one, one]), this.limit, (value) => { this.limit = value; this.#changed(); });
    this.pages = el("nav", { class: "pages", "aria-label": "Pages of jobs" }, this.before, this.found, this.stored, this.after, this.size);
    this.body = el("div");
    this.totals = new Totals();
    this.element = el("div", {}, this.heading, this.totals.element, this.body);
    this.live = new Map(); // the present rows of running jobs, by number
    this.changes = 0;
    this.due = 0;
    this.checked = 0;
    this.seeks = false;
  }

  /** Move the focus to the search field. */
  seek() {
    this.seeks = !this.filters;
    this.filters?.seek();
  }

  close() {
    this.filters?.close();
  }

  #turn(by) {
    this.#changed(Math.max(0, this.offset + by * Number(this.limit)));
  }

  #changed(offset = 0) {
    this.offset = offset;
    this.changes += 1;
    this.due = 0;
    const { sort, reverse } = this.table.order;
    this.context.remember({
      ...this.filters.address(), offset: offset || "", limit: this.limit === SIZES[0] ? "" : this.limit,
      sort: sort === this.#sort() ? "" : sort, reverse: reverse || "",
    });
    this.context.again();
    this.skip?.();
  }

  /** The first order: ended jobs use no CPU, so recent ones are sorted by time. */
  #sort() {
    return this.source === RECENT && this.filters.values.state !== "running" ? "last" : this.source.sort;
  }

  /** Make filters and the table for the archive, or for recent jobs. */
  #build({ archive, admin, projects }) {
    const source = archive ? ARCHIVE : RECENT;
    if (this.source === source) return;
    this.source = source;
    const asked = this.filters ? new URLSearchParams() : this.context.parameters;
    this.title = admin ? "Jobs" : "My jobs";
    say(this.heading, this.title);
    document.title = `${this.title} – Colmet`;
    const filters = source.filters.filter((key) => admin || projects.length || key !== "user");
    this.filters = new Filters(asked, source.states, source.sought, filters, source.suggests, () => this.#filtered(), () => this.context.again());
    const sort = source.columns.find((one) => one.sorts && one.key === asked.get("sort"))?.key ?? this.#sort();
    this.table = new Table(this.title, source.columns, source.keyOf, { sort, reverse: asked.get("reverse") === "true" }, () => this.#changed());
    this.table.element.classList.add("list");
    this.table.body.classList.add("rows");
    this.table.body.addEventListener("click", open);
    this.body.replaceChildren(this.filters.element, this.table.element, this.pages);
    if (this.seeks) this.seek();
  }

  /** Follow a change of the filters: an order chosen by nobody follows the state. */
  #filtered() {
    const { sort } = this.table.order;
    if (this.source === RECENT && (sort === "cpu" || sort === "last")) this.table.arrange({ sort: this.#sort(), reverse: false });
    this.#changed();
  }

  /** Refresh the view. */
  async refresh(signal) {
    const at = performance.now() / 1000;
    if (!this.source || (this.source === RECENT && at >= this.checked)) {
      this.who = this.source ? await ask("api/v1/whoami", {}, signal) : await who(signal);
      this.checked = at + CHECK_S;
      this.#build(this.who);
    }
    const whole = Promise.all([this.#list(at, signal), this.totals.refresh(this.who.archive, signal)]).then(() => this.filters.refresh(signal));
    whole.catch(() => {}); // if nobody waits for it any more
    await Promise.race([whole, new Promise((resolve) => { this.skip = resolve; })]); // a choice of the user waits for no answer
  }

  /** Request and show what is due. */
  async #list(at, signal) {
    const { source, changes } = this;
    if (at >= this.due) {
      const page = await ask(source.path, { ...source.asked(this.filters.values, this.table), offset: this.offset, limit: this.limit }, signal);
      if (changes !== this.changes) return; // other jobs are wanted now
      this.due = at + source.every;
      if (!page.items.length && page.offset && page.total) {
        this.#changed(Math.floor((page.total - 1) / Number(this.limit)) * Number(this.limit)); // there are fewer now
        return;
      }
      this.page = page;
      this.#show();
    }
    const running = source === ARCHIVE ? this.page.items.filter((row) => row.state === "running").map((row) => row.job) : [];
    if (running.length) {
      const { items } = await ask("api/v1/jobs", { job: running.join(","), limit: running.length }, signal);
      if (changes !== this.changes) return;
      this.live = new Map(items.map((row) => [row.job, row]));
      this.#show();
    }
  }

  /** Show the page, with the present use of jobs that run. */
  #show() {
    const { total, offset, items } = this.page;
    const { text, state } = this.filters.values;
    this.table.element.classList.toggle("running", state === "running");
    const ofProject = !this.who.admin && this.page.only === null; // that the user leads
    this.table.element.classList.toggle("own", !this.who.admin && !ofProject);
    say(this.heading, ofProject ? "Jobs of the project" : this.title);
    this.table.show(items.map((row) => ({ ...row, live: (row.state === "running" && this.live.get(row.job)) || null })));
    this.table.element.hidden = !items.length && !this.table.element.contains(document.activeElement);
    const none = this.source.none(this.filters.values, this.filters.any, this.who.admin) + (this.who.gridengine ? ` ${GRIDENGINE}` : "");
    say(this.found, items.length ? `${count(offset + 1)}–${count(offset + items.length)} of ${count(total)}` : none);
    this.stored.hidden = items.length > 0 || !NUMBER.test(text); // the view of a job reads the store, too
    say(this.stored, `Look for job ${text} in the store`);
    mark(this.stored, "href", jobAddress(text));
    this.before.hidden = this.after.hidden = total <= items.length;
    this.size.hidden = total <= Number(SIZES[0]);
    for (const [button, off] of [[this.before, offset === 0], [this.after, offset + items.length >= total]]) {
      mark(button, "aria-disabled", off ? "true" : null); // not disabled: it would lose the focus
    }
  }
}

/** Open the job of a clicked row, unless the click is on a link or selects text. */
function open(event) {
  if (event.target.closest("a, button") || String(getSelection())) return;
  const link = event.target.closest("tr")?.querySelector("a[href]");
  if (link) location.hash = link.hash;
}
