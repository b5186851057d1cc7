// Jobs of the archive: the columns of their rows, and small charts of each.

import { ENDS, jobAddress } from "./columns.js";
import { mark, say } from "./dom.js";
import { column, graded, linked } from "./table.js";
import { NONE, cores, count, energy, lasting, minute, share, size } from "./units.js";

/** States of the archive, [value, text]. */
export const STATES = [
  ["", "all"],
  ["running", "running"],
  ["done,failed,cancelled,timeout,out_of_memory,node_failed,ended", "ended, in any way"],
  ["done", "done"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
  ["timeout", "timeout"],
  ["out_of_memory", "out of memory"],
  ["node_failed", "node failed"],
  ["ended", "ended, unknown how"],
];
/** The values of a row. */
export const VALUES = [
  "job", "start", "end", "batch_id", "user", "name", "project", "queue", "state", "reason", "exit_code", "exit_signal",
  "hosts", "cpus", "wall_s", "cpu_ratio", "cpu_grade", "memory_peak", "memory_used_ratio", "allocated_memory", "requested_memory", "memory_limit",
  "gpus", "energy_joules",
].join(",");
const HEIGHT = 20; // of a small chart, without unit
const SVG = "http://www.w3.org/2000/svg";

/** The columns of archived jobs. */
export const ARCHIVED_COLUMNS = [
  linked("job", "Job", (row) => row.batch_id || String(row.job), address),
  column("name", "Name", (row) => row.name || NONE, { left: true, rank: 1, optional: true }),
  column("user", "User", (row) => row.user || NONE, { left: true, rank: 1 }),
  column("state", "State", ended, { left: true, show: (cell, row) => {
    say(cell, ended(row));
    mark(cell, "title", row.reason && row.reason.toLowerCase() !== row.state ? `${ended(row)}; by the batch system: ${row.reason}` : ended(row));
    cell.classList.toggle("bad", ENDS[row.state] === "bad");
  } }),
  column("hosts", "Nodes", (row) => count(row.hosts), { rank: 3 }),
  column("cpus", "Cores", (row) => (row.live?.cpu == null ? cores(row.cpus) : `${cores(row.live.cpu)} of ${cores(row.cpus)}`),
    { rank: 1, long: "cores allocated; of a running job also those in use now" }),
  column("wall_s", "Wall time", (row) => lasting(row.live?.last == null ? row.wall_s : row.live.last - row.start), { rank: 1 }),
  column("footprint", "Over time", () => "", { left: true, sorts: false, show: draw,
    long: "CPU, memory, GPU over the job's life: CPU up to the allocated cores, memory up to what it held, GPUs up to those allocated" }),
  graded("cpu_ratio", "CPU efficiency", (row) => share(row.cpu_ratio), (row) => row.cpu_ratio, (row) => row.cpu_grade ?? "",
    { long: "CPU time used, as a share of the allocated CPU time" }),
  column("memory_used_ratio", "Memory", ofMemory,
    { rank: 1, long: "highest memory use, as a share of the memory that the job held" }),
  column("energy_joules", "Energy", (row) => energy(row.energy_joules), { rank: 3, optional: true, long: "its share of its nodes' energy, and its GPUs'" }),
  column("start", "Started", (row) => minute(row.start), { rank: 1 }),
  column("end", "Ended", (row) => (row.state === "running" ? "runs" : minute(row.end)), { rank: 3 }),
];

/** The address of a job: numbers are used again, so that of an ended one has its start. */
function address(row) {
  return row.state === "running" ? jobAddress(row.job) : `${jobAddress(row.job)}?start=${row.start}`;
}

/** The state of a job; of a failed one with its exit code or signal, as other states explain themselves. */
function ended(row) {
  const why = row.state !== "failed" ? "" : row.exit_signal ? `signal ${row.exit_signal}` : row.exit_code ? `exit ${row.exit_code}` : "";
  return [String(row.state ?? NONE).replaceAll("_", " "), why].filter(Boolean).join(", ");
}

/** The memory of all hosts that the job held, else requested, else the limit on the only one; null for several limits. */
function held(row) {
  return row.allocated_memory ?? row.requested_memory ?? (row.hosts === 1 ? row.memory_limit : null);
}

/** The peak of memory of a job, as a share of what it held. */
function ofMemory(row) {
  if (row.memory_used_ratio == null) return row.memory_peak == null ? NONE : `${size(row.memory_peak)}, no limit known`;
  const whole = held(row);
  return `${share(row.memory_used_ratio)} of ${whole == null ? "the limit" : size(whole)}`;
}

const CURVES = [
  ["cpu", "CPU", (row) => row.cpus, (value) => `${cores(value)} cores`],
  ["memory", "Memory", (row) => row.allocated_memory ?? row.requested_memory ?? row.memory_limit, size],
  ["gpu", "GPU", (row) => row.gpus, (value) => `${cores(value)} GPUs`],
];
const drawn = new WeakMap(); // cell -> the curves in it

/** Draw the small charts of a job into a cell, if they differ. */
function draw(cell, row) {
  const curves = row.footprint ?? null;
  if (drawn.has(cell) && drawn.get(cell) === curves) return;
  drawn.set(cell, curves);
  const charts = CURVES.flatMap(([name, title, full, text]) => {
    const values = curves?.[name];
    const all = full(row);
    return all && values?.some((value) => value != null) ? [small(name, title, values, all, text)] : []; // else it has no scale
  });
  cell.replaceChildren(...charts);
  if (!charts.length) say(cell, NONE);
}

/** A small chart: steps, with gaps, up to `full`, or to a larger value. */
function small(name, title, values, full, text) {
  const known = values.filter((value) => value != null);
  const most = Math.max(...known, full);
  const node = document.createElementNS(SVG, "svg");
  const set = (element, attributes) => Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const label = `${title} over time: mean ${text(mean)}, max ${text(Math.max(...known))} of ${text(full)}`;
  set(node, { class: `foot of-${name}`, viewBox: `0 0 ${values.length} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  const hint = document.createElementNS(SVG, "title");
  hint.textContent = label;
  const path = document.createElementNS(SVG, "path");
  let steps = "";
  values.forEach((value, n) => {
    if (value == null) return;
    const top = (HEIGHT * (1 - Math.max(0, value) / most)).toFixed(1);
    steps += n && values[n - 1] != null ? `V${top}h1` : `M${n} ${HEIGHT}V${top}h1`;
    if (n === values.length - 1 || values[n + 1] == null) steps += `V${HEIGHT}z`;
  });
  path.setAttribute("d", steps);
  node.append(hint, path);
  return node;
}
