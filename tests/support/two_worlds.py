"""Two worlds that differ in the jobs of others alone: bob's answers must be equal in both.

In both, bob has the same jobs on the same nodes. In the first, alice, users with names like bob's and jobs without a
user are there beside him: they run on other nodes, have stored rows, and are in the archive.
"""

from __future__ import annotations

from typing import NamedTuple

from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.web.reports import report_of
from colmet.web.store import StoreReader
from colmet.web.stored_routes import Stored
from tests.support.archive_data import ADVICE, YEAR_START, write
from tests.support.archive_database import PREFIX, ArchiveDatabase, client_of, copied
from tests.support.made_up_history import START, MadeUp, job_rows, node_rows
from tests.support.waiting import Clock
from tests.support.web_store import Bed

NOW = YEAR_START + 400 * 86400
HERS, HERS_RUNNING, HERS_UNMEASURED, NOBODYS, ABSENT = 77_001, 77_002, 77_003, 77_004, 77_999
MINE, MINE_RUNNING, MINE_UNMEASURED = 66_001, 66_002, 66_003
TWICE = 55_001  # hers, then mine, then hers, each on a host of its own
SHARED = 55_002  # mine by the batch system; a host of hers has the number, too
ARRAY = "900"  # of tasks of both
ALIKE = ("Bob", "BOB", "bob ", "bob,alice", "bо" + "b", "bo\u0062\u0301", "*", "b?b", "b%", "", "0", "user-00c0ffee")


class World(NamedTuple):
    """What an application is built of."""

    bed: Bed
    stored: Stored


def world(folder, with_others, shared=False, stack=None):
    """Return one of the worlds; a shared archive is in a database, which `stack` closes."""
    history = MadeUp()
    owners = {MINE_RUNNING: "bob"}
    on = {"my-node": [MINE_RUNNING], "her-node": [], "idle-node": []}
    if with_others:
        owners.update({HERS_RUNNING: "alice", NOBODYS: ""})
        on.update({"her-node": [HERS_RUNNING, NOBODYS]})
    bed = Bed(history, Clock())
    bed.cluster.names, bed.cluster.on = list(on), on
    bed.cluster.user = owners.__getitem__
    bed.go(20)
    job_rows(history, job=MINE, host="my-node", user=b"bob", start=START - 50_000)
    job_rows(history, job=TWICE, host="my-node", user=b"bob", start=START - 40_000)
    node_rows(history, host="my-node", jobs=(MINE,), start=START - 50_000)
    if with_others:
        job_rows(history, job=HERS, host="her-node", user=b"alice", start=START - 50_000, cores=3.0)
        job_rows(history, job=TWICE, host="her-node", user=b"alice", start=START - 60_000)
        job_rows(history, job=NOBODYS, host="her-node", user=None, start=START - 60_000)
        node_rows(history, host="her-node", jobs=(HERS,), start=START - 50_000)
    path = str(folder / "a.sqlite")
    store = ArchiveStore(path, writable=True)
    write(store, iter(archived(with_others)))
    _write_unmeasured(store, [(MINE_UNMEASURED, "bob"), (HERS_UNMEASURED, "alice")][: 1 + with_others])
    if with_others:
        store.write(Changes(stranger(), [], {}), None)
    if shared:
        database = ArchiveDatabase()
        stack.callback(database.close)
        copied(store, client_of(database.url))
    store.close()

    def opener():
        return ElasticArchive(client_of(database.url), PREFIX) if shared else LocalArchive(path)

    def report(query):
        return report_of(lambda: history, query, START + 10_000, opener)

    return World(bed, Stored(report, StoreReader(lambda: history, monotonic=bed.clock), opener))


def archived(with_others):
    """Yield summaries of jobs, and those of their hosts."""
    yield _job(MINE, START - 50_000, "bob", "my-node", name="mine", project="my-project")
    yield _job(TWICE, START - 40_000, "bob", "my-node")
    yield _job(MINE + 10, YEAR_START + 500, "bob", "my-node", batch=False)
    for n in range(6):
        yield _job(66_100 + n, YEAR_START + 1000 + n, "bob", "my-node", array=ARRAY, index=n, cpu=300.0 + n)
    yield _job(SHARED, YEAR_START + 9000, "bob", "my-node")
    if not with_others:
        return
    yield _job(HERS, START - 50_000, "alice", "her-node", name="her-run", project="her-project", queue="her-queue")
    for start in (START - 60_000, START - 20_000):
        yield _job(TWICE, start, "alice", "her-node", batch=start < START - 40_000)
    for n in range(6):
        yield _job(77_100 + n, YEAR_START + 1003 + n, "alice", "her-node", array=ARRAY, index=6 + n, cpu=3.0)
        yield _job(77_200 + n, YEAR_START + 2000 + n, "alice", "her-node", array="901", index=n, name="mine")
    yield _job(NOBODYS, YEAR_START + 7000, None, "her-node", batch=False)
    for n, name in enumerate(ALIKE):
        yield _job(77_300 + n, YEAR_START + 8000 + n, name, "her-node", name="mine", batch=n % 2 == 0)


def stranger():
    """Return the summary of a host of hers that has the number of a job of bob's, at the same time."""
    return _job(SHARED, YEAR_START + 9010, "alice", "her-other-node", cpu=399.0)[1]


def _job(job, start, user, host, name=None, project=None, queue="short", array=None, index=None, batch=True, cpu=100.0):
    wall = 200
    row = {
        **{"job": job, "start": start, "last": start + wall, "is_running": 0, "hosts": 1, "rows": 40, "samples": 40},
        **{"missing": 0, "user": user, "wall_s": float(wall), "host_s": float(wall), "cpus": 2.0, "core_s": 400.0},
        **{"cpu_s": cpu, "cpu_ratio": cpu / 400, "wasted_core_s": 400 - cpu, "memory_peak": 1 << 30, "joules": 50.0},
        **{"node_joules": 8642.0 if user == "alice" else 200.0, "energy_s": float(wall), "energy_source": "rapl"},
        **{"memory_byte_s": 1e9, "network_sent_bytes": 1000, "advice": ADVICE if cpu < 200 else "[]"},
    }
    hosts = [{**row, "host": host}]
    if batch:
        row = {**row, **_facts(job, user or "", start, start + wall, name, project, queue, array, index)}
    return row, hosts


def _write_unmeasured(store, jobs):
    """Write jobs that the batch system alone knows."""
    start = YEAR_START + 10_000
    for job, user in jobs:
        row = {"job": job, "start": start, **_facts(job, user, start, start + 60, f"{user}-unmeasured")}
        names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
        store.database.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", list(row.values()))


def _facts(job, user, start, end, name=None, project=None, queue="short", array=None, index=None):
    return {
        **{"state": "done", "system": "slurm", "batch_id": f"{array}_{index}" if array else str(job), "owner": user},
        **{"name": name, "project": project, "queue": queue, "submitted": start - 10, "started": start, "ended": end},
        **{"exit_code": 0, "reason": "COMPLETED", "requested_cores": 2, "requested_walltime_s": 600, "array": array},
        **{"array_index": index},
    }


def on_one_node(folder, with_others):
    """Return the world in which all that is hers is on the node of bob's jobs, or that without it."""
    made = world(folder, False)
    bed, history = made.bed, made.bed.history
    if with_others:
        bed.cluster.user = {MINE_RUNNING: "bob", HERS_RUNNING: "alice"}.__getitem__
        bed.cluster.on["my-node"].append(HERS_RUNNING)
        job_rows(history, job=HERS, host="my-node", user=b"alice", start=START - 50_000, cores=1.5)
    bed.go(10, keep=False)
    on = (MINE, HERS) if with_others else (MINE,)
    node_rows(history, host="my-node", jobs=on, start=START - 50_000, busy=3.9)
    return made
