"""An HDF5 output as the tests drive it: with a state, and with records made of batches."""

from __future__ import annotations

from pathlib import Path

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState

JOURNAL = "0123456789abcdef"


def records_of(batches, first=0, received_s=0.0):
    """One record for each batch."""
    return [JournalRecord(first + n, int(received_s * 10**9), (batch,)) for n, batch in enumerate(batches)]


class Writer:
    """An output that is open, and what stands for its worker and its journal.

    Args:
        output: not open yet.
        state_path: where it remembers; in memory without one.
        end: number of the next record, oldest that of the first one that the journal has.
    """

    def __init__(self, output, state_path="", end=0, oldest=0):
        self.output = output
        self.state = OutputState(str(state_path), JOURNAL, oldest, end)
        output.open(self.state)
        output.recover()

    @property
    def path(self):
        return self.output.path

    @property
    def file(self):
        return self.output._current.file

    @property
    def values_left_out(self):
        return self.output.counters()["values_left_out"]

    @property
    def rows_left_out(self):
        return self.output.counters()["rows_left_out"]

    def write(self, batches, received_s=0.0):
        """Write batches as the records that come next; they are all written when this returns."""
        records = records_of(batches, self.state.position, received_s)
        self.state.end = self.state.position + len(records)
        self.output.write(records)
        assert self.state.position == self.state.end

    def reopen(self):
        self.state.end = self.state.position
        self.output.reopen()

    def close(self):
        self.output.close()


def opened(path: Path | str, **options):
    return Writer(Hdf5Output(str(path), **options))


def write_once(path: Path | str, batches, **options):
    writer = opened(path, **options)
    writer.write(batches)
    writer.close()
    return writer
