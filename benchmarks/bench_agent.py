"""CPU time and memory of colmet-node as a whole, CPU time per ended task, and the share of short tasks attributed."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Figure, cpu_ns, job_root, rss_mb

from colmet.common.daemon.startup import load
from colmet.common.host.host import Host
from colmet.common.wire import v1
from colmet.node.accounting.netlink_accounting import NetlinkAccounting
from colmet.node.agent import Agent
from colmet.node.agent_tables import AgentStats
from colmet.node.backends import NAMES
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.main import build_parser
from colmet.node.schedule import Schedule
from dev.live import Daemons, Failed, JobRoot
from dev.workloads import ShortTasks, measure

Figures = list[Figure]

JOBS, TASKS = 4, 32
SECONDS = 30
ENDED = 4000
TICKS = 10_000

SLOW = """
import sys, threading, time
threading.stack_size(131072)
def work():
    while True:
        sum(range(2000))
        time.sleep(0.5)
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=work, daemon=True).start()
work()
"""


def bench_steady() -> list[Figure]:
    """The daemon as it is started by default, at 1 s, with 4 jobs of 32 tasks that do next to nothing."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # as /run is on a node
    with job_root() as root, tempfile.TemporaryDirectory(dir=memory) as folder:
        for number in range(1, JOBS + 1):
            root.job(f"bob_{number}").start([sys.executable, "-S", "-c", SLOW, str(TASKS)])
        path = Path(folder)
        daemons = Daemons(path, ["-s", "1", "--cpuset_rootpath", str(root.path), "--state-dir", str(path / "state")])
        try:
            daemons.wait_for_log("backend on backend=procstats")
            time.sleep(4)
            daemons.take_rows()
            used, began = cpu_ns(daemons.node.pid), time.monotonic()
            time.sleep(SECONDS)
            used, took = cpu_ns(daemons.node.pid) - used, time.monotonic() - began
            rss = rss_mb(daemons.node.pid)
            rows = [row for row in daemons.take_rows() if row["metric_backend"] == "agent_default"]
        finally:
            daemons.stop()
    parts: list[Figure] = []
    for name in dict.fromkeys(row["backend"] for row in rows if row["backend"] != "agent"):
        times = [row["cpu_time"] for row in rows if row["backend"] == name]
        parts.append((f"agent: of that, {name}, each tick", (times[-1] - times[0]) / (len(times) - 1), "us", ""))
    return [
        (f"agent: of one core, {JOBS} jobs of {TASKS} tasks, 1 s", 100 * used / 1e9 / took, "%", "at most 0.5"),
        *parts,
        ("agent: resident memory", rss, "MB", "at most 45"),
    ]


def bench_exits() -> list[Figure]:
    """CPU time of the taskstats backend for each task that ended in a job: a few in each drain, and all in one."""
    figures: list[Figure] = []
    with job_root() as root:
        source = JobSource(Host(), [str(root.path)], compile_patterns([DEFAULT_PATTERN]))
        tasks = ShortTasks(root.job("bob_1"))
        tasks.run(1)
        backend = NetlinkAccounting(Host())
        backend.open()
        jobs = source.scan().jobs
        backend.sample(jobs)
        # an agent makes 4 drains a second in a storm: 250 tasks in each where 1,000 end in a second
        for what, each, target in [("250 a drain", 250, "at most 6"), ("1,000 a drain", 1000, "")]:
            spent = base = 0.0
            before = backend.counters()["exit_records"]
            for round_ in range(ENDED // each):
                tasks.run(each)
                start = time.thread_time()
                backend.drain()
                spent += time.thread_time() - start
                if round_ % 20 == 19:
                    start = time.thread_time()
                    backend.sample(jobs)
                    spent += time.thread_time() - start
            records = backend.counters()["exit_records"] - before
            start = time.thread_time()
            for _ in range(ENDED // each * 3):
                backend.drain()  # nothing has come
            base = (time.thread_time() - start) / 3
            figures += [
                (f"exit records: CPU per ended task, {what}", spent / records * 1e6, "us", target),
                (f"exit records: of that, drains that find nothing, {what}", base / records * 1e6, "us", ""),
            ]
        tasks.run(ENDED)
        least = kernel_us(backend)
        figures.append(("exit records: the system calls alone", least, "us", ""))
        backend.close()
        source.close()
    return figures


def kernel_us(backend: NetlinkAccounting) -> float:
    """CPU time of taking in records and forks that wait, and nothing else, per record."""
    exits, forks = backend._source.exits, backend._source.forks
    assert exits is not None and forks is not None
    start, records = time.thread_time(), 0
    for listener in [*[listener for listener, _ in exits._sockets.values()], forks._socket]:
        while count := len(listener.receive_many(exits._inbox, len(exits._inbox.slots))):
            records += count if listener is not forks._socket else 0
    return (time.thread_time() - start) / max(1, records) * 1e6


def agent_of(root: JobRoot, period_s: float, **more: Any) -> tuple[Agent, SendQueue]:
    """An agent with the default backends, and its queue."""
    host, classes = Host(), load(NAMES)
    options = build_parser(classes).parse_args(["--state-dir", ""])
    backends = [backend for cls in classes if (backend := cls.from_options(options, host)) is not None]
    source = JobSource(host, [str(root.path)], compile_patterns([DEFAULT_PATTERN]))
    queue = SendQueue(v1.encode_short, Outbox(time.time_ns()))
    return Agent("bench", source, backends, queue, Schedule(period_s), **more), queue


def bench_growth(ticks: int = TICKS) -> list[Figure]:
    """Memory and descriptors of an agent after many ticks, with jobs and tasks that come and go at each."""
    with job_root() as root:
        agent, queue = agent_of(root, 1, agent_stats=AgentStats(Host()))
        tasks = ShortTasks(root.job("bob_1"))
        sizes = []
        for number in range(ticks):
            if number % 3 == 0:
                job = root.job(f"eve_{number + 2}")
                job.start(["/bin/sleep", "60"])
            tasks.run(2)
            queue.put(agent.tick())
            queue.take()
            if number % 3 == 2:
                root.end(job)
            if number in (ticks // 10, ticks - 1):
                sizes.append((rss_mb(), len(os.listdir("/proc/self/fd"))))
        agent.close()
    (early, some), (late, more) = sizes
    what = f"{ticks * 9 // 10:,} ticks, a job at every third"
    return [
        (f"agent: growth over {what}", 1000 * (late - early), "kB", "flat"),
        (f"agent: descriptors left by {what}", more - some, "", "0"),
    ]


def bench_short_tasks() -> list[Figure]:
    """What is attributed of the CPU time of jobs of short tasks at 5 s, and what looking at live tasks would see."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in measure(Path(folder)):
            name, total = one.workload.name, one.kernel_ns / 100
            whole = (one.attributed_ns + one.unattributed_ns) / total
            figures += [
                (f"{name}: attributed", one.attributed_ns / total, "%", f"at least {100 * one.workload.at_least:.1f}"),
                (f"{name}: attributed and unattributed", whole, "%", "99.5 to 100.5"),
                (f"{name}: by samples alone", one.sampled_ns / total, "%", ""),
            ]
    return figures


def run() -> list[Figure]:
    """Every figure: name, value, unit, target."""
    figures: list[Figure] = []
    if os.geteuid() != 0:
        print("left out: needs root", file=sys.stderr)
        return figures
    for part in (bench_steady, bench_exits, bench_short_tasks, bench_growth):
        try:
            figures += part()
        except Failed as err:
            print(f"left out: {err}", file=sys.stderr)
    return figures
