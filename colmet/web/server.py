"""Serve the JSON interface by uvicorn: on a TCP port, with or without TLS, or on a Unix socket for a proxy.

uvicorn bounds neither the connections of one client nor the arrival time of a request. A proxy does, in front of a Unix
socket (docs/tools/http.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from colmet.collector.web_options import UnixAddress, check_certificate
from colmet.common.errors import ConfigError
from colmet.common.runtime.installation import document
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.metrics_http import ListenAddress, own_names
from colmet.web.access import Access
from colmet.web.app import build_app
from colmet.web.files import FOLDER
from colmet.web.peers import Peers
from colmet.web.queries import Queries
from colmet.web.stats import Stats
from colmet.web.stored_routes import Stored
from colmet.web.users import mark

log = logging.getLogger(__name__)

CONNECTIONS = 2048  # beyond, requests are answered with 503
KEEP_ALIVE_S = 15
STOP_S = 5.0  # timeout for answers in progress at the end
UNACKNOWLEDGED_MS = 30_000  # TCP_USER_TIMEOUT: the kernel then closes connections of clients that do not read
POLL_S = 0.5
LOOK_S = 60.0  # period of checks of the certificate
BACKLOG = 512
SOCKET_MODE = 0o660  # the proxy is a member of the socket's group
# uvicorn's default includes ciphers of TLS 1.0
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
# counters of requests dropped by uvicorn, by the prefix of its warning
_WARNINGS = {"Invalid HTTP request": "malformed", "Exceeded concurrency limit": "refused_connections"}


class Tls(NamedTuple):
    """Paths of a certificate chain and of its key."""

    certificate: str
    key: str


class _Warnings(logging.Handler):
    """A counter of requests dropped by uvicorn; logs its 1st, 10th, ... error only, as clients can cause many."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats
        self._errors = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for beginning, key in _WARNINGS.items():
            if text.startswith(beginning):
                self._stats.add(key)
        if record.levelno >= logging.ERROR:
            self._errors += 1
            if powers_of_ten(self._errors):
                log.handle(record)


class WebServer:
    """A web server; it listens from its construction, and answers during `run`.

    `tls` is None for HTTP without TLS; for the other arguments see `colmet.web.app.build_app`.

    Raises:
        ConfigError: the address, or certificate and key, cannot be used.
    """

    def __init__(
        self,
        listen: ListenAddress | UnixAddress,
        queries: Queries,
        access: Access,
        *,
        tls: Tls | None = None,
        stored: Stored = Stored(),  # noqa: B008 - a tuple
        gridengine: bool = False,
        folder: Path = FOLDER,
        fresh_files: bool = False,
        peers: Peers | None = None,
    ) -> None:
        self._tls = tls
        self._stats = access.stats
        if tls is not None:
            check_certificate(*tls)
        self._sockets = [_bind_path(listen.path)] if isinstance(listen, UnixAddress) else _bind(listen)
        self.addresses: Sequence[Any] = [
            one.getsockname() if one.family == socket.AF_UNIX else one.getsockname()[:2] for one in self._sockets
        ]
        is_local = isinstance(listen, UnixAddress) or all(
            ipaddress.ip_address(address[0].partition("%")[0]).is_loopback for address in self.addresses
        )
        if not is_local and tls is None:
            what = "what everybody may see" if access.is_open else "passwords and tokens"
            log.warning("http without tls, %s travel in clear: listen=%s", what, self.addresses)
        app = build_app(
            queries,
            access,
            stored=stored,
            gridengine=gridengine,
            connections=lambda: len(self._server.server_state.connections),
            # a proxy has its own name; a page of another site must not read an open interface through a name of its own
            hosts=own_names() if is_local and access.is_open and not isinstance(listen, UnixAddress) else None,
            client=(peers or Peers()).client,
            folder=folder,
            fresh_files=fresh_files,
        )
        self._config = uvicorn.Config(
            app,
            http="h11",  # refuses requests that deviate from HTTP
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # `Peers` reads them
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
            ssl_ciphers=CIPHERS,
        )
        self._config.load()
        self._server = uvicorn.Server(self._config)

    @property
    def port(self) -> int:
        """The listening TCP port."""
        return int(self.addresses[0][1])

    def run(self) -> None:
        """Answer until a call of `stop`; in the main thread, also until SIGTERM or SIGINT."""
        uvicorns, warnings = logging.getLogger("uvicorn.error"), _Warnings(self._stats)
        uvicorns.addHandler(warnings)
        uvicorns.propagate = False
        try:
            asyncio.run(self._serve())
        finally:
            uvicorns.removeHandler(warnings)
            for one in self._sockets:
                one.close()
            for address in self.addresses:
                if isinstance(address, str):
                    with contextlib.suppress(OSError):
                        os.unlink(address)

    def stop(self) -> None:
        """Request the end of `run`; for any thread."""
        self._server.should_exit = True

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._count_failure)
        log.info("http serves: listen=%s tls=%s", self.addresses, self._tls is not None)
        serving = asyncio.ensure_future(self._server.serve(sockets=self._sockets))
        marks, next_look = list(map(mark, self._tls or ())), loop.time() + LOOK_S
        while not serving.done() and not self._server.should_exit:
            await asyncio.wait([serving], timeout=POLL_S)
            if loop.time() >= next_look:
                next_look = loop.time() + LOOK_S
                former, marks = marks, list(map(mark, self._tls or ()))
                if marks != former:
                    self.reload_certificate()
        await asyncio.wait([serving], timeout=STOP_S)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    def reload_certificate(self) -> None:
        """Reload certificate and key, for new connections."""
        if self._tls is None or self._config.ssl is None:
            return
        try:
            check_certificate(*self._tls)  # a mismatched pair must not replace the one in use
            self._config.ssl.load_cert_chain(self._tls.certificate, self._tls.key)
        except (ConfigError, OSError) as err:
            self._stats.add("certificate_failures")
            log.error("certificate not read again, the previous one remains: reason=%s", err)
            return
        self._stats.add("certificate_reloads")
        log.info("certificate read again: file=%s", self._tls.certificate)

    def _count_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count failures of connections, such as a client's reset."""
        del loop
        count = self._stats.add("broken_connections")
        if powers_of_ten(count):
            reason, err = context.get("message"), context.get("exception")
            log.info("connection failed: reason=%s error=%r times=%d", reason, err, count)


def _bind(listen: ListenAddress) -> list[socket.socket]:
    """Return listening sockets on all addresses of a name."""
    where = f"--http-listen {listen.host}:{listen.port}"
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as err:
        raise ConfigError(f"{where}: no such address: {err}") from err
    sockets: list[socket.socket] = []
    refusal: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            one = socket.socket(family, socket.SOCK_STREAM)
        except OSError as err:
            refusal = err
            continue
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
            one.bind(address)
            one.listen(BACKLOG)
        except OSError as err:
            one.close()
            refusal = err
            # A name may have addresses that the machine has not: ::1 of localhost, where there is no IPv6.
            if err.errno == errno.EADDRNOTAVAIL:
                continue
            break
        sockets.append(one)
    else:
        if sockets:
            return sockets
    for one in sockets:
        one.close()
    reason = "no such address" if refusal is None else refusal.strerror
    raise ConfigError(
        f"{where}: {reason}; give an address of this machine and a port that nothing else uses, nor the collector's "
        "own --zeromq-link-bind-uri (by default the port after that of --zeromq-bind-uri)"
    ) from refusal


def _bind_path(path: str) -> socket.socket:
    """Return a listening Unix socket for its owner and group only. An unused socket at the path is replaced."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _is_in_use(path):
                os.unlink(path)
        one.bind(path)
        os.chmod(path, SOCKET_MODE)
        one.listen(BACKLOG)  # no connections before this
    except OSError as err:
        one.close()
        raise ConfigError(
            f"--http-listen unix:{path}: {err.strerror}; give a path that nothing else uses, in a directory that the "
            f"page's process can write ({document('tools/http.md')})"
        ) from err
    return one


def _is_in_use(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        try:
            tried.connect(path)
        except ConnectionRefusedError:
            return False
    return True
