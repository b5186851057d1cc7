"""Machines whose power is cut while they write: nothing acknowledged is lost or twice, and all start by themselves.

COLMET_ROUNDS=50 cuts the collector so often, and the node half as often; `make test-machines` runs this.
"""

from __future__ import annotations

import collections
import os
import random
import time

import pytest

from tests.beds.machines.cuts import Cluster, lost_of_node, stored
from tests.support import fleet
from tests.support.exactly_once import seed
from tests.support.fleet import assert_each_once

ROUNDS = int(os.environ.get("COLMET_ROUNDS", "3"))
MINUTES = float(os.environ.get("COLMET_MINUTES", "1000"))  # no round begins later


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "PERIOD_S", 0.5)  # an emulated machine is slow
    made = Cluster(tmp_path, random.Random(seed()), os.environ.get("COLMET_IMAGE", "bookworm"))
    try:
        made.start().collector.stop()
        yield made
    finally:
        made.close()


def test_nothing_acknowledged_is_lost_and_nothing_is_twice(cluster, tmp_path, capsys):
    began, took, cuts = time.monotonic(), [], collections.Counter()
    with capsys.disabled():
        for number in range(ROUNDS):
            if time.monotonic() - began > 60 * MINUTES:
                break
            took.append(cluster.power_on())
            if is_node := number % 2 == 1:
                cluster.cut_node()
                cuts["node"] += 1
            unflushed, lost = cluster.cut_collector()
            cuts["collector"] += 1
            print(
                f"cut {number + 1}: receiving after {took[-1]:.0f} s; acknowledged {cluster.fleet.acknowledged}, "
                f"blocks not flushed {unflushed}, lost {lost}{', the node, too' * is_node}",
                flush=True,
            )
        took.append(cluster.power_on())
        cluster.finish(tmp_path / "stored")
        numbered, real, ledger = stored(tmp_path / "stored")
        sent = cluster.fleet.rows()
        twice = sum(count - 1 for count in collections.Counter(numbered).values())
        missing = len(set(sent) - set(numbered))
        times = real["procstats_default"]
        twice_of_node = len(times) - len(set(times))
        lives = lost_of_node(times, ledger)
        print(
            f"cuts of the collector {cuts['collector']}, of the node {cuts['node']}\n"
            f"rows of {len(cluster.fleet.nodes)} simulated nodes: sent and acknowledged {len(sent)}, "
            f"stored {len(numbered)}, missing {missing}, twice {twice}\n"
            f"samples of the real node in {len(lives)} starts: acknowledged {sum(one for one, _ in lives)}, "
            f"stored {len(times)}, missing {sum(lost for _, lost in lives)}, twice {twice_of_node}\n"
            f"seconds from power on to the first acknowledgement: {min(took):.0f} to {max(took):.0f}, "
            f"median {sorted(took)[len(took) // 2]:.0f}",
            flush=True,
        )
    assert_each_once(numbered, sent, "after the cuts")
    assert twice_of_node == 0
    assert lives and not any(lost for _, lost in lives), lives
    assert len(lives) > cuts["node"]
