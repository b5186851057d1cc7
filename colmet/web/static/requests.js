// The requests of one round of a view's charts: columns become lines.

import { ask } from "./api.js";
import { MOST_LINES } from "./layers.js";
import { combined, single, together } from "./series.js";

export const POINTS = 240; // of a line
export const SPREAD = "spread"; // over nodes: the mean, with a band from min to max
export const EACH = "each"; // a small chart for each node

const values = ({ together: found, series }) => (found ? found.max : series.flatMap((one) => one.values));

export class Round {
  /**
   * @param {string} path of the job or the node in the interface
   * @param {AbortSignal} signal
   * @param {Object} limits {since, until} of all requests; empty for all values
   * @param {string} node of a job; empty for all
   * @param {string} mode of several nodes: SPREAD, EACH, or any other text for the sum
   */
  constructor(path, signal, limits, node, mode) {
    Object.assign(this, { path, signal, limits, node, mode });
    this.sources = new Set();
    this.warnings = new Set();
    this.answers = new Map();
    this.failed = 0; // seconds until the next round, after a failure
    this.ends = [Infinity, -Infinity]; // first and last time of all values
  }

  /** How the values of several nodes become one. */
  how(line) {
    return line.mean || this.mode === SPREAD ? "mean" : "sum";
  }

  /** Note times of values. */
  widen(times) {
    if (times.length) this.ends = [Math.min(this.ends[0], times[0]), Math.max(this.ends[1], times.at(-1))];
  }

  /** Request a column, once in a round. */
  async get([table, column], rate, more) {
    const asked = { node: this.node, points: POINTS, ...this.limits, metric: `${table}.${column}`, rate: rate || "", ...more };
    const name = JSON.stringify(asked);
    if (!this.answers.has(name)) this.answers.set(name, ask(`${this.path}/series`, asked, this.signal));
    const answer = await this.answers.get(name);
    this.sources.add(answer.source);
    for (const text of answer.warnings) this.warnings.add(text);
    for (const { times } of answer.together ? [answer.together] : answer.series) this.widen(times);
    return answer;
  }

  /** Request the columns of a line up to the first one with values; return it as lines, one for each device if `apart`. */
  async linesOf(one) {
    if (one.terms) {
      const parts = [];
      for (const source of one.terms) parts.push(together(await this.get(source, one.rate, { together: true }), this.how(one)));
      return [{ name: one.name, role: one.role, part: one.part, ...combined(parts, one.terms.map(([, , sign]) => sign)) }];
    }
    const apart = one.apart && this.mode !== SPREAD;
    let answer = null;
    let source = null;
    for (source of one.sources) {
      answer = await this.get(source, one.rate, { together: !apart });
      if (values(answer).some((value) => value !== null)) break;
    }
    const name = source[2] ? `${one.name}, ${source[2]}` : one.name;
    if (apart && answer.series.length <= MOST_LINES) {
      const several = answer.series.length > 1;
      return answer.series.map((part) => ({ name: several ? [part.node, ...Object.values(part.labels ?? {})].join(" ") : name, ...single(answer, part) }));
    }
    if (apart) answer = await this.get(source, one.rate, { together: true });
    const line = together(answer, this.how(one));
    const band = (this.mode === SPREAD || one.mean) && !one.role && line.several && one.band !== false; // of a mean: also over devices
    return [{ name, role: one.role, part: one.part, idle: one.idle, ...line, ...(band ? {} : { min: null, max: null }) }];
  }
}
