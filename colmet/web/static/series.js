// Values over time as lines: pure functions.

import { quantity } from "./units.js";

const GAP = 3; // periods; the line is interrupted in longer gaps
const CARRIED = 2; // periods for which a node's last value counts

/** Return the median of the steps; 0 without steps. */
function period(times) {
  const steps = [];
  for (let n = 1; n < times.length; n++) if (times[n] > times[n - 1]) steps.push(times[n] - times[n - 1]);
  steps.sort((a, b) => a - b);
  return steps[steps.length >> 1] ?? 0;
}

/**
 * Return an answer as one line.
 *
 * The values of several nodes are summed, or averaged. A node counts from its first value to its last; a sum with a missing
 * value of a node is missing.
 * @param {Object} answer {unit, step, series: [{times, values}]}
 * @param {boolean} mean
 * @returns {{times: number[], values: (number|null)[], unit: string}} seconds since 1970; in the unit of `quantity`
 */
export function together(answer, mean = false) {
  const { factor } = quantity(answer.unit);
  const parts = answer.series.filter((one) => one.times.length);
  const line = parts.length > 1 ? summed(parts, answer.step, mean) : broken(parts[0] ?? { times: [], values: [] });
  return { ...line, values: line.values.map((value) => (value == null ? value : value * factor)), unit: answer.unit };
}

/** Return a line, interrupted in gaps. */
function broken({ times, values }) {
  const least = GAP * period(times);
  const made = { times: [], values: [] };
  times.forEach((time, n) => {
    if (n && least && time - times[n - 1] > least) {
      made.times.push((time + times[n - 1]) / 2);
      made.values.push(null);
    }
    made.times.push(time);
    made.values.push(values[n] ?? null);
  });
  return made;
}

function summed(parts, step, mean) {
  const width = Math.max(step || 0, ...parts.map((one) => period(one.times))) || 1;
  // values lie in the middle of the cells, so a slightly early or late one is in its own cell
  const origin = Math.min(...parts.map((one) => one.times[0])) - width / 2;
  const cells = parts.map((one) => {
    const cell = new Map();
    one.times.forEach((time, n) => cell.set(Math.floor((time - origin) / width), one.values[n] ?? null));
    return { cell, first: Math.floor((one.times[0] - origin) / width), last: Math.floor((one.times.at(-1) - origin) / width) };
  });
  const end = Math.max(...cells.map((one) => one.last));
  const made = { times: [], values: [] };
  for (let at = 0; at <= end; at++) {
    let sum = 0;
    let known = 0;
    let whole = true;
    let fresh = false;
    for (const { cell, first, last } of cells) {
      if (at < (first <= CARRIED ? 0 : first) || at > last + CARRIED) continue; // before the first value, or after the last
      let from = at;
      while (from > at - CARRIED && !cell.has(from)) from -= 1;
      const value = cell.get(from) ?? null;
      fresh ||= from === at;
      if (value === null) whole = false;
      else {
        sum += value;
        known += 1;
      }
    }
    if (!fresh && known) whole = false; // only former values
    made.times.push(origin + (at + 0.5) * width);
    made.values.push(!known || (!whole && !mean) ? null : mean ? sum / known : sum);
  }
  return made;
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
