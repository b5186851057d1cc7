"""Sender of documents: one HTTP POST each, in order, repeated until the deadline of the run.

Documents carry no time, so none is kept for a later run: what was not sent is counted and logged. The outcome of a
document depends on the answer:

    2xx                               sent
    no connection, 429, 503           repeated until the deadline
    408, 425, other 5xx, no answer    repeated `TRIES` times
    3xx, 401, 403, 404, 405, 407, 410, 421, an untrusted certificate
                                      ends the sending: it concerns the address or the token, not the document
    any other 4xx                     refused
"""

from __future__ import annotations

import email.utils
import html
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from colmet import __version__
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import growing_pause_s
from colmet.common.errors import ConfigError
from colmet.common.http_client import POLL_S, HttpClient, HttpFailure, TlsOptions, is_readable_on_the_way, parse_url

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 << 10
SHOWN = 200  # characters of an answer in a message
SHOWN_PART = 8  # shortest part of a token, in characters, to hide
TIMEOUT_S = 10.0  # of one exchange
GRACE_S = 1.0  # beyond its own timeouts, for phases without one: names, headers byte by byte
DEADLINE_S = 120.0  # of the sending of one run
TRIES = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
ABOUT_US = dict.fromkeys((401, 403, 407), "is the token right, and has it not expired?")
ABOUT_ADDRESS = dict.fromkeys((404, 405, 410, 421), "is --url right?")
ADVICE = ABOUT_US | ABOUT_ADDRESS


class Outcome(NamedTuple):
    """Counts of the documents, or batches of rows, of one run."""

    sent: int  # accepted by the endpoint
    refused: int  # rejected by the endpoint, or invalid
    lost: int  # not sent within the deadline

    @property
    def complete(self) -> bool:
        """Whether the endpoint has all of them."""
        return not (self.refused or self.lost)


class Verdict(Enum):
    """Meaning of one exchange for the document."""

    SENT = "sent"
    REPEAT = "to be repeated a few times"  # the endpoint is there, and has an error
    WAIT = "to be repeated until the deadline"  # the endpoint is not there, or busy
    STOP = "useless for all documents"  # wrong address, token or certificate
    REFUSED = "refused"


class Attempt(NamedTuple):
    """Outcome of one request."""

    verdict: Verdict
    reason: str = ""  # a line for messages; empty if it was accepted
    pause_s: float | None = None  # requested by the endpoint; None without a request


def hide_secrets(url: str) -> str:
    """Return an address for messages, without possible secrets: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no address)"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.netloc else parts.path


def hide_token(token: str, text: str) -> str:
    """Return a text without a token it may repeat: verbatim, or as in JSON, HTML or an address.

    If a part of the token still shows, all of the text is replaced.
    """
    as_json = json.dumps(token)[1:-1]
    forms = {token, as_json, as_json.replace("/", "\\/"), html.escape(token), quote(token), quote(token, safe="")}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "(token)")
    parts = {token[at : at + SHOWN_PART] for at in range(max(1, len(token) - SHOWN_PART + 1))}
    return "(an answer that repeats the token)" if any(part in text for part in parts) else text


class DocumentSender:
    """Sender of documents to one endpoint. For one thread.

    `stopping` returns whether to end soon; `read_token` the token of each run, if it may change, or raises ConfigError.
    ConfigError where the address or the file of certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        ca_file: str | None = None,
        stopping: Callable[[], bool] = lambda: False,
        read_token: Callable[[], str] | None = None,
    ) -> None:
        tls = TlsOptions(ca_file=ca_file)
        tls.check("--ca-file")
        if parse_url(url) is None:
            raise ConfigError("--url: not an address such as https://af.example.org/")
        self._url = url
        self._endpoint = hide_secrets(url)
        self._token = token
        self._stopping = stopping
        self._read_token = read_token
        self._http = HttpClient(
            {"User-Agent": f"colmet-facility/{__version__}", "Content-Type": "application/json"},
            tls,
            MAX_ANSWER_BYTES,
            use_environment=True,
            stopping=stopping,
        )
        self._until = 0.0  # deadline of this run
        self._refused = 0
        if token and is_readable_on_the_way(url):
            log.warning("token and documents can be read on the way; use https: --url %s", self._endpoint)

    def close(self) -> None:
        """Close connections; also twice."""
        self._http.close()

    def send(self, documents: Sequence[Mapping[str, Any]]) -> Outcome:
        """Send documents in order until the deadline of this run; return the outcome."""
        self._until = time.monotonic() + DEADLINE_S
        if self._read_token is not None:
            try:
                self._token = self._read_token()  # it may have expired since the previous run
            except ConfigError as err:
                log.warning("token not read again, the former one is used: %s", err)
        sent = refused = lost = 0
        reason = ""
        for number, document in enumerate(documents):
            kind = str(document.get("kind"))
            try:
                body = json.dumps({**document, "token": self._token}, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as err:
                refused += 1
                self._note_refused(kind, f"cannot be written as JSON: {err}")
                continue
            attempt = self._deliver(body)
            if attempt.verdict is Verdict.SENT:
                sent += 1
            elif attempt.verdict is Verdict.REFUSED:
                refused += 1
                self._note_refused(kind, attempt.reason)
            else:
                reason = attempt.reason
                if attempt.verdict is not Verdict.REPEAT:
                    lost += len(documents) - number
                    break
                lost += 1
        if lost:
            log.error("documents not sent, and lost lost=%d endpoint=%s: %s", lost, self._endpoint, reason)
        log.info("documents sent=%d refused=%d lost=%d endpoint=%s", sent, refused, lost, self._endpoint)
        return Outcome(sent, refused, lost)

    def _note_refused(self, kind: str, reason: str) -> None:
        self._refused += 1
        if powers_of_ten(self._refused):
            log.error("document refused, and not sent again kind=%s refused=%d: %s", kind[:40], self._refused, reason)

    def _deliver(self, body: bytes) -> Attempt:
        """Send a document, repeatedly if that may help; return the last attempt, WAIT if the run is over."""
        attempt = Attempt(Verdict.WAIT, "the time of this run for sending is over")
        number = failures = 0
        while time.monotonic() < self._until and not self._stopping():
            attempt = self._exchange(body)
            number += 1
            failures += attempt.verdict is Verdict.REPEAT
            if attempt.verdict not in (Verdict.REPEAT, Verdict.WAIT) or failures >= TRIES:
                return attempt
            pause_s = attempt.pause_s
            if pause_s is None:  # jitter, as many hosts may wait for the same endpoint
                pause_s = growing_pause_s(number, FIRST_PAUSE_S, LONGEST_PAUSE_S) * random.uniform(0.5, 1.5)
            if not self._wait(pause_s):
                break
        return attempt._replace(
            verdict=Verdict.WAIT, reason="this program is stopping" if self._stopping() else attempt.reason
        )

    def _wait(self, seconds: float) -> bool:
        """Wait; return False at once if the deadline is earlier, or when the program is to end."""
        until = time.monotonic() + seconds
        if until >= self._until:
            return False
        while (left_s := until - time.monotonic()) > 0 and not self._stopping():
            time.sleep(min(POLL_S, left_s))
        return True

    def _exchange(self, body: bytes) -> Attempt:
        """Send a document once, and judge the answer by its status, whatever its body."""
        timeout_s = max(0.01, min(TIMEOUT_S, self._until - time.monotonic()))
        try:
            response = self._http.request("POST", self._url, body, timeout_s=timeout_s, deadline_s=timeout_s + GRACE_S)
        except HttpFailure as err:
            if isinstance(err.cause, ssl.SSLError):
                is_certificate = isinstance(err.cause, ssl.SSLCertVerificationError)
                return Attempt(Verdict.STOP if is_certificate else Verdict.WAIT, f"{err}; see --ca-file")
            # the endpoint may have the document: each further try may be a copy
            return Attempt(Verdict.REPEAT if err.is_late else Verdict.WAIT, str(err))
        except Exception:  # a defect of ours with one document must not hold up the others
            log.exception("exchange failed endpoint=%s", self._endpoint)
            return Attempt(Verdict.REPEAT, "a defect")
        text = self._quote(response.start)
        log.debug("answer status=%d%s", response.status, f": {text}" if text else "")
        return judge(response.status, response.headers, text)

    def _quote(self, data: bytes) -> str:
        """Return the beginning of an answer's body for a log line, without the token."""
        text = " ".join(data[: 10 * SHOWN].decode(errors="replace").split())
        if self._token:
            text = hide_token(self._token, text)
        text = text[:SHOWN]
        return text if text.isprintable() else text.encode("unicode_escape").decode()


def judge(status: int, headers: Mapping[str, str], text: str) -> Attempt:
    """Return the meaning of an answer for the document; `text` is the beginning of its body."""
    reason = f"status {status}{f': {text}' if text else ''}"
    if 200 <= status < 300:
        return Attempt(Verdict.SENT)
    if 300 <= status < 400:
        target = hide_secrets(headers.get("Location", ""))[:SHOWN]
        reason = f"status {status}, a redirection {f'to {target!r}' if target else 'without an address'}, which is not "
        return Attempt(Verdict.STOP, reason + "followed; give the right address with --url")
    if status in ADVICE:
        return Attempt(Verdict.STOP, f"{reason}; {ADVICE[status]}")
    pause_s = parse_retry_after(headers.get("Retry-After"), time.time())
    if status in (429, 503):
        return Attempt(Verdict.WAIT, reason, pause_s)
    if status in (408, 425) or not 400 <= status < 500:
        return Attempt(Verdict.REPEAT, reason, pause_s)
    return Attempt(Verdict.REFUSED, reason)


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """Return the seconds to wait of an answer's header, a number or a date; None without a valid one."""
    if value is None or len(value) > 100:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(min(int(value), 10**9))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
