"""State of the output's file, saved with the journal position: what a killed burst has to be undone to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse

log = logging.getLogger(__name__)

# Path of a table -> its row count before the burst; None for a table created by it.
Undo = Mapping[str, "int | None"]
# Path of a table -> checksum of the rows in its last chunk, if HDF5 rewrites that chunk (see chunk_backup.py).
Tails = Mapping[str, int]


class Checkpoint(NamedTuple):
    """The file and its current burst. Field names are those of the saved JSON."""

    file: str = ""  # path of the current file; empty at first
    inode: int = 0  # of the file; 0 if it is not created yet
    first: int = 0  # number of the first record whose rows went to the file: the journal keeps records from here on
    tables: int | None = None  # number of its tables, without those created by the burst; None if not counted
    undo: Mapping[str, int | None] = {}
    tails: Mapping[str, int] = {}
    boot: str = ""  # boot id of the machine at the opening of the file; empty once it is closed
    aside: str = ""  # where the torn file goes that was at this path; empty once that is done

    @classmethod
    def parse(cls, notes: Mapping[str, Any]) -> Checkpoint:
        """Return the saved checkpoint; ValueError if the notes have another form."""
        try:
            read = cls(**notes)
        except TypeError as err:
            raise ValueError(str(err)) from err
        if not isinstance(read.undo, dict) or not isinstance(read.tails, dict):
            raise ValueError("undo or tails")
        counts = [read.inode, read.first, *read.tails.values()]
        counts += [n for n in (read.tables, *read.undo.values()) if n is not None]
        if not all(type(text) is str for text in (read.file, read.boot, read.aside)):
            raise ValueError("a text of another type")
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a number of another type")
        if read.file and not os.path.isabs(read.file):
            raise ValueError("file")
        return read

    @classmethod
    def load(cls, state: OutputState) -> Checkpoint:
        """Return the saved checkpoint, or an empty one if it is invalid."""
        try:
            return cls.parse(state.notes)
        except ValueError as err:
            log.error("state of the file is invalid and not used: cause=%s", err)
            return cls()

    def save(self, state: OutputState, position: int) -> None:
        """Save this checkpoint with a journal position; the journal keeps the records that fill a new file."""
        state.save(position, self._asdict(), self.first)


def last_file(journal_dir: str, output: str) -> str:
    """Return the file last written by an output (replaced by it if torn); "" if unknown."""
    try:
        with open(os.path.join(journal_dir, f"{output}.json"), "rb") as file:
            return Checkpoint.parse(parse(file.read(MAX_BYTES + 1))["notes"]).file
    except (OSError, ValueError):
        return ""


def boot_id() -> str:
    """Return the id of the machine's current boot; "" if the kernel does not provide it.

    Source: /proc/sys/kernel/random/boot_id.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""
