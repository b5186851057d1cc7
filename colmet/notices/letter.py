"""The mail with the notices of one run to one recipient: plain text, one mail however many notices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from textwrap import wrap

from colmet.common.runtime.plural import counted
from colmet.notices.notice import Notice, digest_of, plain
from colmet.notices.quiet import Calendar

WIDTH = 76
MOST_NOTICES = 100  # in one mail; the others are counted


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
