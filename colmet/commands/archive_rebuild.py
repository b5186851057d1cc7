"""The actions rebuild and info of `colmet archive`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from colmet.collector.journal.output_state import MAX_BYTES, parse
from colmet.commands.progress import shown_progress
from colmet.commands.times import shown
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.files import copy_owner
from colmet.common.text import counted, size
from colmet.jobs.archive import rebuild
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.rebuild import Rebuild
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Position, lock
from colmet.jobs.fold import columns_read
from colmet.stored import sources
from colmet.stored.replay import Replay
from colmet.stored.series import RowStore

NEW = ".rebuild"  # behind the path of the archive, while it is made
HOUR_S = 3600
WINDOW_BYTES = 48 << 20  # of the values read at a time; copies come on top
CELL_BYTES = 8


def run(options: argparse.Namespace, path: str) -> int:
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
    """Return whether there is an archive; ConfigError for one that cannot be read."""
    if not os.path.lexists(path) or not os.path.getsize(path):
        return False
    try:
        store = ArchiveStore(path)
    except ArchiveError as err:
        raise ConfigError(f"{err}; to build one without it, move it to another place") from err
    store.close()
    return True


def _position(options: argparse.Namespace, former: str) -> Position | None:
    """Return the place of the store's rows in the collector's journal; None without a journal on disk.

    Raises:
        ConfigError: the former archive is at another place: its unfinished jobs would miss rows, or have them twice.
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
        store = ArchiveStore(former)
        try:
            at, until = store.position, Archiver(store).until
        finally:
            store.close()
        if at is not None and at.journal == position.journal and until != position.number:
            raise ConfigError(
                f"{former} has records up to {until}, and {name} up to {position.number}: start the collector, wait "
                "until colmet status shows nothing waiting, stop it, and run this again"
            )
    return position


def _make(options: argparse.Namespace, path: str, former: str, position: Position | None) -> None:
    """Write a new archive."""
    history = sources.open_history(options)
    began = time.monotonic()
    with history, Rebuild(path) as made:
        with shown_progress(history, "colmet archive rebuild"):
            _fold(history, made)
        kept = made.finish(former, position, int(time.time()))
        for text in history.warnings:
            print(f"colmet archive: {text}", file=sys.stderr)
    store = ArchiveStore(path)
    try:
        jobs = int(store.database.execute("SELECT count(*) FROM jobs").fetchone()[0])
    finally:
        store.close()
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
    for n, window in enumerate(every, 1):
        made.take(replay.batches(history.between(columns, window.first, window.last), n == len(every)))
        history.progress(f"sum up, {shown(window.last)[:16]}", window.share)


class Window(NamedTuple):
    """An interval, both ends included."""

    first: int  # seconds since 1970
    last: int
    share: float  # of the store's values up to its end


def windows(amounts: Mapping[int, int], window_bytes: int = WINDOW_BYTES) -> Iterator[Window]:
    """Yield intervals with about `window_bytes` of values each: several hours, or a part of one."""
    whole = sum(amounts.values())
    done = open_bytes = 0
    begins: int | None = None  # of the open window
    for hour in sorted(amounts):
        size = amounts[hour] * CELL_BYTES
        if begins is not None and open_bytes + size > window_bytes:
            yield Window(begins, hour * HOUR_S - 1, done / whole)
            begins, open_bytes = None, 0
        parts = min(HOUR_S, -(-size // window_bytes))
        for part in range(parts) if parts > 1 else ():
            first, following = [hour * HOUR_S + HOUR_S * n // parts for n in (part, part + 1)]
            yield Window(first, following - 1, (done + amounts[hour] * (part + 1) / parts) / whole)
        done += amounts[hour]
        if parts <= 1:
            begins = hour * HOUR_S if begins is None else begins
            open_bytes += size
            last = hour
    if begins is not None:
        yield Window(begins, (last + 1) * HOUR_S - 1, 1.0)


def info(_options: argparse.Namespace, path: str) -> int:
    """Print what the archive has; return 0."""
    store = ArchiveStore(path)
    try:
        ask = store.database.execute
        jobs, first, last, users = ask(
            'SELECT count(*), min(start), max(CASE typeof("end") WHEN \'integer\' THEN "end" END), '
            "count(DISTINCT user) FROM listed"
        ).fetchone()
        hosts = ask("SELECT count(*) FROM hosts").fetchone()[0]
        folds = ask("SELECT count(*) FROM folds WHERE job > 0").fetchone()[0]
        position = store.position
    finally:
        store.close()
    print(f"archive     {path}, {size(os.path.getsize(path))}")
    print(f"jobs        {jobs:,} of {counted(users, 'users')}; {counted(hosts, 'summaries')} of hosts")
    if jobs:
        print(f"interval    {shown(first)} to {shown(last)}")
    print(f"unfinished  {counted(folds, 'summaries')} of hosts")
    if position is not None:
        print(f"position    record {position.number} of journal {position.journal}")
    return 0
