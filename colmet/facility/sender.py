"""Sender of documents: one HTTP POST each, in order, until the endpoint has accepted them.

A document goes through the spool, so neither an unreachable endpoint nor the death of this process loses it. Its
outcome depends on the answer:

    2xx                               accepted
    408, 425, 429, 5xx, no answer     retried, in this run a little, then by the next one; skipped while others are
                                      accepted
    3xx, 401, 403, 404, 405, 407, 410, 421, an untrusted certificate
                                      kept: it concerns the address or the token, not the document
    any other 4xx                     refused: put aside with the reason, and not sent again
"""

from __future__ import annotations

import argparse
import email.utils
import html
import itertools
import json
import logging
import os
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from colmet import __version__
from colmet.common.errors import ConfigError
from colmet.common.runtime.http_client import (
    POLL_S,
    HttpClient,
    HttpFailure,
    TlsOptions,
    is_readable_on_the_way,
    parse_url,
)
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.pacing import growing_pause_s
from colmet.facility.options import spool_directory
from colmet.facility.spool import MAX_DOCUMENT_BYTES, DocumentMemory, DocumentSpool, DocumentStore, WaitingDocument

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 << 10
SHOWN = 200  # characters of an answer in a message
SHOWN_PART = 8  # shortest part of a token, in characters, to hide
GRACE_S = 1.0  # beyond its own timeouts, for phases without one: names, headers byte by byte
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LONGEST_ASKED_PAUSE_S = 3600.0  # limit of a Retry-After
MAX_FAILING = 3  # server errors in a row before documents of other kinds are tried
MAX_OTHERS = 3  # other kinds of documents to try then
MAX_PASSED = 20  # failed documents of a kind in a run, before the rest of the kind is skipped
MAX_LOOKED = 1000  # documents searched for one of another kind
ABOUT_US = dict.fromkeys((401, 403, 407), "is the token right, and has it not expired?")
ABOUT_ADDRESS = dict.fromkeys((404, 405, 410, 421), "is --url right?")
ADVICE = ABOUT_US | ABOUT_ADDRESS
BUSY = frozenset({408, 425, 429})


class Outcome(NamedTuple):
    """Counts of the documents, or batches of rows, of one run."""

    sent: int  # accepted by the endpoint, those of earlier runs included
    kept: int  # on disk, for the next run
    refused: int  # rejected by the endpoint, or invalid; not sent again
    lost: int  # dropped beyond the spool's limits, damaged on disk, or unsent without a spool

    @property
    def complete(self) -> bool:
        """Whether the endpoint has all of them."""
        return not (self.kept or self.refused or self.lost)


class Verdict(Enum):
    """Verdict on one document after one exchange."""

    TAKEN = "taken"
    AGAIN = "to be sent again"  # the endpoint is there, and has an error
    AWAY = "away"  # the endpoint is not there, or busy
    MISDIRECTED = "misdirected"  # wrong address, token or certificate
    REFUSED = "refused"


class Attempt(NamedTuple):
    """Outcome of one request."""

    verdict: Verdict  # of the document
    why: str = ""  # a line for messages; empty if it was accepted
    pause_s: float | None = None  # requested by the endpoint; None without a request
    status: int = 0  # of HTTP; 0 without an answer
    is_late: bool = False  # the endpoint may have the document; its answer did not come in time


def from_options(
    options: argparse.Namespace,
    url: str,
    token: str | None,
    stopping: Callable[[], bool] = lambda: False,
    renew: Callable[[], str] | None = None,
) -> DocumentSender:
    """Return the sender of the command line's options; warn of an unusable spool directory.

    `DocumentSender` documents the other arguments.

    Raises:
        ConfigError: the address or the file of certificates cannot be used.
    """
    ca_file = options.ca_file or None
    TlsOptions(ca_file=ca_file).check("--ca-file")
    check_url(url)
    spool = None
    directory = spool_directory(options)
    if directory:
        try:
            spool = DocumentSpool(os.path.join(directory, "documents"), options.spool_size, options.spool_age * 86400.0)
        except OSError as err:
            log.warning(
                "nothing is kept between runs: documents that cannot be sent are lost, NETWORK has no traffic: %s: %s; "
                "give --spool-dir DIR",
                directory,
                err.strerror,
            )
    try:
        return DocumentSender(
            url,
            token,
            spool,
            timeout_s=options.timeout,
            tries=options.tries,
            deadline_s=options.deadline,
            rate=options.rate,
            ca_file=ca_file,
            timestamp=options.timestamp,
            stopping=stopping,
            renew=renew,
        )
    except BaseException:
        if spool is not None:
            spool.close()
        raise


def check_url(url: str) -> None:
    """Raise ConfigError if this is not an HTTP address."""
    if parse_url(url) is None:
        raise ConfigError("--url: not an address such as https://af.example.org/")


def shown_url(url: str) -> str:
    """Return an address for messages, without possible secrets: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no address)"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.netloc else parts.path


def without(secret: str, text: str) -> str:
    """Return a text without a secret it may repeat: verbatim, or as in JSON, HTML or an address.

    If a part of the secret still shows, all of the text is replaced.
    """
    as_json = json.dumps(secret)[1:-1]
    forms = {secret, as_json, as_json.replace("/", "\\/"), html.escape(secret), quote(secret), quote(secret, safe="")}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "(token)")
    parts = {secret[at : at + SHOWN_PART] for at in range(max(1, len(secret) - SHOWN_PART + 1))}
    return "(an answer that repeats the token)" if any(part in text for part in parts) else text


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document as stored: JSON on one line, with the token null; raise ValueError if invalid or too large."""
    try:
        text = json.dumps({**document, "token": None} if "token" in document else document, allow_nan=False).encode()
    except (TypeError, RecursionError) as err:
        raise ValueError(str(err)) from err
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
    return text


class DocumentSender:
    """Sender of documents to one endpoint. For one thread.

    Args:
        url: of the endpoint.
        token: of each document; None is null.
        spool: keeps documents until they are accepted; None: none.
        timeout_s: of one exchange.
        tries: of one document in one run.
        deadline_s: of the sending of one run.
        rate: maximum of exchanges a second.
        ca_file: trusted certificates; None: those of the system.
        timestamp: whether documents get the time of `send`.
        stopping: returns whether to end soon.
        renew: returns the token of each run, or raises ConfigError; None: it stays the same.
        now_ns: of the wall clock.
        monotonic: seconds.
        sleep: waits, in seconds.
        jitter: a number from 0 to 1, another one each time.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        spool: DocumentSpool | None,
        timeout_s: float = 10.0,
        tries: int = 3,
        deadline_s: float = 120.0,
        rate: float = 100.0,
        ca_file: str | None = None,
        timestamp: bool = False,
        stopping: Callable[[], bool] = lambda: False,
        renew: Callable[[], str] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        check_url(url)
        self._url = url
        self._shown = shown_url(url)
        self._token = token
        self._spool = spool
        self._timeout_s = timeout_s
        self._tries = tries
        self._deadline_s = deadline_s
        self._gap_s = 1.0 / rate
        self._timestamp = timestamp
        self._stopping = stopping
        self._renew = renew
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._sleep = sleep
        self._jitter = jitter
        self._http = HttpClient(
            {"User-Agent": f"colmet-facility/{__version__}", "Content-Type": "application/json"},
            TlsOptions(ca_file=ca_file),
            MAX_ANSWER_BYTES,
            use_environment=True,
            stopping=stopping,
        )
        self._until = 0.0  # of this run
        self._patience = 1  # of this run: a multiple of the timeout
        self._next_at = 0.0  # when the rate allows another exchange
        self._not_before = 0.0  # end of the pause requested by the endpoint
        self._refused = 0
        self._last = Attempt(Verdict.AWAY)  # latest failed attempt
        if token and is_readable_on_the_way(url):
            log.warning("token and documents can be read on the way; use https: --url %s", self._shown)

    def close(self) -> None:
        """Close connections and the spool; also twice."""
        self._http.close()
        if self._spool is not None:
            self._spool.close()

    # -- a run --

    def send(self, documents: Sequence[Mapping[str, Any]]) -> Outcome:
        """Send these and earlier runs' documents, the oldest first; return the outcome.

        While another run sends the same spool, these are only added to it.
        """
        self._until = self._monotonic() + self._deadline_s
        self._patience = 1
        self._take_token()
        texts, refused = self._texts(documents)
        memory = DocumentMemory()
        spool, held, lost, sent = self._spool, False, 0, 0
        stores: list[DocumentStore] = [memory]
        if spool is None:
            memory.put(texts)
        else:
            written = spool.put(texts)
            memory.put(texts[written:])
            damaged = spool.damaged
            held = self._acquire(spool)
            if held:
                lost = spool.drop_beyond()
                stores.insert(0, spool)
        kept = 0
        try:
            sent, more = self._deliver(stores)
            refused += more
        finally:
            if spool is not None:
                kept = len(spool) if held else written
                lost += spool.damaged - damaged
                spool.release()
        lost += len(memory)
        where = self._shown, self._last.why
        if kept and held:
            level = logging.ERROR if self._last.verdict is Verdict.MISDIRECTED else logging.WARNING
            log.log(level, "documents are kept for the next run kept=%d endpoint=%s: %s", kept, *where)
        if len(memory):
            log.error("documents lost, as no --spool-dir keeps them lost=%d endpoint=%s: %s", len(memory), *where)
        log.info("documents sent=%d kept=%d refused=%d lost=%d endpoint=%s", sent, kept, refused, lost, self._shown)
        return Outcome(sent, kept, refused, lost)

    def _take_token(self) -> None:
        """Read the token again: it may have expired since the previous run."""
        if self._renew is None:
            return
        try:
            self._token = self._renew()
        except ConfigError as err:
            log.warning("token not read again, the former one is used: %s", err)

    def _texts(self, documents: Sequence[Mapping[str, Any]]) -> tuple[list[bytes], int]:
        texts, refused = [], 0
        for document in documents:
            try:
                if self._timestamp:
                    document = {**document, "timestamp": self._now_ns() // 10**9}
                texts.append(encode(document))
            except ValueError as err:
                refused += 1
                self._note_refused(str(document.get("kind")), f"cannot be written as JSON: {err}")
        return texts, refused

    def _note_refused(self, kind: str, why: str) -> None:
        self._refused += 1
        if powers_of_ten(self._refused):
            log.error("document refused, and not sent again kind=%s refused=%d: %s", kind[:40], self._refused, why)

    def _acquire(self, spool: DocumentSpool) -> bool:
        try:
            held = spool.acquire()
        except OSError as err:
            log.error("spool of documents cannot be read, they stay there: %s", err)
            return False
        if not held:
            log.info("another run sends the spool; these documents are added to it")
        return held

    def _deliver(self, stores: Sequence[DocumentStore]) -> tuple[int, int]:
        """Send the documents in the stores; return the numbers accepted and refused.

        After several failures in a row, documents of other kinds show whether the endpoint or the documents are at
        fault: a document never accepted stays, and delays no other.
        """
        sent = refused = failing = 0
        passed: Counter[str] = Counter()
        for store in stores:
            for entry in store.entries():
                kind = _kind(entry)
                if passed[kind] >= MAX_PASSED:
                    continue
                # after a failure, one try shows whether the endpoint or the document is at fault
                answer = self._try(entry, 1 if failing else self._tries)
                if answer.verdict is Verdict.TAKEN:
                    store.done(entry)
                    sent += 1
                    failing = 0
                elif answer.verdict is Verdict.REFUSED:
                    store.refuse(entry, answer.why)
                    self._note_refused(kind, answer.why)
                    refused += 1
                    failing = 0
                else:
                    self._last = answer
                    failing += 1
                    passed[kind] += 1
                    # no server answers, or the address is wrong
                    if answer.verdict is Verdict.AWAY or answer.status < 400:
                        return sent, refused
                    if answer.verdict is Verdict.MISDIRECTED or failing == MAX_FAILING:
                        if not self._accepts_another(stores, entry, passed, answer.verdict is Verdict.AGAIN):
                            return sent, refused
                        sent += 1
                        failing = 0
        return sent, refused

    def _accepts_another(
        self, stores: Sequence[DocumentStore], failed: WaitingDocument, passed: Counter[str], same: bool
    ) -> bool:
        """Return whether the endpoint accepts the newest document of another kind, or with `same`, if none, of this."""
        tried: set[str] = set()
        newest = ((store, entry) for store in stores for entry in store.entries(newest_first=True))
        for store, entry in list(itertools.islice(newest, MAX_LOOKED)):
            kind = _kind(entry)
            if kind not in tried and kind not in passed and len(tried) < MAX_OTHERS:
                tried.add(kind)
                if self._is_taken(store, entry):
                    return True
        if same and not tried:
            for store in stores:
                for entry in store.entries(newest_first=True):
                    return entry[:2] != failed[:2] and self._is_taken(store, entry)
        return False

    def _is_taken(self, store: DocumentStore, entry: WaitingDocument) -> bool:
        answer = self._try(entry, 1)
        if answer.verdict is Verdict.TAKEN:
            store.done(entry)
        return answer.verdict is Verdict.TAKEN

    def _try(self, entry: WaitingDocument, tries: int) -> Attempt:
        """Send one, at most `tries` times; return the last attempt."""
        body = self._body(entry)
        answer = Attempt(Verdict.AWAY, "the endpoint has asked to wait")
        for number in range(tries):
            pause_s = self._pause_s(number, answer)
            if not self._wait(max(self._next_at, self._monotonic() + pause_s, self._not_before)):
                why = answer.why
                if self._stopping():
                    why = "this program is stopping"
                elif not number and self._not_before <= self._until:
                    why = "the --deadline of this run is over"
                return answer._replace(verdict=Verdict.AWAY, why=why)
            self._next_at = self._monotonic() + self._gap_s
            answer = self._exchange(body)
            if answer.pause_s is not None:
                self._not_before = self._monotonic() + min(answer.pause_s, LONGEST_ASKED_PAUSE_S)
            if answer.is_late:  # the document may arrive twice: give a slow endpoint more time rather than more copies
                self._patience *= 2
            if answer.verdict not in (Verdict.AGAIN, Verdict.AWAY):
                break
        return answer

    def _pause_s(self, number: int, answer: Attempt) -> float:
        """Return the back-off before a try: growing, with jitter, as many hosts may wait for the same endpoint."""
        if number == 0 or answer.pause_s is not None:
            return 0.0
        return growing_pause_s(number, FIRST_PAUSE_S, LONGEST_PAUSE_S) * (0.5 + self._jitter())

    def _wait(self, until: float) -> bool:
        """Wait, but not beyond the deadline; return whether time is left then."""
        if until >= self._until:
            return False
        while (left_s := until - self._monotonic()) > 0:
            if self._stopping():
                return False
            self._sleep(min(POLL_S, left_s))
        return not self._stopping() and self._monotonic() < self._until

    def _body(self, entry: WaitingDocument) -> bytes:
        """Return the document as stored, with the token."""
        document = _parsed(entry)
        if self._token is None or "token" not in document:
            return entry.text
        return json.dumps({**document, "token": self._token}).encode()

    # -- an exchange --

    def _exchange(self, body: bytes) -> Attempt:
        """Send a document once, and judge the answer by its status, whatever its body."""
        timeout_s = max(0.01, min(self._timeout_s * self._patience, self._until - self._monotonic()))
        try:
            response = self._http.request("POST", self._url, body, timeout_s=timeout_s, deadline_s=timeout_s + GRACE_S)
        except HttpFailure as err:
            if isinstance(err.cause, ssl.SSLError):
                is_certificate = isinstance(err.cause, ssl.SSLCertVerificationError)
                return Attempt(Verdict.MISDIRECTED if is_certificate else Verdict.AWAY, f"{err}; see --ca-file")
            return Attempt(Verdict.AWAY, str(err), is_late=err.is_late)
        except Exception:  # a defect of ours with one document must not hold up the others
            log.exception("exchange failed endpoint=%s", self._shown)
            return Attempt(Verdict.AWAY, "a defect")
        text = self._shown_text(response.start)
        log.debug("answer status=%d%s", response.status, f": {text}" if text else "")
        return self._judge(response.status, response.headers, text)

    def _shown_text(self, data: bytes) -> str:
        """Return the beginning of an answer's body for a log line, without the token."""
        text = " ".join(data[: 10 * SHOWN].decode(errors="replace").split())
        if self._token:
            text = without(self._token, text)
        text = text[:SHOWN]
        return text if text.isprintable() else text.encode("unicode_escape").decode()

    def _judge(self, status: int, headers: Mapping[str, str], text: str) -> Attempt:
        """Return the meaning of a status for the document."""
        said = f"status {status}{f': {text}' if text else ''}"
        if 200 <= status < 300:
            return Attempt(Verdict.TAKEN, status=status)
        if 300 <= status < 400:
            where = shown_url(headers.get("Location", ""))[:SHOWN]
            why = f"status {status}, a redirection {f'to {where!r}' if where else 'without an address'}, which is not "
            why += "followed; give the right address with --url"
            return Attempt(Verdict.MISDIRECTED, why, status=status)
        if status in ADVICE:
            return Attempt(Verdict.MISDIRECTED, f"{said}; the documents are kept; {ADVICE[status]}", status=status)
        pause_s = parse_retry_after(headers.get("Retry-After"), self._now_ns() / 1e9)
        if status == 429 or (status == 503 and pause_s is not None):
            return Attempt(Verdict.AWAY, said, pause_s, status)
        if status in BUSY or not 400 <= status < 500:
            return Attempt(Verdict.AGAIN, said, pause_s, status)
        return Attempt(Verdict.REFUSED, said, status=status)


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


def _kind(entry: WaitingDocument) -> str:
    return str(_parsed(entry).get("kind"))


def _parsed(entry: WaitingDocument) -> Mapping[str, Any]:
    """Return a stored document; an empty one for other content of a file of the spool."""
    try:
        document = json.loads(entry.text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
