"""The text of ``colmet-node --once``: the backends that can measure on this node, and one sample."""

from __future__ import annotations

import argparse
import errno
import itertools
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from colmet import __version__
from colmet.common.config import plugins
from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.host import capabilities
from colmet.common.host.host import Host
from colmet.common.schema import UNITS, Field, Sample, Table, Value
from colmet.common.tables.agent import AGENT as ACCOUNT
from colmet.common.text import columns, printable, wrap
from colmet.node.agent_tables import AgentStats
from colmet.node.backend import InputBackend
from colmet.node.jobs.controllers import distinct_controllers
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.places import ABSENT, NAMED, PlaceState
from colmet.node.jobs.source import JobSource
from colmet.node.runner import Runner, connect

log = logging.getLogger(__name__)

WIDTH = 100
_INDENT = "  "
MAX_LABEL = 24
INTERVAL_S = 1.0  # for backends with rows of the time between two samples
# seconds, name, and the upper bound in seconds
_TIMES = ((1e-9, "ns", 1e-6), (1e-6, "us", 1e-3), (1e-3, "ms", 1), (1, "s", 100), (60, "min", 6e3), (3600, "h", 3.6e5))


# -- values for people --


def _number(value: float) -> str:
    """Return a whole number with separators, any other with three digits or more."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    for unit, name, below in _TIMES:
        if abs(seconds) < below:
            return f"{_number(seconds / unit)} {name}"
    return f"{seconds / 86400:,.1f} d"


def humanise(field: Field, value: Value) -> str:
    """Return a value in readable form; ``-`` if missing."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "replace"))
    unit = UNITS[field.unit]
    if unit.family == "size":
        divisor, symbol = unit.scaled(abs(value * unit.factor))
        return f"{value * unit.factor / divisor:.{int(divisor > 1)}f} {symbol}"
    if unit.family == "duration":
        return _duration(value * unit.factor)
    if unit.family == "date":
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
        except (OverflowError, ValueError, OSError):  # beyond any calendar
            return _number(value)
    if unit.text and unit.factor < 1:
        return f"{value * unit.factor:,.1f} {unit.text}"
    return f"{_number(value)} {unit.text}".rstrip()


def _heading(table: Table, sample: Sample, label: Field | None) -> str:
    """Return the head of a row's values."""
    words = [f"job {sample.job_id}"] if table.schema.scope == "job" else []
    value = None if label is None else sample.values[label.name]
    if label is not None and value is not None:
        words.append(humanise(label, value)[:MAX_LABEL])
    return " ".join(words) or "node"


def format_table(table: Table, only_known: bool = False, counters: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of a table: a line for each metric, a column for each row, in blocks of a terminal's width.

    Args:
        table: the table.
        only_known: skip metrics without a value in any row.
        counters: the contents of numbered columns, by name.
    """
    samples = list(table.samples())
    label = next((field for field in table.schema.fields if field.kind == "label"), None)
    fields = [
        field
        for field in table.schema.fields
        if field is not label and not (only_known and all(one.values[field.name] is None for one in samples))
    ]
    contents = counters or {}
    names = ["", *[f"{field.name} {printable(contents.get(field.name, ''))}".rstrip() for field in fields]]
    cells = [
        [_heading(table, sample, label), *[humanise(field, sample.values[field.name]) for field in fields]]
        for sample in samples
    ]
    yield table.schema.name
    room = WIDTH - 2 - max(map(len, names))
    while cells:
        widths = itertools.accumulate(2 + max(map(len, column)) for column in cells)
        fitting = max(1, sum(width <= room for width in widths))
        block, cells = [names, *cells[:fitting]], cells[fitting:]
        yield from columns(list(zip(*block)), range(1, len(block)), _INDENT)
        yield ""


# -- the parts of the report --


def _about(host_name: str) -> Iterator[str]:
    system = os.uname()
    yield f"colmet-node {__version__} on {host_name}, {system.sysname} {system.release} {system.machine}"
    if lacking := capabilities.find_lacking(*sorted(capabilities.CORE)):
        remedy = capabilities.suggest(*lacking)
        yield from wrap(f"Values of other users' jobs may be missing without {', '.join(lacking)}: {remedy}.", WIDTH)


def _places(source: JobSource) -> Iterator[str]:
    yield ""
    yield "Places searched for jobs' cgroups"
    states = source.describe()
    here = {state.name for state in states if state.state != ABSENT}
    shown: list[PlaceState] = []
    for state in states:
        # of a layout, its existing places, or one possible place: all would only fill the page
        if state.name == NAMED or state.state != ABSENT or state.name not in here | {one.name for one in shown}:
            shown.append(state)
    yield from columns([(one.help.partition(":")[0], printable(one.path), one.state) for one in shown], (), _INDENT)


def _jobs(jobs: Sequence[Job]) -> Iterator[str]:
    yield ""
    yield "Jobs"
    if not jobs:
        yield from wrap(
            "none found. A job is a directory in one of these places with a name that ends in _<job id>; "
            "--cpuset_rootpath and --regex_job_id change that.",
            WIDTH,
            _INDENT,
            _INDENT,
        )
        return
    rows = [("job", "user", "processes", "tasks", "cgroups")]
    for job in jobs:
        numbers = []
        for read in (job.pids, job.tids):
            try:
                numbers.append(f"{len(read()):,}")
            except OSError as err:
                numbers.append("-")
                log.warning("cannot read the tasks of job=%d: %s", job.id, err)
        name = "-c -p -t" if job.id == NODE_JOB else str(job.id)
        first, *others = [printable(path) for path in job.cgroups] or [""]
        rows.append((name, printable(job.user), numbers[0], numbers[1], first))
        rows.extend([("", "", "", "", path) for path in others])
    yield from columns(rows, (0, 2, 3), _INDENT)


def _controllers(host: Host, jobs: Sequence[Job], states: Sequence[PlaceState]) -> Iterator[str]:
    """Yield the jobs' controllers, and the setting that adds memory if missing."""
    found = distinct_controllers(host, jobs, states)
    if not found:
        return
    yield ""
    yield "Controllers of the jobs"
    for one in found:
        text = f"{printable(one.text)}: {', '.join(one.has) or 'none'}"
        if one.lacks:
            text += f"; not {', '.join(one.lacks)}"
        if "memory" in one.lacks:
            text += f". For memory {one.remedy(['memory'])}"
        yield from wrap(text, WIDTH, _INDENT, 2 * _INDENT)


def switch_of(cls: type[InputBackend]) -> str:
    """Return why a backend is off, with the option that changes it."""
    on, off = cls.switches()
    if off:
        return f"turned off by {off}"
    return f"not requested; {on} turns it on" if on else "not requested"


class _Trial:
    """A backend of this build, and whether it can measure here.

    Attributes:
        name: of the backend.
        runner: of the backend, None if not requested.
        finding: ``on``, or ``off`` with the reason.
    """

    def __init__(self, cls: type[InputBackend], options: argparse.Namespace, host: Host) -> None:
        self.name = cls.name
        self.runner: Runner | None = None
        backend = plugins.make(cls, options, host)
        if backend is None:
            self.finding = f"off: {switch_of(cls)}"
            return
        self.runner = Runner(backend)
        try:
            with self.runner.meter:
                backend.open()
        except (BackendUnavailable, CommandFailed, ParseError, OSError) as err:
            self.finding = f"off: {err}"
            backend.close()
        else:
            self.finding = f"on, {backend.part}" if backend.part else "on"
            self.runner.is_open = True

    def begin_interval(self, jobs: Sequence[Job]) -> bool:
        """Begin an interval, if the rows are of one; return whether they are."""
        if self.runner is None or not self.runner.backend.of_interval:
            return False
        self.sample(jobs, time.time_ns())
        return self.runner.is_open

    def sample(self, jobs: Sequence[Job], time_ns: int) -> list[Table]:
        """Return its tables; none if it is off or has no rows."""
        if self.runner is None or not self.runner.is_open:
            return []
        tables = self.runner.sample(jobs, time_ns)
        if self.runner.failures:
            self.finding = "on, but this sample failed: see the log"
        elif not self.runner.is_open:
            self.finding = "off: see the log"
        return tables


def report(
    options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host, host_name: str, source: JobSource
) -> tuple[str, int]:
    """Return the text of --once, and the exit status: 0, or 1 if no backend is on.

    Raises:
        ConfigError: the options of a backend cannot work.
    """
    tried: list[_Trial] = []
    try:
        for cls in classes:
            tried.append(_Trial(cls, options, host))  # noqa: PERF401 - those before one that raises are closed
        asked_for = {one.runner.backend: one for one in tried if one.runner is not None}
        in_order = [asked_for[backend] for backend in connect(list(asked_for))]
        jobs = source.scan().jobs
        begun = [one for one in in_order if one.begin_interval(jobs)]
        if begun:
            time.sleep(INTERVAL_S)
            jobs = source.scan().jobs
        time_ns = time.time_ns()
        tables = [table for one in in_order for table in one.sample(jobs, time_ns)]
        runners = [one.runner for one in tried if one.runner is not None]
        totals = {
            "jobs": len([job for job in jobs if job.id != NODE_JOB]),
            "discovery_failures": source.counters()["discovery_failures"],
        }
        tables.append(AgentStats(host).table(time_ns, runners, totals))
        status = 0 if any(runner.is_open for runner in runners) else 1
        lines = [*_about(host_name), *_places(source), *_jobs(jobs), *_controllers(host, jobs, source.describe())]
        lines += ["", "What is measured"]
        width = max([len(one.name) for one in tried], default=0)
        for one in tried:
            first = f"{_INDENT}{one.name:{width}}{_INDENT}"
            lines += wrap(one.finding, WIDTH, first, " " * len(first))
        lines += ["", "One sample; a counter is the total so far, - is a value that is missing", ""]
        named = {runner.backend.schema: runner.backend.counter_names() for runner in runners if runner.is_open}
        for table in tables:
            counters = {one.counter: f"{one.name} {one.zone}".rstrip() for one in named.get(table.schema, ())}
            only_known = table.schema is ACCOUNT or bool(counters)
            lines += format_table(table, only_known=only_known, counters=counters)
        return "\n".join(lines).rstrip() + "\n", status
    finally:
        for one in tried:
            if one.runner is not None:
                one.runner.close()


def show(text: str) -> bool:
    """Write to standard output; return True on success or if its reader has closed it."""
    data = text.encode()
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        while data:  # beneath sys.stdout: a failed write to a pipe would be retried at exit
            data = data[os.write(sys.stdout.fileno(), data) :]
    except BrokenPipeError:
        return True
    except OSError as err:
        log.error("cannot write to standard output: %s", err.strerror)
        return False
    return True
