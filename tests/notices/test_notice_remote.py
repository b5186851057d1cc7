"""Notices from an archive over HTTP, and from the shared one in a database: the same as from its file."""

from __future__ import annotations

import contextlib

import pytest

from colmet.commands.remote import InterfaceClient
from colmet.commands.remote_archive import RemoteArchive
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore
from colmet.notices.options import NoticeSettings
from colmet.notices.round import Round
from colmet.notices.rules import RULES
from colmet.notices.state import State
from colmet.web.access import Access
from colmet.web.reports import report_of
from colmet.web.store import EmptyHistory
from colmet.web.stored_routes import Stored
from tests.support.archive_database import PREFIX, ArchiveDatabase, client_of, copied
from tests.support.notice_jobs import GIB, NOW, failed, idle, job, settings, write
from tests.support.web_client import basic
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import running
from tests.support.web_users import users  # noqa: F401 - a fixture


def found(archive, path):
    with State(None, False, NOW) as state:
        notices = Round(NoticeSettings(path, True), archive, state, NOW).notices()
    return [(one.row["job"], one.user, one.rule.name, one.text, one.audiences) for one in notices]


@pytest.fixture
def made(tmp_path):
    """An archive in which each rule holds for some job, its rules, and the notices from its file."""
    full = {"memory_ratio": 1.0, "memory_limit": 8 * GIB, "memory_peak": 8 * GIB, "memory_anon_peak": 8 * GIB}
    load = {"lustre_metadata_ops": 40_000_000}
    path = write(
        tmp_path / "a.sqlite",
        *(idle(1, on=["node1"]), idle(2, user="bob", on=["node2"]), job(3, **full, on=["node3", "node4"])),
        *(job(4, **load, on=["node5"]), job(5, user="bob", **load, on=["node5"]), failed(6, user="bob", owner="bob")),
        job(7, gpus=2, gpu_s=14400.0, gpu_busy_s=0.0, on=["node6"]),
    )
    rules = settings(tmp_path / "notices.toml")
    with LocalArchive(path) as archive:
        expected = found(archive, rules)
    assert {one[2] for one in expected} == set(RULES) and len(expected) == 7
    return path, rules, expected


def test_an_administrator_gets_the_same_notices_over_http_and_a_user_those_of_own_jobs(made, users):  # noqa: F811
    path, rules, expected = made
    access = Access(users, is_member=lambda *_: False)
    stored = Stored(
        lambda query: report_of(EmptyHistory, query, NOW, lambda: LocalArchive(path)),
        archive=lambda: LocalArchive(path),
    )
    with running(MadeUpFacts(4, 4), access=access, stored=stored) as server:
        for user, own in (("root", expected), ("alice", [one for one in expected if one[1] == "alice"])):
            client = InterfaceClient(f"http://127.0.0.1:{server.port}", basic(user, user[0])[1])
            with RemoteArchive(client) as archive:
                seen = found(archive, rules)
            assert [one[:3] for one in seen] == [one[:3] for one in own]
            if user == "root":
                assert seen == own


@pytest.fixture
def database():
    made = ArchiveDatabase()
    yield made
    made.close()


def test_the_shared_archive_gives_the_same_notices_and_strange_documents_none(made, database):
    path, rules, expected = made
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        archive = ElasticArchive(client_of(database.url), PREFIX)
        with archive:
            copied(store, archive._client)
            assert found(archive, rules) == expected
            strange = {"state": "running", "user": 3, "cpu_s": {}, "is_running": "1", "name": []}
            database.stored[f"{PREFIX}archive-jobs"] = {
                "1-5": ({**strange, "start": 5, "job": True, "last": NOW - 5}, 1, 1),
                "2-5": ({**strange, "start": NOW - 9000, "job": 2, "last": NOW - 5}, 1, 1),
                "3-5": ({**strange, "start": NOW - 9000, "job": 3, "last": "x", "is_running": 1}, 1, 1),
            }
            assert found(archive, rules) == []
