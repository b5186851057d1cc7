"""Addresses of sockets, waiting for them, and ports that a collector inherits or gives up.

The service manager holds listening sockets while a daemon restarts, sd_listen_fds(3): no other user of the machine can
bind a held port meanwhile.

Colmet 0.6 has one port, so sites run the collectors of several clusters on consecutive ports of one machine. By
default, acknowledgements use the port after that of the data, so they could block the next collector's data port. The
next collector claims that port: it connects to a Unix socket named after it. The names are in the abstract namespace of
the network namespace, as ports are.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING

import zmq

from colmet.common.errors import ConfigError

PATIENCE_S = 5.0  # timeout for a port to be released
_PAUSE_S = 0.05
_BURST = 16  # connections processed at once
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PORT = re.compile(r"tcp://.+:(\d+)", re.ASCII)


def _name(uri: str) -> str:
    """Return the name of the socket for the port in `uri`, "" without a port."""
    found = _PORT.fullmatch(uri)
    return f"\0colmet-port-{found[1]}" if found else ""


class Claims:
    """Claims to the port in `uri` of this process, by processes of the same user, or of root.

    `fd` is readable when a claim may have come; -1 if none can come.
    """

    def __init__(self, uri: str) -> None:
        self.fd = -1
        self._socket: socket.socket | None = None
        name = _name(uri)
        if name:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                made.bind(name)
                made.listen(_BURST)
            except OSError:  # the name is in use: the port stays
                made.close()
                return
            self._socket, self.fd = made, made.fileno()

    def came(self) -> bool:
        """Return whether the port was claimed since the last call."""
        claimed = False
        if self._socket is None:
            return claimed
        for _ in range(_BURST):
            try:
                one, _ = self._socket.accept()
            except OSError:
                break
            with one:
                credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                claimed |= _CREDENTIALS.unpack(credentials)[1] in (0, os.geteuid())
        return claimed

    def close(self) -> None:
        """Accept no more claims; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self.fd = None, -1


def bind_claiming(bind_once: Callable[[], None], uri: str) -> None:
    """Bind an address; if it is in use, claim its port from a collector that uses it by default; or raise ZMQError."""
    try:
        bind_once()
        return
    except zmq.ZMQError as err:
        if err.errno != errno.EADDRINUSE or not _claim(uri):
            raise
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(_PAUSE_S)
        with contextlib.suppress(zmq.ZMQError):
            bind_once()
            return
    bind_once()


def _claim(uri: str) -> bool:
    """Claim a port; return whether any process accepts claims for it."""
    name = _name(uri)
    if not name:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.connect(name)
        except OSError:
            return False
    return True


log = logging.getLogger(__name__)

FIRST = 3  # SD_LISTEN_FDS_START
MAX = 64


class Listeners:
    """Listening TCP sockets passed at the start, each used for its bound address; owned until `find` returns them."""

    def __init__(self, sockets: list[socket.socket] | None = None) -> None:
        self._sockets = sockets or []

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Listeners:
        """Return the sockets of LISTEN_FDS; its variables are removed, so that no child process reads them."""
        pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
        environment.pop("LISTEN_FDNAMES", None)
        if pid != str(os.getpid()) or not (count.isascii() and count.isdigit() and 0 < int(count) <= MAX):
            return cls()
        sockets = []
        for number in range(FIRST, FIRST + int(count)):
            try:
                one = socket.socket(fileno=number)
            except OSError as err:
                log.warning("LISTEN_FDS: descriptor cannot be used fd=%d: %s", number, err.strerror)
                continue
            os.set_inheritable(number, False)
            one.setblocking(False)
            sockets.append(one)
        return cls(sockets)

    def find(self, uri: str, option: str) -> int | None:
        """Return the descriptor of the listener bound to `uri`, None without one. The caller then owns it.

        Raises:
            ConfigError: one holds the port on another address, so binding would fail.
        """
        if not uri.startswith("tcp:") or uri.endswith(":*"):
            return None
        address, _, port = uri[len("tcp://") :].rpartition(":")
        for one in self._sockets:
            if _port(one) == int(port):
                if one.getsockname()[:2] in _addresses(address.strip("[]"), int(port)):
                    self._sockets.remove(one)
                    return one.detach()
                raise ConfigError(
                    f"{option} {uri}: the service manager holds {_shown(one)}; name this address in the option, or the "
                    "option's in the socket unit (`systemctl edit colmet-collector.socket`), or disable that unit"
                )
        return None

    def bind(self, wanted: zmq.Socket[bytes], uri: str, option: str) -> None:
        """Bind a ZeroMQ socket to `uri`, through the held listener if there is one.

        Raises ConfigError as `find`; zmq.ZMQError if the address cannot be bound.
        """
        descriptor = self.find(uri, option)
        if descriptor is None:
            wanted.bind(uri)
            return
        wanted.setsockopt(zmq.USE_FD, descriptor)
        try:
            wanted.bind(uri)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        log.info("listening socket of the service manager used: uri=%s", uri)

    def close(self) -> None:
        """Close the unused ones, with a warning; idempotent."""
        for one in self._sockets:
            log.warning(
                "listening socket of the service manager not used, no option names its address: %s", _shown(one)
            )
            one.close()
        self._sockets = []


def _port(one: socket.socket) -> int | None:
    try:
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return int(one.getsockname()[1])
    except OSError as err:
        if err.errno != errno.ENOPROTOOPT:
            raise
    return None


def _addresses(host: str, port: int) -> list[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(
            None if host == "*" else host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
    except OSError:  # such as the name of a network interface, which ZeroMQ resolves
        return []
    return [(str(address[0]), int(address[1])) for *_, address in found]


def _shown(one: socket.socket) -> str:
    name = one.getsockname()
    if not isinstance(name, tuple):
        return repr(name)
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


_SOURCE = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^:/;\s\[\]]+):\d{1,5}", re.ASCII)
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)", re.ASCII)


def check_uri(uri: str, option: str) -> str:
    """Return `uri` if ZeroMQ can use it; else ConfigError describes the form of a URI."""
    tcp = _TCP.fullmatch(uri)
    if tcp is not None:
        if tcp[2] == "*" or 0 < int(tcp[2]) < 65536:
            return uri
        raise ConfigError(f"{option} {uri}: the port must be a number from 1 to 65535")
    if re.fullmatch(r"ipc://.+", uri):
        return uri
    raise ConfigError(f"{option} {uri}: give tcp://HOST:PORT (or ipc://PATH), e.g. tcp://127.0.0.1:5556")


def check_target(uri: str, option: str) -> str:
    """Return `uri` if a socket can connect to it; an address to connect from may precede it: SOURCE:PORT;.

    Raises:
        ConfigError: describes the form of a URI.
    """
    source, is_from, target = uri.partition(";")
    if is_from:
        if not _SOURCE.fullmatch(source):
            raise ConfigError(f"{option} {uri}: give tcp://SOURCE:0;HOST:PORT to connect from the address SOURCE")
        target = f"tcp://{target}"
    if check_uri(target if is_from else uri, option).endswith(":*"):
        raise ConfigError(f"{option} {uri}: the port must be a number from 1 to 65535")
    return uri


def link_uri(uri: str) -> str:
    """Return the default address of acknowledgements: the port after that of the data; for ipc another path."""
    if uri.startswith("ipc:"):
        return f"{uri}.link"
    address, _, port = uri.rpartition(":")
    return f"{address}:{int(port) + 1}"


if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]
else:
    Socket = zmq.Socket  # pyzmq 22, of Ubuntu 22.04, has no index
_monitors = itertools.count(1)


def wait(readable: Iterable[int | Socket], writable: Iterable[Socket], timeout_s: float) -> None:
    """Wait until one of these can be read or written, at most `timeout_s`."""
    poller = zmq.Poller()
    for source in readable:
        poller.register(source, zmq.POLLIN)
    for one in writable:
        poller.register(one, zmq.POLLOUT)
    poller.poll(max(0, int(timeout_s * 1000 + 0.999)))


def monitor_address() -> str:
    """Return the address of a new monitor, used once: libzmq frees that of a closed one later."""
    return f"inproc://monitor-{next(_monitors)}"
