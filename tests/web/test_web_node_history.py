"""The values of nodes over time, for the map of nodes and times."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.common.live.latest_tables import LatestTables
from colmet.common.live.summary import DEVICE_TABLES, NODE_TABLES, Heard
from colmet.common.schema import Batch, Table
from colmet.web import node_history
from colmet.web.node_history import MEASURES, SPANS, HistoryMemory, HistoryQuery
from tests.support.waiting import Clock
from tests.support.web_nodes import NS, SCHEMAS, rows

START = 1_700_000_100  # 15 s into a minute, and the first minute of a quarter
HZ = 100


class Nodes:
    """Nodes with a made-up use of their two CPUs, recorded once a minute."""

    def __init__(self, names):
        self.clock, self.names, self.tick, self.time_s = Clock(), names, 0, START
        self.latest = LatestTables((*NODE_TABLES, *DEVICE_TABLES), always=True, monotonic=self.clock)
        self.history = HistoryMemory()
        self.busy = dict.fromkeys(names, 0)
        self.idle = dict.fromkeys(names, 0)
        self.heard = {}

    def minute(self, use=0.5, silent=(), **more):
        """A minute of samples each 20 s; `use` is the share of busy CPUs."""
        for _ in range(3):
            self.clock.now += 20
            self.time_s += 20
            self.tick += 1
            for name in self.names:
                if name in silent:
                    continue
                self.busy[name] += int(40 * HZ * use)
                self.idle[name] += int(40 * HZ * (1 - use))
                packed = rows(
                    *("procstats_default", [0]),
                    stat_cpu_user=self.busy[name],
                    stat_cpu_idle=self.idle[name],
                    stat_cpus=2,
                    loadavg_1min=3.0,
                    meminfo_memtotal=1000,
                    meminfo_memfree=400,
                )
                time_ns = self.time_s * NS
                tables = [Table(SCHEMAS["procstats_default"], time_ns, packed.tobytes())]
                if "temperatures" in more:
                    hot = rows(
                        "temperatures_default", [0] * len(more["temperatures"]), temperature=more["temperatures"]
                    )
                    tables.append(Table(SCHEMAS["temperatures_default"], time_ns, hot.tobytes()))
                self.latest.take([Batch(name, 1, self.tick, time_ns, (), tuple(tables))])
                self.heard[name] = Heard(time_ns, NS // 2)
        hosts = [(host, kept.fresh(self.clock.now)) for host, kept in self.latest.hosts()]
        self.history.record(hosts, self.heard, self.clock.now, self.time_s)

    def answer(self, measure="cpu", span="hour", **more):
        return self.history.answer(HistoryQuery(measure, span, **more))

    def values(self, measure="cpu", span="hour", node=None):
        """The values of a node from its first one on."""
        items = {one["node"]: one["values"] for one in self.answer(measure, span)["items"]}
        values = items[node or self.names[0]]
        first = next((n for n, value in enumerate(values) if value is not None), len(values))
        return values[first:]


def test_a_counter_is_shown_by_its_growth_over_the_whole_minute():
    nodes = Nodes(["n0"])
    for use in (0.5, 0.25, 1.0):
        nodes.minute(use)
    assert nodes.values() == pytest.approx([0.5, 0.25, 1.0], abs=0.01)


def test_a_quarter_of_an_hour_has_the_mean_of_its_minutes():
    nodes = Nodes(["n0"])
    for n in range(30):
        nodes.minute(0.2 if n % 2 else 0.4)
    answer = nodes.answer(span="day")
    assert answer["step"] == 900 and len(answer["starts"]) == 96
    assert all(start % 900 == 0 for start in answer["starts"])
    assert nodes.values(span="day")[:2] == pytest.approx([0.3, 0.3], abs=0.02)


def test_each_measure_has_values_of_its_own():
    nodes = Nodes(["n0"])
    for _ in range(2):
        nodes.minute(temperatures=[41.0, 55.5, 30.0])
    latest = {measure: nodes.values(measure)[-1:] for measure in MEASURES}
    assert latest["memory"] == [0.6]
    assert latest["load"] == [1.5]
    assert latest["temperature"] == [55.5], "the hottest sensor"
    assert latest["lag"] == [0.5]
    assert latest["power"] == [] and latest["network"] == [], "not measured is not 0"


def test_a_silent_node_has_no_values_and_the_others_have_theirs():
    nodes = Nodes(["n0", "n1"])
    for n in range(6):
        nodes.minute(silent=["n1"] if n in (2, 3, 4) else [])
    values = nodes.values(node="n1")
    assert None in values and values[-1] is not None
    assert None not in nodes.values(node="n0")


def test_a_minute_without_a_record_is_a_gap():
    nodes = Nodes(["n0"])
    nodes.minute()
    nodes.minute()
    nodes.clock.now += 180
    nodes.time_s += 180
    nodes.minute()
    assert nodes.values()[:5] == pytest.approx([0.5, 0.5, None, None, None])


def test_an_hour_is_all_that_is_kept():
    nodes = Nodes(["n0"])
    for n in range(70):
        nodes.minute(0.1 if n < 20 else 0.9)
    answer = nodes.answer()
    assert len(answer["starts"]) == len(answer["items"][0]["values"]) == SPANS["hour"].intervals
    assert np.diff(answer["starts"]).tolist() == [60] * 59
    assert answer["items"][0]["values"][0] == pytest.approx(0.1, abs=0.01)
    assert answer["items"][0]["values"][20] == pytest.approx(0.9, abs=0.01)


def test_a_clock_that_is_set_back_adds_to_the_newest_minute():
    nodes = Nodes(["n0"])
    for _ in range(3):
        nodes.minute()
    last = nodes.answer()["starts"][-1]
    nodes.history.record([], {}, nodes.clock.now, nodes.time_s - 3600)
    assert nodes.answer()["starts"][-1] == last


def test_nodes_are_chosen_by_name_and_page():
    nodes = Nodes([f"n{n}" for n in range(20)])
    nodes.minute()
    assert [one["node"] for one in nodes.answer(text="1", offset=1, limit=2)["items"]] == ["n10", "n11"]
    assert nodes.answer(text="1")["total"] == 11
    assert nodes.answer(text="none")["items"] == []


def test_before_the_first_record_there_is_nothing():
    answer = HistoryMemory().answer(HistoryQuery("cpu", "day"))
    assert (answer["since"], answer["starts"], answer["items"]) == (None, [], [])


@pytest.mark.parametrize(("hours", "kept"), [(23, {"n0", "n1"}), (25, {"n1"})])
def test_a_node_that_has_gone_is_dropped_as_soon_as_no_value_of_it_is_kept(hours, kept):
    nodes = Nodes(["n0", "n1"])
    nodes.minute()
    for _ in range(hours):
        nodes.clock.now += 3540
        nodes.time_s += 3540
        nodes.minute(silent=["n0"])
    assert {one["node"] for one in nodes.answer(span="day")["items"]} == kept
    assert nodes.answer()["total"] == len(kept) and nodes.history.left_out == 0


def test_nodes_without_room_are_counted_and_gone_ones_give_theirs_up(monkeypatch):
    monkeypatch.setattr(node_history, "MAX_NODES", 2)
    nodes = Nodes(["n0", "n1", "n2"])
    nodes.minute()
    assert nodes.history.left_out == 1
    assert nodes.answer()["total"] == 2
    for _ in range(26):  # a day and more of quarters without n0 and n1
        nodes.clock.now += 3600
        nodes.time_s += 3600
        nodes.minute(silent=["n0", "n1"])
    assert [one["node"] for one in nodes.answer()["items"]] == ["n2"]
