"""Missing rows by the ledger: counts for each interval, with their reasons."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.stored.gap_finder import (
    DROPPED,
    NOT_HERE,
    STOPPED,
    UNSURE,
    GapFinder,
    LedgerRow,
    ReportedGap,
    TableGap,
    latest,
    of_job,
)


@pytest.mark.parametrize(
    ("drops", "why"),
    [
        ([], NOT_HERE),
        ([(110, 125, 2)], DROPPED),
        ([(0, 0, 2)], DROPPED),
        ([(113, 117, 1)], UNSURE),
        ([(90, 100, 2)], NOT_HERE),
        ([(161, 170, 2)], NOT_HERE),
    ],
)
def test_rows_lost_between_two_rows_of_the_ledger_are_counted_with_their_reason(drops, why):
    """Samples of two jobs every 5 s, of which those of 115 and 120 are lost, and rows of the ledger at 100 and 160."""
    times = np.array([time for time in range(100, 165, 5) if time not in (115, 120)])
    accounts = [LedgerRow(time, 0, 5.0, False, n, n, 0, 0, 2 * n, 2) for time, n in ((100, 1), (160, 13))]
    reports = [ReportedGap(160, "*", "dropped", 0, *drop) for drop in drops]
    found = GapFinder("cgroup_default", {7: times, 8: times}, accounts, reports, 100).find()
    assert found.gaps == (TableGap(101, 160, 2, 4, why, False),) and found.missing == 4


def test_a_job_of_few_rows_has_the_gap_of_an_agent_that_was_away_and_no_other():
    """Samples of others were lost just before; the hole in the job's rows has its cause already."""
    times = np.array([109, 110, 140])
    away = TableGap(111, 139, 29, 29, STOPPED, False, 7)
    found = of_job(7, times, [TableGap(101, 110, 2, 2, NOT_HERE, False), away], 109, 140, period_s=1.0)
    assert found == [away]


def test_gaps_of_dropped_batches_that_share_a_second_are_two():
    """The agent has dropped 220 batches, and the next one 50 of the following ones."""
    accounts = [LedgerRow(time, 0, 0.01, False, n, n, 0, 0, n, 1) for time, n in ((100, 1), (101, 43), (108, 466))]
    times = np.repeat([100, 101, 105, 106, 107, 108], [42, 37, 42, 49, 60, 1])
    growing = [ReportedGap(107, "*", "dropped", 0, 101, last, n, 80) for last, n in ((103, 97), (105, 220))]
    another = ReportedGap(108, "*", "dropped", 0, 105, 107, 50, 377)
    assert latest([*growing, another]) == [growing[1], another]
    found = GapFinder("cgroup_default", {7: times}, accounts, [*growing, another], 100).find()
    assert [(gap.rows, gap.why) for gap in found.gaps] == [(466 - len(times), DROPPED)]


def test_the_second_of_a_row_of_the_ledger_has_dropped_samples_after_it():
    """100 samples a second; those of the second half of 101 are dropped."""
    accounts = [LedgerRow(time, 0, 0.01, False, n, n, 0, 0, n, 1) for time, n in ((100, 1), (101, 101), (102, 201))]
    times = np.repeat([100, 101, 102], [100, 50, 1])
    reports = [ReportedGap(102, "*", "dropped", 0, 101, 101, 50, 150)]
    found = GapFinder("cgroup_default", {7: times}, accounts, reports, 100).find()
    assert found.gaps == (TableGap(101, 102, 50, 50, DROPPED, False),)


@pytest.mark.parametrize("dropped_by", [0, 1])
def test_missing_rows_of_a_second_of_two_agents_are_those_of_the_one_that_dropped_batches(dropped_by):
    """The first agent ends in the middle of second 101, the next one starts in it; 20 rows of one are dropped."""
    starts = (100 * 10**9, 101 * 10**9)
    accounts = [
        LedgerRow(100, starts[0], 0.01, False, 1, 1, 0, 0, 1, 1),
        LedgerRow(101, starts[0], 0.01, True, 150, 150, 0, 0, 150, 0),
        LedgerRow(101, starts[1], 0.01, False, 1, 1, 0, 0, 1, 1),
        LedgerRow(102, starts[1], 0.01, False, 51, 51, 0, 0, 51, 1),
    ]
    times = np.repeat([100, 101, 102], [100, 80, 1])
    reports = [ReportedGap(102, "*", "dropped", starts[dropped_by], 101, 101, 20, 7)]
    found = GapFinder("cgroup_default", {7: times}, accounts, reports, 100).find()
    assert [(gap.rows, gap.why) for gap in found.gaps] == [(20, DROPPED)] and not found.twice


def test_what_the_last_row_of_a_ledger_counts_is_no_gap_between_two_agents():
    """The last seconds of the first agent are dropped: the time without an agent begins after them."""
    starts = (100 * 10**9, 110 * 10**9)
    accounts = [
        LedgerRow(100, starts[0], 1.0, False, 1, 1, 0, 0, 1, 1),
        LedgerRow(105, starts[0], 1.0, True, 6, 6, 0, 0, 6, 0),
        LedgerRow(110, starts[1], 1.0, False, 1, 1, 0, 0, 1, 1),
    ]
    reports = [ReportedGap(110, "*", "dropped", starts[0], 103, 105, 3, 3)]
    found = GapFinder("cgroup_default", {7: np.array([100, 101, 102, 110])}, accounts, reports, 100).find()
    assert [(gap.rows, gap.why) for gap in found.gaps] == [(3, DROPPED), (4, STOPPED)]
