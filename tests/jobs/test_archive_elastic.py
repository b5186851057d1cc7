"""The shared archive: the same answers as the local one, and what happens to strange ones of the database."""

from __future__ import annotations

import pytest

from colmet.jobs.archive import elastic, elastic_usage
from colmet.jobs.archive.derived import LISTED
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveError, ArchiveStore
from tests.support.archive_answers import assert_same_jobs, assert_same_lists, assert_same_sums
from tests.support.archive_data import summaries, write
from tests.support.archive_database import PREFIX, ArchiveDatabase, client_of, copied

COUNT = 150


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A local archive, and a shared one with the same summaries."""
    path = str(tmp_path_factory.mktemp("archive") / "a.sqlite")
    store = ArchiveStore(path, writable=True)
    write(store, summaries(COUNT, footprint=40), 100)
    database = ArchiveDatabase()
    client = client_of(database.url)
    copied(store, client)
    store.close()
    with LocalArchive(path) as local:
        yield local, ElasticArchive(client, PREFIX)
    client.close()
    database.close()


@pytest.mark.slow
def test_lists_are_the_same(both):
    assert_same_lists(*both, COUNT)


@pytest.mark.slow
def test_pages_behind_what_a_server_counts_are_the_same(both, monkeypatch):
    monkeypatch.setattr(elastic, "PAGE", 40)
    assert_same_lists(*both, COUNT)


def test_jobs_are_the_same(both):
    assert_same_jobs(*both, [0, -1, *range(1, COUNT, 7)])


@pytest.mark.slow
def test_sums_are_the_same(both, monkeypatch):
    monkeypatch.setattr(elastic_usage, "GROUPS_AT_ONCE", 7)
    monkeypatch.setattr(elastic_usage, "JOBS_AT_ONCE", 50)
    assert_same_sums(*both)


@pytest.fixture
def bed():
    """An empty database, and an archive in it."""
    database = ArchiveDatabase()
    with ElasticArchive(client_of(database.url), PREFIX) as archive:
        yield database, archive
    database.close()


def test_before_the_first_summary_there_is_none(bed):
    _, archive = bed
    assert archive.jobs(JobFilter()) == (0, [])
    assert archive.job(1) is None and archive.job(1 << 70) is None
    assert archive.usage(JobFilter(), ["user"]) == archive.usage(JobFilter(), ["month"]) == []


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((403, {"error": {"type": "security_exception", "reason": "no"}}), "right to read"),
        ((400, {"error": {"type": "parsing_exception", "reason": "what"}}), "status 400: parsing_exception: what"),
        ((503, b"<html>"), "does not answer.*--archive PATH"),
        ((200, {"hits": 7}), "not what was expected"),
        ((200, {"hits": {"total": {"value": 1}, "hits": [{"_source": 3, "sort": []}]}}), "not what was expected"),
    ],
)
def test_an_answer_that_is_none_is_an_error(bed, answer, match):
    database, archive = bed
    database.script["POST", "/t_archive"] = [answer] * 20
    with pytest.raises(ArchiveError, match=match):
        archive.jobs(JobFilter())


@pytest.mark.parametrize("groups", [{"buckets": [{"key": 1}]}, 3, {"buckets": 1}])
def test_sums_that_are_none_are_an_error(bed, groups):
    database, archive = bed
    database.script["POST", "/t_archive"] = [(200, {"aggregations": {"groups": groups}, "hits": {}})]
    with pytest.raises(ArchiveError, match="not what was expected"):
        archive.usage(JobFilter(), ["user"])


def test_a_value_of_another_type_is_missing(bed):
    database, archive = bed
    strange = {**dict.fromkeys(LISTED, "text"), "job": 1, "start": 5, "cpus": True, "name": 3, "footprint": "?"}
    database.stored["t_archive-jobs"] = {"1-5": (strange, 1, 1)}
    (row,) = archive.jobs(JobFilter(), [*LISTED, "footprint"]).rows
    assert (row["start"], row["cpus"], row["cpu_s"], row["name"], row["footprint"]) == (5, *[None] * 4)
    assert row["user"] == "text" and archive.job(1).summary["hosts"] is None


def test_a_document_without_a_key_is_no_job(bed):
    database, archive = bed
    database.stored["t_archive-jobs"] = {
        "1-5": ({"job": 1, "start": 5, "end": 9}, 1, 1),
        "1": ({"job": 1}, 1, 1),
        "2-5": ({"job": [2], "start": 5, "end": 9}, 1, 1),
    }
    host = {"host": "n1", "start": 5, "last": 9, "core_s": 2.0}
    database.stored["t_archive-hosts"] = {"1-5-n1": ({"job": 1, **host}, 1, 1), "1-6-n1": ({"job": [1], **host}, 1, 1)}
    assert archive.job(1).starts == [5]
    (group,) = archive.usage(JobFilter(), ["host"])
    assert (group.keys, group.jobs, group.sums["core_s"]) == (("n1",), 1, 2.0)
