"""The action forget of `colmet archive`."""

from __future__ import annotations

import argparse
import glob
import os
import pwd
import sys
import syslog
from collections import defaultdict
from collections.abc import Sequence

from colmet.collector.backends.hdf5.rotation import is_newest
from colmet.commands.times import shown
from colmet.commands.top.view import clean
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import counted
from colmet.jobs.archive.removal import Run, forget, pseudonym, runs_of_user
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, lock
from colmet.stored import sources
from colmet.stored.hdf5_files import files_of
from colmet.stored.removal import Remover


def run(options: argparse.Namespace, path: str) -> int:
    """Remove or rename the jobs of a user; return 0, or 1 if some are left."""
    if not options.user:
        raise ConfigError("--user is missing; give the name of the user whose jobs are to be removed")
    if options.pseudonym and options.rows:
        raise ConfigError("--rows removes rows, which --pseudonym keeps; choose one")
    if not os.path.exists(path):
        raise ArchiveError(f"{path}: there is no such archive")
    descriptor = _lock(path)  # before SQLite opens the file
    try:
        store = ArchiveStore(path, writable=not options.dry_run)
        try:
            return _forget(options, store, descriptor is None)
        finally:
            store.close()
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: str) -> int | None:
    """Lock the archive; return None where a collector has it."""
    try:
        return lock(path)
    except ArchiveError as err:
        if not isinstance(err.__cause__, BlockingIOError):
            raise
        return None


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
    is_gone = True
    if not options.dry_run:
        is_gone = forget(store, runs, options.user, other)
        _audit(options, len(runs))
    now = "" if options.dry_run else f" (now {other})"  # a dry run changes nothing to that name
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


def _audit(options: argparse.Namespace, jobs: int) -> None:
    """Write a line to the system's log: who has removed what."""
    try:
        name = pwd.getpwuid(options.caller_uid).pw_name
    except KeyError:
        name = str(options.caller_uid)
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
                        why = "as it is the newest file: repeat this after its rotation"
                        print(f"{path} keeps rows of these jobs, {why}")
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
