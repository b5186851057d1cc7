"""Rows of a made-up cluster with all that makes thinning hard: resets, gaps, missing values, several rows a time."""

from __future__ import annotations

import random

from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.tables import schemas
from colmet.node.selfmetrics.completeness import CompletenessStats, DeliveryTotals

NS = 10**9
START = 1_700_000_040  # a full minute
PERIOD = 5
GIB = 1 << 30
CPUS = 8
SITE = Schema(
    "site_racks",
    "node",
    [
        Field("rack", "none", "label", dtype="S8"),
        Field("litres", "count", "counter"),
        Field("door", "none", "gauge"),
    ],
)
TEXT = {name: schemas()[f"{name}_default"] for name in ("cgroup", "taskstats", "jobprocstats", "procstats")}
MORE = ("raplzones", "RAPLstats", "ipmipowerstats", "nvidiagpus", "nvidiajobs", "nvidiastats", "infinibandstats")
TEXT |= {name: schemas()[f"{name}_default"] for name in MORE}


class Cluster:
    """Two nodes; job 7 on both, job 8 on the first without a kernel's record of its peak, job 9 of 40 s.

    Args:
        ticks: of each node.
        seed: of all values.
    """

    def __init__(self, ticks=480, seed=1):
        self.draw = random.Random(seed)
        self.ticks = ticks
        self.now = START
        self.jobs = {7: (20, ticks - 11), 8: (90, ticks - 95), 9: (33, 41)}
        self.batches = [one for host in ("n1", "n2") for one in self._of_node(host)]
        self.batches.sort(key=lambda batch: batch.time_ns)

    def _there(self, job, tick, host):
        first, last = self.jobs[job]
        return first <= tick <= last and (host == "n1" or job == 7)

    def _of_node(self, host):
        draw = self.draw
        totals, made = {}, []
        completeness = CompletenessStats(lambda: DeliveryTotals({}, {}, (), 0), 60, monotonic=lambda: self.now)
        energy, busy, idle, gpu, sent = {"package-0": 0, "package-0/dram": 0}, 0, 0, [0, 0], 10**12
        for tick in range(self.ticks):
            self.now = START + PERIOD * tick
            time_ns = self.now * NS
            completeness.begin_tick(time_ns)
            jobs = tuple([job for job in self.jobs if self._there(job, tick, host)])
            rows = {name: [] for name in TEXT}
            used_s = 0.0
            for job in jobs:
                if tick == self.jobs[job][0] or (job == 7 and tick in (100, 101, 250)):
                    totals[job] = dict.fromkeys(("cpu", "read", "ops", "wait"), 0)  # a reset of its counters
                grown = draw.random() * PERIOD * 2.5
                used_s += grown
                total = totals[job]
                for name, more in (("cpu", grown * NS), ("read", 1e8), ("ops", 50), ("wait", NS / 20)):
                    total[name] += round(draw.random() * more) if name != "cpu" else round(more)
                memory = round((2 + draw.random()) * GIB) + (GIB if tick == 200 else 0)
                cgroup = {
                    "user": b"alice",
                    "cpu_usage": total["cpu"],
                    "cpu_user": total["cpu"] // 2,
                    "cpus_allocated": 4,
                    "memory_current": None if job == 7 and 130 <= tick < 150 else memory,
                    "memory_anon": memory // 2 if tick % 7 else None,
                    "memory_limit": 8 * GIB,
                    "io_read_ops": total["ops"],
                    "pids_current": draw.randint(3, 40),
                    "pids_peak": 45,
                }
                if job != 8:
                    cgroup["memory_peak"] = 4 * GIB + tick
                rows["cgroup"].append(Sample(job, cgroup))
                began = START + PERIOD * self.jobs[job][0] - 3
                tasks = {"ac_btime": began, "cpu_total": total["cpu"], "cpu_delay_total": total["wait"]}
                tasks |= {"read_bytes": total["read"], "write_bytes": total["read"] // 3, "nvcsw": total["ops"]}
                rows["taskstats"].append(Sample(job, tasks))
                if job == 8:
                    rows["nvidiastats"].append(Sample(job, {"gpus": 2, "gpus_idle": tick // 100 % 2, "power": 300}))
                    for n in range(2):
                        of_gpu = {"uuid": b"gpu-%d" % n, "processes": int(tick % 90 > 20), "memory_used": memory}
                        rows["nvidiajobs"].append(Sample(job, of_gpu))
            busy += round(100 * (used_s + 0.3))
            idle += round(100 * max(0.0, CPUS * PERIOD - used_s - 0.3))
            sent += draw.randrange(10**9)
            node = {"stat_cpu_user": busy, "stat_cpu_idle": idle, "stat_cpus": CPUS, "meminfo_memfree": 10**6 + tick}
            node |= {f"stat_cpu_{kind}": 0 for kind in ("nice", "system", "irq", "softirq", "iowait")}
            rows["procstats"].append(Sample(0, node))
            delta = {zone: round((40 + 100 * draw.random()) * PERIOD * 1e6) for zone in energy}
            for zone, more in delta.items():
                energy[zone] += more
                name = zone.rpartition("/")[2].encode()
                rows["raplzones"].append(Sample(0, {"zone": zone.encode(), "name": name, "energy": energy[zone]}))
            rows["RAPLstats"].append(Sample(0, {"counter_1": delta["package-0"], "counter_2": 1 << 40}))
            rows["ipmipowerstats"].append(Sample(0, {"average_power_consumption": draw.randint(200, 400)}))
            rows["infinibandstats"].append(Sample(0, {"portXmitData": sent, "portRcvData": 2 * sent}))
            for n in range(2):
                gpu[n] += draw.randrange(10**9)
                its = {"uuid": b"gpu-%d" % n, "name": b"A100", "energy": gpu[n], "power": 200.0 + tick % 3}
                rows["nvidiagpus"].append(Sample(0, {**its, "jobs": b"8" if 8 in jobs else b"", "memory_total": 80}))
            tables = [Table.from_samples(TEXT[name], time_ns, some) for name, some in rows.items() if some]
            racks = [Sample(0, {"rack": b"r%d" % n, "litres": 10 * tick + n, "door": tick % 2}) for n in range(2)]
            tables.append(Table.from_samples(SITE, time_ns, racks))
            batch = Batch(host, START * NS, tick + 1, time_ns, jobs, tuple(tables))
            batch = completeness.add(batch, PERIOD, tick == self.ticks - 1)
            if not (host == "n2" and (300 <= tick < 350 or tick in (60, 190))):  # lost on the way
                made.append(batch)
        return made
