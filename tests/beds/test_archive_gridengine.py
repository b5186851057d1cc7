"""Jobs of a real Grid Engine cell with two hosts, as the job archive has them. `make test-beds` runs this.

Grid Engine gives its jobs no cgroups, so Colmet's agent does not measure them: all is from the accounts.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.beds.archived import Archive, Kind
from tests.beds.bed import Bed, burn, eventually
from tests.beds.programs import serving

pytestmark = pytest.mark.live
KINDS = [
    Kind("done", f"{burn(0.5)}", ("-N", "done", "-l", "h_vmem=1G", "-l", "h_rt=0:10:0")),
    Kind("failed", "exit 3", ("-N", "failed"), "failed"),
    Kind("own signal", "kill -SEGV $$", ("-N", "signal"), "failed"),
    Kind("killed", "sleep 300", ("-N", "killed"), "cancelled", deleted=True),
    Kind("walltime", "sleep 300", ("-N", "walltime", "-l", "h_rt=0:0:3"), "timeout"),
    Kind("array", "exit $((SGE_TASK_ID / 3))", ("-N", "array", "-t", "1-3"), ("done", "done", "failed")),
    Kind("two hosts", "sleep 1", ("-N", "two", "-pe", "spread", "4")),
]
FIELD = re.compile(r"^(\w+) +(.*?) *$", re.M)


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """All jobs have ended, and are in the archive.

    Attributes of the bed:
        kinds: of each job, its kind, by the id that the archive has.
        states: of each, the state that the archive is to have.
        accounts: of each, what qacct prints.
    """
    bed = Bed("sge")
    directory = tmp_path_factory.mktemp("archive-sge")
    path = directory / "archive.sqlite"
    accounting = bed.directory / "cell/default/common/accounting"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(bed.directory / "bin"), prepend=os.pathsep)
        try:
            bed.up(print)
            bed.kinds, bed.states = {}, {}
            for kind in KINDS:
                (job,) = bed.submit(*kind.options, kind.command)
                names = (
                    [str(job)] if isinstance(kind.state, str) else [f"{job}.{n + 1}" for n in range(len(kind.state))]
                )
                states = [kind.state] if isinstance(kind.state, str) else kind.state
                bed.kinds.update(dict.fromkeys(names, kind))
                bed.states.update(zip(names, states))
                if kind.deleted:
                    assert eventually(lambda job=job: bed.state(job) == "r"), bed.logs()
                    bed.delete(job)
            for job in {name.partition(".")[0] for name in bed.kinds}:
                bed.wait(job)
            assert eventually(lambda: len(accounts(bed)) == len(bed.kinds)), accounts(bed)
            bed.accounts = accounts(bed)
            options = ("--archive", str(path), "--archive-batch", f"gridengine={accounting}")
            with serving(directory / "log", *options, "-s", "0.2") as interface:
                bed.archive = Archive(path, interface)
                assert eventually(lambda: len(bed.archive.rows()) == len(bed.kinds)), interface.log.read_text()
                yield bed
        finally:
            print(bed.down())


def accounts(bed):
    """What qacct prints of each job, or task of an array."""
    found = {}
    for job in {name.partition(".")[0] for name in bed.kinds}:
        done = subprocess.run(
            [bed.directory / "bin/qacct", "-j", job], capture_output=True, text=True, timeout=30, check=False
        )
        for part in done.stdout.split("=" * 62)[1:] if done.returncode == 0 else ():
            fields = dict(FIELD.findall(part))
            task = fields["taskid"]
            found[job if task == "undefined" else f"{job}.{task}"] = fields
    return found


def test_each_job_has_one_summary_with_the_state_that_it_ended_in(cell):
    rows = {row["batch_id"]: row for row in cell.archive.rows()}
    assert {job: row["state"] for job, row in rows.items()} == cell.states
    assert all(row["system"] == "gridengine" and row["cpu_s"] is None for row in rows.values())


def test_exit_codes_and_all_else_are_those_that_qacct_prints(cell):
    for row in cell.archive.rows():
        account = cell.accounts[row["batch_id"]]
        status, failed = int(account["exit_status"].split()[0]), account["failed"].split()[0]
        by_signal = failed in ("100", "37") and status > 128
        assert (row["exit_code"], row["exit_signal"]) == ((None, status - 128) if by_signal else (status, None)), (
            account
        )
        assert (row["owner"], row["queue"]) == (account["owner"], account["qname"]) == ("colmet-sge", "main.q")
        assert (row["name"], row["batch_hosts"]) == (account["jobname"], account["hostname"])
        assert row["allocated_cores"] == int(account["slots"])
        assert row["ended"] - row["started"] == pytest.approx(float(account["ru_wallclock"].rstrip("s")), abs=1)


def test_requests_are_known(cell):
    found = {cell.kinds[row["batch_id"]].name: row for row in cell.archive.rows()}
    assert (found["done"]["requested_memory"], found["done"]["requested_walltime_s"]) == (1 << 30, 600)
    assert found["walltime"]["requested_walltime_s"] == 3
    assert found["array"]["requested_walltime_s"] is None


def test_the_list_is_the_same_from_everywhere(cell):
    listed = cell.archive.listed()
    for where, rows in listed.items():
        assert rows == listed["SQLite"], where
