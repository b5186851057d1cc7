"""A notice: a rule that holds for a job, with its text and the audiences it is for."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from colmet.archive.queries import Row
from colmet.notices.rules import Rule
from colmet.notices.state import Key

MOST_NAME = 100  # characters of a job's name in a text


class Notice(NamedTuple):
    """A notice on a job."""

    row: Row
    rule: Rule
    text: str
    audiences: frozenset[str]  # of `USER` and `ADMINISTRATORS`

    @property
    def user(self) -> str:
        """Return the user of the job; empty if unknown."""
        return str(self.row["user"] or "")

    @property
    def number(self) -> str:
        """Return the job's id, as the batch system's commands print it."""
        return plain(self.row.get("batch_id") or self.row["job"])

    @property
    def id(self) -> str:
        """Return a text that is the same for each repetition of the notice."""
        return f"{self.row['job']}-{self.row['start']}-{self.rule.name}"

    def key(self, target: str) -> Key:
        """Return its key in the state, for one target."""
        return Key(int(self.row["job"]), int(self.row["start"]), self.rule.name, target)

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        row = self.row
        return {
            "id": self.id,
            "rule": self.rule.name,
            "job": row["job"],
            "batch_id": row.get("batch_id"),
            "start": row["start"],
            "user": self.user or None,
            "name": row.get("name"),
            "queue": row.get("queue"),
            "state": row["state"],
            "to": sorted(self.audiences),
            "text": self.text,
        }


def plain(text: object, most: int = MOST_NAME) -> str:
    """Return foreign text for one line: printable characters alone, and at most `most` of them."""
    found = "".join([one if one.isprintable() else "?" for one in str(text)])
    return found if len(found) <= most else f"{found[: most - 3]}..."


def digest_of(notices: list[Notice], recipient: str) -> str:
    """Return a text that is the same for a repetition of these notices to this recipient."""
    words = [recipient, *sorted([notice.id for notice in notices])]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
