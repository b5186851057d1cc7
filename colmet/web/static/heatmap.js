// A map of nodes and times: a row for each node, a column for each interval, coloured by a measure.

import { ask } from "./api.js";
import { nodeAddress } from "./columns.js";
import { el, mark, say } from "./dom.js";
import { classOf, stepsOf } from "./node_measures.js";
import { Table, column, linked, natural } from "./table.js";
import { NONE, clock, count, day, when } from "./units.js";

const AT_ONCE = 1000; // nodes of one answer
const MOST = 5000;
const GUTTER = 84; // for names, px
const TOP = 7; // half of a name, px
const AXIS = 22; // for times, px
const LABEL = 58; // width of a time, px
const TEXT = 14; // height of a name, px
const HEIGHTS = [[40, 16], [120, 9], [300, 5], [800, 3], [2000, 2]]; // number of rows up to which, and their height, px
const POINT = "Point at the map for a value; a click opens the node.";
const KEYS = "Arrow keys move from value to value, Home and End to the first and the last of a node, Enter opens the node.";
const SPANS = { hour: "the last hour, by minute", day: "the last day, by quarter of an hour" };

/** Request the values of all nodes. */
export async function history(measure, span, signal) {
  const first = await ask("api/v1/node-history", { measure, span, limit: AT_ONCE }, signal);
  const items = [...first.items];
  while (items.length < Math.min(first.total, MOST)) {
    const next = await ask("api/v1/node-history", { measure, span, limit: AT_ONCE, offset: items.length }, signal);
    if (!next.items.length) break;
    items.push(...next.items);
  }
  return { ...first, items };
}

const known = (values) => values.filter((value) => value != null);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

export class HeatMap {
  constructor() {
    this.rows = [];
    this.cursor = { row: 0, column: Infinity }; // of the keyboard
    this.canvas = el("canvas", {
      class: "map", role: "slider", tabindex: "0", "aria-label": "No values yet", "aria-valuenow": "0", "aria-roledescription": "map",
      "aria-describedby": "map-keys", onkeydown: (event) => this.#pressed(event), onfocus: () => this.#move(0, 0), onblur: () => { this.frame.hidden = true; },
    });
    this.frame = el("div", { class: "frame", hidden: true });
    this.about = el("p", { class: "about", text: POINT });
    this.canvas.addEventListener("mousemove", (event) => this.#describe(event));
    this.canvas.addEventListener("mouseleave", () => say(this.about, this.hint ?? POINT));
    this.canvas.addEventListener("click", (event) => {
      const { row } = this.#at(event);
      if (row) location.hash = nodeAddress(row.node).slice(1);
    });
    const text = (value) => (value == null ? NONE : this.measure.limit(value));
    this.table = new Table("Nodes over time", [
      linked("node", "Node", (row) => row.node, (row) => nodeAddress(row.node)),
      column("last", "Last", (row) => text(row.last)),
      column("least", "Min", (row) => text(row.least), { rank: 1 }),
      column("mean", "Mean", (row) => text(row.mean)),
      column("most", "Max", (row) => text(row.most)),
      column("at", "Time of the max", (row) => (row.at == null ? NONE : when(row.at)), { rank: 1 }),
    ], (row) => row.node, { sort: "mean", reverse: false }, () => this.#list());
    this.list = el("details", { ontoggle: () => this.#list() }, el("summary", { text: "Nodes over time as a table" }), this.table.element);
    this.element = el("div", {}, el("p", { class: "unseen", id: "map-keys", text: KEYS }), el("div", { class: "mapped" }, this.canvas, this.frame), this.about, this.list);
    this.redraw = () => this.#draw();
    addEventListener("colours", this.redraw);
    this.sized = new ResizeObserver(() => {
      if (this.element.clientWidth !== this.width) this.#draw();
    });
    this.sized.observe(this.element);
  }

  close() {
    removeEventListener("colours", this.redraw);
    this.sized.disconnect();
  }

  /** Return the limits between the colours of an answer. */
  steps(answer, measure) {
    return stepsOf(measure, answer.items.flatMap((row) => row.values));
  }

  /**
   * Show the nodes of an answer.
   * @param {Object} answer of `history`
   * @param {Object} measure
   * @param {string} text part of the names
   * @param {boolean} byValue whether the node with the largest mean comes first
   * @param {Set} silent names of nodes
   */
  show(answer, measure, text, byValue, silent) {
    this.answer = answer;
    this.measure = measure;
    this.limits = this.steps(answer, measure);
    this.silent = silent;
    this.rows = answer.items.filter((row) => row.node.includes(text)).map((row) => {
      const some = known(row.values);
      const most = some.length ? some.reduce((one, other) => Math.max(one, other)) : null;
      return {
        ...row, mean: mean(some), most, least: some.length ? some.reduce((one, other) => Math.min(one, other)) : null,
        last: row.values.at(-1) ?? null, at: most === null ? null : answer.starts[row.values.indexOf(most)],
      };
    });
    this.rows.sort((a, b) => (byValue ? (b.mean ?? -1) - (a.mean ?? -1) : 0) || natural(a.node, b.node));
    this.#draw();
    this.#list();
    this.#name();
  }

  #name() {
    const { starts, since, span } = this.answer;
    const highest = this.rows.reduce((best, row) => ((row.most ?? -1) > (best?.most ?? -1) ? row : best), null);
    const all = mean(known(this.rows.map((row) => row.mean)));
    const words = all == null ? "nothing was measured" : `mean ${this.measure.limit(all)}, highest ${this.measure.limit(highest.most)} of ${highest.node} at ${when(highest.at)}`;
    mark(this.canvas, "aria-label", `${this.measure.name} of ${count(this.rows.length)} nodes over ${SPANS[span]}: ${words}`);
    const early = since != null && starts.length && starts[0] < since - 60 ? ` The interface knows nothing from before ${when(since)}, its start.` : "";
    this.hint = since == null ? "No minute is complete yet: the first values come within a minute." : `${POINT}${early}`;
    if (document.activeElement === this.canvas) this.#move(0, 0);
    else if (!this.canvas.matches(":hover")) say(this.about, this.hint);
  }

  #draw() {
    if (!this.answer) return;
    const style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue(name).trim();
    const columns = this.answer.starts.length;
    const height = HEIGHTS.find(([most]) => this.rows.length <= most)?.[1] ?? 1;
    this.width = this.element.clientWidth || 300;
    this.row = height;
    this.column = Math.max(1, this.width - GUTTER) / Math.max(1, columns);
    const ratio = devicePixelRatio || 1;
    const tall = TOP + height * this.rows.length + AXIS;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(tall * ratio);
    this.canvas.style.height = `${tall}px`;
    const paper = this.canvas.getContext("2d");
    paper.scale(ratio, ratio);
    if (columns && this.rows.length) {
      paper.imageSmoothingEnabled = false;
      paper.drawImage(this.#image([0, 1, 2, 3, 4].map((n) => ink(`--u${n}`)), ink("--card")), GUTTER, TOP, this.width - GUTTER, height * this.rows.length);
    }
    paper.font = "12px system-ui, sans-serif";
    paper.textBaseline = "middle";
    const every = Math.ceil(TEXT / height);
    this.rows.forEach((row, n) => {
      const silent = this.silent.has(row.node);
      if (n % every && !silent) return;
      paper.fillStyle = ink(silent ? "--bad" : "--soft");
      const y = TOP + (n + 0.5) * height;
      if (silent) paper.fillText("×", GUTTER - 12, y);
      if (n % every === 0) paper.fillText(row.node, 0, y, GUTTER - 16);
    });
    paper.fillStyle = ink("--soft");
    paper.textBaseline = "bottom";
    paper.textAlign = "center";
    for (const [n, label] of this.#marks()) paper.fillText(label, GUTTER + n * this.column, tall);
  }

  /** Return the marks of the time axis: [interval, text], at round times. */
  #marks() {
    const { starts, step } = this.answer;
    const minutes = [10, 20, 30, 60, 180, 360, 720].find((one) => (one * 60 / step) * this.column >= LABEL) ?? 1440;
    return starts.flatMap((start, n) => {
      const [hour, minute] = clock(1000 * start).split(":").map(Number);
      const x = n * this.column;
      if ((60 * hour + minute) % minutes || x < 16 - GUTTER / 2 || x > this.width - GUTTER - 16) return [];
      return [[n, hour + minute ? clock(1000 * start).slice(0, 5) : day(1000 * start).slice(5)]];
    });
  }

  /** Return an image with a pixel for each value. */
  #image(colours, nothing) {
    const columns = this.answer.starts.length;
    const small = el("canvas", { width: columns, height: this.rows.length });
    const paper = small.getContext("2d");
    const image = paper.createImageData(columns, this.rows.length);
    const pixels = new Uint32Array(image.data.buffer);
    const [unknown, ...known] = [nothing, ...colours].map(pixel);
    this.rows.forEach((row, n) => row.values.forEach((value, m) => {
      pixels[n * columns + m] = value == null ? unknown : known[classOf(value, this.limits)];
    }));
    paper.putImageData(image, 0, 0);
    return small;
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - GUTTER) / this.column);
    const row = this.rows[Math.floor((event.clientY - box.top - TOP) / this.row)];
    return { row, column };
  }

  #describe(event) {
    const { row, column } = this.#at(event);
    if (row) say(this.about, this.#words(row, column));
  }

  /** Return the value of a node in an interval in words. */
  #words(row, column) {
    const at = this.answer.starts[column];
    const value = row.values[column];
    const silent = this.silent.has(row.node) ? ", silent now" : "";
    return at === undefined ? `${row.node}${silent}` : `${row.node}, ${when(at)}: ${this.measure.name} ${value == null ? "not measured" : this.measure.limit(value)}${silent}`;
  }

  /** Move the cursor of the keyboard, and describe the value there. */
  #move(down, right) {
    const columns = this.answer?.starts.length ?? 0;
    if (!columns || !this.rows.length) return;
    const within = (value, most) => Math.max(0, Math.min(most - 1, value));
    const row = within(this.cursor.row + down, this.rows.length);
    const column = within(Math.min(this.cursor.column, columns - 1) + right, columns);
    this.cursor = { row, column };
    const text = this.#words(this.rows[row], column);
    say(this.about, text);
    mark(this.canvas, "aria-valuenow", column);
    mark(this.canvas, "aria-valuemax", columns - 1);
    mark(this.canvas, "aria-valuetext", text);
    const [x, y] = [GUTTER + column * this.column, TOP + row * this.row];
    Object.assign(this.frame.style, { left: `${x - 2}px`, top: `${y - 2}px`, width: `${this.column + 4}px`, height: `${this.row + 4}px` });
    this.frame.hidden = false;
    const box = this.canvas.getBoundingClientRect();
    if (box.top + y < 0 || box.top + y > innerHeight - 20) this.frame.scrollIntoView({ block: "center" });
  }

  #pressed(event) {
    const to = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] }[event.key];
    if (event.key === "Enter" && this.rows[this.cursor.row]) location.hash = nodeAddress(this.rows[this.cursor.row].node).slice(1);
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.#move(...to);
  }

  #list() {
    if (this.list.open && this.answer) this.table.show(this.table.arranged(this.rows));
  }
}

/** Return a colour "#rrggbb" as a pixel. */
function pixel(colour) {
  const [red, green, blue] = [1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
