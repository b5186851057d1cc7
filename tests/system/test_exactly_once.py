"""Whatever happens to the collector, what it has acknowledged is in every output once.

COLMET_SEED=N repeats a run, as far as the machine lets it; COLMET_ROUNDS=1 kills it at a third of the places of 3.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import subprocess
import time
from operator import attrgetter

import pytest

from tests.support.bulk_server import Database
from tests.support.exactly_once import PLACES, World, passes, seed
from tests.support.place import mount_tmpfs
from tests.support.waiting import wait_for

DISK_BYTES = 64 << 20  # the rows of a slow machine fit, too


@contextlib.contextmanager
def away(database):
    """The database is not there."""
    database.stop()
    yield
    database.start()


def run_rounds(directory, rounds, tell, some_places=PLACES):
    """Kill it about `rounds` times: at as many of these places as fit, and else at any moment.

    Returns:
        The places that it was to be killed at and did not come to.
    """
    chosen = seed()
    rng = random.Random(chosen)
    places = [[place.format(n=passes(place, rng)) for place in some] for some in some_places]
    rng.shuffle(places)
    plan = []
    while places and sum(map(len, plan)) + len(places[-1]) <= rounds:
        plan.append(places.pop())
    plan += [[""]] * (rounds - sum(map(len, plan)))
    rng.shuffle(plan)
    database = Database(chosen, trouble=0.1)
    world = World(directory, rng, database)
    missed = []
    n = 0
    try:
        for some in plan:
            for place in some:
                with away(database) if not place and rng.random() < 0.2 else contextlib.nullcontext():
                    reached = world.round(place)
                n += 1
                tell(f"round {n}: {place or 'any moment'}; {world.fleet.acknowledged} batches acknowledged")
                if place and not reached:
                    missed.append(place)
                    break  # what follows needs it
        database.trouble = 0.0
        world.finish()
        sent = world.check([(index, document) for (index, _), document in database.documents.items()])
    finally:
        world.close()
        database.stop()
    tell(f"seed {chosen}: {n} kills, {len(sent)} rows, each once; {database.conflicts} documents were there")
    return missed


@pytest.fixture
def small_disk(root, tmp_path):
    """A small file system."""
    path = tmp_path / "disk"
    path.mkdir()
    mount_tmpfs(path, f"size={DISK_BYTES}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path):
    """Take all the room that there is."""
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.slow
def test_a_full_disk(small_disk):
    """It says so, keeps what it has received, goes on by itself, and survives a kill and a start on a full disk."""
    chosen = seed()
    rng = random.Random(chosen)
    ballast = small_disk / "ballast"
    database = Database(chosen)
    world = World(small_disk, rng, database, log=small_disk.parent / "collector.log")
    fleet, collector = world.fleet, world.collector

    def goes_on(before, may_end):
        if may_end and collector.ended():  # it cannot start without any room; what supervises it starts it again
            assert collector.wait(10) in (1, 2)
            collector.start()
        return fleet.acknowledged > before

    try:
        collector.start()
        for killed in (False, True, False):
            before = fleet.acknowledged
            wait_for(lambda before=before: fleet.acknowledged > before + 100)
            warnings = collector.log.read_text().count("cannot be written to, received data waits in memory")
            fill(ballast)
            wait_for(
                lambda warnings=warnings: collector.log.read_text().count("received data waits in memory: ") > warnings
            )
            fill(ballast)  # what it made room for itself
            time.sleep(rng.uniform(0, 1))
            assert not collector.ended()
            if killed:
                collector.kill()
                collector.start()
                wait_for(lambda: collector.ended() or collector.said("listening"))
                time.sleep(0.5)
            ballast.unlink()
            before = fleet.acknowledged
            wait_for(lambda before=before, killed=killed: goes_on(before, killed))
        before = fleet.acknowledged
        wait_for(lambda: fleet.acknowledged > before + 100)
        assert not collector.ended()
        collector.signal(signal.SIGTERM)
        assert collector.wait(120) == 0
        world.finish()
        world.check([(index, document) for (index, _), document in database.documents.items()])
    finally:
        world.close()
        database.stop()


def test_every_place_is_one_of_the_program():
    for place in [place for rounds in PLACES for one in rounds for place in one.split("|")]:
        _, module, names = place.split(":")[:3]
        assert attrgetter(names)(importlib.import_module(module)), place


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])  # beside each other, where there are CPUs
def test_kills_everywhere(tmp_path, part):
    rounds = 4 * int(os.environ.get("COLMET_ROUNDS", "3"))
    assert len(run_rounds(tmp_path, rounds, print, PLACES[part::2])) <= 2  # of about 20 that are planned
