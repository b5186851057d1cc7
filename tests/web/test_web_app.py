"""The routes of the JSON interface: what is answered to whom, and in which form."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from inspect import isfunction

import numpy as np
import pytest

from colmet.common.errors import ColmetError
from colmet.common.live.summary import JOB_KEYS
from colmet.common.tables import schemas
from colmet.jobs.report.archived import UNREADABLE
from colmet.jobs.report.document import to_json
from colmet.web import models
from colmet.web.interface import JOB_SORTS, MODELS, NODE_SORTS
from colmet.web.queries import Queries
from colmet.web.store import StoreWarning
from colmet.web.workers import Busy, Workers
from tests.support.web_client import ask, asking, basic
from tests.support.web_facts import COLUMNS, FIRST, STORED_ONLY, MadeUpFacts
from tests.support.web_store import stored_of
from tests.support.web_users import ALICE, METRIC, ROOT, got, make, refused

ALICES, BOBS = FIRST, FIRST + 1  # jobs
ENDED = FIRST - 1  # alice's
NODE_METRIC = "metric=procstats_default.loadavg_1min"


@pytest.fixture(scope="module")
def facts():
    return MadeUpFacts(40, 40)


@pytest.fixture(scope="module")
def app(facts, users, page, tmp_path_factory):
    return make(facts, users, stored=stored_of(facts, tmp_path_factory.mktemp("archive")), folder=page)


@pytest.fixture(scope="module")
def open_app(facts, page, tmp_path_factory):
    return make(facts, stored=stored_of(facts, tmp_path_factory.mktemp("archive")), folder=page)


@pytest.fixture(scope="module")
def storeless_app(page, tmp_path_factory):
    """One whose store cannot be read."""
    stored = stored_of(MadeUpFacts(40, 40), tmp_path_factory.mktemp("archive"))
    return make(MadeUpFacts(40, 40, fails=True), stored=stored, folder=page)


# -- the form of all answers --


ROUTES = [
    *("/api/v1/whoami", "/api/v1/cluster", "/api/v1/measures", "/api/v1/jobs", f"/api/v1/jobs/{ALICES}"),
    *(f"/api/v1/jobs/{ALICES}/series?{METRIC}", f"/api/v1/jobs/{ALICES}/completeness"),
    *(f"/api/v1/jobs/{ALICES}/report", f"/api/v1/jobs/{ALICES}/summary", f"/api/v1/jobs/{ALICES}/tables"),
    *(f"/api/v1/jobs/{ALICES}/rows?table=cgroup_default", "/api/v1/archive/jobs", f"/api/v1/archive/jobs/{ALICES}"),
    *("/api/v1/usage", "/api/v1/report", "/api/v1/nodes", "/api/v1/nodes/node1"),
    *(f"/api/v1/nodes/node1/series?{NODE_METRIC}", "/api/v1/node-history", "/api/v1/health", "/api/v1/status"),
    *("/qhost", "/qstat"),
]


def test_measures_come_with_their_columns_and_units(open_app):
    answer = got(open_app, "/api/v1/measures")
    memory = answer["measures"]["memory"]
    assert (memory["rate"], memory["hosts"], memory["unit"]) == (False, "sum", "bytes")
    assert memory["sources"][0] == {"table": "cgroup_default", "column": "memory_current", "origin": "cgroup"}
    assert answer["measures"]["cpu_used"]["rate"] and not answer["measures"]["oom_kills"]["rate"]
    assert {"measure": "node_memory_shmem", "sign": 1} in answer["sums"]["node_memory_used"]
    assert answer["units"]["kbytes/s"] == {"factor": 1024, "family": "flow"}
    assert "NVIDIA" in answer["absent"]["nvidiastats_default"]
    assert set(answer["absent"]) <= set(schemas())
    assert answer["units"]["percent"] == {"factor": 0.01, "family": "share"}


# in HTML: tests/web/test_web_report.py; not for an open interface: tests/web/test_web_access.py
OTHERS = [f"/api/v1/jobs/{ALICES}/report.html", f"/api/v1/jobs/{ALICES}/report.png", "/api/v1/report.html"]
OTHERS.append("/api/v1/token")


def pattern_of(path):
    return re.compile(re.sub(r"{\w+}", "[^/]+", path))


def test_every_route_is_tested(open_app):
    paths = got(open_app, "/openapi.json")["paths"]
    routes = [*ROUTES, *OTHERS]
    assert len(paths) == len(routes)
    for path in paths:
        assert any(pattern_of(path).fullmatch(route.partition("?")[0]) for route in routes), path


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_is_json_that_nobody_keeps_and_no_page_frames(open_app, route):
    answer = ask(open_app, route)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert int(answer.headers["content-length"]) == len(answer.body)


def model_of(open_app, route):
    for path, methods in got(open_app, "/openapi.json")["paths"].items():
        if pattern_of(path).fullmatch(route.partition("?")[0]):
            schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            name = schema["$ref"].rpartition("/")[2]
            return next(getattr(one, name) for one in MODELS if hasattr(one, name))
    raise AssertionError(route)


@pytest.mark.parametrize(
    "route",
    [
        *ROUTES,
        "/api/v1/jobs?state=all&limit=1000",
        f"/api/v1/jobs/{ENDED}",
        f"/api/v1/jobs/{STORED_ONLY}",
        f"/api/v1/jobs/{FIRST + 9}/series?metric=nvidiastats_default.power",
    ],
)
def test_an_answer_has_the_shape_of_the_description(open_app, storeless_app, route):
    for app in (open_app, storeless_app):
        model_of(app, route)(**got(app, route))  # raises where a value is of another type, or lacks


@pytest.mark.parametrize("route", ROUTES)
def test_head_is_answered_as_get_without_the_body(open_app, route):
    head, get = (ask(open_app, route, method=method) for method in ("HEAD", "GET"))
    assert head.status == get.status and head.body == b""
    assert head.headers.keys() == get.headers.keys() and int(head.headers["content-length"]) > 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
@pytest.mark.parametrize("route", ["/", "/api/v1/jobs", "/nothing"])
def test_other_methods_are_refused_whoever_asks(app, route, method):
    assert refused(app, route, 405, method=method).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "route",
    ["/nothing", "/api", "/api/v1/jobs/", "/api/v1/jobs/1/nothing", "/docs", "/redoc", "//", "/static/x", "/qhost/"],
)
def test_what_is_not_there_is_404_in_the_form_of_all_errors(open_app, route):
    refused(open_app, route, 404)


def test_a_large_answer_is_packed_for_clients_that_accept_it(open_app):
    plain = ask(open_app, "/api/v1/jobs?limit=40&sort=job")
    packed = ask(open_app, "/api/v1/jobs?limit=40&sort=job", [("Accept-Encoding", "br, gzip")])
    assert packed.headers["content-encoding"] == "gzip" and len(packed.body) < len(plain.body) / 2
    assert [row["job"] for row in packed.json()["items"]] == [row["job"] for row in plain.json()["items"]]
    assert "content-encoding" not in ask(open_app, "/api/v1/whoami", [("Accept-Encoding", "gzip")]).headers


def test_numbers_that_are_none_and_those_of_numpy_are_written_as_json():
    numbers = {"nan": math.nan, "inf": [np.float64("inf"), (1.5, -math.inf)], "int": np.int64(2**62)}
    others = {"array": np.array([1.0, math.nan]), "names": frozenset({"b", "a"}), "lone": "\udcff"}
    answer = json.loads(to_json({**numbers, **others}))
    assert answer["nan"] is None and answer["inf"] == [None, [1.5, None]]
    assert answer["int"] == 2**62 and answer["array"] == [1.0, None] and answer["names"] == ["a", "b"]


# -- what is asked --


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=x", "limit=", "limit=1e3", "limit=99999999999999999999999999"),
        *("offset=-1", "offset=9999999999999999999999", "state=asleep", "sort=", "sort=nothing", "sort=__class__"),
        *("since=nan", "since=inf", "since=-inf", "since=-1", "until=1e400", "reverse=perhaps", "user=" + "x" * 256),
        *("sicne=1", "limit=1&limit=2", "limit[]=1", "%00=1", "%ff"),
    ],
)
def test_a_value_that_cannot_be_used_is_400(open_app, query):
    refused(open_app, f"/api/v1/jobs?{query}", 400)


@pytest.mark.parametrize("job", ["x", "0", "-1", "1.5", str(2**63), "9" * 100, "%00", "%ff", "1%20OR%201=1"])
def test_what_is_no_number_of_a_job_is_400(open_app, job):
    refused(open_app, f"/api/v1/jobs/{job}", 400)


@pytest.mark.parametrize(
    "query",
    [
        *("", "metric=", "metric=cgroup_default", "metric=.cpu", "metric=cgroup_default.", f"{METRIC}&points=1"),
        *(f"{METRIC}&points=5001", f"{METRIC}&fold=sum", f"{METRIC}&source=disk", f"{METRIC}&rate=2"),
        "metric=" + "x." * 200,
    ],
)
def test_a_series_that_cannot_be_asked_for_is_400(open_app, query):
    refused(open_app, f"/api/v1/jobs/{ALICES}/series?{query}", 400)


@pytest.mark.parametrize(
    "metric", ["cgroup_default.nothing", "nothing.cpu_usage", "a.b.c", "%00.%00", "%ff.%F0%9F%92%A9"]
)
def test_a_column_that_is_not_there_is_404(open_app, metric):
    refused(open_app, f"/api/v1/jobs/{ALICES}/series?metric={metric}", 404)


def test_what_is_asked_for_reaches_the_facts(page):
    asked = []

    class Noting(MadeUpFacts):
        def series(self, request):
            asked.append(request)
            return super().series(request)

        def jobs(self, request):
            asked.append(request)
            return super().jobs(request)

    app = make(Noting(20, 40), folder=page)
    query = f"{METRIC}&node=node1&since=1&until=2e9&points=7&fold=max&rate=true&source=memory"
    got(app, f"/api/v1/jobs/{ALICES}/series?{query}")
    table, column = METRIC.removeprefix("metric=").split(".")
    assert asked.pop() == (ALICES, table, column, "node1", 1.0, 2e9, 7, "max", True, "memory", False, None)
    query = "job=7,8&state=all&user=bob&node=node2&text=1&since=3&until=4&sort=memory&reverse=true&offset=5&limit=6"
    got(app, f"/api/v1/jobs?{query}")
    assert asked.pop() == ("bob", {7, 8}, "all", "node2", "1", 3.0, 4.0, "memory", True, 5, 6)


def test_what_was_before_a_job_was_the_users_is_not_asked_for(users, page):
    asked = []

    class Again(MadeUpFacts):
        def own(self, job, user):
            assert (job, user) == (ALICES, "alice")
            return {"node1": 1000.5, "node2": 1200.0}

        def series(self, request):
            asked.append(request.since)
            return super().series(request)

        def completeness(self, job, since, until, own):
            asked.append(since)
            return super().completeness(job, since, until, own)

    app = make(Again(20, 40), users, folder=page)
    for limits, since in (("", 1000.5), ("&since=1", 1000.5), ("&since=2000", 2000.0)):
        got(app, f"/api/v1/jobs/{ALICES}/series?{METRIC}{limits}", ALICE)
        got(app, f"/api/v1/jobs/{ALICES}/completeness?{limits[1:]}", ALICE)
        assert [asked.pop(), asked.pop()] == [since, since]
    assert got(app, f"/api/v1/jobs/{ALICES}/series?{METRIC}&until=1000", ALICE)["series"] == [] and not asked
    got(app, f"/api/v1/jobs/{ALICES}/series?{METRIC}&since=1", ROOT)
    assert asked == [1.0], "administrators see all"


def test_rows_are_paged(open_app):
    rows = [got(open_app, f"/api/v1/jobs?sort=job&limit=15&offset={n}") for n in (0, 15, 30, 45)]
    assert [len(page["items"]) for page in rows] == [15, 15, 10, 0]
    assert {page["total"] for page in rows} == {40}
    assert [row["job"] for page in rows for row in page["items"]] == list(range(FIRST, FIRST + 40))


def test_jobs_and_nodes_are_sorted_by_every_documented_key(open_app):
    for kind, sorts in (("jobs", JOB_SORTS), ("nodes", NODE_SORTS)):
        for sort in sorts:
            got(open_app, f"/api/v1/{kind}?sort={sort}")


# -- whose it is --


def test_nobody_is_answered_without_a_name_whatever_is_asked(app):
    for route in [*ROUTES, "/openapi.json", "/nothing", "/api/v1/jobs?limit=x"]:
        answer = refused(app, route, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer"), "a browser opens no window of its own"


def texts_in(value):
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    else:
        yield str(value)


def test_where_the_store_cannot_be_read_what_is_anothers_still_looks_like_what_is_not_there(users, page):
    app = make(MadeUpFacts(40, 40, fails=True), users, folder=page)
    for tail in ("", f"/series?{METRIC}", "/completeness"):
        others, none = (refused(app, f"/api/v1/jobs/{job}{tail}", 404, ALICE) for job in (BOBS, 4242))
        assert others.body == none.body.replace(b"4242", str(BOBS).encode())


def test_a_user_sees_the_own_jobs(app):
    assert got(app, "/api/v1/whoami", ALICE)["user"] == "alice"
    assert {row["user"] for row in got(app, "/api/v1/jobs?state=all&limit=1000", ALICE)["items"]} == {"alice"}
    assert got(app, "/api/v1/jobs", ALICE)["total"] == 4
    for job in (ALICES, ENDED, STORED_ONLY):
        assert got(app, f"/api/v1/jobs/{job}", ALICE)["job"]["user"] == "alice"
    assert got(app, f"/api/v1/jobs/{ALICES}/series?{METRIC}", ALICE)["series"]
    assert got(app, f"/api/v1/jobs/{ALICES}/completeness", ALICE)["hosts"]


def test_a_job_on_the_users_node_that_nobody_owns_is_not_shown(users, page):
    class Nobodys(MadeUpFacts):
        def _on_node(self, job, node):
            row = super()._on_node(job, node)
            return {**row, "user": ""} if row["user"] == "bob" else row

    facts = Nobodys(40, 40)
    app = make(facts, users, folder=page)
    shared = next(one for one in facts.on[ALICES] if any(facts.user[job] == "bob" for job in facts.at[one]))
    assert "" in {row["user"] for row in got(app, f"/api/v1/nodes/{shared}", ROOT)["jobs"]}
    assert {row["user"] for row in got(app, f"/api/v1/nodes/{shared}", ALICE)["jobs"]} == {"alice"}


def test_of_the_cluster_a_user_sees_the_own_jobs_and_how_many_nodes_there_are(app):
    answer = got(app, "/api/v1/cluster", ALICE)
    assert answer["jobs"]["running"] == 4 and answer["jobs"]["users"] == 1
    assert {key for key, value in answer["nodes"].items() if value is not None} == {"heard", "silent"}
    assert got(app, "/api/v1/cluster", ROOT)["nodes"]["cpu"] is not None


def test_a_nodes_past_before_the_users_first_job_there_is_not_shown(app, facts):
    began = min(facts._job(job)["first"] for job in facts.at["node1"] if facts.user[job] == "alice")
    answer = got(app, f"/api/v1/nodes/node1/series?{NODE_METRIC}&since=1", ALICE)
    assert answer["since"] == began and min(answer["series"][0]["times"]) >= began
    assert got(app, f"/api/v1/nodes/node1/series?{NODE_METRIC}&since={began + 60}", ALICE)["since"] == began + 60
    assert got(app, f"/api/v1/nodes/node1/series?{NODE_METRIC}&until={began - 60}", ALICE)["series"] == []
    assert got(app, f"/api/v1/nodes/node1/series?{NODE_METRIC}&since=1", ROOT)["since"] < began


def test_tables_of_a_facility_name_users_and_are_for_administrators(users, page):
    times = {"name": "times", "unit": "count", "kind": "gauge", "help": None}

    class Facility(MadeUpFacts):
        def job(self, job, own=None):
            found = super().job(job, own)
            return found and {**found, "tables": {**found["tables"], "facility_users_default": [times]}}

        def node(self, name):
            found = super().node(name)
            return found and {**found, "tables": {**found["tables"], "facility_users_default": [times]}}

        def series(self, asked):
            if asked.table != "facility_users_default":
                return super().series(asked)
            found = super().series(asked._replace(job=0, table="procstats_default", column="loadavg_1min"))
            return {**found, "series": [{**one, "labels": {"user": "bob"}} for one in found["series"]]}

    app = make(Facility(40, 40), users, folder=page)
    for what in (f"jobs/{ALICES}", "nodes/node1"):
        tables = {
            name: set(got(app, f"/api/v1/{what}", who)["tables"]) for name, who in (("alice", ALICE), ("root", ROOT))
        }
        assert tables["root"] - tables["alice"] == {"facility_users_default"} and tables["alice"]
        query = f"/api/v1/{what}/series?node=node1&metric=" if "jobs" in what else f"/api/v1/{what}/series?metric="
        assert "bob" in set(texts_in(got(app, f"{query}facility_users_default.times", ROOT)))
        there = refused(app, f"{query}facility_users_default.times", 404, ALICE)
        none = refused(app, f"{query}facility_nothing_default.times", 404, ALICE)
        assert there.body == none.body.replace(b"nothing", b"users")


def test_qhost_and_qstat_are_in_the_envelope_and_of_the_own_jobs_only(app, facts):
    for route in ("/qhost", "/qstat"):
        answer = got(app, route, ROOT)
        assert answer["success"] is True and answer["message"] == "" and len(answer["data"]) > 1
    hosts = got(app, "/qhost", ALICE)["data"]
    assert set(hosts) == facts.nodes_of("alice")
    assert {job["owner"] for host in hosts.values() for job in host["jobs"].values()} == {"alice"}
    assert list(got(app, "/qstat", ALICE)["data"]) == ["alice"]


def test_qhost_and_qstat_without_data_say_so(users, page):
    app = make(MadeUpFacts(40, 0), users, folder=page)
    assert got(app, "/qstat", ROOT) == {"success": False, "message": "No data for qstat", "data": {}}
    assert got(app, "/qhost", ALICE) == {"success": False, "message": "No data for qhost", "data": {}}


@pytest.mark.parametrize("name", ["qhost", "qstat"])
def test_errors_at_qhost_and_qstat_have_the_envelope_beside_them(app, name):
    answers = [
        ask(app, f"/{name}?x=1", [ROOT]),
        ask(app, f"/{name}"),
        ask(app, f"/{name}/", [ROOT]),
        ask(app, f"/{name}", [ROOT], method="POST"),
        ask(app, f"/{name}", [ROOT, ("Content-Length", "5")]),
    ]
    assert [answer.status for answer in answers] == [400, 401, 404, 405, 400]
    for answer in answers:
        content = answer.json()
        assert content == {"success": False, "message": content["error"], "data": {}, "error": content["error"]}
        assert content["error"] and int(answer.headers["content-length"]) == len(answer.body)


def test_the_status_is_for_administrators(app):
    answer = got(app, "/api/v1/status", ROOT)
    assert answer["users"] == 3 and answer["counts"]["requests_2xx"] >= 0
    refused(app, "/api/v1/status", 404, ALICE)


def test_answers_are_counted(facts, users, page):
    app = make(facts, users, folder=page)
    for target, headers in (("/api/v1/whoami", [ALICE]), ("/x", [ALICE]), ("/x", []), ("/x", [basic("alice", "no")])):
        ask(app, target, headers)
    counts = got(app, "/api/v1/status", ROOT)["counts"]
    assert (counts["requests_2xx"], counts["requests_4xx"]) == (1, 3)
    assert (counts["unauthorized"], counts["wrong_secrets"]) == (2, 1)


# -- what fails --


def test_why_a_store_cannot_be_read_is_for_administrators(users, page):
    """Its words may name files and hosts."""

    class Damaged(MadeUpFacts):
        def job(self, job, own=None):
            return {**super().job(job, own), "warnings": [StoreWarning("/data/bobs.hdf5: damaged"), "of anybody's"]}

    app = make(Damaged(20, 40), users, folder=page)
    assert got(app, f"/api/v1/jobs/{ALICES}", ALICE)["warnings"] == ["of anybody's", UNREADABLE]
    assert got(app, f"/api/v1/jobs/{ALICES}", ROOT)["warnings"] == ["/data/bobs.hdf5: damaged", "of anybody's"]


def test_batch_systems_that_do_not_answer_are_reported_in_the_envelope(page):
    class Away(MadeUpFacts):
        def qhost(self):
            raise ColmetError("qhost: did not answer")

    answer = got(make(Away(20, 40), folder=page), "/qhost")
    assert answer == {"success": False, "message": "qhost: did not answer", "data": {}}


def test_a_defect_is_500_logged_and_counted_and_discloses_nothing(page, caplog):
    class Broken(MadeUpFacts):
        def cluster(self, user):
            raise KeyError("inner")

    app = make(Broken(20, 40), folder=page)
    for _ in range(12):
        assert "inner" not in refused(app, "/api/v1/cluster", 500).json()["error"]
    assert len([one for one in caplog.records if "defect" in one.message]) == 2  # the first and the tenth
    assert got(app, "/api/v1/status")["counts"]["defects"] == 12


def test_a_store_that_hangs_does_not_keep_memory_from_answering(page):
    release = threading.Event()

    class Hanging(MadeUpFacts):
        def series(self, asked):
            release.wait(30)
            return super().series(asked)

    app = make(Hanging(20, 40), folder=page)

    async def talk():
        slow = [
            asyncio.ensure_future(asking(app, f"/api/v1/jobs/{ALICES}/series?{METRIC}", client=(f"192.0.2.{n % 4}", 1)))
            for n in range(100)
        ]
        await asyncio.sleep(0.1)
        quick = await asking(app, "/api/v1/jobs")
        release.set()
        return quick, await asyncio.gather(*slow)

    quick, slow = asyncio.run(talk())
    assert quick.status == 200
    statuses = [answer.status for answer in slow]
    assert statuses.count(200) == 4 * 8 and statuses.count(429) == 100 - 4 * 8


def test_who_asks_does_not_wait_for_ever():
    release = threading.Event()
    workers = Workers("test", 1, 1, 2, 0.05)

    async def talk():
        with pytest.raises(Busy, match="no answer in time"):
            await workers.run(0, release.wait, 30)
        assert workers.pending == 1
        release.set()
        for _ in range(200):
            if workers.pending == 0:
                break
            await asyncio.sleep(0.01)
        return await workers.run(0, lambda: 42)

    assert asyncio.run(talk()) == 42


def started(workers, client, function, *args):
    return asyncio.ensure_future(workers.run(client, function, *args))


def test_the_last_idle_thread_is_for_another_client():
    release = threading.Event()
    workers = Workers("test", 3, 100, 50, 30.0)

    async def talk():
        much = [started(workers, "alice", release.wait, 30) for _ in range(40)]
        await asyncio.sleep(0)
        assert await workers.run("bob", lambda: "at once") == "at once"
        release.set()
        return await asyncio.gather(*much)

    assert asyncio.run(talk()) == [True] * 40


def test_clients_take_turns():
    inside, release, order = threading.Event(), threading.Event(), []
    workers = Workers("test", 1, 100, 50, 30.0)

    async def talk():
        first = started(workers, "alice", lambda: inside.set() or release.wait(30))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        clients = ["alice", "alice", "alice", "bob", "bob", "carol"]
        others = []
        for client in clients:
            await asyncio.sleep(0)
            others.append(started(workers, client, order.append, client))
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, *others)

    asyncio.run(talk())
    assert order == ["alice", "bob", "carol", "alice", "bob", "alice"]


def test_a_full_queue_costs_the_client_with_the_most():
    release = threading.Event()
    workers = Workers("test", 1, 4, 50, 30.0)

    async def talk():
        alice = [started(workers, "alice", release.wait, 30) for _ in range(5)]
        await asyncio.sleep(0)
        assert workers.pending == 5
        with pytest.raises(Busy, match="too many requests at once"):
            await workers.run("alice", release.wait, 30)
        bob = started(workers, "bob", lambda: "bob's")
        await asyncio.sleep(0)
        release.set()
        return await bob, await asyncio.gather(*alice, return_exceptions=True)

    bob, alice = asyncio.run(talk())
    assert bob == "bob's"
    assert [type(one) for one in alice] == [bool] * 4 + [Busy], "the newest one makes room"


def test_a_request_that_was_given_up_leaves_its_place():
    release = threading.Event()
    workers = Workers("test", 1, 2, 50, 30.0)

    async def talk():
        first, second = [started(workers, "alice", release.wait, 30) for _ in range(2)]
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert workers.pending == 1
        release.set()
        return await first

    assert asyncio.run(talk())


# -- bounds --


def test_a_long_address_is_refused(open_app):
    refused(open_app, "/api/v1/jobs?text=" + "x" * 9000, 400)
    refused(open_app, "/" + "x" * 9000, 400)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST:8123", 200), ("127.0.0.1:8123", 200), ("[::1]:8123", 200), ("[::1]", 200)),
        *(("head", 200), ("evil.example", 400), ("evil.example:8123", 400), ("127.0.0.1.evil.example", 400)),
        ("", 400),
    ],
)
def test_an_open_interface_of_this_machine_answers_to_no_strange_name(facts, page, host, status):
    app = make(facts, hosts=["localhost", "head", "127.0.0.1", "::1", "[::1]", "["], folder=page)
    assert ask(app, "/api/v1/whoami", [("Host", host)]).status == status


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Length", "5")],
        [("Transfer-Encoding", "chunked")],
        [("Content-Length", "0"), ("Transfer-Encoding", "chunked")],
    ],
)
def test_bodies_are_refused_and_the_connection_ends(open_app, headers):
    assert refused(open_app, "/api/v1/whoami", 400, *headers).headers["connection"] == "close"


# -- the page --


def test_the_page_is_served_with_a_tag_by_which_it_is_kept(open_app, page):
    (page / "page.css").write_text("p { color: red }" * 200)
    for path, kind in (("/", "text/html"), ("/static/page.css", "text/css")):
        first = ask(open_app, path)
        assert first.status == 200 and first.headers["content-type"].startswith(kind)
        assert first.headers["cache-control"] == "no-cache" and "content-security-policy" in first.headers
        packed = ask(open_app, path, [("Accept-Encoding", "gzip")])
        assert packed.unpacked() == first.body and len(packed.body) < len(first.body)
    again = ask(open_app, path, [("If-None-Match", first.headers["etag"])])
    assert again.status == 304 and again.body == b"" and "content-security-policy" in again.headers


def test_files_of_the_page_are_served_and_nothing_else(open_app):
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "", "vendor", "%00"):
        assert ask(open_app, f"/static/{path}").status in (400, 404), path


# -- the description --


def test_the_description_has_access_errors_and_bounds(app, open_app):
    answer = got(app, "/openapi.json", ROOT)
    assert set(answer["components"]["securitySchemes"]) == {"basic", "token"}
    assert answer["security"] == [{"basic": []}, {"token": []}]
    assert "security" not in got(open_app, "/openapi.json")
    for path, methods in answer["paths"].items():
        assert list(methods) == (["post"] if path == "/api/v1/token" else ["get"])
        responses = {one for method in methods.values() for one in method["responses"]}
        assert {"200", "400", "401", "405", "429"} <= responses, path
        assert "422" not in responses
    jobs = {one["name"]: one for one in answer["paths"]["/api/v1/jobs"]["get"]["parameters"]}
    assert jobs["sort"]["schema"]["enum"] == list(JOB_SORTS)
    assert jobs["limit"]["schema"]["maximum"] == 1000


def test_rows_are_described_with_every_key_that_they_have():
    keys = getattr(models.JobRow, "model_fields", None) or models.JobRow.__fields__
    assert set(keys) == {*JOB_KEYS, "on", "time", "first", "last", "running"}
    keys = getattr(models.NodeRow, "model_fields", None) or models.NodeRow.__fields__
    assert set(keys) == {*NODE_SORTS, "silent"}


def test_values_that_may_be_null_are_described_so(open_app):
    answer = got(open_app, "/openapi.json")
    cpu = answer["components"]["schemas"]["JobRow"]["properties"]["cpu"]
    values = answer["components"]["schemas"]["OneSeries"]["properties"]["values"]["items"]
    for schema in (cpu, values):
        assert schema.get("nullable") or {"type": "null"} in schema["anyOf"]


def test_the_made_up_facts_are_whole():
    asked = {name for name, value in vars(Queries).items() if isfunction(value) and name[0] != "_"} - {"record"}
    assert asked <= set(dir(MadeUpFacts))
    assert time.time() - MadeUpFacts(2, 2).cluster(None)["time"] < 60
    assert COLUMNS["cgroup_default"][0][0] == "cpu_usage"
