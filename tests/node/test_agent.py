from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from colmet.common.daemon.wakeup import Signals
from colmet.common.errors import ConfigError, ParseError
from colmet.common.host.processes import Processes
from colmet.common.schema import Sample, Schema
from colmet.common.tables import RUN_FIELDS
from colmet.common.wire import Decoder, v1
from colmet.node.agent import DRAINS, WORK_AT_ONCE_S, WORK_SHARE, Agent, Pace
from colmet.node.jobs.job import Job
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobScan, JobSource
from colmet.node.runner import FIRST_RETRY_S, LAST_RETRY_S, Runner
from colmet.node.schedule import Schedule
from tests.support.direct import Direct
from tests.support.made_up_backend import Fake, make_agent, raising
from tests.support.waiting import Clock

PER_S, AT_ONCE = DRAINS


def test_an_absent_backend_is_one_warning_and_is_tried_again_with_back_off(caplog):
    backend, clock = Fake(), Clock(0.0)
    backend.unavailable = "no such device; modprobe it"
    runner = Runner(backend, clock)
    for _ in range(5):
        assert runner.sample([], 1) == []
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
def test_a_backend_that_fails_is_counted_logged_at_powers_of_ten_and_goes_on(error, caplog):
    runner = Runner(Fake(raising(error)))
    for _ in range(100):
        assert runner.sample([], 1) == []
    assert runner.failures == 100
    assert caplog.text.count("sample failed") == 3
    assert ("Traceback" in caplog.text) == isinstance(error, ZeroDivisionError)


class Sent:
    def __init__(self, room=10**9):
        self.messages = []
        self.room = room

    def __call__(self, message):
        if len(self.messages) >= self.room:
            return False
        self.messages.append(message)
        return True


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
    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]), Job(fake.host, 0, pids=[1]))
    agent = Agent("n", source, [Fake()], Direct(v1.encode, Sent()), Schedule(1))
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


def test_what_a_backend_in_a_thread_has_measured_last_is_sent_before_the_end(fake):
    class Slow(Fake):
        blocking = True

    numbers = iter(range(1, 100))
    sent = Sent()
    agent = make_agent(fake, [Slow(lambda jobs: [Sample(7, {"cpu": next(numbers)})])], sent, period=0.05)

    class UntilOneIsToBeTaken(Signals):
        def stop_wanted(self):
            call = agent.runners[0].backend._call
            return agent.runners[0].rows >= 2 and call is not None and call.ended_ns != 0

    with UntilOneIsToBeTaken(()) as signals:
        agent.run(signals)
    agent.close()
    decoder = Decoder()
    batches = [decoder.decode(message).batches[0] for message in sent.messages]
    values = [n for batch in batches for table in batch.tables for n in table.rows["cpu"]]
    assert values == list(range(1, next(numbers)))


def test_a_signal_that_comes_as_a_tick_is_due_is_heard_after_it(fake):
    heard = []

    class DueWithTheSignal(Schedule):
        is_due = False

        def delay_s(self):
            if signals.pending and not self.overruns:
                self.is_due = True
            return 0.0 if self.is_due else 3600.0

        def done(self):
            self.is_due, self.overruns = False, 1
            return 0

    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]))
    agent = Agent("node-1", source, [Fake()], Direct(v1.encode, Sent()), DueWithTheSignal(3600))
    with Signals((signal.SIGTERM, signal.SIGHUP)) as signals:
        timers = [
            threading.Timer(s, os.kill, (os.getpid(), n)) for s, n in ((0.1, signal.SIGHUP), (20, signal.SIGTERM))
        ]
        for timer in timers:
            timer.start()
        agent.run(signals, reload=lambda: heard.append(signals.pending.add(signal.SIGTERM)))
        for timer in timers:
            timer.cancel()
    agent.close()
    assert len(heard) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ticks_at_its_period_until_a_signal_and_ends_at_once(fake, number):
    sent = Sent()
    agent = make_agent(fake, [Fake()], sent, period=0.05)
    started = time.monotonic()
    run_for(agent, 0.6, number)
    assert time.monotonic() - started < 20
    decoder = Decoder()
    batches = [decoder.decode(message).batches[0] for message in sent.messages]
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    assert 3 <= len(batches) <= 13
    # on multiples of the period of the wall clock; or later, where the machine is busy
    assert min(batch.time_ns / 1e9 % 0.05 for batch in batches) < 0.03


def test_a_slow_tick_is_counted_as_overrun_and_ticks_do_not_pile_up(fake, caplog):
    sent = Sent()
    agent = make_agent(fake, [Fake(lambda jobs: time.sleep(0.12) or [])], sent, period=0.05)
    run_for(agent, 0.8)
    assert len(sent.messages) <= 8
    assert agent._schedule.overruns >= 6
    assert "skipped" in caplog.text


# Between ticks


def test_who_makes_the_agent_work_much_does_not_make_it_work_often():
    clock, worked_s = Clock(0.0), 0.0
    pace = Pace(PER_S, AT_ONCE, clock)
    begun = clock.now
    pace.woken(0.9 * WORK_AT_ONCE_S)
    assert pace.rest_s() == 0, "what comes now and then is not waited for"
    clock.now += 60
    while clock.now < begun + 120:
        rest = pace.rest_s()
        clock.now += rest + 1e-6
        if not rest:
            pace.woken(0.06)
            worked_s += 0.06
    assert worked_s == pytest.approx(WORK_AT_ONCE_S + 60 * WORK_SHARE, abs=0.07)


class Hearing(Fake):
    """A backend that hears of ended tasks through a pipe: each byte in it is the number of a job that has none left."""

    def __init__(self):
        super().__init__()
        self.fd, self.kernel = os.pipe()
        os.set_blocking(self.fd, False)
        self.drained, self.noticed, self.asked = [], [], []
        self.on_drain = self.on_notice = self.on_last = lambda: None

    def drain(self):
        self.on_drain()
        try:
            ended = list(os.read(self.fd, 100))
        except BlockingIOError:
            return []
        self.drained.append(ended)
        return ended

    def notice(self, job):
        self.on_notice()
        self.noticed.append((job.id, job.tids()))

    def last(self, job):
        self.asked.append(job.id)
        self.on_last()
        return Sample(job.id, {"cpu": 70 + job.id}) if job.id != 8 else None


@pytest.fixture
def hearing():
    made = Hearing()
    yield made
    os.close(made.fd)
    os.close(made.kernel)


def opened(backend, **options):
    runner = Runner(backend, **options)
    assert runner.open()
    return runner


def test_a_runner_drains_notices_and_asks_for_last_rows_and_meters_all_of_it(hearing):
    runner = opened(hearing)
    before = runner.meter.wall_ns
    os.write(hearing.kernel, bytes([7, 9]))
    jobs = [Job(None, 7), Job(None, 8), Job(None, 9)]
    for on, call in (
        ("on_drain", lambda: runner.drain() == [7, 9]),
        ("on_notice", lambda: runner.notice(jobs[0]) is None),
        ("on_last", lambda: runner.last(jobs[:1], 5)[0].rows["cpu"].tolist() == [77]),
    ):
        setattr(hearing, on, lambda: time.sleep(0.01))
        assert call()
        assert runner.meter.wall_ns - before >= 0.01e9
        before = runner.meter.wall_ns
        setattr(hearing, on, lambda: None)
    (table,) = runner.last(jobs, 5)
    assert table.time_ns == 5 and table.rows["job_id"].tolist() == [7, 9] and table.rows["cpu"].tolist() == [77, 79]
    assert runner.last(jobs[1:2], 5) == [] and runner.last([], 5) == []
    assert (runner.rows, runner.failures, runner.overruns) == (3, 0, 0)
    assert hearing.noticed == [(7, [])]


@pytest.mark.parametrize("error", [ParseError("/proc/x", b"?"), OSError(5, "I/O error"), ZeroDivisionError("defect")])
def test_a_failure_between_ticks_is_counted_and_stops_nothing(hearing, error, caplog):
    def fail():
        raise error

    runner = opened(hearing)
    hearing.on_drain = hearing.on_notice = hearing.on_last = fail
    assert runner.drain() == []
    runner.notice(Job(None, 7))
    assert runner.last([Job(None, 7), Job(None, 9)], 1) == []
    assert runner.failures == 4 and runner.is_open
    assert caplog.text.count("sample failed") == 1
    hearing.on_last = lambda: hearing.asked[-1] == 7 and fail()
    (table,) = runner.last([Job(None, 7), Job(None, 9)], 1)
    assert table.rows["job_id"].tolist() == [9], "one job's is not all of theirs"


class Source:
    """Jobs as a test has them."""

    processes = Processes()

    def __init__(self, *jobs):
        self.jobs = {job: Job(None, job) for job in jobs}
        self.changed = []
        self.gone = []
        self.fd, self.kernel = os.pipe()

    def end(self, *jobs):
        self.gone += [self.jobs.pop(job) for job in jobs]
        os.write(self.kernel, b"x")

    def come(self, job):
        self.jobs[job] = Job(None, job)
        self.changed.append(job)
        os.write(self.kernel, b"x")

    def scan(self):
        gone, self.gone = self.gone, []
        changed, self.changed = self.changed, []
        return JobScan([*self.jobs.values()], [self.jobs[job] for job in changed if job in self.jobs], gone)

    def close(self):
        pass


@pytest.fixture
def source():
    made = Source(7, 9)
    yield made
    os.close(made.fd)
    os.close(made.kernel)


def listening_agent(source, backends, sent, period=3600):
    agent = Agent("node-1", source, backends, Direct(v1.encode, sent), Schedule(period))
    agent.open()
    for backend in backends:
        if isinstance(backend, Hearing):
            backend.noticed.clear()  # of the jobs that were there at the start
    return agent


def batches_of(sent):
    decoder = Decoder()
    return [decoder.decode(message).batches[0] for message in sent.messages]


def test_a_job_that_ends_between_two_ticks_gets_its_last_row_at_once(source, hearing):
    sent = Sent()
    agent = listening_agent(source, [Fake(), hearing], sent)
    source.come(11)
    agent.step([source.fd])
    assert hearing.noticed == [(11, [])]
    source.end(7, 11)
    before = time.time_ns()
    agent.step([source.fd])
    (batch,) = batches_of(sent)
    assert batch.jobs == (7, 9, 11) and batch.seq == 1
    assert before <= batch.time_ns <= time.time_ns()
    (table,) = batch.tables
    assert table.rows["job_id"].tolist() == [7, 11] and table.rows["cpu"].tolist() == [77, 81]
    assert agent.tick().seq == 2
    agent.step([source.fd])
    assert len(sent.messages) == 1 and hearing.asked == [7, 11], "once"
    agent.close()


@pytest.mark.parametrize(
    ("tick", "end", "last"),
    [
        (10.1, 10.6, 11.0),
        (10.1, 11.3, 11.3),
        (10.9, 11.0, 11.0),
        (10.0, 10.0, 11.0),
        (700.0, 10.5, 10.5),  # the clock was set back
    ],
)
def test_a_jobs_last_row_is_of_another_second_than_the_tick_before(source, hearing, monkeypatch, tick, end, last):
    """Whatever stores whole seconds: a sum over the rows of a second has each job once."""
    now = [tick]
    monkeypatch.setattr("colmet.node.agent.time.time_ns", lambda: round(now[0] * 1e9))
    sent = Sent()
    agent = listening_agent(source, [Fake(), hearing], sent)
    (table, _) = agent.tick().tables
    assert table.time_ns == tick * 1e9
    now[0] = end
    source.end(7)
    agent.step([source.fd])
    (batch,) = batches_of(sent)
    assert batch.time_ns == end * 1e9, "the clock of the agent is not ahead"
    assert [table.time_ns for table in batch.tables] == [last * 1e9]
    agent.close()


def test_rows_have_the_run_of_their_job_and_the_uptime_and_a_batch_one_run_of_a_job(source, hearing):
    hearing.schema = Schema("fake_default", "job", [*hearing.schema.fields, *RUN_FIELDS])
    sent = Sent()
    agent = listening_agent(source, [hearing], sent)
    first, second = Job(None, 11), Job(None, 11)
    first.run, second.run = 1, 2
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    source.gone += [first, second]
    agent.step([source.fd])
    rows = [row for batch in batches_of(sent) for table in batch.tables for row in table.rows.tolist()]
    assert [(row[0], row[2]) for row in rows] == [(11, 1), (11, 2)] and len(sent.messages) == 2
    assert all(abs(row[3] - uptime) <= 2 for row in rows)
    (table,) = agent.tick().tables
    assert set(table.rows["run"].tolist()) == {-1} and (abs(table.rows["uptime"] - uptime) <= 2).all(), "no cgroup"
    agent.close()


def test_a_job_that_ends_before_a_tick_gets_its_last_row_before_it(source, hearing):
    sent = Sent()
    agent = listening_agent(source, [hearing], sent)
    source.end(7)
    batch = agent.tick()
    (last,) = batches_of(sent)
    assert (last.seq, last.jobs, last.tables[0].rows["job_id"].tolist()) == (1, (7, 9), [7])
    assert (batch.seq, batch.jobs, batch.tables[0].rows["job_id"].tolist()) == (2, (9,), [9])
    agent.close()


def test_jobs_without_tasks_are_looked_at_once_more_by_all_backends_with_their_tasks_read_again(source, hearing):
    class Listed(Job):
        def tids(self):
            if self._tids is None:
                self._tids = [next(numbers)]
            return self._tids

    numbers = iter(range(100))
    source.jobs[9] = Listed(None, 9)
    other = Hearing()
    agent = listening_agent(source, [hearing, other], Sent())
    assert source.jobs[9].tids() == [0]
    os.write(other.kernel, b"-")
    os.write(hearing.kernel, bytes([9, 200]))
    agent.step([hearing.fd])
    assert hearing.noticed == other.noticed == [(9, [1])], "200 is no job here"
    assert (hearing.drained, other.drained) == ([[9, 200]], [[ord("-")]])
    agent.close()
    os.close(other.fd)
    os.close(other.kernel)


def test_while_it_runs_the_agent_hears_of_jobs_and_ended_tasks_without_waiting_for_a_tick(source, hearing):
    sent = Sent()
    agent = Agent("node-1", source, [hearing], Direct(v1.encode, sent), Schedule(3600))
    drained = []
    hearing.on_drain = lambda: drained.append(time.monotonic())

    def happen():
        time.sleep(0.1)
        source.end(7)
        time.sleep(0.1)
        source.come(11)
        time.sleep(0.1)
        os.write(hearing.kernel, bytes([9]))

    def scan():
        with contextlib.suppress(BlockingIOError):
            os.read(source.fd, 100)
        return Source.scan(source)

    os.set_blocking(source.fd, False)
    source.scan = scan
    thread = threading.Thread(target=happen)
    thread.start()
    run_for(agent, 0.5)
    thread.join()
    (batch,) = batches_of(sent)
    assert batch.tables[0].rows["job_id"].tolist() == [7]
    assert hearing.drained == [[9]]
    assert hearing.noticed == [(7, []), (9, []), (11, []), (9, [])], "both at the start, and one again"
    assert len(drained) <= 4, "it sleeps meanwhile"


def test_in_a_storm_of_ends_the_agent_keeps_its_pace_while_it_runs(source, hearing):
    drained = []
    hearing.drain = lambda: drained.append(1) or []
    os.write(hearing.kernel, b"x")  # and nobody reads it
    run_for(Agent("node-1", source, [hearing], Direct(v1.encode, Sent()), Schedule(3600)), 0.5)
    assert AT_ONCE <= len(drained) <= AT_ONCE + PER_S * 0.5 + 2


# Options that change while it runs


class Changing(Fake):
    """Has an option that can change: what it measured until then is `until`."""

    until: tuple[Sample, ...] = ()
    error = None

    def changes(self):
        return {"what": self.prepare}

    def prepare(self, value):
        if self.error:
            raise ConfigError(self.error)
        self.prepared = value

        def commit():
            self.committed = value
            return self.until

        return commit


def test_what_was_measured_until_a_change_is_sent_at_once_and_nothing_waits_for_the_next_tick(fake):
    sent, backend = Sent(), Changing()
    backend.until = (Sample(7, {"cpu": 3}),)
    agent = make_agent(fake, [Fake(), backend], sent, period=3600)
    agent.tick()
    assert not hasattr(backend, "prepared")
    commit = agent.changes()["what"]("new")
    assert backend.prepared == "new" and not hasattr(backend, "committed") and not sent.messages
    commit()
    assert backend.committed == "new"
    (batch,) = Decoder().decode(sent.messages[0]).batches
    assert [list(table.rows["cpu"]) for table in batch.tables] == [[3]]
    backend.until = ()
    agent.changes()["what"]("other")()
    assert len(sent.messages) == 1  # nothing to tell


def test_a_change_that_cannot_be_is_said_so_and_one_that_fails_ends_nothing(fake, caplog):
    sent, backend = Sent(), Changing()
    agent = make_agent(fake, [backend], sent)
    agent.tick()
    backend.error = "no such thing"
    with pytest.raises(ConfigError, match="no such thing"):
        agent.changes()["what"]("new")
    backend.error = None
    backend.until = (Sample(7, {"unknown": 1}),)
    agent.changes()["what"]("new")()
    assert not sent.messages and "sample failed backend=fake" in caplog.text


def test_the_period_changes_for_the_ticks_and_for_what_counts_as_an_overrun(fake):
    agent = make_agent(fake, [Fake(lambda jobs: time.sleep(0.02) or [])], Sent(), period=3600)
    agent.tick()
    (runner,) = agent.runners
    assert runner.overruns == 0
    agent.changes()["sample_period"](0.01)()
    agent.tick()
    assert runner.overruns == 1 and agent._schedule.period_s == 0.01 and agent._schedule.delay_s() <= 0.01
