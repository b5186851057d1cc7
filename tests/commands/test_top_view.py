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
from colmet.commands.top import command, screen, view
from colmet.commands.top.state import FOOTERS, HELP, SORTS, ScreenState
from colmet.common.errors import ConfigError, Unreachable
from colmet.common.runtime.control import Control
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


def test_more_room_shows_more_columns(bed):
    many(bed)
    state = asked(bed, start())
    narrow, wide = page(state, 60)[4].split(), page(state, 180)[4].split()
    assert set(narrow) < set(wide) and {"PEAK", "ON", "TASKS"} <= set(wide) and "JOB" in narrow
    assert "GPUS" not in wide
    bed.take("n9", 10, nvidiastats={100: {"gpus": 2, "utilization-gpu": 50}})
    assert "GPUS" in page(asked(bed, start()), 180)[4].split()


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


def test_every_key_that_sorts_has_its_word_in_the_help():
    for name, keys in SORTS.items():
        part = HELP.partition("sort jobs by")[2].partition("sort nodes by")[2 if name == "nodes" else 0]
        for key in keys:
            assert re.search(rf"(^|\s){key} \w", part) or name == "job", (name, key)
        assert {key for key, _ in FOOTERS[name] if len(key) == 1 and key.isalpha()} <= {*keys, *"qnrup"}
    assert all(len(line) <= 80 for line in HELP.splitlines()) and len(HELP.splitlines()) <= 24


def test_the_help_goes_with_any_key(bed):
    state = asked(bed, start())
    state.press("?")
    assert page(state)[0].startswith("arrows, PgUp")
    state.press("q")
    assert not state.ended and page(state)[0].startswith("colmet top")


def test_an_answer_to_what_was_asked_before_is_not_shown(bed):
    many(bed)
    state = asked(bed, start())
    before = dict(state.request)
    state.press("n")
    state.take(before, bed.top.answer(before), 1000.0)
    assert "waiting for the first answer ..." in page(state)


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


def test_keys_of_a_terminal():
    assert screen.keys(b"q\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b\x7f\r\t") == [
        *("q", "up", "down", "pageup", "pagedown", "esc", "backspace", "enter", "tab"),
    ]
    assert screen.keys("é\x00\x1b[200~x\x1b[1;5Q".encode()) == ["é", "x"]
    assert screen.keys(b"\xff\xfe") == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "-"), (0, "0"), (999, "999"), (1023, "1.0K"), (1024, "1.0K"), (1 << 30, "1.0G"), (10**15, "909T")),
        *((1 << 62, "4.0E"), (1000 * 1024, "1.0M"), (999.4 * 1024, "999K"), (99.96 * 1024, "100K")),
    ],
)
def test_sizes(value, text):
    assert view.size(value) == text and len(text) <= 5


def test_other_values():
    assert [view.age(value) for value in (None, 0.04, 9.94, 10, 99, 100, 6000, 400000, -3)] == [
        *("-", "0.0s", "9.9s", "10s", "99s", "2m", "2h", "5d", "-3.0s"),
    ]
    assert [view.decimal(value) for value in (None, 0, 0.25, 999.9, 1234.5, 123456)] == [
        *("-", "0.0", "0.2", "999.9", "1234", "123k"),
    ]
    assert view.spark([None, 0, 5, 10], 4) == " ▁▄█" and view.spark([], 4) == "" and view.spark([0, 0], 4) == "▁▁"
    assert view.spark(range(100), 3, view.PLAIN_BARS) == "@@@"


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
    assert colmet.main(["top", "--control-socket", daemon, "--once", "--sort", "memory", "--limit", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "the first 3 of 30 jobs, 1 node heard"
    assert [line.split()[0] for line in lines[4:]] == ["JOB", "129", "128", "127"]
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


@pytest.mark.parametrize("argv", [["--interval", "31"], ["--limit", "0"], ["--job", "-1"], ["--user", "x" * 256]])
def test_wrong_values_are_status_2(argv):
    with pytest.raises(SystemExit) as ended:
        colmet.main(["top", *argv])
    assert ended.value.code == 2


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
    monkeypatch.delitem(sys.modules, "colmet.commands.top.screen")
    monkeypatch.delattr("colmet.commands.top.screen")
    parser = colmet.cli.Parser()
    command.add_options(parser)
    with pytest.raises(ConfigError, match="apt-get install python3-rich, or pip install rich"):
        command.run(parser.parse_args(["--control-socket", daemon]))


def test_the_help_ends_with_examples(capsys):
    with pytest.raises(SystemExit):
        colmet.main(["top", "--help"])
    assert "colmet top -j 4242" in capsys.readouterr().out.partition("examples:")[2]
