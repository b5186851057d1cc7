"""Counts of jobs beside those of `perf stat`, which this installs with apt. `make test-beds` runs it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from colmet.common.host.host import Host
from colmet.node.backends.perfhw import PerfhwBackend
from colmet.node.kernel import clib
from tests.support.perfjobs import EVENTS, hierarchy, worker_jobs
from tests.support.place import cannot_run

pytestmark = pytest.mark.live
NEED = Path(__file__).resolve().parents[2] / "scripts/need.sh"
PERF_NAMES = {name: name.replace("_", "-") for name in EVENTS}


@pytest.fixture(scope="module")
def perf(root_for_all):
    """The command."""
    if shutil.which("perf") is None:
        subprocess.run([NEED, "linux-perf"], check=False)
    try:
        subprocess.run(["perf", "stat", "-e", "page-faults", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as err:
        cannot_run(f"perf (package linux-perf) does not run on this kernel: {err}")
    subprocess.run(["make", "-s", "-C", Path(clib.HERE) / "lib_perf_hw"], check=True)
    return "perf"


@pytest.fixture(scope="module")
def root_for_all():
    if os.geteuid() != 0:
        cannot_run("needs root")


class Stat:
    """`perf stat` of some groups, from when this is made until `counts` is called."""

    def __init__(self, perf, point, groups):
        self._names = [str(group.relative_to(point)) for group in groups]
        command = [perf, "stat", "-a", "-x", ";", "-e", ",".join(PERF_NAMES.values())]
        (control, self._control), (self._answer, answer) = os.pipe(), os.pipe()
        command += ["--for-each-cgroup", ",".join(self._names), "--control", f"fd:{control},{answer}", "-D", "-1"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=(control, answer))
        os.close(control)
        os.close(answer)
        self._tell("enable")

    def _tell(self, what):
        os.write(self._control, f"{what}\n".encode())
        if not os.read(self._answer, 16).startswith(b"ack"):
            pytest.fail(f"perf stat: {self._process.communicate()[1]}")

    def counts(self):
        """Of each group, by the name of the event."""
        self._tell("disable")
        self._process.send_signal(signal.SIGINT)
        said = self._process.communicate(timeout=30)[1]
        os.close(self._control)
        os.close(self._answer)
        found = {name: {} for name in self._names}
        for line in said.splitlines():
            if ";" not in line:
                continue  # "Events enabled"
            value, unit, event, group = line.split(";")[:4]
            found[group][event] = float(value) * (1e6 if unit == "msec" else 1)
        return [{name: found[group][event] for name, event in PERF_NAMES.items()} for group in self._names]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_counts_of_two_jobs_at_once_are_those_of_perf_stat(perf, version):
    with hierarchy(version) as point, worker_jobs(point, 2) as made:
        jobs = [job for job, _ in made]
        backend = PerfhwBackend(Host(), EVENTS)
        backend.open()
        try:
            for work in (("events", "burn"), ("burn", "events"), ("events", "events")):
                stat = Stat(perf, point, [worker.groups[0] for _, worker in made])
                backend.sample(jobs)  # from here on the jobs wait for a word to their workers
                for (_, worker), what in zip(made, work):
                    worker.begin(what)
                for _, worker in made:
                    worker.counted()
                rows = backend.sample(jobs)
                for row, expected, what in zip(rows, stat.counts(), work):
                    for number, event in enumerate(EVENTS, 1):
                        slack = 3e6 if event == "task_clock" else 10
                        assert row.values[f"counter_{number}"] == pytest.approx(expected[event], rel=0.01, abs=slack), (
                            f"job {row.job_id} {what} {event}"
                        )
        finally:
            backend.close()


def test_a_job_that_ends_between_two_samples_has_the_counts_of_perf_stat(perf):
    with hierarchy("v2") as point, worker_jobs(point) as made:
        ((job, worker),) = made
        backend = PerfhwBackend(Host(), EVENTS)
        backend.open()
        try:
            stat = Stat(perf, point, worker.groups)
            backend.notice(job)
            worker.begin("events", 2)
            worker.counted()
            worker.end()
            row, (expected,) = backend.last(job), stat.counts()
            for number, event in enumerate(EVENTS, 1):
                slack = 3e6 if event == "task_clock" else 10
                assert row.values[f"counter_{number}"] == pytest.approx(expected[event], rel=0.01, abs=slack), event
        finally:
            backend.close()
