"""Ask the JSON interface of a collector: the option --url of several commands, and the login that they use."""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from colmet import __version__
from colmet.commands import logins
from colmet.commands.logins import SECRET, Login
from colmet.commands.top.view import clean
from colmet.common.config import cli, configuration
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.http_client import (
    HttpClient,
    HttpFailure,
    HttpResponse,
    TlsOptions,
    is_readable_on_the_way,
    parse_url,
)

TIMEOUT_S = 90.0  # of an answer; the interface has 60 s
RETRIES, MAX_PAUSE_S = 5, 30.0  # after an answer 429
MAX_BYTES = 128 << 20  # of an answer
MAX_TEXT = 300  # characters of an error of the interface
URL = "COLMET_URL"  # of the environment
TOKEN = "COLMET_TOKEN"  # of the environment
_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
CLIENT = "/etc/colmet/client.toml"  # the site's, for its users
# Options that name another source of a command.
_SOURCES = ("archive", "hdf5", "control_socket", "daemon")
_EXPECTED = "is it colmet-web?"


class InterfaceError(ColmetError):
    """The interface does not answer, or with an error.

    Attributes:
        status: of HTTP; 0 without an answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def add_options(parser: cli.Options) -> None:
    """Declare --url."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="ask a collector's JSON interface at this URL, such as https://head.example.org:8080, with the login of "
        "`colmet login`; it requires no right to read files, and users see their own jobs; default: $COLMET_URL, the "
        "only login of `colmet login`, or the site's",
    )


def add_connection(parser: cli.Options) -> None:
    """Declare the options of a connection; `colmet login` keeps them, and the site's file has them."""
    parser.add_argument(
        "--ca-file", metavar="FILE", help="CA certificates (PEM) for https (default: those of this machine)"
    )
    parser.add_argument(
        "--allow-http",
        action="store_true",
        help=cli.Rare("accept a URL with http:// of another machine: others on the way can read the login"),
    )


def checked_url(text: str, allow_http: bool) -> str:
    """Return the URL of an interface without a final slash; raise ConfigError if it is none, or not safe."""
    if "@" in text:
        raise ConfigError("give no user and password in the URL: every user of this machine could read them")
    parts = parse_url(text)
    if parts is None or parts.query or parts.fragment or len(text) > 2000:
        raise ConfigError(f"{text!r:.200} is not a URL such as https://head.example.org:8080")
    if is_readable_on_the_way(text) and not allow_http:
        raise ConfigError(
            f"{text:.200}: others on the way could read the login; give https://, or `colmet login --allow-http`"
        )
    return text.rstrip("/")


class Interface(NamedTuple):
    """The address of an interface, and how to connect to it."""

    url: str
    ca_file: str | None = None  # certificates of the accepted authorities; None for those of this machine
    allow_http: bool = False  # whether others on the way may read


def default_interface(reads_archive: bool = True) -> Interface | None:
    """Return the interface for commands that name no source; None for this machine's collector, or without any.

    It is that of COLMET_URL, that of the only kept login, or of the site's file. A command that reads an archive
    prefers that of this machine, if it may.

    Raises:
        ConfigError: the site's file cannot be used.
    """
    site = _site_interface()
    if os.environ.get(URL):
        return site._replace(url=os.environ[URL])
    if reads_archive and os.access(_collector_file(), os.R_OK):
        return None  # who may read the archive needs no login, which may have expired
    login_url = logins.only_url()
    if login_url:
        login = logins.find(login_url)
        return site._replace(url=login_url, ca_file=(login.ca_file if login else "") or site.ca_file)
    return site if site.url else None


def _collector_file() -> str:
    from colmet.stored.sources import CONFIG  # with a library that `colmet login` does not need

    return CONFIG


def _site_interface() -> Interface:
    """Return what the site's file says; ConfigError if it cannot be used. Its keys are the options."""
    if not os.path.exists(CLIENT):
        return Interface("")
    parser = cli.Parser(prog="colmet")
    parser.add_argument("--url")
    add_connection(parser)
    values = configuration.parse(configuration.file_text(CLIENT), CLIENT, parser)
    return Interface(values.get("url", ""), values.get("ca_file"), values.get("allow_http", False))


def interface_of(options: argparse.Namespace) -> Interface | None:
    """Return the interface that a command asks: that of --url, else `default_interface`; None for another source."""
    if options.url is not None:
        return _site_interface()._replace(url=options.url)
    is_local = any(getattr(options, name, None) for name in _SOURCES)
    is_local = is_local or (hasattr(options, "config") and options.config != _collector_file())
    return None if is_local else default_interface()


def client_of(options: argparse.Namespace) -> InterfaceClient | None:
    """Return the client for `interface_of`, with the kept login or that of the environment; None without one.

    `colmet login` has checked the URL of a kept login. Without a login there is none to be read on the way.

    Raises:
        ConfigError: the options, the site's file or the kept login cannot be used.
    """
    interface = interface_of(options)
    if interface is None:
        return None
    url = checked_url(interface.url, True)
    token = os.environ.get(TOKEN, "")
    if token and not SECRET.fullmatch(token):
        raise ConfigError(f"{TOKEN} of the environment: not a token")
    kept = logins.find(url)
    login = Login(logins.BEARER, token) if token else kept
    if login is not None and kept is None:
        checked_url(url, interface.allow_http)
    ca_file = kept.ca_file if kept is not None and kept.ca_file else interface.ca_file
    return InterfaceClient(url, "" if login is None else login.authorization, ca_file)


class InterfaceClient:
    """A client of one interface. For one thread.

    Args:
        url: from `checked_url`.
        authorization: the header of that name; empty without a login.
        ca_file: certificates of the accepted authorities; None for those of this machine.
    """

    def __init__(self, url: str, authorization: str = "", ca_file: str | None = None) -> None:
        self.url = url
        self._has_login = bool(authorization)
        tls = TlsOptions(ca_file=ca_file or None)
        tls.check("--ca-file")
        headers = {"User-Agent": f"colmet/{__version__}", "Accept": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        self._http = HttpClient(headers, tls, MAX_BYTES)

    def get(self, path: str, parameters: Mapping[str, object] | None = None, method: str = "GET") -> dict[str, Any]:
        """Return the answer of a route below /api/v1, a JSON object.

        Args:
            path: its parts are quoted by `part`.
            parameters: those that are None are left out.
            method: of HTTP.

        Raises:
            InterfaceError: there is no such answer.
        """
        body = self.read(path, parameters, method)
        try:
            found = json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InterfaceError(f"{self.url}: the answer is no JSON object; {_EXPECTED}")
        return found

    def read(self, path: str, parameters: Mapping[str, object] | None = None, method: str = "GET") -> bytes:
        """Return the body of an answer; see `get`."""
        given = {name: _text(value) for name, value in (parameters or {}).items() if value is not None}
        url = f"{self.url}/api/v1/{path}" + (f"?{urlencode(given)}" if given else "")
        for attempt in range(RETRIES + 1):
            try:
                response = self._http.request(method, url, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S)
                if response.status == 200:
                    return response.body()
            except HttpFailure as err:
                raise InterfaceError(f"{self.url}: {reason_of(err, f'{TIMEOUT_S:g} s', _EXPECTED)}") from err
            if response.status != 429 or attempt == RETRIES:
                break
            time.sleep(_pause_s(response))
        raise InterfaceError(self._refusal(response), response.status)

    def _refusal(self, response: HttpResponse) -> str:
        status = response.status
        if status == 401:
            if self._has_login:
                return f"{self.url} refused the login, or it has expired: colmet login {self.url}"
            return f"{self.url} requires a login: colmet login {self.url}"
        if 300 <= status < 400:
            return f"{self.url}: the interface is at {response.headers.get('Location', '')[:MAX_TEXT]!r}; give that URL"
        try:
            said = clean(str(json.loads(response.start[:4096])["error"])[:MAX_TEXT])
        except (ValueError, TypeError, KeyError, RecursionError):
            said = f"status {status}; {_EXPECTED}"
        return f"{self.url}: {said}"

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


def part(text: object) -> str:
    """Return a part of a path."""
    return quote(str(text), safe="")


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pause_s(response: HttpResponse) -> float:
    given = response.headers.get("Retry-After", "")
    return min(MAX_PAUSE_S, float(given)) if given.isascii() and given.isdigit() and len(given) < 6 else 1.0


def reason_of(err: HttpFailure, limit: str, expected: str) -> str:
    """Return why there is no answer, with the remedy."""
    cause = err.cause
    if err.is_late or isinstance(cause, socket.timeout):  # TimeoutError is another one before Python 3.10
        return f"no whole answer within {limit}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        # an old urllib3 compares names by itself, and gives no code
        is_other = getattr(cause, "verify_code", _OTHER_NAME[0]) in _OTHER_NAME
        what = "give the URL with a name that is in it" if is_other else "--ca-file names who may vouch for it"
        return f"its certificate: {clean(getattr(cause, 'verify_message', cause))}; {what}"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS: {clean(cause.reason or cause)}"
    if isinstance(cause, ConnectionRefusedError):
        return f"{cause.strerror or cause}; {expected}"
    if cause is None:
        return str(err)
    if isinstance(cause, OSError):
        return clean(cause.strerror or cause)
    return f"no answer of HTTP ({clean(str(err)[:MAX_TEXT])})"
