"""Stored rows of a job by the JSON interface: whole, by pages, and to nobody but their user."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.web.stored_routes import Mark
from tests.support.made_up_history import START, job_rows
from tests.support.web_store import Bed, stored_in
from tests.support.web_users import ALICE, BOB, ROOT, got, make, refused

JOB, OTHERS, SHARED = 6000, 6001, 6002  # alice's; bob's; hers on node-1 and bob's on node-2
ROWS = "/api/v1/jobs/{}/rows?table={}"


@pytest.fixture
def bed(history, clock):
    bed = Bed(history, clock)
    job_rows(history, job=JOB, count=20)
    job_rows(history, job=JOB, host="node-2", count=10)
    job_rows(history, job=OTHERS, user=b"bob", count=10)
    job_rows(history, job=SHARED, count=10)
    job_rows(history, job=SHARED, host="node-2", user=b"bob", count=10)
    values = np.array([0.5, np.nan, -1.0])
    history.add(JOB, "facility_logins", "node-1", [START], user=b"alice")
    history.add(JOB, "kinds", "node-1", [START, START, START + 1], part=values, text=[b"a\xff", b"", b"c"], count=-1)
    return bed


@pytest.fixture
def app(bed, users, page):
    return make(bed.known, users, stored=stored_in(bed.history), folder=page)


def pages(app, target, login):
    """All pages of a query, joined: (node, time) of each row."""
    found, after, count = [], "", 0
    while after is not None:
        page = got(app, target + (f"&after={after}" if after else ""), login)
        found += [(rows["node"], time) for rows in page["rows"] for time in rows["times"]]
        after, count = page["next"], count + 1
    return found, count


def test_pages_have_each_row_once_in_order(app):
    expected = [(node, START + 5 * n) for node, last in (("node-1", 20), ("node-2", 10)) for n in range(1, last + 1)]
    for limit in (1, 7, 10, 29, 30, 31):
        found, count = pages(app, ROWS.format(JOB, "taskstats_default") + f"&limit={limit}", ALICE)
        assert found == expected and count == -(-30 // limit), limit


def test_several_rows_of_one_time_are_in_several_pages(app):
    found, count = pages(app, ROWS.format(JOB, "kinds") + "&limit=1", ALICE)
    assert [time - START for _, time in found] == [0, 0, 1] and count == 3


def test_values_have_their_types_and_missing_ones_are_null(app):
    page = got(app, ROWS.format(JOB, "kinds"), ALICE)
    assert page["kinds"] == {"part": "f", "text": "S", "count": "i"}
    (rows,) = page["rows"]
    assert rows["columns"] == {"part": [0.5, None, None], "text": ["a\ufffd", None, "c"], "count": [None] * 3}
    assert (page["total"], page["first"], page["last"], page["next"]) == (3, START, START + 1, None)


def test_columns_times_and_a_node_are_chosen(app):
    page = got(app, ROWS.format(JOB, "kinds") + "&columns=count,none", ALICE)
    assert [*page["rows"][0]["columns"]] == ["count"]
    assert got(app, ROWS.format(JOB, "kinds") + "&columns=time", ALICE)["rows"][0]["columns"] == {}
    page = got(app, ROWS.format(JOB, "cgroup_default") + f"&node=node-2&since={START + 11}&until={START + 20}", ALICE)
    assert [(rows["node"], rows["times"]) for rows in page["rows"]] == [("node-2", [START + 15, START + 20])]
    outline = got(app, ROWS.format(JOB, "cgroup_default") + "&limit=0", ALICE)
    assert (outline["total"], outline["rows"], outline["next"]) == (30, [], None)


def test_tables_are_those_of_the_store(app):
    own, all_of_them = [set(got(app, f"/api/v1/jobs/{JOB}/tables", who)["tables"]) for who in (ALICE, ROOT)]
    assert own == {"cgroup_default", "taskstats_default", "kinds"} == all_of_them - {"facility_logins"} < all_of_them


@pytest.mark.parametrize("more", ["", "&node=node-2", "&node=node-1", "&limit=0", f"&after={START + 5}.0.node-1"])
def test_of_a_job_with_two_users_each_gets_the_own_rows(app, more):
    for login, user, mine in ((ALICE, "alice", "node-1"), (BOB, "bob", "node-2")):
        page = got(app, ROWS.format(SHARED, "cgroup_default") + more, login)
        for rows in page["rows"]:
            assert rows["node"] == mine and set(rows["columns"]["user"]) == {user}
        assert page["total"] in (0, 10)
    whole = got(app, ROWS.format(SHARED, "cgroup_default"), ROOT)
    assert [rows["node"] for rows in whole["rows"]] == ["node-1", "node-2"]


def test_tables_of_a_facility_are_for_administrators(app):
    refused(app, ROWS.format(JOB, "facility_logins"), 404, ALICE)
    assert got(app, ROWS.format(JOB, "facility_logins"), ROOT)["rows"]


def test_what_is_no_mark_of_a_page_is_refused(app):
    for text in ("x", "1.2", "1..n", ".1.n", "-1.0.n", "1.x.n", "99999999999999999999.0.n", "1.0."):
        assert Mark.parse(text) is None, text
        refused(app, ROWS.format(JOB, "kinds") + f"&after={text}", 400, ALICE)
    mark = Mark(START, 3, "a.host.with.dots")
    assert Mark.parse(mark.text()) == mark
