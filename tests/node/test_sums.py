from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colmet.node.system.sums import Sums


def test_the_first_total_is_what_the_parts_tell():
    sums = Sums()
    sums.add("a", {"read": 10, "written": 1})
    sums.add("b", {"read": 5, "written": None})
    assert sums.totals() == {"read": 15, "written": 1}


def test_a_part_that_goes_stays_in_the_total():
    sums = Sums()
    sums.add("a", {"read": 10})
    sums.add("b", {"read": 5})
    sums.add("b", {"read": 7})
    assert sums.totals() == {"read": 17}


def test_a_part_that_starts_again_is_added_whole_with_all_its_counters():
    sums = Sums()
    sums.add("a", {"read": 10, "written": 2})
    sums.add("a", {"read": 3, "written": 5})  # written went from 0 to 5, not from 2
    assert sums.totals() == {"read": 13, "written": 7}
    sums.add("a", {"read": 4, "written": 5})
    assert sums.totals() == {"read": 14, "written": 7}


def test_a_counter_that_could_not_be_read_meanwhile_catches_up():
    sums = Sums()
    sums.add("a", {"read": 10})
    sums.add("a", {"read": None})
    assert sums.totals() == {"read": 10}
    sums.add("a", {"read": 14})
    assert sums.totals() == {"read": 14}


def test_what_started_again_while_a_counter_could_not_be_read_counts_from_0():
    sums = Sums()
    sums.add("a", {"read": 10, "written": 2})
    sums.add("a", {"read": 1, "written": None})
    sums.add("a", {"read": 1, "written": 3})
    assert sums.totals() == {"read": 11, "written": 5}


def test_of_a_part_that_does_not_count_whole_only_its_growth_counts():
    sums = Sums()
    sums.add("a", {"read": 10})
    sums.add("b", {"read": 1000}, whole=False)
    assert sums.totals() == {"read": 10}
    sums.add("b", {"read": 1003})
    assert sums.totals() == {"read": 13}


def test_a_part_that_does_not_count_whole_and_starts_again_counts_from_0_all_the_same():
    sums = Sums()
    sums.add("a", {"read": 1000, "written": 500}, whole=False)
    sums.add("a", {"read": 3, "written": None}, whole=False)
    sums.add("a", {"read": 3, "written": 2}, whole=False)
    assert sums.totals() == {"read": 3, "written": 2}


def test_another_part_of_a_forgotten_name_counts_whole():
    sums = Sums()
    sums.add("a", {"read": 10})
    sums.keep_only([])
    sums.add("a", {"read": 12})
    assert sums.totals() == {"read": 22}


def test_a_total_that_no_column_holds_is_missing():
    sums = Sums()
    for part in "ab":
        sums.add(part, {"read": 2**62, "written": 1})
    assert sums.totals() == {"read": None, "written": 2}


COUNTER = st.one_of(st.none(), st.integers(0, 20))
READING = st.tuples(st.sampled_from("abc"), st.fixed_dictionaries({"x": COUNTER, "y": COUNTER}), st.booleans())


@given(st.lists(st.one_of(READING, st.lists(st.sampled_from("abc")))))
def test_no_total_ever_goes_down(steps):
    sums = Sums()
    before = {}
    for step in steps:
        if isinstance(step, list):
            sums.keep_only(step)
        else:
            sums.add(*step)
        now = sums.totals()
        assert all(now[name] >= total for name, total in before.items())
        before = now
