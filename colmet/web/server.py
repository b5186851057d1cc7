"""Serves the JSON interface: sockets, TLS, bounds on connections and on the time that they take."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from colmet.common.errors import ConfigError
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.metrics_http import ListenAddress
from colmet.common.runtime.own_name import own_names
from colmet.web.access import Access
from colmet.web.app import build_app
from colmet.web.files import FOLDER
from colmet.web.interface import Interface
from colmet.web.peers import Peers
from colmet.web.responses import HEADERS, JSON, NOT_KEPT
from colmet.web.stats import Stats

log = logging.getLogger(__name__)

CONNECTIONS = 512
CONNECTIONS_OF_ADDRESS = 256
HEAD_S = 10.0  # for a request's head to come, and for the handshake of TLS
KEEP_ALIVE_S = 15
TAKE_S = 60.0  # for an answer to be taken
STOP_S = 5.0  # for answers that are under way when it ends
UNACKNOWLEDGED_MS = 30_000
LOOK_S = 60.0  # between looks at the certificate
BACKLOG = 512
ACCEPTED_AT_ONCE = 16  # then requests are read: a flood pushes out no connection whose request is there
MALFORMED = b'{"error":"malformed HTTP request"}'


class Tls(NamedTuple):
    """Files of a certificate, with those that it rests on, and of its key."""

    certificate: str
    key: str


class Connection(socket.socket):
    """An accepted connection, which says when it is closed.

    Attributes:
        key: what counts as its address.
        busy: whether a whole request has come that is not answered yet.
    """

    key = ""
    busy = False
    leave: Callable[[], None] | None = None

    def close(self) -> None:
        """Close; also twice."""
        leave, self.leave = self.leave, None
        super().close()
        if leave is not None:
            leave()


class Limit:
    """Bounds connections, in all and of each address. Beyond, the oldest one without a whole request is closed.

    Args:
        most: in all.
        most_of_address: of an address, or of what counts as one.
    """

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._open: dict[str, dict[int, Connection]] = {}  # by address and descriptor, the oldest first
        self.count = 0

    def enter(self, connection: Connection) -> bool:
        """One more; False where that is one too many, and all others have requests that are being answered."""
        here = self._open.get(connection.key, {})
        is_one = not Peers.is_proxy(connection.key)  # else many clients are behind it
        if is_one and len(here) >= self._most_of_address and not self._evict(here):
            return False
        if self.count >= self._most and not any(
            self._evict(there) for there in sorted(self._open.values(), key=len, reverse=True)
        ):
            return False
        descriptor = connection.fileno()
        self._open.setdefault(connection.key, {})[descriptor] = connection
        self.count += 1
        connection.leave = lambda: self._leave(connection.key, descriptor)
        return True

    def connection(self, descriptor: int) -> Connection | None:
        """A connection by its descriptor alone; None where it has been closed."""
        return next((here[descriptor] for here in self._open.values() if descriptor in here), None)

    @staticmethod
    def _evict(here: Mapping[int, Connection]) -> bool:
        """Close the oldest connection that has no whole request; False where all have."""
        for connection in here.values():
            if not connection.busy:
                leave, connection.leave = connection.leave, None
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # the loop then sees its end, and closes it
                if leave is not None:
                    leave()
                return True
        return False

    def _leave(self, key: str, descriptor: int) -> None:
        self.count -= 1
        del self._open[key][descriptor]
        if not self._open[key]:
            del self._open[key]


class _Listener(socket.socket):
    """Accepts connections up to a limit: before a handshake costs anything."""

    limit: Limit
    stats: Stats
    peers: Peers

    def listen(self, backlog: int = 0) -> None:
        """Listen; asyncio's backlog is also how many connections it accepts at once, and is for that alone here."""
        del backlog
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        connection = Connection(fileno=accepted.detach())
        connection.key = self.peers.key(connection, address)
        before = self.limit.count
        entered = self.limit.enter(connection)
        if not entered or self.limit.count == before:
            self.stats.add("refused_connections")
        if not entered:
            connection.close()
            raise ConnectionAbortedError("too many connections")
        return connection, address


class _Loop(asyncio.SelectorEventLoop):
    """Ends handshakes of TLS that take too long."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_S
        return await super().create_server(*args, **options)


class _Protocol(H11Protocol):
    """A connection, with deadlines for what uvicorn lets take any time."""

    stats: Stats
    limit: Limit

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connection: Connection | None = None
        self._head: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        self._connection = None if own is None else self.limit.connection(own.fileno())
        if self._connection is not None:
            self.client = (self._connection.key, 0)  # whom bounds are for
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # what was refused for its body need not send the rest
            self.transport.close()
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # the beginning of the next one
            self._watch_head()
        if self._connection is not None:
            self._connection.busy = self.conn.their_state is not h11.IDLE

    def send_400_response(self, msg: str) -> None:
        del msg
        self.stats.add("malformed")
        told = {"Content-Type": JSON, "Cache-Control": NOT_KEPT, "Content-Length": str(len(MALFORMED)), **HEADERS}
        told["Connection"] = "close"
        headers = [(key.encode("ascii"), value.encode("ascii")) for key, value in told.items()]
        events: list[Any] = [h11.Response(status_code=400, headers=headers, reason=b"Bad Request")]
        events += [h11.Data(data=MALFORMED), h11.EndOfMessage()]
        with contextlib.suppress(h11.LocalProtocolError):  # an answer is under way: the connection just ends
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(TAKE_S, self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """A deadline while the head of a request is not whole; between requests there is that of keep-alive."""
        waits = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if self._connection is not None:
            self._connection.busy = not waits
        if waits and self._head is None:
            self._head = self.loop.call_later(HEAD_S, self._end)
        elif not waits and self._head is not None:
            self._head.cancel()
            self._head = None

    def _end(self) -> None:
        self.stats.add("slow_connections")
        self.transport.abort()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    def install_signal_handlers(self) -> None:  # of old versions
        return

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # of new ones
        yield


class WebServer:
    """Listens from the start; answers while `run` runs.

    Args:
        listen: where.
        interface: answers the queries.
        access: says who asks.
        tls: certificate and key; None for HTTP in clear.
        gridengine: whether Grid Engine's hosts and jobs are told at /qhost and /qstat.
        folder: with the page's files.
        fresh_files: read them for every request: for who writes the page.
        limit: of connections.
        peers: says who is at the other end of a connection.

    Raises:
        ConfigError: it cannot listen there, or certificate and key cannot be used.
    """

    def __init__(
        self,
        listen: ListenAddress,
        interface: Interface,
        access: Access,
        *,
        tls: Tls | None = None,
        gridengine: bool = False,
        folder: Path = FOLDER,
        fresh_files: bool = False,
        limit: Limit | None = None,
        peers: Peers | None = None,
    ) -> None:
        peers = peers or Peers()
        self._tls = tls
        self._context = None if tls is None else _context(tls)
        self._stats = access.stats
        self._limit = limit or Limit(CONNECTIONS, CONNECTIONS_OF_ADDRESS)
        self._sockets = _listen(listen, self._limit, access.stats, peers)
        self.addresses: Sequence[tuple[str, int]] = [one.getsockname()[:2] for one in self._sockets]
        is_local = all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host, _ in self.addresses)
        if not is_local and tls is None:
            what = "what everybody may see" if access.is_open else "passwords and tokens"
            log.warning("http without tls, %s travel in clear: listen=%s", what, self.addresses)
        app = build_app(
            interface,
            access,
            gridengine=gridengine,
            connections=lambda: self._limit.count,
            hosts=own_names() if is_local and access.is_open else None,
            client=peers.client,
            folder=folder,
            fresh_files=fresh_files,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every request that is none
        protocol = type("_CountingProtocol", (_Protocol,), {"counts": access.stats, "limit": self._limit})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=ACCEPTED_AT_ONCE,
        )
        config.load()
        config.ssl = self._context
        self._server = _Uvicorn(config)
        self._loop: _Loop | None = None
        self._lock = threading.Lock()
        self._is_stopping = False

    @property
    def port(self) -> int:
        """That it listens on."""
        return self.addresses[0][1]

    def run(self) -> None:
        """Answer until `stop` is called."""
        loop = _Loop()
        loop.set_exception_handler(self._note)
        with self._lock:
            self._loop = loop
            if self._is_stopping:
                self._server.should_exit = True
        try:
            loop.run_until_complete(self._serve())
        finally:
            with self._lock:
                self._loop = None
            for one in self._sockets:
                one.close()
            loop.close()

    def stop(self) -> None:
        """End soon; for any thread, and for handlers of signals."""
        self._is_stopping = True
        self._server.should_exit = True

    async def _serve(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        log.info("http serves: listen=%s tls=%s", self.addresses, self._tls is not None)
        try:
            await self._server.serve(sockets=list(self._sockets))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        """Read the certificate again where it has changed; do not wait for ever at the end."""
        loop = asyncio.get_running_loop()
        marks = self._marks()
        next_look = loop.time() + LOOK_S
        while not self._server.should_exit:
            await asyncio.sleep(0.5)
            if loop.time() < next_look:
                continue
            next_look = loop.time() + LOOK_S
            found = self._marks()
            if found != marks:
                marks = found
                self.reload_certificate()
        await asyncio.sleep(STOP_S)
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        for task in list(self._server.server_state.tasks):
            task.cancel()

    def reload_certificate(self) -> None:
        """Read certificate and key again, for connections from now on."""
        if self._tls is None or self._context is None:
            return
        try:
            _context(self._tls)  # a pair that does not fit must not spoil the one in use
            self._context.load_cert_chain(self._tls.certificate, self._tls.key)
        except (ConfigError, OSError) as err:
            self._stats.add("certificate_failures")
            log.error("certificate not read again, the one of before remains: reason=%s", err)
            return
        self._stats.add("certificate_reloads")
        log.info("certificate read again: file=%s", self._tls.certificate)

    def _marks(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for path in self._tls or ():
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_mtime_ns, status.st_ino))
        return found

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio could not do: mostly what clients do to their connections, so it is counted, not told each."""
        del loop
        count = self._stats.add("broken_connections")
        if powers_of_ten(count):
            reason, err = context.get("message"), context.get("exception")
            log.info("connection failed: reason=%s error=%r times=%d", reason, err, count)


def serve(server: WebServer) -> None:
    """Run a server in the main thread until SIGTERM or SIGINT comes, or somebody stops it."""
    former = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # a key with a passphrase would make the daemon ask at its terminal
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
    except ssl.SSLError as err:
        reason = err.reason or "no PEM, or with a passphrase"
        raise ConfigError(f"--http-tls-cert {tls.certificate}, --http-tls-key {tls.key}: {reason}") from err
    except OSError as err:
        raise ConfigError(f"--http-tls-cert {tls.certificate}, --http-tls-key {tls.key}: {err.strerror}") from err
    return context


def _listen(listen: ListenAddress, limit: Limit, stats: Stats, peers: Peers) -> list[socket.socket]:
    where = f"--http-listen {listen.host}:{listen.port}"
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as err:
        raise ConfigError(f"{where}: no such address: {err}") from err
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            one = _Listener(family, socket.SOCK_STREAM)
            sockets.append(one)
            one.limit, one.stats, one.peers = limit, stats, peers
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
            one.setblocking(False)
            one.bind(address)
            one.listen()
        except OSError as err:
            for other in sockets:
                other.close()
            raise ConfigError(
                f"{where}: {err.strerror}; give an address of this machine and a port that nothing else uses, nor the "
                "collector's own --zeromq-link-bind-uri (by default the port after that of --zeromq-bind-uri)"
            ) from err
    return sockets
