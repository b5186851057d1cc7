"""HTCondor's queues and jobs, of what its commands print.

There is no HTCondor here: scripts of the names of its commands check that they are called as they must be.
"""

from __future__ import annotations

import time

import pytest

from colmet.batch import condor
from colmet.batch.answers import AskError, BatchError, FormError
from colmet.batch.condor import HTCondor, condor_job, given, totals
from colmet.batch.systems import BatchJob, Queue
from tests.support.batch_commands import DATA, Commands

NOW = 1795346100
RECORDED = DATA / "condor"
NOT_COFFEA = 'Owner =!= "atlas-coffea"'


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    return Commands(tmp_path / "bin", monkeypatch)


def totals_command(*constraint):
    return ["condor_q", "-all", "-totals", "-json", *constraint]


def given_command(*constraint):
    command = ["condor_q", "-all", "-run", "-autoformat", "CpusProvisioned", "MemoryProvisioned", "-json"]
    return [*command, *constraint]


JOBS = [*condor.JOBS, "-constraint", NOT_COFFEA]


# -- queues --


def test_a_queue_is_reported_as_the_fact_table_has_it(commands):
    commands.answers(totals_command(), RECORDED / "totals.json")
    commands.answers(given_command(), RECORDED / "given.json")
    assert HTCondor([("all", "")]).queues() == [
        Queue("all", idle=12, running=7, held=4, cores=13, memory_mb=2048 + 16384 + 8000)
    ]


def test_each_queue_has_its_own_constraint(commands):
    """It is handed on as it is: quotes, spaces and colons are HTCondor's."""
    short = 'queue == "short" && regexp("a:b", Cmd)'
    for constraint, name in (((), "totals"), (("-constraint", short), "totals-short")):
        commands.answers(totals_command(*constraint), RECORDED / f"{name}.json")
        commands.answers(given_command(*constraint), RECORDED / "given.json" if not constraint else "")
    found = HTCondor([("all", ""), ("short", short)]).queues()
    assert [(queue.name, queue.idle, queue.held, queue.cores) for queue in found] == [
        ("all", 12, 4, 13),
        ("short", 0, 1, 0),
    ]


def test_cores_and_memory_are_missing_where_only_their_query_fails(commands):
    commands.answers(totals_command(), RECORDED / "totals.json")
    commands.answers(given_command(), status=1, said="-- Failed to fetch ads")
    assert HTCondor([("all", "")]).queues() == [Queue("all", 12, 7, 4, None, None)]


def test_a_queue_whose_constraint_is_wrong_is_skipped_and_counted(commands):
    commands.answers(totals_command(), RECORDED / "totals.json")
    commands.answers(given_command(), RECORDED / "given.json")
    commands.answers(totals_command("-constraint", "x ="), status=1, said="condor_q: invalid constraint")
    system = HTCondor([("wrong", "x ="), ("all", "")])
    assert [queue.name for queue in system.queues()] == ["all"]
    assert system.skipped == 1


def test_it_is_an_error_where_no_queue_can_be_reported(commands):
    commands.answers(totals_command(), status=1, said="Failed to fetch ads from schedd")
    with pytest.raises(BatchError, match=r"condor_q -all -totals -json: returned 1: Failed to fetch ads.*by hand"):
        HTCondor([("all", "")]).queues()


def test_where_the_schedd_does_not_answer_in_time_the_other_queues_are_not_asked_for(monkeypatch):
    asked = []

    def ask(command, system):
        asked.append(command)
        raise AskError("condor_q: did not end within 60 s", "late")

    monkeypatch.setattr(condor, "ask", ask)
    with pytest.raises(AskError):
        HTCondor([(name, name) for name in ("a", "b", "c")]).queues()
    assert len(asked) == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '[{"Idle": 1, "Running": 2}]', '[{"Idle": 1, "Running": 2, "Held": "x"}]']
)
def test_totals_without_the_counts_are_an_error_and_not_0(text):
    with pytest.raises(BatchError, match="condor_q: prints what this version of Colmet does not know"):
        totals(text, "condor_q")


@pytest.mark.parametrize("name", ["given.json", "given.txt"])
def test_what_running_jobs_were_given_is_added_up_in_both_forms(name):
    """The job without attributes is one that the schedd runs itself."""
    assert given((RECORDED / name).read_text(), "condor_q") == (13, 26432)


def test_an_expression_makes_the_sum_missing():
    text = (
        r'[{"CpusProvisioned": "\/Expr(a)\/", "MemoryProvisioned": 9}, {"CpusProvisioned": 2, "MemoryProvisioned": 6}]'
    )
    assert given(text, "condor_q") == (None, 15)


@pytest.mark.parametrize("text", ["1 2 3", "all well", "1", "[1]", '["x"]'])
def test_given_resources_in_another_form_are_an_error(text):
    with pytest.raises(BatchError):
        given(text, "condor_q")


# -- jobs --


def test_jobs_have_the_states_and_ids_of_the_fact_table(commands):
    commands.answers(JOBS, RECORDED / "jobs.json")
    assert [(job.id, job.user, job.state) for job in HTCondor().jobs()] == [
        ("120.0", "alice", "idle"),
        ("120.1", "alice", "running"),
        ("120.2", "alice", "running"),
        ("121.0", "bob", "held"),
        ("7.0", "carol", "finished"),
        ("8.0", "carol", "removed"),
        ("9.0", "dora", "unexpanded"),
        ("9.1", "dora", "submission_err"),
        ("9.2", "dora", "unknown"),
    ]


def test_the_run_of_now_is_part_of_the_runtime(commands):
    """RemoteWallClockTime is that of the runs before, until this one ends."""
    commands.answers(JOBS, RECORDED / "jobs.json")
    assert [job.runtime_s for job in HTCondor().jobs()] == [0, 100, 400, 42, 7200, 0, 0, 20, 1]


@pytest.mark.parametrize("text", ["", "\n", "[\n]\n"])
def test_without_a_job_there_is_none(commands, text):
    commands.answers(JOBS, text)
    commands.answers(["condor_history", None], text)
    assert HTCondor().jobs() == [] and HTCondor().ended(360) == []


def test_jobs_in_a_form_that_is_not_known_are_skipped_and_counted(commands):
    commands.answers(JOBS, RECORDED / "jobs-odd.json")
    system = HTCondor()
    assert [job.id for job in system.jobs()] == ["120.0"]
    assert system.skipped == 2


def test_ended_jobs_are_those_that_completed_of_late(commands):
    """JobStatus 4, by the time of JobFinishedHookDone, without the excluded owner."""
    commands.answers(["condor_history", None], RECORDED / "history.json")
    assert HTCondor().ended(360) == [
        BatchJob("118.0", "alice", "finished", 3661),
        BatchJob("119.3", "bob", "finished", 12),
    ]
    condition = f"JobStatus == 4 && JobFinishedHookDone >= {NOW - 360} && {NOT_COFFEA}"
    assert commands.asked("condor_history") == [" ".join([*condor.HISTORY[1:], "-constraint", condition])]


@pytest.mark.parametrize(
    "ad",
    [
        {},
        {"Owner": "a", "ClusterId": 1, "ProcId": 0},
        {"Owner": "a", "ClusterId": -1, "ProcId": 0, "JobStatus": 1},
        {"Owner": "a", "ClusterId": True, "ProcId": 0, "JobStatus": 1},
        {"Owner": "a\nb", "ClusterId": 1, "ProcId": 0, "JobStatus": 1},
        {"Owner": "a" * 300, "ClusterId": 1, "ProcId": 0, "JobStatus": 1},
        {"Owner": ["a"], "ClusterId": 1, "ProcId": 0, "JobStatus": 1},
    ],
)
def test_a_job_without_what_it_has_to_have_is_refused(ad):
    with pytest.raises(FormError):
        condor_job(ad, NOW)


# -- all batch systems --


@pytest.mark.parametrize(
    "text",
    ["[", "nothing", "[1, 2]", '[{"a": 1}] x', "[" * 5000, '{"a": ' * 5000, "9" * 20_000],
    ids=["open", "word", "numbers", "more", "lists", "objects", "digits"],  # pytest puts them into the environment
)
@pytest.mark.usefixtures("no_collection")
def test_an_answer_in_another_form_is_an_error_that_shows_a_part(commands, text):
    commands.answers(JOBS, text)
    with pytest.raises(BatchError, match=r"does not know: '.{1,203}'; run it by hand"):
        HTCondor().jobs()
