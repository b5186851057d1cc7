"""The interface of every output."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.collector.journal.output_state import OutputState
from colmet.common.runtime.cli import Options
from colmet.common.schema import Batch


class JournalRecord(NamedTuple):
    """The batches of one message.

    Attributes:
        number: of the record in the journal: they go up, and none is given twice. (`State.journal`, number) names it
            for ever.
        received_ns: when it came, since the epoch.
        batches: at least one.
    """

    number: int
    received_ns: int
    batches: tuple[Batch, ...]


class OutputBackend(ABC):
    """Writes records somewhere.

    Life: built from the command line, `open()` once, from then on used by a thread of its own: `recover()` once, then
    `write()` and `reopen()` any number of times, `close()`.

    Attributes:
        name: on command lines and in logs.
        share: of the time, that it is to spend on writing while it keeps up: rows are gathered meanwhile, up to
            `max_delay_s`. 1 for outputs for which many small writes cost no more than few large ones.
        max_delay_s: how long rows may be gathered at most.
    """

    name: ClassVar[str]
    share: float = 1.0
    max_delay_s: float = 60.0

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that this output uses."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace) -> OutputBackend | None:
        """Return the output that the command line configures, or None.

        Raises:
            ConfigError: the options cannot work together.
        """

    def journal_dir(self) -> str:
        """Return the default directory of the journal, beside what the output writes; "" for none."""
        return ""

    def check(self, journal_dir: str) -> None:  # noqa: B027 - most outputs are whole once they are built
        """Check that the output could be opened, without opening or writing anything.

        Args:
            journal_dir: where the outputs' states are; "" for memory.

        Raises:
            ConfigError: it can never work as configured.
        """

    @abstractmethod
    def open(self, state: OutputState) -> None:
        """Get ready to write; quick, as `recover` does what may take long.

        Args:
            state: what it remembers; the output alone calls `State.save`.

        Raises:
            ConfigError: it can never work as configured, e.g. a path that cannot be written.
        """

    def recover(self) -> None:  # noqa: B027 - most outputs need no more than their position
        """Undo what was written after `OutputState.position`, where the process was killed while it wrote.

        It may set the position back, to have records again.

        Raises:
            OutputUnavailable: not now; it is called again before anything is written.
        """

    @abstractmethod
    def write(self, records: Sequence[JournalRecord]) -> None:
        """Write all rows of records, which start at `State.position`, and save the position after the last one.

        It may save positions in between, once all rows before them are written. Rows that were written after the
        position that it saved last are given to it again, by this or the next process: they must not be there twice.

        Raises:
            OutputUnavailable: not now; it goes on at `State.position` later.
        """

    def reopen(self) -> None:  # noqa: B027 - most outputs have nothing to reopen
        """SIGHUP: start the next file, where the output has files."""

    def interrupt(self) -> None:  # noqa: B027 - most outputs wait for nobody
        """Make a `write` that waits end soon, in OutputUnavailable; called by another thread, at the end."""

    def counters(self) -> dict[str, int]:
        """Return the output's own counters, by name."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release everything; also after a failed open, also twice."""
