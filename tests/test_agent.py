from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from colmet.common.cli import Signals
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.schema import Batch, Field, Sample, Schema
from colmet.common.wire import Decoder, v1
from colmet.node.agent import FIRST_RETRY_S, LAST_RETRY_S, Agent, Runner
from colmet.node.backend import InputBackend
from colmet.node.jobs import DEFAULT_PATTERN, JobSource, compile_patterns
from colmet.node.schedule import Schedule
from colmet.node.spool import Spool

SCHEMA = Schema("fake_default", "job", [Field("cpu", "nsec", "counter")])


class Fake(InputBackend):
    """A backend that does what a test tells it to."""

    name = "fake"
    schema = SCHEMA

    def __init__(self, behave=None):
        self.behave = behave or (lambda jobs: [Sample(job.id, {"cpu": 5}) for job in jobs])
        self.unavailable = None
        self.opened = self.closed = 0

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options, host):
        return cls()

    def open(self):
        self.opened += 1
        if self.unavailable:
            raise BackendUnavailable(self.unavailable)

    def sample(self, jobs):
        return self.behave(jobs)

    def close(self):
        self.closed += 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def raising(error):
    def behave(jobs):
        raise error

    return behave


def test_an_absent_backend_is_one_warning_and_is_tried_again_with_back_off(caplog):
    backend, clock = Fake(), Clock()
    backend.unavailable = "no such device; modprobe it"
    runner = Runner(backend, clock)
    for _ in range(5):
        assert runner.sample([], 1) is None
    assert backend.opened == 1
    waits, total = [], 0.0
    while total < 4 * LAST_RETRY_S:
        clock.now += 1
        total += 1
        before = backend.opened
        runner.sample([], 1)
        if backend.opened > before:
            waits.append(clock.now)
    gaps = [b - a for a, b in zip([0.0, *waits], waits)]
    assert gaps[0] == FIRST_RETRY_S and gaps[1] == 2 * FIRST_RETRY_S and gaps[-1] == LAST_RETRY_S
    assert caplog.text.count("modprobe it") == 1
    backend.unavailable = None
    clock.now += LAST_RETRY_S
    runner.sample([], 1)
    assert runner.is_open


@pytest.mark.parametrize("error", [ParseError("/proc/x", b"?"), OSError(5, "I/O error"), ZeroDivisionError("defect")])
def test_a_backend_that_fails_is_counted_told_at_powers_of_ten_and_goes_on(error, caplog):
    runner = Runner(Fake(raising(error)))
    for _ in range(100):
        assert runner.sample([], 1) is None
    assert runner.failures == 100
    assert caplog.text.count("sample failed") == 3
    assert ("Traceback" in caplog.text) == isinstance(error, ZeroDivisionError)


def test_a_backend_that_becomes_unavailable_is_closed_and_tried_again_later():
    backend, clock = Fake(raising(BackendUnavailable("gone"))), Clock()
    runner = Runner(backend, clock)
    runner.sample([], 1)
    assert not runner.is_open and backend.closed
    clock.now += FIRST_RETRY_S
    runner.sample([], 1)
    assert backend.opened == 2


class Sent:
    def __init__(self, room=10**9):
        self.messages = []
        self.room = room

    def __call__(self, message):
        if len(self.messages) >= self.room:
            return False
        self.messages.append(message)
        return True


def make_agent(fake, backends, sent, period=0.05):
    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]))
    return Agent("node-1", source, backends, Spool(v1.encode, sent), Schedule(period))


def test_a_tick_asks_each_backend_once_and_makes_one_batch_with_the_nodes_jobs(fake):
    fake.mkdir("/oar/bob_7")
    fake.mkdir("/oar/eve_9")
    calls = []

    def behave(jobs):
        calls.append([job.id for job in jobs])
        return [Sample(job.id, {"cpu": 5}) for job in jobs]

    broken = Fake(raising(ValueError("defect")))
    agent = make_agent(fake, [Fake(behave), broken, Fake(behave), Fake(lambda jobs: [])], Sent())
    before = time.time_ns()
    first, second = agent.tick(), agent.tick()
    agent.close()
    agent.close()
    assert calls == [[7, 9]] * 4
    assert first.jobs == (7, 9) and first.host == "node-1"
    assert (first.epoch, first.seq, second.seq) == (second.epoch, 1, 2)
    assert before <= first.time_ns <= second.time_ns <= time.time_ns()
    assert [table.rows["job_id"].tolist() for table in first.tables] == [[7, 9], [7, 9]]


def test_the_unit_of_the_command_line_is_measured_but_is_no_job_of_the_node(fake):
    from colmet.node.jobs import Job

    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]), Job(fake.host, 0, pids=[1]))
    agent = Agent("n", source, [Fake()], Spool(v1.encode, Sent()), Schedule(1))
    batch = agent.tick()
    agent.close()
    assert batch.jobs == () and batch.tables[0].rows["job_id"].tolist() == [0]


def run_for(agent, seconds, number=signal.SIGTERM):
    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
        timer.start()
        agent.run(signals)
        timer.join()
    agent.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ticks_at_its_period_until_a_signal_and_ends_at_once(fake, number):
    sent = Sent()
    agent = make_agent(fake, [Fake()], sent, period=0.05)
    started = time.monotonic()
    run_for(agent, 0.6, number)
    assert time.monotonic() - started < 2
    decoder = Decoder()
    batches = [decoder.decode(message).batches[0] for message in sent.messages]
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    assert 3 <= len(batches) <= 13
    # on multiples of the period of the wall clock, or late on a busy machine, but never early
    late_s = sorted(batch.time_ns / 1e9 % 0.05 for batch in batches)
    assert late_s[len(late_s) // 2] < 0.03


def test_a_slow_tick_is_counted_as_overrun_and_ticks_do_not_pile_up(fake, caplog):
    sent = Sent()
    agent = make_agent(fake, [Fake(lambda jobs: time.sleep(0.12) or [])], sent, period=0.05)
    run_for(agent, 0.8)
    assert len(sent.messages) <= 8
    assert agent._schedule.overruns >= 6
    assert "skipped" in caplog.text


def test_a_full_queue_drops_the_newest_counts_it_and_never_waits(fake, caplog):
    sent = Sent(room=3)
    spool = Spool(v1.encode, sent)
    for seq in range(1, 104):
        spool.put(Batch("h", 1, seq, 1, (), ()))
    assert (spool.sent, spool.dropped) == (3, 100)
    assert caplog.text.count("batch dropped") == 3
    assert [Decoder().decode(message).batches[0].seq for message in sent.messages] == [1, 2, 3]


def test_a_batch_for_which_a_dialect_has_no_words_is_not_sent():
    sent = Sent()
    Spool(lambda batch: b"", sent).put(Batch("h", 1, 1, 1, (), ()))
    assert sent.messages == []
