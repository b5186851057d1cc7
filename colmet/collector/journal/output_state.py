"""The state of an output on disk: its position in the journal, and its own notes.

Source: JSON, one file for each output, replaced as a whole (rename): always either the old or the new state.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from colmet.common.errors import ConfigError, OutputUnavailable, is_later, later_form
from colmet.common.host.files import write_whole

log = logging.getLogger(__name__)

FORM = 1  # of the file
MAX_BYTES = 64 << 20


class OutputState:
    """The position and the notes of one output. After opening, for that output's thread only.

    Args:
        path: of the file; empty keeps the state in memory only.
        journal: name of the journal of the positions, 16 hexadecimal digits.
        end: number of the journal's next record.

    Attributes:
        position: number of the first record not written by the output; it continues there.
        keep_from: first record for a rebuild of the output's file, at most `position`. The journal keeps records from
            here on while it has room.
        notes: data for the output after a restart; JSON.
        is_new: whether there was no state.

    Raises:
        ConfigError: the file is of a later version.
    """

    def __init__(self, path: str, journal: str, oldest: int, end: int) -> None:
        self._path = path
        self.journal = journal
        self.oldest = oldest
        self.end = end
        self.position = self.keep_from = end
        self.notes: Mapping[str, Any] = {}
        self.is_new = True
        if path:
            self._load()

    @property
    def directory(self) -> str:
        """Return the directory of the file, for other files of the output; empty for a state in memory only."""
        return os.path.dirname(os.path.abspath(self._path)) if self._path else ""

    def save(self, position: int, notes: Mapping[str, Any] | None = None, keep_from: int | None = None) -> None:
        """Save the state; when it returns, the state survives a power failure.

        Notes of None stay unchanged; `keep_from` is `position` by default.

        Raises:
            OutputUnavailable: it could not be written, e.g. the disk is full; the former state stays.
        """
        notes = self.notes if notes is None else dict(notes)
        keep_from = position if keep_from is None else min(keep_from, position)
        if self._path:
            document = {"form": FORM, "journal": self.journal, "position": position, "keep_from": keep_from}
            try:
                write_whole(self._path, json.dumps({**document, "notes": notes}).encode())
            except OSError as err:
                raise OutputUnavailable(f"cannot write {self._path}: {err.strerror}") from err
        self.position, self.keep_from, self.notes = position, keep_from, notes

    def _load(self) -> None:
        try:
            with open(self._path, "rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return
        if is_later(form := form_of(text), FORM):
            raise ConfigError(
                later_form(self._path, form, FORM, "move it away: the output then starts with the rows of the journal")
            )
        try:
            document = parse(text)
            if document["journal"] != self.journal:
                raise ValueError(f"of another journal, {document['journal']!r}")
        except ValueError as err:
            aside = f"{self._path}.unreadable"
            os.replace(self._path, aside)
            log.error(
                "position of an output unreadable, it starts again with the oldest record of the journal, so rows may "
                "be written twice: path=%s cause=%r aside=%s",
                *(self._path, err, aside),
            )
            self.position = self.keep_from = self.oldest
            return
        self.is_new = False
        self.notes = document["notes"]
        self.position, self.keep_from = document["position"], document["keep_from"]


def form_of(text: bytes) -> object:
    """Return the form of a state's file, of any type; None if it is malformed."""
    try:
        return json.loads(text)["form"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def parse(text: bytes) -> dict[str, Any]:
    """Return the content of a state's file; ValueError if it is malformed."""
    try:
        document = json.loads(text)
        form, position, keep_from = document["form"], document["position"], document["keep_from"]
        if form != FORM or not isinstance(document["journal"], str) or not isinstance(document["notes"], dict):
            raise ValueError("another form")
    except (KeyError, TypeError, RecursionError) as err:
        raise ValueError(f"another form: {err!r}") from err
    if type(position) is not int or type(keep_from) is not int or not 0 <= keep_from <= position < 1 << 63:
        raise ValueError(f"position {position!r}, keep_from {keep_from!r}")
    return dict(document)
