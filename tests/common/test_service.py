"""What the service manager receives, and that nothing is sent where there is none."""

from __future__ import annotations

import math
import os
import socket
import threading

import pytest

from colmet.common.daemon.systemd import Service
from tests.support.waiting import Clock


class Manager:
    """The socket of a service manager."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.setblocking(False)

    def said(self):
        """What was said since the last time."""
        lines = []
        while True:
            try:
                lines.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return lines


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    path = str(tmp_path / "notify")
    name = path if request.param == "path" else f"\0colmet-test-{os.getpid()}"
    made = Manager(name)
    made.address = name.replace("\0", "@")
    yield made
    made.socket.close()


def test_it_is_notified_in_the_words_of_sd_notify(manager):
    service = Service(manager.address)
    service.ready()
    service.reloading()
    service.ready()
    service.stopping()
    service.close()
    service.close()
    service.ready()
    said = manager.said()
    assert said[0] == said[2] == "READY=1" and said[3] == "STOPPING=1" and len(said) == 4
    first, second = said[1].split("\n")
    assert first == "RELOADING=1" and second.startswith("MONOTONIC_USEC=") and second[15:].isdigit()


def test_the_status_is_one_line_at_most_every_ten_seconds(manager):
    clock, made = Clock(100.0), []

    def make():
        made.append(1)
        return "all\nis  well " + "x" * 1000

    service = Service(manager.address, monotonic=clock)
    for _ in range(21):
        service.status(make)
        clock.now += 1
    (first, second, third) = manager.said()
    assert len(made) == 3 and first == second == third
    assert first.startswith("STATUS=all is well xxx") and len(first) <= 210
    service.close()


def test_the_watchdog_hears_it_twice_within_its_time_and_only_then(manager):
    clock = Clock(100.0)
    service = Service(manager.address, 10, clock)
    for _ in range(20):
        assert service.delay_s() <= 5
        service.alive()
        clock.now += 1
    assert manager.said() == ["WATCHDOG=1"] * 3
    service.close()


def fill(manager):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
        while True:
            try:
                other.sendto(b"busy", manager.address.replace("@", "\0"))
            except BlockingIOError:
                return


def test_a_busy_service_manager_is_waited_for_where_it_has_to_hear(manager):
    service = Service(manager.address)
    fill(manager)
    manager.socket.settimeout(20)
    teller = threading.Thread(target=service.ready)
    teller.start()
    while manager.socket.recv(100) != b"READY=1":
        pass
    teller.join(20)
    service.close()


def test_without_a_service_manager_nothing_happens():
    environment = {"PATH": "/bin"}
    service = Service.from_environment(environment)
    service.ready()
    service.status(lambda: pytest.fail("nobody reads it"))
    service.alive()
    service.stopping()
    assert service.delay_s() == math.inf and environment == {"PATH": "/bin"}


def test_what_the_environment_says_is_not_left_to_the_programs_we_start(manager):
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    service = Service.from_environment(environment)
    assert environment == {}
    assert 1.9 < service.delay_s() <= 2
    service.ready()
    assert manager.said() == ["READY=1"]
    service.close()


def test_a_service_manager_that_has_gone_is_counted_and_ends_nothing(tmp_path, caplog):
    service = Service(str(tmp_path / "nobody"), 1)
    for _ in range(12):
        service.ready()
    assert [record.args[0] for record in caplog.records] == [1, 10]
    service.close()
