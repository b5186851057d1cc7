"""Advice on a job: thresholds, and a table of rules, each a condition on a report and the text to print if it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, TypeVar

from colmet.common.text import cores, count, duration, percent, size, some_of
from colmet.jobs.figures import Advice, GpuUse, HostFigures, Number, Report

# Thresholds. No advice is given with fewer samples, or a smaller share of the due ones.
LEAST_SAMPLES, LEAST_RATIO = 2, 0.95
# An earlier figure has no meaning: a short job mostly starts and ends. Waits are noisier than the use of cores.
LEAST_WALL_S, LEAST_CPU_S = 30.0, 60.0
LEAST_WAIT_S = 1.0
IDLE = 0.02  # of the cores' time: below it, a job or a host is idle
CPU_LOW = 0.5  # of the cores' time: below it, the CPU use is low
ONE_CORE = (0.8, 1.05)  # cores that a program of one thread uses
IMBALANCE = 1.5  # cores used on a host, relative to the mean of the hosts
TAIL, TAIL_S, TAIL_CORES = 0.25, 600.0, 0.02  # share of the wall time, time and cores of an idle end
MEMORY_SPARE = 1.2  # what to ask for, of the peak
MEMORY_HIGH, MEMORY_LOW, MEMORY_LOW_LIMIT = 0.9, 0.25, 2 << 30  # of the limit; the smallest limit that is low
CPU_WAIT, CPU_WAIT_SOME, BLOCK_IO, SWAP, RECLAIM = 0.25, 0.2, 0.2, 0.01, 0.02  # waits, of the running time
THROTTLED, KERNEL = 0.05, 0.3  # of the CPU time
SHORT_TASKS, SHORT_TASKS_RATE, SHORT_TASK_S = 1000, 10.0, 0.02  # ended tasks, a second of wall time, CPU time of each
SMALL_IO_CALLS, SMALL_IO_RATE, SMALL_IO_BYTES = 1_000_000, 1000, 4096  # calls, calls a second, bytes of a call
GPU_HELD_S, GPU_IDLE, GPU_USE = 300.0, 0.5, 0.1


# The advice; None if the condition does not hold, or is unknown.
RuleText = TypeVar("RuleText", bound=Callable[..., Optional[str]])


class AdviceRule(NamedTuple):
    """A rule; its name is stable."""

    name: str
    because: str  # the condition in words, with its threshold
    text: Callable[[Report], str | None]
    unless: Sequence[str] = ()  # rules explaining the same figures; if one of them holds, this one is skipped


def over(part: Number, whole: Number, least_ratio: float, least: float = 0.0) -> bool:
    """Return whether `part` has this ratio to `whole` and this value; False if either is unknown."""
    return part is not None and bool(whole) and part >= max(least_ratio * (whole or 0), least)


def _hosts(report: Report, idle: bool) -> Sequence[HostFigures]:
    """Return the hosts with next to no CPU use, or the others; without those of unknown use."""
    return [one for one in report.hosts if one.cpu_used_ratio is not None and (one.cpu_used_ratio < IDLE) == idle]


RULES: list[AdviceRule] = []  # in the order of the advice


def _rule(name: str, because: str, unless: Sequence[str] = ()) -> Callable[[RuleText], RuleText]:
    """Return a decorator that adds a rule with this text."""

    def add(text: RuleText) -> RuleText:
        RULES.append(AdviceRule(name, because, text, unless))
        return text

    return add


WAITING = ("cpu-wait", "throttled", "block-io", "swap", "reclaim")
_WALL, _CPU_MINUTE = "(30 s of wall time or more)", "(1 min of CPU time or more)"
_RAN = "of the CPU time that they used"


@_rule("oom", "the kernel killed a process of the job for lack of memory")
def out_of_memory(report: Report) -> str | None:
    """Return the advice on processes that the kernel killed; None without any."""
    kills = report.memory.oom_kills
    if not kills:
        return None
    killed = f"The kernel killed {count(kills)} process{'' if kills == 1 else 'es'} for lack of memory"
    peak, limit = report.memory.peak_bytes, report.memory.limit_bytes
    if limit and peak is not None and not report.memory.sampled and peak < MEMORY_HIGH * limit:
        return (
            f"{killed} at a limit inside the job, of a step or a container: the job itself used {size(peak)} of "
            f"{size(limit)}. Raise that limit (srun --mem), or have it use less; results may be incomplete."
        )
    of_limit = f" (limit {size(limit)})" if limit else ""
    return f"{killed}{of_limit}. Ask for more memory, or have it use less; results may be incomplete."


@_rule("memory-high", f"memory without page cache reached {percent(MEMORY_HIGH)} of the limit or more, on some host")
def memory_high(report: Report, least_share: float = MEMORY_HIGH) -> str | None:
    """Return the advice on memory that comes to this share of the limit on some host; None if it does not."""
    found = [
        (needed / host.memory_limit_bytes, needed, host)
        for host in report.hosts
        for needed in [host.memory_peak_bytes if host.memory_anon_peak_bytes is None else host.memory_anon_peak_bytes]
        if needed is not None and host.memory_limit_bytes
    ]
    share, needed, host = max(found, key=lambda one: one[0], default=(0.0, 0.0, None))
    if report.memory.oom_kills or host is None or share < least_share:
        return None
    return (
        f"Needed {size(needed)} of {size(host.memory_limit_bytes)} of memory on {host.host}. A little more, and the "
        "kernel kills it: ask for more."
    )


@_rule(
    "memory-low",
    f"the peak of memory is below {percent(MEMORY_LOW)} of a limit of 2 GiB or more, on every host",
    ("oom", "memory-high", "swap", "reclaim"),
)
def _memory_low(report: Report) -> str | None:
    peak, limit = report.memory.peak_bytes, report.memory.limit_bytes  # of the host nearest to its limit
    if peak is None or limit is None or peak >= MEMORY_LOW * limit:
        return None
    if any(
        host.memory_peak_bytes is None or (host.memory_limit_bytes or 0) < MEMORY_LOW_LIMIT for host in report.hosts
    ):
        return None
    most, enough = f"{size(peak)} of {size(limit)}", size(MEMORY_SPARE * peak)
    return f"Used {most} of memory at most. Ask for less, such as {enough}, and it may start sooner."


def _is_one_core(report: Report) -> bool:
    used = report.cores
    is_long = len(report.hosts) == 1 and report.wall_s >= LEAST_WALL_S
    return is_long and used is not None and ONE_CORE[0] <= used <= ONE_CORE[1] and (report.cpu.cpus or 0) >= 2


@_rule(
    "one-core",
    f"on one host, {ONE_CORE[0]} to {ONE_CORE[1]} of 2 or more cores were used on average {_WALL}",
    ("cpu-wait", "throttled"),
)
def _one_core(report: Report) -> str | None:
    if not _is_one_core(report) or over(report.time.waiting_cpu_s, report.time.running_s, CPU_WAIT_SOME):
        return None  # one core was free, however many threads it has
    return (
        f"Used one of {count(report.cpu.cpus)} cores: the program runs one thread at a time. Ask for one core, or have "
        "it use them all (OMP_NUM_THREADS, make -j, several processes)."
    )


def _computes_on_gpus(report: Report) -> bool:
    return any((gpu.use_ratio or 0.0) >= GPU_USE for gpu in report.gpus)


@_rule("idle", f"less than {percent(IDLE)} of wall time by cores was used, and no GPU {_WALL}", WAITING)
def _idle(report: Report) -> str | None:
    if report.cpu.used_ratio is None or report.cpu.used_ratio >= IDLE or report.wall_s < LEAST_WALL_S:
        return None
    if _computes_on_gpus(report):
        return None
    cpus = report.cpu.cpus
    return (
        f"Almost idle: used {cores(report.cores)} of {count(cpus)} core{'' if cpus == 1 else 's'} for "
        f"{duration(report.wall_s)}. Is it waiting for input, or already finished?"
    )


@_rule("cpu-low", f"{percent(IDLE)} to {percent(CPU_LOW)} of wall time by 2 or more cores was used {_WALL}", WAITING)
def _cpu_low(report: Report) -> str | None:
    used, working = report.cpu.used_ratio, _hosts(report, idle=False)
    if used is None or not IDLE <= used < CPU_LOW or report.wall_s < LEAST_WALL_S:
        return None
    if (
        (report.cpu.cpus or 0) < 2
        or _is_one_core(report)
        or over(report.time.waiting_cpu_s, report.time.running_s, CPU_WAIT_SOME)
    ):
        return None  # more processes would wait, too
    where = f" on {len(working)} of {len(report.hosts)} hosts" if len(working) < len(report.hosts) else ""
    return (
        f"Used {cores(report.cores)} of {count(report.cpu.cpus)} cores{where} ({percent(used)}). Ask for fewer, or "
        "start more processes or threads."
    )


@_rule("host-idle", f"a host used less than {percent(IDLE)} of its wall time by cores, and another one more {_WALL}")
def _host_idle(report: Report) -> str | None:
    hosts = _hosts(report, idle=True)
    if not hosts or not _hosts(report, idle=False) or report.wall_s < LEAST_WALL_S:
        return None
    names = some_of([host.host for host in hosts], 3)
    return (
        f"{len(hosts)} of {len(report.hosts)} hosts were almost idle: {names}. Does the program know of all of them "
        "(mpirun -machinefile)? If not, ask for fewer."
    )


@_rule("imbalance", f"a host used {IMBALANCE} times the mean of those with {percent(IDLE)} or more {_WALL}")
def _imbalance(report: Report) -> str | None:
    working = [(host.cores or 0.0, host.host) for host in _hosts(report, idle=False)]
    if len(working) < 2 or report.wall_s < LEAST_WALL_S:
        return None
    mean = sum(used for used, _ in working) / len(working)
    most, where = max(working)
    if most < IMBALANCE * mean:
        return None
    return (
        f"Used {cores(most)} cores on {where}, and {cores(mean)} on the average of {len(working)} hosts. Divide the "
        "work more evenly."
    )


@_rule(
    "idle-end",
    f"no host used {TAIL_CORES} cores for the last {percent(TAIL)} of the wall time, and for 10 min or more, "
    "and no GPU",
)
def _tail(report: Report) -> str | None:
    curve = next((curve for curve in report.curves if curve.name == "cpu"), None)
    if curve is None or len(curve.lines) < len(report.hosts) or _idle(report) or _computes_on_gpus(report):
        return None  # a host without values may have been busy
    busy = [float(line.times[line.values > TAIL_CORES].max(initial=0)) for line in curve.lines]
    idle_s = report.end - max(max(busy), float(report.start))
    if idle_s < TAIL_S or idle_s < TAIL * report.wall_s:
        return None
    return (
        f"Nothing ran in the last {duration(idle_s)} of {duration(report.wall_s)}. End the job when its work is done, "
        "and look for what did not end."
    )


@_rule("cpu-wait", f"tasks waited for a CPU for {percent(CPU_WAIT)} or more {_RAN} {_CPU_MINUTE}")
def _cpu_wait(report: Report) -> str | None:
    time = report.time
    if (time.running_s or 0) < LEAST_CPU_S or not over(time.waiting_cpu_s, time.running_s, CPU_WAIT):
        return None
    tasks = f" (up to {count(report.tasks_peak)} tasks)" if report.tasks_peak else ""
    waited = f"Its tasks waited {duration(time.waiting_cpu_s)} for a CPU and ran for {duration(time.running_s)}"
    used = report.cpu.used_ratio
    if used is not None and used < CPU_LOW:
        return (
            f"{waited}, though they used {percent(used)} of the CPU time of its cores{tasks}. Do other programs run on "
            "these cores, or are its threads bound to few of them? Look at its binding, or ask the administrators."
        )
    return f"{waited}: more busy threads than cores{tasks}. Start no more than one for each core."


@_rule(
    "throttled",
    f"the CPU quota kept the job from running for {percent(THROTTLED)} or more of its CPU time, and for 1 s or more",
)
def _throttled(report: Report) -> str | None:
    if not over(report.cpu.throttled_s, report.cpu.used_s, THROTTLED, LEAST_WAIT_S):
        return None
    return (
        f"Its CPU quota kept it from running for {duration(report.cpu.throttled_s)}. It has more busy threads than its "
        "quota allows: start fewer, or ask for more."
    )


@_rule("block-io", f"tasks waited for disks for {percent(BLOCK_IO)} or more {_RAN}, and for 1 min or more")
def _block_io(report: Report) -> str | None:
    time = report.time
    if not over(time.block_io_s, time.running_s, BLOCK_IO, LEAST_CPU_S):
        return None
    return (
        f"Its tasks waited {duration(time.block_io_s)} for disks and ran for {duration(time.running_s)}. Read and "
        "write larger pieces, or put the files on a faster disk or in memory."
    )


@_rule("swap", f"tasks waited for pages in swap for {percent(SWAP)} or more {_RAN}, and for 1 s or more")
def _swap(report: Report) -> str | None:
    waited_s = report.time.swap_s
    if not over(waited_s, report.time.running_s, SWAP, LEAST_WAIT_S):
        return None
    return f"Its tasks waited {duration(waited_s)} for pages in swap. It needs more memory than it has: ask for more."


@_rule("reclaim", f"tasks waited for memory to be freed for {percent(RECLAIM)} or more {_RAN}, and for 1 s or more")
def _reclaim(report: Report) -> str | None:
    waited_s = report.time.reclaim_s
    if not over(waited_s, report.time.running_s, RECLAIM, LEAST_WAIT_S):
        return None
    return (
        f"Its tasks waited {duration(waited_s)} for the kernel to free memory. It is short of memory, page cache "
        "included: ask for more, or read files in another order."
    )


@_rule("kernel-time", f"{percent(KERNEL)} or more of the CPU time was spent in the kernel {_CPU_MINUTE}")
def _kernel_time(report: Report) -> str | None:
    if (report.cpu.used_s or 0) < LEAST_CPU_S or (report.cpu.system_ratio or 0) < KERNEL:
        return None
    return (
        f"Spent {percent(report.cpu.system_ratio)} of its CPU time in the kernel. Many "
        "short processes, small reads and writes, or frequent allocation of memory cause this."
    )


@_rule(
    "short-tasks",
    "1,000 processes and threads or more have ended, 10 a second or more, after less than 20 ms of CPU time each on "
    f"average {_WALL}",
)
def _short_tasks(report: Report) -> str | None:
    ended, used_s = report.tasks_ended, report.cpu.used_s
    if ended is None or used_s is None or report.wall_s < LEAST_WALL_S:
        return None
    if ended < max(SHORT_TASKS, SHORT_TASKS_RATE * report.wall_s) or used_s / ended >= SHORT_TASK_S:
        return None
    return (
        f"Started {count(ended)} processes and threads, with {1000 * used_s / ended:.3g} ms of CPU time each on "
        "average. To start one costs about as much: let one process do the work of many, such as a loop in one program "
        "instead of a program for each step of a loop."
    )


@_rule("small-io", "a million reads and writes or more, 1,000 a second, of less than 4 KiB on average")
def _small_io(report: Report) -> str | None:
    io = report.io
    kinds = ((io.read_calls, io.asked_read_bytes), (io.write_calls, io.asked_written_bytes))
    known = [(number, amount) for number, amount in kinds if number is not None and amount is not None]
    calls, moved = sum(number for number, _ in known), sum(amount for _, amount in known)
    if calls < max(SMALL_IO_CALLS, SMALL_IO_RATE * report.wall_s) or moved / calls >= SMALL_IO_BYTES:
        return None
    return (
        f"Made {count(calls)} reads and writes of {size(moved / calls)} each on average. Buffer them: each call costs "
        "time, and much more so on a network file system."
    )


@_rule(
    "gpu-idle",
    f"a GPU held for 5 min or more was used less than {percent(GPU_USE)}, or had no process for half of the time, if "
    "its use is unknown",
)
def _gpu_idle(report: Report) -> str | None:
    def is_idle(gpu: GpuUse) -> bool:
        # a GPU that is used without a process of the job is used by it in a container, or by others: not for nothing
        if gpu.use_ratio is not None:
            return gpu.use_ratio < GPU_USE
        return over(gpu.idle_s, gpu.held_s, GPU_IDLE)

    held = [gpu for gpu in report.gpus if (gpu.held_s or 0) >= GPU_HELD_S]
    unused = [gpu for gpu in held if is_idle(gpu)]
    if not unused:
        return None
    return (
        f"{len(unused)} of {len(held)} GPUs were almost unused. Ask for fewer, or see whether the program finds "
        "them (CUDA_VISIBLE_DEVICES)."
    )


def withheld(report: Report) -> str:
    """Return why no advice can be given; else an empty string."""
    if report.samples < LEAST_SAMPLES:
        return f"there are fewer than {LEAST_SAMPLES} samples of the job"
    here = report.completeness.here_ratio
    if here is not None and here < LEAST_RATIO:
        tenths = math.floor(1000 * here) / 10  # 94.96 % is not 95
        return f"only {tenths:g} % of the job's samples are stored, and {percent(LEAST_RATIO)} are required"
    return ""


def advise(report: Report) -> tuple[Advice, ...]:
    """Return the advice of all rules on a report, without rules explained by another one."""
    found = [(rule, rule.text(report)) for rule in RULES]
    hold = {rule.name for rule, text in found if text is not None}
    return tuple(
        Advice(rule.name, text, rule.because)
        for rule, text in found
        if text is not None and not hold.intersection(rule.unless)
    )


BECAUSE = {rule.name: rule.because for rule in RULES}  # the conditions in words, by name of the rule
