"""A notice, and the mail with those of one run to one recipient: plain text, one mail however many notices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from textwrap import wrap
from typing import Any, NamedTuple

from colmet.common.text import counted
from colmet.jobs.archive.queries import Row
from colmet.notices.quiet import Calendar
from colmet.notices.rules import Rule
from colmet.notices.state import Key

MOST_NAME = 100  # characters of a job's name in a text
WIDTH = 76
MOST_NOTICES = 100  # in one mail; the others are counted


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


class Letterhead:
    """What all mails of a site have in common.

    Args:
        sender: address of the sender.
        calendar: of the site.
        cluster: its name; may be empty.
        contact: whom to ask; may be empty.
    """

    def __init__(self, sender: str, calendar: Calendar, cluster: str = "", contact: str = "") -> None:
        self.sender = sender
        self._calendar = calendar
        self._cluster, self._contact = plain(cluster), plain(contact)

    def message(self, recipients: Sequence[str], subject: str, text: str, now: float, digest: str) -> EmailMessage:
        """Return a mail; no program answers it, and its id is the same when it is sent again."""
        found = EmailMessage(policy=SMTP)
        found["From"] = self.sender
        found["To"] = ", ".join(recipients)
        found["Subject"] = f"[{self._cluster or 'Colmet'}] {subject}"
        found["Date"] = format_datetime(datetime.fromtimestamp(int(now), timezone.utc))
        found["Message-ID"] = f"<colmet.{digest}@{self.sender.rpartition('@')[2]}>"
        found["Auto-Submitted"] = "auto-generated"
        found["X-Auto-Response-Suppress"] = "All"
        found.set_content(text)
        return found

    def digest(
        self, recipients: Sequence[str], notices: list[Notice], is_own: bool, now: float, suppressed: int, limit: int
    ) -> EmailMessage:
        """Return the mail with some notices.

        Args:
            recipients: addresses.
            notices: on jobs of one user if `is_own`.
            is_own: whether it goes to the user, else to administrators.
            now: seconds since 1970.
            suppressed: notices that were not sent before.
            limit: most mails of a day.
        """
        first = notices[0]
        if len(notices) == 1:
            subject = f"Job {first.number}: {first.rule.title}"
        else:
            subject = f"{counted(len(notices), 'notices')} on {'your ' if is_own else ''}jobs"
        parts = [self._part(notice, is_own) for notice in notices[:MOST_NOTICES]]
        if len(notices) > MOST_NOTICES:
            parts.append(f"And {counted(len(notices) - MOST_NOTICES, 'more notices')}.")
        if suppressed:
            parts.append(
                f"Suppressed before: {counted(suppressed, 'notices')}. No more than {counted(limit, 'mails')} a day "
                "are sent to one recipient."
            )
        text = "\n\n".join([*parts, self._foot(is_own)]) + "\n"
        return self.message(recipients, subject, text, now, digest_of(notices, " ".join(recipients)))

    def _part(self, notice: Notice, is_own: bool) -> str:
        row = notice.row
        words = [f"Job {notice.number}"]
        if row.get("name"):
            words.append(f"({plain(row['name'])})")
        if not is_own:
            words.append(f"of {plain(notice.user) or 'an unknown user'}")
        if row.get("queue"):
            words.append(f"in {plain(row['queue'])}")
        if row.get("hosts"):
            words.append(f"on {counted(int(row['hosts']), 'hosts')}")
        head = f"{' '.join(words)}, started {self._calendar.text(row['start'])}"
        text = [f"  {line}" for line in wrap(notice.text, WIDTH - 2, break_on_hyphens=False)]
        return "\n".join([head, *text, f"  (rule {notice.rule.name}; more by: colmet report {row['job']})"])

    def _foot(self, is_own: bool) -> str:
        where = f" on {self._cluster}" if self._cluster else ""
        lines = [f"Colmet{where} sends a notice once for each job and rule. Please do not answer this mail."]
        if is_own:
            lines.append(f"To receive none, or with questions: {self._contact or 'ask your administrators.'}")
        return "-- \n" + "\n".join(lines)
