"""What the collector has acknowledged is in HDF5 and in a real database once, whichever of the two is killed.

COLMET_SEED=N repeats a run, as far as the machine lets it; COLMET_ROUNDS=30 kills more often.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.beds.search import KINDS, Server, available
from tests.support.exactly_once import PLACES, World, passes, seed
from tests.support.waiting import wait_for

pytestmark = pytest.mark.live

ROUNDS = int(os.environ.get("COLMET_ROUNDS", "3"))


# one of each vendor: what differs between their versions, test_elasticsearch.py looks at
@pytest.fixture(scope="module", params={KINDS[kind].vendor: kind for kind in available()}.values())
def server(request):
    with Server(request.param) as server:
        yield server


@pytest.fixture
def world(server, tmp_path):
    server.clear()
    world = World(tmp_path, random.Random(seed()), server)
    yield world
    world.close()


def assert_all_there(world, server):
    world.finish()
    sent = world.check([(hit["_index"], hit["_source"]) for hit in server.documents("colmet_*")])
    print(f"{len(sent)} rows, each once")


@pytest.mark.slow
def test_the_collector_is_killed(world, server):
    """Most often while it waits for an answer or has just had one."""
    places = [place for some in PLACES for place in some if len(some) == 1 and place.startswith("elasticsearch")]
    reached = 0
    for _ in range(ROUNDS):
        reached += sum(world.round(place.format(n=passes(place, world.rng))) for place in places)
        world.round("")
    assert reached > 2 / 3 * ROUNDS * len(places)
    assert_all_there(world, server)


@pytest.mark.slow
def test_the_database_is_killed(world, server):
    """While it accepts bulks; the collector goes on as soon as it is there again."""
    world.collector.start()
    for _ in range(ROUNDS):
        before = world.collector.log.read_text().count("output available again output=elasticsearch")
        time.sleep(world.rng.uniform(0.2, 2))
        server.kill()
        acknowledged = world.fleet.acknowledged
        wait_for(lambda acknowledged=acknowledged: world.fleet.acknowledged > acknowledged + 50)  # it minds not
        server.start()
        wait_for(
            lambda before=before: (
                world.collector.log.read_text().count("output available again output=elasticsearch") > before
            ),
            180,
        )
    assert not world.collector.ended()
    world.collector.signal(signal.SIGTERM)
    assert world.collector.wait(120) == 0
    assert_all_there(world, server)
