"""What a collector does under siege: tests/support/hostile.py for a short time; every batch is counted."""

from __future__ import annotations

import re

import pytest

from tests.support.hostile import EVIL, MEMBERS, NODES, OUTSIDERS, Site, besiege

pytestmark = [pytest.mark.live, pytest.mark.slow]
# What a few connections may make it hold: messages that wait, and what is no whole message yet.
MOST_MB = 1500


@pytest.fixture
def site(tmp_path):
    made = []

    def make(*options, locked=True):
        made.append(Site(tmp_path, *options, locked=locked))
        made[0].watch(20, lambda: len(made[0].stored()) == NODES)
        return made[0]

    yield make
    for one in made:
        one.close()


def check(site, most_mb):
    """All that the nodes measured is there once, and memory was bounded; what the collector counted."""
    taken = site.nodes.finish()
    stored = site.wait_for_all(taken)
    for host in site.nodes.pushes:
        numbers = stored.pop(host)
        assert sorted(numbers) == list(range(taken)), f"{host}: {taken - len(numbers)} of {taken} are missing"
        assert set(numbers.values()) == {1}, f"{host}: some twice"
    assert most_mb < MOST_MB
    assert site.stop() == 0, site.log.read_text()[-3000:]
    assert "Traceback" not in site.log.read_text()
    counts = {}
    for line in site.summary():
        for name, value in re.findall(r" (\w+)=(\d+)", line):
            counts[name] = max(counts.get(name, 0), int(value))
    return stored, counts


def test_members_that_flood_it_cost_the_others_nothing(site):
    under = site()
    done, most_mb = besiege(under, MEMBERS, 6)
    assert all(done.values()), done
    stored, counts = check(under, most_mb)
    assert list(stored) == [EVIL], "nothing was stored in the name of another"
    assert counts["foreign"] and counts["limited"] and counts["refused"]


def test_outsiders_get_nothing_in_and_nobody_out(site):
    under = site()
    done, most_mb = besiege(under, OUTSIDERS, 6)
    assert all(done.values()), done
    stored, counts = check(under, most_mb)
    assert not stored
    assert counts["unknown_key"] and counts["handshake_failed"]
