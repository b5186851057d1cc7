"""colmet usage against a count of its own: numpy on the rows of the HDF5 files, read by PyTables alone."""

from __future__ import annotations

import json
import time
from collections import defaultdict

import numpy as np
import pytest

from colmet.commands import colmet
from tests.support.archive_fleet import cluster, collected

pytestmark = pytest.mark.slow

tables = pytest.importorskip("tables")

MONTH_S = 1_793_491_200  # 2026-11-01T00:00:00Z
TICKS, PERIOD_S = 150, 5
START_S = MONTH_S - TICKS * PERIOD_S // 2 // PERIOD_S * PERIOD_S
HOUR_S, GIB, KWH = 3600, 1 << 30, 3.6e6
EXACT = 1e-3
SUMS = ("core", "cpu", "memory", "energy", "gpu")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Files of a real collector: jobs before, after and across the end of a month."""
    directory = tmp_path_factory.mktemp("stored")
    collected(cluster(6, 40, TICKS, seed=11, start_s=START_S), directory, "--hdf5-filepath", f"{directory}/cluster")
    return f"{directory}/cluster"


def rows_of(prefix):
    """The rows of each job, table and host, by time."""
    from glob import glob

    found = defaultdict(list)
    for path in sorted(glob(f"{prefix}.*.hdf5")):
        with tables.open_file(path) as file:
            for table in file.walk_nodes("/", "Table"):
                rows = table.read()
                for host in np.unique(rows["hostname"]):
                    found[int(table._v_parent._v_name[4:]), table.name, host.decode()].append(
                        rows[rows["hostname"] == host]
                    )
    joined = {key: np.concatenate(some) for key, some in found.items()}
    return {key: rows[np.argsort(rows["timestamp"], kind="stable")] for key, rows in joined.items()}


class OneHost:
    """A job on a host, as its rows say."""

    def __init__(self, rows, job, host):
        self.cgroup, self.tasks = rows[job, "cgroup_default", host], rows[job, "taskstats_default", host]
        started = self.tasks["ac_btime"][self.tasks["ac_btime"] > 0]
        times = np.concatenate([self.cgroup["timestamp"], self.tasks["timestamp"]])
        self.start = int(started[0]) if self.tasks["ac_btime"][0] > 0 else int(times.min())
        self.last = int(
            max(
                times.max(),
                *[some["timestamp"].max() for (one, _, on), some in rows.items() if (one, on) == (job, host)],
            )
        )
        self.gpus = rows.get((job, "nvidiastats_default", host))

    def cpu_s(self):
        """CPU time: the counter of its cgroup."""
        values = self.cgroup["cpu_usage"]
        return values[values >= 0].max() * 1e-9

    def cpu_at(self, time_s):
        """The counter at a time, in ns."""
        known = (self.cgroup["cpu_usage"] >= 0) & (self.cgroup["timestamp"] <= time_s)
        return int(self.cgroup["cpu_usage"][known].max(initial=0))

    def core_s(self):
        cpus = self.cgroup["cpus_allocated"]
        return (self.last - self.start) * cpus[cpus >= 0].mean()

    def memory_byte_s(self):
        return held(self.cgroup, "memory_current", self.start)

    def gpu_s(self):
        return 0.0 if self.gpus is None else held(self.gpus, "gpus", self.start)

    def gpu_joules(self):
        return 0.0 if self.gpus is None else held(self.gpus, "power", self.start)


def held(rows, column, start):
    """The sum of a column times the time since the row before."""
    since = np.diff(rows["timestamp"], prepend=start)
    return float((rows[column] * since)[rows[column] >= 0].sum())


def energy_of(rows, host, on_host):
    """The energy of each job on a host: that of each step of the meter, by the CPU time used in it."""
    shares = dict.fromkeys(on_host, 0.0)
    meter = rows.get((0, "raplzones_default", host))
    if meter is not None:
        wanted = np.char.startswith(meter["name"], b"package") | (meter["name"] == b"dram")
        times = np.unique(meter["timestamp"])
        totals = [meter["energy"][wanted & (meter["timestamp"] == at)].sum() * 1e-6 for at in times]
        joules = np.diff(totals)
    else:
        meter = rows[0, "ipmipowerstats_default", host]
        times, watts = meter["timestamp"], meter["average_power_consumption"].astype(float)
        joules = (watts[1:] + watts[:-1]) / 2 * np.diff(times)
    node = rows[0, "procstats_default", host]
    busy = sum(node[f"stat_cpu_{kind}"] for kind in ("user", "nice", "system", "irq", "softirq"))
    for before, after, used in zip(times[:-1], times[1:], joules):
        # what is known when the meter's row arrives, with the next tick
        at, since = [node["timestamp"][node["timestamp"] >= moment].min() for moment in (after, before)]
        grown = {job: one.cpu_at(at) - one.cpu_at(since) for job, one in on_host.items()}
        whole = max(
            int(busy[node["timestamp"] == at][0] - busy[node["timestamp"] == since][0]) * 10**7, sum(grown.values())
        )
        for job, own in grown.items():
            shares[job] += used * own / whole if whole else 0.0
    return shares


def counted(prefix):
    """Sums by user and month."""
    rows = rows_of(prefix)
    hosts = defaultdict(dict)
    for job, table, host in rows:
        if job and table == "cgroup_default":
            hosts[host][job] = OneHost(rows, job, host)
    of_job = defaultdict(lambda: defaultdict(float))
    spans, users = {}, {}
    for host, on_host in hosts.items():
        energy = energy_of(rows, host, on_host)
        has_rapl = (0, "raplzones_default", host) in rows
        for job, one in on_host.items():
            sums = of_job[job]
            sums["core"] += one.core_s()
            sums["cpu"] += one.cpu_s()
            sums["memory"] += one.memory_byte_s()
            sums["gpu"] += one.gpu_s()
            sums["energy"] += energy[job]
            sums["rapl" if has_rapl else "ipmi"] = 1
            sums["gpu energy"] += one.gpu_joules()
            first, last = spans.get(job, (one.start, one.last))
            spans[job] = min(first, one.start), max(last, one.last)
            users[job] = one.cgroup["user"][one.cgroup["user"] != b""][0].decode()
    found = defaultdict(lambda: dict.fromkeys(SUMS, 0.0))
    for job, sums in of_job.items():
        if not sums.get("ipmi"):  # a meter of the whole node has the GPUs
            sums["energy"] += sums["gpu energy"]
        first, last = spans[job]
        for begin, end in ((0, MONTH_S), (MONTH_S, 1 << 40)):
            part = max(0, min(last, end) - max(first, begin)) / (last - first)
            if part:
                for name in SUMS:
                    found[users[job], time.strftime("%Y-%m", time.gmtime(max(first, begin)))][name] += part * sums[name]
    return found


def test_sums_by_user_and_month_are_those_of_the_stored_rows(prefix, capsys):
    words = ("--by", "user", "--by", "month", "--since", "2026-10-01T00:00:00Z", "--until", "2026-12-01T00:00:00Z")
    status = colmet.main(["usage", "--archive", f"{prefix}.archive.sqlite", "--all-users", "--json", *words])
    assert status == 0
    answer = json.loads(capsys.readouterr().out)
    expected = counted(prefix)
    found = {(one["user"], one["month"]): one for one in answer["groups"]}
    assert found.keys() == expected.keys()
    assert {month for _, month in found} == {"2026-10", "2026-11"}
    for key, sums in expected.items():
        one = found[key]
        assert one["core_hours"] * HOUR_S == pytest.approx(sums["core"], rel=EXACT), key
        assert one["used_core_hours"] * HOUR_S == pytest.approx(sums["cpu"], rel=EXACT), key
        assert one["memory_gib_hours"] * HOUR_S * GIB == pytest.approx(sums["memory"], rel=EXACT), key
        assert one["energy_kwh"] * KWH == pytest.approx(sums["energy"], rel=EXACT), key
        assert (one["gpu_hours"] or 0) * HOUR_S == pytest.approx(sums["gpu"], rel=EXACT), key
