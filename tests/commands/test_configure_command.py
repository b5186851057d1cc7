"""`colmet configure`, to a node that runs and to what stands in for a collector."""

from __future__ import annotations

import json

import pytest

from colmet.commands import colmet
from colmet.common.daemon.control import Control
from colmet.common.errors import Refused


@pytest.fixture
def socket(tmp_path):
    """Where something listens."""
    (tmp_path / "run").mkdir(mode=0o700)
    return str(tmp_path / "run/it.sock")


@pytest.fixture
def daemon(socket):
    """What stands in for one: `daemon.answer` is what it says, `daemon.asked` what it was asked."""
    asked = []

    def answer(request):
        asked.append(request)
        if isinstance(control.answer_, Exception):
            raise control.answer_
        return control.answer_

    control = Control({"configure": answer})
    control.asked = asked
    control.listen(socket, "node")
    yield control
    control.close()


def configure(socket, *arguments):
    return colmet.main(["configure", "--control-socket", socket, *arguments])


def test_a_node_is_sent_the_message_of_the_rust_client(daemon, socket, capsys):
    daemon.answer_ = {
        "ok": True,
        "changed": {"sample_period": [5.0, 1.5]},
        "unchanged": ["metrics"],
        "lasts": "until the next start, or SIGHUP",
    }
    assert configure(socket, "--sample-period", "1.5", "--perf-events", "cache_ll", "emulation_faults:2:4242") == 0
    assert daemon.asked == [{"sample_period": "1.5", "metrics": "cache_ll,emulation_faults:2:4242"}]
    assert capsys.readouterr().out == (
        "sample_period: 5.0 -> 1.5\nmetrics: it is so already\nlasts until the next start, or SIGHUP\n"
    )


def test_a_collector_is_asked_for_all_or_for_some(daemon, socket, capsys):
    daemon.answer_ = {
        "ok": False,
        "changed": [f"n{n}" for n in range(50)],
        "unchanged": [],
        "refused": {"no perf here": ["a", "b"]},
        "silent": [f"s{n}" for n in range(22)],
        "away": ["z"],
    }
    assert configure(socket, "--host", "a", "--host", "z", "--sample-period", "2") == 1
    assert daemon.asked == [{"sample_period": "2", "hosts": "a,z"}]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["50 changed, 0 were so already, 2 refused, 22 did not answer", "refused by a, b: no perf here"]
    assert lines[2].endswith("s18, s19 and 2 more; they may do it yet") and lines[3:] == ["not connected: z"]
    assert configure(socket, "--all", "--sample-period", "2", "--json") == 1
    assert daemon.asked[1] == {"sample_period": "2"}
    assert json.loads(capsys.readouterr().out) == daemon.answer_


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing to change; give --sample-period or --perf-events"),
        (("--all",), "nothing to change"),
        (("--node", "--all", "--sample-period", "1"), "give one of --node, --all and --host"),
        (("--all", "--host", "a", "--sample-period", "1"), "give one of --node, --all and --host"),
        (("--host", "a,b", "--sample-period", "1"), "--host: give one name each time"),
    ],
)
def test_options_that_do_not_go_together(socket, capsys, arguments, says):
    assert configure(socket, *arguments) == 2
    assert says in capsys.readouterr().err


def test_why_it_is_not_done_is_said(daemon, socket, capsys):
    daemon.answer_ = Refused("metrics: perf events are not counted on this node")
    assert configure(socket, "--perf-events", "a") == 1
    assert capsys.readouterr().err == "colmet configure: metrics: perf events are not counted on this node\n"


def test_no_daemon_no_change(socket, capsys):
    assert configure(socket, "--sample-period", "1") == 1
    assert "no daemon listens on" in capsys.readouterr().err
