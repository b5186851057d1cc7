"""Measures: what people read, declared once, from columns that the catalogue has."""

from __future__ import annotations

import pytest

from colmet.common.measures import (
    BY_CPUS,
    BY_TASKS,
    BY_TIME,
    MEASURES,
    ORIGINS,
    TOTAL,
    bounded,
    columns_of,
)
from colmet.common.tables import schemas

KEYS = [pytest.param(measure, id=measure.key) for measure in MEASURES.values()]


@pytest.mark.parametrize("measure", KEYS)
def test_a_measure_has_columns_of_one_scope_kind_and_family_of_units(measure):
    fields = [source.field for source in measure.sources]
    assert {schemas()[source.table].scope for source in measure.sources} == {measure.scope}
    assert len({field.kind for field in fields}) == 1
    assert len({measure.unit.family, *[source.unit.family for source in measure.sources]}) == 1
    assert {source.origin for source in measure.sources} <= {"", *ORIGINS}
    assert len({*measure.places}) == len(measure.places)


@pytest.mark.parametrize("measure", KEYS)
def test_only_a_counter_has_a_total_and_a_measure_says_what_it_is(measure):
    assert measure.time != TOTAL or measure.kind == "counter"
    assert measure.label and measure.help.endswith(".")


def test_what_bounds_a_counter_of_time_is_declared_with_it():
    every = [bounded(bound) for bound in (BY_CPUS, BY_TASKS, BY_TIME)]
    assert sum(map(len, every)) == len(frozenset().union(*every))
    times = [source.unit for measure in MEASURES.values() if measure.bound for source in measure.sources]
    assert {unit.family for unit in times} == {"duration"}


def test_columns_are_named_once_in_the_order_of_the_measures():
    read, written = MEASURES["io_read"], MEASURES["charged_read"]
    assert columns_of([read, written]) == {
        "cgroup_default": ("io_read_bytes",),
        "taskstats_default": ("read_bytes",),
        "jobprocstats_default": ("read_bytes",),
    }
