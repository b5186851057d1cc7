"""An HTTP server for one page, `/metrics`: `http.server`, with a bound on its threads and a deadline for each.

`prometheus_client` formats the labels of each sample and makes a whole page before its first byte: more than ten times
the CPU time, and 150 MB for a collector with 5,000 jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import ipaddress
import itertools
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from colmet.common.config import cli
from colmet.common.daemon.daemon_health import CONTENT_TYPE, Family, render
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ColmetError, ConfigError

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 4
REQUEST_S = 5.0  # timeout for a complete request
ANSWER_S = 30.0  # timeout for sending the response
POLL_S = 0.2  # between two looks at deadlines
OPTION = "--metrics-listen"
PAGE = "/metrics"
INDEX = '<html><head><title>Colmet</title></head><body><a href="/metrics">metrics</a></body></html>\n'


class ListenAddress(NamedTuple):
    """An address to listen on."""

    host: str
    port: int


def listen_address(text: str) -> ListenAddress:
    """Convert [HOST:]PORT, an option type; a port alone means this machine only."""
    host, colon, port = text.rpartition(":")
    host = host if colon else "127.0.0.1"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST:]PORT, such as 9333 or 0.0.0.0:9333")
    return ListenAddress(host, int(port))


def add_options(parser: cli.Options) -> None:
    """Declare --metrics-listen and --metrics-jobs."""
    parser.add_argument(
        OPTION,
        metavar="[HOST:]PORT",
        type=listen_address,
        help="serve metrics of this daemon to Prometheus; at http://HOST:PORT/metrics, without a login; PORT alone "
        "listens on 127.0.0.1 (default: off)",
    )
    parser.add_argument(
        "--metrics-jobs", action="store_true", help=cli.Rare("serve the latest values of every job there as well")
    )
    parser.require(OPTION, "--metrics-jobs")


def resolve(listen: ListenAddress, option: str) -> tuple[int, tuple[object, ...]]:
    """Return the family and the address to listen on, as sockets expect them: the first one that the machine has.

    Raises:
        ConfigError: the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)
    except OSError as err:
        raise cannot_listen(listen, option, err) from err
    for family, _, _, _, address in found:
        # localhost may have ::1 where there is no IPv6.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
            return family, address
    return found[0][0], found[0][4]


def cannot_listen(listen: ListenAddress, option: str, err: OSError) -> ConfigError:
    """Return the error for a failure to listen on an address."""
    where = f"[{listen.host}]" if ":" in listen.host else listen.host
    return ConfigError(
        f"{option} {where}:{listen.port}: {err.strerror}; give an address of this machine and a port that nothing "
        "else uses"
    )


# -- names of this machine in Host headers, against web pages that reach it under a name of their own --


def own_names() -> frozenset[str]:
    """Return the names of this machine for requests from itself."""
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, name.partition(".")[0]})


def is_known(value: str, names: Collection[str]) -> bool:
    """Return whether a Host header has one of these names, or an address, with or without a port."""
    host = value.strip().lower()
    name, colon, port = host.rpartition(":")
    host = (name if colon and port.isdigit() else host).rstrip(".")
    if host in names:
        return True
    family = socket.AF_INET6 if host.startswith("[") and host.endswith("]") else socket.AF_INET
    try:
        socket.inet_pton(family, host.strip("[]"))
    except (OSError, ValueError):
        return False
    return True


# -- the server --


class MetricsServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves the page until `close`: a few connections at a time, each for a bounded time.

    Args:
        listen: address; port 0 is any free one, then in `address`.
        families: returns the content of the page; called for each request, one at a time.
        pause: called between the pieces, to let others work.

    Raises:
        ConfigError: the address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(
        self,
        listen: ListenAddress,
        families: Callable[[], Iterable[Family]],
        pause: Callable[[], None] = lambda: time.sleep(0.0005),
    ) -> None:
        self.families = families
        self.pause = pause
        self.rendering = threading.Lock()
        self.served = self.refused = self.failures = 0
        self._until: dict[socket.socket, float] = {}  # deadlines of the connections
        self.address_family, address = resolve(listen, OPTION)
        try:
            super().__init__(address, _MetricsRequest)  # type: ignore[arg-type]
        except OSError as err:
            raise cannot_listen(listen, OPTION, err) from err
        self.address = ListenAddress(*self.socket.getsockname()[:2])
        is_local = ipaddress.ip_address(self.address.host.partition("%")[0]).is_loopback
        self.names = own_names() if is_local else None  # else a web page could send requests under a name of its own
        self._thread: threading.Thread | None = threading.Thread(
            target=self.serve_forever, args=(POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics at http://%s:%d%s", *self.address, PAGE)

    def server_bind(self) -> None:
        """Bind, without the look-up of the own name in HTTPServer, which may wait for DNS."""
        socketserver.TCPServer.server_bind(self)

    def counters(self) -> dict[str, int]:
        """Return the numbers of pages served, of requests refused, and of pages that failed by a defect."""
        return {"served": self.served, "refused": self.refused, "failures": self.failures}

    def close(self) -> None:
        """Stop, and close all connections; idempotent."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
            self._thread = None
            self.server_close()
            for connection in list(self._until):
                _end(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; beyond a bound the oldest one is closed."""
        if len(self._until) >= MAX_CONNECTIONS:
            self.refuse("is one too many")
            _end(min(self._until, key=lambda connection: self._until[connection]))
        self._until[request] = time.monotonic() + REQUEST_S
        super().process_request(request, client_address)

    def extend(self, connection: socket.socket) -> None:
        """Give a connection the time of an answer."""
        self._until[connection] = time.monotonic() + ANSWER_S

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        self._until.pop(request, None)
        super().close_request(request)

    def service_actions(self) -> None:
        """Close connections beyond their deadlines; called several times a second."""
        now = time.monotonic()
        for connection in [one for one, until in list(self._until.items()) if until <= now]:
            self.refuse("is too slow")
            _end(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a connection that ended early, or a defect of ours, which must not end the thread."""
        err = sys.exc_info()[1]
        if isinstance(err, OSError):
            self.refuse(f"has gone: {err.strerror or err}")
            return
        self.failures += 1
        if powers_of_ten(self.failures):
            log.error("page of metrics failed failures=%d", self.failures, exc_info=err)

    def refuse(self, why: str) -> None:
        """Count a refused request, and log it at powers of ten."""
        self.refused += 1
        if powers_of_ten(self.refused):
            log.warning("request for metrics refused refused=%d: it %s", self.refused, why)


def _end(connection: socket.socket) -> None:
    """End a connection that another thread reads or writes: that thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsRequest(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: MetricsServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Colmet", ""
    timeout = ANSWER_S  # of each read and write

    def do_GET(self) -> None:
        """Serve the page."""
        self.server.extend(self.connection)
        hosts = self.headers.get_all("Host", [])
        if self.server.names is not None and not all(is_known(host, self.server.names) for host in hosts):
            self._send(400, "text/plain", "Ask by an address or by the name of this machine.\n")
        elif self.path == "/":
            self._send(200, "text/html", INDEX)
        elif self.path.partition("?")[0] != PAGE:
            self._send(404, "text/plain", "There is /metrics.\n")
        else:
            with self.server.rendering:
                self._send_page()

    def _send_page(self) -> None:
        pieces = render(self.server.families())
        try:
            first = next(pieces, "")  # before the status is sent
        except ColmetError as err:
            self.server.failures += 1
            self._send(503, "text/plain", f"{err}\n")
            return
        # in chunks: the client can distinguish a truncated page from a complete one
        chunks = self.request_version != "HTTP/1.0"
        self._begin(200, CONTENT_TYPE, {"Transfer-Encoding": "chunked"} if chunks else {})
        for piece in itertools.chain([first], pieces):
            content = piece.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) if chunks else content)
            self.server.pause()
        if chunks:
            self.wfile.write(b"0\r\n\r\n")
        self.server.served += 1

    def _send(self, status: int, content_type: str, text: str) -> None:
        self._begin(status, content_type, {"Content-Length": str(len(text.encode()))})
        self.wfile.write(text.encode())

    def _begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no GET request; `code` and texts as in http.server."""
        self.close_connection = True
        self.server.refuse(f"is no GET of HTTP/1: {message or code}"[:200])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of http.server
        """Log nothing: requests are counted."""
