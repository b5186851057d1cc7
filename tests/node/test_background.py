"""Backends in threads of their own."""

from __future__ import annotations

import threading
import time

import pytest

from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.host.command import Command
from colmet.common.schema import Field, Sample, Schema
from colmet.node.runner import FIRST_RETRY_S, BackgroundBackend, NotYet, Runner
from tests.support.made_up_backend import Fake
from tests.support.waiting import Clock, wait_for

FIRST = Schema("slow_default", "node", [Field("n", "count", "gauge")])
SECOND = Schema("slowparts_default", "node", [Field("part", "none", "label", dtype="S8"), Field("n", "count", "gauge")])


class Slow(Fake):
    """Blocks until a test lets it go on."""

    name = "slow"
    schema = FIRST
    others = (SECOND,)
    blocking = True
    deadline_s = 5.0

    def __init__(self):
        self.may_go_on = threading.Semaphore(0)
        self.calls = []
        self.error = None
        self.threads = set()
        self.at_once = threading.Lock()

    def _called(self, *call):
        assert self.at_once.acquire(blocking=False), "two calls at once"
        self.calls.append(call)
        self.threads.add(threading.current_thread())
        self.may_go_on.acquire()
        self.at_once.release()
        if self.error is not None:
            raise self.error

    def open(self):
        self._called("open")

    def ask(self, jobs):
        assert threading.current_thread() is threading.main_thread()
        return [f"asked {job}" for job in jobs]

    def sample(self, jobs):
        self._called("sample", *jobs)
        yield Sample(0, {"n": len(self.calls)})
        yield Sample(0, {"part": b"a", "n": 1}, SECOND)
        yield Sample(0, {"part": b"b", "n": 2}, SECOND)

    def counters(self):
        return {"commands": 3}

    def close(self):
        self.calls.append(("close",))


@pytest.fixture
def slow():
    made = Slow()
    yield made
    for _ in range(100):
        made.may_go_on.release()


def ended(beside):
    return lambda: beside._call is None or beside._call.ended_ns


def test_no_call_waits_and_rows_come_with_their_own_time(slow):
    clock = Clock(0.0)
    beside = BackgroundBackend(slow, clock)
    runner = Runner(beside, clock)
    for _ in range(3):
        assert runner.sample(["7"], 1) == [] and not runner.is_open and runner.failures == 0
    wait_for(lambda: slow.calls == [("open",)])
    slow.may_go_on.release()
    wait_for(ended(beside))
    assert runner.sample(["7"], 1) == [], "the first measurement begins"
    assert runner.is_open
    wait_for(lambda: slow.calls[1:] == [("sample", "asked 7")])
    for _ in range(4):
        assert runner.sample(["8"], 1) == []
    assert runner.counters()["left_out"] == 4 and runner.counters()["commands"] == 3
    before = time.time_ns()
    slow.may_go_on.release()
    wait_for(ended(beside))
    after = time.time_ns()
    first, second = runner.sample(["9"], 1)
    assert (first.schema, second.schema) == (FIRST, SECOND)
    assert first.rows["n"].tolist() == [2] and second.rows["part"].tolist() == [b"a", b"b"]
    assert before <= first.time_ns == second.time_ns <= after
    wait_for(lambda: slow.calls[2:] == [("sample", "asked 9")])
    assert runner.rows == 3
    assert threading.main_thread() not in slow.threads


def opened(slow, clock):
    beside = BackgroundBackend(slow, clock)
    runner = Runner(beside, clock)
    runner.sample([], 1)
    slow.may_go_on.release()
    wait_for(ended(beside))
    runner.sample([], 1)
    assert runner.is_open is (slow.error is None)
    return beside, runner


def test_what_exceeds_its_deadline_is_logged_once_and_waited_for(slow, caplog):
    caplog.set_level("INFO")
    clock, threads = Clock(0.0), threading.active_count()
    beside, runner = opened(slow, clock)
    for clock.now in (1, 5, 6, 7, 8, 100):
        assert runner.sample([], 1) == []
    assert caplog.text.count("does not answer") == 1 and runner.counters()["late"] == 1
    assert threading.active_count() <= threads + 1
    slow.may_go_on.release()
    wait_for(ended(beside))
    assert len(runner.sample([], 1)) == 2
    assert caplog.text.count("answers again") == 1
    for clock.now in (101, 106):
        runner.sample([], 1)
    assert runner.counters()["late"] == 2


def test_its_programs_are_counted(slow):
    good, bad = Command(["true"], 60.0), Command(["sleep", "600"], 0.1)
    slow.programs = lambda: [good, bad]
    slow.counters = dict
    _, runner = opened(slow, Clock(0.0))
    good.run()
    good.run()
    with pytest.raises(CommandFailed):
        bad.run()
    assert (runner.counters()["commands"], runner.counters()["commands_killed"]) == (3, 1)


def test_a_failure_is_counted_and_the_next_measurement_begins(slow, caplog):
    beside, runner = opened(slow, Clock(0.0))
    for n in range(1, 4):
        slow.error = ParseError("/proc/x", "?")
        slow.may_go_on.release()
        wait_for(ended(beside))
        assert runner.sample([], 1) == [] and runner.failures == n and runner.is_open
    slow.error = None
    slow.may_go_on.release()
    wait_for(ended(beside))
    assert len(runner.sample([], 1)) == 2


@pytest.mark.parametrize("at_open", [True, False])
def test_an_absent_one_is_closed_and_opened_again_later(slow, caplog, at_open):
    clock = Clock(0.0)
    slow.error = BackendUnavailable("no such BMC; modprobe it") if at_open else None
    beside, runner = opened(slow, clock)
    if not at_open:
        slow.error = BackendUnavailable("no such BMC; modprobe it")
        slow.may_go_on.release()
        wait_for(ended(beside))
        runner.sample([], 1)
        assert [call[0] for call in slow.calls].count("sample") == 1
    assert not runner.is_open
    wait_for(lambda: slow.calls[-1] == ("close",))
    assert caplog.text.count("modprobe it") == 1
    beside.join(20)
    slow.error = None
    calls = len(slow.calls)
    runner.sample([], 1)
    assert len(slow.calls) == calls, "not before its time"
    clock.now += FIRST_RETRY_S
    runner.sample([], 1)
    slow.may_go_on.release()
    wait_for(ended(beside))
    runner.sample([], 1)
    assert runner.is_open
    assert slow.calls[calls] == ("open",)


def test_close_waits_for_nothing_and_a_held_thread_is_not_joined_by_another(slow):
    beside, _ = opened(slow, Clock(0.0))
    wait_for(lambda: len(slow.calls) == 2)
    beside.close()
    beside.close()
    beside.join(0.01)
    count = threading.active_count()
    for _ in range(3):
        with pytest.raises(NotYet):
            beside.open()
    assert threading.active_count() == count
    assert ("close",) not in slow.calls
    slow.may_go_on.release()
    beside.join(20)
    assert slow.calls[-1] == ("close",) and slow.calls.count(("close",)) == 1
