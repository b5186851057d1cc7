"""The series of several hosts as one: sum, mean, min and max at each time."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.web.series import Extent, SeriesPart, grid_of, period_of, spread_of

T0 = 1_700_000_000.0


def part(times, values, host="n1"):
    return SeriesPart(host, {}, T0 + np.asarray(times, float), np.asarray(values, float))


def spread(parts, points=300, fold="mean"):
    extent = Extent()
    for one in parts:
        extent = extent.joined(one)
    grid = grid_of(extent, max(map(period_of, parts), default=0.0), points)
    return spread_of(parts, grid, extent, fold)


def test_longer_intervals_have_the_values_of_each_host_folded_first():
    times, first, second = np.arange(1000), np.arange(1000.0), np.full(1000, 7.0)
    made = spread([part(times, first), part(times, second, "n2")], points=101)
    begins = np.floor((T0 + times) / 10) * 10
    means = np.array([first[begins == at].mean() for at in np.unique(begins)])
    assert made["times"].tolist() == np.unique(begins).tolist()
    assert made["sum"] == pytest.approx(means + 7)
    assert made["max"] == pytest.approx(np.maximum(means, 7)) and made["min"] == pytest.approx(np.minimum(means, 7))


def test_a_sum_is_missing_where_a_host_has_no_value_and_the_others_still_have_a_spread():
    times = 10 * np.arange(6)
    made = spread([part(times, [1, 1, 1, 1, 1, 1]), part(times, [2, 2, np.nan, 2, 2, 2], "n2")])
    assert np.isnan(made["sum"]).tolist() == [False, False, True, False, False, False]
    assert made["max"].tolist() == [2, 2, 1, 2, 2, 2]


def test_a_host_counts_from_its_first_value_to_its_last():
    times = 10 * np.arange(10)
    made = spread([part(times, np.ones(10)), part(times[4:6], [5, 5], "n2")])
    assert made["sum"].tolist() == [1, 1, 1, 1, 6, 6, 6, 6, 1, 1]  # its last value counts twice more


def test_a_late_sample_leaves_no_hole_and_a_long_gap_is_one():
    times = [0, 5, 10, 20, 25, 30, 90, 95]
    made = spread([part(times, np.arange(8.0))])
    holes = np.isnan(made["sum"])
    shown = dict(zip((made["times"][~holes] - T0).tolist(), made["sum"][~holes].tolist()))
    assert shown == dict(zip(times, range(8)))
    assert holes.any() and all(30 < at < 90 for at in made["times"][holes] - T0)


def test_the_number_of_intervals_is_bounded_whatever_the_times():
    far = spread([part([0, 1, 2], [1, 2, 3]), part([3e9], [1], "n2")], points=50)
    assert len(far["times"]) <= 3 * 50
    assert len(spread([])["times"]) == 0 == len(spread([part([], [])])["times"])
    assert spread([part([3], [4])])["max"].tolist() == [4]
