"""The report of several jobs: arrays and lists, their sums, their spread and the unusual ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from colmet.commands import colmet
from colmet.jobs import footprint
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.columns import BATCH
from colmet.jobs.grades import GRADES
from colmet.jobs.report.jobs_page import MOST_ROWS, POLICY, html
from colmet.jobs.report.several import COLUMNS, SPREAD, document_of_jobs, gather_jobs, made_of, task_of
from tests.support.archive_data import YEAR_START

HOUR = 3600
CURVES = footprint.encode(footprint.Footprint(64, {"cpu": np.array([1.0, np.nan, 4.0]), "memory": np.arange(3.0)}))


def job(number, **more):
    """The summary of a job that used 3 of 4 cores and 2 of 4 GiB for an hour, more or less."""
    start = YEAR_START + 100 * number
    row = {
        **{"job": number, "start": start, "last": start + HOUR, "is_running": 0, "hosts": 1, "cpus": 4.0},
        **{"wall_s": float(HOUR), "core_s": 4.0 * HOUR, "cpu_s": 3.0 * HOUR + number, "joules": 1e6},
        **{"memory_peak": (2 << 30) + number, "memory_limit": 4 << 30, "memory_ratio": 0.5, "user": "alice"},
        **{"energy_source": "rapl", "advice": "[]", "footprint": CURVES},
        **{"state": "done", "system": "slurm", "batch_id": f"17_{number}", "array": "17", "array_index": number},
        **{"exit_code": 0, "requested_walltime_s": 2 * HOUR, "requested_memory": 4 << 30, "name": "sweep"},
        **more,
    }
    row["cpu_ratio"] = row["cpu_s"] / row["core_s"]
    row["wasted_core_s"] = row["core_s"] - row["cpu_s"]
    return row


def written(path, rows):
    """Write an archive with these jobs."""
    store = ArchiveStore(str(path), writable=True)
    store.write(Changes([], rows, {}), None)
    sets = ", ".join(f"{one.name} = ?" for one in BATCH)
    for row in rows:
        values = [row.get(one.name) for one in BATCH]
        store.database.execute(
            f"UPDATE jobs SET {sets} WHERE job = ? AND start = ?", [*values, row["job"], row["start"]]
        )
    store.close()
    return str(path)


ODD = {
    5: {
        "state": "failed",
        "exit_code": 1,
        "last": YEAR_START + 500 + 30,
        "wall_s": 30.0,
        "core_s": 120.0,
        "cpu_s": 90.0,
    },
    9: {"memory_peak": 15 << 30},
    11: {"cpu_s": 0.01 * HOUR},
    12: {"state": "running", "is_running": 1, "wall_s": 10.0, "exit_code": None},
    13: {"state": "timeout"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rows = [job(n, **ODD.get(n, {})) for n in range(1, 21)]
    rows += [job(30, array=None, batch_id=None, user="bob", state=None, system=None, name=None, exit_code=None)]
    rows += [{**job(3, batch_id="3", array=None), "start": YEAR_START - 10**6, "last": YEAR_START - 10**6 + 5}]
    return written(tmp_path_factory.mktemp("jobs") / "a.sqlite", rows)


@pytest.fixture
def archive(path):
    with LocalArchive(path) as opened:
        yield opened


@pytest.fixture
def run(run, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *argv: run("report", *argv, "--archive", path)


def test_an_array_has_sums_and_spread_of_its_jobs(archive):
    found = gather_jobs(archive, JobFilter(array="17"))
    rows = [job(n, **ODD.get(n, {})) for n in range(1, 21)]
    assert (found.total, len(found.rows), found.array) == (20, 20, "17")
    assert found.states == {"done": 17, "failed": 1, "running": 1, "timeout": 1}
    for name in ("core_s", "cpu_s", "wasted_core_s"):
        assert found.sums[name] == pytest.approx(sum(row[name] for row in rows))
    assert found.sums["cpu_ratio"] == pytest.approx(found.sums["cpu_s"] / found.sums["core_s"])
    assert found.sums["gpu_s"] is None and found.sums["gpu_ratio"] is None
    ended = [row for row in rows if row["state"] != "running"]
    for name in ("wall_s", "cpu_ratio", "memory_peak"):
        values = [row[name] for row in ended]
        assert found.spread[name] == (min(values), pytest.approx(np.median(values)), max(values))
    assert "gpu_ratio" not in found.spread and set(found.spread) <= set(SPREAD)


def test_no_job_is_named_for_a_difference_that_means_nothing():
    usual = {"array": "66", "state": "done", "wall_s": 3.0, "cpu_ratio": 0.01, "memory_peak": 13.5 * (1 << 20)}
    rows = [{**dict.fromkeys(COLUMNS), **usual, "job": n, "start": n} for n in range(1, 10)]
    rows[0].update(wall_s=14.0, cpu_ratio=0.02, memory_peak=20 * (1 << 20))
    rows[1].update(wall_s=90.0, cpu_ratio=0.2, memory_peak=63.6 * (1 << 20))
    unusual = made_of(rows).unusual
    assert {(one.job, one.what) for one in unusual} == {(2, "wall_s"), (2, "cpu_ratio"), (2, "memory_peak")}


def test_jobs_far_from_the_others_of_their_array_are_named(archive):
    found = gather_jobs(archive, JobFilter(array="17")).unusual
    assert {(one.name, one.what) for one in found} == {
        ("17_5", "wall_s"),
        ("17_9", "memory_peak"),
        ("17_11", "cpu_ratio"),
    }
    (wall,) = [one for one in found if one.what == "wall_s"]
    assert (wall.value, wall.median) == (30, HOUR)
    assert not gather_jobs(archive, JobFilter(users=["alice"])).unusual, "jobs of several kinds are not compared"
    assert not gather_jobs(archive, JobFilter(array="17"), limit=4).unusual, "nor a few"


def test_numbers_choose_the_latest_job_of_each_and_lacking_ones_are_named(archive):
    found = gather_jobs(archive, JobFilter(jobs=[3, 30, 99, 4]))
    assert [(row["job"], row["start"]) for row in found.rows] == [
        (30, YEAR_START + 3000),
        (4, YEAR_START + 400),
        (3, YEAR_START + 300),
    ]
    assert found.total == 3 and found.array == ""
    assert any("several jobs have the number 3:" in note for note in found.notes)
    assert any("99" in note for note in found.notes) and len(found.notes) == 2
    former = (3, YEAR_START - 10**6)
    (row,) = gather_jobs(archive, JobFilter(), tasks=[former]).rows
    assert (row["job"], row["start"]) == former


def test_more_numbers_than_one_question_has_are_asked_in_parts(archive, monkeypatch):
    monkeypatch.setattr("colmet.jobs.report.several.AT_ONCE", 3)
    found = gather_jobs(archive, JobFilter(jobs=list(range(1, 21))))
    assert sorted(row["job"] for row in found.rows) == list(range(1, 21))


def test_a_task_is_found_by_its_id_else_by_its_place(archive, tmp_path):
    assert task_of(archive, "17_4") == task_of(archive, "17.4") == (4, YEAR_START + 400)
    assert task_of(archive, "17_40") is None and task_of(archive, "17") is None and task_of(archive, "x_1") is None


def test_a_report_is_bounded(archive):
    found = gather_jobs(archive, JobFilter(), limit=5)
    assert (found.total, len(found.rows)) == (22, 5)
    assert [row["job"] for row in found.rows] == [30, 20, 19, 18, 17]
    assert len(gather_jobs(archive, JobFilter(jobs=[1, 2, 4]), limit=2).rows) == 2


def test_json_has_each_job_once_with_all_values(archive):
    document = json.loads(json.dumps(document_of_jobs(gather_jobs(archive, JobFilter(array="17"))), allow_nan=False))
    assert all(set(row) == {*COLUMNS, *GRADES} for row in document["jobs"]) and len(document["jobs"]) == 20
    assert document["spread"]["wall_s"]["min"] == 30 and document["unusual"][0]["name"]


def test_the_page_has_a_row_and_short_curves_for_each_job(archive):
    text = html(gather_jobs(archive, JobFilter(array="17"), more=["footprint"])).decode()
    assert text.count('<tr><th scope="row">17_') == 20 and text.count("<svg") == 40
    assert "20 jobs of array 17" in text and "17_9: memory 15.0 GiB, median 2.00 GiB" in text
    assert "<script" not in text and "style=" not in text and "http" not in text.replace("http-equiv", "")
    assert POLICY.partition("sha256-")[2][:20] in text
    without = html(gather_jobs(archive, JobFilter(array="17"))).decode()
    assert "<svg" not in without and ">curves<" not in without


@pytest.mark.slow
def test_a_long_page_is_cut_and_names_of_jobs_are_text(tmp_path):
    evil = "<script>alert(1)</script>\x1b"
    rows = [job(n, name=evil, batch_id=f"<b>{n}", array="<i>", footprint=b"damaged") for n in range(1, MOST_ROWS + 3)]
    with LocalArchive(written(tmp_path / "a.sqlite", rows)) as archive:
        text = html(gather_jobs(archive, JobFilter(), more=["footprint"])).decode()
    assert "<script" not in text and "<b>1" not in text and "<i>" not in text and "\x1b" not in text
    assert "and 2 more" in text and "<svg" not in text


# -- the command


def test_the_table_names_state_efficiency_and_requests(run):
    status, out, err = run("--array", 17)
    assert (status, err) == (0, "")
    assert out.startswith("20 jobs of array 17: 17 done, ") and "1 failed" in out.partition("\n")[0]
    (line,) = [line for line in out.splitlines() if line.startswith("17_4 ")]
    for part in ("sweep", "done", "1 h 0 min of 2 h 0 min", "75 % good", "50 % good"):
        assert part in line, part
    assert "User" not in out, "all are of one"
    assert "core hours used" in out and "Spread" in out and "failed: 17_5" in out and "timeout: 17_13" in out
    assert re.search(r"wall time +30 s +1 h 0 min +1 h 0 min", out)
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= 120


def test_a_long_table_is_cut_and_its_sums_are_of_all(run, monkeypatch):
    monkeypatch.setattr("colmet.commands.report.MOST_SHOWN", 3)
    out = run("--array", 17)[1]
    assert len(re.findall(r"(?m)^17_\d+ ", out)) == 3 and "and 17 more (--json has all)" in out
    assert out.partition("Spread")[2] == run("--array", 17)[1].partition("Spread")[2] and "failed: 17_5" in out


def test_jobs_are_named_or_selected_as_by_colmet_jobs(run):
    def numbers(*argv):
        return sorted(row["job"] for row in json.loads(run(*argv, "--json")[1])["jobs"])

    assert numbers(1, 2, 30) == [1, 2, 30] and numbers("17_4", 2) == [2, 4]
    assert numbers("-j", 1, 2) == [1, 2]
    assert numbers("-a", "--state", "failed", "--state", "timeout") == [5, 13]
    assert numbers("--user", "bob") == [30]
    assert numbers("-a", "--since", YEAR_START + HOUR + 1850) == [12, 19, 20, 30]
    assert numbers(1, 2, 30, "--user", "alice") == [1, 2]


def test_the_archive_beside_the_files_is_read(path, capsys):
    prefix = path.replace(".sqlite", "")
    Path(f"{prefix}.archive.sqlite").write_bytes(Path(path).read_bytes())
    assert colmet.main(["report", "1", "2", "--hdf5", prefix, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 2
    assert colmet.main(["report", "1", "2", "--hdf5", f"{prefix}-none"]) == 1
    assert f"{prefix}-none.archive.sqlite" in capsys.readouterr().err


def test_pages_are_written_and_pictures_are_of_one_job(run, tmp_path):
    page = tmp_path / "a.html"
    assert run("--array", 17, "--html", page)[:2] == (0, "") and page.read_text().count("<svg") == 40
    assert "No such file" in run("--array", 17, "--html", tmp_path / "no" / "a.html")[2]
    assert run("--array", 17, "--png", page)[0] == 2 and run(1, 2, "--start", 5)[0] == 2


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (("98", "99"), 1, "98, 99"),
        (("--array", "18"), 1, "no such job"),
        (("17_98", "1"), 1, "no task 17_98"),
        (("-a", "--state", "lost"), 2, "state 'lost'"),
        (("1", "x"), 2, "'x'"),
        (("1", "0"), 2, "job 0"),
        (tuple(map(str, range(1, 1003))), 2, "more than 1000"),
    ],
)
def test_what_cannot_be_reported_is_an_error_with_its_reason(run, argv, status, said):
    found, out, err = run(*argv)
    assert (found, out) == (status, "") and said in err, err
