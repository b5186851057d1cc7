"""Delivery by mail, to a configured SMTP server."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from typing import NamedTuple

from colmet.common.errors import ColmetError

TIMEOUT_S = 30.0  # of each step
STARTTLS, TLS, NONE = "starttls", "tls", "none"
PORTS = {STARTTLS: 587, TLS: 465, NONE: 25}
PERMANENT = 500  # replies of SMTP from this one on: trying again is in vain


class MailFailed(ColmetError):
    """A mail that was not sent; a later try may help."""


class MailRefused(ColmetError):
    """A mail whose recipients the server refuses for good."""


class Server(NamedTuple):
    """An SMTP server, and how to log in there."""

    host: str
    port: int
    tls: str  # STARTTLS, TLS or NONE
    ca_file: str | None = None  # certificates of the accepted authorities; None for those of this machine
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
        context = None if server.tls == NONE else ssl.create_default_context(cafile=server.ca_file)
        if server.tls == TLS:
            opened: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
        else:
            opened = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        self._connection = opened
        if server.tls == STARTTLS:
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
