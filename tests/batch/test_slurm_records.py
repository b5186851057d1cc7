"""Records of Slurm's jobs, from what squeue and sacct printed; beside the real Slurm: tests/beds."""

from __future__ import annotations

import pytest

from colmet.batch import slurm_records
from colmet.batch.answers import FormError
from colmet.batch.model import BatchError
from colmet.batch.records import expand_hosts, hosts_text
from colmet.batch.slurm_records import Given, SlurmRecords, accounted, gpus_of, limit_s, queued, state_of
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "slurm"
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


def lines(name):
    return (RECORDED / name).read_text().splitlines()


def ends(records):
    return {one.job: (one.state, one.exit_code, one.exit_signal) for one in records if one}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    return Commands(tmp_path / "bin", monkeypatch)


def squeue(commands, over=False):
    states = slurm_records.SQUEUE_STATES + (f",{slurm_records.SQUEUE_OVER}" if over else "")
    commands.answers([*slurm_records.SQUEUE, f"--states={states}"], RECORDED / "squeue-records-22.05.txt")
    commands.answers([*slurm_records.GIVEN, f"--states={states}"], RECORDED / "squeue-given-22.05.txt")
    commands.answers(slurm_records.WAITING, RECORDED / "squeue-waiting-22.05.txt")


def test_sacct_gives_states_exit_codes_and_requests():
    records = [one for one in map(accounted, lines("sacct-ends-22.05.txt")) if one]
    assert ends(records) == ENDS, "and 11 was cancelled while it waited: it did not run"
    of = {one.job: one for one in records}
    assert of[2].name == "fail|3 x"
    assert (of[1].requested_walltime_s, of[2].requested_walltime_s) == (300, None)
    assert (of[7].requested_cores, of[7].requested_memory, of[7].batch_hosts) == (2, 200 << 20, "vm-a,vm-b")
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
    (run,) = [one for one in map(accounted, lines("sacct-requeued-22.05.txt")) if one]
    assert (run.job, run.state, run.reason, run.ended) == (16, "cancelled", "REQUEUED", 1795646970)


def test_squeue_gives_running_jobs_with_their_requests_and_dependencies(commands):
    squeue(commands)
    sacct(commands, "sacct-ends-22.05.txt")
    source = SlurmRecords()
    running = [one for one in source.running() if one.state == "running"]
    assert [(one.job, one.requested_memory, one.requested_walltime_s) for one in sorted(running)] == [
        (10, 100 << 20, 60),
        (12, 50 << 20, 600),
    ]
    ended = source.ended(1000, 2000)
    assert ends(ended) == ENDS
    assert {one.job: one.dependency for one in ended if one.dependency} == {9: "afterany:5"}
    assert source.skipped == 0


def sacct(commands, name="", **answer):
    command = ["sacct", None]
    commands.answers(command, RECORDED / name if name else "", **answer)


def test_without_accounts_ended_jobs_are_those_that_squeue_shows(commands):
    squeue(commands)
    squeue(commands, over=True)
    sacct(commands, status=1, said="Slurm accounting storage is disabled")
    source = SlurmRecords()
    source.running()
    assert source.ended(1000, 2000) == [] and source.named([1]) == []
    found = {one.job: one for one in source.running()}
    assert ends(one for one in found.values() if one.state != "running") == {**ENDS, 5: ("cancelled", None, 15)}
    assert found[2].reason == "FAILED: NonZeroExitCode" and found[1].requested_memory == 100 << 20
    assert len(commands.asked("sacct")) == 1, "it is not asked again at once"


def test_accounts_that_do_not_answer_are_an_error_and_are_asked_again(commands):
    squeue(commands)
    sacct(commands, status=1, said="slurm_persist_conn_open: Connection refused")
    source = SlurmRecords()
    for _ in range(2):
        with pytest.raises(BatchError, match="Connection refused; run it by hand to see how Slurm answers"):
            source.ended(1, 2)
    assert len(commands.asked("sacct")) == 2


def test_jobs_are_asked_for_by_number_in_parts(commands, monkeypatch):
    monkeypatch.setattr(slurm_records, "NAMED_AT_ONCE", 2)
    sacct(commands, "sacct-ends-22.05.txt")
    SlurmRecords().named({5, 4, 3})
    asked = commands.asked("sacct")
    assert ["--jobs=3,4 " in asked[0], "--jobs=5 " in asked[1]] == [True, True]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("NODE_FAIL", "node_failed"),
        ("BOOT_FAIL", "node_failed"),
        ("TIMEOUT", "timeout"),
        ("DEADLINE", "timeout"),
        ("PREEMPTED", "cancelled"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("COMPLETING", "running"),
        ("SUSPENDED", "running"),
    ],
)
def test_states_are_those_of_all_batch_systems(said, state):
    assert state_of(said)[0] == state


@pytest.mark.parametrize(
    ("requests", "gpus"),
    [
        ({"gres/gpu": "4", "gres/gpu:a100": "4"}, 4),
        ({"gres/gpu:a100": "2", "gres/gpu:h100": "1"}, 3),
        ({"cpu": "4"}, None),
        ({"gres/gpu": "x"}, None),
    ],
)
def test_gpus_are_those_of_the_request(requests, gpus):
    assert gpus_of(requests) == gpus


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("1:00", 60),
        ("2:00:00", 7200),
        ("1-00:00:30", 86430),
        ("UNLIMITED", None),
        ("5", None),
        ("a-1:00", None),
        ("", None),
    ],
)
def test_limits_are_read(limit, seconds):
    assert limit_s(limit) == seconds


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],login", ["n01", "n02", "n03", "n7", "login"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
        ("", []),
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


HOSTILE = [
    *("", "|", "x", "1|2|3", "|" * 20, "x|x|u|a|p|1|2|3|COMPLETED|0:0|5|||n|name"),
    *("1|1|u|a|p|1|2||COMPLETED|0:0|5|||n|name", "1|1|u|a|p|1|2|3|NEW_STATE|0:0|5|||n|name"),
    "99999999999999999999|1|u|a|p|1|2|3|COMPLETED|0:0|5|||n|name",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_a_line_in_an_unknown_form_is_skipped_and_counted(commands, line):
    text = "\n".join([*lines("sacct-ends-22.05.txt"), *[line] * 30])
    commands.answers(["sacct", None], text)
    source = SlurmRecords()
    assert ends(source.ended(1, 2)) == ENDS
    assert source.skipped == (30 if line else 0)


@pytest.mark.parametrize("word", ["", "-1", "\x1b[31m", "x" * 5000, "n[1-", "9" * 30, "é"])
@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("sacct-ends-22.05.txt", accounted),
        ("squeue-records-22.05.txt", lambda line: queued(line, {1: Given(999, {})})),
    ],
)
def test_no_word_is_worse_than_a_skipped_line(name, parse, word):
    words = lines(name)[2].split("|")
    for place in range(len(words)):
        try:
            record = parse("|".join([*words[:place], word, *words[place + 1 :]]))
        except FormError:
            continue
        assert record is None or all(not isinstance(value, str) or value.isprintable() for value in record), place


def test_all_of_another_form_is_an_error(commands):
    commands.answers(["sacct", None], "a new form\nof output\n")
    with pytest.raises(
        BatchError, match="sacct: prints what this version of Colmet does not know: 'a new form of output'"
    ):
        SlurmRecords().ended(1, 2)
