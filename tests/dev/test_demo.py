"""make demo: it finds by trying what a place allows, its table is in the order of time, and its page is alive."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from colmet.common.errors import BackendUnavailable
from dev import demo
from dev.live import Failed, ListedRoot, free_port
from tests.support.waiting import wait_for

CGROUP, TASKS, PROCESSES = "cgroup_default", "taskstats_default", "jobprocstats_default"
START = 1_795_262_400


@pytest.fixture
def live(capsys):
    made = demo.Live()
    made.begin(42)
    capsys.readouterr()

    def add(second, **tables):
        for name, values in tables.items():
            table = {"cgroup": CGROUP, "tasks": TASKS, "processes": PROCESSES}[name]
            made.add({"metric_backend": table, "job_id": 42, "timestamp": START + second, **values})
        return capsys.readouterr().out.split()

    return add


def test_a_row_has_the_job_at_that_time_in_units_of_one_family(live):
    memory = {"memory_used": 2 << 20, "wchar": 1 << 20}
    first = live(1, tasks={"cpu_total": 2 * demo.NS}, processes=memory)
    assert first[1:] == ["2", "s", "-", "2.00", "MiB", "1.00", "MiB"]
    assert live(5, tasks={"cpu_total": 4 * demo.NS}, processes=memory)[1:4] == ["4", "s", "0.50"]


def test_cpu_time_comes_from_the_best_source_that_there_is(live):
    assert live(1, processes={"cpu_time": demo.NS})[1:3] == ["1", "s"]
    assert live(5, tasks={"cpu_total": 2 * demo.NS}, processes={"cpu_time": demo.NS})[1:3] == ["2", "s"]
    assert live(9, cgroup={"cpu_usage": 3 * demo.NS}, processes={"cpu_time": demo.NS})[1:3] == ["3", "s"]


def test_rows_that_come_late_or_soon_are_no_lines(live):
    assert live(5, processes={"cpu_time": demo.NS})
    assert live(4, processes={"cpu_time": demo.NS}) == []
    assert live(6, processes={"cpu_time": demo.NS}) == []
    assert live(5 + int(demo.STEP_S), processes={"cpu_time": demo.NS})


@pytest.mark.parametrize(
    ("cpus", "first", "second"),
    [(range(64), (4, True), (1, True)), ([3, 7], (2, True), (1, True)), ([5], (1, False), (1, True))],
    ids=["many", "two", "one"],
)
def test_the_first_job_wastes_and_the_second_is_the_cure(cpus, first, second):
    runs = demo.plan_runs(list(cpus))
    assert [(len(run.cpus), run.is_busy) for run in runs] == [first, second]
    assert all(set(run.cpus) <= set(cpus) for run in runs)


@pytest.fixture
def explore(monkeypatch, tmp_path):
    """Explore a place that refuses each of these, or not."""

    def explored(cgroup="", accounting=None, ends=""):
        def make_root(name):
            if cgroup:
                raise Failed(cgroup)
            return ListedRoot(tmp_path / "as-a-cgroup")

        class Client:
            def query(self, tids):
                if accounting is not None:
                    raise accounting

            def close(self):
                pass

        class Records:
            def __init__(self, *_):
                if ends:
                    raise BackendUnavailable(ends)

            def close(self):
                pass

        monkeypatch.setattr(demo, "JobRoot", make_root)
        monkeypatch.setattr(demo, "TaskstatsClient", Client)
        monkeypatch.setattr(demo, "ExitRecords", Records)
        return demo.explore_place(tmp_path)

    return explored


def test_a_place_with_all_rights_has_no_remedy(explore, capsys):
    place = explore()
    demo.describe_place(place)
    printed = capsys.readouterr().out
    assert printed.count(" yes: ") == 4 and "--privileged" not in printed
    assert place.table == TASKS


@pytest.mark.parametrize(
    ("refusals", "text", "table"),
    [
        ({"cgroup": "cannot make the cgroup /x: Read-only file system"}, "no: cannot make the cgroup /x", TASKS),
        ({"accounting": PermissionError()}, "no: reading it needs CAP_NET_ADMIN", PROCESSES),
        ({"accounting": BackendUnavailable("no taskstats here")}, "no: no taskstats here", PROCESSES),
        ({"ends": "only outside of containers"}, "no: only outside of containers", TASKS),
    ],
)
def test_each_thing_is_missing_for_itself_with_reason_and_remedy(explore, capsys, refusals, text, table):
    place = explore(**refusals)
    demo.describe_place(place)
    printed = capsys.readouterr().out
    assert printed.count(" yes: ") == 3 and text in printed
    assert "sudo make demo" in printed and "--privileged" in printed and "virtual machine" in printed
    assert place.table == table
    assert isinstance(place.root, ListedRoot)


def result(cpu_s, kernel_s, ended=400):
    return demo.Result(42, None if cpu_s is None else round(cpu_s * demo.NS), round(kernel_s * demo.NS), ended)


@pytest.mark.parametrize(
    ("accounting", "cpu_s", "kernel_s", "agrees"),
    [
        ("", 10.1, 10.0, True),
        ("", 10.3, 10.0, False),
        ("CAP_NET_ADMIN", 9.7, 10.0, True),
        ("CAP_NET_ADMIN", 9.5, 10.0, False),
        ("", 0.02, 0.05, True),
        ("", None, 10.0, False),
        ("", 10.0, 0.0, False),
    ],
)
def test_times_agree_within_what_the_source_can_know(explore, capsys, accounting, cpu_s, kernel_s, agrees):
    place = explore(accounting=PermissionError() if accounting else None)
    assert demo.compare_results(place, [result(cpu_s, kernel_s)], is_in_kernel=True) is agrees
    assert ("further apart" in capsys.readouterr().out) is not agrees


def test_records_may_lack_what_short_processes_used_last(explore, capsys):
    place = explore()
    assert demo.compare_results(place, [result(5.5, 6.1)], is_in_kernel=False)
    assert not demo.compare_results(place, [result(5.5, 6.1)], is_in_kernel=True)
    assert "`colmet doctor` says how" in capsys.readouterr().out


def test_a_busy_machine_is_named():
    busy, idle = demo.plan_runs([1, 2])[0], demo.plan_runs([1])[0]
    used, whole = (result(share * demo.WALL_S, share * demo.WALL_S) for share in (0.4, 0.95))
    assert demo.introduce_cure(busy, whole, is_advised=True) == "The cure: the same program with one core."
    for is_advised in (True, False):
        assert "the program got 0.40 of a core" in demo.introduce_cure(busy, used, is_advised)
    assert demo.introduce_cure(idle, used, is_advised=True) == "The cure: the same job, with its input."


def test_the_page_has_the_same_address_in_each_run_unless_it_is_in_use(monkeypatch):
    monkeypatch.setattr(demo, "PAGE_PORT", free_port())
    assert demo.page_port() == demo.page_port() == demo.PAGE_PORT
    with socket.socket() as other:
        other.bind(("127.0.0.1", demo.PAGE_PORT))
        other.listen()
        assert demo.page_port() != demo.PAGE_PORT
    assert demo.page_port() == demo.PAGE_PORT


@pytest.mark.slow
@pytest.mark.live
def test_the_page_answers_at_the_printed_address_until_enter_on_a_terminal(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "PAGE_PORT", free_port())
    with contextlib.ExitStack() as cleanup:
        bed = demo.Bed(tmp_path, cleanup)
        daemons = bed.start("--pid", str(os.getpid()))
        demo.announce_page(bed, daemons)
        (address,) = re.findall(r"http://\S+", capsys.readouterr().out)
        with urllib.request.urlopen(address, timeout=10) as page:
            assert b"<title>" in page.read()
        daemons.stop()
        demo.keep_page(bed, is_endless=False)
        assert "http" not in capsys.readouterr().out, "nobody is there: no address that is dead at once"
        keyboard, terminal = os.openpty()
        with open(keyboard, "wb", buffering=0) as keys, open(terminal, "rb", buffering=0) as stdin:
            monkeypatch.setattr(demo.sys, "stdin", stdin)
            monkeypatch.setattr(demo.sys.stdout, "isatty", lambda: True, raising=False)
            keys.write(b"\n")
            demo.keep_page(bed, is_endless=False)
        assert f"5 minutes, or until Enter: {address}" in capsys.readouterr().out
    assert not demo.is_answering(bed.address)


@pytest.mark.live
def test_without_a_cgroup_lists_have_the_processes_of_a_job_and_the_kernel_counts_them(tmp_path):
    root = ListedRoot(tmp_path / "jobs")
    job = root.job("alice_42", [min(os.sched_getaffinity(0))])
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)"
    script = f"\"$0\" -c '{code}'; sleep 60 & read line; exit 0"
    process = job.start(["sh", "-c", script, sys.executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "1\n"
    lists = [job.path / name for name in ("tasks", "cgroup.procs")]
    wait_for(lambda: all(len(path.read_text().split()) == 2 for path in lists))
    assert str(process.pid) in lists[0].read_text().split()
    assert os.sched_getaffinity(process.pid) == {min(os.sched_getaffinity(0))}
    assert job.cpu_ns() == 0, "wait4 has it at the end"
    start = time.monotonic()
    process.stdin.write("\n")
    process.stdin.flush()
    job.wait()
    assert 0.2 <= job.cpu_ns() / demo.NS < 0.2 + 2 * (time.monotonic() - start) + 1
    root.end(job)
    assert not job.path.exists()
    root.close()
