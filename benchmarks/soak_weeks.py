"""Weeks of a collector in an hour: made-up nodes and a collector whose clock goes 1000 times faster.

    make soak-weeks ARGS="--weeks 3"

Nodes send a sample each five minutes of that clock, of jobs that live for hours. The collector begins a file each six
hours, keeps rows for two days and summaries of jobs for four. Each half day it prints a line; at the end a table, and
whether files, journal, archive and memory are bounded after the first quarter.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import free_uri
from soak_samples import Figure, of_files, of_process, process_figures, table

from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import link, v1
from colmet.jobs.archive.store import ArchiveStore

HERE = Path(__file__).resolve()
NS = 1_000_000_000
DAY_S = 86400
STEP_S = 0.02  # of real time
SEND_S = 30.0  # longest wait for room in the queue, and for the last acknowledgements
MEAN_LIFE_S = 7200.0  # of a job
KEEP_ROWS, KEEP_JOBS = "2d", "4d"
JOB_TABLES = ("cgroup_default", "taskstats_default")
FIGURES = [
    *process_figures("collector"),
    Figure("journal files", "", slack=4),
    Figure("journal size", "MB", slack=16),
    Figure("HDF5 files", "", slack=2),
    Figure("HDF5 size", "MB", slack=4),
    Figure("archive size", "MB", slack=4),
    Figure("archived jobs", "", slack=50),
    Figure("log lines", "", slack=20),
]


class MadeUpNode:
    """A node that sends made-up rows, and reads acknowledgements."""

    def __init__(self, name: str, uri: str, began_ns: int) -> None:
        self._name = name
        self._epoch = began_ns
        self._seq = self._last = 0
        self._push, self._link = Push(uri, 1000, 0), LinkClient(link_uri(uri))
        self.acknowledged = self.sent = 0

    def send(self, now_ns: int, jobs: dict[int, int]) -> None:
        """Send a sample of jobs, by their starts."""
        tables = [Table.from_samples(schemas()["procstats_default"], now_ns, [Sample(0, {"stat_cpu_user": self._seq})])]
        for name in JOB_TABLES if jobs else ():
            rows = []
            for job, start_s in jobs.items():
                age = max(0, now_ns // NS - start_s)
                values: dict[str, int | bytes] = {
                    "cpu_usage": age * NS // 2,
                    "memory_current": 1 << 30,
                    "user": b"alice",
                }
                values.update(ac_btime=start_s, cpu_total=age * NS // 2, ac_etime=age * 1_000_000)
                rows.append(Sample(job, {n: value for n, value in values.items() if n in schemas()[name].name_set}))
            tables.append(Table.from_samples(schemas()[name], now_ns, rows))
        self._seq += 1
        batch = Batch(self._name, self._epoch, self._seq, now_ns, tuple(jobs), tuple(tables))
        until = time.monotonic() + SEND_S
        while not self._push.send(v1.encode(batch)):
            if time.monotonic() > until:
                raise SystemExit(f"{self._name}: the collector accepts nothing for {SEND_S:g} s")
            time.sleep(0.01)
        self.sent += 1

    def talk(self) -> None:
        """Say Hello, and count what was acknowledged."""
        held = (link.Range(self._epoch, self.acknowledged + 1, self._seq),) if self._seq > self.acknowledged else ()
        self._link.send(link.encode(link.Hello(self._name, self._epoch, self._seq + 1, "soak", held)))
        while (message := self._link.receive()) is not None:
            said = link.decode(message)
            if isinstance(said, link.Ack):
                self.acknowledged = max([self.acknowledged, *[one.last for one in said.ranges]])

    def close(self) -> None:
        """Disconnect."""
        self._push.close()
        self._link.close()


def count_jobs(path: Path) -> float:
    """Return the number of jobs in the archive; 0 before its first row."""
    if not path.exists():
        return 0.0
    with contextlib.closing(ArchiveStore(str(path))) as store:
        return float(store.database.execute("SELECT count(*) FROM jobs").fetchone()[0])


class Weeks:
    """The nodes, the collector, and what was sampled of it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._log = folder / "collector.log"
        self._began = time.time()
        self._start_s = int(self._began - (options.weeks + 1) * 7 * DAY_S)  # so the fast clock ends before the system's
        clock = (f"{self._began}", f"{self._start_s}", f"{options.rate}")
        self._fast = [sys.executable, str(HERE.parent / "fast_clock.py"), *clock]
        uri = free_uri()
        arguments = ["--zeromq-bind-uri", uri, "--hdf5-filepath", str(folder / "rows"), "--hdf5-complevel", "1"]
        arguments += ["--hdf5-rotate", "6h", "--hdf5-keep", KEEP_ROWS, "--archive-keep", KEEP_JOBS, "-s", "1"]
        arguments += ["--journal-size", "64M", "--archive-batch", "none", "--control-socket", ""]
        self.collector = self._start("collector", "colmet.collector.main", *arguments, "--zeromq-curve-secret", "")
        self._rng = random.Random(options.seed)
        self.nodes = [MadeUpNode(f"node-{n}", uri, self._start_s * NS) for n in range(options.nodes)]
        self._running: list[dict[int, int]] = [{} for _ in self.nodes]
        self._ends: dict[int, float] = {}
        self.jobs = 0
        self.samples: dict[str, list[float]] = {}
        self.wrong: list[str] = []

    def _start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{log}.log", "ab") as file:
            return subprocess.Popen([*self._fast, *words], stdout=file, stderr=file, cwd=HERE.parents[1])

    def run(self) -> None:
        """Go through the weeks."""
        began = self._start_s
        tick_s, half_day_s, now_s = began + self._options.period, began + DAY_S / 2, float(began)
        while now_s < began + self._options.weeks * 7 * DAY_S and not self.wrong:
            time.sleep(STEP_S)
            now_s = self._start_s + (time.time() - self._began) * self._options.rate
            while tick_s <= now_s:
                self._tick(tick_s)
                tick_s += self._options.period
            for node in self.nodes if self._rng.random() < 0.1 else ():
                node.talk()
            if now_s >= half_day_s:
                half_day_s += DAY_S / 2
                print(self._sample(now_s - began), flush=True)
            if self.collector.poll() is not None:
                self.wrong.append(f"colmet-collector ended with status {self.collector.returncode}")
        until = time.monotonic() + SEND_S
        while self.missing() and time.monotonic() < until:
            for node in self.nodes:
                node.talk()
            time.sleep(0.2)

    def _tick(self, tick_s: float) -> None:
        for node, jobs in zip(self.nodes, self._running):
            for job in [job for job in jobs if self._ends[job] <= tick_s]:
                del jobs[job], self._ends[job]
            while len(jobs) < self._options.jobs:
                self.jobs += 1
                job = 1000 + self.jobs
                jobs[job], self._ends[job] = int(tick_s) - 60, tick_s + self._rng.expovariate(1 / MEAN_LIFE_S)
            node.send(int(tick_s) * NS, jobs)

    def _sample(self, age_s: float) -> str:
        """Sample all figures; return a line of some of them."""
        folder = self._folder
        found = {
            "hours": age_s / 3600,
            "batches": float(sum(node.sent for node in self.nodes)),
            **of_process("collector", self.collector.pid),
            **of_files("journal", (folder / "rows.journal").iterdir()),
            **of_files("HDF5", folder.glob("rows.*.hdf5")),
            **of_files("archive", folder.glob("*.archive.sqlite*")),
            "archived jobs": count_jobs(folder / "rows.archive.sqlite"),
            "log lines": float(self._log.read_bytes().count(b"\n")),
        }
        for name, value in found.items():
            self.samples.setdefault(name, []).append(value)
        shown = f"{age_s / DAY_S:6.1f} {self.jobs:7} {found['batches']:9.0f} {found['collector memory']:7.1f}"
        shown += f" {found['journal size']:8.2f} {found['HDF5 size']:8.2f} {found['HDF5 files']:6.0f}"
        return f"{shown} {found['archive size']:8.2f} {found['archived jobs']:7.0f}"

    def missing(self) -> int:
        """Return the number of batches that are not acknowledged."""
        return sum(node.sent - node.acknowledged for node in self.nodes)

    def close(self) -> None:
        """End the collector as an operator does."""
        self.collector.send_signal(signal.SIGTERM)
        status = self.collector.wait(120)
        if status and not self.wrong:
            self.wrong.append(f"colmet-collector ended with status {status}")
        for node in self.nodes:
            node.close()

    def logs(self) -> str:
        """Return the last lines of the collector's log."""
        return "\n".join(line[:240] for line in self._log.read_text(errors="replace").splitlines()[-12:])


def soak(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run some weeks; return what is wrong."""
    heads = (("day", 6), ("jobs", 7), ("batches", 9), ("MB", 7), ("journal", 8), ("HDF5", 8), ("files", 6))
    print(" ".join(f"{name:>{width}}" for name, width in (*heads, ("archive", 8), ("in it", 7))), flush=True)
    weeks = Weeks(options, folder)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            weeks.run()
    finally:
        weeks.close()
    missing = weeks.missing()
    wrong = weeks.wrong + ([f"{missing} batches are not acknowledged"] if missing else [])
    samples = weeks.samples
    are_flat, lines = table(FIGURES, samples)
    print(f"\n{samples['hours'][-1] / 24:.1f} days, {weeks.jobs} jobs, {samples['batches'][-1]:.0f} batches")
    print("\n".join([*lines, weeks.logs()]))
    return wrong + ([] if are_flat else ["not all figures are bounded"])


def main() -> int:
    """Soak; 0 where all is bounded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--weeks", type=float, default=3.0, help="of the fast clock (default: %(default)g)")
    parser.add_argument("--rate", type=float, default=1000.0, help="of the fast clock (default: %(default)g)")
    parser.add_argument("--nodes", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time on each node (default: %(default)s)")
    parser.add_argument(
        "--period", type=float, default=300.0, help="between samples, in its seconds (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="colmet-weeks-") as name:
        wrong = soak(options, Path(name))
    print("verdict: " + ("; ".join(wrong) if wrong else "bounded, and every batch is acknowledged"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
