// Memory used and reserved, by host and job, as in `colmet mem`.

import { ask } from "./api.js";
import { all } from "./nodes.js";
import { NO_JOB, jobAddress, nodeAddress } from "./columns.js";
import { choice, el, say } from "./dom.js";
import { Table, column, linked } from "./table.js";
import { NONE, count, size } from "./units.js";

// of Grid Engine
const UNITS = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 };
const AT_ONCE = 300; // shown rows

/** Convert "47.3G" to bytes; null if unknown. */
export function bytes(text) {
  const found = /^([0-9]+(?:\.[0-9]*)?)([KMGTkmgt]?)$/.exec(text ?? "");
  return found ? Number(found[1]) * UNITS[found[2]] : null;
}

/**
 * Return hosts with the memory used and reserved by their jobs, as counted by `colmet mem`.
 * @param {Object} hosts of /qhost
 * @param {Object} owners of /qstat
 * @param {boolean} whole whether all jobs are known: else the available memory is unknown
 * @param {?Set} nodes of Colmet, if hosts and jobs are from Grid Engine: other hosts have no view
 */
export function measured(hosts, owners, whole, nodes = null) {
  const requests = Object.assign({}, ...Object.values(owners).map((owner) => owner.jobs));
  return Object.entries(hosts).map(([node, host]) => {
    const jobs = Object.entries(host.jobs).map(([job, { jobcount, taskid, owner, jobname }]) => {
      const request = requests[job];
      const entries = Object.entries(request?.hostname[node] ?? {});
      // of an array's tasks only the running ones
      const uses = entries.filter(([task]) => !taskid.length || taskid.includes(task)).map(([, text]) => Number(text)).filter(Number.isFinite);
      const slots = taskid.length ? Math.max(jobcount, 1) * taskid.length : jobcount;
      const each = request?.requested_h_vmem_dblval || null;
      return { key: `${node} ${job}`, job, address: nodes ? null : jobAddress(job), owner, jobname, slots, used: uses.length ? total(uses) : null, reserved: each && each * slots };
    });
    const all = bytes(host.mem_total);
    const reserved = total(jobs.map((one) => one.reserved ?? 0));
    return {
      key: node, node, address: !nodes || nodes.has(node) ? nodeAddress(node) : null, jobs, all, reserved: known(jobs.map((one) => one.reserved)), used: known(jobs.map((one) => one.used)),
      claimed: total(jobs.map((one) => Math.max(one.used ?? 0, one.reserved ?? 0))), // the unused rest of one job is not available to others
      free: all === null || !whole ? null : all - reserved,
      slots: total(jobs.map((one) => one.slots)), cpus: /^[0-9]+$/.test(host.num_proc) ? Number(host.num_proc) : null,
    };
  });
}

const total = (values) => values.reduce((sum, value) => sum + value, 0);

/** Return the sum of the known values; null if all are unknown, 0 without values. */
function known(values) {
  const some = values.filter((value) => value !== null);
  return some.length || !values.length ? total(some) : null;
}

const COLUMNS = [
  linked("node", "Host", (row) => (row.job ? `job ${row.job}` : row.node), (row) => row.address),
  column("owner", "Owner", (row) => row.owner ?? "", { left: true, sorts: false, rank: 1 }),
  column("share", "Memory", () => "", {
    sorts: false,
    make: (cell) => cell.append(el("span", { class: "bar double", "aria-hidden": "true" }, el("i"), el("i"))),
    show: (cell, row) => {
      const [used, reserved] = cell.firstElementChild.children;
      const least = Math.min(1, part(row, row.used) ?? 0);
      used.style.width = `${100 * least}%`;
      reserved.style.width = `${100 * Math.max(0, Math.min(1, part(row, row.claimed ?? null) ?? 0) - least)}%`;
      cell.firstElementChild.hidden = Boolean(row.job) || row.all === null;
    },
  }),
  column("used", "Used", (row) => size(row.used)),
  column("reserved", "Reserved", (row) => size(row.reserved)),
  column("free", "Available", (row) => (row.job ? "" : size(row.free)), { long: "total less the reserved memory", rank: 1 }),
  column("all", "Total", (row) => (row.job ? "" : size(row.all)), { rank: 1 }),
  column("slots", "Slots", (row) => (row.job ? count(row.slots) : `${count(row.slots)} of ${row.cpus === null ? NONE : count(row.cpus)}`), { rank: 1 }),
];

function part(row, value) {
  return row.all && value !== null ? value / row.all : null;
}

export class Memory {
  title = "Memory";

  constructor(context) {
    this.context = context;
    this.text = context.parameters.get("text") ?? "";
    this.jobs = context.parameters.get("jobs") === "yes";
    this.hosts = [];
    this.table = new Table("Memory by host", COLUMNS, (row) => row.key, { sort: "node", reverse: false }, () => this.#list());
    this.search = el("input", {
      type: "search", value: this.text, maxlength: 255, autocomplete: "off", spellcheck: "false", placeholder: "host, user, job",
      "aria-keyshortcuts": "/",
      oninput: () => {
        this.text = this.search.value.trim();
        context.remember({ text: this.text });
        this.#list();
      },
    });
    this.about = el("p", { class: "soft", text: "Asking…" });
    const legend = el("ul", { class: "legend", "aria-label": "Bars" },
      ...[["used", "used"], ["reserved", "reserved beyond that"], ["free", "available"]].map(([kind, text]) =>
        el("li", {}, el("span", { class: `bar double key ${kind}`, "aria-hidden": "true" }, el("i")), text)));
    this.element = el("div", {},
      el("h1", { text: "Memory by host", tabindex: "-1" }),
      el("p", { class: "soft", text: "The maximum used by jobs, and the memory reserved for them by the batch system." }),
      el("div", { class: "tools" },
        el("label", { class: "field search" }, el("span", { text: "Search" }), this.search),
        choice("Rows", [["", "hosts"], ["yes", "hosts and jobs"]], this.jobs ? "yes" : "", (value) => {
          this.jobs = value === "yes";
          context.remember({ jobs: value });
          this.#list();
        }), legend),
      this.table.element, this.about);
  }

  seek() {
    this.search.focus();
    this.search.select();
  }

  close() {}

  #list() {
    const text = this.text;
    this.table.element.classList.toggle("hosts-only", !this.jobs);
    const fits = (job) => job.owner.includes(text) || job.job.startsWith(text);
    const found = this.hosts.filter((host) => host.node.includes(text) || host.jobs.some(fits));
    const rows = this.table.arranged(found).flatMap((host) =>
      this.jobs ? [host, ...host.jobs.filter((job) => host.node.includes(text) || fits(job))] : [host]);
    this.table.show(rows.slice(0, AT_ONCE));
    if (this.message) say(this.about, this.message);
    else say(this.about, rows.length > AT_ONCE ? `${count(AT_ONCE)} of ${count(rows.length)} rows: search for others` : `${count(found.length)} ${found.length === 1 ? "host" : "hosts"}`);
  }

  async refresh(signal) {
    this.who ??= await ask("api/v1/whoami", {}, signal);
    const known = this.who.gridengine ? all(signal).then((answer) => new Set(answer.items.map((row) => row.node))) : null;
    const [hosts, owners, nodes] = await Promise.all([ask("qhost", {}, signal), ask("qstat", {}, signal), known]);
    this.message = hosts.success ? "" : this.who.admin ? hosts.message : NO_JOB;
    this.hosts = measured(hosts.data, owners.data, this.who.admin, nodes);
    this.#list();
  }
}
