"""What the taskstats backend makes of tasks that come, go and end, reported by a made-up kernel."""

from __future__ import annotations

import errno
import json
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.host import processes as processes_module
from colmet.common.tables import RUN_FIELDS
from colmet.node.accounting import netlink_accounting as taskstats
from colmet.node.accounting.netlink_accounting import SCHEMA, NetlinkAccounting
from colmet.node.jobs.job import Job
from colmet.node.kernel.task_source import DELAYACCT
from colmet.node.kernel.taskstats import FIELDS, Exits
from tests.support.machine import FakeRoot

MS = 1_000_000
EXITING = 0x4
CPU, AGE, SWITCHES = (FIELDS.index(name) for name in ("cpu_run_virtual_total", "ac_etime", "nvcsw"))
REAL, WAITED = FIELDS.index("cpu_run_real_total"), FIELDS.index("blkio_delay_total")


class Task:
    def __init__(self, pid, parent, cpu):
        self.pid, self.parent, self.cpu = pid, parent, cpu
        self.age = 0
        self.waited = 0
        self.switches = 0

    @property
    def age(self):
        """In us, and growing."""
        return (time.monotonic_ns() - self._began_ns) // 1000

    @age.setter
    def age(self, age):
        self._began_ns = time.monotonic_ns() - age * 1000


class Kernel:
    """Tasks, their cgroups' lists, and what is reported of them; it is the client, the exits and the forks in one."""

    inbox = None

    def __init__(self, fake):
        self.fake = fake
        self.tasks = {}
        self.queue = []
        self.forked = []
        self.lost = self.records = self.overflows = self.events = 0
        self.during_query = lambda: None
        self.asked = []

    def values(self, task):
        row = np.zeros(len(FIELDS), dtype=np.int64)
        row[[CPU, REAL, AGE, SWITCHES, WAITED]] = (*(task.cpu, task.cpu, task.age, task.switches, task.waited),)
        return row

    def show(self, tid, flags=0):
        task = self.tasks[tid]
        fields = ["S", str(task.parent), *["0"] * 4, str(flags), *["0"] * 6, *["0"] * 6]
        self.fake.write(f"/proc/{tid}/stat", f"{tid} (a b) {' '.join(fields)} {1 << 60} 0\n")

    def start(self, tid, parent=1, cpu=0, pid=None, reported=None):
        """A process, or a thread of `pid`; `reported`: its fork is, by default that of a task of jobs."""
        self.tasks[tid] = Task(pid or tid, parent, cpu)
        self.show(tid)
        if parent not in (1, 90) if reported is None else reported:
            self.forked.append((parent, parent, tid, pid or tid))

    def run(self, tid, cpu):
        self.tasks[tid].cpu += cpu

    def die(self, tid, cpu=0, reported=True):
        """It makes its record, but is there still."""
        self.run(tid, cpu)
        task = self.tasks[tid]
        if reported:
            self.queue.append(((tid, task.pid, task.parent), self.values(task)))
        self.show(tid, flags=0x400000 | EXITING)

    def end(self, tid, cpu=0, reported=True):
        self.die(tid, cpu, reported)
        del self.tasks[tid]
        (self.fake.path / f"proc/{tid}/stat").unlink()

    # what the backend asks

    def query(self, tids):
        assert (np.diff(tids) > 0).all()
        self.asked.append(tids.tolist())
        self.during_query()
        found = [tid for tid in tids.tolist() if tid in self.tasks]
        values = np.array([self.values(self.tasks[tid]) for tid in found], dtype=np.int64)
        return np.array(found, dtype=np.int64), values.reshape(len(found), len(FIELDS))

    def receive_exits(self):
        reported, self.queue = self.queue, []
        self.records += len(reported)
        ids = np.array([ids for ids, _ in reported], dtype=np.int64).reshape(len(reported), 3)
        return Exits(ids, np.array([row for _, row in reported], dtype=np.int64).reshape(len(reported), len(FIELDS)))

    def receive_forks(self):
        reported, self.forked = self.forked, []
        self.events += len(reported)
        return np.array(reported, dtype=np.int64).reshape(len(reported), 4)

    def close(self):
        pass


class Ends:
    def __init__(self, kernel):
        self._kernel = kernel
        self.receive = kernel.receive_exits
        self.records = self.lost = self.overflows = 0

    def close(self):
        pass


class Forks(Ends):
    def __init__(self, kernel):
        super().__init__(kernel)
        self.receive = kernel.receive_forks
        self.events = 0


class Node:
    """A backend on a made-up kernel, and its jobs: a cgroup each."""

    def __init__(self, fake, state=False, forks=True):
        self.fake = fake
        self.jobs = {}
        self.state = state
        self.forks = forks
        fake.write(DELAYACCT, "1\n")
        fake.write("/proc/sys/kernel/random/boot_id", "6f0d5b1e-2a54-4d9a-9c62-1b7c3a5f2d10\n")
        self.kernel = Kernel(fake)
        self.restart()

    def restart(self):
        """A new agent: it knows nothing but what was kept."""
        if hasattr(self, "backend"):
            self.backend.close()
        self.backend = NetlinkAccounting(self.fake.host, "/state" if self.state else "")
        self.jobs = {job: self.make(job) for job in self.jobs}
        self.connect()
        if self.state:
            assert self.backend._state.open()
            self.backend._restore(self.backend._state.load())

    def connect(self):
        source = self.backend._source
        source.client, source.exits = self.kernel, Ends(self.kernel)
        source.forks = Forks(self.kernel) if self.forks else None

    def make(self, number):
        return Job(self.fake.host, number, cgroups=[f"/cgroup/{number}"])

    def job(self, number, *tids, witnessed=False):
        """A job, or another list of its tasks."""
        self.fake.write(f"/cgroup/{number}/tasks", "".join(f"{tid}\n" for tid in tids))
        if number not in self.jobs:
            self.jobs[number] = self.make(number)
        self.jobs[number].witnessed |= witnessed
        self.jobs[number].forget_tasks()

    def tick(self):
        for job in self.jobs.values():
            job.forget_tasks()
        return {row.job_id: row.values["cpu_run_virtual_total"] for row in self.backend.sample([*self.jobs.values()])}

    def row(self, number=1):
        for job in self.jobs.values():
            job.forget_tasks()
        return next(row.values for row in self.backend.sample([*self.jobs.values()]) if row.job_id == number)

    def notice(self, number):
        self.jobs[number].forget_tasks()
        self.backend.notice(self.jobs[number])


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for reads of the made-up /proc, which is on a disk that others may keep busy."""
    monkeypatch.setattr(processes_module, "LOOK_S", 0.1)


@pytest.fixture
def node(fake):
    made = Node(fake)
    yield made
    made.backend.close()


@pytest.fixture
def kernel(node):
    """Job 1 has process 10, which has used 100; nobody's are 1 and 90."""
    node.kernel.start(1)
    node.kernel.start(90)
    node.kernel.start(10, cpu=100)
    node.job(1, 10)
    node.tick()
    return node.kernel


# Tasks that end


def test_a_job_has_what_its_ended_tasks_used_until_their_end_and_not_what_a_tick_saw(node, kernel):
    kernel.start(11, 10, reported=True)
    kernel.end(11, cpu=7)
    kernel.start(12, 10)
    node.job(1, 10, 12)
    assert node.tick() == {1: 100 + 7}
    kernel.end(12, cpu=30)
    node.job(1, 10)
    assert node.tick() == {1: 100 + 7 + 30}
    assert node.tick() == {1: 137}
    counted = node.backend.counters()
    assert (counted["exits_known"], counted["exits_by_fork"], counted["exits_by_parent"]) == (1, 1, 0)


def test_a_task_that_ends_between_list_and_query_counts_once_in_the_same_tick(node, kernel):
    kernel.start(11, 10, cpu=3)
    node.job(1, 10, 11)
    kernel.during_query = lambda: 11 in kernel.tasks and kernel.end(11, cpu=20)
    assert node.tick() == {1: 100 + 23}
    node.job(1, 10)
    assert node.tick() == {1: 123}


def test_a_task_that_is_being_taken_down_but_still_listed_counts_once(node, kernel):
    kernel.start(11, 10, cpu=3)
    node.job(1, 10, 11)
    node.tick()
    kernel.die(11, cpu=20)
    for _ in range(3):
        assert node.tick() == {1: 100 + 23}
        node.notice(1)
    kernel.end(11, reported=False)
    node.job(1, 10)
    assert node.tick() == {1: 123}
    assert node.tick() == {1: 123}


def test_a_task_whose_record_is_lost_counts_as_it_was_last_seen(node, kernel):
    kernel.start(11, 10, cpu=3)
    node.job(1, 10, 11)
    node.tick()
    kernel.end(11, cpu=20, reported=False)
    node.job(1, 10)
    assert node.tick() == {1: 103}


def test_a_task_number_that_the_job_uses_again_is_another_task(node, kernel):
    for _ in range(3):
        kernel.start(11, 10, reported=True)
        kernel.end(11, cpu=5)
        node.backend.drain()
    kernel.start(11, 10, cpu=1)
    node.job(1, 10, 11)
    assert node.tick() == {1: 100 + 15 + 1}
    kernel.run(11, 1)
    assert node.tick() == {1: 117}


def test_ends_are_taken_in_between_ticks_and_a_job_without_tasks_is_reported(node, kernel, monkeypatch):
    monkeypatch.setattr("colmet.node.accounting.netlink_accounting.FEW", 0)
    kernel.start(20)
    node.job(2, 20)
    node.tick()
    assert list(node.backend.drain()) == []
    kernel.start(11, 10, reported=True)
    kernel.end(11, cpu=5)
    assert list(node.backend.drain()) == [], "10 lives"
    kernel.end(10, cpu=5)
    assert list(node.backend.drain()) == [1]
    kernel.end(90)
    assert list(node.backend.drain()) == []
    node.job(1)
    assert node.tick() == {1: 100 + 5 + 5, 2: 0}


def test_an_end_that_came_with_the_measurement_of_another_job_is_reported_all_the_same(node, kernel):
    """So that what is left of the job is read before its cgroups go."""
    kernel.start(20)
    node.job(2, 20)
    node.tick()
    kernel.start(11, 10, reported=True)
    kernel.end(11, cpu=5)
    node.notice(2)
    assert not kernel.queue, "its record is read"
    assert list(node.backend.drain()) == [1]
    assert list(node.backend.drain()) == []
    kernel.start(12, 10, reported=True)
    kernel.end(12, cpu=5)
    node.notice(1)
    assert list(node.backend.drain()) == [], "it has just been measured"
    kernel.start(13, 10, reported=True)
    kernel.end(13, cpu=5)
    assert node.tick() == {1: 100 + 3 * 5, 2: 0}
    assert list(node.backend.drain()) == [], "all have been"


# Tasks that go on as another


@pytest.mark.parametrize("first", [900, 20])
@pytest.mark.parametrize("between", ["", "drain", "notice", "drain and notice"])
def test_a_thread_that_calls_exec_is_counted_once_and_so_is_the_first_thread(node, kernel, first, between):
    """It gets the first one's number, of which a record is made; of its own number none ever is."""
    kernel.start(30, 10, cpu=first)
    kernel.start(31, 10, pid=30, cpu=200)
    node.job(1, 10, 30, 31)
    assert node.tick() == {1: 100 + first + 200}
    kernel.queue.append(((30, 30, 1), kernel.values(kernel.tasks[30])))
    kernel.tasks[30].cpu = 200 + 5
    kernel.run(30, 0)
    del kernel.tasks[31]
    node.job(1, 10, 30)
    if "drain" in between:
        node.backend.drain()
    if "notice" in between:
        node.notice(1)
        node.notice(1)
    assert node.tick() == {1: 100 + first + 205}
    kernel.run(30, 5)
    assert node.tick() == {1: 100 + first + 210}
    kernel.end(30, cpu=5)
    node.job(1, 10)
    assert node.tick() == {1: 100 + first + 215}


# Tasks that move


def test_a_task_that_leaves_its_cgroup_and_comes_back_counts_what_it_used_there_and_that_once(node, kernel):
    kernel.start(11, 10, cpu=50)
    node.job(1, 10, 11)
    assert node.tick() == {1: 150}
    kernel.run(11, 1000)
    node.job(1, 10)
    assert node.tick() == {1: 150}
    kernel.run(11, 1000)
    node.job(1, 10, 11)
    assert node.tick() == {1: 150}
    kernel.run(11, 4)
    assert node.tick() == {1: 154}
    kernel.end(11, cpu=1)
    node.job(1, 10)
    assert node.tick() == {1: 155}


def test_a_task_that_left_its_cgroup_and_ends_elsewhere_counts_no_more(node, kernel):
    kernel.start(11, 10, cpu=50)
    node.job(1, 10, 11)
    node.tick()
    node.job(1, 10)
    node.tick()
    kernel.end(11, cpu=1000)
    for _ in range(4):
        assert node.tick() == {1: 150}
    assert node.backend.counters()["exits_other"] == 1


def test_a_task_of_another_job_that_comes_brings_nothing_with_it(node, kernel):
    kernel.start(20, cpu=30)
    node.job(2, 20)
    node.tick()
    node.job(2)
    node.job(1, 10, 20)
    node.notice(1)
    assert node.tick() == {1: 100, 2: 30}
    kernel.run(20, 4)
    assert node.tick() == {1: 104, 2: 30}
    kernel.end(20, cpu=1)
    node.job(1, 10)
    assert node.tick() == {1: 105, 2: 30}


def test_a_stranger_that_comes_brings_nothing_with_it_nor_what_it_had_waited_for(node, kernel):
    kernel.start(95, 90, cpu=10_000)
    node.job(1, 10, 95)
    node.notice(1)
    assert node.tick() == {1: 100}
    kernel.run(95, 5)
    kernel.start(96, 95, reported=True)
    kernel.end(96, cpu=10 * MS)
    for _ in range(3):
        row = node.row()
    assert row["cpu_run_virtual_total"] == row["cpu_total"] == 105 + 10 * MS


@pytest.mark.parametrize("look", ["tick", "notice"])
def test_what_the_first_task_used_before_it_came_is_not_the_jobs_if_its_start_was_seen(node, kernel, look):
    for job, is_witnessed, here in ((2, True, 0), (3, False, 41)):
        kernel.start(20 + job, 90, cpu=41)
        node.job(job, 20 + job, witnessed=is_witnessed)
        if look == "notice":
            node.notice(job)
        assert node.tick()[job] == here
        kernel.run(20 + job, 10)
        assert node.tick()[job] == here + 10


def test_records_of_a_look_that_failed_are_attributed_at_the_next(node, kernel):
    kernel.start(11, 10)
    kernel.end(11, cpu=7)

    def fail():
        raise OSError(errno.EIO, "I/O error")

    kernel.during_query = fail
    with pytest.raises(OSError, match="I/O error"):
        node.tick()
    kernel.during_query = lambda: None
    assert node.tick() == {1: 107}


def test_the_first_tasks_of_a_job_that_began_before_the_agents_eyes_are_migrated_and_others_are_not(node, kernel):
    kernel.start(40, 90, cpu=500)
    node.job(4, 40, witnessed=True)
    node.notice(4)
    kernel.start(50, 90, cpu=500)
    node.job(5, 50)
    node.notice(5)
    assert node.tick() == {1: 100, 4: 0, 5: 500}


def test_children_of_the_jobs_tasks_are_no_strangers(node, kernel):
    kernel.start(11, 10, cpu=7)
    node.job(1, 10, 11)
    node.notice(1)
    kernel.start(12, 11, cpu=8, reported=True)
    node.job(1, 10, 11, 12)
    node.notice(1)
    assert node.tick() == {1: 115}


def test_where_forks_may_have_been_missed_nobody_is_taken_for_a_stranger(node, kernel):
    kernel.start(95, 90, cpu=10_000)
    node.job(1, 10, 95)
    node.backend._source.forks.overflows = 1
    node.notice(1)
    assert node.tick() == {1: 10_100}
    kernel.start(96, 90, cpu=10_000)
    node.job(1, 10, 95, 96)
    node.notice(1)
    assert node.tick() == {1: 10_100}, "and then they are known again"


def test_tasks_that_were_there_before_the_agent_are_counted_whole(node):
    node.kernel.start(10, cpu=5000)
    node.job(1, 10)
    node.notice(1)
    assert node.tick() == {1: 5000}


def test_children_of_a_unit_are_not_the_units_from_the_start(fake):
    node = Node(fake)
    node.kernel.start(10, cpu=100)
    fake.mkdir("/proc/10/task/10")
    node.jobs[0] = Job(fake.host, 0, pids=[10])
    node.notice(0)
    node.kernel.start(11, 10, reported=True)
    node.kernel.end(11, cpu=7)
    node.backend.drain()
    node.kernel.start(12, 10, reported=True)
    node.kernel.end(12, cpu=7)
    assert node.tick() == {0: 100}


def test_a_unit_that_has_tasks_of_a_job_as_well_keeps_what_they_used(node, kernel, fake):
    fake.mkdir("/proc/10/task/10")
    node.jobs[0] = Job(fake.host, 0, pids=[10])
    assert node.tick() == {0: 100, 1: 100}
    node.notice(0)
    node.notice(1)
    assert node.tick() == {0: 100, 1: 100}


# The end of a job


def test_a_job_has_a_last_row_with_all_that_its_tasks_used_and_nothing_of_it_stays(node, kernel):
    kernel.start(11, 10, reported=True)
    kernel.end(11, cpu=5)
    kernel.end(10, cpu=6)
    job = node.jobs.pop(1)
    job.close()
    assert node.backend.last(job).values["cpu_run_virtual_total"] == 111
    assert node.backend.last(job) is None
    assert node.tick() == {}
    kernel.start(12, cpu=3)
    node.job(1, 12)
    assert node.tick() == {1: 3}, "another job of the same number"


def test_a_job_that_nobody_looked_at_has_a_last_row_if_a_fork_or_a_parent_shows_its_tasks(node, kernel):
    kernel.start(70, 90, cpu=2)
    node.job(7, 70)
    node.notice(7)
    kernel.start(71, 70, reported=True)
    kernel.end(71, cpu=5)
    kernel.end(70, cpu=1)
    job = node.jobs.pop(7)
    job.close()
    assert node.backend.last(job).values["cpu_run_virtual_total"] == 8
    job = node.make(8)
    job.close()
    assert node.backend.last(job) is None


# Waits that the kernel counts wrongly


UPTIME = 1_345_531_900_817


def test_a_wait_that_no_task_can_have_had_is_left_out_whether_it_lives_or_has_ended(node, kernel, caplog):
    kernel.tasks[10].age, kernel.tasks[10].waited = 60_000_000, 5000 * MS
    assert node.row()["blkio_delay_total"] == 5000 * MS
    kernel.tasks[10].age, kernel.tasks[10].waited = 65_000_000, 5000 * MS + UPTIME
    kernel.start(11, 10, reported=True)
    kernel.tasks[11].age, kernel.tasks[11].waited = 2_000_000, UPTIME
    kernel.end(11)
    kernel.start(12, 10, reported=True)
    kernel.tasks[12].age, kernel.tasks[12].waited = 2_000_000, 1500 * MS
    kernel.end(12)
    assert node.row()["blkio_delay_total"] == 6500 * MS
    kernel.tasks[10].age, kernel.tasks[10].waited = 70_000_000, 6000 * MS + UPTIME
    kernel.end(10)
    assert node.row()["blkio_delay_total"] == 7500 * MS
    assert node.backend.counters()["delays_implausible"] == 2
    assert caplog.text.count("waits of tasks that they cannot have had") == 1


def test_what_was_left_out_of_waits_stays_out_over_a_restart(kept):
    task = kept.kernel.tasks[10]
    task.age, task.waited = 2000_000_000, 3000 * MS
    kept.tick()
    task.age, task.waited = 2001_000_000, 3000 * MS + 3 * UPTIME
    assert kept.row()["blkio_delay_total"] == 3000 * MS
    kept.restart()
    assert kept.row()["blkio_delay_total"] == 3000 * MS
    task.age, task.waited = 2002_000_000, 3500 * MS + 3 * UPTIME
    assert kept.row()["blkio_delay_total"] == 3500 * MS
    assert kept.backend.counters()["delays_implausible"] == 0


# A restart of the agent


@pytest.fixture
def kept(fake):
    """Job 1, whose ended tasks used 30 of 130, was kept; job 2 has a task that came with 1000."""
    node = Node(fake, state=True)
    node.kernel.start(10, cpu=100)
    node.job(1, 10)
    node.kernel.start(20, cpu=0)
    node.job(2, 20)
    node.tick()
    node.kernel.start(11, 10, reported=True)
    node.kernel.end(11, cpu=30)
    node.kernel.start(21, 90, cpu=1000)
    node.job(2, 20, 21)
    node.notice(2)
    for _ in range(2):
        assert node.tick() == {1: 130, 2: 0}
    return node


def test_totals_go_on_over_a_restart(kept):
    before = kept.row()
    kept.restart()
    kept.notice(1)
    kept.kernel.run(10, 1)
    kept.kernel.run(21, 1)
    assert kept.tick() == {1: 131, 2: 1}
    kept.restart()
    after = kept.row()
    assert after["cpu_run_virtual_total"] == 131
    assert after["cpu_total"] == before["cpu_total"] + 1


def test_tasks_that_ended_while_the_agent_was_away_count_as_they_were_kept(kept):
    kept.kernel.end(10, cpu=1000)
    kept.kernel.queue.clear()
    kept.job(1)
    kept.restart()
    assert kept.tick() == {1: 130, 2: 0}


def test_a_job_that_is_another_one_starts_again_and_one_that_ended_meanwhile_is_forgotten(kept):
    kept.kernel.start(22, 20, reported=True)
    kept.kernel.end(22, cpu=40)
    assert kept.tick()[2] == 40
    del kept.jobs[2]
    directory = kept.fake.path / "cgroup/1"
    kept.fake.mkdir("/cgroup/other")
    directory.rename(kept.fake.path / "cgroup/old")
    (kept.fake.path / "cgroup/other").rename(directory)
    kept.kernel.start(12, cpu=3)
    kept.job(1, 12)
    kept.restart()
    assert kept.tick() == {1: 3}
    kept.job(2, 20)
    assert kept.tick() == {1: 3, 2: 0}
    kept.kernel.run(20, 2)
    assert kept.tick()[2] == 2, "and not 42"


def test_a_last_row_is_that_of_before_the_restart_too(kept):
    job = kept.jobs.pop(1)
    kept.restart()
    kept.kernel.end(10)
    kept.kernel.queue.clear()
    _ = job.identity
    job.close()
    assert kept.backend.last(job).values["cpu_run_virtual_total"] == 130


def rewrite(backend, change):
    data = backend._state.load()
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    change(head)
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + data[4 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.update(fields=["ac_etime"]),
        lambda head: head.pop("fields"),
        lambda head: head.pop("waits"),
        lambda head: head.pop("jobs"),
        lambda head: head["jobs"][0].pop("ended"),
        lambda head: head["jobs"][0].update(tasks=10**30),
        lambda head: head["jobs"][0].update(tasks="x"),
        lambda head: head["jobs"][1].update(job=None),
    ],
)
def test_what_another_version_kept_is_not_used_and_that_is_said(kept, caplog, change):
    data = rewrite(kept.backend, change)
    kept.backend._sampled = ()  # it is killed, and keeps nothing at its end
    kept.backend._state.save(data)
    kept.restart()
    assert caplog.text.count("kept totals are of another version") == 1
    assert kept.tick() == {1: 100, 2: 1000}


def test_bytes_of_any_kind_are_read_or_reported_but_end_nothing(kept, caplog):
    caplog.set_level(logging.CRITICAL)
    good = kept.backend._state.load()

    @given(st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255))))
    def restore(damage):
        if not isinstance(damage, bytes):
            place, byte = damage
            damage = good[:place] + bytes([byte]) + good[place + 1 :]
        kept.backend._restore(damage)

    restore()
    for length in range(0, len(good), 7):
        kept.backend._restore(good[:length])


def test_of_more_tasks_than_can_be_kept_the_totals_are_and_do_not_go_down_over_any_number_of_restarts(
    kept, monkeypatch
):
    monkeypatch.setattr(taskstats, "MAX_KEPT_TASKS", 1)
    for tid in (12, 13):
        kept.kernel.start(tid, 10, cpu=1000, reported=True)
    kept.job(1, 10, 12, 13)
    assert kept.tick()[1] == 2130
    for tid in (12, 13):
        kept.kernel.end(tid)
    kept.kernel.queue.clear()
    kept.job(1, 10)
    for _ in range(3):
        kept.restart()
        assert kept.tick() == {1: 2130, 2: 0}
    kept.kernel.run(10, 3000)
    assert kept.tick() == {1: 30 + 3100, 2: 0}


# The counts


def test_counters_have_every_column_from_the_start_and_go_on_when_the_backend_is_opened_again(node, kernel):
    columns = {
        *("exits_known", "exits_by_fork", "exits_by_parent", "exits_other", "answers_lost", "exit_records"),
        *("exit_records_lost", "exit_overflows", "fork_events", "fork_overflows", "delays_implausible"),
    }
    on = {"exit_records_on": 1, "fork_events_on": 1}
    kernel.lost = 3
    exits, forks = node.backend._source.exits, node.backend._source.forks
    exits.records, exits.lost, exits.overflows, forks.events, forks.overflows = 10, 2, 1, 20, 4
    kernel.end(90)
    for _ in range(4):
        node.tick()
    before = dict(node.backend.counters())
    expected = {"answers_lost": 3, "exit_records": 10, "exit_records_lost": 2, "exit_overflows": 1}
    expected.update({"fork_events": 20, "fork_overflows": 4, "exits_other": 1})
    assert before == {**dict.fromkeys(columns, 0), **expected, **on}
    node.backend.close()
    kernel.lost = 0
    node.connect()
    node.backend._source.exits.records = 5
    assert dict(node.backend.counters()) == {**before, "exit_records": 15}


def test_a_job_that_went_between_ticks_is_not_kept_at_the_end(kept):
    job = kept.jobs.pop(2)
    kept.kernel.start(22, 20, reported=True)
    kept.backend.drain()
    kept.backend.last(job)
    kept.kernel.end(22, cpu=5)
    kept.restart()
    assert kept.tick() == {1: 130}


def test_what_could_not_be_listened_to_is_tried_again(node, kernel, monkeypatch, caplog):
    made = []

    def listen(host, inbox):
        made.append(inbox)
        if len(made) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return Ends(kernel)

    monkeypatch.setattr("colmet.node.kernel.task_source.ExitRecords", listen)
    monkeypatch.setattr("colmet.node.kernel.task_source.ForkEvents", lambda inbox: Forks(kernel))
    monkeypatch.setattr("colmet.node.kernel.task_source.LISTEN_AGAIN_S", 0)
    monkeypatch.setattr(Ends, "fd", 5, raising=False)
    kernel.inbox = None
    backend = node.backend
    backend._source.exits = backend._source.forks = None
    backend._listen()
    node.tick()
    assert backend.counters()["exit_records_on"] == 0 and backend.fd == -1
    node.tick()
    assert backend.counters()["exit_records_on"] == backend.counters()["fork_events_on"] == 1 and backend.fd == 5
    node.tick()
    assert len(made) == 3 and caplog.text.count("no exit records") == 1


def test_every_column_is_in_a_row_and_its_own_are_the_last(node, kernel):
    names = SCHEMA.names[: -len(RUN_FIELDS)]  # the agent adds these
    assert tuple(node.row()) == names and names[-2:] == ("cpu_total", "tasks_ended")


def test_what_ended_since_the_last_tick_is_kept_at_the_agents_end_too(kept):
    kept.kernel.start(12, 10, reported=True)
    kept.kernel.end(12, cpu=9)
    kept.restart()
    kept.kernel.queue.clear()
    assert kept.tick() == {1: 139, 2: 0}


moves = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans(), st.booleans()), min_size=1, max_size=8
)


@pytest.mark.slow
@given(moves)
def test_whatever_comes_goes_and_is_reported_cpu_total_is_not_above_the_cgroup_and_does_not_fall(steps):
    with tempfile.TemporaryDirectory() as folder:
        check_moves(Node(FakeRoot(Path(folder))), steps)


def check_moves(node, steps):
    kernel = node.kernel
    kernel.start(1)
    kernel.start(90)
    kernel.start(10, 1)
    node.job(1, 10)
    node.tick()
    here, last, live = 1, 0, [10]
    for number, (before, used, reported, ends) in enumerate(steps):
        tid = 20 + number
        kernel.start(tid, 10 if reported else 90, cpu=0 if reported else before * MS, reported=reported)
        kernel.run(tid, used * MS)
        here += used * MS
        live.append(tid)
        if ends:
            kernel.end(live.pop(0 if len(live) > 2 and number % 2 else -1))
        node.job(1, *live)
        if not reported:
            node.notice(1)
        now = node.row()["cpu_total"] if live else last
        assert last <= now <= here
        last = now
