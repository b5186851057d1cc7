"""Bob's answers are the same whether others have jobs or not: every route of the description, with every parameter,
in a world with the jobs of others and in one without them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from urllib.parse import quote, urlencode

import numpy as np
import pytest

from colmet.jobs.archive.derived import LISTED
from colmet.jobs.archive.queries import GROUPS
from colmet.web import reports
from colmet.web.access import Access
from colmet.web.interface import described
from colmet.web.server import build_app
from colmet.web.stored_models import VALUES
from tests.support import two_worlds
from tests.support.archive_data import YEAR_START
from tests.support.made_up_history import START
from tests.support.two_worlds import (
    ABSENT,
    ALIKE,
    ARRAY,
    HERS,
    HERS_RUNNING,
    HERS_UNMEASURED,
    MINE,
    MINE_RUNNING,
    MINE_UNMEASURED,
    NOBODYS,
    SHARED,
    TWICE,
)
from tests.support.web_client import ask
from tests.support.web_facts import MadeUpFacts
from tests.support.web_users import BOB, ROOT

JOBS = (
    *(HERS, HERS_RUNNING, HERS_UNMEASURED, NOBODYS, 77_100, ABSENT),
    *(MINE, MINE_RUNNING, MINE_UNMEASURED, TWICE, 66_100, SHARED),
)
NODES = ("her-node", "my-node", "idle-node", "no-node", "HER-NODE")
TIMES = (0, START - 60_000, START - 40_000, START, YEAR_START + 1003, YEAR_START + 20_000)
TABLES = ("cgroup_default", "taskstats_default", "procstats_default", "raplzones_default", "none")
NAMES = ("alice", "bob", "alice,bob", *ALIKE, "nobody")
# Values of parameters, by name; those of other parameters are from their schema.
PARAMETERS = {
    "job": (*map(str, JOBS), ",".join(map(str, JOBS))),
    "user": NAMES,
    "project": ("her-project", "my-project", "none"),
    "queue": ("her-queue", "short", "none"),
    "host": ("her-node", "my-node", "her-node,my-node"),
    "node": NODES,
    "array": (ARRAY, "901", "none"),
    "task": (f"{ARRAY}_1", f"{ARRAY}_7", "901_1"),
    "name": ("her", "mine", "%", "_", "*", "' OR 1=1 --"),
    "state": ("running", "ended", "all", "done", "failed"),
    "rule": ("cpu-low", "none"),
    "text": ("77", "alice", "her", "6"),
    "columns": ("job,user,owner,node_joules", "node_joules", "name,project,start", "cpu_usage", ",".join(VALUES)),
    "by": (*GROUPS, "user,host", "host,month", "array", "project,name,day"),
    "sort": (*LISTED, "cpu", "user", "node", "node_joules", "owner"),
    "start": TIMES,
    "since": TIMES,
    "until": TIMES,
    "offset": (0, 1, 10, 30),
    "limit": (1, 5, 100),
    "efficiency_below": (0.01, 0.3, 0.9, 1),
    "metric": ("cgroup_default.cpu_usage", "procstats_default.loadavg_1min", "procstats_default.none"),
    "table": TABLES,
    "after": (f"{START - 50_000}.0.her-node", f"{START - 50_000}.3.my-node"),
    "points": (2, 300),
    "zone": ("Asia/Dubai", "nowhere"),
}
ALWAYS = ("metric", "table")  # required
# Routes whose answers are the same for all, or for one login: their content is tested elsewhere.
OF_NOBODY = {
    *("/api/v1/whoami", "/api/v1/measures", "/api/v1/token"),
    *("/api/v1/status", "/api/v1/health", "/api/v1/node-history"),  # for administrators: tests/web/test_web_health.py
}
DRAWN = ("report", "report.html", "report.png")  # slow: a report is made for each request
APP = build_app(MadeUpFacts(1, 1), Access(None))
ROUTES = sorted({route.path for route in APP.routes if getattr(route, "include_in_schema", False)} - OF_NOBODY)
# Jobs and nodes of whose routes all values of parameters are asked; of the others without the slow tests, none.
REPRESENTATIVES = {HERS, MINE, TWICE, "her-node", "my-node", 0, ""}


@functools.cache
def description():
    return described(APP, True)["paths"]


def targets(path, is_thorough=False):
    """Requests of a route: each parameter alone with each of its values; thorough, for each job and node, and pairs."""
    declared = description()[path]["get"].get("parameters", [])
    is_slow = "{job}" in path and path.endswith(DRAWN)
    places = {
        path.replace("{job}", str(job)).replace("{node}", quote(node)): {job, node} for job, node in places_of(path)
    }
    if is_slow and (not is_thorough or path.endswith((".html", ".png"))):
        places = {place: named for place, named in places.items() if named <= REPRESENTATIVES}
    if path.endswith(".png"):
        return list(places)
    given = {one["name"]: values_of(one) for one in declared if one["in"] == "query" and one["name"] not in ALWAYS}
    required = [
        [(one["name"], value) for value in PARAMETERS[one["name"]]] for one in declared if one["name"] in ALWAYS
    ]
    if path.endswith(".html") and "{job}" in path:
        given = {"start": TIMES[:3], "until": TIMES[1:2], "zone": PARAMETERS["zone"][:1]}
    combinations = list(itertools.product(*required))
    found = []
    for place, named in places.items():
        is_whole = is_thorough or named <= REPRESENTATIVES
        for fixed in combinations:
            found.append(f"{place}?{urlencode(fixed)}")
            if not is_whole or (is_slow and f"/{TWICE}/" not in place) or fixed != combinations[0]:
                continue
            values = [(name, value) for name, some in given.items() for value in some]
            found += [f"{place}?{urlencode([*fixed, one])}" for one in values]
            if is_thorough and "{" not in path:
                found += [f"{place}?{urlencode(pair)}" for pair in zip(values, values[17:]) if pair[0][0] != pair[1][0]]
    return found


def places_of(path):
    if "{job}" in path:
        return [(job, "") for job in ((HERS, HERS_UNMEASURED, ABSENT, TWICE) if path.endswith(".png") else JOBS)]
    return [(0, node) for node in NODES] if "{node}" in path else [(0, "")]


def values_of(parameter):
    """The values of a parameter; a new one needs no entry above if its schema lists them."""
    schema = parameter["schema"]
    if parameter["name"] in PARAMETERS:
        return PARAMETERS[parameter["name"]]
    if "enum" in schema:
        return schema["enum"]
    assert schema.get("type") == "boolean", f"add values of others for {parameter['name']}"
    return ("true", "false")


@pytest.fixture(scope="module")
def stack():
    with contextlib.ExitStack() as found:
        yield found


@pytest.fixture(scope="module", params=["file", pytest.param("database", marks=pytest.mark.slow)])
def worlds(request, tmp_path_factory, users, stack):
    """Applications with the jobs of others, and without them."""
    made = []
    for with_others in (True, False):
        one = two_worlds.world(tmp_path_factory.mktemp("world"), with_others, request.param == "database", stack)
        access = Access(users, is_member=lambda *_: False)
        made.append(build_app(one.bed.known, access, stored=one.stored))
    return request.param, made


@pytest.fixture
def drawn(monkeypatch, is_thorough):
    """Pages and pictures without the slow tests: all values of the report that they would be drawn from, and of nothing
    else."""

    def write_values(report, query):
        with np.printoptions(floatmode="unique", threshold=sys.maxsize):
            return f"{query.zone} {report}".encode()

    if not is_thorough:
        monkeypatch.setattr(reports, "_drawn", write_values)


@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.usefixtures("drawn")
def test_bob_is_shown_the_same_whether_others_have_jobs_or_not(worlds, path, is_thorough):
    kind, (full, lone) = worlds
    if kind == "database" and (
        is_thorough or ("/archive/" not in path and not path.endswith(("/usage", "/summary", "{job}", *DRAWN)))
    ):
        return  # It does not read the archive; what a database answers does not depend on pairs of parameters.
    statuses, is_seen = set(), False
    for target in targets(path, is_thorough):
        shown, expected = [ask(app, target, [BOB]) for app in (full, lone)]
        assert shown.status == expected.status and shown.headers == expected.headers, target
        assert shown.unpacked() == expected.unpacked(), target
        statuses.add(shown.status)
        if not is_seen:
            seen, unseen = [ask(app, target, [ROOT]) for app in (full, lone)]
            is_seen = seen.status == 200 and seen.unpacked() != unseen.unpacked()
    assert 200 in statuses, "bob gets no answer: the test tests nothing"
    assert is_seen, "an administrator sees no difference: the test tests nothing"


@pytest.fixture(scope="module")
def beside(tmp_path_factory, users):
    """Applications with her jobs on the node of bob's, and without them."""
    made = []
    for with_others in (True, False):
        one = two_worlds.on_one_node(tmp_path_factory.mktemp("world"), with_others)
        made.append(build_app(one.bed.known, Access(users, is_member=lambda *_: False), stored=one.stored))
    return made


def differing(one, other, at=""):
    """Yield where two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {*one, *other}:
            yield from differing(one.get(name), other.get(name), f"{at}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for pair in zip(one, other):
            yield from differing(*pair, f"{at}[]")
    elif one != other:
        yield at


@pytest.mark.slow
def test_on_a_shared_node_bob_is_shown_the_number_of_jobs_and_nothing_else_of_hers(beside):
    found, seen = set(), set()
    for path in ROUTES:
        if path.endswith((".html", ".png")):
            continue
        for target in targets(path)[:100]:
            shown, expected = [ask(app, target, [BOB]) for app in beside]
            assert shown.status == expected.status, target
            if shown.unpacked() != expected.unpacked():
                found.update((path, place) for place in differing(shown.json(), expected.json()))
        mine = path.replace("{job}", str(MINE)).replace("{node}", "my-node")
        if path.endswith("/report") and ask(beside[0], mine, [ROOT]).body != ask(beside[1], mine, [ROOT]).body:
            seen.add(path)
    # with all other values of nodes, whose sums have hers as well: see docs/tools/http.md
    assert found == {("/api/v1/nodes", ".items[].jobs"), ("/api/v1/nodes/{node}", ".node.jobs")}
    assert seen == {"/api/v1/jobs/{job}/report"}, "an administrator's report has the energy of others"
