"""The rules of notices: each a condition on a job, its threshold, and the text to its user if it holds.

Rules that mean the same as a rule of `colmet.jobs.advice` have its name. All but one concern running jobs, and
compare the job's totals with those of an earlier moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from colmet.common.text import cores, count, counted, duration, percent
from colmet.jobs.advice import GPU_IDLE, memory_high, out_of_memory
from colmet.jobs.archive.queries import Row
from colmet.jobs.columns import FAILED, NODE_FAILED, OUT_OF_MEMORY, RUNNING, Value
from colmet.jobs.figures import Report

USER, ADMINISTRATORS = "user", "administrators"  # audiences
STALE_S = 900  # a running job without rows for longer is not judged
IDLE_S, IDLE_CPU = 3600.0, 0.02  # of `idle`: time, and the share of the CPU time used in it
GPU_IDLE_S, GPU_IDLE_USE = 3600.0, 0.1  # of `gpu-idle`
MEMORY_SHARE = 0.9  # of `memory-high`: of the limit
METADATA_S, METADATA_RATE = 900.0, 1000.0  # of `metadata`: time, and operations a second
FAILED_WITHIN_S = 300.0  # of `failed-early`: wall time
LONGEST_S = max(IDLE_S, GPU_IDLE_S, METADATA_S)  # that a rule looks back
COPYING = 1 << 20  # bytes a second read and written: a job that copies is not idle
FAILURES = (FAILED, OUT_OF_MEMORY, NODE_FAILED)  # states of `FAILED_EARLY`

# The totals that readings keep, by column of the archive. Missing ones are None.
TOTALS = (
    *("cpu_s", "core_s", "gpu_s", "gpu_busy_s", "gpu_idle_s"),
    *("calls_read_bytes", "calls_written_bytes", "lustre_metadata_ops"),
)
COLUMNS = (
    *("job", "start", "last", "end", "is_running", "state", "user", "name", "queue", "hosts", "batch_id"),
    *("wall_s", "cpus", "started", "ended", "exit_code", "exit_signal", "reason", "memory_ratio", "oom_kills", "gpus"),
    *TOTALS,
)


class TotalsReading(NamedTuple):
    """The totals of a job at one moment."""

    time: float  # of its last row, seconds since 1970
    totals: tuple[float | None, ...]  # in the order of `TOTALS`


def reading_of(row: Row) -> TotalsReading:
    """Return the totals of a job now."""
    return TotalsReading(float(row["last"] or row["start"]), tuple([number(row.get(name)) for name in TOTALS]))


def number(value: Value) -> float | None:
    """Return a number of the archive; None for a missing one, or a text."""
    return float(value) if isinstance(value, (int, float)) else None


class Case:
    """A job with all that a rule may ask of it: its `row` has the values by name of `COLUMNS`.

    `earlier` returns the totals at the latest moment that is not later than the given one, `report` the job's report
    from the archive, each None without any; `is_shared` whether other jobs run on its nodes.
    """

    def __init__(
        self,
        row: Row,
        earlier: Callable[[float], TotalsReading | None],
        report: Callable[[], Report | None],
        is_shared: Callable[[], bool],
    ) -> None:
        self.row = row
        self.now = reading_of(row)
        self.report = report
        self.is_shared = is_shared
        self._earlier = earlier

    def growth(self, time_s: float) -> TotalsGrowth | None:
        """Return the growth in the last `time_s`, or somewhat longer; None for a job that is younger."""
        start = float(self.row["start"])
        then = self._earlier(self.now.time - time_s) or TotalsReading(start, (0.0,) * len(TOTALS))
        elapsed_s = self.now.time - max(then.time, start)
        if elapsed_s < time_s:
            return None
        pairs = zip(TOTALS, then.totals, self.now.totals)
        grown = {name: now - before for name, before, now in pairs if before is not None and now is not None}
        return TotalsGrowth(elapsed_s, {name: value for name, value in grown.items() if value >= 0})


class TotalsGrowth(NamedTuple):
    """The growth of totals; a name without a known growth is missing."""

    elapsed_s: float
    by_name: dict[str, float]

    def share(self, part: str, whole: str) -> float | None:
        """Return the ratio of two totals' growth; None if unknown, or of nothing."""
        some, of = self.by_name.get(part), self.by_name.get(whole)
        return None if some is None or not of else some / of


class Rule(NamedTuple):
    """A rule; its name is stable."""

    name: str
    title: str  # a few words, for the subject of a mail
    because: str  # the condition in words
    text: Callable[[Case], str | None]  # None if the condition does not hold, or is unknown
    is_of_ended: bool = False  # whether it concerns jobs that have ended, else running ones
    only_administrators: Callable[[Case], bool] = lambda _: False  # whether the user is not to blame


def _idle(case: Case) -> str | None:
    grown = case.growth(IDLE_S)
    used = None if grown is None else grown.share("cpu_s", "core_s")
    if grown is None or used is None or used >= IDLE_CPU:
        return None
    gpu_use = grown.share("gpu_busy_s", "gpu_s")
    if gpu_use is not None and gpu_use >= GPU_IDLE_USE:
        return None
    moved = sum(grown.by_name.get(name, 0.0) for name in ("calls_read_bytes", "calls_written_bytes"))
    if moved >= COPYING * grown.elapsed_s:
        return None
    held = grown.by_name["core_s"] / grown.elapsed_s
    # Since the job used more than its cores, `derived` counts all CPUs of the node, back to the start of the job.
    if held > 1.05 * (number(case.row.get("cpus")) or math.inf):
        return None
    of = counted(round(held), "cores") if abs(round(held) - held) < 0.05 else f"{held:.1f} cores"
    return (
        f"Almost idle: used {cores(grown.by_name['cpu_s'] / grown.elapsed_s)} of {of} in the last "
        f"{duration(grown.elapsed_s)}. Is it waiting for input, or already finished? Cancel it if it is not needed."
    )


def _gpu_idle(case: Case) -> str | None:
    grown = case.growth(GPU_IDLE_S)
    held = None if grown is None else grown.by_name.get("gpu_s")
    if grown is None or not held:
        return None
    use, unused = grown.share("gpu_busy_s", "gpu_s"), grown.share("gpu_idle_s", "gpu_s")
    gpus = held / grown.elapsed_s
    is_low = use is not None and use < GPU_IDLE_USE
    # of several GPUs some may be used and others not; more use than that is of processes that are not seen as the job's
    is_partly = use is None or (gpus >= 1.05 and unused is not None and use + unused <= 1)
    if not is_low and not (is_partly and unused is not None and unused >= GPU_IDLE):
        return None
    what = f"its {count(round(gpus, 1))} GPUs were" if gpus >= 1.05 else "its GPU was"
    figures = [f"used {percent(use)}"] if use is not None else []
    figures += [f"without a process {percent(unused)} of the time"] if unused else []
    return (
        f"In the last {duration(grown.elapsed_s)}, {what} {', '.join(figures)}. See whether the program finds them "
        "(CUDA_VISIBLE_DEVICES, nvidia-smi), or ask for fewer."
    )


def _memory_high(case: Case) -> str | None:
    ratio, kills = number(case.row.get("memory_ratio")), number(case.row.get("oom_kills"))
    if not kills and (ratio is None or ratio < MEMORY_SHARE):  # page cache included, so this is not enough
        return None
    report = case.report()
    if report is None:
        return None
    return out_of_memory(report) or memory_high(report, MEMORY_SHARE)


def _metadata(case: Case) -> str | None:
    grown = case.growth(METADATA_S)
    operations = None if grown is None else grown.by_name.get("lustre_metadata_ops")
    if grown is None or operations is None or operations < METADATA_RATE * grown.elapsed_s:
        return None
    others = ", with those of other jobs on its nodes" if case.is_shared() else ""
    return (
        f"Opened, created, listed or removed files on Lustre {count(round(operations / grown.elapsed_s))} times a "
        f"second in the last {duration(grown.elapsed_s)}{others}. All users of the file system wait for that: keep "
        "files open, put many small files into a few large ones, or use a local disk."
    )


def _failed_early(case: Case) -> str | None:
    row = case.row
    began, ended = number(row.get("started")), number(row.get("ended"))
    ran_s = number(row.get("wall_s")) if began is None or ended is None else max(0.0, ended - began)
    if row["state"] not in FAILURES or ran_s is None or ran_s >= FAILED_WITHIN_S:
        return None
    code, signal = number(row.get("exit_code")), number(row.get("exit_signal"))
    how = f"signal {signal:.0f}" if signal else f"exit code {code:.0f}" if code is not None else "no exit code"
    after = f"after {duration(ran_s)}"
    if row["state"] == NODE_FAILED:
        return f"Lost a node {after}. Submit it again; if that happens again, write to the administrators."
    if row["state"] == OUT_OF_MEMORY:
        return f"Killed for lack of memory {after}. Ask for more memory, or have it use less."
    return (
        f"Failed {after} ({how}). Look at its output and error files; a missing file, module or licence is the usual "
        "cause."
    )


IDLE = Rule(
    *("idle", "idle"),
    "in the last hour, less than 2 % of the allocated CPU time was used, its GPUs were not used, and it did "
    "not read and write 1 MiB/s or more",
    _idle,
)
GPU_UNUSED = Rule(
    *("gpu-idle", "GPU idle"),
    "in the last hour, its GPUs were used less than 10 %, or had no process for half of the time, as "
    "far as their use allows",
    _gpu_idle,
)
MEMORY_HIGH = Rule(
    *("memory-high", "memory near its limit"),
    "memory without page cache reached 90 % of the limit or more on some host, or the kernel killed a process",
    _memory_high,
)
METADATA = Rule(
    *("metadata", "heavy metadata load"),
    "in the last quarter of an hour, 1000 or more metadata operations of Lustre a second on its nodes; only to "
    "the administrators while other jobs run on these nodes",
    _metadata,
    only_administrators=lambda case: case.is_shared(),
)
FAILED_EARLY = Rule(
    *("failed-early", "failed soon after its start"),
    "it failed, lost a node or ran out of memory within 5 minutes of its start, by the batch system, and ended in "
    "the last day",
    _failed_early,
    is_of_ended=True,
)
RULES = {rule.name: rule for rule in (IDLE, GPU_UNUSED, MEMORY_HIGH, METADATA, FAILED_EARLY)}


def is_judged(row: Row, now: float) -> bool:
    """Return whether rules for running jobs apply: it runs, by its rows and by the batch system, and has fresh rows."""
    runs = row["state"] == RUNNING and bool(row["is_running"]) and row.get("ended") is None
    return runs and now - float(row["last"] or 0) <= STALE_S
