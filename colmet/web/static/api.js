// Questions to the collector's JSON interface.

import { sentence } from "./units.js";

const LONGEST_MS = 25000; // to wait for an answer
// without the name and password that an address may hold: fetch refuses those
const BASE = new URL(".", location.origin + location.pathname);

/** There is no answer, or one that says why not. */
export class Failure extends Error {
  /**
   * @param {string} text what is wrong
   * @param {number} status of HTTP; 0 where there was none
   * @param {number} after seconds that the collector wants to be left alone
   */
  constructor(text, status, after = 0) {
    super(text);
    this.status = status;
    this.after = after;
  }
}

let ahead = 0; // the collector's clock, seconds

/** The time by the collector's clock, seconds since 1970. */
export function now() {
  return Date.now() / 1000 + ahead;
}

/** The address of a question. */
export function address(path, parameters = {}) {
  const url = new URL(path, BASE);
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== "" && value != null && value !== false) url.searchParams.set(key, value);
  }
  return url;
}

/**
 * An answer.
 * @param {string} path beneath the page's own address; its parts are encoded
 * @param {Object} parameters those that are empty, null or false are left out
 * @param {AbortSignal} signal when it is no longer wanted
 * @throws {Failure} there is none
 */
export async function ask(path, parameters, signal) {
  const control = new AbortController();
  const stop = () => control.abort();
  if (signal.aborted) stop();
  signal.addEventListener("abort", stop);
  const timer = setTimeout(stop, LONGEST_MS);
  try {
    const answer = await fetch(address(path, parameters), { signal: control.signal, headers: { Accept: "application/json" } });
    if (answer.ok) {
      const told = await answer.json();
      if (typeof told.time === "number") ahead = told.time - Date.now() / 1000;
      return told;
    }
    const after = Number(answer.headers.get("Retry-After")) || 0;
    throw new Failure(await reason(answer), answer.status, after);
  } catch (error) {
    if (error instanceof Failure || signal.aborted) throw error;
    if (control.signal.aborted) throw new Failure("The collector does not answer.", 0);
    if (error instanceof SyntaxError) throw new Failure("The collector's answer cannot be read.", 0);
    throw new Failure("The collector cannot be reached.", 0);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

async function reason(answer) {
  try {
    const said = await answer.json();
    if (typeof said.error === "string" && said.error) return sentence(said.error);
  } catch {
    // a proxy's page
  }
  return `The answer is ${answer.status} ${answer.statusText}`.trim() + ".";
}
