"""The login of a browser and its end, tokens of commands, and the time zone that the page offers."""

from __future__ import annotations

import re

import pytest

from colmet.web.access import Access
from colmet.web.catalogue import local_zone
from colmet.web.server import build_app
from tests.support.web_client import ask, basic, bearer
from tests.support.web_facts import MadeUpFacts
from tests.support.web_users import ALICE

WHOAMI = "/api/v1/whoami"
UNIX = None  # the client at the other end of a Unix socket: a proxy


@pytest.fixture
def app(users):
    return build_app(MadeUpFacts(2, 2), Access(users, is_member=lambda *_: False))


def post(app, target, body=b"", headers=(), client=("127.0.0.1", 4242)):
    return ask(app, target, [("Content-Length", str(len(body))), *headers], "POST", client, body)


def cookie_of(answer):
    return ("Cookie", answer.headers["set-cookie"].partition(";")[0])


def test_a_browser_logs_in_by_a_form_and_its_session_ends_with_the_sign_out(app):
    form = ask(app, "/login")
    assert form.status == 200 and b'method="post"' in form.body and b'type="password"' in form.body
    answer = post(app, "/login", b"name=alice&password=a")
    assert (answer.status, answer.headers["location"]) == (303, "./")
    attributes = answer.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes) and "secure" not in attributes
    cookie = cookie_of(answer)
    found = ask(app, WHOAMI, [cookie]).json()
    assert (found["user"], found["sign_out"]) == ("alice", "sign-out")
    out = post(app, "/sign-out", headers=[cookie])
    assert (out.status, out.headers["location"]) == (303, "login") and "max-age=0" in out.headers["set-cookie"].lower()
    assert ask(app, WHOAMI, [cookie]).status == 401


@pytest.mark.parametrize(
    ("client", "headers", "is_secure"),
    [
        (("127.0.0.1", 1), [], False),
        (("127.0.0.1", 1), [("X-Forwarded-Proto", "https")], True),
        (UNIX, [], True),
        (UNIX, [("X-Forwarded-Proto", "http")], False),
    ],
)
def test_behind_tls_the_cookie_is_for_tls_alone(app, client, headers, is_secure):
    answer = post(app, "/login", b"name=alice&password=a", headers, client)
    assert ("secure" in answer.headers["set-cookie"].lower().split("; ")) is is_secure


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"name=alice", b"name=alice&password=wrong", b"name=&password=a", b"\xff=%ff&name=%00"),
        b"name=%3Cb%3E&password=x",
        b"&".join([b"name=alice"] * 9),
    ],
)
def test_a_wrong_login_shows_the_form_again(app, body):
    answer = post(app, "/login", body)
    assert answer.status == 401 and "set-cookie" not in answer.headers and b'role="alert">This name' in answer.body
    assert b"<b>" not in answer.body


@pytest.mark.parametrize(
    "text",
    ["colmet-session=", "colmet-session=colmet-login_x", 'colmet-session="; colmet-session', "\xff=\xfe;;;", "other=1"],
)
def test_no_other_cookie_lets_in(app, text):
    assert ask(app, WHOAMI, [("Cookie", text)]).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 303),
        ([("Sec-Fetch-Site", "same-origin"), ("Origin", "https://x")], 303),
        ([("Sec-Fetch-Site", "same-site")], 403),
        ([("Sec-Fetch-Site", "cross-site")], 403),
        ([("Origin", "http://head:8080"), ("Host", "head:8080")], 303),
        ([("Origin", "http://head:9999"), ("Host", "head:8080")], 403),
        ([("Origin", "null"), ("Host", "head:8080")], 403),
        ([("Origin", "http://["), ("Host", "head:8080")], 403),
    ],
)
def test_no_other_page_logs_a_browser_in_or_out(app, headers, status):
    assert post(app, "/login", b"name=alice&password=a", headers).status == status
    assert post(app, "/sign-out", b"", headers).status == status


def test_a_form_that_is_none_is_refused(app):
    assert post(app, "/login", b"x" * 9000).status == 400
    assert ask(app, "/login", [("Transfer-Encoding", "chunked")], "POST").status == 400
    assert post(app, "/sign-out", b"name=x").status == 400
    assert ask(app, "/sign-out").status == 405


@pytest.mark.parametrize("access", [Access(None), Access(None, user_header="X-Remote-User")])
def test_without_passwords_of_its_own_the_interface_has_no_login(access):
    app = build_app(MadeUpFacts(2, 2), access)
    for answer in (ask(app, "/login"), post(app, "/login", b"name=alice&password=a")):
        assert (answer.status, answer.headers["location"]) == (303, "./") and "set-cookie" not in answer.headers
    assert post(app, "/api/v1/token", headers=[ALICE]).status == 404
    assert ask(app, WHOAMI, [("X-Remote-User", "alice")]).json()["sign_out"] is None


def test_the_page_learns_where_a_login_of_the_proxy_ends():
    proxied = Access(None, user_header="X-Remote-User", sign_out_url="/oauth2/sign_out")
    answer = ask(build_app(MadeUpFacts(2, 2), proxied), WHOAMI, [("X-Remote-User", "alice")]).json()
    assert answer["sign_out"] == "/oauth2/sign_out"


def test_a_token_is_issued_by_post_for_a_name_and_a_password(app):
    answer = post(app, "/api/v1/token", headers=[ALICE])
    text = answer.json()["token"]
    token = bearer(text)
    assert answer.status == 200 and ask(app, WHOAMI, [token]).json()["user"] == "alice"
    assert ask(app, "/api/v1/token", [ALICE]).status == 405
    for wrong in (token, basic("alice", text), basic("alice", "wrong")):
        assert post(app, "/api/v1/token", headers=[wrong]).status == 401
    cookie = cookie_of(post(app, "/login", b"name=alice&password=a"))
    assert post(app, "/api/v1/token", headers=[cookie]).status == 401, "a session is not turned into a longer one"


def test_the_page_itself_is_for_everybody_and_has_no_data(app):
    index = ask(app, "/")
    assert index.status == 200
    named = re.findall(r'(?:src|href)="(static/[^"]+)"', index.unpacked().decode())
    assert "static/page.js" in named and {ask(app, f"/{path}").status for path in named} == {200}
    assert ask(app, "/openapi.json").status == 401


# -- the time zone --


@pytest.mark.parametrize(
    ("environment", "link", "expected"),
    [
        ({}, "/usr/share/zoneinfo/Europe/Paris", "Europe/Paris"),
        ({}, "/etc/copied", None),
        ({}, None, "UTC"),
        ({"TZ": ":Asia/Tokyo"}, "/usr/share/zoneinfo/Europe/Paris", "Asia/Tokyo"),
        ({"TZ": "/usr/share/zoneinfo/Asia/Tokyo"}, None, "Asia/Tokyo"),
        ({"TZ": ""}, "/usr/share/zoneinfo/Europe/Paris", "UTC"),
        ({"TZ": "Europe/<script>"}, None, None),
    ],
)
def test_the_time_zone_of_the_machine_has_the_name_that_browsers_know(tmp_path, environment, link, expected):
    (tmp_path / "etc").mkdir()
    if link is not None:
        (tmp_path / "etc/localtime").symlink_to(f"{tmp_path}{link}")
    assert local_zone(environment, tmp_path) == expected
