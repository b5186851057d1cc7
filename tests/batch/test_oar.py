"""OAR's queues, jobs and records, of what its commands and its REST interface printed; the real OAR: tests/beds."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from colmet.batch import oar
from colmet.batch.answers import BatchError
from colmet.batch.oar import OAR, OarRecords, OarRestRecords, gpus_of, job_record, listed_job
from colmet.batch.systems import BatchJob, Queue
from colmet.common.errors import ConfigError
from tests.support.batch_commands import DATA, Commands
from tests.support.qmem_server import serving

RECORDED = DATA / "oar"
NOW = 1795346300
# By number: state, exit code, signal, OAR's word; as the jobs were submitted: true, exit 3, SEGV, KILL, walltime of
# 10 s, oardel, an array of two, a job that waited for 6, a short one, no such program, besteffort
ENDS = {
    1: ("done", 0, None, "Terminated"),
    2: ("failed", 3, None, "Terminated"),
    3: ("failed", None, 11, "Terminated"),
    4: ("failed", None, 9, "Terminated"),
    5: ("timeout", None, None, "WALLTIME"),
    6: ("cancelled", None, None, "FRAG_JOB_REQUEST"),
    **dict.fromkeys((7, 8, 9, 10, 12), ("done", 0, None, "Terminated")),
    11: ("failed", 127, None, "Terminated"),
}


def ends(records):
    return {one.job: (one.state, one.exit_code, one.exit_signal, one.reason) for one in records}


def recorded(name):
    found = json.loads((RECORDED / name).read_text())
    return found["items"] if "items" in found else list(found.values())


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(oar.QUEUES, RECORDED / "oarnotify.txt")
    return commands


def command(condition):
    return [*oar.WHOLE_JOBS, condition]


RUNNING = f"state IN ('Running', 'Suspended', 'Resuming', 'Finishing') OR ({oar.WAIT_FOR_OTHERS})"


def read_records(jobs):
    source = OarRecords()
    return source.read(jobs, "x", None), source.skipped


@pytest.mark.parametrize("name", ["oarstat-ends.json", "rest-ends.json"])
def test_states_and_exit_codes_are_what_the_jobs_did(name):
    records, skipped = read_records(recorded(name))
    assert ends(records) == ENDS and not skipped
    first = min(records)
    assert first[:6] == (1, "oar", "1", "done", 1795646438, 1795646442)
    assert (first.owner, first.name, first.project, first.queue) == ("colmet-oar", "done1", "fluids", "default")
    assert (first.submitted, first.allocated_cores, first.requested_walltime_s) == (1795646436, 2, 300)
    assert (first.batch_hosts, first.requested_memory, first.requested_gpus) == ("localhost", None, None)
    assert {one.job: one.array for one in records if one.array} == {7: "7", 8: "7"}


def test_an_array_has_places_where_oarstat_prints_them():
    records, _ = read_records(recorded("oarstat-ends.json"))
    assert {one.job: one.array_index for one in records if one.array} == {7: 1, 8: 2}


def test_oarstat_is_asked_in_bulk_and_a_dependency_is_kept_until_the_job_has_run(commands):
    commands.answers(command(RUNNING), RECORDED / "oarstat-runs.json")
    commands.answers(
        command("state IN ('Terminated', 'Error') AND stop_time >= 5 AND stop_time <= 9"),
        RECORDED / "oarstat-ends.json",
    )
    commands.answers(command("job_id IN (9,99)"), json.dumps({"9": {**recorded("oarstat-ends.json")[0], "Job_Id": 9}}))
    source = OarRecords()
    assert {one.job: one.state for one in source.running()} == {5: "running"}, "others are launched"
    assert {one.job: one.dependency for one in source.ended(5.5, 9.5) if one.dependency} == {9: "6"}
    assert len(source.named([9, 99])) == 1 and source.named([]) == []
    assert len(commands.asked("oarstat")) == 3 and source.skipped == 0


def test_jobs_that_never_started_have_no_record():
    """Refused reservations, and jobs that were deleted while they waited, are in state Error."""
    old = recorded("oarstat-ended.json")
    assert {one["Job_Id"] for one in old if job_record(one) is None} == {9}
    waits = {**old[0], "state": "Waiting", "startTime": 0}
    assert job_record(waits) is None


def test_a_job_that_is_launched_has_no_record_since_its_start_is_not_final():
    """It changes by the seconds that the launch lasts, and an earlier start would be that of another run."""
    launched = {**recorded("oarstat-ended.json")[0], "stopTime": 0}
    found = {state: job_record({**launched, "state": state}) for state in ("toLaunch", "Launching", "Running")}
    assert [state for state, record in found.items() if record] == ["Running"]


@pytest.mark.parametrize(
    ("events", "state"),
    [
        *[(["FRAG_JOB_REQUEST", "WALLTIME"], "timeout"), (["BESTEFFORT_KILL", "FRAG_JOB_REQUEST"], "cancelled")],
        *[(["PING_CHECKER_NODE_SUSPECTED_END_JOB"], "node_failed"), (["PROLOGUE_ERROR", "FRAG_JOB_REQUEST"], "failed")],
        *[([], "failed"), (["SOMETHING_NEW"], "failed")],
    ],
)
def test_the_events_of_a_job_in_error_name_the_cause(events, state):
    job = next(one for one in recorded("oarstat-ends.json") if one["Job_Id"] == 5)
    assert job_record({**job, "events": [{"type": one} for one in events]}).state == state


@pytest.mark.parametrize(
    ("wanted", "gpus"),
    [
        ("-l \"{type = 'default'}/resource_id=1,walltime=2:0:0\" ", None),
        ("-l \"{type='default'}/host=2/gpu=1/core=4,walltime=1:0:0\" ", 2),
        ('-l "/host=1/gpu=4,walltime=1:0:0" ', 4),
        ('-l "/gpu=1+/host=2/gpu=2,walltime=1:0:0" ', 5),
        ('-l "/host=ALL/gpu=1,walltime=1:0:0" ', None),
        ("", None),
        ('-l "' + "/gpu=9" * 9999, 9),
    ],
)
def test_gpus_are_those_of_the_request(wanted, gpus):
    assert gpus_of(wanted) == gpus


HOSTILE = [
    *[None, 3, [], "x", {}, {"Job_Id": "7"}, {"Job_Id": -7}, {"Job_Id": True}, {"Job_Id": 1 << 70}],
    *[{"Job_Id": 7, "state": "Terminated"}, {"Job_Id": 7, "state": {}}, {"Job_Id": 7, "state": "Terminated" * 99}],
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_job_in_an_unknown_form_is_skipped_and_counted(hostile):
    records, skipped = read_records([*recorded("oarstat-ends.json"), *[hostile] * 30])
    assert (len(records), skipped) == (12, 30)


def test_the_form_of_oar_3_gives_facts_without_resources(commands):
    job = {
        **{"id": 134921, "array_id": 134921, "array_index": 1, "user": "alice", "state": "Running", "stop_time": 0},
        **{"queue_name": "default", "start_time": 1795646438, "submission_time": 1795646436, "cpuset_name": "alice_1"},
    }
    commands.answers(command(RUNNING), json.dumps({"134921": job}))
    (record,) = OarRecords().running()
    assert (record.job, record.owner, record.queue, record.state) == (134921, "alice", "default", "running")
    assert (record.started, record.submitted, record.allocated_cores) == (1795646438, 1795646436, None)


def test_times_in_another_form_are_an_error_that_shows_them():
    job = {**recorded("oarstat-ends.json")[0], "startTime": "2026-11-28 04:00:00"}
    with pytest.raises(BatchError, match=r"startTime of .*2026-11-28 04:00:00"):
        read_records([job])


@contextlib.contextmanager
def rest_server(jobs, status=200):
    """OAR's REST interface, as far as it is needed."""

    def answer(handler):
        query = dict(part.split("=", 1) for part in handler.path.partition("?")[2].split("&"))
        found = [one for one in jobs if one["state"] in query.get("state", one["state"]).split(",")]
        at, limit = int(query["offset"]), int(query["limit"])
        return status, {}, json.dumps({"items": found[at : at + limit], "total": len(found)}).encode()

    with serving() as server:
        server.otherwise = answer
        server.url = f"http://{server.place}/oarapi/"
        yield server


def test_the_rest_interface_is_asked_page_by_page(monkeypatch):
    monkeypatch.setattr(oar, "PAGE", 5)
    with rest_server(recorded("rest-ends.json") + recorded("rest-runs.json")) as server:
        source = OarRestRecords(server.url)
        assert ends(source.ended(0, 1 << 40)) == ENDS
        assert [path.partition("&")[0] for path, _ in server.asked] == [
            "/oarapi/jobs/details.json?state=Terminated,Error"
        ] * 3
        assert {one.job for one in source.running()} == {5, 6, 7}, "8 is launched"
        assert source.ended(1795646462, 1 << 40)[0].job == 12, "others ended before"
        assert {one.job: one.dependency for one in source.named([9])}[9] == "6"
        source.close()


def test_jobs_beyond_what_one_query_reads_are_skipped_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(oar, "PAGE", 1)
    monkeypatch.setattr(oar, "MAX_PAGES", 2)
    jobs = recorded("rest-ends.json")
    assert len(jobs) > 2
    with rest_server(jobs) as server:
        source = OarRestRecords(server.url)
        source._ask("state=Terminated", pages=2)
        assert source.skipped == 1
        source.close()
    assert "OAR has more jobs than one query reads" in caplog.text


def test_a_rest_interface_that_fails_is_an_error_with_the_remedy():
    with rest_server([], status=500) as server:
        source = OarRestRecords(server.url)
        with pytest.raises(
            BatchError, match=r"status 500; does OAR's REST interface run there, and may this machine ask"
        ):
            source.running()
        source.close()
    source = OarRestRecords("http://127.0.0.1:9/oarapi")
    with pytest.raises(BatchError, match=r"127.0.0.1:9/oarapi: Connection refused"):
        source.running()
    source.close()
    with pytest.raises(ConfigError, match="not a URL"):
        OarRestRecords("/oarapi")


def test_a_user_and_a_password_are_sent_and_never_shown():
    with rest_server([], status=401) as server:
        source = OarRestRecords(server.url.replace("//", "//ann:secret@"))
        with pytest.raises(BatchError, match=r"^http://127\.0\.0\.1:[0-9]+/oarapi: status 401"):
            source.running()
        assert server.asked[0][1]["Authorization"] == "Basic YW5uOnNlY3JldA=="
        source.close()


@pytest.mark.parametrize(
    "field", ["Job_Id", "state", "owner", "stopTime", "startTime", "events", "exit_code", "walltime", "name", "nodes"]
)
def test_no_value_of_a_field_is_worse_than_a_skipped_job(field):
    jobs = recorded("oarstat-ends.json")
    for value in (None, {}, [], "", -1, "a\nb\x1b[31m", "x" * 300, 1e300, [None], [{"type": []}]):
        records, skipped = read_records([*jobs, {**jobs[0], field: value}])
        assert len(records) + skipped in (12, 13), value
        for record in records:
            assert all(not isinstance(word, str) or (word.isprintable() and len(word) < 300) for word in record), value


# -- queues and jobs --


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
        *[("Waiting", "idle"), ("toAckReservation", "idle"), ("Hold", "held"), ("Suspended", "held")],
        *[(state, "running") for state in ("toLaunch", "Launching", "Running", "Resuming", "Finishing")],
        *[("Terminated", "finished"), ("Error", "removed"), ("toError", "removed"), ("SomethingNew", "unknown")],
    ],
)
def test_states_are_those_of_all_batch_systems(said, state):
    assert listed_job({**recorded_jobs()["7"], "state": said}, NOW).job.state == state


def test_a_job_in_a_form_that_is_not_known_is_skipped_and_counted(commands):
    jobs = recorded_jobs()
    jobs["7"].pop("owner")
    jobs["8"] = "a text"
    commands.answers(oar.JOBS, json.dumps(jobs))
    system = OAR()
    assert {job.id for job in system.jobs()} == {"2", "3", "10", "11", "12"}
    assert system.skipped == 2


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"1": 2}', "{} {}", "oarstat: cannot connect", '{"7": {"state": "Running"}}']
)
def test_an_answer_in_another_form_is_an_error(commands, text):
    for question, ask in ((oar.JOBS, OAR().jobs), (command(RUNNING), OarRecords().running)):
        commands.answers(question, text)
        with pytest.raises(BatchError, match=r"oarstat -J.*: prints what this version of Colmet does not know"):
            ask()


def test_an_oar_that_is_not_there_or_fails_is_an_error(commands):
    with pytest.raises(BatchError, match="oarstat -J: no such program; run this where the commands of OAR are"):
        OAR().jobs()
    commands.answers(oar.JOBS, status=2, said="DBI connect failed: Connection refused")
    with pytest.raises(BatchError, match="oarstat -J: returned 2: DBI connect failed: Connection refused; run it by"):
        OAR().queues()
