// The view of usage: core hours, GPU hours, memory, energy, CO2 and cost by user, project, queue, month or host.

import { ask, now, who } from "./api.js";
import { Facts, Warnings, choice, el, say } from "./dom.js";
import { save } from "./download.js";
import { Table, column, graded } from "./table.js";
import { NONE, cores, count, energy, share } from "./units.js";

const EVERY_S = 300; // between two requests for the same sums
const MOST_ROWS = 500;
const HOUR_S = 3600;
const GIB = 2 ** 30;
const KWH = 3.6e6;
const DAY_S = 86400;
const BY = ["user", "project", "queue", "month", "host"];
// [value, text, days]; months are in UTC, as the groups
const SPANS = [["month", "this month (UTC)"], ["7d", "7 days", 7], ["30d", "30 days", 30], ["90d", "90 days", 90], ["365d", "365 days", 365], ["dates", "dates (UTC)"]];
const DATE = /^[0-9]{4}-[0-9]{2}-[0-9]{2}$/;

const hours = (value) => (value > 0 && value < 0.005 ? "< 0.01" : cores(value));
const sum = (key, title, unit, more) => column(key, title, (row) => hours(row[key] == null ? null : row[key] / unit), { optional: true, ...more });

/** Return the columns; those of missing factors are left out. */
function columns(by, { sources, currency }) {
  const known = (word) => sources.some((line) => line.startsWith(word));
  return [
    column("key", by[0].toUpperCase() + by.slice(1), (row) => row.key || NONE, { left: true }),
    column("bar", "", () => "", {
      sorts: false, left: true, title: "Used, wasted", make: (cell) => cell.append(el("span", { class: "bar double wasted", "aria-hidden": "true" }, el("i"), el("i"))),
      show: (cell, row) => ["cpu_s", "wasted_core_s"].forEach((key, n) => {
        cell.firstElementChild.children[n].style.width = `${(100 * (row[key] ?? 0) / row.most).toFixed(2)}%`;
      }),
    }),
    column("jobs", "Jobs", (row) => count(row.jobs), { rank: 1 }),
    sum("core_s", "Core h", HOUR_S, { long: "hours of allocated cores" }),
    sum("cpu_s", "Used core h", HOUR_S, { rank: 2, long: "core hours with CPU time" }),
    sum("wasted_core_s", "Wasted core h", HOUR_S, { rank: 1, long: "core hours without CPU time" }),
    graded("efficiency", "CPU efficiency", (row) => share(row.efficiency), (row) => row.efficiency, (row) => row.cpu_grade ?? "", { long: "core hours used, of those allocated" }),
    sum("gpu_s", "GPU h", HOUR_S, { rank: 2, long: "hours of allocated GPUs" }),
    sum("memory_byte_s", "Memory GiB h", HOUR_S * GIB, { rank: 3, long: "memory in use times duration" }),
    column("energy_joules", "Energy", (row) => energy(row.energy_joules), { optional: true, rank: 1, long: "share of the nodes' energy, and the GPUs'" }),
    ...(known("CO2") ? [sum("co2_g", "CO2 kg", 1000, { rank: 2 })] : []),
    ...(known("Cost") ? [sum("cost", `Cost ${currency ?? ""}`.trim(), 1, { rank: 2 })] : []),
  ];
}

export class Usage {
  title = "Usage";

  constructor(context) {
    this.context = context;
    const asked = context.parameters;
    const one = (values, key) => (values.includes(asked.get(key)) ? asked.get(key) : "");
    this.by = one(BY, "by");
    this.span = one(SPANS.map(([value]) => value), "span") || SPANS[0][0];
    this.dates = { since: "", until: "" };
    for (const key of Object.keys(this.dates)) if (DATE.test(asked.get(key) ?? "")) this.dates[key] = asked.get(key);
    this.heading = el("h1", { text: this.title, tabindex: "-1" });
    this.warnings = new Warnings();
    this.totals = new Facts("Totals");
    this.fields = Object.entries({ since: "From", until: "To" }).map(([key, label]) => el("label", { class: "field" }, el("span", { text: label }),
      el("input", { type: "date", value: this.dates[key], onchange: (event) => { this.dates[key] = event.target.value; this.#changed(); } })));
    this.tools = el("div", { class: "tools" });
    this.list = el("div");
    this.about = el("p", { class: "soft", role: "status" });
    this.command = el("code");
    this.sources = el("ul", { class: "soft sources", "aria-label": "Sources of the factors", hidden: true });
    this.legend = el("ul", { class: "legend", "aria-label": "Bars" }, ...[["", "used"], ["reserved", "wasted"]].map(([kind, text]) =>
      el("li", {}, el("span", { class: `bar double wasted key ${kind}`, "aria-hidden": "true" }, el("i")), text)));
    this.element = el("div", {}, this.heading, this.warnings.element, this.tools, this.totals.element, this.list, this.about, this.sources,
      el("p", { class: "soft" }, "The same in a terminal: ", this.command));
    this.due = 0;
    this.changes = 0;
  }

  close() {}

  #changed() {
    this.changes += 1;
    this.due = 0;
    const usual = this.#usual();
    const { sort, reverse } = this.table?.order ?? usual;
    const dates = this.span === "dates" ? this.dates : { since: "", until: "" };
    this.context.remember({
      by: this.by === this.#groups()[0] ? "" : this.by, span: this.span === SPANS[0][0] ? "" : this.span, ...dates,
      ...(sort === usual.sort && reverse === usual.reverse ? { sort: "", reverse: "" } : { sort, reverse }),
    });
    this.context.again();
  }

  /** Return the groups that differ for this user: ordinary users have the own jobs alone. */
  #groups() {
    return this.who.admin ? BY : BY.filter((word) => word !== "user");
  }

  /** Return the first order: the largest group, or the latest month. */
  #usual() {
    return this.by === "month" ? { sort: "key", reverse: true } : { sort: "core_s", reverse: false };
  }

  /** Make the fields, once the user is known. */
  #build() {
    const groups = this.#groups();
    if (!groups.includes(this.by)) [this.by] = groups;
    this.title = this.who.admin ? "Usage" : "My usage";
    say(this.heading, this.title);
    document.title = `${this.title} – Colmet`;
    this.save = el("button", { type: "button", text: "Download CSV", onclick: () => this.#save() });
    this.tools.append(
      choice("By", groups.map((word) => [word, word]), this.by, (value) => { this.by = value; this.table = null; this.#changed(); }),
      choice("Time", SPANS, this.span, (value) => { this.span = value; this.#dated(); this.#changed(); }),
      ...this.fields, this.save, this.legend);
    this.#dated();
  }

  #dated() {
    for (const field of this.fields) field.hidden = this.span !== "dates";
  }

  /** Return the interval: seconds since 1970, and the options of `colmet usage`. */
  #interval() {
    const days = SPANS.find(([value]) => value === this.span)[2];
    if (days) return { since: Math.floor(now() - days * DAY_S), options: ` --since ${days}d` };
    if (this.span === "month") {
      const today = new Date(1000 * now());
      return { since: Date.UTC(today.getUTCFullYear(), today.getUTCMonth()) / 1000, options: "" };
    }
    const { since, until } = this.dates;
    const at = (date) => (DATE.test(date) && !Number.isNaN(Date.parse(date)) ? Date.parse(date) / 1000 : null);
    const option = (name, date, day = 0) => (at(date) == null ? "" : ` --${name} ${new Date(1000 * (at(date) + day)).toISOString().slice(0, 19)}Z`);
    return {
      since: at(since), until: at(until) == null ? null : at(until) + DAY_S, // the last day, too
      options: `${option("since", since) || " --since 0"}${option("until", until, DAY_S)}`,
    };
  }

  /** Refresh the view; return whether a request was sent. */
  async refresh(signal) {
    if (!this.who) {
      this.who = await who(signal);
      if (this.who.archive) this.#build();
      else say(this.about, "This collector keeps no archive of jobs, so there are no sums.");
    }
    const at = performance.now() / 1000;
    if (!this.who.archive || at < this.due) return false;
    const { changes } = this;
    const { since, until, options } = this.#interval();
    const answer = await ask("api/v1/usage", { by: this.by, since, until }, signal);
    if (changes !== this.changes) return true;
    this.due = at + EVERY_S;
    this.#show(answer);
    say(this.command, `colmet usage --by ${this.by}${options}${this.who.admin ? " --all-users" : ""} --url ${location.origin}`);
    return true;
  }

  #show(answer) {
    this.warnings.show(answer.warnings);
    this.rows = answer.groups.map(flat);
    const most = Math.max(...this.rows.map((row) => row.core_s ?? 0)) || 1;
    for (const row of this.rows) row.most = most;
    if (!this.table) {
      const made = columns(this.by, answer);
      const asked = this.listed ? new URLSearchParams() : this.context.parameters;
      this.listed = true;
      const sort = made.find((one) => one.sorts && one.key === asked.get("sort"))?.key;
      const order = sort ? { sort, reverse: asked.get("reverse") === "true" } : this.#usual();
      this.table = new Table(`Usage by ${this.by}`, made, (row) => row.key, order, () => { this.#changed(); this.#list(); });
      this.table.element.classList.add("usage");
      this.list.replaceChildren(this.table.element);
    }
    this.#total(answer);
    this.#list();
    this.sources.hidden = !answer.sources.length;
    this.sources.replaceChildren(...answer.sources.map((text) => el("li", { text })));
  }

  #total({ total, currency }) {
    const all = flat(total);
    const of = (key, unit, text) => (all[key] == null ? null : `${hours(all[key] / unit)} ${text}`);
    this.totals.show([
      ["Core hours used", all.core_s == null ? null : `${hours(all.cpu_s == null ? null : all.cpu_s / HOUR_S)} of ${hours(all.core_s / HOUR_S)}`, "of the core hours allocated"],
      ["CPU efficiency", all.efficiency == null ? null : `${share(all.efficiency)} ${all.cpu_grade}`],
      ["GPU hours", all.gpu_s ? `${of("gpu_s", HOUR_S, "h")}${all.gpu_busy_s == null ? "" : `, ${share(all.gpu_busy_s / all.gpu_s)} used`}` : null],
      ["Energy", all.energy_joules == null ? null : energy(all.energy_joules)],
      ["CO2", of("co2_g", 1000, "kg")],
      ["Cost", of("cost", 1, currency ?? "")],
    ]);
  }

  #list() {
    const rows = this.table.arranged(this.rows);
    this.table.show(rows.slice(0, MOST_ROWS));
    this.table.element.hidden = !rows.length;
    this.save.hidden = !rows.length;
    const more = rows.length > MOST_ROWS ? `${count(MOST_ROWS)} of ${count(rows.length)} rows: the file has all. ` : "";
    const shared = ["month", "host"].includes(this.by) ? `A job of several ${this.by}s counts in each. ` : "";
    say(this.about, rows.length ? `${more}${shared}` : "No job ran in this time.");
  }

  /** Save all rows as CSV, with the units and the names of `colmet usage --csv`. */
  #save() {
    const names = { jobs: ["jobs", 1], core_s: ["core_hours", HOUR_S], cpu_s: ["used_core_hours", HOUR_S], wasted_core_s: ["wasted_core_hours", HOUR_S],
      efficiency: ["used_ratio", 1], gpu_s: ["gpu_hours", HOUR_S], gpu_busy_s: ["used_gpu_hours", HOUR_S], memory_byte_s: ["memory_gib_hours", HOUR_S * GIB],
      energy_joules: ["energy_kwh", KWH], co2_g: ["co2_kg", 1000], cost: ["cost", 1] };
    const keys = Object.keys(names).filter((key) => !["co2_g", "cost"].includes(key) || this.rows.some((row) => row[key] != null));
    const lines = this.table.arranged(this.rows).map((row) => [cell(row.key), ...keys.map((key) => (row[key] == null ? "" : row[key] / names[key][1]))]);
    const text = [[this.by, ...keys.map((key) => names[key][0])], ...lines].map((line) => `${line.join(",")}\n`).join("");
    save(new Blob([text], { type: "text/csv;charset=utf-8" }), `usage-by-${this.by}.csv`);
  }
}

/** Return the values of a group in one object. */
function flat({ keys, sums, cpu_ratio: efficiency, ...others }) {
  return { key: keys[0] ?? "", ...others, ...sums, efficiency };
}

/** Return a text for CSV: no program that opens it reads it as a formula. */
function cell(text) {
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}
