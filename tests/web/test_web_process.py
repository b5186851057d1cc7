"""colmet-web as a program: its options, as a child of the collector and by itself; started, killed, hanging."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from colmet.collector import web_child
from colmet.collector.web_child import WebChild, arguments_of, store_text
from colmet.common.config.configuration import Configuration
from colmet.common.daemon import startup
from colmet.common.daemon.control import ask
from colmet.common.daemon.status_checks import judge
from colmet.common.errors import ConfigError
from colmet.web import main as web_main
from colmet.web import options as web
from tests.support import zmtp
from tests.support.daemons import Daemon
from tests.support.place import skip_refused
from tests.support.project import scripts
from tests.support.waiting import free_port, wait_for
from tests.support.web_nodes import Cluster
from tests.support.web_process import Bed, options, web_options

PACKAGING = Path(__file__).parents[2] / "packaging"


def refused(*given):
    with pytest.raises(ConfigError) as caught:
        web.check(web_options(*given))
    return str(caught.value)


# -- options --


def test_who_may_ask_has_to_be_said_and_once(tmp_path):
    users = tmp_path / "users"
    users.write_text("")
    assert "--users FILE" in refused() and "--open" in refused()
    assert "give either" in refused("--open", "--users", str(users))
    web.check(web_options("--users", str(users)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--users", "/nonexistent"], "--users '/nonexistent': No such file"),
        (["--users", "/"], "not a regular file"),
        (["--users", "a\0b"], "null"),
        (["--open", "--user-header", "X-Remote-User"], "give --listen unix:PATH"),
        (["--open", "--gridengine-xml", "/nonexistent"], "--gridengine-xml /nonexistent: not a directory"),
        (["--open", "--gridengine-encoding", "klingon"], "such as utf-8"),
        (["--open", "--listen", "nosuch.invalid:1"], "--listen nosuch.invalid:1"),
        (["--open", "--listen", "unix:/x", "--user-header", "X-User"], "give either"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(given, said, caplog):
    assert said in refused(*given)
    assert web_main.main([*given, "--check-config"]) == 2 and said in caplog.text


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (web.http_address, ["unix:", "unix:http.sock", "unix:/" + "x" * 107, "unix:/a\0b", "unixx:/a"]),
        # that clients set themselves, or that is none
        (web.header_name, ["", "X Remote", "Authorization", "Cookie", "host", "X-Forwarded-For", "X:", "é", "1"]),
        (web.sign_out_url, ["javascript:alert(1)", "//evil.example/", "sign out", "data:x", "", "/a b"]),
    ],
)
def test_a_socket_a_header_or_a_sign_out_that_is_none_is_refused(read, texts):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_a_sign_out_of_the_proxy_is_an_address_or_a_path():
    for url in ("/oauth2/sign_out", "https://login.example.org/end?back=jobs", "/"):
        assert web.sign_out_url(url) == url


def test_the_file_can_say_all_of_it_and_that_of_the_collector_names_the_store(tmp_path, capsys):
    (tmp_path / "collector.toml").write_text(f'hdf5-filepath = "{tmp_path}/c"\narchive-batch = "none"\n')
    path = tmp_path / "web.toml"
    path.write_text(
        f'listen = "[::1]:8080"\nopen = true\nmemory = "64M"\ncollector-config = "{tmp_path}/collector.toml"\n'
    )
    read = Configuration(web.build_parser, ["--config", str(path)]).read_for_start()
    assert (read.listen, read.memory, read.open) == (("::1", 8080), 64 << 20, True)
    store = web.store_of(read)
    assert store.hdf5_filepath == f"{tmp_path}/c" and web_main.leaders_source(store) is None
    path.write_text("open = true\nlisten = 8081\ncollector-config = ''\n")
    assert web_main.main(["--config", str(path), "--check-config"]) == 0 and "OK: " in capsys.readouterr().out


def test_the_packaged_file_and_unit_are_those_of_the_program(tmp_path):
    text = (PACKAGING / "etc/web.toml").read_text().replace("/etc/colmet/users", str(tmp_path / "users"))
    (tmp_path / "users").touch(0o640)
    (tmp_path / "web.toml").write_text(text)
    given = Configuration(web.build_parser, ["--config", str(tmp_path / "web.toml")]).read_for_start()
    web.check(given)
    unit = (PACKAGING / "systemd/colmet-web.service").read_text()
    assert "colmet-web" in scripts() and "\nExecStart=/usr/bin/colmet-web --config /etc/colmet/web.toml\n" in unit
    for line in ("User=colmet-web", "SupplementaryGroups=colmet", "ProtectSystem=strict"):
        assert f"\n{line}\n" in unit
    assert "\nInaccessiblePaths=-/etc/colmet/keys\n" in unit
    written = re.findall(r"^(?:State|Cache|Logs|Runtime)Directory=.*|^ReadWritePaths=.*", unit, re.M)
    assert written == ["RuntimeDirectory=colmet/http"], "its socket for a proxy"


def test_the_collectors_options_are_the_childs(tmp_path):
    given = options(
        *("--http-listen", "8080", "--http-users", "u", "--http-config", "w.toml", "--hdf5-filepath", "/x/ü", "-v"),
        *("--archive", "", "--elastic-host", "http://a", "--elastic-host", "http://b", "--archive-keep", "90d"),
    )
    arguments = arguments_of(given)
    assert arguments == ["--listen=8080", "--users=u", "--config=w.toml", "-v"]
    path = tmp_path / "store"
    path.write_text(store_text(given))
    store = web.store_of(web_options("--collector-config", str(path)))
    assert (store.hdf5_filepath, store.archive, store.elastic_host) == ("/x/ü", "", ["http://a", "http://b"])


def test_files_that_everybody_can_read_beside_accounts_are_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(web, "_is_for_all", lambda path: bool(os.stat(path).st_mode & 0o004))
    stored = tmp_path / "c.1700000000.hdf5"
    stored.touch(0o644)
    store = SimpleNamespace(hdf5_filepath=f"{tmp_path}/c")
    web.warn_of_readers(web_options("--users", "u"), store)
    assert f"can read the stored files without a login: chmod o-r {stored}" in caplog.text
    caplog.clear()
    web.warn_of_readers(web_options("--open"), store)
    assert "stored files" not in caplog.text


def test_whether_all_users_can_read_a_file_is_up_to_its_directories_too(tmp_path):
    (tmp_path / "d").mkdir(0o750)
    (tmp_path / "d/f").touch(0o644)
    assert not web._is_for_all(f"{tmp_path}/d/f") and not web._is_for_all("/nonexistent")
    assert web._is_for_all("/etc/passwd")


def test_members_of_a_group_that_only_happens_to_be_called_so_are_warned_of(caplog, monkeypatch):
    monkeypatch.setattr(web.grp, "getgrnam", lambda name: SimpleNamespace(gr_mem=["alice"]))
    store = SimpleNamespace(hdf5_filepath=None)
    web.warn_of_readers(web_options("--users", "u", "--admin-group", "colmet-admins"), store)
    assert not caplog.text
    web.warn_of_readers(web_options("--users", "u"), store)
    assert "members of this machine's group admin see everybody's jobs: group=admin members=1" in caplog.text


# -- the child --


def test_a_child_that_ends_is_started_again_and_said_so(monkeypatch, caplog):
    monkeypatch.setattr(web_child, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(web_child, "MAX_DELAY_S", 0.05)
    child = WebChild([], "", ["/bin/sh", "-c", "exit 3"])
    child.start()
    wait_for(lambda: child.counters()["restarts"] >= 10)
    child.close()
    child.close()
    assert child.failure.startswith("status 3") and child.counters()["running"] == 0
    said = [record.message for record in caplog.records if "it is restarted" in record.message]
    assert len(said) == 2 and "failures=1 delay_s=0.05: status 3" in said[0], "the 1st and the 10th time"


def test_what_cannot_be_started_is_said(monkeypatch, caplog):
    child = WebChild([], "", ["/nonexistent/python"])
    child.start()
    wait_for(lambda: child.counters()["restarts"])
    child.close()
    assert child.failure.startswith("cannot start /nonexistent/python: No such file")


def test_a_child_that_does_not_end_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(web_child, "END_S", 0.2)
    child = WebChild([str(tmp_path)], "a", ["/bin/sh", "-c", 'trap "" TERM; cat $1 > $0/said; sleep 600 & wait'])
    child.start()
    wait_for(lambda: child.counters()["running"])
    child.close()
    assert child.counters()["running"] == 0


# -- processes --


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.close()


def children(pid):
    """Processes that it started, and their children."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for one in map(int, path.read_text().split()):
            found += [one, *children(one)]
    return found


def page_of(bed):
    return next(one for one in children(bed.daemon.process.pid) if b"colmet.web" in cmdline(one))


def is_there(pid):
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cmdline(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.live
@pytest.mark.slow
def test_a_collector_serves_what_arrives_and_goes_on_when_its_interface_is_killed_or_hangs(bed):
    bed.daemon.said("http serves")
    wait_for(lambda: bed.counters()["readers"])
    for _ in range(3):
        bed.send()
    # the figures of jobs may be a second older than the count of messages
    answer = bed.answer("/api/v1/cluster", lambda reply: reply["messages"]["taken"] == 9 and reply["jobs"]["running"])
    assert answer["jobs"]["running"] == 6 and answer["nodes"]["heard"] == 3 and answer["jobs"]["users"] == 4
    bed.answer("/api/v1/jobs/1000", lambda reply: reply["stored"])
    series = "/api/v1/jobs/1000/series?metric=cgroup_default.cpu_usage"
    stored = bed.answer(
        f"{series}&source=stored", lambda reply: reply["series"] and len(reply["series"][0]["times"]) == 3
    )
    assert stored["source"] == "stored" and bed.get(series)["source"] == "memory"
    assert bed.get("/qhost")["data"]["n0"]["jobs"]["1000"]["owner"] == Cluster.user(1000)

    # killed: another one replaces it, knows the nodes, and has the rest from the store
    first = page_of(bed)
    os.kill(first, signal.SIGKILL)
    bed.daemon.said("colmet-web ended, it is restarted failures=1")
    wait_for(lambda: bed.daemon.log.read_text().count("http serves") == 2)
    bed.answer("/api/v1/cluster", lambda reply: reply["nodes"]["heard"] == 3)
    wait_for(lambda: bed.counters()["readers"] == 1)
    bed.send()
    bed.answer("/api/v1/cluster", lambda reply: reply["jobs"]["running"] == 6)
    found = bed.answer(series, lambda reply: reply["series"] and len(reply["series"][0]["times"]) == 4)
    assert found["source"] == "both"

    # hanging: nobody waits for it
    second = page_of(bed)
    os.kill(second, signal.SIGSTOP)
    before = ask(str(bed.control), "collector", {"command": "status"})["received"]["batches"]
    for _ in range(20):
        bed.send()
    status = lambda: ask(str(bed.control), "collector", {"command": "status"})  # noqa: E731
    wait_for(lambda: status()["received"]["batches"] == before + 60)
    assert not any(output["why"] for output in status()["outputs"])

    # both end
    os.kill(second, signal.SIGCONT)
    everybody = children(bed.daemon.process.pid)
    assert bed.daemon.stop()[0] == 0
    assert bed.daemon.log.read_text().count("colmet-web ended") == 1
    wait_for(lambda: not any(is_there(one) for one in everybody))
    assert "Traceback" not in bed.daemon.log.read_text()


@pytest.mark.live
@pytest.mark.slow
def test_the_program_survives_a_restart_of_the_collector(tmp_path):
    """By itself, as the unit starts it, and before the collector."""
    port, control, uri = free_port(), tmp_path / "c.sock", f"tcp://127.0.0.1:{free_port()}"
    page = Daemon(
        *("colmet.web.main", tmp_path / "web.log", "--listen", str(port), "--open", "--collector-config", ""),
        *("--feed", str(tmp_path / "c-feed.sock")),
    )

    def cluster():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/cluster", timeout=30) as answer:
            return json.load(answer)

    def collector():
        return Daemon(
            *("colmet.collector.main", tmp_path / "log", "--zeromq-bind-uri", uri, "--control-socket", str(control)),
            *("--enable-stdout-backend", "--zeromq-link-bind-uri", ""),
        )

    daemons = [page]
    try:
        page.said("http serves")
        away = ["the collector does not answer: nothing new arrives; see the log of colmet-web"]
        assert cluster()["warnings"] == away
        for _ in range(2):
            daemons.append(collector())
            wait_for(lambda: cluster()["warnings"] == [])
            assert daemons[-1].stop()[0] == 0
            wait_for(lambda: cluster()["warnings"] == away)
        assert page.stop()[0] == 0
        assert "Traceback" not in page.log.read_text()
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.communicate()


@pytest.mark.live
@pytest.mark.slow
def test_the_page_starts_once_its_file_is_there(tmp_path):
    users, socket_path = tmp_path / "users", tmp_path / "control"
    daemon = Daemon(
        *("colmet.collector.main", tmp_path / "log", "--zeromq-bind-uri", f"tcp://127.0.0.1:{free_port()}"),
        *("--enable-stdout-backend", "--http-users", str(users), "--http-listen", str(free_port())),
        *("--control-socket", str(socket_path)),
    )
    try:
        daemon.said("colmet-web ended, it is restarted")
        assert "No such file" in daemon.log.read_text()
        status = ask(str(socket_path), "collector", {"command": "status"})
        assert status["page_failed"].startswith("status 2") and status["http"]["restarts"] >= 1
        assert any("status 2; its reason is in the log" in text for text in judge(status, 60, 300).texts)
        users.touch(0o600)
        daemon.said("http serves")
    finally:
        daemon.process.kill()
        daemon.process.communicate()


@pytest.mark.live
@pytest.mark.slow
def test_the_interface_is_started_again_while_1100_connections_are_open(bed):
    """Descriptors are above 1023 then."""
    bed.daemon.said("http serves")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 12_000:
        skip_refused("a process may not open 12,000 files")
    startup.raise_open_file_limit(2048)
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(contextlib.closing(zmtp.connect(bed.uri)))
        os.kill(page_of(bed), signal.SIGKILL)
        bed.daemon.said("colmet-web ended, it is restarted failures=1")
        wait_for(lambda: bed.daemon.log.read_text().count("feed of the collector begins") == 2)
        bed.send()
        bed.answer("/api/v1/cluster", lambda reply: reply["messages"]["taken"] == 3)
    assert "Traceback" not in bed.daemon.log.read_text()


@pytest.mark.slow
@pytest.mark.live
def test_the_interface_ends_with_a_collector_that_is_killed(bed):
    bed.daemon.said("http serves")
    everybody = children(bed.daemon.process.pid)
    assert everybody
    bed.daemon.process.kill()
    wait_for(lambda: not any(is_there(one) for one in everybody))


@pytest.mark.slow
@pytest.mark.live
def test_an_address_in_use_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = ("--listen", str(taken.getsockname()[1]), "--open", "--collector-config", "", "--feed", "")
        page = Daemon("colmet.web.main", tmp_path / "log", *given)
        assert page.process.wait(60) == 2
        page.process.communicate()
        assert "Address already in use" in page.log.read_text()
