"""The interface of every output."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from colmet.collector.journal.output_state import OutputState
from colmet.common.config.cli import Options
from colmet.common.schema import Batch


class JournalRecord(NamedTuple):
    """The batches of one message."""

    # of the record in the journal: ascending, and never reused. (`OutputState.journal`, number) is unique for ever
    number: int
    received_ns: int  # time of reception, since the epoch
    batches: tuple[Batch, ...]  # at least one
    rows: int | None = None  # number of rows, where it was counted before

    @property
    def row_count(self) -> int:
        """Return the number of rows in all batches."""
        return sum([batch.row_count for batch in self.batches]) if self.rows is None else self.rows


class OutputBackend(ABC):
    """Base of an output: a writer of records.

    Life: built from the command line, `open()` once, from then on used by a thread of its own: `recover()` once, then
    `write()` and `reopen()` any number of times, `close()`.

    Attributes:
        name: on command lines and in logs.
        share: of the time to spend on writing while it keeps up: rows are gathered meanwhile, up to `max_delay_s`. 1
            for outputs with no advantage from few large writes over many small ones.
        max_delay_s: longest time for gathering rows.
        burst_bytes: limit of the records of a write, in memory; as many are written at any age.
        described: kind (counter or gauge) and help of some of its `counters`: these are metrics of their own names,
            `colmet_collector_<name of the output>_<name of the counter>`.
    """

    name: ClassVar[str]
    described: ClassVar[Mapping[str, tuple[str, str]]] = {}
    share: float = 1.0
    max_delay_s: float = 60.0
    burst_bytes: int = 64 << 20

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options of this output."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace) -> OutputBackend | None:
        """Return the output that the options configure, or None; ConfigError if they contradict each other."""

    def journal_dir(self) -> str:
        """Return the default directory of the journal, next to the output's files; "" for none."""
        return ""

    def check(self, journal_dir: str) -> None:  # noqa: B027 - most outputs are whole once they are built
        """Check that the output could be opened, without opening or writing anything.

        Args:
            journal_dir: of the outputs' states; "" for memory.

        Raises:
            ConfigError: it can never work as configured.
        """

    @abstractmethod
    def open(self, state: OutputState) -> None:
        """Prepare for writing; quick: slow steps belong to `recover`.

        Args:
            state: position and notes of the output; only the output calls its `save`.

        Raises:
            ConfigError: it can never work as configured, e.g. with an unwritable path.
        """

    def recover(self) -> None:  # noqa: B027 - most outputs need no more than their position
        """Undo an interrupted write: remove everything written after `OutputState.position`.

        It may set the position back, to receive records again.

        Raises:
            OutputUnavailable: not now; it is called again before the next write.
        """

    @abstractmethod
    def write(self, records: Sequence[JournalRecord]) -> None:
        """Write the rows of records, starting at `OutputState.position`, and save the position after the last one.

        It may save positions in between, each after all rows before it. It may end early, so that a stop need not wait
        for all of them, and is called again for the others. Rows written after the last saved position are
        passed again, by this or the next process: they must not be stored twice.

        Raises:
            OutputUnavailable: not now; it continues at `OutputState.position` later.
        """

    def details(self) -> Mapping[str, Any]:
        """Return what else the status of the collector shows of it, for any thread; JSON values by name."""
        return {}

    def reopen(self) -> None:  # noqa: B027 - most outputs have nothing to reopen
        """Start the next file after SIGHUP, for outputs with files."""

    def interrupt(self) -> None:  # noqa: B027 - most outputs never wait
        """Make a waiting `write` end soon, with OutputUnavailable; called by another thread, at the end."""

    def counters(self) -> dict[str, int]:
        """Return the output's own counters, by name."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent, also after a failed open."""
