// Another job beside this one: its lines, on the time since its start.

import { Failure, ask } from "./api.js";
import { el, say } from "./dom.js";
import { encoded } from "./columns.js";
import { POINTS } from "./requests.js";
import { combined, together } from "./series.js";

const NUMBER = /^[1-9][0-9]{0,17}$/;

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
    this.found = null; // the job's tables and its start
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
    if (!this.job || this.found?.job === this.job) return;
    const path = `api/v1/jobs/${encoded(this.job)}`;
    try {
      const [{ job, tables }, { report }] = await Promise.all([ask(path, {}, signal), ask(`${path}/summary`, {}, signal)]);
      this.found = { job: this.job, path, tables, start: report?.start ?? job.first };
      this.#say(`Dashed: job ${this.job}${job.user ? ` of ${job.user}` : ""}. Times are since the start of each job.`);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#say(error.message);
      if (error.status === 404) this.found = { job: this.job, path, tables: {}, start: null };
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
      const later = start - other.start;
      return { ...line, name: `${line.name}, job ${this.job}`, like: line.name, role: "other", min: null, max: null, times: line.times.map((time) => time + later) };
    });
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
