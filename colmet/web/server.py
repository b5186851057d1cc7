"""Serve the JSON interface by uvicorn: on a TCP port, or on a Unix socket for a proxy.

uvicorn bounds neither the connections of one client nor the arrival time of a request. A proxy does, in front of a Unix
socket (docs/tools/http.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from pathlib import Path
from typing import Any

import uvicorn

from colmet.collector.feed import bind_path
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.metrics_http import ListenAddress, cannot_listen, own_names, resolve
from colmet.common.errors import ConfigError
from colmet.common.text import document
from colmet.web.access import Access, Stats
from colmet.web.app import FOLDER, build_app
from colmet.web.options import Address, UnixAddress
from colmet.web.queries import Queries
from colmet.web.stored_routes import Stored

log = logging.getLogger(__name__)

CONNECTIONS = 2048  # beyond, requests are answered with 503
KEEP_ALIVE_S = 15
STOP_S = 5.0  # timeout for answers in progress at the end
UNACKNOWLEDGED_MS = 30_000  # TCP_USER_TIMEOUT: the kernel then closes connections of clients that do not read
POLL_S = 0.5
BACKLOG = 512
SOCKET_MODE = 0o660  # the proxy is a member of the socket's group
# counters of requests dropped by uvicorn, by the prefix of its warning
_WARNINGS = {"Invalid HTTP request": "malformed", "Exceeded concurrency limit": "refused_connections"}


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

    For the arguments see `colmet.web.app.build_app`.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(
        self,
        listen: Address,
        queries: Queries,
        access: Access,
        *,
        stored: Stored = Stored(),  # noqa: B008 - a tuple
        gridengine: bool = False,
        folder: Path = FOLDER,
    ) -> None:
        self._stats = access.stats
        is_unix = isinstance(listen, UnixAddress)
        self._socket = _bind_path(listen.path) if isinstance(listen, UnixAddress) else _bind(listen)
        self.address: Any = self._socket.getsockname() if is_unix else self._socket.getsockname()[:2]
        is_local = is_unix or ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback
        if not is_local:
            what = "what everybody may see" if access.is_open else "passwords and tokens"
            log.warning(
                "http without tls, %s travel in clear: listen=%s; a proxy in front has the certificate (--listen "
                "unix:PATH)",
                *(what, self.address),
            )
        # A proxy has its own name. "[" is how older versions of Starlette cut an address of IPv6.
        is_own = is_local and access.is_open and not is_unix
        names = [*own_names(), "127.0.0.1", "::1", "[::1]", "["] if is_own else None
        app = build_app(
            queries,
            access,
            stored=stored,
            gridengine=gridengine,
            connections=lambda: len(self._server.server_state.connections),
            hosts=names,
            folder=folder,
        )
        config = uvicorn.Config(
            app,
            http="h11",  # refuses requests that deviate from HTTP
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # `client_of` reads them
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
        )
        config.load()
        self._server = uvicorn.Server(config)

    @property
    def port(self) -> int:
        """The listening TCP port."""
        return int(self.address[1])

    def run(self) -> None:
        """Answer until a call of `stop`."""
        uvicorns, warnings = logging.getLogger("uvicorn.error"), _Warnings(self._stats)
        uvicorns.addHandler(warnings)
        uvicorns.propagate = False
        try:
            asyncio.run(self._serve())
        finally:
            uvicorns.removeHandler(warnings)
            self._socket.close()
            if isinstance(self.address, str):
                with contextlib.suppress(OSError):
                    os.unlink(self.address)

    def stop(self) -> None:
        """Request the end of `run`; for any thread."""
        self._server.should_exit = True

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._count_failure)
        log.info("http serves: listen=%s", self.address)
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        while not serving.done() and not self._server.should_exit:
            await asyncio.wait([serving], timeout=POLL_S)
        await asyncio.wait([serving], timeout=STOP_S)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    def _count_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count failures of connections, such as a client's reset."""
        del loop
        count = self._stats.add("broken_connections")
        if powers_of_ten(count):
            reason, err = context.get("message"), context.get("exception")
            log.info("connection failed: reason=%s error=%r times=%d", reason, err, count)


def _bind(listen: ListenAddress) -> socket.socket:
    """Return a listening TCP socket."""
    family, address = resolve(listen, "--listen")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as err:
        listener.close()
        raise cannot_listen(listen, "--listen", err) from err
    return listener


def _bind_path(path: str) -> socket.socket:
    """Return a listening Unix socket for its owner and group only. An unused socket at the path is replaced."""
    try:
        return bind_path(path, SOCKET_MODE)
    except OSError as err:
        raise ConfigError(
            f"--listen unix:{path}: {err.strerror}; give a path that nothing else uses, in a directory that the user "
            f"of colmet-web can write ({document('tools/http.md')})"
        ) from err
