"""OAR's queues and jobs, of what its commands printed; beside the real OAR: tests/beds/test_oar.py."""

from __future__ import annotations

import json
import time

import pytest

from colmet.batch import oar
from colmet.batch.model import BatchError, BatchJob, Queue
from colmet.batch.oar import OAR, oar_job, oar_jobs
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "oar"
NOW = 1795346300


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(oar.QUEUES, RECORDED / "oarnotify.txt")
    return commands


def recorded_jobs(name="oarstat.json"):
    return json.loads((RECORDED / name).read_text())


def ended_command(within_s=360):
    return ["oarstat", "-J", "-f", "--sql", f"state = 'Terminated' AND stop_time >= {NOW - within_s}"]


def test_queues_are_counted_and_those_without_a_job_are_reported_too(commands):
    """By hand: 7 runs on one resource; 8, 10, 11 and 12 wait; 3 is held, and so is 2, which is suspended."""
    commands.answers(oar.JOBS, RECORDED / "oarstat.json")
    assert OAR().queues() == [
        Queue("default", idle=4, running=1, held=2, cores=1, memory_mb=None),
        Queue("admin", idle=0, running=0, held=0, cores=0, memory_mb=None),
        Queue("besteffort", idle=0, running=0, held=0, cores=0, memory_mb=None),
    ]


def test_an_ordinary_user_sees_the_queues_that_jobs_are_in(commands):
    """oarnotify is for root and for OAR's own group."""
    (commands.directory / "oarnotify").chmod(0o644)
    jobs = recorded_jobs()
    jobs["8"]["queue"] = "besteffort"
    commands.answers(oar.JOBS, json.dumps(jobs))
    assert {queue.name: queue.idle for queue in OAR().queues()} == {"default": 3, "besteffort": 1}


def test_jobs_are_reported_as_oarstat_does(commands):
    commands.answers(oar.JOBS, RECORDED / "oarstat.json")
    assert sorted(OAR().jobs(), key=lambda job: int(job.id)) == [
        BatchJob("2", "colmet-oar", "held", NOW - 1795345974, "default"),
        BatchJob("3", "colmet-oar", "held", 0, "default"),
        BatchJob("7", "colmet-oar", "running", NOW - 1795346013, "default"),
        *(BatchJob(job, "colmet-oar", "idle", 0, "default") for job in ("8", "10", "11", "12")),
    ]


def test_ended_jobs_are_those_that_ended_by_themselves(commands):
    """`sleep 1` and `false`; OAR says Error of those that were deleted."""
    jobs = {key: job for key, job in recorded_jobs("oarstat-ended.json").items() if job["state"] == "Terminated"}
    commands.answers(ended_command(), json.dumps(jobs))
    assert sorted(OAR().ended(360)) == [
        BatchJob("11", "colmet-oar", "finished", 2, "default"),
        BatchJob("12", "colmet-oar", "finished", 3, "default"),
    ]


def test_oarstat_prints_nothing_where_there_is_no_job(commands):
    commands.answers(oar.JOBS, "")
    commands.answers(ended_command(), "")
    system = OAR()
    assert system.jobs() == [] and system.ended(360) == []
    assert [queue.cores for queue in system.queues()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("Waiting", "idle"),
        ("toAckReservation", "idle"),
        ("Hold", "held"),
        ("Suspended", "held"),
        ("toLaunch", "running"),
        ("Launching", "running"),
        ("Running", "running"),
        ("Resuming", "running"),
        ("Finishing", "running"),
        ("Terminated", "finished"),
        ("Error", "removed"),
        ("toError", "removed"),
        ("SomethingNew", "unknown"),
    ],
)
def test_states_are_those_of_all_batch_systems(said, state):
    assert oar_job({**recorded_jobs()["7"], "state": said}, NOW).job.state == state


def test_a_job_in_a_form_that_is_not_known_is_left_out_and_counted(commands):
    jobs = recorded_jobs()
    jobs["7"].pop("owner")
    jobs["8"] = "a text"
    commands.answers(oar.JOBS, json.dumps(jobs))
    system = OAR()
    assert {job.id for job in system.jobs()} == {"2", "3", "10", "11", "12"}
    assert system.left_out == 2


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"1": 2}', "{} {}", "oarstat: cannot connect", '{"7": {"state": "Running"}}']
)
def test_an_answer_in_another_form_is_an_error(text):
    with pytest.raises(BatchError, match="oarstat -J: prints what this version"):
        oar_jobs(text, "oarstat -J", NOW)


def test_an_oar_that_is_not_there_or_fails_is_an_error(commands):
    with pytest.raises(BatchError, match="oarstat -J: no such program; run this where the commands of OAR are"):
        OAR().jobs()
    commands.answers(oar.JOBS, status=2, said="DBI connect failed: Connection refused")
    with pytest.raises(BatchError, match="oarstat -J: returned 2: DBI connect failed: Connection refused; run it by"):
        OAR().queues()
