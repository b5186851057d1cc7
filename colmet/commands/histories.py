"""The stored rows that a command reads: of this machine's store or through the JSON interface, with their progress."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.commands import remote
from colmet.commands.extract_rows import Interval, both
from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.commands.top_view import clean
from colmet.common.errors import ConfigError
from colmet.stored import sources
from colmet.stored.series import NODE, History, RowQuery, Series, missing_values

WINDOW_ROWS = 200_000  # in an interval of time that is read by pages
PAGE_ROWS = 50_000
FEW_HOSTS = 4  # read one by one; of more, the rows of all hosts are read
_KINDS = {"i": np.int64, "f": np.float64}


def open_history(options: argparse.Namespace) -> History:
    """Return the store of the options of `sources` and `remote`: the interface with --url."""
    client = remote.client_of(options)
    if client is None:
        return sources.open_history(options)
    if options.hdf5:
        raise ConfigError("--url excludes --hdf5")
    return RemoteHistory(client)


class RemoteHistory(History):
    """The rows that the user of a client may see. Rows of the nodes are missing: the interface does not serve them."""

    def __init__(self, client: InterfaceClient) -> None:
        self._client = client
        self.warnings: list[str] = []

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> Mapping[str, Sequence[str]]:
        """Return the tables with rows of a job; see `History.tables`."""
        if job == NODE:
            return {}
        try:
            found = self._get(job, "tables", {"since": since})["tables"]
        except InterfaceError as err:
            if err.status == 404:
                return {}
            raise
        with self._client.checking_form():
            return {str(table): list(map(str, names)) for table, names in found.items()}

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        job, hosts = query.job, query.hosts
        if job == NODE:
            return []
        names = None if query.columns is None else ",".join(query.columns) or "time"
        asked = {"table": query.table, "columns": names}
        made: dict[str, list[dict[str, Any]]] = {}
        kinds: dict[str, str] = {}
        for node in [None] if hosts is None or len(hosts) > FEW_HOSTS else sorted(hosts):
            for page in self._pages(job, {**asked, "node": node}, Interval(query.since, query.until)):
                with self._client.checking_form():
                    for name, kind in page["kinds"].items():
                        kinds[name] = max(kinds.get(name, ""), kind, key=" ifS".find)
                    for rows in page["rows"]:
                        if hosts is None or rows["node"] in hosts:
                            made.setdefault(str(rows["node"]), []).append(rows)
        with self._client.checking_form():
            return [_series(query.table, host, job, parts, kinds) for host, parts in sorted(made.items())]

    def _pages(self, job: int, asked: Mapping[str, object], limits: Interval) -> Iterator[dict[str, Any]]:
        """Yield the pages of a query, by intervals of time if its rows are many."""
        outline = self._get(job, "rows", {**asked, "since": limits.since, "until": limits.until, "limit": 0})
        with self._client.checking_form():
            total, first, last = [int(outline[name] or 0) for name in ("total", "first", "last")]
        if not total:
            return
        count = min(max(1, math.ceil(total / WINDOW_ROWS)), max(1, last - first + 1), 10_000)
        edges = np.linspace(first, last + 1, count + 1).astype(np.int64).tolist() if count > 1 else []
        spans = list(zip(edges, edges[1:])) or [(None, None)]
        for number, (begin, end) in enumerate(spans):
            part = both(Interval(begin, None if end is None else end - 1), limits)
            after: object = None
            while True:
                more = {"since": part.since, "until": part.until, "limit": PAGE_ROWS, "after": after}
                page = self._get(job, "rows", {**asked, **more})
                yield page
                before, after = after, page.get("next")
                if after is None or after == before:
                    break
            self.progress("read", (number + 1) / len(spans))

    def _get(self, job: int, what: str, asked: Mapping[str, object]) -> dict[str, Any]:
        answer = self._client.get(f"jobs/{job}/{what}", asked)
        said = answer.get("warnings")
        for one in said if isinstance(said, list) else ():
            text = clean(str(one)[:500])
            if text not in self.warnings:
                self.warnings.append(text)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _series(table: str, host: str, job: int, parts: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> Series:
    times = np.concatenate([np.array(part["times"], np.int64).reshape(-1) for part in parts])
    names = dict.fromkeys([name for part in parts for name in part["columns"]])
    columns = {
        name: np.concatenate([_column(part["columns"].get(name), len(part["times"]), kinds[name]) for part in parts])
        for name in names
    }
    return Series(table, host, job, times, columns)


def _column(values: Sequence[Any] | None, count: int, kind: str) -> npt.NDArray[Any]:
    if values is None:
        return missing_values(count, kind)
    if len(values) != count:
        raise ValueError
    if kind == "S":
        cells = [b"" if one is None else str(one).encode("utf-8", "replace") for one in values]
        return np.array(cells or [b""])[:count]
    missing = -1 if kind == "i" else math.nan
    return np.array([missing if one is None else one for one in values], _KINDS[kind])


AFTER_S = 2.0  # after the start of the command
EVERY_S = 0.2
WIDTH = 30  # of the bar, characters


@contextlib.contextmanager
def shown_progress(history: History, command: str) -> Iterator[None]:
    """Show the progress of a history on stderr, if that is a terminal; the line is removed at the end."""
    if not sys.stderr.isatty():
        yield
        return
    due, is_there = time.monotonic() + AFTER_S, False

    def show(what: str, share: float) -> None:
        nonlocal due, is_there
        if time.monotonic() < due:
            return
        due, is_there = time.monotonic() + EVERY_S, True
        done = round(min(1.0, max(0.0, share)) * WIDTH)
        line = f"{command}: {'#' * done:.<{WIDTH}} {share:4.0%} {what}"
        columns = 80
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or columns
        # a line longer than the terminal would be repeated instead of replaced
        print(f"\r{line[: columns - 1]}\033[K", end="", file=sys.stderr, flush=True)

    history.progress = show
    try:
        yield
    finally:
        history.progress = History.progress
        if is_there:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
