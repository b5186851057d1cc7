"""The write under way: a transaction over the tables of a file."""

from __future__ import annotations

from enum import Enum

from colmet.collector.backends.hdf5.checkpoint import Checkpoint
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.journal.output_state import OutputState


class BurstState(Enum):
    """How far a burst is."""

    NONE = "nothing to take back"
    WRITING = "some of its rows may be in the file"
    COMMITTING = "all of its rows are in the file, and it may be saved as done"


class Burst:
    """Saves what a burst changes before it is written, and takes it back where it fails.

    ::

               begin              commit                 end
        NONE ---------> WRITING ----------> COMMITTING ---------> NONE
                         |   ^                  |
                 end     |   +------------------+
        NONE <-----------+         revoke: the checkpoint of before is saved again
          (rows taken back)

    Args:
        state: of the output.

    Attributes:
        state: how far it is.
        checkpoint: what takes it back; of use while `is_pending`.
    """

    def __init__(self, output_state: OutputState) -> None:
        self._output_state = output_state
        self.state = BurstState.NONE
        self.checkpoint = Checkpoint()

    @property
    def is_pending(self) -> bool:
        """Whether there is something to take back."""
        return self.state is not BurstState.NONE

    def resume(self, checkpoint: Checkpoint) -> None:
        """Note a burst whose checkpoint is saved already: one that was killed, or one that follows another."""
        self.state, self.checkpoint = BurstState.WRITING, checkpoint

    def begin(self, checkpoint: Checkpoint) -> None:
        """Save how to take the burst back; OutputUnavailable where that cannot be, and nothing has begun."""
        checkpoint.save(self._output_state, self._output_state.position)
        self.resume(checkpoint)

    def commit(self, position: int, checkpoint: Checkpoint) -> None:
        """Save that the burst is done, with the position behind it; OutputUnavailable where that cannot be."""
        self.state = BurstState.COMMITTING
        checkpoint.save(self._output_state, position)

    def revoke(self) -> None:
        """Save again how to take the burst back, where it may be saved as done; OutputUnavailable as `begin`."""
        if self.state is BurstState.COMMITTING:
            self.checkpoint.save(self._output_state, self._output_state.position)
            self.state = BurstState.WRITING

    def restore(self, file: Hdf5File) -> None:
        """Bring the tables of an open file back to the rows before the burst; errors as `Hdf5File.restore`."""
        file.restore(self.checkpoint.undo, self.checkpoint.tails)
        self.end()

    def end(self) -> None:
        """Note that there is nothing to take back."""
        self.state = BurstState.NONE
