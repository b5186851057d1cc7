"""The collector with its JSON interface, both as processes: started, fed, killed, hanging; and options that fail."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from colmet.collector import main as collector
from colmet.collector import web_options
from colmet.common.errors import ConfigError
from colmet.common.runtime import startup
from colmet.common.runtime.configuration import Configuration
from colmet.common.runtime.control import ask
from colmet.common.runtime.metrics_http import ListenAddress
from colmet.common.runtime.status_checks import judge
from colmet.web import __main__ as web
from tests.support import zmtp
from tests.support.daemons import Daemon
from tests.support.place import skip_refused
from tests.support.waiting import free_port, wait_for
from tests.support.web_nodes import Cluster
from tests.support.web_process import Bed, options


def refused(*given):
    with pytest.raises(ConfigError) as caught:
        web_options.check(options(*given))
    return str(caught.value)


# -- options --


def test_nothing_is_checked_where_nothing_is_served():
    web_options.check(options("--gridengine-period", "5"))


def test_who_may_ask_has_to_be_said_and_once(tmp_path):
    users = tmp_path / "users"
    users.write_text("")
    assert "--http-users FILE" in refused("--http-listen", "0") and "--http-open" in refused("--http-listen", "0")
    assert "give either" in refused("--http-listen", "0", "--http-open", "--http-users", str(users))
    web_options.check(options("--http-listen", "0", "--http-users", str(users)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--http-users", "/nonexistent"], "--http-users '/nonexistent': No such file"),
        (["--http-users", "/"], "not a regular file"),
        (["--http-users", "a\0b"], "null"),
        (["--http-open", "--http-tls-cert", "/etc/hostname"], "give both"),
        (["--http-open", "--http-tls-cert", "/etc/passwd", "--http-tls-key", "/etc/passwd"], "as PEM"),
        (["--http-open", "--http-user-header", "X-Remote-User"], "give --http-listen unix:PATH"),
        (["--http-open", "--gridengine-xml", "/nonexistent"], "--gridengine-xml /nonexistent: not a directory"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(given, said):
    assert said in refused("--http-listen", "0", *given)


def test_a_unix_socket_is_for_a_proxy_which_has_the_certificate_and_may_name_the_user(tmp_path):
    address = f"unix:{tmp_path}/http.sock"
    web_options.check(given := options("--http-listen", address, "--http-user-header", "X-Remote-User"))
    assert given.http_listen == web_options.UnixAddress(f"{tmp_path}/http.sock")
    web_options.check_address(given.http_listen)
    with pytest.raises(ConfigError, match="cannot write the directory /nonexistent"):
        web_options.check_address(web_options.UnixAddress("/nonexistent/http.sock"))
    certificate = ("--http-tls-cert", "/etc/passwd", "--http-tls-key", "/etc/passwd")
    assert "the proxy has the certificate" in refused("--http-listen", address, "--http-open", *certificate)
    assert "give either" in refused("--http-listen", address, "--http-open", "--http-user-header", "X-User")


@pytest.mark.parametrize("text", ["unix:", "unix:http.sock", "unix:/" + "x" * 107, "unix:/a\0b", "unixx:/a"])
def test_what_is_not_the_path_of_a_unix_socket_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        web_options.http_address(text)


@pytest.mark.parametrize("text", ["", "X Remote", "Authorization", "host", "X-Forwarded-For", "X:", "é", "1"])
def test_a_header_that_clients_set_themselves_or_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as X-Remote-User"):
        web_options.header_name(text)


def test_an_address_that_is_taken_or_not_ours_is_said_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="Address already in use"):
            web_options.check_address(ListenAddress(*taken.getsockname()))
    with pytest.raises(ConfigError, match=r"--http-listen 192\.0\.2\.1:8080"):
        web_options.check_address(ListenAddress("192.0.2.1", 8080))


def test_wrong_options_of_the_page_stop_the_page_alone(tmp_path, caplog):
    """And nothing is served with them meanwhile."""
    classes = collector.load_backends().classes
    given = options("--http-listen", "0", "--http-users", f"{tmp_path}/users", "--hdf5-filepath", f"{tmp_path}/c")
    assert collector.build(given, classes).outputs
    assert "the page and the JSON interface do not run" in caplog.text and f"{tmp_path}/users" in caplog.text
    with pytest.raises(ConfigError, match="No such file"):
        collector.build(given, classes)
    with pytest.raises(ConfigError, match="No such file"):
        web.run(given, SimpleNamespace())


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
        daemon.said("listening")
        daemon.said("JSON interface ended, it is restarted")
        status = ask(str(socket_path), "collector", {"command": "status"})
        assert "No such file" in status["page_failed"]
        assert any("No such file" in text for text in judge(status, 60, 300).texts)
        users.touch(0o600)
        daemon.said("http serves")
    finally:
        daemon.process.kill()
        daemon.process.communicate()


def test_files_that_everybody_can_read_beside_accounts_are_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(web_options, "_is_for_all", lambda path: bool(os.stat(path).st_mode & 0o004))
    (tmp_path / "users").write_text("")
    stored = tmp_path / "c.1700000000.hdf5"
    stored.touch(0o644)
    given = options("--http-listen", "0", "--http-users", f"{tmp_path}/users", "--hdf5-filepath", f"{tmp_path}/c")
    web_options.warn_of_readers(given)
    assert f"can read the stored files without a login: chmod o-r {stored}" in caplog.text
    caplog.clear()
    stored.chmod(0o640)
    web_options.warn_of_readers(given)
    stored.chmod(0o644)
    web_options.warn_of_readers(options("--http-listen", "0", "--http-open", "--hdf5-filepath", f"{tmp_path}/c"))
    assert "stored files" not in caplog.text


def test_whether_all_users_can_read_a_file_is_up_to_its_directories_too(tmp_path):
    (tmp_path / "d").mkdir(0o750)
    (tmp_path / "d/f").touch(0o644)
    assert not web_options._is_for_all(f"{tmp_path}/d/f") and not web_options._is_for_all("/nonexistent")
    assert web_options._is_for_all("/etc/passwd")


def test_members_of_a_group_that_only_happens_to_be_called_so_are_warned_of(tmp_path, caplog, monkeypatch):
    (tmp_path / "users").write_text("")
    group = SimpleNamespace(gr_mem=["alice"])
    monkeypatch.setattr(web_options.grp, "getgrnam", lambda name: group)
    given = ("--http-listen", "0", "--http-users", f"{tmp_path}/users")
    web_options.warn_of_readers(options(*given, "--http-admin-group", "colmet-admins"))
    assert not caplog.text
    web_options.warn_of_readers(options(*given))
    assert "members of this machine's group admin see everybody's jobs: group=admin members=1" in caplog.text


@pytest.mark.parametrize("name", ["klingon", "zlib", "", "a\0b"])
def test_an_encoding_that_is_none_is_said_before_anything_starts(name):
    said = refused("--http-listen", "0", "--http-open", "--gridengine-encoding", name)
    assert said.startswith("--gridengine-encoding") and "such as utf-8" in said


def test_the_file_can_say_all_of_it(tmp_path):
    path = tmp_path / "collector.toml"
    path.write_text('http-listen = "[::1]:8080"\nhttp-open = true\nhttp-memory = "64M"\ngridengine-period = 30\n')
    read = Configuration(lambda: collector.build_parser([]), ["--config", str(path)]).read()
    assert isinstance(read, argparse.Namespace) and read.http_listen == ("::1", 8080) and read.http_memory == 64 << 20


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


@pytest.mark.live
@pytest.mark.slow
def test_a_collector_serves_what_arrives_and_goes_on_when_its_interface_is_killed_or_hangs(bed):
    bed.daemon.said("http serves")
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
    assert bed.counters()["restarts"] == 0

    # killed: another one replaces it, knows the nodes, and has the rest from the store
    (first,) = [one for one in children(bed.daemon.process.pid) if b"colmet.web" in cmdline(one)][:1]
    descendants = children(bed.daemon.process.pid)
    os.kill(first, signal.SIGKILL)
    bed.daemon.said("JSON interface ended, it is restarted failures=1")
    wait_for(lambda: bed.daemon.log.read_text().count("http serves") == 2)
    bed.answer("/api/v1/cluster", lambda reply: reply["nodes"]["heard"] == 3)
    bed.send()
    bed.answer("/api/v1/cluster", lambda reply: reply["jobs"]["running"] == 6)
    found = bed.answer(series, lambda reply: reply["series"] and len(reply["series"][0]["times"]) == 4)
    assert found["source"] == "both" and bed.counters()["restarts"] == 1
    wait_for(lambda: not any(is_there(one) for one in descendants))

    # hanging: nobody waits for it
    (second,) = [one for one in children(bed.daemon.process.pid) if b"colmet.web" in cmdline(one)][:1]
    os.kill(second, signal.SIGSTOP)
    before = ask(str(bed.control), "collector", {"command": "status"})["received"]["batches"]
    for _ in range(20):
        bed.send()
    status = lambda: ask(str(bed.control), "collector", {"command": "status"})  # noqa: E731
    wait_for(lambda: status()["received"]["batches"] == before + 60)
    assert not any(output["why"] for output in status()["outputs"])

    # both end, also where all of them get a signal, as from a service manager: none is started again then
    os.kill(second, signal.SIGCONT)
    everybody = children(bed.daemon.process.pid)
    os.kill(second, signal.SIGTERM)
    bed.get("/api/v1/whoami")
    assert bed.daemon.stop()[0] == 0
    assert bed.daemon.log.read_text().count("JSON interface ended") == 1
    wait_for(lambda: not any(is_there(one) for one in everybody))
    assert "Traceback" not in bed.daemon.log.read_text()


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
def test_the_interface_is_started_again_while_1100_connections_are_open(bed):
    """The descriptor of its output is above 1023 then."""
    bed.daemon.said("http serves")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 12_000:
        skip_refused("a process may not open 12,000 files")
    startup.raise_open_file_limit(2048)
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(contextlib.closing(zmtp.connect(bed.uri)))
        (child,) = [one for one in children(bed.daemon.process.pid) if b"colmet.web" in cmdline(one)][:1]
        os.kill(child, signal.SIGKILL)
        bed.daemon.said("JSON interface ended, it is restarted failures=1")
        bed.answer("/api/v1/cluster", lambda reply: reply["messages"]["taken"] == 0)
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


@pytest.mark.live
def test_users_without_keys_for_nodes_are_warned_of(tmp_path):
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o600)
    options = ("--http-users", str(users), "--http-listen", str(free_port()), "--control-socket", "")
    daemon = Daemon(
        *("colmet.collector.main", tmp_path / "log", "--zeromq-bind-uri", f"tcp://127.0.0.1:{free_port()}"),
        *("--enable-stdout-backend", *options),
    )
    try:
        daemon.said("--http-users without keys")
    finally:
        daemon.process.kill()
        daemon.process.communicate()
