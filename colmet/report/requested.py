"""What a job used of what it requested, and a grade for each."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.archive.columns import RUNNING
from colmet.archive.grades import CORES, GPUS, MEMORY, WALLTIME, Judged, grade
from colmet.report.model import BatchFacts, GpuUse, Number, Report, Use, ratio


def uses_of(report: Report) -> tuple[Use, ...]:
    """Return the use of cores, memory, GPUs and walltime, of the requested amount, else of the allocated.

    What is neither requested nor limited is skipped.
    """
    batch = report.batch or BatchFacts()
    found = [_cores(report, batch), _memory(report, batch), _gpus(report, batch), _walltime(report, batch)]
    return tuple([one for one in found if one is not None])


def _graded(report: Report, what: str, requested: Number, used: Number, part: Number) -> Use:
    job = Judged(
        state="" if report.batch is None else report.batch.state,
        is_running=report.state == RUNNING,
        wall_s=report.wall_s,
        is_measured=not report.advice_withheld,
        is_killed=bool(report.memory.oom_kills),
    )
    return Use(what, requested, used, part, grade(what, part, job))


def _cores(report: Report, batch: BatchFacts) -> Use | None:
    requested = batch.requested_cores
    if requested is None and report.cpu.cpus is None:
        return None
    part = report.cpu.used_ratio if requested is None else ratio(report.cores, requested)
    return _graded(report, CORES, requested, report.cores, part)


def _memory(report: Report, batch: BatchFacts) -> Use | None:
    memory, requested = report.memory, batch.requested_memory_bytes
    if requested is None and memory.limit_bytes is None:
        return None
    used = memory.peak_bytes
    if requested is not None and memory.total_peak_bytes is not None:
        used = memory.total_peak_bytes
    part = ratio(used, memory.limit_bytes if requested is None else requested)
    return _graded(report, MEMORY, requested, used, part)


def _gpus(report: Report, batch: BatchFacts) -> Use | None:
    if not batch.requested_gpus and not report.gpus:
        return None
    part = gpu_ratio(report.gpus)
    used = None if part is None else part * (batch.requested_gpus or len(report.gpus))
    return _graded(report, GPUS, batch.requested_gpus, used, part)


def gpu_ratio(gpus: Sequence[GpuUse]) -> Number:
    """Return the mean use of GPUs, weighted by the time of their allocation."""
    known = [(one.use_ratio, one.held_s or 0.0) for one in gpus if one.use_ratio is not None]
    held = sum(held_s for _, held_s in known)
    if not held:
        return sum(use for use, _ in known) / len(known) if known else None
    return sum(use * held_s for use, held_s in known) / held


def _walltime(report: Report, batch: BatchFacts) -> Use | None:
    requested = batch.requested_walltime_s
    if not requested:
        return None
    used = wall_s(report)
    part = ratio(used, requested)
    return _graded(report, WALLTIME, requested, used, part)


def wall_s(report: Report) -> Number:
    """Return the duration of the whole job: by the batch system, else by the rows; None for an interval of it."""
    batch = report.batch
    if batch is not None and batch.started is not None and batch.ended is not None:
        return max(0.0, float(batch.ended - batch.started))
    return report.wall_s if report.since is None and report.until is None else None
