"""make demo: its table is in the order of time, its waits end, and it prints where the page is."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import urllib.request

import pytest

from dev import demo
from dev.live import free_port

TASKS, PROCESSES = "taskstats_default", "jobprocstats_default"
START = 1_795_262_400


@pytest.fixture
def live(capsys):
    made = demo.Live()

    def add(second, cpu_s, written=1 << 20):
        made.add(
            {
                "metric_backend": TASKS,
                "timestamp": START + second,
                "cpu_total": cpu_s * demo.NS,
                "nvcsw": 3,
                "nivcsw": 1,
            }
        )
        made.add({"metric_backend": PROCESSES, "timestamp": START + second, "VmRSS": 2048, "wchar": written})
        return capsys.readouterr().out.split()

    return add


def test_a_row_has_the_job_at_that_time_in_units_of_one_family(live):
    assert live(1, 2)[1:] == ["2", "s", "-", "2.00", "MiB", "1.00", "MiB", "4"]
    assert live(3, 3)[1:5] == ["3", "s", "50", "%"]


def test_rows_that_come_late_are_no_lines_and_change_no_figure(live):
    live(1, 1)
    assert live(5, 3)
    assert live(4, 2) == [] and live(5, 3) == []
    assert live(6, 4)[3:5] == ["100", "%"]


def test_nothing_new_is_no_line(live):
    live(1, 1)
    assert live(2, 1), "the use fell to 0 %"
    assert live(3, 1) == [] and live(4, 2)[3:5] == ["100", "%"]


def test_a_job_rests_once_its_cpu_time_stands_still(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    used = iter([demo.NS, 2 * demo.NS, 2 * demo.NS, 3 * demo.NS])
    rest = demo.Rest(lambda: next(used), 60)
    found = []
    for _ in range(3):
        found.append(rest())
        assert not rest(), "it looks twice a second at most"
        now[0] += 0.5
    assert found == [False, False, True]
    now[0] += 100
    assert rest(), "time is up"


def test_the_page_has_the_same_address_in_each_run_unless_it_is_in_use(monkeypatch):
    monkeypatch.setattr(demo, "PAGE_PORT", free_port())
    assert demo.page_port() == demo.page_port() == demo.PAGE_PORT
    with socket.socket() as other:
        other.bind(("127.0.0.1", demo.PAGE_PORT))
        other.listen()
        assert demo.page_port() != demo.PAGE_PORT
    assert demo.page_port() == demo.PAGE_PORT


@pytest.mark.live
def test_the_page_answers_at_the_printed_address_while_the_demo_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "PAGE_PORT", free_port())
    with contextlib.ExitStack() as cleanup:
        bed = demo.Bed(tmp_path, cleanup)
        demo.announce_page(bed, bed.start("--pid", str(os.getpid())), demo.Live())
        (address,) = re.findall(r"http://\S+", capsys.readouterr().out)
        with urllib.request.urlopen(address, timeout=10) as page:
            assert b"<title>" in page.read()
    assert not demo.is_answering(bed.address)
    demo.show_page(bed, stays=False)
    said = capsys.readouterr().out
    assert address in said and "make demo ARGS=--page" in said
