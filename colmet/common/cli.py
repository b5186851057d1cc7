"""What the command lines of both daemons share: option types, logging, signals, exit status."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colmet import __version__
from colmet.common import configuration, unit
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.readable import readable
from colmet.common.settings import Settings, verbosity

log = logging.getLogger(__name__)

EXIT_CONFIG = 2

# What options are added to: a parser, or a group of one.
Options = argparse._ActionsContainer


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that answers an error with one line, which names the way to the help."""

    def error(self, message: str) -> Any:
        """Exit with status 2 and one line."""
        self.exit(EXIT_CONFIG, f"{self.prog}: error: {message} (try {self.prog} --help)\n")


def positive_seconds(text: str) -> float:
    """A period: a finite number of seconds, at least 0.01."""
    value = _float(text)
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """An option type: a whole number from `low` to `high`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return convert


def size_bytes(text: str) -> int:
    """An option type: a size such as 500M or 4G (powers of 1024), at least 1 MiB; in bytes."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.strip().upper(), re.ASCII)
    size = int(match[1]) << (10 * " KMGT".index(match[2] or " ")) if match else 0
    if not 1 << 20 <= size < 1 << 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1M, such as 500M or 4G")
    return size


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options that both daemons have."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    configuration.add_options(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="say more: once for starts, stops and jobs (INFO), twice or more for every tick (DEBUG)",
    )
    parser.add_argument(
        "--zeromq-hwm",
        metavar="N",
        type=whole_number(1),
        default=1000,
        help="messages that may wait in a queue between node and collector (default: %(default)s)",
    )
    parser.add_argument(
        "--zeromq-linger",
        metavar="MS",
        type=whole_number(-1),
        default=0,
        help="how long to go on sending queued messages at exit, in ms; -1 is for ever (default: %(default)s)",
    )


def set_up_logging(verbose: int) -> None:
    """Log to stderr. `-v` once is INFO, twice or more DEBUG, none WARNING, as in Colmet 0.6 (30 - 10 x count)."""
    logging.basicConfig(
        level=verbosity(verbose), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def load(names: Mapping[str, str]) -> list[Any]:
    """The classes that a table of backends names as ``module:Class``."""
    classes = []
    for target in names.values():
        module, _, name = target.partition(":")
        classes.append(getattr(importlib.import_module(module), name))
    return classes


class Signals:
    """Signals as data: a descriptor that becomes readable, and the set of those that came.

    Use in the main thread, as a context manager; the former handlers are put back at the end.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self.pending: set[signal.Signals] = set()
        self._wanted = tuple(wanted)
        self._former: dict[signal.Signals, Any] = {}
        self._former_fd = -1
        self.fd = self._write_fd = -1

    def __enter__(self) -> Signals:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in self._wanted:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self.fd)
        os.close(self._write_fd)

    def _note(self, number: int, _frame: object) -> None:
        self.pending.add(signal.Signals(number))

    def stop_wanted(self) -> bool:
        """Whether SIGTERM or SIGINT came."""
        return bool(self.pending & {signal.SIGTERM, signal.SIGINT})

    def take(self, number: signal.Signals) -> bool:
        """Whether this signal came since the last call."""
        came = number in self.pending
        self.pending.discard(number)
        return came

    def drain(self) -> None:
        """Make the descriptor unreadable again. The next wait sees every signal that comes after this."""
        while readable([self.fd], 0):
            os.read(self.fd, 4096)


def raise_open_file_limit(wanted: int = 65536) -> int:
    """Raise this process's soft limit on open files towards `wanted`, as far as the hard limit lets; the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def tune_garbage_collector() -> None:
    """Have Python look for cycles seldom: what daemons handle by the thousands is in none.

    With the default thresholds half of the collector's CPU time from bytes to HDF5 goes into looking again and again.
    """
    gc.collect()
    gc.freeze()  # modules and code, which stay
    gc.set_threshold(50_000, 20, 100)


def run_daemon(
    names: Mapping[str, str],
    build_parser: Callable[[Sequence[type[Any]]], argparse.ArgumentParser],
    check: Callable[[argparse.Namespace, Sequence[type[Any]]], None],
    run: Callable[[argparse.Namespace, Sequence[type[Any]], Settings], int | None],
    argv: Sequence[str] | None,
) -> int:
    """What an entry point does: load the backends, read the command line and the configuration file, run.

    The exit status is what `run` says, 0 where it says nothing.
    An error raised on purpose is one line on stderr.

    With --check-config `check` is called in place of `run`: all that a start does before it opens anything, as the
    user whom the daemon's unit names, where root asks.
    """
    classes = load(names)
    read = configuration.Configuration(lambda: build_parser(classes), argv)
    try:
        own = unit.find(read.program) if read.is_check else None
        if own is not None:
            own.enter()
        options = read.read()
    except ConfigError as err:
        set_up_logging(0)
        log.error("%s", err)
        return EXIT_CONFIG
    set_up_logging(options.verbose)
    try:
        if read.is_check:
            check(options, classes)
            user = f" (checked as user {own.user} of {own.name})" if own is not None else ""
            print(f"OK: {read.path or 'command line'}{user}")
            return 0
        return run(options, classes, Settings(options, read)) or 0
    except ConfigError as err:
        log.error("%s", err)
        return EXIT_CONFIG
    except ColmetError as err:
        log.error("%s", err)
        return 1


def powers_of_ten(count: int) -> bool:
    """Whether a repeated event is to be logged: the 1st, 10th, 100th, ... time."""
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1
