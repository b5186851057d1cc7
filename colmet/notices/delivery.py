"""Delivery of notices: by mail to an SMTP server, and as one JSON document for each run to a webhook or a command."""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError, CommandFailed
from colmet.common.host.command import Command
from colmet.common.http_client import HttpClient, HttpFailure, TlsOptions
from colmet.notices.letter import Notice

TIMEOUT_S = 30.0  # of each step of a mail
STARTTLS, TLS, PLAIN = "starttls", "smtps", "smtp"  # schemes of the address of a server
PORTS = {STARTTLS: 587, TLS: 465, PLAIN: 25}
PERMANENT = 500  # replies of SMTP from this one on: trying again is in vain
FORM = 1  # of the document for programs
STEP_S, DEADLINE_S = 10.0, 30.0  # of a request to a webhook
COMMAND_S = 60.0
MOST_NOTICES = 1000  # in one document
SIGNATURE = "X-Colmet-Signature"


class MailFailed(ColmetError):
    """A mail that was not sent; a later try may help."""


class MailRefused(ColmetError):
    """A mail whose recipients the server refuses for good."""


class Server(NamedTuple):
    """An SMTP server, and how to log in there."""

    host: str
    port: int
    scheme: str  # STARTTLS, TLS or PLAIN
    user: str = ""
    password: str = ""


class Mailer:
    """Sends mails over one connection, opened for the first one. Also a context manager that closes it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: smtplib.SMTP | None = None
        self._is_ready = False  # it is open, encrypted and logged in
        self._away = ""  # why no connection could be opened

    def __enter__(self) -> Mailer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._close()

    def send(self, mail: EmailMessage, sender: str, recipients: list[str]) -> list[str]:
        """Send a mail; return the addresses that the server refuses while it accepts others.

        Raises:
            MailFailed: it was not sent, or it is unknown whether it was.
            MailRefused: the server refuses all recipients for good.
        """
        if self._away:  # a run has no time to wait for it again
            raise MailFailed(self._away)
        try:
            connection = self._connection or self._open()
            return list(connection.send_message(mail, sender, recipients))
        except smtplib.SMTPRecipientsRefused as err:
            replies = [(reply, text.decode("utf-8", "replace")) for reply, text in err.recipients.values()]
            text = f"{self._name}: {', '.join(recipients)} refused: {replies[0][0]} {replies[0][1]!r:.200}"
            raise (MailRefused if all(reply >= PERMANENT for reply, _ in replies) else MailFailed)(text) from err
        except smtplib.SMTPResponseException as err:
            said = err.smtp_error.decode("utf-8", "replace") if isinstance(err.smtp_error, bytes) else err.smtp_error
            text = f"{self._name}: {err.smtp_code} {said!r:.200}"
            if isinstance(err, smtplib.SMTPDataError) and err.smtp_code >= PERMANENT:
                raise MailRefused(text) from err
            raise self._failure(text) from err
        except (OSError, smtplib.SMTPException, ValueError) as err:  # ssl.SSLError is an OSError
            raise self._failure(f"{self._name}: {getattr(err, 'strerror', None) or err}") from err

    def _failure(self, text: str) -> MailFailed:
        """Close the connection; note if there was none yet."""
        if not self._is_ready:
            self._away = text
        self._close()
        return MailFailed(text)

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

    def _close(self) -> None:
        """Close the connection; without the farewell if that fails."""
        connection, self._connection, self._is_ready = self._connection, None, False
        if connection is None:
            return
        try:
            connection.quit()
        except (OSError, smtplib.SMTPException):
            connection.close()


class DeliveryFailed(ColmetError):
    """A document that was not delivered; a later try may help."""


def document(notices: Sequence[Notice], cluster: str, now: float) -> bytes:
    """Return the document with notices."""
    found: dict[str, Any] = {
        "form": FORM,
        "time": int(now),
        "cluster": cluster or None,
        "notices": [notice.document() for notice in notices],
    }
    return json.dumps(found, allow_nan=False).encode()


def signature(secret: bytes, body: bytes) -> str:
    """Return the signature of a body: sha256= and the HMAC in hexadecimal digits."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def post(url: str, body: bytes, secret: bytes) -> None:
    """Send a document to a webhook; DeliveryFailed without a status of 2xx."""
    headers = {"Content-Type": "application/json", "User-Agent": "colmet-notices"}
    if secret:
        headers[SIGNATURE] = signature(secret, body)
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
