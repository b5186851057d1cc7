"""What a job used of what it held: a grade for each, the words for it, and advice on each bad grade.

A job held what the batch system gave it; what it requested is a fact beside: with `--exclusive` it held whole nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from colmet.common.lines import LONGEST, shown, text_of
from colmet.common.text import UNKNOWN, Clock, cores, count, duration, percent, rough_percent, size, utc
from colmet.jobs.advice import CPU_WAIT_SOME, LEAST_WALL_S, MEMORY_SPARE, over
from colmet.jobs.columns import RUNNING
from colmet.jobs.figures import Advice, BatchFacts, GpuUse, Judgement, Number, Report, Use, ratio
from colmet.jobs.grades import BLAMES, CORES, EXCEEDED, EXPLAINS, GOOD, GPUS, LOW, MEMORY, POOR, WALLTIME, Judged, grade
from colmet.jobs.report.ending import ending_of, wall_s

CONFINED = ("slurm", "gridengine")  # batch systems that count cores; OAR counts resources
EXCESS = 1.05  # of what was given: within it, clocks may be the cause


def uses_of(report: Report) -> tuple[Use, ...]:
    """Return the use of the cores, memory and GPUs that a job held, and of its walltime.

    What is neither requested nor limited is skipped.
    """
    batch = report.batch or BatchFacts()
    found = [_cores(report, batch), _memory(report, batch), _gpus(report, batch), _walltime(report, batch)]
    return tuple([one for one in found if one.held is not None])


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


def _cores(report: Report, batch: BatchFacts) -> Use:
    held = report.cpu.cpus or batch.allocated_cores or batch.requested_cores
    return _graded(report, CORES, batch.requested_cores, held, report.cores, report.cpu.used_ratio)


def _memory(report: Report, batch: BatchFacts) -> Use:
    memory, requested = report.memory, batch.requested_memory_bytes
    given = batch.allocated_memory_bytes or requested
    held = given or memory.limit_bytes
    used = memory.total_peak_bytes if given and memory.total_peak_bytes is not None else memory.peak_bytes
    return _graded(report, MEMORY, requested, held, used, ratio(used, held))


def _gpus(report: Report, batch: BatchFacts) -> Use:
    held = batch.allocated_gpus or batch.requested_gpus or len(report.gpus) or None
    part = gpu_ratio(report.gpus)
    used = None if part is None or held is None else part * held
    return _graded(report, GPUS, batch.requested_gpus, held, used, part)


def gpu_ratio(gpus: Sequence[GpuUse]) -> Number:
    """Return the mean use of GPUs, weighted by the time of their allocation."""
    known = [(one.use_ratio, one.held_s or 0.0) for one in gpus if one.use_ratio is not None]
    held = sum(held_s for _, held_s in known)
    if not held:
        return sum(use for use, _ in known) / len(known) if known else None
    return sum(use * held_s for use, held_s in known) / held


def _walltime(report: Report, batch: BatchFacts) -> Use:
    requested, used = batch.requested_walltime_s or None, wall_s(report)
    return _graded(report, WALLTIME, requested, requested, used, ratio(used, requested))


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


GRADE_STYLES = {GOOD: "green", LOW: "yellow", POOR: "red", EXCEEDED: "bold red"}
MOST_STARTS = 4
WORDS = {CORES: "CPU efficiency", MEMORY: "Memory", GPUS: "GPU use", WALLTIME: "Walltime"}
BARS = {CORES: "cyan", MEMORY: "magenta", GPUS: "blue", WALLTIME: "green"}
_JUDGED = {CORES: "CPU time", MEMORY: "memory", GPUS: "GPU time", WALLTIME: "walltime"}
LONGEST_NAME = 60  # characters of a job's name
_AMOUNTS = {CORES: cores, MEMORY: size, GPUS: cores, WALLTIME: duration}


def verdict(report: Report) -> list[Judgement]:
    """Return a few words on each graded use of a job, and the grade."""
    return [Judgement(use.what, _judged(use, report), use.grade) for use in uses_of(report) if use.grade]


def no_verdict(report: Report) -> str:
    """Return why there is no verdict, as a sentence."""
    if report.advice_withheld:
        why = shown(report.advice_withheld, LONGEST)
    elif report.wall_s < LEAST_WALL_S:
        why = f"the job has run for {duration(report.wall_s)}, and {duration(LEAST_WALL_S)} are required"
    else:
        why = "; ".join(_ungraded(report))
    return f"No verdict: {why}."


def _ungraded(report: Report) -> Iterator[str]:
    """Yield why the uses of a job with enough samples and time have no grade."""
    uses = uses_of(report)
    known = [use.what for use in uses]
    if CORES not in known:
        yield "its cores are unknown"
    if MEMORY not in known:
        yield "neither a limit nor a request of memory is known"
    for use in uses:
        if use.used is None:
            why = "is judged of the whole job alone" if use.what == WALLTIME else "was not measured"
            yield f"its {_JUDGED[use.what]} {why}"
        elif BLAMES[use.what].intersection([one.rule for one in report.advice]):
            yield f"on its {_JUDGED[use.what]}, see the advice"
        elif use.ratio is None:
            yield f"how much it had of its {_JUDGED[use.what]} is unknown"
        elif report.state == RUNNING:
            yield f"its {_JUDGED[use.what]} is judged when it has ended"
        else:
            state = "" if report.batch is None else report.batch.state.replace("_", " ")
            yield f"its {_JUDGED[use.what]} is judged of jobs that are done, and its state is {state or 'unknown'}"


def _judged(use: Use, report: Report) -> str:
    share = "" if use.ratio is None else f" {rough_percent(use.ratio)}"
    of = ""
    if use.what == MEMORY and share:
        of = (
            f" of the requested {size(use.held)}" if use.requested is not None else f" of the limit of {size(use.held)}"
        )
        if report.batch is not None and report.batch.allocated_memory_bytes:
            of = f" of {size(use.held)}"
    return f"{WORDS[use.what]}{share}{of}"


def used_of_held(use: Use) -> str:
    """Return what was used of what the job held, and what it requested, if that is not the same."""
    is_count = use.what in (CORES, GPUS)
    amount = _AMOUNTS[use.what]
    held, requested = [count(one) if is_count else amount(one) for one in (use.held, use.requested)]
    mean = " on average" if is_count else ""
    beside = f"; {requested} requested" if use.requested is not None and requested != held else ""
    return f"{'GPUs' if use.what == GPUS else use.what}: {amount(use.used)} of {held}{mean}{beside}"


def about(batch: BatchFacts, clock: Clock) -> str:
    """Return the project, the queue and others in a line; empty without any."""
    waited = None
    if batch.submitted is not None and batch.started is not None and batch.started >= batch.submitted:
        waited = float(batch.started - batch.submitted)
    parts = (
        ("project", batch.project),
        ("queue", batch.queue),
        ("array", batch.array),
        ("after", batch.dependency),
        ("submitted", "" if batch.submitted is None else clock.text(batch.submitted)),
        ("waited", duration(waited or None).replace(UNKNOWN, "")),
    )
    return ", ".join([f"{name} {text_of(value[:LONGEST_NAME])}" for name, value in parts if value])


def others(report: Report) -> str:
    """Return the other jobs with this number."""
    this = min(report.starts, key=lambda one: abs(one - report.start))
    others = [utc(one).replace(" ", "T") + "Z" for one in report.starts if one != this]
    more = f" and {len(others) - MOST_STARTS} more" if len(others) > MOST_STARTS else ""
    return f"{len(report.starts)} jobs have this number; others by --start: {', '.join(others[:MOST_STARTS])}{more}."


BECAUSE = "it used far less than it holds, or more"
NAMES = {CORES: "cpu-low", MEMORY: "memory-low", GPUS: "gpu-low", WALLTIME: "walltime-low"}
LEAST_WALLTIME_S, WALLTIME_SPARE = 60.0, 1.5  # what to ask for, at least, and of the wall time
SHORT_S = 60.0  # a job of less costs about as much to start as to run
MEMORY_STEP = 16 << 20  # bytes, to which an amount to ask for is rounded up


def complete_advice(report: Report) -> tuple[Advice, ...]:
    """Return the advice of the rules, and one on each bad grade that none of them explains."""
    rules = {one.rule for one in report.advice}
    added = []
    for use in uses_of(report):
        if use.grade in (LOW, POOR) and not rules & EXPLAINS[use.what]:
            added.append(Advice(NAMES[use.what], _TEXTS[use.what](report, use), BECAUSE))
        elif use.grade == EXCEEDED and not rules & BLAMES[use.what]:
            ending = ending_of(report)
            if ending is None or not ending.remedy:
                added.append(Advice(f"{use.what}-exceeded", f"Ask for more {use.what}, or have it use less.", BECAUSE))
    return (*report.advice, *added)


def no_advice(report: Report, advice: Sequence[Advice]) -> str:
    """Return why the rules were not applied, as a sentence; empty if they were."""
    return f"No {'other ' if advice else ''}advice: {report.advice_withheld}." if report.advice_withheld else ""


def _cores_advice(report: Report, use: Use) -> str:
    held = report.cpu.cpus if use.requested is None else use.requested
    waited_s = report.time.waiting_cpu_s
    used = f"Used {cores(use.used)} of {count(held)} core{'' if held == 1 else 's'} ({percent(use.ratio)})"
    if over(waited_s, report.time.running_s, CPU_WAIT_SOME):
        return (
            f"{used}, while its tasks waited {duration(waited_s)} for a CPU. Do other programs run on these cores, or "
            "are its threads bound to few of them? Look at its binding, or ask the administrators."
        )
    if held == 1:
        core = "" if waited_s is not None else ", or this core (not measured)"
        why = f"it mostly waited, for files, other hosts, input or another program{core}"
        return f"{used}: {why}. See what it waits for, or let one job do several such tasks at once."
    return f"{used}. Ask for fewer, or start more processes or threads."


def _memory_advice(report: Report, use: Use) -> str:
    held = report.memory.limit_bytes if use.requested is None else use.requested
    enough = MEMORY_STEP * math.ceil(MEMORY_SPARE * (use.used or 0.0) / MEMORY_STEP)
    used = f"Used {size(use.used)} of {size(held)} of memory at most"
    if held is not None and enough >= held:
        return f"{used}: the least that the batch system gives is enough."
    return f"{used}. Ask for less, such as {size(enough)}, and it may start sooner."


def _gpus_advice(report: Report, use: Use) -> str:
    what = "Its GPU" if (use.requested or len(report.gpus)) == 1 else "Its GPUs"
    return (
        f"{what} computed {percent(use.ratio)} of the time. Give more work at once (larger batches, data loaded in "
        "parallel), ask for fewer, or see whether the program finds them (CUDA_VISIBLE_DEVICES)."
    )


def _walltime_advice(report: Report, use: Use) -> str:
    wall_s, asked_s = use.used or 0.0, use.requested or 0.0
    enough_s = 60.0 * math.ceil(max(LEAST_WALLTIME_S, WALLTIME_SPARE * wall_s) / 60.0)
    parts = [f"Ran for {duration(wall_s)} of the requested {duration(asked_s)}."]
    if enough_s < asked_s:
        parts.append(f"Ask for less, such as {duration(enough_s)}, and it may start sooner.")
    if wall_s < SHORT_S or enough_s >= asked_s:
        parts.append("Starting a job this short costs about as much as running it: let one job do the work of several.")
    return " ".join(parts)


_TEXTS = {CORES: _cores_advice, MEMORY: _memory_advice, GPUS: _gpus_advice, WALLTIME: _walltime_advice}
