"""The job archive of a command: from its options, or from the collector's configuration."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from colmet.commands import remote
from colmet.commands.remote_archive import RemoteArchive
from colmet.commands.top.view import clean
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.text import some_of
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive, has_database, is_shared, path_of
from colmet.jobs.archive.queries import JobArchive, JobFilter
from colmet.jobs.archive.store import ArchiveError
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


def filter_of(options: argparse.Namespace, users: list[str]) -> JobFilter:
    """Return the conditions of the options, of those that the command has."""
    given = vars(options)
    return JobFilter(
        users=users,
        projects=given.get("project", []),
        queues=given.get("queue", []),
        states=given.get("state", []),
        hosts=given.get("host", []),
        array=given.get("array", ""),
        name=given.get("name", ""),
        since=options.since,
        until=options.until,
    )


def open_archive(options: argparse.Namespace) -> JobArchive:
    """Open the archive of the options: with --url that of a collector's JSON interface.

    Raises:
        ConfigError: no archive is named.
        ArchiveError: it cannot be read.
    """
    client = remote.client_of(options)
    if client is not None:
        if options.archive:
            raise ConfigError("--url excludes --archive")
        return RemoteArchive(client)
    path = options.archive
    if not path:
        collector = configured(options.config, _OTHERS)
        is_only_there = has_database(collector) and collector.archive is None and not path_of(collector)
        if is_only_there or is_shared(collector):
            return ElasticArchive.from_options(collector)
        path = _path_of(collector, options.config, _OTHERS)
    if not os.path.exists(path):
        raise ArchiveError(
            f"{path}: there is no such archive, or you may not see it; does colmet-collector write one here? Else {ASK}"
        )
    if not os.access(path, os.R_OK):
        raise ArchiveError(f"{path}: permission denied; {ASK}")
    return LocalArchive(path)


def configured_archive(config: str, other: str = _OTHERS) -> str:
    """Return the path of the archive of this machine's collector; ConfigError without one, which suggests `other`."""
    return _path_of(configured(config, other), config, other)


def _path_of(collector: argparse.Namespace, config: str, other: str) -> str:
    path = path_of(collector)
    if not path:
        raise ConfigError(f"{config} names no job archive: give {other}")
    return path


def own_name() -> str:
    """Return the name of the user who runs the command; its number without a name."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


class Scope(NamedTuple):
    """The users whose jobs are asked for."""

    users: list[str]  # empty for all whose jobs the archive shows
    note: str  # that these are not all; else empty


def scope_of(options: argparse.Namespace, archive: JobArchive) -> Scope:
    """Return the users of --user, else root's choice of all, else oneself; at an interface, those that it shows.

    Raises:
        ConfigError: --all-users where the interface shows own jobs only.
    """
    visitor = archive.visitor() if isinstance(archive, RemoteArchive) else None
    if visitor is not None and visitor.user is not None and not visitor.is_admin:
        if options.project and visitor.projects.issuperset(options.project):
            return Scope(list(options.user), "")
        led = f", and leads {some_of(sorted(visitor.projects), 5)}: --project" if visitor.projects else ""
        if options.all_users:
            raise ConfigError(f"--all-users: {clean(visitor.user)} sees the own jobs only at {options.url}{clean(led)}")
        return Scope(list(options.user), f"jobs of {clean(visitor.user)} only")
    if options.user:
        return Scope(list(options.user), "")
    if options.all_users or os.geteuid() == 0:
        return Scope([], "")
    name = own_name()
    # nodes that do not know the name report the number
    return Scope(list(dict.fromkeys((name, str(os.geteuid())))), f"jobs of {name} only; --all-users has all")


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


def csv_cell(value: object) -> object:
    """Return a value for a cell of CSV: no program that opens it reads a text as a formula."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


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

    Args:
        columns: with equal numbers of cells.
        width: of the terminal; None drops no column.
        styles: of rich, for each row; empty for none.
        rest: how to get the dropped columns.
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
