"""Colmet on a node of a real Slurm, with the options it is delivered with. `make test-beds` runs this."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from colmet.batch.slurm import Slurm
from tests.beds.bed import Bed, assert_found_at_once, assert_whole, burn, eventually, running
from tests.beds.programs import Interface, cpus_of, documents
from tests.support.batch_commands import commands_of
from tests.support.waiting import free_port

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=["none", "cgroup"])
def site(request, tmp_path_factory):
    """Once without Slurm's own accounting, when jobs have no cgroup of cpuacct, and once with it."""
    directory = tmp_path_factory.mktemp(f"slurm-{request.param}")
    bed = Bed("slurm", GATHER=request.param)
    port = free_port()
    groups = "/sys/fs/cgroup/freezer/slurm*/uid_*/job"
    options = ("--http-listen", str(port), "--http-open")
    with running(request, directory, bed, groups, "freezer", collector_options=options) as site:
        site.accounts = request.param == "cgroup"
        site.interface = Interface(port)
        assert eventually(site.interface.is_there)
        # where jobs may write
        site.marks = bed.directory / "marks"
        site.marks.mkdir()
        site.marks.chmod(0o1777)
        yield site


def assert_measured(site, job, at_least_s):
    """Held against the kernel's account where Slurm asks for it, and against what the job computed."""
    seen = site.at_end(job, 0.95 * at_least_s)
    assert_found_at_once(site, job)
    if site.accounts:
        assert_whole(site, job, seen.cpu_s)
    assert site.colmet.rows(job), f"job {job} has no row; {site.colmet.node.log.read_text()}"
    assert 0.95 * at_least_s <= site.colmet.cpu_s(job) < at_least_s + 1
    return seen


def test_a_job_of_a_second_is_found_and_has_a_row(site):
    """The period is five seconds. (The cgroup of `true` is there for 20 ms.)"""
    (job,) = site.bed.submit("sleep 1")
    assert_measured(site, job, 0)
    assert site.bed.wait(job) == "COMPLETED"


def test_two_jobs_at_once_are_kept_apart(site):
    (busy,) = site.bed.submit(burn(3))
    (idle,) = site.bed.submit("sleep 5")
    busy_seen, idle_seen = assert_measured(site, busy, 3), assert_measured(site, idle, 0)
    assert idle_seen.appeared + 2 < busy_seen.gone, "they did not run at once"


def test_the_steps_of_a_job_are_one_job(site):
    """Two steps after one another, with processes that end between two samples, and the script around them."""
    step = f'srun sh -c "for i in 1 2; do {burn(0.3)}; done"'
    (job,) = site.bed.submit(f"{step}; {step}; {burn(0.3)}")
    assert_measured(site, job, 1.5)


def test_a_job_that_scancel_ends_is_whole(site):
    (job,) = site.bed.submit(f"{burn(2)}; touch {site.marks}/computed; sleep 60")
    site.seen(job)
    assert eventually((site.marks / "computed").exists)
    site.bed.delete(job)
    assert_measured(site, job, 2)
    assert site.bed.wait(job) == "CANCELLED"


# -- Slurm as a batch system: what squeue lists, one line for each task of an array --

# the compact states of squeue; SE (special exit) and the like do not occur here
STATES = {"R": "running", "CG": "running", "CF": "running", "PD": "idle", "S": "held"}


def listed():
    """Id, state, user, partition and cores of each job that squeue lists."""
    command = ["squeue", "--array", "--noheader", "--format=%i|%t|%r|%u|%P|%C"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    jobs = {}
    for line in lines:
        job, state, reason, user, partition, cores = line.split("|")
        jobs[job] = ("held" if reason == "JobHeldUser" else STATES[state], user, partition, int(cores))
    return jobs


@pytest.fixture
def queued(site, tmp_path, monkeypatch):
    """Jobs that run, wait, are held and are suspended, some of them in arrays."""
    names = ("squeue", "sinfo", "sacct", "scontrol", "scancel")
    commands_of(site.bed, names, tmp_path / "bin", monkeypatch, SLURM_CONF=str(site.bed.directory / "slurm.conf"))
    jobs = [*site.bed.submit("--mem=10", "sleep 60"), *site.bed.submit("sleep 61")]
    jobs += [*site.bed.submit("--array=1,3-9:2%1", "sleep 62"), *site.bed.submit("--hold", "--array=2-4", "true")]
    jobs += site.bed.submit("--begin=now+1hour", "true")
    wanted = Counter({"running": 3, "idle": 4 + 1, "held": 3})
    assert eventually(lambda: Counter(job[0] for job in listed().values()) == wanted), listed()
    subprocess.run(["scontrol", "suspend", str(jobs[1])], timeout=60, check=True)
    yield jobs
    subprocess.run(["scontrol", "resume", str(jobs[1])], timeout=60, check=True)
    subprocess.run(["scancel", *map(str, jobs)], timeout=60, check=True)
    assert eventually(lambda: not listed())


@pytest.mark.usefixtures("queued")
def test_queues_and_jobs_are_those_that_squeue_lists():
    system, plain = Slurm(), listed()
    assert {job.id: (job.state, job.user, job.queue) for job in system.jobs()} == {
        job: line[:3] for job, line in plain.items()
    }
    counts = Counter(line[0] for line in plain.values())
    assert counts == {"running": 2, "idle": 5, "held": 4}
    (queue,) = system.queues()
    assert (queue.name, queue.idle, queue.running, queue.held) == ("bed", 5, 2, 4)
    assert queue.cores == sum(line[3] for line in plain.values() if line[0] == "running")
    assert all(job.runtime_s == 0 for job in system.jobs() if job.state == "idle")
    assert system.skipped == 0
    assert system.ended(3600) == []  # this Slurm keeps no accounts


@pytest.mark.usefixtures("queued")
def test_colmet_facility_reports_what_squeue_lists():
    plain = listed()
    queues, jobs = documents("slurm")
    assert {job: (document["users"], document["state"]) for job, document in jobs.items()} == {
        job: (user, state) for job, (state, user, _, _) in plain.items()
    }
    for job in jobs.values():
        assert job.keys() == {"users", "Runtime", "state"}
        assert job["state"] != "idle" or job["Runtime"] == 0
    cores = sum(line[3] for line in plain.values() if line[0] == "running")
    (queue,) = queues.values()
    assert list(queues) == ["bed"]
    assert {key: queue[key] for key in ("idle", "running", "held", "allocated_cores")} == {
        **Counter(line[0] for line in plain.values()),
        "allocated_cores": cores,
    }


# -- memory, from what Colmet has measured --

HOLDS = "perl -e '$held = \"x\" x 50000000; sleep 300'"


def test_colmet_mem_shows_a_job_by_what_its_cgroups_say(site):
    """CPUs always; what it reserved and used where it has a cgroup of memory, which Slurm makes for its accounts."""
    (job,) = site.bed.submit("--mem=200", "--ntasks=1", HOLDS)
    assert eventually(lambda: site.interface.success() and str(job) in jobs_listed(site)), site.bed.logs()
    (cpuset,) = Path("/sys/fs/cgroup/cpuset").glob(f"slurm*/uid_*/job_{job}/cpuset.cpus")
    cpus = len(cpus_of(cpuset.read_text()))
    # the owner is a number until this machine has been asked for the name
    on = {"jobcount": cpus, "master": True, "taskid": [], "owner": "colmet-slurm", "jobname": "-"}
    assert eventually(lambda: jobs_listed(site)[str(job)] == on, 20), jobs_listed(site)
    host = site.interface.data("qhost")[socket.gethostname()]
    processors = len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.M))
    total = 1024 * int(re.search(r"^MemTotal:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)[1])
    assert (host["num_proc"], host["mem_total"]) == (str(processors), f"{total / 2**30:.1f}G")

    found = list(Path("/sys/fs/cgroup/memory").glob(f"slurm*/uid_*/job_{job}"))
    assert len(found) == site.accounts
    if site.accounts:
        limit = int((found[0] / "memory.limit_in_bytes").read_text())
        peak = found[0] / "memory.max_usage_in_bytes"
        assert eventually(lambda: (shown_by_mem(site, job)["used"] or 0) > 50e6), shown_by_mem(site, job)
        assert eventually(lambda: shown_by_mem(site, job)["used"] == int(peak.read_text()))
        usage = shown_by_mem(site, job)
    else:  # no cgroup counts it, its processes do
        limit = None
        assert eventually(lambda: (shown_by_mem(site, job)["used"] or 0) > 50e6), shown_by_mem(site, job)
        usage = shown_by_mem(site, job)
    assert (usage["reserved"], usage["slots"]) == (limit, cpus)
    reserved = f"{limit / 2**30:.2f}G" if limit else "-"
    (line,) = [line for line in site.interface.mem("-j", str(job))[0].splitlines() if line.startswith("Master\t")]
    _, number, owner, name, _, _, shown, slots = line.split("\t")
    assert (number, owner, name, shown) == (str(job), "colmet-slurm", "-", reserved)
    assert slots == f"{cpus}/{processors}"
    site.bed.delete(job)


def jobs_listed(site):
    """The jobs of this host in /qhost."""
    return site.interface.data("qhost")[socket.gethostname()]["jobs"]


def shown_by_mem(site, job):
    """What colmet mem prints of a job on its host."""
    (host,) = json.loads(site.interface.mem("--json", "-j", str(job))[0])["hosts"]
    (found,) = host["jobs"]
    return found


def test_nothing_was_lost_and_both_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (site.colmet.node, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
