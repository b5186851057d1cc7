"""Memory by host and job as text: columns for scripts, and a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from colmet.commands.top_view import Line, Part, clean
from colmet.gridengine.model import GIB, UNKNOWN, HostMemory, JobMemory, MemoryReport

BAR = 40  # characters
LEAST_BAR = 10
LONGEST_HOST = 24  # characters of a name on a terminal
LONGEST_OWNER = 12
NAME = 15  # characters of a job's name
DASHES = "-" * 100
MASTER = "Master"

# Titles of QmemTools, verbatim: scripts look for them. Reserved memory is below MEMORY USED.
TITLES = (
    *("HOSTNAME", "USAGE", "PERCENTAGE", "MEMORY NEEDED", "MEMORY USED"),
    *("TOTAL MEMORY", "AVAILABLE MEM", "SLOTS"),
)
SHORT_TITLES = ("HOSTNAME", "USAGE", "PERCENT", "USED", "RESERVED", "TOTAL", "AVAILABLE", "SLOTS")


class Kind(NamedTuple):
    """A part of a bar: its character, its style, and its text in the legend."""

    sign: str
    style: str
    meaning: str


USED = Kind("#", "red", "Used")
RESERVED = Kind("=", "blue", "Reserved")
OTHERS = Kind("-", "bright_black", "Reserved by jobs that are not shown")
HIDDEN = Kind("-", "bright_black", "Available, or other users'")
AVAILABLE = Kind(".", "green", "Available")
UNTOLD = Kind(" ", "", "")


def bar(host: HostMemory, width: int = BAR) -> list[tuple[Kind, int]]:
    """Return the parts of a host's memory, as lengths with the width as sum; every part present has a character.

    The bar is blank if the host's memory is unknown.
    """
    if not host.total:
        return [(UNTOLD, width)]
    parts: list[tuple[Kind, int]] = []
    taken, left = 0.0, width
    claimed = host.claimed
    used = min(host.used or 0.0, claimed)
    others = host.reserved_by_all - (host.reserved or 0.0)
    for kind, amount in ((USED, used), (RESERVED, claimed - used), (OTHERS, others)):
        taken += amount
        length = round(min(taken / host.total, 1.0) * width) - (width - left)
        # less than a byte, from rounding, counts as nothing
        length = min(left, max(length, 1 if amount >= 1 else 0))
        if length:
            parts.append((kind, length))
        left -= length
    if left:
        parts.append((AVAILABLE if host.knows_all else HIDDEN, left))
    return parts


def _cells(of: HostMemory | JobMemory, host: HostMemory) -> list[str]:
    """Return the values of a host, right of its bar, or of a job there, which has no total."""
    sizes = [of.used, of.reserved, *([of.total, of.available] if isinstance(of, HostMemory) else [])]
    return [
        UNKNOWN if of.share is None else f"{100 * of.share:.1f}",
        *[UNKNOWN if size is None else f"{size / GIB:.2f}G" for size in sizes],
        f"{of.slots}/{UNKNOWN if host.processors is None else host.processors}",
    ]


def legend(memory: MemoryReport) -> list[Kind]:
    """Return the kinds in the bars."""
    knows_all = all(host.knows_all for host in memory.hosts)
    hides = any(host.jobs_left_out for host in memory.hosts)
    return [USED, RESERVED, *([OTHERS] if hides else []), AVAILABLE if knows_all else HIDDEN]


def plain(memory: MemoryReport, details: bool, titles: Sequence[str]) -> Iterator[str]:
    """Yield lines of columns with tabs between them, as QmemTools' viewer prints them.

    With `details`, each job has a line below its host, with dashes and titles around each host.
    """
    head = "\t".join(titles)
    if not details:
        yield head
    for host in memory.hosts:
        usage = "".join([kind.sign * length for kind, length in bar(host)]).strip() or UNKNOWN
        line = "\t".join([clean(host.host), usage, *_cells(host, host)])
        if not details:
            yield line
            continue
        yield from (head, DASHES, line, DASHES)
        for job in host.jobs:
            master = MASTER if job.master else ""
            who = [master, clean(job.job), clean(job.owner), clean(job.name)[:NAME]]
            yield "\t".join([*who, *_cells(job, host)])
        yield ""
    if not details:
        yield ""
    yield "\t".join([f"{kind.meaning} ({kind.sign})" for kind in legend(memory)])


class MemoryTable:
    """A table for a terminal of a width; with `details`, each job has a line below its host.

    The words of a title may be one below the other.
    """

    def __init__(self, memory: MemoryReport, details: bool, width: int, titles: Sequence[str]) -> None:
        self._memory = memory
        self._details = details
        self._titles = [title.split() for title in titles]
        self._cells = [_cells(host, host) for host in memory.hosts]
        # without a total and what is available
        self._job_cells = [
            [[*row[:3], "", "", row[3]] for row in (_cells(job, host) for job in host.jobs if details)]
            for host in memory.hosts
        ]
        columns = [*self._cells, *[row for rows in self._job_cells for row in rows]]
        widths = [max(map(len, words)) for words in self._titles[2:]]
        self._sizes = [max([width, *[len(row[n]) for row in columns]]) for n, width in enumerate(widths)]
        names = max([len(host.host) for host in memory.hosts], default=0)
        self._name = max(len(titles[0]), min(LONGEST_HOST, names))
        room = width - self._name - sum([size + 1 for size in self._sizes]) - 1
        self._bar = max(LEAST_BAR, min(BAR, room))
        self._name = max(8, self._name - max(0, self._bar - room))
        jobs = [job for host in memory.hosts for job in host.jobs] if details else []
        self._job = max([len(job.job) for job in jobs], default=0)
        self._owner = min(LONGEST_OWNER, max([len(job.owner) for job in jobs], default=0))

    def lines(self) -> Iterator[Line]:
        """Yield all lines, from top to bottom."""
        for n in range(max([len(words) for words in self._titles])):
            words = [title[n] if n < len(title) else "" for title in self._titles]
            head = f"{words[0]:<{self._name}} {words[1]:<{self._bar}}"
            yield [Part(head + self._numbers(words[2:]), "bold")]
        for host, cells, jobs in zip(self._memory.hosts, self._cells, self._job_cells):
            yield self._host(host, cells)
            for job, of_job in zip(host.jobs, jobs):
                yield self._of_job(job, of_job)
        yield []
        yield [
            part for kind in legend(self._memory) for part in (Part(kind.sign, kind.style), Part(f" {kind.meaning}  "))
        ]

    def _numbers(self, cells: Sequence[str]) -> str:
        return "".join([f" {cell:>{size}}" for cell, size in zip(cells, self._sizes)])

    def _host(self, host: HostMemory, cells: Sequence[str]) -> Line:
        name = _cut(clean(host.host), self._name)
        line = [Part(f"{name:<{self._name}}", "bold red" if host.is_crowded else "bold"), Part(" ")]
        for kind, length in bar(host, self._bar):
            line.append(Part(kind.sign * length, kind.style))
        texts = [f" {cell:>{size}}" for cell, size in zip(cells, self._sizes)]
        over = host.available is not None and host.available < 0
        verdict = "" if not host.used or host.share is None else "bold blue" if host.share >= 0.5 else "bold red"
        styles = [verdict, "", "", "", "bold red" if over else "", ""]
        return [*line, *map(Part, texts, styles)]

    def _of_job(self, job: JobMemory, cells: Sequence[str]) -> Line:
        room = self._name + 1 + self._bar
        master = MASTER if job.master else ""
        who = f"  {master:<{len(MASTER)}} {clean(job.job):<{self._job}} {_cut(clean(job.owner), self._owner)}"
        who = f"{who:<{len(MASTER) + self._job + self._owner + 4}} {clean(job.name)[:NAME]}"
        return [Part(f"{_cut(who, room):<{room}}" + self._numbers(cells))]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def document_of(memory: MemoryReport, details: bool) -> dict[str, Any]:
    """Return all figures, for programs; with `details` also of jobs. docs/tools/mem.md has the names."""
    names = ("host", "processors", "slots", "used", "reserved", "share", "total", "available")
    hosts: list[dict[str, Any]] = [{name: getattr(host, name) for name in names} for host in memory.hosts]
    if details:
        for host, document in zip(memory.hosts, hosts):
            document["jobs"] = [{**job._asdict(), "share": job.share} for job in host.jobs]
    return {"hosts": hosts, "untold": memory.untold, "unread": memory.unread}
