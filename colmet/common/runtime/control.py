"""The control socket of a daemon: a thread reads requests, and handlers answer them.

A request names a command; its handler gets the request and returns the reply. Work for the main thread is passed to it
as an errand. A bad request gets `{"error": why}`, is counted, and stops nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any, Callable, TypeVar

from colmet.common.errors import ColmetError, ConfigError, Refused, Unreachable
from colmet.common.runtime import cli
from colmet.common.runtime.keys import KnownKeys, read_public
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.wakeup import Wakeup
from colmet.common.transport import (
    Authenticator,
    Client,
    ControlClient,
    ControlServer,
    check_control,
    knock,
    serve_control,
)
from colmet.common.transport.authenticator import Keys
from colmet.common.transport.curve import read_own_pair
from colmet.common.wire.control import MAX_ANSWER_BYTES, Request, decode_answer, decode_request, encode

log = logging.getLogger(__name__)

DIRECTORY = "/run/colmet"
NO_SOCKET = "no control socket, `colmet status` cannot ask this daemon: %s"
RUST_COMMAND = "configure"  # meaning of a request without a command: the Rust node has no other
ERRAND_S = 5.0  # timeout for the main thread's errands
# Bounds on clients that send requests without a pause: a tenth of a CPU, and 100 replies a second.
REST_SHARE = 9.0
MIN_REST_S = 0.01

Handler = Callable[[Request], dict[str, Any]]
T = TypeVar("T")


def add_options(parser: cli.Options, daemon: str) -> None:
    """Declare --control-socket and --control-curve-keys of a daemon, "node" or "collector"."""
    parser.add_argument(
        "--control-socket",
        metavar="PATH",
        help=cli.Rare(
            "socket for `colmet status`, `top` and `configure`; only root and the daemon's user can use it; '': none; "
            "tcp://HOST:PORT requires --control-curve-keys (default: "
            f"{DIRECTORY}/{daemon}.sock, or colmet/{daemon}.sock under $XDG_RUNTIME_DIR)"
        ),
    )
    parser.add_argument(
        "--control-curve-keys",
        metavar="DIR",
        help=cli.Rare(
            "directory with the public keys (NAME.key) of the clients of --control-socket tcp://HOST:PORT; requires "
            "--zeromq-curve-secret; read again every 10 s"
        ),
    )


def add_client_options(parser: cli.Options) -> None:
    """Declare --control-socket, --curve-secret and --curve-daemon, of a client's command."""
    parser.add_argument(
        "--control-socket", metavar="PATH", help=cli.Rare("socket of the daemon (default: that of its own default)")
    )
    parser.add_argument(
        "--curve-secret", metavar="FILE", help=cli.Rare("your key pair, for --control-socket tcp://HOST:PORT")
    )
    parser.add_argument("--curve-daemon", metavar="FILE", help=cli.Rare("public key of the daemon, for the same"))


def client_of(options: argparse.Namespace) -> Client | None:
    """Return the keys in the options of a client's command; None without.

    Raises:
        ConfigError: one of them is missing, or a file cannot be used.
    """
    secret, daemon = options.curve_secret, options.curve_daemon
    if not secret and not daemon:
        return None
    if not secret or not daemon:
        raise ConfigError(f"{'--curve-daemon' if secret else '--curve-secret'} is missing: TCP requires both keys")
    return Client(read_own_pair(secret, "--curve-secret"), read_public(daemon, "--curve-daemon"))


def check(options: argparse.Namespace) -> Keys | None:
    """Check that the configured control socket can be served; return the keys, and raise, as `read_keys`."""
    keys = read_keys(options)
    if options.control_socket:
        check_control(uri_of(options.control_socket), keys is not None)
    return keys


def read_keys(options: argparse.Namespace, uid: int | None = None) -> Keys | None:
    """Return the keys for clients over TCP from the options of a daemon; None without.

    They are those of `add_options`, and --zeromq-curve-secret; `uid` is the daemon's user, this process's by default.

    Raises:
        ConfigError: one of the options is missing, or its value cannot be used.
    """
    keys, secret, place = options.control_curve_keys, options.zeromq_curve_secret, options.control_socket
    if not keys:
        return None
    if not secret or not (place or "").startswith("tcp:"):
        missing = "--control-socket tcp://HOST:PORT" if secret else "--zeromq-curve-secret"
        raise ConfigError(f"{missing} is missing: --control-curve-keys is for clients over TCP")
    return Keys(read_own_pair(secret, "--zeromq-curve-secret", uid), KnownKeys(keys, "--control-curve-keys"))


def default_paths(daemon: str) -> list[str]:
    """Return the default paths of a daemon's control socket, the best first."""
    # the second is the RuntimeDirectory= of the daemon's unit, whose user may not write in the first
    runtime = [os.environ.get("RUNTIME_DIRECTORY", ""), os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "colmet")]
    directories = dict.fromkeys([DIRECTORY, os.path.join(DIRECTORY, daemon), *filter(os.path.isabs, runtime)])
    return [os.path.join(directory, f"{daemon}.sock") for directory in directories]


def uri_of(place: str) -> str:
    """Return --control-socket as a URI."""
    return place if place.startswith(("ipc:", "tcp:")) else f"ipc://{os.path.abspath(place)}"


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
        self._thread: threading.Thread | None = None

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, of refused ones, and of those that failed by a defect."""
        return {"requests": self._requests, "refused": self._refused, "failures": self._failures}

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a request, both as bytes; an error is a reply, too."""
        self._requests += 1
        try:
            answer = encode(self._handle(decode_request(message)))
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

    def _handle(self, request: Request) -> dict[str, Any]:
        command = request.get("command", RUST_COMMAND)
        handler = self.handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            raise Refused(f"no command {command!r:.80}; there are: {', '.join(sorted(self.handlers))}")
        return handler(request)

    def start(self, server: ControlServer) -> None:
        """Start the thread that serves this socket, until `close`."""
        self._server = server
        self._thread = threading.Thread(target=self._run, args=(server,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; idempotent, and allowed without a start. It waits 10 s for a running handler."""
        if self._server is not None and self._thread is not None:
            self._server.wake()
            self._thread.join(2 * ERRAND_S)
            self._server = self._thread = None

    def _run(self, server: ControlServer) -> None:
        """Serve requests, in the thread."""
        while (asked := server.receive()) is not None:
            began = time.thread_time()
            server.send(asked.envelope, self.answer(asked.message))
            time.sleep(max(MIN_REST_S, REST_SHARE * (time.thread_time() - began)))
        server.close()


def listen(place: str | None, daemon: str, control: Control, keys: Keys | None = None) -> None:
    """Serve the control socket of the command line at `place`, or the default one of a daemon if possible.

    Raises:
        ConfigError: the socket of the command line cannot be opened.
    """
    if place is not None:
        if place:
            control.start(serve_control(uri_of(place), Authenticator(*keys) if keys is not None else None))
        return
    paths = default_paths(daemon)
    used = [path for path in paths if _is_in_use(path)]
    why = f"another daemon listens on {used[0]}; stop it, or give another path" if used else ""
    for path in () if used else paths:
        try:
            control.start(serve_control(uri_of(path)))
        except ConfigError as err:
            why = str(err)
        else:
            return
    log.warning(NO_SOCKET, why)


def _is_in_use(path: str) -> bool:
    try:
        knock(path)
    except Unreachable:
        return False
    return True


def ask(
    place: str | None, daemon: str, request: Request, timeout_s: float = 2 * ERRAND_S, client: Client | None = None
) -> dict[str, Any]:
    """Send a request to a daemon, "node" or "collector", at `place` or its default socket; return its reply.

    Raises:
        Unreachable: no daemon is there, this user may not connect, or it did not reply.
        Refused: it rejected the request.
        WireError: the reply is invalid.
        ConfigError: there can be no socket of that name.
    """
    connected = _connect(place, daemon, client)
    try:
        answer = decode_answer(connected.ask(encode(request), timeout_s))
    finally:
        connected.close()
    error = answer.get("error")
    if error is not None:
        raise Refused(str(error))
    return answer


def _connect(place: str | None, daemon: str, client: Client | None) -> ControlClient:
    if place is not None:
        return ControlClient(uri_of(place), client)
    denied: Unreachable | None = None
    for path in (paths := default_paths(daemon)):
        try:
            return ControlClient(uri_of(path))
        except Unreachable as err:
            if err.why != "absent":
                denied = denied or err
    why = f"`colmet doctor --{daemon}` says why"
    raise denied or Unreachable(f"no colmet-{daemon} listens on {' or '.join(paths)}; {why}", "absent")
