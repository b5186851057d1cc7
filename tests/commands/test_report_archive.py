"""The report of a job of which rows are gone, what the batch system knows of it, and why it ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from colmet.commands import report as command
from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import BATCH, STATES
from colmet.jobs.figures import BatchFacts, Cpu, GpuUse, MemoryUse
from colmet.jobs.report import page
from colmet.jobs.report.archived import find
from colmet.jobs.report.document import document_of
from colmet.jobs.report.document import report_of as read_back
from colmet.jobs.report.ending import ending_of
from colmet.jobs.report.requested import BECAUSE, no_verdict, uses_of, verdict
from colmet.jobs.report.rows import gather
from colmet.jobs.report.text import show
from colmet.jobs.summary_report import report_of
from colmet.stored.job_rows import JobInterval
from tests.support.archive_database import ArchiveDatabase, client_of, copied
from tests.support.archives import Archive, records_of, replayed
from tests.support.made_up_history import GIB, START, MadeUp, job_rows, node_rows

JOB, WALL_S = 42, 605
LATER = START + 10**6
FACTS = {
    **{"system": "slurm", "batch_id": "42", "owner": "alice", "name": "relax", "project": "ab12", "queue": "long"},
    **{"state": "failed", "submitted": START - 65, "started": START, "ended": START + 605, "exit_code": 2},
    **{"requested_cores": 8, "requested_memory": 16 * GIB, "requested_walltime_s": 3600, "dependency": "afterok:41"},
}


@pytest.fixture
def history():
    made = MadeUp()
    job_rows(made)
    node_rows(made)
    return made


@pytest.fixture
def kept(history, tmp_path):
    """Fold all rows into an archive, then write what the batch system knows of jobs, by number and start."""
    path = tmp_path / "c.archive.sqlite"

    def kept(facts=FACTS, jobs=(JOB,), start=None):
        made = Archive(path)
        made.take(records_of(replayed(history, jobs)))
        made.end()
        database = made.store.database
        for job in jobs:
            if facts:
                sets = ", ".join(f"{name} = ?" for name in facts)
                database.execute(
                    f"UPDATE jobs SET {sets} WHERE job = ? AND start = coalesce(?, start)",
                    [*facts.values(), job, start],
                )
        made.store.close()
        return str(path)

    return kept


@pytest.fixture
def report(history, monkeypatch, run):
    """Run colmet report on the made-up rows; return status, output and errors."""
    monkeypatch.setattr(command, "open_history", lambda options: history)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *argv: run("report", *argv)


def test_where_rows_are_gone_the_archive_has_the_same_figures(history, kept, report):
    expected = json.loads(report(JOB, "--json")[1])
    archive = kept()
    history.rows.clear()
    status, out, err = report(JOB, "--archive", archive, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (expected["source"], found["source"]) == ("rows", "archive")
    for part, names in {
        "cpu": ("used_s", "user_s", "system_s", "cpus", "available_s", "used_ratio"),
        "memory": ("peak_bytes", "limit_bytes", "anon_peak_bytes", "oom_kills"),
        "io": ("read_bytes", "written_bytes"),
        "energy": ("job_joules", "nodes_joules"),
    }.items():
        for name in names:
            assert found[part][name] == pytest.approx(expected[part][name], rel=0.02), name
    of_rules = [one["rule"] for one in found["advice"] if one["because"] != BECAUSE]  # others are of the request
    assert of_rules == [one["rule"] for one in expected["advice"]]
    text = report(JOB, "--archive", archive)[1]
    assert "Job 42 (relax) of alice on node-1: failed" in text and "Made from the job archive" in text
    assert "project ab12, queue long, after afterok:41" in text and "waited 1 min 5 s" in text


def test_where_rows_are_stored_they_count_with_what_the_batch_system_knows(kept, report):
    archive = kept()
    found = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert found["source"] == "rows" and found["memory"]["source"] == "cgroup"
    assert found["batch"]["project"] == "ab12" and found["batch"]["requested_memory_bytes"] == 16 * GIB
    assert found["ending"]["kind"] == "failed" and found["ending"]["text"] == "Failed with exit code 2."
    uses = {one["what"]: one for one in found["uses"]}
    assert uses["cores"]["ratio"] == pytest.approx(0.5) and uses["cores"]["grade"] == "good", (
        "of the cores that it held"
    )
    assert uses["memory"]["ratio"] == pytest.approx(0.25) and uses["memory"]["grade"] == "low"
    assert uses["walltime"] == {
        **{
            "what": "walltime",
            "requested": 3600,
            "used": 605.0,
            "ratio": pytest.approx(605 / 3600),
            "grade": "",
            "held": 3600,
        }
    }, "a job that failed shows not how much walltime it needs"
    text = report(JOB, "--archive", archive)[1]
    for part in (
        "CPU efficiency 50 %: good. Memory 25 % of the requested 16.0 GiB: low.\n",
        "End      Failed with exit code 2.",
        "cores: 2.0 of 4 on average; 8 requested, good",
        "memory: 4.00 GiB of 16.0 GiB, low",
        "walltime: 10 min 5 s of 1 h 0 min",
    ):
        assert part in text, part
    assert "job archive" not in text


@pytest.mark.parametrize(("state", "found"), [("failed", "ended"), ("running", "running")])
def test_a_job_whose_end_the_batch_system_reports_first_has_ended(history, kept, report, monkeypatch, state, found):
    for job, table in list(history.rows):
        if not job:
            del history.rows[job, table]
    archive = kept({**FACTS, "state": state})
    monkeypatch.setattr(command.time, "time", lambda: START + WALL_S + 5.0)
    assert json.loads(report(JOB, "--json")[1])["state"] == "running"
    made = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert made["state"] == found and (made["ending"] is None) == (state == "running")


def test_rows_of_which_the_beginning_is_gone_do_not_count_as_all(history, kept, report):
    archive = kept()
    for (job, _), hosts in history.rows.items():
        for host, (times, columns) in hosts.items():
            if job:
                keep = times > START + 300
                hosts[host] = (times[keep], {name: values[keep] for name, values in columns.items()})
    assert json.loads(report(JOB, "--archive", archive, "--json")[1])["source"] == "archive"
    since = json.loads(report(JOB, "--archive", archive, "--json", "--since", START + 400)[1])
    assert since["source"] == "rows" and since["since"] == START + 400, "an interval is of rows"


def test_fewer_rows_of_the_whole_time_suffice(history, kept, report):
    archive = kept()
    for (job, _), hosts in history.rows.items():
        for host, (times, columns) in hosts.items():
            if job:
                keep = np.arange(len(times)) % 12 == 0
                hosts[host] = (times[keep], {name: values[keep] for name, values in columns.items()})
    assert json.loads(report(JOB, "--archive", archive, "--json")[1])["source"] == "rows"


def test_a_host_of_which_all_rows_are_gone(history, kept, report):
    job_rows(history, host="node-2")
    archive = kept()
    for (job, _), hosts in history.rows.items():
        if job:
            del hosts["node-2"]
    found = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert found["source"] == "archive" and len(found["hosts"]) == 2


def test_an_interval_without_rows_is_not_made_from_the_archive(history, kept, report):
    archive = kept()
    history.rows.clear()
    status, out, err = report(JOB, "--archive", archive, "--since", START + 100)
    assert (status, out) == (1, "") and "leave out --since and --until" in err


def test_of_a_number_used_again_the_latest_counts_and_others_are_chosen_by_start(history, kept, report):
    def add_run(start, user):
        first = {key: dict(hosts) for key, hosts in history.rows.items() if key[0]}
        job_rows(history, start=start, cores=1.0, user=user)
        for key, hosts in first.items():
            for host, (times, columns) in hosts.items():
                later, more = history.rows[key][host]
                joined = {name: np.concatenate([columns[name], more[name]]) for name in columns}
                history.rows[key][host] = (np.concatenate([times, later]), joined)

    add_run(START + 5000, b"bob")
    archive = kept(facts={})
    latest = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert (latest["start"], latest["user"], latest["starts"]) == (START + 5000, "bob", [START + 5000, START])
    assert latest["cpu"]["used_s"] == pytest.approx(WALL_S) and latest["source"] == "rows"
    text = report(JOB, "--archive", archive)[1]
    assert "2 jobs have this number; others by --start: 2023-11-14T22:13:20Z." in text
    for start in (START, START + 4999, "2023-11-14T22:13:20Z"):
        former = json.loads(report(JOB, "--archive", archive, "--json", "--start", start)[1])
        assert (former["start"], former["user"], former["source"]) == (START, "alice", "rows")
        assert former["cpu"]["used_s"] == pytest.approx(2 * WALL_S)
    status, _, err = report(JOB, "--archive", archive, "--start", START - 1)
    assert status == 1 and "the archive has no job 42 that had started by" in err
    add_run(START + 9000, b"carol")
    for times, columns in [rows for key, hosts in history.rows.items() if key[0] for rows in hosts.values()]:
        columns["run"] = 1 + np.searchsorted([START + 4000, START + 8000], times)
    known = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert known["cpu"]["used_s"] == pytest.approx(WALL_S), "without the run that the archive lacks"


def test_a_later_job_with_a_number_that_the_archive_lacks_is_not_the_archived_one(history, kept, report):
    archive = kept()
    history.rows.clear()
    job_rows(history, start=START + 50_000, user=b"bob")
    found = json.loads(report(JOB, "--archive", archive, "--json")[1])
    assert (found["start"], found["user"], found["batch"]) == (START + 50_000, "bob", None)


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_job_that_no_node_measured_has_what_the_batch_system_knows(history, report, tmp_path, state):
    path = str(tmp_path / "a.sqlite")
    facts = {**FACTS, "state": state, "exit_code": 127 if state == "failed" else None}
    store = ArchiveStore(path, writable=True)
    store.database.execute(
        f"INSERT INTO jobs (job, start, {', '.join(facts)}) VALUES (7, ?{', ?' * len(facts)})", [START, *facts.values()]
    )
    store.close()
    status, out, err = report(7, "--archive", path)
    assert (status, err) == (0, "") and f"Job 7 (relax) of alice: {state}" in out and "No node measured it" in out
    assert ("a program was not found" in out) == (state == "failed")
    assert "not measured" in out and "No advice: no node measured the job." in out
    found = json.loads(report(7, "--archive", path, "--json")[1])
    assert (found["wall_s"], found["hosts"], found["state"]) == (605, [], "ended" if state == "failed" else "running")
    assert report(7, "--archive", path, "--html", tmp_path / "a.html", "--png", tmp_path / "a.png")[0] == 0


@pytest.mark.parametrize("name", ["17_3", "17.3"])
def test_a_task_of_an_array_is_named_as_by_its_batch_system(kept, report, name):
    archive = kept({**FACTS, "array": "17", "array_index": 3, "batch_id": name})
    status, out, _ = report(name, "--archive", archive)
    assert status == 0 and out.splitlines()[1].startswith(f"Job {name} (relax) of alice")
    assert report("17_4", "--archive", archive)[0] == 1
    status, _, err = report("17_4")
    assert status == 2 and "--archive" in err


def test_the_archive_beside_the_files_is_read(history, kept, report, tmp_path):
    kept()
    assert json.loads(report(JOB, "--hdf5", tmp_path / "c", "--json")[1])["batch"]["name"] == "relax"
    assert json.loads(report(JOB, "--hdf5", tmp_path / "d", "--json")[1])["batch"] is None


def test_a_database_alone_has_the_archive_as_well(history, kept, report, tmp_path):
    """The report, one of several jobs, and of a task of an array, by the address of the database and nothing else."""
    path = kept({**FACTS, "array": "17", "array_index": 3, "batch_id": "17_3"})
    history.rows.clear()
    with closing(ArchiveDatabase()) as database:
        with closing(client_of(database.url)) as client, closing(ArchiveStore(path)) as store:
            copied(store, client, "colmet_")
        config = tmp_path / "reader.toml"
        config.write_text(f'elastic-host = "{database.url}"\n')
        status, out, _ = report(JOB, "--config", config, "--json")
        found = json.loads(out)
        assert (status, found["source"], found["batch"]["name"]) == (0, "archive", "relax")
        assert json.loads(report("17_3", "--config", config, "--json")[1])["job"] == JOB
        assert json.loads(report("--array", "17", "--config", config, "--json")[1])["total"] == 1
        database.clear()  # of a collector that keeps no archive
        status, _, err = report(JOB, "--config", config)
        assert status == 1 and "nothing is stored of job 42" in err


def test_an_archive_that_cannot_be_read_is_named(report, tmp_path):
    (tmp_path / "x").write_text("no archive")
    status, _, err = report(JOB, "--archive", tmp_path / "x")
    assert status == 1 and str(tmp_path / "x") in err
    (tmp_path / "c.archive.sqlite").write_text("no archive")
    status, out, _ = report(JOB, "--hdf5", tmp_path / "c", "--verbose")
    assert status == 0 and "warning" in out and "is it the archive" in " ".join(out.split())
    assert "warning" not in report(JOB, "--hdf5", tmp_path / "c")[1]


def test_rows_that_cannot_be_read_are_said_beside_the_archive_and_end_with_1(kept, run, tmp_path):
    archive = kept()
    (tmp_path / "c.1700000000.hdf5").write_text("no file of HDF5")
    status, out, _ = run("report", JOB, "--hdf5", tmp_path / "c", "--json")
    found = json.loads(out)
    assert (status, found["source"]) == (0, "archive") and "cannot be read" in found["warnings"][0]
    (tmp_path / "collector.toml").touch()
    status, out, _ = run("report", JOB, "--archive", archive, "--json", "--config", tmp_path / "collector.toml")
    assert (status, json.loads(out)["warnings"]) == (0, []), "no store is named"
    os.unlink(archive)
    status, out, err = run("report", JOB, "--hdf5", tmp_path / "c")
    assert (status, out) == (1, "") and "cannot be read" in err


def test_an_archive_that_fails_when_it_is_asked_leaves_the_rows(kept, report, tmp_path):
    path = kept()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE jobs")
    status, out, _ = report(JOB, "--hdf5", tmp_path / "c", "--verbose", "--json")
    found = json.loads(out)
    assert (status, found["source"]) == (0, "rows") and path in found["warnings"][0]
    for argv in ((JOB, "--archive", path), (JOB, "--hdf5", tmp_path / "c", "--start", START)):
        status, out, err = report(*argv)
        assert (status, out) == (1, "") and path in err


@pytest.mark.slow
def test_pages_and_pictures_are_made_from_the_archive(history, kept, report, tmp_path):
    archive = kept()
    history.rows.clear()
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    assert report(JOB, "--archive", archive, "--html", page, "--png", picture)[0] == 0
    text = page.read_text()
    assert "Why it ended" in text and "Requested and used" in text and "Failed with exit code 2" in text
    assert "<svg" in text and "Memory, of 8 GiB" in text and picture.read_bytes().startswith(b"\x89PNG")


def test_a_report_read_back_from_json_has_the_same_end_and_requests(history, kept, tmp_path):
    with contextlib.closing(command.archives.LocalArchive(kept())) as archive:
        found = find(archive, JOB)
    made = report_of(found.summary, found.hosts)
    again = read_back(json.loads(json.dumps(document_of(made))))
    assert document_of(again) == document_of(made) and again.batch == made.batch


# -- why it ended


@pytest.fixture
def made(history):
    """Make a report with what the batch system knows, and with the kernel's kills."""
    plain = gather(history, JobInterval(JOB), LATER)

    def made(oom_kills=0, limit=8 * GIB, **facts):
        memory = replace(plain.memory, oom_kills=oom_kills, limit_bytes=limit)
        batch = BatchFacts(**{"system": "slurm", **facts}) if facts else None
        return replace(plain, memory=memory, batch=batch)

    return made


@pytest.mark.parametrize(
    ("facts", "kind", "parts"),
    [
        ({"state": "done", "exit_code": 0}, "done", ["Done: exit code 0."]),
        ({"state": "done"}, "done", ["Done."]),
        ({"state": "failed", "exit_code": 0}, "failed", ["its exit code is 0."]),
        ({"state": "failed", "exit_code": 1}, "failed", ["Failed with exit code 1.", "output"]),
        ({"state": "failed", "exit_code": 127}, "failed", ["a program was not found", "module"]),
        ({"state": "failed", "exit_signal": 11}, "failed", ["SIGSEGV (11)", "memory that is not its own", "defect"]),
        ({"state": "failed", "exit_code": 139}, "failed", ["SIGSEGV (11, exit code 139)"]),
        ({"state": "failed", "exit_code": 255}, "failed", ["exit code 255."]),
        ({"state": "failed", "exit_signal": 63}, "failed", ["SIG"]),
        ({"state": "failed"}, "failed", ["exit code is not reported"]),
        (
            {"state": "failed", "exit_code": 137, "oom_kills": 3},
            "out_of_memory",
            ["3 processes", "8.00 GiB", "more than"],
        ),
        ({"state": "out_of_memory"}, "out_of_memory", ["the batch system reports", "8.00 GiB"]),
        ({"state": "out_of_memory", "oom_kills": 1}, "out_of_memory", ["the kernel killed a process of it"]),
        (
            {"state": "out_of_memory", "limit": None, "requested_memory_bytes": 4 * GIB},
            "out_of_memory",
            ["of 4.00 GiB", "Ask for more than 4.00 GiB"],
        ),
        ({"state": "done", "oom_kills": 2}, "done", ["Done, though", "incomplete"]),
        ({"state": "done", "exit_code": 0, "oom_kills": 2}, "done", ["Done: exit code 0, though"]),
        ({"state": "timeout", "requested_walltime_s": 7200}, "timeout", ["walltime of 2 h 0 min", "Ask for more"]),
        ({"state": "cancelled", "reason": "CANCELLED by 1000"}, "cancelled", ["Cancelled by", "(CANCELLED by 1000)"]),
        ({"state": "node_failed", "reason": "NODE_FAIL"}, "node_failed", ["not the job's fault", "Submit it again"]),
        ({"state": "ended"}, "ended", ["has not reported how"]),
        ({"state": "ended", "requested_walltime_s": 600}, "ended", ["probably ended there"]),
        ({"oom_kills": 4}, "ended", ["The kernel killed 4 processes", "how it ended is not reported"]),
    ],
)
def test_why_it_ended_is_a_sentence_with_a_remedy(made, facts, kind, parts):
    ending = ending_of(made(**facts))
    assert ending.kind == kind and kind in STATES
    for part in parts:
        assert part in f"{ending.text} {ending.remedy}", part


def test_nothing_is_made_up_of_the_end(made):
    assert ending_of(made()) is None, "no batch system, and nothing measured"
    assert ending_of(replace(made(state="done"), state="running")) is None
    assert ending_of(made(state="running")) is None


@pytest.mark.parametrize(
    ("facts", "grades"),
    [
        ({"requested_cores": 4}, {"cores": "good", "memory": "good"}),
        ({"requested_cores": 1, "requested_memory_bytes": 100 * GIB}, {"cores": "good", "memory": "poor"}),
        ({"requested_memory_bytes": 5 * GIB, "allocated_memory_bytes": 100 * GIB}, {"cores": "good", "memory": "poor"}),
        ({"allocated_memory_bytes": GIB}, {"cores": "good", "memory": "exceeded"}),
        ({"state": "out_of_memory", "oom_kills": 1}, {"cores": "good", "memory": "exceeded"}),
        ({"state": "done", "requested_walltime_s": 1000}, {"cores": "good", "memory": "good", "walltime": "good"}),
        ({"state": "done", "requested_walltime_s": 86400}, {"cores": "good", "memory": "good", "walltime": "poor"}),
        (
            {"state": "timeout", "requested_walltime_s": 600},
            {"cores": "good", "memory": "good", "walltime": "exceeded"},
        ),
        ({"state": "cancelled", "requested_walltime_s": 86400}, {"cores": "good", "memory": "good", "walltime": ""}),
    ],
)
def test_use_of_a_request_has_a_grade(made, facts, grades):
    assert {one.what: one.grade for one in uses_of(made(**facts))} == grades


@pytest.mark.parametrize(
    ("facts", "changes", "sentences"),
    [
        (
            {"requested_memory_bytes": 100 * GIB, "state": "done", "requested_walltime_s": 1000},
            {"gpus": (GpuUse("node-1", "GPU-a", held_s=600, use_ratio=0.6),)},
            [
                "CPU efficiency 50 %: good.",
                "Memory 4 % of the requested 100 GiB: poor.",
                "GPU use 60 %: good.",
                "Walltime 61 %: good.",
            ],
        ),
        (
            {"state": "timeout", "requested_walltime_s": 600},
            {"cpu": Cpu(), "memory": MemoryUse()},
            ["Walltime 101 %: exceeded."],
        ),
        ({"state": "out_of_memory"}, {"cpu": Cpu()}, ["Memory 50 % of the limit of 8.00 GiB: exceeded."]),
    ],
)
def test_the_verdict_is_a_sentence_for_each_grade(made, facts, changes, sentences):
    report = replace(made(**facts), **changes)
    found = [one.sentence for one in verdict(report)]
    assert found == sentences
    file = io.StringIO()
    show(report, file, 200)
    assert file.getvalue().splitlines()[0] == " ".join(found)
    assert [one["text"] for one in document_of(report)["verdict"]] == [one.text for one in verdict(report)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"advice_withheld": "too few samples"}, "No verdict: too few samples."),
        ({"wall_s": 20.0}, "No verdict: the job has run for 20 s, and 30 s are required."),
        (
            {"cpu": Cpu(used_s=9.0), "memory": MemoryUse()},
            "No verdict: its cores are unknown; neither a limit nor a request of memory is known.",
        ),
        (
            {"cpu": Cpu(cpus=4), "memory": MemoryUse(limit_bytes=GIB), "gpus": (GpuUse("a", "b"),)},
            "No verdict: "
            + "; ".join([f"{what} was not measured" for what in ("its CPU time", "its memory", "its GPU time")])
            + ".",
        ),
        (
            {"cpu": Cpu(cpus=4), "memory": MemoryUse(peak_bytes=GIB, limit_bytes=0)},
            "No verdict: its CPU time was not measured; how much it had of its memory is unknown.",
        ),
        (
            {"cpu": Cpu(), "state": "running"},
            "No verdict: its cores are unknown; its memory is judged when it has ended.",
        ),
    ],
)
def test_without_a_verdict_the_first_line_says_why(made, changes, why):
    file = io.StringIO()
    show(replace(made(), **changes), file, 200)
    assert file.getvalue().splitlines()[0] == why


@pytest.mark.parametrize(
    ("facts", "changes", "why"),
    [
        ({"state": "running"}, {"state": "running"}, "its walltime is judged when it has ended"),
        ({"state": "node_failed"}, {}, "its walltime is judged of jobs that are done, and its state is node failed"),
        ({}, {}, "its walltime is judged of jobs that are done, and its state is unknown"),
        ({"state": "done"}, {"since": START}, "its walltime is judged of the whole job alone"),
    ],
)
def test_why_a_walltime_has_no_verdict(made, facts, changes, why):
    unknown = {"cpu": Cpu(), "memory": MemoryUse()}
    report = replace(made(requested_walltime_s=3600, **facts), **{**unknown, **changes})
    assert verdict(report) == [] and no_verdict(report).endswith(f"is known; {why}.")


def test_why_the_archive_has_no_advice_is_its_number_of_samples():
    few = {"job": 1, "start": START, "last": START + 600, "samples": 1}
    assert report_of(few, []).advice_withheld == "there are fewer than 2 samples of the job"
    some = {**few, "samples": 60, "rows": 50, "missing": 50}
    assert report_of(some, []).advice_withheld == "only 50 % of the job's samples are stored, and 95 % are required"
    assert report_of({"job": 1, "start": START}, []).advice_withheld == "no node measured the job"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_grades_are_coloured_on_a_terminal_unless_no_color_is_set(made, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    asked = made(state="failed", exit_code=3, requested_memory_bytes=100 * GIB)
    found = []
    for _ in range(2):
        terminal = Terminal()
        show(asked, terminal, 100)
        found.append(terminal.getvalue())
        monkeypatch.setenv("NO_COLOR", "1")
    coloured, plain = found
    assert re.search(r"\x1b\[[0-9;]*31mMemory 4 % of the requested 100 GiB: poor", coloured)
    assert re.search(r"\x1b\[[0-9;]*31mFailed with exit code 3", coloured)
    assert re.search(r"\x1b\[[0-9;]*32mCPU efficiency 50 %: good", coloured)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain) and "requested 100 GiB: poor" in plain


def test_grades_are_words_and_colours_on_the_page(made):
    text = page.html(made(requested_memory_bytes=100 * GIB)).decode()
    assert '<b class="poor">Memory 4 % of the requested 100 GiB: poor.</b>' in text


def test_hostile_texts_of_a_batch_system_stay_text(kept, report):
    evil = "x\x1b[31m<b>[red]"
    archive = kept({**FACTS, "name": evil, "project": evil, "queue": evil * 50, "reason": evil, "state": "cancelled"})
    text = report(JOB, "--archive", archive)[1]
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 100


def test_every_fact_of_the_batch_system_is_in_the_report_or_left_out_on_purpose():
    left_out = {"owner": "the user", "batch_hosts": "the hosts"}
    left_out.update({name: f"{name}_bytes" for name in ("allocated_memory", "requested_memory")})
    names = {column.name for column in BATCH} - set(left_out)
    assert names <= set(BatchFacts.__dataclass_fields__)
