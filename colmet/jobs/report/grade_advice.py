"""The advice on a job with a sentence for each bad grade: what the rules say, and what the grades add."""

from __future__ import annotations

import math
from collections.abc import Sequence

from colmet.common.text import cores, count, duration, percent, size
from colmet.jobs.advice import CPU_WAIT_SOME, MEMORY_SPARE, over
from colmet.jobs.figures import Advice, Report, Use
from colmet.jobs.grades import BLAMES, CORES, EXCEEDED, EXPLAINS, GPUS, LOW, MEMORY, POOR, WALLTIME
from colmet.jobs.report.ending import ending_of
from colmet.jobs.report.requested import uses_of

BECAUSE = "its grade is bad, and no other rule says why"
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


def _cores(report: Report, use: Use) -> str:
    held = report.cpu.cpus if use.requested is None else use.requested
    waited_s = report.time.waiting_cpu_s
    used = f"Used {cores(use.used)} of {count(held)} core{'' if held == 1 else 's'} ({percent(use.ratio)})"
    if over(waited_s, report.time.running_s, CPU_WAIT_SOME):
        return (
            f"{used}, while its tasks waited {duration(waited_s)} for a CPU. Do other programs run on these cores, or "
            "are its threads bound to few of them? Look at its binding, or ask the administrators."
        )
    if held == 1:
        return (
            f"{used}: it mostly waited, for files, other hosts, input or another program. See what it waits for, or "
            "let one job do several such tasks at once."
        )
    return f"{used}. Ask for fewer, or start more processes or threads."


def _memory(report: Report, use: Use) -> str:
    held = report.memory.limit_bytes if use.requested is None else use.requested
    enough = MEMORY_STEP * math.ceil(MEMORY_SPARE * (use.used or 0.0) / MEMORY_STEP)
    used = f"Used {size(use.used)} of {size(held)} of memory at most"
    if held is not None and enough >= held:
        return f"{used}: the least that the batch system gives is enough."
    return f"{used}. Ask for less, such as {size(enough)}, and it may start sooner."


def _gpus(report: Report, use: Use) -> str:
    what = "Its GPU" if (use.requested or len(report.gpus)) == 1 else "Its GPUs"
    return (
        f"{what} computed {percent(use.ratio)} of the time. Give more work at once (larger batches, data loaded in "
        "parallel), ask for fewer, or see whether the program finds them (CUDA_VISIBLE_DEVICES)."
    )


def _walltime(report: Report, use: Use) -> str:
    wall_s, asked_s = use.used or 0.0, use.requested or 0.0
    enough_s = 60.0 * math.ceil(max(LEAST_WALLTIME_S, WALLTIME_SPARE * wall_s) / 60.0)
    parts = [f"Ran for {duration(wall_s)} of the requested {duration(asked_s)}."]
    if enough_s < asked_s:
        parts.append(f"Ask for less, such as {duration(enough_s)}, and it may start sooner.")
    if wall_s < SHORT_S or enough_s >= asked_s:
        parts.append("Starting a job this short costs about as much as running it: let one job do the work of several.")
    return " ".join(parts)


_TEXTS = {CORES: _cores, MEMORY: _memory, GPUS: _gpus, WALLTIME: _walltime}
