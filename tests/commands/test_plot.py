"""colmet plot: which columns are meant, what is drawn of them, and where the picture goes."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from colmet.commands import colmet, plot
from colmet.commands.extract_rows import Interval
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.lines import Line
from colmet.common.schema import UNITS
from colmet.common.tables import schemas
from colmet.jobs.report import text_charts
from colmet.stored import sources
from colmet.stored.series import NODE
from tests.support.made_up_history import START, MadeUp, S

TIMES = [START, START + 5, START + 10]
JOB = 4242


def stored_job():
    """A job on two hosts, and what the nodes themselves have, over a longer time."""
    made = MadeUp()
    made.add(JOB, "cgroup_default", "b", TIMES, cpu_usage=[0, 5 * S, 15 * S], memory_current=[1, 2, 3])
    made.add(JOB, "cgroup_default", "a", TIMES, cpu_usage=[0, 5 * S, 5 * S], memory_current=-1, user=b"x")
    for table in ("taskstats_default", "jobprocstats_default"):
        made.add(JOB, table, "a", TIMES, read_bytes=[0, 1, 2])
    for host in ("a", "b", "c"):
        made.add(NODE, "procstats_default", host, [START - 5, *TIMES, START + 15], loadavg_1=[9, 1, 2, 3, 9])
    return made


@pytest.fixture
def stored(monkeypatch, tmp_path):
    history = stored_job()
    history.warnings = ["jobs.hdf5: cannot be read"]
    monkeypatch.setattr(sources, "open_history", lambda _: history)
    monkeypatch.chdir(tmp_path)
    return history


def test_counters_are_rates_of_each_host_and_gauges_are_as_they_are():
    cpu, memory = plot.gather(stored_job(), JOB, ["cpu_usage", "memory_current"])
    assert (cpu.rate, cpu.unit.symbol) == (True, "cores")
    assert [line.name for line in cpu.lines] == ["a", "b"]
    assert cpu.lines[1].values.tolist() == pytest.approx([1, 2])
    assert (memory.rate, memory.unit.symbol) == (False, "B")
    assert {line.name: line.values.tolist() for line in memory.lines} == {"b": [1, 2, 3]}  # of a nothing is known
    assert cpu.title == "cpu_usage: CPU time"


def test_without_metrics_what_was_measured_of_cpu_memory_io_and_gpus_is_drawn(stored, tmp_path, capsys):
    found = plot.gather(stored_job(), JOB, [])
    assert [one.choice.measure for one in found] == ["cpu_used", "memory", "charged_read"], "the others are not stored"
    assert [one.title for one in found] == ["CPU used", "Memory used", "Read"]
    assert colmet.main(["plot", str(JOB)]) == 0
    assert capsys.readouterr().out == f"job-{JOB}.png\n" and (tmp_path / f"job-{JOB}.png").read_bytes()[1:4] == b"PNG"
    for key in list(stored.rows):
        if key != (JOB, "cgroup_default"):
            del stored.rows[key]
    stored.rows[JOB, "cgroup_default"] = {}
    stored.add(JOB, "cgroup_default", "a", TIMES, user=b"x")
    assert colmet.main(["plot", str(JOB)]) == 1
    assert "name a metric" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 80, 120])
def test_charts_in_the_terminal_fit_and_name_values_times_and_the_zone(stored, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert colmet.main(["plot", str(JOB), "memory", "cpu_used", "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Job {JOB} on 2 nodes"
    assert lines[-1].split() == ["2023-11-14", "22:13:20", "2023-11-14", "22:13:30", "UTC"]
    (cpu,) = [line for line in lines if line.startswith("cpu_used")]
    assert "(mean of 2 lines; highest 2 cores on b)" in cpu
    charts = [line for line in lines[1:-1] if "of 2 lines" not in line]
    assert max(map(len, charts)) <= width
    assert lines[lines.index(cpu) + 1].startswith("   1 cores ")


def test_a_time_without_samples_is_blank_in_the_terminal_and_a_low_value_is_not():
    times = np.array([0.0, 10, 20, 30, 40, 50, 60, 70, 80, 90])
    values = np.array([1000.0, 1000, 1000, np.nan, np.nan, np.nan, 1, 1, 0, 0])
    rows = list(text_charts.chart("x", UNITS["none"], [Line("a", "", times, values)], (0, 90), 21))
    assert rows[0] == "x" and rows[1].startswith("       1 k ") and len(rows) == 1 + text_charts.HEIGHT
    assert rows[-1][text_charts.AXIS + 1 :].rstrip() == "███   ▁▁__", rows[-1]
    flat = list(text_charts.chart("x", UNITS["none"], [Line("a", "", times, values * 0)], (0, 90), 21))
    assert flat == ["x: nothing above 0"]


def test_a_measure_is_drawn_of_the_best_source_that_each_host_has():
    history = stored_job()
    for host, used in (("a", [4096, 8192, 4096]), ("b", 7), ("c", -1)):
        history.add(JOB, "jobprocstats_default", host, TIMES, memory_used=used, VmRSS=9)
    (memory,) = plotted = plot.gather(history, JOB, ["memory"])
    drawn = {line.name: line.values.tolist() for line in memory.lines}
    assert drawn == {"a": [4096, 8192, 4096], "b": [1, 2, 3], "c": [9216, 9216, 9216]}
    assert memory.title == "memory: that of its processes, from /proc and its cgroup"
    (made,) = plot.document(JOB, plotted)["metrics"]
    assert made["measure"] == "memory" and made["unit"] == "B"
    assert [(one["table"], one["column"]) for one in made["series"]] == [
        ("jobprocstats_default", "memory_used"),
        ("cgroup_default", "memory_current"),
        ("jobprocstats_default", "VmRSS"),
    ]


def test_a_measure_of_which_nothing_is_stored_is_no_metric():
    with pytest.raises(ConfigError, match="no metric 'tasks' is stored"):
        plot.gather(stored_job(), JOB, ["tasks"])


def test_what_only_the_nodes_have_is_that_of_the_jobs_hosts_while_it_was_there():
    (load,) = plot.gather(stored_job(), JOB, ["loadavg_1"])
    assert load.choice.job == NODE
    assert {line.name: line.values.tolist() for line in load.lines} == {"a": [1, 2, 3], "b": [1, 2, 3]}


def test_the_jobs_hosts_are_those_of_all_of_its_tables():
    stored = stored_job()
    stored.rows = dict(reversed(stored.rows.items()))  # the first of the job's tables is of one host only
    (load,) = plot.gather(stored, JOB, ["loadavg_1"])
    assert {line.host for line in load.lines} == {"a", "b"}


def test_a_host_and_an_interval():
    (load,) = plot.gather(stored_job(), JOB, ["loadavg_1"], Interval(START + 5, hosts=["b"]))
    assert {line.name: line.times.tolist() for line in load.lines} == {"b": TIMES[1:]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu_usag", "near it: cpu_usage"),
        ("no\x1b[31m", r"docs/metrics.md"),
        ("read_bytes", "several tables; name one of taskstats_default.read_bytes, jobprocstats_default.read_bytes"),
        ("user", "is text"),
    ],
)
def test_a_metric_that_is_not_one_is_an_error_with_what_to_do(text, said):
    with pytest.raises(ConfigError) as err:
        plot.gather(stored_job(), JOB, [text])
    assert said in str(err.value) and "\x1b" not in str(err.value)


def test_a_table_distinguishes_columns_of_the_same_name():
    for text in ("taskstats.read_bytes", "taskstats_default.read_bytes"):
        (one,) = plot.gather(stored_job(), JOB, [text])
        assert one.choice.table == "taskstats_default"


def test_an_unknown_job_and_one_without_values_are_errors():
    for job, wanted in ((1, Interval()), (JOB, Interval(START + 100)), (JOB, Interval(hosts=["none"]))):
        with pytest.raises(ColmetError, match=f"nothing is stored of job {job}"):
            plot.gather(stored_job(), job, ["cpu_usage"], wanted)


@pytest.mark.slow
def test_the_picture_is_a_file_whose_name_is_printed(stored, tmp_path, capsysbinary):
    assert colmet.main(["plot", str(JOB), "cpu_usage"]) == 0
    out, err = capsysbinary.readouterr()
    assert out == b"job-4242-cpu_usage.png\n" and b"jobs.hdf5: cannot be read" in err
    assert (tmp_path / "job-4242-cpu_usage.png").read_bytes().startswith(b"\x89PNG")
    assert colmet.main(["plot", str(JOB), "cpu_usage", "--output", "x.svg", "--json"]) == 0
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()
    (metric,) = json.loads(capsysbinary.readouterr().out)["metrics"]
    assert metric["unit"] == "cores" and metric["series"][0]["values"] == [1, 0]
    assert colmet.main(["plot", str(JOB), "cpu_usage", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--output", "x.jpg"], 2, ".png or .svg"),
        (["--output", "-", "--json"], 2, "standard output"),
        (["--output", "none/x.png"], 1, "cannot be written"),
        (["--since", "2", "--until", "1"], 2, "--since is later than --until"),
        (["--host", "none"], 1, "in this time and on these hosts"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(stored, options, status, said, capsys):
    stored.warnings = []
    assert colmet.main(["plot", str(JOB), "cpu_usage", *options]) == status
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_no_picture_goes_to_a_terminal(stored, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert colmet.main(["plot", str(JOB), "cpu_usage", "-o", "-"]) == 2
    assert "terminal" in capsys.readouterr().err


def test_values_take_no_matplotlib(stored, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "colmet.jobs.report.charts", None)
    assert colmet.main(["plot", str(JOB), "memory_current", "--json"]) == 0
    (metric,) = json.loads(capsys.readouterr().out)["metrics"]
    assert metric["series"] == [{"host": "b", "label": "", "times": TIMES, "values": [1, 2, 3]}]


def test_the_columns_that_its_page_names_exist():
    text = (Path(__file__).parents[2] / "docs/tools/plot.md").read_text(encoding="utf-8")
    tables = {NODE: {schema.name: schema.names for schema in schemas().values()}}
    named = re.findall(
        r"`([a-z]+\.[a-z_]+|[a-z]+_[a-z0-9_]+)`", text.partition("## Metrics")[2].partition("## What")[0]
    )
    assert len(named) > 6
    plot.choose([name for name in named if name != "_default"], tables)
