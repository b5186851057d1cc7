"""What the tests against real batch systems share: the bed, Colmet beside it, and a watcher that is not Colmet."""

from __future__ import annotations

import contextlib
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.daemons import Daemon
from tests.support.place import cannot_run
from tests.support.waiting import free_port

HERE = Path(__file__).parent
PACKAGING = HERE.parents[1] / "packaging"
CANNOT = 77  # a bed's exit status where the machine cannot have it


def burn(seconds):
    """A command that computes for a number of seconds of CPU time; perl, since both batch systems bring it."""
    return f"perl -e '1 while (times)[0] + (times)[1] < {seconds}'"


class Bed:
    """A batch system, brought up and taken down by the script of its name."""

    def __init__(self, name, **environment):
        self._script = str(HERE / f"{name}.sh")
        self.directory = Path(tempfile.mkdtemp(prefix=f"colmet-{name}-"))
        self._environment = {**os.environ, **environment, "BED": str(self.directory)}

    def _run(self, *arguments, timeout=180):
        command = [self._script, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    def _must(self, *arguments):
        status, out, said = self._run(*arguments)
        assert status == 0, said
        return out

    def up(self, tell):
        """Bring it up; what it says goes to `tell` as it comes, since there may be packages to install."""
        said = []
        with subprocess.Popen(
            [self._script, "up"], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                for line in process.stderr:
                    tell(line.rstrip())
                    said.append(line)
            finally:
                process.wait()  # interrupted, it cleans up
        if process.returncode == CANNOT:
            cannot_run(said[-1].strip())
        assert process.returncode == 0, "".join(said)

    def submit(self, *arguments):
        """Submit a command, the last argument, with the batch system's own options; the jobs' ids."""
        return [int(line) for line in self._must("submit", *arguments).splitlines()]

    def delete(self, job):
        self._must("delete", str(job))

    def get(self, path):
        """Ask the batch system's REST API for something: the status, the type and the text of its answer."""
        with tempfile.NamedTemporaryFile() as file:
            status, form = self._must("get", path, file.name).split(maxsplit=1)
            return int(status), form, file.read()

    def inside(self, *command, **environment):
        """What a command prints in the bed's namespaces, as root."""
        namespace = (self.directory / "ns.pid").read_text().strip()
        command = ["nsenter", "--target", namespace, "--net", "--mount", "--", *command]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self, job):
        return self._must("state", str(job))

    def wait(self, job):
        """Wait for the job's end; the state that it ended in."""
        return self._must("wait", str(job))

    def logs(self):
        return self._run("logs")[1]

    def down(self):
        said = self._run("down")[2]
        shutil.rmtree(self.directory, ignore_errors=True)
        return said


class Seen:
    """What the watcher knows of a job.

    Attributes:
        read: time of the last reading of its accounts; `gone`: of the first look that did not find it.
        cpu: CPU time by the kernel's account, in seconds, of each of its cgroups.
        memory: the kernel's record of the most memory, in bytes, of each of them.
    """

    def __init__(self):
        self.appeared = self.read = time.time()
        self.gone = None
        self.cpu = {}
        self.memory = {}

    @property
    def unseen_s(self):
        """The most CPU time that it can have used after the last reading: all CPUs until it was found gone."""
        return ((self.gone or self.read) - self.read) * os.cpu_count()

    @property
    def cpu_s(self):
        """CPU time on all nodes; None where no cgroup counts it."""
        return sum(list(self.cpu.values())) if self.cpu else None

    @property
    def memory_peak(self):
        """The sum of the peaks on all nodes; None where no cgroup counts it."""
        return sum(list(self.memory.values())) if self.memory else None


class Watcher:
    """Looks for job cgroups fifty times a second, or as often as is asked for, with nothing of Colmet's.

    Args:
        patterns: where they are, but for the `_<job id>` that their names end in; one, or several by spaces.
        controller: whose they are; those of cpuacct and memory, where there are any, have the kernel's accounts.
        pause_s: between two looks.
    """

    def __init__(self, patterns, controller, pause_s=0.02):
        self.jobs = {}
        self._patterns = [f"{pattern}_[0-9]*" for pattern in patterns.split()]
        self._controller = controller
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def cpu_s(self, job):
        """CPU time of a job so far; 0 before its cgroups are there."""
        return (self.jobs[job].cpu_s if job in self.jobs else None) or 0.0

    def _watch(self):
        while not self._stop.wait(self._pause_s):
            found = set()
            for path in [path for pattern in self._patterns for path in glob.glob(pattern)]:
                job = int(path.rpartition("_")[2])
                found.add(job)
                seen = self.jobs.setdefault(job, Seen())
                with contextlib.suppress(OSError):
                    before = time.time()
                    seen.cpu[path] = int(self._read(path, "cpuacct", "cpuacct.usage")) / 1e9
                    seen.read = before
                with contextlib.suppress(OSError):
                    seen.memory[path] = int(self._read(path, "memory", "memory.max_usage_in_bytes"))
            for job, seen in self.jobs.items():
                if job not in found and seen.gone is None:
                    seen.gone = time.time()

    def _read(self, path, controller, name):
        return Path(path.replace(f"/{self._controller}/", f"/{controller}/", 1), name).read_text()

    def close(self):
        self._stop.set()
        self._thread.join()


def unit_arguments(name, directory, options, **settings):
    """What systemd starts a daemon with: by its unit, and by the configuration of the packages.

    Args:
        name: of the unit.
        directory: for the configuration.
        options: what an administrator has in /etc/default.
        settings: what an administrator has changed in the configuration.
    """
    (line,) = re.findall(r"^ExecStart=(.*)$", (PACKAGING / f"systemd/{name}.service").read_text(), re.M)
    program, *arguments = line.split()
    assert program == f"/usr/bin/{name}"
    file = name.rpartition("-")[2] + ".toml"
    text = (PACKAGING / "etc" / file).read_text()
    for setting, value in settings.items():
        key = setting.replace("_", "-")
        text, count = re.subn(f"^#?{key} = .*$", f'{key} = "{value}"', text, flags=re.M)
        assert count == 1, f"{file} has no {key}"
    (directory / file).write_text(text)
    assert arguments == ["--config", f"/etc/colmet/{file}", "$OPTIONS"]
    return ["--config", str(directory / file), *options]


class Colmet:
    """The agent and the collector, as they are delivered; what they logged and what was stored.

    Args:
        directory: for what they keep.
        hdf5: where the collector writes to, the beginning of a path.
        node_options: of the agent.
        collector_options: of the collector, besides those of its output.
        settings: of the collector's configuration, by name; see `unit_arguments`.
        environment: of the collector, besides this process's.
        nodes: a command for each agent, which becomes the agent on its node; one agent on this machine by default.

    Attributes:
        configuration: of the collector, its file.
        node: the first agent.
    """

    def __init__(
        self, directory, hdf5, *node_options, collector_options=(), settings=None, environment=None, nodes=((),)
    ):
        uri = f"tcp://127.0.0.1:{free_port()}"
        output = ("--enable-stdout-backend", "--stdout-format", "json", "--buffer-size", "1", "-s", "0.1")
        output += tuple(collector_options)
        settings = {"zeromq_bind_uri": uri, "hdf5_filepath": hdf5, **(settings or {})}
        arguments = unit_arguments("colmet-collector", directory, output, **settings)
        self.configuration = directory / "collector.toml"
        environment = {**os.environ, **(environment or {})}
        self.collector = Daemon("colmet.collector.main", directory / "collector.log", *arguments, env=environment)
        self._lines = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(self.collector.process.stdout))
        self._reader.start()
        self.collector.said("listening")
        self.nodes = []
        for number, within in enumerate(nodes):
            own = number or ""
            options = ["--state-dir", str(directory / f"state{own}"), "--spool-dir", "", *node_options]
            if number:
                options += ["--control-socket", str(directory / f"node{own}.sock")]
            arguments = unit_arguments("colmet-node", directory, options, zeromq_uri=uri)
            log = directory / f"node{own}.log"
            self.nodes.append(Daemon("colmet.node.main", log, *arguments, within=within))
        self.node = self.nodes[0]
        for node in self.nodes:
            node.said("backend on backend=taskstats")

    def when(self, event, job):
        """When the agent logged that a job started or ended, in seconds since 1970; None where it has not."""
        line = re.search(rf"^(\S+ \S+) .* job {event} job={job}\b", self.node.log.read_text(), re.M)
        if line is None:
            return None
        return datetime.datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()

    def rows(self, job):
        rows = [json.loads(line) for line in list(self._lines)]
        return [row for row in rows if row["job_id"] == job and row["metric_backend"] == "taskstats_default"]

    def cpu_s(self, job):
        """CPU time in the job's last row; 0 where it has none."""
        rows = self.rows(job)
        return rows[-1]["cpu_run_virtual_total"] / 1e9 if rows else 0.0

    def close(self):
        """End both as an operator does; their exit statuses."""
        daemons = (*self.nodes, self.collector)
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.process.wait(timeout=20)
            daemon.process.kill()
        self._reader.join(timeout=20)
        for daemon in daemons:
            daemon.process.stdout.close()
        return [daemon.process.wait(timeout=20) for daemon in daemons]


def eventually(condition, timeout_s=60):
    """Wait until the condition holds; whether it came to."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Site:
    """A batch system, the watcher and Colmet, together."""

    def __init__(self, bed, watcher, colmet):
        self.bed, self.watcher, self.colmet = bed, watcher, colmet

    def seen(self, job):
        """What the watcher saw of the job, as soon as it saw anything."""
        assert eventually(lambda: job in self.watcher.jobs), f"job {job} got no cgroup; {self.bed.logs()}"
        return self.watcher.jobs[job]

    def at_end(self, job, at_least_s=0.0):
        """Wait until the job has ended and has a row of so much CPU time, or ought to; what the watcher saw of it."""
        seen = self.seen(job)
        assert eventually(lambda: seen.gone is not None, 120), f"job {job} does not end; {self.bed.logs()}"
        assert eventually(lambda: self.colmet.when("ended", job), 6), self.colmet.node.log.read_text()
        enough = max(at_least_s, 0.9 * (seen.cpu_s or 0))
        eventually(lambda: self.colmet.rows(job) and self.colmet.cpu_s(job) >= enough, 2)  # it may be on its way
        return seen

    def report(self):
        """What was measured: one line a job."""
        for job, seen in sorted(self.watcher.jobs.items()):
            found = self.colmet.when("started", job)
            delay = f"found after {(found - seen.appeared) * 1000:.0f} ms" if found else "not found"
            ended = f"{seen.gone - seen.appeared:.1f} s" if seen.gone else "unknown"
            kernel = "unknown" if seen.cpu_s is None else f"{seen.cpu_s:.2f} s"
            yield (
                f"job {job}: {delay}, lived {ended}, {len(self.colmet.rows(job))} rows, "
                f"CPU time {self.colmet.cpu_s(job):.2f} s of {kernel}"
            )


@contextlib.contextmanager
def running(request, directory, bed, patterns, controller, *node_options, pause_s=0.02, **options):
    """Bring all of it up, and take it down again. The terminal shows what happens.

    Args:
        request: of pytest.
        directory: for what Colmet keeps.
        bed: the batch system.
        patterns, controller, pause_s: for the watcher.
        node_options: of the agents.
        options: further ones of `Colmet`.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text):
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    failed_before = request.session.testsfailed
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: tell(bed.down()))
        tell("")  # ends the line that pytest has begun
        bed.up(tell)
        watcher = Watcher(patterns, controller, pause_s)
        stack.callback(watcher.close)
        (bed.directory / "hdf5").mkdir()
        colmet = Colmet(directory, bed.directory / "hdf5/colmet", *node_options, **options)
        stack.callback(colmet.close)
        site = Site(bed, watcher, colmet)
        yield site
        tell("\n" + "\n".join(site.report()))
        if request.session.testsfailed > failed_before:
            for daemon in (*colmet.nodes, colmet.collector):
                tell(f"---- {daemon.log}\n{daemon.log.read_text()}")
            tell(bed.logs())


def assert_found_at_once(site, job):
    """The agent logged the job within a second of its cgroup's appearance, and one more for a machine that is busy."""
    found = site.colmet.when("started", job)
    assert found is not None, f"job {job} was not found; {site.colmet.node.log.read_text()}"
    assert found - site.seen(job).appeared < 2.0


def assert_whole(site, job, cpu_s):
    """The job has rows, and the last one holds all of the CPU time that it is known to have used."""
    assert site.colmet.rows(job), f"job {job} has no row; {site.colmet.node.log.read_text()}"
    assert 0.9 * cpu_s - 0.02 <= site.colmet.cpu_s(job) <= 1.1 * cpu_s + 0.1
