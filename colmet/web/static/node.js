// A node: facts, charts, the jobs on it.

import { ask } from "./api.js";
import { JOB_COLUMNS, encoded, nodeFacts } from "./columns.js";
import { Facts, Warnings, el, say } from "./dom.js";
import { Panels, line, sum } from "./panels.js";
import { Table } from "./table.js";

const proc = (column) => [["procstats_default", column]];
const rate = { rate: true };
const term = (column, sign) => ["procstats_default", `meminfo_${column}`, sign];

const CHARTS = [
  ["CPU cores", [
    line("user", proc("stat_cpu_user"), rate),
    line("system", proc("stat_cpu_system"), rate),
    line("idle", proc("stat_cpu_idle"), rate),
    line("waiting for storage", proc("stat_cpu_iowait"), rate),
    line("low priority", proc("stat_cpu_nice"), rate),
    line("hypervisor", proc("stat_cpu_steal"), rate),
  ]],
  ["Memory", [
    // what can be given back is not in use; shared memory, which cannot, is counted among the cached
    sum("used", [term("memtotal", 1), term("memfree", -1), term("buffers", -1), term("cached", -1), term("sreclaimable", -1), term("shmem", 1)]),
    line("all", proc("meminfo_memtotal")),
    sum("swap used", [term("swaptotal", 1), term("swapfree", -1)]),
  ]],
  ["Storage", [line("read", proc("vmstat_pgpgin"), rate), line("written", proc("vmstat_pgpgout"), rate)]],
  ["Load", [line("1 minute", proc("loadavg_1min")), line("15 minutes", proc("loadavg_15min"))]],
  ["InfiniBand", [line("received", [["infinibandstats_default", "portRcvData"]], rate), line("sent", [["infinibandstats_default", "portXmitData"]], rate)]],
  ["Power", [line("node", ["current_power", "average_power_consumption"].map((column) => ["ipmipowerstats_default", column]))]],
  ["Temperature", [line("mean", [["temperatures_default", "temperature"]], { mean: true, apart: true })]],
];
const COLUMNS = JOB_COLUMNS.filter((one) => !["nodes", "on", "last"].includes(one.key));

/** The view; a plain `Node` is the browser's own. */
export class Host {
  constructor(context) {
    this.context = context;
    this.title = context.what;
    this.path = `api/v1/nodes/${encoded(context.what)}`;
    this.about = el("p", { class: "soft" });
    this.facts = new Facts("The node now");
    this.warnings = new Warnings();
    this.rows = [];
    this.table = new Table("Jobs on the node", COLUMNS, (row) => row.job, { sort: "cpu", reverse: false }, () => this.#list());
    this.none = el("p", { class: "soft", text: "No job to show here.", hidden: true });
    this.panels = new Panels(this.path, CHARTS, context, "3600");
    this.element = el("div", {},
      el("p", { class: "crumbs" }, el("a", { href: "#/", text: "← Cluster" })),
      el("h1", { text: `Node ${this.title}`, tabindex: "-1" }),
      this.about, this.warnings.element, this.facts.element,
      el("section", { "aria-labelledby": "jobs-title" },
        el("div", { class: "tools" }, el("h2", { id: "jobs-title", text: "Jobs on it" })), this.none, this.table.element),
      this.panels.element);
  }

  close() {
    this.panels.close();
  }

  #list() {
    this.table.show(this.table.arranged(this.rows));
  }

  async refresh(signal) {
    const { node, jobs, tables, warnings } = await ask(this.path, {}, signal);
    say(this.about, node.silent ? "Silent: nothing was heard of it for a while; what is shown is old." : "");
    this.facts.show(nodeFacts(node));
    this.warnings.show(warnings ?? []);
    this.rows = jobs;
    this.none.hidden = jobs.length > 0;
    this.table.element.hidden = !jobs.length;
    this.#list();
    this.panels.refresh(signal, tables, [], null);
  }
}
