"""HTTP requests of all programs: no redirects, no cookies, no decompression, and a bounded size of responses.

A socket's timeout restarts with each byte, and name resolution has none. So an exchange with a deadline runs in a
thread of its own, abandoned after the deadline.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import ssl
import warnings
from collections.abc import Callable, Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import requests
import urllib3

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.command import Call

POLL_S = 0.2  # between two checks whether to stop, for those who wait for another try
STOP_S = 1.0  # for an exchange to end once the program is to stop
MAX_STUCK = 8  # exchanges still running after their deadline
PIECE_BYTES = 1 << 20
MAX_CAUSES = 10
MAX_TEXT = 300


class HttpFailure(ColmetError):
    """No response from a server, or an incomplete one.

    Attributes:
        cause: the innermost exception, below those of the libraries; None if a limit of ours ended the exchange.
        is_late: the deadline has passed, so the server may have the request.
    """

    def __init__(self, text: str, cause: BaseException | None = None, is_late: bool = False) -> None:
        super().__init__(text)
        self.cause = cause
        self.is_late = is_late

    @classmethod
    def from_error(cls, err: BaseException) -> HttpFailure:
        """Convert an exception of the libraries; the text is the system's own if there is one."""
        cause = _innermost(err)
        text = cause.strerror if isinstance(cause, OSError) and cause.strerror else f"{type(cause).__name__}: {cause}"
        is_late = isinstance(err, (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError))
        return cls(" ".join(text.split())[:MAX_TEXT], cause, is_late)


class HttpResponse(NamedTuple):
    """A response."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # case-insensitive
    start: bytes  # of the body, up to the client's limit
    failure: HttpFailure | None  # why the body is incomplete; None if it is complete

    def body(self) -> bytes:
        """Return the whole body; raise HttpFailure if it is incomplete."""
        if self.failure is not None:
            raise self.failure
        return self.start


class TlsOptions(NamedTuple):
    """Certificates of servers and of this client."""

    ca_file: str | None = None  # certificates (PEM) of the accepted authorities; None for those of this machine
    certificate: str | None = None  # of this client (PEM); None for none
    key: str | None = None  # of the client's certificate; None if it is in the same file
    verify: bool = True  # whether the server's certificate is checked

    def check(self, ca_option: str, certificate_option: str = "") -> None:
        """Load the files, now and not with the first request.

        Raises:
            ConfigError: a file has the wrong content; the text has the option.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        option, path = ca_option, self.ca_file
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            option, path = certificate_option, self.certificate
            if self.certificate:
                # OpenSSL would prompt for the key's passphrase on the terminal
                context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except (OSError, ValueError) as err:  # SSLError is an OSError
            raise ConfigError(f"{option} {path}: {getattr(err, 'strerror', None) or err}") from err


class HttpClient:
    """Sends requests over persistent connections. For one thread.

    Args:
        headers: of each request.
        tls: certificates.
        max_bytes: limit on the bytes read of a body.
        use_environment: whether the proxies, certificates and passwords of the environment are used.
        stopping: returns whether the program is to stop.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        tls: TlsOptions = TlsOptions(),  # noqa: B008 - a tuple
        max_bytes: int = 32 << 20,
        use_environment: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warnings repeat whole URLs
        if not tls.verify:
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
        self._headers = headers
        self._tls = tls
        self._max_bytes = max_bytes
        self._use_environment = use_environment
        self._stopping = stopping
        self._session = self._open_session()
        self._stuck: list[Call[None]] = []

    def _open_session(self) -> requests.Session:
        session = _Session()
        session.trust_env = self._use_environment
        session.headers.update(self._headers)
        session.headers["Accept-Encoding"] = "identity"  # so that a small response cannot become a huge one
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return session

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float | tuple[float, float],
        deadline_s: float | None = None,
    ) -> HttpResponse:
        """Send a request and return the response, also one with an error status; HttpFailure if there is no response.

        Args:
            method: of HTTP.
            url: of the request.
            body: of the request.
            headers: in addition to those of every request.
            timeout_s: for each step: to connect, and between bytes; two numbers if they differ.
            deadline_s: for the whole exchange; None if only the steps are bounded.
        """
        tls = self._tls
        exchange = _Exchange(
            method,
            url,
            self._max_bytes,
            late=HttpFailure(f"no whole answer within {deadline_s or 0:.3g} s", is_late=True),
            data=body,
            headers=headers,
            timeout=timeout_s,
            # an argument has priority over the environment, an attribute of the session has not
            verify=(tls.ca_file or True) if tls.verify else False,
            cert=(tls.certificate, tls.key) if tls.certificate and tls.key else tls.certificate,
        )
        if deadline_s is None:
            exchange.run(self._session)
            return exchange.answer()
        self._stuck = [call for call in self._stuck if not call.ended_ns]
        if len(self._stuck) >= MAX_STUCK:
            raise HttpFailure(f"{MAX_STUCK} earlier exchanges still hang")
        session = self._session
        call = Call(lambda: exchange.run(session), "exchange")
        if not call.wait(deadline_s, self._stopping, STOP_S):
            self._stuck.append(call)
            self._session = self._open_session()  # the former one stays with the abandoned thread
        return exchange.answer()


class _Session(requests.Session):
    """A session without redirects; requests would read a redirect's body without a bound to follow it."""

    def get_redirect_target(self, _: requests.Response) -> str | None:
        """Return None: no response is a redirect."""
        return None


class _Exchange:
    """One request and its response so far: filled by one thread, read by another."""

    def __init__(self, method: str, url: str, max_bytes: int, late: HttpFailure, **options: Any) -> None:
        self._method = method
        self._url = url
        self._max_bytes = max_bytes
        self._late = late
        self._options = options
        self._response: HttpResponse | None = None
        self._error: Exception | None = None

    def run(self, session: requests.Session) -> None:
        """Send the request; status and headers are set before the body."""
        try:
            with session.request(self._method, self._url, stream=True, **self._options) as response:
                self._response = HttpResponse(response.status_code, response.headers, b"", self._late)
                start, failure = self._read(response)
                self._response = self._response._replace(start=start, failure=failure)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as err:
            self._error = HttpFailure.from_error(err)
        except Exception as err:  # noqa: BLE001 - raised again in the calling thread
            self._error = err

    def _read(self, response: requests.Response) -> tuple[bytes, HttpFailure | None]:
        pieces: list[bytes] = []
        room = self._max_bytes + 1
        failure = None
        try:
            while room > 0 and (piece := response.raw.read(min(PIECE_BYTES, room), decode_content=False)):
                pieces.append(piece)
                room -= len(piece)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as err:
            failure = HttpFailure.from_error(err)
        if room <= 0:
            failure = HttpFailure(f"the answer has more than {self._max_bytes >> 20} MiB")
        return b"".join(pieces)[: self._max_bytes], failure

    def answer(self) -> HttpResponse:
        """Return the response so far, or raise why there is none."""
        if self._response is None:
            raise self._error or self._late
        return self._response


def _innermost(err: BaseException) -> BaseException:
    """Return the innermost cause of an error, below the layers of the libraries."""
    found = [err]
    while len(found) < MAX_CAUSES:
        candidates = [getattr(err, "reason", None), *err.args[:1], err.__cause__, err.__context__]
        inner = next((one for one in candidates if isinstance(one, BaseException) and one not in found), None)
        if inner is None:
            break
        found.append(inner)
        err = inner
    return err


def parse_url(url: str) -> SplitResult | None:
    """Return the parts of an HTTP URL, None if no request can be sent to it."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if good and url.isprintable() and " " not in url else None


def is_readable_on_the_way(url: str) -> bool:
    """Return whether others in the network can read requests to this URL: no TLS, and another machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        return parts.scheme == "http" and host != "localhost" and not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def basic_authorization(credentials: str) -> str:
    """Return the header Authorization for `user:password`."""
    return "Basic " + base64.b64encode(credentials.encode(errors="surrogateescape")).decode()
