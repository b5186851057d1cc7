"""Client of /qhost and /qstat of a server: the collector's JSON interface, or QmemTools' own."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from colmet import __version__
from colmet.batch.qmem import Hosts, Owners
from colmet.commands import logins
from colmet.commands.remote import TOKEN, reason_of
from colmet.commands.top.view import clean
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.http_client import (
    HttpClient,
    HttpFailure,
    HttpResponse,
    TlsOptions,
    is_readable_on_the_way,
    parse_url,
)
from colmet.gridengine.answers import AnswerError, parse_envelope, parse_hosts, parse_json, parse_owners

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S = 30.0  # of each answer
MAX_ANSWER_BYTES = 64 << 20
NOT_FOUND = 404
_EXPECTED = "does colmet-web, or QmemTools' server, listen there?"
MAX_TEXT = 200  # characters of an answer in an error
_PLACE = re.compile(r"[^\s:/@?#\[\]]{1,255}:(\d{1,5})", re.ASCII)


class FetchError(ColmetError):
    """A server does not answer, or not with /qhost or /qstat.

    Attributes:
        status: of HTTP; 0 without an answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Fetched(NamedTuple):
    """The answers of a server."""

    hosts: Hosts  # of /qhost
    owners: Owners  # of /qstat
    knows_all: bool  # whether they are of all jobs; otherwise only of the logged-in user's jobs


def checked_address(text: str) -> str:
    """Return the address of a server, a URL or HOST:PORT without TLS, as a URL without a final slash.

    Raises:
        ConfigError: it is neither; the text does not repeat a password.
    """
    if "://" not in text:
        match = _PLACE.fullmatch(text)
        if not match or not 0 < int(match[1]) < 65536 or not text.isprintable():
            raise ConfigError(f"{text!r:.200} is neither HOST:PORT nor a URL such as https://head.example.org:8080")
        return f"http://{text}"
    if "@" in text:
        raise ConfigError("give no user and password in the URL; use `colmet login`")
    parts = parse_url(text)
    if parts is None or parts.query or parts.fragment or len(text) > 2000:
        raise ConfigError(f"{text!r:.200} is not a URL such as https://head.example.org:8080")
    return text.rstrip("/")


class QmemClient:
    """The client of one server.

    Args:
        url: its address, from `checked_address`.
        authorization: the header of that name; "" for none.
        tls: certificates.
    """

    def __init__(
        self,
        url: str,
        authorization: str = "",
        tls: TlsOptions = TlsOptions(),  # noqa: B008 - a tuple
    ) -> None:
        self._url = url
        self._has_login = bool(authorization)
        headers = {"User-Agent": f"colmet/{__version__}", "Accept": "application/json", "Connection": "close"}
        if authorization:
            headers["Authorization"] = authorization
        self._http = HttpClient(headers, tls, MAX_ANSWER_BYTES)

    @classmethod
    def with_login(cls, url: str, ca_file: str | None = None) -> QmemClient:
        """Return the client with the login of the environment or of `colmet login`.

        Raises:
            ConfigError: the file of certificates or the login cannot be used.
        """
        tls = TlsOptions(ca_file=ca_file or None)
        tls.check("--ca-file")
        authorization = _authorization(url)
        if authorization and is_readable_on_the_way(url):
            log.warning("%s: password and token can be read on the way; use https", url)
        return cls(url, authorization, tls)

    def fetch(self) -> Fetched:
        """Query the server; raise FetchError for no answer, an invalid one, or one without data."""
        hosts = self._data("qhost", parse_hosts)
        has_jobs = any(host["jobs"] for host in hosts.values())
        owners = self._data("qstat", parse_owners, needed=has_jobs)
        return Fetched(hosts, owners, self._knows_all())

    def _data(self, name: str, parse: Callable[[dict[str, Any]], T], needed: bool = True) -> T:
        """Return the data of /qhost or /qstat; if not needed, empty without data."""
        try:
            answer = parse_envelope(self._get(name))
            if answer.success or not needed:
                return parse(answer.data if answer.success else {})
        except AnswerError as err:
            raise FetchError(f"{self._url}/{name}: {err}") from err
        why = clean(answer.message[:MAX_TEXT]) or "it has no data, and does not say why"
        if why.startswith("No data for "):
            own = "you have no job that runs, or " if self._has_login else ""
            why += f": {own}no node has sent anything yet, or Grid Engine does not answer; the server's log says why"
        raise FetchError(f"{self._url}/{name}: {why}")

    def _knows_all(self) -> bool:
        """Return whether the answers are of all jobs, and not of one user's. QmemTools' server knows no users."""
        if not self._has_login:
            return True
        try:
            user = parse_json(self._get("api/v1/whoami"))
        except FetchError as err:
            return err.status == NOT_FOUND
        except AnswerError:
            return False
        return isinstance(user, dict) and user.get("admin") is True

    def _get(self, name: str) -> bytes:
        """Return the body of an answer of status 200; raise FetchError without one."""
        url = f"{self._url}/{name}"
        try:
            response = self._http.request("GET", url, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S)
            why = self._refusal(response)
            if why:
                raise FetchError(f"{url}: {why}", response.status)
            return response.body()
        except HttpFailure as err:
            raise FetchError(f"{url}: {reason_of(err, f'{TIMEOUT_S:g} s', _EXPECTED)}") from err

    def _refusal(self, response: HttpResponse) -> str:
        """Return why an answer is an error; "" for status 200."""
        status, headers = response.status, response.headers
        if status == 200:
            return ""
        if status == 401:
            if self._has_login:
                return "it refused the login: wrong name, password or token"
            return f"it requires a login: colmet login {self._url}, or {TOKEN} in the environment"
        if status == NOT_FOUND:
            return f"there is no such page; {_EXPECTED}"
        if status == 429:
            return f"too many requests; try again in {clean(headers.get('Retry-After', 'a few')[:20])} s"
        if 300 <= status < 400:
            return f"status {status}: the server is at {headers.get('Location', '')[:MAX_TEXT]!r}; give that address"
        return f"status {status}"


def _authorization(url: str) -> str:
    """Return the header Authorization of a URL; "" without a login; raise ConfigError for an invalid one."""
    token = os.environ.get(TOKEN, "")
    if token and not logins.SECRET.fullmatch(token):
        raise ConfigError(f"{TOKEN} of the environment: not a token")
    if token:
        return f"Bearer {token}"
    kept = logins.find(url)
    return "" if kept is None else kept.authorization
