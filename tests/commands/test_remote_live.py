"""Commands with --url against a collector, its interface and the process of a report, all as processes of their own."""

from __future__ import annotations

import json

import pytest

from colmet.commands import colmet
from tests.support.web_process import Bed

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.close()


def test_a_job_is_reported_extracted_plotted_and_listed(bed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    bed.daemon.said("http serves")
    for _ in range(3):
        bed.send()
    bed.answer(
        "/api/v1/jobs/1000/series?metric=cgroup_default.cpu_usage&source=stored", lambda answer: answer["series"]
    )
    bed.answer("/api/v1/jobs/1000/report", lambda answer: answer["samples"] == 3)
    url = ("--url", f"http://127.0.0.1:{bed.http}")
    assert colmet.main(["report", "1000", "--json", *url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["job"], report["user"], report["samples"]) == (1000, "alice", 3)
    assert colmet.main(["report", "1000", *url, "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert colmet.main(["extract", "-j", "1000", "--metrics", "cpu_usage", *url]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows["timestamp"]) == 3 * len(report["hosts"]) and len(rows["cpu_usage"]) == len(rows["timestamp"])
    assert colmet.main(["plot", "1000", "cpu_usage", "-o", str(tmp_path / "plot.svg"), *url]) == 0
    capsys.readouterr()
    assert colmet.main(["top", "--json", *url]) == 0
    assert 1000 in [row["job"] for row in json.loads(capsys.readouterr().out)["rows"]]
    bed.answer("/api/v1/archive/jobs", lambda answer: answer["total"] == 6)
    assert colmet.main(["jobs", "--json", "--all-users", *url]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert {(row["job"], row["user"]) for row in jobs} == {(1000 + n, bed.cluster.user(1000 + n)) for n in range(6)}
    assert colmet.main(["usage", "--json", "--all-users", "--since", "1d", *url]) == 0
    assert sum(group["jobs"] for group in json.loads(capsys.readouterr().out)["groups"]) == 6
    assert colmet.main(["report", "1000", "1001", "--json", *url]) == 0
    assert sorted(row["job"] for row in json.loads(capsys.readouterr().out)["jobs"]) == [1000, 1001]
    for file in tmp_path.rglob("*.hdf5"):
        file.unlink()
    assert colmet.main(["report", "1000", "--json", *url]) == 0
    archived = json.loads(capsys.readouterr().out)
    assert (archived["source"], archived["user"], archived["samples"]) == ("archive", "alice", 3)
    assert archived["cpu"]["used_s"] == pytest.approx(report["cpu"]["used_s"], rel=0.02)
