// The report at the top of the view of a job: verdict, advice, use of what was requested, why it ended, facts.

import { Failure, REPORT_MS, address, ask, now } from "./api.js";
import { ENDS, nodeAddress } from "./columns.js";
import { bar, el, Facts, fill, keep, mark, say } from "./dom.js";
import { Table, column, linked, shared } from "./table.js";
import { NONE, cores, count, lasting, moment, sentence, share, size, when, zone } from "./units.js";

const AGAIN_S = 60; // between two requests for a running job
const SLOW_AGAIN_S = 300; // likewise, if the archive lacks the job: each report of its rows needs seconds
const MOST_STARTS = 5;
const FEW_HOSTS = 8; // are shown at once
const HOST_COLUMNS = [
  linked("host", "Host", (row) => row.host, (row) => nodeAddress(row.host)),
  shared("cpu_used_ratio", "CPU", (row) => share(row.cpu_used_ratio), (row) => row.cpu_used_ratio, { long: "share of its CPU time that was used" }),
  column("cores", "Cores", (row) => cores(row.cores), { long: "cores used, on average" }),
  column("cpus", "of", (row) => cores(row.cpus), { rank: 1, long: "cores allocated" }),
  column("memory_peak_bytes", "Memory", (row) => size(row.memory_peak_bytes), { long: "at most" }),
  column("memory_limit_bytes", "Limit", (row) => size(row.memory_limit_bytes), { rank: 1 }),
  column("read_bytes", "Read", (row) => size(row.read_bytes), { rank: 1 }),
  column("written_bytes", "Written", (row) => size(row.written_bytes), { rank: 1 }),
  column("tasks_peak", "Tasks", (row) => count(row.tasks_peak), { rank: 2, long: "at most" }),
];
const NAMES = { cores: "CPU", memory: "Memory", gpus: "GPU", walltime: "Walltime" };
const AMOUNTS = { cores, memory: size, gpus: cores, walltime: lasting };
const FOLDS = { cores: " cores on average", gpus: " GPUs on average", memory: " at most" };

const words = (text) => String(text).replaceAll("_", " ");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Return the facts of the batch system and of the measurement. */
function facts({ batch, user, hosts, start, end, wall_s: wall, state, completeness }) {
  const known = (value, text) => (value == null || value === "" ? null : text(value));
  const time = (seconds) => [known(seconds, when), moment(seconds)];
  const one = batch ?? {};
  const waited = one.submitted != null && one.started != null ? Math.max(0, one.started - one.submitted) : null;
  return [
    ["User", user || null],
    ["Name", known(one.name, String)],
    ["Project", known(one.project, String)],
    ["Queue", known(one.queue, String)],
    ["Number", one.batch_id && one.array ? one.batch_id : null, "as the batch system prints it"],
    ["Array", known(one.array, String)],
    ["After", known(one.dependency, String), "the jobs that it waited for"],
    ["Submitted", ...time(one.submitted)],
    ["Waited", known(waited, lasting), "from its submission to its start"],
    ["Started", ...time(one.started ?? start)],
    [state === "running" ? "Last sample" : "Ended", ...time(one.ended ?? end)],
    ["Lasted", known(wall, lasting)],
    ["Exit code", known(one.exit_code, String)],
    ["Signal", one.exit_signal ? String(one.exit_signal) : null],
    ["Reason", known(one.reason, String), "the batch system's own word"],
    ["Hosts", hosts?.length ? count(hosts.length) : null],
    ["Samples stored", known(completeness?.here_ratio, share)],
  ];
}

export class JobReport {
  /**
   * @param {string} path of the job in the interface
   * @param {string} start of one of several jobs with this number
   * @param {function} came called when the report of the stored rows has come
   */
  constructor(path, start, came) {
    this.path = path;
    this.came = came;
    this.start = start;
    this.due = 0;
    this.report = null;
    this.footprint = null;
    this.state = el("b", { class: "state" });
    this.end = el("span");
    this.verdict = el("p", { class: "judged" });
    this.advice = el("ul", { class: "advice" });
    this.none = el("p", { class: "soft" });
    this.uses = el("dl", { class: "uses", "aria-label": "Used of what it held" });
    this.facts = new Facts("Facts of the job");
    this.starts = el("p", { class: "soft" });
    this.table = new Table("Hosts of the job, over its whole time", HOST_COLUMNS, (row) => row.host, { sort: "cpu_used_ratio", reverse: true }, () => this.#list());
    this.hosts = el("details", { hidden: true }, el("summary"), this.table.element);
    this.link = el("a", { text: "Full report" });
    this.element = el("section", { class: "report", "aria-labelledby": "report-title", hidden: true },
      el("div", { class: "tools" }, el("h2", { id: "report-title", text: "Report" }), this.link),
      this.verdict, el("p", {}, this.state, this.end), this.advice, this.none, this.uses, this.facts.element, this.hosts, this.starts);
    this.note = el("p", { class: "soft", hidden: true });
  }

  /**
   * Request the report if it is due: from the archive, within milliseconds, else from the stored rows, without a wait for it.
   * @param {boolean} isRunning
   * @param {boolean} isStored whether there are rows
   * @param {?number} first time of its first sample, if known
   */
  async refresh(signal, isRunning, isStored, first = null) {
    if (now() < this.due) return;
    this.due = now() + AGAIN_S;
    try {
      const { report, footprint } = await ask(`${this.path}/summary`, { start: this.start }, signal);
      this.footprint = footprint;
      const isEarlier = report && isStored && !this.start && first !== null && report.end < first - AGAIN_S; // of this number
      if (report && !isEarlier) this.#show(report);
      else if (isStored) this.#fromRows(signal, isRunning);
      else this.#say("No report yet: nothing is stored of this job.");
      if (this.report && !isRunning && this.report.state === "ended") this.due = Infinity;
    } catch (error) {
      if (signal.aborted || !(error instanceof Failure)) throw error;
      this.#failed(error);
    }
  }

  /** Request the report of the stored rows. */
  async #fromRows(signal, isRunning) {
    const isFirst = this.report === null;
    if (isFirst) this.#say("Making the report from the stored rows…");
    this.due = now() + SLOW_AGAIN_S;
    try {
      this.#show(await ask(`${this.path}/report`, { start: this.start }, signal, REPORT_MS));
      this.due = !isRunning && this.report.state === "ended" ? Infinity : now() + SLOW_AGAIN_S;
      if (isFirst) this.came();
    } catch (error) {
      if (signal.aborted) return;
      this.#failed(error, SLOW_AGAIN_S);
      if (!(error instanceof Failure)) reportError(error); // a defect; nobody awaits this function
    }
  }

  #failed(error, again = AGAIN_S) {
    this.due = now() + Math.max(error.after ?? 0, again);
    this.#say(`No report: ${error.message}`);
  }

  #say(text) {
    this.note.hidden = !text;
    say(this.note, text);
  }

  #show(report) {
    this.report = report;
    this.element.hidden = false;
    this.#say("");
    this.link.href = address(`${this.path}/report.html`, { start: this.start, zone: zone() });
    const { ending, batch, uses, advice, advice_withheld: withheld } = report;
    const state = ending?.kind ?? (batch?.state || report.state);
    say(this.state, ending?.text ?? capital(words(state)));
    mark(this.state, "data-end", ENDS[state]);
    say(this.end, ending ? ending.remedy : report.state === "unknown" ? "Its nodes have sent nothing since its last sample." : "");
    keep(this.verdict, report.verdict, (one) => one.what, () => el("b"), (node, one) => {
      mark(node, "data-grade", one.grade);
      say(node, `${one.text}: ${one.grade}`);
    });
    keep(this.advice, advice, (one) => one.rule, () => el("li", {}, el("span"), el("small")), (node, one) => {
      say(node.firstElementChild, sentence(one.text));
      say(node.lastElementChild, `Because ${one.because}.`);
    });
    this.none.hidden = !withheld;
    say(this.none, withheld ? `No ${advice.length ? "other " : ""}advice: ${withheld}.` : "");
    this.#uses(uses);
    this.facts.show(facts(report));
    this.#others(report.starts ?? []);
    const several = report.hosts.length > 1;
    if (several && this.hosts.hidden) this.hosts.open = report.hosts.length <= FEW_HOSTS;
    this.hosts.hidden = !several;
    say(this.hosts.firstElementChild, `${count(report.hosts.length)} hosts, the least busy first`);
    this.#list();
  }

  #list() {
    this.table.show(this.table.arranged(this.report.hosts));
  }

  #uses(uses) {
    keep(this.uses, uses, (use) => use.what, (use) => el("div", {}, el("dt", { text: NAMES[use.what] }), el("dd", {}, bar(), el("b"), el("span"))), (node, use) => {
      const [box, part, text] = node.lastElementChild.children;
      mark(node, "data-grade", use.grade || null);
      fill(box, use.ratio);
      say(part, use.ratio == null ? NONE : `${share(use.ratio)} ${use.grade}`);
      const amount = AMOUNTS[use.what];
      const beside = use.requested == null || use.requested === use.held ? "" : `; ${amount(use.requested)} requested`;
      const of = use.held == null ? "" : `, of ${amount(use.held)}${beside}`;
      say(text, use.used == null ? "not measured" : `${amount(use.used)}${FOLDS[use.what] ?? ""}${of}`);
    });
  }

  #others(starts) {
    this.starts.hidden = starts.length < 2;
    if (starts.length < 2) return;
    const others = starts.filter((one) => one !== Number(this.start || starts[0])).slice(0, MOST_STARTS);
    this.starts.replaceChildren(`${count(starts.length)} jobs had this number; others started `,
      ...others.flatMap((one, n) => [n ? ", " : "", el("a", { href: `${location.hash.split("?", 1)[0]}?start=${one}`, text: when(one) })]), ".");
  }
}
