"""Three hundred runs of a real Slurm with accounts: each is one summary, with its own user, state and efficiency.

`make test-slow` or, as root, `pytest tests/beds/test_archive_slurm_runs.py`; some minutes.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from colmet.batch import slurm
from colmet.batch.slurm import state_of
from colmet.jobs.archive.store import SUFFIX
from tests.beds.archived import Archive
from tests.beds.bed import Bed, burn, eventually, running
from tests.beds.programs import Interface, run
from tests.beds.test_archive_slurm import NODES, ON_NODE
from tests.support.batch_commands import scripts_of
from tests.support.waiting import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]
OTHER_USER = "nobody"  # besides the bed's own
SEPARATORS = [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "|", ":", "\t", " "]
FORGED = (
    "1|1|1|N/A|mallory|acct|bed|1|2|3|RUNNING|1|5:00|vm|None|mine",
    "1|1|mallory|acct|bed|1|2|3|FAILED|3:0|5|cpu=1|cpu=1|n1|mine",
)
ACCOUNTED = ("JobIDRaw", "JobID", "User", "Start", "End", "State", "AllocTRES", "ReqTRES")
COLUMNS = ("job", "start", "started", "user", "state", "cpus", "allocated_cores", "requested_cores", "core_s", "cpu_s")
COLUMNS += ("cpu_ratio", "memory_used_ratio", "allocated_memory", "batch_id", "name")
OVER_S = 900  # for all jobs, on a busy machine


def accounts(bed):
    """The runs that sacct prints, by number and start; the fullest of several records of one."""
    question = ("sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", "--noheader")
    out = bed.inside(*question, f"--format={','.join(ACCOUNTED)}", **environment(bed))
    runs = {}
    for line in out.splitlines():
        row = dict(zip(ACCOUNTED, line.split("|")))
        if row["Start"].isdigit():
            key = int(row["JobIDRaw"]), int(row["Start"])
            if key not in runs or row["AllocTRES"]:
                runs[key] = row
    return runs


def environment(bed):
    return {"SLURM_CONF": str(bed.directory / "slurm.conf"), "SLURM_TIME_FORMAT": "%s"}


def is_over(bed):
    left = bed.inside("squeue", "--noheader", "--all", **environment(bed))
    runs = accounts(bed)
    return not left.strip() and all(row["End"].isdigit() for row in runs.values())


def submit_as(bed, user, *arguments):
    command = ("runuser", "-u", user, "--", "sbatch", "--parsable", "-D", "/", "-o", "/dev/null")
    return int(bed.inside(*command, *arguments, **environment(bed)).split(";")[0])


def submit_all(bed):
    """Submit all jobs; return the one to requeue and those to cancel."""
    bed.submit("--array=1-100", "sleep 1")
    submit_as(bed, OTHER_USER, "--array=1-200", "--wrap", "sleep 1; exit $((SLURM_ARRAY_TASK_ID % 50 == 0))")
    for _ in range(2):
        bed.submit("--exclusive", "--ntasks=1", f"{burn(3)}; sleep 3")
        bed.submit("--mem=0", f"{burn(3)}; sleep 3")
        bed.submit(f"{burn(1)}; exit 3")
    for separator in SEPARATORS:
        for forged in FORGED:
            bed.submit(f"--job-name=x{separator}{forged}{separator}y", "sleep 1")
    submit_as(bed, OTHER_USER, "--ntasks=1", ":", "--ntasks=1", "--wrap", "sleep 8")
    (again,) = bed.submit("--requeue", "sleep 20")
    return again, [bed.submit("sleep 300")[0] for _ in range(2)]


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """All runs have ended, and are in the archive."""
    directory = tmp_path_factory.mktemp("archive-slurm-runs")
    bed, port = Bed("slurm", GATHER="cgroup", ACCOUNTS="yes"), free_port()
    path = scripts_of(bed, ("squeue", "sacct"), directory / "bin", SLURM_CONF=str(bed.directory / "slurm.conf"))
    options = ("--http-listen", str(port), "--http-open", "--archive-batch", "slurm", "-s", "0.2")
    nodes = [("unshare", "--uts", "--mount", "sh", "-ec", ON_NODE, "sh", *pair) for pair in (NODES, NODES[::-1])]
    with running(
        *(request, directory, bed, "/sys/fs/cgroup/freezer/slurm*/uid_*/job", "freezer"), pause_s=0.5, nodes=nodes,
        collector_options=options, environment={"PATH": path},
    ) as site:  # fmt: skip
        interface = Interface(port)
        assert eventually(interface.is_there)
        site.archive = Archive(f"{bed.directory}/hdf5/colmet.archive.sqlite", interface)
        site.interface = interface
        again, unwanted = submit_all(bed)
        assert eventually(lambda: bed.state(again) == "RUNNING", OVER_S)
        bed.inside("scontrol", "requeue", str(again), **environment(bed))
        # Slurm lets it wait for two minutes
        bed.inside("scontrol", "update", f"JobId={again}", "StartTime=now", **environment(bed))
        for job in unwanted:
            assert eventually(lambda job=job: bed.state(job) == "RUNNING", OVER_S)
            bed.delete(job)
        assert eventually(lambda: is_over(bed), OVER_S), bed.logs()
        site.runs = accounts(bed)
        wanted = site.runs.keys()
        assert eventually(lambda: settled(site) >= wanted, 120), (wanted - settled(site), bed.logs())
        site.rows = listed(site)
        print(f"\n{len(site.runs)} runs, {len(site.rows)} summaries, of {len({job for job, _ in site.runs})} jobs")
        yield site


def settled(site):
    rows = site.archive.rows()
    return {(row["job"], row["started"]) for row in rows if row["ended"] is not None and not row["is_running"]}


def listed(site):
    options = ("--all-users", "--limit", "9999", "--columns", ",".join(COLUMNS), "--json")
    out, said = run("colmet.commands.colmet", "jobs", *options, "--archive", str(site.archive.path))
    assert said == ""
    return json.loads(out)["jobs"]


def test_each_run_is_one_summary_with_its_own_user_state_and_cores(site):
    assert len(site.runs) > 300
    of_batch = [row for row in site.rows if row["started"] is not None]
    assert sorted((row["job"], row["started"]) for row in of_batch) == sorted(site.runs)
    # the bed's first job ran before there was any agent
    assert len(of_batch) == len(site.rows), [row for row in site.rows if row["started"] is None]
    for row in site.rows:
        account = site.runs[row["job"], row["started"]]
        given = dict(part.split("=") for part in account["AllocTRES"].split(","))
        asked = dict(part.split("=") for part in account["ReqTRES"].split(","))
        assert (row["user"], row["state"], row["batch_id"]) == (
            *(account["User"], state_of(account["State"])[0]),
            account["JobID"],
        )
        assert (row["allocated_cores"], row["requested_cores"]) == (int(given["cpu"]), int(asked["cpu"])), account
        assert row["cpus"] in (None, int(given["cpu"])), row


def test_arrays_requeues_and_exclusive_jobs_are_what_they_were(site):
    states = Counter((row["user"], row["state"]) for row in site.rows)
    assert states[OTHER_USER, "failed"] == 4 and states["colmet-slurm", "failed"] == 2
    assert states["colmet-slurm", "cancelled"] == 3, "two that were cancelled, and the first run of the requeued one"
    exclusive = [row for row in site.rows if row["requested_cores"] == 1 and row["allocated_cores"] == 2]
    assert len(exclusive) == 2
    assert all(row["cpu_ratio"] is not None and row["cpu_ratio"] <= 0.5 for row in exclusive)


def test_efficiency_is_the_same_in_jobs_report_page_and_usage(site):
    hdf5 = str(site.archive.path).removesuffix(SUFFIX)
    numbers = sorted({str(row["job"]) for row in site.rows})
    many, said = run("colmet.commands.colmet", "report", *numbers, "--hdf5", hdf5, "--json")
    assert said == ""
    in_report = {(row["job"], row["start"]): row for row in json.loads(many)["jobs"]}
    items = site.interface.ask(f"/api/v1/archive/jobs?columns={','.join(COLUMNS)}&limit=1000")["items"]
    on_page = {(row["job"], row["start"]): row for row in items}
    assert set(in_report) <= set(on_page) and len(on_page) == len(site.rows)
    sums = defaultdict(lambda: [0, 0.0, 0.0])
    for row in site.rows:
        key = row["job"], row["start"]
        for name in ("cpu_ratio", "cpus"):
            assert on_page[key][name] == pytest.approx(row[name])
            assert key not in in_report or in_report[key][name] == pytest.approx(row[name])
        assert row["cpu_ratio"] is None or 0 <= row["cpu_ratio"] <= 1
        of = sums[row["user"]]
        of[0] += 1
        of[1] += row["cpu_s"] or 0
        of[2] += row["core_s"] or 0
    out, _ = run(
        *("colmet.commands.colmet", "usage", "--by", "user", "--all-users", "--since", "1d", "--json"),
        *("--archive", str(site.archive.path)),
    )
    for group in json.loads(out)["groups"]:
        jobs, cpu_s, core_s = sums.pop(group["user"])
        hours = group["used_core_hours"], group["core_hours"]
        assert group["jobs"] == jobs and hours == (pytest.approx(cpu_s / 3600), pytest.approx(core_s / 3600))
    assert not sums


def test_a_report_of_rows_has_the_efficiency_of_the_list(site):
    longest = [row for row in site.rows if row["cpu_ratio"] is not None and row["cpu_s"] > 1][:10]
    assert longest
    for row in longest:
        report = site.interface.ask(f"/api/v1/jobs/{row['job']}/report?start={row['start']}")
        (use,) = [one for one in report["uses"] if one["what"] == "cores"]
        assert use["held"] == pytest.approx(row["cpus"])
        assert use["ratio"] == pytest.approx(row["cpu_ratio"], abs=0.05), report["source"]


def test_no_text_of_a_user_was_a_record(site):
    assert {row["user"] for row in site.rows} <= {"colmet-slurm", OTHER_USER, "root"}
    names = [row["name"] for row in site.rows if row["name"] and "mallory" in row["name"]]
    assert len(names) == len(SEPARATORS) * len(FORGED)
    log = site.colmet.collector.log.read_text()
    assert "are skipped" not in log and "neither counts" not in log and "not joined" not in log


def test_coordinators_of_an_account_and_of_its_parent_are_read(site):
    for words in (
        "add account optics parent=physics",
        f"add user {OTHER_USER} account=optics",
        f"add coordinator accounts=optics names={OTHER_USER}",
        "add coordinator accounts=physics names=colmet-slurm",
    ):
        site.bed.inside("sacctmgr", "--immediate", *words.split(), **environment(site.bed))
    text = site.bed.inside(*slurm.COORDINATORS, **environment(site.bed))
    assert slurm.parse_coordinators(text) == {
        "optics": frozenset({OTHER_USER, "colmet-slurm"}),
        "physics": frozenset({"colmet-slurm"}),
    }, text
