"""Each rule of the advice: a job for which it speaks, and one, little different, for which it does not."""

from __future__ import annotations

import functools
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colmet.common.lines import JobGap, Line
from colmet.jobs.advice import RULES, advise, withheld
from colmet.jobs.figures import Curve, GpuUse
from colmet.jobs.report.document import document_of
from colmet.jobs.report.rows import gather
from colmet.jobs.report.text import show
from colmet.stored.job_rows import JobInterval
from tests.support.made_up_history import GIB, START, MadeUp, job_rows

PAGE = Path(__file__).parents[2] / "docs/tools/report.md"
HOUR = 3600.0


@functools.cache
def of_hosts(*cores):
    """A job of ten minutes that used `cores` of 4 on each host."""
    history = MadeUp()
    for n, used in enumerate(cores, 1):
        job_rows(history, host=f"node-{n}", cores=used)
    return gather_all(history)


def gather_all(history):
    return gather(history, JobInterval(42), START + 10**6)


def cut(report, wall_s=29.0):
    """The same in less time."""
    part = wall_s / report.wall_s
    of_cpu = replace(report.cpu, used_s=report.cpu.used_s * part, available_s=report.cpu.available_s * part)
    return replace(report, wall_s=wall_s, cpu=of_cpu)


BUSY = of_hosts(3.0)
SHORT = replace(BUSY, wall_s=29)


def cpu(report=BUSY, **values):
    return replace(report, cpu=replace(report.cpu, **values))


def time(running_s=HOUR, **values):
    return replace(BUSY, time=replace(BUSY.time, running_s=running_s, **values))


def memory(report=BUSY, **values):
    """A job with this memory, on its first host."""
    names = ("peak_bytes", "limit_bytes", "anon_peak_bytes")
    host = replace(report.hosts[0], **{f"memory_{name}": values[name] for name in names if name in values})
    return replace(report, memory=replace(report.memory, **values), hosts=(host, *report.hosts[1:]))


def calls(number, each):
    read = None if each is None else number * each
    of_it = replace(BUSY.io, read_calls=number, write_calls=0, asked_read_bytes=read, asked_written_bytes=0)
    return replace(BUSY, io=of_it)


def ended(number, used_s=60.0, wall_s=HOUR):
    return replace(cut(of_hosts(3.0), wall_s), tasks_ended=number, cpu=replace(BUSY.cpu, used_s=used_s))


def gpu(**values):
    return replace(
        BUSY, gpus=(GpuUse("node-1", "GPU-a", held_s=HOUR, idle_s=0, use_ratio=0.8), GpuUse("n", "b", **values))
    )


def until(busy_s, wall_s=2 * HOUR):
    """A job of two hours in which something ran for so long."""
    times = START + np.arange(0, wall_s + 1, 60)
    line = Line("node-1", "", times, np.where(times <= START + busy_s, 3.0, 0.001))
    return replace(BUSY, curves=(Curve("cpu", "CPU", "cores", (line,)),), wall_s=wall_s, end=START + int(wall_s))


FIRES = [
    ("oom", memory(oom_kills=2), memory(oom_kills=0), "killed 2 processes for"),
    ("oom", memory(oom_kills=1), memory(oom_kills=None), "killed 1 process for"),
    (
        "oom",
        memory(oom_kills=1, peak_bytes=GIB / 16, limit_bytes=GIB),
        memory(oom_kills=0),
        "at a limit inside the job",
    ),
    ("oom", memory(oom_kills=1, peak_bytes=GIB, limit_bytes=GIB), memory(oom_kills=0), "Ask for more memory"),
    ("memory-high", memory(anon_peak_bytes=7.3 * GIB), memory(anon_peak_bytes=7.1 * GIB), "7.30 GiB of 8.00 GiB"),
    (
        "memory-high",
        memory(anon_peak_bytes=None, peak_bytes=7.3 * GIB),
        memory(anon_peak_bytes=2 * GIB, peak_bytes=8 * GIB),  # the page cache fills what there is
        "ask for more",
    ),
    (
        "memory-high",
        memory(of_hosts(3.0, 3.0), peak_bytes=8 * GIB, anon_peak_bytes=7.3 * GIB),
        memory(of_hosts(3.0, 3.0), peak_bytes=8 * GIB, anon_peak_bytes=7.1 * GIB),
        "7.30 GiB of 8.00 GiB of memory on node-1",
    ),
    (
        "memory-low",
        memory(peak_bytes=1.9 * GIB),
        memory(peak_bytes=2.1 * GIB),
        "1.90 GiB of 8.00 GiB of memory at most. Ask for less, such as 2.28 GiB, and",
    ),
    ("memory-low", memory(peak_bytes=1.9 * GIB), memory(peak_bytes=1.9 * GIB, limit_bytes=None), "Ask for less"),
    ("memory-low", memory(peak_bytes=GIB), memory(peak_bytes=GIB // 9, limit_bytes=1.9 * GIB), "1.00 GiB of 8.00 GiB"),
    ("one-core", of_hosts(1.0), of_hosts(1.1), "Used one of 4 cores"),
    ("one-core", of_hosts(1.0), of_hosts(1.0, 1.0), "OMP_NUM_THREADS"),
    ("one-core", of_hosts(1.0), of_hosts(0.79), "Used one of 4 cores"),
    ("one-core", cut(of_hosts(1.0), 60.0), cut(of_hosts(1.0)), "Used one of 4 cores"),
    (
        "one-core",
        replace(of_hosts(1.0), time=replace(BUSY.time, running_s=55.0, waiting_cpu_s=10.9)),
        replace(of_hosts(1.0), time=replace(BUSY.time, running_s=55.0, waiting_cpu_s=11.0)),
        "Used one of 4 cores",
    ),
    ("one-core", cpu(of_hosts(1.0), cpus=2), cpu(of_hosts(1.0), cpus=1), "Used one of 2 cores"),
    ("idle", cut(of_hosts(0.07), 60.0), cut(of_hosts(0.07)), "Almost idle: used 0.07 of 4 cores for 1 min 0 s."),
    ("idle", of_hosts(0.07), of_hosts(0.09), "already finished?"),
    ("cpu-low", of_hosts(1.5), of_hosts(2.1), "Used 1.5 of 4 cores (38 %)"),
    ("cpu-low", of_hosts(3.0, 0.0, 0.0), of_hosts(1.0), "on 1 of 3 hosts"),
    ("cpu-low", of_hosts(1.5), replace(of_hosts(1.5), wall_s=29), "Ask for fewer"),
    ("host-idle", of_hosts(3.0, 0.05), of_hosts(3.0, 0.1), "1 of 2 hosts were almost idle: node-2."),
    ("cpu-low", cpu(of_hosts(1.5), cpus=2), cpu(of_hosts(1.5), cpus=1), "Ask for fewer"),
    ("host-idle", cut(of_hosts(3.0, 0.05), 60.0), cut(of_hosts(3.0, 0.05)), "node-2."),
    ("host-idle", of_hosts(3.0, 0, 0, 0, 0), of_hosts(0, 0), "node-2, node-3, node-4 and 1 more"),
    ("imbalance", of_hosts(3.9, 1.0, 1.0), of_hosts(3.0, 2.0, 2.0), "3.9 cores on node-1, and 2.0"),
    ("imbalance", cut(of_hosts(3.9, 1.0, 1.0), 60.0), cut(of_hosts(3.9, 1.0, 1.0)), "3.9 cores on node-1"),
    ("idle-end", until(HOUR), until(1.6 * HOUR), "in the last 1 h 0 min of 2 h 0 min"),
    ("idle-end", until(HOUR), replace(until(HOUR), hosts=of_hosts(3.0, 3.0).hosts), "Nothing ran"),
    ("idle-end", until(700, 1400), until(540, 1080), "End the job when its work is done"),
    ("cpu-wait", time(waiting_cpu_s=900), time(waiting_cpu_s=890), "waited 15 min 0 s for a CPU and ran for 1 h 0 min"),
    ("cpu-wait", time(60.0, waiting_cpu_s=60.0), time(59.0, waiting_cpu_s=60.0), "ran for 1 min 0 s"),
    ("throttled", cpu(throttled_s=100.0), cpu(throttled_s=80.0), "1 min 40 s"),
    ("throttled", cpu(used_s=10.0, throttled_s=1.0), cpu(used_s=10.0, throttled_s=0.9), "for 1 s"),
    ("block-io", time(block_io_s=720.0), time(block_io_s=719.0), "12 min 0 s for disks"),
    ("block-io", time(block_io_s=720.0), time(block_io_s=None), "disks"),
    ("block-io", time(100.0, block_io_s=60.0), time(100.0, block_io_s=59.0), "1 min 0 s for disks"),
    ("swap", time(swap_s=36.0), time(swap_s=35.0), "36 s for pages in swap"),
    ("swap", time(10.0, swap_s=1.0), time(10.0, swap_s=0.9), "1 s for pages in swap"),
    ("reclaim", time(reclaim_s=72.0), time(reclaim_s=71.0), "1 min 12 s"),
    ("reclaim", time(10.0, reclaim_s=1.0), time(10.0, reclaim_s=0.9), "1 s for the kernel"),
    ("kernel-time", cpu(system_s=740.0), cpu(system_s=690.0), "31 %"),
    ("short-tasks", ended(36_000), ended(35_999), "36,000 processes and threads, with 1.67 ms of CPU time each"),
    ("short-tasks", ended(40_000, 799.0), ended(40_000, 800.0), "20 ms"),
    ("short-tasks", ended(1000, 10.0, 90.0), ended(999, 10.0, 90.0), "with 10 ms of CPU time each"),
    ("short-tasks", ended(1000, 10.0, 30.0), ended(1000, 10.0, 29.0), "a loop in one program"),
    ("small-io", calls(2e6, 100), calls(2e6, 5000), "2.00 million reads and writes of 100 B each"),
    ("kernel-time", cpu(used_s=60.0, user_s=30.0, system_s=30.0), cpu(used_s=59.0, user_s=1.0, system_s=30.0), "50 %"),
    ("small-io", calls(1e6, 100), calls(9.9e5, 100), "Buffer them"),
    ("small-io", calls(2e6, 100), replace(calls(2e6, 100), wall_s=2001.0), "Buffer them"),
    ("small-io", calls(2e6, 100), calls(2e6, None), "of 100 B each"),
    ("gpu-idle", gpu(held_s=HOUR, idle_s=HOUR), gpu(held_s=HOUR, idle_s=600, use_ratio=0.5), "1 of 2 GPUs"),
    ("gpu-idle", gpu(held_s=HOUR, use_ratio=0.05), gpu(held_s=60, use_ratio=0.05), "CUDA_VISIBLE_DEVICES"),
]


def said(name, report):
    return next((one.text for one in advise(report) if one.rule == name), None)


@pytest.mark.parametrize(("name", "bad", "good", "text"), FIRES, ids=[f"{n}-{fire[0]}" for n, fire in enumerate(FIRES)])
def test_a_rule_speaks_where_it_holds_and_only_there(name, bad, good, text):
    assert text in (said(name, bad) or "")
    assert said(name, good) is None


def test_memory_is_that_of_every_host():
    """The host that is nearest to its limit by page cache need not be the one that is short of memory."""
    history = MadeUp()
    job_rows(history, host="a", memory_peak=8 * GIB, memory_anon=GIB)
    job_rows(history, host="b", memory_peak=int(7.6 * GIB), memory_anon=int(7.5 * GIB))
    assert "7.50 GiB of 8.00 GiB of memory on b" in (said("memory-high", gather_all(history)) or "")
    for limit, text in ((8 * GIB, "1.00 GiB of 8.00"), (-1, None)):
        history = MadeUp()
        job_rows(history, host="a", memory_peak=GIB)
        job_rows(history, host="b", memory_peak=GIB, memory_limit=limit)
        advice = said("memory-low", gather_all(history))
        assert advice is None if text is None else text in advice


def of_job(wall_s, cores, cpus, **more):
    """A job of one node; waits in seconds, all of them in its middle."""
    history = MadeUp()
    count = wall_s // 5
    waits = {
        f"{name}_delay_total": np.where(np.arange(count) > count // 2, int(s * 1e9), 0) for name, s in more.items()
    }
    job_rows(history, count=count, cores=cores, cpus=cpus, **waits)
    return gather_all(history)


def rules_of(report):
    return [one.rule for one in report.advice]


def test_an_idle_job_is_idle_and_not_starved():
    report = of_job(75, 0.001, 1, cpu=0.33, blkio=0)
    assert rules_of(report) == ["idle"]
    assert report.shares.idle_ratio > 0.99 and report.shares.waiting_cpu_ratio < 0.01
    page = shown_of(report)
    assert "< 1 %  waiting for a CPU 0.33 s" in page and "99 %  idle 1 min 15 s" in page
    assert "Shares are of 1 min 15 s, wall time by cores." in page


def test_shares_of_time_add_up_to_one_whatever_waited():
    for cores, cpus, waits in ((0.3, 2, {"cpu": 40}), (2.0, 2, {"cpu": 9000, "blkio": 100}), (0.5, 4, {"blkio": 9e4})):
        shares = replace(of_job(120, cores, cpus), time=time_of(cores * 120, **waits)).shares
        parts = (shares.running_ratio, shares.waiting_cpu_ratio, shares.block_io_ratio, shares.idle_ratio)
        assert sum(part or 0 for part in parts) == pytest.approx(1) and min(part or 0 for part in parts) >= 0
        assert shares.at_once == (sum(waits.values()) > (cpus - cores) * 120)


def time_of(running_s, cpu=None, blkio=None):
    return replace(BUSY.time, running_s=running_s, waiting_cpu_s=cpu, block_io_s=blkio, swap_s=None, reclaim_s=None)


def test_a_job_that_queues_for_cpus_is_not_asked_for_more_processes():
    report = of_job(180, 0.34, 2, cpu=62)
    assert rules_of(report) == ["cpu-wait"] and "Start no more" not in report.advice[0].text
    assert "though they used 17 %" in report.advice[0].text
    assert "cpu-low" not in rules_of(of_job(100, 0.34, 2, cpu=8)), (
        "waits of a fifth, and a minute of CPU time has not run"
    )
    assert rules_of(of_job(180, 0.34, 2, cpu=2)) == ["cpu-low"]


def test_a_job_that_waits_for_disks_is_not_asked_whether_it_waits():
    assert rules_of(of_job(120, 0.01, 2, blkio=70)) == ["block-io"]
    assert rules_of(of_job(120, 0.5, 2, blkio=70)) == ["block-io"]


def test_the_rules_that_explain_others_are_there():
    assert {name for rule in RULES for name in rule.unless} < {rule.name for rule in RULES}


@pytest.mark.parametrize("tasks", [3, -1])
def test_a_wait_longer_than_the_tasks_can_have_waited_is_missing_and_no_reason_for_advice(tasks):
    history = MadeUp()
    waits = np.where(np.arange(13) > 5, 1_345_531_900_817, 0)  # the uptime, in one step
    job_rows(history, count=13, cores=0.01, cpus=2, pids_peak=tasks, blkio_delay_total=waits)
    report = gather_all(history)
    assert report.time.block_io_s is None and report.time.swap_s == 0 and rules_of(report) == ["idle"]
    assert "the stored waits for block I/O are left out: longer than its tasks can have waited" in report.time.note
    assert "task_delayacct" not in report.time.note
    page = shown_of(report)
    assert "block I/O 2" not in page and "idle or in waits that are missing" in page


def shown_of(report):
    file = io.StringIO()
    show(report, file, width=120)
    return " ".join(file.getvalue().split()).replace(" % ", " %  ")


def test_each_rule_is_tested():
    assert {fire[0] for fire in FIRES} == {rule.name for rule in RULES}
    assert len(RULES) == len({rule.name for rule in RULES}) >= 10


def test_a_job_that_is_well_gets_no_advice():
    assert BUSY.advice == () and BUSY.advice_withheld == ""


def test_nothing_known_is_nothing_said():
    history = MadeUp()
    history.add(42, "perfhwstats_default", "node-1", START + 5 * np.arange(200), counter_1=1)
    report = gather(history, JobInterval(42), START + 10**6)
    assert report.cpu.used_s is None and report.advice == () and not report.advice_withheld


@pytest.mark.parametrize(
    ("samples", "here", "missing", "why"),
    [
        (1, 100, 0, "fewer than 2 samples"),
        (100, 949, 51, "only 94.9 % of the job's samples are stored"),
        (100, 950, 50, ""),
        (2, 2, 0, ""),
    ],
)
def test_too_little_data_is_no_ground_for_advice(samples, here, missing, why):
    found = replace(BUSY, samples=samples, completeness=replace(BUSY.completeness, here=here, missing=missing))
    assert why in withheld(found) and bool(why) == bool(withheld(found))


def test_the_page_has_the_table_of_rules():
    page = PAGE.read_text()
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.because} |" in page
    assert page.count("\n| `") >= len(RULES)


def test_the_page_has_every_name_of_the_json():
    def names(document):
        for name, value in document.items():
            yield name
            inner = value[0] if isinstance(value, list) and value else value
            if isinstance(inner, dict):
                yield from names(inner)

    gap = JobGap("node-1", 1, 2, "late", ("x",), 1)
    whole = replace(gpu(), completeness=replace(BUSY.completeness, gaps=(gap,)), advice=advise(of_hosts(1.0)))
    page = PAGE.read_text()
    assert not [name for name in names(document_of(whole)) if f"`{name}`" not in page]
