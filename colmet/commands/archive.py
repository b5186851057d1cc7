"""Manage the job archive of this machine's collector.

`rebuild` makes it again from stored rows; `forget` removes the jobs of a user, or the user's name; `info` prints what
it has.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import importlib
import os
import pwd
import sys
import syslog
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from colmet.collector.backends.hdf5.files import is_newest
from colmet.collector.journal.output_state import MAX_BYTES, parse
from colmet.commands import archives, selection
from colmet.commands.histories import shown_progress
from colmet.commands.selection import shown
from colmet.commands.top_view import clean
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.capabilities import become_owner
from colmet.common.host.files import copy_owner
from colmet.common.text import counted, size
from colmet.jobs.archive import rebuild
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.rebuild import Rebuild
from colmet.jobs.archive.removal import Run, forget, pseudonym, runs_of_user
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Position, lock
from colmet.jobs.fold import columns_read
from colmet.stored import sources
from colmet.stored.reading_process import files_of
from colmet.stored.removal import Remover
from colmet.stored.replay import Replay
from colmet.stored.series import RowStore

OF_FORGET = ("user", "pseudonym", "rows", "dry_run", "yes")


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet archive info
  systemctl stop colmet-collector; colmet archive rebuild; systemctl start colmet-collector
  colmet archive rebuild --output /tmp/again.sqlite
  colmet archive forget --user alice --dry-run
  colmet archive forget --user alice --rows

exit status:
  0  done
  1  failed, or a part of a user's data is left
  2  wrong command line or configuration, or the collector runs"""
    parser.add_argument("action", choices=("rebuild", "forget", "info"), help="what to do")
    parser.add_argument(
        "--archive", metavar="PATH", help="the file of the job archive (default: that of the collector's configuration)"
    )
    parser.add_argument(
        "--output", metavar="PATH", help="rebuild: write to this new file, and leave the archive as it is"
    )
    selection.add_user(parser, "forget: the user")
    parser.add_argument(
        "--pseudonym", action="store_true", help="forget: keep the jobs, under a random name instead of the user's"
    )
    parser.add_argument(
        "--rows", action="store_true", help="forget: remove the jobs' rows from HDF5 files as well, except the newest"
    )
    parser.add_argument("--dry-run", action="store_true", help="forget: print what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="forget: do not ask")
    sources.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    if options.action != "forget":
        for name in OF_FORGET:
            if getattr(options, name):
                raise ConfigError(f"--{name.replace('_', '-')} is an option of forget")
    if options.action != "rebuild" and options.output is not None:
        raise ConfigError("--output is an option of rebuild")
    path = _path(options)
    if options.action in ("rebuild", "forget"):
        options.caller_uid = os.getuid()
        # As root, become the user of the folders that are written: links there would lead root to any file. Modules may
        # be unreadable for that user.
        importlib.import_module("colmet.stored.hdf5")
        become_owner(options.output or path, *(files(options) if options.action == "forget" and options.rows else []))
    return {"rebuild": run_rebuild, "forget": run_forget, "info": print_info}[options.action](options, path)


def _path(options: argparse.Namespace) -> str:
    """Return the path of the archive; empty for stored rows of another machine: there is none to keep values of."""
    if options.archive:
        return str(options.archive)
    if options.output is not None and options.hdf5 and not os.path.exists(options.config):
        return ""
    other = "--archive PATH"
    return archives.archive_path(sources.configured(options.config, other), options.config, other)


# -- forget --


def run_forget(options: argparse.Namespace, path: str) -> int:
    """Remove or rename the jobs of a user; return 0, or 1 if some are left."""
    if not options.user:
        raise ConfigError("--user is missing; give the user whose jobs to remove")
    if options.pseudonym and options.rows:
        raise ConfigError("--rows removes rows, which --pseudonym keeps; choose one")
    if not os.path.exists(path):
        raise ArchiveError(f"{path}: there is no such archive")
    with contextlib.ExitStack() as stack:
        is_written = False
        try:
            stack.callback(os.close, lock(path))  # before SQLite opens the file
        except ArchiveError as err:
            if not isinstance(err.__cause__, BlockingIOError):
                raise
            is_written = True  # by a collector
        store = stack.enter_context(closing(ArchiveStore(path, writable=not options.dry_run)))
        return _forget(options, store, is_written)


def _forget(options: argparse.Namespace, store: ArchiveStore, is_written: bool) -> int:
    user = clean(options.user)
    every = runs_of_user(store, options.user)
    if not every:
        print(f"no job of {user} in {store.path}")
        return 0
    left = [one for one in every if one.is_unfinished] if is_written else []
    runs = [one for one in every if one not in left]
    if left:
        print(
            f"{counted(len(left), 'jobs')} of {user} stay, as the collector still adds to them: repeat this 10 minutes "
            "after their end, or 4 days where their nodes are silent"
        )
    if runs and not options.dry_run:
        _confirm(options, f"{counted(len(runs), 'jobs')} of {user}")
    if options.rows:
        stays = _remove_rows(options, runs)
        left += [one for one in runs if one.job in stays]
        runs = [one for one in runs if one.job not in stays]
    is_gone = not runs or _change(options, store, runs)
    for copy in sorted(glob.glob(f"{glob.escape(store.path)}.*")):
        if not copy.endswith(("-wal", "-shm")):
            print(f"{copy}: a former archive, which may have jobs of {user}: remove it")
    return 1 if left or not is_gone else 0


def _change(options: argparse.Namespace, store: ArchiveStore, runs: Sequence[Run]) -> bool:
    """Remove or rename jobs in the archive; return whether nothing of the former values is left."""
    other = pseudonym() if options.pseudonym else ""
    is_gone, now = True, ""
    if not options.dry_run:
        is_gone, now = forget(store, runs, options.user, other), f" (now {other})"
        _log(options, len(runs))
    how = f"the name of the user{now}, of the job, and its dependency" if other else "the whole summary"
    between = f"from {shown(runs[0].start)} to {shown(max([one.last for one in runs]))}"
    what = "would lose" if options.dry_run else "has lost"
    print(f"{store.path} {what} {how} of {counted(len(runs), 'jobs')} of {clean(options.user)}, {between}")
    if not options.rows:
        print(
            "stored rows of these jobs stay as long as HDF5 files or the database keep them, and rebuild would add the "
            "jobs again; --rows removes those in HDF5 files"
        )
    if not is_gone:
        print(
            f"{store.path}-wal still has the former values, as another program reads the archive: they go when "
            "colmet-collector is restarted"
        )
    return is_gone


def _confirm(options: argparse.Namespace, what: str) -> None:
    """Ask on a terminal; raise ConfigError for another answer than yes, or without a terminal and --yes."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("nothing was removed: there is no terminal for the question; give --yes")
    answer = input(f"This cannot be undone. Type yes to change {what}: ")
    if answer.strip().lower() != "yes":
        raise ConfigError("nothing was removed")


def _log(options: argparse.Namespace, jobs: int) -> None:
    name = str(options.caller_uid)
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(options.caller_uid).pw_name
    what = "renamed" if options.pseudonym else "removed"
    asked = os.environ.get("SUDO_USER", "")
    syslog.openlog("colmet", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    syslog.syslog(
        syslog.LOG_NOTICE,
        f"jobs of a user {what}: user={clean(options.user)} jobs={jobs} by={name} sudo_user={clean(asked) or '-'} "
        f"rows={'yes' if options.rows else 'no'}",
    )


def _remove_rows(options: argparse.Namespace, runs: Sequence[Run]) -> set[int]:
    """Remove the rows of jobs from HDF5 files; return the jobs with rows that stay."""
    jobs: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in runs:
        jobs[one.job].append((one.start, one.last))
    stays: set[int] = set()
    with Remover() as remover:
        for path in files(options):
            try:
                if is_newest(path) in (True, None):  # a collector may write to it
                    there = remover.count(path, jobs)
                    stays.update(there.jobs)
                    if there.rows:
                        print(
                            f"{path} keeps rows of these jobs, as it is the newest file: repeat this after its rotation"
                        )
                    continue
                removed = remover.count(path, jobs) if options.dry_run else remover.remove(path, jobs)
            except (ColmetError, OSError) as err:
                print(f"{path}: {err}; these jobs stay", file=sys.stderr)
                return set(jobs)
            if removed.rows:
                what = "would lose" if options.dry_run else "has lost"
                print(f"{path} {what} {counted(removed.rows, 'rows')} of {counted(len(removed.jobs), 'jobs')}")
    return stays


def files(options: argparse.Namespace) -> list[str]:
    """Return the HDF5 files that rows are removed from."""
    if not options.hdf5:
        return sources.configured_files(options.config)
    return [file.path for path in options.hdf5 for file in files_of(path)]


# -- rebuild and info --

NEW = ".rebuild"  # behind the path of the archive, while it is made
HOUR_S = 3600
WINDOW_BYTES = 48 << 20  # of the values read at a time; copies come on top
CELL_BYTES = 8


def run_rebuild(options: argparse.Namespace, path: str) -> int:
    """Make the archive again; return 0."""
    if options.output is not None:
        if os.path.lexists(options.output):
            raise ConfigError(f"--output {options.output}: it exists; give another path, or remove it")
        former = path if _is_archive(path) else ""
        _make(options, options.output, former, None)
        return 0
    try:
        descriptor = lock(path)
    except ArchiveError as err:
        raise ConfigError(
            f"{err}; what a running collector has not finished would be lost: stop it, or give --output PATH"
        ) from err
    new = path + NEW
    try:
        former = path if _is_archive(path) else ""
        position = _position(options, former)
        like = os.stat(path) if former else os.stat(os.path.dirname(os.path.abspath(path)))
        _make(options, new, former, position)
        with contextlib.suppress(*() if former else (OSError,)):
            copy_owner(new, like)
        aside = f"{path}.before.{int(time.time())}" if former else ""
        rebuild.replace(path, new, aside)
        if aside:
            print(f"former archive: {aside}; remove it when you no longer need it")
    except OSError as err:
        raise ColmetError(f"{err.filename or path}: {err.strerror}") from err
    finally:
        if not os.path.getsize(path):  # made by the lock
            os.unlink(path)
        os.close(descriptor)
    return 0


def _is_archive(path: str) -> bool:
    if not os.path.lexists(path) or not os.path.getsize(path):
        return False
    try:
        ArchiveStore(path).close()
    except ArchiveError as err:
        raise ConfigError(f"{err}; to build one without it, move it to another place") from err
    return True


def _position(options: argparse.Namespace, former: str) -> Position | None:
    """Return the place of the store's rows in the collector's journal; None without a journal on disk.

    A former archive at another place is refused: its unfinished jobs would miss rows, or have them twice.
    """
    collector = sources.configured(options.config, "--output PATH")
    directory = collector.journal_dir
    if directory is None:
        directory = f"{collector.hdf5_filepath}.journal" if collector.hdf5_filepath else ""
    name = "hdf5" if options.hdf5 or collector.hdf5_filepath else "elasticsearch"
    state = os.path.join(directory, f"{name}.json")
    if not directory or not os.path.exists(state):
        return None
    try:
        with open(state, "rb") as file:
            document = parse(file.read(MAX_BYTES + 1))
    except (OSError, ValueError) as err:
        raise ConfigError(f"{state}: {err}; start the collector, which repairs it, and stop it") from err
    position = Position(document["journal"], document["position"])
    if former:
        with closing(ArchiveStore(former)) as store:
            at, until = store.position, Archiver(store).until
        if at is not None and at.journal == position.journal and until != position.number:
            raise ConfigError(
                f"{former} has records up to {until}, and {name} up to {position.number}: start the collector, wait "
                "until colmet status shows nothing waiting, stop it, and run this again"
            )
    return position


def _make(options: argparse.Namespace, path: str, former: str, position: Position | None) -> None:
    history = sources.open_history(options)
    began = time.monotonic()
    with history, Rebuild(path) as made:
        with shown_progress(history, "colmet archive rebuild"):
            _fold(history, made)
        kept = made.finish(former, position, int(time.time()))
        for text in history.warnings:
            print(f"colmet archive: {text}", file=sys.stderr)
    with closing(ArchiveStore(path)) as store:
        jobs = int(store.database.execute("SELECT count(*) FROM jobs").fetchone()[0])
    print(f"{counted(jobs, 'jobs')} in {path}, {size(os.path.getsize(path))}, made in {time.monotonic() - began:.0f} s")
    if former:
        print(
            f"kept of the former archive, as their rows are gone: {counted(kept.jobs, 'jobs')}, "
            f"{counted(kept.hosts, 'jobs')} on single hosts"
        )


def _fold(history: RowStore, made: Rebuild) -> None:
    columns = columns_read()
    every = list(windows(history.amounts(columns)))
    if not every:
        raise ConfigError("the store has no rows: give --hdf5 PATH of another one")
    replay = Replay(columns)
    for n, (first, last, share) in enumerate(every, 1):
        made.take(replay.batches(history.between(columns, first, last), n == len(every)))
        history.progress(f"sum up, {shown(last)[:16]}", share)


def windows(amounts: Mapping[int, int], window_bytes: int = WINDOW_BYTES) -> Iterator[tuple[int, int, float]]:
    """Yield intervals with about `window_bytes` of values each: several hours, or a part of one.

    Each has its first and its last second since 1970, and the share of the store's values up to its end.
    """
    whole = sum(amounts.values())
    done = open_bytes = 0
    begins: int | None = None  # of the open window
    for hour in sorted(amounts):
        size = amounts[hour] * CELL_BYTES
        if begins is not None and open_bytes + size > window_bytes:
            yield begins, hour * HOUR_S - 1, done / whole
            begins, open_bytes = None, 0
        parts = min(HOUR_S, -(-size // window_bytes))
        for part in range(parts) if parts > 1 else ():
            first, following = [hour * HOUR_S + HOUR_S * n // parts for n in (part, part + 1)]
            yield first, following - 1, (done + amounts[hour] * (part + 1) / parts) / whole
        done += amounts[hour]
        if parts <= 1:
            begins = hour * HOUR_S if begins is None else begins
            open_bytes += size
            last = hour
    if begins is not None:
        yield begins, (last + 1) * HOUR_S - 1, 1.0


def print_info(_options: argparse.Namespace, path: str) -> int:
    """Print what the archive has; return 0."""
    with closing(ArchiveStore(path)) as store:
        ask = store.database.execute
        jobs, first, last, users = ask(
            'SELECT count(*), min(start), max(CASE typeof("end") WHEN \'integer\' THEN "end" END), '
            "count(DISTINCT user) FROM listed"
        ).fetchone()
        hosts = ask("SELECT count(*) FROM hosts").fetchone()[0]
        folds = ask("SELECT count(*) FROM folds WHERE job > 0").fetchone()[0]
        position = store.position
    print(f"archive     {path}, {size(os.path.getsize(path))}")
    print(f"jobs        {jobs:,} of {counted(users, 'users')}; {counted(hosts, 'summaries')} of hosts")
    if jobs:
        print(f"interval    {shown(first)} to {shown(last)}")
    print(f"unfinished  {counted(folds, 'summaries')} of hosts")
    if position is not None:
        print(f"position    record {position.number} of journal {position.journal}")
    return 0
