"""Files that daemons of earlier versions left (tests/data/upgrade), and today's daemons that continue with a copy."""

from __future__ import annotations

import contextlib
import json
import lzma
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import v1
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox
from colmet.node.delivery.send_queue import SendQueue
from colmet.node.delivery.spool import LOCK, Spool
from colmet.node.delivery.uplink import Times, Uplink
from colmet.node.system.host import Host
from dev.upgrade_fixture import HDF5, JOURNAL, LEFT, ROWS, SPOOL, stored_rows
from tests.support.waiting import free_port, wait_for

DATA = Path(__file__).parents[1] / "data/upgrade"
VERSIONS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
ENDED, RUNNING = 101, 102  # the two jobs of a fixture
MIB = 1 << 20


class Left(NamedTuple):
    """A copy of what was left, and all rows of it as the version that wrote it reads them."""

    folder: Path
    host: str
    killed: int  # time of the kill
    tables: dict  # name -> columns, rows

    def expected(self):
        """The rows: how often each is there."""
        return Counter(
            (name, *zip(table["columns"], map(_hashable, row)))
            for name, table in self.tables.items()
            for row in table["rows"]
        )


def _hashable(value):
    return json.dumps(value)


def unpacked(version, folder):
    """Unpack a fixture; the collector's note on its file gets the path of the copy."""
    with tarfile.open(DATA / version / LEFT) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.tar_filter
        tar.extractall(folder)
    path = folder / JOURNAL / "hdf5.json"
    state = json.loads(path.read_text())
    state["notes"]["file"] = str(folder / Path(state["notes"]["file"]).name)
    path.write_text(json.dumps(state))
    about = json.loads(lzma.decompress((DATA / version / ROWS).read_bytes()))
    return Left(folder, about["host"], about["killed"], about["tables"])


def found_rows(left):
    """All rows of the HDF5 files, with the columns that the version of the fixture had."""
    found = stored_rows(sorted(left.folder.glob(f"{HDF5}.*.hdf5")), left.killed)
    counts = Counter()
    for name, table in found.items():
        columns = left.tables[name]["columns"]
        places = [table["columns"].index(column) for column in columns]
        counts.update((name, *zip(columns, [_hashable(row[n]) for n in places])) for row in table["rows"])
    return counts


class TodaysCollector:
    """Today's collector, which continues in the folder."""

    def __init__(self, folder, *arguments):
        self.uri = f"tcp://127.0.0.1:{free_port()}"
        self.log = folder / "collector.log"
        options = ("--zeromq-bind-uri", self.uri, "--hdf5-filepath", HDF5, "--control-socket", "")
        options += (
            "--sample-period",
            "1",
            "--buffer-size",
            "1",
            "--archive-batch",
            "none",
            "--zeromq-curve-secret",
            "",
        )
        with open(self.log, "ab") as log:
            self._start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "colmet.collector.main", "-v", *options, *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def text(self):
        return self.log.read_bytes()[self._start :].decode()

    def listening(self):
        wait_for(lambda: "listening" in self.text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.text()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, self.text()

    def __enter__(self):
        self.listening()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        elif self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def deliver(left, uri):
    """Send all batches of the spool as today's node does, until they are acknowledged; the spool's counters."""
    private = Host().private_directory(str(left.folder / SPOOL))
    private.lock(LOCK)
    epoch = max(time.time_ns(), Spool.last_epoch(private) + 1)
    outbox = Outbox(epoch, Spool(private, left.host, epoch, 64 * MIB, 9e9))
    queue = SendQueue(v1.encode_short, outbox)
    uplink = Uplink(uri, Push(uri, 1000, 0), LinkClient(link_uri(uri)), Times(), time.monotonic())
    link = NodeLink(left.host, outbox, [uplink], queue.take, queue.fd, 1000, 200.0, Times())
    with contextlib.ExitStack() as stack:
        stack.callback(outbox.close)
        stack.callback(queue.close)
        stack.callback(uplink.close)
        link.start()
        stack.callback(link.stop, queue.wake)
        wait_for(lambda: outbox.acknowledged and not len(outbox))
        return outbox.spool.counters()
