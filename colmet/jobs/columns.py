"""The columns of the job archive, each declared once: SQLite, documents of databases, JSON, CSV and tables follow.

A missing value is None, never 0. Times of the clock are seconds since 1970, in columns of unit "date". Durations are in
seconds, sizes in bytes, energies in joules, shares from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Union

from colmet.batch import systems
from colmet.common import measures
from colmet.common.measures import ALL, MAX, SUM, Measure

INTEGER, REAL, TEXT, BLOB = "INTEGER", "REAL", "TEXT", "BLOB"  # kinds, as SQLite names them
# More folds over hosts; SAME: the value of all hosts, missing if they differ; OWN: the whole job has a rule of its own.
MIN, FIRST, SAME, OWN = "min", "first", "same", "own"
# How a column is made from the samples of one host: growth of a counter, the largest value, the last one, the mean,
# the sum of value times duration; of the node: growth of the node's counter while the job is there; empty: otherwise.
GROWN, MOST, LAST, MEAN, HELD, OF_NODE = "grown", "most", "last", "mean", "held", "node"

Value = Union[int, float, str, bytes, None]
Summary = Mapping[str, Value]  # a row of the archive: values by name of the column; a missing name is a missing value

# Values of the column `state`. "ended": it is over, and the batch system has not said how.
ENDED, RUNNING, DONE, FAILED = "ended", systems.RUNNING, systems.DONE, systems.FAILED
CANCELLED, TIMEOUT = systems.CANCELLED, systems.TIMEOUT
OUT_OF_MEMORY, NODE_FAILED = systems.OUT_OF_MEMORY, systems.NODE_FAILED
STATES: Mapping[str, str] = {
    RUNNING: "running",
    DONE: "ended with exit code 0",
    FAILED: "ended with another exit code, or by a signal of its own",
    CANCELLED: "ended by its user, an administrator or preemption",
    TIMEOUT: "reached its walltime",
    OUT_OF_MEMORY: "killed for lack of memory",
    NODE_FAILED: "lost a node, or could not be started there",
    ENDED: "ended; the batch system has not reported how",
}


def whole_of(value: object) -> int:
    """Return a number of a summary as a whole number; 0 for a missing value or a text."""
    return int(value) if isinstance(value, (int, float)) else 0


class JobColumn(NamedTuple):
    """A column of the archive."""

    name: str
    kind: str  # INTEGER, REAL, TEXT or BLOB
    unit: str  # s, B, J, date, share; empty for counts, texts and others
    help: str  # a sentence
    hosts: str = OWN  # how the value of the whole job is made from those of its hosts: SUM, ALL, MAX, SAME and others
    how: str = ""  # see `GROWN` and the others
    measures: tuple[Measure, ...] = ()  # the first one with values counts


def _grown(name: str, measure: Measure, text: str = "", unit: str = "", hosts: str = SUM) -> JobColumn:
    kind = REAL if unit == "s" else INTEGER
    return JobColumn(name, kind, unit, text or measure.help, hosts, GROWN, (measure,))


def _most(name: str, text: str, *of: Measure, unit: str = "", hosts: str = SUM) -> JobColumn:
    return JobColumn(name, INTEGER, unit, text, hosts, MOST, of)


def _held(name: str, text: str, measure: Measure, unit: str) -> JobColumn:
    return JobColumn(name, REAL, unit, text, SUM, HELD, (measure,))


def _of_node(name: str, measure: Measure, unit: str = "B") -> JobColumn:
    text = f"{measure.help.rstrip('.')} on its nodes while it ran, other jobs included."
    return JobColumn(name, INTEGER, unit, text, SUM, OF_NODE, (measure,))


# The key of a job's summary is `job` and `start`; that of a host's summary `job`, `host` and `start`.
JOB = JobColumn("job", INTEGER, "", "Number of the job.", FIRST)
HOST = JobColumn("host", TEXT, "", "Name of the host.")
START = JobColumn("start", INTEGER, "date", "Start of the first task; if unknown, the first row.", MIN)

MEASURED = (
    JobColumn("last", INTEGER, "date", "Time of the last row.", MAX),
    JobColumn("is_running", INTEGER, "", "1 while rows are expected, else 0.", MAX),
    JobColumn("user", TEXT, "", "User of the job, from its cgroup; missing if its hosts differ.", SAME),
    JobColumn("hosts", INTEGER, "", "Number of hosts with rows of the job.", SUM),
    JobColumn("wall_s", REAL, "s", "Time from the start to the last row."),
    JobColumn("host_s", REAL, "s", "Wall time, summed over hosts.", SUM),
    JobColumn("samples", INTEGER, "", "Samples of the job, on the host with most.", MAX),
    JobColumn("rows", INTEGER, "", "Samples of the job, on all hosts.", SUM),
    JobColumn("missing", INTEGER, "", "Samples that should be between the first and the last one, and are not.", SUM),
    # CPU
    JobColumn("cpus", REAL, "", "CPUs that the job may run on, the mean over time.", ALL, MEAN, (measures.CPUS,)),
    JobColumn("core_s", REAL, "s", "Allocated CPU time: wall time times CPUs.", ALL),
    _grown("cpu_s", measures.CPU_USED, unit="s"),
    JobColumn("cpu_ratio", REAL, "share", "CPU time used of the allocated."),
    JobColumn("wasted_core_s", REAL, "s", "Allocated CPU time less the CPU time used."),
    _grown("user_s", measures.CPU_USER, unit="s"),
    _grown("system_s", measures.CPU_SYSTEM, unit="s"),
    JobColumn(*("unattributed_s", REAL, "s", measures.CPU_UNATTRIBUTED.help, SUM, LAST), (measures.CPU_UNATTRIBUTED,)),
    _grown("throttled_s", measures.CPU_THROTTLED, unit="s"),
    _grown("wait_cpu_s", measures.WAIT_CPU, unit="s"),
    _grown("wait_io_s", measures.WAIT_IO, unit="s"),
    _grown("wait_swap_s", measures.WAIT_SWAP, unit="s"),
    _grown("wait_reclaim_s", measures.WAIT_RECLAIM, unit="s"),
    _grown("switches", measures.SWITCHES),
    _grown("involuntary_switches", measures.SWITCHES_INVOLUNTARY),
    _most("tasks_peak", "The most tasks at one time.", measures.TASKS_PEAK, measures.TASKS_NOW),
    _grown("tasks_ended", measures.TASKS_ENDED),
    # memory
    _most(
        *("memory_peak", "The most memory at one time: the kernel's record, else the largest sample."),
        *(measures.MEMORY_PEAK, measures.MEMORY),
        unit="B",
    ),
    JobColumn("memory_peak_host", INTEGER, "B", "The same, on the host with most.", MAX),
    _most("memory_anon_peak", "The largest sample without page cache.", measures.MEMORY_ANON, unit="B"),
    JobColumn("memory_limit", INTEGER, "B", measures.MEMORY_LIMIT.help, ALL, LAST, (measures.MEMORY_LIMIT,)),
    JobColumn("memory_ratio", REAL, "share", "Memory peak of the limit, on the host nearest to its limit.", MAX),
    _held("memory_byte_s", "Memory used times duration.", measures.MEMORY, "B s"),
    _most("swap_peak", "The most memory in swap.", measures.MEMORY_SWAP, unit="B", hosts=MAX),
    _grown("memory_limit_hits", measures.MEMORY_LIMIT_HITS),
    _grown("oom_kills", measures.OOM_KILLS),
    _grown("major_faults", measures.MAJOR_FAULTS),
    _grown("refaults_anon", measures.REFAULTS_ANON),
    _grown("refaults_file", measures.REFAULTS_FILE),
    # I/O
    _grown("read_bytes", measures.CHARGED_READ, unit="B"),
    _grown("written_bytes", measures.CHARGED_WRITE, unit="B"),
    _grown("calls_read_bytes", measures.CALLS_READ, unit="B"),
    _grown("calls_written_bytes", measures.CALLS_WRITE, unit="B"),
    _grown("read_calls", measures.READ_CALLS),
    _grown("write_calls", measures.WRITE_CALLS),
    _grown("read_ops", measures.READ_OPS),
    _grown("write_ops", measures.WRITE_OPS),
    _of_node("network_sent_bytes", measures.NETWORK_SENT),
    _of_node("network_received_bytes", measures.NETWORK_RECEIVED),
    _of_node("lustre_read_bytes", measures.LUSTRE_READ),
    _of_node("lustre_written_bytes", measures.LUSTRE_WRITE),
    _of_node("lustre_metadata_ops", measures.LUSTRE_METADATA, unit=""),
    # pressure
    *[_grown(f"pressure_{key}_s", measure, unit="s", hosts=MAX) for key, measure in measures.PRESSURE.items()],
    # GPUs
    _most("gpus", "The most GPUs held at one time.", measures.JOB_GPU_COUNT),
    _held("gpu_s", "GPUs held times duration.", measures.JOB_GPU_COUNT, "s"),
    JobColumn("gpu_busy_s", REAL, "s", "The same, times their use.", SUM),
    _held("gpu_idle_s", "GPUs held without a process of the job, times duration.", measures.JOB_GPU_IDLE, "s"),
    _most("gpu_memory_peak", "The most memory used on its GPUs.", measures.JOB_GPU_MEMORY, unit="B"),
    _most("gpu_memory", "Memory of its GPUs.", measures.JOB_GPU_MEMORY_TOTAL, unit="B"),
    _held("gpu_joules", "Energy of its GPUs, from their power.", measures.JOB_GPU_POWER, "J"),
    # energy of the nodes
    JobColumn("joules", REAL, "J", "Its share of its nodes' energy, by CPU time.", SUM),
    JobColumn("node_joules", REAL, "J", "Energy of its nodes while it ran.", SUM),
    JobColumn("energy_s", REAL, "s", "The part of its wall time on all hosts with known energy.", SUM),
    JobColumn("energy_source", TEXT, "", "rapl (processors and memory), ipmi (whole nodes), or both."),
)

# Of the whole job only, from the batch system.
BATCH = (
    JobColumn("state", TEXT, "", "running; done, failed, ... by the batch system; ended if it has not said how."),
    JobColumn("system", TEXT, "", "Batch system: oar, slurm or gridengine."),
    JobColumn("batch_id", TEXT, "", "Id of the job as the batch system's commands print it."),
    JobColumn("owner", TEXT, "", "User of the job by the batch system; the cgroup's without one."),
    JobColumn("name", TEXT, "", "Name of the job."),
    JobColumn("project", TEXT, "", "Project or account."),
    JobColumn("queue", TEXT, "", "Queue or partition."),
    JobColumn("submitted", INTEGER, "date", "Submission."),
    JobColumn("started", INTEGER, "date", "Start by the batch system."),
    JobColumn("ended", INTEGER, "date", "End by the batch system."),
    JobColumn("exit_code", INTEGER, "", "Exit code of the job's script."),
    JobColumn("exit_signal", INTEGER, "", "Signal that ended it."),
    JobColumn("reason", TEXT, "", "The batch system's own word for its end."),
    JobColumn("allocated_cores", INTEGER, "", "Cores that the batch system gave it; of OAR, resources."),
    JobColumn("allocated_memory", INTEGER, "B", "Memory that it gave it, on all hosts."),
    JobColumn("allocated_gpus", INTEGER, "", "GPUs that it gave it."),
    JobColumn("requested_cores", INTEGER, "", "Requested cores."),
    JobColumn("requested_memory", INTEGER, "B", "Requested memory, on all hosts."),
    JobColumn("requested_gpus", INTEGER, "", "Requested GPUs."),
    JobColumn("requested_walltime_s", INTEGER, "s", "Requested walltime."),
    JobColumn("array", TEXT, "", "Id of the array that it belongs to."),
    JobColumn("array_index", INTEGER, "", "Its place in the array."),
    JobColumn("dependency", TEXT, "", "Jobs that it waits for, in the batch system's words."),
    JobColumn("batch_hosts", TEXT, "", "Its hosts by the batch system, separated by commas."),
)

# Large values, in a table of their own; of the whole job and of each host.
ADVICE = JobColumn("advice", TEXT, "", "Rules that apply, with the text: a JSON list of objects with rule and text.")
RULES = JobColumn("rules", TEXT, "", "Names of the rules of advice that apply, separated by spaces.")  # of whole jobs
FOOTPRINT = JobColumn("footprint", BLOB, "", "Short curves of CPU, memory and GPU: colmet/jobs/footprint.py.")
LARGE = (ADVICE, FOOTPRINT)

JOB_COLUMNS = {column.name: column for column in (JOB, START, *MEASURED, RULES, *BATCH, *LARGE)}
HOST_COLUMNS = {column.name: column for column in (JOB, HOST, START, *MEASURED, *LARGE)}


_TYPES: dict[str, tuple[type, ...]] = {INTEGER: (int,), REAL: (int, float), TEXT: (str,), BLOB: (bytes,)}


def fitting(column: JobColumn, value: Value) -> Value:
    """Return a value read from a file; None for one of another kind, as SQLite keeps any kind in a column."""
    if not isinstance(value, _TYPES[column.kind]) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
