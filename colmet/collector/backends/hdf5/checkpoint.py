"""What the output saves about its file with its position in the journal, so that a killed burst is taken back."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse

log = logging.getLogger(__name__)

REPLAY, SALVAGE = "replay", "salvage"


class Checkpoint(NamedTuple):
    """The file, and the burst under way. The names of the fields are those in the saved JSON.

    Attributes:
        file: path of the file that is written to; empty at first.
        inode: of the file.
        first: number of the record with which the file begins, None where the journal alone cannot make it again.
        tables: count of its tables, without those that the burst creates; None where they are not counted.
        undo: tables that the burst touches, and their rows before it, None for those that it creates.
        tails: checksums of their last chunks, where the burst writes these again.
        boot: the start of the machine in which the file was opened; empty once it is closed.
        plan: how a damaged file is being replaced: from the journal (REPLAY), or by what can be read of it (SALVAGE);
            empty while it is not.
        aside: path of the damaged file, once it is moved.
    """

    file: str = ""
    inode: int = 0
    first: int | None = None
    tables: int | None = None
    undo: Mapping[str, int | None] = {}
    tails: Mapping[str, int] = {}
    boot: str = ""
    plan: str = ""
    aside: str = ""

    @classmethod
    def parse(cls, notes: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint that was saved; ValueError where the notes are something else."""
        try:
            read = cls(**notes)
        except TypeError as err:
            raise ValueError(str(err)) from err
        texts = (read.file, read.boot, read.plan, read.aside)
        counts = [n for n in (read.first, read.tables) if n is not None]
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
        """Return the saved checkpoint, an empty one where it is invalid."""
        try:
            return cls.parse(state.notes)
        except ValueError as err:
            log.error("state of the file is invalid and not used: cause=%s", err)
            return cls()

    def save(self, state: OutputState, position: int) -> None:
        """Save this with a position in the journal; the journal keeps the records that can make the file again."""
        state.save(position, self._asdict(), position if self.first is None else self.first)


def last_file(journal_dir: str, output: str) -> str:
    """Return the file that an output wrote to last, which it replaces where it is damaged; "" where none is known."""
    try:
        with open(os.path.join(journal_dir, f"{output}.json"), "rb") as file:
            return Checkpoint.parse(parse(file.read(MAX_BYTES + 1))["notes"]).file
    except (OSError, ValueError):
        return ""


def boot_id() -> str:
    """Return what distinguishes this start of the machine from others; "" where the kernel does not say.

    Source: /proc/sys/kernel/random/boot_id.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""
