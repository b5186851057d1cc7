"""The archive of a made-up cluster (`tests.support.web_facts`): its running jobs, and ended ones, with curves.

`python -m tests.support.web_jobs --listen 8123` serves both to everybody; `--users FILE` to those in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from colmet.common.daemon.metrics_http import listen_address
from colmet.jobs import footprint
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore
from colmet.web.access import Access
from colmet.web.server import WebServer
from tests.support import web_facts
from tests.support.archive_data import summaries, write
from tests.support.web_store import stored_of

NAMES = ("train-unet", "wing-cfd", "blast", "namd-apoa1", "post", "bash", "<i>run</i>", "étude 3")
ENDED_FIRST = 50_001  # number of the first ended job
DAYS = 60  # of ended jobs
POINTS = 48


def jobs_in(path, facts, ended, now=None, seed=3):
    """Write the running jobs of a cluster and a number of ended ones; return what opens the archive.

    Every eleventh job is not known to the batch system. Some are too short for curves.
    """
    now = int(time.time() if now is None else now)
    draw = np.random.default_rng(seed)
    running = list(facts.on)
    made = []
    ends = np.sort(draw.integers(0, DAYS * 86400, ended))[::-1]
    for n, (job, hosts) in enumerate(summaries(ended + len(running), seed, footprint=1)):
        is_running = n >= ended
        number = running[n - ended] if is_running else ENDED_FIRST + n
        user = facts.user[number] if is_running else web_facts.USERS[n % len(web_facts.USERS)]
        wall = int(job["wall_s"])
        start = now - wall if is_running else now - int(ends[n]) - wall
        moved = {"job": number, "start": start, "last": start + wall, "is_running": int(is_running), "user": user}
        for row in (job, *hosts):
            row.update(moved)
        on = facts.on[number] if is_running else facts.names
        for k, row in enumerate(hosts):
            row["host"] = on[(n + k) % len(on)]
        if is_running:
            _resize(job, facts._job(number)["cpus"])
        if "system" in job and n % 11:
            end = {"state": "running", "ended": None, "exit_code": None} if is_running else {"ended": start + wall}
            if not is_running and job["state"] == "running":
                end.update(state="done", exit_code=0)
            job.update(owner=user, name=NAMES[n % len(NAMES)], batch_id=str(number), started=start, **end)
            job["submitted"] = start - int(draw.integers(0, 3600))
        elif "system" in job:
            for name in ("system", "state"):
                job.pop(name)
        job["footprint"] = _curves(draw, job, wall)
        made.append((job, hosts))
    store = ArchiveStore(str(path), writable=True)
    write(store, iter(made))
    store.close()
    return lambda: LocalArchive(str(path))


def _resize(job, cpus):
    """Give a job the number of CPUs that its live row has."""
    factor = cpus / job["cpus"]
    for name in ("cpus", "core_s", "cpu_s", "wasted_core_s"):
        job[name] *= factor


def _curves(draw, job, wall):
    """Curves with the mean CPU use and the peak of memory of a job, and now and then a gap; None for a short one."""
    if wall < 120:
        return None
    step = 1 << max(0, int(np.ceil(np.log2(wall / POINTS))))
    count = min(footprint.POINTS, wall // step + 1)
    at = np.linspace(0.0, 1.0, count)
    kind = int(draw.integers(0, 4))
    shape = (
        np.ones(count),
        np.clip(1.6 - 1.6 * at, 0.05, 1.0),  # an idle end
        0.6 + 0.4 * np.sin(at * 12.0),
        np.where(np.arange(count) % 6 < 4, 1.0, 0.25),  # with pauses
    )[kind] * draw.uniform(0.9, 1.0, count)
    use = np.minimum(shape / shape.mean() * job["cpu_ratio"], 1.0)
    curves = {
        "cpu": use * job["cpus"],
        "memory": job["memory_peak"] * np.minimum(1.0, 0.3 + (1.5 * at if kind else 0.7 * np.ones(count))),
    }
    if job.get("gpus"):
        curves["gpu"] = use * job["gpus"]
    if kind == 2:
        for curve in curves.values():
            curve[count // 3 : count // 3 + 3] = np.nan
    return footprint.encode(footprint.Footprint(step, curves))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=listen_address, default="8123")
    parser.add_argument("--users", help="file of those who may ask; without it everybody may")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--ended", type=int, default=2000)
    parser.add_argument("--static", type=Path, help="folder of the page, read again for every request")
    options = parser.parse_args()
    facts = web_facts.MadeUpFacts(options.nodes, options.jobs)
    folder = {"folder": options.static} if options.static else {}
    with tempfile.TemporaryDirectory() as kept:
        opener = jobs_in(Path(kept) / "archive.sqlite", facts, options.ended)
        stored = stored_of(facts)._replace(archive=opener)
        server = WebServer(options.listen, facts, Access(options.users), stored=stored, **folder)
        print(f"http://{server.address[0]}:{server.port}/", flush=True)
        server.run()


if __name__ == "__main__":
    main()
