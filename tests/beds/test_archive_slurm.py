"""Thirty jobs on two nodes of a real Slurm with accounts, as the job archive has them. `make test-beds` runs this."""

from __future__ import annotations

import json
import socket
from collections import Counter

import pytest

from colmet.jobs.archive.store import SUFFIX
from tests.beds.archived import Archive, Jobs, Kind, assert_as_measured, holds, settle
from tests.beds.bed import Bed, burn, eventually, running
from tests.beds.programs import Interface, run
from tests.beds.search import Server
from tests.support.batch_commands import scripts_of
from tests.support.waiting import free_port

pytestmark = pytest.mark.live
NODES = [f"{socket.gethostname().partition('.')[0]}-{letter}" for letter in "ab"]
# Has an agent see one of both nodes: its name, and the cgroups of its jobs.
ON_NODE = """hostname "$1"
for tree in /sys/fs/cgroup/*/slurm_"$2"; do mount -t tmpfs tmpfs "$tree"; done
shift 2
exec "$@"
"""
LARGE = ("--mem=400",)
TWO = ("--nodes=2", "--ntasks=2")
OF_BOTH = f'srun --ntasks=2 sh -c "{burn(1)}"'
# Slurm looks for jobs beyond their time limit every 30 s, and the limit is a minute: first of all.
FIRST = [Kind("walltime", f"{burn(1)}; sleep 300", ("--time=1",), "timeout")] * 2
# One after the other.
BRIEF = [
    *[Kind("brief", "true", is_brief=True)] * 2,
    Kind("brief", "exit 2", state="failed", is_brief=True),
    *[Kind("shorter than a period", burn(1))] * 2,
    Kind("shorter than a period", f"{holds(40, 0.1)}; {burn(1)}", LARGE),
]
# The kernel kills a process for its memory, and the script lives on for some periods, so that a tick reads the peak.
BULK = [
    *[Kind("done", burn(2))] * 2,
    Kind("done", f"{holds(40, 6)}; {burn(1)}", LARGE),
    Kind("done", f"for i in 1 2 3 4; do {burn(0.3)}; done; sleep 4"),
    Kind("done", f"srun {burn(1)}; srun {burn(1)}"),
    Kind("failed", f"{burn(1)}; exit 3", state="failed"),
    Kind("failed", f"{burn(1)}; sleep 5; exit 77", state="failed"),
    Kind("failed", f"{burn(1)}; kill -SEGV $$", state="failed"),
    *[Kind("killed", f"{burn(1)}; sleep 300", state="cancelled", deleted=True)] * 2,
    Kind("killed", f"{holds(40, 1)}; {burn(1)}; sleep 300", LARGE, "cancelled", deleted=True),
    *[Kind("out of memory", f"{burn(1)}; {holds(80, 1)}; sleep 5", ("--mem=60",), "out_of_memory")] * 2,
    Kind("out of memory", f"{holds(120, 1)}; sleep 5; {burn(1)}; exit 4", ("--mem=90",), "out_of_memory"),
    Kind("array", f"{burn(1)}; exit $((SLURM_ARRAY_TASK_ID / 5))", ("--array=1-5",), (*["done"] * 4, "failed")),
    Kind("two nodes", OF_BOTH, TWO),
    Kind("two nodes", f"{OF_BOTH}; sleep 4; exit 9", TWO, "failed"),
    Kind("two nodes", f"srun {holds(30, 6)}; {burn(1)}", (*TWO, *LARGE)),
]
ACCOUNTED = ("JobID", "JobIDRaw", "State", "ExitCode", "Account", "Partition", "Submit", "Start", "End", "NodeList")
STATES = {
    "COMPLETED": "done",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "OUT_OF_MEMORY": "out_of_memory",
}


SLURMS_OWN = 125  # no signal: its mark for a lack of memory


def accounts(bed):
    """What sacct prints of each job, by its id."""
    command = ("sacct", "--allusers", "--allocations", "--parsable2", "--noheader", f"--format={','.join(ACCOUNTED)}")
    out = bed.inside(*command, SLURM_CONF=str(bed.directory / "slurm.conf"), SLURM_TIME_FORMAT="%s")
    rows = [dict(zip(ACCOUNTED, line.split("|"))) for line in out.splitlines()]
    return {row["JobID"]: row for row in rows}


def over(bed, jobs):
    found = accounts(bed)
    return all(job in found and found[job]["State"].partition(" ")[0] in STATES for job in jobs)


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """All jobs have ended, and are in the archive."""
    directory = tmp_path_factory.mktemp("archive-slurm")
    bed, port = Bed("slurm", GATHER="cgroup", ACCOUNTS="yes"), free_port()
    path = scripts_of(bed, ("squeue", "sacct"), directory / "bin", SLURM_CONF=str(bed.directory / "slurm.conf"))
    options = ("--http-listen", str(port), "--http-open", "--archive-batch", "slurm", "-s", "0.2")
    nodes = [("unshare", "--uts", "--mount", "sh", "-ec", ON_NODE, "sh", *pair) for pair in (NODES, NODES[::-1])]
    groups = "/sys/fs/cgroup/freezer/slurm*/uid_*/job"
    with Server("opensearch") as server, running(
        *(request, directory, bed, groups, "freezer"), pause_s=0.005, nodes=nodes,
        collector_options=options, settings={"elastic_host": server.url}, environment={"PATH": path},
    ) as site:  # fmt: skip
        interface = Interface(port)
        assert eventually(interface.is_there)
        path = f"{bed.directory}/hdf5/colmet.archive.sqlite"
        site.archive = Archive(path, interface, site.colmet.configuration, server)
        site.jobs = Jobs(bed)
        for kind in FIRST:
            site.jobs.submit(kind)
        for kind in BRIEF:
            bed.wait(site.jobs.submit(kind))
        for kind in BULK:
            site.jobs.submit(kind)
        for job in site.jobs.to_delete:
            assert eventually(lambda job=job: job in site.watcher.jobs and (site.watcher.jobs[job].cpu_s or 0) >= 1), (
                bed.logs()
            )
            bed.delete(job)
        assert eventually(lambda: over(bed, site.jobs.kinds), 120), accounts(bed)
        site.accounts = accounts(bed)
        site.numbers = {job: int(site.accounts[job]["JobIDRaw"]) for job in site.jobs.kinds}
        settle(site.archive, site.numbers.values(), site)
        yield site


def test_thirty_jobs_of_each_kind_have_ended_as_they_were_to(site):
    """Else the other tests would prove nothing: what Slurm itself reports, and how often."""
    assert len(site.jobs.kinds) == 30
    states = {job: STATES[site.accounts[job]["State"].partition(" ")[0]] for job in site.jobs.kinds}
    assert states == site.jobs.states
    assert Counter(states.values()) == {"done": 16, "failed": 6, "cancelled": 3, "timeout": 2, "out_of_memory": 3}


def test_each_job_has_one_summary(site):
    found = site.archive.summaries()
    # the first job ran before there was any agent, to make Slurm's cgroups
    assert found.keys() - {1} == set(site.numbers.values())


def test_state_and_exit_code_are_those_that_slurm_reports(site):
    found = site.archive.summaries()
    for job, number in site.numbers.items():
        one, account = found[number], site.accounts[job]
        code, signal = map(int, account["ExitCode"].split(":"))
        ended_by = (None, signal) if signal else (code, None)
        if signal == SLURMS_OWN:
            ended_by = (None, None)
        assert (one["system"], one["batch_id"]) == ("slurm", job)
        assert one["state"] == STATES[account["State"].partition(" ")[0]] == site.jobs.states[job]
        assert (one["exit_code"], one["exit_signal"]) == ended_by, job
        assert [one[name] for name in ("submitted", "started", "ended")] == [
            int(account[name]) for name in ("Submit", "Start", "End")
        ]
        assert (one["owner"], one["project"], one["queue"]) == ("colmet-slurm", "physics", "bed")
        assert one["batch_hosts"] == account["NodeList"]
        array, _, place = job.partition("_")
        assert (one["array"], one["array_index"]) == ((array, int(place)) if place else (None, None))


def test_cpu_time_and_memory_are_those_of_the_cgroups(site):
    found = site.archive.summaries()
    for job, number in site.numbers.items():
        kind, seen = site.jobs.kinds[job], site.watcher.jobs.get(number)
        assert seen is not None or kind.is_brief
        if seen is not None:
            assert_as_measured(kind, seen, found[number])


def test_a_job_on_two_nodes_is_one_job(site):
    found = site.archive.summaries()
    for job, kind in site.jobs.kinds.items():
        number = site.numbers[job]
        hosts = [row["host"] for row in site.archive.hosts(number)]
        on = NODES if kind.name == "two nodes" else [site.accounts[job]["NodeList"]]
        assert hosts == on or (kind.is_brief and not hosts)
        assert found[number]["hosts"] == (len(hosts) or None)


def test_limits_and_kills_are_known(site):
    found = site.archive.summaries()
    for job, kind in site.jobs.kinds.items():
        one = found[site.numbers[job]]
        assert one["requested_walltime_s"] == (60 if kind.name == "walltime" else 600)
        asked = int(dict(option.split("=") for option in kind.options).get("--mem", 100)) << 20
        assert one["requested_memory"] == asked * (2 if kind.name == "two nodes" else 1)
        if kind.name == "out of memory":
            assert one["memory_ratio"] == pytest.approx(1, abs=0.02)
            assert one["oom_kills"] == 1


# Words of the report on the end of the jobs of a kind; of others that failed: the code.
ENDINGS = {
    "walltime": "Walltime reached: the batch system ended it at its walltime of 1 min 0 s.",
    "killed": "Cancelled by",
    "out of memory": "Out of memory: ",
    "SEGV": "ended by signal SIGSEGV (11",
}


def reported(site, *arguments):
    """What `colmet report` prints of the rows and the archive of the collector."""
    options = ("--hdf5", str(site.archive.path).removesuffix(SUFFIX), "--json")
    out, said = run("colmet.commands.colmet", "report", *arguments, *options)
    assert said == ""
    return json.loads(out)


def test_a_report_has_why_a_job_ended_and_what_it_had_requested(site):
    one_of_each = {(kind, site.jobs.states[job]): job for job, kind in site.jobs.kinds.items() if not kind.is_brief}
    for (kind, state), job in one_of_each.items():
        found = reported(site, job if "_" in job else str(site.numbers[job]))
        assert (found["job"], found["source"]) == (site.numbers[job], "rows")
        text = ENDINGS.get("SEGV" if "SEGV" in kind.command else kind.name)
        if text is None:
            code = site.accounts[job]["ExitCode"].partition(":")[0]
            text = f"Failed with exit code {code}" if state == "failed" else "Done: exit code 0."
        assert text in found["ending"]["text"] and found["ending"]["kind"] == state, (kind, found["ending"])
        uses = {one["what"]: one for one in found["uses"]}
        assert uses["memory"]["requested"] == found["batch"]["requested_memory_bytes"]
        assert (uses["memory"]["grade"] == "exceeded") == (kind.name == "out of memory")
        assert (uses["walltime"]["grade"] == "exceeded") == (kind.name == "walltime")


def test_a_report_of_an_array_has_each_task(site):
    tasks = [job for job in site.jobs.kinds if "_" in job]
    found = reported(site, "--array", tasks[0].partition("_")[0])
    assert sorted(row["batch_id"] for row in found["jobs"]) == sorted(tasks)
    assert found["states"] == {"done": 4, "failed": 1}
    every = reported(site, *map(str, site.numbers.values()))
    assert every["total"] == 30 and Counter(every["states"]) == Counter(site.jobs.states.values())


def test_the_list_is_the_same_from_everywhere(site):
    assert eventually(lambda: len(site.archive.listed()["database"]) == 31)
    listed = site.archive.listed()
    assert len(listed) == 5
    for where, rows in listed.items():
        assert rows == listed["SQLite"], where


def test_nothing_was_lost_and_all_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (*site.colmet.nodes, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
