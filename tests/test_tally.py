from __future__ import annotations

import random

from colmet.node.delivery import delivery_stats as module
from colmet.node.delivery.delivery_stats import Tally

SETS = [("a",), ("a", "b"), (), ("b", "c")]


def test_what_becomes_of_batches_is_counted_by_table():
    rng, tally = random.Random(1), Tally()
    tables = {}
    for number in range(1, 2000):
        tables[number] = SETS[0] if rng.random() < 0.9 else rng.choice(SETS)
        tally.take(number, tables[number])
    expected = {name: {"taken": 0, "sent": 0, "acknowledged": 0, "dropped": 0} for name in "abc"}
    for number, names in tables.items():
        for name in names:
            expected[name]["taken"] += 1
            expected[name]["sent"] += number <= 1500
            expected[name]["acknowledged"] += number <= 1234
            expected[name]["dropped"] += number > 1900
    for first in range(1, 1501, 100):
        tally.count("sent", first, first + 99)
    tally.count("acknowledged", 1, 34)
    tally.forget(35)
    tally.count("acknowledged", 35, 1234)
    tally.forget(1235)
    tally.count("dropped", 1901, 1999)
    assert tally.by_table() == expected
    assert tally.totals() == {"taken": 1999, "sent": 1500, "acknowledged": 1234, "dropped": 99}


def test_a_long_count_of_the_same_tables_takes_no_memory_and_neither_do_very_many_sets():
    tally = Tally()
    for number in range(100_000):
        tally.take(number, ("a",))
    assert len(tally._firsts) == 1
    for number in range(100_000, 103_000):
        tally.take(number, (f"t{number}",))
        tally.forget(number)
    assert len(tally._firsts) < 100 and len(tally._kinds) == module.MAX_KINDS
