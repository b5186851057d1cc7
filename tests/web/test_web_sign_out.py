"""The end of a browser's login, and the time zone that the page offers."""

from __future__ import annotations

import pytest

from colmet.collector import web_options
from colmet.collector.main import full_parser
from colmet.common.errors import ConfigError
from colmet.common.runtime.configuration import Configuration
from colmet.web.access import Access
from colmet.web.app import build_app
from colmet.web.local_zone import local_zone
from tests.support.web_client import ask, basic, bearer
from tests.support.web_facts import MadeUpFacts
from tests.support.web_users import ALICE


@pytest.fixture
def app(users):
    return build_app(MadeUpFacts(2, 2), Access(users))


@pytest.mark.parametrize(
    "headers", [[], [ALICE], [basic("alice", "wrong")], [bearer("x")], [("Authorization", "Basic ?")]]
)
def test_a_sign_out_answers_each_login_with_401_so_that_the_browser_forgets_it(app, headers):
    answer = ask(app, "/sign-out", headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert answer.headers["cache-control"] == "no-store"
    assert b"<h1>Signed out</h1>" in answer.body


def test_a_sign_out_accepts_the_name_that_replaces_a_login(app):
    answer = ask(app, "/sign-out", [basic("signed-out", "-")])
    assert answer.status == 200
    assert "www-authenticate" not in answer.headers
    assert b"<h1>Signed out</h1>" in answer.body


def test_the_name_that_replaces_a_login_sees_nothing(app):
    for path in ("/", "/api/v1/whoami", "/sign-out/x"):
        assert ask(app, path, [basic("signed-out", "-")]).status == 401


def test_the_page_after_a_sign_out_loads_nothing(app):
    body = ask(app, "/sign-out").body
    assert b"src=" not in body and b"<link" not in body and b"<style" not in body
    assert body.count(b"href=") == 1


def test_an_interface_without_logins_has_no_sign_out():
    app = build_app(MadeUpFacts(2, 2), Access(None))
    assert ask(app, "/sign-out").status == 404
    assert ask(app, "/api/v1/whoami").json()["sign_out"] is None


def test_the_page_learns_where_a_login_ends(app, users):
    assert ask(app, "/api/v1/whoami", [ALICE]).json()["sign_out"] == "sign-out"
    proxied = Access(None, user_header="X-Remote-User", sign_out_url="/oauth2/sign_out")
    answer = ask(build_app(MadeUpFacts(2, 2), proxied), "/api/v1/whoami", [("X-Remote-User", "alice")]).json()
    assert answer["sign_out"] == "/oauth2/sign_out"


def options(*arguments):
    return Configuration(full_parser, arguments).read()


PROXIED = ("--http-listen", "unix:/run/colmet/http.sock", "--http-user-header", "X-Remote-User")


@pytest.mark.parametrize("url", ["/oauth2/sign_out", "https://login.example.org/end?back=jobs", "/"])
def test_a_sign_out_of_the_proxy_is_an_address_or_a_path(url):
    assert options(*PROXIED, "--http-sign-out-url", url).http_sign_out_url == url


@pytest.mark.parametrize("url", ["javascript:alert(1)", "//evil.example/", "sign out", "data:x", "", "/a b"])
def test_no_other_sign_out_is_accepted(url, capsys):
    with pytest.raises((SystemExit, ConfigError)):
        options(*PROXIED, "--http-sign-out-url", url)
    capsys.readouterr()


def test_a_sign_out_of_the_proxy_requires_a_login_of_the_proxy(tmp_path):
    given = options("--http-listen", "8080", "--http-open", "--http-sign-out-url", "/out")
    with pytest.raises(ConfigError, match="--http-user-header"):
        web_options.check(given)


# -- the time zone --


def machine(tmp_path, link=None, name=None):
    (tmp_path / "etc").mkdir()
    if link is not None:
        target = tmp_path / link
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"TZif")
        (tmp_path / "etc/localtime").symlink_to(target)
    if name is not None:
        (tmp_path / "etc/timezone").write_bytes(name)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "link", "name", "expected"),
    [
        ({}, "usr/share/zoneinfo/Europe/Paris", None, "Europe/Paris"),
        ({}, "usr/share/zoneinfo/America/Argentina/Salta", b"Europe/Paris\n", "America/Argentina/Salta"),
        ({}, "etc/copied", b"Europe/Paris\n", "Europe/Paris"),
        ({}, "etc/copied", b"\xff", None),
        ({}, "etc/copied", None, None),
        ({}, None, None, "UTC"),
        ({"TZ": ":Asia/Tokyo"}, "usr/share/zoneinfo/Europe/Paris", None, "Asia/Tokyo"),
        ({"TZ": "/usr/share/zoneinfo/Asia/Tokyo"}, None, None, "Asia/Tokyo"),
        ({"TZ": ""}, "usr/share/zoneinfo/Europe/Paris", None, "UTC"),
        ({"TZ": "<+03>-3"}, None, None, None),
        ({"TZ": "Europe/<script>"}, None, None, None),
    ],
)
def test_the_time_zone_of_the_machine_has_the_name_that_browsers_know(tmp_path, environment, link, name, expected):
    assert local_zone(environment, machine(tmp_path, link, name)) == expected
