"""Commands with --url, and the login that they use: against a running interface, as several users."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest

from colmet.commands import histories, remote
from colmet.commands.histories import RemoteHistory
from colmet.commands.remote import BEARER, InterfaceClient, InterfaceError
from colmet.stored import sources
from colmet.stored.series import RowQuery
from colmet.web.access import Access
from tests.support.made_up_history import START, MadeUp, job_rows, node_rows
from tests.support.waiting import Clock
from tests.support.web_client import basic
from tests.support.web_server import running
from tests.support.web_store import Bed, stored_in
from tests.support.web_users import users  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("home")
MINE, THEIRS, SHARED = 6000, 6001, 6002  # alice's; bob's; hers on node-1 and bob's on node-2


@pytest.fixture(scope="module")
def history():
    made = MadeUp()
    job_rows(made, job=MINE, cores=1.0)
    job_rows(made, job=MINE, host="node-2", cores=1.0)
    job_rows(made, job=THEIRS, user=b"bob", cores=1.0)
    job_rows(made, job=SHARED)
    job_rows(made, job=SHARED, host="node-2", user=b"bob")
    node_rows(made, jobs=(MINE, THEIRS))
    return made


@pytest.fixture(scope="module")
def bed(history):
    made = Bed(history, Clock())
    made.go(3)
    return made


@pytest.fixture(scope="module")
def server(bed, users):  # noqa: F811 - the fixture
    access = Access(users, is_member=lambda *_: False)
    with running(bed.known, access=access, stored=stored_in(bed.history)) as one:
        yield one


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def as_user(run, url):
    def as_user(name):
        assert run("login", url, "-u", name, "--password-stdin", stdin=f"{name[0]}\n")[0] == 0

    return as_user


# -- the login --


def test_a_login_is_a_token_in_a_file_for_its_user_alone(run, url, home):
    status, out, err = run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")
    assert (status, out) == (0, "") and "logged in as alice until " in err
    login = remote.find_login(url)
    assert login.kind == BEARER and login.user == "alice" and login.secret not in err
    assert stat.S_IMODE(home.stat().st_mode) == 0o600 and stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    assert json.loads(run("report", MINE, "--url", url, "--json")[1])["user"] == "alice"
    assert run("logout")[0] == 0 and remote.find_login(url) is None, "of the only login"
    status, out, err = run("report", MINE, "--url", url)
    assert (status, out) == (1, "") and f"requires a login: colmet login {url}" in err
    assert "there was no login" in run("logout", url)[2]
    assert run("logout")[0] == 2, "nothing is guessed"


def test_a_wrong_password_or_token_is_not_kept(run, url, home, tmp_path):
    assert run("login", url, "-u", "alice", "--password-stdin", stdin="x\n")[0] == 1
    assert run("login", url, "--token-file", "-", stdin="colmet_wrong\n")[0] == 1
    assert run("login", url, "-u", "a:b", "--password-stdin", stdin="x\n")[0] == 2
    assert run("login", url, "--token-file", "-", stdin="two words\n")[0] == 2
    assert run("login", url, "-u", "alice")[0] == 2, "no terminal"
    assert not home.exists()


def test_a_token_is_read_from_a_file_that_others_cannot_read(run, url, tmp_path):
    assert run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")[0] == 0
    path = tmp_path / "token"
    path.write_text(remote.find_login(url).secret + "\n")
    path.chmod(0o644)
    status, _, err = run("login", url, "--token-file", path)
    assert status == 2 and "chmod 600" in err
    path.chmod(0o600)
    assert run("login", url, "--token-file", path)[0] == 0
    assert remote.find_login(url).user == "alice" and remote.find_login(url).until is None


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o666])
def test_a_file_of_logins_that_others_can_use_is_refused(run, as_user, url, home, mode):
    as_user("alice")
    home.chmod(mode)
    status, out, err = run("report", MINE, "--url", url)
    assert (status, out) == (2, "") and f"(mode {mode:04o})" in err
    assert run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")[0] == 2


@pytest.mark.usefixtures("no_collection")
def test_a_link_a_damaged_file_and_a_directory_of_others_are_refused(run, as_user, url, home, tmp_path):
    as_user("alice")
    home.rename(tmp_path / "elsewhere")
    home.symlink_to(tmp_path / "elsewhere")
    assert "a symbolic link" in run("report", MINE, "--url", url)[2]
    home.unlink()
    for text in ("", "[]", '{"x": {}}', '{"x": {"kind": "bearer", "secret": "a b"}}', "[" * 100_000, '{"x": 1}'):
        home.write_text(text)
        home.chmod(0o600)
        assert "damaged" in run("report", MINE, "--url", url)[2]
    home.unlink()
    home.parent.chmod(0o777)
    status, _, err = run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")
    assert status == 2 and "others can write it" in err and not home.exists()


def test_behind_a_proxy_the_password_is_kept_only_on_request(run, url, monkeypatch):
    def get(self, path, parameters=None, method="GET"):
        if (path, method) == ("token", "POST"):
            raise InterfaceError("issues no tokens", 404)
        return {"user": "alice"}

    with monkeypatch.context() as patched:
        patched.setattr(InterfaceClient, "get", get)
        status, _, err = run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")
        assert status == 2 and "--keep-password" in err and remote.find_login(url) is None
        assert run("login", url, "-u", "alice", "--password-stdin", "--keep-password", stdin="a\n")[0] == 0
    assert remote.find_login(url).authorization == basic("alice", "a")[1]
    assert run("report", MINE, "--url", url)[0] == 0


def test_an_open_interface_requires_no_login(bed, run):
    with running(bed.known, stored=stored_in(bed.history)) as one:
        url = f"http://127.0.0.1:{one.port}"
        assert run("report", MINE, "--url", url)[0] == 0
        status, _, err = run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")
        assert status == 1 and "open to all" in err


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:80", "ftp://x", "https://a:b@x", "https://x/?a=b", "https://x y", "x"]
)
def test_an_url_that_is_none_or_not_safe_for_a_login_is_refused(run, url, monkeypatch):
    assert run("login", url, "-u", "alice", "--password-stdin", stdin="a\n")[0] == 2
    monkeypatch.setenv("COLMET_TOKEN", "secret")
    assert run("report", "1", "--url", url)[0] == 2
    assert run("top", "--once", "--url", url)[0] == 2


def test_a_token_of_the_environment_has_precedence(run, as_user, url, monkeypatch):
    as_user("alice")
    monkeypatch.setenv("COLMET_TOKEN", "colmet_wrong")
    status, _, err = run("report", MINE, "--url", url)
    assert status == 1 and "refused the login" in err
    monkeypatch.setenv("COLMET_TOKEN", "two words")
    assert run("report", MINE, "--url", url)[0] == 2


# -- the commands --


def test_a_report_is_that_of_the_store_without_others(run, as_user, url):
    as_user("alice")
    status, out, _ = run("report", MINE, "--url", url)
    assert status == 0 and f"Job {MINE} of alice on 2 hosts" in out and "Energy" in out and "other jobs" not in out
    assert run("report", MINE, "--url", url, "--html", "page.html")[0] == 0
    with open("page.html") as file:
        assert file.read().startswith("<!DOCTYPE html>")
    as_user("root")
    assert "other jobs" in run("report", MINE, "--url", url)[1]


def test_an_extract_is_that_of_the_store(run, as_user, url, history, monkeypatch):
    as_user("alice")
    with monkeypatch.context() as patched:
        patched.setattr("colmet.stored.sources.open_history", lambda _: history)
        wanted = run("extract", "-j", MINE, "--format", "csv", "--hdf5", "x")
    assert run("extract", "-j", MINE, "--format", "csv", "--url", url) == wanted
    assert wanted[0] == 0 and len(wanted[1].splitlines()) == 243


@pytest.mark.parametrize(("window", "page"), [(41, 23), (1000, 11), pytest.param(1, 50_000, marks=pytest.mark.slow)])
def test_rows_read_by_pages_are_those_of_the_store(as_user, url, history, monkeypatch, window, page):
    as_user("alice")
    monkeypatch.setattr(histories, "WINDOW_ROWS", window)
    monkeypatch.setattr(histories, "PAGE_ROWS", page)
    with RemoteHistory(InterfaceClient(url, remote.find_login(url).authorization)) as read:
        some = {"since": START + 100, "until": START + 200}
        for limits in ({}, some, {"hosts": ["node-2", "none"], **some}):
            for columns in (None, [], ["user", "cpu_usage", "none"]):
                query = RowQuery(MINE, "cgroup_default", columns, **limits)
                found, wanted = read.read(query), history.read(query)
                assert [one.host for one in found] == [one.host for one in wanted]
                for one, other in zip(found, wanted):
                    np.testing.assert_array_equal(one.times, other.times)
                    assert set(one.columns) == set(other.columns)
                    for name, column in one.columns.items():
                        np.testing.assert_array_equal(column, other.columns[name])
                        assert column.dtype.kind == other.columns[name].dtype.kind
        assert set(read.tables(MINE)) == set(history.tables(MINE)) and not read.warnings


def test_a_plot_is_drawn_of_the_interfaces_rows(run, as_user, url):
    as_user("alice")
    status, out, err = run("plot", MINE, "cpu_usage", "--url", url, "--json")
    assert status == 0, err
    (metric,) = json.loads(out)["metrics"]
    assert [one["host"] for one in metric["series"]] == ["node-1", "node-2"]
    assert metric["series"][0]["values"][1] == pytest.approx(1.0)


def test_top_shows_the_own_jobs(run, as_user, url):
    as_user("alice")
    status, out, err = run("top", "--once", "--url", url)
    assert status == 0 and "alice" in out and "bob" not in out, err
    found = json.loads(run("top", "--json", "--url", url)[1])
    assert {row["user"] for row in found["rows"]} == {"alice"} and found["count"] == len(found["rows"])
    job = found["rows"][0]["job"]
    found = json.loads(run("top", "--json", "--url", url, "-j", job, "--sort", "node")[1])
    assert found["job"]["job"] == job and found["rows"][0]["node"]
    assert json.loads(run("top", "--json", "--url", url, "-j", MINE)[1])["job"] is None, "it has ended"
    assert json.loads(run("top", "--json", "--url", url, "--nodes")[1])["rows"]


def test_nothing_of_another_users_job_is_shown_by_any_command(run, as_user, url):
    as_user("alice")
    commands = [
        ("report", THEIRS),
        ("report", THEIRS, "--json"),
        ("report", THEIRS, "--html", "page.html"),
        ("extract", "-j", THEIRS),
        ("extract", "-j", THEIRS, "--list"),
        ("extract", "-j", THEIRS, "--metrics", "cpu_usage", "--host", "node-1"),
        ("plot", THEIRS, "cpu_usage", "-o", "plot.svg"),
        ("plot", THEIRS, "cpu_usage", "--json"),
    ]
    for command in commands:
        status, out, err = run(*command, "--url", url)
        nobodys = run(*[9999 if one == THEIRS else one for one in command], "--url", url)
        assert status == 1 and "bob" not in out + err, command
        assert nobodys == (1, out.replace(str(THEIRS), "9999"), err.replace(str(THEIRS), "9999")), command
    assert not {"page.html", "plot.svg"} & set(os.listdir())
    for command in (
        ("top", "--json", "-u", "bob"),
        ("top", "--json"),
        ("top", "--json", "-j", 1001),
        ("top", "--json", "--nodes"),
    ):
        assert '"bob"' not in run(*command, "--url", url)[1], command
    shared = run("extract", "-j", SHARED, "--url", url)[1]
    assert "node-1" in shared and "node-2" not in shared and "bob" not in shared


@pytest.mark.parametrize(
    "command",
    [
        ("report", "1", "--hdf5", "x"),
        ("report", "1", "--archive", "x"),
        ("report", "1", "2", "--png", "x"),
        ("report", "1", "2", "--start", "now"),
        ("extract", "-j", "1", "--hdf5", "x"),
        ("top", "collector", "--once"),
        ("top", "--once", "--control-socket", "x"),
    ],
)
def test_options_that_exclude_each_other(run, command):
    assert run(*command, "--url", "https://head.example.org")[0] == 2


def test_the_only_kept_login_is_the_default(run, as_user, url, monkeypatch):
    monkeypatch.setattr(sources, "CONFIG", "/nowhere/collector.toml")
    status, _, err = run("report", MINE)
    assert status == 2 and "no collector is known here: `colmet login URL`" in err and "No such file" not in err
    as_user("alice")
    assert json.loads(run("report", MINE, "--json")[1])["user"] == "alice"
    assert run("jobs", "--archive", "/nowhere/x")[0] == 1, "an option names another source"
    remote.keep_login("https://other.example.org", remote.find_login(url))
    assert run("report", MINE)[0] == 2, "one of several is not guessed"
    monkeypatch.setenv("COLMET_URL", url)
    assert run("report", MINE, "--json")[0] == 0


def test_the_site_names_its_collector(run, as_user, url, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "CONFIG", "/nowhere/collector.toml")
    monkeypatch.setattr(remote, "CLIENT", str(tmp_path / "client.toml"))
    (tmp_path / "client.toml").write_text(f'url = "{url}"\n')
    assert f"requires a login: colmet login {url}" in run("jobs")[2]
    assert run("login", "-u", "alice", "--password-stdin", stdin="a\n")[0] == 0
    assert json.loads(run("report", MINE, "--json")[1])["user"] == "alice"
    (tmp_path / "client.toml").write_text('ulr = "x"\n')
    assert "client.toml: ulr: no such option; did you mean url?" in run("jobs")[2]


def test_the_configuration_of_this_machines_collector_precedes_that_of_the_site(run, url, monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "CLIENT", str(tmp_path / "client.toml"))
    (tmp_path / "client.toml").write_text(f'url = "{url}"\n')
    monkeypatch.setattr(sources, "CONFIG", str(tmp_path / "collector.toml"))
    assert remote.default_interface().url == url
    (tmp_path / "collector.toml").write_text(f'archive = "{tmp_path}/archive"\n')
    assert remote.default_interface().url == url, "this user may not read it, or it is not there"
    (tmp_path / "archive").touch()
    assert remote.default_interface() is None
    database = f'elastic-host = "http://db"\nhttp-credentials = "{tmp_path}/secret"\n'
    (tmp_path / "collector.toml").write_text(f'archive = "{tmp_path}/archive"\n{database}')
    assert remote.default_interface().url == url, "the archive is read in the database, whose password it may not read"


@pytest.mark.parametrize(
    "answer",
    [
        {"rows": 1},
        {"rows": [{"node": "n"}]},
        {"rows": [{"node": "n", "times": ["x"], "columns": {}}]},
        {"rows": [{"node": "n", "times": [1], "columns": {"a": []}}], "kinds": {"a": "i"}},
        {"rows": [{"node": "n", "times": [1], "columns": {"a": [1]}}], "kinds": {"a": "x"}},
        {"total": "x"},
    ],
)
def test_an_answer_of_another_form_is_an_error(monkeypatch, answer):
    whole = {"total": 1, "first": 1, "last": 2, "kinds": {}, **answer}
    monkeypatch.setattr(InterfaceClient, "get", lambda *_: whole)
    read = RemoteHistory(InterfaceClient("https://head.example.org"))
    with pytest.raises(remote.ColmetError, match="described form"):
        read.read(RowQuery(1, "t"))
