"""Slurm's queues, jobs and records, of what its commands printed; beside the real Slurm: tests/beds."""

from __future__ import annotations

import re
import time

import pytest

from colmet.batch import slurm
from colmet.batch.answers import BatchError, FormError, expand_hosts, hosts_text
from colmet.batch.answers import text as text_of
from colmet.batch.slurm import (
    Given,
    Slurm,
    SlurmRecords,
    accounted,
    count_of,
    gpus_of,
    listed_job,
    memory_of,
    queue_state_of,
    queued,
    seconds_of,
    state_of,
)
from colmet.batch.systems import BatchJob, Queue
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "slurm"
NOW = 1795346250  # when squeue-22.05.txt was recorded
MEMORY = [*slurm.GIVEN, f"--states={slurm.HOLDING}"]
# By number: state, exit code, signal
ENDS = {
    1: ("done", 0, None),
    2: ("failed", 3, None),
    3: ("failed", None, 11),
    4: ("failed", None, 9),
    5: ("cancelled", 0, None),  # scancel; Slurm says 0:0
    8: ("out_of_memory", None, None),
    **dict.fromkeys((6, 7, 9, 14, 15), ("done", 0, None)),
}


def accounts(name="sacct-ends-22.05.txt"):
    """What was recorded with | as the mark: the last field, the name, may have it. Elapsed times were not asked for."""
    lines = [line.split("|", 14) for line in (RECORDED / name).read_text().splitlines()]
    return [[*words[:11], "7", *words[11:]] for words in lines]


def shown_by_squeue():
    """As `accounts`; array and task were asked for as well."""
    lines = [line.split("|", 15) for line in (RECORDED / "squeue-records-22.05.txt").read_text().splitlines()]
    return [[*words[:2], *words[4:]] for words in lines]


def ends(records):
    return {one.job: (one.state, one.exit_code, one.exit_signal) for one in records if one}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(slurm.PARTITIONS, RECORDED / "sinfo.txt")
    commands.answers(slurm.LISTED, RECORDED / "squeue-22.05.txt")
    given = "2 2 0 cpu=2,mem=100M,node=1\n8 4_1 0 cpu=1,mem=1G\n9 4_2 0 cpu=1,mem=1G\n"
    commands.answers(MEMORY, given)
    return commands


def squeue(commands, over=False):
    states = slurm.HOLDING + (f",{slurm.OVER}" if over else "")
    commands.answers([*slurm.SQUEUE, f"--states={states}"], shown_by_squeue())
    given = re.sub(r"^(\S+)", r"\1 \1", (RECORDED / "squeue-given-22.05.txt").read_text(), flags=re.M)
    commands.answers([*slurm.GIVEN, f"--states={states}"], given)
    commands.answers(slurm.WAITING, RECORDED / "squeue-waiting-22.05.txt")


def test_sacct_gives_states_exit_codes_and_requests():
    records = [one for one in map(accounted, accounts()) if one]
    assert ends(records) == ENDS, "and 11 was cancelled while it waited: it did not run"
    of = {one.job: one for one in records}
    assert of[2].name == "fail|3 x"
    assert (of[1].requested_walltime_s, of[2].requested_walltime_s) == (300, None)
    assert (of[7].allocated_cores, of[7].requested_memory, of[7].batch_hosts) == (2, 200 << 20, "vm-a,vm-b")
    assert [(of[job].batch_id, of[job].array, of[job].array_index) for job in (14, 15, 6)] == [
        ("6_2", "6", 2),
        ("6_4", "6", 4),
        ("6_6", "6", 6),
    ]
    assert (of[5].reason, of[5].owner, of[5].project, of[5].queue) == (
        *("CANCELLED by 999", "colmet-slurm"),
        *("physics", "bed"),
    )
    assert (of[9].submitted, of[9].started, of[9].ended) == (1795646884, 1795646892, 1795646892)


def test_a_run_that_was_requeued_has_ended_and_the_one_that_waits_has_no_record():
    (run,) = [one for one in map(accounted, accounts("sacct-requeued-22.05.txt")) if one]
    assert (run.job, run.state, run.reason, run.ended) == (16, "cancelled", "REQUEUED", 1795646970)


def test_squeue_gives_running_jobs_with_their_requests_and_dependencies(commands):
    squeue(commands)
    sacct(commands, accounts())
    source = SlurmRecords()
    running = [one for one in source.running() if one.state == "running"]
    assert [(one.job, one.allocated_memory, one.requested_walltime_s) for one in sorted(running)] == [
        (10, 100 << 20, 60),
        (12, 50 << 20, 600),
    ]
    ended = source.ended(1000, 2000)
    assert ends(ended) == ENDS
    assert {one.job: one.dependency for one in ended if one.dependency} == {9: "afterany:5"}
    assert source.skipped == 0


def sacct(commands, records="", **answer):
    commands.answers(["sacct", None], records, **answer)


def test_without_accounts_ended_jobs_are_those_that_squeue_shows(commands):
    squeue(commands)
    squeue(commands, over=True)
    sacct(commands, status=1, said="Slurm accounting storage is disabled")
    source = SlurmRecords()
    source.running()
    assert source.ended(1000, 2000) == [] and source.named([1]) == []
    found = {one.job: one for one in source.running()}
    assert ends(one for one in found.values() if one.state != "running") == {**ENDS, 5: ("cancelled", None, 15)}
    assert found[2].reason == "FAILED: NonZeroExitCode" and found[1].allocated_memory == 100 << 20
    assert len(commands.asked("sacct")) == 1, "it is not asked again at once"


def test_accounts_that_do_not_answer_are_an_error_and_are_asked_again(commands):
    squeue(commands)
    sacct(commands, status=1, said="slurm_persist_conn_open: Connection refused")
    source = SlurmRecords()
    for _ in range(2):
        with pytest.raises(BatchError, match="Connection refused; run it by hand to see how Slurm answers"):
            source.ended(1, 2)
    assert len(commands.asked("sacct")) == 2
    with pytest.raises(BatchError, match="Connection refused"):
        Slurm().ended(360)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        *[("NODE_FAIL", "node_failed"), ("BOOT_FAIL", "node_failed"), ("TIMEOUT", "timeout"), ("DEADLINE", "timeout")],
        *[("PREEMPTED", "cancelled"), ("CANCELLED by 1000", "cancelled"), ("CANCELLED+", "cancelled")],
        *[("COMPLETING", "running"), ("SUSPENDED", "running")],
    ],
)
def test_states_of_records_are_those_of_all_batch_systems(said, state):
    assert state_of(said)[0] == state


@pytest.mark.parametrize(
    ("requests", "gpus"),
    [
        *[({"gres/gpu": "4", "gres/gpu:a100": "4"}, 4), ({"gres/gpu:a100": "2", "gres/gpu:h100": "1"}, 3)],
        *[({"cpu": "4"}, None), ({"gres/gpu": "x"}, None)],
    ],
)
def test_gpus_are_those_of_the_request(requests, gpus):
    assert gpus_of(requests) == gpus


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        *[("0:00", 0), ("1:00", 60), ("5:44", 344), ("2:00:00", 7200), ("1-00:00:30", 86430), ("2-01:02:03", 176523)],
        *[("UNLIMITED", None), ("5", None), ("a-1:00", None), ("", None)],
    ],
)
def test_limits_are_read(limit, seconds):
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        *[("n1", ["n1"]), ("n[01-03,7],login", ["n01", "n02", "n03", "n7", "login"]), ("", [])],
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_lists_of_hosts_are_expanded(expression, hosts):
    assert expand_hosts(expression) == hosts


@pytest.mark.parametrize(
    "expression",
    ["n[1-999999999]", "n[1-9999][1-9999]", "n[", "n]", "n[2-1]", "n[a-b]", "n[1-2", "[[1]]", "n[-1]", "n[1,]" * 9],
)
def test_lists_of_hosts_in_another_form_or_too_long_are_refused(expression):
    with pytest.raises(FormError):
        expand_hosts(expression)
    assert hosts_text(["a", "b,c", "x\n", None, "a"]) == "a"


WRONG_FIELDS = {
    "JobIDRaw": ["", "x", "99999999999999999999", "-1"],
    "State": ["", "NEW_STATE"],
    **{name: ["2026-11-28T04:00:00", "x"] for name in ("Submit", "Start", "End")},
}


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in WRONG_FIELDS.items() for word in words])
def test_a_record_in_an_unknown_form_is_skipped_and_counted(commands, caplog, name, word):
    records = accounts()
    wrong = dict(zip(slurm.ACCOUNTED, records[0]))
    commands.answers(["sacct", None], [*records, *[list({**wrong, name: word}.values())] * 30])
    source = SlurmRecords()
    assert ends(source.ended(1, 2)) == ENDS
    assert source.skipped == 30


@pytest.mark.parametrize("name", ["Submit", "Start", "End"])
def test_times_in_another_form_are_an_error_that_shows_them(commands, name):
    """As from a wrapper of sacct that drops the environment."""
    place = slurm.ACCOUNTED.index(name)
    records = accounts()
    for fields in records:
        fields[place] = "2026-11-28T04:00:00"
    commands.answers(["sacct", None], records)
    with pytest.raises(BatchError, match=rf"sacct: prints what .*: '{name} of 1\|1\|.*2026-11-28T04:00:00"):
        SlurmRecords().ended(1, 2)


def test_an_answer_without_the_format_asked_for_is_an_error(commands):
    squeue(commands)
    commands.answers([*slurm.SQUEUE, f"--states={slurm.HOLDING}"], "  12  bed  job  R  0:01\n")
    with pytest.raises(BatchError, match=r"squeue: prints what this version .* know: '12 bed job R 0:01'"):
        SlurmRecords().running()
    sacct(commands, "a new form\nof output\n")
    with pytest.raises(BatchError, match=r"sacct: prints what this version .* know: 'a new form of output'"):
        SlurmRecords().ended(1, 2)


# All that str.splitlines() takes for the end of a line, and what separates fields.
SEPARATORS = [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n", "|", ":", "\t", "\n|"]


@pytest.mark.parametrize("place", ["name", "account"])
@pytest.mark.parametrize(
    ("printed", "forged"),
    [
        (shown_by_squeue, "77|77|mallory|acct|cpu|1|2|3|RUNNING|1|5:00|vm|None|x"),
        (accounts, "77|77|mallory|acct|cpu|1|2|3|FAILED|3:0|5|7|cpu=1|cpu=1|n1|x"),
    ],
)
def test_a_text_of_a_user_is_no_record_of_another_job(commands, printed, forged, place):
    true = printed()[-1]
    assert len(true) == 1 + forged.count("|")
    texts = [f"x{separator}{forged}{separator}" for separator in SEPARATORS]
    records = []
    for text in texts:
        records.append(list(true))
        records[-1][-1 if place == "name" else true.index("physics")] = text
    squeue(commands)
    if printed is shown_by_squeue:
        commands.answers([*slurm.SQUEUE, f"--states={slurm.HOLDING}"], records)
        answers = SlurmRecords().running()
    else:
        sacct(commands, records)
        answers = SlurmRecords().ended(1, 2)
    assert {(one.owner, one.job) for one in answers} == {("colmet-slurm", int(true[0]))}
    assert [one.name if place == "name" else one.project for one in answers] == [text_of(text) for text in texts]


def test_each_question_has_another_mark(commands):
    sacct(commands, accounts())
    source = SlurmRecords()
    source.ended(1, 2), source.ended(1, 2)
    first, second = [line.partition("--delimiter=")[2].split()[0] for line in commands.asked("sacct")]
    assert first != second and len(first) > 30


def test_records_not_asked_for_are_refused(commands):
    sacct(commands, accounts())
    source = SlurmRecords()
    assert {one.job for one in source.named({3, 5})} == {3, 5}
    assert source.skipped == 0


def test_of_two_records_of_one_run_with_two_users_neither_counts(commands, caplog):
    records = accounts()
    other = list(records[0])
    other[slurm.ACCOUNTED.index("User")] = "mallory"
    commands.answers(["sacct", None], [*records, other])
    source = SlurmRecords()
    assert ends(source.ended(1, 2)) == {job: end for job, end in ENDS.items() if job != 1}
    assert source.skipped == 2 and "name several users" in caplog.text


def test_an_exclusive_job_holds_what_it_was_given():
    given = "billing=112,cpu=36,gres/gpu:x=4,gres/gpu=4,mem=180G,node=1"
    record = accounted([*f"1|1|al|phys|cpu|1|2|9|COMPLETED|0:0|60|7|cpu=1,mem=5G|{given}|n1|job".split("|")])
    assert (record.allocated_cores, record.allocated_memory, record.allocated_gpus) == (36, 180 << 30, 4)
    assert (record.requested_cores, record.requested_memory, record.requested_gpus) == (1, 5 << 30, None)
    words = ["1", "1", "al", "phys", "cpu", "1", "2", "N/A", "RUNNING", "36", "1:00:00", "n1", "None", "job"]
    same = queued(words, slurm.given_of(f"1 1 0 {given}\n"))
    assert (same.allocated_cores, same.allocated_memory, same.allocated_gpus) == (36, 180 << 30, 4)


@pytest.mark.parametrize("word", ["", "-1", "\x1b[31m", "x" * 5000, "n[1-", "9" * 30, "é"])
@pytest.mark.parametrize(
    ("printed", "parse"), [(accounts, accounted), (shown_by_squeue, lambda words: queued(words, {"1": Given(999, {})}))]
)
def test_no_word_is_worse_than_a_skipped_line(printed, parse, word):
    words = printed()[2]
    for place in range(len(words)):
        try:
            record = parse([*words[:place], word, *words[place + 1 :]])
        except FormError:
            continue
        assert record is None or all(not isinstance(value, str) or value.isprintable() for value in record), place


# -- queues and jobs --


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
    assert system.skipped == 0
    commands.answers(MEMORY, status=1, said="no")
    assert system.queues()[0].memory_mb is None


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
        *[("PENDING", why, "held") for why in ("JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held")],
        *[("REQUEUE_HOLD", "", "held"), ("COMPLETING", "", "running"), ("SUSPENDED", "", "held")],
        *[("FAILED", "", "finished"), ("CANCELLED", "", "removed"), ("NEW", "", "unknown")],
    ],
)
def test_states_are_those_of_all_batch_systems(state, reason, expected):
    assert queue_state_of(state, reason) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [("7", 1), ("0-9", 10), ("3-10%2", 8), ("1-59:2", 30), ("1,4-5,9,13-14%3", 6), ("0-999999999", 10**9)],
)
def test_the_tasks_of_an_array_are_counted(text, count):
    assert listed_job(f"8_[{text}]|bed|al|PENDING|None|0:00|1").size == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("100M", 100), ("4G", 4096), ("62.50G", 64000), ("1T", 1 << 20), ("24105", 24105), ("512K", 0), ("2048K", 2)],
        *[("0", 0), ("", None), ("4Gc", None), ("x", None), ("9" * 40, None)],
    ],
)
def test_sizes_are_read_in_mib(text, expected):
    assert memory_of({"mem": text}) == (None if expected is None else expected << 20)


def test_counts_may_be_in_units_of_1024():
    assert [count_of(text) for text in ("64", "2K", "1.5K", "", None, "x", "1.5")] == [64, 2048, 1536] + [None] * 4


# -- what fails --


@pytest.mark.parametrize(
    "line",
    [
        *("", "1|2", "1|bed|al|RUNNING|None|x|2", "|bed|al|RUNNING|None|0:01|2", "1|bed||RUNNING|None|0:01|2"),
        *[
            f"8_[{tasks}]|bed|al|PENDING|None|0:00|1"
            for tasks in ("1-", "a", "5-3", "1-3:0", "1,4-5,9,1...", "1,,2", "1" * 30, "-1", "١")
        ],
    ],
)
def test_a_line_in_another_form_is_refused(line):
    with pytest.raises(FormError):
        listed_job(line)


def test_a_job_in_a_form_that_is_not_known_is_skipped_and_counted(commands):
    lines = (RECORDED / "squeue-22.05.txt").read_text() + "99|bed|al|RUNNING|None|soon|2\nnonsense\n"
    commands.answers(slurm.LISTED, lines)
    system = Slurm()
    assert system.queues()[0].running == 3 and system.skipped == 2
    commands.answers(slurm.LISTED, "what is this?\n")
    with pytest.raises(BatchError, match=r"squeue --all.*what is this"):
        Slurm().jobs()


@pytest.mark.parametrize("answer", [None, {"status": 1, "said": "Unable to contact slurm controller"}])
def test_no_controller_or_command_is_not_taken_for_no_jobs(tmp_path, monkeypatch, answer):
    commands = Commands(tmp_path / "bin", monkeypatch)
    if answer is not None:
        commands.answers(slurm.LISTED, **answer)
    with pytest.raises(BatchError, match=r"Unable to contact.*run it by hand|no such program.*where the commands of"):
        Slurm().jobs()


def test_no_job_at_all_is_no_error(commands):
    commands.answers(slurm.LISTED, "")
    commands.answers(MEMORY, "")
    assert [queue[1:] for queue in Slurm().queues()] == [(0, 0, 0, 0, 0)] * 3


def test_without_sinfo_partitions_with_jobs_are_listed_all_the_same(commands):
    commands.answers(slurm.PARTITIONS, status=1, said="no")
    assert {queue.name for queue in Slurm().queues()} == {"bed", "quiet", "hidden"}


def test_a_very_long_array_is_counted_whole_and_listed_in_part(commands):
    commands.answers(slurm.LISTED, "8_[0-999999]|bed|al|PENDING|Priority|0:00|1\n")
    system = Slurm()
    assert system.queues()[0].idle == 1_000_000
    assert len(system.jobs()) == slurm.MAX_LISTED
    assert system.skipped == 1_000_000 - slurm.MAX_LISTED


# -- ended --


def ended(*lines):
    """Of id, user, elapsed time, partition and end."""
    rows = [dict(zip(("JobID", "User", "ElapsedRaw", "Partition", "End"), line.split("|"))) for line in lines]
    return [[row.get(field, "") for field in slurm.ACCOUNTED] for row in rows]


def test_ended_jobs_are_read_as_sacct_prints_them(commands, monkeypatch):
    sacct(commands, ended(*(RECORDED / "sacct-22.05.txt").read_text().splitlines()))
    monkeypatch.setattr(time, "time", lambda: 1795347626.0)
    assert Slurm().ended(14) == [
        BatchJob("1", "colmet-sacct", "finished", 3, "bed"),
        BatchJob("5", "colmet-sacct", "finished", 4, "bed"),
        BatchJob("3_1", "colmet-sacct", "finished", 2, "bed"),
        BatchJob("3_2", "colmet-sacct", "finished", 2, "bed"),
    ]
    (asked,) = commands.asked("sacct")
    assert "--state=CD,F,OOM --starttime=now-14 --endtime=now" in asked and "--duplicates" not in asked


def test_ended_jobs_in_other_forms_are_left_out_and_counted(commands):
    lines = [f"41|alice|61|main|{NOW - 10}", f"42_7|bob|5|main|{NOW - 360}", f"43|carol|9|main|{NOW - 361}"]
    sacct(commands, ended(*lines, "44+1|dora|3|big|Unknown", "something else"))
    system = Slurm()
    assert system.ended(360) == [
        BatchJob("41", "alice", "finished", 61, "main"),
        BatchJob("42_7", "bob", "finished", 5, "main"),
        BatchJob("44+1", "dora", "finished", 3, "big"),
    ]
    assert system.skipped == 1


@pytest.mark.parametrize("answer", [None, {"status": 1, "said": "Slurm accounting storage is disabled"}, {}])
def test_without_accounts_or_ended_jobs_there_are_none(commands, answer):
    if answer is not None:
        sacct(commands, **answer)
    assert Slurm().ended(360) == []
