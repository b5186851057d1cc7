"""Search for the missing rows of one table of one host, by its ledger: completeness_default and gaps_default.

Times are whole seconds since 1970, as stored. Rows are compared by number, not by time: the rows taken by the node
between two rows of the ledger against the stored ones. The ledger's reported gaps then give the places and causes.
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
    for one in sorted(reports, key=lambda one: (one.epoch, one.table, one.why, one.first, -one.last, -one.samples)):
        before = kept[-1] if kept else None
        if before is None or before[1:4] != one[1:4] or one.first > before.last or not one.first:
            kept.append(one)
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


def narrowed(spans: Iterable[tuple[int, int, int]], places: Sequence[TableGap]) -> list[tuple[int, int, int]]:
    """Return the parts of spans (first, last, most samples) in holes; samples of the rest have come."""
    found = []
    for first, last, most in spans:
        inside = [hole for hole in places if within(hole, first, last)]
        if inside:
            count = sum(within(hole, first, last) for hole in inside)
            found.append((max(first, inside[0].first), min(last, inside[-1].last), min(most, count)))
    return found


def between(times: Times, after: int, until: int) -> int:
    """Return the number of times after `after` and up to `until`."""
    return int(np.searchsorted(times, until, "right") - np.searchsorted(times, after, "right"))


class LostSamples(NamedTuple):
    """Samples taken between two rows of the ledger and not stored."""

    after: int  # time of the first of the two rows of the ledger
    until: int  # time of the second
    samples: int  # number of lost samples
    rows: int  # of these samples
    holes: Sequence[TableGap]  # times without a sample, by the steps between stored rows
    drops: Sequence[tuple[int, int, int]]  # ranges of samples reported as dropped by the node: first, last, count
    is_dropped: bool  # whether it reports any, those without a time included
    is_one_job: bool  # whether the table has rows of one job only, so a hole is a lost sample
    is_fast: bool  # whether samples are too frequent for holes in whole seconds


def gaps_of(lost: LostSamples) -> list[TableGap]:
    """Return the gaps of lost samples: places, numbers and causes.

    ===== ================================================ ==================================================
    drops holes                                            gaps
    ===== ================================================ ==================================================
    none  as many as lost samples, of one job              A: each hole, `NOT_HERE`
    none  any other                                        B: one over the whole time, `NOT_HERE`
    some  all are inside the dropped ranges                C: the ranges, as far as they have holes, `DROPPED`
    some  some inside, some outside, as many as lost       D: as C, and one for those outside, `NOT_HERE`
    some  not seen, as samples are fast; ranges have room  E: the ranges, `DROPPED`
    some  any other                                        F: one over the whole time, `UNSURE`
    ===== ================================================ ==================================================

    Examples, of samples every 5 s between rows of the ledger at 100 and 160, with lost samples at 115 and 120:

    * A: nothing is dropped, the holes are 115 and 120: a gap from 115 to 120.
    * B: the same, but two jobs have rows and only one of them has the holes: a gap from 101 to 160.
    * C: two dropped from 110 to 125: a gap from 115 to 120.
    * D: one dropped, from 113 to 117: a gap from 115 to 117, and one sample missing from 101 to 160.
    * E: of samples each second, two dropped from 115 to 120: a gap from 115 to 120.
    * F: two dropped from 140 to 150, without a hole there: a gap from 101 to 160.
    """

    def whole(samples: int, rows: int, why: str) -> TableGap:
        return TableGap(lost.after + 1, lost.until, samples, rows, why, False)

    seen = sum(hole.samples for hole in lost.holes)
    if not lost.is_dropped:
        if seen == lost.samples and lost.is_one_job:
            return [hole._replace(rows=hole.samples * lost.rows // lost.samples) for hole in lost.holes]
        return [whole(lost.samples, lost.rows, NOT_HERE)]
    inside = sum(min(count, sum(within(hole, first, last) for hole in lost.holes)) for first, last, count in lost.drops)
    if inside and inside == seen:
        return _shared(narrowed(lost.drops, lost.holes), lost.samples, lost.rows)
    if inside and seen == lost.samples:
        rows = lost.rows * inside // lost.samples
        dropped = _shared(narrowed(lost.drops, lost.holes), inside, rows)
        return [*dropped, whole(seen - inside, lost.rows - rows, NOT_HERE)]
    if lost.is_fast and sum(count for _, _, count in lost.drops) >= lost.samples:
        return _shared(lost.drops, lost.samples, lost.rows)
    return [whole(lost.samples, lost.rows, UNSURE)]


def _shared(spans: Sequence[tuple[int, int, int]], samples: int, rows: int) -> list[TableGap]:
    """Return the gaps of dropped samples: one for each span (first, last, largest count), or one over all of them."""
    if sum(count for _, _, count in spans) != samples and len(spans) > 1:
        spans = [(min(first for first, _, _ in spans), max(last for _, last, _ in spans), samples)]
    found = []
    for n, (first, last, count) in enumerate(spans):
        share = samples if n + 1 == len(spans) else count
        part = rows * share // samples
        found.append(TableGap(first, last, share, part, DROPPED, share == count))
        samples, rows = samples - share, rows - part
    return found


class GapFinder:
    """Search for the gaps of one table of one host.

    Args:
        table: its name.
        jobs: sorted times of the rows of each job.
        accounts: rows of the ledger about this table.
        reports: reported gaps of the host.
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
            following = epochs[n + 1] // NS if n + 1 < len(epochs) else None
            earlier_rows = self._find_in(epoch, accounts, earlier_rows, following)
            if following is not None:
                self._find_after(accounts[-1], following)
        gaps = tuple(sorted(self._gaps))
        until = self._accounts[-1].time if self._accounts else 0
        return TableCompleteness(len(self._times), sum(gap.rows for gap in gaps), gaps, self._twice, until)

    def _find_in(self, epoch: int, accounts: Sequence[LedgerRow], earlier_rows: int, following: int | None) -> int:
        """Find the gaps between the start of an agent and its last row of the ledger.

        `earlier_rows` is the number of rows of earlier agents in the second of its start; `following` the start of the
        next agent, in seconds since 1970. Returns the number of rows of agents up to this one in that second.
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
                if account.time == following:  # some rows of this second are the next agent's
                    now = shared_rows = min(now, max(0, taken - here))
            here += now
            self._twice += max(0, here - taken)
            a_sample = taken / max(1, account.taken - before.taken) or 1
            if max(0, here) < taken:
                self._gaps += gaps_of(self._lost(before, account, taken - here))
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

    def _lost(self, before: LedgerRow, account: LedgerRow, rows: int) -> LostSamples:
        """Return the known facts about rows taken between two rows of the ledger and not stored."""
        after, until = before.time, account.time
        taken, taken_rows = account.taken - before.taken, account.rows - before.rows
        drops = [
            one
            for one in self._dropped
            if one.epoch == account.epoch and (not one.first or (one.first <= until and one.last > after))
        ]
        start = max(0, int(np.searchsorted(self._times, after, "right")) - 1)
        around = np.unique(self._times[start : np.searchsorted(self._times, until, "right") + 1])
        step_s = cadence_s(self._times, 0)
        # unmeasured samples leave holes, too
        explained = [
            np.linspace(one.first, one.last, one.samples).astype(np.int64)
            for one in self._missed
            if one.epoch == account.epoch and one.first <= until and one.last > after
        ]
        samples = max(1, min(rows, taken - between(around, after, until)))
        if step_s < 1.5:  # several per second
            samples = max(1, round(rows * taken / taken_rows))
        return LostSamples(
            after=after,
            until=until,
            samples=samples,
            rows=rows,
            holes=holes(np.unique(np.concatenate([around, *explained])), step_s),
            drops=[(max(one.first, after + 1), min(one.last, until), one.samples) for one in drops if one.first],
            is_dropped=bool(drops),
            is_one_job=len(self._jobs) == 1,
            is_fast=0 < step_s < 1.5,
        )

    def _find_after(self, last: LedgerRow, next_start: int) -> None:
        """Find the gaps from the last row of an agent's ledger to the first rows of the next agent."""
        why = STOPPED if last.is_last else KILLED
        for job, times in self._jobs.items():
            start = max(0, np.searchsorted(times, last.time, "right") - 1)
            region = times[start : np.searchsorted(times, next_start, "left") + 1]
            if len(region) < 2 or region[-1] < next_start:
                continue  # the job may not have been there in between
            step_s = cadence_s(times, last.period_s)
            a_second = len(region) / len(np.unique(region))
            if step_s < 1.5:
                period_s = last.period_s or step_s
                seconds = [(one.first, one.last, one.last - one.first + 1) for one in holes_of_job(region, step_s)]
                places = [TableGap(*one[:2], round(one[2] / period_s), 0, why, False) for one in seconds]
                a_sample = max(1, round(a_second * period_s))
            else:
                places = holes(np.unique(region), step_s)
                a_sample = round(a_second)
            for place in places:
                self._gaps += [
                    gap._replace(rows=gap.samples * a_sample, job=job) for gap in self._divided(place, why, last.epoch)
                ]

    def _divided(self, place: TableGap, why: str, epoch: int) -> list[TableGap]:
        """Return a gap after the last row of the ledger, divided by the reported drops."""
        parts = []
        left = place.samples
        for one in self._dropped:
            samples = min(left, one.samples, within(place, one.first, one.last)) if one.epoch == epoch else 0
            if samples:
                parts.append(
                    TableGap(max(place.first, one.first), min(place.last, one.last), samples, 0, DROPPED, place.exact)
                )
                left -= samples
        return [*parts, place._replace(samples=left, why=why, exact=place.exact and not parts)] if left else parts


def of_job(
    job: int, times: Times, gaps: Collection[TableGap], first: int, last: int, period_s: float = 0
) -> list[TableGap]:
    """Return the gaps of a job, with a row due at each sample, from its first row in any table to its last.

    Args:
        job: its id.
        times: sorted times of its rows in the table.
        gaps: of the table.
        first: time of its first row in any table.
        last: of its last one.
        period_s: seconds between samples, for the gaps of this job alone if it has few rows; 0 if unknown.
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
        if gap.exact:
            samples = within(gap, first, last)
        else:
            places = holes_of_job(times, period_s) if gap.job == job else unexplained
            samples = min(gap.samples, sum(within(hole, gap.first - 1, gap.last + 1) for hole in places))
        if samples:
            found.append(
                gap._replace(first=max(gap.first, first), last=min(gap.last, last), samples=samples, rows=samples)
            )
    return found
