from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmet.node.accounting.attribution import Attribution
from colmet.node.kernel.taskstats import Exits


def records(*ids):
    """Exit records of (thread, process, parent process); the value of each is its thread."""
    shaped = np.array(ids, dtype=np.int64).reshape(len(ids), 3)
    return Exits(shaped, shaped[:, :1].copy())


def process(pid, parent):
    return (pid, pid, parent)


def forks(*numbers):
    """Of (parent's thread, parent process, child's thread, child's process)."""
    return np.array(numbers, dtype=np.int64).reshape(len(numbers), 4)


def child(parent, pid):
    return (parent, parent, pid, pid)


def given_to(parts):
    """Jobs by task, of what `take` and `retry` return."""
    found = {}
    for job, exits in parts:
        assert exits.values[:, 0].tolist() == exits.ids[:, 0].tolist(), "values stay with their ids"
        for tid in exits.ids[:, 0].tolist():
            assert tid not in found
            found[tid] = job
    return found


def counts(owners):
    return owners.known, owners.by_fork, owners.by_parent, owners.other


@pytest.fixture
def owners():
    made = Attribution()
    made.list_all({1: [10, 11], 2: [20]})
    return made


def test_an_ended_task_is_given_to_its_job_and_counted_once_by_how_it_was_known(owners):
    owners.add_forks(forks(child(10, 100), child(20, 200), child(999, 998)))
    ended = records(process(10, 1), process(100, 10), process(101, 11), process(200, 20), process(998, 999))
    assert given_to(owners.take(ended)) == {10: 1, 100: 1, 101: 1, 200: 2}
    assert counts(owners) == (1, 2, 1, 0)
    for _ in range(owners.PATIENCE + 1):
        owners.list_all({1: [11], 2: [20]})
        assert owners.retry() == []
    assert counts(owners) == (1, 2, 1, 1)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_descendants_that_nobody_saw_are_found_through_each_other_whatever_the_order(owners, order, batches):
    chain = [process(30, 10), process(31, 30), process(32, 31), (33, 32, 31)]
    found = {}
    arriving = [chain[n] for n in order]
    size = len(arriving) // batches
    for start in range(0, len(arriving), size):
        found.update(given_to(owners.take(records(*arriving[start : start + size]))))
        found.update(given_to(owners.retry()))
    for _ in range(len(chain)):  # what waits for one that waits
        found.update(given_to(owners.retry()))
    assert found == {30: 1, 31: 1, 32: 1, 33: 1}
    assert counts(owners) == (0, 0, 4, 0)


def test_a_record_waits_for_a_number_of_ticks_and_no_longer(owners):
    owners.take(records(process(40, 39)))
    for _ in range(owners.PATIENCE - 1):
        owners.list_all({1: [10]})
        assert owners.retry() == []
        assert owners.retry() == [], "between ticks it is not counted twice"
    assert owners.other == 0
    owners.list_all({1: [10]})
    assert owners.retry() == []
    assert owners.other == 1
    owners.list_all({1: [10, 39]})
    assert owners.retry() == []
    assert counts(owners) == (0, 0, 0, 1)


def test_the_records_that_wait_are_bounded_and_the_oldest_go_first(owners, monkeypatch):
    monkeypatch.setattr(Attribution, "MAX_WAITING", 4)
    for start in (40, 43, 46):
        owners.take(records(*[process(pid, 1000 + pid) for pid in range(start, start + 3)]))
    assert owners.other == 6, "three by three: those of 40, then those of 43, which together with 46 are too many"
    owners.list_all({1: range(1040, 1050)})
    assert given_to(owners.retry()) == {46: 1, 47: 1, 48: 1}
    assert counts(owners) == (0, 0, 3, 6)


def test_the_ended_parents_that_are_remembered_are_bounded_and_the_newest_stay(owners, monkeypatch):
    monkeypatch.setattr(Attribution, "MAX_PARENTS", 10)
    for pid in range(100, 135):
        owners.take(records(process(pid, 10)))
    assert len(owners._parents) + len(owners._former_parents) <= 20
    assert given_to(owners.take(records(process(200, 134), process(201, 126)))) == {200: 1, 201: 1}
    assert owners.take(records(process(202, 105))) == []


def test_a_task_number_that_a_stranger_uses_again_is_the_strangers(owners):
    owners.list_all({1: [10, 11], 2: [20]})
    assert given_to(owners.take(records(process(10, 1)))) == {10: 1}
    assert owners.take(records(process(10, 1))) == [], "the next one of this number was not seen in the job"
    owners.list_all({1: [11], 2: [10]})
    assert given_to(owners.take(records(process(10, 1)))) == {10: 2}
    assert counts(owners)[:3] == (2, 0, 0)


def test_a_task_that_has_left_its_job_is_not_the_jobs_when_it_ends_though_its_parent_is(owners):
    owners.leave(1, 11)
    assert owners.alive(1) == 1 and owners.has_left(11)
    assert owners.take(records(process(11, 10))) == []
    for _ in range(owners.PATIENCE):
        owners.list_all({1: [10], 2: [20]})
        assert owners.retry() == []
    assert counts(owners) == (0, 0, 0, 1)
    assert not owners.has_left(11), "its number may be used again"


def test_a_unit_of_processes_and_threads_has_their_threads_but_not_their_children():
    owners = Attribution()
    owners.list_all({0: [10, 11], 1: [20]}, closed={0})
    owners.add_forks(forks((5, 5, 12, 10), child(10, 100), child(20, 200)))
    ended = records((12, 10, 5), (13, 10, 5), process(100, 10), process(101, 10), process(102, 100), process(200, 20))
    assert given_to(owners.take(ended)) == {12: 0, 13: 0, 200: 1}
    assert owners.owner(10) is None, "whom it waits for is nobody's"
    assert owners.owner(20) == 1
    assert given_to(owners.take(records(process(10, 20)))) == {10: 0}
    assert given_to(owners.take(records(process(103, 10)))) == {}, "nor are they after its end"


class World:
    """Processes and threads of two jobs and of nobody: what is true, and what the kernel reports of it."""

    def __init__(self, all_forks):
        self.all_forks = all_forks
        self.job = {10: 1, 20: 2, 30: None}
        self.ids = {pid: process(pid, 1) for pid in self.job}
        self.live = set(self.job)
        self.next = 100
        self.forks = []
        self.records = [[], []]  # of two CPUs
        self.owners = Attribution()
        self.given = {}
        self.taken = 0
        self.known = {}  # as Attribution is to know them: by task

    def fork(self, which, thread, reported):
        parent = sorted(self.live)[which % len(self.live)]
        owner, tid = self.ids[parent][1], self.next
        self.next += 1
        self.job[tid] = self.job[parent]
        grandparent = self.ids[parent][2]
        self.ids[tid] = (tid, owner, grandparent) if thread else process(tid, owner)
        self.live.add(tid)
        if reported or self.all_forks:
            self.forks.append((grandparent, grandparent, tid, owner) if thread else (parent, owner, tid, tid))

    def end(self, which, cpu):
        """Of those without threads and children: so nobody's parent changes."""
        needed = {number for tid in self.live for number in self.ids[tid][1:] if number != tid}
        free = sorted(self.live - needed - {10, 20, 30})
        if free:
            tid = free[which % len(free)]
            self.live.discard(tid)
            self.records[cpu].append(self.ids[tid])

    def lists(self):
        return {job: sorted(tid for tid in self.live if self.job[tid] == job) for job in (1, 2)}

    def receive(self, first):
        came = [*self.records[first], *self.records[not first]]
        self.records = [[], []]
        begun, self.forks = self.forks, []
        self.owners.add_forks(forks(*begun))
        for parent, owner, tid, tgid in begun:
            for known in (parent, owner) if tid == tgid else (tgid,):
                if known in self.known:
                    self.known[tid] = self.known[known]
                    break
        self.young = [tid for _, _, tid, _ in begun if tid in self.known]
        return came

    def take(self, came):
        self.taken += len(came)
        self.note(self.owners.take(records(*came)))
        for tid, _, _ in came:
            self.known.pop(tid, None)

    def note(self, parts):
        for tid, job in given_to(parts).items():
            assert tid not in self.given
            self.given[tid] = job

    def drain(self, first):
        self.take(self.receive(first))

    def tick(self, first, between):
        lists = self.lists()
        for event in between:
            self.do(event)
        came = self.receive(first)
        self.owners.list_all(lists)
        young = {tid: self.known[tid] for tid in self.young}
        self.known = {**young, **{tid: job for job, tids in lists.items() for tid in tids}}
        self.take(came)
        self.note(self.owners.retry())

    def do(self, event):
        kind, *numbers = event
        getattr(self, kind)(*numbers)


changes = st.one_of(
    st.tuples(st.just("fork"), st.integers(0, 50), st.booleans(), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 50), st.integers(0, 1)),
)
looks = st.one_of(
    st.tuples(st.just("drain"), st.integers(0, 1)),
    st.tuples(st.just("tick"), st.integers(0, 1), st.lists(changes, max_size=4)),
)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.booleans(), st.lists(st.one_of(changes, changes, looks), max_size=60))
def test_every_ended_task_of_a_job_is_given_to_it_once_and_no_other_is(all_forks, events):
    """Where forks are reported or not, in whatever order records come."""
    world = World(all_forks)
    world.tick(0, [])
    for event in events:
        world.do(event)
        for job in (1, 2):
            assert world.owners.alive(job) == list(world.known.values()).count(job)
    for _ in range(Attribution.PATIENCE + 2):
        world.tick(0, [])
    ended = set(world.job) - world.live
    assert world.given == {tid: world.job[tid] for tid in ended if world.job[tid] is not None}
    found = Counter(world.job[tid] is None for tid in ended)
    known, by_fork, by_parent, other = counts(world.owners)
    assert other == found[True] and known + by_fork + by_parent == found[False]
    if all_forks:
        assert by_parent == 0
