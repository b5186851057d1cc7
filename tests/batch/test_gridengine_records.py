"""Records of Grid Engine's jobs, from its accounts and what qstat printed; beside a real cell: tests/beds."""

from __future__ import annotations

import os
import time

import pytest

from colmet.batch import gridengine
from colmet.batch.answers import BatchError, FormError
from colmet.batch.gridengine import GridEngineRecords, account, accounts_path
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "gridengine"
# By id: state, exit code, signal
ENDS = {
    "1": ("done", 0, None),
    "2": ("failed", 3, None),
    "3": ("failed", None, 11),
    "4": ("cancelled", None, 9),  # kill -9 of itself: the accounts are those of qdel
    "5": ("timeout", None, 9),  # h_rt
    "6": ("timeout", None, 10),  # s_rt
    "7": ("cancelled", None, 9),  # qdel
    **dict.fromkeys(("8.2", "8.4", "8.6", "9", "11", "13"), ("done", 0, None)),
    "10": ("timeout", None, 9),  # h_cpu
    "12": ("cancelled", None, 9),
    "14": ("failed", 100, None),
    "15": ("cancelled", 99, None),  # the job asked to be run again, some times
}


def lines():
    return [line for line in (RECORDED / "accounting").read_text().splitlines() if line[0] != "#"]


def ends(records):
    return {one.batch_id: (one.state, one.exit_code, one.exit_signal) for one in records}


def line(number, ended=2000, **fields):
    """A line of the accounts, by the number of a field."""
    words = lines()[1].split(":")
    words[5], words[8], words[9], words[10] = str(number), str(ended - 20), str(ended - 10), str(ended)
    for place, value in fields.items():
        words[int(place[1:])] = str(value)
    return ":".join(words) + "\n"


def test_states_exit_codes_and_requests_are_those_of_the_accounts():
    records = [account(one) for one in lines()]
    assert ends(records) == ENDS and len(records) == 28
    of = {one.batch_id: one for one in records}
    assert of["1"][:6] == (1, "gridengine", "1", "done", 1795646479, 1795646480)
    assert (of["1"].requested_walltime_s, of["1"].requested_memory, of["1"].queue) == (600, 100 << 20, "main.q")
    assert (of["9"].allocated_cores, of["8.4"].array, of["8.4"].array_index) == (18, "8", 4)
    assert (of["1"].owner, of["1"].name, of["1"].project, of["1"].batch_hosts) == ("colmet-sge", "done1", None, "node2")
    assert of["5"].reason == "failed 37: limit enforced by the master"


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        *[({"f11": 0, "f12": 0}, "done"), ({"f11": 0, "f12": 1}, "failed"), ({"f11": 28, "f12": 0}, "failed")],
        *[({"f11": code, "f12": 0}, "node_failed") for code in (8, 21)],
        ({"f11": 100, "f12": 137, "f42": 3e8}, "out_of_memory"),  # more than h_vmem
        *[({"f11": 37, "f12": 137}, "timeout"), ({"f11": 100, "f12": 137, "f39": "-l h_rt=0:0:10"}, "timeout")],
        *[({"f11": 100, "f12": 137, "f39": "-l h_rt=11"}, "cancelled"), ({"f11": 100, "f12": 139}, "failed")],
        ({"f11": 255, "f12": 0}, "failed"),
    ],
)
def test_the_cause_of_an_end_is_in_two_codes_and_the_limits(fields, state):
    record = account(line(7, **fields).rstrip())
    assert record.state == state


def test_times_of_univa_are_milliseconds_and_requests_may_have_colons():
    record = account(
        line(7, f8=1795646479123, f9=1795646480123, f10=1795646490123, f39="-l h_rt=1:0:0,gpu=2 -P x").rstrip()
    )
    assert (record.submitted, record.started, record.ended) == (1795646479, 1795646480, 1795646490)
    assert (record.requested_walltime_s, record.requested_gpus) == (3600, 2)


def test_parts_of_a_parallel_job_and_tasks_that_did_not_start_have_no_record():
    assert account(line(7, f41="1.node2").rstrip()) is None
    assert account(line(7, f9=0, f11=1).rstrip()) is None


def test_only_new_lines_are_read_also_across_a_rotation(tmp_path):
    path = tmp_path / "accounting"
    path.write_text("# Version: 8.1.9\n" + "".join(line(n, 10_000 + n) for n in range(3)))
    source = GridEngineRecords(str(path))

    def numbers(since):
        return [one.job for one in source.ended(since, 0)]

    assert numbers(10_000) == [0, 1, 2]
    assert numbers(10_000) == [0, 1, 2], "they were not saved"
    with path.open("a") as file:
        file.write(line(3) + line(4)[:50])
    assert numbers(10_001) == [3], "and they were; half a line is not read"
    with path.open("a") as file:
        file.write(line(4)[50:] + line(5))
    path.rename(tmp_path / "accounting.0")
    assert numbers(10_002) == [4, 5], "the rest of the former file first"
    assert numbers(10_003) == [], "there is no new file before the next job ends"
    path.write_text(line(6))
    assert numbers(10_004) == [6]
    path.write_text("")  # emptied where it is
    with path.open("a") as file:
        file.write(line(7))
    os.truncate(path, len(line(7)) - 10)
    assert numbers(10_005) == [], "half a line"
    with path.open("a") as file:
        file.write(line(7)[-10:])
    assert numbers(10_006) == [7]
    assert source.skipped == 0
    source.close()


def test_hostile_lines_are_skipped_and_counted(tmp_path):
    path = tmp_path / "accounting"
    hostile = [":" * 44, "x" * 70_000, ":" * 100_000, "\0" * 50, "é\xff:" * 45, line("x").rstrip()]
    path.write_bytes(
        b"".join(line(n).encode() + hostile[n % len(hostile)].encode("latin-1") + b"\n" for n in range(30))
    )
    source = GridEngineRecords(str(path))
    assert [one.job for one in source.ended(0, 0)] == list(range(30))
    assert source.skipped == 30
    source.close()


def test_accounts_that_cannot_be_read_are_an_error_with_the_remedy(tmp_path):
    source = GridEngineRecords(str(tmp_path / "none"))
    with pytest.raises(BatchError, match=r"No such file.*gridengine=PATH names the file `accounting`"):
        source.ended(0, 0)
    os.mkfifo(tmp_path / "pipe")
    source = GridEngineRecords(str(tmp_path / "pipe"))
    with pytest.raises(BatchError, match="is no regular file"):
        source.ended(0, 0)
    assert accounts_path({"SGE_ROOT": "/ge"}) == "/ge/default/common/accounting"


@pytest.fixture
def utc(monkeypatch):
    """Qstat prints local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_running_tasks_are_those_of_qstat(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    source = GridEngineRecords(str(tmp_path / "accounting"))
    assert source.running() == [], "without qstat"
    commands.answers(gridengine.RUNNING_JOBS, RECORDED / "qstat-r.xml")
    running = {one.job: one for one in source.running()}
    assert set(running) == {12, 15}
    assert running[12].started == 1795646481, "as the accounts had it later"
    assert (running[12].requested_memory, running[12].batch_hosts) == (100 << 20, "node2")
    commands.answers(gridengine.RUNNING_JOBS, "error: commlib error: got select error\n")
    with pytest.raises(BatchError):
        source.running()


@pytest.mark.parametrize("word", ["", "-1", "x", "\x1b[31m", "9" * 40, "a" * 9999, "NONE", "1e400", "nan"])
def test_no_word_is_worse_than_a_skipped_line(word):
    for place in range(45):
        try:
            record = account(line(7, **{f"f{place}": word}).rstrip())
        except FormError:
            continue
        assert record is None or all(not isinstance(value, str) or value.isprintable() for value in record), place
