from __future__ import annotations

import errno
import logging
import os
import threading
import time

import pytest

from colmet.collector import output_worker as module
from colmet.collector.backend import OutputBackend
from colmet.collector.journal.journal import Journal
from colmet.collector.output_worker import OutputWorker
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.wire import v1
from tests.support.journal_batches import batch
from tests.support.waiting import Clock

MUCH = 1 << 40


class Fake(OutputBackend):
    """Keeps what it is given; `error` is what it meets, `culprit` the batch that it has a defect with."""

    def __init__(self, name="fake"):
        self.name = name
        self.bursts = []
        self.error = self.recover_error = self.culprit = None
        self.events = []
        self.partly = 0  # records that it writes before it meets the error
        self.most = MUCH  # records that it writes at once

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options):
        return cls()

    def open(self, state):
        self.state = state

    def recover(self):
        self.events.append("recover")
        if self.recover_error:
            raise self.recover_error

    def write(self, records):
        assert records[0].number >= self.state.position
        done = records[: self.most]
        if self.error:
            done = records[: self.partly]
        elif self.culprit is not None and self.culprit in [one.batches[0].seq for one in records]:
            raise ZeroDivisionError
        if done:
            self.bursts.append([one.batches[0].seq for one in done])
            self.state.save(done[-1].number + 1)
        if self.error:
            raise self.error

    def reopen(self):
        self.events.append("reopen")
        if self.recover_error:
            raise self.recover_error

    def close(self):
        self.events.append("close")

    @property
    def written(self):
        return [seq for burst in self.bursts for seq in burst]


class Rig:
    """An output worker whose turns the test runs, over a journal in memory."""

    def __init__(self, rows=5, age=60):
        self.clock = Clock(100.0)
        self.journal = Journal("", MUCH)
        self.output = Fake()
        self.state = self.journal.state("fake")
        self.output.open(self.state)
        self.worker = OutputWorker(self.output, self.journal, self.state, rows, age, self.clock)

    def put(self, *seqs, rows=1):
        for seq in seqs:
            self.journal.append(b"", [batch(seq, rows)])

    def turn(self, later=0.0):
        self.clock.now += later
        self.worker._turn()
        return self.worker._delay_s()


@pytest.fixture
def rig():
    return Rig()


def test_rows_are_gathered_until_there_are_enough(rig):
    assert rig.turn() is None
    rig.put(1, 2)
    assert rig.turn() == 60
    rig.put(3, rows=3)
    assert rig.turn() is None
    assert rig.output.bursts == [[1, 2, 3]] and rig.worker.written == 5
    assert rig.output.events == ["recover"]


def test_or_until_they_are_old_enough(rig):
    rig.put(1)
    assert rig.turn() == 60
    rig.put(2)
    assert rig.turn(59.5) == pytest.approx(0.5)
    assert rig.turn(0.5) is None
    assert rig.output.bursts == [[1, 2]]
    rig.put(3)
    assert rig.turn(5) == 60, "the age is that of what waits now"


def test_how_long_rows_are_gathered_can_change_while_some_wait(rig):
    rig.put(1, 2)
    assert rig.turn() == 60
    rig.worker.gather(max_age_s=10)
    assert rig.turn(4) == 6
    rig.worker.gather(max_rows=2)
    assert rig.turn() is None
    assert rig.output.bursts == [[1, 2]]


def test_an_output_for_which_bursts_are_dear_gets_larger_ones(rig, monkeypatch):
    used = iter([0.0, 0.5, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr(module.time, "thread_time", lambda: next(used))
    rig.output.share, rig.output.max_delay_s = 0.1, 20.0
    rig.put(*range(5))
    assert rig.turn() is None
    rig.put(*range(5, 15))
    assert rig.turn() == pytest.approx(4.5) and len(rig.output.bursts) == 1
    assert rig.turn(4.6) is None and rig.output.bursts[1] == list(range(5, 15))
    rig.put(*range(15, 20))
    assert rig.turn() == 20, "never longer than it says"
    rig.output.burst_bytes = 1000
    assert rig.turn() == 0 and rig.output.bursts[2] == [15], "nor than memory has room; the others follow at once"


def test_an_unavailable_output_is_tried_again_ever_more_seldom_and_nothing_is_lost(rig, caplog):
    rig.output.error = OutputUnavailable("disk full")
    rig.put(*range(5))
    delays = [rig.turn()]
    for _ in range(8):
        delays.append(rig.turn(delays[-1] + 0.01))
    assert [round(delay) for delay in delays] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rig.worker.failures == 9 and caplog.text.count("disk full") == 1, "logged the 1st, 10th, 100th time"
    rig.put(5)
    rig.output.error = None
    assert rig.turn(30) == pytest.approx(30, abs=0.1) and not rig.output.bursts
    rig.turn(30.1)
    assert rig.output.written == list(range(6)) and rig.worker.failures == 0
    assert "available again" in caplog.text


def test_what_was_written_before_it_failed_is_not_written_again(rig):
    rig.output.error, rig.output.partly = OutputUnavailable("away"), 2
    rig.put(*range(5))
    rig.turn()
    assert rig.worker.written == 2 and rig.worker.waiting == 3
    rig.output.error = None
    rig.turn(61)
    assert rig.output.bursts == [[0, 1], [2, 3, 4]] and rig.worker.written == 5


def test_an_output_that_ends_early_is_called_again_at_once_and_waits_for_its_share_behind_the_last_row(
    rig, monkeypatch
):
    cpu_s = Clock(0.0)
    monkeypatch.setattr(module.time, "thread_time", cpu_s)
    written = rig.output.write
    rig.output.write = lambda records: (written(records), setattr(cpu_s, "now", cpu_s.now + 1.0))
    rig.output.share, rig.output.most = 0.25, 2
    rig.put(*range(5))
    reads = []
    read = rig.worker._cursor.read
    monkeypatch.setattr(rig.worker._cursor, "read", lambda *arguments: (reads.append(arguments), read(*arguments))[1])
    assert [rig.turn(), rig.turn(), rig.turn()] == [0, 0, None]
    assert rig.output.bursts == [[0, 1], [2, 3], [4]] and rig.worker.written == 5 and len(reads) == 1
    rig.put(*range(5, 10))
    assert rig.turn() == 9.0  # three times the seconds of all


def test_a_stop_waits_for_one_of_the_parts(rig):
    """What is left stays in the journal."""
    rig.output.most = 2
    rig.put(*range(9))
    assert rig.turn() == 0
    written = rig.output.write
    rig.output.write = lambda records: (written(records), setattr(rig.clock, "now", rig.clock.now + 2.0))
    rig.worker.stop(3.0)
    rig.worker._last_turns()
    assert rig.output.written == list(range(6)) and rig.worker.waiting == 3


def test_what_was_written_before_a_defect_is_counted(rig):
    rig.output.most = 2
    written = rig.output.write

    def write(records):
        written(records)
        if len(records) > 2:
            raise ZeroDivisionError

    rig.output.write = write
    rig.put(*range(5))
    rig.turn()
    assert rig.output.written == [0, 1, 2, 3, 4] and (rig.worker.written, rig.worker.dropped) == (5, 0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_with_a_defect_in_a_part_no_record_is_skipped(rig, most):
    rig.output.most, rig.output.culprit = most, 3
    rig.put(*range(9))
    while rig.turn() == 0:
        pass
    assert rig.output.written == [0, 1, 2, 4, 5, 6, 7, 8]
    assert (rig.worker.written, rig.worker.dropped) == (8, 1)


def test_nothing_is_written_before_it_has_recovered(rig):
    rig.output.recover_error = OutputUnavailable("held open by a reader")
    rig.put(*range(5))
    assert rig.turn() == 1.0 and not rig.output.bursts
    rig.output.recover_error = ZeroDivisionError()
    assert rig.turn(1.1) == 2.0 and not rig.output.bursts, "nor where that meets a defect"
    rig.output.recover_error = None
    rig.turn(2.1)
    assert rig.output.written == list(range(5)) and rig.output.events == ["recover"] * 3


def test_it_goes_back_where_the_output_sets_its_position_back(rig):
    rig.put(*range(5))
    rig.state.save(5)
    rig.output.recover = lambda: rig.state.save(2)
    rig.turn()
    rig.turn(61)
    assert rig.output.written == [2, 3, 4]


@pytest.mark.parametrize("culprit", [0, 3, 9])
def test_a_record_that_meets_a_defect_is_dropped_alone(rig, caplog, culprit):
    rig.output.culprit = culprit
    rig.put(*range(10), rows=2)
    rig.turn()
    assert rig.output.written == [seq for seq in range(10) if seq != culprit]
    assert (rig.worker.dropped, rig.worker.written) == (2, 18) and rig.worker.waiting == 0
    assert caplog.text.count("Traceback") == 1 and "rows dropped output=fake dropped=2" in caplog.text
    assert rig.worker.failures == 0


def test_a_defect_with_every_record_does_not_flood_the_log(rig, caplog):
    rig.output.write = lambda records: 1 / 0
    rig.put(*range(150))
    rig.turn()
    assert rig.worker.dropped == 150 and caplog.text.count("Traceback") == 3


def test_a_defect_and_then_an_absence_keep_the_rest(rig):
    rig.output.culprit = 1
    rig.put(*range(8))
    save, calls = rig.state.save, []

    def fails_once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OutputUnavailable("disk full")
        save(*args, **kwargs)

    rig.state.save = fails_once
    rig.turn()
    assert rig.worker.failures == 1 and rig.worker.waiting > 0
    rig.turn(2)
    assert rig.output.written == [0, *range(2, 8)] and rig.worker.dropped == 1


def test_lost_records_are_counted_and_reported(rig, caplog, monkeypatch):
    monkeypatch.setattr("colmet.collector.journal.journal.MAX_MEMORY_BYTES", 100_000)
    rig.output.error = OutputUnavailable("away")
    rig.put(*range(2000))
    rig.turn()
    rig.output.error = None
    rig.put(2000)
    rig.turn(2)
    assert rig.worker.lost + len(rig.output.written) == 2001 and rig.output.written[-1] == 2000
    assert "the journal no longer has them" in caplog.text


def test_sighup_starts_the_next_file_behind_what_was_received(rig):
    rig.put(1, 2)
    rig.turn()
    rig.worker.reopen()
    rig.put(3)
    rig.turn()
    assert rig.output.events == ["recover", "reopen"] and rig.output.written[:2] == [1, 2]
    rig.output.recover_error = ConfigError("no")
    rig.worker.reopen()
    rig.turn()  # logged, and it goes on
    rig.put(*range(10, 20))
    rig.turn(61)
    assert rig.output.written[-1] == 19


class Running:
    """Output workers with their threads over a journal on disk."""

    def __init__(self, directory, *outputs, start=True):
        self.journal = Journal(str(directory), MUCH)
        self.workers = []
        for output in outputs:
            state = self.journal.state(output.name)
            output.open(state)
            self.workers.append(OutputWorker(output, self.journal, state, 1, 0.01))
        self.journal.start(lambda: b"{}")
        for worker in self.workers if start else ():
            worker.start()

    def put(self, *seqs):
        for seq in seqs:
            self.journal.append(v1.encode(batch(seq)), [batch(seq)])

    def stop(self, within=5.0):
        self.journal.finish()
        for worker in self.workers:
            worker.stop(within)
        ended = [worker.join(20) for worker in self.workers]
        self.journal.close()
        return ended


def until(condition, within_s=60):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_output_that_is_away_delays_no_other_and_goes_on_where_it_was(tmp_path, caplog):
    there, away = Fake("there"), Fake("away")
    away.error = OutputUnavailable("no answer")
    running = Running(tmp_path / "j", there, away)
    running.put(*range(50))
    until(lambda: there.written == list(range(50)))
    assert running.stop() == [True, True]
    assert there.events[-1] == away.events[-1] == "close"
    assert "continues with these records after the next start: output=away records=50" in caplog.text
    there, away = Fake("there"), Fake("away")
    running = Running(tmp_path / "j", there, away)
    running.put(50)
    until(lambda: away.written == list(range(51)) and there.written == [50])
    assert running.stop() == [True, True]


def test_one_that_hangs_delays_no_other(tmp_path):
    there, hangs = Fake("there"), Fake("hangs")
    go_on = threading.Event()
    hangs.write = lambda records: go_on.wait(60)
    running = Running(tmp_path / "j", there, hangs)
    running.put(*range(10))
    until(lambda: there.written == list(range(10)))
    running.put(10)
    until(lambda: there.written == list(range(11)))
    running.journal.finish()
    for worker in running.workers:
        worker.stop(0.1)
    assert running.workers[0].join(20) and not running.workers[1].join(0.1)
    go_on.set()
    assert running.workers[1].join(20)
    running.journal.close()


def test_at_the_end_it_writes_what_was_received(tmp_path):
    output = Fake()
    running = Running(tmp_path / "j", output)
    running.put(*range(1000))
    assert running.stop() == [True] and output.written == list(range(1000))


def test_in_memory_what_cannot_be_written_at_the_end_is_reported_as_lost(caplog):
    output = Fake()
    output.error = OutputUnavailable("away")
    running = Running("", output)
    running.put(1, 2)
    with caplog.at_level(logging.ERROR):
        assert running.stop() == [True]
    assert "records lost that waited in memory: output=fake records=2" in caplog.text
    assert running.workers[0].counters()["lost"] == 2


def test_a_disk_that_cannot_be_read_for_a_while_stops_nothing(tmp_path, monkeypatch, caplog):
    """What had been read before it failed is read again."""
    away = Fake()
    away.error = OutputUnavailable("no answer")
    running = Running(tmp_path / "j", away)
    running.put(*range(50))
    running.stop()
    pread, calls = os.pread, []

    def pread_in_parts(descriptor, size, offset):
        calls.append(offset)
        if 3 <= len(calls) <= 6:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, 1000, offset)

    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.01)
    there = Fake()
    running = Running(tmp_path / "j", there, start=False)
    monkeypatch.setattr("colmet.common.record_log.READ_BYTES", 1000)
    monkeypatch.setattr(os, "pread", pread_in_parts)
    for worker in running.workers:
        worker.start()
    until(lambda: there.written == list(range(50)))
    assert running.stop() == [True]
    assert "Input/output error" in caplog.text and running.workers[0].lost == 0
