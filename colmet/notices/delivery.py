"""A notice, and its delivery: by mail, and in a JSON document to a webhook or a command."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import re
import smtplib
import ssl
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from textwrap import wrap
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError, CommandFailed
from colmet.common.host.command import Command
from colmet.common.http_client import HttpClient, HttpFailure, TlsOptions
from colmet.common.text import counted
from colmet.jobs.archive.queries import Row
from colmet.notices.rules import Rule
from colmet.notices.state import Key

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d) ?- ?([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


def hours(text: str) -> Calendar:
    """Convert quiet hours, an option type: 22:00-07:00."""
    found = _HOURS.fullmatch(text.strip())
    begin, end = (int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])) if found else (0, 0)
    if begin == end:
        raise argparse.ArgumentTypeError(f"{text!r:.100} are not hours such as 22:00-07:00")
    return Calendar(begin, end)


class Calendar(NamedTuple):
    """The quiet hours and the dates of a site, in the time zone of this machine."""

    begin: int = 0  # minutes since midnight; later than the end if midnight is in the quiet hours
    end: int = 0  # the same as the begin without quiet hours

    def is_quiet(self, now: float) -> bool:
        """Return whether a moment, in seconds since 1970, is in the quiet hours."""
        local = time.localtime(now)
        minute = local.tm_hour * 60 + local.tm_min
        begin, end = self
        return begin <= minute < end if begin <= end else minute >= begin or minute < end

    def quiet_until(self) -> str:
        """Return the end of the quiet hours, such as 07:00."""
        return f"{self.end // 60:02}:{self.end % 60:02}"

    def day(self, now: float) -> str:
        """Return the date of a moment, such as 2026-11-25."""
        return time.strftime("%Y-%m-%d", time.localtime(now))

    def text(self, now: float) -> str:
        """Return a moment as text, with the name of the zone."""
        return time.strftime("%Y-%m-%d %H:%M (%Z)", time.localtime(now))


MOST_NAME = 100  # characters of a job's name in a text
WIDTH = 76
MOST_IN_MAIL = 100  # notices; the others are counted


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
        names = ("job", "batch_id", "start", "name", "queue", "state")
        values = {name: self.row.get(name) for name in names}
        more = {"user": self.user or None, "to": sorted(self.audiences), "text": self.text}
        return {"id": self.id, "rule": self.rule.name, **values, **more}


def plain(text: object, most: int = MOST_NAME) -> str:
    """Return foreign text for one line: printable characters alone, and at most `most` of them."""
    found = "".join([one if one.isprintable() else "?" for one in str(text)])
    return found if len(found) <= most else f"{found[: most - 3]}..."


class Letterhead:
    """What all mails of a site have in common: the cluster's name and whom to ask may be empty."""

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
        """Return the mail with some notices; `is_own`: it goes to the user of the jobs, else to administrators.

        `suppressed` notices were not sent before, as there is a `limit` of mails a day.
        """
        first = notices[0]
        if len(notices) == 1:
            subject = f"Job {first.number}: {first.rule.title}"
        else:
            subject = f"{counted(len(notices), 'notices')} on {'your ' if is_own else ''}jobs"
        parts = [self._part(notice, is_own) for notice in notices[:MOST_IN_MAIL]]
        if len(notices) > MOST_IN_MAIL:
            parts.append(f"And {counted(len(notices) - MOST_IN_MAIL, 'more notices')}.")
        if suppressed:
            parts.append(
                f"Suppressed before: {counted(suppressed, 'notices')}. No more than {counted(limit, 'mails')} a day "
                "are sent to one recipient."
            )
        where = f" on {self._cluster}" if self._cluster else ""
        foot = f"-- \nColmet{where} sends a notice once for each job and rule. Please do not answer this mail."
        if is_own:
            foot += f"\nTo receive none, or with questions: {self._contact or 'ask your administrators.'}"
        # the same for a repetition of these notices to this recipient
        words = [" ".join(recipients), *sorted([notice.id for notice in notices])]
        digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
        return self.message(recipients, subject, "\n\n".join([*parts, foot]) + "\n", now, digest)

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


TIMEOUT_S = 30.0  # of each step of a mail
STARTTLS, TLS, PLAIN = "starttls", "smtps", "smtp"  # schemes of the address of a server
PORTS = {STARTTLS: 587, TLS: 465, PLAIN: 25}
PERMANENT = 500  # replies of SMTP from this one on: trying again is in vain
FORM = 1  # of the document for programs
STEP_S, DEADLINE_S = 10.0, 30.0  # of a request to a webhook
COMMAND_S = 60.0
MOST_NOTICES = 1000  # in one document
SIGNATURE = "X-Colmet-Signature"


class DeliveryFailed(ColmetError):
    """A mail or a document that was not delivered; a later try may help."""


class DeliveryRefused(ColmetError):
    """A mail whose recipients the server refuses for good."""


class Server(NamedTuple):
    """An SMTP server, and how to log in there."""

    host: str
    port: int
    scheme: str  # STARTTLS, TLS or PLAIN
    user: str = ""
    password: str = ""


class Mailer:
    """Sends mails over one connection, opened for the first one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: smtplib.SMTP | None = None
        self._is_ready = False  # it is open, encrypted and logged in
        self._away = ""  # why no connection could be opened

    def send(self, mail: EmailMessage, sender: str, recipients: list[str]) -> list[str]:
        """Send a mail; return the addresses that the server refuses while it accepts others.

        Raises:
            DeliveryFailed: it was not sent, or it is unknown whether it was.
            DeliveryRefused: the server refuses all recipients for good.
        """
        if self._away:  # a run has no time to wait for it again
            raise DeliveryFailed(self._away)
        try:
            connection = self._connection or self._open()
            return list(connection.send_message(mail, sender, recipients))
        except smtplib.SMTPRecipientsRefused as err:
            replies = [(reply, text.decode("utf-8", "replace")) for reply, text in err.recipients.values()]
            text = f"{self._name}: {', '.join(recipients)} refused: {replies[0][0]} {replies[0][1]!r:.200}"
            raise (DeliveryRefused if all(reply >= PERMANENT for reply, _ in replies) else DeliveryFailed)(
                text
            ) from err
        except smtplib.SMTPResponseException as err:
            said = err.smtp_error.decode("utf-8", "replace") if isinstance(err.smtp_error, bytes) else err.smtp_error
            text = f"{self._name}: {err.smtp_code} {said!r:.200}"
            if isinstance(err, smtplib.SMTPDataError) and err.smtp_code >= PERMANENT:
                raise DeliveryRefused(text) from err
            raise self._failure(text) from err
        except (OSError, smtplib.SMTPException, ValueError) as err:  # ssl.SSLError is an OSError
            raise self._failure(f"{self._name}: {getattr(err, 'strerror', None) or err}") from err

    def _failure(self, text: str) -> DeliveryFailed:
        """Close the connection; note if there was none yet."""
        if not self._is_ready:
            self._away = text
        self.close()
        return DeliveryFailed(text)

    @property
    def _name(self) -> str:
        return f"mail server {self._server.host}:{self._server.port}"

    def _open(self) -> smtplib.SMTP:
        server = self._server
        context = None if server.scheme == PLAIN else ssl.create_default_context()
        if server.scheme == TLS:
            opened: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
        else:
            opened = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        self._connection = opened
        if server.scheme == STARTTLS:
            opened.starttls(context=context)
        if server.user:
            opened.login(server.user, server.password)
        self._is_ready = True
        return opened

    def close(self) -> None:
        """Close the connection; without the farewell if that fails."""
        connection, self._connection, self._is_ready = self._connection, None, False
        if connection is None:
            return
        try:
            connection.quit()
        except (OSError, smtplib.SMTPException):
            connection.close()


def document(notices: Sequence[Notice], cluster: str, now: float) -> bytes:
    """Return the document with notices."""
    found = [notice.document() for notice in notices]
    head = {"form": FORM, "time": int(now), "cluster": cluster or None}
    return json.dumps({**head, "notices": found}, allow_nan=False).encode()


def post(url: str, body: bytes, secret: bytes) -> None:
    """Send a document to a webhook; DeliveryFailed without a status of 2xx."""
    headers = {"Content-Type": "application/json", "User-Agent": "colmet-notices"}
    if secret:
        headers[SIGNATURE] = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    client = HttpClient(headers, TlsOptions(), max_bytes=1 << 16)
    try:
        response = client.request("POST", url, body, timeout_s=STEP_S, deadline_s=DEADLINE_S)
    except HttpFailure as err:
        raise DeliveryFailed(f"webhook: {err}") from err
    finally:
        client.close()
    if not 200 <= response.status < 300:
        said = response.start.decode("utf-8", "replace")
        raise DeliveryFailed(f"webhook: status {response.status}: {said!r:.200}")


def run(argv: Sequence[str], body: bytes) -> None:
    """Run a program with a document as its standard input; DeliveryFailed unless it ends with status 0."""
    try:
        Command(argv, COMMAND_S).run_bytes(body)
    except CommandFailed as err:
        raise DeliveryFailed(f"command: {err}") from err
