"""The parts of the HDF5 output by themselves: the states of a burst, whom to blame, when the next file begins."""

from __future__ import annotations

import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.burst import Burst, BurstState
from colmet.collector.backends.hdf5.checkpoint import Checkpoint
from colmet.collector.backends.hdf5.rotation import FileNames, Rotation
from colmet.collector.backends.hdf5.suspicion import Suspicion
from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import OutputUnavailable

BEFORE = Checkpoint("/x.hdf5", undo={"/job_1/t": 7})


def records(*numbers, received_s=0):
    return [JournalRecord(number, received_s * 10**9, ()) for number in numbers]


def test_a_burst_goes_from_writing_to_committing_to_nothing():
    state = OutputState("", "0" * 16, 0, 5)
    burst = Burst(state)
    assert not burst.is_pending
    burst.begin(BEFORE)
    assert burst.state is BurstState.WRITING and state.notes["undo"] == {"/job_1/t": 7} and state.position == 5
    burst.commit(9, Checkpoint("/x.hdf5"))
    assert burst.state is BurstState.COMMITTING and state.notes["undo"] == {} and state.position == 9
    burst.end()
    assert not burst.is_pending


def test_a_burst_that_may_be_saved_as_done_is_saved_again_before_it_is_taken_back(monkeypatch):
    state = OutputState("", "0" * 16, 0, 5)
    burst = Burst(state)
    burst.begin(BEFORE)
    save = state.save

    def fail(position, *more):
        raise OutputUnavailable("full")

    monkeypatch.setattr(state, "save", fail)
    with pytest.raises(OutputUnavailable):
        burst.commit(9, Checkpoint("/x.hdf5"))
    with pytest.raises(OutputUnavailable):
        burst.revoke()
    assert burst.state is BurstState.COMMITTING
    monkeypatch.setattr(state, "save", save)
    burst.revoke()
    assert burst.state is BurstState.WRITING and state.notes["undo"] == {"/job_1/t": 7}


def test_a_burst_whose_checkpoint_cannot_be_saved_has_not_begun(monkeypatch):
    state = OutputState("", "0" * 16, 0, 5)
    burst = Burst(state)

    def fail(*_):
        raise OutputUnavailable("full")

    monkeypatch.setattr(state, "save", fail)
    with pytest.raises(OutputUnavailable):
        burst.begin(BEFORE)
    assert not burst.is_pending


def test_a_file_is_unfit_after_two_failures_and_its_records_are_to_blame_after_the_next():
    suspicion = Suspicion()
    assert not suspicion.blames(records(1, 5)) and not suspicion.is_unfit and suspicion.is_doubted
    suspicion.written()
    assert not suspicion.blames(records(1, 5)) and not suspicion.is_unfit
    assert not suspicion.blames(records(3, 9)) and suspicion.is_unfit
    suspicion.replaced()
    assert not suspicion.is_unfit
    assert suspicion.blames(records(9, 12)) and not suspicion.blames(records(10, 12))


def test_a_sound_file_is_not_looked_at_again_for_the_same_records():
    suspicion = Suspicion()
    suspicion.clear(records(1, 5))
    assert suspicion.clears(records(3)) and not suspicion.clears(records(6))
    suspicion.replaced()
    assert not suspicion.clears(records(3))


def test_the_next_file_begins_with_the_planned_record_or_the_next_period():
    names = FileNames("/data/x")
    rotation = Rotation(names, period_s=60)
    path = names.path_at(120)
    assert rotation.next_path(path, records(1, received_s=179)[0]) == ""
    assert rotation.next_path(path, records(1, received_s=200)[0]) == names.path_at(180)
    rotation.planned = (4, names.path_at(150))
    assert rotation.count(path, records(2, 3, 4, 5)) == 2
    rotation.begun(names.path_at(150))
    assert rotation.planned is None and rotation.count(path, records(2, 3, 4, 5)) == 4
