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
