"""Thin old HDF5 files: keep one row for each minute, with the totals of all counters.

Counters keep their growth, gauges their mean over each minute, peaks their maximum. Rows stay where a job begins or
ends, where a counter was reset, and around gaps, so reports of jobs have the same totals, and completeness the same
counts. Only the energy of nodes is divided among jobs by the CPU time of each minute instead of each sample.
A file is thinned when its last row is old enough; never the newest file of a collector, or one that is being written.
The new file replaces the old one as a whole. A file that was thinned is left alone, so an interrupted run can be
repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial

from colmet.collector.backends.hdf5 import isolated
from colmet.collector.backends.hdf5.file_lock import lock
from colmet.collector.backends.hdf5.rotation import is_newest
from colmet.collector.backends.hdf5.thin_file import ALREADY, RECENT, Thinned
from colmet.commands.progress import progress_line
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.files import check_writable, copy_owner, sync_directory
from colmet.common.runtime.plural import counted
from colmet.stored import sources

OLDER_S, STEP_S = 30 * 86400, 60
LONGEST_STEP_S = 3600
UNFINISHED = ".thinning"  # behind the name of a file, while its copy is made


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet thin --dry-run
  colmet thin --older-than 90d --step 300 /var/lib/colmet/colmet.17*.hdf5

exit status:
  0  all old files are thin
  1  a file could not be read or written
  2  no file was found, or the options are wrong"""
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="HDF5 file (default: those of the collector's configuration)"
    )
    parser.add_argument(
        "--older-than",
        metavar="PERIOD",
        type=cli.period,
        default=OLDER_S,
        help="thin files whose last row is older than this: 30d, 12w, 1y (default: 30d)",
    )
    parser.add_argument(
        "--step",
        metavar="S",
        type=cli.whole_number(2, LONGEST_STEP_S),
        default=STEP_S,
        help="keep one row for each multiple of S seconds (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be gained, and change nothing")
    sources.add_config(parser)


def run(options: argparse.Namespace) -> int:
    """Thin the files; return 0, or 1 if one of them could not be thinned."""
    files = options.files or sources.configured_files(options.config)
    limit = time.time() - options.older_than
    gained = failed = thinned = 0
    for number, path in enumerate(files):
        what = f"{os.path.basename(path)}, {number + 1} of {len(files)}"
        try:
            why = _why_not(path, options.config)
            if why:
                print(f"{path}: {why}")
                continue
            with progress_line("thin") as show:
                line, bytes_ = _thin(path, options, limit, partial(show, what))
        except (ColmetError, OSError) as err:
            if not options.files and not os.path.lexists(path):  # by --hdf5-keep
                print(f"{path}: skipped: it was removed meanwhile")
                continue
            text = str(err) if isinstance(err, ColmetError) else f"{err.filename or path}: {err.strerror}"
            print(f"colmet thin: {text}", file=sys.stderr)
            failed += 1
            continue
        print(line, flush=True)
        gained += bytes_
        thinned += bytes_ != 0
    done = "would be thinned" if options.dry_run else "thinned"
    print(f"{counted(thinned, 'files')} {done}: {_size(gained)} {'to gain' if options.dry_run else 'gained'}")
    return 1 if failed else 0


def _why_not(path: str, config: str) -> str:
    """Return why a file is skipped without a look at its content; empty if it is not."""
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: there is no such file")
    if os.path.lexists(f"{path}.tails"):
        return "skipped: its last write did not end; colmet-collector completes it at its next start"
    newest = is_newest(path)
    if newest is None:
        return "skipped: the collector goes on with it at its next start" if _is_current(path, config) else ""
    return "skipped: it is the newest of its collector, which may go on with it" if newest else ""


def _is_current(path: str, config: str) -> bool:
    """Return whether the collector of this machine is configured to write to this one file."""
    try:
        configured = sources.configured(config).hdf5_filepath
    except ColmetError:
        return False
    return bool(configured) and os.path.abspath(configured) == os.path.abspath(path)


def _thin(path: str, options: argparse.Namespace, limit: float, progress: Callable[[float], None]) -> tuple[str, int]:
    """Thin a file; return a line about it, and the gained bytes."""
    directory = os.path.dirname(os.path.abspath(path))
    if not options.dry_run:
        check_writable(directory)
    before = os.stat(path)
    target = f"{path}{UNFINISHED}"
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY) if options.dry_run else lock(path)
    except ConfigError:
        return f"{path}: skipped: another process writes to it", 0
    try:
        found = isolated.thin(path, "" if options.dry_run else target, options.step, limit, progress)
        if found.result == RECENT:
            return f"{path}: skipped: its last row is not old enough", 0
        if found.result == ALREADY:
            return f"{path}: is thinned already", 0
        if options.dry_run:
            gained = round(before.st_size * (1 - found.row_bytes_left / max(1, found.row_bytes)))
            return f"{path}: {_rows(found)}, about {_size(gained)} to gain", gained
        gained = before.st_size - _replace(path, target, before)
        sync_directory(directory)
        return f"{path}: {_rows(found)}, {_size(gained)} gained", gained
    finally:
        os.close(descriptor)
        if not options.dry_run and os.path.lexists(target):
            os.unlink(target)


def _replace(path: str, target: str, before: os.stat_result) -> int:
    """Put the new file in the place of the old one, with its owner, rights and time; return its size."""
    isolated.verify(target, None, {}, {})
    size = os.stat(target).st_size
    copy_owner(target, before)
    os.chmod(target, before.st_mode & 0o7777)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    there = os.stat(path)
    if not os.path.samestat(there, before) or there.st_mtime_ns != before.st_mtime_ns:
        raise ColmetError(f"{path}: was changed meanwhile; it is left as it is")
    os.replace(target, path)
    return size


def _rows(found: Thinned) -> str:
    return f"{found.rows:,} rows to {found.rows_left:,}"


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
