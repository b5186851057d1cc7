"""Asks a server for /qhost and /qstat: the collector's JSON interface, or QmemTools' own."""

from __future__ import annotations

import argparse
import base64
import contextlib
import getpass
import http.client
import ipaddress
import logging
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from colmet import __version__
from colmet.batch.qmem import Hosts, Owners
from colmet.commands.top.view import clean
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.secretfile import read_line
from colmet.gridengine.answers import AnswerError, parse_envelope, parse_hosts, parse_json, parse_owners

log = logging.getLogger(__name__)

TOKEN = "COLMET_TOKEN"  # of the environment
MAX_ANSWER_BYTES = 64 << 20
NOT_FOUND = 404
_EXPECTED = "does a collector with --http-listen, or QmemTools' server, listen there?"
PIECE_BYTES = 1 << 20
MAX_TEXT = 200  # characters of an answer in an error
_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_PLACE = re.compile(r"[^\s:/@?#\[\]]{1,255}:(\d{1,5})", re.ASCII)
_SECRET = re.compile(r"[!-~]{1,4096}", re.ASCII)  # what a header may have


class FetchError(ColmetError):
    """A server does not answer, or not with what was asked for.

    Attributes:
        status: of HTTP; 0 where there is none.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Fetched(NamedTuple):
    """What a server told.

    Attributes:
        hosts: of /qhost.
        owners: of /qstat.
        knows_all: whether that is of all jobs; otherwise it is of those of whoever asked.
    """

    hosts: Hosts
    owners: Owners
    knows_all: bool


def add_options(parser: cli.Options) -> None:
    """Declare the connection to the server, and the login."""
    group = parser.add_argument_group("server and login")
    group.add_argument(
        "--timeout",
        metavar="S",
        type=cli.positive_seconds,
        default=30.0,
        help="wait at most S seconds for an answer (default: %(default)g)",
    )
    group.add_argument(
        "--ca-file", metavar="FILE", help="CA certificates (PEM) for https (default: those of this machine)"
    )
    group.add_argument(
        "--token-file", metavar="FILE", help=f"file with one line, a token (default: ${TOKEN} of the environment)"
    )
    group.add_argument(
        "--login", metavar="NAME", help="log in with this name; the password is in --password-file, or typed"
    )
    group.add_argument("--password-file", metavar="FILE", help="file with one line, the password of --login")


def checked_address(text: str) -> str:
    """Where a server is, as a URL without a slash at its end.

    Args:
        text: a URL, or HOST:PORT for one without TLS.

    Raises:
        ConfigError: it is neither; the text does not repeat a password.
    """
    if "://" not in text:
        match = _PLACE.fullmatch(text)
        if not match or not 0 < int(match[1]) < 65536 or not text.isprintable():
            raise ConfigError(f"{text!r:.200} is neither HOST:PORT nor a URL such as https://head.example.org:8080")
        return f"http://{text}"
    if "@" in text:
        raise ConfigError("give no user and password in the URL; give --login NAME")
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not text.isprintable() or " " in text or len(text) > 2000:
        raise ConfigError(f"{text!r:.200} is not a URL such as https://head.example.org:8080")
    return text.rstrip("/")


class QmemClient:
    """A server that is asked.

    Args:
        url: where it is, as `checked_address` gives it.
        timeout_s: that each answer may take.
        authorization: the header that says who asks; "" for nobody.
        context: whom an https server has to be vouched for by; None for those that this machine trusts.
    """

    def __init__(
        self, url: str, timeout_s: float, authorization: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        self._url = url
        self._timeout_s = timeout_s
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = quote(parts.path, safe="/%")
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {
            **{"User-Agent": f"colmet/{__version__}", "Accept": "application/json", "Connection": "close"},
            **({"Authorization": authorization} if authorization else {}),
        }

    @classmethod
    def from_options(cls, url: str, options: argparse.Namespace) -> QmemClient:
        """The server at this address, asked as the options of `add_options` say.

        Raises:
            ConfigError: they cannot be used.
        """
        context = _trusting(options.ca_file) if options.ca_file else None
        authorization = _authorization(options)
        if authorization and url.startswith("http:") and not _is_here(urlsplit(url).hostname or ""):
            log.warning("%s: password and token can be read on the way; use https", url)
        return cls(url, options.timeout, authorization, context)

    def fetch(self) -> Fetched:
        """Ask.

        Raises:
            FetchError: there is no answer, another one, or one without data.
        """
        hosts: Hosts = {}
        owners: Owners = {}
        for name in ("qhost", "qstat"):
            try:
                answer = parse_envelope(self._get(name))
                if answer.success and name == "qhost":
                    hosts = parse_hosts(answer.data)
                elif answer.success:
                    owners = parse_owners(answer.data)
                # where nobody has a job there are no owners, and that is no failure
                elif name == "qhost" or any(host["jobs"] for host in hosts.values()):
                    why = clean(answer.message[:MAX_TEXT]) or "it has no data, and does not say why"
                    raise FetchError(f"{self._url}/{name}: {why}{self._no_data(why)}")
            except AnswerError as err:
                raise FetchError(f"{self._url}/{name}: {err}") from err
        return Fetched(hosts, owners, self._knows_all())

    def _no_data(self, why: str) -> str:
        """What may be the reason, where the server says no more than that it has nothing."""
        if not why.startswith("No data for "):
            return ""
        own = "you have no job that runs, or " if "Authorization" in self._headers else ""
        return f": {own}no node has sent anything yet, or Grid Engine does not answer; the server's log says why"

    def _knows_all(self) -> bool:
        """Whether the collector tells whoever asks of all jobs. QmemTools' server knows no users."""
        if "Authorization" not in self._headers:
            return True
        try:
            told = parse_json(self._get("api/v1/whoami"))
        except FetchError as err:
            return err.status == NOT_FOUND
        except AnswerError:
            return False
        return isinstance(told, dict) and told.get("admin") is True

    def _get(self, name: str) -> bytes:
        """The body of an answer of status 200.

        Raises:
            FetchError: there is none.
        """
        url = f"{self._url}/{name}"
        late = threading.Event()
        with contextlib.ExitStack() as stack:
            try:
                connected = stack.enter_context(self._connected())
                stack.enter_context(_ended_after(self._timeout_s, connected, late))
                if isinstance(connected, ssl.SSLSocket):
                    connected.do_handshake()
                connection = http.client.HTTPConnection(self._host, self._port)
                connection.sock = connected
                connection.request("GET", f"{self._path}/{name}", headers=self._headers)
                response = connection.getresponse()
                status, why = response.status, self._refusal(response)
                body = b"" if why else _read(response)
            except (OSError, http.client.HTTPException, ValueError) as err:
                if not late.is_set():
                    raise FetchError(f"{url}: {_cause(err)}") from err
        if late.is_set():  # what looks like the end of the answer is ours
            raise FetchError(f"{url}: the answer took more than {self._timeout_s:g} s (--timeout)")
        if why:
            raise FetchError(f"{url}: {why}", status)
        if len(body) > MAX_ANSWER_BYTES:
            raise FetchError(f"{url}: the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        return body

    def _refusal(self, response: http.client.HTTPResponse) -> str:
        """Why an answer is none; empty for one."""
        status, headers = response.status, response.headers
        if status == 200:
            return ""
        if status == 401:
            if "Authorization" in self._headers:
                return "it refused the login: wrong name, password or token"
            return f"it requires a login: give --login, --token-file, or {TOKEN} in the environment"
        if status == NOT_FOUND:
            return f"there is no such page; {_EXPECTED}"
        if status == 429:
            return f"too many requests; try again in {clean(headers.get('Retry-After', 'a few')[:20])} s"
        if 300 <= status < 400:
            return f"status {status}: the server is at {headers.get('Location', '')[:MAX_TEXT]!r}; give that address"
        return f"status {status}"

    def _connected(self) -> socket.socket:
        connected = socket.create_connection((self._host, self._port), self._timeout_s)
        if self._context is None:
            return connected
        try:
            return self._context.wrap_socket(connected, server_hostname=self._host, do_handshake_on_connect=False)
        except (OSError, ValueError):
            connected.close()
            raise


@contextlib.contextmanager
def _ended_after(timeout_s: float, connected: socket.socket, late: threading.Event) -> Iterator[None]:
    """End the connection after so many seconds: a socket's own time-out begins anew with every byte."""

    def end() -> None:
        late.set()
        with contextlib.suppress(OSError):  # it has ended by itself
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # without TLS's farewell, which may have to wait

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body; a byte more than may be, where it is longer."""
    pieces, room = [], MAX_ANSWER_BYTES + 1
    while room > 0 and (piece := response.read(min(PIECE_BYTES, room))):
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces)


def _cause(err: Exception) -> str:
    if isinstance(err, ssl.SSLCertVerificationError):
        is_other = err.verify_code in _OTHER_NAME
        what = "give the URL with a name that is in it" if is_other else "--ca-file names who may vouch for it"
        return f"its certificate: {clean(err.verify_message)}; {what}"
    if isinstance(err, ssl.SSLError):
        return f"no TLS: {clean(err.reason or err)}"
    if isinstance(err, socket.timeout):  # TimeoutError is another one before Python 3.10
        return "no answer within the time (--timeout)"
    if isinstance(err, ConnectionRefusedError):
        return f"{err.strerror or err}; {_EXPECTED}"
    if isinstance(err, OSError):
        return clean(err.strerror or err)
    return f"no answer of HTTP ({clean(f'{type(err).__name__}: {err}'[:MAX_TEXT])})"


def _trusting(path: str) -> ssl.SSLContext:
    """What believes the servers that these certificates vouch for.

    Raises:
        ConfigError: there are none in the file.
    """
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as err:  # SSLError is one
        raise ConfigError(f"--ca-file {path}: {err.strerror or err}") from err


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(options: argparse.Namespace) -> str:
    """The header that says who asks; empty where nobody is named.

    Raises:
        ConfigError: what is given does not go together, or cannot be used.
    """
    if options.password_file and not options.login:
        raise ConfigError("--password-file requires --login")
    if options.login and options.token_file:
        raise ConfigError("--login and --token-file: give one of them")
    if options.login:
        if ":" in options.login or not options.login.isprintable():
            raise ConfigError(f"--login {options.login!r:.100}: not the name of a user")
        password = read_line("--password-file", options.password_file) if options.password_file else _asked()
        return "Basic " + base64.b64encode(f"{options.login}:{password}".encode(errors="surrogateescape")).decode()
    origin, token = f"{TOKEN} of the environment", os.environ.get(TOKEN, "")
    if options.token_file:
        origin, token = f"--token-file {options.token_file}", read_line("--token-file", options.token_file)
    if token and not _SECRET.fullmatch(token):
        raise ConfigError(f"{origin}: not a token")
    return f"Bearer {token}" if token else ""


def _asked() -> str:
    """The password, from the terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("--login: no terminal to read the password from; give --password-file")
    try:
        return getpass.getpass("password: ")
    except EOFError:
        raise ConfigError("--login: no password was typed") from None
