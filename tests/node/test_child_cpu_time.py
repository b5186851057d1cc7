from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmet.common.host.processes import Processes
from colmet.node.accounting.child_cpu_time import ChildCpuTime

TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
ROOT = 10
START = 1000  # of the agent, in clock ticks since boot


class Machine:
    """Processes as /proc shows them, the records of their ends, and who knows of which job they are."""

    def __init__(self, since=START):
        self.stat = {}
        self.owner = {}
        self.processes = Processes()
        self.reaped = ChildCpuTime(self, self.owner.get, lambda pids: pids - self.owner.keys(), now_ns=since * TICK)
        self.records = []
        self.recorded = 0  # with what was estimated
        self.found = {}

    def read(self, path):
        """As a Host reads: fields 16, 17 and 22 of /proc/<pid>/stat count."""
        charged, began, name = self.stat.get(int(path.split("/")[2]), (None, 0, ""))
        if charged is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        user, system = charged // 3, charged - charged // 3
        fields = ["S", *["7"] * 12, str(user), str(system), *["7"] * 4, str(began), "7", "7"]
        return f"1 ({name}) {' '.join(fields)}\n".encode()

    def process(self, pid, job=1, charged=0, began=START + 5, name="sh"):
        """Start a process, or have it be charged with a number of clock ticks in all."""
        self.stat[pid] = (charged, began, name)
        if job is not None:
            self.owner[pid] = job

    def end(self, pid, ppid, recorded=0, thread=None, job=1, beyond=0):
        """A process, or one of its threads, ends, and the kernel reports it; its parent waits for it at once."""
        if thread is None:
            self.stat.pop(pid, None)
        self.records.append((job, (pid if thread is None else thread, pid, ppid), recorded, beyond))

    def receive(self):
        """Take the records in as the backend does: whoever has ended is of no job any more, then job by job."""
        records, self.records = self.records, []
        for _, (tid, _, _), _, _ in records:
            self.owner.pop(tid, None)
        for job in sorted({job for job, _, _, _ in records}):
            some = [one[1:] for one in records if one[0] == job]
            self.reaped.add(*zip(*some))
        self.recorded += sum(recorded + beyond for _, _, recorded, beyond in records)
        self.settle()

    def settle(self):
        found = self.reaped.settle()
        for job, beyond in found.items():
            assert beyond >= 0
            self.found[job] = self.found.get(job, 0) + beyond
        return found

    def drain(self):
        """What was found beyond the records."""
        before = dict(self.found)
        self.reaped.read()
        self.receive()
        return {job: found - before.get(job, 0) for job, found in self.found.items() if found != before.get(job, 0)}


@pytest.fixture
def machine():
    made = Machine()
    made.process(ROOT)
    return made


def test_what_a_shell_is_charged_with_beyond_its_childrens_records_is_found_once(machine):
    machine.end(100, ROOT, recorded=1 * TICK)
    machine.end(101, ROOT, recorded=2 * TICK)
    machine.process(ROOT, charged=10)
    machine.drain()
    assert machine.drain() == {1: 7 * TICK}
    assert machine.drain() == {}
    machine.end(102, ROOT, recorded=0)
    machine.process(ROOT, charged=14)
    machine.drain()
    assert machine.drain() == {1: 4 * TICK}


def test_threads_are_charged_to_whom_their_process_will_be_and_are_no_ends_of_processes(machine):
    machine.process(100)
    machine.end(101, 100, recorded=1 * TICK)
    machine.end(100, ROOT, recorded=2 * TICK, thread=109)
    machine.process(100, charged=3)
    machine.drain()
    assert machine.drain() == {1: 2 * TICK}
    machine.end(100, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=3 + 4)
    machine.drain()
    assert machine.drain() == {1: 1 * TICK}, "3 + 4, less 3 that were recorded or found of 101, and 2 and 1"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_of_nested_shells_that_end_all_is_charged_to_the_one_that_lives_in_whatever_order(machine, order, together):
    machine.process(100)
    machine.process(101)
    ends = [(102, 101), (101, 100), (100, ROOT)]
    for n in order:
        machine.end(*ends[n], recorded=1 * TICK)
        if not together:
            machine.drain()
    machine.process(ROOT, charged=9)
    for _ in range(3):
        machine.drain()
    assert machine.found == {1: 6 * TICK}


def test_whom_a_process_had_waited_for_before_it_came_to_the_job_does_not_count(machine):
    machine.process(100, charged=50)
    machine.reaped.watch([100], 1)
    machine.end(101, 100, recorded=1 * TICK)
    machine.process(100, charged=50 + 4)
    machine.drain()
    assert machine.drain() == {1: 3 * TICK}
    machine.reaped.watch([999], 1)  # has ended meanwhile
    assert machine.drain() == {}


def test_whom_a_process_older_than_the_agent_had_waited_for_does_not_count(machine):
    machine.process(ROOT, charged=50, began=START - 1)
    machine.end(100, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=50 + 4, began=START - 1)
    machine.drain()
    assert machine.drain() == {}, "it is not known when it was charged with that"
    machine.end(101, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=54 + 9, began=START - 1)
    machine.drain()
    assert machine.drain() == {1: 9 * TICK - 2 * TICK}


def test_a_process_that_vanished_without_a_record_is_not_found_in_its_parents_with_what_its_childrens_had(machine):
    machine.process(100)
    machine.end(101, 100, recorded=5 * TICK)
    machine.drain()
    del machine.stat[100]
    machine.drain()
    machine.reaped.tick({1})
    machine.owner.pop(100)
    machine.end(102, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=1 + 7 + 4)  # 102, 101 and 100
    machine.drain()
    assert machine.drain() == {1: (7 - 5 + 4) * TICK}
    machine.end(103, ROOT, recorded=0)
    machine.process(ROOT, charged=12 + 3)
    machine.drain()
    assert machine.drain() == {1: 3 * TICK}, "paid once"


def test_what_was_counted_of_a_task_without_a_record_is_not_found_once_more(machine):
    machine.reaped.owe(1, 4 * TICK)
    machine.end(101, ROOT, recorded=0)
    machine.process(ROOT, charged=1 + 5)
    for _ in range(2):
        machine.drain()
    assert machine.found == {1: (1 + 5 - 4) * TICK}


def test_a_parent_of_another_job_keeps_what_it_is_charged_with_for_its_own_job(machine):
    machine.process(20, job=2)
    machine.end(100, 20, recorded=1 * TICK, job=1)
    machine.process(20, job=2, charged=4)
    machine.drain()
    assert machine.drain() == {2: 3 * TICK}


def test_a_name_that_looks_like_fields_is_a_name(machine):
    machine.end(100, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=4, name="a) S 1 (b) 9 9")
    machine.drain()
    assert machine.drain() == {1: 3 * TICK}


def test_an_estimate_that_was_too_large_is_taken_off_what_is_found_later(machine):
    machine.end(100, ROOT, recorded=1 * TICK, beyond=5 * TICK)
    machine.process(ROOT, charged=3)
    machine.drain()
    assert machine.drain() == {}, "3 were used, 6 are counted"
    machine.end(101, ROOT, recorded=1 * TICK)
    machine.process(ROOT, charged=3 + 6)
    machine.drain()
    assert machine.drain() == {1: 2 * TICK}, "9 were used, 7 are counted"


LOST = 5


class Family(Machine):
    """Processes below one that lives, with what they really used, and what they are really charged with."""

    def __init__(self, tidy, share):
        super().__init__()
        self.share = share  # fourths of what a record leaves out, that are estimated
        self.tidy = tidy  # processes end after their children, and wait for them
        self.parent = {ROOT: 1}
        self.own = {ROOT: 0}
        self.charged = {ROOT: 0}
        self.zombies = {}
        self.next = 100
        self.really = 0
        self.queues = [[], []]
        self.lost = []  # whose records did not arrive
        self.show(ROOT)

    def show(self, pid):
        self.process(pid, job=None, charged=self.charged[pid])
        self.owner.setdefault(pid, 1)

    def live(self):
        return sorted(self.parent.keys() - self.zombies.keys())

    def fork(self, which):
        parent = self.live()[which % len(self.live())]
        pid, self.next = self.next, self.next + 1
        self.parent[pid], self.own[pid], self.charged[pid] = parent, 0, 0
        self.show(pid)

    def work(self, which, ticks):
        self.own[self.live()[which % len(self.live())]] += ticks

    def die(self, which, recorded, cpu):
        """The record is made first, then the process goes, its children become those of another."""
        pids = [pid for pid in self.live() if pid != ROOT]
        if self.tidy:
            pids = [pid for pid in pids if not {child for child in self.live() if self.parent[child] == pid}]
        if not pids:
            return
        pid = pids[which % len(pids)]
        children = [child for child, parent in self.parent.items() if parent == pid]
        for child in children:
            if not self.tidy:
                self.parent[child] = 1
                if child in self.zombies:
                    self.remove(child)
            elif child in self.zombies:
                self.wait_for(child)
        self.zombies[pid] = True
        if recorded == LOST:
            self.lost.append(pid)
        else:
            recorded_ns = self.own[pid] * TICK * recorded // 4
            estimate = (self.own[pid] * TICK - recorded_ns) * self.share // 4
            self.queues[cpu].append((1, (pid, pid, self.parent[pid]), recorded_ns, estimate))
        self.really += self.own[pid] * TICK
        if self.parent[pid] == 1:
            self.remove(pid)

    def wait(self, which):
        pids = sorted(self.zombies)
        if pids:
            self.wait_for(pids[which % len(pids)])

    def wait_for(self, pid):
        parent = self.parent[pid]
        if parent in self.parent:
            self.charged[parent] += self.own[pid] + self.charged[pid]
            self.stat[parent] = (self.charged[parent], *self.stat[parent][1:])
        self.remove(pid)

    def remove(self, pid):
        del self.zombies[pid], self.parent[pid], self.own[pid], self.charged[pid], self.stat[pid]

    def tick(self):
        self.reaped.tick({1})
        for pid in self.lost:  # and now no cgroup lists them
            self.owner.pop(pid, None)

    def look(self, first, between):
        self.reaped.read()
        for event in between:
            self.do(event)
        self.records = [*self.queues[first], *self.queues[not first]]
        self.queues = [[], []]
        self.receive()

    def do(self, event):
        kind, *numbers = event
        getattr(self, kind)(*numbers)


which = st.integers(0, 30)
events = st.one_of(
    st.tuples(st.just("fork"), which),
    st.tuples(st.just("work"), which, st.integers(0, 9)),
    st.tuples(st.just("die"), which, st.integers(0, LOST), st.integers(0, 1)),
    st.tuples(st.just("wait"), which),
)
looks = st.one_of(
    st.tuples(st.just("look"), st.integers(0, 1), st.lists(events, max_size=5)), st.tuples(st.just("tick"))
)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.booleans(), st.integers(0, 4), st.lists(st.one_of(events, events, looks), max_size=80))
def test_never_is_more_counted_than_was_really_used_and_in_the_end_all_is_that_was_waited_for(tidy, share, happened):
    family = Family(tidy, share)
    for event in happened:
        family.do(event)
        assert family.recorded + family.found.get(1, 0) <= family.really
    if not tidy or family.lost:
        return
    while family.live() != [ROOT]:
        family.die(0, 1, 0)
    while family.zombies:
        family.wait(0)
    family.fork(0)  # one more that ends has its parent looked at
    family.die(0, 0, 0)
    family.wait(0)
    for _ in range(5):
        family.look(0, [])
        assert family.recorded + family.found.get(1, 0) <= family.really
    assert family.recorded + family.found.get(1, 0) == family.really == family.charged[ROOT] * TICK
