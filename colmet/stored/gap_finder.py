"""Search for the missing rows of one table of one host, by its ledger: completeness_default and gaps_default.

Times are whole seconds since 1970, as stored. Rows are compared by number, not by time: the rows taken by the node
between two rows of the ledger against the stored ones. The gaps that the node reports then give the causes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

NS = 10**9
# causes of a gap
FAILED = "could not be measured"
LATE = "left out, as the node was behind"
DROPPED = "dropped at the node, beyond the bound of its spool"
NOT_HERE = "taken and not here: still on its way, elsewhere, or lost with the node's memory"
UNSURE = "dropped at the node beyond the bound of its spool, or taken and not here"
STOPPED = "colmet-node was not running"
KILLED = "colmet-node or the node ended: not taken, or lost with it"
CAUSES = {"failed": FAILED, "late": LATE, "dropped": DROPPED}


class LedgerRow(NamedTuple):
    """A row of completeness_default: counts of one table since the start of the agent, up to a time."""

    time: int
    epoch: int
    period_s: float
    is_last: bool
    due: int
    taken: int
    failed: int
    late: int
    rows: int
    rows_now: int


class ReportedGap(NamedTuple):
    """A row of gaps_default; unknown times are 0."""

    time: int
    table: str
    why: str
    epoch: int
    first: int
    last: int
    samples: int
    first_batch: int = -1  # number of the first dropped batch; -1 for other reasons


class TableGap(NamedTuple):
    """Missing samples of a table, in an interval."""

    first: int  # time of the first missing sample, or the start of an interval with some
    last: int  # time of the last one, or the end of the interval
    samples: int  # number of missing samples
    rows: int  # number of missing rows; of unmeasured samples, estimated from the samples around
    why: str  # the cause, one of those above
    exact: bool  # whether `first` and `last` are times of samples, evenly spaced
    job: int = -1  # the job without these rows; -1 for all jobs


class TableCompleteness(NamedTuple):
    """The stored and the missing rows of a table."""

    here: int  # stored rows
    missing: int  # missing rows
    gaps: tuple[TableGap, ...]  # the missing ones, by time
    twice: int  # stored rows in excess of the taken ones
    until: int  # time of the last row of the ledger; 0 without a ledger


def latest(reports: Iterable[ReportedGap]) -> list[ReportedGap]:
    """Return the last report of each gap: a growing gap is reported again."""
    kept: list[ReportedGap] = []
    for report in sorted(reports, key=lambda gap: (*gap[1:4], gap.first_batch, gap.first, -gap.last, -gap.samples)):
        before = kept[-1] if kept else None
        if before is None or before[1:4] != report[1:4]:
            kept.append(report)
        elif report.first_batch >= 0:
            # Batches have numbers. Two gaps of dropped ones may share a second, or have no time.
            if report.first_batch != before.first_batch:
                kept.append(report)
        elif report.first > before.last or not report.first:
            kept.append(report)
    return list(dict.fromkeys(kept))


def cadence_s(times: Times, default_s: float) -> float:
    """Return the median of the seconds from one sample to the next; the default for fewer than four samples.

    The times are sorted.
    """
    steps = np.diff(times[-1000:])
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) > 2 else default_s


def holes(times: Times, step_s: float) -> list[TableGap]:
    """Return the gaps between samples at sorted `times`, due every `step_s`, for steps of 2 s and more."""
    if step_s < 1.5 or len(times) < 2:
        return []
    wide = np.flatnonzero(np.diff(times) > 1.5 * step_s)
    found = []
    for at in wide.tolist():
        before, after = int(times[at]), int(times[at + 1])
        samples = round((after - before) / step_s) - 1
        found.append(TableGap(round(before + step_s), round(after - step_s), samples, samples, NOT_HERE, True))
    return found


def holes_of_job(times: Times, period_s: float = 0) -> list[TableGap]:
    """Return the gaps of a job by the steps between its rows, sorted.

    Rows of each second, or several of one second, have times with jitter: for these a gap is 2 s or more. With fewer
    than four samples, they are due every `period_s`; without it, no gap is known.
    """
    once = times[np.append(True, times[1:] != times[:-1])[: len(times)]]
    step_s = cadence_s(once, period_s)
    if not 0 < step_s < 1.5:
        return holes(once, step_s)
    found = []
    for at in np.flatnonzero(np.diff(once) > 2).tolist():
        first, last = int(once[at]) + 1, int(once[at + 1]) - 1
        samples = round((last - first + 1) * len(times) / len(once))
        found.append(TableGap(first, last, samples, samples, NOT_HERE, False))
    return found


def within(gap: TableGap, first: int, last: int) -> int:
    """Return the number of samples of a gap at times from `first` to `last`."""
    if first <= gap.first and gap.last <= last:
        return gap.samples
    if gap.last < first or gap.first > last:
        return 0
    at = np.linspace(gap.first, gap.last, gap.samples)
    return int(np.count_nonzero((at >= first) & (at <= last)))


def between(times: Times, after: int, until: int) -> int:
    """Return the number of times after `after` and up to `until`."""
    return int(np.searchsorted(times, until, "right") - np.searchsorted(times, after, "right"))


def _first_after(before: LedgerRow, account: LedgerRow) -> int:
    """Return the first time of samples between two rows of the ledger; at short periods, that of the earlier row."""
    return before.time + (not before.taken or account.period_s >= 1.5)


class GapFinder:
    """Search for the gaps of one table of one host.

    Args:
        jobs: sorted times of the rows of each job.
        began: time of the first read row of any table of the host; earlier rows of the ledger are not compared with
            rows in other files.
    """

    def __init__(
        self,
        table: str,
        jobs: Mapping[int, Times],
        accounts: Iterable[LedgerRow],
        reports: Iterable[ReportedGap],
        began: int,
    ) -> None:
        self._jobs = jobs
        self._times = np.sort(np.concatenate([np.empty(0, np.int64), *jobs.values()]))
        self._accounts = sorted(accounts, key=lambda one: (one.epoch, one.time, one.taken))
        reports = latest(reports)
        self._missed = [one for one in reports if one.table == table]
        self._dropped = [one for one in reports if one.why == "dropped"]
        self._began = began
        self._gaps: list[TableGap] = []
        self._twice = 0

    def find(self) -> TableCompleteness:
        """Return the stored and the missing rows."""
        epochs = sorted({account.epoch for account in self._accounts})
        earlier_rows = 0
        for n, epoch in enumerate(epochs):
            accounts = [account for account in self._accounts if account.epoch == epoch]
            following = [account for account in self._accounts if epochs[n + 1 : n + 2] == [account.epoch]]
            earlier_rows = self._find_in(epoch, accounts, earlier_rows, following)
            if following:
                self._find_after(accounts[-1], following[0].epoch // NS)
        gaps = tuple(sorted(self._gaps))
        until = self._accounts[-1].time if self._accounts else 0
        return TableCompleteness(len(self._times), sum(gap.rows for gap in gaps), gaps, self._twice, until)

    def _find_in(
        self, epoch: int, accounts: Sequence[LedgerRow], earlier_rows: int, following: Sequence[LedgerRow]
    ) -> int:
        """Find the gaps between the start of an agent and its last row of the ledger.

        `earlier_rows` is the number of rows of earlier agents in the second of its start; `following` the ledger of
        the next agent. Returns the number of rows of agents up to this one in the second of the next one's start.
        """
        start = epoch // NS
        before = LedgerRow(start - 1, epoch, 0, False, 0, 0, 0, 0, 0, 0)
        if start < self._began - 2 * accounts[0].period_s - 2:
            before = accounts[0]
            accounts = accounts[1:]
            earlier_rows = 0
        shared_rows = 0
        unreported = {"failed": 0, "late": 0}
        for account in accounts:
            taken = account.rows - before.rows
            # a row of the ledger counts the rows of its second taken with it; the others were taken later
            after = before.time - 1 if before.taken else before.time
            here = between(self._times, after, account.time - 1) - before.rows_now
            if account.time > start or account.is_last:  # the rows of the second of the start are counted now
                here -= earlier_rows
                earlier_rows = 0
            now = account.rows_now
            if account.is_last:
                now = between(self._times, account.time - 1, account.time)
                if following and account.time == following[0].epoch // NS:
                    now -= self._rows_reserved(before, account, following)
                    now = shared_rows = min(now, max(0, taken - here))
            here += now
            self._twice += max(0, here - taken)
            a_sample = taken / max(1, account.taken - before.taken) or 1
            if max(0, here) < taken:
                self._gaps.append(self._lost(before, account, taken - here))
            for why, sum_before, sum_now in (
                ("failed", before.failed, account.failed),
                ("late", before.late, account.late),
            ):
                reports = [
                    one
                    for one in self._missed
                    if one.epoch == epoch and one.why == why and before.time < one.first <= account.time
                ]
                for one in reports:
                    rows = max(1, round(one.samples * a_sample))
                    self._gaps.append(TableGap(one.first, one.last, one.samples, rows, CAUSES[why], True))
                # later rows of the ledger count the reported samples of a continuing gap
                unreported[why] += sum_now - sum_before - sum(one.samples for one in reports)
                if unreported[why] > 0:
                    rows = max(1, round(unreported[why] * a_sample))
                    first = min(before.time + 1, account.time)
                    self._gaps.append(TableGap(first, account.time, unreported[why], rows, CAUSES[why], False))
                    unreported[why] = 0
            before = account
        return shared_rows

    def _rows_reserved(self, before: LedgerRow, last: LedgerRow, following: Sequence[LedgerRow]) -> int:
        """Return the number of rows in the second of an agent's last row of the ledger that are the next agent's.

        Rows do not say whose they are. If this agent alone has dropped batches, what is missing is missing of it.
        Otherwise the rows of the second count for it first: the number is 0.
        """
        second = last.time
        after = next((account for account in following if account.time > second), None)
        if (
            after is None
            or not self._dropped_in(last.epoch, _first_after(before, last), second)
            or self._dropped_in(after.epoch, second, after.time)
        ):
            return 0
        stored_rows = between(self._times, second, after.time - 1) + after.rows_now
        return min(max(0, after.rows - stored_rows), between(self._times, second - 1, second))

    def _lost(self, before: LedgerRow, account: LedgerRow, rows: int) -> TableGap:
        """Return the gap of rows taken between two rows of the ledger and not stored, with the cause if it is known."""
        taken = account.taken - before.taken
        first = _first_after(before, account)
        if account.period_s < 1.5:  # several samples have one time
            samples = max(1, round(rows * taken / (account.rows - before.rows)))
        else:
            begin, end = np.searchsorted(self._times, (before.time, account.time), "right")
            samples = max(1, min(rows, taken - len(np.unique(self._times[begin:end]))))
        dropped = self._dropped_in(account.epoch, first, account.time)
        why = NOT_HERE if not dropped else DROPPED if dropped >= samples else UNSURE
        return TableGap(first, account.time, samples, rows, why, False)

    def _dropped_in(self, epoch: int, first: int, last: int) -> int:
        """Return the most samples of an interval that an agent has reported as dropped; some have no time."""
        return sum(
            one.samples
            for one in self._dropped
            if one.epoch == epoch and (not one.first or (one.first <= last and one.last >= first))
        )

    def _find_after(self, last: LedgerRow, next_start: int) -> None:
        """Find the gaps from the last row of an agent's ledger to the first rows of the next agent."""
        why = STOPPED if last.is_last else KILLED
        for job, times in self._jobs.items():
            start = max(0, np.searchsorted(times, last.time, "right") - 1)
            region = times[start : np.searchsorted(times, next_start, "left") + 1]
            if len(region) < 2 or region[-1] < next_start:
                continue  # the job may not have been there in between
            # The ledger has counted what is missing up to its last row.
            region = np.maximum(region, last.time)
            step_s = cadence_s(times, last.period_s)
            once = np.unique(region)
            a_second = len(region) / len(once)
            places: list[TableGap] = []
            if step_s < 1.5:
                period_s = last.period_s or step_s
                a_sample = max(1, round(a_second * period_s))
                for first, end in [one[:2] for one in holes_of_job(region, step_s)]:
                    samples = round((end - first + 1) / period_s)
                    places.append(TableGap(first, end, samples, samples * a_sample, why, False, job))
            else:
                a_sample = round(a_second)
                places = [one._replace(rows=one.samples * a_sample, why=why, job=job) for one in holes(once, step_s)]
            for gap in places:
                is_dropped = self._dropped_in(last.epoch, gap.first, gap.last) >= gap.samples
                self._gaps.append(gap._replace(why=DROPPED) if is_dropped else gap)


def of_job(
    job: int, times: Times, gaps: Collection[TableGap], first: int, last: int, period_s: float = 0
) -> list[TableGap]:
    """Return the gaps of a job, with a row due at each sample, from its first row in any table to its last.

    `times` are those of its rows in the table, sorted. For the gaps of this job alone, if it has few rows, `period_s`
    are the seconds between samples; 0 if unknown.
    """
    explained = [gap for gap in gaps if gap.job == job]
    # a hole that has its cause does not stand for samples of another cause beside it as well
    unexplained = [
        hole
        for hole in holes_of_job(times)
        if not any(one.first <= hole.last and hole.first <= one.last for one in explained)
    ]
    found = []
    for gap in gaps:
        if gap.last < first or gap.first > last or gap.job not in (-1, job):
            continue
        begin, end = max(gap.first, first), min(gap.last, last)
        if gap.exact:
            samples = within(gap, first, last)
        else:
            places = holes_of_job(times, period_s) if gap.job == job else unexplained
            inside = [hole for hole in places if within(hole, gap.first - 1, gap.last + 1)]
            samples = min(gap.samples, sum(within(hole, gap.first - 1, gap.last + 1) for hole in inside))
            if inside:
                begin, end = max(begin, inside[0].first), min(end, inside[-1].last)
        if samples:
            found.append(gap._replace(first=begin, last=end, samples=samples, rows=samples))
    return found
