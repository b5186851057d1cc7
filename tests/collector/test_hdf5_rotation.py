"""When the next HDF5 file begins."""

from __future__ import annotations

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.rotation import FileNames, Rotation


def records(*numbers, received_s=0):
    return [JournalRecord(number, received_s * 10**9, ()) for number in numbers]


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
