"""Slurm's queues and jobs, of what its commands printed; beside the real Slurm: tests/beds/test_slurm.py."""

from __future__ import annotations

import copy
import json
import time

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from colmet.batch import slurm
from colmet.batch.answers import FormError
from colmet.batch.model import BatchError, BatchJob, Queue
from colmet.batch.slurm import (
    Slurm,
    count_of,
    elapsed_s,
    json_entries,
    json_entry,
    number,
    size_mb,
    state_of,
    tasks_of,
    text_entries,
    text_entry,
    tres,
)
from tests.support.batch_commands import DATA, Commands

RECORDED = DATA / "slurm"
NOW = 1795346250  # when squeue-22.05.json was recorded
JOBS = json.loads((RECORDED / "squeue-22.05.json").read_text())["jobs"]
LATER = 1795346100  # when squeue-24.05.json would have been


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(NOW))
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(slurm.PARTITIONS, RECORDED / "sinfo.txt")
    return commands


def newer(monkeypatch, commands):
    monkeypatch.setattr(time, "time", lambda: float(LATER))
    commands.answers(slurm.JSON, RECORDED / "squeue-24.05.json")
    commands.answers(slurm.PARTITIONS, "main\nbig\nmain\nspare\n")
    return Slurm()


# -- Slurm 22.05, as recorded --


def test_partitions_are_counted_as_squeue_lists_them(commands):
    """By hand: array 4 has 8 tasks that wait, array 7 has 5 that are held, array 10 has 30, for two partitions."""
    commands.answers(slurm.JSON, RECORDED / "squeue-22.05.json")
    waits_in_bed = 8 + len(["5", "6", "12+0", "12+1", "14", "15"])
    held_in_bed = 5 + 30 + len(["3", "1 is suspended"])
    system = Slurm()
    assert system.queues() == [
        # jobs 4_1 and 4_2 have not asked for memory, which this Slurm does not hand out
        Queue("bed", idle=waits_in_bed, running=3, held=held_in_bed, cores=4, memory_mb=None),
        Queue("quiet", idle=0, running=0, held=30, cores=0, memory_mb=0),
        Queue("hidden", idle=1, running=0, held=0, cores=0, memory_mb=0),
    ]
    assert system.left_out == 0


def test_jobs_are_reported_with_the_tasks_of_arrays_one_by_one(commands):
    commands.answers(slurm.JSON, RECORDED / "squeue-22.05.json")
    jobs = {job.id: job for job in Slurm().jobs()}
    assert len(jobs) == 3 + 1 + 1 + 6 + 1 + 8 + 5 + 30
    assert jobs["2"] == BatchJob("2", "colmet-slurm", "running", NOW - 1795345905, "bed")
    assert jobs["4_2"].state == "running" and jobs["4_3"].state == jobs["4_10"].state == "idle"
    assert jobs["7_9"] == BatchJob("7_9", "root", "held", 0, "bed")
    assert jobs["10_59"].queue == "quiet,bed"
    assert jobs["12+1"].state == "idle"
    assert "16" not in jobs  # it was cancelled, and is in the JSON for some minutes more


def test_a_suspended_job_is_held_and_has_run_until_then(commands):
    commands.answers(slurm.JSON, RECORDED / "squeue-22.05.json")
    (job,) = [job for job in Slurm().jobs() if job.id == "1"]
    assert job == BatchJob("1", "colmet-slurm", "held", 340, "bed")


def test_both_forms_of_squeue_tell_the_same():
    from_json, left_out = json_entries((RECORDED / "squeue-22.05.json").read_text(), NOW)
    from_text, left_out_too = text_entries((RECORDED / "squeue-22.05.txt").read_text())
    assert left_out == left_out_too == 0
    ids = [{entry.job.id: entry.job for entry in entries} for entries in (from_json, from_text)]
    assert ids[0].keys() == ids[1].keys()
    for job in ids[0].values():
        other = ids[1][job.id]
        assert abs(job.runtime_s - other.runtime_s) <= 1
        assert job._replace(runtime_s=0) == other._replace(runtime_s=0)
    assert sorted(map(str, (entry.tasks for entry in from_json))) == sorted(map(str, (e.tasks for e in from_text)))
    assert sorted(entry.cores or 0 for entry in from_json) == sorted(entry.cores or 0 for entry in from_text)


# -- newer ones --


def test_newer_slurms_say_numbers_and_states_in_other_shapes(commands, monkeypatch):
    system = newer(monkeypatch, commands)
    assert system.queues() == [
        Queue(
            "main", idle=1 + 99, running=4, held=1, cores=8 + 2 + 4 + 1, memory_mb=64000 + 4000 + 8 * 1024 + 1024 * 1024
        ),
        Queue("big", idle=1, running=2, held=2, cores=4, memory_mb=4096),
        Queue("spare", idle=0, running=0, held=0, cores=0, memory_mb=0),
    ]
    jobs = {job.id: job for job in system.jobs()}
    assert jobs["501"] == BatchJob("501", "alice", "running", 200, "main")
    assert jobs["503"] == BatchJob("503", "alice", "running", 100, "main")  # completing: it is over since
    assert jobs["505"] == BatchJob("505", "alice", "idle", 0, "main,big")
    assert jobs["506_0"].state == "running" and jobs["506_2"].state == jobs["506_100"].state == "idle"
    assert jobs["510"] == BatchJob("510", "alice", "held", 100, "big")
    assert jobs["511"].user == "2002"  # a user that has no name where squeue runs
    assert jobs["512+1"].state == "running"
    assert not {"508", "509"} & jobs.keys()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (3.0, 3),
        (None, None),
        ({"set": True, "infinite": False, "number": 4}, 4),
        ({"set": True, "number": 4}, 4),
        ({"set": False, "infinite": False, "number": 4}, None),
        ({"set": True, "infinite": True, "number": 4}, None),
        ({}, None),
        ("4", None),
        (-1, None),
    ],
)
def test_a_number_is_read_in_every_shape(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    ("states", "reason", "hold", "expected"),
    [
        (["PENDING"], "Resources", False, "idle"),
        (["PENDING"], "QOSUsageThreshold", False, "idle"),
        (["PENDING"], "JobHeldAdmin", False, "held"),
        (["PENDING"], "JobHoldMaxRequeue", False, "held"),
        (["PENDING"], "launch failed requeued held", False, "held"),
        (["PENDING"], "", True, "held"),
        (["PENDING", "SPECIAL_EXIT"], "", False, "held"),
        (["REQUEUE_HOLD"], "", False, "held"),
        (["RUNNING"], "", False, "running"),
        (["COMPLETING"], "", False, "running"),
        (["CANCELLED", "COMPLETING"], "", False, "running"),
        (["SUSPENDED"], "", False, "held"),
        (["FAILED"], "", False, "finished"),
        (["CANCELLED"], "", False, "removed"),
        (["SOMETHING_NEW"], "", False, "unknown"),
    ],
)
def test_states_are_those_of_all_batch_systems(states, reason, hold, expected):
    assert state_of(states, reason, hold) == expected


# -- parts --


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


def test_memory_that_is_not_handed_out_is_what_the_job_asked_for():
    (content,) = [job for job in JOBS if job["job_id"] == 2]
    assert json_entry(content, NOW).memory_mb == 100
    assert json_entry({**content, "node_count": 3}, NOW).memory_mb == 300
    by_core = {**content, "memory_per_node": None, "memory_per_cpu": 50}
    assert json_entry(by_core, NOW).memory_mb == 2 * 50
    assert json_entry({**content, "memory_per_node": 0}, NOW).memory_mb is None  # all that the node has
    assert json_entry({**content, "tres_alloc_str": "cpu=2,mem=1G"}, NOW).memory_mb == 1024


# -- what fails --


def with_jobs(jobs):
    return json.dumps({"jobs": jobs})


def test_a_job_in_a_form_that_is_not_known_is_left_out_and_counted(commands):
    jobs = copy.deepcopy(JOBS)
    jobs[1]["job_id"] = "two"
    jobs[4] = ["a list"]
    jobs[5].pop("partition")
    jobs[6]["array_task_string"] = "3,5,7-..."
    commands.answers(slurm.JSON, with_jobs(jobs))
    system = Slurm()
    bed = system.queues()[0]
    assert (bed.running, bed.idle, bed.held) == (3 - 1, 14 - 2, 37 - 5)
    assert system.left_out == 4


@pytest.mark.parametrize("field", ["job_id", "job_state", "user_name", "partition", "start_time"])
@pytest.mark.parametrize("value", [None, [], {}, "", -1, "\n", "x" * 300])
def test_no_value_of_a_field_is_worse_than_a_job_that_is_left_out(field, value):
    (content,) = [job for job in JOBS if job["job_id"] == 2]
    content = {**content, field: value}
    if field == "user_name":
        content["user_id"] = None
    with pytest.raises(FormError):
        json_entry(content, NOW)


@for_all(
    st.dictionaries(
        st.sampled_from(sorted({key for job in JOBS for key in job})),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=8), part, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    ),
    st.sampled_from(JOBS),
)
def test_whatever_a_job_has_it_is_read_or_refused(changes, job):
    content = {**job, **changes}
    try:
        entry = json_entry(content, NOW)
    except FormError:
        return
    assert entry.job.runtime_s >= 0 and entry.size >= 1 and entry.job.user and entry.job.queue


@pytest.mark.parametrize(
    "line", ["", "1|2", "1|bed|al|RUNNING|None|x|2", "|bed|al|RUNNING|None|0:01|2", "1|bed||RUNNING|None|0:01|2"]
)
def test_a_line_in_another_form_is_refused(line):
    with pytest.raises(FormError):
        text_entry(line)


def test_without_json_the_other_form_is_asked_for(commands):
    """As where Slurm was built without it; memory is then asked for apart."""
    commands.answers(slurm.JSON, status=1, said="squeue: unrecognized option '--json'")
    commands.answers(slurm.TEXT, RECORDED / "squeue-22.05.txt")
    given = {"2": "cpu=2,mem=100M,node=1", "4_1": "cpu=1,mem=1G", "4_2": "cpu=1,mem=1G"}
    commands.answers(slurm.GIVEN, "".join(f"{job:<64}{what:<255}\n" for job, what in given.items()))
    bed = Slurm().queues()[0]
    assert bed == Queue("bed", idle=14, running=3, held=37, cores=4, memory_mb=100 + 2 * 1024)


def test_too_much_json_is_asked_for_once_only(commands, monkeypatch):
    monkeypatch.setattr(slurm, "Cached", lambda get: get)
    commands.answers(slurm.JSON, "x" * (33 << 20))
    commands.answers(slurm.TEXT, RECORDED / "squeue-22.05.txt")
    system = Slurm()
    assert len(system.jobs()) == len(system.jobs()) == 55
    assert len([line for line in commands.asked("squeue") if "--json" in line]) == 1


def test_a_slurm_that_does_not_answer_is_asked_no_more_in_vain(commands):
    """Neither a command that is not there nor one that hangs is better asked in another form."""
    with pytest.raises(BatchError, match=r"squeue --all --json: no such program.*where the commands of Slurm are"):
        Slurm().jobs()


def test_it_is_an_error_that_slurm_refuses_both_forms(commands):
    refusal = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    for form in (slurm.JSON, slurm.TEXT):
        commands.answers(form, status=1, said=refusal)
    with pytest.raises(BatchError, match=r"Unable to contact slurm controller.*run it by hand"):
        Slurm().queues()


def test_no_controller_is_not_taken_for_no_jobs(commands):
    """squeue --json then prints a list without jobs, and ends with 0."""
    commands.answers(slurm.JSON, RECORDED / "squeue-22.05-down.json")
    commands.answers(slurm.TEXT, status=1, said="slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(BatchError, match="Unable to contact slurm controller"):
        Slurm().jobs()
    with pytest.raises(BatchError, match="squeue --all --json: 'Failed while looking for jobs'; run it by hand"):
        json_entries((RECORDED / "squeue-22.05-down.json").read_text(), NOW)


@pytest.mark.parametrize("errors", [["text"], [[]], {"a": 1}, "text", 1, [{"error": 5}], [{}]])
def test_errors_in_any_form_are_errors(errors):
    with pytest.raises(BatchError, match="squeue --all --json: "):
        json_entries(json.dumps({"errors": errors, "jobs": []}), NOW)


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": {}}', '{"jobs": [1, 2]}', "[]", '{"jobs": []} {"jobs": []}'])
def test_json_of_another_form_is_an_error(text):
    with pytest.raises(BatchError, match="squeue --all --json: prints what this version"):
        json_entries(text, NOW)


def test_no_job_at_all_is_no_error(commands):
    commands.answers(slurm.JSON, with_jobs([]))
    assert [queue[1:] for queue in Slurm().queues()] == [(0, 0, 0, 0, 0)] * 3


def test_without_sinfo_partitions_with_jobs_are_listed_all_the_same(commands):
    commands.answers(slurm.PARTITIONS, status=1, said="no")
    commands.answers(slurm.JSON, RECORDED / "squeue-22.05.json")
    assert {queue.name for queue in Slurm().queues()} == {"bed", "quiet", "hidden"}


def test_a_very_long_array_is_counted_whole_and_listed_in_part(commands):
    jobs = copy.deepcopy(JOBS[8:9])
    jobs[0]["array_task_string"] = "0-999999"
    commands.answers(slurm.JSON, with_jobs(jobs))
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
