// Requests to the collector's JSON interface.

import { sentence } from "./units.js";

const LONGEST_MS = 35000; // timeout of an answer; the server gives the reason after 30 s
export const REPORT_MS = 60000; // of one that is made of stored rows; the server has 50 s
// without a name and password in the address: fetch refuses them
const BASE = new URL(".", location.origin + location.pathname);

/** A request without an answer, or refused. */
export class Failure extends Error {
  /**
   * @param {string} text what is wrong
   * @param {number} status of HTTP; 0 without an answer
   * @param {number} after seconds until the next request, from the collector
   */
  constructor(text, status, after = 0) {
    super(text);
    this.status = status;
    this.after = after;
  }
}

let ahead = 0; // seconds from this clock to the collector's

/** The time by the collector's clock, seconds since 1970. */
export function now() {
  return Date.now() / 1000 + ahead;
}

/** The address of a request. */
export function address(path, parameters = {}) {
  const url = new URL(path, BASE);
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== "" && value != null && value !== false) url.searchParams.set(key, value);
  }
  return url;
}

/**
 * Send a request, and return the answer.
 * @param {string} path below the page's own address, with encoded parts
 * @param {Object} parameters empty, null and false ones are skipped
 * @param {AbortSignal} signal aborts the request
 * @param {number} longest timeout in milliseconds
 * @throws {Failure} there is no answer
 */
export async function ask(path, parameters, signal, longest = LONGEST_MS) {
  const control = new AbortController();
  const stop = () => control.abort();
  if (signal.aborted) stop();
  signal.addEventListener("abort", stop);
  const timer = setTimeout(stop, longest);
  try {
    const answer = await fetch(address(path, parameters), { signal: control.signal, headers: { Accept: "application/json" } });
    if (answer.ok) {
      const content = await answer.json();
      if (typeof content.time === "number") ahead = content.time - Date.now() / 1000;
      return content;
    }
    if (answer.status === 401 && answer.headers.get("WWW-Authenticate")?.includes("Colmet")) location.replace(address("login") + location.hash);
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

let visitor = null;

/**
 * Return the user of the page, requested once.
 * @throws {Failure} there is no answer
 */
export async function who(signal) {
  visitor ??= await ask("api/v1/whoami", {}, signal);
  return visitor;
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error === "string" && error) return sentence(error);
  } catch {
    // a proxy's page
  }
  return `The answer is ${answer.status} ${answer.statusText}`.trim() + ".";
}
