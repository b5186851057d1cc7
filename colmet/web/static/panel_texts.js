// Texts of the charts' choices and notes: pure functions.

import { sentence } from "./units.js";

/** Return a time range of the address; null for any other text. */
export function times(since, until) {
  const found = [since, until].map((text) => (/^[0-9]{1,11}$/.test(text) ? Number(text) : NaN));
  return found[0] < found[1] ? found : null;
}

/** Split a metric into table and column, at the first dot. */
export function split(text) {
  const at = text.indexOf(".");
  return at < 0 ? ["", ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** Return what was not measured, with the reasons, in a line. */
export function missing(without) {
  const reasons = new Map();
  for (const [title, why] of without) reasons.set(why, [...(reasons.get(why) ?? []), title]);
  return reasons.size ? `Not measured: ${[...reasons].map(([why, titles]) => `${titles.join(", ")} (${why})`).join("; ")}.` : "";
}

export function origin(sources, warnings) {
  const from = { memory: "From the collector's memory.", stored: "From the store." };
  const known = [...sources].filter((one) => one !== "none");
  const where = known.length === 1 && known[0] in from ? from[known[0]] : known.length ? "From the collector's memory and the store." : "";
  return [where, ...[...warnings].map(sentence)].filter(Boolean).join(" ");
}
