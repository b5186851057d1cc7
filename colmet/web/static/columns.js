// The columns of jobs and of nodes, as in `colmet top`.

import { now } from "./api.js";
import { mark, say } from "./dom.js";
import { column, linked, shared } from "./table.js";
import { NONE, cores, count, flow, lasting, moment, share, size, when } from "./units.js";

/** A name as a part of an address; half a character, possible in names, has no form there. */
export const encoded = (name) => encodeURIComponent(String(name).replace(/\p{Cs}/gu, "\ufffd"));
/** The text for ordinary users without jobs. */
export const NO_JOB = "No job of yours runs now, as far as this collector knows.";
/** The text for Grid Engine's jobs. */
export const GRIDENGINE = "colmet-node does not see Grid Engine's jobs: the view Memory shows their hosts and memory.";
/** The address of a job's view. */
export const jobAddress = (job) => `#/job/${encoded(job)}`;
/** The address of a node's view. */
export const nodeAddress = (node) => `#/node/${encoded(node)}`;
/** Whether it is good or bad for its user that a job is in a state; the others are neither. */
export const ENDS = { done: "good", failed: "bad", timeout: "bad", out_of_memory: "bad", node_failed: "bad" };

const near = (row) => (row.memory_share >= 0.95 ? `! ${share(row.memory_share)}` : share(row.memory_share));

const uses = [
  shared("cpu_share", "CPU", (row) => share(row.cpu_share), (row) => row.cpu_share, { long: "use of the job's CPUs, as a share" }),
  column("cpu", "Cores used", (row) => cores(row.cpu), { rank: 1, long: "cores in use now" }),
  column("cpus", "Cores", (row) => cores(row.cpus), { rank: 2, long: "cores allocated" }),
  shared("memory_share", "Memory", near, (row) => row.memory_share, { long: "memory used, as a share of its limit; ! from 95 % on" }),
  column("memory", "Memory used", (row) => size(row.memory), { rank: 1, long: "memory in use now" }),
  column("memory_limit", "Limit", (row) => size(row.memory_limit), { rank: 3, long: "limit of its memory" }),
  column("read", "Read", (row) => flow(row.read), { rank: 3, long: "read from storage" }),
  column("write", "Written", (row) => flow(row.write), { rank: 3, long: "written to storage" }),
  column("wait", "Waiting", (row) => cores(row.wait), { rank: 2, long: "waiting tasks, on average: for a CPU, storage, memory" }),
  shared("gpu", "GPU", (row) => share(row.gpu), (row) => row.gpu, { rank: 2, long: "use of its GPUs, as a share of the time" }),
];

export const JOB_COLUMNS = [
  linked("job", "Job", (row) => String(row.job), (row) => jobAddress(row.job)),
  column("user", "User", (row) => row.user || NONE, { left: true }),
  column("nodes", "Nodes", (row) => count(row.nodes), { rank: 1 }),
  column("on", "On", (row) => row.on || NONE, { left: true, rank: 3, sorts: false, long: "its first node" }),
  ...uses,
  column("age", "Age", (row) => lasting(row.age), { rank: 1, long: "of its oldest task" }),
  column("last", "Last seen", (row) => (row.running ? "runs" : when(row.last))),
];

/** Columns of the rows of a job, one for each node. */
export const JOB_NODE_COLUMNS = [
  linked("node", "Node", (row) => row.node, (row) => nodeAddress(row.node)),
  ...uses,
  column("tasks", "Tasks", (row) => count(row.tasks), { rank: 1 }),
];

/** The time of a node's last message. */
const heard = (row) => (row.seen_age == null ? NONE : when(now() - row.seen_age));

export const NODE_COLUMNS = [
  linked("node", "Node", (row) => row.node, (row) => nodeAddress(row.node)),
  column("jobs", "Jobs", (row) => count(row.jobs)),
  shared("cpu", "CPU", (row) => (row.silent ? "silent" : share(row.cpu)), (row) => (row.silent ? null : row.cpu)),
  column("load", "Load", (row) => cores(row.load), { rank: 1, long: "running and waiting tasks, averaged over a minute" }),
  shared("memory_share", "Memory", (row) => share(row.memory_share), (row) => row.memory_share),
  column("memory", "Memory used", (row) => size(row.memory), { rank: 1 }),
  column("memory_total", "of", (row) => size(row.memory_total), { rank: 2 }),
  column("swap", "Swap", (row) => size(row.swap), { rank: 2 }),
  column("read", "Read", (row) => flow(row.read), { rank: 2 }),
  column("write", "Written", (row) => flow(row.write), { rank: 2 }),
  column("seen_age", "Last heard", heard, { rank: 1, rises: true, show: (cell, row) => {
    say(cell, heard(row));
    mark(cell, "title", row.seen_age == null ? null : `${lasting(row.seen_age)} ago`);
  } }),
];

/** Return the facts of a job: name, text, title. The text of an unknown one is null. */
export function jobFacts(job) {
  const known = (value, text) => (value == null ? null : text(value));
  const of = (value, all, text) => known(value, (one) => (all == null ? text(one) : `${text(one)} of ${text(all)}`));
  return [
    ["CPU", known(job.cpu_share, share), "use of its CPUs, as a share"],
    ["Cores", of(job.cpu, job.cpus, cores), "used, of those allocated"],
    ["Memory", of(job.memory, job.memory_limit, size), job.memory_source === "processes" ? "of its processes" : "used of its limit"],
    ["Peak memory", known(job.memory_peak, size)],
    ["Swap", known(job.memory_swap, size)],
    ["Killed for memory", job.oom_kills ? count(job.oom_kills) : null, "processes killed by the kernel for lack of memory"],
    ["Read", known(job.read, flow)],
    ["Written", known(job.write, flow)],
    ["Tasks", known(job.tasks, count)],
    ["GPUs", known(job.gpus, count)],
    ["GPU use", known(job.gpu, share)],
    ["GPU memory", known(job.gpu_memory, size)],
    ["GPU power", known(job.gpu_power, (value) => `${value.toFixed(0)} W`)],
    ["Age", known(job.age, lasting), "of its oldest task"],
    ["Last sample", known(job.last, when), moment(job.last)],
  ];
}

/** Return the facts of a node. */
export function nodeFacts(node) {
  const known = (value, text) => (value == null ? null : text(value));
  return [
    ["Jobs", known(node.jobs, count)],
    ["CPU", known(node.cpu, share)],
    ["Waits for storage", known(node.iowait, share), "share of its CPUs' time"],
    ["Stolen by the hypervisor", node.steal ? share(node.steal) : null],
    ["Load", known(node.load, cores)],
    ["Memory", known(node.memory, (one) => (node.memory_total == null ? size(one) : `${size(one)} of ${size(node.memory_total)}`))],
    ["Swap", known(node.swap, size)],
    ["Read", known(node.read, flow)],
    ["Written", known(node.write, flow)],
    ["Network", known(node.network, flow), "received and sent over InfiniBand, Omni-Path and RoCE"],
    ["Power", known(node.power, (value) => `${value.toFixed(0)} W`), "of the whole node"],
    ["Hottest sensor", known(node.temperature, (value) => `${value.toFixed(0)} °C`)],
    ["Last heard", heard(node), node.seen_age == null ? null : `${lasting(node.seen_age)} ago`],
    ["Lag", known(node.lag, lasting), "age of its latest values on arrival"],
  ];
}
