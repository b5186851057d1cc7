"""Shared by tests: ALICE, BOB, METRIC, ROOT, cheap, got, make, page, refused, users."""

from __future__ import annotations

import pytest

from colmet.web.access import Access
from colmet.web.credentials import Credential, Password, _scrypt
from colmet.web.server import build_app
from tests.support.web_client import ask, basic

ALICE, BOB, ROOT = basic("alice", "a"), basic("bob", "b"), basic("root", "r")


SALT = bytes(16)
METRIC = "metric=cgroup_default.cpu_usage"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text("<!doctype html><title>x</title>" + "<p>x</p>" * 500)
    (folder / "page.css").write_text("p {}")
    (folder / "vendor").mkdir()
    (folder / "vendor" / "chart.js").write_text("export {}")
    (folder / "vendor" / "README.md").write_text("not served")
    return folder


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users"
    lines = [
        Credential(name, cheap(name[0]), frozenset({"admin"} if name == "root" else ()))
        for name in ("alice", "bob", "root")
    ]
    path.write_text("".join(f"{line.text()}\n" for line in lines))
    path.chmod(0o600)
    return str(path)


def cheap(given):
    """A password that costs nothing to check."""
    return Password(2, 1, 1, SALT, _scrypt(given, 2, 1, 1, SALT))


def make(facts, users=None, **options):
    return build_app(facts, Access(users, is_member=lambda *_: False), **options)


def got(app, target, *headers, **options):
    answer = ask(app, target, headers, **options)
    assert answer.status == 200, answer.body
    return answer.json()


def refused(app, target, status, *headers, **options):
    answer = ask(app, target, headers, **options)
    assert answer.status == status, answer.body
    envelope = ["success", "message", "data"] if target.startswith(("/qhost", "/qstat")) else []
    assert list(answer.json()) == [*envelope, "error"] and answer.json()["error"]
    return answer
