"""The job archive with a million jobs: size, lists, filters, orders, usage; from SQLite, and as the web route answers.

The summaries are varied copies of some that the fold has made of simulated jobs: their curves and advice are real.

    python benchmarks/bench_archive.py [--jobs N] [--keep FILE] [--file FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measuring import Figure, show

from colmet.common.schema import Batch, Table
from colmet.common.tables import schemas
from colmet.jobs import footprint
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import SORTS, JobFilter
from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import INTEGER, MEASURED, STATES
from colmet.jobs.fold import columns_read
from colmet.jobs.fold_layout import LAYOUTS
from tests.support.archive_data import YEAR_S, YEAR_START, batch_facts, write

NS = 10**9
JOBS = 1_000_000
PATTERNS = 200  # jobs that the fold sums up
MOST_SAMPLES = 700
USERS, NODES = 300, 600
MOST_S = 0.5
MOST_GB = 3.0
ROUNDS = 2
FREE = ("of a month by user and day", "of a month by host")  # without a limit
EXTENSIVE = ("s", "B s", "J")  # units of what grows with time
_NUMBER = re.compile(r"\d+")


class Pattern(NamedTuple):
    """A job that the fold has summed up."""

    whole: Mapping[str, Any]
    host: Mapping[str, Any]
    curves: footprint.Footprint | None


# -- patterns --


class _Simulated:
    """A job alone on a host: rows of all tables that the fold reads, at its own period."""

    def __init__(self, number: int, draw: np.random.Generator) -> None:
        self.host = f"host-{number}"
        self._job = number + 1
        self._draw = draw
        wall_s = min(float(draw.lognormal(8.3, 1.5)), 7 * 86400) + 1
        self._period_s = max(5, int(wall_s / MOST_SAMPLES))
        self.count = max(1, int(wall_s / self._period_s))
        self._cpus = int(draw.choice([1, 4, 8, 16, 32]))
        level = np.repeat(draw.beta(2, 1, self.count // 60 + 1), 60)[: self.count]  # phases of a program
        noise = draw.normal(0, 0.03, self.count)
        self._used = np.cumsum(np.clip(level + noise, 0, 1) * self._cpus * self._period_s)
        self._memory = np.clip(np.cumsum(draw.normal(0.01, 0.02, self.count)) + draw.random(), 0.02, 1) * (
            self._cpus << 31
        )
        self._gpus = int(draw.choice([0, 1, 2, 4], p=[0.9, 0.05, 0.03, 0.02]))
        self._rates = {
            (table, name): float(draw.lognormal(6, 3)) * (draw.random() < 0.8)
            for table, some in columns_read().items()
            for name in some
        }

    def batches(self) -> Iterator[Batch]:
        """Yield its batches."""
        for n in range(self.count):
            time_s = YEAR_START + self._period_s * (n + 1)
            tables = []
            for table, columns in columns_read().items():
                if table == "nvidiastats_default" and not self._gpus:
                    continue
                tables.append(self._table(table, columns, n, time_s))
            yield Batch(self.host, 1, n + 1, time_s * NS, (self._job,), tuple(tables))

    def _table(self, table: str, columns: Sequence[str], n: int, time_s: int) -> Table:
        schema = schemas()[table]
        rows = schema.empty_rows(1)
        rows["job_id"] = self._job if schema.scope == "job" or table == "nvidiastats_default" else 0
        counters = LAYOUTS[table].counters if table in LAYOUTS else columns
        for name in columns:
            if name in counters and schema.dtype[name].kind == "i":
                rows[name] = int(self._rates[table, name] * self._period_s * (n + 1))
        used, memory = int(self._used[n] * NS), int(self._memory[n])
        every: dict[str, dict[str, Any]] = {
            "cgroup_default": {
                **{"user": b"user", "cpu_usage": used, "cpu_user": used * 9 // 10, "cpu_system": used // 10},
                **{"cpus_allocated": self._cpus, "memory_current": memory, "memory_anon": memory * 9 // 10},
                **{"memory_peak": int(self._memory[: n + 1].max()), "memory_limit": self._cpus << 31, "memory_swap": 0},
                **{"pids_current": 2 * self._cpus, "pids_peak": 3 * self._cpus, "memory_oom_kills": 0},
                **{"throttled_time": 0, "cpu_unattributed": used // 500},
            },
            "taskstats_default": {"ac_btime": YEAR_START, "cpu_total": used, "cpu_delay_total": used // 40},
            "jobprocstats_default": {"tasks": 2 * self._cpus, "memory_used": memory, "VmRSS": memory >> 10},
            "nvidiastats_default": {
                **{"gpus": self._gpus, "gpus_idle": 0, "utilization-gpu": int(self._draw.integers(5, 100))},
                **{"memory-used": memory, "memory-total": 80 << 30, "power": int(self._draw.integers(60, 400))},
            },
            "procstats_default": {"stat_cpus": self._cpus * 2, "stat_cpu_user": used // 10**7},
            "raplzones_default": {"name": b"package-0", "energy": used // 50},
        }
        for name, value in every.get(table, {}).items():
            if name in schema.name_set:
                rows[name] = value
        return Table(schema, time_s * NS, rows.tobytes())


class _Record(NamedTuple):
    number: int
    received_ns: int
    batches: tuple[Batch, ...]


def patterns(folder: Path, count: int = PATTERNS) -> list[Pattern]:
    """Return summaries that the fold makes of simulated jobs."""
    draw = np.random.default_rng(3)
    jobs = [_Simulated(n, draw) for n in range(count)]
    store = ArchiveStore(str(folder / "patterns.sqlite"), writable=True)
    archiver = Archiver(store)
    for number, wave in enumerate(zip_longest(*[job.batches() for job in jobs])):
        batches = tuple([one for one in wave if one is not None])
        archiver.take([_Record(number, YEAR_START * NS + number, batches)])
    archiver.end(over=True)
    changes = archiver.changes(whole=True)
    store.close()
    hosts = {one["job"]: one for one in changes.hosts}
    found = []
    for whole in changes.jobs:
        packed = whole["footprint"]
        curves = footprint.decode(packed) if isinstance(packed, bytes) else None
        found.append(Pattern(whole, hosts[whole["job"]], curves))
    return found


# -- a million of them --


def summaries(
    count: int, made: Sequence[Pattern], seed: int = 1
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the summary of each job, of growing starts, and those of its hosts: 1 to 16, 1.6 on average."""
    draw = np.random.default_rng(seed)
    starts = np.sort(draw.integers(0, YEAR_S, count)) + YEAR_START
    of_user = np.minimum(draw.zipf(1.4, count), USERS)
    hosts = np.minimum(draw.geometric(0.625, count), 16)
    chosen = draw.integers(0, len(made), count)
    chance = draw.random((count, 4))
    factors = draw.lognormal(0, 0.4, (count, 3))  # of time, memory, CPU time
    for n in range(count):
        pattern = made[int(chosen[n])]
        start, user = int(starts[n]), f"user{int(of_user[n])}"
        running = n >= count - 500
        rows = []
        for k in range(int(hosts[n])):
            row = _varied(pattern.host, factors[n], draw)
            row.update(job=n + 1, start=start, user=user, is_running=int(running))
            row["last"] = start + int(row["wall_s"])
            row["footprint"] = _curve(pattern, draw)
            rows.append({**row, "host": f"node{(7 * n + k) % NODES + 1}"})
        job = _whole(rows, pattern, draw)
        if chance[n, 1] < 0.95:
            job |= batch_facts(n, job, int(of_user[n]), running, float(chance[n, 2]))
        yield job, rows


def _varied(host: Mapping[str, Any], factors: Any, draw: np.random.Generator) -> dict[str, Any]:
    of_time, of_memory, of_use = [float(one) for one in factors]
    noise = draw.normal(1, 0.02, len(MEASURED)).tolist()
    row: dict[str, Any] = {}
    for column, own in zip(MEASURED, noise):
        value = host.get(column.name)
        if isinstance(value, (int, float)) and column.unit not in ("date", "share"):
            if column.name not in ("hosts", "is_running", "cpus", "gpus", "memory_limit", "gpu_memory"):
                factor = of_time if column.unit in EXTENSIVE else of_memory if column.unit == "B" else of_use
                value = value * factor * (1.0 if column.name in ("wall_s", "host_s") else own)
            if column.kind == INTEGER:
                value = round(value)
        row[column.name] = value
    row["host_s"] = row["wall_s"]
    if row["core_s"] is not None:
        row["core_s"] = row["wall_s"] * row["cpus"]
        row["cpu_s"] = min(row["cpu_s"], row["core_s"])
        row["wasted_core_s"] = row["core_s"] - row["cpu_s"]
        row["cpu_ratio"] = row["cpu_s"] / row["core_s"] if row["core_s"] else None
    return row


def _curve(pattern: Pattern, draw: np.random.Generator) -> bytes | None:
    if pattern.curves is None:
        return None
    curves = {
        name: values * draw.normal(1, 0.03, len(values))
        if name != "memory"
        else np.round(values * draw.normal(1, 0.03, len(values)))
        for name, values in pattern.curves.curves.items()
    }
    return footprint.encode(footprint.Footprint(pattern.curves.step_s, curves))


def _whole(rows: Sequence[Mapping[str, Any]], pattern: Pattern, draw: np.random.Generator) -> dict[str, Any]:
    """Return the summary of a job whose hosts are alike."""
    kept = {"job", "start", "last", "is_running", "user", "wall_s", "samples", "cpu_ratio", "memory_ratio"}
    kept |= {"memory_peak_host", "swap_peak", "energy_source", "footprint", "host"}
    job = {
        name: value if name in kept or value is None else value * len(rows)
        for name, value in rows[0].items()
        if name != "host"
    }
    advice = pattern.whole.get("advice")
    numbers = iter(draw.integers(1, 900, 60).tolist())
    job["advice"] = None if advice is None else _NUMBER.sub(lambda _found: str(next(numbers, 7)), str(advice))
    if len(rows) > 1 and job["footprint"] is not None:
        job["footprint"] = _curve(pattern, draw)
    return job


# -- questions --

MONTH = YEAR_START + 150 * 86400, YEAR_START + 180 * 86400
FILTERS: Mapping[str, JobFilter] = {
    "no filter": JobFilter(),
    "a user with many jobs": JobFilter(users=["user1"]),
    "a user with few jobs": JobFilter(users=["user250"]),
    "two users": JobFilter(users=["user3", "user9"]),
    "a project": JobFilter(projects=["project7"]),
    "a queue": JobFilter(queues=["long"]),
    **{f"state {state}": JobFilter(states=[state]) for state in STATES},
    "a host": JobFilter(hosts=["node77"]),
    "a host in a month": JobFilter(hosts=["node77"], since=MONTH[0], until=MONTH[1]),
    "a job": JobFilter(jobs=[123_456]),
    "an array": JobFilter(array="500000"),
    "a part of the name": JobFilter(name="run42"),
    "a name that no job has": JobFilter(name="none of them"),
    "since a week ago": JobFilter(since=YEAR_START + YEAR_S - 7 * 86400),
    "until the first week": JobFilter(until=YEAR_START + 7 * 86400),
    "a month": JobFilter(since=MONTH[0], until=MONTH[1]),
    "efficiency below 30 %": JobFilter(efficiency_below=0.3),
    "efficiency below 0.1 %": JobFilter(efficiency_below=0.001),
    "advice cpu-low": JobFilter(rule="cpu-low"),
    "advice that no job has": JobFilter(rule="nothing"),
    "a user in a month, failed": JobFilter(users=["user2"], states=["failed"], since=MONTH[0], until=MONTH[1]),
    "a queue and a project, efficiency below 50 %": JobFilter(
        queues=["short"], projects=["project1"], efficiency_below=0.5
    ),
}


def seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of some calls."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def questions(path: str, verbose: bool = False) -> list[Figure]:
    """Figures of lists, filters, orders and usage."""
    found: dict[str, dict[str, float]] = {
        "filters": {},
        "orders": {},
        "orders of a filter": {},
        "pages": {},
        "usage": {},
    }
    with LocalArchive(path) as archive:
        for name, where in FILTERS.items():
            found["filters"][name] = seconds(partial(archive.jobs, where))
        for sort in SORTS:
            for down in (True, False):
                key = f"{sort}, {'largest' if down else 'smallest'} first"
                found["orders"][key] = seconds(partial(archive.jobs, JobFilter(), sort=sort, descending=down))
        for name, where in FILTERS.items():
            for sort in ("wasted_core_s", "user", "cpu_ratio"):
                found["orders of a filter"][f"{name}, by {sort}"] = seconds(partial(archive.jobs, where, sort=sort))
        for offset in (10_000, 500_000, 999_900):
            found["pages"][f"from {offset}"] = seconds(partial(archive.jobs, JobFilter(), offset=offset))
        month = JobFilter(since=MONTH[0], until=MONTH[1])
        for by in (["user"], ["project"], ["queue"], ["user", "day"], ["host"]):
            found["usage"][f"of a month by {' and '.join(by)}"] = seconds(partial(archive.usage, month, by))
    figures: list[Figure] = []
    for kind, times in found.items():
        ranked = sorted(times.items(), key=lambda one: -one[1])
        for name, value in ranked if verbose else ranked[:2]:
            figures.append((f"{kind}, of {len(times)}: {name}", value, "s", "" if name in FREE else f"<= {MOST_S}"))
    return figures


def over_http(path: str) -> list[Figure]:
    """Figures of the web routes, without the network."""
    from colmet.web.store import archive_opener  # a web process needs more modules
    from colmet.web.stored_routes import Stored
    from tests.support.web_facts import MadeUpFacts
    from tests.support.web_users import got, make

    options = argparse.Namespace(archive=path, hdf5_filepath="")
    app = make(MadeUpFacts(4, 4), stored=Stored(archive=archive_opener(options)))  # type: ignore[no-untyped-call]  # tests have no types
    month = f"since={MONTH[0]}&until={MONTH[1]}"
    figures = []
    for what in (
        *("archive/jobs?limit=100", "archive/jobs?sort=wasted_core_s", "archive/jobs?rule=cpu-low&sort=cpu_ratio"),
        *(f"archive/jobs?{month}", f"archive/jobs?host=node77&{month}", f"usage?by=user&{month}"),
    ):
        value = seconds(partial(got, app, f"/api/v1/{what}"))
        figures.append((f"over HTTP: {what}", value, "s", f"<= {MOST_S}"))
    return figures


def write_archive(path: str, jobs: int, folder: Path) -> list[Figure]:
    """Make an archive; return its size."""
    made = patterns(folder)
    sizes = [len(one.whole["footprint"]) for one in made if isinstance(one.whole["footprint"], bytes)]
    advice = [len(str(one.whole["advice"])) for one in made if one.whole.get("advice")]
    store = ArchiveStore(path, writable=True)
    store.database.execute("PRAGMA synchronous = OFF")
    write(store, summaries(jobs, made), keep=False)
    store.close()
    gbytes = os.path.getsize(path) / 1e9
    return [
        ("curves of a summary from the fold: mean", statistics.mean(sizes), "B", f"<= {footprint.MAX_BYTES}"),
        ("curves of a summary from the fold: largest", max(sizes), "B", f"<= {footprint.MAX_BYTES}"),
        ("advice of a summary from the fold: mean", statistics.mean(advice), "B", ""),
        (f"file with {jobs:,} jobs", gbytes, "GB", f"<= {MOST_GB * jobs / JOBS:g}"),
    ]


def run(jobs: int = JOBS, file: str = "", keep: str = "", verbose: bool = False) -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    with tempfile.TemporaryDirectory() as name:
        path = file or keep or f"{name}/archive.sqlite"
        figures = [] if file else write_archive(path, jobs, Path(name))
        figures += questions(path, verbose)
        figures += over_http(path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*figures, ("memory of the process with all of it", peak, "MiB", "")]


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--keep", default="", help="make the archive here, and keep it")
    parser.add_argument("--file", default="", help="measure this archive, made before")
    parser.add_argument("--verbose", action="store_true", help="print each question")
    options = parser.parse_args()
    show(run(options.jobs, options.file, options.keep, options.verbose))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
