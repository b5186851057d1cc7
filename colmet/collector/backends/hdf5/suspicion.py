"""Whether HDF5 fails because of the file or because of the records."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.collector.backend import JournalRecord

MAX_FAILURES = 2  # of HDF5 to write to a file that has been looked through


class Suspicion:
    """Counts failures of HDF5 that the system does not explain.

    ::

        file fails ---> doubted: look through it ---> sound ---> fails again ---> unfit: replace it
        new file fails with the same records ---> the records are to blame, and are dropped

    Attributes:
        is_doubted: whether the file is to be looked through before it is used again.
    """

    def __init__(self) -> None:
        self.is_doubted = False
        self._failures = 0  # in a row
        self._blamed = (-1, -1)  # the first and the last record of the failures for which the file was replaced
        self._sound_until = 0  # records before this one met a defect while the file was sound

    @property
    def is_unfit(self) -> bool:
        """Whether all of the file can be read, and HDF5 still cannot write to it."""
        return self._failures >= MAX_FAILURES

    def blames(self, records: Sequence[JournalRecord]) -> bool:
        """Note a failure to write records; return whether they are to blame, as another file did not help."""
        self.is_doubted = True
        if self._blamed[0] <= records[-1].number and records[0].number <= self._blamed[1]:
            return True
        self._failures += 1
        if self.is_unfit:
            self._blamed = records[0].number, records[-1].number
        return False

    def clears(self, records: Sequence[JournalRecord]) -> bool:
        """Return whether the file was sound when it met these records before."""
        return records[0].number < self._sound_until

    def clear(self, records: Sequence[JournalRecord]) -> None:
        """Note that the file is sound, so that a defect with these records is not the file's."""
        self._sound_until = records[-1].number + 1

    def written(self) -> None:
        """Note that a burst was written."""
        self._failures = 0

    def replaced(self) -> None:
        """Note that another file takes the place of this one."""
        self._failures = 0
        self._sound_until = 0
