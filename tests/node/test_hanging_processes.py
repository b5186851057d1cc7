"""The agent beside a user's processes that have whoever reads their files in /proc wait (fusehang.py)."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from colmet.common.daemon.startup import load
from colmet.common.daemon.wakeup import Signals
from colmet.common.host.host import Host
from colmet.node.agent import Agent
from colmet.node.backends import NAMES
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.main import build_parser
from colmet.node.schedule import Schedule
from tests.support.direct import Direct
from tests.support.place import skip_refused

pytestmark = [pytest.mark.live, pytest.mark.slow]
SECONDS = float(os.environ.get("COLMET_HANG_S", "10"))
LATE_S = 0.05  # a tick, but for what the load of the machine makes of it
HANG = [sys.executable, "-S", str(Path(__file__).parents[1] / "support/fusehang.py")]
POLITE = ["nice", "-n", "15", sys.executable, "-S", "-c"]  # the agent is not to wait for a CPU because of the test
BURN = "import time\nuntil = time.monotonic() + {}\nwhile time.monotonic() < until: pass"


@pytest.fixture
def hanging(cgroups):
    """Start hanging processes in a job: `hanging(job, every_s)`."""
    folder = tempfile.mkdtemp(prefix="colmet-fuse-")
    os.chmod(folder, 0o755)
    device, mounted = f"{folder}/fuse", f"{folder}/mnt"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 229))
    os.chmod(device, 0o666)
    os.mkdir(mounted)
    os.chown(mounted, 65534, 65534)
    started = []

    def start(job, every_s):
        process = job.start(*HANG, device, mounted, str(every_s), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        if process.stdout.readline() != "hangs\n":
            skip_refused("no FUSE")
        return process

    yield start
    for job in started:
        job.kill()
    for path in cgroups.path.glob("*/cgroup.procs"):
        for pid in path.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    os.unlink(device)
    os.rmdir(mounted)
    os.rmdir(folder)


def usage_ns(job):
    return int((job.cpuacct / "cpuacct.usage").read_text())


def run(cgroups, arguments, seconds, meanwhile, sent=lambda batch: None):
    """An agent for so long; its batches, each with when it was made and by how much it was late, and its account."""
    batches, due = [], []
    host = Host()
    options = build_parser(load(NAMES)).parse_args(["--state-dir", "", "--spool-dir", "", *arguments])
    backends = [made for cls in load(NAMES) if (made := cls.from_options(options, host)) is not None]
    source = JobSource(host, [str(cgroups.path)], compile_patterns([DEFAULT_PATTERN]))
    schedule = Schedule(1)

    def send(batch):
        now = time.time_ns()
        batches.append(batch)
        due.append((now - batch.time_ns) / 1e9)
        sent(batch)
        return True

    agent = Agent("node", source, backends, Direct(lambda batch: batch, send), schedule)
    stop = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    other = threading.Thread(target=meanwhile)
    try:
        with Signals((signal.SIGTERM,)) as signals:
            stop.start()
            other.start()
            agent.run(signals)
            ended = time.monotonic()
        other.join()
    finally:
        stop.cancel()
        agent.close()
    print("the end took", time.monotonic() - ended)
    return batches, due, schedule.overruns, host.processes


def rows(batches, table, job):
    return [
        (batch.time_ns, row)
        for batch in batches
        for one in batch.tables
        if one.schema.name == table
        for row in one.rows
        if row["job_id"] == job
    ]


@pytest.mark.parametrize(
    ("arguments", "every_s"), [([], 0), (["--enable-jobproc"], 1)], ids=["one", "a new one each second"]
)
def test_all_other_jobs_are_measured_on_time(cgroups, hanging, arguments, every_s):
    """A second job of the same user begins, burns and ends meanwhile; nothing of it is hidden."""
    mallory, alice, hidden = cgroups.job("nobody_1"), cgroups.job("alice_2"), cgroups.job("nobody_3")
    used = {}
    hanging(mallory, every_s)
    alice.start(*POLITE, BURN.format(SECONDS + 5))

    def meanwhile():
        time.sleep(2.3)
        burning = hidden.start(*POLITE, BURN.format(3))
        burning.wait()
        used[3] = usage_ns(hidden)
        for path in dict.fromkeys(hidden.directories.values()):
            cgroups.remove(path)
        time.sleep(max(0.0, SECONDS - 6))

    at_tick = {}
    batches, took_s, overruns, processes = run(
        cgroups, arguments, SECONDS, meanwhile, lambda batch: at_tick.update({batch.time_ns: usage_ns(mallory)})
    )
    ticks = [batch for batch in batches if any(one.schema.name == "procstats_default" for one in batch.tables)]
    took = sorted(took for batch, took in zip(batches, took_s) if batch in ticks)
    late = sorted(abs(b.time_ns - a.time_ns - 1_000_000_000) / 1e9 for a, b in zip(ticks, ticks[1:]))
    print(f"{len(ticks)} ticks, {overruns} skipped, took at most {took[-1] * 1e3:.1f} ms, late {late[-1] * 1e3:.1f} ms")
    print(f"{processes.unanswered} did not answer, {processes.left_out} left out")
    assert overruns == 0
    assert len(ticks) >= SECONDS - 2
    assert took[len(took) // 2] < LATE_S
    assert took[-1] < LATE_S + 0.2, "and what the load of the machine adds"
    is_on = arguments == ["--enable-jobproc"]
    for table in ("cgroup_default", "taskstats_default", *["jobprocstats_default"] * is_on):
        assert {b.time_ns for b in ticks} <= {at for at, _ in rows(batches, table, 2)}, table
    (_, *_, last) = rows(batches, "cgroup_default", 1)
    print(f"of the job with them, {last[1]['cpu_usage']} ns at the last tick, {at_tick[last[0]]} ns after it")
    print(f"of the hidden one, {rows(batches, 'taskstats_default', 3)[-1][1]['cpu_total']} of {used[3]} ns")
    assert last[1]["cpu_usage"] == pytest.approx(at_tick[last[0]], rel=0.01, abs=LATE_S * 1e9)
    assert rows(batches, "taskstats_default", 3)[-1][1]["cpu_total"] == pytest.approx(used[3], rel=0.01, abs=1e7)
    if is_on:
        assert processes.unanswered >= 1


def test_an_agent_ends_and_begins_while_a_process_does_not_answer(cgroups, hanging):
    job = cgroups.job("nobody_1")
    hanging(job, 0)
    pids = (job.path / "cgroup.procs").read_text().split()
    code = (
        "import sys\nfrom colmet.common.host.host import Host\n"
        "from colmet.common.host.processes import Question\nhost = Host()\n"
        "host.processes.ask([Question(int(p), 'x', lambda p=p: host.read(f'/proc/{p}/io')) for p in sys.argv[1:]])\n"
    )
    code += "print(host.processes.waiting)"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, *pids], capture_output=True, text=True, timeout=20, check=True
        )
        assert done.stdout == "1\n"
