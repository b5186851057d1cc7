"""Advice on a job: a table of rules, each a condition on a report and the text to print if it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colmet.commands.report.model import Advice, GpuUse, HostFigures, Number, Report
from colmet.commands.units import cores, count, duration, percent, size

LEAST_RATIO = 0.95  # of the samples; no advice below
LEAST_SAMPLES = 2
IDLE_RATIO = 0.02  # of the CPU time; below, a job counts as idle
MINUTE_S = 60.0
GIB = float(1 << 30)


class Rule(NamedTuple):
    """A rule.

    Attributes:
        name: stable.
        because: the condition in words, with its threshold.
        text: returns the advice on a report; None if the condition does not hold, or is unknown.
        unless: rules explaining the same figures; if one of them holds, this one is skipped.
    """

    name: str
    because: str
    text: Callable[[Report], str | None]
    unless: Sequence[str] = ()


def over(part: Number, whole: Number, least: float) -> bool:
    """Return whether `part` is at least `least` times `whole`; False if either is unknown."""
    return part is not None and bool(whole) and part >= least * (whole or 0)


def idle_hosts(report: Report) -> Sequence[HostFigures]:
    """Return the hosts with next to no CPU use."""
    return [host for host in report.hosts if host.cpu_used_ratio is not None and host.cpu_used_ratio < IDLE_RATIO]


def working_hosts(report: Report) -> Sequence[HostFigures]:
    """Return the hosts with at least a minimum of CPU use."""
    return [host for host in report.hosts if host.cpu_used_ratio is not None and host.cpu_used_ratio >= IDLE_RATIO]


def _is_one_core(report: Report) -> bool:
    used = report.cores
    is_long = len(report.hosts) == 1 and report.wall_s >= MINUTE_S
    return is_long and used is not None and 0.8 <= used <= 1.05 and (report.cpu.cpus or 0) >= 2


def one_core(report: Report) -> str | None:
    """Advise on a job of one thread on several cores."""
    if not _is_one_core(report):
        return None
    return (
        f"Used one of {count(report.cpu.cpus)} cores: the program runs one thread at a time. Ask for one core, or have "
        "it use them all (OMP_NUM_THREADS, make -j, several processes)."
    )


def cpu_low(report: Report) -> str | None:
    """Advise on the use of less than half of the CPU time."""
    used, working = report.cpu.used_ratio, working_hosts(report)
    if used is None or not IDLE_RATIO <= used < 0.5 or report.wall_s < MINUTE_S:
        return None
    if (
        (report.cpu.cpus or 0) < 2
        or _is_one_core(report)
        or over(report.time.waiting_cpu_s, report.time.running_s, 0.2)
    ):
        return None  # more processes would wait, too
    where = f" on {len(working)} of {len(report.hosts)} hosts" if len(working) < len(report.hosts) else ""
    return (
        f"Used {cores(report.cores)} of {count(report.cpu.cpus)} cores{where} ({percent(used)}). Ask for fewer, or "
        "start more processes or threads."
    )


def idle(report: Report) -> str | None:
    """Advise on a job with next to no CPU use."""
    if report.cpu.used_ratio is None or report.cpu.used_ratio >= IDLE_RATIO or report.wall_s < MINUTE_S:
        return None
    cpus = report.cpu.cpus
    return (
        f"Almost idle: used {cores(report.cores)} of {count(cpus)} core{'' if cpus == 1 else 's'} for "
        f"{duration(report.wall_s)}. Is it waiting for input, or already finished?"
    )


def host_idle(report: Report) -> str | None:
    """Advise on idle hosts beside busy ones."""
    hosts = idle_hosts(report)
    if not hosts or not working_hosts(report) or report.wall_s < MINUTE_S:
        return None
    names = ", ".join([host.host for host in hosts[:3]]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return (
        f"Next to nothing ran on {len(hosts)} of {len(report.hosts)} hosts: {names}. Does the program know of all of "
        "them (mpirun -machinefile)? Else ask for fewer."
    )


def imbalance(report: Report) -> str | None:
    """Advise on different CPU times of the hosts."""
    working = [(host.cores or 0.0, host.host) for host in working_hosts(report)]
    if len(working) < 2 or report.wall_s < MINUTE_S:
        return None
    mean = sum(used for used, _ in working) / len(working)
    most, where = max(working)
    if most < 1.5 * mean:
        return None
    return (
        f"Used {cores(most)} cores on {where}, and {cores(mean)} on the average of {len(working)} hosts. Divide the "
        "work more evenly."
    )


def tail(report: Report) -> str | None:
    """Advise on an idle time at the end of the job."""
    curve = next((curve for curve in report.curves if curve.name == "cpu"), None)
    if curve is None or len(curve.lines) < len(report.hosts) or idle(report):
        return None  # a host without values may have been busy
    busy = [float(line.times[line.values > 0.02].max(initial=0)) for line in curve.lines]
    idle_s = report.end - max(max(busy), float(report.start))
    if idle_s < 10 * MINUTE_S or idle_s < 0.25 * report.wall_s:
        return None
    return (
        f"Nothing ran in the last {duration(idle_s)} of {duration(report.wall_s)}. End the job when its work is done, "
        "and look for what did not end."
    )


def memory_low(report: Report) -> str | None:
    """Advise on a memory peak far below the limit."""
    peak, limit = report.memory.peak_bytes, report.memory.limit_bytes  # of the host nearest to its limit
    if peak is None or limit is None or peak >= 0.25 * limit:
        return None
    if any(host.memory_peak_bytes is None or (host.memory_limit_bytes or 0) < 2 * GIB for host in report.hosts):
        return None
    return f"Used {size(peak)} of {size(limit)} of memory at most. Ask for less, and it may start sooner."


def memory_high(report: Report) -> str | None:
    """Advise on memory near the limit, without page cache: that may grow up to the limit."""
    found = [
        (needed / host.memory_limit_bytes, needed, host)
        for host in report.hosts
        for needed in [host.memory_peak_bytes if host.memory_anon_peak_bytes is None else host.memory_anon_peak_bytes]
        if needed is not None and host.memory_limit_bytes
    ]
    share, needed, host = max(found, key=lambda one: one[0], default=(0.0, 0.0, None))
    if report.memory.oom_kills or host is None or share < 0.9:
        return None
    return (
        f"Needed {size(needed)} of {size(host.memory_limit_bytes)} of memory on {host.host}. A little more, and the "
        "kernel kills it: ask for more."
    )


def oom(report: Report) -> str | None:
    """Advise on processes killed by the kernel for lack of memory."""
    kills = report.memory.oom_kills
    if not kills:
        return None
    limit = f" of {size(report.memory.limit_bytes)}" if report.memory.limit_bytes else ""
    return (
        f"The kernel killed {count(kills)} process{'' if kills == 1 else 'es'} for want of memory{limit}. Ask for more "
        "memory, or have it use less; results may be incomplete."
    )


def cpu_wait(report: Report) -> str | None:
    """Advise on tasks waiting for a CPU."""
    time = report.time
    if (time.running_s or 0) < MINUTE_S or not over(time.waiting_cpu_s, time.running_s, 0.25):
        return None
    tasks = f" (up to {count(report.tasks_peak)} tasks)" if report.tasks_peak else ""
    waited = f"Its tasks waited {duration(time.waiting_cpu_s)} for a CPU and ran for {duration(time.running_s)}"
    used = report.cpu.used_ratio
    if used is not None and used < 0.5:
        return (
            f"{waited}, though they used {percent(used)} of the CPU time of its cores{tasks}. Do other programs run on "
            "these cores, or are its threads bound to few of them? Look at its binding, or ask the administrators."
        )
    return f"{waited}: more busy threads than cores{tasks}. Start no more than one for each core."


def block_io(report: Report) -> str | None:
    """Advise on tasks waiting for disks."""
    time = report.time
    if (time.block_io_s or 0) < MINUTE_S or not over(time.block_io_s, time.running_s, 0.2):
        return None
    return (
        f"Its tasks waited {duration(time.block_io_s)} for disks and ran for {duration(time.running_s)}. Read and "
        "write larger pieces, or put the files on a faster disk or in memory."
    )


def swap(report: Report) -> str | None:
    """Advise on tasks waiting for pages in swap."""
    time = report.time
    if not over(time.swap_s, time.running_s, 0.01) or (time.swap_s or 0) < 1:
        return None
    return (
        f"Its tasks waited {duration(time.swap_s)} for pages in swap. It needs more memory than it has: ask for more."
    )


def reclaim(report: Report) -> str | None:
    """Advise on tasks waiting for memory to be freed."""
    time = report.time
    if not over(time.reclaim_s, time.running_s, 0.02) or (time.reclaim_s or 0) < 1:
        return None
    return (
        f"Its tasks waited {duration(time.reclaim_s)} for the kernel to free memory. It is short of memory, page cache "
        "included: ask for more, or read files in another order."
    )


def throttled(report: Report) -> str | None:
    """Advise on an exhausted CPU quota."""
    if not over(report.cpu.throttled_s, report.cpu.used_s, 0.05) or (report.cpu.throttled_s or 0) < 1:
        return None
    return (
        f"Its CPU quota kept it from running for {duration(report.cpu.throttled_s)}. It has more busy threads than its "
        "quota allows: start fewer, or ask for more."
    )


def kernel_time(report: Report) -> str | None:
    """Advise on a large share of CPU time in the kernel."""
    if (report.cpu.used_s or 0) < MINUTE_S or (report.cpu.system_ratio or 0) < 0.3:
        return None
    return (
        f"Spent {percent(report.cpu.system_ratio)} of its CPU time in the kernel. Many "
        "short processes, small reads and writes, or memory that is taken and given back all the time cost that."
    )


def small_io(report: Report) -> str | None:
    """Advise on many I/O calls for few bytes each."""
    io = report.io
    kinds = ((io.read_calls, io.asked_read_bytes), (io.write_calls, io.asked_written_bytes))
    known = [(number, amount) for number, amount in kinds if number is not None and amount is not None]
    calls, moved = sum(number for number, _ in known), sum(amount for _, amount in known)
    if calls < 1e6 or moved / calls >= 4096 or calls < 1000 * report.wall_s:
        return None
    return (
        f"Made {count(calls)} reads and writes of {size(moved / calls)} each on average. Buffer them: each call costs "
        "time, and much more so on a network file system."
    )


def gpu_idle(report: Report) -> str | None:
    """Advise on allocated but unused GPUs."""

    def is_idle(gpu: GpuUse) -> bool:
        return over(gpu.idle_s, gpu.held_s, 0.5) or (gpu.use_ratio is not None and gpu.use_ratio < 0.1)

    held = [gpu for gpu in report.gpus if (gpu.held_s or 0) >= 5 * MINUTE_S]
    unused = [gpu for gpu in held if is_idle(gpu)]
    if not unused:
        return None
    return (
        f"{len(unused)} of {len(held)} GPUs computed next to nothing. Ask for fewer, or see whether the program finds "
        "them (CUDA_VISIBLE_DEVICES)."
    )


WAITING = ("cpu-wait", "throttled", "block-io", "swap", "reclaim")
MINUTE, CPU_MINUTE = "(1 min of wall time or more)", "(1 min of CPU time or more)"
RAN = "of the CPU time that they used"

RULES: Sequence[Rule] = (
    Rule("oom", "the kernel killed a process of the job for want of memory", oom),
    Rule("memory-high", "memory but for page cache came to 90 % of the limit or more, on some host", memory_high),
    Rule(
        "memory-low",
        "the peak of memory is below 25 % of a limit of 2 GiB or more, on every host",
        memory_low,
        ("oom", "memory-high", "swap", "reclaim"),
    ),
    Rule(
        "one-core",
        f"on one host, 0.8 to 1.05 of 2 or more cores were used on average {MINUTE}",
        one_core,
        ("cpu-wait", "throttled"),
    ),
    Rule("idle", f"less than 2 % of wall time by cores was used {MINUTE}", idle, WAITING),
    Rule("cpu-low", f"2 % to 50 % of wall time by 2 or more cores was used {MINUTE}", cpu_low, WAITING),
    Rule("host-idle", f"a host used less than 2 % of its wall time by cores, and another one more {MINUTE}", host_idle),
    Rule("imbalance", f"a host used 1.5 times the mean of those with 2 % or more {MINUTE}", imbalance),
    Rule("idle-end", "no host used 0.02 cores for the last 25 % of the wall time, and for 10 min or more", tail),
    Rule("cpu-wait", f"tasks waited for a CPU for 25 % or more {RAN} {CPU_MINUTE}", cpu_wait),
    Rule(
        "throttled",
        "the CPU quota kept the job from running for 5 % or more of its CPU time, and for 1 s or more",
        throttled,
    ),
    Rule("block-io", f"tasks waited for disks for 20 % or more {RAN}, and for 1 min or more", block_io),
    Rule("swap", f"tasks waited for pages in swap for 1 % or more {RAN}, and for 1 s or more", swap),
    Rule("reclaim", f"tasks waited for memory to be freed for 2 % or more {RAN}, and for 1 s or more", reclaim),
    Rule("kernel-time", f"30 % or more of the CPU time was spent in the kernel {CPU_MINUTE}", kernel_time),
    Rule("small-io", "a million reads and writes or more, 1,000 a second, of less than 4 KiB on average", small_io),
    Rule(
        "gpu-idle", "a GPU held for 5 min or more had no process for half of it, or was used less than 10 %", gpu_idle
    ),
)


def withheld(report: Report) -> str:
    """Return why no advice can be given; else an empty string."""
    if report.samples < LEAST_SAMPLES:
        return f"there are fewer than {LEAST_SAMPLES} samples of the job"
    here = report.completeness.here_ratio
    if here is not None and here < LEAST_RATIO:
        tenths = math.floor(1000 * here) / 10  # 94.96 % is not 95
        return f"only {tenths:g} % of the job's samples are here, and {percent(LEAST_RATIO)} are needed"
    return ""


def advise(report: Report, rules: Sequence[Rule] = RULES) -> tuple[Advice, ...]:
    """Return the advice of all rules on a report, without rules explained by another one."""
    found = [(rule, rule.text(report)) for rule in rules]
    hold = {rule.name for rule, text in found if text is not None}
    return tuple(
        Advice(rule.name, text, rule.because)
        for rule, text in found
        if text is not None and not hold.intersection(rule.unless)
    )
