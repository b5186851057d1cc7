from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colmet.common.wire.link import Ranges

numbers = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def runs(members):
    found = []
    for number in sorted(members):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


@given(st.lists(st.tuples(st.booleans(), numbers), max_size=60))
def test_it_is_a_set_of_numbers_in_the_fewest_ranges(steps):
    ranges, members = Ranges(), set()
    for adding, (first, last) in steps:
        some = set(range(first, last + 1))
        inside = runs(members & some)
        assert ranges.within(first, last) == inside
        if adding:
            assert ranges.add(first, last) == len(some - members)
            members |= some
        else:
            assert ranges.remove(first, last) == inside
            members -= some
        assert list(ranges) == runs(members)
        assert len(ranges) == len(runs(members))
        assert ranges.count == len(members)
        if members:
            assert (ranges.first, ranges.last) == (min(members), max(members))
        for number in range(72):
            assert (number in ranges) == (number in members)
            assert ranges.at_or_after(number) == min([n for n in members if n >= number], default=None)
