"""The control socket: a ROUTER on the daemon, a DEALER of the client. Messages: `wire.control`.

A Unix socket is open to its user only (and root): mode 0600 in a directory writable by no other user. TCP is for
clients with known keys.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Sequence
from typing import Union

import zmq

from colmet.common.errors import ConfigError, Unreachable
from colmet.common.runtime.files import check_writable
from colmet.common.runtime.wakeup import Wakeup
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.listening import Listening
from colmet.common.transport.local import MAX_PARTS, LocalServer, ReceivedRequest
from colmet.common.transport.uris import check_uri

OPTION = "--control-socket"
# Twice the size of a request: one slightly too large is still received, refused and counted. Above it libzmq drops the
# connection.
MAX_RECEIVED_BYTES = 128 << 10
MAX_ANSWERED_BYTES = 16 << 20
QUEUE = 100  # waiting messages of one peer
MAX_FRAMES = MAX_PARTS + 1  # the first identifies the peer
REMEDY = "give --control-curve-keys and --zeromq-curve-secret, or a path"
MAX_PATH = 107  # bytes of a Unix socket's path


def check_control(uri: str, has_keys: bool) -> None:
    """Check that a control socket could be served, without making it; ConfigError if not: TCP requires keys."""
    check_uri(uri, OPTION)
    if uri.startswith("ipc:"):
        check_path(uri[len("ipc://") :])
    elif not has_keys:
        raise ConfigError(f"{OPTION} {uri}: without keys any host could use it: TCP requires keys; {REMEDY}")


def check_path(path: str) -> None:
    """Check that a Unix socket can be made at a path, and that no other user can write in its directory.

    Raises:
        ConfigError: another user can, or it cannot be made.
    """
    if path.startswith("@") or path == "*":  # for libzmq: a name without a file, and so without permissions; any name
        raise ConfigError(f"{OPTION} ipc://{path}: not the path of a file; any client that knows the name could ask")
    directory = os.path.dirname(os.path.abspath(path))
    if len(os.fsencode(path)) > MAX_PATH:
        raise ConfigError(f"{OPTION} {path}: longer than the {MAX_PATH} bytes that the path of a socket may have")
    try:
        check_writable(directory)
    except OSError as err:
        raise ConfigError(
            f"{OPTION} {path}: {err.strerror}; give a path in a directory that this user can write"
        ) from err
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(directory)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise ConfigError(
                f"{OPTION} {path}: others may write in {directory}; give a path in a directory of this user alone"
            )
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"{OPTION} {path}: another file is there, and is not removed")


def _check_silent(path: str) -> None:
    """Check that no daemon listens on a Unix socket; ConfigError if one does, or this cannot be determined."""
    try:
        knock(path)
    except Unreachable as err:
        if err.why != "absent":  # a stale one is replaced
            raise ConfigError(f"{OPTION} {path}: {err}") from err
    else:
        raise ConfigError(f"{OPTION} {path}: another daemon listens there; stop it, or give another path")


def knock(path: str) -> None:
    """Check that a daemon listens on a Unix socket; Unreachable if not, or if this user may not connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as tried:
        try:
            tried.connect(path)
        except (FileNotFoundError, ConnectionRefusedError) as err:
            raise Unreachable(f"no daemon listens on {path}", "absent") from err
        except PermissionError as err:
            raise Unreachable(f"{path}: permission denied; ask as its user, or root of the machine", "denied") from err
        except BlockingIOError:
            return  # the backlog is full: it is a daemon
        except OSError as err:
            raise Unreachable(f"{path}: {err.strerror}", "denied") from err


def serve_control(uri: str, authenticator: Authenticator | None = None) -> ControlServer:
    """Return the daemon's end of the control socket. TCP requires an authenticator with keys, closed with the socket.

    Raises:
        ConfigError: the URI cannot be bound, or another daemon has it.
    """
    check_control(uri, authenticator is not None and authenticator.locked)
    if authenticator is not None and uri.startswith("tcp:"):
        return TcpServer(uri, authenticator)
    path = uri[len("ipc://") :]
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(os.path.abspath(path)), 0o700)
        check_path(path)  # again: another user may have made the directory meanwhile
        _check_silent(path)
        return LocalServer(path, MAX_RECEIVED_BYTES)
    except OSError as err:
        raise ConfigError(f"{OPTION} {uri}: {err.strerror}") from err


class TcpServer(Listening):
    """The daemon's end on TCP. After its creation it is used, and closed, by one thread; `wake` is for any other.

    Args:
        uri: tcp://HOST:PORT.
        authenticator: of the clients, closed with this.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(self, uri: str, authenticator: Authenticator) -> None:
        self._wakeup = Wakeup()
        # 200 ms for a reply in transit at the end
        settings = {zmq.LINGER: 200, zmq.SNDHWM: QUEUE, zmq.RCVHWM: QUEUE, zmq.MAXMSGSIZE: MAX_RECEIVED_BYTES}
        super().__init__(zmq.ROUTER, uri, OPTION, authenticator, settings)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup.fd, zmq.POLLIN)

    def receive(self) -> ReceivedRequest | None:
        """Wait for the next request and return it; None once `wake` was called."""
        while True:
            ready = self._poller.poll()
            if any(source == self._wakeup.fd for source, _ in ready):
                return None
            frames = self._socket.recv_multipart(copy=False)
            if self._authenticator.user(frames[-1]):
                # too many parts for a client of ours: refused as one bad message
                parts = [frame.bytes for frame in frames] if len(frames) <= MAX_FRAMES else [frames[0].bytes, b""]
                return ReceivedRequest(parts[:-1], parts[-1])

    def send(self, envelope: Sequence[bytes], message: bytes) -> None:
        """Send a reply; lost if the client has gone."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([*envelope, message], zmq.NOBLOCK)

    def wake(self) -> None:
        """Have `receive` return None from now on."""
        self._wakeup.wake()

    def close(self) -> None:
        """Close; idempotent."""
        super().close()
        self._authenticator.close()
        self._wakeup.close()


ControlServer = Union[LocalServer, TcpServer]


class ControlClient:
    """The client's end.

    Args:
        uri: of the daemon's socket.
        client: this client's pair of keys and the daemon's key; for TCP only.

    Raises:
        ConfigError: the URI cannot be used.
        Unreachable: no daemon is there, or this user may not connect.
    """

    def __init__(self, uri: str, client: Client | None = None) -> None:
        check_uri(uri, OPTION)
        if uri.startswith("ipc:"):
            knock(uri[len("ipc://") :])
        elif client is None:
            raise ConfigError(f"{OPTION} {uri}: TCP requires keys; give --curve-secret and --curve-daemon")
        self._uri = uri
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWERED_BYTES)
        if client is not None and uri.startswith("tcp:"):
            client.secure(self._socket)
        try:
            self._socket.connect(uri)
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(f"{OPTION} {uri}: {err}") from err

    def ask(self, message: bytes, timeout_s: float) -> bytes:
        """Return the reply to a request; Unreachable if there is none within the timeout."""
        self._socket.send(message)
        if not self._socket.poll(int(timeout_s * 1000)):
            keys = "" if self._uri.startswith("ipc:") else "; does it listen, and do both know each other's keys?"
            raise Unreachable(f"no answer from {self._uri} within {timeout_s:g} s{keys}", "silent")
        return b"".join(self._socket.recv_multipart())  # our replies have one part; any other fails to decode

    def close(self) -> None:
        """Close; idempotent."""
        self._socket.close()
        self._context.term()
