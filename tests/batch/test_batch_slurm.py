"""Slurm's queues and jobs, of what its commands printed; beside the real Slurm: tests/beds/test_slurm.py."""

from __future__ import annotations

import time

import pytest

from colmet.batch import slurm
from colmet.batch.answers import FormError
from colmet.batch.model import BatchError, BatchJob, Queue
from colmet.batch.slurm import Slurm, count_of, elapsed_s, size_mb, state_of, tasks_of, text_entry, tres
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "slurm"
NOW = 1795346250  # when squeue-22.05.txt was recorded


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(slurm.PARTITIONS, RECORDED / "sinfo.txt")
    commands.answers(slurm.TEXT, RECORDED / "squeue-22.05.txt")
    given = {"2": "cpu=2,mem=100M,node=1", "4_1": "cpu=1,mem=1G", "4_2": "cpu=1,mem=1G"}
    commands.answers(slurm.GIVEN, "".join(f"{job:<64}{what:<255}\n" for job, what in given.items()))
    return commands


def test_partitions_are_counted_as_squeue_lists_them(commands):
    """By hand: array 4 has 8 tasks that wait, array 7 has 5 that are held, array 10 has 30, for two partitions."""
    waits_in_bed = 8 + len(["5", "6", "12+0", "12+1", "14", "15"])
    held_in_bed = 5 + 30 + len(["3", "1 is suspended"])
    system = Slurm()
    assert system.queues() == [
        Queue("bed", idle=waits_in_bed, running=3, held=held_in_bed, cores=4, memory_mb=100 + 2 * 1024),
        Queue("quiet", idle=0, running=0, held=30, cores=0, memory_mb=0),
        Queue("hidden", idle=1, running=0, held=0, cores=0, memory_mb=0),
    ]
    assert system.left_out == 0


def test_memory_that_slurm_does_not_hand_out_is_unknown(commands):
    commands.answers(slurm.GIVEN, status=1, said="no")
    assert Slurm().queues()[0].memory_mb is None


def test_jobs_are_reported_with_the_tasks_of_arrays_one_by_one(commands):
    jobs = {job.id: job for job in Slurm().jobs()}
    assert len(jobs) == 3 + 1 + 1 + 6 + 1 + 8 + 5 + 30
    assert jobs["2"] == BatchJob("2", "colmet-slurm", "running", NOW - 1795345906, "bed")
    assert jobs["1"] == BatchJob("1", "colmet-slurm", "held", 340, "bed"), "suspended: it has run until then"
    assert jobs["4_2"].state == "running" and jobs["4_3"].state == jobs["4_10"].state == "idle"
    assert jobs["7_9"] == BatchJob("7_9", "root", "held", 0, "bed")
    assert jobs["10_59"].queue == "quiet,bed"
    assert jobs["12+1"].state == "idle"


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("PENDING", "Resources", "idle"),
        ("PENDING", "JobHeldAdmin", "held"),
        ("PENDING", "JobHoldMaxRequeue", "held"),
        ("PENDING", "launch failed requeued held", "held"),
        ("REQUEUE_HOLD", "", "held"),
        ("COMPLETING", "", "running"),
        ("SUSPENDED", "", "held"),
        ("FAILED", "", "finished"),
        ("CANCELLED", "", "removed"),
        ("SOMETHING_NEW", "", "unknown"),
    ],
)
def test_states_are_those_of_all_batch_systems(state, reason, expected):
    assert state_of(state, reason) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [("7", 1), ("0-9", 10), ("3-10%2", 8), ("1-59:2", 30), ("1,4-5,9,13-14%3", 6), ("0-999999999", 10**9)],
)
def test_the_tasks_of_an_array_are_counted(text, count):
    assert sum(map(len, tasks_of(text))) == count


@pytest.mark.parametrize("text", ["", "1-", "a", "5-3", "1-3:0", "1,4-5,9,1...", "1,,2", "1" * 30, "-1", "١"])
def test_a_list_of_tasks_that_is_cut_or_wrong_is_refused(text):
    with pytest.raises(FormError):
        tasks_of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100M", 100),
        ("4G", 4096),
        ("62.50G", 64000),
        ("1T", 1 << 20),
        ("24105", 24105),
        ("512K", 0),
        ("2048K", 2),
        ("0", 0),
        ("", None),
        (None, None),
        ("4Gc", None),
        ("x", None),
        ("9" * 40, None),
    ],
)
def test_sizes_are_read_in_mib(text, expected):
    assert size_mb(text) == expected


def test_counts_may_be_in_units_of_1024():
    assert [count_of(text) for text in ("64", "2K", "1.5K", "", None, "x", "1.5")] == [64, 2048, 1536] + [None] * 4


@pytest.mark.parametrize(
    ("text", "expected"), [("0:00", 0), ("5:44", 344), ("1:02:03", 3723), ("2-01:02:03", 176523), ("INVALID", 0)]
)
def test_times_are_read(text, expected):
    assert elapsed_s(text) == expected


def test_resources_are_read():
    assert tres("cpu=2,mem=4G,gres/gpu:a100=1") == {"cpu": "2", "mem": "4G", "gres/gpu:a100": "1"}
    assert tres(None) == {}


# -- what fails --


@pytest.mark.parametrize(
    "line", ["", "1|2", "1|bed|al|RUNNING|None|x|2", "|bed|al|RUNNING|None|0:01|2", "1|bed||RUNNING|None|0:01|2"]
)
def test_a_line_in_another_form_is_refused(line):
    with pytest.raises(FormError):
        text_entry(line)


def test_a_job_in_a_form_that_is_not_known_is_left_out_and_counted(commands):
    lines = (RECORDED / "squeue-22.05.txt").read_text() + "99|bed|al|RUNNING|None|soon|2\nnonsense\n"
    commands.answers(slurm.TEXT, lines)
    system = Slurm()
    assert system.queues()[0].running == 3 and system.left_out == 2


def test_an_answer_without_any_known_line_is_an_error_that_shows_it(commands):
    commands.answers(slurm.TEXT, "what is this?\n")
    with pytest.raises(BatchError, match=r"squeue --all.*what is this"):
        Slurm().jobs()


@pytest.mark.parametrize("answer", [None, {"status": 1, "said": "Unable to contact slurm controller"}])
def test_no_controller_or_command_is_not_taken_for_no_jobs(tmp_path, monkeypatch, answer):
    commands = Commands(tmp_path / "bin", monkeypatch)
    if answer is not None:
        commands.answers(slurm.TEXT, **answer)
    with pytest.raises(BatchError, match=r"Unable to contact.*run it by hand|no such program.*where the commands of"):
        Slurm().jobs()


def test_no_job_at_all_is_no_error(commands):
    commands.answers(slurm.TEXT, "")
    commands.answers(slurm.GIVEN, "")
    assert [queue[1:] for queue in Slurm().queues()] == [(0, 0, 0, 0, 0)] * 3


def test_without_sinfo_partitions_with_jobs_are_listed_all_the_same(commands):
    commands.answers(slurm.PARTITIONS, status=1, said="no")
    assert {queue.name for queue in Slurm().queues()} == {"bed", "quiet", "hidden"}


def test_a_very_long_array_is_counted_whole_and_listed_in_part(commands):
    commands.answers(slurm.TEXT, "8_[0-999999]|bed|al|PENDING|Priority|0:00|1\n")
    system = Slurm()
    assert system.queues()[0].idle == 1_000_000
    assert len(system.jobs()) == slurm.MAX_LISTED
    assert system.left_out == 1_000_000 - slurm.MAX_LISTED


# -- ended --


def ended_command(within_s=360):
    return [*slurm.ENDED, f"--starttime=now-{within_s}"]


def test_ended_jobs_are_read_as_sacct_prints_them(commands, monkeypatch):
    commands.answers(ended_command(14), RECORDED / "sacct-22.05.txt")
    monkeypatch.setattr(time, "time", lambda: 1795347626.0)
    assert Slurm().ended(14) == [
        BatchJob("1", "colmet-sacct", "finished", 3, "bed"),
        BatchJob("5", "colmet-sacct", "finished", 4, "bed"),
        BatchJob("3_1", "colmet-sacct", "finished", 2, "bed"),
        BatchJob("3_2", "colmet-sacct", "finished", 2, "bed"),
    ]


def test_ended_jobs_in_other_forms_are_left_out_and_counted(commands):
    lines = [f"41|alice|61|main|{NOW - 10}", f"42_7|bob|5|main|{NOW - 360}", f"43|carol|9|main|{NOW - 361}"]
    commands.answers(ended_command(), "\n".join([*lines, "44+1|dora|3|big|Unknown", "something else"]) + "\n")
    system = Slurm()
    assert system.ended(360) == [
        BatchJob("41", "alice", "finished", 61, "main"),
        BatchJob("42_7", "bob", "finished", 5, "main"),
        BatchJob("44+1", "dora", "finished", 3, "big"),
    ]
    assert system.left_out == 1


@pytest.mark.parametrize("answer", [None, {"status": 1, "said": "Slurm accounting storage is disabled"}, {}])
def test_without_accounts_or_ended_jobs_there_are_none(commands, answer):
    if answer is not None:
        commands.answers(ended_command(), **answer)
    assert Slurm().ended(360) == []


def test_accounts_that_do_not_answer_are_an_error(commands):
    commands.answers(ended_command(), status=1, said="sacct: error: slurm_persist_conn_open: Connection refused")
    with pytest.raises(BatchError, match="Connection refused"):
        Slurm().ended(360)
