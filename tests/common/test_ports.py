"""Listening sockets that the service manager holds: used, never confused, and held while the collector is away."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from colmet.common.errors import ConfigError
from colmet.common.transport import Authenticator, LinkServer, Pull, Push
from colmet.common.transport.ports import Listeners

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
