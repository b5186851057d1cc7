"""The options `--http-...` of the collector, and `colmet-web` as its child: the same program as the unit of that name.

It is a convenience for small sites: the child gets the options of the collector's store, reads the feed, and is
restarted after its end.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from colmet.common.config import cli
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import ConfigError
from colmet.common.host.command import python_command, python_environment

log = logging.getLogger(__name__)

# PR_SET_PDEATHSIG: it ends with a collector that is killed.
START = (
    f"import ctypes; ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})\n"
    "from colmet.web.main import main; sys.exit(main())"
)
CHECK_S = 60.0
FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0  # before a restart
STEADY_S = 60.0  # a process with this running time has not failed at its start
END_S = 8.0  # for a regular end of the process
LOOK_S = 0.5
_STORE = (
    *("hdf5_filepath", "archive", "archive_batch", "no_shared_archive", "journal_dir", "elastic_host"),
    *("elastic_index_prefix", "http_credentials", "no_check_certificates", "elastic_api_key_file", "elastic_ca_file"),
    *("elastic_client_cert", "elastic_client_key"),
)
_PASSED = ("listen", "users", "leaders", "config")


def add_options(parser: cli.Options) -> None:
    """Declare the options of the child."""
    parser.add_argument(
        "--http-listen",
        metavar="[HOST:]PORT|unix:PATH",
        help="start colmet-web, which serves jobs and nodes as JSON and as a page; at http://HOST:PORT/; a port alone: "
        "for this machine only; unix:PATH: for a proxy (default: off; it is a service of its own, too)",
    )
    parser.add_argument(
        "--http-users",
        metavar="FILE",
        help="admit the users in this file (see `colmet access`); --http-listen requires this, --http-open or "
        "--http-config",
    )
    parser.add_argument("--http-open", action="store_true", help="show everything to everyone, without a login")
    parser.add_argument(
        "--http-leaders",
        metavar="FILE",
        help=cli.Rare("show the archived jobs of a project to its leaders, too: lines of PROJECT: USER, USER"),
    )
    parser.add_argument("--http-config", metavar="FILE", help=cli.Rare("the other options of colmet-web (TOML)"))
    parser.require("--http-listen", "--http-users", "--http-open", "--http-leaders", "--http-config")


def arguments_of(options: argparse.Namespace) -> list[str]:
    """Return the child's command line, without the feed and the store."""
    given = [(f"--{name}", getattr(options, f"http_{name}")) for name in _PASSED]
    flags = [*(["--open"] if options.http_open else []), *["-v"] * options.verbose]
    return [*[f"{option}={value}" for option, value in given if value], *flags]


def store_text(options: argparse.Namespace) -> str:
    """Return the options that name the store and the archive, as the collector's TOML file has them."""
    values = {name.replace("_", "-"): getattr(options, name, None) for name in _STORE}
    known = {name: value for name, value in values.items() if value not in (None, False, [])}
    return "".join([f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in known.items()])


def check(options: argparse.Namespace) -> None:
    """Check that colmet-web can work with these options; ConfigError has its own reason."""
    if options.http_listen is None:
        return
    command = python_command(START, *arguments_of(options), "--collector-config=", "--check-config")
    try:
        done = subprocess.run(
            command, env=python_environment(), capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise ConfigError(f"--http-listen: colmet-web cannot be started: {err}") from err
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise ConfigError(f"colmet-web: {lines[-1].partition(': ')[2] or lines[-1]}")


class WebChild:
    """The child process: a thread starts it, and restarts it after its end. Its log is the collector's.

    Args:
        arguments: of its command line.
        store: text of a file with the options of the store; see `store_text`.
        command: to start it, for tests.
    """

    def __init__(self, arguments: Sequence[str], store: str, command: Sequence[str] = python_command(START)) -> None:
        self._command = [*command, *arguments]
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        self._why = ""
        self._restarts = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Return whether the process runs, and its restarts."""
        return {"running": int(self._process is not None), "restarts": self._restarts}

    @property
    def failure(self) -> str:
        """Why the process does not run, or has just ended; "" if it works."""
        is_steady = self._process is not None and time.monotonic() - self._began >= STEADY_S
        return "" if is_steady else self._why

    def _run(self) -> None:
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        with tempfile.TemporaryFile() as store:
            store.write(self._store.encode())
            store.flush()
            while not self._stopping.is_set():
                self._began = time.monotonic()
                self._why = self._serve(store.fileno())
                if self._stopping.is_set():
                    return
                if time.monotonic() - self._began >= STEADY_S:
                    backoff.reset()
                delay_s = backoff.fail()
                self._restarts += 1
                if powers_of_ten(backoff.failures):
                    log.error(
                        "colmet-web ended, it is restarted failures=%d delay_s=%g: %s",
                        *(backoff.failures, delay_s, self._why),
                    )
                self._stopping.wait(delay_s)

    def _serve(self, store: int) -> str:
        """Run the process to its end; return the cause of the end."""
        try:
            process = subprocess.Popen(
                [*self._command, f"--collector-config=/dev/fd/{store}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the collector's own output may be for rows
                pass_fds=[store],
                env=python_environment(),
            )
        except OSError as err:
            return f"cannot start {self._command[0]}: {err.strerror}"
        self._process = process
        try:
            while process.poll() is None and not self._stopping.wait(LOOK_S):
                pass
            process.terminate()
            status = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        finally:
            self._process = None
        return f"{signal.Signals(-status).name if status < 0 else f'status {status}'}; its reason is in the log"

    def close(self) -> None:
        """End the process; idempotent."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * END_S)
