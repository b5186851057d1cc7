"""The current write: a transaction over the tables of a file."""

from __future__ import annotations

from enum import Enum

from colmet.collector.backends.hdf5.checkpoint import Checkpoint
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.journal.output_state import OutputState


class BurstState(Enum):
    """Progress of a burst."""

    NONE = "nothing to take back"
    WRITING = "some of its rows may be in the file"
    COMMITTING = "all of its rows are in the file, and it may be saved as done"


class Burst:
    """Transaction of a burst: rollback data is saved before the first write, and used after a failure.

    ::

               begin              commit                 end
        NONE ---------> WRITING ----------> COMMITTING ---------> NONE
                         |   ^                  |
                 end     |   +------------------+
        NONE <-----------+         revoke: the previous checkpoint is saved again
          (rows rolled back)

    Attributes:
        checkpoint: rollback data; valid while `is_pending`.
    """

    def __init__(self, output_state: OutputState) -> None:
        self._output_state = output_state
        self.state = BurstState.NONE
        self.checkpoint = Checkpoint()

    @property
    def is_pending(self) -> bool:
        """Return whether the burst may have to be rolled back."""
        return self.state is not BurstState.NONE

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue a burst with a saved checkpoint: a killed one, or one following another."""
        self.state, self.checkpoint = BurstState.WRITING, checkpoint

    def begin(self, checkpoint: Checkpoint) -> None:
        """Save the rollback data and begin; on OutputUnavailable nothing has begun."""
        checkpoint.save(self._output_state, self._output_state.position)
        self.resume(checkpoint)

    def commit(self, position: int, checkpoint: Checkpoint) -> None:
        """Save the burst as done, with the position behind it; OutputUnavailable if that fails."""
        self.state = BurstState.COMMITTING
        checkpoint.save(self._output_state, position)

    def revoke(self) -> None:
        """Save the rollback data again if the burst may be saved as done; OutputUnavailable if that fails."""
        if self.state is BurstState.COMMITTING:
            self.checkpoint.save(self._output_state, self._output_state.position)
            self.state = BurstState.WRITING

    def restore(self, file: Hdf5File) -> None:
        """Restore the rows before the burst in an open file; errors as `Hdf5File.restore`."""
        file.restore(self.checkpoint.undo, self.checkpoint.tails)
        self.end()

    def end(self) -> None:
        """Mark the burst as ended: nothing is left to roll back."""
        self.state = BurstState.NONE
