"""Distinction of HDF5 failures caused by the file from those caused by the records."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.collector.backend import JournalRecord

MAX_FAILURES = 2  # of HDF5 to write to a checked file


class Suspicion:
    """Tracker of HDF5 failures without a system error.

    ::

        file fails ---> doubted: check it ---> sound ---> fails again ---> unfit: replace it
        new file fails with the same records ---> the records are to blame, and are dropped

    Attributes:
        is_doubted: whether the file must be checked before its next use.
    """

    def __init__(self) -> None:
        self.is_doubted = False
        self._failures = 0  # in a row
        self._blamed = (-1, -1)  # first and last record of the failures leading to the replacement of the file
        self._sound_until = 0  # records before this one met a defect while the file was sound

    @property
    def is_unfit(self) -> bool:
        """Return whether HDF5 cannot write to the file although all of it is readable."""
        return self._failures >= MAX_FAILURES

    def blames(self, records: Sequence[JournalRecord]) -> bool:
        """Note a failure to write records; return whether they are to blame, as a new file did not help."""
        self.is_doubted = True
        if self._blamed[0] <= records[-1].number and records[0].number <= self._blamed[1]:
            return True
        self._failures += 1
        if self.is_unfit:
            self._blamed = records[0].number, records[-1].number
        return False

    def clears(self, records: Sequence[JournalRecord]) -> bool:
        """Return whether the file was sound at an earlier failure of these records."""
        return records[0].number < self._sound_until

    def clear(self, records: Sequence[JournalRecord]) -> None:
        """Note a sound file: it is not the cause of a defect with these records."""
        self._sound_until = records[-1].number + 1

    def written(self) -> None:
        """Note a written burst."""
        self._failures = 0

    def replaced(self) -> None:
        """Note the replacement of the file."""
        self._failures = 0
        self._sound_until = 0
