"""The report of a job by the JSON interface: whose rows it is made of, in which form, and in a process of its own."""

from __future__ import annotations

import argparse
import json
import sys
import time

import pytest

import colmet.report
from colmet.common.errors import ColmetError
from colmet.report.own import UNREADABLE, OwnHistory
from colmet.web import models
from colmet.web.limits import Busy
from colmet.web.report_process import report_of
from colmet.web.reports import MissingLibrary, ReportError, ReportProcesses, ReportQuery, store_of
from tests.support.hdf5_writer import write_once
from tests.support.made_up_history import START, job_rows, node_rows
from tests.support.web_client import ask
from tests.support.web_nodes import Cluster
from tests.support.web_store import Bed
from tests.support.web_stored import NOW, stored_in
from tests.support.web_users import ALICE, BOB, ROOT, got, make, refused

JOB, OTHERS, SHARED = 6000, 6001, 6002  # alice's; bob's on the same node; hers on node-1 and bob's on node-2


@pytest.fixture
def bed(history, clock):
    bed = Bed(history, clock)
    job_rows(history, job=JOB, cores=1.0)
    job_rows(history, job=OTHERS, cores=1.0, user=b"bob")
    job_rows(history, job=SHARED, host="node-1", cores=0.0)
    job_rows(history, job=SHARED, host="node-2", user=b"bob", cores=0.0)
    node_rows(history, jobs=(JOB, OTHERS))
    return bed


@pytest.fixture
def app(bed, users, page):
    return make(bed.known, users, stored=stored_in(bed.history), folder=page)


def test_a_user_gets_the_report_of_her_own_job_and_nothing_of_others(app):
    found = got(app, f"/api/v1/jobs/{JOB}/report", ALICE)
    whole = got(app, f"/api/v1/jobs/{JOB}/report", ROOT)
    hidden = ("others_joules", "nobody_joules", "unshared_joules", "nodes_joules", "busy_ratio")
    assert all(whole["energy"][name] is not None and found["energy"][name] is None for name in hidden)
    for one in (found, whole):
        for name in hidden:
            del one["energy"][name]
    assert found == whole and found["user"] == "alice" and found["energy"]["job_joules"] > 0
    refused(app, f"/api/v1/jobs/{OTHERS}/report", 404, ALICE)


@pytest.mark.parametrize("path", ["report", "report.html"])
@pytest.mark.parametrize("query", ["", "?since=1", "?since=1&until=2"])
def test_a_job_of_another_is_as_unknown_as_one_that_never_was(app, path, query):
    theirs = refused(app, f"/api/v1/jobs/{OTHERS}/{path}{query}", 404, ALICE)
    nobodys = refused(app, f"/api/v1/jobs/9999/{path}{query}", 404, ALICE)
    assert theirs.body.replace(b"6001", b"9999") == nobodys.body and theirs.headers == nobodys.headers


def test_of_a_job_with_two_users_each_gets_the_own_hosts(app):
    for login, host in ((ALICE, "node-1"), (BOB, "node-2")):
        found = got(app, f"/api/v1/jobs/{SHARED}/report", login)
        assert [one["host"] for one in found["hosts"]] == [host]
    assert len(got(app, f"/api/v1/jobs/{SHARED}/report", ROOT)["hosts"]) == 2


def test_rows_before_the_start_of_the_users_part_are_not_read(history):
    job_rows(history, job=JOB)
    start = START + 300.5
    seen = OwnHistory(history, JOB, {"node-1": start})
    for rows in (seen.read(JOB, "cgroup_default"), seen.by_hosts(JOB, "cgroup_default", []).read(["node-1"])):
        assert rows[0].times[0] == START + 305
    assert not seen.read(JOB, "cgroup_default", hosts=["node-2"])


def test_the_shape_of_a_report_is_described(app, bed):
    found = got(app, f"/api/v1/jobs/{JOB}/report", ROOT)
    assert models.Report(**found)
    assert set(found) == set(getattr(models.Report, "model_fields", None) or models.Report.__fields__)


def test_the_page_has_its_own_policy_and_no_script(app):
    answer = ask(app, f"/api/v1/jobs/{JOB}/report.html", [ALICE])
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "script" not in policy
    assert f"Job {JOB} of alice".encode() in answer.body and b"other jobs" not in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (MissingLibrary("it requires matplotlib: apt-get install it"), 501, "apt-get"),
        (ReportError("/var/lib/x.hdf5: broken"), 503, "/var/lib/x.hdf5"),
        (Busy("too long"), 429, "too long"),
    ],
)
def test_a_report_that_cannot_be_made(bed, users, page, error, status, said):
    def fail(_):
        raise error

    app = make(bed.known, users, stored=stored_in(bed.history)._replace(reporter=fail), folder=page)
    assert said in refused(app, f"/api/v1/jobs/{JOB}/report", status, ROOT).json()["error"]
    mine = refused(app, f"/api/v1/jobs/{JOB}/report", status, ALICE).json()["error"]
    assert mine == (UNREADABLE if status == 503 else str(error))


def test_without_a_store_there_is_no_report(bed, users, page):
    refused(make(bed.known, users, folder=page), f"/api/v1/jobs/{JOB}/report", 404, ALICE)


# -- the process --


def options(path=""):
    return argparse.Namespace(hdf5_filepath=str(path), elastic_host=[], http_listen="not passed on")


def test_a_process_makes_the_report_of_stored_files(tmp_path):
    cluster = Cluster(nodes=3, jobs=6, start=START)
    write_once(tmp_path / "made.hdf5", [one for _ in range(3) for one in cluster.batches()])
    (tmp_path / "made.hdf5").rename(tmp_path / f"c.{START}.hdf5")
    made = ReportProcesses(options(tmp_path / "c"))
    found = json.loads(made(ReportQuery(1000)))
    assert found["job"] == 1000 and found["user"] == "alice" and found["samples"] == 3
    host = found["hosts"][0]["host"]
    assert made(ReportQuery(1000, own={"elsewhere": None})) is None
    assert json.loads(made(ReportQuery(1000, own={host: None})))["energy"]["busy_ratio"] is None
    assert made(ReportQuery(1000, form="html")).startswith(b"<!DOCTYPE html>")
    made.close()


def test_a_store_without_files_has_no_report(tmp_path):
    assert ReportProcesses(options(tmp_path / "c"))(ReportQuery(JOB, own={"node-1": None})) is None
    assert "http_listen" not in store_of(options())


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("import time; time.sleep(60)", Busy, "too long"),
        ("import sys; sys.exit(9)", ReportError, "ended early"),
        ('print(\'{"error": "no"}\')', ReportError, "no"),
        ('print(\'{"missing": "install it"}\')', MissingLibrary, "install it"),
        ("", ReportError, "ended early"),
    ],
)
def test_a_process_that_fails_is_an_error_and_ends(program, error, said):
    began = time.monotonic()
    made = ReportProcesses(options(), (sys.executable, "-c", program), 2.0)
    with pytest.raises(error, match=said):
        made(ReportQuery(JOB))
    assert time.monotonic() - began < 50


def test_a_program_that_is_missing_is_an_error():
    with pytest.raises(ColmetError, match="No such file"):
        ReportProcesses(options(), ("/nonexistent",))(ReportQuery(JOB))


def test_without_matplotlib_the_page_names_it_and_the_json_needs_nothing(history, monkeypatch):
    job_rows(history)
    for name in ("colmet.report.page", "colmet.report.charts", "matplotlib"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(colmet.report, "charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibrary, match="python3-matplotlib"):
        report_of(history, ReportQuery(42, form="html"), NOW)
    found = json.loads(report_of(history, ReportQuery(42), NOW))
    assert found["job"] == 42 and set(found) > {"cpu", "energy"}
