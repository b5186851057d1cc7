"""Ports of a collector: held by the service manager while it is away, and given to another one that receives there."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from colmet.collector.collector import Collector
from colmet.collector.ingest import link as link_module
from colmet.collector.ingest.link import NOTE, LinkPort, open_link
from colmet.common.errors import ConfigError
from colmet.common.transport import Authenticator, LinkServer, Pull, Push, ports
from colmet.common.transport.ports import Claims, Listeners, _claim
from tests.support.collector_link import World

# A service manager: descriptors from 3 on, and what it says of them; the number of the process is that of the program.
MANAGER = """
import os, sys
for n, fd in enumerate(map(int, sys.argv[1].split(","))):
    os.dup2(fd, 100 + n)
count = len(sys.argv[1].split(","))
for n in range(count):
    os.dup2(100 + n, 3 + n)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES="a:b")
os.execv(sys.argv[2], sys.argv[2:])
"""


def listener(address="127.0.0.1", port=0):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((address, port))
        made.listen(100)
    except OSError:
        made.close()
        raise
    return made


def uri(one, address="127.0.0.1"):
    return f"tcp://{address}:{one.getsockname()[1]}"


def test_a_held_listener_is_used_for_its_address(caplog):
    held, other = listener(), listener()
    with (
        contextlib.closing(Listeners([held, other])) as listeners,
        contextlib.closing(Authenticator(listeners=listeners)) as authenticator,
    ):
        data, link = uri(held), uri(other)
        pull, server = Pull(data, 10, authenticator), LinkServer(link, authenticator=authenticator)
        push = Push(pull.uri, 10, 0)
        until = time.monotonic() + 20
        while not push.send(b"x") and time.monotonic() < until:
            time.sleep(0.01)
        assert pull.wait(20) and pull.receive().message == b"x"
        assert (pull.uri, server.uri) == (data, link)
        for one in (push, pull, server):
            one.close()
    assert "not used" not in caplog.text


def test_a_port_held_on_another_address_is_an_error_that_names_both():
    held = listener()
    with (
        contextlib.closing(Listeners([held])) as listeners,
        contextlib.closing(Authenticator(listeners=listeners)) as authenticator,
    ):
        wanted = uri(held, "127.0.0.2")
        with pytest.raises(ConfigError, match=rf"{re.escape(wanted)}: the service manager holds 127.0.0.1:\d+; name"):
            Pull(wanted, 10, authenticator)


def test_what_no_option_names_is_closed_with_a_warning(caplog):
    held = listener()
    number = held.fileno()
    listeners = Listeners([held])
    with (
        contextlib.closing(Authenticator(listeners=listeners)) as authenticator,
        contextlib.closing(Pull("tcp://127.0.0.1:*", 10, authenticator)),
    ):
        listeners.close()
    assert "not used, no option names its address: 127.0.0.1:" in caplog.text
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "10000000"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x", "LISTEN_FDNAMES": "x"},
    ],
)
def test_nothing_is_taken_from_an_environment_that_is_not_ours(environment):
    environment = dict(environment, PATH="/bin")
    listeners = Listeners.from_environment(environment)
    assert listeners.find("tcp://127.0.0.1:5556", "--x") is None
    assert environment == {"PATH": "/bin"}


@pytest.mark.slow
def test_nobody_else_gets_the_ports_while_the_collector_is_away(tmp_path):
    """What a socket unit is for; a collector that is started without one binds for itself."""
    data, link = listener(), listener()
    command = [sys.executable, "-c", MANAGER, f"{data.fileno()},{link.fileno()}", sys.executable, "-m"]
    command += ["colmet.collector.main", "--zeromq-bind-uri", uri(data), "--zeromq-link-bind-uri", uri(link)]
    command += ["--enable-stdout-backend", "--control-socket", "", "-v"]
    for n in range(2):
        log = tmp_path / f"log{n}"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=file, pass_fds=[data.fileno(), link.fileno()]
            )
        try:
            until = time.monotonic() + 60
            while " listening uri=" not in log.read_text():
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        assert log.read_text().count("listening socket of the service manager used") == 2, log.read_text()
        for one in (data, link):  # it has gone
            with pytest.raises(OSError, match="in use"):
                listener(port=one.getsockname()[1])
    data.close(), link.close()


@pytest.fixture
def link():
    with contextlib.closing(LinkServer("tcp://127.0.0.1:*")) as server:
        yield server


class Receiving:
    """What a collector needs of its socket for data here."""

    def __init__(self):
        self.forgotten = []

    def sleep_on(self, source):
        self.forgotten.append(source)


class Link:
    def __init__(self, server):
        self.close = server.close


def collector_of(server, taken, directory):
    made = Collector.__new__(Collector)
    made._pull, made._link, made._link_port = Receiving(), Link(server), LinkPort(server.socket, taken, str(directory))
    made.health = types.SimpleNamespace(link_failed="")
    return made


def test_data_gets_the_port_of_a_link_that_nobody_named(link, tmp_path, caplog):
    with contextlib.closing(Claims(link.uri)) as taken:
        first = collector_of(link, taken, tmp_path)
        pulls = []
        second = threading.Thread(target=lambda: pulls.append(Pull(link.uri, 10)))
        second.start()
        while second.is_alive():
            first._yield_port()
            second.join(0.01)
    assert pulls[0].uri == link.uri and len(first._pull.forgotten) == 2
    assert caplog.text.count("link given up") == 1 and (tmp_path / NOTE).exists()
    pulls[0].close()


def test_a_port_that_nobody_gives_is_an_error_at_once(link):
    with pytest.raises(ConfigError, match=r"Address already in use .*; give an address"):
        Pull(link.uri, 10)


def test_a_collector_that_does_not_answer_is_waited_for_no_longer_than_that(link, monkeypatch):
    monkeypatch.setattr(ports, "PATIENCE_S", 0.1)
    with contextlib.closing(Claims(link.uri)), pytest.raises(ConfigError, match="Address already in use"):
        Pull(link.uri, 10)


class Credentials:
    size = 12

    def __init__(self, uid):
        self.unpack = lambda _: (1, uid, 1)


def test_a_claim_of_another_user_counts_for_nothing(link, monkeypatch):
    with contextlib.closing(Claims(link.uri)) as taken:
        assert not taken.came()
        assert _claim(link.uri) and taken.came() and not taken.came()
        monkeypatch.setattr(ports, "_CREDENTIALS", Credentials(os.geteuid() + 1))
        assert _claim(link.uri) and not taken.came()


def test_a_name_that_is_taken_and_an_address_without_a_port_take_no_claims(link):
    with contextlib.closing(Claims(link.uri)) as first, contextlib.closing(Claims(link.uri)) as second:
        assert first.fd >= 0 > second.fd and not second.came()
    assert Claims("ipc:///run/x.link").fd == -1 and not _claim("ipc:///run/x.link")
    assert not _claim(link.uri)


def test_a_link_that_is_closed_still_notes_what_is_on_disk():
    world = World()
    world.server.close = lambda: None
    world.link.close()
    world.take(1, 2)
    world.sync()
    world.link.serve()
    assert world.link.counters()["waiting"] == 0 and not world.durable.take()


# -- which port --


@pytest.fixture
def data():
    """The address of a collector whose next port is free; both below the ports that the kernel gives to clients."""
    while True:
        uri = f"tcp://127.0.0.1:{random.randrange(10000, 32000, 2)}"
        if link_module._is_free(uri) and link_module._is_free(link_module.link_uri(uri)):
            break
    with contextlib.closing(Authenticator()) as authenticator:
        yield uri, authenticator


def test_a_port_that_nobody_named_may_be_claimed_and_one_that_is_named_may_not(data, link):
    uri, authenticator = data
    server, port = open_link(None, uri, authenticator, "")
    assert server.uri == link_module.link_uri(uri) and port.claims.fd >= 0
    port.claims.close()
    server.close()
    named, port = open_link("tcp://127.0.0.1:*", uri, authenticator, "")
    assert named.uri.startswith("tcp://127.0.0.1:") and port is None
    named.close()
    assert open_link("", uri, authenticator, "") == (None, None)
    with pytest.raises(ConfigError, match="--zeromq-link-bind-uri"):
        open_link(link.uri, uri, authenticator, "")


def test_a_port_that_another_collector_had_is_not_taken_from_it_after_a_reboot(data, tmp_path, monkeypatch, caplog):
    """Taken at one start, and free at the next until the other collector has started, too."""
    uri, authenticator = data
    other = Pull(link_module.link_uri(uri), 10)
    assert open_link(None, uri, authenticator, str(tmp_path)) == (None, None)
    assert (tmp_path / NOTE).exists() and "no acknowledgements" in caplog.text
    other.close()
    others = []

    def start_the_other(_):
        others.append(Pull(link_module.link_uri(uri), 10))

    monkeypatch.setattr(link_module.time, "sleep", start_the_other)
    assert open_link(None, uri, authenticator, str(tmp_path)) == (None, None)
    assert len(others) == 1 and "link waits up to 30 s" in caplog.text
    others[0].close()


def test_a_port_that_stays_free_is_taken_again(data, tmp_path, monkeypatch):
    uri, authenticator = data
    (tmp_path / NOTE).touch()
    monkeypatch.setattr(link_module, "WAIT_S", 0)
    server, port = open_link(None, uri, authenticator, str(tmp_path))
    assert server is not None and not (tmp_path / NOTE).exists()
    port.claims.close()
    server.close()


def test_after_the_last_port_there_is_none(tmp_path):
    assert not link_module._is_free("tcp://127.0.0.1:65536") and not link_module._is_free("ipc:///run/x")
