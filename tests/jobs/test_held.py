"""What a job held: the same cores and efficiency in the list, in sums and in the report, and never above 100 %."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colmet.batch.systems import DONE, JobRecord
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.report.archived import find, joined
from colmet.jobs.report.requested import used_of_held, uses_of, verdict

GIB = 1 << 30
WALL_S = 1000


def archived(path, cpus, cpu_s, peak=GIB, hosts=1, system="slurm", **facts):
    """The archive of a job, with a host that has all of it."""
    core_s = None if cpus is None else float(cpus * WALL_S)
    ratio = None if core_s is None else min(1.0, cpu_s / core_s)
    host = {
        **{"job": 7, "start": 100, "last": 100 + WALL_S, "host_s": float(WALL_S), "samples": 100, "rows": 100},
        **{"cpus": cpus and float(cpus), "core_s": core_s, "cpu_s": float(cpu_s), "memory_peak": peak, "user": "alice"},
    }
    job = {**host, "wall_s": float(WALL_S), "hosts": hosts, "cpu_ratio": ratio, "advice": "[]", "is_running": 0}
    record = JobRecord(7, system, "7", DONE, 100, 100 + WALL_S, owner="alice", batch_hosts="n1", **facts)
    store = ArchiveStore(str(path), writable=True)
    store.write(Changes([{**host, "host": "n1"}], [job], {}), None)
    store.join(system, [record])
    store.close()
    return LocalArchive(str(path))


def answers(path, *values, **facts):
    """Cores and efficiency by the list, sums, and the report; and the report."""
    with archived(path, *values, **facts) as archive:
        (row,) = archive.jobs(JobFilter(), ["cpus", "cpu_ratio", "memory_used_ratio", "core_s"]).rows
        (group,) = archive.usage(JobFilter(), ["user"])
        report = joined(None, find(archive, 7), False)
    uses = {use.what: use for use in uses_of(report)}
    assert uses["cores"].held == row["cpus"] and uses["cores"].ratio == pytest.approx(row["cpu_ratio"])
    assert group.cpu_ratio == pytest.approx(row["cpu_ratio"]) and group.sums["core_s"] == row["core_s"]
    if "memory" in uses:
        assert uses["memory"].ratio == pytest.approx(row["memory_used_ratio"])
    return row, report, uses


def test_an_exclusive_job_is_judged_by_the_node_that_it_held(tmp_path):
    facts = {"allocated_cores": 36, "requested_cores": 1, "allocated_memory": 180 * GIB, "requested_memory": 5 * GIB}
    row, report, uses = answers(tmp_path / "a.sqlite", 36, 1000, 100 * GIB, **facts)
    assert (row["cpus"], row["cpu_ratio"], uses["cores"].grade) == (36, pytest.approx(1 / 36), "poor")
    assert uses["memory"].ratio == pytest.approx(100 / 180)
    assert [used_of_held(uses[what]) for what in ("cores", "memory")] == [
        "cores: 1.0 of 36 on average; 1 requested",
        "memory: 100 GiB of 180 GiB; 5.00 GiB requested",
    ]
    assert [one.sentence for one in verdict(report)][:2] == [
        "CPU efficiency 3 %: poor.",
        "Memory 56 % of 180 GiB: good.",
    ]


@pytest.mark.parametrize("system", ["slurm", "gridengine"])
def test_where_nothing_confines_a_job_it_held_what_it_was_given(tmp_path, system):
    row, report, _ = answers(tmp_path / "a.sqlite", 64, 1900, system=system, allocated_cores=2)
    assert (row["cpus"], row["core_s"], row["cpu_ratio"]) == (2, 2000, pytest.approx(0.95))
    assert not report.warnings


def test_a_job_that_used_more_than_it_was_given_is_a_defect_that_is_named(tmp_path):
    row, report, uses = answers(tmp_path / "a.sqlite", 64, 8000, 3 * GIB, allocated_cores=2, allocated_memory=GIB)
    assert (row["cpus"], row["cpu_ratio"]) == (64, 0.125), "never above 100 %"
    assert uses["memory"].grade == "exceeded"
    first, second = report.warnings
    assert first.startswith("it used 8.0 cores on average, and slurm gave it 2: nothing confines it to them, or")
    assert second == "it used 3.00 GiB of memory, and slurm gave it 1.00 GiB: nothing confines it"


def test_without_a_cpuset_the_batch_system_knows_the_cores_if_all_hosts_are_measured(tmp_path):
    row, *_ = answers(tmp_path / "a.sqlite", None, 500, allocated_cores=2)
    assert (row["cpus"], row["core_s"], row["cpu_ratio"]) == (2, 2000, 0.25)
    with archived(tmp_path / "b.sqlite", None, 500, hosts=2, allocated_cores=2) as archive:
        assert archive.jobs(JobFilter(), ["cpu_ratio"]).rows == [{"cpu_ratio": None}]


def test_resources_of_oar_are_no_cpus(tmp_path):
    row, report, _ = answers(tmp_path / "a.sqlite", 8, 6000, system="oar", allocated_cores=4)
    assert (row["cpus"], row["cpu_ratio"], report.warnings) == (8, 0.75, ())


def test_a_report_of_rows_has_the_cores_of_the_list(tmp_path):
    with archived(tmp_path / "a.sqlite", 64, 1900, allocated_cores=2) as archive:
        found = find(archive, 7)
    of_rows = joined(None, found, False)
    of_rows = replace(of_rows, cpu=replace(of_rows.cpu, cpus=64.0, available_s=64000.0), batch=None)
    report = joined(of_rows, found, False)
    assert (report.cpu.cpus, report.cpu.available_s, report.cpu.used_ratio) == (2, 2000, 0.95)
