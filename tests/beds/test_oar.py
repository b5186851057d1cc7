"""Colmet on a node of a real OAR, with the options it is delivered with, and behind OAR's REST API.

`make test-beds` runs this.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tables

from colmet.batch.oar import OAR
from tests.beds.bed import Bed, assert_found_at_once, assert_whole, burn, eventually, running
from tests.beds.browsers import browser_of
from tests.beds.programs import Interface, cpus_of, documents
from tests.support.batch_commands import commands_of
from tests.support.waiting import free_port

pytestmark = pytest.mark.live
# what the API asks for by default
METRICS = ("ac_etime", "cpu_run_real_total", "coremem", "read_bytes", "write_bytes")
COMPUTES_THEN_SLEEPS = f"{burn(2)}; sleep 60"


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """The agent is there before the first job, and so before OAR has made any cgroup."""
    directory = tmp_path_factory.mktemp("oar")
    bed, began, port = Bed("oar", PYTHON=sys.executable), time.time(), free_port()
    asked = directory / "collector.sock"
    options = ("--http-listen", str(port), "--http-open", "--control-socket", str(asked))
    groups = "/sys/fs/cgroup/cpuset/oar/*"
    with running(request, directory, bed, groups, "cpuset", collector_options=options) as site:
        site.began, site.interface, site.control_socket = began, Interface(port), asked
        assert eventually(site.interface.is_there)
        # where jobs may write
        site.marks = site.bed.directory / "marks"
        site.marks.mkdir()
        site.marks.chmod(0o1777)
        # beside all the others, since OAR needs half a minute to end a job at its walltime
        (site.late,) = site.bed.submit("-l", "/resource_id=1,walltime=0:0:10", COMPUTES_THEN_SLEEPS)
        yield site


def assert_measured(site, job):
    seen = site.at_end(job)
    assert_found_at_once(site, job)
    assert_whole(site, job, seen.cpu_s)
    return seen


def test_the_shortest_job_is_found_and_has_a_row(site):
    """Its cgroup lives for less than two seconds on a machine that is not busy; the period is five."""
    (job,) = site.bed.submit("true")
    assert_measured(site, job)
    assert site.bed.wait(job) == "Terminated"


def test_two_jobs_at_once_are_kept_apart(site):
    (busy,) = site.bed.submit(burn(3))
    (idle,) = site.bed.submit("sleep 6")
    busy_seen, idle_seen = assert_measured(site, busy), assert_measured(site, idle)
    assert idle_seen.appeared + 2 < busy_seen.gone, "they did not run at once"
    assert 2.9 <= site.colmet.cpu_s(busy) < 4
    assert site.colmet.cpu_s(idle) < 1


def test_every_job_of_an_array_is_measured(site):
    """Each computes in processes that end between two samples."""
    jobs = site.bed.submit("--array", "3", f"for i in 1 2 3; do {burn(0.3)}; done")
    assert len(jobs) == 3
    for job in jobs:
        assert_measured(site, job)
        assert 0.9 <= site.colmet.cpu_s(job) < 2


def test_a_job_that_oardel_ends_is_whole(site):
    (job,) = site.bed.submit(f"{burn(2)}; touch {site.marks}/computed; sleep 60")
    assert eventually((site.marks / "computed").exists)
    site.bed.delete(job)
    assert_measured(site, job)
    assert site.bed.wait(job) == "Error"
    assert 1.9 <= site.colmet.cpu_s(job) < 3


def test_a_job_that_its_walltime_ends_is_whole(site):
    seen = assert_measured(site, site.late)
    assert site.bed.wait(site.late) == "Error"
    assert seen.gone - seen.appeared >= 10
    assert 1.9 <= site.colmet.cpu_s(site.late) < 3


# -- memory: as it is delivered, OAR makes no cgroup of memory --

ALLOCATED = 600_000_000


@pytest.fixture(scope="class")
def allocating(site):
    """A job that has allocated 600 MB, as soon as a sample of that is stored; it ends before other tests."""
    code = f"import sys, time; x = b'x' * {ALLOCATED}; open(sys.argv[1], 'w'); time.sleep(600)"
    (job,) = site.bed.submit(f'python3 -S -c "{code}" {site.marks}/allocated')
    try:
        assert eventually((site.marks / "allocated").exists), site.bed.logs()
        assert not list(Path("/sys/fs/cgroup/memory").glob("oar/*"))

        def is_stored():
            # A new table is there before its first rows are.
            with contextlib.suppress(tables.NoSuchNodeError):
                return stored(site, job, "jobprocstats_default")["memory_used"].max(initial=0) >= ALLOCATED
            return False

        assert eventually(is_stored), site.colmet.node.log.read_text()
        yield job
    finally:
        site.bed.delete(job)  # else it holds a resource that other tests need
    site.at_end(job)


def nearly(value):
    """Within 3 %: an interpreter, the job's shell, and what OAR starts beside it are in it, too."""
    assert value == pytest.approx(ALLOCATED, rel=0.03)


def colmet(site, *arguments):
    """What a command prints."""
    command = [sys.executable, "-m", "colmet.commands.colmet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


class TestMemoryThatNoCgroupCounts:
    """The job that `allocating` has, in all that shows it."""

    def test_a_report_has_the_memory_that_no_cgroup_counts(self, site, allocating):
        answer = json.loads(colmet(site, "report", allocating, "--json", "--config", site.colmet.configuration))
        memory = answer["memory"]
        nearly(memory["peak_bytes"])
        nearly(memory["now_bytes"])
        nearly(memory["anon_peak_bytes"])
        assert (memory["source"], memory["note"]) == ("processes", "")
        assert answer["tasks_peak"] >= 2
        text = colmet(site, "report", allocating, "--config", site.colmet.configuration)
        assert "(largest sample, of its processes)" in text

    def test_top_has_the_memory_that_no_cgroup_counts(self, site, allocating):
        answer = json.loads(colmet(site, "top", "collector", "--control-socket", site.control_socket, "--json"))
        (row,) = [row for row in answer["rows"] if row["job"] == allocating]
        nearly(row["memory"])
        assert (row["memory_source"], row["tasks_source"]) == ("processes", "processes")
        assert row["tasks"] >= 2

    def test_plot_has_the_memory_that_no_cgroup_counts(self, site, allocating, tmp_path):
        options = ("--config", site.colmet.configuration, "--json", "--output", tmp_path / "job.svg")
        (memory,) = json.loads(colmet(site, "plot", allocating, "memory", *options))["metrics"]
        (line,) = memory["series"]
        nearly(max(line["values"]))
        assert (line["table"], line["column"]) == ("jobprocstats_default", "memory_used")
        assert "of its processes" in (tmp_path / "job.svg").read_text()

    def test_the_interface_has_the_memory_that_no_cgroup_counts(self, site, allocating):
        answer = site.interface.ask(f"/api/v1/jobs/{allocating}")
        nearly(answer["job"]["memory"])
        assert answer["job"]["memory_source"] == "processes"
        values = site.interface.ask(f"/api/v1/jobs/{allocating}/series?metric=jobprocstats_default.memory_used")[
            "series"
        ]
        nearly(max(value for value in values[0]["values"] if value is not None))

    def test_the_page_draws_the_memory_that_no_cgroup_counts(self, site, allocating, tmp_path):
        with browser_of("chromium", tmp_path) as browser, browser.page() as page:
            page.open(f"http://{site.interface.place}/#/job/{allocating}")
            rows = "document.querySelector('figure[aria-label=\"Memory\"] table.summary tbody')?.textContent"
            page.wait(f"{rows}?.includes('MiB')")
            table = page.run(rows)
        number = float(re.search(r"used, of its processes\s*([\d.]+) MiB", table)[1])
        nearly(number * 2**20)

    def test_doctor_and_once_name_what_makes_oar_count_memory(self, site, allocating):
        """Of the jobs that are there, not of what the kernel has."""
        assert site.seen(allocating).gone is None
        command = [sys.executable, "-m", "colmet.commands.colmet", "doctor", "--node", "--json"]
        file = site.colmet.configuration.with_name("node.toml")
        command += ["--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        (found,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "controllers"]
        assert found["level"] == "warn" and "have no memory, " in found["found"]
        assert "Enable_mem_cg" in found["remedy"]
        command = [sys.executable, "-m", "colmet.node.main", "--once"]
        once = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "Enable_mem_cg" in once.stdout


# -- OAR's REST API --


def extracted(site, job, **asked):
    """What the API answers of a job: the JSON object that its gzip unpacks to."""
    status, form, body = site.bed.get(f"/colmet/job/{job}" + query(asked))
    assert (status, form.partition(";")[0]) == (200, "application/x-gzip"), body
    return json.loads(gzip.decompress(body))


def query(asked):
    return "?" * bool(asked) + "&".join([f"{name}={value}" for name, value in asked.items()])


def refused(site, path):
    """What the API says where it answers with an error."""
    status, _, body = site.bed.get(path)
    assert status == 400
    return body.decode()


def stored(site, job, table="taskstats_default"):
    """The rows of a job in the collector's file, which is the only one, as they are."""
    (path,) = (site.bed.directory / "hdf5").glob("colmet.*.hdf5")
    with tables.open_file(str(path)) as file:
        return file.get_node(f"/job_{job}/{table}").read()


@pytest.fixture(scope="module")
def started(site):
    """The job of `measured`, before those of `queued`. Once it has computed, it uses no CPU time until `let_end`."""
    os.mkfifo(site.marks / "enough")
    (job,) = site.bed.submit(f"{burn(2)}; touch {site.marks}/burnt; read enough <{site.marks}/enough")
    return job


def let_end(site):
    """Have that job end, unless it has."""
    with contextlib.suppress(OSError):  # nobody reads
        file = os.open(site.marks / "enough", os.O_WRONLY | os.O_NONBLOCK)
        os.write(file, b"\n")
        os.close(file)


@pytest.fixture(scope="module")
def queued(site, started):
    """Jobs that run, wait and are held, some of them in an array, on all resources but the one that `measured` has.

    They come to run while the API is asked, since OAR needs ten seconds for that.
    """
    jobs = site.bed.submit("-l", "/resource_id=2", "sleep 300")
    return jobs + site.bed.submit("--hold", "sleep 1") + site.bed.submit("--array", "3", "sleep 301")


@pytest.fixture(scope="module")
def measured(site, started, queued):
    """A job that has computed for two seconds and still runs, and the answer of the API on it."""
    job = started
    site.seen(job)
    assert eventually((site.marks / "burnt").exists), site.bed.logs()
    burnt_s = (site.marks / "burnt").stat().st_mtime
    answers = []

    def is_complete():
        if site.bed.get(f"/colmet/job/{job}")[0] == 200:
            answers[:] = [extracted(site, job)]
        return answers and len(answers[0]["timestamp"]) > 1 and answers[0]["timestamp"][-1] >= burnt_s

    assert eventually(is_complete), site.bed.get(f"/colmet/job/{job}")
    return job, answers[0]


def assert_as_stored(site, job, answer, names=METRICS):
    """Each value is that of the row of its time."""
    assert answer.keys() == {"timestamp", "hostname", *names}
    assert len({len(values) for values in answer.values()}) == 1
    rows = {int(row["timestamp"]): row for row in stored(site, job)}
    assert answer["timestamp"] == sorted(answer["timestamp"])
    for n, time_s in enumerate(answer["timestamp"]):
        assert answer["hostname"][n] == rows[time_s]["hostname"].decode()
        assert {name: answer[name][n] for name in names} == {name: rows[time_s][name] for name in names}


def test_the_api_returns_what_a_running_job_uses(site, measured):
    job, answer = measured
    assert site.watcher.jobs[job].gone is None
    assert_as_stored(site, job, answer)
    # the kernel counts it by clock ticks: a tick in which the job ran in part counts whole
    assert 1.9e9 <= answer["cpu_run_real_total"][-1] <= 1.3e9 * site.watcher.jobs[job].cpu_s
    assert max(answer["coremem"]) > 0


def test_the_api_returns_what_an_ended_job_used(site, measured):
    """Its last row, with its totals, may be measured a second after the end in OAR."""
    job, running = measured
    let_end(site)
    seen = site.at_end(job)
    site.bed.wait(job)
    rows = stored(site, job)
    names = ("cpu_run_virtual_total", "ac_etime")
    answer = extracted(site, job, metrics=",".join(names))
    assert_as_stored(site, job, answer, names)
    assert len(answer["timestamp"]) == len(rows) >= len(running["timestamp"])
    assert answer["cpu_run_virtual_total"][-1] / 1e9 == pytest.approx(seen.cpu_s, rel=0.03, abs=0.02)

    first, *_, last = answer["timestamp"]
    part = extracted(site, job, **{"from": first, "to": last - 1}, metrics=names[0])
    assert part["timestamp"] == answer["timestamp"], "they choose files, as in Colmet 0.6"


def test_a_report_of_the_job_has_the_cpu_time_of_its_cgroup(site, measured):
    """Within 3 %, and a hundredth of a second."""
    job, _ = measured
    seen = site.at_end(job)
    command = [sys.executable, "-m", "colmet.commands.colmet", "report", str(job), "--json"]
    done = subprocess.run(
        [*command, "--config", str(site.colmet.configuration)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cpu"]["used_s"] == pytest.approx(seen.cpu_s, rel=0.03, abs=0.01)


def test_the_api_says_readably_what_it_has_not(site, measured):
    """OAR shows what the program printed, and the status that it ended with, 256 times that."""
    job, _ = measured
    said = refused(site, f"/colmet/job/{job}?metrics=no_such_counter")
    assert "status 1024: " in said and "no_such_counter" in said  # 4: no data
    for wrong in ("--help", "..", "a" * 2000):
        said = refused(site, f"/colmet/job/{job}?metrics={wrong}")
        assert "status 256: " in said and "Traceback" not in said
    assert site.bed.get("/colmet/job/999999")[0] == 404  # OAR itself knows of none


@pytest.mark.parametrize("name", ["from", "to", "metrics"])
@pytest.mark.parametrize("run", [";id", "%3Bid", "$(id)", "%24%28id%29", "`id`", "%60id%60", "|id", "%0Aid", "&id;id"])
def test_what_a_shell_would_obey_does_not_come_to_oar(site, measured, name, run):
    """With what docs/sites/oar.md has for Apache; OAR hands it to a shell."""
    job, _ = measured
    status, _, body = site.bed.get(f"/colmet/job/{job}?{name}=1{run}")
    assert status == 400 and b"uid=" not in body and b"Command was" not in body


def test_commas_may_be_escaped(site, measured):
    job, _ = measured
    assert extracted(site, job, metrics="coremem%2Cread_bytes").keys() == {
        "timestamp",
        "hostname",
        "coremem",
        "read_bytes",
    }


# -- OAR as a batch system: what oarstat lists --


def listed():
    """The letter of the state, and the user, of each job that oarstat lists."""
    done = subprocess.run(["oarstat"], capture_output=True, text=True, timeout=60, check=True)
    return {line.split()[0]: tuple(line.split()[1:3]) for line in done.stdout.splitlines()[2:]}


def states():
    return Counter(state for state, _ in listed().values())


@pytest.fixture
def commands(site, measured, queued, tmp_path, monkeypatch):
    """OAR's commands, once the job of `measured` has given its resource to one of `queued`."""
    commands_of(site.bed, ("oarstat", "oarnotify"), tmp_path / "bin", monkeypatch)
    let_end(site)
    assert site.bed.wait(measured[0]) == "Terminated"
    assert eventually(lambda: states() == {"R": 3, "W": 1, "H": 1}), listed()
    assert listed().keys() == {str(job) for job in queued}


LETTERS = {"running": "R", "idle": "W", "held": "H"}


@pytest.mark.usefixtures("commands")
def test_queues_and_jobs_are_those_that_oarstat_lists(site, measured):
    """Jobs that run, wait and are held, some of them in an array; one that has ended."""
    system, plain = OAR(), listed()
    # oarstat shows the beginning of the user's name
    assert {job.id: (LETTERS[job.state], job.user[:8]) for job in system.jobs()} == plain
    up_s = time.time() - site.began
    assert all(0 <= job.runtime_s <= up_s for job in system.jobs())
    queues = {queue.name: queue for queue in system.queues()}
    assert queues.keys() == {"admin", "default", "besteffort"}
    assert queues["default"][1:] == (1, 3, 1, 2 + 1 + 1, None)
    assert queues["admin"][1:] == (0, 0, 0, 0, None)
    assert system.skipped == 0
    recent = {job.id: job for job in system.ended(round(up_s) + 60)}
    ended = recent[str(measured[0])]
    assert (ended.state, ended.user) == ("finished", "colmet-oar")
    assert 1 <= ended.runtime_s <= up_s
    assert not recent.keys() & plain.keys()


@pytest.mark.usefixtures("commands")
def test_colmet_facility_reports_what_oarstat_lists(measured):
    plain = listed()
    queues, jobs = documents("oar")
    finished = {number: jobs.pop(number) for number in list(jobs) if jobs[number]["state"] == "finished"}
    assert {number: (LETTERS[job["state"]], job["users"][:8]) for number, job in jobs.items()} == plain
    for job in [*jobs.values(), *finished.values()]:
        assert job.keys() == {"users", "Runtime", "state"}
        assert job["Runtime"] == 0 or job["state"] in ("running", "finished")  # 0 within the first second, too
    assert finished[str(measured[0])]["users"] == "colmet-oar" and finished[str(measured[0])]["Runtime"] > 0
    nothing = {"idle": 0, "running": 0, "held": 0, "allocated_cores": 0}
    assert queues == {
        "default": {"idle": 1, "running": 3, "held": 1, "allocated_cores": 2 + 1 + 1},
        "admin": nothing,
        "besteffort": nothing,
    }


def test_colmet_mem_shows_the_jobs_that_run_by_what_their_cgroups_say(site, queued):
    """OAR gives a job CPUs by a cpuset. As it is delivered, it makes no cgroup of memory."""
    host = site.interface.data("qhost")[socket.gethostname()]
    running = {job for job in map(str, queued) if job in host["jobs"]}
    assert len(running) == 3
    cpusets = {job: Path(f"/sys/fs/cgroup/cpuset/oar/colmet-oar_{job}/cpuset.cpus") for job in running}
    for job in running:
        cpus = len(cpus_of(cpusets[job].read_text()))
        on = {"jobcount": cpus, "master": True, "taskid": [], "owner": "colmet-oar", "jobname": "-"}
        assert host["jobs"][job] == on
    (usage,) = json.loads(site.interface.mem("--json", "-d", "-u", "colmet-oar")[0])["hosts"]
    jobs = {job["job"]: job for job in usage["jobs"] if job["job"] in running}
    assert jobs.keys() == running
    # no cgroup of memory, so that what their processes use counts; nothing is reserved
    assert not list(Path("/sys/fs/cgroup/memory").glob("oar/*"))
    assert all(2**20 < job["used"] < 2**27 and job["reserved"] is None for job in jobs.values())


def test_nothing_was_lost_and_both_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (site.colmet.node, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
