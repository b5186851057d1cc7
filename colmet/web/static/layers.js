// The lines of a chart as layers that uPlot draws: stacked areas, bands, lines, limits.

import { carried, joined, stacked } from "./series.js";

const DASHES = [[], [8, 4], [2, 3], [16, 3], [5, 2], [1, 5]]; // lines differ not by colour alone
const LIMIT_DASHES = [[12, 4, 2, 4], [12, 4, 2, 4, 2, 4]]; // dots after a dash: of limits alone
const OTHER_DASH = [3, 4];
const FAR = 10; // times the largest value: a limit beyond it is above the chart
const AREA = 0.5; // strength of the colour of an area
const BAND = 0.22;
export const MOST_LINES = DASHES.length;

/** Return the name of a line for a legend. */
export const label = ({ name, role }) => (role === "limit" && !/limit/.test(name) ? `${name} (limit)` : name);

/** Return the value of a CSS variable of the page. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

/** Return a colour in front of the background of a card, as an opaque one: areas lie on top of each other. */
function mixed(colour, strength) {
  const [front, back] = [parts(colour), parts(ink("--card"))];
  return `rgb(${front.map((one, n) => Math.round(one * strength + back[n] * (1 - strength))).join(" ")})`;
}

/**
 * Return the looks of lines: {shape, colour, dash}; a shape is area, line or band.
 * @param {Array} lines with a `role`: part (of a stack; `idle` if it is no use, `place` for its colour), limit, other (of another job, looks like the line `like`), or none
 */
export function looks(lines) {
  const stack = lines.some((line) => line.role === "part");
  let next = 0;
  let limits = 0;
  const found = lines.map((line) => {
    if (line.idle) return { shape: "area", colour: "idle", dash: [] };
    if (line.role === "part") return { shape: "area", colour: `c${(line.place ?? next++) % MOST_LINES}`, dash: [] };
    if (line.role === "limit") return { shape: "line", colour: "limit", dash: LIMIT_DASHES[limits++ % 2] };
    if (line.role === "other") return null;
    if (stack) return { shape: "line", colour: "ink", dash: [] };
    const n = next++ % MOST_LINES;
    return { shape: line.max ? "band" : "line", colour: `c${n}`, dash: DASHES[n] };
  });
  const like = (line) => found[lines.findIndex((one) => one.name === line.like)]?.colour ?? "ink";
  return found.map((look, n) => look ?? { shape: "line", colour: like(lines[n]), dash: OTHER_DASH });
}

/**
 * Return what uPlot draws.
 * @returns {Object} `data` with the times, `series` and `bands` of uPlot; `own`: the values of each line at these times
 */
export function layers(lines) {
  const look = looks(lines);
  const banded = lines.flatMap((line) => (line.max ? [{ times: line.times, values: line.max }, { times: line.times, values: line.min }] : []));
  const [times, ...columns] = joined([...lines, ...banded]);
  const own = columns.slice(0, lines.length);
  const edges = columns.slice(lines.length);
  const data = [times];
  const series = [{}];
  const bands = [];
  const add = (values, more) => {
    data.push(values);
    series.push(more);
    return data.length - 1;
  };
  const none = { width: 0, stroke: "transparent", points: { show: false } };
  lines.forEach((line, n) => {
    if (!line.max) return;
    const upper = add(edges.shift(), none);
    bands.push({ series: [upper, add(edges.shift(), none)], fill: `rgb(${parts(ink(`--${look[n].colour}`)).join(" ")} / ${BAND})` });
  });
  const stack = [...lines.keys()].filter((n) => lines[n].role === "part");
  const sums = stacked(stack.map((n) => carried(own[n])));
  [...stack.keys()].reverse().forEach((k) => {
    const colour = ink(`--${look[stack[k]].colour}`);
    add(sums[k], { stroke: colour, width: 1, fill: mixed(colour, AREA), points: { size: 4, fill: colour } });
  });
  const drawn = (n, more = {}) => {
    const colour = ink(`--${look[n].colour}`);
    add(own[n], { stroke: colour, width: 2, dash: look[n].dash, points: { size: 4, fill: colour }, ...more });
  };
  lines.forEach((line, n) => { if (!line.role) drawn(n); });
  lines.forEach((line, n) => { if (line.role === "other") drawn(n, { points: { show: false } }); });
  const limits = [];
  lines.forEach((line, n) => {
    if (line.role !== "limit") return;
    limits.push(data.length);
    drawn(n, { auto: false, width: 1.5, points: { show: false } });
  });
  return { data, series, bands, own, limits };
}

/** Return the top of the y axis for the largest value shown: with the limits, except for those far above. */
export function top(plot, limits, max) {
  const { min: from, max: to } = plot.scales.x;
  let found = max;
  for (const n of limits) {
    const near = plot.data[n].filter((value, k) => value != null && !(plot.data[0][k] < from || plot.data[0][k] > to));
    const most = Math.max(0, ...near);
    if (!(most > FAR * max)) found = Math.max(found, most);
  }
  return found;
}
