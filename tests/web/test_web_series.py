"""From samples to the values of a chart: intervals, rates, labels, and what is stored beside what is in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.schema import Field, Schema, label
from colmet.stored.series import Series
from colmet.web import series
from colmet.web.recent_cache import JobSamples

T0 = 1_700_000_000.0
GPUS = Schema(
    "gpus_default",
    "node",
    [
        label("uuid", 8, "Which.", "x"),
        label("name", 8, "What.", "x"),
        Field("power", "watts", "gauge", dtype="f4"),
        Field("energy", "ujoules", "counter"),
    ],
)


def part(times, values, **more):
    return series.SeriesPart("n1", {}, T0 + np.asarray(times, float), np.asarray(values, float), **more)


def raw(times, values, host="n1", **labels):
    columns = {name: np.array(cells, "S8") for name, cells in labels.items()}
    return series.RawSeries(host, T0 + np.asarray(times, float), np.asarray(values, float), columns)


def shown(pair):
    times, values = pair
    return [(round(at - T0, 3), value) for at, value in zip(times.tolist(), series.json_values(values))]


# -- intervals --


@pytest.mark.parametrize(
    ("fold", "values"), [("mean", [2, 4.5, None]), ("min", [1, 4, None]), ("max", [3, 5, None]), ("last", [3, 5, None])]
)
def test_values_of_an_interval_become_one(fold, values):
    one = part([0, 3, 6, 10, 15, 21], [1, 2, 3, 4, 5, np.nan])
    assert shown(series.folded(one, 10.0, fold)) == list(zip([0, 10, 20], values))


def test_a_mean_counts_what_is_known_alone():
    assert shown(series.folded(part([0, 1, 2], [1, np.nan, 3]), 10, "mean")) == [(0, 2)]
    assert shown(series.folded(part([0, 1, 2], [1, 2, np.nan]), 10, "last")) == [(0, 2)]


def test_a_mean_of_rates_is_by_the_time_that_each_stands_for():
    assert shown(series.folded(part([1, 9], [8, 0], weights=np.array([1.0, 7.0])), 10, "mean")) == [(0, 1)]


@pytest.mark.parametrize("step", [0, 10])
def test_a_gap_is_returned_once(step):
    times = [*range(0, 50, 5), *range(500, 550, 5)]
    found = shown(series.folded(part(times, np.ones(len(times))), step, "mean"))
    missing = [at for at, value in found if value is None]
    assert len(missing) == 1 and 45 < missing[0] < 500


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=400, unique=True).map(sorted),
    st.integers(2, 50),
    st.sampled_from(["mean", "min", "max", "last"]),
)
def test_there_are_never_more_points_than_asked_for_and_never_a_value_that_was_not(ms, points, fold):
    times = np.array(ms) / 1000
    values = np.arange(len(times), dtype=float)
    one = part(times, values)
    step = series.step_of(series.Extent().joined(one), points)
    at, made = series.folded(one, step, fold)
    known = made[~np.isnan(made)]
    assert len(at) <= points and len(known) and (np.diff(at) > 0).all()
    assert known.min() >= 0 and known.max() <= len(times) - 1
    if fold != "mean":
        assert set(known.tolist()) <= set(values.tolist())


def test_intervals_begin_at_the_same_times_whenever_it_is_asked():
    first, later = part(range(0, 1000, 5), range(200)), part(range(0, 1020, 5), range(204))
    step = series.step_of(series.Extent().joined(first), 50)
    assert step == series.step_of(series.Extent().joined(later), 50) == 30
    assert set(series.folded(first, step, "mean")[0].tolist()) < set(series.folded(later, step, "mean")[0].tolist())


def test_years_take_days_and_samples_of_milliseconds_parts_of_a_second():
    years = part(np.arange(0, 3 * 365 * 86400, 3600), np.zeros(3 * 365 * 24))
    assert series.step_of(series.Extent().joined(years), 100) == 12 * 86400
    assert series.step_of(series.Extent().joined(part(np.arange(0, 1, 0.01), np.zeros(100))), 11) == pytest.approx(0.1)


# -- rates --


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ([100, 110, 5, 15, 35], [(5, 2), (10, None), (15, 2), (20, 4)]),  # began again
        ([0, np.nan, 20, 30, 50], [(10, 2), (15, 2), (20, 4)]),
    ],
)
def test_a_counter_is_shown_by_its_growth_a_second_where_that_is_known(values, rates):
    made = series.rates(part([0, 5, 10, 15, 20], values))
    assert shown((made.times, made.values)) == rates


def test_times_of_a_second_are_shares_and_others_keep_their_unit():
    assert series.unit_of("nsec", True) == ("seconds/s", 1e-9)
    assert series.unit_of("jiffies", True) == ("seconds/s", 0.01)
    assert series.unit_of("bytes", True) == ("bytes/s", 1.0)
    assert series.unit_of("nsec", False) == ("nsec", 1.0)
    assert series.unit_of(None, True) == (None, 1.0)


# -- where rows come from --


def samples(*given):
    """Rows of `GPUS`: (seconds, uuid, name, power, energy)."""
    packed = GPUS.empty_rows(len(given))
    for n, (_, *values) in enumerate(given):
        packed[n] = (0, *values)
    return JobSamples("n1", GPUS, T0 + np.array([one[0] for one in given], float), packed)


def test_a_column_of_memory_is_missing_where_it_was_not_measured():
    found = series.of_samples(samples((0, b"a", b"x", math.nan, 5), (1, b"a", b"x", 2.5, -1)), "energy", ["uuid"])
    assert series.json_values(found.values) == [5, None] and found.labels["uuid"].tolist() == [b"a", b"a"]
    assert series.json_values(series.of_samples(samples((0, b"a", b"x", math.inf, 5)), "power", []).values) == [None]
    assert series.json_values(series.of_samples(samples((0, b"a", b"x", 1, 5)), "absent", []).values) == [None]
    assert series.json_values(series.of_samples(samples((0, b"a", b"x", 1, 5)), "name", []).values) == [None]


def test_of_the_second_in_which_memory_begins_nothing_is_returned_twice():
    stored = Series("t", "n1", 1, (T0 + np.array([0, 5, 10, 15])).astype(np.int64), {"v": np.array([0, 5, 10, -1])})
    old = series.of_series(stored, "v", [])
    assert series.json_values(old.values) == [0, 5, 10, None]
    new = raw([10.7, 15.7], [10, 15])
    cut = series.before(old, 0, math.inf, float(new.times[0]))
    (whole,) = series.joined([cut, new])
    assert shown((whole.times, whole.values)) == [(0, 0), (5, 5), (10.7, 10), (15.7, 15)]
    assert series.before(old, T0 + 5, T0 + 10, math.inf).times.tolist() == [T0 + 5, T0 + 10]


def test_rows_of_one_time_are_distinguished_by_as_few_labels_as_needed():
    gpus = raw([0, 0, 5, 5], [1, 2, 3, 4], uuid=["a", "b", "a", "b"], name=["x", "x", "x", "x"])
    assert series.keys_of([gpus], ["uuid", "name"]) == ["uuid"] and series.keys_of([gpus], ["name", "uuid"]) == ["uuid"]
    single = raw([0, 5], [1, 2], uuid=["a", "b"])
    assert series.keys_of([single], ["uuid"]) == [] and len(series.parts_of([single], [])) == 1
    found = series.parts_of([gpus, raw([0], [9], host="n2", uuid=["c"])], ["uuid"])
    assert [(one.host, dict(one.labels), one.values.tolist()) for one in found] == [
        ("n1", {"uuid": "a"}, [1, 3]),
        ("n1", {"uuid": "b"}, [2, 4]),
        ("n2", {"uuid": "c"}, [9]),
    ]


def test_two_samples_of_one_second_are_one_series():
    twice = raw([0, 0, 1], [1, 2, 3], name=["x", "x", "x"])
    (one,) = series.parts_of([twice], series.keys_of([twice], ["name"]))
    assert shown((series.levels(one).times, series.levels(one).values)) == [(0, 2), (1, 3)]


def test_labels_that_one_source_lacks_do_not_hide_its_rows():
    (whole,) = series.joined([raw([0], [1]), raw([5, 5], [2, 3], uuid=["a", "b"])])
    found = series.parts_of([whole], series.keys_of([whole], ["uuid"]))
    assert sorted(one.labels["uuid"] for one in found) == ["", "a", "b"]
