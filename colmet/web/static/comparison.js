// Another job beside this one: its lines, on the time since its start.

import { Failure, ask } from "./api.js";
import { el, say } from "./dom.js";
import { encoded } from "./columns.js";
import { POINTS, SPREAD } from "./requests.js";
import { combined, shortCurve, together } from "./series.js";
import { lasting, sentence } from "./units.js";

const NUMBER = /^[1-9][0-9]{0,17}$/;
const TIMES = "Times are since the start of each job.";
const SHORT = ["cpu", "memory"]; // the short curves that are beside lines of the charts

export class Comparison {
  /**
   * @param {string} job its number; empty for none
   * @param {function} chosen called with another number, or ""
   */
  constructor(job, chosen) {
    this.job = NUMBER.test(job) ? job : "";
    this.input = el("input", { type: "text", inputmode: "numeric", size: "9", value: this.job, autocomplete: "off", placeholder: "number" });
    this.clear = el("button", { type: "button", text: "End comparison", hidden: this.job === "", onclick: () => {
      this.#choose("", chosen);
      this.input.focus(); // the button is hidden now
    } });
    this.said = el("p", { class: "soft", role: "status", hidden: true });
    this.element = el("form", {
      class: "field", onsubmit: (event) => {
        event.preventDefault();
        this.#choose(this.input.value.trim(), chosen);
      },
    }, el("label", {}, el("span", { text: "Compare with job" }), this.input), el("button", { type: "submit", text: "Compare" }), this.clear);
    this.found = null; // the job's tables and its start, and its short curves where it has no samples
  }

  #choose(job, chosen) {
    if (job && !NUMBER.test(job)) {
      this.#say("Enter the number of a job.");
      return;
    }
    this.job = job;
    this.input.value = job;
    this.clear.hidden = job === "";
    this.found = null;
    this.#say("");
    chosen(job);
  }

  #say(text) {
    this.said.hidden = !text;
    say(this.said, text);
  }

  /** Request the job, the first time. */
  async load(signal) {
    const number = this.job;
    if (!number || this.found?.job === number) return;
    const path = `api/v1/jobs/${encoded(number)}`;
    try {
      const [{ job, tables, warnings }, { report, footprint }] = await Promise.all([ask(path, {}, signal), ask(`${path}/summary`, {}, signal)]);
      if (this.job !== number) return; // another one was chosen meanwhile, or none
      const short = Object.keys(tables).length ? null : footprint ?? {};
      this.found = { job: number, path, tables, start: report?.start ?? job.first, short, hosts: report?.hosts.length || 1 };
      const user = job.user || report?.user;
      const name = `job ${number}${user ? ` of ${user}` : ""}`;
      this.#say(short ? without(name, report, short, warnings) : `Dashed: ${name}. ${TIMES}`);
    } catch (error) {
      if (signal.aborted || this.job !== number) return;
      if (!(error instanceof Failure)) throw error;
      this.#say(error.message);
      if (error.status === 404) this.found = { job: number, path, tables: {}, start: null, short: {} };
    }
  }

  /**
   * Return the other job's lines for those of a chart; none without a comparison.
   * @param {Array} wanted the lines of the chart, as in `Panels`
   * @param {Round} round with the requests of this job
   * @param {?number} start of this job
   */
  async lines(wanted, round, start) {
    const other = this.found;
    if (!other || start == null) return [];
    if (other.short) return this.#short(wanted, round, start);
    const whole = wanted.filter((line) => !line.role && line.sources);
    const chosen = whole.length ? whole : wanted.filter((line) => line.role === "part" && line.sources);
    const found = [];
    try {
      for (const line of chosen) {
        const answer = await this.#answer(other, line, round, start);
        if (answer) found.push({ name: line.name, ...together(answer, round.how(line)) });
      }
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#say(error.message);
      return [];
    }
    if (!found.length || this.found !== other) return []; // the comparison was ended meanwhile
    const lines = whole.length ? found : [{ name: "all", ...combined(found, found.map(() => 1)) }];
    return lines.map((line) => {
      other.start ??= line.times[0] ?? null;
      return this.#other(line, start - other.start);
    });
  }

  /** Return a line of the other job, so much later. */
  #other(line, later) {
    return { ...line, name: `${line.name}, job ${this.job}`, like: line.name, role: "other", min: null, max: null, times: line.times.map((time) => time + later) };
  }

  /** Return the short curve for the lines of a chart, if there is one; over several nodes their mean. */
  #short(wanted, { mode, limits: { since = -Infinity, until = Infinity } }, start) {
    const { short, hosts } = this.found;
    const line = wanted.find((one) => one.curve && short[one.curve]);
    if (!line) return [];
    const { unit, times, values } = shortCurve(short, line.curve, start);
    const part = mode === SPREAD ? hosts : 1;
    const shown = [...times.keys()].filter((n) => times[n] >= since && times[n] <= until);
    return [this.#other({ name: line.name, unit, times: shown.map((n) => times[n]), values: shown.map((n) => (values[n] == null ? null : values[n] / part)) }, 0)];
  }

  /** Request the first column of a line that has values. */
  async #answer({ path, tables, start: begun }, line, { signal, limits }, start) {
    const later = begun == null ? null : begun - start;
    const shifted = later === null ? {} : Object.fromEntries(Object.entries(limits).map(([key, time]) => [key, Math.max(0, time + later)]));
    for (const [table, column] of line.sources) {
      if (!tables[table]?.some((one) => one.name === column)) continue;
      const answer = await ask(`${path}/series`, { ...shifted, points: POINTS, metric: `${table}.${column}`, rate: line.rate || "", together: true }, signal);
      if (answer.together?.max.some((value) => value !== null)) return answer;
    }
    return null;
  }
}

/** Return what is shown of a job without samples, and its figures in the archive. */
function without(name, report, short, warnings) {
  const why = warnings.length ? warnings.map(sentence).join(" ") : report ? "Its samples are no longer stored." : "Nothing is stored of it.";
  const drawn = SHORT.filter((key) => short[key]);
  const lines = drawn.length ? `Dashed: ${name}, only ${drawn.join(" and ").replace("cpu", "CPU")}, by the short curves of the archive. ${TIMES}` : `There is nothing to draw of ${name}.`;
  const figures = report ? sentence([...report.verdict.map((one) => `${one.text}: ${one.grade}`), `lasted ${lasting(report.wall_s)}`].join("; ")) : "";
  return [lines, why, figures].filter(Boolean).join(" ");
}
