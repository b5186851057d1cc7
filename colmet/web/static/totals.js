// A line of totals above the jobs: what runs now, and the use of the last days.

import { ask, now } from "./api.js";
import { Facts } from "./dom.js";
import { cores, count, energy, share } from "./units.js";

const EVERY_S = 300; // between two requests for sums of the archive
const DAYS = 7;
const DAY_S = 86400;

/** The totals of the jobs that the user may see. */
export class Totals {
  constructor() {
    this.facts = new Facts("Totals");
    this.element = this.facts.element;
    this.element.classList.add("line");
    this.due = 0;
    this.sums = null;
  }

  /** Request and show the totals; `archive`: whether there is one. */
  async refresh(archive, signal) {
    const at = performance.now() / 1000;
    const asked = [ask("api/v1/cluster", {}, signal)];
    if (archive && at >= this.due) {
      this.due = at + EVERY_S;
      asked.push(ask("api/v1/usage", { by: "state", since: Math.floor(now() - DAYS * DAY_S) }, signal));
    }
    const [{ jobs }, usage] = await Promise.all(asked).catch((error) => {
      this.due = 0;
      throw error;
    });
    if (usage) this.sums = usage.total;
    const { jobs: ran, sums, cpu_ratio: used, cpu_grade: grade } = this.sums ?? { jobs: 0, sums: {} };
    const held = jobs.cpus == null ? "" : `, ${cores(jobs.cpus)} cores`;
    this.facts.show([
      ["Running now", `${count(jobs.running)} ${jobs.running === 1 ? "job" : "jobs"}${jobs.running ? held : ""}`],
      [`Last ${DAYS} days`, ran ? [
        `${count(ran)} ${ran === 1 ? "job" : "jobs"}`,
        used == null ? "" : `CPU efficiency ${share(used)}${grade ? ` (${grade})` : ""}`,
        sums.energy_joules == null ? "" : energy(sums.energy_joules),
      ].filter(Boolean).join(", ") : null],
    ]);
  }
}
