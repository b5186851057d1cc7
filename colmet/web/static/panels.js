// The charts of a job or a node: choices, time ranges, zoom, and when they are requested.

import { Failure, now } from "./api.js";
import { Chart } from "./charts.js";
import { Comparison } from "./comparison.js";
import { choice, el, say } from "./dom.js";
import { copy } from "./download.js";
import { absent } from "./measures.js";
import { Multiples, ORDERS } from "./multiples.js";
import { missing, origin, split, times } from "./panel_texts.js";
import { EACH, POINTS, Round, SPREAD } from "./requests.js";
import { when } from "./units.js";

const RANGES = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "24 h"], ["604800", "7 d"], ["all", "whole time"]];
const AT_ONCE = 2; // requests; the collector has as many readers of its store
const MOST_VALUES = 24000; // of an answer with a series for each node
const LEAST_S = 10; // between two rounds
const MOST_S = 120;
const AFTER_FAILURE_S = 30;
const MEANS = ["percent", "celsius", "mhz"]; // units without a meaningful sum over nodes
const CHOSEN = "one";
const KEYS = "Left and right arrow keys move the cursor through the values, with Shift they select a time, Enter zooms to it; + and − zoom, Escape shows the whole time.";

export class Panels {
  /**
   * @param {string} path of the job or the node in the interface
   * @param {Array} charts [title, [line, ...], more]: a line has a name, `rate`, `mean`, a `role` (`part` of a stack, `limit`), and
   *   [table, column, text for the legend] as `sources`, of which the first with a value counts, or [table, column, sign] as
   *   `terms` of a sum, or a `unit` and a key of `request` as `requested`; `more.unit` is a word for the axis
   * @param {Object} context of the view
   * @param {string} range default
   * @param {string} of what they are, for names of files
   */
  constructor(path, charts, context, range, of = context.what) {
    this.path = path;
    this.ofJob = path.startsWith("api/v1/jobs/");
    this.charts = charts;
    this.context = context;
    this.of = of;
    this.made = new Map(); // title -> Chart
    const asked = (key) => context.parameters.get(key) ?? "";
    this.range = RANGES.some(([value]) => value === asked("range")) ? asked("range") : range;
    this.zoom = times(asked("from"), asked("to")); // [since, until], or null
    this.node = asked("node");
    this.hosts = asked("hosts"); // over nodes: SPREAD, EACH, or "sum"
    this.chosen = asked("column");
    this.measure = asked("measure"); // of the small charts
    this.order = asked("order") || "name";
    this.compared = new Comparison(asked("with"), (job) => this.#choose("with", job));
    this.start = null; // of the job, for a comparison
    this.requested = {}; // by key
    this.span = null; // [since, until] of all time axes; null as long as it is unknown
    this.reasons = {}; // why tables are missing, by their names, as nodes report it
    this.bounds = null; // [since, until] of one of several jobs with a number; null for all rows
    this.earliest = null; // times of all values
    this.latest = null;
    this.due = 0;
    this.busy = false;
    this.tables = null;
    this.nodes = [];
    this.grid = el("div", { class: "charts" });
    this.lacking = el("p", { class: "soft" });
    this.from = el("p", { class: "soft from" });
    this.hint = el("p", { class: "soft hint" });
    this.which = el("span");
    this.columns = el("span");
    this.back = el("button", { type: "button", hidden: this.zoom === null, text: "Whole time", onclick: () => {
      this.#whole();
      this.link.focus({ preventScroll: true }); // the button is hidden now
    } });
    this.link = el("button", { type: "button", text: "Copy link", title: "the address of this view, with all its choices", onclick: () => this.#copy() });
    this.copied = el("span", { class: "soft", role: "status" });
    this.element = el("section", { "aria-labelledby": "charts-title" },
      el("div", { class: "tools" },
        el("h2", { id: "charts-title", text: "Over time" }),
        this.back,
        choice("Time", RANGES, this.range, (value) => this.#ranged(value)),
        this.which,
        this.columns,
        ...(this.ofJob ? [this.compared.element] : []),
        el("span", {}, this.link, this.copied)),
      this.hint,
      el("p", { class: "unseen", id: "chart-keys", text: KEYS }),
      this.compared.said, this.grid, this.lacking, this.from);
  }

  close() {
    for (const chart of this.made.values()) chart.close();
    this.made.clear();
  }

  // -- choices --

  #choose(key, value) {
    if (key === "column") this.chosen = value;
    else if (key !== "with") this[key] = value;
    this.context.remember({ [key]: value });
    this.#again();
  }

  #again() {
    this.due = 0;
    this.outdated = true; // the answers in progress are of the former choice
    this.context.again();
  }

  #ranged(value) {
    this.range = value;
    this.context.remember({ range: value });
    this.#zoomed(null);
  }

  #whole() {
    if (this.zoom === null) return;
    this.#zoomed(null);
  }

  /** Show a part of the time; null for all of the range. */
  #zoomed(zoom) {
    this.zoom = zoom;
    this.span = zoom ?? this.span;
    this.back.hidden = zoom === null;
    this.context.remember({ from: zoom?.[0], to: zoom?.[1] });
    if (zoom !== null) for (const chart of this.made.values()) chart.within?.(zoom, this.#origin());
    this.#again();
  }

  /** Return the time that the axis counts from: in a comparison, the start of the job. */
  #origin() {
    return this.compared.job === "" ? null : this.start ?? this.earliest;
  }

  async #copy() {
    say(this.copied, (await copy(location.href)) ? " Copied" : ` ${location.href}`);
    setTimeout(() => say(this.copied, ""), 4000);
  }

  /** How values of several nodes are shown. */
  #mode() {
    if (this.node || this.nodes.length < 2) return "";
    return [EACH, "sum"].includes(this.hosts) ? this.hosts : SPREAD;
  }

  /**
   * Send requests if they are due, without waiting for the answers.
   * @param {AbortSignal} signal
   * @param {Object} tables with their columns
   * @param {string[]} nodes of a job
   * @param {?number} end the last time of an ended job, NaN if unknown; null for a running job, and for a node
   * @param {?number} start of a job, if known
   */
  refresh(signal, tables, nodes, end, start = null) {
    this.start = start;
    this.asked = [tables, nodes, end, start];
    this.#offer(tables, nodes);
    if (this.busy || now() < this.due) return;
    const means = { [SPREAD]: ` Lines are the mean of ${this.nodes.length} nodes, coloured areas reach from the lowest to the highest node.`, sum: ` Lines are the sum of ${this.nodes.length} nodes.` };
    say(this.hint, this.#mode() === EACH ? "" : `Drag over a chart to zoom.${means[this.#mode()] ?? ""}`);
    this.busy = true;
    this.outdated = false;
    this.#round(signal, end).finally(() => {
      this.busy = false;
      if (this.outdated && !signal.aborted) this.refresh(signal, ...this.asked);
    });
  }

  /** Set the requested amounts of a job, by the key `requested` of lines. */
  request(amounts) {
    if (JSON.stringify(amounts) === JSON.stringify(this.requested)) return;
    this.requested = amounts;
    this.due = 0;
  }

  /** Set the time of the job, if others with its number ran before or after; null for all rows of the number. */
  bound(bounds) {
    if (JSON.stringify(bounds) === JSON.stringify(this.bounds)) return;
    this.bounds = bounds;
    [this.earliest, this.latest, this.due] = [null, null, 0];
    this.outdated = true;
  }

  #has(table, column) {
    return this.tables[table]?.some((one) => one.name === column) ?? false;
  }

  /** Offer the choice of nodes and columns. */
  #offer(tables, nodes) {
    const text = JSON.stringify([Object.entries(tables).map(([name, columns]) => [name, columns.length]), nodes, this.#mode()]);
    if (text === this.offered) return;
    this.tables = tables;
    this.nodes = nodes;
    if (nodes.length && !nodes.includes(this.node)) this.node = "";
    const mode = this.#mode();
    this.offered = JSON.stringify([Object.entries(tables).map(([name, columns]) => [name, columns.length]), nodes, mode]);
    const count = nodes.length;
    const modes = [[SPREAD, `all ${count}: mean, min and max`], ["sum", `all ${count}: sum`], [EACH, `all ${count}: a chart each`]];
    const pick = (value) => {
      const [hosts, node] = value.startsWith("*") ? [value.slice(1), ""] : ["", value];
      [this.hosts, this.node] = [hosts, node];
      this.context.remember({ hosts: hosts === SPREAD ? "" : hosts, node });
      this.#again();
    };
    const measures = this.charts.flatMap(([title, lines]) => lines.filter((line) => line.role !== "limit" && line.sources).map((line) => [key(title, line), key(title, line)]));
    this.which.replaceChildren(...(count < 2 ? [] : [
      choice("Nodes", [...modes.map(([value, one]) => [`*${value}`, one]), ...nodes.map((name) => [name, name])], this.node || `*${mode}`, pick),
      ...(mode === EACH ? [choice("Value", measures, this.#single()[0], (value) => this.#choose("measure", value)),
        choice("Order", ORDERS, this.order, (value) => this.#choose("order", value))] : []),
    ]));
    const all = Object.entries(tables).flatMap(([table, columns]) =>
      columns.filter((one) => one.kind !== "label").map((one) => [`${table}.${one.name}`, `${table}: ${one.name}`]));
    this.columns.replaceChildren(choice("Another column", [["", "none"], ...all], this.chosen, (value) => this.#choose("column", value)));
    this.due = 0;
    this.outdated = true;
  }

  /** Return the name and the line of the value of the small charts. */
  #single() {
    const found = this.charts.flatMap(([title, lines]) => lines.filter((line) => line.role !== "limit" && line.sources).map((line) => [key(title, line), line]));
    return found.find(([name]) => name === this.measure) ?? found.find(([, line]) => line.role !== "part") ?? found[0];
  }

  /** Return [title, lines, more] of the charts with known columns, and note the others. */
  #wanted() {
    const wanted = [];
    this.without = new Map(); // title -> why it is missing
    for (const [title, lines, more = {}] of this.charts) {
      const there = lines.flatMap((one) => {
        if (one.requested) return this.requested[one.requested] == null ? [] : [one];
        if (one.terms) return one.terms.every(([table, column]) => this.#has(table, column)) ? [one] : [];
        const sources = one.sources.filter(([table, column]) => this.#has(table, column));
        return sources.length ? [{ ...one, sources }] : [];
      });
      if (there.some((one) => one.role !== "limit")) wanted.push([title, there, more]);
      else {
        const [table] = (lines[0].sources ?? lines[0].terms)[0];
        this.without.set(title, this.tables[table] ? "its nodes do not send it" : this.reasons[table] ?? absent(table));
      }
    }
    const [table, column] = split(this.chosen);
    const found = this.tables[table]?.find((one) => one.name === column);
    if (found && found.kind !== "label") {
      const rate = found.kind === "counter" && found.unit !== "ts_date";
      wanted.unshift([CHOSEN, [{ name: column, sources: [[table, column]], rate, mean: MEANS.includes(found.unit), apart: true, title: `${this.chosen}${rate ? ", growth" : ""}` }], { help: found.help }]);
    }
    return wanted;
  }

  /** Make a chart for each title, in order; return [chart, lines]. */
  #lay(wanted) {
    const titles = wanted.map(([title, lines]) => (title === CHOSEN ? lines[0].title : title));
    for (const [title, chart] of this.made) {
      if (titles.includes(title) && chart instanceof Chart) continue;
      chart.close();
      chart.element.remove();
      this.made.delete(title);
    }
    titles.forEach((title, n) => {
      if (!this.made.has(title)) {
        const more = { ...wanted[n][2], of: this.of, zoom: (since, until) => this.#zoomed([since, until]), whole: () => this.#whole() };
        this.made.set(title, new Chart(title, more));
      }
      const { element } = this.made.get(title);
      if (this.grid.children[n] !== element) this.grid.insertBefore(element, this.grid.children[n] ?? null);
    });
    return wanted.map(([, lines], n) => [this.made.get(titles[n]), lines]);
  }

  /** Return the lines of a chart to show over several nodes: of a mean no parts, if there is a whole. */
  #chosenOf(lines) {
    if (this.#mode() !== SPREAD) return lines;
    const whole = lines.some((line) => !line.role);
    return whole ? lines.filter((line) => line.role !== "part") : lines.map((line) => (line.role === "part" ? { ...line, role: "", part: true } : line));
  }

  // -- requests --

  /** Return the parameters of all requests of a round, and whether the end of the time is unknown. */
  #span(end) {
    const until = this.bounds?.[1] ?? Math.ceil(Number.isNaN(end) ? this.latest ?? now() : end ?? now()); // given, so that all answers have the same intervals
    const unknown = this.range !== "all" && Number.isNaN(end) && this.latest === null; // the whole range has the end
    const seconds = this.range === "all" || unknown ? null : Number(this.range);
    // without limits the collector returns all
    const [since, last] = this.zoom ?? (seconds === null ? this.bounds : [Math.max(until - seconds, this.bounds?.[0] ?? 0), until]) ?? [];
    const limits = since === undefined ? {} : { since, until: last ?? until };
    return { seconds, unknown, limits };
  }

  async #round(signal, end) {
    const { seconds, unknown, limits } = this.#span(end);
    const mode = this.#mode();
    const round = new Round(this.path, signal, limits, this.node, mode);
    this.span = this.#shown(round) ?? this.span;
    const left = mode === EACH ? [] : this.#lay(this.#wanted());
    if (mode === EACH) await this.#small(round);
    else await this.compared.load(signal);
    const none = left.length || mode === EACH ? "" : "Nothing to draw: there are no measured columns.";
    const work = async () => {
      while (left.length && !signal.aborted) {
        const [chart, lines] = left.shift();
        try {
          await this.#fill(chart, this.#chosenOf(lines), round);
        } catch (error) {
          if (signal.aborted) return;
          if (!(error instanceof Failure)) throw error;
          round.failed = Math.max(round.failed, error.after || AFTER_FAILURE_S);
          chart.note(error.message);
          if (error.status === 429) left.length = 0; // later
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (signal.aborted) return;
    this.span = this.#shown(round);
    for (const chart of this.made.values()) chart.within?.(this.span, this.#origin());
    const ended = end !== null || this.zoom !== null;
    this.due = this.outdated ? 0 : now() + (round.failed || (ended ? MOST_S : Math.min(MOST_S, Math.max(LEAST_S, (seconds ?? 86400) / POINTS))));
    if (unknown && this.latest !== null) this.outdated = true;
    const lasted = end === null || this.earliest === null ? "" : `Its values are from ${when(this.earliest)} to ${when(this.latest)}.`;
    say(this.lacking, missing(this.without));
    say(this.from, [none, origin(round.sources, round.warnings), lasted].filter(Boolean).join(" "));
  }

  /** Return the range of all time axes: of a job, that of its values; of a node, the chosen one. Null without values. */
  #shown({ limits, ends }) {
    if (this.zoom) return this.zoom;
    const [since, until] = ends;
    if (!this.ofJob && limits.since !== undefined) return [limits.since, limits.until];
    if (since > until) return null;
    return [Math.max(since, limits.since ?? since), until];
  }

  /** Return the lines of a request of the job: constant. */
  #requested(one, round) {
    const each = this.requested[one.requested] / (round.mode === SPREAD ? this.nodes.length : 1);
    const ends = this.node ? [] : this.#shown(round) ?? [];
    return [{ name: one.name, role: one.role, unit: one.unit, times: ends, values: ends.map(() => each) }];
  }

  async #fill(chart, lines, round) {
    const banded = lines.filter((line) => !line.role).length <= 2; // more bands would hide each other
    const made = [];
    for (const one of lines) made.push(...(one.requested ? this.#requested(one, round) : await round.linesOf({ ...one, band: banded })));
    this.#extend(round);
    for (const line of await this.compared.lines(lines, round, this.start ?? this.earliest)) {
      made.push(line);
      round.widen(line.times);
    }
    if (round.signal.aborted || !this.made.size) return;
    chart.within(this.#shown(round), this.#origin());
    const any = chart.show(worthy(made));
    chart.element.hidden = !any;
    if (!any) this.without.set(chart.title, "no values in this time");
  }

  /** Note the times of all values of this job or node. */
  #extend({ ends: [first, last] }) {
    if (first > last) return;
    this.earliest = Math.min(this.earliest ?? Infinity, first);
    this.latest = Math.max(this.latest ?? 0, last);
  }

  /** Show a small chart for each node. */
  async #small(round) {
    this.without = new Map();
    const [name, line] = this.#single();
    const title = `${name}, for each node`;
    for (const [former, chart] of this.made) {
      if (former === title) continue;
      chart.close();
      chart.element.remove();
      this.made.delete(former);
    }
    if (!this.made.has(title)) {
      this.made.set(title, new Multiples(title));
      this.grid.append(this.made.get(title).element);
    }
    const chart = this.made.get(title);
    const points = Math.max(30, Math.min(POINTS, Math.floor(MOST_VALUES / this.nodes.length)));
    try {
      for (const source of line.sources.filter(([table, column]) => this.#has(table, column))) {
        const answer = await round.get(source, line.rate, { points });
        this.#extend(round);
        if (round.signal.aborted) return;
        if (chart.show(answer, line.mean, this.order, this.zoom)) break;
      }
    } catch (error) {
      if (round.signal.aborted) return;
      if (!(error instanceof Failure)) throw error;
      round.failed = error.after || AFTER_FAILURE_S;
      chart.note(error.message);
    }
  }
}

const key = (title, line) => `${title}: ${line.name}`;

/** Return lines without parts that are always 0 beside others, and without limits of nothing. A part keeps its colour. */
function worthy(all) {
  let place = 0;
  const lines = all.map((line) => (line.role === "part" && !line.idle ? { ...line, place: place++ } : line));
  const isPart = (line) => line.role === "part" || line.part;
  const isSome = (line) => line.values.some((value) => value > 0);
  const some = lines.some((line) => isPart(line) && isSome(line));
  const whole = lines.some((line) => !line.role || isPart(line));
  return lines.filter((line) => (isPart(line) ? !some || isSome(line) : line.role !== "limit" || whole));
}
