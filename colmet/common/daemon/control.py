"""The control socket of a daemon: a Unix socket that answers a line of JSON with a line of JSON.

A request names a command; its handler gets the request and returns the reply. Work for the main thread is passed to it
as an errand. A bad request gets `{"error": why}`, is counted, and stops nothing. The socket is open to its user only
(and root): mode 0600 in a directory writable by no other user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any, Callable, TypeVar

from colmet.common.config import cli
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.errors import ColmetError, ConfigError, Refused, Unreachable, WireError
from colmet.common.host.files import check_writable
from colmet.common.wire.control import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    Request,
    check_request,
    decode_request,
    encode,
)

log = logging.getLogger(__name__)

DIRECTORY = "/run/colmet"
OPTION = "--control-socket"
NO_SOCKET = "no control socket, `colmet status` cannot ask this daemon: %s"
RUST_COMMAND = "configure"  # meaning of a request without a command: the Rust node has no other
ERRAND_S = 5.0  # timeout for the main thread's errands
MAX_PATH = 107  # bytes of a Unix socket's path
MAX_CLIENTS = 64  # beyond it, the one that has been connected for the longest time is closed
REQUEST_S, REPLY_S = 5.0, 30.0  # for a client to send its request, and to read the reply
RETRY_S = 0.05  # after a failed accept
READ_BYTES = 1 << 16
# Bounds on clients that send requests without a pause: a tenth of a CPU, and 100 replies a second.
REST_SHARE = 9.0
MIN_REST_S = 0.01

Handler = Callable[[Request], dict[str, Any]]
T = TypeVar("T")


def add_options(parser: cli.Options, daemon: str) -> None:
    """Declare --control-socket of a daemon, "node" or "collector"."""
    parser.add_argument(
        OPTION,
        metavar="PATH",
        help=cli.Rare(
            "socket for `colmet status`, `top` and `configure`; only root and the daemon's user can use it; '': none "
            f"(default: {DIRECTORY}/{daemon}.sock, or colmet/{daemon}.sock under $XDG_RUNTIME_DIR)"
        ),
    )


def add_client_options(parser: cli.Options) -> None:
    """Declare --control-socket of a client's command."""
    parser.add_argument(
        OPTION, metavar="PATH", help=cli.Rare("socket of the daemon (default: that of its own default)")
    )


def default_paths(daemon: str) -> list[str]:
    """Return the default paths of a daemon's control socket, the best first."""
    # the second is the RuntimeDirectory= of the daemon's unit, whose user may not write in the first
    runtime = [os.environ.get("RUNTIME_DIRECTORY", ""), os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "colmet")]
    directories = dict.fromkeys([DIRECTORY, os.path.join(DIRECTORY, daemon), *filter(os.path.isabs, runtime)])
    return [os.path.join(directory, f"{daemon}.sock") for directory in directories]


def check_path(path: str) -> None:
    """Check that a control socket can be made at a path, and that no other user can write in its directory.

    Raises:
        ConfigError: another user can, or it cannot be made.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if "://" in path:
        raise ConfigError(f"{OPTION} {path}: not a path; a daemon of another machine is asked there, as with ssh")
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


class Errands:
    """Calls by other threads for the main thread to make; `fd` is readable if some are pending.

    A context manager: at its end all pending ones are refused.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], futures.Future[Any]]] = []
        self._lock = threading.Lock()
        self._ended = False
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd

    def __enter__(self) -> Errands:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, []
        for _function, future in waiting:
            future.cancel()
        self._wakeup.close()

    def call(self, function: Callable[[], T], timeout_s: float = ERRAND_S) -> T:
        """Call a function in the main thread; return its result, or raise its exception.

        Raises:
            Refused: it was not done within the timeout; if it had not begun by then, it will not be.
        """
        future: futures.Future[T] = futures.Future()
        with self._lock:
            if self._ended:
                raise Refused("the daemon is about to end")
            self._waiting.append((function, future))
            self._wakeup.wake()
        try:
            return future.result(timeout_s)
        except futures.CancelledError:
            raise Refused("the daemon is about to end") from None
        except futures.TimeoutError:  # not the builtin one before Python 3.11
            if future.done():  # at this very moment; or the error is its own
                return future.result()
            doing = "it goes on with it" if not future.cancel() else "it will not do it later either"
            raise Refused(f"the daemon did not do it within {timeout_s:g} s; {doing}") from None

    def serve(self) -> None:
        """Make the pending calls, in the main thread. It raises nothing."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._wakeup.clear()
        for function, future in waiting:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as err:  # noqa: BLE001 - raised in the calling thread
                    future.set_exception(err)


class Control:
    """Answers requests: of the control socket, and those received by other parts of the daemon.

    Args:
        handlers: by command. They are called by the control socket's thread, or by the caller of `answer`, one at a
            time each; to reject a request they raise `Refused` or another `ColmetError`.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = dict(handlers)
        self._requests = self._refused = self._failures = 0
        self._server: ControlServer | None = None

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, of refused ones, and of those that failed by a defect."""
        return {"requests": self._requests, "refused": self._refused, "failures": self._failures}

    def answer(
        self,
        message: bytes,
        decode: Callable[[bytes], Request] = decode_request,
        encode: Callable[[Mapping[str, Any]], bytes] = encode,
    ) -> bytes:
        """Return the reply to a request, both as bytes, in msgpack by default; an error is a reply, too."""
        self._requests += 1
        try:
            answer = encode(self._handle(decode(message)))
            if len(answer) > MAX_ANSWER_BYTES:
                raise Refused(
                    f"the answer would have {len(answer)} bytes, more than the {MAX_ANSWER_BYTES} it may have"
                )
            return answer
        except ColmetError as err:
            self._refused += 1
            if powers_of_ten(self._refused):
                log.warning("request refused refused=%d bytes=%d: %.300s", self._refused, len(message), err)
            return encode({"error": str(err)[:1000]})
        except Exception as err:  # a defect of ours here must not stop the daemon's other work
            self._failures += 1
            if powers_of_ten(self._failures):
                log.exception("request failed failures=%d", self._failures)
            return encode({"error": f"a defect of the daemon, its log has more: {type(err).__name__}"})

    def answer_line(self, line: bytes) -> bytes:
        """Return the reply to a request in JSON, as a line."""
        return self.answer(line, _decode_line, _encode_line)

    def _handle(self, request: Request) -> dict[str, Any]:
        command = request.get("command", RUST_COMMAND)
        handler = self.handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            raise Refused(f"no command {command!r:.80}; there are: {', '.join(sorted(self.handlers))}")
        return handler(request)

    def listen(self, place: str | None, daemon: str) -> None:
        """Serve the control socket of the command line at `place`, or the default one of a daemon if possible.

        Raises:
            ConfigError: the socket of the command line cannot be opened.
        """
        if place is not None:
            if place:
                self._server = ControlServer(place, self.answer_line)
            return
        paths = default_paths(daemon)
        used = [path for path in paths if _is_in_use(path)]
        why = f"another daemon listens on {used[0]}; stop it, or give another path" if used else ""
        for path in () if used else paths:
            try:
                self._server = ControlServer(path, self.answer_line)
            except ConfigError as err:
                why = str(err)
            else:
                return
        log.warning(NO_SOCKET, why)

    def close(self) -> None:
        """Stop serving; idempotent, and allowed before `listen`. It waits 10 s for a running handler."""
        if self._server is not None:
            self._server.close()
            self._server = None


def _decode_line(line: bytes) -> Request:
    if len(line) > MAX_REQUEST_BYTES:
        raise WireError(f"request: more than the {MAX_REQUEST_BYTES} bytes that one may have")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise WireError(f"request: not JSON: {err}") from err
    if type(values) is not dict:
        raise WireError("request: not a map of texts and numbers")
    return check_request(values.items())


def _encode_line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


class _ControlClient:
    """A connection, with its deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.until = time.monotonic() + REQUEST_S
        self.request = bytearray()
        self.reply: memoryview | None = None


class ControlServer:
    """Answers the clients of a Unix socket in a thread, until `close`. Each sends a line, gets a line, and is closed.

    Args:
        path: of the socket; a stale one is replaced.
        answer: returns the reply to a request, both a line.

    Raises:
        ConfigError: the socket cannot be made, or another daemon has it.
    """

    def __init__(self, path: str, answer: Callable[[bytes], bytes]) -> None:
        self._path = os.path.abspath(path) if "://" not in path else path
        self._answer = answer
        self._clients: dict[int, _ControlClient] = {}
        self._not_accepted = 0
        self._socket = _bind(self._path)
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket; waits 10 s for a running handler."""
        self._wakeup.wake()
        self._thread.join(2 * ERRAND_S)

    def _run(self) -> None:
        with self._selector as selector:
            selector.register(self._wakeup.fd, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            ends = False
            while not ends:
                first = min([client.until for client in self._clients.values()], default=None)
                ready = selector.select(None if first is None else max(0.0, first - time.monotonic()))
                for key, _ in ready:
                    ends = ends or key.fd == self._wakeup.fd
                    if key.fileobj is self._socket:
                        self._accept()
                    elif key.fd in self._clients and not self._serve(self._clients[key.fd]):
                        self._drop(self._clients[key.fd])
                now = time.monotonic()
                for client in [one for one in self._clients.values() if one.until <= now]:
                    self._drop(client)
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # before closing: a listening one is never replaced
            for client in list(self._clients.values()):
                self._drop(client)
        self._socket.close()
        self._wakeup.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError as err:
            if err.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                self._not_accepted += 1
                if powers_of_ten(self._not_accepted):
                    log.warning("control socket: connection waits: %s failures=%d", err.strerror, self._not_accepted)
                time.sleep(RETRY_S)
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._drop(min(self._clients.values(), key=lambda client: client.until))
        connection.setblocking(False)
        self._clients[connection.fileno()] = _ControlClient(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, client: _ControlClient) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()

    def _serve(self, client: _ControlClient) -> bool:
        """Read or write as far as possible; return whether the connection continues."""
        try:
            if client.reply is None:
                received = client.socket.recv(READ_BYTES)
                client.request += received
                if b"\n" not in received and len(client.request) <= MAX_REQUEST_BYTES:
                    return bool(received)
                began = time.thread_time()
                client.reply = memoryview(self._answer(bytes(client.request.partition(b"\n")[0])))
                client.until = time.monotonic() + REPLY_S
                time.sleep(max(MIN_REST_S, REST_SHARE * (time.thread_time() - began)))
                self._selector.modify(client.socket, selectors.EVENT_WRITE)
            client.reply = client.reply[client.socket.send(client.reply) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(client.reply)


def _bind(path: str) -> socket.socket:
    """Return a listening Unix socket, open to its user only."""
    check_path(path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        check_path(path)  # again: another user may have made the directory meanwhile
        try:
            connect(path).close()
        except Unreachable as err:
            if err.why != "absent":
                raise ConfigError(f"{OPTION} {path}: {err}") from err
        else:
            raise ConfigError(f"{OPTION} {path}: another daemon listens there; stop it, or give another path")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(path)
            listening.listen(16)
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(before)
    except OSError as err:
        raise ConfigError(f"{OPTION} {path}: {err.strerror}") from err
    return listening


def connect(path: str, timeout_s: float = 1.0) -> socket.socket:
    """Return a connection to a daemon's Unix socket; Unreachable if none listens, or this user may not connect."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With Python's own timeout, connect(2) would not wait for a place in the backlog, but fail at once (EAGAIN).
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", *divmod(int(timeout_s * 1e6), 10**6))
    )
    try:
        connection.connect(path)
        connection.settimeout(timeout_s)
    except OSError as err:
        connection.close()
        if isinstance(err, (FileNotFoundError, ConnectionRefusedError)):
            raise Unreachable(f"no daemon listens on {path}", "absent") from err
        if isinstance(err, PermissionError):
            raise Unreachable(f"{path}: permission denied; ask as its user, or root of the machine", "denied") from err
        # The backlog of a daemon that does not answer is full.
        if isinstance(err, BlockingIOError):
            raise Unreachable(f"{path}: no answer", "silent") from err
        raise Unreachable(f"{path}: {err.strerror}", "denied") from err
    return connection


def _is_in_use(path: str) -> bool:
    try:
        connect(path).close()
    except Unreachable as err:
        return err.why == "silent"
    return True


def ask(place: str | None, daemon: str, request: Request, timeout_s: float = 2 * ERRAND_S) -> dict[str, Any]:
    """Send a request to a daemon, "node" or "collector", at `place` or its default socket; return its reply.

    Raises Unreachable if no daemon is there, this user may not connect, or it did not reply; Refused if it rejected the
    request; WireError if the reply is invalid; ConfigError if there can be no socket of that name.
    """
    if place is not None and "://" in place:
        raise ConfigError(f"{OPTION} {place}: not a path; a daemon of another machine is asked there, as with ssh")
    path, connection = _connect(place, daemon)
    until = time.monotonic() + timeout_s
    reply = bytearray()
    try:
        connection.settimeout(timeout_s)
        connection.sendall(_encode_line(request))
        while not reply.endswith(b"\n") and len(reply) <= MAX_ANSWER_BYTES:
            connection.settimeout(max(0.001, until - time.monotonic()))
            received = connection.recv(READ_BYTES)
            if not received:
                raise Unreachable(f"{path}: the daemon closed the connection", "silent")
            reply += received
    except OSError as err:
        raise Unreachable(f"no answer from {path} within {timeout_s:g} s", "silent") from err
    finally:
        connection.close()
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError) as err:
        raise WireError(f"answer: not JSON: {err}") from err
    if type(answer) is not dict:
        raise WireError("answer: not a map")
    if answer.get("error") is not None:
        raise Refused(str(answer["error"]))
    return answer


def _connect(place: str | None, daemon: str) -> tuple[str, socket.socket]:
    if place is not None:
        return place, connect(place)
    denied: Unreachable | None = None
    for path in (paths := default_paths(daemon)):
        try:
            return path, connect(path)
        except Unreachable as err:
            if err.why != "absent":
                denied = denied or err
    why = f"`colmet doctor --{daemon}` says why"
    raise denied or Unreachable(f"no colmet-{daemon} listens on {' or '.join(paths)}; {why}", "absent")
