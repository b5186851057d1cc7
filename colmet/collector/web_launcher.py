"""Launcher of the JSON interface, a process of its own (`colmet.web`), and the feed of all messages to it.

The process is a child of the collector. With the units of the packages it is a service with a user of its own, started
by systemd when the collector connects to its socket. It is fed through a socket: each message as received, after its
length and its sender. Nothing here waits for the process: its unread messages stay in memory up to a bound, and are
dropped beyond. It sends back counters of its own drops, a line of JSON every few seconds.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import glob
import grp
import ipaddress
import json
import logging
import math
import os
import pwd
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Union

from colmet.common.errors import ConfigError
from colmet.common.live.summary import Heard
from colmet.common.runtime import cli, logs
from colmet.common.runtime.configuration import require
from colmet.common.runtime.dependencies import how_to_install
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.metrics_http import ListenAddress, cannot_listen, listen_address, resolve
from colmet.common.runtime.pacing import Backoff
from colmet.common.runtime.readable import readable

log = logging.getLogger(__name__)

Proxy = Union[ipaddress.IPv4Network, ipaddress.IPv6Network, int]

# -- shared with the process --

FEED = "COLMET_HTTP_FEED"  # the environment variable with the number of the descriptor
SOCKET = "COLMET_WEB_SOCKET"  # the environment variable with the path of the service's socket
MAX_ARGUMENTS_BYTES = 1 << 20
LENGTH = struct.Struct("<I")  # in front of each frame
NOTE = 1 << 31  # added to the length of a frame that is JSON about the feed, not a message
MAX_SENDER_BYTES = 512  # in front of a message, with the zero byte between them
# Counters sent back by the process: tables and hosts without room, samples of senders beyond their share, jobs beyond
# the bound.
DROPPED = ("tables_left_out", "samples_over_share", "jobs_forgotten")

# Not by -m: it would search the current directory first, possibly another user's.
START = "import sys; sys.path[:] = filter(None, sys.path); from colmet.web.__main__ import main; sys.exit(main())"
ADMIN_GROUP = "admin"
LIBRARIES = ("fastapi", "uvicorn")

MAX_WAITING_BYTES = 32 << 20
PIECE_BYTES = 256 << 10  # sent at once
RETRY_S = 0.05  # between two attempts to send waiting data
# files read by the process, apart from stored data
_READ = (
    *("config", "http_users", "http_tls_cert", "http_tls_key", "http_credentials"),
    *("elastic_api_key_file", "elastic_ca_file", "elastic_client_cert", "elastic_client_key"),
)
STUCK_S = 60.0  # a process that reads nothing for this long is killed
FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0  # before a restart
STEADY_S = 60.0  # a process with this running time has not failed at its start
END_S = 5.0  # for a regular end of the process
GONE_S = 5.0  # after killing it: a hanging disk may hold it for ever
LOOK_S = 0.5  # between two checks of the process
MAX_LINE_BYTES = 64 << 10
MAX_PATH_BYTES = 107  # of a Unix socket (sun_path, with its end)
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_LOGGED = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) \S+: ")


class UnixAddress(NamedTuple):
    """The path of a Unix socket to listen on."""

    path: str


def add_options(parser: cli.Options) -> None:
    """Declare the options for the JSON interface's address, users and content."""
    parser.add_argument(
        "--http-listen",
        metavar="[HOST:]PORT|unix:PATH",
        type=http_address,
        help="serve jobs and nodes as JSON and as a page; at http://HOST:PORT/; a port alone: for this machine only; "
        "unix:PATH: for a proxy (default: off)",
    )
    parser.add_argument(
        "--http-users",
        metavar="FILE",
        help="let in the users in this file, which `colmet access` writes; --http-listen requires this or --http-open",
    )
    parser.add_argument("--http-open", action="store_true", help="show everything to everyone, without a login")
    parser.add_argument(
        "--http-user-header",
        metavar="NAME",
        type=header_name,
        help=cli.Rare(
            "let in the user that the proxy names in this header, such as X-Remote-User; for --http-listen unix:PATH"
        ),
    )
    parser.add_argument(
        "--http-admin-group",
        metavar="NAME",
        default=ADMIN_GROUP,
        help=cli.Rare(
            "show all jobs to members of this group, in --http-users or on this machine; others see their own "
            "(default: %(default)s)"
        ),
    )
    parser.add_argument("--http-tls-cert", metavar="FILE", help="serve https with this certificate chain (PEM)")
    parser.add_argument("--http-tls-key", metavar="FILE", help=cli.Rare("the key of --http-tls-cert (PEM)"))
    parser.add_argument(
        "--http-trusted-proxy",
        metavar="WHO",
        action="append",
        type=trusted_proxy,
        help=cli.Rare(
            "believe the X-Forwarded-For of this proxy, to distinguish its clients: an address, a network, or, "
            "of a proxy on this machine, the user that it runs as"
        ),
    )
    parser.add_argument(
        "--http-memory",
        metavar="SIZE",
        type=cli.size_bytes,
        default=256 << 20,
        help=cli.Rare("keep recent rows for charts in at most this much memory (default: 256M)"),
    )
    parser.add_argument(
        "--http-memory-time",
        metavar="S",
        type=cli.positive_seconds,
        default=3600.0,
        help=cli.Rare("keep them for S seconds (default: %(default)g)"),
    )
    parser.add_argument(
        "--gridengine",
        action="store_true",
        help="serve Grid Engine's memory by host and job; from qhost and qstat, at /qhost and /qstat, for `colmet mem` "
        "and qmemview (default: what the nodes sent)",
    )
    parser.add_argument(
        "--gridengine-period",
        metavar="S",
        type=cli.positive_seconds,
        default=10.0,
        help=cli.Rare("run these commands every S seconds (default: %(default)g)"),
    )
    parser.add_argument(
        "--gridengine-xml",
        metavar="DIR",
        help=cli.Rare("read DIR/qhost_qmem.xml and DIR/qstat_qmem.xml instead of running the commands"),
    )
    parser.add_argument(
        "--gridengine-encoding",
        metavar="NAME",
        default="utf-8",
        help=cli.Rare("encoding of their output or of these files, such as iso-8859-15 (default: %(default)s)"),
    )
    require(parser, "--http-listen", "--http-", "--gridengine", "--gridengine-")


def http_address(text: str) -> ListenAddress | UnixAddress:
    """Return the address of --http-listen.

    Raises:
        argparse.ArgumentTypeError: it is neither [HOST:]PORT nor unix:PATH.
    """
    kind, colon, path = text.partition(":")
    if kind != "unix" or not colon:
        return listen_address(text)
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200}: after unix: give an absolute path of at most {MAX_PATH_BYTES} bytes"
        )
    return UnixAddress(path)


def header_name(text: str) -> str:
    """Return the name of a header.

    Raises:
        argparse.ArgumentTypeError: it is not one, or clients set this header themselves.
    """
    if not _HEADER_NAME.fullmatch(text) or text.lower() in ("authorization", "host", "x-forwarded-for"):
        raise argparse.ArgumentTypeError(f"{text!r:.80}: give the name of a header of its own, such as X-Remote-User")
    return text


def trusted_proxy(text: str) -> Proxy:
    """Return the proxy of --http-trusted-proxy: a network, or the number of a user of this machine.

    Raises:
        argparse.ArgumentTypeError: it is neither, or every user of this machine has this address.
    """
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        try:
            return pwd.getpwnam(text).pw_uid
        except KeyError:
            raise argparse.ArgumentTypeError("give an address, a network or a user of this machine") from None
    if found.is_loopback:
        raise argparse.ArgumentTypeError(
            "every user of this machine has this address; give the user that the proxy runs as, such as www-data"
        )
    return found


def service_of(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the socket of the JSON interface's service; "" if the interface is a child process.

    The service has a user of its own, a member of this process's group: it can only use files readable by this group. A
    warning names an unreadable file.
    """
    path = environment.get(SOCKET, "")
    if not path or options.http_listen is None or not os.path.exists(path):
        return ""
    for file in filter(None, [getattr(options, option, None) for option in _READ]):
        if not _is_for_group(file):
            log.warning(
                "JSON interface runs as the collector's user, which can write the store: the group of the collector "
                "cannot read %s; chgrp colmet %s; chmod 640 %s",
                *(file, file, file),
            )
            return ""
    return path


def warn_of_readers(options: argparse.Namespace) -> None:
    """Warn if users can see rows of others without the interface."""
    if options.http_listen is None or options.http_open:
        return
    prefix = getattr(options, "hdf5_filepath", None)
    paths = sorted(glob.glob(f"{glob.escape(prefix)}*.hdf5"))[-1:] if prefix else []
    for path in paths:
        if _is_for_all(path):
            log.warning(
                "all users of this machine can read the stored files without a login: chmod o-r %s; set UMask=0027 for "
                "the collector",
                path,
            )
    with contextlib.suppress(KeyError):
        members = grp.getgrnam(options.http_admin_group).gr_mem
        if options.http_admin_group == ADMIN_GROUP and members:
            log.warning(
                "members of this machine's group %s see everybody's jobs: group=%s members=%d; name another group with "
                "--http-admin-group if they should not",
                *(ADMIN_GROUP, ADMIN_GROUP, len(members)),
            )


def _is_for_all(path: str) -> bool:
    """Return whether every user of this machine can read a file, through all directories above it."""
    try:
        if not os.stat(path).st_mode & 0o004:
            return False
        above = os.path.dirname(os.path.realpath(path))
        while os.stat(above).st_mode & 0o001:
            if above == "/":
                return True
            above = os.path.dirname(above)
    except OSError:
        pass
    return False


def _is_for_group(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return bool(status.st_mode & 0o004 or (status.st_gid == os.getegid() and status.st_mode & 0o040))


def check(options: argparse.Namespace) -> None:
    """Check that the JSON interface can work with these options.

    Raises:
        ConfigError: it cannot; the text names the option.
    """
    if options.http_listen is None:
        return
    is_unix = isinstance(options.http_listen, UnixAddress)
    if options.http_user_header is not None and not is_unix:
        raise ConfigError(
            "--http-user-header: every client of a TCP port could set this header; give --http-listen unix:PATH, which "
            "the proxy alone can reach"
        )
    if sum(map(bool, (options.http_users, options.http_open, options.http_user_header))) != 1:
        raise ConfigError(
            "--http-listen: give either --http-users FILE, which `colmet access` writes, or --http-open, which shows "
            "everything to everyone, or, behind a proxy, --http-user-header NAME"
        )
    if is_unix and options.http_tls_cert:
        raise ConfigError("--http-tls-cert has no effect on a Unix socket; the proxy has the certificate")
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--http-listen requires the Python modules {' and '.join(missing)}: {how_to_install(*missing)}"
        )
    for name in ("http_users", "http_tls_cert", "http_tls_key"):
        path = getattr(options, name)
        if path is not None:
            _check_readable(f"--{name.replace('_', '-')}", path)
    if (options.http_tls_cert is None) != (options.http_tls_key is None):
        raise ConfigError("--http-tls-cert and --http-tls-key: give both, or none of them")
    if options.http_tls_cert is not None:
        check_certificate(options.http_tls_cert, options.http_tls_key)
    if options.gridengine_xml is not None and not os.path.isdir(options.gridengine_xml):
        raise ConfigError(f"--gridengine-xml {options.gridengine_xml}: not a directory")
    _check_encoding(options.gridengine_encoding)
    if not is_unix:
        resolve(options.http_listen, "--http-listen")


def _check_readable(option: str, path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except (OSError, ValueError) as err:
        what = f"{option} {path!r}: {getattr(err, 'strerror', None) or err}"
        raise ConfigError(what + ("; 'colmet access' makes it" if option == "--http-users" else "")) from err
    if not os.path.isfile(path):
        raise ConfigError(f"{option} {path!r}: not a regular file")


def _check_encoding(name: str) -> None:
    try:
        codecs.lookup(name)
        b"a".decode(name)  # some encodings are not of text
    except (LookupError, ValueError, TypeError) as err:
        raise ConfigError(
            f"--gridengine-encoding {name!r}: not the name of an encoding, such as utf-8 or iso-8859-15"
        ) from err


def check_certificate(cert: str, key: str) -> None:
    """Check that a certificate chain and its key match, and can be used.

    Raises:
        ConfigError: they do not.
    """
    import ssl  # some megabytes of OpenSSL

    try:
        # a key with a passphrase is an error, as a daemon cannot prompt for it
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"--http-tls-cert {cert} and --http-tls-key {key}: {err}; give a certificate and its key without a "
            "passphrase, as PEM"
        ) from err


def check_address(listen: ListenAddress | UnixAddress) -> None:
    """Check that the address can be bound; the listening process binds it itself.

    Raises:
        ConfigError: it cannot.
    """
    if isinstance(listen, UnixAddress):
        directory = os.path.dirname(listen.path)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--http-listen unix:{listen.path}: cannot write the directory {directory}; make it, for the "
                "collector's user"
            )
        return
    family, address = resolve(listen, "--http-listen")
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as err:
        raise cannot_listen(listen, "--http-listen", err) from err


class WebLauncher:
    """Launcher of the process: starts it, watches it, and sends it all messages.

    `put`, `flush` and `delay_s` are for the main thread and never wait. A thread of its own starts the process, passes
    on its log, and restarts it after its end.

    Args:
        arguments: of the collector's command line, also read by the process.
        heard: the sending nodes, by name; for any thread.
        command: command to start, for tests; that of this Python by default.
        monotonic: seconds.
        service: path of the socket of a service to connect to; "" starts a child.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        heard: Callable[[], Mapping[str, Heard]] = dict,
        command: Sequence[str] = (sys.executable, "-c", START),
        monotonic: Callable[[], float] = time.monotonic,
        service: str = "",
    ) -> None:
        self._arguments = list(arguments)
        self._command = [*command, *arguments]
        self._service = service
        self._heard = heard
        self._monotonic = monotonic
        self._lock = threading.Lock()  # of the following attributes; never held for long
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: deque[tuple[bytes, bytes]] = deque()  # senders, messages
        self._heard_back = b""  # the beginning of a line
        self._dropped = dict.fromkeys(DROPPED, 0)
        self._rest = memoryview(b"")  # of a partly sent piece
        self._waiting = 0
        self._moved_at: float | None = None  # time of the last progress, or None if nothing waits
        self._told = 0
        self._sent = self._left_out = self._starts = self._restarts = self._stuck = 0
        self._left_out_here = 0  # by the current process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Return the state of the process, its restarts, and the counters of its feed."""
        return {
            "running": int(self._socket is not None),
            "restarts": self._restarts,
            "stuck": self._stuck,
            "sent": self._sent,
            "left_out": self._left_out,
            "waiting_bytes": self._waiting,
            **self._dropped,
        }

    @property
    def restarts(self) -> int:
        """Return the number of restarts of the process."""
        return self._restarts

    # -- in the main thread --

    def put(self, message: bytes, sender: str = "") -> None:
        """Queue a message of a sender, for `flush` to send."""
        head = sender.encode()[: MAX_SENDER_BYTES - 1] + b"\0"
        with self._lock:
            if self._socket is not None and self._waiting + len(message) <= MAX_WAITING_BYTES:
                self._queue.append((head, message))
                self._waiting += LENGTH.size + len(head) + len(message)
                return
        self._leave_out()

    def flush(self) -> None:
        """Send queued messages as far as the socket has room."""
        if not self._waiting:
            return
        with self._lock:
            if self._socket is None:
                self._clear()
                return
            now = self._monotonic()
            if self._moved_at is None:
                self._moved_at = now
            try:
                while self._waiting:
                    if not self._rest:
                        self._rest = memoryview(self._next_piece())
                    done = self._socket.send(self._rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    self._rest = self._rest[done:]
                    self._waiting -= done
                    self._moved_at = now
                self._moved_at = None
                if self._told != self._left_out_here:
                    self._put_note(_note({"left_out": self._left_out_here}))
                    self._told = self._left_out_here
            except BlockingIOError:
                if self._moved_at is not None and now - self._moved_at > STUCK_S:
                    self._end_stuck()
            except OSError:  # the process has ended; the thread will notice
                self._clear()

    def delay_s(self) -> float:
        """Return the seconds until the next call of `flush`."""
        return RETRY_S if self._waiting else math.inf

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._socket is None:  # logged elsewhere
            return
        self._left_out_here += 1
        if powers_of_ten(self._left_out_here):
            log.warning("JSON interface is behind, messages dropped left_out=%d", self._left_out_here)

    # -- with the lock --

    def _next_piece(self) -> bytes:
        parts = []
        size = 0
        while self._queue and size < PIECE_BYTES:
            head, message = self._queue.popleft()
            parts += [LENGTH.pack(len(head) + len(message)), head, message]
            size += len(message)
            self._sent += 1
        return b"".join(parts)

    def _put_note(self, frame: bytes) -> None:
        """Put a note in front of the waiting messages."""
        self._rest = memoryview(bytes(self._rest) + frame)
        self._waiting += len(frame)

    def _clear(self) -> None:
        self._queue.clear()
        self._rest = memoryview(b"")
        self._waiting = 0
        self._moved_at = None

    def _end_stuck(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._stuck += 1
            log.error("JSON interface has read nothing for %g s, killed stuck=%d", STUCK_S, self._stuck)
            self._process.kill()
        elif self._process is None and self._socket is not None:
            self._stuck += 1
            log.error("JSON interface has read nothing for %g s, disconnected stuck=%d", STUCK_S, self._stuck)
            self._hang_up(self._socket)
        self._clear()

    # -- the thread --

    def _run(self) -> None:
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S, self._monotonic)
        while True:
            began = self._monotonic()
            why = self._live()
            if self._stopping.is_set():
                return
            if self._monotonic() - began >= STEADY_S:
                backoff.reset()
            delay_s, failures = backoff.fail(), backoff.failures
            self._restarts += 1
            if powers_of_ten(failures):
                log.error(
                    "JSON interface ended, tried again failures=%d delay_s=%g: %s", backoff.failures, delay_s, why
                )
            if self._stopping.wait(delay_s):
                return

    def _live(self) -> str:
        """Start the process, wait for its end, and return the cause of its end."""
        return self._connect() if self._service else self._start_child()

    def _connect(self) -> str:
        """Connect to the service, for systemd to start it; return the cause of its end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
            ours.settimeout(END_S)
            try:
                ours.connect(self._service)
                ours.sendall(_note({"arguments": self._arguments, "directory": os.getcwd()}))
            except OSError as err:
                why = err.strerror or err
                return f"cannot connect to {self._service}: {why}; see `systemctl status colmet-web.socket`"
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self._starts += 1
            self._begin(ours, None)
            try:
                self._await_end(ours)
            finally:
                with self._lock:
                    self._socket = None
                    self._clear()
        return "its service has ended; see `journalctl -u colmet-web`"

    def _await_end(self, ours: socket.socket) -> None:
        """Wait for the service to disconnect; at the collector's end only for `END_S`."""
        until = math.inf
        while time.monotonic() < until:
            if readable([ours.fileno()], LOOK_S) and not self._hear(ours):
                return
            if self._stopping.is_set() and until == math.inf:
                until = time.monotonic() + END_S

    def _hear(self, ours: socket.socket) -> bool:
        """Read the counters sent back by the process; return False if it has disconnected."""
        try:
            part = ours.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._heard_back = (self._heard_back[-4096:] + part).split(b"\n")
        for line in lines[-1:]:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                said = json.loads(line)
                self._dropped = {name: max(0, int(said[name])) for name in DROPPED}
        return bool(part)

    def _start_child(self) -> str:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            environment = {
                **os.environ,
                FEED: str(theirs.fileno()),
                "PYTHONPATH": os.pathsep.join([entry or os.getcwd() for entry in sys.path]),
            }
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # the collector's own output may be for rows
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                )
            except OSError as err:
                return f"cannot start {self._command[0]}: {err.strerror}"
            with process:
                theirs.close()
                self._starts += 1
                self._begin(ours, process)
                try:
                    said = self._attend(process, ours)
                finally:
                    process.kill()
                    with self._lock:
                        self._socket = self._process = None
                        self._clear()
                status = process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"{said} ({how})" if said else how

    def _begin(self, ours: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        """Send messages there from now on, after a note of the nodes heard so far."""
        note = _note({"heard": {name: [one.seen_ns, one.lag_ns] for name, one in self._heard().items()}})
        with self._lock:
            self._clear()
            self._left_out_here = self._told = 0
            self._heard_back = b""
            self._socket, self._process = ours, process
            self._put_note(note)
        self.flush()  # the main thread may wait for the next message

    def _attend(self, process: subprocess.Popen[bytes], ours: socket.socket) -> str:
        """Pass on the log of the process until its end; return its last error."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        lines = _LineRelay()
        until = math.inf
        while True:
            is_over = process.poll() is not None  # its output is complete by now
            came = bool(readable([output], 0 if is_over else LOOK_S))
            part = os.read(output, MAX_LINE_BYTES) if came else b""
            self._hear(ours)
            if part:
                lines.add(part)
            elif is_over:
                lines.end()
                return lines.error
            elif came:  # it has closed its output, and is about to end
                self._stopping.wait(0.05)
            if self._stopping.is_set() and until == math.inf:
                until = time.monotonic() + END_S
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_RDWR)
            if time.monotonic() >= until:
                process.kill()

    def close(self) -> None:
        """End the process; idempotent."""
        self._stopping.set()
        with self._lock:
            if self._socket is not None:
                self._hang_up(self._socket)
        if self._thread.ident is not None:
            self._thread.join(END_S + GONE_S)
            if self._thread.is_alive():
                log.info("JSON interface does not end, left behind")

    def _hang_up(self, ours: socket.socket) -> None:
        """End the stream; for a service only the writing side, as reading detects its end."""
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR if self._service else socket.SHUT_RDWR)


def _note(content: Mapping[str, object]) -> bytes:
    """Return a frame about the feed itself."""
    packed = json.dumps(content).encode()
    return LENGTH.pack(len(packed) | NOTE) + packed


class _LineRelay:
    """Relay of the process's output, line by line.

    Attributes:
        error: the last line with an error, without time and module; else the last line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._last = self._told = ""

    @property
    def error(self) -> str:
        return self._told or self._last

    def add(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """Pass on the rest, a line without its end."""
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        with contextlib.suppress(OSError):
            content = logs.passed_on(text).encode()
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, content + b"\n")
        found = _LOGGED.match(text)
        if found:
            self._told = text[found.end() :][:300]
        elif text:
            self._last = text[:300]
