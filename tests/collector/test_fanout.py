"""A request to many nodes through the collector, and what is reported of their answers."""

from __future__ import annotations

import pytest

from colmet.collector.ingest import fanout as module
from colmet.collector.ingest.fanout import Fanout, handler, summary
from colmet.common.daemon.control import Errands
from colmet.common.errors import Refused
from colmet.common.wire.control import decode_request, encode
from tests.support.errands import served_errands

DONE = encode({"ok": True, "changed": {"sample_period": [5.0, 1.0]}, "unchanged": []})
SAME = encode({"ok": True, "changed": {}, "unchanged": ["sample_period"]})


class Link:
    """Nodes that answer as a test says, at once; None: not at all."""

    is_open = True

    def __init__(self, answers, fanout):
        self.answers = answers
        self.fanout = fanout
        self.asked = []

    @property
    def callers(self):
        return self.answers.keys()

    def ask(self, host, number, content):
        if host not in self.answers:
            return False
        self.asked.append((host, number, content))
        return True

    def deliver(self):
        for host, number, _ in self.asked:
            if self.answers[host] is not None:
                self.fanout.answered(host, number, self.answers[host])


def test_what_nodes_say_is_reported_by_kind():
    fanout = Fanout()
    link = Link(
        {"a": DONE, "b": SAME, "c": encode({"error": "no \x1b[31mperf"}), "d": None, "e": b"\xc1", "f": DONE}, fanout
    )
    begun = fanout.begin(link, b"question", None)
    assert [(host, content) for host, _, content in link.asked] == [(host, b"question") for host in "abcdef"]
    link.deliver()
    assert not begun.is_done.is_set()
    report = summary(fanout.end(begun))
    assert report["changed"] == ["a", "f"] and report["unchanged"] == ["b"] and report["silent"] == ["d"]
    assert report["refused"].pop("no ?[31mperf") == ["c"]
    ((why, hosts),) = report["refused"].items()
    assert hosts == ["e"] and why.startswith("its answer cannot be read: answer: ")
    assert report["ok"] is False and report["away"] == []


def test_a_node_that_refuses_a_part_has_changed_and_says_why():
    fanout = Fanout()
    part = encode({"ok": False, "changed": {"sample_period": [5, 1]}, "unchanged": [], "refused": {"metrics": "no"}})
    link = Link({"a": part}, fanout)
    begun = fanout.begin(link, b"", None)
    link.deliver()
    report = summary(fanout.end(begun))
    assert (report["ok"], report["changed"], report["refused"]) == (False, ["a"], {"metrics: no": ["a"]})


def test_some_nodes_are_asked_alone_and_one_that_is_not_there_is_reported():
    fanout = Fanout()
    link = Link({"a": DONE, "b": DONE}, fanout)
    begun = fanout.begin(link, b"", ["b", "x", "b"])
    link.deliver()
    assert begun.is_done.is_set()
    report = summary(fanout.end(begun))
    assert report["changed"] == ["b"] and report["away"] == ["x"] and report["ok"] is False


def test_where_no_node_is_there_nothing_is_waited_for():
    fanout = Fanout()
    begun = fanout.begin(Link({}, fanout), b"", None)
    assert begun.is_done.is_set() and summary(fanout.end(begun))["ok"] is True


def test_answers_that_nobody_waits_for_are_counted_and_nothing_else():
    fanout = Fanout()
    link = Link({"a": None, "b": None}, fanout)
    first = fanout.begin(link, b"", None)
    fanout.answered("a", first.number, DONE)
    fanout.answered("a", first.number, SAME)  # again
    fanout.answered("x", first.number, DONE)  # was not asked
    fanout.answered("b", first.number + 1, DONE)
    assert Fanout().begin(link, b"", []).number > first.number, "of a collector that is restarted"
    fanout.end(first)
    fanout.answered("b", first.number, DONE)
    assert fanout.late == 4 and first.answers == {"a": DONE} and first.waiting == {"b"}


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_REQUESTS", 3)
    fanout = Fanout()
    link = Link({"a": None}, fanout)
    begun = [fanout.begin(link, b"", None) for _ in range(10)]
    fanout.answered("a", begun[0].number, DONE)
    assert fanout.late == 1
    fanout.answered("a", begun[-1].number, b"x" * (module.MAX_ANSWER_BYTES + 1))
    assert begun[-1].answers == {"a": b""} and list(summary(begun[-1])["refused"].values()) == [["a"]]


def test_the_handler_asks_from_its_own_thread_and_waits_for_the_answers():
    fanout = Fanout()
    link = Link({"a": DONE, "b": SAME, "c": None}, fanout)
    with served_errands(lambda: link.deliver() if link.asked else None) as errands:
        configure = handler(fanout, link, errands, wait_s=20)
        report = configure({"sample_period": "1", "hosts": "a,b"})
        assert (report["changed"], report["unchanged"], report["ok"]) == (["a"], ["b"], True)
        assert decode_request(link.asked[0][2]) == {"sample_period": "1"}
        configure = handler(fanout, link, errands, wait_s=0.1)
        assert configure({"metrics": "x"})["silent"] == ["c"]
        with pytest.raises(Refused, match="hosts: not a text"):
            configure({"hosts": 3})


def test_a_collector_without_a_link_says_that_it_can_ask_nobody():
    with Errands() as errands, pytest.raises(Refused, match="--zeromq-link-bind-uri"):
        handler(Fanout(), None, errands)({"sample_period": "1"})
