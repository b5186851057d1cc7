"""A port that a collector opened by default: given to the next collector that receives data there."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import types

import pytest

from colmet.collector.collector import Collector
from colmet.collector.ingest import link as link_module
from colmet.collector.ingest.link import NOTE, LinkPort, open_link
from colmet.common.errors import ConfigError
from colmet.common.transport import Authenticator, LinkServer, Pull, ports
from colmet.common.transport.ports import Claims, _claim
from tests.support.collector_link import World


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
