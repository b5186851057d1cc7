"""Thirty jobs on two nodes of a real OAR, as the job archive has them. `make test-beds` runs this."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.beds.archived import Archive, Jobs, Kind, assert_as_measured, holds, settle
from tests.beds.bed import Bed, burn, eventually, running
from tests.beds.programs import Interface
from tests.support.batch_commands import scripts_of
from tests.support.waiting import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]
NODES = ["localhost", "node2"]
# Has an agent have the name of a node, and be in its mount namespace, which node2 has of its own.
ON_FIRST = ("unshare", "--uts", "sh", "-ec", 'hostname localhost; exec "$@"', "sh")
ON_SECOND = """target=$(cat "$1"/node2.pid)
shift
exec nsenter --target "$target" --mount -- unshare --uts sh -ec 'hostname node2; exec "$@"' sh "$@"
"""
MEMORY_MB = 100  # of each core
TWO = ("-l", "/network_address=2/resource_id=1,walltime=0:5:0")
OF_BOTH = f'for node in $(uniq $OAR_NODEFILE); do oarsh $node "{burn(1)}" & done; wait'


def cores(count, walltime="0:5:0"):
    """The options that request a number of hosts and cores."""
    return ("-l", f"/network_address=1/resource_id={count},walltime={walltime}")


ONE = cores(1)
# OAR needs half a minute to end a job at its walltime, and long to begin one on two nodes: first of all.
FIRST = [Kind("walltime", f"{burn(1)}; sleep 300", cores(1, "0:0:15"), "timeout")] * 2
BULK = [
    Kind("two nodes", OF_BOTH, TWO),
    Kind("two nodes", f"{OF_BOTH}; sleep 4; exit 9", TWO, "failed"),
    Kind("two nodes", f"{holds(30, 1)}; {OF_BOTH}", TWO),
    Kind("two nodes", f"{burn(1)}; sleep 6", TWO),
    *[Kind("done", burn(2), ONE)] * 3,
    Kind("done", f"{holds(30, 6)}; {burn(1)}", ONE),
    Kind("done", f"for i in 1 2 3 4; do {burn(0.3)}; done; sleep 4", cores(2)),
    *[Kind("shorter than a period", "true", ONE)] * 2,
    Kind("shorter than a period", "exit 2", ONE, "failed"),
    *[Kind("shorter than a period", burn(1), ONE)] * 2,
    Kind("failed", f"{burn(1)}; exit 3", ONE, "failed"),
    Kind("failed", f"{burn(1)}; sleep 5; exit 77", ONE, "failed"),
    Kind("failed", f"{burn(1)}; kill -SEGV $$", ONE, "failed"),
    *[Kind("killed", f"{burn(1)}; sleep 300", ONE, "cancelled", deleted=True)] * 2,
    Kind("killed", f"{holds(30, 1)}; {burn(1)}; sleep 300", ONE, "cancelled", deleted=True),
    # OAR knows nothing of it but the exit code
    *[Kind("out of memory", f"{burn(1)}; {holds(90, 1)}; sleep 1; exit 9", ONE, "failed")] * 3,
    Kind("array", f"{burn(1)}; exit $((OAR_ARRAY_INDEX / 5))", (*ONE, "--array", "5"), (*["done"] * 4, "failed")),
]
ACCOUNTED = ("job_id", "state", "exit_code", "submission_time", "start_time", "stop_time", "job_user", "queue_name")
JOBS = f"""SELECT {", ".join(f"j.{name}" for name in ACCOUNTED)}, array_id, array_index, project,
    (SELECT string_agg(DISTINCT type, ' ') FROM event_logs AS e WHERE e.job_id = j.job_id),
    (SELECT string_agg(DISTINCT network_address, ',' ORDER BY network_address) FROM resources AS r
        JOIN assigned_resources AS a ON a.resource_id = r.resource_id WHERE a.moldable_job_id = j.assigned_moldable_job)
    FROM jobs AS j"""
MORE = ("array_id", "array_index", "project", "events", "hosts")


def accounts(bed):
    """What OAR's database has of each job, by its id."""
    out = bed.inside("psql", "-h", "127.0.0.1", "-U", "postgres", "-At", "-c", JOBS, "oar")
    rows = [dict(zip((*ACCOUNTED, *MORE), line.split("|"))) for line in out.splitlines()]
    return {row["job_id"]: row for row in rows}


def over(bed, jobs):
    found = accounts(bed)
    return all(found[job]["state"] in ("Terminated", "Error") for job in jobs)


def state_of(account):
    """The state of a job in the archive's words, from OAR's state, its events, and the status that it ended with."""
    events = account["events"].split()
    if account["state"] == "Error":
        return "timeout" if "WALLTIME" in events else "cancelled" if "FRAG_JOB_REQUEST" in events else "lost"
    return "done" if account["exit_code"] == "0" else "failed"


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """All jobs have ended, and are in the archive."""
    directory = tmp_path_factory.mktemp("archive-oar")
    bed, port = Bed("oar", PYTHON=sys.executable, MEMORY=str(MEMORY_MB), RESOURCES="12", TWO_NODES="yes"), free_port()
    path = scripts_of(bed, ("oarstat",), directory / "bin")
    options = ("--http-listen", str(port), "--http-open", "--archive-batch", "oar", "-s", "0.2")
    nodes = [ON_FIRST, ("sh", "-ec", ON_SECOND, "sh", str(bed.directory))]
    groups = "/sys/fs/cgroup/cpuset/oar/* /sys/fs/cgroup/cpuset/colmet-node2/oar/*"
    with running(
        *(request, directory, bed, groups, "cpuset"),
        pause_s=0.005, collector_options=options, environment={"PATH": path}, nodes=nodes,
    ) as site:  # fmt: skip
        interface = Interface(port)
        assert eventually(interface.is_there)
        site.archive = Archive(f"{bed.directory}/hdf5/colmet.archive.sqlite", interface)
        site.jobs = Jobs(bed)
        for kind in [*FIRST, *BULK]:
            site.jobs.submit(kind)
        for job in site.jobs.to_delete:
            assert eventually(lambda job=job: site.watcher.cpu_s(job) >= 1, 240), bed.logs()
            bed.delete(job)
        assert eventually(lambda: over(bed, site.jobs.kinds), 240), accounts(bed)
        site.accounts = accounts(bed)
        settle(site.archive, list(map(int, site.jobs.kinds)), site)
        yield site


def test_thirty_jobs_of_each_kind_have_ended_as_they_were_to(site):
    """Else the other tests would prove nothing: what OAR itself has, and how often."""
    assert len(site.jobs.kinds) == 30
    states = {job: state_of(site.accounts[job]) for job in site.jobs.kinds}
    assert states == site.jobs.states
    assert Counter(states.values()) == {"done": 16, "failed": 9, "cancelled": 3, "timeout": 2}


def test_each_job_has_one_summary(site):
    assert site.archive.summaries().keys() == set(map(int, site.jobs.kinds))


def test_state_and_exit_code_are_those_that_oar_has(site):
    found = site.archive.summaries()
    for job in site.jobs.kinds:
        one, account = found[int(job)], site.accounts[job]
        assert (one["system"], one["batch_id"], one["state"]) == ("oar", job, site.jobs.states[job])
        status = int(account["exit_code"]) if account["exit_code"] else None
        code, signal = (
            (None, None) if status is None else (status >> 8, None) if not status & 127 else (None, status & 127)
        )
        assert (one["exit_code"], one["exit_signal"]) == (code, signal), account
        assert [one[name] for name in ("submitted", "started", "ended")] == [
            int(account[name]) for name in ("submission_time", "start_time", "stop_time")
        ]
        assert (one["owner"], one["project"], one["queue"]) == ("colmet-oar", "default", "default")
        assert one["batch_hosts"] == account["hosts"]
        is_array = site.jobs.kinds[job].name == "array"
        assert (one["array"], one["array_index"]) == (
            (account["array_id"], int(account["array_index"])) if is_array else (None, None)
        )


def test_cpu_time_and_memory_are_those_of_the_cgroups(site):
    found = site.archive.summaries()
    for job, kind in site.jobs.kinds.items():
        assert_as_measured(kind, site.watcher.jobs[int(job)], found[int(job)])


def test_a_job_on_two_nodes_is_one_job(site):
    found = site.archive.summaries()
    for job, kind in site.jobs.kinds.items():
        hosts = [row["host"] for row in site.archive.hosts(int(job))]
        assert hosts == site.accounts[job]["hosts"].split(",")
        assert hosts == NODES or kind.name != "two nodes"
        assert found[int(job)]["hosts"] == len(hosts)


def test_limits_and_kills_are_known(site):
    found = site.archive.summaries()
    for job, kind in site.jobs.kinds.items():
        one = found[int(job)]
        assert one["requested_walltime_s"] == (15 if kind.name == "walltime" else 300)
        if kind.name == "out of memory":
            assert one["memory_ratio"] == pytest.approx(1, abs=0.02)
            assert one["oom_kills"] == 1
        else:
            assert one["oom_kills"] == 0


def test_the_list_is_the_same_from_everywhere(site):
    listed = site.archive.listed()
    assert len(listed["SQLite"]) == 30
    for where, rows in listed.items():
        assert rows == listed["SQLite"], where


def test_nothing_was_lost_and_all_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (*site.colmet.nodes, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
