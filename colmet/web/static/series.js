// Values over time as lines: pure functions.

import { iso, quantity } from "./units.js";

const GAP = 3; // periods; the line is interrupted in longer gaps

/** Return the median of the steps; 0 without steps. */
function period(times) {
  const steps = [];
  for (let n = 1; n < times.length; n++) if (times[n] > times[n - 1]) steps.push(times[n] - times[n - 1]);
  steps.sort((a, b) => a - b);
  return steps[steps.length >> 1] ?? 0;
}

const scaled = (values, factor) => values.map((value) => (value == null ? null : value * factor));

/**
 * Return the answer to a request with `together` as one line, with the min and max over nodes and devices.
 * @param {Object} answer {unit, together: {times, sum, mean, min, max}}
 * @param {string} how `sum` or `mean` over nodes and devices
 * @returns {Object} {times, values, min, max, unit, several}: seconds since 1970; in the unit of `quantity`
 */
export function together({ unit, together: found }, how) {
  const { factor } = quantity(unit);
  const { times, series } = found ?? { times: [], series: 0 };
  const column = (name) => scaled(found?.[name] ?? [], factor);
  return { times, values: column(how), min: column("min"), max: column("max"), unit, several: series > 1 };
}

/** Return a series of an answer as a line, interrupted in gaps. */
export function single({ unit }, { times, values }) {
  const { factor } = quantity(unit);
  const least = GAP * period(times);
  const made = { times: [], values: [], unit };
  times.forEach((time, n) => {
    if (n && least && time - times[n - 1] > least) {
      made.times.push((time + times[n - 1]) / 2);
      made.values.push(null);
    }
    made.times.push(time);
    made.values.push(values[n] == null ? null : values[n] * factor);
  });
  return made;
}

const CURVE_UNITS = { cpu: "seconds/s", memory: "bytes", gpu: "GPUs" };

/** Return one of the archive's short curves of a job as a line, of all its hosts together. */
export function shortCurve({ step_s: step, ...curves }, key, start) {
  const values = curves[key];
  return { unit: CURVE_UNITS[key], values, times: values.map((_, n) => start + (n + 0.5) * step) };
}

/** Return the sum of lines, some subtracted; missing if one of them is. */
export function combined(lines, signs) {
  const maps = lines.map((line) => new Map(line.times.map((time, n) => [time, line.values[n]])));
  const [{ times, unit }] = lines;
  const values = times.map((time) => {
    const all = maps.map((map) => map.get(time) ?? null);
    return all.includes(null) ? null : all.reduce((sum, value, n) => sum + signs[n] * value, 0);
  });
  return { times, values, unit };
}

/**
 * Put lines on a common axis: undefined without a value of its own, null in an interruption.
 * @returns {Array} times, and the values of each line at these
 */
export function joined(lines) {
  const times = [...new Set(lines.flatMap((line) => line.times))].sort((a, b) => a - b);
  const at = new Map(times.map((time, n) => [time, n]));
  return [times, ...lines.map((line) => {
    const values = new Array(times.length).fill(undefined);
    line.times.forEach((time, n) => { values[at.get(time)] = line.values[n] ?? null; });
    // next to an interruption: part of it, so that no line crosses it
    for (const order of [[...values.keys()], [...values.keys()].reverse()]) {
      let last;
      for (const n of order) {
        if (values[n] === undefined && last === null) values[n] = null;
        last = values[n] === undefined ? last : values[n];
      }
    }
    return values;
  })];
}

/** Return the values of a line of `joined` at every time: between two own values, the former one. */
export function carried(values) {
  let end = values.length - 1;
  while (end >= 0 && values[end] === undefined) end -= 1;
  let last = null;
  return values.map((value, n) => {
    if (value !== undefined) last = value;
    return n > end ? null : last;
  });
}

/** Return the sums of the first one, two, ... of some columns; missing where one of them is. */
export function stacked(columns) {
  const sums = [];
  for (const column of columns) {
    const below = sums.at(-1);
    sums.push(column.map((value, n) => (value == null || below?.[n] === null ? null : value + (below?.[n] ?? 0))));
  }
  return sums;
}

/** Summarise a line in four numbers; null without values. */
export function summary(values) {
  const known = values.filter((value) => value != null);
  if (!known.length) return { last: null, min: null, max: null, mean: null };
  let [min, max, sum] = [Infinity, -Infinity, 0];
  for (const value of known) {
    min = Math.min(min, value);
    max = Math.max(max, value);
    sum += value;
  }
  return { last: values.at(-1) ?? known.at(-1), min, max, mean: sum / known.length };
}

const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
// a spreadsheet computes a text that begins so
const plain = (text) => cell(/^[=+\-@\t]/.test(text) ? `'${text}` : text);

/**
 * Return lines as CSV: a row for each time (UTC), a column for each line, and those of the min and max over nodes.
 * @param {Array} lines [{name, times, values, unit, min, max}]; `min` and `max` only where they are shown
 */
export function csv(lines) {
  const columns = lines.flatMap((line) => [
    [line.name, line, line.values],
    ...(line.min ? [[`${line.name}, min`, line, line.min], [`${line.name}, max`, line, line.max]] : []),
  ]);
  const [times, ...values] = joined(columns.map(([, line, own]) => ({ times: line.times, values: own })));
  const heads = ["time", ...columns.map(([name, line]) => plain(`${name} [${quantity(line.unit).symbol}]`))];
  const rows = times.map((time, n) => [iso(time), ...values.map((column) => (column[n] == null ? "" : String(column[n])))]);
  return `${[heads, ...rows].map((row) => row.join(",")).join("\r\n")}\r\n`;
}
