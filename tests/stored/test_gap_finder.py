"""Gaps of lost samples: the truth table of `gaps_of`, with its examples."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.stored.gap_finder import DROPPED, NOT_HERE, UNSURE, LostSamples, gaps_of, holes

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
