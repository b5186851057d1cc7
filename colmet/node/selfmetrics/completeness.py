"""What is complete: of each table what was due, measured, sent and dropped; and what is missing, from when to when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from colmet.common.runtime import cli
from colmet.common.schema import Batch, Sample, Schema, Table
from colmet.common.tables.completeness import ALL, GAPS, SCHEMA
from colmet.node.jobs.job import NODE_JOB

FAILED, LATE, DROPPED = "failed", "late", "dropped"
MAX_GAPS = 16  # of one table and reason from one row to the next; then the latest one takes in the next ones
MAX_TOLD = 1024  # rows of gaps that are told again, should the batch that tells them be dropped
_NS = 10**9


class Range(Protocol):
    """Batches that were given up: `held.Dropped`."""

    @property
    def epoch(self) -> int: ...  # noqa: D102

    @property
    def first(self) -> int: ...  # noqa: D102

    @property
    def last(self) -> int: ...  # noqa: D102

    @property
    def since_ns(self) -> int: ...  # noqa: D102

    @property
    def until_ns(self) -> int: ...  # noqa: D102


class Fate(NamedTuple):
    """What became of batches, as of now.

    Attributes:
        batches: how many were sent, acknowledged and dropped.
        by_table: the same of those with rows of a table.
        dropped: which ones were dropped, as far as that is remembered.
        duplicates: that came to the collector more than once, as it says.
    """

    batches: Mapping[str, int]
    by_table: Mapping[str, Mapping[str, int]]
    dropped: Sequence[Range]
    duplicates: int


def add_options(parser: cli.Options) -> None:
    """Declare --ledger-period and --disable-ledger."""
    parser.add_argument(
        "--ledger-period",
        metavar="S",
        type=cli.positive_seconds,
        default=60.0,
        help=cli.Rare(
            "seconds between two rows of completeness_default, which counts samples due, measured, sent and dropped "
            "(default: %(default)g)"
        ),
    )
    parser.add_argument(
        "--disable-ledger",
        action="store_true",
        help=cli.Rare("do not send completeness_default and gaps_default: missing samples then cannot be noticed"),
    )


@dataclass
class _Count:
    due: int = 0
    taken: int = 0
    failed: int = 0
    late: int = 0
    rows: int = 0


@dataclass
class _Gap:
    """Samples that are missing, one after the other unless there were too many gaps to tell apart."""

    table: str
    why: str
    epoch: int
    first_ns: int
    last_ns: int
    samples: int
    batches: tuple[int, int] | None = None

    def sample(self) -> Sample:
        """Its row."""
        return Sample(
            NODE_JOB,
            {
                "table": self.table.encode(),
                "why": self.why.encode(),
                "epoch": self.epoch,
                # 0 where a file that was lost did not say it any more
                "first": self.first_ns // _NS or None,
                "last": self.last_ns // _NS or None,
                "samples": self.samples,
                **(dict(zip(("first_batch", "last_batch"), self.batches)) if self.batches else {}),
            },
        )


class Ledger:
    """Keeps the account, and adds it to batches: at the first, then once a period, and at the end.

    A gap is told in one batch, and again when it has grown or that batch was dropped.

    Args:
        fate: tells what became of the batches before.
        period_s: seconds between two accounts; 0 for one in each batch.
        periodic: names of tables that are not due at each tick.
    """

    def __init__(
        self,
        fate: Callable[[], Fate],
        period_s: float = 0,
        periodic: Iterable[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fate = fate
        self._period_s = period_s
        self._monotonic = monotonic
        self._due_at = monotonic()
        self._periodic = {*periodic, SCHEMA.name, GAPS.name}
        self._counts: dict[str, _Count] = {}
        self._batches = self._rows = 0
        self._at_tick: set[str] = set()  # tables that the last tick had, or missed
        self._tick_ns = self._batch_ns = 0
        self._ahead: dict[str, tuple[int, int]] = {}  # of a table: a second that was not over, and rows taken for it
        self._untold: list[_Gap] = []
        self._open: dict[tuple[str, str], tuple[_Gap, int]] = {}  # gaps that may go on, with the tick of their end
        self._ticks = 0
        self._told: deque[tuple[int, list[_Gap]]] = deque(maxlen=MAX_TOLD)  # by number of the batch
        self._dropped: dict[tuple[int, int], int] = {}  # ranges told, by epoch and first number: the last one
        self._new_gaps: dict[tuple[str, str], int] = {}

    def begin_tick(self, time_ns: int) -> None:
        """A tick begins; what is missed belongs to it."""
        self._ticks += 1
        self._tick_ns = time_ns
        self._at_tick.clear()

    def missed(self, why: str, schemas: Iterable[Schema], has_jobs: bool, is_open: bool) -> None:
        """A backend has measured nothing at this tick, though it was due.

        Args:
            why: FAILED or LATE.
            schemas: of its tables, the first one first.
            has_jobs: whether there are jobs to measure; tables of jobs are not due without.
            is_open: whether it could measure; what it has never measured is not due while it cannot.
        """
        schemas = list(schemas)
        known = [schema for schema in schemas if schema.name in self._counts]
        for schema in known or (schemas[:1] if is_open else ()):
            if schema.scope == "node" or has_jobs:
                self._at_tick.add(schema.name)
                self._miss(schema.name, why, self._tick_ns, self._tick_ns, 1, self._ticks)

    def skipped(self, count: int, period_s: float) -> None:
        """So many ticks after the last one were skipped."""
        first_ns, last_ns = [self._tick_ns + int(n * period_s * _NS) for n in (1, count)]
        self._ticks += count
        for table in self._at_tick:
            self._miss(table, LATE, first_ns, last_ns, count, self._ticks)

    def _miss(self, table: str, why: str, first_ns: int, last_ns: int, samples: int, tick: int) -> None:
        counts = self._counts.setdefault(table, _Count())
        counts.due += samples
        if why == LATE:
            counts.late += samples
        else:
            counts.failed += samples
        gap, until = self._open.get((table, why), (None, 0))
        news = self._new_gaps.get((table, why), 0)
        if gap is not None and (until == tick - samples or news >= MAX_GAPS):
            gap.last_ns, gap.samples = last_ns, gap.samples + samples
        else:
            gap = _Gap(table, why, 0, first_ns, last_ns, samples)
            self._new_gaps[table, why] = news + 1
        self._open[table, why] = gap, tick
        self._tell(gap)

    def _tell(self, gap: _Gap) -> None:
        if not any(gap is other for other in self._untold):
            self._untold.append(gap)

    def add(self, batch: Batch, period_s: float, ends: bool = False) -> Batch:
        """Note a batch; where the account is due, it is added.

        Args:
            batch: as it would be sent, with numbers.
            period_s: of the samples.
            ends: it is the agent's last batch.
        """
        self._batches += 1
        second = batch.time_ns // _NS
        self._take(batch.tables, second)
        now = self._monotonic()
        # a tick that comes a little early, as ticks do, is not to make the period one tick longer
        is_due = now >= self._due_at - min(1.0, self._period_s / 10)
        # rows are stored with whole seconds: an account is in the first batch of one, so that what was before is known
        is_first = second != self._batch_ns // _NS
        self._batch_ns = batch.time_ns
        if not (ends or (is_due and is_first)):
            return batch
        self._due_at = max(self._due_at + self._period_s, now)
        tables = self._account(batch, period_s, ends)
        return batch._replace(tables=(*batch.tables, *tables))

    def _take(self, tables: Iterable[Table], second: int) -> None:
        for table in tables:
            name = table.schema.name
            if (of := table.time_ns // _NS) > second:  # a job's last row
                self._ahead[name] = of, len(table) + self._rows_ahead(name, of)
            counts = self._counts.setdefault(name, _Count())
            counts.due += 1
            counts.taken += 1
            counts.rows += len(table)
            self._rows += len(table)
            if name not in self._periodic:
                self._at_tick.add(name)

    def _rows_ahead(self, name: str, second: int) -> int:
        """Rows of a table that were taken for a second before it came."""
        of, rows = self._ahead.get(name, (0, 0))
        return rows if of == second else 0

    def _account(self, batch: Batch, period_s: float, ends: bool) -> list[Table]:
        epoch, time_ns = batch.epoch or 0, batch.time_ns
        following = time_ns // _NS + 1
        if ends and any(self._rows_ahead(name, following) for name in self._ahead):
            time_ns = following * _NS  # no account comes after it that would count them
        fate = self._fate()
        self._note_dropped(fate.dropped)
        lost = [(one.first, one.last) for one in fate.dropped if one.epoch == epoch]
        for number, gaps in list(self._told):
            if any(first <= number <= last for first, last in lost):
                self._told.remove((number, gaps))
                for gap in gaps:
                    self._tell(gap)
        tables = []
        if self._untold:
            gaps, self._untold = self._untold, []
            self._new_gaps.clear()
            for gap in gaps:
                gap.epoch = gap.epoch or epoch
            self._told.append((batch.seq or 0, gaps))
            tables.append(Table.from_samples(GAPS, time_ns, [gap.sample() for gap in gaps]))
        second = time_ns // _NS
        self._take(tables, second)
        now = {name: rows for name in self._ahead if (rows := self._rows_ahead(name, second))}
        for table in (*batch.tables, *tables):
            if table.time_ns // _NS == second:
                now[table.schema.name] = now.get(table.schema.name, 0) + len(table)
        own = self._counts.setdefault(SCHEMA.name, _Count())
        own.due, own.taken = own.due + 1, own.taken + 1
        now[SCHEMA.name] = len(self._counts) + 1
        own.rows += now[SCHEMA.name]
        self._rows += now[SCHEMA.name]
        common = {"epoch": epoch, "period": int(period_s * 1e6), "is_last": int(ends)}
        samples = [
            Sample(
                NODE_JOB,
                {
                    "table": ALL.encode(),
                    **common,
                    "taken": self._batches,
                    "rows": self._rows,
                    "rows_now": sum(now.values()),
                    **_sums(fate.batches),
                    "duplicate": fate.duplicates,
                },
            )
        ]
        for name, counts in self._counts.items():
            values = {**common, **vars(counts), "rows_now": now.get(name, 0), **_sums(fate.by_table.get(name, {}))}
            samples.append(Sample(NODE_JOB, {"table": name.encode(), **values}))
        tables.append(Table.from_samples(SCHEMA, time_ns, samples))
        return tables

    def _note_dropped(self, ranges: Sequence[Range]) -> None:
        there = {(one.epoch, one.first) for one in ranges}
        self._dropped = {key: last for key, last in self._dropped.items() if key in there}
        for one in ranges:
            key = one.epoch, one.first
            if self._dropped.get(key) != one.last:
                self._dropped[key] = one.last
                self._untold.append(
                    _Gap(
                        *(ALL, DROPPED, one.epoch, one.since_ns, one.until_ns, one.last - one.first + 1),
                        batches=(one.first, one.last),
                    )
                )


def _sums(counts: Mapping[str, int]) -> dict[str, int]:
    """The columns of what became of batches."""
    return {name: counts.get(name, 0) for name in ("sent", "acknowledged", "dropped")}
