"""Build the web application, and serve it by uvicorn: on a TCP port, or on a Unix socket for a proxy.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from colmet import __version__
from colmet.collector.feed import bind_path
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.metrics_http import ListenAddress, cannot_listen, own_names, resolve
from colmet.common.errors import ConfigError
from colmet.common.text import document
from colmet.jobs.report.document import to_json
from colmet.web.access import Access, Stats
from colmet.web.archive_routes import ArchiveRoutes
from colmet.web.gate import FOLDER, Gate, LoginRoutes, too_many
from colmet.web.interface import described
from colmet.web.options import Address, UnixAddress
from colmet.web.queries import Queries
from colmet.web.responses import encoded, failure
from colmet.web.routes import Routes
from colmet.web.stored_routes import Stored, StoredRoutes
from colmet.web.workers import Busy

PACKED_BYTES = 1024  # shorter answers are not compressed
LEVEL = 4  # of gzip: higher ones are slow and save little


def build_app(
    queries: Queries,
    access: Access,
    *,
    stored: Stored = Stored(),  # noqa: B008 - a tuple
    gridengine: bool = False,
    connections: Callable[[], int] = lambda: 0,
    hosts: list[str] | None = None,
    folder: Path = FOLDER,
) -> FastAPI:
    """Return the ASGI application.

    Args:
        queries: answers the queries.
        access: authenticates requests.
        stored: reads the store.
        gridengine: whether /qhost and /qstat serve Grid Engine's hosts and jobs.
        connections: returns the number of open connections.
        hosts: names and addresses allowed in Host headers; None for any. Protects an open interface for this machine
            only from web pages with a name that resolves to this machine (DNS rebinding).
        folder: folder of the page's files.
    """
    app = FastAPI(title="Colmet", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    routes = Routes(queries, access, gridengine, connections, stored.archive)
    routes.add_to(app)
    archived = ArchiveRoutes(routes, stored.archive)
    StoredRoutes(routes, stored, archived.workers).add_to(app)
    archived.add_to(app)
    LoginRoutes(access).add_to(app)
    description = b""

    async def index(_request: Request) -> Response:
        return FileResponse(folder / "index.html")

    async def openapi(_request: Request) -> Response:
        nonlocal description
        if not description:  # rarely requested, and slow to build
            description = to_json(described(app, access.is_open))
        return encoded(description)

    for path, endpoint in {"/": index, "/openapi.json": openapi}.items():
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=folder))
    for error in (RequestValidationError, HTTPException, Busy):
        app.add_exception_handler(error, _failed)
    # The last one is the outermost.
    app.add_middleware(GZipMiddleware, minimum_size=PACKED_BYTES, compresslevel=LEVEL)
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Gate, access=access)
    return app


async def _failed(_request: Request, err: Exception) -> Response:
    if isinstance(err, Busy):
        return too_many(err)
    if isinstance(err, RequestValidationError):
        texts = [f"{error['loc'][-1]}: {error['msg']}" for error in err.errors()[:5]]
        return failure(400, f"a value cannot be used: {'; '.join(texts)}")
    if not isinstance(err, HTTPException):
        raise err
    text = str(err.detail)
    if err.status_code == 404 and text == "Not Found":
        text = "there is nothing at this address; /openapi.json lists all addresses"
    return failure(err.status_code, text, err.headers)


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

    For the arguments see `build_app`, which gets the options; ConfigError if the address cannot be used.
    """

    def __init__(self, listen: Address, queries: Queries, access: Access, **options: Any) -> None:
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
            queries, access, connections=lambda: len(self._server.server_state.connections), hosts=names, **options
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
