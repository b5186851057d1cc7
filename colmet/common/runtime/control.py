"""The control socket of a daemon: a thread reads requests, and handlers answer them.

A request names a command; its handler gets the request and gives the answer. What only the main thread may do is handed
to it as an errand. A request that cannot be answered gets `{"error": why}`, is counted, and ends nothing.
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
from colmet.common.runtime.keys import KnownKeys, read_pair, read_public
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
from colmet.common.transport.curve import check_pair
from colmet.common.wire.control import MAX_ANSWER_BYTES, Request, decode_answer, decode_request, encode

log = logging.getLogger(__name__)

DIRECTORY = "/run/colmet"
RUST_COMMAND = "configure"  # what a request without a command asks for: the Rust node has no other
ERRAND_S = 5.0  # for the main thread to do what it is asked to
# Bounds on clients that ask without a pause: a tenth of a CPU, and 100 answers a second.
REST_SHARE = 9.0
MIN_REST_S = 0.01

Handler = Callable[[Request], dict[str, Any]]
T = TypeVar("T")


def add_options(parser: cli.Options, daemon: str) -> None:
    """Declare --control-socket and --control-curve-keys.

    Args:
        parser: of the daemon.
        daemon: "node" or "collector".
    """
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
    """Declare --control-socket, --curve-secret and --curve-daemon, of a command that asks."""
    parser.add_argument(
        "--control-socket", metavar="PATH", help=cli.Rare("socket of the daemon (default: that of its own default)")
    )
    parser.add_argument(
        "--curve-secret", metavar="FILE", help=cli.Rare("your key pair, for --control-socket tcp://HOST:PORT")
    )
    parser.add_argument("--curve-daemon", metavar="FILE", help=cli.Rare("public key of the daemon, for the same"))


def client_of(options: argparse.Namespace) -> Client | None:
    """Return the keys that the command line of a command names; None without.

    Raises:
        ConfigError: one of them is missing, or a file cannot be used.
    """
    secret, daemon = options.curve_secret, options.curve_daemon
    if not secret and not daemon:
        return None
    if not secret or not daemon:
        raise ConfigError(f"{'--curve-daemon' if secret else '--curve-secret'} is missing: TCP requires both keys")
    pair = check_pair(read_pair(secret, "--curve-secret"), f"--curve-secret {secret}")
    return Client(pair, read_public(daemon, "--curve-daemon"))


def check(options: argparse.Namespace) -> Keys | None:
    """Check that the configured control socket can be served; return the keys of `read_keys`.

    Raises:
        ConfigError: it could not; or as `read_keys`.
    """
    keys = read_keys(options)
    if options.control_socket:
        check_control(uri_of(options.control_socket), keys is not None)
    return keys


def read_keys(options: argparse.Namespace, uid: int | None = None) -> Keys | None:
    """Return the keys of the clients over TCP, as the command line of a daemon names them; None without.

    Args:
        options: of `add_options`, and with --zeromq-curve-secret.
        uid: of the daemon's user; this process's own by default.

    Raises:
        ConfigError: one of the options is missing, or what it names cannot be used.
    """
    keys, secret, place = options.control_curve_keys, options.zeromq_curve_secret, options.control_socket
    if not keys:
        return None
    if not secret or not (place or "").startswith("tcp:"):
        missing = "--control-socket tcp://HOST:PORT" if secret else "--zeromq-curve-secret"
        raise ConfigError(f"{missing} is missing: --control-curve-keys is for clients over TCP")
    pair = check_pair(read_pair(secret, "--zeromq-curve-secret", uid), f"--zeromq-curve-secret {secret}")
    return Keys(pair, KnownKeys(keys, "--control-curve-keys"))


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
    """Calls that other threads have the main thread make. A context manager: at its end all that wait are refused.

    Attributes:
        fd: readable when there is something to do.
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
        """Call a function in the main thread; return what it returns, raise what it raises.

        Raises:
            Refused: it is not done within the time; where it has not begun by then, it will not be.
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
        """Make the calls that wait, in the main thread. It raises nothing."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._wakeup.clear()
        for function, future in waiting:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as err:  # noqa: BLE001 - raised where it was asked for
                    future.set_exception(err)


class Control:
    """Answers requests: of the control socket, and those that other parts of the daemon have received.

    Args:
        handlers: by command. They are called by the control socket's thread, or by the caller of `answer`, one at a
            time each; they raise `Refused` or another `ColmetError` to say why not.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = dict(handlers)
        self._requests = self._refused = self._failures = 0
        self._server: ControlServer | None = None
        self._thread: threading.Thread | None = None

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, of refused ones, and of those that met a defect."""
        return {"requests": self._requests, "refused": self._refused, "failures": self._failures}

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request, both as bytes; an error is an answer, too."""
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
        except Exception as err:  # a defect of ours here must not end the daemon's other work
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
        """Start the thread that answers the requests of this socket, until `close`."""
        self._server = server
        self._thread = threading.Thread(target=self._run, args=(server,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; also twice, and without a start. It waits 10 s for a handler that works."""
        if self._server is not None and self._thread is not None:
            self._server.wake()
            self._thread.join(2 * ERRAND_S)
            self._server = self._thread = None

    def _run(self, server: ControlServer) -> None:
        """Answer requests, in the thread."""
        while (asked := server.receive()) is not None:
            began = time.thread_time()
            server.send(asked.envelope, self.answer(asked.message))
            time.sleep(max(MIN_REST_S, REST_SHARE * (time.thread_time() - began)))
        server.close()


def listen(place: str | None, daemon: str, control: Control, keys: Keys | None = None) -> None:
    """Serve the control socket of the command line, or the default one where that is possible.

    Args:
        place: --control-socket.
        daemon: "node" or "collector".
        control: what answers.
        keys: for TCP, of `check`.

    Raises:
        ConfigError: the socket of the command line cannot be opened.
    """
    if place is not None:
        if place:
            control.start(serve_control(uri_of(place), Authenticator(*keys) if keys is not None else None))
        return
    paths = default_paths(daemon)
    why = next(
        (f"another daemon listens on {path}; stop it, or give another path" for path in paths if _is_in_use(path)), ""
    )
    for path in () if why else paths:
        try:
            control.start(serve_control(uri_of(path)))
        except ConfigError as err:
            why = str(err)
        else:
            return
    log.warning("no control socket, `colmet status` cannot ask this daemon: %s", why)


def _is_in_use(path: str) -> bool:
    try:
        knock(path)
    except Unreachable:
        return False
    return True


def ask(
    place: str | None,
    daemon: str,
    request: Request,
    timeout_s: float = 2 * ERRAND_S,
    client: Client | None = None,
) -> dict[str, Any]:
    """Send a request to a daemon, and return its answer.

    Args:
        place: of its socket, as --control-socket; None for the default one.
        daemon: "node" or "collector".
        request: what is asked.
        timeout_s: to wait for the answer.
        client: keys, for TCP.

    Raises:
        Unreachable: no daemon is there, this user may not ask it, or it did not answer.
        Refused: it said no.
        WireError: the answer is none.
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
    raise denied or Unreachable(f"no colmet-{daemon} listens on {' or '.join(paths)}; is it running?", "absent")
