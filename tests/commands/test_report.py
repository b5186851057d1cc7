"""The figures of a report, from rows whose totals are known."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from colmet.commands import colmet
from colmet.commands import report as command
from colmet.common import text as units
from colmet.common.measures import GPUS, GPUS_OF_JOBS, JOB_GPUS
from colmet.jobs.report import page
from colmet.jobs.report.rows import DELAY_S, gather
from colmet.jobs.report.text import show
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import NODE
from tests.support.made_up_history import GIB, MS, START, MadeUp, S, job_rows, ledger_rows, node_rows

LATER = START + 10**6
WALL_S = 605  # of 121 rows, 5 s apart, the first 5 s after the start


@pytest.fixture
def history():
    return MadeUp()


def report_of(history, now=LATER, **asked):
    return gather(history, JobInterval(asked.pop("job", 42), **asked), now)


def test_a_counter_counts_from_the_start_of_the_job_not_from_the_first_row(history):
    job_rows(history)
    report = report_of(history)
    assert (report.start, report.end, report.wall_s, report.samples) == (START, START + WALL_S, WALL_S, 121)
    assert report.cpu.used_s == pytest.approx(2 * WALL_S)
    assert (report.cpu.source, report.cpu.cpus, report.cpu.available_s) == ("cgroup", 4, 4 * WALL_S)
    assert report.cores == pytest.approx(2) and report.cpu.used_ratio == pytest.approx(0.5)
    assert report.user == "alice"


def test_an_interval_has_what_was_used_in_it(history):
    job_rows(history)
    report = report_of(history, since=START + 100, until=START + 200)
    assert (report.start, report.end) == (START + 100, START + 200)
    assert report.cpu.used_s == pytest.approx(200) and report.cores == pytest.approx(2)
    between = report_of(history, since=START + 102, until=START + 113)
    assert (between.start, between.wall_s, between.samples) == (START + 105, 5, 2)
    assert between.cpu.used_ratio == pytest.approx(0.5), "of the time in which it was measured"
    whole = report_of(history, since=START - 100)
    assert whole.cpu.used_s == pytest.approx(2 * WALL_S), "the job began within the interval"


def test_peaks_of_an_interval_are_not_those_of_what_was_before(history):
    job_rows(history, memory_peak=(4 + (np.arange(121) > 80)) * GIB, memory_current=GIB)
    history.rows[42, "cgroup_default"]["node-1"][1]["pids_current"] = np.full(121, 3)
    found = report_of(history, since=START + 100, until=START + 200)
    assert (found.memory.peak_bytes, found.memory.sampled, found.tasks_peak) == (GIB, True, 3)
    assert (found.hosts[0].memory_peak_bytes, found.hosts[0].tasks_peak) == (GIB, 3)
    risen = report_of(history, since=START + 300).memory
    assert (risen.peak_bytes, risen.sampled) == (5 * GIB, False)
    assert report_of(history).tasks_peak == 9
    cpu = report_of(history, since=START + 300).cpu
    assert cpu.unattributed_s == pytest.approx(cpu.used_s / 1000), "of the interval, too"


@pytest.mark.parametrize(("started", "start"), [(START - 1000, START - 1000), (4, START + 5), (START * 4, START + 5)])
def test_a_start_that_cannot_be_is_not_believed(history, started, start):
    job_rows(history, ac_btime=started)
    assert report_of(history).start == start


def test_hosts_are_added_up(history):
    job_rows(history, host="node-1", cores=3)
    job_rows(history, host="node-2", cores=1, memory_peak=7 * GIB)
    report = report_of(history)
    assert report.cpu.used_s == pytest.approx(4 * WALL_S) and report.cpu.cpus == 8
    assert (report.memory.host, report.memory.peak_bytes) == ("node-2", 7 * GIB)
    assert report.memory.total_peak_bytes == 11 * GIB
    assert [host.cores for host in report.hosts] == [pytest.approx(3), pytest.approx(1)]
    assert report.io.read_bytes == 2 * 1200 * MS and report.io.source == "tasks"


def test_rows_of_one_second_may_come_in_any_order(history):
    """As from Elasticsearch, where nothing distinguishes two samples of one second."""
    job_rows(history, period=1, count=240)
    node_rows(history, period=1, count=280)
    expected = report_of(history)
    for (job, table), hosts in list(history.rows.items()):
        times, columns = hosts["node-1"]
        each = 4 if table == "raplzones_default" else 1
        order = np.arange(len(times)).reshape(-1, 2, each)[:, ::-1].reshape(-1)
        at = START + np.arange(len(times)) // each // 2 + (1 if job else -12)
        hosts["node-1"] = (at, {name: values[order] for name, values in columns.items()})
    found = report_of(history)
    assert found.cpu.used_s == pytest.approx(expected.cpu.used_s)
    assert found.time.waiting_cpu_s == pytest.approx(expected.time.waiting_cpu_s)
    assert found.energy.job_joules == pytest.approx(expected.energy.job_joules, rel=0.02)
    curve = next(curve for curve in found.curves if curve.name == "cpu")
    assert np.allclose(curve.lines[0].values, 4), "twice as many in half of the time"


def test_a_clock_that_is_set_back_adds_no_cpu_time(history):
    job_rows(history)
    for table in ("cgroup_default", "taskstats_default"):
        times, columns = history.rows[42, table]["node-1"]
        times = times - np.where(np.arange(len(times)) >= 60, 63, 0)
        order = np.argsort(times, kind="stable")
        history.rows[42, table]["node-1"] = (times[order], {name: of_it[order] for name, of_it in columns.items()})
    found = report_of(history)
    # 65 s of it seem to be of 2 s, which four CPUs cannot be: two nodes of one name look the same
    assert 2 * (WALL_S - 66) < found.cpu.used_s <= 2 * WALL_S
    assert "more CPU time than its CPUs can have run" in found.warnings[0]


@pytest.mark.parametrize("off_s", [-3600, -63, 3600])
def test_a_clock_that_is_set_changes_no_figure_of_a_run_and_is_named(history, off_s):
    job_rows(history)
    for table in ("cgroup_default", "taskstats_default"):
        times, columns = history.rows[42, table]["node-1"]
        own = {**columns, "run": np.full(len(times), 7), "uptime": times - START + 1000}
        if "ac_btime" in own:
            own["ac_btime"] = np.where(np.arange(len(times)) >= 60, START + off_s, START)
        times = times + np.where(np.arange(len(times)) >= 60, off_s, 0)
        order = np.argsort(times, kind="stable")
        history.rows[42, table]["node-1"] = (times[order], {name: of_it[order] for name, of_it in own.items()})
    found = report_of(history)
    assert (found.start, found.wall_s, found.cpu.used_s) == (START, WALL_S, pytest.approx(2 * WALL_S))
    assert found.cpu.used_ratio == pytest.approx(0.5)
    assert found.warnings == ("the clock of node-1 was set while the job ran: times are by the clock at its start",)


def test_values_that_are_missing_are_not_measured_and_not_zero(history):
    job_rows(history, cpu_usage=-1, cpus_allocated=-1, memory_limit=-1, blkio_delay_total=-1, throttled_time=-1)
    report = report_of(history)
    assert report.cpu.source == "tasks" and report.cpu.used_s == pytest.approx(2 * WALL_S * 0.999)
    assert (report.cpu.cpus, report.cpu.available_s, report.cpu.used_ratio) == (None, None, None)
    assert report.memory.limit_bytes is None and report.cpu.throttled_s is None
    assert report.time.block_io_s is None and "were not measured" in report.time.note
    assert "task_delayacct" in report.time.remedy
    assert report.time.swap_s == 0.0


def test_where_the_cpus_of_a_host_are_not_known_no_share_is_shown(history):
    job_rows(history, host="node-1", cores=3)
    job_rows(history, host="node-2", cores=1, cpus_allocated=-1)
    report = report_of(history)
    assert report.cpu.used_s == pytest.approx(4 * WALL_S)
    assert (report.cpu.cpus, report.cpu.available_s, report.cpu.used_ratio) == (None, None, None)
    assert [host.cpu_used_ratio for host in report.hosts] == [pytest.approx(0.75), None]


def test_a_host_of_which_the_cpu_time_is_not_known_is_named(history):
    job_rows(history, host="node-1", cores=3)
    job_rows(history, host="node-2", cpu_usage=-1, cpu_total=-1, cpu_run_real_total=-1)
    report = report_of(history)
    assert report.cpu.used_s == pytest.approx(3 * WALL_S) and report.cpu.used_ratio is None
    assert report.warnings == ("the CPU time on node-2 is not known, and not in the sum",)
    assert "warning: the CPU time on node-2" in text_of(report)


NO_MEMORY = dict.fromkeys(
    ("memory_current", "memory_peak", "memory_limit", "memory_anon", "pids_current", "pids_peak"), -1
)


def test_memory_that_no_cgroup_counts_is_that_of_the_processes(history):
    job_rows(history, **NO_MEMORY)
    times = START + 5 * np.arange(10)
    of_it = {"memory_used": 100_000_000 * (1 + np.arange(10) % 5), "RssAnon": 400_000, "VmRSS": 900_000, "tasks": 7}
    history.add(42, "jobprocstats_default", "node-1", times, **of_it)
    report = report_of(history)
    memory = report.memory
    assert (memory.peak_bytes, memory.now_bytes, memory.anon_peak_bytes) == (500_000_000, 500_000_000, 400_000 << 10)
    assert (memory.source, memory.note, memory.sampled, report.tasks_peak) == ("processes", "", True, 7)
    assert "(largest sample, of its processes)" in text_of(report)
    (curve,) = [curve for curve in report.curves if curve.name == "memory"]
    assert max(curve.lines[0].values) == 500_000_000


def test_memory_of_the_cgroup_goes_before_that_of_the_processes(history):
    job_rows(history)
    before = report_of(history).memory
    history.add(42, "jobprocstats_default", "node-1", START + 5 * np.arange(10), memory_used=1 << 50, RssAnon=1 << 40)
    assert report_of(history).memory == before and before.source == "cgroup"


@pytest.mark.slow
def test_a_report_without_memory_says_why(history):
    job_rows(history, **NO_MEMORY)
    report = report_of(history)
    assert report.memory.peak_bytes is None and "Enable_mem_cg" in report.memory.remedy
    assert "Memory" in text_of(report) and "not measured: no memory cgroup" in text_of(report)
    assert "ask your administrators" in " ".join(text_of(report).split()) and "Enable_mem_cg" not in text_of(report)
    assert "Enable_mem_cg" in text_of(report, verbose=True)
    assert "Enable_mem_cg" in command.document_of(report)["memory"]["remedy"]
    assert b"ask your administrators" in page.html(report) and b"Enable_mem_cg" not in page.html(report)
    times = START + 5 * np.arange(10)
    history.add(42, "jobprocstats_default", "node-1", times, memory_used=-1, VmRSS=-1, tasks=3)
    assert "/proc/<pid>/statm" in report_of(history).memory.remedy


def test_files_of_colmet_06_give_what_they_have(history):
    times = START + 5 * np.arange(10)
    history.add(42, "taskstats_default", "n", times, cpu_run_real_total=5 * S * np.arange(10), ac_btime=4 * START)
    history.add(42, "jobprocstats_default", "n", times, VmRSS=2048, read_bytes=MS * np.arange(10), syscr=-1)
    report = report_of(history)
    assert report.cpu.used_s == 45 and report.cpu.cpus is None and report.cpu.source == "tasks"
    assert report.start == START, "a start in the future is none"
    assert report.memory.peak_bytes == 2 << 20 and report.memory.sampled
    assert report.io.read_bytes == 9 * MS and report.io.read_calls is None
    assert report.completeness.method == "steps" and report.completeness.missing == 0
    assert report.energy.job_joules is None


def test_whether_it_runs(history):
    job_rows(history)
    end = START + WALL_S
    assert report_of(history, now=end + 10).state == "running"
    assert report_of(history, now=end + DELAY_S + 4).state == "running"
    assert report_of(history, now=end + DELAY_S + 6).state == "unknown"
    node_rows(history, count=128)  # up to one sample behind the job's last row
    assert report_of(history, now=end + 10).state == "running"
    node_rows(history, count=140)
    assert report_of(history, now=end + 10).state == "ended"
    assert report_of(history, now=end + 10, until=START + 300).state == "ended"
    job_rows(history, count=134)
    assert report_of(history, now=end + 10, until=START + 300).state == "running"


def test_it_runs_as_long_as_one_of_its_hosts_may_have_it(history):
    job_rows(history, host="node-1", count=100)
    job_rows(history, host="node-2", count=121)
    node_rows(history, host="node-1", count=126)
    node_rows(history, host="node-2", count=126)
    end = START + WALL_S
    assert report_of(history, now=end + 10).state == "running", "node-1 has gone on without it, node-2 has not"
    assert report_of(history, now=end + DELAY_S + 6).state == "ended"


# -- energy


def test_energy_is_shared_by_cpu_time_and_what_all_get_is_the_nodes(history):
    job_rows(history)
    job_rows(history, job=43, cores=1.0)
    node_rows(history, busy=4.0, jobs=(42, 43))  # 1 core of it is nobody's
    report = report_of(history)
    energy = report.energy
    assert energy.source == "rapl"
    assert energy.nodes_joules == pytest.approx(100 * WALL_S), "package and dram; cores and psys are in or around them"
    assert energy.job_joules == pytest.approx(50 * WALL_S, rel=0.01)
    assert energy.others_joules == pytest.approx(25 * WALL_S, rel=0.01)
    assert energy.nobody_joules == pytest.approx(25 * WALL_S, rel=0.03)
    parts = energy.job_joules + energy.others_joules + energy.nobody_joules + energy.unshared_joules
    assert parts == pytest.approx(energy.nodes_joules)
    assert (energy.covered_ratio, energy.busy_ratio) == (pytest.approx(1), pytest.approx(1))
    assert report.hosts[0].energy_joules == pytest.approx(energy.job_joules)


def test_a_job_that_was_alone_gets_what_the_system_did_not(history):
    job_rows(history)
    node_rows(history, busy=2.5)
    energy = report_of(history).energy
    assert energy.job_joules == pytest.approx(80 * WALL_S, rel=0.01) and energy.others_joules == 0
    assert energy.busy_ratio == pytest.approx(2.5 / 4, rel=0.01)


def test_other_jobs_are_looked_at_by_what_each_host_measures(history):
    for host, usage in (("node-1", 1), ("node-2", -1)):
        job_rows(history, host=host)
        job_rows(history, job=43, host=host, **({} if usage > 0 else {"cpu_usage": -1}))
        node_rows(history, host=host, busy=4.0, jobs=(42, 43))
    energy = report_of(history).energy
    assert energy.others_joules == pytest.approx(100 * WALL_S, rel=0.01)


def test_what_another_job_used_long_before_is_no_part_of_its_first_step(history):
    job_rows(history)
    job_rows(history, job=43, start=START - 10**5, count=20_200)  # and nobody looked until 100 s after the start
    node_rows(history, busy=4.0, jobs=(42, 43))
    for table in ("cgroup_default", "taskstats_default"):
        times, columns = history.rows[43, table]["node-1"]
        late = times > START + 100
        history.rows[43, table]["node-1"] = (times[late], {name: values[late] for name, values in columns.items()})
    energy = report_of(history).energy
    assert energy.job_joules == pytest.approx(50 * WALL_S, rel=0.001)
    assert energy.others_joules == pytest.approx(50 * (WALL_S - 105), rel=0.001)


def test_a_job_that_is_shorter_than_the_steps_has_the_energy_of_its_time(history):
    history.add(42, "cgroup_default", "node-1", [START + 3], cpu_usage=6 * S, cpus_allocated=4)
    history.add(42, "taskstats_default", "node-1", [START + 3], ac_btime=START)
    node_rows(history, period=60, count=6, busy=0.1)
    energy = report_of(history).energy
    assert (energy.nodes_joules, energy.job_joules) == (pytest.approx(300), pytest.approx(300)), "of 100 W for 3 s"
    assert energy.covered_ratio == 1 and energy.nobody_joules == pytest.approx(0)


def test_who_else_was_there_need_not_be_known(history):
    job_rows(history)
    node_rows(history, busy=4.0)
    del history.rows[NODE, "procstats_default"]["node-1"][1]["involved_jobs"]
    energy = report_of(history).energy
    assert energy.job_joules == pytest.approx(50 * WALL_S, rel=0.01)
    assert energy.others_joules is None and energy.nobody_joules == pytest.approx(50 * WALL_S, rel=0.03)


def test_energy_without_figures_to_share_it_by_is_not_shared(history):
    job_rows(history, cpu_usage=-1, cpu_total=-1, cpu_run_real_total=-1)
    node_rows(history)
    energy = report_of(history).energy
    assert energy.job_joules is None and energy.nobody_joules is None
    assert energy.unshared_joules == pytest.approx(energy.nodes_joules) != 0


def test_energy_of_an_interval_in_which_the_agent_began_again_is_missing(history):
    job_rows(history)
    node_rows(history)
    _, columns = history.rows[NODE, "raplzones_default"]["node-1"]
    again = len(columns["energy"]) // 2 // 4 * 4
    columns["energy"][again:] -= np.tile(columns["energy"][again : again + 4], len(columns["energy"][again:]) // 4)
    energy = report_of(history).energy
    assert energy.nodes_joules == pytest.approx(100 * (WALL_S - 5), rel=0.001)
    assert energy.covered_ratio == pytest.approx(1 - 5 / WALL_S)


@pytest.mark.parametrize(
    ("table", "columns", "watts"),
    [
        ("RAPLstats_default", {"counter_1": 300 * MS, "counter_3": 200 * MS, "counter_5": 100 * MS}, 80),
        ("ipmipowerstats_default", {"average_power_consumption": 250}, 250),
        ("ipmipowerstats_default", {"average_power_consumption": -1, "current_power": 200}, 200),
    ],
)
def test_energy_comes_from_what_there_is(history, table, columns, watts):
    job_rows(history)
    node_rows(history)
    del history.rows[NODE, "raplzones_default"]
    history.add(NODE, table, "node-1", START - 25 + 5 * np.arange(140), **columns)
    energy = report_of(history).energy
    assert energy.nodes_joules == pytest.approx(watts * WALL_S)
    assert energy.source == ("rapl" if table.startswith("RAPL") else "ipmi")


def test_the_bmc_counts_after_rapl_has_failed_for_long(history):
    job_rows(history, count=400)
    node_rows(history, count=400)
    times, columns = history.rows[NODE, "raplzones_default"]["node-1"]
    kept = times < START + 300
    history.rows[NODE, "raplzones_default"]["node-1"] = (times[kept], {key: one[kept] for key, one in columns.items()})
    history.add(
        NODE, "ipmipowerstats_default", "node-1", START - 25 + 5 * np.arange(420), average_power_consumption=100
    )
    energy = report_of(history, now=START + 2200).energy
    assert energy.covered_ratio == pytest.approx(1 - 600 / 1995, abs=0.01), "but for the ten minutes before"


def test_the_power_of_a_gap_is_not_made_up(history):
    job_rows(history)
    node_rows(history)
    del history.rows[NODE, "raplzones_default"]
    times = START - 25 + 5 * np.arange(140)
    times = times[(times < START + 100) | (times >= START + 400)]
    history.add(NODE, "ipmipowerstats_default", "node-1", times, average_power_consumption=100)
    energy = report_of(history).energy
    assert energy.covered_ratio == pytest.approx(1 - 305 / WALL_S)
    assert energy.nodes_joules == pytest.approx(100 * (WALL_S - 305))
    assert "on average" in text_of(report_of(history)).partition("Energy")[0]
    assert "on average" not in text_of(report_of(history)).partition("Energy")[2], "of part of the time"


# -- GPUs, and what is of the whole node


def test_gpus_that_the_job_held(history):
    job_rows(history)
    times = START + 5 * (1 + np.arange(121))
    two = {"uuid": np.tile(np.array([b"GPU-a", b"GPU-b"]), 121)}
    processes = np.tile([1, 0], 121)
    history.add(42, GPUS_OF_JOBS, "node-1", np.repeat(times, 2), **two, processes=processes, memory_used=2 * GIB)
    history.add(
        *(NODE, GPUS, "node-1", np.repeat(times, 2)),
        **two,
        name=b"NVIDIA H200",
        jobs=np.tile(np.array([b"42,43", b"42"]), 121),
        energy=np.repeat(100 * 5 * MS * np.arange(121), 2),
        utilization_gpu=np.tile([75, 0], 121),
        memory_total=8 * GIB,
    )
    first, second = report_of(history).gpus
    assert (first.uuid, first.name, first.use_ratio) == ("GPU-a", "NVIDIA H200", 0.75)
    assert first.held_s == 605 and (first.idle_s, second.idle_s) == (0, 605)
    assert (first.memory_peak_bytes, first.memory_bytes) == (2 * GIB, 8 * GIB)
    assert first.energy_joules == pytest.approx(100 * 600 / 2), "it was another job's, too"
    assert second.energy_joules == pytest.approx(100 * 600)
    assert report_of(history).energy.gpu_joules == pytest.approx(100 * 900)


def test_gpus_that_nothing_distinguishes(history):
    job_rows(history)
    times = START + 5 * (1 + np.arange(121))
    history.add(42, JOB_GPUS, "node-1", times, **{"power": 200, "utilization-gpu": 40, "memory-used": 512})
    (gpu,) = report_of(history).gpus
    assert (gpu.use_ratio, gpu.memory_peak_bytes, gpu.idle_s) == (0.4, 512 << 20, None)
    assert gpu.energy_joules == pytest.approx(200 * 600)


def test_the_network_is_the_nodes(history):
    job_rows(history)
    times = START - 100 + 5 * np.arange(180)
    sent = np.where(np.arange(180) < 100, np.arange(180), np.arange(180) - 100) * MS  # the agent restarted
    history.add(NODE, "infinibandstats_default", "node-1", times, portXmitData=sent, portRcvData=-1)
    nodes = report_of(history).nodes
    assert nodes.network_sent_bytes == 120 * MS and nodes.network_received_bytes is None


# -- completeness


def test_all_is_here_by_the_ledger(history):
    job_rows(history)
    ledger_rows(history)
    found = report_of(history).completeness
    assert (found.here, found.missing, found.method, found.here_ratio) == (242, 0, "ledger", 1.0)


def without(history, first, last):
    for (job, _), hosts in history.rows.items():
        for host, (times, columns) in hosts.items():
            keep = (times < START + first) | (times > START + last)
            if job:
                hosts[host] = (times[keep], {name: values[keep] for name, values in columns.items()})


@pytest.mark.parametrize("ledger", [True, False])
def test_a_hole_is_missing_with_its_time(history, ledger):
    job_rows(history)
    if ledger:
        ledger_rows(history)
    without(history, 220, 265)  # between two accounts
    found = report_of(history).completeness
    assert (found.here, found.missing, found.method) == (222, 20, "ledger" if ledger else "steps")
    assert sum(gap.rows for gap in found.gaps) == 20 and found.gaps[0].tables == ("cgroup_default", "taskstats_default")
    assert all(START + 140 <= gap.first <= gap.last <= START + 300 for gap in found.gaps)
    report = report_of(history)
    assert not report.advice and "91.7 %" in report.advice_withheld


@pytest.mark.parametrize(("left", "ledger"), [(True, True), (False, True), (False, False)])
def test_of_a_host_that_is_not_heard_of_any_more_the_rest_is_missing(history, left, ledger):
    for host, count in (("node-1", 121), ("node-2", 41)):
        job_rows(history, host=host, count=count)
        still = 140 if left or count == 121 else 47  # of the node, up to a row behind the job's
        node_rows(history, host=host, count=still)
        if ledger:
            ledger_rows(history, host=host, count=still)
    report = report_of(history)
    found = report.completeness
    assert found.here == 2 * (121 + 41)
    if left:  # the job, and not the host
        assert found.missing == 0 and not found.gaps
        return
    (gap,) = found.gaps
    assert found.missing == gap.rows == 2 * 80
    assert (gap.host, gap.first, gap.last) == ("node-2", START + 205, START + 605)
    assert "66.9 %" in report.advice_withheld
    text = " ".join(text_of(report).split())
    assert "node-2 2023-11-14 22:16:45 to 22:23:25: 160 rows not here: nothing has come of the node since" in text


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("each", [1, 2])
def test_holes_between_rows_that_come_each_second_are_missing(history, ledger, each):
    job_rows(history, period=1, count=600)
    if ledger:
        ledger_rows(history, period=1, count=700)
        for name in ("due", "taken", "rows", "rows_now"):
            history.rows[NODE, "completeness_default"]["node-1"][1][name] *= each
    for (job, _), hosts in history.rows.items():
        if job:  # some of them a second late
            times, columns = hosts["node-1"]
            late = np.repeat(times + (times % 100 == 7), each)
            hosts["node-1"] = late, {name: np.repeat(values, each) for name, values in columns.items()}
    found = report_of(history).completeness
    assert (found.here, found.missing) == (1200 * each, 0)
    without(history, 220, 265)
    report = report_of(history)
    assert report.completeness.here == 1108 * each
    assert report.completeness.missing == pytest.approx(92 * each, abs=3 * each)
    assert report.advice_withheld


def test_what_was_before_the_first_row_is_missing(history):
    job_rows(history, ac_btime=START - 495)  # the node's daemon came 500 s after the job
    ledger_rows(history)
    report = report_of(history)
    assert (report.completeness.here, report.completeness.missing) == (242, 200)
    assert "54.7 %" in report.advice_withheld and report.completeness.gaps[0].first == START - 495
    job_rows(history, ac_btime=START - 145)
    assert report_of(history).completeness.missing == 0
    for count in (2, 10):
        job_rows(history, period=300, count=count)
        assert report_of(history).completeness.missing == 0, "the first sample came 300 s after the start"


def test_rows_of_other_jobs_are_not_missed(history):
    job_rows(history)
    ledger_rows(history)
    _, columns = history.rows[NODE, "completeness_default"]["node-1"]
    columns["rows"] = columns["rows"] * 3
    assert report_of(history).completeness.missing == 0


def test_an_account_whose_own_rows_are_of_other_jobs(history):
    job_rows(history, start=START + 30, count=5, period=1)
    rows = {"due": [0, 5, 5], "taken": [0, 5, 5], "rows": [0, 10, 10], "rows_now": [0, 2, 0], "failed": 0, "late": 0}
    times = [START - 25, START + 35, START + 95]
    history.add(
        *(NODE, "completeness_default", "node-1", times),
        **{"table": b"taskstats_default", "epoch": (START - 1000) * S, "period": MS, "is_last": 0, **rows},
    )
    assert report_of(history).completeness.missing == 0


def test_a_ledger_that_makes_no_sense_is_none(history):
    job_rows(history)
    ledger_rows(history)
    _, columns = history.rows[NODE, "completeness_default"]["node-1"]
    for name, values in (("epoch", columns["epoch"] * math.nan), ("table", np.arange(len(columns["table"])))):
        kept, columns[name] = columns[name], values
        assert report_of(history).completeness.method == "steps"
        columns[name] = kept
    assert report_of(history).completeness.method == "ledger"
    del columns["rows"]
    assert report_of(history).completeness.method == "steps"


# -- as text and JSON


def text_of(report, width=80, encoding="utf-8", verbose=False):
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    show(report, file, width, verbose)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def full(history, hosts=1, name="node-{}"):
    for n in range(1, hosts + 1):
        host = name.format(n)
        job_rows(history, host=host, cores=2.0 if n % 5 else 0.01)
        node_rows(history, host=host)
        ledger_rows(history, host=host)
    return history


def test_the_text_says_what_the_job_did(history):
    text = text_of(report_of(full(history)))
    for part in (
        "Job 42 of alice on node-1: ended",
        "2023-11-14 22:13:20 to 22:23:25 UTC: 10 min 5 s",
        "121 samples, one every 5 s; none is missing",
        "CPU efficiency 50 %: good. Memory 50 % of the limit of 8.00 GiB: good.\nJob 42",
        "░ 50 %       used 2.0 of 4 cores on average",
        "CPU time 20 min 10 s of 40 min 20 s: user 90 %, system 10 %",
        "block I/O 12.1 s",
        "120 processes and threads ended, at most 9 at one time",
        "at most 4.00 GiB of 8.00 GiB",
        "storage: read 1.12 GiB, written 572 MiB",
    ):
        assert part in text, part
    assert "dvice" not in text, "there is nothing to advise"
    assert "other jobs" not in text and "0 J" not in text, "what is 0 is hidden"
    assert max(map(len, text.splitlines())) <= 80 and not any(line != line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("calls", "text"), [(2048, "in some 2,000 calls,"), (2047, "in 2,047 calls,"), (3 << 20, "3.15 million")]
)
def test_calls_that_the_kernel_cuts_to_multiples_of_1024_are_about_as_many(history, calls, text):
    report = report_of(full(history))
    report = replace(report, io=replace(report.io, asked_read_bytes=45 << 10, read_calls=calls))
    assert text in " ".join(text_of(report).split())


@pytest.mark.slow
def test_many_hosts_are_the_first_and_the_last_few(history):
    text = text_of(report_of(full(history, 64, "dahu-{}.site.example.org")))
    assert "64 hosts of site.example.org" in text and "... 56 more" in text
    lines = text.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("Host")) + 1 :][:9]
    assert table[0].startswith("dahu-1 ") and table[8].startswith("dahu-60 ")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_stay_text(history, width):
    host = "evil\x1b[31m\x07[bold]node\u202e"
    job_rows(history, host=host, user="ali\u0007ce\x1b]0;x".encode())
    job_rows(history, host="[red]b")
    text = text_of(report_of(history), width)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "\\x1b[31m" in text
    assert max(map(len, text.splitlines())) <= width


def test_text_that_the_terminal_cannot_show(history):
    for host in ("n" * 60, "m" * 60):
        job_rows(history, user="ali\u00e7e".encode(), host=host)
    text = text_of(report_of(history), encoding="ascii")
    assert "##########......" in text and "ali?e" in text


def test_json_has_everything_and_no_nan(history):
    document = json.loads(json.dumps(command.document_of(report_of(full(history, 2))), allow_nan=False))
    assert document["cpu"]["used_ratio"] == pytest.approx(0.5)
    assert document["hosts"][0]["cores"] == pytest.approx(2)
    assert document["energy"]["method"] and document["memory"]["swap_peak_bytes"] == 0
    assert document["cpu"]["throttled_s"] == 0 and document["nodes"]["network_sent_bytes"] is None
    assert "curves" not in document


def test_curves_are_rates_and_values(history):
    curves = {curve.name: curve for curve in report_of(full(history)).curves}
    assert list(curves) == ["cpu", "memory", "waiting", "read", "written", "power"]
    assert np.allclose(curves["cpu"].lines[0].values, 2) and curves["cpu"].bound == 4
    assert np.allclose(curves["read"].lines[0].values, 2 * MS)
    assert np.allclose(curves["memory"].lines[0].values, 3 * GIB) and curves["memory"].bound == 8 * GIB
    power = curves["power"].lines[0].values
    assert np.allclose(power, 100 * 2 / 2.2, rtol=0.01)


# -- the command


@pytest.fixture
def report(history, monkeypatch):
    """Runs colmet report on the made-up rows."""
    monkeypatch.setattr(command, "open_history", lambda options: history)

    def run(*argv):
        return colmet.main(["report", *argv])

    return run


def test_the_command_prints_text_and_json(history, report, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    full(history)
    assert report("42") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("Job 42 of alice on node-1")
    assert report("42", "--json") == 0
    assert json.loads(capsys.readouterr().out)["job"] == 42
    assert history.closed


def test_a_job_of_which_there_is_nothing(history, report, capsys):
    assert report("42") == 1
    assert "nothing is stored of job 42, nor of any node" in capsys.readouterr().err
    full(history)
    assert report("7") == 1
    error = capsys.readouterr().err
    assert "nothing is stored of job 7; of the nodes there are completeness_default, procstats_default" in error
    assert report("42", "--since", str(LATER)) == 1
    assert "job 42 has no rows since 2023-11-26" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [("0",), ("x",), ("42", "--since", "soon"), ("42", "--since", "9", "--until", "8"), ()]
)
def test_a_command_line_that_is_wrong(report, capsys, argv):
    try:
        status = report(*argv)
    except SystemExit as exit_:
        status = exit_.code
    out, err = capsys.readouterr()
    assert status == 2 and not out and err.count("\n") == 1


def test_a_library_that_is_missing_is_named_with_its_remedy(history, report, monkeypatch, capsys):
    full(history)
    for name in [name for name in sys.modules if name.split(".")[0] == "rich" or name == "colmet.jobs.report.text"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert report("42", "--json") == 0
    capsys.readouterr()
    assert report("42") == 2
    assert "apt-get install python3-rich, or pip install rich" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (
            units.duration,
            {0: "0 s", 3.2: "3.20 s", 59.96: "1 min 0 s", 3661: "1 h 1 min", 200000: "2 d 7 h", None: "-"},
        ),
        (units.size, {0: "0 B", 1023.7: "1.00 KiB", 5 * GIB: "5.00 GiB"}),
        (units.percent, {0.9999: "99.99 %", 1: "100 %", 0.925: "93 %", 0.001: "< 1 %"}),
        (units.energy, {0: "0 J", 3.6e6: "1.00 kWh", 999: "999 J", 2811: "2.81 kJ"}),
        (units.count, {12345: "12,345", 12345678: "12.3 million"}),
        (units.cores, {0.049: "0.05", 1234.5: "1,234"}),
        (units.power, {99: "99.0 W", 1500: "1.50 kW"}),
    ],
)
def test_numbers_read_well(function, texts):
    assert {value: function(value) for value in texts} == texts
