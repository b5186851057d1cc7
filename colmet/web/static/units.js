// Numbers as text. An unknown value is a dash, never 0.

export const NONE = "–";
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function short(value) {
  const size = Math.abs(value);
  if (size === 0 || size >= 99.5) return value.toFixed(0);
  return value.toFixed(size >= 9.95 ? 1 : 2);
}

/** Return a message of the collector as a sentence. */
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/** A whole number of things. */
export function count(value) {
  return value == null ? NONE : Math.round(value).toLocaleString("en");
}

/** A number of cores, or of tasks on average. */
export function cores(value) {
  if (value == null) return NONE;
  if (Number.isInteger(value) || Math.abs(value) >= 99.5) return count(value);
  return value.toFixed(Math.abs(value) >= 0.995 ? 1 : 2);
}

/** Bytes by powers of 1024. */
export function size(value) {
  if (value == null) return NONE;
  let unit = 0;
  while (unit < BYTES.length - 1 && Math.abs(value) >= 1023.5) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? short(value) : Math.round(value) + 0} ${BYTES[unit]}`; // + 0: never -0
}

/** Bytes in a second. */
export function flow(value) {
  return value == null ? NONE : `${size(value)}/s`;
}

/** A share of one. */
export function share(value) {
  if (value == null) return NONE;
  if (value >= 0.995 && value < 1) return `${Math.min(99.9, 100 * value).toFixed(1)} %`; // 100 % only for all
  return `${value > 0 && value < 0.0995 ? (100 * value).toFixed(1) : (100 * value).toFixed(0)} %`;
}

/** Joules; from 36 kJ on in Wh, kWh or MWh. */
export function energy(value) {
  if (value == null) return NONE;
  if (value < 36000) return value < 1000 ? `${short(value)} J` : `${short(value / 1000)} kJ`;
  const hours = value / 3600;
  return hours < 1000 ? `${short(hours)} Wh` : hours < 1e6 ? `${short(hours / 1000)} kWh` : `${short(hours / 1e6)} MWh`;
}

/** Any number. */
export function number(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) {
    const power = Math.min(4, Math.floor(Math.log10(size) / 3 + 1e-9) - 1);
    return `${short(value / 1000 ** (power + 1))} ${"MGTPE"[power - 1] ?? "E"}`;
  }
  return Number.isInteger(value) || size >= 1000 ? count(value) : size >= 0.01 || size === 0 ? short(value) : value.toPrecision(2);
}

/** Seconds. */
export function lasting(value) {
  if (value == null) return NONE;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const FORM = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23", calendar: "gregory", numberingSystem: "latn",
};
let shownZone = ownZone(); // name of the time zone of all shown times
let format = new Intl.DateTimeFormat("en", FORM);
let offsets = offsetsOf(shownZone);

/** Return the format of a time zone's distances from UTC. */
function offsetsOf(name) {
  return new Intl.DateTimeFormat("en", { timeZone: name, timeZoneName: "shortOffset" });
}

/** Return the name of the browser's time zone. */
export function ownZone() {
  return new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** Return the time zone of all shown times. */
export function zone() {
  return shownZone;
}

/**
 * Set the time zone of all shown times.
 * @throws {RangeError} the browser does not know it
 */
export function setZone(name) {
  format = new Intl.DateTimeFormat("en", { ...FORM, timeZone: name });
  offsets = offsetsOf(name);
  shownZone = name;
}

/** Return the distance from UTC at a time in ms, "UTC+1"; `format` is of `offsetsOf`. */
function distance(format, ms) {
  return format.formatToParts(ms)
    .find((part) => part.type === "timeZoneName").value.replace("GMT", "UTC").replace("-", "\u2212");
}

/** Name a time zone with its present distance from UTC. */
export function zoneText(name, now = Date.now()) {
  if (/^(Etc\/)?(UTC|UCT|GMT|Zulu|Universal)$/.test(name)) return "UTC";
  return `${name.replaceAll("_", " ")} (${distance(offsetsOf(name), now)})`;
}

/** Return the fields of a time, in ms, in the shown time zone; null if it is no time. */
function fields(ms) {
  if (!(Math.abs(ms) <= 8.64e15)) return null;
  return Object.fromEntries(format.formatToParts(ms).map(({ type, value }) => [type, value]));
}

const dated = (one) => `${one.year.padStart(4, "0")}-${one.month}-${one.day}`;
const timed = (one) => `${one.hour}:${one.minute}:${one.second}`;

/** A time, with its date if it is not today. */
export function when(seconds, now = Date.now()) {
  const one = seconds == null ? null : fields(1000 * seconds);
  if (one === null) return NONE;
  return dated(one) === dated(fields(now)) ? timed(one) : `${dated(one)} ${timed(one)}`;
}

/** The same without its seconds, for lists. */
export function minute(seconds, now = Date.now()) {
  return when(seconds, now).replace(/:\d\d$/, "");
}

/** A time with its date and its distance from UTC, for titles; null if it is no time. */
export function moment(seconds) {
  const one = seconds == null ? null : fields(1000 * seconds);
  return one === null ? null : `${dated(one)} ${timed(one)} ${distance(offsets, 1000 * seconds)}`;
}

/** A date. */
export function day(time) {
  const one = fields(Number(time));
  return one === null ? NONE : dated(one);
}

/** A time of the day, without its date. */
export function clock(time) {
  const one = fields(Number(time));
  return one === null ? NONE : timed(one);
}

/** A time span from now, for titles: "5 min ago". */
export function ago(seconds, now = Date.now() / 1000) {
  return seconds == null ? null : `${lasting(Math.max(0, now - seconds))} ago`;
}

/** A time in UTC, for files. */
export function iso(seconds) {
  if (seconds == null || !(Math.abs(seconds) < 8.64e12)) return null;
  return new Date(1000 * seconds).toISOString();
}

const known = (text) => (value) => (value == null ? NONE : text(value));
// family -> format of a value, base of its axis, minimum of the axis's maximum
const FAMILIES = {
  size: [size, 1024],
  flow: [flow, 1024],
  share: [share, 10],
  duration: [lasting, 10],
  cores: [cores, 10, 0.1],
  power: [known((value) => `${number(value)} W`), 10],
  temperature: [known((value) => `${number(value)} °C`), 10],
  frequency: [known((value) => `${number(value)}Hz`), 10],
  date: [(value) => when(value), 10],
};
// family -> unit of the values themselves, for files and axes
const SYMBOLS = {
  size: "B", flow: "B/s", share: "share of 1", duration: "s", cores: "cores", power: "W", temperature: "°C",
  frequency: "Hz", date: "s since 1970",
};
let units = {};

/** Set the units of the interface: factors and families by name. */
export function declare(declared) {
  units = declared;
}

/** Return the factor of a unit's values, their format and symbol, and the base and the minimum of an axis's maximum. */
export function quantity(unit) {
  const { factor, family } = units[unit] ?? {};
  if (Object.hasOwn(FAMILIES, family ?? "")) {
    const [text, base, least] = FAMILIES[family];
    return { factor, text, base, least: least ?? 0, symbol: SYMBOLS[family] };
  }
  const suffix = String(unit ?? "").endsWith("/s") ? " /s" : "";
  return { factor: 1, text: known((value) => number(value) + suffix), base: 10, least: 0, symbol: unit || "count" };
}
