from __future__ import annotations

import pytest

from colmet.collector import buffer as module
from colmet.collector.backend import OutputBackend
from colmet.collector.buffer import Buffer, Outlet
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Batch, Field, Sample, Schema, Table

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


def batch(rows=1, seq=1):
    table = Table.from_samples(SCHEMA, 1, [Sample(n, {"cpu": seq}) for n in range(rows)])
    return Batch("h", 1, seq, 1, (), (table,))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Fake(OutputBackend):
    name = "fake"

    def __init__(self):
        self.bursts = []
        self.error = None

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options):
        return cls()

    def open(self):
        pass

    def write(self, batches):
        if self.error:
            raise self.error
        self.bursts.append([one.seq for one in batches])

    def close(self):
        pass


@pytest.fixture
def clock():
    return Clock()


def test_rows_are_grouped_until_there_are_enough(clock):
    output = Fake()
    buffer = Buffer([Outlet(output, clock)], 5, 60, clock)
    buffer.add([batch(2, 1), batch(2, 2)])
    assert not buffer.due
    buffer.add([batch(1, 3)])
    assert buffer.due
    buffer.flush()
    assert output.bursts == [[1, 2, 3]]
    assert not buffer.due and buffer.rows == 0


def test_or_until_the_oldest_is_old_enough(clock):
    buffer = Buffer([Outlet(Fake(), clock)], 100, 5, clock)
    assert buffer.delay_s() == 5 and not buffer.due
    buffer.add([batch()])
    clock.now += 3
    buffer.add([batch()])
    assert buffer.delay_s() == pytest.approx(2)
    clock.now += 2
    assert buffer.due


def test_an_output_that_fails_keeps_its_rows_and_delays_no_other(clock, caplog):
    good, bad = Fake(), Fake()
    outlets = [Outlet(bad, clock), Outlet(good, clock)]
    buffer = Buffer(outlets, 1, 5, clock)
    bad.error = OutputUnavailable("disk full")
    for seq in range(1, 12):
        buffer.add([batch(seq=seq)])
        buffer.flush()
    assert [seq for burst in good.bursts for seq in burst] == list(range(1, 12))
    assert outlets[0].waiting == 11 and outlets[0].failures == 1, "not tried again at once"
    assert buffer.delay_s() <= 1
    clock.now += 1
    buffer.retry()
    assert outlets[0].failures == 2
    bad.error = None
    clock.now += 2
    buffer.retry()
    assert bad.bursts == [list(range(1, 12))], "each row once, in order"
    assert outlets[0].waiting == 0 and outlets[0].written == 11
    assert caplog.text.count("output unavailable") == 1
    assert "available again" in caplog.text


def test_waiting_rows_are_bounded_and_what_is_dropped_is_counted(clock, monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 10 * batch().size_bytes)
    output = Fake()
    output.error = OutputUnavailable("away")
    outlet = Outlet(output, clock)
    for seq in range(1, 21):
        outlet.add([batch(seq=seq)])
        outlet.write()
    assert (outlet.waiting, outlet.dropped) == (10, 10)
    assert caplog.text.count("rows dropped") == 2
    output.error = None
    clock.now += 60
    outlet.write()
    assert output.bursts == [list(range(1, 11))], "the oldest are kept"


def test_a_defect_in_an_output_is_told_with_its_traceback_and_does_not_stop_it(clock, caplog):
    output = Fake()
    outlet = Outlet(output, clock)
    output.error = ZeroDivisionError("defect")
    outlet.add([batch()])
    outlet.write()
    assert "Traceback" in caplog.text and outlet.dropped == 1
    output.error = None
    outlet.add([batch(seq=2)])
    outlet.write()
    assert output.bursts == [[2]]


def test_a_batch_that_meets_a_defect_is_dropped_alone(clock, caplog):
    class Poisoned(Fake):
        def write(self, batches):
            if any(one.seq == 617 for one in batches):
                raise KeyError("defect")
            super().write(batches)

    output = Poisoned()
    outlet = Outlet(output, clock)
    outlet.add([batch(seq=seq) for seq in range(1, 1001)])
    outlet.write()
    assert [seq for burst in output.bursts for seq in burst] == [seq for seq in range(1, 1001) if seq != 617]
    assert (outlet.written, outlet.dropped, outlet.waiting) == (999, 1, 0)
    assert caplog.text.count("Traceback") == 1


def test_an_output_that_goes_away_in_the_middle_of_that_gets_the_rest_later_and_nothing_twice(clock):
    class Poisoned(Fake):
        def write(self, batches):
            if self.bursts and self.error is None and not self.gone_before:
                self.gone_before = True
                raise OutputUnavailable("away")
            if any(one.seq == 70 for one in batches):
                raise KeyError("defect")
            super().write(batches)

    output = Poisoned()
    output.gone_before = False
    outlet = Outlet(output, clock)
    outlet.add([batch(seq=seq) for seq in range(1, 101)])
    outlet.write()
    assert outlet.waiting == 50
    clock.now += 2
    outlet.write()
    assert [seq for burst in output.bursts for seq in burst] == [seq for seq in range(1, 101) if seq != 70]
    assert (outlet.written, outlet.dropped, outlet.waiting) == (99, 1, 0)


def test_large_rows_are_written_before_they_fill_memory(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_BUFFER_BYTES", 3 * batch().size_bytes)
    buffer = Buffer([Outlet(Fake(), clock)], 10**6, 60, clock)
    buffer.add([batch(), batch()])
    assert not buffer.due
    buffer.add([Batch("h", 1, 3, 1, (), ())] * 3)
    assert buffer.due, "batches without rows take memory, too"


def test_at_the_end_every_output_is_tried_once_more_and_the_loss_is_counted(clock):
    output = Fake()
    output.error = OutputUnavailable("away")
    outlet = Outlet(output, clock)
    buffer = Buffer([outlet], 1, 5, clock)
    buffer.add([batch(3)])
    buffer.flush()
    buffer.flush(last_try=True)
    assert outlet.failures == 2 and outlet.dropped == 3 and outlet.waiting == 0
