// Numbers as people read them. What is not known is a dash, never 0.

export const NONE = "–";
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function short(value) {
  const size = Math.abs(value);
  if (size === 0 || size >= 99.5) return value.toFixed(0);
  return value.toFixed(size >= 9.95 ? 1 : 2);
}

/** What the collector says, as a sentence. */
export function sentence(text) {
  const said = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(said) ? said : `${said}.`;
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
  if (value > 0.995 && value < 1) return `${Math.min(99.9, 100 * value).toFixed(1)} %`; // all is not nearly all
  return `${value > 0 && value < 0.0995 ? (100 * value).toFixed(1) : (100 * value).toFixed(0)} %`;
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

const two = (value) => String(value).padStart(2, "0");

/** A time of the day here; with its date if that is not today's. */
export function when(seconds, now = Date.now()) {
  if (seconds == null) return NONE;
  const time = new Date(1000 * seconds);
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return time.toDateString() === new Date(now).toDateString() ? clock : `${day(time)} ${clock}`;
}

/** A date here. */
export function day(time) {
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
}

/** The same time for everybody. */
export function iso(seconds) {
  if (seconds == null || !(Math.abs(seconds) < 8.64e12)) return null;
  return new Date(1000 * seconds).toISOString();
}

/** What values of a unit of the interface are: by what they are multiplied, how they are told, and the least that an axis shows. */
export function quantity(unit) {
  const known = {
    bytes: [1, size, 1024],
    kbytes: [1024, size, 1024],
    mbytes: [1 << 20, size, 1024],
    "bytes/s": [1, flow, 1024],
    "kbytes/s": [1024, flow, 1024],
    "mbytes/s": [1 << 20, flow, 1024],
    percent: [0.01, share, 10],
    nsec: [1e-9, lasting, 10],
    usec: [1e-6, lasting, 10],
    jiffies: [1e-2, lasting, 10],
    sec: [1, lasting, 10],
    "seconds/s": [1, cores, 10, 0.1],
    watts: [1, (value) => (value == null ? NONE : `${number(value)} W`), 10],
    "ujoules/s": [1e-6, (value) => (value == null ? NONE : `${number(value)} W`), 10],
    celsius: [1, (value) => (value == null ? NONE : `${number(value)} °C`), 10],
    mhz: [1e6, (value) => (value == null ? NONE : `${number(value)}Hz`), 10],
    ts_date: [1, (value) => when(value), 10],
  }[unit];
  if (known) return { factor: known[0], text: known[1], base: known[2], least: known[3] ?? 0 };
  const suffix = String(unit ?? "").endsWith("/s") ? " /s" : "";
  return { factor: 1, text: (value) => (value == null ? NONE : number(value) + suffix), base: 10, least: 0 };
}
