"""What a job used of what it held, and a grade for each.

A job held what the batch system gave it; what it requested is a fact beside: with `--exclusive` it held whole nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from colmet.common.text import cores, count, size
from colmet.jobs.columns import RUNNING
from colmet.jobs.figures import BatchFacts, GpuUse, Number, Report, Use, ratio
from colmet.jobs.grades import CORES, GPUS, MEMORY, WALLTIME, Judged, grade

CONFINED = ("slurm", "gridengine")  # batch systems that count cores; OAR counts resources
EXCESS = 1.05  # of what was given: within it, clocks may be the cause


def uses_of(report: Report) -> tuple[Use, ...]:
    """Return the use of the cores, memory and GPUs that a job held, and of its walltime.

    What is neither requested nor limited is skipped.
    """
    batch = report.batch or BatchFacts()
    found = [_cores(report, batch), _memory(report, batch), _gpus(report, batch), _walltime(report, batch)]
    return tuple([one for one in found if one is not None])


def _graded(report: Report, what: str, requested: Number, held: Number, used: Number, part: Number) -> Use:
    job = Judged(
        state="" if report.batch is None else report.batch.state,
        is_running=report.state == RUNNING,
        wall_s=report.wall_s,
        is_measured=not report.advice_withheld,
        is_killed=bool(report.memory.oom_kills),
        rules=[one.rule for one in report.advice],
    )
    return Use(what, requested, used, part, grade(what, part, job), held)


def _cores(report: Report, batch: BatchFacts) -> Use | None:
    held = report.cpu.cpus or batch.allocated_cores or batch.requested_cores
    if held is None:
        return None
    return _graded(report, CORES, batch.requested_cores, held, report.cores, report.cpu.used_ratio)


def _memory(report: Report, batch: BatchFacts) -> Use | None:
    memory, requested = report.memory, batch.requested_memory_bytes
    given = batch.allocated_memory_bytes or requested
    held = given or memory.limit_bytes
    if held is None:
        return None
    used = memory.total_peak_bytes if given and memory.total_peak_bytes is not None else memory.peak_bytes
    return _graded(report, MEMORY, requested, held, used, ratio(used, held))


def _gpus(report: Report, batch: BatchFacts) -> Use | None:
    held = batch.allocated_gpus or batch.requested_gpus or len(report.gpus)
    if not held:
        return None
    part = gpu_ratio(report.gpus)
    return _graded(report, GPUS, batch.requested_gpus, held, None if part is None else part * held, part)


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
    return _graded(report, WALLTIME, requested, requested, used, part)


def wall_s(report: Report) -> Number:
    """Return the duration of the whole job: by the batch system, else by the rows; None for an interval of it."""
    batch = report.batch
    if batch is not None and batch.started is not None and batch.ended is not None:
        return max(0.0, float(batch.ended - batch.started))
    return report.wall_s if report.since is None and report.until is None else None


def with_held_cores(report: Report, cpus: Number) -> Report:
    """Return a report whose cores are those that a job held by its summary in the archive.

    The kernel's are those of the node where nothing confines a job.
    """
    batch, cpu = report.batch, report.cpu
    if batch is None or cpus is None or cpus != batch.allocated_cores or (cpu.cpus is not None and cpu.cpus <= cpus):
        return report
    per_cpu_s = report.wall_s if not cpu.cpus else ratio(cpu.available_s, cpu.cpus)
    return replace(report, cpu=replace(cpu, cpus=cpus, available_s=None if per_cpu_s is None else per_cpu_s * cpus))


def excesses(report: Report) -> tuple[str, ...]:
    """Return in sentences what a job used beyond what the batch system gave it."""
    batch = report.batch or BatchFacts()
    found = []
    given = batch.allocated_cores if batch.system in CONFINED else None
    if given and report.cores is not None and report.cpu.cpus is not None and report.cores > EXCESS * given:
        found.append(
            f"it used {cores(report.cores)} cores on average, and {batch.system} gave it {count(given)}: nothing "
            f"confines it to them, or each has several CPUs; its efficiency is of {count(report.cpu.cpus)} CPUs"
        )
    memory, peak = batch.allocated_memory_bytes, report.memory.total_peak_bytes
    if memory and peak is not None and peak > EXCESS * memory:
        found.append(f"it used {size(peak)} of memory, and {batch.system} gave it {size(memory)}: nothing confines it")
    return tuple(found)
