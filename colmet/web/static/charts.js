// A chart: a picture with a cursor, a legend with numbers, all values as a table and as files.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { el, keep, mark, say } from "./dom.js";
import { fileName, picture, save } from "./download.js";
import { ink, label, layers, looks, top } from "./layers.js";
import { csv, summary } from "./series.js";
import { NONE, clock, day, lasting, moment, quantity, sentence, when, zone } from "./units.js";

// here, as in the page it would delay the first paint
document.head.prepend(el("link", { rel: "stylesheet", href: new URL("vendor/uplot/uPlot.min.css", import.meta.url) }));

const HEIGHT = 206;
const MOST_ROWS = 500; // of the table of values
const POWERS = Array.from({ length: 64 }, (_, n) => 2 ** n);
const SVG = "http://www.w3.org/2000/svg";
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 7, 14, 28, 91, 182, 364].map((days) => 86400 * days)];
const LEAST_S = 2; // of a zoomed time range

/** Make an SVG element. */
function drawing(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** The stroke of a line, for a legend. */
function stroke({ shape, colour, dash }) {
  const svg = drawing("svg", { class: `stroke ${colour}`, viewBox: "0 0 27 12", "aria-hidden": "true" });
  if (shape !== "line") svg.append(drawing("rect", { class: shape, x: 0, y: 0, width: 27, height: 12 }));
  svg.append(drawing("line", { x1: 0, x2: 27, y1: shape === "area" ? 1 : 6, y2: shape === "area" ? 1 : 6, "stroke-dasharray": dash.join(" ") }));
  return svg;
}

/** Return multiples of a step: since midnight in the shown time zone, or since a start. */
function splits(min, max, step, start) {
  const here = uPlot.tzDate(new Date(1000 * min), zone());
  const origin = start ?? min - 3600 * here.getHours() - 60 * here.getMinutes() - here.getSeconds() - (min % 1);
  const found = [];
  for (let n = Math.ceil((min - origin) / step); origin + n * step <= max; n++) found.push(origin + n * step);
  return found;
}

/** Marks of a time axis: the time of the day, with the date at the first one and where it changes. */
function marks(splits, step) {
  let last = "";
  return splits.map((split) => {
    const time = new Date(1000 * split);
    const date = day(time).slice(last === "" ? 0 : 5);
    const at = clock(time).slice(0, step < 60 ? 8 : 5);
    const text = step >= 86400 ? date : date.endsWith(last || "-") ? at : `${at}\n${date}`;
    last = day(time).slice(5);
    return text;
  });
}

/** A time as the time since a start. */
const since = (time, start) => (time < start ? `−${lasting(start - time)}` : lasting(time - start));

export class Chart {
  /**
   * @param {string} title
   * @param {Object} [more] `unit`: a word for the axis; `help`: a sentence on the values; `of`: the job or node, for names of files; `zoom(since, until)` is called
   *   for a chosen part of the time, `whole()` for all of it
   */
  constructor(title, more = {}) {
    this.title = title;
    this.more = more;
    this.plot = null;
    this.lines = [];
    this.range = null; // of the time axis; null for that of the values
    this.start = null; // time that the axis counts from; null for times of the clock
    this.anchor = null; // time where a selection by keys starts
    this.box = el("div", {
      class: "plot", role: "slider", tabindex: "0", "aria-label": `${title}: no values yet`, "aria-valuenow": "0", "aria-describedby": "chart-keys",
      "aria-roledescription": "chart", onkeydown: (event) => this.#pressed(event),
    }, el("p", { text: "Asking…" }));
    this.at = el("p");
    this.items = el("ul");
    this.legend = el("div", { class: "lines", hidden: true }, this.at, this.items);
    this.numbers = el("tbody");
    const heads = ["Line", "Last", "Min", "Max", "Mean"].map((text, n) =>
      el("th", { scope: "col", class: n ? "" : "left" }, n ? text : el("span", { class: "unseen", text })));
    this.summary = el("table", { class: "summary" }, el("caption", { class: "unseen", text: `${title} in numbers` }),
      el("thead", {}, el("tr", {}, ...heads)), this.numbers);
    this.head = el("tr");
    this.rows = el("tbody");
    this.values = el("details", { hidden: true, ontoggle: () => this.#list() }, el("summary", { text: "Numbers" }), this.summary,
      el("div", { class: "values", tabindex: "0", role: "region", "aria-label": `${title}: all values` },
        el("table", {}, el("caption", { class: "unseen", text: `${title} over time` }), el("thead", {}, this.head), this.rows)));
    this.files = el("span", { class: "files", hidden: true },
      el("button", { type: "button", title: `${title}: download the values shown as CSV`, onclick: () => this.#csv() }, "CSV"),
      el("button", { type: "button", title: `${title}: download the chart as PNG`, onclick: () => this.#png() }, "PNG"));
    this.said = el("p", { class: "soft", hidden: true });
    this.element = el("figure", { class: "chart", "aria-label": title },
      el("div", { class: "head" }, el("h3", { text: title }), this.files), ...(more.help ? [el("p", { class: "soft", text: sentence(more.help) })] : []), this.said, this.box, this.legend, this.values);
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
    if (this.plot) {
      say(this.said, text);
      this.said.hidden = !text;
    } else this.box.replaceChildren(el("p", { text }));
  }

  /**
   * Show lines; return whether there is any value.
   * @param {Array} lines [{name, times, values, unit, role, min, max}]: `role` as in layers.js, `min` and `max` for a band
   */
  show(lines) {
    const some = lines.filter((line) => line.values.some((value) => value != null));
    const same = this.plot && some.length === this.lines.length
      && some.every((line, n) => ["name", "unit", "role"].every((key) => line[key] === this.lines[n][key]) && !line.max === !this.lines[n].max);
    this.lines = some;
    this.legend.hidden = this.values.hidden = this.files.hidden = !some.length;
    this.said.hidden = true;
    if (!some.length) {
      this.plot?.destroy();
      this.plot = null;
      this.box.replaceChildren();
      return false;
    }
    const { text, symbol } = quantity(some[0].unit);
    this.text = text;
    this.unit = this.more.unit ?? (symbol === "cores" ? symbol : "");
    this.layers = layers(some);
    if (same) this.plot.setData(this.layers.data, false);
    else this.#draw();
    this.within(this.range, this.start);
    this.#sum();
    this.#list();
    return true;
  }

  /**
   * Set the range of the time axis.
   * @param {?number[]} range [since, until]; null for that of the values
   * @param {?number} start the time that the axis counts from; null for times of the clock
   */
  within(range, start = null) {
    [this.range, this.start] = [range, start];
    const times = this.layers?.data[0];
    if (!this.plot || !times?.length) return;
    const [min, max] = range ?? [times[0], times.at(-1)];
    this.plot.setScale("x", max > min ? { min, max } : { min: min - 1, max: max + 1 });
    for (const [key, value] of Object.entries({ valuemin: min, valuemax: max })) mark(this.box, `aria-${key}`, Math.round(value));
  }

  #draw() {
    if (!this.lines.length) return;
    this.plot?.destroy();
    this.box.replaceChildren();
    this.layers = layers(this.lines); // in the present colours
    const { limits } = this.layers; // a plot draws once more after its end
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1, size: 5 }, font };
    const { base, least } = quantity(this.lines[0].unit);
    const alone = (type) => type === "mousemove" || type === "mouseleave"; // only the cursor is shared, no selection
    const options = {
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 20, 0, 0], // the last time stands half beyond the plot
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: 6 }, y: false, points: { show: false },
        sync: { key: "colmet", filters: { pub: alone, sub: alone } },
      },
      scales: { y: { range: (plot, min, max) => [0, max > 0 ? Math.max(least, top(plot, limits, max) * 1.05) : 1] } },
      axes: [
        {
          ...axis, space: 75, size: 44, incrs: STEPS, splits: (plot, n, min, max, step) => splits(min, max, step, this.start),
          values: (plot, found, n, space, step) => (this.start === null ? marks(found, step) : found.map((split) => since(split, this.start))),
        },
        {
          ...axis, space: 36, values: (plot, splits) => splits.map((value) => this.text(value)),
          size: (plot, texts) => (texts ? 7 * Math.max(...texts.map((text) => text.length)) + 14 : 50),
          ...(base === 1024 ? { incrs: POWERS } : {}),
          ...(this.unit ? { label: this.unit, labelSize: 18, labelFont: font } : {}),
        },
      ],
      series: this.layers.series,
      bands: this.layers.bands,
      hooks: {
        setCursor: [(plot) => this.#point(plot.cursor.idx)],
        setSelect: [(plot) => this.#selected(plot)],
      },
    };
    this.plot = new uPlot(options, this.layers.data, this.box);
    this.within(this.range, this.start);
  }

  // -- cursor and zoom --

  #selected(plot) {
    const { left, width } = plot.select;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (width < 4) return;
    this.#zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  #zoom(since, until) {
    this.anchor = null;
    const middle = (since + until) / 2;
    const half = Math.max(LEAST_S / 2, (until - since) / 2);
    this.more.zoom?.(Math.floor(middle - half), Math.ceil(middle + half));
  }

  #pressed(event) {
    if (!this.plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const { data, scales, cursor } = this.plot;
    const [times] = data;
    if (event.key in KEYS) {
      const seen = [...times.keys()].filter((n) => times[n] >= scales.x.min && times[n] <= scales.x.max);
      if (!seen.length) return;
      const from = cursor.idx ?? (KEYS[event.key] < 0 ? seen.at(-1) + 1 : seen[0] - 1);
      const to = Math.min(seen.at(-1), Math.max(seen[0], from + KEYS[event.key]));
      if (event.shiftKey) this.anchor ??= times[cursor.idx ?? to];
      else this.anchor = null;
      this.plot.setCursor({ left: this.plot.valToPos(times[to], "x"), top: 10 }, true, true);
      const ends = this.anchor === null ? [0, 0] : [this.anchor, times[to]].map((time) => this.plot.valToPos(time, "x"));
      this.plot.setSelect({ left: Math.min(...ends), top: 0, width: Math.abs(ends[1] - ends[0]), height: this.plot.over.clientHeight }, false);
    } else if (event.key === "Enter" && this.anchor !== null) this.#selected(this.plot);
    else if (event.key === "+" || event.key === "-") {
      const middle = times[cursor.idx] ?? (scales.x.min + scales.x.max) / 2;
      const half = (scales.x.max - scales.x.min) * (event.key === "+" ? 0.25 : 1);
      this.#zoom(middle - half, middle + half);
    } else if (event.key === "0" || event.key === "Escape") this.more.whole?.();
    else return;
    event.preventDefault();
  }

  /** Show the values at the cursor in the legend; without one, the means. */
  #point(n) {
    const time = n == null ? undefined : this.layers.data[0][n];
    const here = time !== undefined;
    const at = !here ? "" : this.start === null ? when(time) : `${since(time, this.start)} after the start`;
    say(this.at, here ? at : "On average:");
    const texts = this.lines.map((line, k) => {
      if (!here) return this.text(this.sums?.[k].mean ?? null);
      const own = this.layers.own[k];
      let from = n;
      while (from > 0 && own[from] === undefined) from -= 1; // another line's time: the value before
      const value = own[from] ?? null;
      if (!line.max || value === null) return this.text(value);
      const k2 = line.times.indexOf(this.layers.data[0][from]);
      return `${this.text(value)} (${this.text(line.min[k2])} to ${this.text(line.max[k2])})`;
    });
    texts.forEach((text, k) => { if (this.items.children[k]) say(this.items.children[k].lastElementChild, text); });
    if (here) {
      mark(this.box, "aria-valuenow", Math.round(time));
      mark(this.box, "aria-valuetext", `${at}: ${this.lines.map((line, k) => `${line.name} ${texts[k]}`).join(", ")}`);
    }
  }

  // -- numbers --

  #sum() {
    const look = looks(this.lines);
    this.sums = this.lines.map((line) => {
      const found = summary(line.values);
      return line.max ? { ...found, min: summary(line.min).min, max: summary(line.max).max } : found;
    });
    const entries = this.lines.map((line, n) => ({ name: label(line), look: look[n], sum: this.sums[n], key: `${line.name}|${JSON.stringify(look[n])}` }));
    keep(this.items, entries, ({ key }) => key, ({ name, look: one }) => el("li", {}, stroke(one), el("span", { text: name }), el("b")), () => {});
    this.#point(this.plot?.cursor.idx ?? null);
    keep(this.numbers, entries, ({ key }) => key, ({ name, look: one }) => {
      return el("tr", {}, el("th", { scope: "row", class: "left" }, stroke(one), name), el("td"), el("td"), el("td"), el("td"));
    }, (node, { sum }) => {
      [sum.last, sum.min, sum.max, sum.mean].forEach((value, n) => say(node.children[n + 1], this.text(value)));
    });
    const words = entries.map(({ name, sum }) => `${name}: last ${this.text(sum.last)}, from ${this.text(sum.min)} to ${this.text(sum.max)}, ${this.text(sum.mean)} on average`);
    mark(this.box, "aria-label", `${this.title}. ${words.join(". ")}.`);
    mark(this.box, "aria-valuetext", this.box.getAttribute("aria-valuetext") ?? "no time is chosen");
  }

  #list() {
    if (!this.values.open || !this.lines.length) return;
    const names = ["Time", ...this.lines.map((line) => line.name)];
    if ([...this.head.children].map((node) => node.textContent).join("\n") !== names.join("\n")) {
      this.head.replaceChildren(...names.map((text, n) => el("th", { scope: "col", class: n ? "" : "left", text })));
      this.rows.replaceChildren();
    }
    const [times] = this.layers.data;
    const first = Math.max(0, times.length - MOST_ROWS);
    const rows = times.slice(first).map((time, n) => ({ time, texts: this.lines.map((line, k) => {
      const value = this.layers.own[k][first + n];
      return value === undefined ? "" : value === null ? NONE : this.text(value);
    }) }));
    keep(this.rows, rows.reverse(), ({ time }) => time, ({ time }) => {
      return el("tr", {}, el("th", { scope: "row", class: "left", title: moment(time), text: when(time) }), ...this.lines.map(() => el("td")));
    }, (node, { texts }) => texts.forEach((text, n) => say(node.children[n + 1], text)));
  }

  // -- files --

  #name(ending) {
    return fileName([...(this.more.of ? [this.more.of] : []), this.title], ending);
  }

  #csv() {
    const [since, until] = this.range ?? [-Infinity, Infinity];
    const shown = this.lines.map((line) => {
      const within = (values) => values?.filter((_, n) => line.times[n] >= since && line.times[n] <= until);
      return { ...line, times: within(line.times), values: within(line.values), min: within(line.min), max: within(line.max) };
    });
    save(new Blob([csv(shown)], { type: "text/csv;charset=utf-8" }), this.#name("csv"));
  }

  async #png() {
    const look = looks(this.lines);
    const legend = this.lines.map((line, n) => ({ text: label(line), ...look[n] }));
    const title = [this.more.of, this.title].filter(Boolean).join(": ");
    save(await picture(this.plot.ctx.canvas, title, legend), this.#name("png"));
  }
}
