from __future__ import annotations

import random

from colmet.node.delivery.outbox import DeliveryStats

SETS = [("a",), ("a", "b"), (), ("b", "c")]


def test_what_becomes_of_batches_is_counted_by_table():
    rng, stats = random.Random(1), DeliveryStats()
    tables = {}
    for number in range(1, 2000):
        tables[number] = SETS[0] if rng.random() < 0.9 else rng.choice(SETS)
        stats.take(number, tables[number])
    expected = {name: {"taken": 0, "sent": 0, "acknowledged": 0, "dropped": 0} for name in "abc"}
    for number, names in tables.items():
        for name in names:
            expected[name]["taken"] += 1
            expected[name]["sent"] += number <= 1500
            expected[name]["acknowledged"] += number <= 1234
            expected[name]["dropped"] += number > 1900
    for first in range(1, 1501, 100):
        stats.count("sent", first, first + 99)
    stats.count("acknowledged", 1, 34)
    stats.forget(35)
    stats.count("acknowledged", 35, 1234)
    stats.forget(1235)
    stats.count("dropped", 1901, 1999)
    assert stats.by_table() == expected
    assert stats.totals() == {"taken": 1999, "sent": 1500, "acknowledged": 1234, "dropped": 99}
