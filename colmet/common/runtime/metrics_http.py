"""An HTTP server for one page, `/metrics`: a thread of its own, a few connections, each with a deadline.

A client can block others for the time of these deadlines, but do no other harm. `http.server` reads a request without a
deadline and has no bound on threads. `prometheus_client` formats the labels of each sample and makes a whole page
before its first byte: more than ten times the CPU time, and 150 MB for a collector with 5,000 jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import itertools
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.configuration import require
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.prometheus_text import CONTENT_TYPE, Family, render
from colmet.common.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 4
MAX_REQUEST_BYTES = 8192
REQUEST_S = 5.0  # timeout for a complete request
ANSWER_S = 30.0  # timeout for sending the response
SEND_BYTES = 1 << 16
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
    require(parser, OPTION, "--metrics-jobs")


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


class MetricsServer:
    """Serves the page until `close`.

    Args:
        listen: address; port 0 is any free one, then in `address`.
        families: returns the content of the page; called for each request, by the endpoint's thread.
        pause: called between the pieces, to let others work.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(
        self,
        listen: ListenAddress,
        families: Callable[[], Iterable[Family]],
        pause: Callable[[], None] = lambda: time.sleep(0.0005),
    ) -> None:
        self._families = families
        self._pause = pause
        self._served = self._refused = self._failures = 0
        self._connections: dict[int, _Connection] = {}
        family, address = resolve(listen, OPTION)
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._socket.bind(address)
                self._socket.listen(16)
            except BaseException:
                self._socket.close()
                raise
        except OSError as err:
            raise cannot_listen(listen, OPTION, err) from err
        self.address = ListenAddress(*self._socket.getsockname()[:2])
        is_local = ipaddress.ip_address(self.address.host.partition("%")[0]).is_loopback
        self._names = own_names() if is_local else None  # else a web page could send requests under a name of its own
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        log.info("metrics at http://%s:%d%s", *self.address, PAGE)

    def counters(self) -> dict[str, int]:
        """Return the numbers of pages served, of requests refused, and of pages that failed by a defect."""
        return {"served": self._served, "refused": self._refused, "failures": self._failures}

    def close(self) -> None:
        """Stop, and close all connections; idempotent."""
        if self._wakeup.fd >= 0:
            self._wakeup.wake()
            self._thread.join()
            self._wakeup.close()

    def _run(self) -> None:
        """Serve, in the thread."""
        with selectors.DefaultSelector() as selector, self._socket:
            selector.register(self._wakeup.fd, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select(self._delay_s()):
                        if key.fd == self._wakeup.fd:
                            return
                        if key.fileobj is self._socket:
                            self._accept(selector)
                        elif key.fd in self._connections and not self._go_on(selector, self._connections[key.fd]):
                            self._drop(selector, self._connections[key.fd])
                    now = time.monotonic()
                    for connection in [one for one in self._connections.values() if one.until <= now]:
                        self._refuse("is too slow")
                        self._drop(selector, connection)
            finally:
                for connection in list(self._connections.values()):
                    self._drop(selector, connection)

    def _delay_s(self) -> float | None:
        first = min([connection.until for connection in self._connections.values()], default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError:  # it has gone meanwhile, or descriptors are lacking: it waits for the next accept
            time.sleep(0.1)
            return
        if len(self._connections) >= MAX_CONNECTIONS:  # drop first one without a whole request, then the oldest
            held = list(self._connections.values())
            self._refuse("is one too many")
            self._drop(selector, next((one for one in held if one.answer is None), held[0]))
        accepted.setblocking(False)
        self._connections[accepted.fileno()] = _Connection(accepted)
        selector.register(accepted, selectors.EVENT_READ)

    def _drop(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        selector.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    def _go_on(self, selector: selectors.BaseSelector, connection: _Connection) -> bool:
        """Read or write as far as possible; return whether the connection continues."""
        try:
            if connection.answer is None:
                if not connection.read():
                    return True
                connection.answer = self._answer(connection.request())
                connection.until = time.monotonic() + ANSWER_S
                selector.modify(connection.socket, selectors.EVENT_WRITE)
            return connection.write()
        except OSError as err:
            self._refuse(f"has gone: {err.strerror}")
        except ValueError as err:
            self._refuse(str(err))
        except Exception:  # a defect of ours here must not end the thread
            self._failures += 1
            if powers_of_ten(self._failures):
                log.exception("page of metrics failed failures=%d", self._failures)
        return False

    def _refuse(self, why: str) -> None:
        self._refused += 1
        if powers_of_ten(self._refused):
            log.warning("request for metrics refused refused=%d: it %s", self._refused, why)

    def _answer(self, request: MetricsRequest) -> Iterator[bytes]:
        if self._names is not None and not all(is_known(host, self._names) for host in request.hosts):
            yield _head("400 Bad Request", "text/plain") + b"Ask by an address or by the name of this machine.\n"
        elif request.path == "/":
            yield _head("200 OK", "text/html") + INDEX.encode()
        elif request.path != PAGE:
            yield _head("404 Not Found", "text/plain") + b"There is /metrics.\n"
        else:
            yield from self._page(request.chunks)

    def _page(self, chunks: bool) -> Iterator[bytes]:
        pieces = render(self._families())
        try:
            first = next(pieces, "")  # before the status is sent
        except ColmetError as err:
            self._failures += 1
            yield _head("503 Service Unavailable", "text/plain") + f"{err}\n".encode()
            return
        yield _head("200 OK", CONTENT_TYPE, "Transfer-Encoding: chunked\r\n" if chunks else "")
        for piece in itertools.chain([first], pieces):
            content = piece.encode()
            # in chunks: the client can distinguish a truncated page from a complete one
            yield b"%x\r\n%s\r\n" % (len(content), content) if chunks else content
            self._pause()
        if chunks:
            yield b"0\r\n\r\n"
        self._served += 1


def _head(status: str, content_type: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}Connection: close\r\n\r\n".encode()


class MetricsRequest(NamedTuple):
    """A parsed request: path without the query, whether its client accepts chunks, and its Host headers."""

    path: str
    chunks: bool
    hosts: tuple[str, ...] = ()


def parse_request(request: bytes) -> MetricsRequest:
    """Parse a request; ValueError if it is not a GET request."""
    words = request.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise ValueError("is not HTTP")
    if words[0] != b"GET":
        raise ValueError("is not a GET")
    heads = [line.partition(b":") for line in request.split(b"\n")[1:]]
    hosts = tuple([value.decode("latin-1").strip() for key, _, value in heads if key.strip().lower() == b"host"])
    return MetricsRequest(words[1].split(b"?", 1)[0].decode("ascii", "replace"), words[2] != b"HTTP/1.0", hosts)


class _Connection:
    """A connection of a client.

    Attributes:
        until: its deadline, by the monotonic clock.
        answer: rest of the response; None before the request is whole.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.until = time.monotonic() + REQUEST_S
        self.answer: Iterator[bytes] | None = None
        self._request = b""
        self._waiting = b""
        self._is_whole = False

    def read(self) -> bool:
        """Read the available bytes; return whether the request is complete."""
        part = self.socket.recv(MAX_REQUEST_BYTES)
        if not part:
            raise ValueError("ends before its request does")
        self._request += part
        if len(self._request) > MAX_REQUEST_BYTES:
            raise ValueError(f"has a request of more than {MAX_REQUEST_BYTES} bytes")
        return b"\r\n\r\n" in self._request or b"\n\n" in self._request

    def request(self) -> MetricsRequest:
        """Return the request, once it is complete."""
        return parse_request(self._request)

    def write(self) -> bool:
        """Write as much as the socket accepts; return whether more remains."""
        assert self.answer is not None
        while len(self._waiting) < SEND_BYTES:
            piece = next(self.answer, None)
            if piece is None:
                self._is_whole = True
                break
            self._waiting += piece
        with contextlib.suppress(BlockingIOError):
            self._waiting = self._waiting[self.socket.send(self._waiting) :]
        return bool(self._waiting) or not self._is_whole
