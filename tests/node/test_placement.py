"""The agent keeps off the jobs' CPUs and runs after everyone else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import MAX_CPUS, parse_cpu_list
from colmet.node.placement import NICE, Placement
from tests.support.place import skip_refused


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("0\n", {0}),
        (b"0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        ("5-5", {5}),
        ("65535", {65535}),
        ("0-65535", set(range(MAX_CPUS))),
    ],
)
def test_a_list_of_cpus_is_read(text, cpus):
    assert parse_cpu_list(text) == cpus


class FakeJob(Job):
    """A job with cgroups where the test says."""

    def __init__(self, host, job_id, **directories):
        super().__init__(host, job_id)
        self.directories = directories

    def directory(self, controller):
        return self.directories.get(controller)


class Threads:
    """Threads of a made-up process on CPUs 0 to 7."""

    def __init__(self, fake, monkeypatch):
        self.fake = fake
        tids = (10, 11, 12)
        for tid in tids:
            fake.mkdir(f"/proc/self/task/{tid}")
        self.cpus = {}
        self.nices = dict.fromkeys(tids, 0)
        self.refuse = {}
        self.calls = 0
        monkeypatch.setattr(os, "getpriority", lambda which, tid: self.nices[tid])
        monkeypatch.setattr(os, "setpriority", lambda which, tid, nice: self.set_nice(tid, nice))
        monkeypatch.setattr(os, "sched_getaffinity", lambda tid: set(range(8)))
        monkeypatch.setattr(os, "sched_setaffinity", self.set_cpus)

    def set_cpus(self, tid, cpus):
        self.calls += 1
        error = self.refuse.get(tid)
        if error is not None and (not callable(error) or error(cpus)):
            number = errno.EINVAL if callable(error) else error
            raise OSError(number, os.strerror(number))
        self.cpus[tid] = set(cpus)

    def set_nice(self, tid, nice):
        if tid in self.refuse:
            raise OSError(self.refuse[tid], os.strerror(self.refuse[tid]))
        self.nices[tid] = nice


@pytest.fixture
def threads(fake, monkeypatch):
    return Threads(fake, monkeypatch)


@pytest.fixture
def job(fake):
    def make(job_id, cpus=None, name="cpuset.effective_cpus", controller="cpuset"):
        directory = f"/{controller}/bob_{job_id}"
        if not (fake.path / directory.lstrip("/")).exists():
            fake.mkdir(directory)
        if cpus is not None:
            fake.write(f"{directory}/{name}", cpus)
        return FakeJob(fake.host, job_id, **{controller: directory})

    return make


def test_all_threads_keep_off_the_cpus_of_every_job_and_come_back(fake, threads, job):
    placement = Placement(fake.host)
    one = job(1, "0-3\n")
    two = job(2, "5\n", "cpuset.cpus")
    three = job(3, "6\n", "cpuset.cpus.effective", "unified")
    placement.update([])
    assert threads.calls == 0
    placement.update([one])
    assert threads.cpus == {tid: {4, 5, 6, 7} for tid in (10, 11, 12)}
    placement.update([one, two, three])
    assert threads.cpus == {tid: {4, 7} for tid in (10, 11, 12)}
    placement.update([two])
    assert threads.cpus == {tid: {0, 1, 2, 3, 4, 6, 7} for tid in (10, 11, 12)}
    placement.update([])
    assert threads.cpus == {tid: set(range(8)) for tid in (10, 11, 12)}
    assert placement.failures == 0


def test_when_jobs_have_every_cpu_the_agent_runs_on_all_it_was_started_on(fake, threads, job):
    placement = Placement(fake.host)
    placement.update([job(1, "0-3")])
    placement.update([job(1, "0-3"), job(2, "4-63")])
    assert threads.cpus[10] == set(range(8)) == placement.cpus


@pytest.mark.parametrize("before", ["\n", "0-7\n", "0-63\n"])
def test_a_cpuset_that_is_filled_after_it_was_made_is_looked_at_again(fake, threads, job, before):
    placement = Placement(fake.host)
    jobs = [job(1, before), job(2, "6")]
    placement.update(jobs)
    assert threads.cpus.get(10, set(range(8))) >= {0, 1, 2, 3, 4}
    job(1, "0-2")
    placement.update(jobs)
    assert threads.cpus[10] == {3, 4, 5, 7}
    job(1, "0-5")
    placement.update(jobs)
    assert threads.cpus[10] == {3, 4, 5, 7}, "once filled it is not read again"


def test_what_the_system_refuses_is_reported_once_counted_and_ends_nothing(fake, threads, job, caplog):
    threads.refuse = dict.fromkeys((10, 11, 12), errno.EPERM)
    placement = Placement(fake.host)
    placement.lower_priority()
    for n in range(1, 5):
        placement.update([job(n, str(n))])
    assert placement.failures == 3 + 4 * 3
    assert caplog.text.count("run on the CPUs") == 1 and caplog.text.count("lower priority") == 1
    assert placement.cpus == frozenset(range(8))


def test_priority_is_lowered_and_never_raised(fake, threads):
    threads.nices.update({11: 15, 12: -5})
    Placement(fake.host).lower_priority()
    assert threads.nices == {10: NICE, 11: 15, 12: NICE}


@pytest.mark.live
def test_a_real_process_moves_with_all_its_threads():
    if len(os.sched_getaffinity(0)) < 2:
        skip_refused("a single CPU")
    code = (
        "import os, sys, threading\nfrom colmet.common.transport import Push\n"
        "from colmet.common.host.host import Host\n"
        "from colmet.node.jobs.job import Job\nfrom colmet.node.placement import Placement\n"
        "push = Push('tcp://127.0.0.1:9', 10, 0)\n"
        "event = threading.Event()\nthreads = [threading.Thread(target=event.wait, daemon=True) for _ in range(3)]\n"
        "[one.start() for one in threads]\n"
        "def state():\n"
        "    tids = [int(tid) for tid in os.listdir('/proc/self/task')]\n"
        "    return (len(tids), {frozenset(os.sched_getaffinity(tid)) for tid in tids},\n"
        "            {os.getpriority(os.PRIO_PROCESS, tid) for tid in tids})\n"
        "start = os.sched_getaffinity(0)\nnice = os.getpriority(os.PRIO_PROCESS, 0)\nfirst, *others = sorted(start)\n"
        "open(sys.argv[1] + '/cpuset.cpus', 'w').write(str(first))\n"
        "class One(Job):\n    def directory(self, controller):\n"
        "        return sys.argv[1] if controller == 'cpuset' else None\n"
        "host = Host()\nplacement = Placement(host)\nplacement.lower_priority()\n"
        "placement.update([One(host, 1)])\ncount, cpus, nices = state()\n"
        "assert count >= 6 and cpus == {frozenset(others)} and nices == {max(5, nice)}, state()\n"
        "placement.update([])\nassert state()[1] == {frozenset(start)}, state()\n"
        "event.set()\npush.close()\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-c", code, directory], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_the_daemon_lowers_its_priority_with_that_of_its_threads():
    options = ("-s", "0.1", "--cpuset_rootpath", "/none", "--state-dir", "", "--spool-dir", "")
    command = [sys.executable, "-m", "colmet.node.main", "-v", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "backend on backend=procstats" in line:
                break
        tids = [int(name) for name in os.listdir(Path(f"/proc/{process.pid}/task"))]
        nices = {os.getpriority(os.PRIO_PROCESS, tid) for tid in tids}
        process.terminate()
        process.communicate()
    assert len(tids) >= 3 and nices == {max(5, os.getpriority(os.PRIO_PROCESS, 0))}
