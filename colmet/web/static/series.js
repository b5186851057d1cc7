// Values over time as lines: pure, nothing is fetched or drawn here.

import { quantity } from "./units.js";

const GAP = 3; // what is further apart than so many periods is not joined
const CARRIED = 2; // periods for which a node's value counts while the next one is not there yet

/** Half of the distances between neighbours are shorter; 0 where there are none. */
function period(times) {
  const steps = [];
  for (let n = 1; n < times.length; n++) if (times[n] > times[n - 1]) steps.push(times[n] - times[n - 1]);
  steps.sort((a, b) => a - b);
  return steps[steps.length >> 1] ?? 0;
}

/**
 * What an answer of the interface tells, as one line.
 *
 * Of several nodes it is their sum, or mean. A node counts from its first value to its last; where it has none between
 * these, the sum is not known.
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

/** A line that is interrupted where nothing came for long. */
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
  // values lie about the middles of the cells: one that comes a little early or late is in its own all the same
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
      if (at < (first <= CARRIED ? 0 : first) || at > last + CARRIED) continue; // it is not there yet, or no longer
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
    if (!fresh && known) whole = false; // nothing but what is carried
    made.times.push(origin + (at + 0.5) * width);
    made.values.push(!known || (!whole && !mean) ? null : mean ? sum / known : sum);
  }
  return made;
}

/** Lines of one kind, one minus others: where one of them is not known, neither is the result. */
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
 * A common axis for lines: undefined where one has no value of its own, null where it is interrupted.
 * @returns {Array} times, and the values of each line there
 */
export function joined(lines) {
  const times = [...new Set(lines.flatMap((line) => line.times))].sort((a, b) => a - b);
  const at = new Map(times.map((time, n) => [time, n]));
  return [times, ...lines.map((line) => {
    const values = new Array(times.length).fill(undefined);
    line.times.forEach((time, n) => { values[at.get(time)] = line.values[n] ?? null; });
    // beside an interruption: part of it, so that nothing is drawn across
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

/** A line in four numbers; null where nothing is known. */
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
