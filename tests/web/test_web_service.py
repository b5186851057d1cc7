"""The JSON interface as a service of its own: started by the collector's connection, with its command line."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.collector import web_launcher, web_options
from colmet.web import __main__ as web_main
from colmet.web import feed as feed_module
from colmet.web.feed import FeedError, connected
from tests.support.project import scripts
from tests.support.web_process import Bed, options

PACKAGING = Path(__file__).parents[2] / "packaging"
# A service manager with one socket unit, whose service is started while a connection waits: argv is the path of the
# socket, the file for its log, and how often it is started at most.
MANAGER = """
import os, select, socket, subprocess, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
start = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); "
start += "from colmet.web.__main__ import serve; sys.exit(serve())"
for n in range(int(sys.argv[3])):
    select.select([listener], [], [])
    with open(sys.argv[2], "a") as log:
        environment = {**os.environ, "LISTEN_FDS": "1"}
        give = lambda: (os.dup2(listener.fileno(), 3), os.set_inheritable(3, True))
        child = subprocess.Popen(
            [sys.executable, "-c", start], stderr=log, env=environment, preexec_fn=give, close_fds=False
        )
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def manager(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", MANAGER, str(tmp_path / "web.sock"), str(tmp_path / "web.log"), "3"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 20
    while not (tmp_path / "web.sock").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_the_page_is_served_by_the_service_which_is_started_again(manager, tmp_path):
    (tmp_path / "bed").mkdir()
    bed = Bed(tmp_path / "bed", **{web_options.SOCKET: str(tmp_path / "web.sock")})
    try:
        bed.send()
        bed.answer("/api/v1/nodes", lambda answer: answer["total"] > 0)
        first = int(manager.stdout.readline())
        children = Path(f"/proc/{bed.daemon.process.pid}/task/{bed.daemon.process.pid}/children").read_text().split()
        assert str(first) not in children, "it is the collector's child"
        os.kill(first, signal.SIGKILL)
        second = int(manager.stdout.readline())
        assert second != first
        bed.answer("/api/v1/nodes", lambda answer: "total" in answer)
        assert bed.counters()["restarts"] >= 1 and bed.counters()["running"] == 1
        log = bed.daemon.log.read_text()
        assert "JSON interface ended, it is restarted" in log and "its service has ended" in log
        assert bed.daemon.stop()[0] == 0
        until = time.monotonic() + 20
        while os.path.exists(f"/proc/{second}") and Path(f"/proc/{second}/cmdline").read_bytes() != b"":
            assert time.monotonic() < until, "it goes on without the collector"
            time.sleep(0.05)
    finally:
        bed.close()


def test_a_file_that_the_group_cannot_read_keeps_the_page_in_a_child(tmp_path, caplog):
    (tmp_path / "web.sock").touch()
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o600)
    given = options("--http-listen", "0", "--http-users", str(users))
    environment = {web_options.SOCKET: str(tmp_path / "web.sock")}
    assert web_options.service_of(given, environment) == ""
    assert f"the group of the collector cannot read {users}; chgrp colmet {users}; chmod 640 {users}" in caplog.text
    users.chmod(0o640)
    assert web_options.service_of(given, environment) == environment[web_options.SOCKET]
    assert web_options.service_of(given, {}) == ""
    assert web_options.service_of(given, {web_options.SOCKET: f"{tmp_path}/none"}) == ""
    assert web_options.service_of(options(), environment) == ""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x01",
        web_launcher.LENGTH.pack(5) + b"hello",
        web_launcher.LENGTH.pack((web_launcher.MAX_ARGUMENTS_BYTES + 1) | web_launcher.NOTE),
        web_launcher._note({"heard": {}}),
        web_launcher._note({"arguments": "x"}),
        web_launcher._note({"arguments": [1]}),
        web_launcher.LENGTH.pack(4 | web_launcher.NOTE) + b"\xff\xff{{",
    ],
)
def test_a_stream_that_is_not_the_collectors_is_refused(tmp_path, monkeypatch, sent):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(tmp_path / "s"))
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        monkeypatch.setattr(feed_module, "LISTENER", listener.detach())
        with pytest.raises(FeedError):
            connected({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})


@pytest.mark.parametrize("count", [1, 2])
def test_the_service_has_a_socket_that_asks_the_kernel_where_its_unit_gives_one(tmp_path, monkeypatch, count):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        client.sendall(web_launcher._note({"arguments": ["-v"], "directory": os.getcwd()}))
        first = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 500)
        if count == 2:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4) as made:
                os.dup2(made.fileno(), first + 1, inheritable=False)
        monkeypatch.setattr(feed_module, "LISTENER", first)
        feed, arguments, kernel = connected({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(count)})
        assert arguments == ["-v"] and (kernel is not None) == (count == 2)
        assert kernel is None or kernel.family == socket.AF_NETLINK
        for one in filter(None, (feed, kernel)):
            one.close()


def test_it_is_nobodys_command():
    with pytest.raises(FeedError, match=r"colmet-web.socket starts this"):
        connected({})


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--help-all", 0), ("--http-listen", 2)])
def test_its_command_line_is_read_without_a_collector(argument, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["colmet-web", argument])
    with pytest.raises(SystemExit) as ended:
        web_main.serve()
    printed = capsys.readouterr()
    assert ended.value.code == status
    assert ("colmet-web.socket" in printed.out, "there is no option" in printed.err) == (
        not status,
        bool(status),
    )


def test_the_service_can_write_nothing_and_has_no_keys():
    text = (PACKAGING / "systemd/colmet-web.service").read_text()
    # one for the collector, one that asks the kernel for this machine's users, whom PrivateUsers= hides
    listens = re.findall(r"^Listen(\w+)=(.+)$", (PACKAGING / "systemd/colmet-web.socket").read_text(), re.M)
    assert listens == [("Stream", "/run/colmet/web.sock"), ("Netlink", "inet-diag")]
    for line in (
        "User=colmet-web",
        "SupplementaryGroups=colmet",
        "InaccessiblePaths=-/etc/colmet/keys",
        "ProtectSystem=strict",
    ):
        assert f"\n{line}\n" in text
    written = re.findall(r"^(?:State|Cache|Logs|Runtime)Directory=.*|^ReadWritePaths=.*", text, re.M)
    assert written == ["RuntimeDirectory=colmet/http"], "its socket for a proxy"
    assert re.search(r"^ExecStart=/usr/bin/colmet-web$", text, re.M)
    assert "colmet-web" in scripts()
    place = re.findall(r"^ListenStream=(.+)$", (PACKAGING / "systemd/colmet-web.socket").read_text(), re.M)
    collector = (PACKAGING / "systemd/colmet-collector.service").read_text()
    assert f"\nEnvironment={web_options.SOCKET}={place[0]}\n" in collector
