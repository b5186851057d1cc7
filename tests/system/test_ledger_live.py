"""Both daemons over a socket, with an outage beyond the spool's bound: what is missing is found in the files alone."""

from __future__ import annotations

import re

import pytest

from colmet.commands import completeness
from colmet.common.errors import ConfigError
from colmet.stored import gap_finder
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_an_outage_beyond_the_bound_and_a_kill_are_reported_row_by_row(start, start_collector, uri, tmp_path):
    prefix = str(tmp_path / "x")
    stored = ("--hdf5-filepath", prefix, "-s", "0.1")
    collector = start_collector(*stored)
    command = (
        *("colmet.node.main", "--zeromq-uri", uri, "-s", "0.01", "--mapping-dir", ""),
        *("--cpuset_rootpath", "/none", "--spool-dir", str(tmp_path / "spool"), "--spool-size", "1M"),
    )
    node = start(*command)

    def files():
        return [str(path) for path in sorted(tmp_path.glob("x.*.hdf5"))]

    def stored_hosts():
        """None while the collector is in the middle of writing."""
        try:
            return completeness.read(files())
        except ConfigError:
            return None

    def found():
        wait_for(stored_hosts)
        lines = completeness.look(stored_hosts(), None, None, None)
        return {line.table: line.found for line in lines}["procstats_default"]

    def sums():
        return {
            why: sum(gap.rows for gap in found().gaps if gap.why == why) for why in {gap.why for gap in found().gaps}
        }

    def ended(daemon):
        assert daemon.stop()[0] == 0
        form = r"stopping ticks=(\d+) sent=\d+ dropped=(\d+) overruns=(\d+)"
        return [int(number) for number in re.search(form, daemon.log.read_text()).groups()]

    wait_for(lambda: any("procstats_default" in host.times for host in (stored_hosts() or {}).values()))
    collector.stop()
    node.said("batches dropped", timeout=120)
    collector = start_collector(*stored)
    wait_for(lambda: found().missing > 0, timeout_s=60)
    ticks, dropped, skipped = ended(node)
    node = start(*command)  # what the first one could not send any more is sent by the next one
    wait_for(lambda: any(len({one.epoch for one in h.accounts["*"]}) == 2 for h in (stored_hosts() or {}).values()), 60)
    wait_for(lambda: not sums().keys() & {gap_finder.NOT_HERE, gap_finder.UNSURE}, timeout_s=180)
    more_ticks, more_dropped, more_skipped = ended(node)
    collector.stop()

    # What the node has dropped may have come all the same; the second start drops of the first one's.
    assert 0 < sums()[gap_finder.DROPPED] == ticks + more_ticks - found().here <= dropped + more_dropped
    assert sums()[gap_finder.LATE] == skipped + more_skipped
    # a node that is back within a period was never away
    assert sums().keys() - {gap_finder.STOPPED} == {gap_finder.DROPPED, gap_finder.LATE} and not found().twice
