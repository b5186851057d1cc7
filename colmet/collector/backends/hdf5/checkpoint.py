"""State of the output's file, saved with the journal position for the rollback of a killed burst."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse

log = logging.getLogger(__name__)

REPLAY, SALVAGE = "replay", "salvage"


class Checkpoint(NamedTuple):
    """The file and its current burst. Field names are those of the saved JSON."""

    file: str = ""  # path of the current file; empty at first
    inode: int = 0  # of the file
    first: int | None = None  # number of the file's first record; None if the journal alone cannot rebuild the file
    tables: int | None = None  # number of its tables, without those created by the burst; None if not counted
    # tables touched by the burst, with their previous row counts; None for tables created by it
    undo: Mapping[str, int | None] = {}
    tails: Mapping[str, int] = {}  # checksums of their last chunks, if rewritten by the burst
    boot: str = ""  # boot id of the machine at the opening of the file; empty once it is closed
    # replacement of a damaged file: from the journal (REPLAY), or from its readable rows (SALVAGE); empty if none is in
    # progress
    plan: str = ""
    aside: str = ""  # new path of the damaged file, once it is moved
    # records before this number are partly written: the rows of jobs whose `columnar.place` is below `places`
    until: int = 0
    places: int = 0

    @classmethod
    def parse(cls, notes: Mapping[str, Any]) -> Checkpoint:
        """Return the saved checkpoint; ValueError if the notes have another form."""
        try:
            read = cls(**notes)
        except TypeError as err:
            raise ValueError(str(err)) from err
        texts = (read.file, read.boot, read.plan, read.aside)
        counts = [n for n in (read.first, read.tables, read.until, read.places) if n is not None]
        if not isinstance(read.undo, dict) or not isinstance(read.tails, dict):
            raise ValueError("undo or tails")
        counts += [read.inode, *[n for n in read.undo.values() if n is not None], *read.tails.values()]
        if not all(type(text) is str for text in texts) or not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a value of another type")
        if read.plan not in ("", REPLAY, SALVAGE) or (read.file and not os.path.isabs(read.file)):
            raise ValueError("plan or file")
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
        """Save this checkpoint with a journal position; the journal keeps the records for rebuilding the file."""
        notes = self._asdict()
        if not self.places:  # unknown to earlier versions of Colmet
            del notes["until"], notes["places"]
        state.save(position, notes, position if self.first is None else self.first)


def last_file(journal_dir: str, output: str) -> str:
    """Return the file last written by an output (replaced by it if damaged); "" if unknown."""
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
