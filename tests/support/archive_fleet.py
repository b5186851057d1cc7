"""Simulated nodes with all tables that the job archive reads: jobs on one node or several, with GPUs, energy, gaps."""

from __future__ import annotations

import random
import signal
import time

from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import RUN, UPTIME, schemas
from colmet.common.wire import v1
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.columns import GROWN, MEASURED, OF_NODE
from colmet.jobs.fold import columns_read
from tests.support.fleet import Collector, Node
from tests.support.waiting import free_port

NS = 10**9
PERIOD_S = 5
USERS = ("alice", "bob", "carol", "dave")
GPUS = "nvidiastats_default"
WITHIN_S = 240
BOOTED_S = 1_700_000_000
_COUNTERS = {(s.table, s.column) for c in MEASURED if c.how in (GROWN, OF_NODE) for m in c.measures for s in m.sources}


class Job:
    """A job: its life in ticks, its nodes, and how fast its counters grow."""

    def __init__(self, number, ticks, nodes, rng):
        self.number = number
        self.first = rng.randrange(1, ticks - 12)
        self.last = min(self.first + rng.randrange(1, ticks // 2), ticks - 1)
        self.nodes = rng.sample(range(nodes), rng.choice((1, 1, 1, 2, 3)))
        self.user = rng.choice(USERS)
        self.cpus = rng.choice((1, 2, 4))
        self.use = rng.random()
        self.gpus = rng.choice((0, 0, 1, 2))
        self.seed = rng.random()


def _job_row(job, table, age, node, time_s, rng):
    """Values of a job's row of a table; some are missing now and then."""
    grown = job.cpus * job.use * PERIOD_S * age * NS
    values = {}
    for name in columns_read()[table]:
        if name not in schemas()[table].name_set:
            continue
        if (table, name) in _COUNTERS:
            share = random.Random(f"{job.seed} {node} {name}").random()
            values[name] = (
                int(grown * share)
                if name.endswith(("time", "total", "usage", "user", "system"))
                else int(1e4 * share * age)
            )
        else:
            values[name] = rng.randrange(1 << 30)
    if table == "cgroup_default":
        values.update(
            user=job.user.encode(), cpu_usage=int(grown), cpus_allocated=job.cpus, pids_current=3, pids_peak=9
        )
        values.update(cpu_user=int(grown * 0.9), cpu_system=int(grown * 0.1))
    if RUN in schemas()[table].name_set:
        values.update({RUN: 100 * job.number + node, UPTIME: time_s - BOOTED_S})
    if table == "taskstats_default":
        values.update(ac_btime=time_s - PERIOD_S * age - 1, cpu_total=int(grown * 0.99))
    if rng.random() < 0.05:
        values.pop(rng.choice(sorted(values)))
    return Sample(job.number, values)


def batches_of(node, jobs, ticks, start_s, epoch, seed):
    """All batches of one node."""
    rng = random.Random(f"{seed} {node}")
    energy = seq = 0
    for n in range(1, ticks + 1):
        now = start_s + PERIOD_S * n
        here = [job for job in jobs if node in job.nodes and job.first <= n < job.last]
        if rng.random() < 0.02 and n < ticks:
            continue  # the agent missed a tick
        energy += rng.randrange(200_000_000, 900_000_000)
        node_row = {"stat_cpu_user": 900 * n, "stat_cpus": 8, "stat_cpu_system": 70 * n, "stat_cpu_idle": 100 * n}
        node_row.update({f"stat_cpu_{kind}": 3 * n for kind in ("nice", "irq", "softirq", "iowait")})
        tables = [_node_table("procstats", now, [node_row])]
        if node % 2:  # a meter of the whole node instead; its program ends after the tick
            power = {"average_power_consumption": rng.randrange(90, 300)}
            tables.append(_node_table("ipmipowerstats", now - 3, [power]))
        else:
            zones = [("package-0", "package-0", 6), ("package-0/core", "core", 3), ("package-0/dram", "dram", 1)]
            energies = [{"zone": z.encode(), "name": m.encode(), "energy": energy * k // 10} for z, m, k in zones]
            tables.append(_node_table("raplzones", now, energies))
        tables.append(_node_table("infinibandstats", now, [{"portRcvData": n * n << 10, "portXmitData": n << 16}]))
        for table in ("cgroup_default", "taskstats_default", "jobprocstats_default"):
            rows = [_job_row(job, table, n - job.first, node, now, rng) for job in here]
            if rows:
                tables.append(Table.from_samples(schemas()[table], now * NS, rows))
        busy = [job for job in here if job.gpus and n > job.first]
        if busy:  # measured between two ticks
            rows = [
                Sample(job.number, {**_job_row(job, GPUS, n - job.first, node, now, rng).values, "gpus": job.gpus})
                for job in busy
            ]
            tables.append(Table.from_samples(schemas()[GPUS], (now - 2) * NS, rows))
        seq += 1
        yield Batch(f"node-{node}", epoch, seq, now * NS, tuple([job.number for job in here]), tuple(tables))


def _node_table(name, time_s, rows):
    return Table.from_samples(schemas()[f"{name}_default"], time_s * NS, [Sample(0, row) for row in rows])


def cluster(nodes, jobs, ticks, seed, start_s=None):
    """The batches of some nodes, by host; up to now, or from another time on."""
    rng = random.Random(seed)
    if start_s is None:
        start_s = int(time.time()) // 100 * 100 - PERIOD_S * ticks
    made = [Job(1000 + n, ticks, nodes, rng) for n in range(jobs)]
    return {f"node-{n}": list(batches_of(n, made, ticks, start_s, start_s * NS, seed)) for n in range(nodes)}


class ScriptedNode(Node):
    """A node with batches from a script."""

    def __init__(self, host, uri, script, epoch):
        super().__init__(host, uri)
        self._epoch = epoch
        self._script = list(script)

    def tick(self):
        if self._script:
            batch = self._script.pop(0)
            message = v1.encode(batch)
            self.unacknowledged[batch.epoch, batch.seq] = message
            self.to_send.append(message)
            self._seq = batch.seq + 1

    @property
    def is_done(self):
        return not self._script and not self.unacknowledged


class ScriptedFleet:
    """All nodes, served by `turn`."""

    def __init__(self, uri, scripts, epoch, rng):
        self.nodes = [ScriptedNode(host, uri, script, epoch) for host, script in scripts.items()]
        self._rng = rng

    def turn(self, may_tick=True):
        now = time.monotonic()
        for node in self.nodes:
            if may_tick and self._rng.random() < 0.2:
                node.tick()
            node.send()
            node.talk(now)
        time.sleep(0.01)

    def reconnect(self):
        for node in self.nodes:
            node.resend(reconnect=self._rng.random() < 0.5)

    @property
    def is_done(self):
        return all(node.is_done for node in self.nodes)

    def close(self):
        for node in self.nodes:
            node.close()


def collected(scripts, directory, *arguments, is_stored=lambda: True):
    """Send all batches to a real collector, and stop it once its output has them: a stop leaves some in the journal."""
    uri = f"tcp://127.0.0.1:{free_port()}"
    epoch = next(iter(scripts.values()))[0].epoch
    fleet = ScriptedFleet(uri, scripts, epoch, random.Random(1))
    log = directory / "collector.log"
    collector = Collector(fleet, log, "-v", "--zeromq-bind-uri", uri, "-s", "0.2", *arguments)
    end_at = time.monotonic() + WITHIN_S
    try:
        collector.start()
        while not (fleet.is_done and collector.said("listening") and is_stored()):
            assert not collector.ended() and time.monotonic() < end_at, log.read_text()[-4000:]
            fleet.turn()
        collector.signal(signal.SIGTERM)
        assert collector.wait(120) == 0
    finally:
        collector.close()
        fleet.close()


def content(path):
    """All summaries, by their key."""
    with LocalArchive(str(path)) as archive:
        database = archive._store.database
        jobs = database.execute("SELECT * FROM jobs JOIN job_details USING (job, start)").fetchall()
        hosts = database.execute("SELECT * FROM hosts JOIN host_details USING (job, host, start)").fetchall()
    return {(row["job"],): dict(row) for row in jobs} | {(row["job"], row["host"]): dict(row) for row in hosts}
