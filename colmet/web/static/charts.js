// A chart: a picture, its summary in numbers, and all its values as a table.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { el, keep, mark, say } from "./dom.js";
import { joined, summary } from "./series.js";
import { NONE, clock, day, iso, quantity, when, zone } from "./units.js";

// here, as in the page it would delay the first paint
document.head.prepend(el("link", { rel: "stylesheet", href: new URL("vendor/uplot/uPlot.min.css", import.meta.url) }));

const HEIGHT = 200;
const MOST_ROWS = 500; // of the table of values
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 2], [1, 5]]; // lines differ not by colour alone
const POWERS = Array.from({ length: 64 }, (_, n) => 2 ** n);
const SVG = "http://www.w3.org/2000/svg";
export const MOST_LINES = DASHES.length;

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The stroke of a line, for a legend. */
function stroke(n) {
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "line");
  for (const [key, value] of Object.entries({ x1: 0, x2: 27, y1: 6, y2: 6, class: `c${n}`, "stroke-dasharray": DASHES[n].join(" ") })) {
    line.setAttribute(key, value);
  }
  svg.setAttribute("class", "stroke");
  svg.setAttribute("viewBox", "0 0 27 12");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

/** Marks of a time axis: the time of the day, with the date if it changes. */
function marks(splits, step) {
  let last = "";
  return splits.map((split) => {
    const time = new Date(1000 * split);
    const date = day(time).slice(5);
    const at = clock(time).slice(0, step < 60 ? 8 : 5);
    const text = step >= 86400 ? date : last && date !== last ? `${at}\n${date}` : at;
    last = date;
    return text;
  });
}

export class Chart {
  constructor(title) {
    this.title = title;
    this.plot = null;
    this.lines = [];
    this.at = el("p", { class: "about" });
    this.box = el("div", { class: "plot", role: "img", "aria-label": `${title}: no values yet` }, el("p", { text: "Asking…" }));
    this.numbers = el("tbody");
    const heads = ["Line", "Last", "Min", "Max", "Mean"].map((text, n) =>
      el("th", { scope: "col", class: n ? "" : "left" }, n ? text : el("span", { class: "unseen", text })));
    this.summary = el("table", { class: "summary", hidden: true }, el("caption", { class: "unseen", text: `${title} in numbers` }),
      el("thead", {}, el("tr", {}, ...heads)), this.numbers);
    this.head = el("tr");
    this.rows = el("tbody");
    this.values = el("details", { hidden: true, ontoggle: () => this.#list() }, el("summary", { text: "Show as table" }),
      el("div", { class: "values", tabindex: "0", role: "region", "aria-label": `${title}: all values` },
        el("table", {}, el("caption", { class: "unseen", text: `${title} over time` }), el("thead", {}, this.head), this.rows)));
    this.element = el("figure", { class: "chart", "aria-label": title },
      el("h3", { text: title }), this.at, this.box, this.summary, this.values);
    this.sized = new ResizeObserver(() => {
      if (this.plot && this.box.clientWidth !== this.plot.width) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    });
    this.sized.observe(this.box);
    this.recolour = () => this.#draw();
    addEventListener("colours", this.recolour);
  }

  close() {
    removeEventListener("colours", this.recolour);
    this.sized.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  /** Show a text instead of lines, or above the lines already shown. */
  note(text) {
    if (this.plot) say(this.at, text);
    else this.box.replaceChildren(el("p", { text }));
  }

  /**
   * Show lines.
   * @param {Array} lines [{name, times, values, unit}], MOST_LINES at most
   */
  show(lines) {
    const some = lines.filter((line) => line.values.some((value) => value != null));
    const same = this.plot && some.length === this.lines.length && some.every((line, n) => line.name === this.lines[n].name && line.unit === this.lines[n].unit);
    this.lines = some;
    this.summary.hidden = this.values.hidden = !some.length;
    say(this.at, "");
    if (!some.length) {
      this.plot?.destroy();
      this.plot = null;
      this.note("Nothing was measured in this time.");
      mark(this.box, "aria-label", `${this.title}: nothing was measured in this time`);
      return;
    }
    this.text = quantity(some[0].unit).text;
    this.data = joined(some);
    if (same) this.plot.setData(this.data);
    else this.#draw();
    this.#sum();
    this.#list();
  }

  #draw() {
    if (!this.lines.length) return;
    this.plot?.destroy();
    this.box.replaceChildren();
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1, size: 5 }, font: "12px system-ui, sans-serif" };
    const { base, least } = quantity(this.lines[0].unit);
    const options = {
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), zone()),
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, sync: { key: "colmet" }, y: false },
      scales: { y: { range: (plot, min, max) => [0, max > 0 ? Math.max(least, max * 1.05) : 1] } },
      axes: [
        { ...axis, space: 70, size: 36, values: (plot, splits, n, space, step) => marks(splits, step) },
        {
          ...axis, space: 36, values: (plot, splits) => splits.map((value) => this.text(value)),
          size: (plot, texts) => (texts ? 7 * Math.max(...texts.map((text) => text.length)) + 14 : 50),
          ...(base === 1024 ? { incrs: POWERS } : {}),
        },
      ],
      series: [{}, ...this.lines.map((line, n) => ({
        label: line.name, stroke: ink(`--c${n}`), width: 2, dash: DASHES[n], points: { size: 4, fill: ink(`--c${n}`) },
      }))],
      hooks: { setCursor: [(plot) => this.#point(plot.cursor.idx)] },
    };
    this.plot = new uPlot(options, this.data, this.box);
  }

  #point(n) {
    if (n == null || this.data[0][n] === undefined) {
      say(this.at, "");
      return;
    }
    const values = this.lines.map((line, k) => {
      const own = this.data[k + 1];
      let at = n;
      while (at > 0 && own[at] === undefined) at -= 1; // another line's time: the value before
      return `${line.name} ${this.text(own[at] ?? null)}`;
    });
    say(this.at, `${when(this.data[0][n])}: ${values.join(", ")}`);
  }

  #sum() {
    const sums = this.lines.map((line, n) => ({ n, name: line.name, text: quantity(line.unit).text, ...summary(line.values) }));
    keep(this.numbers, sums, ({ name }) => name, ({ n, name }) => {
      return el("tr", {}, el("th", { scope: "row", class: "left" }, stroke(n), name), el("td"), el("td"), el("td"), el("td"));
    }, (node, one) => {
      [one.last, one.min, one.max, one.mean].forEach((value, n) => say(node.children[n + 1], one.text(value)));
    });
    const words = sums.map((one) => `${one.name}: last ${one.text(one.last)}, from ${one.text(one.min)} to ${one.text(one.max)}, ${one.text(one.mean)} on average`);
    mark(this.box, "aria-label", `${this.title}. ${words.join(". ")}.`);
  }

  #list() {
    if (!this.values.open || !this.lines.length) return;
    const names = ["Time", ...this.lines.map((line) => line.name)];
    if ([...this.head.children].map((node) => node.textContent).join("\n") !== names.join("\n")) {
      this.head.replaceChildren(...names.map((text, n) => el("th", { scope: "col", class: n ? "" : "left", text })));
      this.rows.replaceChildren();
    }
    const first = Math.max(0, this.data[0].length - MOST_ROWS);
    const rows = this.data[0].slice(first).map((time, n) => ({ time, texts: this.lines.map((line, k) => {
      const value = this.data[k + 1][first + n];
      return value === undefined ? "" : value === null ? NONE : this.text(value);
    }) }));
    keep(this.rows, rows.reverse(), ({ time }) => time, ({ time }) => {
      return el("tr", {}, el("th", { scope: "row", class: "left", title: iso(time), text: when(time) }), ...this.lines.map(() => el("td")));
    }, (node, { texts }) => texts.forEach((text, n) => say(node.children[n + 1], text)));
  }
}
