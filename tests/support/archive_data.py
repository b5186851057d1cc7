"""Made-up archives: jobs of some users over a year, on one host or several, with and without a batch system."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.columns import BATCH

YEAR_START, YEAR_S = 1_767_225_600, 365 * 86400  # 2026-01-01 UTC
STATES = ("done", "failed", "cancelled", "timeout", "out_of_memory", "node_failed")
ADVICE = json.dumps(
    [{"rule": "cpu-low", "text": "The job used 2.1 of 8 cores on average. Ask for fewer cores, or start more tasks."}]
)


def summaries(count: int, seed: int = 1, users: int = 200, footprint: int = 400) -> Iterator[tuple[dict, list[dict]]]:
    """Yield the summary of each job, of growing starts, and those of its hosts: 1.6 on average."""
    draw = np.random.default_rng(seed)
    starts = np.sort(draw.integers(0, YEAR_S, count)) + YEAR_START
    walls = np.minimum(draw.lognormal(8.3, 1.5, count), 7 * 86400).astype(int) + 1
    of_user = np.minimum(draw.zipf(1.4, count), users)
    hosts = np.minimum(draw.geometric(0.625, count), 16)
    cpus = draw.choice([1, 4, 8, 16, 32], count)
    use = draw.beta(2, 1, count)
    chance = draw.random((count, 4))
    for n in range(count):
        user = int(of_user[n])
        start, wall, cores = int(starts[n]), int(walls[n]), int(cpus[n])
        running = n >= count - min(50, count // 20)
        rows = [
            _measured(n + 1, start, wall, cores, float(use[n]), float(chance[n, 0]), running)
            | {"host": f"node{(7 * n + k) % 400 + 1}", "user": f"user{user}", "footprint": draw.bytes(footprint)}
            for k in range(int(hosts[n]))
        ]
        job = _whole(rows)
        if chance[n, 1] < 0.9:  # known to the batch system
            job |= batch_facts(n, job, user, running, float(chance[n, 2]))
        if use[n] < 0.3:
            job["advice"] = ADVICE
            rows[0]["advice"] = ADVICE
        else:
            job["advice"] = "[]"
        yield job, rows


def _measured(job: int, start: int, wall: int, cores: int, use: float, chance: float, running: bool) -> dict:
    core_s = float(wall * cores)
    cpu_s = round(core_s * use, 3)
    row = {
        **{"job": job, "start": start, "last": start + wall, "is_running": int(running), "hosts": 1, "rows": wall // 5},
        **{"samples": wall // 5, "missing": 0, "wall_s": float(wall), "host_s": float(wall), "cpus": float(cores)},
        **{"core_s": core_s, "cpu_s": cpu_s, "cpu_ratio": use, "wasted_core_s": core_s - cpu_s, "user_s": 0.9 * cpu_s},
        **{"system_s": 0.1 * cpu_s, "unattributed_s": 0.0, "throttled_s": 0.0, "wait_cpu_s": 0.01 * cpu_s},
        **{"wait_io_s": 0.02 * cpu_s, "wait_swap_s": 0.0, "wait_reclaim_s": 0.0, "switches": wall * 100},
        **{"involuntary_switches": wall * 3, "tasks_peak": 2 * cores, "memory_limit": cores << 31},
        **{"memory_peak": int((cores << 31) * chance), "memory_peak_host": int((cores << 31) * chance)},
        **{"memory_anon_peak": int((cores << 30) * chance), "memory_ratio": chance, "swap_peak": 0, "oom_kills": 0},
        **{"memory_byte_s": float(int((cores << 30) * chance) * wall), "memory_limit_hits": 0, "major_faults": 12},
        **{"refaults_anon": 0, "refaults_file": 3, "read_bytes": wall << 16, "written_bytes": wall << 14},
        **{"calls_read_bytes": wall << 18, "calls_written_bytes": wall << 15, "read_calls": wall * 9},
        **{"write_calls": wall * 4, "read_ops": wall * 2, "write_ops": wall, "network_sent_bytes": wall << 12},
        **{"network_received_bytes": wall << 13, "joules": 20.0 * cpu_s, "node_joules": 300.0 * wall},
        **{"energy_s": float(wall), "energy_source": "rapl"},
    }
    if chance < 0.1:
        row |= {"gpus": 2, "gpu_s": 2.0 * wall, "gpu_busy_s": 2.0 * wall * use, "gpu_idle_s": 0.1 * wall}
        row |= {"gpu_memory_peak": 5 << 30, "gpu_memory": 80 << 30, "gpu_joules": 350.0 * wall}
    return row


def _whole(rows: list[dict]) -> dict:
    """Return the summary of a job whose hosts are alike."""
    kept = ("job", "start", "last", "is_running", "user", "wall_s", "samples", "cpu_ratio", "memory_ratio")
    kept += ("memory_peak_host", "swap_peak", "energy_source", "footprint")
    count = len(rows)
    return {name: value if name in kept else value * count for name, value in rows[0].items() if name != "host"}


def batch_facts(n: int, job: dict, user: int, running: bool, chance: float) -> dict:
    """Return what the batch system knows of a job."""
    state = "running" if running else STATES[0] if chance < 0.8 else STATES[int(chance * 1000) % len(STATES)]
    wall = int(job["wall_s"])
    return {
        **{"state": state, "system": "slurm", "batch_id": str(n + 1), "owner": f"user{user}", "name": f"run{n % 97}"},
        **{"project": f"project{user % 40}", "queue": ("short", "long", "gpu")[user % 3]},
        **{"submitted": job["start"] - int(3600 * chance), "started": job["start"]},
        **{"ended": None if running else job["start"] + wall, "exit_code": None if running else int(state != "done")},
        **{"reason": state.upper(), "requested_cores": int(job["cpus"]), "requested_walltime_s": 2 * wall},
        **{"requested_memory": job["memory_limit"], "array": str(n // 10 * 10) if n % 100 < 10 else None},
        **{"array_index": n % 10 if n % 100 < 10 else None},
    }


_JOIN = f"UPDATE jobs SET {', '.join(f'{one.name} = ?' for one in BATCH)} WHERE job = ? AND start = ?"


def write(
    store: ArchiveStore, made: Iterator[tuple[dict, list[dict]]], at_once: int = 5000, keep: bool = True
) -> list[dict]:
    """Write summaries, some in a transaction; to `keep` returns those of the whole jobs without curves."""
    written, jobs, hosts = [], [], []

    def flush() -> None:
        store.write(Changes(hosts, jobs, {}), None)
        store.database.execute("BEGIN")
        of_batch = [
            [row.get(one.name) for one in BATCH] + [row["job"], row["start"]] for row in jobs if "system" in row
        ]
        store.database.executemany(_JOIN, of_batch)
        store.database.execute("COMMIT")
        written.extend({name: value for name, value in row.items() if name != "footprint"} for row in jobs if keep)
        jobs.clear()
        hosts.clear()

    for job, of_hosts in made:
        jobs.append(job)
        hosts.extend(of_hosts)
        if len(jobs) >= at_once:
            flush()
    flush()
    return written
