"""Client of Elasticsearch and OpenSearch: addresses, credentials, fail-over between hosts.

The output and the archive use it for writing, and commands for reading.
"""

from __future__ import annotations

import argparse
import base64
import ipaddress
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from colmet import __version__
from colmet.common.config import cli
from colmet.common.config.cli import Options
from colmet.common.config.secretfile import read_line
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.http_client import (
    HttpClient,
    HttpFailure,
    TlsOptions,
    basic_authorization,
    is_readable_on_the_way,
    parse_url,
)

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 32 << 20
CONNECT_S = 10.0
TIMEOUT_S = 30.0  # of an answer
MAX_HOST_REST_S = 300.0

PREFIX = re.compile(r"(?:[a-z0-9][a-z0-9._-]{0,63})?", re.ASCII)
_HOST_AND_PORT = re.compile(r"(?!https?:)[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,5}/?", re.ASCII)
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_IS_PLAIN = re.compile("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE", re.IGNORECASE)  # of OpenSSL to 3.1, and from 3.2
API_KEY = re.compile(r"[A-Za-z0-9+/_=-]+", re.ASCII)


class Response(NamedTuple):
    """Response of a host."""

    status: int  # of HTTP
    body: Mapping[str, Any]  # a JSON object; empty if an error's text is not JSON

    @property
    def error(self) -> tuple[str, str]:
        """Return type and reason of the server's error."""
        return reason_of(self.body.get("error"))


def reason_of(error: Any) -> tuple[str, str]:
    """Return type and reason, with the cause, of an error described by the server."""
    if not isinstance(error, Mapping):
        return "", _shown(error or "", 1000)
    reason = str(error.get("reason", ""))
    cause = error.get("caused_by")
    if isinstance(cause, Mapping) and cause.get("reason"):
        reason += f": {cause['reason']}"
    return _shown(error.get("type", ""), 100), _shown(reason, 1000)


def _shown(value: object, length: int) -> str:
    """Return text from a server, truncated and without control characters."""
    text = str(value)[:length]
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class _HostFailedError(Exception):
    """A host cannot be used now."""


class _Host:
    """One address, with its recent failures."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.failures = 0  # in a row
        self.rest_until = 0.0


class DatabaseClient:
    """Client for several hosts: requests go to the first one without recent failures.

    Args:
        urls: without a trailing slash.
        timeout_s: until a response begins, and between its parts.
        stop: set to send no more requests.
    """

    def __init__(self, urls: Sequence[str], http: HttpClient, timeout_s: float, stop: threading.Event) -> None:
        self._hosts = [_Host(url) for url in urls]
        self._stop = stop
        self._current = self._hosts[0]
        self._http = http
        self._timeout = (min(CONNECT_S, timeout_s), timeout_s)
        self.failures = 0
        self.failovers = 0

    def ask(self, method: str, path: str, body: bytes | None = None, form: str = "application/json") -> Response:
        """Return the response of a host; OutputUnavailable if none answers, or it refuses the credentials."""
        now = time.monotonic()
        why = ""
        # failed hosts come last, and are not skipped: the caller has a back-off between its retries, too
        for host in sorted(self._hosts, key=lambda host: max(0.0, host.rest_until - now)):
            if self._stop.is_set():
                raise OutputUnavailable("stopping")
            try:
                answer = self._ask(host, method, path, body, form)
            except _HostFailedError as err:
                why = f"{host.url}: {err}"
                self.failures += 1
                host.failures += 1
                host.rest_until = time.monotonic() + min(MAX_HOST_REST_S, 2.0 ** (host.failures - 1))
                if powers_of_ten(host.failures):
                    log.warning("database host failed host=%s failures=%d: %s", host.url, host.failures, err)
                continue
            host.failures, host.rest_until = 0, 0.0
            if host is not self._current:
                log.warning("database host changed from=%s to=%s", self._current.url, host.url)
                self._current = host
                self.failovers += 1
            if answer.status == 401:
                raise OutputUnavailable(f"{host.url} refuses these credentials, see -P and --elastic-api-key-file")
            return answer
        raise OutputUnavailable(why)

    def _ask(self, host: _Host, method: str, path: str, body: bytes | None, form: str) -> Response:
        headers = {"Content-Type": form} if body is not None else None
        try:
            response = self._http.request(method, host.url + path, body, headers, timeout_s=self._timeout)
            text = response.body()
        except HttpFailure as err:
            if not isinstance(err.cause, ssl.SSLError):
                raise _HostFailedError(str(err)) from err
            is_plain = _IS_PLAIN.search(str(err.cause))
            hint = "it does not speak TLS, is it http://?" if is_plain else "see --elastic-ca-file"
            raise _HostFailedError(f"{err}; {hint}") from err
        status = response.status
        try:
            parsed = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            parsed = None
        if status >= 500:
            raise _HostFailedError(f"status {status}: {': '.join(Response(status, _mapping(parsed)).error)}")
        if 300 <= status < 400:
            where = response.headers.get("Location", "")
            raise _HostFailedError(f"status {status}, points to {where[:200]!r}; give that as --elastic-host")
        if status < 300 and not isinstance(parsed, dict):
            raise _HostFailedError("its answer is not that of Elasticsearch")
        return Response(status, _mapping(parsed))

    def stop(self) -> None:
        """Send no more requests; the current one keeps its timeout."""
        self._stop.set()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def add_options(parser: Options, purpose: str) -> None:
    """Declare options for the database's address, credentials and certificates; `purpose` is such as ``write to``."""
    parser.add_argument(
        "--elastic-host",
        metavar="URL",
        action="append",
        help=f"{purpose} Elasticsearch or OpenSearch at this URL; such as https://db:9200 (db:9200 is http); "
        "Elasticsearch 7.8 or later; repeatable: the next one is used when one fails",
    )
    parser.add_argument(
        "--elastic-index-prefix",
        metavar="TEXT",
        default="colmet_",
        help=cli.Rare("prefix of all index names (default: %(default)s)"),
    )
    parser.add_argument(
        "-P", "--http-credentials", metavar="FILE", help="file with a line user:password for --elastic-host"
    )
    parser.add_argument(
        "--no-check-certificates",
        action="store_true",
        help=cli.Rare("accept any certificate of the server; --elastic-ca-file is the safe way"),
    )
    parser.add_argument(
        "--elastic-api-key-file",
        metavar="FILE",
        help=cli.Rare("file with one line, an API key as id:key or encoded, instead of -P"),
    )
    parser.add_argument("--elastic-ca-file", metavar="FILE", help=cli.Rare("CA certificates (PEM) for the server"))
    parser.add_argument("--elastic-client-cert", metavar="FILE", help=cli.Rare("client certificate (PEM)"))
    parser.add_argument(
        "--elastic-client-key", metavar="FILE", help=cli.Rare("key of the client certificate, if in another file")
    )
    parser.require("--elastic-host", "--elastic-", "--http-credentials", "--no-check-certificates")


def checked_urls(options: argparse.Namespace) -> list[str]:
    """Return the addresses of the command line, without user and password; ConfigError if one of them is invalid."""
    return [checked_url(url) for url in options.elastic_host]


def checked_prefix(options: argparse.Namespace) -> str:
    """Return the prefix of all index names; ConfigError if the prefix is invalid for an index."""
    prefix: str = options.elastic_index_prefix
    if not PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"--elastic-index-prefix {prefix!r}: only lower-case letters, digits, '.', '_' and '-', at most 64, "
            "the first a letter or digit"
        )
    return prefix


def checked_url(url: str) -> str:
    """Return an address without trailing slash, user and password; ConfigError, without a password, for others.

    ``HOST:PORT`` is http, as in Colmet 0.6.
    """
    if _HOST_AND_PORT.fullmatch(url):
        url = f"http://{url}"
    url, _ = _parted(url)
    parts = parse_url(url)
    good = parts is not None and _is_host(parts.hostname or "") and not (parts.query or parts.fragment)
    if not good or not url.isascii():
        raise ConfigError(f"--elastic-host {url!r}: not an address such as https://db.example.org:9200")
    return url.rstrip("/")


def _parted(url: str) -> tuple[str, str]:
    """Return an address without user and password, and these as ``user:password``, "" if it has none."""
    scheme, mark, rest = url.rpartition("://")
    given, at, host = rest.rpartition("@")
    user, _, password = given.partition(":")
    return scheme + mark + host, f"{unquote(user)}:{unquote(password)}" if at else ""


def _is_host(name: str) -> bool:
    if HOST_NAME.fullmatch(name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def open_http(options: argparse.Namespace, urls: Sequence[str], warns: bool = True) -> HttpClient:
    """Return an HTTP client with the credentials and certificates of the options; ConfigError if they are unusable."""
    headers = {"User-Agent": f"colmet/{__version__}"}
    authorization = _authorization(options, warns)
    if authorization:
        headers["Authorization"] = authorization
        for url in filter(is_readable_on_the_way, urls if warns else ()):
            log.warning("--elastic-host %s: the password can be read on the way; use https", url)
    if options.elastic_client_key and not options.elastic_client_cert:
        raise ConfigError("--elastic-client-key: the certificate is missing, give --elastic-client-cert")
    if options.elastic_ca_file and options.no_check_certificates:
        raise ConfigError("--elastic-ca-file and --no-check-certificates: choose one")
    tls = TlsOptions(
        ca_file=options.elastic_ca_file,
        certificate=options.elastic_client_cert,
        key=options.elastic_client_key,
        verify=not options.no_check_certificates,
    )
    tls.check("--elastic-ca-file", "--elastic-client-cert")
    if not tls.verify and warns:
        log.warning("--no-check-certificates: anyone in the network can pose as the server and read the password")
    return HttpClient(headers, tls, MAX_ANSWER_BYTES)


def open_client(options: argparse.Namespace, warns: bool = True) -> DatabaseClient:
    """Return a client for the options of `add_options`; ConfigError if they are unusable.

    Args:
        options: of the command line.
        warns: whether it warns of unsafe ones; once is enough for a program.
    """
    urls = checked_urls(options)
    return DatabaseClient(urls, open_http(options, urls, warns), TIMEOUT_S, threading.Event())


def _authorization(options: argparse.Namespace, warns: bool) -> str:
    credentials, api_key = options.http_credentials, options.elastic_api_key_file
    in_address = {given for _, given in map(_parted, options.elastic_host) if given}
    if in_address and warns:
        log.warning(
            "--elastic-host: every user of this machine can read the user and password of an address, e.g. with `ps`; "
            "put them into a file, -P%s",
            ", which is used and not these" if credentials or api_key else "",
        )
    if credentials and api_key:
        raise ConfigError("-P and --elastic-api-key-file: choose one")
    if credentials:
        text = read_line("-P", credentials)
        if ":" not in text:
            raise ConfigError(f"-P {credentials}: its line is not user:password")
        return basic_authorization(text)
    if api_key:
        text = read_line("--elastic-api-key-file", api_key)
        if ":" in text:
            text = base64.b64encode(text.encode()).decode()
        if not API_KEY.fullmatch(text):
            raise ConfigError(f"--elastic-api-key-file {api_key}: its line is no API key")
        return "ApiKey " + text
    if len(in_address) > 1:
        raise ConfigError("--elastic-host: addresses with different users or passwords; put one into a file, -P")
    return "".join(map(basic_authorization, in_address))
