"""Grid Engine: what its commands printed on a real cell counted by hand, hostile answers, and the watch around them."""

from __future__ import annotations

import math
import os
import re
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.batch import gridengine, gridengine_watch, gridengine_xml
from colmet.batch.answers import BatchError
from colmet.batch.gridengine import JOBS, NO_QUEUE, GridEngine, count_queues, read_jobs, read_task
from colmet.batch.gridengine_memory import parse_memory, parse_qhost, read_memory
from colmet.batch.gridengine_watch import KEPT_PERIODS, CommandSource, FileSource, MemorySource, MemoryWatch
from colmet.batch.gridengine_xml import Sieve
from colmet.batch.systems import Queue
from colmet.common.errors import ConfigError
from tests.support.batch_commands import Commands
from tests.support.waiting import Clock, wait_for

DATA = Path(__file__).parents[1] / "data/gridengine"
QHOST = (DATA / "qhost-j.xml").read_bytes()
QSTAT = (DATA / "qstat-j.xml").read_bytes()
TASKS = (DATA / "qstat-r.xml").read_bytes()
GRANTED = (DATA / "qstat-sr.xml").read_bytes()
NONE = (DATA / "unknown.xml").read_bytes()
OWNER = "colmet-sge"
ALL_JOBS = ["qstat", "-j", "*", "-xml"]
EMPTY = b"<?xml version='1.0'?>\n<qhost></qhost>"


def parse_tasks(data):
    return [read_task(element) for element in read_jobs(data, JOBS)]


def granted():
    return {(task.number, task.tasks): task.slots for task in parse_tasks(GRANTED)}


def of_the_cell(qhost=QHOST, qstat=QSTAT, granted=granted):
    return read_memory(qhost, qstat, "utf-8", granted)


def counted(hosts):
    """(host, job, task) -> slots."""
    return {
        (host, int(number), task): job["jobcount"] * max(job["taskid"].count(task), 1)
        for host, there in hosts.items()
        for number, job in there["jobs"].items()
        for task in job["taskid"] or [""]
    }


def without(text, job):
    """What `qstat -j` prints, without a job."""
    start = text.rindex(b"    <element>\n", 0, text.index(b"<JB_job_number>%d<" % job))
    return text[:start] + text[text.index(b"\n    </element>\n", start) + len(b"\n    </element>\n") :]


# qhost -j and qstat -j of a real cell: slots from qstat-f.txt, jobs and what they use from qstat-j.txt


def test_slots_are_those_that_qstat_f_printed():
    assert counted(of_the_cell().hosts) == {
        **{("node1", job, ""): slots for job, slots in ((2, 1), (5, 2), (6, 1), (7, 2))},
        **{("node1", 3, task): 1 for task in ("1", "2", "3")},
        **{("node2", job, ""): slots for job, slots in ((1, 1), (4, 3), (5, 2), (6, 1), (7, 2))},
        **{("node2", 8, "1"): 2, ("node2", 8, "2"): 2, ("node2", 11, "1"): 1},
    }


@pytest.mark.parametrize(
    ("host", "job", "answer"),
    [
        ("node1", "5", {"jobcount": 2, "master": True, "taskid": [], "jobname": "across"}),
        ("node2", "5", {"jobcount": 2, "master": False, "taskid": [], "jobname": "across"}),
        # an array has a slot for each task, or that many if its tasks are parallel
        ("node1", "3", {"jobcount": 1, "master": True, "taskid": ["1", "2", "3"], "jobname": "array"}),
        ("node2", "8", {"jobcount": 2, "taskid": ["1", "2"]}),
    ],
)
def test_a_job_has_its_master_and_tasks(host, job, answer):
    answered = of_the_cell().hosts[host]["jobs"][job]
    assert answered == {**answered, **answer, "owner": OWNER}


def test_a_master_task_without_a_slot_is_not_counted():
    """Job 6 has three lines in qhost for its two slots: job_is_first_task is FALSE."""
    assert QHOST.count(b"<job name='6'>") == 3
    assert sum(slots for (_, job, _), slots in counted(of_the_cell().hosts).items() if job == 6) == 2


@pytest.mark.parametrize(
    ("others", "granted", "slots"),
    [
        (without(QSTAT, 6), granted, (2, 2)),  # by what it was given
        (QSTAT, None, (2, 2)),  # as another one of its parallel environment: files have no third command
        (without(QSTAT, 6), None, (3, 2)),  # of which nothing else is known: all its lines
    ],
)
def test_a_job_that_asked_for_a_range_is_counted(others, granted, slots):
    """Job 7 has five lines, and asked for 2 to 9."""
    assert QHOST.count(b"<job name='7'>") == 5
    hosts = counted(of_the_cell(qstat=others, granted=granted).hosts)
    assert (hosts["node1", 7, ""], hosts["node2", 7, ""]) == slots


def test_processors_and_memory_are_as_printed_and_the_host_global_is_none():
    hosts = {name: (host["num_proc"], host["mem_total"]) for name, host in of_the_cell().hosts.items()}
    assert hosts == dict.fromkeys(("node1", "node2"), ("2", "23.5G"))


def test_every_job_has_its_owner_and_what_it_asked_for():
    owners = of_the_cell().owners
    assert list(owners) == [OWNER]
    assert owners[OWNER]["uid"] == "995"
    asked = {
        int(number): (job["requested_h_vmem_strval"], job["requested_h_vmem_dblval"])
        for number, job in owners[OWNER]["jobs"].items()
    }
    assert asked == {
        **{1: ("1G", 2.0**30), 2: ("", 0.0), 3: ("0.5G", 2.0**29), 4: ("300M", 300 * 2.0**20), 5: ("200m", 200e6)},
        **{6: ("256M", 2.0**28), 7: ("2G", 2.0**31), 8: ("100M", 100 * 2.0**20), 9: ("", 0.0), 10: ("1G", 2.0**30)},
        **{11: ("10M", 10 * 2.0**20), 12: ("9G", 9 * 2.0**30)},
    }


def test_what_masters_and_slaves_used_adds_up_to_what_qstat_j_printed():
    jobs = of_the_cell().owners[OWNER]["jobs"]
    number = None
    for line in (DATA / "qstat-j.txt").read_text().splitlines():
        if line.startswith("job_number"):
            number = line.split()[1]
        elif line.startswith("usage"):
            task, used = re.fullmatch(r"usage +([0-9]+):.*maxvmem=(\S+)", line).groups()
            total = 0.0
            for roles in jobs[number]["hostname"].values():
                total += sum(float(value) for role, value in roles.items() if role in (task, "master", "slave"))
            assert total == pytest.approx(parse_memory(used), rel=2e-4), (number, task)


def test_a_job_that_only_one_of_the_two_commands_knows_does_no_harm():
    memory = of_the_cell(qstat=without(QSTAT, 5))
    assert "5" in memory.hosts["node1"]["jobs"]
    assert "5" not in memory.owners[OWNER]["jobs"]
    memory = of_the_cell(qhost=EMPTY)
    assert memory.hosts == {}
    assert all(job["hostname"] == {} for job in memory.owners[OWNER]["jobs"].values())


def test_unequal_shares_of_a_host_repeat_a_task():
    """Two tasks of an array with 1 and 3 slots: jobcount times entries in taskid is right all the same."""
    lines = [("1", "MASTER"), ("2", "SLAVE"), ("2", "SLAVE"), ("2", "SLAVE")]
    text = "".join(
        f"<job name='4'><jobvalue name='pe_master'>{role}</jobvalue><jobvalue name='taskid'>{task}</jobvalue></job>"
        for task, role in lines
    )
    hosts = read_memory(f"<qhost><host name='n'>{text}</host></qhost>".encode(), NONE, "utf-8").hosts
    job = hosts["n"]["jobs"]["4"]
    assert (job["jobcount"], job["taskid"]) == (1, ["1", "2", "2", "2"])


def test_a_request_for_the_whole_job_is_divided_by_its_slots():
    text = QSTAT[: QSTAT.index(b"<JB_job_number>4<")], QSTAT[QSTAT.index(b"<JB_job_number>4<") :]
    per_job = text[0] + text[1].replace(b"<CE_consumable>1<", b"<CE_consumable>2<", 1)
    job = of_the_cell(qstat=per_job).owners[OWNER]["jobs"]["4"]
    assert job["requested_h_vmem_strval"] == "300M"
    assert job["requested_h_vmem_dblval"] == 100 * 2.0**20


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        *[("2G", 2.0**31), ("2g", 2e9), ("3m", 3e6), ("1.5M", 1.5 * 2**20), ("1.5T", 1.5 * 2**40), ("7k", 7000.0)],
        *[
            ("7K", 7168.0),
            ("100", 100.0),
            (".5K", 512.0),
            ("0x10M", 16.0 * 2**20),
            ("010", 8.0),
            ("0", 0.0),
            ("0.0", 0),
        ],
        *[("INFINITY", None), ("", None), ("-", None), ("-1G", None), ("1GB", None), ("1P", None), ("09", None)],
        *[("9" * 400, None), ("9" * 12 + "T", None), ("1e9", None), ("\u0661", None), ("1 G", None), ("G", None)],
    ],
)
def test_memory_is_read_as_grid_engine_does(text, memory):
    assert parse_memory(text) == memory


# answers that are none


def test_control_characters_do_no_harm():
    """In the real answer, too: those of a job's environment are printed as they are."""
    assert b"<VA_value>\x01\x1b[1m" in QSTAT
    odd = QHOST.replace(b">across<", b">ac\x00ro\x08ss&#1;&#x1F;&#xFFFF;&#x110000;\xef\xbf\xbf&amp;\xc3\xa9\x7f<")
    names = {job["jobname"] for job in of_the_cell(qhost=odd).hosts["node1"]["jobs"].values()}
    assert "ac\ufffdro\ufffdss" + "\ufffd" * 5 + "&\xe9\x7f" in names


@pytest.mark.parametrize("tag", ["JB_env_list", "JB_job_args", "JB_context"])
@given(st.integers(1, 30))
def test_what_users_give_their_jobs_is_sieved_wherever_a_part_ends(tag, size):
    data = f"<a>x<{tag}>&boo; <{tag}> </a> </JB_job></{tag}>y<{tag}></{tag}>z</a><{tag}".encode()
    sieve = Sieve()
    kept = b"".join(sieve.keep(data[start : start + size]) for start in range(0, len(data), size))
    assert kept == f"<a>x<{tag}></{tag}>y<{tag}></{tag}>z</a><{tag}".encode()
    assert sieve.keep(b">" + b"x" * 100) == b">"
    assert sieve.keep(b"x" * 100) == b""


def test_a_name_in_another_encoding_keeps_nobody_else_from_being_read():
    hosts, owners, left_out = of_the_cell(
        QHOST.replace(b">across<", b">\xe9t\xe9<"), QSTAT.replace(b"<JB_env_list>", b"<JB_env_list>\xff\xc3", 1)
    )
    assert hosts["node1"]["jobs"]["5"]["jobname"] == "\ufffdt\ufffd"
    assert counted(hosts) == counted(of_the_cell()[0])
    assert (owners, left_out) == (of_the_cell()[1], 0)
    assert len(parse_tasks(TASKS.replace(b"<JB_name>", b"<JB_name>\xe9"))) == len(parse_tasks(TASKS))


@pytest.mark.parametrize("encoding", ["klingon", "base64", "rot13", "hex", "utf-8\0"])
def test_an_encoding_that_is_none_is_said(encoding):
    with pytest.raises(BatchError, match="no encoding is named"):
        read_memory(QHOST, QSTAT, encoding)
    with pytest.raises(ConfigError, match="no encoding is named"):
        MemoryWatch(CommandSource(), encoding=encoding)


def test_text_instead_of_xml_is_reported():
    text = (DATA / "no-master.txt").read_bytes()
    with pytest.raises(BatchError, match=r"qhost -j -xml: error: commlib error: .*; is the master up"):
        of_the_cell(qhost=text)
    with pytest.raises(BatchError, match="said nothing"):
        of_the_cell(qstat=b"")
    with pytest.raises(BatchError) as caught:
        of_the_cell(qstat=b"\x1b[2Jboo\x07" + b"x" * 1000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<!DOCTYPE qhost [<!ENTITY a 'aaaa'>]><qhost>&a;</qhost>", "DOCTYPE"),
        (b"<!-- x --><!DOCTYPE qhost SYSTEM 'file:///etc/passwd'><qhost/>", "DOCTYPE"),
        (b"<qhost>&boo;</qhost>", "undefined entity"),
        (b"<qhost><host name='n'>" + b"<a>" * 100, "40 elements in one another"),
        (b"<html><body>Not found</body></html>", "begins with <html>, not <qhost>"),
        (b"<qhost><host name='n'>", "no whole XML document"),
        (b"<qhost></qhost><qhost></qhost>", "no whole XML document"),
        (b"<", "no whole XML document"),
    ],
)
def test_a_document_that_grid_engine_never_prints_is_refused(data, says):
    with pytest.raises(BatchError, match=says):
        parse_qhost(data, "utf-8")


@pytest.mark.slow
def test_an_answer_that_was_cut_is_refused_wherever_it_was():
    for size in range(0, len(QSTAT) - 1, 997):
        with pytest.raises(BatchError):
            of_the_cell(qstat=QSTAT[:size])


def test_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(gridengine_xml, "MAX_BYTES", len(QSTAT) - 1)
    with pytest.raises(BatchError, match="more than 0 MiB; refused"):
        of_the_cell()
    monkeypatch.undo()
    monkeypatch.setattr(gridengine_xml, "MAX_ELEMENTS", 100)
    with pytest.raises(BatchError, match="one <host> has more than 100 elements"):
        of_the_cell()


def test_jobs_and_tasks_without_a_number_are_left_out_and_counted():
    qhost = QHOST.replace(b"<job name='5'>", b"<job name='five'>").replace(b"'taskid'>1<", b"'taskid'>1;2<")
    qstat = QSTAT.replace(b"<JB_job_number>6<", b"<JB_job_number>-6<").replace(b"_number>3</JAT", b"_number></JAT")
    memory = of_the_cell(qhost=qhost, qstat=qstat)
    assert "6" not in memory.owners[OWNER]["jobs"]
    assert "five" not in memory.hosts["node1"]["jobs"]
    # 4 lines of job 5; one of job 3, two of job 8 and one of job 11; job 6; task 3 of job 3
    assert memory.left_out == 4 + 1 + 2 + 1 + 1 + 1


@given(st.data())
def test_whatever_is_changed_it_is_read_or_refused(data):
    """No other exception, and numbers that JSON has."""
    answers = []
    for answer in (QHOST, QSTAT[: QSTAT.index(b"<JB_job_number>4<")] + QSTAT[QSTAT.index(b"<JB_job_number>12<") :]):
        text = bytearray(answer)
        for _ in range(data.draw(st.integers(0, 3))):
            start = data.draw(st.integers(0, len(text) - 1))
            text[start : start + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
        answers.append(bytes(text))
    try:
        memory = read_memory(*answers, "iso-8859-15")
    except BatchError:
        return
    for owner in memory.owners.values():
        for job in owner["jobs"].values():
            assert math.isfinite(job["requested_h_vmem_dblval"])
            assert all(math.isfinite(float(used)) for roles in job["hostname"].values() for used in roles.values())
    assert all(job["jobcount"] >= 1 for host in memory.hosts.values() for job in host["jobs"].values())


# queues and jobs


def test_queues_have_their_jobs_and_slots():
    """By hand: qstat-f.txt, of the same time."""
    assert count_queues(["main.q", "other.q"], parse_tasks(TASKS)) == [
        Queue("main.q", idle=0, running=11, held=0, cores=22, memory_mb=None),  # job 2 asked for no memory
        Queue("other.q", idle=2, running=1, held=0, cores=1, memory_mb=10),
        Queue(NO_QUEUE, idle=5, running=0, held=2, cores=0, memory_mb=0),
    ]


def test_jobs_are_lines_of_qstat():
    started = {task.number: task.started for task in parse_tasks(TASKS)}
    now = started["1"] + 100
    jobs = {job.id: job for job in (task.job(now) for task in parse_tasks(TASKS))}
    assert " ".join(jobs) == "1 2 3.1 3.2 3.3 4 5 6 7 8.1 8.2 11.1 9 11.2,3 12.1-9:2 10"
    assert jobs["1"] == ("1", OWNER, "running", 100, "main.q")
    assert jobs["11.1"].queue == "other.q"
    assert jobs["9"] == ("9", OWNER, "held", 0, None)
    assert jobs["12.1-9:2"] == ("12.1-9:2", OWNER, "idle", 0, None)


def line(state="r", number="7", slots="1", extra="", queue="main.q@n1"):
    return (
        f"<job_info><queue_info><job_list><JB_job_number>{number}</JB_job_number><JB_owner>u</JB_owner>"
        f"<state>{state}</state><queue_name>{queue}</queue_name><slots>{slots}</slots>{extra}</job_list></queue_info>"
        "</job_info>"
    ).encode()


@pytest.mark.parametrize(
    ("letters", "state"),
    [
        *[("r", "running"), ("t", "running"), ("Rr", "running"), ("hr", "running"), ("qw", "idle"), ("Rq", "unknown")],
        *[("hqw", "held"), ("hRwq", "held"), ("Eqw", "held"), ("s", "held"), ("S", "held"), ("T", "held")],
        *[("dr", "removed"), ("dt", "removed"), ("x", "unknown")],
    ],
)
def test_letters_are_states(letters, state):
    assert parse_tasks(line(letters))[0].job(0).state == state


@pytest.mark.parametrize(
    ("tasks", "size"), [("", 1), ("3", 1), ("1-3:1", 3), ("1-9:2", 5), ("2,3", 2), ("1,4-6:1,9-11:2", 6), ("...", 1)]
)
def test_tasks_that_wait_are_counted_one_by_one(tasks, size):
    assert parse_tasks(line("qw", queue="", extra=f"<tasks>{tasks}</tasks>"))[0].size() == size


@pytest.mark.parametrize(
    ("asked", "queue"),
    [
        (["main.q"], "main.q"),
        (["main.q@n1"], "main.q"),
        (["main.q@n1", "main.q@n2"], "main.q"),
        (["main.q", "other.q"], NO_QUEUE),
        (["*.q"], NO_QUEUE),
        (["gone.q"], NO_QUEUE),
        ([], NO_QUEUE),
    ],
)
def test_a_job_that_waits_counts_for_the_queue_that_it_asked_for(asked, queue):
    extra = "".join(f"<hard_req_queue>{name}</hard_req_queue>" for name in asked)
    queues = count_queues(["main.q", "other.q"], parse_tasks(line("qw", queue="", extra=extra)))
    assert [found.name for found in queues if found.idle] == [queue]


@pytest.mark.parametrize("broken", [{"number": "x"}, {"slots": ""}, {"state": ""}, {"number": "\u0661"}])
def test_a_line_of_another_form_is_skipped_and_counted(commands, broken):
    commands.answers(JOBS, (line(**broken) + line()).decode().replace("</job_info><job_info>", ""))
    system = GridEngine()
    assert [job.id for job in system.jobs()] == ["7"] and system.skipped == 1


# commands


@pytest.fixture
def commands(tmp_path, monkeypatch):
    return Commands(tmp_path / "bin", monkeypatch)


def real(commands):
    """The commands, as the real cell answered."""
    commands.answers(["qhost", "-j", "-xml"], DATA / "qhost-j.xml")
    for command, name in ((ALL_JOBS, "j"), (JOBS, "r"), (gridengine_watch.GRANTED, "sr"), (gridengine.QUEUES, "gc")):
        commands.answers(command, DATA / f"qstat-{name}.xml")


def test_queues_and_jobs_come_from_the_commands(commands):
    real(commands)
    system = GridEngine()
    assert [queue.name for queue in system.queues()] == ["main.q", "other.q", NO_QUEUE]
    assert len(system.jobs()) == 16
    assert system.ended(3600) == []


def test_memory_comes_from_the_commands(commands):
    real(commands)
    watch = MemoryWatch(CommandSource())
    assert watch.refresh(), watch.why
    assert (watch.hosts(), watch.owners()) == of_the_cell()[:2]


def test_a_command_that_is_not_there_or_fails_is_said(commands, monkeypatch, tmp_path):
    commands.answers(JOBS, status=1, said=(DATA / "no-master.txt").read_text())
    with pytest.raises(BatchError, match=r"qstat -r -u \* -xml: returned 1: error: commlib .*; is the master up"):
        GridEngine().jobs()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BatchError, match=r"qstat .*: no such program; PATH, SGE_ROOT and SGE_CELL"):
        GridEngine().queues()


def test_a_command_that_hangs_is_killed(commands, monkeypatch):
    monkeypatch.setattr(gridengine, "DEADLINE_S", 0.5)
    commands.answers(JOBS, slow_s=600)
    with pytest.raises(BatchError, match=r"qstat .* did not end within 0.5 s and was killed"):
        GridEngine().jobs()


def test_a_command_that_prints_without_end_is_killed(commands, monkeypatch):
    monkeypatch.setattr(gridengine, "MAX_BYTES", 1 << 20)
    commands.answers(JOBS, Path("/dev/zero"))
    with pytest.raises(BatchError, match=r"printed more than 1048576 bytes, .* and was killed"):
        GridEngine().jobs()


def large_cell(jobs, size):
    """What `qstat -j` prints for a number of jobs, each with an environment of `size` bytes."""
    head = "<JB_owner>u</JB_owner><JB_uid>1</JB_uid><JB_env_list><VA_value>" + "x" * size + "</VA_value></JB_env_list>"
    elements = [f"<element><JB_job_number>{n}</JB_job_number>{head}</element>" for n in range(1, jobs + 1)]
    return f"<detailed_job_info><djob_info>{''.join(elements)}</djob_info></detailed_job_info>"


@pytest.mark.parametrize(("jobs", "size"), [pytest.param(7000, 10_000, marks=pytest.mark.slow), (70, 1_000_000)])
def test_a_cell_with_large_environments_is_reported_and_needs_no_memory_for_them(commands, jobs, size):
    real(commands)
    commands.answers(ALL_JOBS, large_cell(jobs, size))
    watch = MemoryWatch(CommandSource())
    tracemalloc.start()
    try:
        assert watch.refresh(), watch.why
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(watch.owners()["u"]["jobs"]) == jobs
    assert set(watch.hosts()) == {"node1", "node2"}
    assert peak < 20 << 20


# the watch


class MadeUp(MemorySource):
    """A source that a test decides on: `answers` are given, exceptions among them raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def read(self, even_unchanged):
        self.asked.append(even_unchanged)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read_granted(self):
        return None

    def cancel(self):
        pass


def test_after_a_failure_the_last_answer_stays_for_some_periods():
    clock = Clock()
    error = BatchError("boo")
    watch = MemoryWatch(MadeUp((QHOST, QSTAT), error, error, error, (QHOST, NONE)), 10, clock=clock)
    assert watch.refresh()
    hosts = watch.hosts()
    clock.now += 10
    assert not watch.refresh()
    assert watch.hosts() is hosts
    assert (watch.refreshes, watch.failures, watch.why) == (1, 1, "boo")
    clock.now += 10 * (KEPT_PERIODS - 1)
    assert watch.hosts() is hosts
    clock.now += 1
    assert (watch.hosts(), watch.owners()) == ({}, {})
    assert not watch.refresh()
    assert (watch.hosts(), watch.owners()) == ({}, {})
    assert not watch.refresh()
    assert watch.refresh()
    assert set(watch.hosts()) == {"node1", "node2"}
    assert watch.owners() == {}
    assert (watch.refreshes, watch.failures, watch.why) == (2, 3, "")


def test_failures_are_logged_when_they_begin_and_end(caplog):
    caplog.set_level("INFO")
    failures = [BatchError("boo"), BatchError("boo"), OSError("disk"), ZeroDivisionError("oh")]
    watch = MemoryWatch(MadeUp(*failures, (QHOST, QSTAT)))
    assert [watch.refresh() for _ in failures] == [False] * 4
    assert watch.why == "a defect, report it: ZeroDivisionError: oh"
    assert watch.refresh()
    assert [record.getMessage() for record in caplog.records] == [
        "Grid Engine does not answer why=boo",
        "Grid Engine answers again failures=4",
    ]


def test_an_answer_that_cannot_be_read_is_a_failure_and_asked_for_again():
    source = MadeUp((QHOST[:-20], QSTAT), (QHOST, QSTAT), None)
    watch = MemoryWatch(source)
    assert not watch.refresh()
    assert "no whole XML document" in watch.why
    assert watch.refresh() and watch.refresh()
    assert source.asked == [True, True, False]


def test_the_thread_refreshes_until_it_is_closed(commands):
    real(commands)
    watch = MemoryWatch(CommandSource(), 0.01)
    watch.start()
    wait_for(lambda: watch.refreshes >= 2)
    watch.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "gridengine"]


# files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qhost_qmem.xml").write_bytes(QHOST)
    (tmp_path / "qstat_qmem.xml").write_bytes(QSTAT)
    return tmp_path


def test_memory_comes_from_files(folder):
    watch = MemoryWatch(FileSource(str(folder)))
    assert watch.refresh(), watch.why
    assert (watch.hosts(), watch.owners()) == of_the_cell(granted=None)[:2]


def is_old(path):
    os.utime(path, (time.time() - 3600,) * 2)


@pytest.mark.parametrize(
    ("become", "why"),
    [
        (Path.unlink, "qhost_qmem.xml: No such file or directory; write there what `qhost -j -xml` and"),
        (is_old, "s ago; see whether what writes it still runs"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "no regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "no regular file"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_at_once(folder, become, why):
    become(folder / "qhost_qmem.xml")
    watch = MemoryWatch(FileSource(str(folder)))
    assert not watch.refresh()
    assert why in watch.why


@pytest.mark.parametrize("chunk", [16, 1 << 18])
def test_tasks_that_a_new_master_has_read_from_its_disk_are_tasks_too(monkeypatch, chunk):
    """It prints <JATASK:       7.>, which is no XML, for tasks that began under the one before."""
    text = QSTAT.decode()
    tasks = re.findall(r"<JB_ja_tasks>\s*<(\w+)>", text)
    assert len(set(tasks)) == 1
    inside = re.compile(r"(<JB_ja_tasks>)(.*?)(</JB_ja_tasks>)", re.S)
    indent = re.search(rf"<JB_ja_tasks>\n( *)<{tasks[0]}>", text)[1]
    renamed = inside.sub(
        lambda found: re.sub(rf"^{indent}<(/?){tasks[0]}>$", rf"{indent}<\1JATASK:       7.>", found[0], flags=re.M),
        text,
    )
    assert renamed.count("<JATASK:       7.>") == renamed.count("</JATASK:       7.>") >= len(tasks)
    monkeypatch.setattr(gridengine_xml, "_CHUNK", chunk)
    assert read_memory(QHOST, renamed.encode(), "utf-8") == read_memory(QHOST, QSTAT, "utf-8")
