"""What the tests of outputs share."""

from __future__ import annotations

from colmet.collector.backend import JournalRecord
from colmet.collector.journal.output_state import OutputState


def in_memory():
    """A state that remembers nothing over a restart."""
    return OutputState("", "0" * 16, 0, 0)


def records(batches, first=0):
    """A record for each batch, as from a journal; `first` is the number of the first one."""
    return [JournalRecord(first + n, 1, (batch,)) for n, batch in enumerate(batches)]


def write(output, batches):
    """Open an output that remembers nothing, write these batches in one burst, close it."""
    output.open(in_memory())
    output.write(records(batches))
    output.close()
