// The measures of the nodes' colours: values, limits of the colours, and words.

import { NONE, cores, flow, lasting, number, share } from "./units.js";

const plainFlow = (value) => flow(value).replace(/\.0+ /, " ");
const watts = (value) => `${number(value)} W`;
const celsius = (value) => `${number(value)} °C`;
const known = (value, text) => (value == null ? NONE : text(value));

/**
 * Each has a key, a name, `value` of a row, and `text` of a row. `most` is the value of a full cell, `steps` are the limits
 * of the five colours; without them these follow the largest value. `words` are those of the lowest and the highest colour,
 * `limit` is the format of a limit, `base` the base of a rounded largest value.
 */
export const MEASURES = [
  {
    key: "cpu", name: "CPU", value: (row) => row.cpu, text: (row) => `CPU ${share(row.cpu)}`,
    most: 1, steps: [0.2, 0.4, 0.6, 0.8], words: ["idle", "busy"], limit: share,
  },
  {
    key: "memory", name: "memory", value: (row) => row.memory_share, text: (row) => `memory ${share(row.memory_share)}`,
    most: 1, steps: [0.2, 0.4, 0.6, 0.8], words: ["free", "full"], limit: share,
  },
  {
    key: "load", name: "load by CPU", value: (row) => (row.load == null || !row.cpus ? null : row.load / row.cpus),
    text: (row) => `load ${cores(row.load)} on ${known(row.cpus, cores)} CPUs`,
    steps: [0.25, 0.5, 1, 2], words: ["idle", "overloaded"], limit: cores,
  },
  { key: "io", name: "storage", value: (row) => row.io, text: (row) => `storage ${flow(row.io)}`, words: ["little", "much"], limit: plainFlow, base: 1024 },
  { key: "network", name: "network", value: (row) => row.network, text: (row) => `network ${flow(row.network)}`, words: ["little", "much"], limit: plainFlow, base: 1024 },
  { key: "power", name: "power", value: (row) => row.power, text: (row) => `power ${known(row.power, watts)}`, words: ["little", "much"], limit: watts },
  {
    key: "temperature", name: "temperature", value: (row) => row.temperature, text: (row) => `hottest sensor ${known(row.temperature, celsius)}`,
    steps: [30, 45, 60, 80], words: ["cool", "hot"], limit: celsius,
  },
  {
    key: "lag", name: "lag", value: (row) => row.lag, text: (row) => `lag ${lasting(row.lag)}`,
    steps: [1, 10, 60, 300], words: ["on time", "late"], limit: lasting,
  },
];

/** Round a number up to 1, 2 or 5 times a power of its base. */
function rounded(value, base) {
  const unit = base === 1024 ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return unit * power * [1, 2, 5, 10].find((step) => step * power * unit >= value * (1 - 1e-9));
}

/** Return the limits between the five colours: those of the measure, or fifths of the rounded largest value. */
export function stepsOf(measure, values) {
  if (measure.steps) return measure.steps;
  const most = values.reduce((found, value) => Math.max(found, value ?? 0), 0); // too many for arguments of one call
  const top = most > 0 ? rounded(most, measure.base ?? 10) : 1;
  return [0.2, 0.4, 0.6, 0.8].map((part) => part * top);
}

/** Return the number of a value's colour, 0 to 4; null for an unknown value. */
export function classOf(value, steps) {
  return value == null ? null : steps.filter((step) => value >= step).length;
}

/** Return the meaning of each colour in words. */
export function classTexts(measure, steps) {
  const { limit, words: [low, high] } = measure;
  return [
    `${low}: below ${limit(steps[0])}`,
    ...[1, 2, 3].map((n) => `from ${limit(steps[n - 1])}`),
    `${high}: from ${limit(steps[3])}`,
  ];
}
