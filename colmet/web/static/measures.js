// The measures and units declared by the collector, requested once.

import { ask } from "./api.js";
import { declare } from "./units.js";

const ORIGINS = { processes: "of its processes" }; // shown in legends
let declared = null;

/**
 * Request the measures, the first time.
 * @throws {Failure} there is no answer
 */
export async function load(signal) {
  if (declared !== null) return;
  const answer = await ask("api/v1/measures", {}, signal);
  declare(answer.units);
  declared = answer;
}

const sourcesOf = (key) => declared.measures[key].sources;

/** A line of a measure, from the first of its columns with values. */
export function line(name, key, more = {}) {
  const { rate, hosts } = declared.measures[key];
  const sources = sourcesOf(key).map(({ table, column, origin }) => [table, column, ORIGINS[origin] ?? ""]);
  return { name, sources, rate, mean: hosts === "mean", ...more };
}

/** A line of a sum of measures, some subtracted. */
export function sum(name, key, more = {}) {
  const terms = declared.sums[key].map(({ measure, sign }) => [sourcesOf(measure)[0].table, sourcesOf(measure)[0].column, sign]);
  const { rate } = declared.measures[declared.sums[key][0].measure];
  return { name, terms, rate, mean: false, ...more };
}

/** What a missing table requires, for people. */
export const absent = (table) => declared.absent[table] ?? "no rows of it";
