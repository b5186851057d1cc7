"""Self-metrics: the tables of the agent on itself.

agent_default has a row for the agent as a whole and one for each backend. completeness_default has for each table the
samples due, measured, sent and dropped; gaps_default the time ranges of missing samples.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from colmet.common.host.host import Host
from colmet.common.host.processes import Processes
from colmet.common.schema import Batch, Sample, Schema, Table, Value
from colmet.common.tables.agent import AGENT as AGENT_SCHEMA
from colmet.common.tables.agent import ALL, COMPLETENESS, GAPS
from colmet.node.delivery.spool import Dropped
from colmet.node.jobs.job import NODE_JOB
from colmet.node.schedule import Every

if TYPE_CHECKING:
    from colmet.node.runner import Runner


AGENT = b"agent"  # the label of the row of the agent as a whole
_KBYTES_A_PAGE = resource.getpagesize() // 1024


class Meter:
    """Sums CPU time and wall time of the code within ``with meter:``.

    The thread of `processes` works for the code, too, and is counted. `last_wall_ns` is the wall time of the last run.
    """

    def __init__(self, processes: Processes | None = None) -> None:
        self._processes = processes
        self.cpu_ns = self.wall_ns = self.last_wall_ns = self._cpu = self._wall = 0

    def __enter__(self) -> None:
        self._wall = time.perf_counter_ns()
        self._cpu = self._cpu_ns()

    def __exit__(self, *_: object) -> None:
        self.cpu_ns += self._cpu_ns() - self._cpu
        self.last_wall_ns = time.perf_counter_ns() - self._wall
        self.wall_ns += self.last_wall_ns

    def _cpu_ns(self) -> int:
        return time.thread_time_ns() + (self._processes.cpu_ns if self._processes is not None else 0)


class AgentStats:
    """Builds agent_default when `every` is due: at the first tick, then once in its period; 0 for each tick."""

    def __init__(self, host: Host, period_s: float = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self.every = Every(period_s, monotonic)

    def table(self, time_ns: int, runners: Iterable[Runner], totals: Mapping[str, int]) -> Table:
        """Return a row for the agent, with its counters by column, then one for each backend."""
        runners = list(runners)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        agent: dict[str, Value] = {
            "backend": AGENT,
            "is_on": 1,
            "cpu_time": time.process_time_ns() // 1000,
            "rows": sum(runner.rows for runner in runners),
            "failures": sum(runner.failures for runner in runners),
            "programs_cpu_time": int((children.ru_utime + children.ru_stime) * 1e6),
            "rss": self._rss(),
            "open_files": self._open_files(),
            "kept_files": self._host.kept,
            **totals,
        }
        backends: list[dict[str, Value]] = [
            {
                "backend": runner.name.encode(),
                "is_on": int(runner.is_open),
                "cpu_time": runner.cpu_ns // 1000,
                "wall_time": runner.wall_ns // 1000,
                "rows": runner.rows,
                "failures": runner.failures,
                "overruns": runner.overruns,
                **runner.counters(),
            }
            for runner in runners
        ]
        return Table.from_samples(AGENT_SCHEMA, time_ns, [Sample(NODE_JOB, values) for values in (agent, *backends)])

    def _rss(self) -> int | None:
        try:
            return int(self._host.read("/proc/self/statm").split(None, 2)[1]) * _KBYTES_A_PAGE
        except OSError:
            return None

    def _open_files(self) -> int | None:
        try:
            return self._host.size("/proc/self/fd") or None
        except OSError:
            return None


FAILED, LATE, DROPPED = "failed", "late", "dropped"
MAX_GAPS = 16  # of one table and reason between two reports; further gaps extend the latest one
MAX_REPORTED = 1024  # batches whose gaps are reported again if the batch is dropped
_NS = 10**9


class DeliveryTotals(NamedTuple):
    """Counts of batches by outcome, as of now."""

    batches: Mapping[str, int]  # numbers of batches sent, acknowledged and dropped
    by_table: Mapping[str, Mapping[str, int]]  # the same for batches with rows of each table
    dropped: Sequence[Dropped]  # the latest ranges of dropped batches
    duplicates: int  # batches that the collector reports as received more than once


@dataclass
class _Count:
    due: int = 0
    taken: int = 0
    failed: int = 0
    late: int = 0
    rows: int = 0


@dataclass
class _Gap:
    """Consecutive missing samples; beyond `MAX_GAPS` one gap includes the samples between several."""

    table: str
    why: str
    epoch: int
    first_ns: int
    last_ns: int
    samples: int
    batches: tuple[int, int] | None = None

    def sample(self) -> Sample:
        """Return the row of gaps_default."""
        return Sample(
            NODE_JOB,
            {
                "table": self.table.encode(),
                "why": self.why.encode(),
                "epoch": self.epoch,
                # 0: the file with the times was lost
                "first": self.first_ns // _NS or None,
                "last": self.last_ns // _NS or None,
                "samples": self.samples,
                **(dict(zip(("first_batch", "last_batch"), self.batches)) if self.batches else {}),
            },
        )


class CompletenessStats:
    """Counts due and measured samples, and adds the tables to the first batch, to one a period, and to the last.

    A gap is reported in one batch, and again after it has grown or that batch was dropped. `delivery` returns the
    outcome of the batches so far. Tables named in `periodic` are not due at each tick. `every` has the period.
    """

    def __init__(
        self,
        delivery: Callable[[], DeliveryTotals],
        period_s: float = 0,
        periodic: Iterable[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delivery = delivery
        self.every = Every(period_s, monotonic)
        self._periodic = {*periodic, COMPLETENESS.name, GAPS.name}
        self._counts: dict[str, _Count] = {}
        self._batches = self._rows = 0
        self._at_tick: set[str] = set()  # tables that the last tick had, or missed
        self._tick_ns = self._batch_ns = 0
        self._ahead: dict[str, tuple[int, int]] = {}  # of a table: a second that was not over, and rows taken for it
        self._unreported: list[_Gap] = []
        self._open: dict[tuple[str, str], tuple[_Gap, int]] = {}  # gaps that may go on, with the tick of their end
        self._ticks = 0
        self._reported: deque[tuple[int, list[_Gap]]] = deque(maxlen=MAX_REPORTED)  # by number of the batch
        self._dropped: dict[tuple[int, int], int] = {}  # reported ranges, by epoch and first number: the last one
        self._new_gaps: dict[tuple[str, str], int] = {}

    def begin_tick(self, time_ns: int) -> None:
        """Begin a tick; samples missed from now on belong to it."""
        self._ticks += 1
        self._tick_ns = time_ns
        self._at_tick.clear()

    def missed(self, why: str, schemas: Iterable[Schema], has_jobs: bool, is_open: bool) -> None:
        """Count a due backend without any measurement at this tick.

        Args:
            why: FAILED or LATE.
            schemas: of its tables, its main table first.
            has_jobs: whether any job is to be measured; without jobs, tables of jobs are not due.
            is_open: whether it can measure; otherwise tables that it never measured are not due.
        """
        schemas = list(schemas)
        known = [schema for schema in schemas if schema.name in self._counts]
        for schema in known or (schemas[:1] if is_open else ()):
            if schema.scope == "node" or has_jobs:
                self._at_tick.add(schema.name)
                self._miss(schema.name, why, self._tick_ns, self._tick_ns, 1, self._ticks)

    def skipped(self, count: int, period_s: float) -> None:
        """Count ticks skipped after the last one as late."""
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
        self._report(gap)

    def _report(self, gap: _Gap) -> None:
        if not any(gap is other for other in self._unreported):
            self._unreported.append(gap)

    def add(self, batch: Batch, period_s: float, ends: bool = False) -> Batch:
        """Count a batch with its number and return it, with the tables of completeness if due or if it is the last."""
        self._batches += 1
        second = batch.time_ns // _NS
        self._take(batch.tables, second)
        # rows are stored with whole seconds: the report goes into the first batch of a second, so it covers whole ones
        is_first = second != self._batch_ns // _NS
        self._batch_ns = batch.time_ns
        if not (ends or (is_first and self.every.is_due())):
            return batch
        tables = self._tables(batch, period_s, ends)
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
        """Return the rows of a table counted ahead for this second."""
        of, rows = self._ahead.get(name, (0, 0))
        return rows if of == second else 0

    def _tables(self, batch: Batch, period_s: float, ends: bool) -> list[Table]:
        epoch, time_ns = batch.epoch or 0, batch.time_ns
        following = time_ns // _NS + 1
        if ends and any(self._rows_ahead(name, following) for name in self._ahead):
            time_ns = following * _NS  # no later report would count these rows
        delivery = self._delivery()
        self._note_dropped(delivery.dropped)
        lost = [(one.first, one.last) for one in delivery.dropped if one.epoch == epoch]
        for number, gaps in list(self._reported):
            if any(first <= number <= last for first, last in lost):
                self._reported.remove((number, gaps))
                for gap in gaps:
                    self._report(gap)
        tables = []
        if self._unreported:
            gaps, self._unreported = self._unreported, []
            self._new_gaps.clear()
            for gap in gaps:
                gap.epoch = gap.epoch or epoch
            self._reported.append((batch.seq or 0, gaps))
            tables.append(Table.from_samples(GAPS, time_ns, [gap.sample() for gap in gaps]))
        second = time_ns // _NS
        self._take(tables, second)
        now = {name: rows for name in self._ahead if (rows := self._rows_ahead(name, second))}
        for table in (*batch.tables, *tables):
            if table.time_ns // _NS == second:
                now[table.schema.name] = now.get(table.schema.name, 0) + len(table)
        own = self._counts.setdefault(COMPLETENESS.name, _Count())
        own.due, own.taken = own.due + 1, own.taken + 1
        now[COMPLETENESS.name] = len(self._counts) + 1
        own.rows += now[COMPLETENESS.name]
        self._rows += now[COMPLETENESS.name]
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
                    **_sums(delivery.batches),
                    "duplicate": delivery.duplicates,
                },
            )
        ]
        for name, counts in self._counts.items():
            values = {**common, **vars(counts), "rows_now": now.get(name, 0), **_sums(delivery.by_table.get(name, {}))}
            samples.append(Sample(NODE_JOB, {"table": name.encode(), **values}))
        tables.append(Table.from_samples(COMPLETENESS, time_ns, samples))
        return tables

    def _note_dropped(self, ranges: Sequence[Dropped]) -> None:
        there = {(one.epoch, one.first) for one in ranges}
        self._dropped = {key: last for key, last in self._dropped.items() if key in there}
        for one in ranges:
            key = one.epoch, one.first
            if self._dropped.get(key) != one.last:
                self._dropped[key] = one.last
                self._unreported.append(
                    _Gap(
                        *(ALL, DROPPED, one.epoch, one.since_ns, one.until_ns, one.last - one.first + 1),
                        batches=(one.first, one.last),
                    )
                )


def _sums(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the columns that count batches by outcome."""
    return {name: counts.get(name, 0) for name in ("sent", "acknowledged", "dropped")}
