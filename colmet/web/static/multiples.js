// Small multiples: one small chart for each node, all of the same scale.

import { el, keep, mark, say } from "./dom.js";
import { nodeAddress } from "./columns.js";
import { single, summary } from "./series.js";
import { quantity } from "./units.js";

const MOST = 60;
const WIDTH = 160;
const HEIGHT = 44;
const SVG = "http://www.w3.org/2000/svg";
export const ORDERS = [["name", "by name"], ["low", "lowest mean first"], ["high", "highest mean first"]];

const byName = new Intl.Collator("en", { numeric: true }).compare;

/** Return the lines of an answer, one for each node: with several devices, their sum. */
function perNode(answer, mean) {
  const nodes = new Map();
  for (const part of answer.series) nodes.set(part.node, [...(nodes.get(part.node) ?? []), single(answer, part)]);
  return [...nodes].map(([node, parts]) => {
    const at = new Map();
    for (const { times, values } of parts) times.forEach((time, n) => at.set(time, [...(at.get(time) ?? []), values[n]]));
    const times = [...at.keys()].sort((a, b) => a - b);
    const values = times.map((time) => {
      const all = at.get(time);
      const sum = all.includes(null) ? null : all.reduce((one, other) => one + other, 0);
      return sum === null || !mean ? sum : sum / all.length;
    });
    return { node, times, values, ...summary(values) };
  });
}

/** Return the outline of a line in the picture: a part for each piece without a gap. */
function outline({ times, values }, [since, until], most) {
  const x = (time) => ((time - since) / (until - since || 1)) * WIDTH;
  const y = (value) => HEIGHT - (value / (most || 1)) * (HEIGHT - 2);
  let path = "";
  let first = null;
  times.forEach((time, n) => {
    if (values[n] == null) {
      if (first !== null) path += `V${HEIGHT}H${first}Z`;
      first = null;
    } else if (first === null) {
      first = x(time).toFixed(1);
      path += `M${first} ${HEIGHT}L${first} ${y(values[n]).toFixed(1)}`;
    } else path += `L${x(time).toFixed(1)} ${y(values[n]).toFixed(1)}`;
  });
  return first === null ? path : `${path}V${HEIGHT}H${first}Z`;
}

export class Multiples {
  constructor(title) {
    this.list = el("ul", { class: "multiples" });
    this.more = el("p", { class: "soft" });
    this.element = el("figure", { class: "chart wide-chart", "aria-label": title },
      el("h3", { text: title }), this.more, this.list);
  }

  close() {}

  note(text) {
    say(this.more, text);
  }

  /**
   * Show the series of an answer.
   * @param {string} order one of `ORDERS`
   * @param {?number[]} range [since, until]
   */
  show(answer, mean, order, range) {
    const lines = perNode(answer, mean).filter((one) => one.max !== null);
    const { text } = quantity(answer.unit);
    lines.sort((a, b) => byName(a.node, b.node));
    if (order !== "name") lines.sort((a, b) => (order === "low" ? a.mean - b.mean : b.mean - a.mean));
    const most = Math.max(0, ...lines.map((one) => one.max));
    const span = range ?? [Math.min(...lines.map((one) => one.times[0])), Math.max(...lines.map((one) => one.times.at(-1)))];
    const shown = lines.slice(0, MOST);
    const left = lines.length > shown.length ? ` ${shown.length} of ${lines.length} nodes are shown; the order chooses which.` : "";
    say(this.more, lines.length ? `All have the same scale: 0 to ${text(most)}.${left}` : "No values in this time.");
    keep(this.list, shown, ({ node }) => node, ({ node }) => {
      const svg = document.createElementNS(SVG, "svg");
      for (const [key, value] of Object.entries({ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" })) svg.setAttribute(key, value);
      svg.append(document.createElementNS(SVG, "path"));
      return el("li", {}, el("a", { href: nodeAddress(node), text: node }), el("span"), svg);
    }, (item, one) => {
      say(item.children[1], `mean ${text(one.mean)}, max ${text(one.max)}`);
      mark(item.querySelector("path"), "d", outline(one, span, most));
    });
    return lines.length > 0;
  }
}
