"""Gaps of lost samples: the truth table of `gaps_of`, with its examples."""

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
    LostSamples,
    TableGap,
    gaps_of,
    holes,
    of_job,
)

AROUND = np.array([100, 105, 110, 125, 130, 135, 140, 145, 150, 155, 160])
HOLES = holes(AROUND, 5.0)
TWO_LOST = LostSamples(100, 160, 2, 2, HOLES, [], is_dropped=False, is_one_job=True, is_fast=False)
DROPS = {"is_dropped": True}
FAST = {"is_dropped": True, "is_fast": True, "holes": []}


@pytest.mark.parametrize(
    ("known", "gaps"),
    [
        pytest.param({}, [(115, 120, 2, NOT_HERE)], id="A"),
        pytest.param({"is_one_job": False}, [(101, 160, 2, NOT_HERE)], id="B"),
        pytest.param({**DROPS, "drops": [(110, 125, 2)]}, [(115, 120, 2, DROPPED)], id="C"),
        pytest.param({**DROPS, "drops": [(113, 117, 1)]}, [(115, 117, 1, DROPPED), (101, 160, 1, NOT_HERE)], id="D"),
        pytest.param({**FAST, "drops": [(115, 120, 2)]}, [(115, 120, 2, DROPPED)], id="E"),
        pytest.param({**DROPS, "drops": [(140, 150, 2)]}, [(101, 160, 2, UNSURE)], id="F"),
        pytest.param(DROPS, [(101, 160, 2, UNSURE)], id="F, dropped without a time"),
        pytest.param({**FAST, "drops": [(115, 120, 1)]}, [(101, 160, 2, UNSURE)], id="F, no room"),
    ],
)
def test_lost_samples_leave_gaps_by_the_table(known, gaps):
    found = gaps_of(TWO_LOST._replace(**known))
    assert [(gap.first, gap.last, gap.samples, gap.why) for gap in found] == gaps
    assert sum(gap.rows for gap in found) == 2


def test_rows_of_lost_samples_are_divided_among_the_gaps():
    found = gaps_of(TWO_LOST._replace(rows=7, drops=[(113, 117, 1)], is_dropped=True))
    assert [gap.rows for gap in found] == [3, 4]


@pytest.mark.parametrize("period_s", [0.5, 1.0, 1.4, 2.0])
def test_an_agent_that_was_away_leaves_a_gap_at_any_period(period_s):
    """A ledger row ends the first agent's rows at 110; the next agent begins 30 s later."""
    before, after = [np.arange(start, start + 10, period_s).astype(np.int64) for start in (100, 140)]
    epochs = 99 * 10**9, 139 * 10**9
    accounts = [
        LedgerRow(
            int(times[-1]),
            epoch,
            period_s,
            epoch == epochs[0],
            *(len(times),) * 2,
            0,
            0,
            len(times),
            int((times == times[-1]).sum()),
        )
        for epoch, times in zip(epochs, (before, after))
    ]
    found = GapFinder("taskstats_default", {7: np.concatenate([before, after])}, accounts, [], 99).find()
    assert {gap.why for gap in found.gaps} == {STOPPED}
    assert found.missing == pytest.approx(30 / period_s, abs=1 + 1 / period_s)
    assert found.here == len(before) + len(after)


def test_a_job_of_few_rows_has_the_gap_of_an_agent_that_was_away_and_no_other():
    """Samples of others were lost just before; the hole in the job's rows has its cause already."""
    times = np.array([109, 110, 140])
    away = TableGap(111, 139, 29, 29, STOPPED, False, 7)
    found = of_job(7, times, [TableGap(101, 110, 2, 2, NOT_HERE, False), away], 109, 140, period_s=1.0)
    assert found == [away]
