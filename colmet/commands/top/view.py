"""The output of `colmet top` as lines of text, independent of the terminal."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.measures import PROCESSES
from colmet.common.text import counted

Row = Mapping[str, Any]
NONE = "-"
NEAR = 0.95  # of the memory limit; marked from here on
BARS = " ▁▂▃▄▅▆▇█"
PLAIN_BARS = " .:-=+*#@"
GAP = " "

# Styles of rich.
TITLE, DIM, HEAD, SELECTED, BAD, KEY = "bold", "dim", "reverse", "reverse bold", "bold red", "bold cyan"


class Part(NamedTuple):
    """Text of one style."""

    text: str
    style: str = ""


Line = Sequence[Part]


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join([part.text for part in line]).rstrip()


def cut(line: Line, width: int) -> list[Part]:
    """Return the line, cut to a width."""
    kept = []
    for part in line:
        kept.append(Part(part.text[:width], part.style))
        width -= len(part.text)
        if width <= 0:
            break
    return kept


def clean(text: object) -> str:
    """Make foreign text safe for a terminal: printable characters of one cell, others replaced by ?."""
    return "".join(
        [
            c
            if c.isprintable() and not unicodedata.combining(c) and unicodedata.east_asian_width(c) not in "WF"
            else "?"
            for c in str(text)
        ]
    )


# -- values --


def number(value: float | None) -> str:
    """Return a count, in at most five characters up to ten million."""
    if value is None:
        return NONE
    return f"{value:.0f}" if value < 99_999.5 else f"{value / 1000:.0f}k"


def decimal(value: float | None) -> str:
    """Return a mean number of CPUs or of tasks."""
    return number(value) if value is None or value >= 999.95 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Return bytes, or bytes a second, in at most five characters."""
    if value is None:
        return NONE
    unit = 0
    while unit < 6 and value >= (1000 if unit == 0 else 999.5):
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:.0f}"
    return f"{value:.1f}{'KMGTPE'[unit - 1]}" if value < 99.95 else f"{value:.0f}{'KMGTPE'[unit - 1]}"


def share(value: float | None) -> str:
    """Return a share of 1 in percent."""
    return NONE if value is None else f"{100 * value:.0f}%"


def memory_share(value: float | None) -> str:
    """Return a share of a limit in percent, marked from `NEAR` on."""
    return share(value) + ("!" if value is not None and value >= NEAR else "")


def age(value: float | None) -> str:
    """Return seconds as a duration in at most five characters."""
    if value is None:
        return NONE
    if abs(value) < 9.95:
        return f"{value:.1f}s"
    for limit, seconds, unit in ((99.5, 1, "s"), (99.5 * 60, 60, "m"), (99.5 * 3600, 3600, "h")):
        if value < limit:
            return f"{value / seconds:.0f}{unit}"
    return f"{value / 86400:.0f}d"


def spark(values: Iterable[float | None], width: int, bars: str = BARS) -> str:
    """Return the latest values as bars, from 0 to the largest; blank for unknown ones."""
    latest = list(values)[-width:]
    most = max([value for value in latest if value is not None], default=0.0)
    steps = len(bars) - 1
    text = [
        bars[0] if value is None else bars[1 if most <= 0 else max(1, min(steps, round(value / most * steps)))]
        for value in latest
    ]
    return "".join(text)


# -- tables --


class ViewColumn(NamedTuple):
    """One column of a table."""

    key: str  # of the answer's rows
    title: str  # above it
    width: int  # in characters
    show: Callable[[Any], str]  # converts its value to text
    rank: int  # priority; columns with the lowest rank are dropped first if there is no room
    left: bool = False  # whether it is text, aligned to the left


JOB_COLUMNS = (
    ViewColumn("job", "JOB", 9, str, 99),
    ViewColumn("user", "USER", 9, clean, 90, left=True),
    ViewColumn("nodes", "NODES", 5, number, 60),
    ViewColumn("cpu", "CPU", 6, decimal, 98),
    ViewColumn("cpus", "OF", 6, number, 40),
    ViewColumn("cpu_share", "CPU%", 5, share, 95),
    ViewColumn("memory", "MEM", 6, size, 97),
    ViewColumn("memory_share", "MEM%", 5, memory_share, 94),
    ViewColumn("memory_peak", "PEAK", 6, size, 20),
    ViewColumn("memory_swap", "SWAP", 6, size, 10),
    ViewColumn("read", "READ/s", 6, size, 80),
    ViewColumn("write", "WRIT/s", 6, size, 80),
    ViewColumn("wait", "WAIT", 5, decimal, 50),
    ViewColumn("tasks", "TASKS", 5, number, 45),
    ViewColumn("gpus", "GPUS", 4, number, 85),
    ViewColumn("gpu", "GPU%", 4, share, 86),
    ViewColumn("gpu_memory", "GMEM", 6, size, 15),
    ViewColumn("age", "AGE", 4, age, 70),
    ViewColumn("on", "ON", 16, clean, 5, left=True),
)
DETAIL_COLUMNS = (
    ViewColumn("node", "NODE", 16, clean, 99, left=True),
    *[column for column in JOB_COLUMNS if column.key not in ("job", "user", "nodes", "on")],
)
NODE_COLUMNS = (
    ViewColumn("node", "NODE", 16, clean, 99, left=True),
    ViewColumn("jobs", "JOBS", 5, number, 90),
    ViewColumn("cpu", "CPU%", 5, share, 98),
    ViewColumn("iowait", "IOW%", 5, share, 60),
    ViewColumn("steal", "STL%", 5, share, 10),
    ViewColumn("load", "LOAD", 6, decimal, 80),
    ViewColumn("memory", "MEM", 6, size, 85),
    ViewColumn("memory_total", "OF", 6, size, 50),
    ViewColumn("memory_share", "MEM%", 5, memory_share, 95),
    ViewColumn("swap", "SWAP", 6, size, 40),
    ViewColumn("read", "READ/s", 6, size, 30),
    ViewColumn("write", "WRIT/s", 6, size, 30),
    ViewColumn("seen_age", "SEEN", 5, age, 97),
    ViewColumn("lag", "LAG", 5, age, 70),
)
COLUMNS = {"jobs": JOB_COLUMNS, "nodes": NODE_COLUMNS, "job": DETAIL_COLUMNS}
# Columns dropped if no row has a value.
OPTIONAL = frozenset({"gpus", "gpu", "gpu_memory", "memory_swap", "swap", "steal"})


def chosen(columns: Sequence[ViewColumn], rows: Sequence[Row], width: int) -> list[ViewColumn]:
    """Return the columns for a width, by rank, without empty optional ones."""
    there = [column for column in columns if column.key not in OPTIONAL or any(row.get(column.key) for row in rows)]
    room, kept = width - 1, set()
    for column in sorted(there, key=lambda one: -one.rank):
        if column.width + len(GAP) > room:
            break
        kept.add(column.key)
        room -= column.width + len(GAP)
    return [column for column in there if column.key in kept]


def _cell(column: ViewColumn, text: str, sized: int) -> str:
    text = text if len(text) <= sized or not column.left else text[: sized - 1] + "~"
    return text.ljust(sized) if column.left else text.rjust(sized)


def table(
    view: str, rows: Sequence[Row], width: int, sort: str = "", selected: int = -1, shown: Sequence[Row] | None = None
) -> list[list[Part]]:
    """Return a line of titles, and one for each shown row; all rows by default.

    All rows count for the choice of columns. `sort` is the key of the marked column, `selected` the index of the
    selected row among the shown ones.
    """
    columns = chosen(COLUMNS[view], rows, width)
    spare = width - 1 - sum([column.width + len(GAP) for column in columns])
    grows = next((column.key for column in columns if column.left), "")
    sizes = {column.key: column.width + (min(spare, 24) if column.key == grows else 0) for column in columns}
    head = [Part(GAP, HEAD)]
    for column in columns:
        marked = column.key == sort or (sort == "io" and column.key in ("read", "write"))
        head.append(Part(_cell(column, column.title, sizes[column.key]) + GAP, f"{HEAD} bold" if marked else HEAD))
    lines = [_padded(head, width, HEAD)]
    for n, row in enumerate(rows if shown is None else shown):
        base = SELECTED if n == selected else DIM if row.get("silent") else ""
        line = [Part(">" if n == selected else " ", base)]
        for column in columns:
            text = _cell(column, column.show(row.get(column.key)), sizes[column.key])
            bad = column.key == "memory_share" and (row.get("memory_share") or 0) >= NEAR
            bad |= column.key == "seen_age" and bool(row.get("silent"))
            line.append(Part(text + GAP, f"{base} {BAD}".strip() if bad else base))
        lines.append(_padded(line, width, base) if n == selected else line)
    return lines


def _padded(line: list[Part], width: int, style: str) -> list[Part]:
    return [*line, Part(" " * (width - sum([len(part.text) for part in line])), style)]


# -- the lines above the table --


def where(answer: Row) -> str:
    """Return the daemon and its host."""
    return f"{clean(answer.get('daemon', '?'))} {clean(answer.get('host', '?'))}"


def summary(answer: Row) -> list[str]:
    """Return two lines: the number of rows and nodes, and the totals of use."""
    heard, measured = answer.get("nodes_heard") or 0, answer.get("nodes_measured") or 0
    shown = len(answer.get("rows") or ())
    count = counted(answer.get("count") or 0, "jobs" if answer.get("view") == "jobs" else "nodes")
    if shown < (answer.get("count") or 0):
        count = f"the first {shown:,} of {count}"
    first = f"{count}, {counted(heard, 'nodes')} heard"
    if measured < heard:
        first += f"; the rates of {counted(heard - measured, 'nodes')} come with the next sample"
    if answer.get("left_out"):
        first += f"; {answer['left_out']:,} TABLES LEFT OUT, there are too many jobs"
    totals = answer.get("totals")
    if not totals:
        return [first, ""]
    if answer.get("view") != "jobs":
        silent = f"{counted(totals['silent'], 'nodes')} SILENT, " if totals.get("silent") else ""
        of = f"{size(totals.get('memory'))} of {size(totals.get('memory_total'))}"
        return [first, f"{silent}CPUs {share(totals.get('cpu'))} busy (mean of the nodes), memory {of}"]
    used = f"{decimal(totals.get('cpu'))} of {number(totals.get('cpus'))} CPUs"
    if totals.get("cpu_share") is not None:
        used += f" ({share(totals['cpu_share'])})"
    rates = f"read {size(totals.get('read'))}/s, write {size(totals.get('write'))}/s"
    gpus = f", {number(totals['gpus'])} GPUs" if totals.get("gpus") else ""
    second = f"in all: {used}, memory {size(totals.get('memory'))}, {rates}{gpus}"
    return [first, second]


def detail(job: Row | None, number_: int, history: Sequence[Row], width: int, bars: str = BARS) -> list[list[Part]]:
    """Return the lines on one job: its present use, and the history since the start of the command."""
    if job is None:
        return [[Part(f"Job {number_} has no rows now: it has ended, or is not measured here.", BAD)]]
    user = clean(job.get("user") or "")
    age_s = job.get("age")
    head = f"Job {number_}" + (f" of {user}" if user else "") + f" on {counted(job.get('nodes') or 0, 'nodes')}"
    lines = [[Part(head, TITLE), Part(f", its oldest task {age(age_s)} old" if age_s is not None else "")]]

    limit = f" of {size(job.get('memory_limit'))} ({memory_share(job.get('memory_share'))})"
    known = limit if job.get("memory_limit") else ", its processes" if job.get("memory_source") == PROCESSES else ""
    cpus = f"{decimal(job.get('cpu'))} of {number(job.get('cpus'))} ({share(job.get('cpu_share'))})"
    values: list[tuple[str, str, str, Callable[[float | None], str]]] = [
        ("CPUs", "cpu", cpus, decimal),
        ("memory", "memory", size(job.get("memory")) + known, size),
        ("read", "read", f"{size(job.get('read'))}/s", size),
        ("write", "write", f"{size(job.get('write'))}/s", size),
    ]
    if job.get("gpus"):
        gpus = f"{share(job.get('gpu'))} of {number(job.get('gpus'))}, {size(job.get('gpu_memory'))}"
        values.append(("GPUs", "gpu", gpus, share))
    room = max(8, width - 48)
    for title, key, text, show in values:
        line = [Part(f"  {title:<7}", DIM), Part(f"{text:<26.26} " if history else text)]
        if history:
            of_key = [row.get(key) for row in history]
            most = max([value for value in of_key if value is not None], default=None)
            line += [Part(f"{spark(of_key, room, bars):<{room}}", "cyan"), Part(f" max {show(most)}", DIM)]
        lines.append(line)
    waits = [
        f"{decimal(job.get(key))} {what}"
        for key, what in (("wait_cpu", "a CPU"), ("wait_io", "I/O"), ("wait_swap", "swap"), ("wait_reclaim", "memory"))
    ]
    lines.append([Part(f"  {'tasks':<7}", DIM), Part(f"{number(job.get('tasks'))}; waiting for: {', '.join(waits)}")])
    peak = f"  {'memory':<7}"
    more = f"anonymous {size(job.get('memory_anon'))}, peak {size(job.get('memory_peak'))}"
    kills = job.get("oom_kills")
    lines.append([Part(peak, DIM), Part(more + f", swap {size(job.get('memory_swap'))}")])
    if kills:
        lines[-1].append(Part(f"; {number(kills)} PROCESSES KILLED for lack of memory", BAD))
    return lines


def clock(then: float) -> str:
    """Return a time of day, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(then))
