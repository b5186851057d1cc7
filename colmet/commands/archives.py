"""The job archive of a command: from its options, the collector's configuration, or an interface; and tables of it."""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import pwd
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.commands import remote
from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.commands.top_view import clean
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.text import some_of
from colmet.jobs.archive import queries
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive, is_in_database, path_of
from colmet.jobs.archive.store import ArchiveError
from colmet.jobs.columns import INTEGER, REAL
from colmet.stored.sources import add_config, configured

_OTHERS = "--archive PATH, --url URL"
CONDITIONS = ("project", "queue", "state", "host", "name", "array")  # of `filter_of`, as options
GAP = "  "  # between columns of a table
ASK = "ask your administrators for the right to read it, or use --url"


def add_options(parser: cli.Options) -> None:
    """Declare the options of the archive's place."""
    add_place(parser)
    add_config(parser)
    remote.add_options(parser)


def add_place(parser: cli.Options) -> None:
    """Declare --archive."""
    parser.add_argument(
        "--archive",
        metavar="PATH",
        help="file of a job archive; default: the archive of the collector's configuration, shared in its database or "
        "in its file",
    )


def add_filter(parser: cli.Options, names: Sequence[str] = CONDITIONS) -> None:
    """Declare options that select jobs, some of `CONDITIONS`; a command has options of the interval of its own."""
    words = {"project": "of", "queue": "of", "state": "in", "host": "on"}
    for name in names:
        if name in words:
            text = f"jobs {words[name]} this {name}; repeatable"
            parser.add_argument(f"--{name}", metavar="NAME", action="append", default=[], help=text)
    if "name" in names:
        parser.add_argument("--name", metavar="TEXT", default="", help="jobs with this text in their name")
    if "array" in names:
        parser.add_argument("--array", metavar="ID", default="", help="jobs of this array")


def filter_of(options: argparse.Namespace, users: list[str]) -> queries.JobFilter:
    """Return the conditions of the options, of those that the command has."""
    fields = {"project": "projects", "queue": "queues", "state": "states", "host": "hosts"}
    given = {fields.get(name, name): value for name, value in vars(options).items() if name in CONDITIONS}
    return queries.JobFilter(users=users, since=options.since, until=options.until, **given)


def open_archive(options: argparse.Namespace) -> queries.JobArchive:
    """Open the archive of the options: with --url that of a collector's JSON interface."""
    client = remote.client_of(options)
    if client is not None:
        if options.archive:
            raise ConfigError("--url excludes --archive")
        return RemoteArchive(client)
    path = options.archive
    if not path:
        collector = configured(options.config, _OTHERS)
        if is_in_database(collector):
            try:
                return ElasticArchive.from_options(collector)
            except ConfigError as err:
                raise ArchiveError(str(err)) from err
        path = archive_path(collector, options.config)
    if not os.path.exists(path):
        raise ArchiveError(
            f"{path}: there is no such archive, or you may not see it; does colmet-collector write one here? Else {ASK}"
        )
    if not os.access(path, os.R_OK):
        raise ArchiveError(f"{path}: permission denied; {ASK}")
    return LocalArchive(path)


def archive_path(collector: argparse.Namespace, config: str, other: str = _OTHERS) -> str:
    """Return the path of a collector's archive; ConfigError without one, which suggests `other`."""
    path = path_of(collector)
    if not path:
        raise ConfigError(f"{config} names no job archive: give {other}")
    return path


class Scope(NamedTuple):
    """The users whose jobs are asked for."""

    users: list[str]  # empty for all whose jobs the archive shows
    note: str  # that these are not all; else empty


def scope_of(options: argparse.Namespace, archive: queries.JobArchive) -> Scope:
    """Return the users of --user, else root's choice of all, else oneself; at an interface, those that it shows."""
    visitor, projects = archive.visitor() if isinstance(archive, RemoteArchive) else ("", frozenset())
    if visitor:
        if options.project and projects.issuperset(options.project):
            return Scope(list(options.user), "")
        led = f", and leads {some_of(sorted(projects), 5)}: --project" if projects else ""
        if options.all_users:
            raise ConfigError(f"--all-users: {clean(visitor)} sees the own jobs only at {options.url}{clean(led)}")
        return Scope(list(options.user), f"jobs of {clean(visitor)} only")
    if options.user:
        return Scope(list(options.user), "")
    if options.all_users or os.geteuid() == 0:
        return Scope([], "")
    names = [str(os.geteuid())]  # reported by nodes that do not know the name
    with contextlib.suppress(KeyError):
        names.insert(0, pwd.getpwuid(os.geteuid()).pw_name)
    return Scope(names, f"jobs of {names[0]} only; --all-users has all")


def print_note(note: str, is_table: bool) -> None:
    """Print a note behind a table; else on standard error, beside an answer for programs."""
    if note:
        print(note, file=sys.stdout if is_table else sys.stderr)


def add_users(parser: cli.Options) -> None:
    """Declare --user and --all-users."""
    parser.add_argument(
        "-u", "--user", metavar="USER", action="append", default=[], help="jobs of this user; repeatable"
    )
    parser.add_argument("-a", "--all-users", action="store_true", help="jobs of all users; the default of root")


def print_csv(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Print columns as CSV; no program that opens it reads a text as a formula."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = ["" if row[name] is None else row[name] for name in names]
        is_formula = [isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells]
        writer.writerow([f"'{cell}" if quoted else cell for cell, quoted in zip(cells, is_formula)])


def bar(share: float | None, length: int) -> str:
    """Return a bar of a share; empty for a missing one."""
    if share is None:
        return " " * length
    full, empty = (
        ("\N{FULL BLOCK}", "\N{LIGHT SHADE}") if (sys.stdout.encoding or "").lower() == "utf-8" else ("#", ".")
    )
    filled = round(length * min(1.0, max(0.0, share)))
    return full * filled + empty * (length - filled)


def width() -> int:
    """Return the width of the terminal, of COLUMNS, or 80."""
    from rich.console import Console

    return Console().width


class TableColumn(NamedTuple):
    """A column of a table in a terminal."""

    heading: str
    cells: Sequence[str]
    is_right: bool = True  # aligned
    rank: int = 0  # columns of the highest rank are dropped first where the terminal is narrow
    styles: Sequence[str] = ()  # of rich, for each cell


def print_table(
    columns: Sequence[TableColumn], width: int | None, styles: Sequence[str] = (), rest: str = "--json has all"
) -> None:
    """Print a table, in colours on a terminal without NO_COLOR, and a line that names the dropped columns.

    A `width` of None drops no column; `styles` are of rich, for each row; `rest` says how to get the dropped columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    needed = {n: max(map(len, (one.heading, *one.cells))) + len(GAP) for n, one in enumerate(columns)}
    shown = sorted(needed, key=lambda n: columns[n].rank)
    while width is not None and len(shown) > 1 and sum(needed[n] for n in shown) - len(GAP) > width:
        shown.pop()
    table = Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, header_style="bold")
    kept = [one for n, one in enumerate(columns) if n in shown]
    for one in kept:
        table.add_column(one.heading, justify="right" if one.is_right else "left", no_wrap=True)
    for n in range(len(columns[0].cells)):
        cells = [Text(one.cells[n], style=one.styles[n] if one.styles else "") for one in kept]
        table.add_row(*cells, style=styles[n] if styles else "")
    console = Console(width=max(width or 0, sum(needed.values())), highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join([f"{line.rstrip()}\n" for line in captured.get().splitlines()]))
    dropped = [one.heading for n, one in enumerate(columns) if n not in shown]
    if dropped and width is not None:
        print(textwrap.fill(f"No room for: {', '.join(dropped)} ({rest})", width, break_on_hyphens=False))


PAGE = 1000  # rows of an answer
_KINDS: Mapping[str, tuple[type, ...]] = {INTEGER: (int,), REAL: (int, float)}


class RemoteArchive(queries.JobArchive):
    """The jobs that the user of a client may see."""

    def __init__(self, client: InterfaceClient) -> None:
        self._client = client

    def _page(
        self, where: queries.JobFilter, wanted: list[str], order: tuple[str, bool], offset: int, limit: int
    ) -> queries.JobPage:
        asked = {**parameters_of(where), "columns": ",".join(wanted), "sort": order[0], "ascending": not order[1]}
        rows: list[queries.Row] = []
        while True:
            most = max(1, min(PAGE, limit - len(rows)))
            found = self._client.get("archive/jobs", {**asked, "offset": offset + len(rows), "limit": most})
            with self._client.checking_form():
                total, items = int(found["total"]), [_row(item, wanted) for item in found["items"][:most]]
            rows += items
            if len(items) < most or len(rows) >= limit:
                return queries.JobPage(total, rows[:limit])

    def job(self, job: int, start: int | None = None) -> queries.ArchivedJob | None:
        """Return a job with its hosts; see `JobArchive.job`. The advice is a list, and curves are missing."""
        try:
            found = self._client.get(f"archive/jobs/{job}", {"start": start})
        except InterfaceError as err:
            if err.status == 404:
                return None
            raise
        with self._client.checking_form():
            summary = {**_row(found["job"], tuple(ANSWERS)), "advice": found["advice"]}
            return queries.ArchivedJob(summary, [dict(one) for one in found["hosts"]], list(map(int, found["starts"])))

    def _usage(self, where: queries.JobFilter, by: Sequence[str]) -> list[queries.UsageGroup]:
        found = self._client.get("usage", {**parameters_of(where), "by": ",".join(by)})
        with self._client.checking_form():
            return [
                queries.UsageGroup(
                    tuple(map(str, one["keys"])),
                    int(one["jobs"]),
                    {name: None if (value := one["sums"].get(name)) is None else float(value) for name in queries.SUMS},
                )
                for one in found["groups"]
            ]

    def visitor(self) -> tuple[str, frozenset[str]]:
        """Return the user, and the projects that the user leads; no user for one who sees all."""
        found = self._client.get("whoami")
        user, is_admin, projects = found.get("user"), found.get("admin"), found.get("projects", [])
        with self._client.checking_form():
            if not isinstance(user, (str, type(None))) or not isinstance(is_admin, bool):
                raise TypeError
            return ("" if is_admin else user or ""), frozenset(map(str, projects))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def parameters_of(where: queries.JobFilter) -> dict[str, object]:
    """Return the conditions as parameters of a request."""
    where.check()
    for some in (where.users, where.projects, where.queues, where.hosts):
        if any("," in one for one in some):
            raise queries.QueryError("a name with a comma cannot be asked for at the interface")
    asked: dict[str, object] = {
        "job": ",".join(map(str, where.jobs)),
        "user": ",".join(where.users),
        "project": ",".join(where.projects),
        "queue": ",".join(where.queues),
        "state": ",".join(where.states),
        "host": ",".join(where.hosts),
        "array": where.array,
        "task": where.task,
        "name": where.name,
        "since": where.since,
        "until": where.until,
        "efficiency_below": where.efficiency_below,
        "rule": where.rule,
    }
    return {name: value for name, value in asked.items() if value not in ("", None)}


def _row(item: Mapping[str, Any], columns: Sequence[str]) -> queries.Row:
    """Return the values of some columns; a value of another type is an error."""
    row: queries.Row = {}
    for name in columns:
        value = item.get(name)
        kinds = _KINDS.get(ANSWERS[name].kind, (str,))
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise TypeError(name)
        row[name] = value
    return row
