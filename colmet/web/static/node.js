// The view of a node: facts, charts, its jobs.

import { ask, now } from "./api.js";
import { JOB_COLUMNS, encoded, nodeFacts } from "./columns.js";
import { Facts, el, say } from "./dom.js";
import { line, load, sum } from "./measures.js";
import { Panels } from "./panels.js";
import { Table } from "./table.js";
import { TimeLine } from "./timeline.js";

const DAY_S = 86400;
const PART = { role: "part" }; // of a stack

const charts = () => [
  ["CPU cores", [
    line("user", "node_cpu_user", PART),
    line("system", "node_cpu_system", PART),
    sum("interrupts", "node_cpu_interrupts", PART),
    line("low priority", "node_cpu_nice", PART),
    line("waiting for storage", "node_cpu_iowait", PART),
    line("hypervisor", "node_cpu_steal", PART),
    line("idle", "node_cpu_idle", { ...PART, idle: true }),
    line("all CPUs", "node_cpus", { role: "limit" }),
  ]],
  ["Memory", [sum("used", "node_memory_used"), line("all memory", "node_memory_memtotal", { role: "limit" }), sum("swap used", "node_swap_used")]],
  ["Storage", [line("read", "node_read"), line("written", "node_write")]],
  ["Load", [line("1 minute", "node_load"), line("15 minutes", "node_load_15")]],
  ["InfiniBand", [line("received", "network_received"), line("sent", "network_sent")]],
  ["Power", [line("node", "power")]],
  ["Temperature", [line("mean", "temperature", { apart: true })]],
];
const COLUMNS = JOB_COLUMNS.filter((one) => !["nodes", "on", "last"].includes(one.key));

/** The view; `Node` is a class of the browser. */
export class Host {
  constructor(context) {
    this.context = context;
    this.title = context.what;
    this.path = `api/v1/nodes/${encoded(context.what)}`;
    this.about = el("p", { class: "soft" });
    this.facts = new Facts("The node now");
    this.rows = [];
    this.table = new Table("Jobs on the node", COLUMNS, (row) => row.job, { sort: "cpu", reverse: false }, () => this.#list());
    this.none = el("p", { class: "soft", text: "No job runs here now.", hidden: true });
    this.line = new TimeLine(this.title);
    this.panels = null;
    this.below = el("div");
    this.element = el("div", {},
      el("p", { class: "crumbs" }, el("a", { href: "#/nodes", text: "← Nodes" })),
      el("h1", { text: `Node ${this.title}`, tabindex: "-1" }),
      this.about, this.facts.element,
      el("section", { "aria-labelledby": "jobs-title" },
        el("h2", { id: "jobs-title", text: "Jobs now" }), this.none, this.table.element),
      this.below);
  }

  close() {
    this.line.close();
    this.panels?.close();
  }

  #list() {
    this.table.show(this.table.arranged(this.rows));
  }

  async refresh(signal) {
    const { node, jobs, tables, absent } = await ask(this.path, {}, signal);
    say(this.about, node.silent ? "Silent: it has sent nothing for a while; its last values are shown." : "");
    this.facts.show(nodeFacts(node));
    this.rows = jobs;
    this.none.hidden = jobs.length > 0;
    this.table.element.hidden = !jobs.length;
    this.#list();
    await load(signal);
    if (this.panels === null) {
      this.panels = new Panels(this.path, charts(), this.context, "3600");
      this.panels.grid.before(this.line.element); // below the choice of the time
      this.below.append(this.panels.element);
    }
    this.panels.reasons = absent;
    this.panels.refresh(signal, tables, [], null);
    await this.line.refresh(signal, jobs, this.panels.span ?? [now() - DAY_S, now()]);
  }
}
