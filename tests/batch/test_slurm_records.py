"""Records of Slurm's jobs, from what squeue and sacct printed; beside the real Slurm: tests/beds."""

from __future__ import annotations

import pytest

from colmet.batch import slurm_records
from colmet.batch.answers import FormError
from colmet.batch.model import BatchError
from colmet.batch.records import expand_hosts, hosts_text
from colmet.batch.records import text as records_text
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


def fields_of(name, fields=15):
    """What was recorded with | as the mark: the last field, the name, may have it."""
    return [line.split("|", fields - 1) for line in (RECORDED / name).read_text().splitlines()]


def ends(records):
    return {one.job: (one.state, one.exit_code, one.exit_signal) for one in records if one}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    return Commands(tmp_path / "bin", monkeypatch)


def squeue(commands, over=False):
    states = slurm_records.SQUEUE_STATES + (f",{slurm_records.SQUEUE_OVER}" if over else "")
    commands.answers([*slurm_records.SQUEUE, f"--states={states}"], fields_of("squeue-records-22.05.txt", 16))
    commands.answers([*slurm_records.GIVEN, f"--states={states}"], RECORDED / "squeue-given-22.05.txt")
    commands.answers(slurm_records.WAITING, RECORDED / "squeue-waiting-22.05.txt")


def test_sacct_gives_states_exit_codes_and_requests():
    records = [one for one in map(accounted, fields_of("sacct-ends-22.05.txt")) if one]
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
    (run,) = [one for one in map(accounted, fields_of("sacct-requeued-22.05.txt")) if one]
    assert (run.job, run.state, run.reason, run.ended) == (16, "cancelled", "REQUEUED", 1795646970)


def test_squeue_gives_running_jobs_with_their_requests_and_dependencies(commands):
    squeue(commands)
    sacct(commands, "sacct-ends-22.05.txt")
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


def sacct(commands, name="", **answer):
    commands.answers(["sacct", None], fields_of(name) if name else "", **answer)


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


WRONG_FIELDS = {
    "JobIDRaw": ["", "x", "99999999999999999999", "-1"],
    "State": ["", "NEW_STATE"],
    **{name: ["2026-11-28T04:00:00", "x"] for name in ("Submit", "Start", "End")},
}


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in WRONG_FIELDS.items() for word in words])
def test_a_record_in_an_unknown_form_is_skipped_and_counted(commands, caplog, name, word):
    records = fields_of("sacct-ends-22.05.txt")
    wrong = dict(zip(slurm_records.ACCOUNTED, records[0]))
    commands.answers(["sacct", None], [*records, *[list({**wrong, name: word}.values())] * 30])
    source = SlurmRecords()
    assert ends(source.ended(1, 2)) == ENDS
    assert source.skipped == 30


@pytest.mark.parametrize("name", ["Submit", "Start", "End"])
def test_times_in_another_form_are_an_error_that_shows_them(commands, name):
    """As from a wrapper of sacct that drops the environment."""
    place = slurm_records.ACCOUNTED.index(name)
    records = fields_of("sacct-ends-22.05.txt")
    for fields in records:
        fields[place] = "2026-11-28T04:00:00"
    commands.answers(["sacct", None], records)
    with pytest.raises(BatchError, match=rf"sacct: prints what .*: '{name} of 1\|1\|.*2026-11-28T04:00:00"):
        SlurmRecords().ended(1, 2)


def test_an_answer_without_the_format_asked_for_is_an_error(commands):
    squeue(commands)
    commands.answers([*slurm_records.SQUEUE, f"--states={slurm_records.SQUEUE_STATES}"], "  12  bed  job  R  0:01\n")
    with pytest.raises(BatchError, match=r"squeue: prints what this version .* know: '12 bed job R 0:01'"):
        SlurmRecords().running()


# All that str.splitlines() takes for the end of a line, and what separates fields.
SEPARATORS = [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n", "|", ":", "\t", "\n|"]


@pytest.mark.parametrize("place", ["name", "account"])
@pytest.mark.parametrize(
    ("known", "forged"),
    [
        ("squeue-records-22.05.txt", "77|77|77|N/A|mallory|acct|cpu|1|2|3|RUNNING|1|5:00|vm|None|x"),
        ("sacct-ends-22.05.txt", "77|77|mallory|acct|cpu|1|2|3|FAILED|3:0|5|cpu=1|cpu=1|n1|x"),
    ],
)
def test_a_text_of_a_user_is_no_record_of_another_job(commands, known, forged, place):
    true = fields_of(known, 1 + forged.count("|"))[-1]
    texts = [f"x{separator}{forged}{separator}" for separator in SEPARATORS]
    records = []
    for text in texts:
        records.append(list(true))
        records[-1][-1 if place == "name" else true.index("physics")] = text
    squeue(commands)
    if known.startswith("squeue"):
        commands.answers([*slurm_records.SQUEUE, f"--states={slurm_records.SQUEUE_STATES}"], records)
        answers = SlurmRecords().running()
    else:
        commands.answers(["sacct", None], records)
        answers = SlurmRecords().ended(1, 2)
    assert {(one.owner, one.job) for one in answers} == {("colmet-slurm", int(true[0]))}
    assert [one.name if place == "name" else one.project for one in answers] == [records_text(text) for text in texts]


def test_each_question_has_another_mark(commands):
    sacct(commands, "sacct-ends-22.05.txt")
    source = SlurmRecords()
    source.ended(1, 2), source.ended(1, 2)
    first, second = [line.partition("--delimiter=")[2].split()[0] for line in commands.asked("sacct")]
    assert first != second and len(first) > 30


def test_records_not_asked_for_are_refused(commands):
    sacct(commands, "sacct-ends-22.05.txt")
    source = SlurmRecords()
    assert {one.job for one in source.named({3, 5})} == {3, 5}
    assert source.skipped == 0


def test_of_two_records_of_one_run_with_two_users_neither_counts(commands, caplog):
    records = fields_of("sacct-ends-22.05.txt")
    other = list(records[0])
    other[slurm_records.ACCOUNTED.index("User")] = "mallory"
    commands.answers(["sacct", None], [*records, other])
    source = SlurmRecords()
    assert ends(source.ended(1, 2)) == {job: end for job, end in ENDS.items() if job != 1}
    assert source.skipped == 2 and "name several users" in caplog.text


def test_an_exclusive_job_holds_what_it_was_given(commands):
    given = "billing=112,cpu=36,gres/gpu:x=4,gres/gpu=4,mem=180G,node=1"
    fields = [
        "1",
        "1",
        "alice",
        "phys",
        "cpu",
        "1",
        "2",
        "9",
        "COMPLETED",
        "0:0",
        "60",
        "billing=2,cpu=1,mem=5G,node=1",
    ]
    record = accounted([*fields, given, "n1", "job"])
    assert (record.allocated_cores, record.allocated_memory, record.allocated_gpus) == (36, 180 << 30, 4)
    assert (record.requested_cores, record.requested_memory, record.requested_gpus) == (1, 5 << 30, None)
    running = [
        "1",
        "1",
        "1",
        "N/A",
        "alice",
        "phys",
        "cpu",
        "1",
        "2",
        "N/A",
        "RUNNING",
        "36",
        "1:00:00",
        "n1",
        "None",
        "job",
    ]
    same = queued(running, slurm_records.given_of(f"1 0 {given}\n"))
    assert (same.allocated_cores, same.allocated_memory, same.allocated_gpus) == (36, 180 << 30, 4)


def test_all_of_another_form_is_an_error(commands):
    commands.answers(["sacct", None], "a new form\nof output\n")
    with pytest.raises(
        BatchError, match="sacct: prints what this version of Colmet does not know: 'a new form of output'"
    ):
        SlurmRecords().ended(1, 2)


@pytest.mark.parametrize("word", ["", "-1", "\x1b[31m", "x" * 5000, "n[1-", "9" * 30, "é"])
@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("sacct-ends-22.05.txt", accounted),
        ("squeue-records-22.05.txt", lambda words: queued(words, {1: Given(999, {})})),
    ],
)
def test_no_word_is_worse_than_a_skipped_line(name, parse, word):
    words = fields_of(name, 15 if parse is accounted else 16)[2]
    for place in range(len(words)):
        try:
            record = parse([*words[:place], word, *words[place + 1 :]])
        except FormError:
            continue
        assert record is None or all(not isinstance(value, str) or value.isprintable() for value in record), place
