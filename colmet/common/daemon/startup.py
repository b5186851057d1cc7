"""Start of a daemon: common options, configuration, the log, and limits of the process."""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import logging
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from colmet import __version__
from colmet.common.config import cli, configuration
from colmet.common.config.cli import EXIT_CONFIG, DefaultBound, Options, Rare, bound, whole_number
from colmet.common.config.configuration import Settings, verbosity
from colmet.common.daemon import logs, systemd
from colmet.common.errors import ColmetError, ConfigError

if TYPE_CHECKING:
    from colmet.common.config.plugins import Backends

log = logging.getLogger(__name__)

HWM = 1000  # messages in a queue of ZeroMQ


def add_common_options(parser: Options) -> None:
    """Declare the options of both daemons."""
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    configuration.add_options(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log starts, stops and jobs (INFO); twice: every tick (DEBUG)",
    )


def add_queue_options(parser: Options) -> None:
    """Declare the options of ZeroMQ's queues, common to both daemons."""
    parser.add_argument(
        "--zeromq-hwm",
        metavar="N",
        type=bound(HWM),
        default=HWM,
        help=Rare("queue at most N messages between node and collector (default: %(default)s)"),
    )
    parser.add_argument(
        "--zeromq-linger",
        metavar="MS",
        type=whole_number(-1),
        default=0,
        help=Rare("send queued messages for MS milliseconds at exit; -1: without limit (default: %(default)s)"),
    )


def set_up_logging(verbose: int) -> None:
    """Log to stderr. `-v` once is INFO, twice or more DEBUG, none WARNING, as in Colmet 0.6 (30 - 10 x count)."""
    logs.set_up(verbosity(verbose))


def load(names: Mapping[str, str]) -> list[Any]:
    """Import the classes in a table of backends, given as ``module:Class``."""
    classes = []
    for target in names.values():
        module, _, name = target.partition(":")
        classes.append(getattr(importlib.import_module(module), name))
    return classes


def raise_open_file_limit(wanted: int = 65536) -> int:
    """Raise the soft limit on open files to `wanted`, or as far as the hard limit allows; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def tune_garbage_collector() -> None:
    """Make Python's searches for reference cycles rare: the daemons' many objects form none.

    With the default thresholds these searches use half of the collector's CPU time from bytes to HDF5.
    """
    gc.collect()
    gc.freeze()  # modules and code, kept until the end
    gc.set_threshold(50_000, 20, 100)


def run_daemon(
    backends: Backends,
    build_parser: Callable[[Sequence[type[Any]]], cli.Parser],
    check: Callable[[argparse.Namespace, Sequence[type[Any]]], None],
    run: Callable[[argparse.Namespace, Sequence[type[Any]], Settings], int | None],
    argv: Sequence[str] | None,
) -> int:
    """Run a daemon: import its backends, read its command line and configuration file, and work.

    The exit status is that of `run`, 0 for None. A `ColmetError` is one line on stderr.

    With --check-config `check` is called in place of `run`: all steps of a start before anything is opened. It runs as
    the user of the daemon's unit, where the system permits that.
    """
    classes = backends.classes
    read = configuration.Configuration(lambda: backends.parser(build_parser), argv)
    try:
        own = systemd.find_unit(read.program) if read.is_check else None
        if own is not None and not own.enter():
            own = None
        options = read.read_for_start()
    except ConfigError as err:
        set_up_logging(0)
        _log_problems(backends, read)
        log.error("%s", err)
        return EXIT_CONFIG
    set_up_logging(options.verbose)
    _log_problems(backends, read)
    for option, required in read.vain:
        log.warning("option without an effect: %s requires %s", option, required)
    if isinstance(options.zeromq_hwm, DefaultBound):
        log.warning("--zeromq-hwm 0: %d is used; no queue is without a bound", options.zeromq_hwm)
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


def _log_problems(backends: Backends, read: configuration.Configuration) -> None:
    """Log the missing plug-ins, and the unknown options possibly theirs."""
    for problem in backends.problems:
        log.error("plug-in not loaded: %s", problem)
    if read.ignored:
        log.warning("unknown options ignored, a plug-in is not loaded: %s", " ".join(dict.fromkeys(read.ignored)))


# Of glibc's malloc.h; other C libraries lack the function, or ignore the call.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
MMAP_BYTES = 1 << 20
TRIM_BYTES = 2 << 20


def tame_malloc(arenas: int) -> bool:
    """Make the C library return memory and share it between threads; return whether it does.

    By default each thread has its own pools, and blocks up to the size of any freed one go into them. Bursts of
    megabytes in one thread and thousands of messages in another then leave holes that are never filled. Free memory at
    the end of a pool is kept up to a bound above what a sample needs: it is not returned and taken again at each.

    Args:
        arenas: number of pools, for all threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_ARENA_MAX: arenas, _M_MMAP_THRESHOLD: MMAP_BYTES, _M_TRIM_THRESHOLD: TRIM_BYTES}
    return all(mallopt(setting, value) for setting, value in settings.items())


def trim_malloc() -> None:
    """Return the C library's free memory to the system, as after a start."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
