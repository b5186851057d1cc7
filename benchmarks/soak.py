"""Two hours of a real agent and collector, with jobs that begin and end: memory, descriptors, files, log lines.

    make soak ARGS="--hours 2"

As root. Each minute it prints a line; at the end, and on SIGTERM, a table of start, middle and end with a verdict for
each figure, and what was stored of the jobs. The collector writes HDF5 files, the job archive, and documents for a
database, a process that discards them. Now and then it is stopped for half a minute, so that the spool is used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import discarding_server, free_uri, job_root
from soak_samples import LINES, ROWS, Figure, of_files, of_process, process_figures, table

from colmet.common.text import duration
from colmet.jobs.archive.store import ArchiveStore
from dev.live import JobRoot, LiveJob, free_port

ROOT = Path(__file__).resolve().parents[1]
STEP_S = 0.2
PAUSE_S = 30.0
MEAN_LIFE_S, MOST_LIFE_S = 5.0, 90.0
SHORT = "while :; do /bin/sleep 0.4; done"  # commands of a job
WRITER = 'while :; do head -c 100000 /dev/zero >"$0"; /bin/sleep 1; done'
FIGURES = [
    *process_figures("agent"),
    *process_figures("collector"),
    *process_figures("web"),
    Figure("spool files", "", slack=2),
    Figure("spool size", "MB", slack=0.5),
    Figure("state size", "MB", slack=0.5),
    Figure("journal files", "", slack=4),
    Figure("journal size", "MB", slack=32),
    Figure("HDF5 size", "MB", ROWS),
    Figure("archive size", "MB", ROWS),
    Figure("agent log", "", LINES),
    Figure("collector log", "", LINES),
]


class Churn:
    """Jobs that begin and end: short ones, and some that stay.

    Attributes:
        begun: number of jobs so far.
    """

    def __init__(self, root: JobRoot, folder: Path, per_s: float, steady: int, rng: random.Random) -> None:
        self.begun = 0
        self._root = root
        self._folder = folder
        self._per_s = per_s
        self._rng = rng
        self._due = time.monotonic()
        self._jobs: list[tuple[float, LiveJob]] = []
        for _ in range(steady):
            self._begin(float("inf"))

    def _begin(self, life_s: float) -> None:
        self.begun += 1
        job = self._root.job(f"{self._rng.choice(('alice', 'bob', 'carol'))}_{100_000 + self.begun}")
        kind = self._rng.random()
        written = str(self._folder / f"written-{self.begun % 20}")
        command = ["sleep", "1000000"]
        if kind < 0.4:
            command = ["sh", "-c", SHORT]
        elif kind < 0.5:
            command = ["sh", "-c", WRITER, written]
        job.start(command, stdin=subprocess.DEVNULL)
        self._jobs.append((time.monotonic() + life_s, job))

    def step(self) -> None:
        """Begin and end jobs that are due."""
        now = time.monotonic()
        for ends, job in [one for one in self._jobs if one[0] <= now]:
            self._jobs.remove((ends, job))
            self._root.end(job)
        while self._due <= now:
            self._due += self._rng.expovariate(self._per_s)
            self._begin(min(MOST_LIFE_S, self._rng.expovariate(1 / MEAN_LIFE_S)))


class Soak:
    """The daemons, and what was sampled of them."""

    def __init__(self, options: argparse.Namespace, folder: Path, root: JobRoot, database: int) -> None:
        self._folder = folder
        self.samples: dict[str, list[float]] = {}
        uri = free_uri()
        for name in ("spool", "state"):
            (folder / name).mkdir(mode=0o700)
        common = ["--zeromq-curve-secret", "", "--sample-period", f"{options.period:g}"]
        self.collector = self._start(
            "collector",
            *("--zeromq-bind-uri", uri, "--journal-size", "256M", "--hdf5-filepath", str(folder / "rows")),
            *("--hdf5-complevel", "1", "--hdf5-rotate", options.rotate, "--archive-batch", "none"),
            *("--elastic-host", f"http://127.0.0.1:{database}", "--no-shared-archive", "--http-open"),
            *("--http-listen", f"127.0.0.1:{free_port()}", *common),
        )
        self.agent = self._start(
            "node",
            *("--zeromq-uri", uri, "--cpuset_rootpath", str(root.path), "--enable-jobproc"),
            *("--spool-dir", str(folder / "spool"), "--state-dir", str(folder / "state"), *common),
        )
        self._began = time.monotonic()

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        socket = ("--control-socket", str(self._folder / f"{name}.sock"))
        with open(self._folder / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", f"colmet.{name}.main", *socket, *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT)

    def _web(self) -> int:
        """Return the process id of the JSON interface; 0 while there is none."""
        for children in Path(f"/proc/{self.collector.pid}/task").glob("*/children"):
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(OSError):
                    if b"colmet.web" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
        return 0

    def check(self) -> None:
        """Raise SystemExit if a daemon has ended."""
        for name, process in (("colmet-node", self.agent), ("colmet-collector", self.collector)):
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with status {process.returncode}")

    def sample(self, jobs: int) -> str:
        """Sample all figures; return a line of some of them."""
        folder = self._folder
        web = self._web()
        state = folder / "rows.journal/hdf5.json"
        found = {
            "hours": (time.monotonic() - self._began) / 3600,
            "batches": float(json.loads(state.read_text())["position"]) if state.exists() else 0.0,
            "jobs": float(jobs),
            **of_process("agent", self.agent.pid),
            **of_process("collector", self.collector.pid),
            **(
                of_process("web", web) if web else {f"web {what}": 0.0 for what in ("memory", "descriptors", "threads")}
            ),
            **of_files("spool", (folder / "spool").iterdir()),
            **of_files("state", (folder / "state").iterdir()),
            **of_files("journal", (folder / "rows.journal").iterdir()),
            **of_files("HDF5", folder.glob("rows.*.hdf5")),
            **of_files("archive", folder.glob("*.archive.sqlite*")),
            **{
                f"{shown} log": float(self._lines(name))
                for shown, name in (("agent", "node"), ("collector", "collector"))
            },
        }
        for name, value in found.items():
            self.samples.setdefault(name, []).append(value)
        shown = [f"{found['hours'] * 60:7.1f} {jobs:7} {found['batches']:8.0f}"]
        shown += [
            f"{found[f'{name} memory']:7.1f} {found[f'{name} descriptors']:4.0f} {found[f'{name} threads']:3.0f}"
            for name in ("agent", "collector", "web")
        ]
        shown += [f"{found[f'{name} size']:8.2f}" for name in ("spool", "journal", "HDF5", "archive")]
        shown.append(f"{found['agent log'] + found['collector log']:5.0f} {self._cpu():6.1f}")
        return " ".join(shown)

    def _lines(self, name: str) -> int:
        return (self._folder / f"{name}.log").read_bytes().count(b"\n")

    def _cpu(self) -> float:
        """Return the CPU time of both daemons since the sample before, in percent of a core."""
        hours = self.samples["hours"][-2:]
        used = sum(
            self.samples[f"{name} CPU"][-1] - self.samples[f"{name} CPU"][0 if len(hours) < 2 else -2]
            for name in ("agent", "collector")
        )
        return 100 * used / max(3600 * (hours[-1] - hours[0]), 1e-9) if len(hours) > 1 else 0.0

    def stop(self) -> list[str]:
        """End both daemons as an operator does; return what is wrong."""
        wrong = []
        for name, process in (("colmet-node", self.agent), ("colmet-collector", self.collector)):
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            if status:
                wrong.append(f"{name} ended with status {status}")
        return wrong

    def stored(self, jobs: int) -> list[str]:
        """Return what is wrong with the stored rows; print what was stored."""
        store = ArchiveStore(str(next(self._folder.glob("*.archive.sqlite"))))
        with contextlib.closing(store):
            ((archived,),) = store.database.execute("SELECT count(DISTINCT job) FROM jobs").fetchall()
        files = sorted(map(str, self._folder.glob("rows.*.hdf5")))
        command = [sys.executable, "-m", "colmet.commands.colmet", "completeness", *files]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        print(f"jobs: {jobs} begun, {archived} in the archive\n{done.stdout}{done.stderr}", end="")
        wrong = [] if done.returncode == 0 else [f"colmet completeness: status {done.returncode}"]
        # a job that ends before the agent looks at its cgroup is never seen
        return wrong if archived >= 0.99 * jobs else [*wrong, f"only {archived} of {jobs} jobs are in the archive"]

    def logs(self) -> str:
        """Return the last lines of both logs."""
        found = []
        for name in ("node", "collector"):
            found += (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:]
        return "\n".join(line[:240] for line in found)


def run(options: argparse.Namespace, folder: Path, database: int) -> list[str]:
    """Soak; return what is wrong."""
    heads = [f"{'minute':>7} {'jobs':>7} {'batches':>8}"]
    heads += [f"{name:>7} {'fd':>4} {'thr':>3}" for name in ("agentMB", "coll.MB", "web MB")]
    heads += [f"{name:>8}" for name in ("spoolMB", "journal", "HDF5", "archive")] + ["lines    CPU%"]
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(job_root())
        soak = Soak(options, folder, root, database)
        stack.callback(soak.stop)
        churn = Churn(root, folder, options.jobs_per_second, options.steady, random.Random(options.seed))
        began = time.monotonic()
        until, sample_at = began + options.hours * 3600, began + options.every
        pause_at = began + options.pause_every
        resume_at = float("inf")
        print(" ".join(heads), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while (now := time.monotonic()) < until:
                soak.check()
                churn.step()
                if now >= resume_at:
                    soak.collector.send_signal(signal.SIGCONT)
                    resume_at = float("inf")
                elif now >= pause_at:
                    soak.collector.send_signal(signal.SIGSTOP)
                    pause_at, resume_at = now + options.pause_every, now + PAUSE_S
                if now >= sample_at:
                    sample_at += options.every
                    print(soak.sample(churn.begun), flush=True)
                time.sleep(STEP_S)
        root.close()
        time.sleep(3 * options.period)  # the last rows of the jobs
        stack.pop_all()
        wrong = soak.stop()
    are_flat, lines = table(FIGURES, soak.samples)
    ran = duration(3600 * soak.samples["hours"][-1])
    print(f"\n{ran}, {churn.begun} jobs, {soak.samples['batches'][-1]:.0f} batches\n" + "\n".join(lines), flush=True)
    wrong += [] if are_flat else ["not all figures are flat"]
    wrong += soak.stored(churn.begun)
    if wrong:
        print(soak.logs())
    return wrong


def main() -> int:
    """Soak; 0 where all is flat and stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0, help="how long (default: %(default)g)")
    parser.add_argument("--jobs-per-second", type=float, default=1.5, help="that begin (default: %(default)g)")
    parser.add_argument("--steady", type=int, default=3, help="jobs that run all the time (default: %(default)s)")
    parser.add_argument("--period", type=float, default=5.0, help="of the agent, in seconds (default: %(default)g)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between samples (default: %(default)g)")
    parser.add_argument("--pause-every", type=float, default=1200.0, help="seconds between two stops of the collector")
    parser.add_argument("--rotate", default="20m", help="--hdf5-rotate of the collector (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with discarding_server() as port, tempfile.TemporaryDirectory(prefix="colmet-soak-") as name:
        wrong = run(options, Path(name), port)
    print("verdict: " + ("; ".join(wrong) if wrong else "flat, and every job is stored"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
