"""colmet jobs and colmet usage: tables, JSON, CSV, charts, and hostile names."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import time
from types import SimpleNamespace

import pytest

from colmet.commands import archives
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.job_summaries import job_summary
from tests.support.archive_data import YEAR_START, summaries, write
from tests.support.archive_database import ArchiveDatabase, client_of, copied

HOSTILE = '=HYPERLINK("x")\x1b[31m\u202e,\n'


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("jobs") / "a.archive.sqlite")
    store = ArchiveStore(path, writable=True)
    write(store, summaries(300, footprint=20), 100)
    row = {"job": 9999, "start": YEAR_START + 10**9, "last": YEAR_START + 10**9 + 60, "is_running": 0, "user": HOSTILE}
    store.write(Changes((), [row], {}), None)
    store.database.execute("UPDATE jobs SET name = ?, state = 'failed', exit_code = 3 WHERE job = 9999", [HOSTILE])
    store.close()
    return path


@pytest.mark.parametrize("width", ["60", "80", "132", "200"])
def test_a_table_fits_its_terminal_and_no_value_is_cut(path, run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    status, out, _ = run("jobs", "--archive", path, "--all-users", "--limit", "20")
    lines = out.splitlines()
    assert status == 0 and max(map(len, lines)) <= int(width) and "\u2026" not in out
    assert "State" in lines[0] and ("Energy" in lines[0]) == (width == "200")
    assert lines[1].split()[0] == "9999" and "failed" in lines[1] and lines[-1].startswith("20 of 301 jobs")
    assert ("No room for:" in out and "Energy" in " ".join(lines[21:])) == (width != "200")
    status, out, _ = run("usage", "--archive", path, "--all-users", "--since", "2026-01-01")
    assert status == 0 and max(map(len, out.splitlines())) <= int(width) and "total" in out


def test_shares_have_a_grade_in_words_and_times_their_zone_once(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    status, out, _ = run("jobs", "--archive", path, "-a", "--limit", "100")
    assert status == 0 and out.splitlines()[0].count("UTC") == 1 and "Start (UTC)" in out
    assert all(f" % {word}" in out for word in ("good", "low", "poor"))
    _, out, _ = run("jobs", "--archive", path, "-a", "--json", "--limit", "100")
    rows = json.loads(out)["jobs"]
    assert {"good", "low", "poor"} <= {row["cpu_grade"] for row in rows} and "walltime_grade" in rows[0]
    _, out, _ = run("jobs", "--archive", path, "-a", "--columns", "job,cpu_grade", "--csv")
    assert out.splitlines()[0] == "job,cpu_grade"
    _, out, _ = run("usage", "--archive", path, "-a", "--since", "2026-01-01T00:00:00Z")
    assert out.startswith("2026-01-01 00:00:00 to ") and out.splitlines()[0].endswith(" UTC")


def test_a_list_with_a_bad_grade_says_where_the_advice_is(path, run):
    _, out, _ = run("jobs", "--archive", path, "-a")
    assert "poor" in out and out.count("colmet report JOB: what to do about low and poor\n") == 1
    _, out, _ = run("jobs", "--archive", path, "-a", "--columns", "job,name")
    assert "colmet report" not in out


def test_texts_of_others_reach_neither_the_terminal_nor_a_formula(path, run):
    status, out, _ = run("jobs", "--archive", path, "-a", "-j", "9999", "--columns", "job,user,name,cpu_ratio")
    assert status == 0 and "\x1b" not in out and "\u202e" not in out and len(out.splitlines()) == 2
    status, out, _ = run("jobs", "--archive", path, "-a", "-j", "9999", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["name"] == "'" + HOSTILE and row["cpu_ratio"] == ""
    status, out, _ = run("jobs", "--archive", path, "-a", "-j", "9999", "--json")
    assert json.loads(out)["jobs"][0]["name"] == HOSTILE


def test_users_see_their_own_jobs_unless_they_ask_for_all(path, run, monkeypatch):
    monkeypatch.setattr(archives.os, "geteuid", lambda: 4242)
    monkeypatch.setattr(archives.pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="user2"))
    _, out, _ = run("jobs", "--archive", path, "--json", "--limit", "1000")
    assert {job["user"] for job in json.loads(out)["jobs"]} == {"user2"}
    _, out, _ = run("jobs", "--archive", path, "--json", "--all-users", "--limit", "1000")
    assert len(json.loads(out)["jobs"]) == 301
    _, out, _ = run("usage", "--archive", path, "--json", "--since", "2026-01-01")
    assert [group["user"] for group in json.loads(out)["groups"]] == ["user2"]
    for command in ("jobs", "usage"):
        _, out, _ = run(command, "--archive", path)
        assert out.endswith("\njobs of user2 only; --all-users has all\n")
        _, out, _ = run(command, "--archive", path, "-a")
        assert "only" not in out


def test_own_jobs_are_also_those_of_nodes_that_know_the_number_alone(tmp_path, run, monkeypatch):
    monkeypatch.setattr(archives.os, "geteuid", lambda: 4242)
    monkeypatch.setattr(archives.pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="user2"))
    path = str(tmp_path / "a.sqlite")
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        users = ["user2", "4242", "user3"]
        store.write(
            Changes((), [{"job": n, "start": 1, "last": 2, "user": one} for n, one in enumerate(users)], {}), None
        )
    _, out, _ = run("jobs", "--archive", path, "--json")
    assert {job["user"] for job in json.loads(out)["jobs"]} == {"user2", "4242"}


@pytest.mark.parametrize(("by", "counts"), [("queue", True), ("month", False), ("host", False)])
def test_the_total_has_no_number_of_jobs_where_a_job_counts_in_several_lines(path, run, by, counts):
    _, out, _ = run("usage", "--archive", path, "--all-users", "--since", "2026-01-01", "--by", by)
    (total,) = [line.split() for line in out.splitlines() if line.startswith("total")]
    assert (total[1] != "-") == counts


def test_the_months_of_one_project_are_together_and_in_order(path, run):
    words = ("--archive", path, "--all-users", "--since", "2026-01-01", "--until", "2027-01-01", "--json")
    _, out, _ = run("usage", *words, "--by", "project", "--by", "month")
    found = [(row["project"], row["month"]) for row in json.loads(out)["groups"]]
    _, out, _ = run("usage", *words, "--by", "project")
    assert list(dict.fromkeys(one for one, _ in found)) == [row["project"] for row in json.loads(out)["groups"]]
    assert all(before < after for before, after in zip(found, found[1:]) if before[0] == after[0])


def test_cpu_time_of_jobs_without_known_cpus_is_in_no_share(tmp_path, run):
    path = str(tmp_path / "a.sqlite")
    row = {"last": YEAR_START + 3600, "is_running": 0, "user": "ann", "wall_s": 3600.0, "cpu_s": 3600.0}
    known = {"core_s": 7200.0, "wasted_core_s": 3600.0, "cpus": 2.0}
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        jobs = [{**row, **known, "job": 1, "start": YEAR_START}, {**row, "job": 2, "start": YEAR_START}]
        store.write(Changes((), jobs, {}), None)
    words = ("usage", "--archive", path, "-a", "--since", "2020-01-01", "--json")
    (group,) = json.loads(run(*words)[1])["groups"]
    assert (group["core_hours"], group["used_core_hours"], group["used_ratio"]) == (2.0, 2.0, 0.5)


def test_cores_of_a_job_without_known_cpu_time_are_in_no_share(tmp_path, run):
    path = str(tmp_path / "a.sqlite")
    row = {"last": YEAR_START + 3600, "is_running": 0, "user": "ann", "wall_s": 3600.0, "core_s": 7200.0}
    idle = {**row, "cpu_s": 0.0, "wasted_core_s": 7200.0, "job": 1, "start": YEAR_START}
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        store.write(Changes((), [idle, {**row, "job": 2, "start": YEAR_START}], {}), None)
    (group,) = json.loads(run("usage", "--archive", path, "-a", "--since", "2020-01-01", "--json")[1])["groups"]
    assert (group["core_hours"], group["used_ratio"]) == (4.0, 0.0)
    hosts = [{**idle, "host": "a", "hosts": 1}, {**row, "host": "b", "job": 1, "start": YEAR_START, "hosts": 1}]
    whole = job_summary(hosts)
    assert (whole["core_s"], whole["cpu_s"], whole["wasted_core_s"]) == (14400.0, None, None)


def test_filters_and_order_reach_the_archive(path, run):
    words = ("--state", "failed", "--state", "timeout", "--sort", "wasted_core_s", "--reverse", "--json")
    _, out, _ = run("jobs", "--archive", path, "-a", *words)
    found = json.loads(out)["jobs"]
    wasted = [job["wasted_core_s"] for job in found if job["wasted_core_s"] is not None]
    assert wasted == sorted(wasted) and {job["state"] for job in found} == {"failed", "timeout"}
    _, out, _ = run("jobs", "--archive", path, "-a", "--state", "running", "--json")
    assert {job["state"] for job in json.loads(out)["jobs"]} == {"running"}
    _, out, _ = run("jobs", "--archive", path, "-u", "nobody")
    assert out == "no jobs\n"


def test_factors_add_co2_and_cost_with_their_source(path, run, tmp_path):
    file = tmp_path / "usage.toml"
    file.write_text(
        'co2-per-kwh = 50\nco2-source = "the grid"\nprice-per-kwh = 0.2\nprice-per-core-hour = 0.01\n'
        'price-source = "a contract"\ncurrency = "EUR"\n'
    )
    words = ("usage", "--archive", path, "-a", "--since", "2026-01-01", "--by", "project", "--factors", str(file))
    _, out, _ = run(*words, "--json")
    for group in json.loads(out)["groups"]:
        if group["energy_kwh"] is not None:
            assert group["co2_kg"] == pytest.approx(group["energy_kwh"] * 0.05)
            assert group["cost"] == pytest.approx(group["energy_kwh"] * 0.2 + group["core_hours"] * 0.01)
    _, out, _ = run(*words)
    assert "50 g per kWh (the grid)" in out and "0.2 EUR per kWh, 0.01 EUR per allocated core hour (a contract)" in out
    file.write_text("co2-per-kwh = 50\n")
    status, _, err = run(*words)
    assert status == 2 and "co2-source is missing" in err


def test_without_factors_there_is_neither_co2_nor_cost(path, run, tmp_path):
    empty = tmp_path / "usage.toml"
    empty.write_text("")
    words = ("usage", "--archive", path, "-a", "--since", "2026-01-01", "--factors", str(empty), "--csv")
    _, out, _ = run(*words, "--by", "month", "--by", "user")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert "co2_kg" not in rows[0] and "cost" not in rows[0]
    assert [row["month"] for row in rows] == sorted(row["month"] for row in rows)


@pytest.mark.parametrize(
    ("words", "status", "match"),
    [
        (("jobs", "--state", "runing"), 2, "did you mean running"),
        (("jobs", "--columns", "cpu_raito"), 2, "did you mean cpu_ratio"),
        (("jobs", "--sort", "nothing"), 2, "not sorted by"),
        (("jobs", "--json", "--csv"), 2, "choose one"),
        (("usage", "--by", "usr"), 2, "did you mean user"),
        (("usage", "--by", "month", "--by", "week"), 2, "one of month"),
        (("usage", "--since", "1d", "--until", "2d"), 2, "later"),
    ],
)
def test_mistakes_have_a_remedy(path, run, words, status, match):
    found, _, err = run(*words, "--archive", path)
    assert (found, match in err) == (status, True), err


def test_a_missing_archive_and_one_without_permission_name_the_remedy(path, run, tmp_path, monkeypatch):
    status, _, err = run("jobs", "--archive", str(tmp_path / "none"))
    assert status == 1 and "there is no such archive" in err and "--url" in err
    monkeypatch.setattr(archives.os, "access", lambda *_: False)
    status, _, err = run("jobs", "--archive", path)
    assert status == 1 and "permission denied; ask your administrators" in err


def test_help_lists_every_column(run):
    status, out, _ = run("jobs", "--columns", "help")
    assert status == 0 and "wasted_core_s" in out and "footprint" not in out


@pytest.fixture
def site(path, tmp_path):
    """The configuration of a collector with a database, and the database with other jobs than the file."""
    database = ArchiveDatabase()
    journal = tmp_path / "journal"
    journal.mkdir()
    with contextlib.closing(ArchiveStore(str(journal / "archive.sqlite"), writable=True)) as store:
        write(store, summaries(40, footprint=20), 100)
        client = client_of(database.url)
        copied(store, client, "colmet_")
        client.close()
        write(store, summaries(50, footprint=20), 100)
    config = tmp_path / "collector.toml"
    config.write_text(f'elastic-host = ["{database.url}"]\njournal-dir = "{journal}"\n')
    yield config, journal / "archive.sqlite", database
    database.close()


def test_a_collector_with_a_database_has_the_shared_archive(site, run):
    config, file, _ = site
    words = ("jobs", "--config", str(config), "--all-users", "--json")
    assert json.loads(run(*words)[1])["total"] == 40
    assert json.loads(run(*words, "--archive", str(file))[1])["total"] == 90
    assert run("usage", "--config", str(config), "--all-users", "--by", "project", "--since", "2026-01-01")[0] == 0
    config.write_text(config.read_text() + "no-shared-archive = true\n")
    assert json.loads(run(*words)[1])["total"] == 90


def test_without_the_database_the_remedy_is_the_file(site, run):
    config, _, database = site
    database.script["POST", "/colmet_archive"] = [(503, b"")] * 10
    status, out, err = run("jobs", "--config", str(config), "--all-users")
    assert status == 1 and not out and "--archive PATH names the file" in err
