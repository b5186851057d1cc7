"""Where the login of a command with --url goes: to its interface alone, over a checked connection, and into no log."""

from __future__ import annotations

import contextlib
import logging

import pytest

from colmet.commands import remote
from colmet.commands.remote import BEARER, Login
from colmet.web.access import Access
from tests.support.qmem_server import serving
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import make_certificate, running
from tests.support.web_users import users  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("home")
TOKEN = "colmet_secret-of-bob"
COMMANDS = [
    *[("report", "1"), ("report", "1", "2"), ("jobs",), ("usage",), ("extract", "-j", "1"), ("top", "--json")],
    *[("plot", "1", "cpu_usage"), ("mem",)],
]


@contextlib.contextmanager
def answering(status, headers):
    """A server with this answer; yields its URL, and path and headers of all requests."""
    with serving() as server:
        server.answers.clear()
        server.otherwise = status, headers, b""
        yield f"http://{server.place}", server.asked


def at(url, command):
    return (*command, url) if command[0] == "mem" else (*command, "--url", url)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(run, monkeypatch, command, status):
    monkeypatch.setenv("COLMET_TOKEN", TOKEN)
    with answering(200, {}) as (other, stolen), answering(status, {"Location": f"{other}/x"}) as (url, seen):
        assert run(*at(url, command))[0] == 1
        assert {one["Authorization"] for _, one in seen} == {f"Bearer {TOKEN}"} and not stolen


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_kept_login_goes_to_its_url_alone(run, command):
    with answering(404, {}) as (url, seen), answering(404, {}) as (other, asked):
        remote.keep_login(url, Login(BEARER, TOKEN, "bob"))
        run(*at(other, command))
        run(*at(f"{url}/below", command))
        assert asked and seen and not [one for _, one in (*asked, *seen) if "Authorization" in one]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_neither_a_proxy_of_the_environment_nor_a_netrc_counts(run, monkeypatch, tmp_path, command):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login bob password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with answering(200, {}) as (proxy, stolen), answering(404, {}) as (url, seen):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("ALL_PROXY", proxy)
        run(*at(url, command))
        assert seen and not stolen and not [one for _, one in seen if "Authorization" in one]


def test_a_certificate_that_nobody_vouches_for_gets_no_login(run, monkeypatch, tmp_path, users):  # noqa: F811
    monkeypatch.setenv("COLMET_TOKEN", TOKEN)
    tls, other = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    access = Access(users, is_member=lambda *_: False)
    asked = []
    monkeypatch.setattr(access, "visitor", lambda headers, address, session: asked.append(headers))
    with running(MadeUpFacts(1, 1), access=access, tls=tls) as one:
        url = f"https://127.0.0.1:{one.port}"
        for command in COMMANDS:
            status, out, err = run(*at(url, command))
            assert (status, out) == (1, "") and "certificate" in err.lower(), command
        for more in ((), ("--ca-file", other.certificate)):
            assert run("login", url, "-u", "bob", "--password-stdin", *more, stdin="b\n")[0] == 1
    assert not asked and remote.find_login(url) is None


def test_a_checked_certificate_gets_it_and_is_kept_with_the_login(run, tmp_path, users):  # noqa: F811
    tls = make_certificate(tmp_path, "first")
    with running(MadeUpFacts(4, 4), access=Access(users, is_member=lambda *_: False), tls=tls) as one:
        url = f"https://127.0.0.1:{one.port}"
        more = ("--ca-file", tls.certificate)
        assert run("login", url, "-u", "bob", "--password-stdin", *more, stdin="b\n")[0] == 0
        assert '"bob"' in run("top", "--json", "--url", url)[1]


def test_no_log_and_no_message_has_the_login(run, users, caplog):  # noqa: F811
    caplog.set_level(logging.DEBUG)
    with running(MadeUpFacts(4, 4), access=Access(users, is_member=lambda *_: False)) as one:
        url = f"http://127.0.0.1:{one.port}"
        texts = [*run("login", url, "-u", "bob", "--password-stdin", stdin="b\n")[1:]]
        token = remote.find_login(url).secret
        for command in (*COMMANDS, ("report", "999")):
            texts += run(*at(url, command))[1:]
        remote.keep_login(url, Login(BEARER, TOKEN, "bob"))
        for command in COMMANDS:
            status, *said = run(*at(url, command))
            assert status == 1
            texts += said
    for text in (*texts, caplog.text):
        assert token not in text and TOKEN not in text
