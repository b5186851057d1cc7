// The view of a job: its report, charts, its nodes, missing samples.

import { Failure, ask, now, who } from "./api.js";
import { Chart } from "./charts.js";
import { JOB_NODE_COLUMNS, encoded, jobFacts, nodeAddress } from "./columns.js";
import { Facts, Warnings, el, keep, mark, say } from "./dom.js";
import { JobReport } from "./jobreport.js";
import { line, load } from "./measures.js";
import { Panels } from "./panels.js";
import { shortCurve } from "./series.js";
import { Table } from "./table.js";
import { count, lasting, moment, sentence, share, when } from "./units.js";

const ENDED_S = 60; // between two requests for a job silent for as long
const WHOLE_S = 120; // between two requests for missing samples
const MOST_GAPS = 200;
const MOMENT_MS = 3000; // the archive answers within milliseconds

const part = { role: "part" };
const limit = { role: "limit" };

/** Return what a report names as requested, where it is not what the job was limited to. */
function requestsOf(report) {
  const { requested_cores: cores = null, requested_memory_bytes: memory = null } = report?.batch ?? {};
  const limits = report?.memory.limit_bytes == null ? null : report.memory.limit_bytes * report.hosts.length;
  return { cores: cores === report?.cpu.cpus ? null : cores, memory: memory === limits ? null : memory };
}

/** Return the short curves of a report as charts: [title, line] of each. */
function shortCurves(footprint, start) {
  const shown = [["CPU", "cpu", "used"], ["Memory", "memory", "used"], ["GPU", "gpu", "GPUs in use"]];
  return shown.filter(([, key]) => footprint[key]).map(([title, key, name]) => [title, { name, ...shortCurve(footprint, key, start) }]);
}
const charts = () => [
  ["CPU", [line("user", "cpu_user", part), line("kernel", "cpu_system", part), line("used", "cpu_used", { curve: "cpu" }), line("allocated", "cpus", limit),
    { name: "requested", role: "limit", requested: "cores", unit: "seconds/s" }], { unit: "cores" }],
  ["Memory", [
    line("programs", "memory_anon", part), line("files", "memory_file", part), line("kernel", "memory_kernel", part),
    line("used", "memory", { curve: "memory" }), line("limit", "memory_limit", limit),
    { name: "requested", role: "limit", requested: "memory", unit: "bytes" },
  ]],
  ["Storage", [line("read", "io_read"), line("written", "io_write")]],
  ["Waiting tasks", [
    line("for a CPU", "wait_cpu", part), line("for storage", "wait_io", part),
    line("for swap", "wait_swap", part), line("for free memory", "wait_reclaim", part),
  ], { unit: "tasks" }],
  ["GPU use", [line("mean", "gpu_use")]],
  ["GPU memory", [line("used", "gpu_memory"), line("all", "gpu_memory_total", limit)]],
  ["GPU power", [line("power", "gpu_power")]],
  ["Tasks", [line("tasks", "tasks")], { unit: "tasks" }],
];

export class Job {
  constructor(context) {
    this.context = context;
    this.job = context.what;
    this.title = `Job ${this.job}`;
    this.path = `api/v1/jobs/${encoded(this.job)}`;
    this.about = el("p", { class: "soft" });
    this.report = new JobReport(this.path, context.parameters.get("start") ?? "", () => context.again());
    this.facts = new Facts("The job now");
    this.now = el("section", { class: "now", "aria-labelledby": "now-title", hidden: true }, el("h2", { id: "now-title", text: "Now" }), this.facts.element);
    this.warnings = new Warnings();
    this.table = new Table("Nodes of the job", JOB_NODE_COLUMNS, (row) => row.node, { sort: "node", reverse: false }, () => this.#list());
    this.rows = [];
    this.panels = null;
    this.short = null; // the charts of a job without samples
    this.below = el("div");
    this.whole = new Completeness();
    this.nodes = el("section", { "aria-labelledby": "nodes-title", hidden: true },
      el("div", { class: "tools" }, el("h2", { id: "nodes-title", text: "Nodes" })), this.table.element);
    this.up = el("a", { href: context.jobs, text: "← Jobs" });
    this.element = el("div", {},
      el("p", { class: "crumbs" }, this.up),
      el("h1", { text: this.title, tabindex: "-1" }),
      this.about, this.warnings.element, this.report.note, this.report.element, this.now, this.below, this.nodes, this.whole.element);
    this.asked = 0;
  }

  close() {
    this.panels?.close();
    this.#closeShort();
  }

  #list() {
    this.table.show(this.table.arranged(this.rows));
  }

  /** Whether the job has ended some time ago, and was requested since. A job of the store alone may still send. */
  #rests() {
    const { running, last } = this.last?.job ?? {};
    if (this.last && !this.last.stored && last === null) return now() < this.asked + ENDED_S; // of the archive alone
    return !running && last != null && now() >= last + ENDED_S && now() < this.asked + ENDED_S;
  }

  /** Request the report, and wait for it for a moment: with it, the charts have all hosts and requests at once. */
  async #reported(signal, job, stored) {
    const before = this.report.report;
    let late = false;
    const reported = this.report.refresh(signal, job.running, stored, job.first).then(() => {
      if (late && before === null && this.report.report !== null) this.context.again();
    }).catch((error) => {
      if (!signal.aborted) throw error;
    });
    await Promise.race([reported, new Promise((resolve) => setTimeout(resolve, MOMENT_MS))]);
    late = true;
  }

  /** Show what the archive has of a job without samples; they are gone unless warnings say that some cannot be read. */
  #showShort(warnings) {
    const { report, footprint } = this.report;
    if (this.panels !== null) return;
    const why = warnings.length ? "No samples of it were found, and not all that is stored can be read" : "Its samples are no longer stored";
    say(this.about, `${why}${footprint ? ": the charts are the short curves of the archive" : ""}.`);
    if (this.short !== null) return;
    const made = footprint ? shortCurves(footprint, report.start).map(([title, one]) => {
      const chart = new Chart(title, { of: `job-${this.job}` });
      chart.element.hidden = !chart.show([one]);
      return chart;
    }) : [];
    this.short = made;
    this.below.replaceChildren(el("div", { class: "charts" }, ...made.map((chart) => chart.element)));
  }

  #closeShort() {
    this.short?.forEach((chart) => chart.close());
    this.short = null;
    this.below.replaceChildren();
  }

  /** Refresh the view; return whether a request was sent. */
  async refresh(signal) {
    const { admin } = await who(signal);
    say(this.up, admin ? "← Jobs" : "← My jobs");
    const asks = !this.#rests();
    if (asks) {
      this.last = await ask(this.path, {}, signal);
      this.asked = now();
    }
    const { job, nodes, tables, absent, warnings, stored, hosts } = this.last;
    const isMaybeStored = stored || warnings.length > 0; // the report names what cannot be read
    if (!stored && !job.running && job.last === null) {
      await Promise.all([load(signal), this.report.refresh(signal, false, isMaybeStored)]);
      this.warnings.show(warnings);
      if (this.report.report !== null) this.#showShort(warnings);
      return asks;
    }
    await this.#reported(signal, job, isMaybeStored);
    const state = job.running ? "running" : job.last == null ? "not running; its values are from the store" : `ended, or silent, since ${when(job.last)}`;
    const name = this.report.report?.batch?.name;
    say(this.about, `${name ? `${name} ` : ""}${job.user ? `of ${job.user}, ` : name ? ", " : ""}${state}`.replace(" ,", ","));
    this.now.hidden = !job.running;
    this.facts.show(jobFacts(job));
    this.warnings.show(warnings);
    this.rows = nodes;
    this.nodes.hidden = !nodes.length;
    this.#list();
    await load(signal);
    if (this.panels === null) {
      this.#closeShort(); // samples have come again
      this.panels = new Panels(this.path, charts(), this.context, job.running ? "3600" : "all", `job-${this.job}`);
      this.below.append(this.panels.element);
    }
    const { report } = this.report;
    this.panels.reasons = absent;
    this.panels.request(requestsOf(report));
    this.panels.bound(report?.starts?.length > 1 ? [report.start, report.state === "running" ? null : report.end] : null);
    const start = report?.start ?? job.first;
    const names = (nodes.length ? nodes.map((row) => row.node) : report?.hosts.map((one) => one.host) ?? hosts).sort();
    this.panels.refresh(signal, tables, names, job.running ? null : job.last ?? NaN, start);
    this.whole.refresh(this.path, signal);
    return asks;
  }
}

/** The stored share of a job's samples. */
class Completeness {
  constructor() {
    this.due = 0;
    this.text = el("p", { text: "Asking…" });
    this.gaps = el("tbody");
    this.more = el("p", { class: "soft", hidden: true });
    const heads = ["Node", "From", "Lasting", "Samples", "Why"].map((text, n) => el("th", { scope: "col", class: n < 2 || n === 4 ? "left" : "", text }));
    this.list = el("details", { hidden: true }, el("summary", { text: "Missing samples" }),
      el("div", { class: "wide" }, el("table", {}, el("caption", { class: "unseen", text: "Gaps" }), el("thead", {}, el("tr", {}, ...heads)), this.gaps)), this.more);
    this.element = el("section", { "aria-labelledby": "whole-title", hidden: true }, el("h2", { id: "whole-title", text: "Completeness" }), this.text, this.list);
  }

  /** Send a request if it is due, without waiting for the answer. */
  refresh(path, signal) {
    if (now() < this.due) return;
    this.due = now() + WHOLE_S;
    this.element.hidden = false;
    ask(`${path}/completeness`, {}, signal).then((answer) => this.#show(answer)).catch((error) => {
      if (signal.aborted) return;
      if (!(error instanceof Failure)) throw error;
      this.due = now() + Math.max(error.after, 30);
      say(this.text, error.message);
    });
  }

  #show({ share: part, present, expected, hosts, warnings }) {
    const known = part == null ? "The number of due samples is unknown." : `${share(part)} of the samples are stored: ${count(present)} of ${count(expected)}.`;
    say(this.text, [known, ...(warnings ?? []).map(sentence)].join(" "));
    const gaps = hosts.flatMap((host) => (host.gaps ?? []).map((gap) => ({ ...gap, node: host.node })));
    this.list.hidden = !gaps.length;
    keep(this.gaps, gaps.slice(0, MOST_GAPS), (gap) => `${gap.node} ${gap.since} ${gap.why}`, (gap) => el("tr", {},
      el("th", { scope: "row", class: "left" }, el("a", { href: nodeAddress(gap.node), text: gap.node })),
      el("td", { class: "left", title: moment(gap.since), text: when(gap.since) }), el("td"), el("td"), el("td", { class: "left" })),
    (node, gap) => {
      const lasts = gap.until == null || gap.since == null ? null : gap.until - gap.since;
      [[2, lasting(lasts)], [3, count(gap.samples)], [4, gap.why ?? ""]].forEach(([n, text]) => say(node.children[n], text));
    });
    this.more.hidden = gaps.length <= MOST_GAPS;
    say(this.more, `and ${count(gaps.length - MOST_GAPS)} more: colmet completeness lists all`);
    mark(this.element, "data-shown", "true");
  }
}
