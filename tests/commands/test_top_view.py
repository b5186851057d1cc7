"""`colmet top`: what is on the screen, what keys do, and what is printed without a terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pytest
from rich.console import Console

from colmet.commands import colmet
from colmet.commands import top as command
from colmet.commands import top_screen as screen
from colmet.commands.top_state import ScreenState
from colmet.common.daemon.control import Control
from colmet.common.errors import ConfigError, Unreachable
from tests.support.top_bed import GB, NS, Bed, many

EVIL = b"\x1b[2J\xe4\xb8\xad\xcc\x81\r\nmallory"


def asked(bed, state):
    """Answer what is asked for, as the daemon does."""
    state.take(state.request, bed.top.answer(state.request), 1000.0)
    return state


def page(state, width=80, height=24, now=1000.0):
    """The screen as a terminal without colours has it."""
    console = Console(
        *(), width=width, height=height, record=True, file=io.StringIO(), no_color=True, force_terminal=True
    )
    lines = state.lines(width, height, now)
    assert len(lines) <= height
    console.print(screen.rendered(lines))
    text = console.export_text().rstrip("\n").split("\n")
    assert all(len(line) <= width for line in text) and len(text) == len(lines)
    return [line.rstrip() for line in text]


@pytest.fixture
def bed():
    return Bed()


def start(**request):
    return ScreenState({"view": "jobs", **request}, 2.0)


def test_500_jobs_at_80_by_24(bed):
    many(bed, 500)
    state = asked(bed, start())
    lines = page(state)
    assert len(lines) == 24
    assert lines[1] == "500 jobs, 1 node heard" and lines[3] == "sorted by cpu"
    assert {"JOB", "USER", "CPU", "CPU%", "MEM", "MEM%", "READ/s", "WRIT/s", "AGE"} <= set(lines[4].split())
    assert lines[5].startswith(">      106 alice") and " 6.0 " in lines[5]
    assert lines[22] == "  and 483 more below" and lines[23].endswith("? all keys")
    state.press("end")
    lines = page(state)
    assert lines[22].startswith(">      597") and "more below" not in "".join(lines)
    for _ in range(3):
        state.press("pageup")
    assert sum(line.startswith(">") for line in page(state)) == 1
    state.press("home")
    assert page(state)[5].startswith(">      106")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 4), (132, 50), (200, 24)])
@pytest.mark.parametrize("name", ["jobs", "nodes", "job"])
def test_every_size_has_its_lines(bed, width, height, name):
    many(bed)
    page(asked(bed, start(view=name, job=100)), width, height)
    page(start(view=name), width, height)


def test_no_jobs_and_one(bed):
    assert "No jobs." in page(asked(bed, start()))
    assert "No jobs that the filter lets through." in page(asked(bed, start(user="bob")))
    assert "No nodes." in page(asked(bed, start(view="nodes")))
    bed.take("n1", 10, {7: {"user": b"bob", "memory_current": 97 * GB, "memory_limit": 100 * GB}})
    lines = page(asked(bed, start()))
    assert lines[1] == "1 job, 1 node heard; the rates of 1 node come with the next sample"
    assert lines[5].split() == [">", "7", "bob", "1", "-", "-", "90.3G", "97%!", "-", "-", "-", "-"]


def test_names_from_elsewhere_do_nothing_to_the_terminal(bed):
    bed.take("n1\x1b[31m", 10, {7: {"user": EVIL}})
    for request in ({}, {"view": "nodes"}, {"view": "job", "job": 7}):
        lines = page(asked(bed, start(**request)))
        assert all(line.isascii() and (line.isprintable() or not line) for line in lines if "7" in line or "n1" in line)
    state = start()
    for key in ("u", "\x1b[31m", "é", "x", "enter"):
        state.press(key)
    assert state.request["user"] == "éx", "a key is one character or a name"


def test_a_job_on_its_nodes_with_what_was_seen_of_it_before(bed):
    state = start()
    for at in (10, 20, 30, 40):
        bed.take("n1", at, {7: {"user": b"bob", "cpu_usage": at * at * NS, "cpus_allocated": 100}})
        bed.take("n2", at, {7: {"memory_current": at * GB, "memory_limit": 100 * GB, "memory_oom_kills": 2}})
        asked(bed, state)
        asked(bed, state)
    state.press("enter")
    assert state.request["view"] == "job" and state.request["job"] == 7
    assert "waiting for the first answer ..." in page(state)
    lines = page(asked(bed, state))
    assert lines[1] == "Job 7 of bob on 2 nodes"
    assert re.match(r"  CPUs   70.0 of 100 \(70%\) +▃▆█ +max 70.0$", lines[2]), "not twice for one sample"
    assert re.match(r"  memory 37.3G +▂▄▆█ +max 37.3G", lines[3])
    assert "2 PROCESSES KILLED" in lines[7]
    assert [line.split()[0].lstrip(">") for line in lines[10:12]] == ["n1", "n2"]
    state.press("esc")
    assert state.request["view"] == "jobs" and state.request.get("job") is None
    asked(bed, state).press("enter")
    state.press("h")
    assert asked(bed, state).request["sort"] == "node"


def test_a_job_that_has_gone_says_so(bed):
    assert "Job 9 has no rows now: it has ended, or is not measured here." in page(asked(bed, start(view="job", job=9)))


def test_keys_ask_for_something_else(bed):
    many(bed)
    state = asked(bed, start())
    for key, expected in (("m", ("memory", False)), ("r", ("memory", True)), ("c", ("cpu", False))):
        state.press(key)
        assert (state.request["sort"], state.request["reverse"]) == expected
    for key in "/n-1":
        state.press(key)
    assert page(state)[-1].startswith("text in user, node or job: n-1_")
    state.press("backspace")
    state.press("enter")
    assert state.request["text"] == "n-"
    assert "only with n-" in page(state)[3]
    state.press("esc")
    assert state.request["text"] == ""
    state.press("n")
    assert state.request["view"] == "nodes" and "sort" not in state.request
    asked(bed, state).press("down")
    state.press("enter")
    assert (state.request["view"], state.request["node"]) == ("jobs", "node-1")
    assert "only on node-1" in page(asked(bed, state))[3]
    state.press("esc")
    state.press("esc")
    assert state.request["view"] == "jobs" and state.request["sort"] == "cpu"
    assert not state.ended
    state.press("q")
    assert state.ended


def test_a_pause_keeps_what_is_seen(bed):
    bed.take("n1", 10, {7: {"memory_current": 5}})
    state = asked(bed, start())
    state.press("p")
    bed.take("n1", 15, {7: {"memory_current": 6}, 8: {"memory_current": 6}})
    assert "PAUSED" in page(asked(bed, state))[3] and "1 job," in page(state)[1]
    state.press("p")
    assert "2 jobs," in page(state)[1]


def test_the_choice_stays_with_its_job(bed):
    bed.take("n1", 10, {1: {"memory_current": 5}, 2: {"memory_current": 4}, 3: {"memory_current": 3}})
    state = asked(bed, start(sort="memory"))
    state.press("down")
    bed.take("n1", 15, {1: {"memory_current": 5}, 2: {"memory_current": 1}, 3: {"memory_current": 3}})
    (line,) = [line for line in page(asked(bed, state)) if line.startswith(">")]
    assert line.split()[1] == "2"


def test_no_answer_is_reported_with_what_was_there_before(bed):
    bed.take("n1", 10, {7: {"memory_current": 5}})
    state = asked(bed, start())
    state.fail("no colmet-collector listens on /run/colmet/collector.sock")
    lines = page(state, now=1035.0)
    assert re.match(r"NO ANSWER since \d\d:\d\d:\d\d \(35s\): no colmet-collector listens", lines[3])
    assert lines[5].split()[1] == "7"
    assert not any("NO ANSWER" in line for line in page(asked(bed, state)))


# -- without a terminal --


@pytest.fixture
def daemon(bed, tmp_path):
    """Where the bed answers."""
    control = Control({"top": bed.top.answer})
    control.listen(str(tmp_path / "s.sock"), "collector")
    yield str(tmp_path / "s.sock")
    control.close()


def test_once_prints_a_table(bed, daemon, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    many(bed)
    assert colmet.main(["top", "--control-socket", daemon, "--once", "--sort", "memory"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "30 jobs, 1 node heard"
    assert [line.split()[0] for line in lines[4:8]] == ["JOB", "129", "128", "127"]
    assert all(len(line) <= 80 and line.isprintable() for line in lines)
    assert colmet.main(["top", "--control-socket", daemon, "--once", "--job", "129"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("Job 129 of carol on 1 node") and lines[-1].split()[0] == "node-2"
    assert colmet.main(["top", "--control-socket", daemon, "--once", "--nodes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[5:]] == ["node-0", "node-1", "node-2"]


def test_json_has_all_values(bed, daemon, capsys):
    many(bed)
    assert colmet.main(["top", "collector", "--control-socket", daemon, "--json", "--user", "bob"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["count"] == len(answer["rows"]) == 10 and answer["rows"][0]["user"] == "bob"


def test_it_waits_for_the_second_sample_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(command, "LOOK_S", 0.01)
    answers = iter([{"nodes_heard": 2, "nodes_measured": n} for n in (0, 1, 2, 2)])
    assert command.settled(lambda request: next(answers), {}, 60)["nodes_measured"] == 2
    assert command.settled(lambda request: {"nodes_heard": 2, "nodes_measured": 0}, {}, 0.01)["nodes_measured"] == 0


@pytest.mark.parametrize("argv", [["--sort", "nonsense"], ["--nodes", "--sort", "gpus"], ["--nodes", "--job", "7"], []])
def test_what_cannot_be_done_is_status_2(argv, daemon, capsys):
    more = [] if not argv else ["--once"]
    assert colmet.main(["top", "--control-socket", daemon, *argv, *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("--once" in error or argv)


def test_the_collector_is_asked_before_the_node(monkeypatch):
    there = {"node"}

    def ask(place, daemon, request, timeout_s):
        if daemon not in there:
            raise Unreachable("not there", "absent")
        return {"daemon": daemon}

    monkeypatch.setattr(command, "ask", ask)
    parser = colmet.cli.Parser()
    command.add_options(parser)
    asks = command._asker(parser.parse_args([]))
    assert asks({})["daemon"] == "node"
    there.add("collector")
    assert asks({})["daemon"] == "node", "the one that answered is asked on"
    assert command._asker(parser.parse_args([]))({})["daemon"] == "collector"
    there.clear()
    with pytest.raises(Unreachable):
        asks({})
    with pytest.raises(Unreachable, match="neither"):
        command._asker(parser.parse_args([]))({})


def test_a_reader_that_ends_early_ends_it_in_silence(bed, daemon):
    many(bed)
    command = [sys.executable, "-m", "colmet.commands.colmet", "top", "--json", "--control-socket", daemon]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 141


def test_without_rich_it_says_what_to_install(monkeypatch, daemon):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "colmet.commands.top_screen")
    monkeypatch.delattr("colmet.commands.top_screen")
    parser = colmet.cli.Parser()
    command.add_options(parser)
    with pytest.raises(ConfigError, match="apt-get install python3-rich, or pip install rich"):
        command.run(parser.parse_args(["--control-socket", daemon]))
