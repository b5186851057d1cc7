// The charts of a job or a node: their requests, periods and time ranges.

import { Failure, ask, now } from "./api.js";
import { Chart, MOST_LINES } from "./charts.js";
import { choice, el, say } from "./dom.js";
import { combined, together } from "./series.js";
import { sentence, when } from "./units.js";

const RANGES = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "24 h"], ["604800", "7 d"], ["all", "all"]];
const AT_ONCE = 2; // requests; the collector has as many readers of its store
const POINTS = 240;
const MOST_VALUES = 24000; // of an answer with many nodes
const LEAST_S = 10; // between two rounds
const MOST_S = 120;
const AFTER_FAILURE_S = 30;
const MEANS = ["percent", "celsius", "mhz"]; // units without a meaningful sum over nodes
const CHOSEN = "one";

export class Panels {
  /**
   * @param {string} path of the job or the node in the interface
   * @param {Array} charts [title, [line, ...]]: a line has a name, `rate`, `mean`, and [table, column, text for the legend] as
   *   `sources`, of which the first with a value counts, or [table, column, sign] as `terms` of a sum
   * @param {Object} context of the view
   * @param {string} range default
   */
  constructor(path, charts, context, range) {
    this.path = path;
    this.charts = charts;
    this.context = context;
    this.made = new Map(); // title -> Chart
    const asked = context.parameters.get("range");
    this.range = RANGES.some(([value]) => value === asked) ? asked : range;
    this.node = context.parameters.get("node") ?? "";
    this.chosen = context.parameters.get("column") ?? "";
    this.earliest = null; // times of all values
    this.latest = null;
    this.due = 0;
    this.busy = false;
    this.tables = null;
    this.nodes = [];
    this.grid = el("div", { class: "charts" });
    this.from = el("p", { class: "soft" });
    this.which = el("span");
    this.columns = el("span");
    this.element = el("section", { "aria-labelledby": "charts-title" },
      el("div", { class: "tools" },
        el("h2", { id: "charts-title", text: "Over time" }),
        this.which,
        choice("Time", RANGES, this.range, (value) => this.#choose("range", value)),
        this.columns),
      this.grid, this.from);
  }

  close() {
    for (const chart of this.made.values()) chart.close();
    this.made.clear();
  }

  #choose(key, value) {
    if (key === "column") this.chosen = value;
    else this[key] = value;
    this.context.remember({ [key]: value });
    this.due = 0;
    this.outdated = true; // the answers in progress are of the former choice
    this.context.again();
  }

  /**
   * Send requests if they are due, without waiting for the answers.
   * @param {AbortSignal} signal
   * @param {Object} tables with their columns
   * @param {string[]} nodes of a job
   * @param {?number} end the last time of an ended job, NaN if unknown; null for a running job, and for a node
   */
  refresh(signal, tables, nodes, end) {
    this.#offer(tables, nodes);
    if (this.busy || now() < this.due) return;
    this.busy = true;
    this.outdated = false;
    this.#round(signal, end).finally(() => {
      this.busy = false;
      if (this.outdated && !signal.aborted) this.refresh(signal, tables, nodes, end);
    });
  }

  #has(table, column) {
    return this.tables[table]?.some((one) => one.name === column) ?? false;
  }

  /** Offer the choice of nodes and columns. */
  #offer(tables, nodes) {
    const text = JSON.stringify([Object.entries(tables).map(([name, columns]) => [name, columns.length]), nodes]);
    if (text === this.offered) return;
    this.offered = text;
    this.tables = tables;
    this.nodes = nodes;
    if (!nodes.includes(this.node)) this.node = "";
    this.which.replaceChildren(...(nodes.length < 2 ? [] : [
      choice("Nodes", [["", `all ${nodes.length}, together`], ...nodes.map((name) => [name, name])], this.node, (value) => this.#choose("node", value)),
    ]));
    const all = Object.entries(tables).flatMap(([table, columns]) =>
      columns.filter((one) => one.kind !== "label").map((one) => [`${table}.${one.name}`, `${table}: ${one.name}`]));
    this.columns.replaceChildren(choice("Another column", [["", "none"], ...all], this.chosen, (value) => this.#choose("column", value)));
    this.due = 0;
  }

  /** Return [title, lines] of the charts with known columns. */
  #wanted() {
    const wanted = [];
    for (const [title, lines] of this.charts) {
      const there = lines.flatMap((one) => {
        if (one.terms) return one.terms.every(([table, column]) => this.#has(table, column)) ? [one] : [];
        const sources = one.sources.filter(([table, column]) => this.#has(table, column));
        return sources.length ? [{ ...one, sources }] : [];
      });
      if (there.length) wanted.push([title, there]);
    }
    const [table, column] = split(this.chosen);
    const found = this.tables[table]?.find((one) => one.name === column);
    if (found && found.kind !== "label") {
      const rate = found.kind === "counter" && found.unit !== "ts_date";
      wanted.unshift([CHOSEN, [{ name: column, sources: [[table, column]], rate, mean: MEANS.includes(found.unit), apart: true, title: `${this.chosen}${rate ? ", growth" : ""}`, help: found.help }]]);
    }
    return wanted;
  }

  /** Make a chart for each title, in order; return [chart, lines]. */
  #lay(wanted) {
    const titles = wanted.map(([title, lines]) => (title === CHOSEN ? lines[0].title : title));
    for (const [title, chart] of this.made) {
      if (titles.includes(title)) continue;
      chart.close();
      chart.element.remove();
      this.made.delete(title);
    }
    titles.forEach((title, n) => {
      if (!this.made.has(title)) this.made.set(title, new Chart(title));
      const { element } = this.made.get(title);
      if (this.grid.children[n] !== element) this.grid.insertBefore(element, this.grid.children[n] ?? null);
    });
    return wanted.map(([, lines], n) => [this.made.get(titles[n]), lines]);
  }

  async #round(signal, end) {
    const until = Math.ceil(Number.isNaN(end) ? this.latest ?? now() : end ?? now()); // given, so that all answers have the same intervals
    const unknown = this.range !== "all" && Number.isNaN(end) && this.latest === null; // the whole range has the end
    const seconds = this.range === "all" || unknown ? null : Number(this.range);
    const shown = this.node ? 1 : Math.max(1, this.nodes.length);
    const span = {
      node: this.node,
      points: Math.max(30, Math.min(POINTS, Math.floor(MOST_VALUES / shown))),
      // without limits the collector returns all
      ...(seconds === null ? {} : { since: until - seconds, until }),
    };
    const sources = new Set();
    const warnings = new Set();
    const answers = new Map();
    const get = (table, column, rate) => {
      const key = `${table}.${column}|${rate}`;
      if (!answers.has(key)) answers.set(key, ask(`${this.path}/series`, { ...span, metric: `${table}.${column}`, rate: rate || "" }, signal));
      return answers.get(key);
    };
    const left = this.#lay(this.#wanted());
    const none = left.length ? "" : "Nothing to draw: there are no measured columns.";
    let failed = 0;
    const work = async () => {
      while (left.length && !signal.aborted) {
        const [chart, lines] = left.shift();
        try {
          const made = [];
          for (const one of lines) {
            let parts = [];
            let about = "";
            for (const [table, column, more] of one.terms ?? one.sources) {
              const answer = await get(table, column, one.rate);
              sources.add(answer.source);
              for (const { times } of answer.series) {
                if (!times.length) continue;
                this.earliest = Math.min(this.earliest ?? Infinity, times[0]);
                this.latest = Math.max(this.latest ?? 0, times.at(-1));
              }
              for (const text of answer.warnings) warnings.add(text);
              parts = one.terms ? [...parts, answer] : [answer];
              if (!one.terms && answer.series.some(({ values }) => values.some((value) => value !== null))) {
                about = more;
                break;
              }
            }
            made.push(...drawn(about ? { ...one, name: `${one.name}, ${about}` } : one, parts));
          }
          if (signal.aborted || !this.made.size) return;
          chart.show(made);
        } catch (error) {
          if (signal.aborted) return;
          if (!(error instanceof Failure)) throw error;
          failed = Math.max(failed, error.after || AFTER_FAILURE_S);
          chart.note(error.message);
          if (error.status === 429) left.length = 0; // later
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (signal.aborted) return;
    this.due = this.outdated ? 0 : now() + (failed || (end !== null ? MOST_S : Math.min(MOST_S, Math.max(LEAST_S, (seconds ?? 86400) / POINTS))));
    if (unknown && this.latest !== null) this.outdated = true;
    const lasted = end === null || this.earliest === null ? "" : `Its values are from ${when(this.earliest)} to ${when(this.latest)}.`;
    say(this.from, [none, origin(sources, warnings), lasted].filter(Boolean).join(" "));
  }
}

/** Return the line or lines of answers. */
function drawn(one, answers) {
  const [{ series }] = answers;
  if (one.apart && series.length > 1 && series.length <= MOST_LINES) {
    return series.map((part) => ({ name: [part.node, ...Object.values(part.labels ?? {})].join(" "), ...together({ ...answers[0], series: [part] }) }));
  }
  const lines = answers.map((answer) => together(answer, one.mean));
  return [{ name: one.name, ...(lines.length > 1 ? combined(lines, one.terms.map(([, , sign]) => sign)) : lines[0]) }];
}

/** Split a metric into table and column, at the first dot. */
function split(text) {
  const at = text.indexOf(".");
  return at < 0 ? ["", ""] : [text.slice(0, at), text.slice(at + 1)];
}

function origin(sources, warnings) {
  const from = { memory: "From the collector's memory.", stored: "From the store." };
  const known = [...sources].filter((one) => one !== "none");
  const where = known.length === 1 && known[0] in from ? from[known[0]] : known.length ? "From the collector's memory and the store." : "";
  return [where, ...[...warnings].map(sentence)].filter(Boolean).join(" ");
}
