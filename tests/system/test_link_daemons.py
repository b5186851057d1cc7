"""Both daemons as processes: what a node has measured reaches a collector that comes later, over the node's death."""

from __future__ import annotations

import signal

import pytest

from colmet.node.delivery.spool import read_head
from tests.support.daemons import rows_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.live


def segments(directory):
    return sorted(directory.glob("*.spool*"))


def are_empty(directory):
    """Whether one segment is left, with its head alone."""
    contents = [path.read_bytes() for path in segments(directory)]
    return len(contents) == 1 and read_head(contents[0]).start == len(contents[0])


def test_what_a_killed_node_had_measured_is_stored_once_when_the_collector_comes(start, start_collector, uri, tmp_path):
    spool = tmp_path / "spool"
    options = ("--zeromq-uri", uri, "-s", "0.1", "--cpuset_rootpath", "/none", "--spool-dir", str(spool))
    first = start("colmet.node.main", *options)
    wait_for(lambda: segments(spool) and segments(spool)[0].stat().st_size > 5000)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(20)
    kept = segments(spool)[0].stat().st_size
    second = start("colmet.node.main", *options)
    second.said("are still to be sent, from before this start")
    wait_for(lambda: len(segments(spool)) == 2)
    third = start("colmet.node.main", *options)
    third.said("another colmet-node uses it")
    third.said("backend on")
    assert third.stop()[0] == 0
    output = ("--enable-stdout-backend", "--stdout-format", "json", "--journal-dir", str(tmp_path / "journal"))
    collector = start_collector(*output)
    second.said("collector is there")
    # with the latest batches alone: at this period, some are always on their way
    wait_for(lambda: len(segments(spool)) == 1 and segments(spool)[0].stat().st_size < kept)
    assert second.stop()[0] == 0
    assert are_empty(spool)
    code, out = collector.stop()
    assert code == 0
    rows = [row for row in rows_of(out) if row["metric_backend"] == "procstats_default"]
    assert len(rows) > kept / 2000 + 5, "those of the first node, too"
    log = collector.log.read_text()
    assert "missing=0 duplicates=0 refused=0" in log and "callers=1" in log, log


def test_without_a_link_the_collector_says_what_is_lost_then(start_collector):
    collector = start_collector("--enable-stdout-backend", "--zeromq-link-bind-uri", "")
    collector.said("no acknowledgements: batches under way when the collector stops are lost")
    collector.said("link=(none)")
    assert collector.stop()[0] == 0
