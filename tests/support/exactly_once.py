"""Shared by tests: PLACES, World, passes, seed, NEVER."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time

from colmet.collector.journal.segment_store import read_name
from colmet.collector.journal.segments import SegmentReader, list_segments
from colmet.common.record_log import Damage
from tests.support.fleet import Collector, Fleet, assert_each_once, row_of, stored_in_hdf5
from tests.support.waiting import free_port

HDF5 = "hdf5:colmet.collector.backends.hdf5.output:Hdf5Output"


FILE = "hdf5:colmet.collector.backends.hdf5.h5file:Hdf5File"
CURRENT = "hdf5:colmet.collector.backends.hdf5.current_file:CurrentFile"


# A burst is taken back, or the file is replaced where that cannot be.
LIBRARY = "hdf5:colmet.collector.backends.hdf5.libhdf5"
RECOVERY = "|".join(f"{what}:{{0}}:1" for what in (f"{FILE}.undo", f"{CURRENT}.begin_again"))


# A torn tail is cut, where the last segment has one.
TAIL = "MainThread:os:truncate:{0}:1|MainThread:colmet.collector.ingest.receiver:Receiver.restore:{0}:1"


STATE = "colmet.collector.journal.output_state:OutputState"


# Where the collector kills itself: the thread, and what it is about to do or has just done; some in rounds that follow
# each other.
PLACES = [
    # in a burst
    [f"{FILE}.plan:after:{{n}}"],
    [f"{LIBRARY}:Dataset.append:before:{{n}}"],
    [f"{LIBRARY}:Dataset.append:after:{{n}}"],
    [f"{LIBRARY}:LibraryFile.copy:before:{{n}}"],
    [f"{LIBRARY}:LibraryFile.copy:after:{{n}}"],
    [f"{FILE}.flush:before:{{n}}"],
    [f"{FILE}.sync:before:{{n}}"],
    [f"{FILE}.sync:after:{{n}}"],
    [f"hdf5:{STATE}.save:before:{{n}}"],
    [f"hdf5:{STATE}.save:after:{{n}}"],
    ["hdf5:os:write:half:{n}"],
    ["hdf5:os:rename:before:{n}"],
    ["hdf5:os:rename:after:{n}"],
    # while a burst is taken back, and again
    [f"{LIBRARY}:Dataset.append:after:{{n}}", RECOVERY.format("before"), RECOVERY.format("after")],
    [f"{FILE}.sync:before:{{n}}", f"{HDF5}.recover:before:1", RECOVERY.format("after"), f"{HDF5}.recover:after:1"],
    # while the next file is begun
    [f"{HDF5}.reopen:before:1"],
    [f"{HDF5}.reopen:after:1"],
    [f"{FILE}._create:before:1"],
    [f"{FILE}._create:after:1"],
    # in a bulk: sent and the answer not read, and later
    ["elasticsearch:http.client:HTTPConnection.getresponse:before:{n}"],
    ["elasticsearch:http.client:HTTPConnection.getresponse:after:{n}"],
    [f"elasticsearch:{STATE}.save:before:{{n}}"],
    ["elasticsearch:os:rename:before:{n}"],
    # in the journal: records written in part, written and not synced, synced and not acknowledged
    ["journal:os:write:half:{n}", TAIL.format("before"), TAIL.format("after")],
    ["journal:os:fdatasync:before:{n}"],
    ["journal:os:fdatasync:after:{n}"],
    # while segments come and go, also one after the other without a message between them
    ["journal:colmet.collector.journal.segments:pack_segment:before:1"],
    ["journal:colmet.collector.journal.segments:pack_segment:before:2"],
    ["journal:os:write:after:1", "journal:os:write:after:1", "journal:os:fdatasync:after:1"],
    ["journal:os:unlink:before:1", "journal:os:unlink:after:1"],
    # while it finds out who has sent what
    ["MainThread:colmet.collector.ingest.receiver:Receiver.restore:before:1"],
    ["MainThread:colmet.collector.ingest.receiver:Receiver.restore:after:1"],
]


# What a collector that is killed never says; `lost` and `dropped` come with the reports. A kill may tear an HDF5 file,
# which is then filled again from the journal: files_damaged.
NEVER = re.compile(
    r"Traceback|defect|damaged, |rows lost|records lost|"
    r"(?:lost|dropped|(?<!files_)damaged|unreadable|refused|rejected)=[1-9]"
)


PLACE_S = 30  # for the collector to come to the place; where the machine is too busy, it is killed wherever it is


MAX_PASSES = 11  # of a place, before it is killed there


MAX_ELASTICSEARCH_PASSES = 4  # where that output rests for seconds after each burst


DRAIN_S = 120


def seed():
    chosen = int(os.environ.get("COLMET_SEED") or random.randrange(1 << 32))
    print(f"COLMET_SEED={chosen}")
    return chosen


class World:
    """The nodes, the collector and the database."""

    def __init__(self, directory, rng, database, log=None):
        self.rng = rng
        self.prefix = directory / "cluster"
        self.journal = directory / "cluster.journal"
        uri = f"tcp://127.0.0.1:{free_port()}"
        self.fleet = Fleet(uri, rng)
        self.collector = Collector(
            *(self.fleet, log or directory / "collector.log"),
            *("-v", "--zeromq-bind-uri", uri, "-s", "0.2", "--buffer-size", "20", "--journal-size", "64M"),
            *("--hdf5-filepath", str(self.prefix), "-s", "0.1"),
            *(("--elastic-host", database.url, "--no-shared-archive") if database else ()),
        )

    def round(self, place):
        """Start it, and have it killed: at the place, or at any moment; whether it came to the place."""
        self.collector.start(place)
        until = time.monotonic() + (PLACE_S if place else self.rng.uniform(0.1, 1.5))
        while not self.collector.ended() and time.monotonic() < until:
            if self.rng.random() < 0.05 and self.collector.said("listening"):
                self.collector.signal(signal.SIGHUP)
            time.sleep(0.02)
        reached = self.collector.ended()
        assert self.collector.kill() == -signal.SIGKILL, self.collector.log.read_text()[-4000:]
        return reached

    def finish(self):
        """Have it take all that the nodes have, and end it as an operator does."""
        self.fleet.pause()
        until = time.monotonic() + DRAIN_S
        left = True
        while left:
            self.collector.start()
            while self.fleet.waiting or not self.collector.said("listening"):
                assert not self.collector.ended() and time.monotonic() < until, self.collector.log.read_text()[-4000:]
                time.sleep(0.05)
            self.collector.signal(signal.SIGTERM)
            assert self.collector.wait(120) == 0
            # at the end it writes for ten seconds, which is not enough for a machine that is very busy
            left = self.collector.said("output continues with these records after the next start")
            assert not left or time.monotonic() < until, self.collector.log.read_text()[-4000:]

    def close(self):
        self.collector.close()
        self.fleet.close()

    def check(self, documents):
        """Nothing is missing, nothing is there twice; the rows that were sent.

        Args:
            documents: of the database, each with its index.
        """
        said = self.collector.log.read_text().splitlines()
        wrong = [n for n, line in enumerate(said) if NEVER.search(line)]
        assert not wrong, "\n".join([f"{len(wrong)} lines that are never to be said:", *said[wrong[0] :][:30]])
        sent = self.fleet.rows()
        # first the database: what was taken in twice is there twice, too
        assert_each_once([row_of(index, document) for index, document in documents], sent, "the database")
        assert_each_once(stored_in_hdf5(self.prefix), sent, "HDF5")
        assert not damages(str(self.journal))
        return sent


def damages(directory):
    """The damaged places of a journal, but for records that were being written at the end."""
    found = []
    for _, path in list_segments(directory):
        with contextlib.closing(SegmentReader(path, read_name(directory))) as reader:
            found += [path] * (reader.header is None) + [one for one in reader.read() if isinstance(one, Damage)]
    return found


def passes(place, rng):
    return rng.randint(1, MAX_ELASTICSEARCH_PASSES if place.startswith("elasticsearch") else MAX_PASSES)
