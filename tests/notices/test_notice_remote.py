"""Notices from an archive over HTTP: the same as from its file."""

from __future__ import annotations

from colmet.archive.local import LocalArchive
from colmet.commands.remote import InterfaceClient
from colmet.commands.remote_archive import RemoteArchive
from colmet.notices.options import Settings
from colmet.notices.round import Round
from colmet.notices.rules import RULES
from colmet.notices.state import State
from colmet.web.access import Access
from colmet.web.report_process import report_of
from colmet.web.store import EmptyHistory
from colmet.web.stored_routes import Stored
from tests.support.notice_jobs import GIB, NOW, failed, idle, job, settings, write
from tests.support.web_client import basic
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import running
from tests.support.web_users import users  # noqa: F401 - a fixture


def found(archive, path):
    with State(None, False, NOW) as state:
        notices = Round(Settings(path, True), archive, state, NOW).notices()
    return [(one.row["job"], one.user, one.rule.name, one.text, one.audiences) for one in notices]


def test_an_administrator_gets_the_same_notices_over_http_and_a_user_those_of_own_jobs(tmp_path, users):  # noqa: F811
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
