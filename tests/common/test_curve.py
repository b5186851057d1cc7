"""Who may send: CURVE on the sockets, keys that come and go, and whose data a key is good for."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from types import SimpleNamespace

import pytest
import zmq

from colmet.collector.ingest.link import CollectorLink, DurableBatches
from colmet.collector.ingest.receiver import Receiver
from colmet.common.config import keys
from colmet.common.config.keys import KnownKeys, write_pair
from colmet.common.errors import ConfigError
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.transport import (
    Authenticator,
    Called,
    Client,
    LinkClient,
    LinkServer,
    Pull,
    Push,
    curve,
    new_pair,
    outgoing,
)
from colmet.common.transport import authenticator as authenticator_module
from colmet.common.transport.sockets import MAX_RECEIVED_BYTES
from colmet.common.wire import link as wire
from colmet.common.wire import v1
from tests.support.waiting import wait_for
from tests.support.zmtp import connect, frame, greeting

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


def message(host, seq=1):
    return v1.encode(Batch(host, 1, seq, 10**18, (7,), (Table.from_samples(SCHEMA, 10**18, [Sample(7, {"cpu": 1})]),)))


class Site:
    """A collector's sockets, and the keys of its nodes."""

    def __init__(self, folder, stack):
        self.folder = folder
        self.stack = stack
        self.pair = new_pair()
        self.nodes = {}
        self.add("node-1")
        self.authenticator = Authenticator(self.pair, KnownKeys(str(folder), "--x"))
        self.pull = Pull("tcp://127.0.0.1:*", 100, self.authenticator)
        self.link = LinkServer("tcp://127.0.0.1:*", authenticator=self.authenticator)

    def add(self, name):
        self.nodes[name] = new_pair()
        (self.folder / f"{name}.key").write_text(f'public-key = "{self.nodes[name].public}"\n')

    def push(self, pair, server=None):
        push = Push(self.pull.uri, 1000, 0, Client(pair, server or self.pair.public))
        self.stack.callback(push.close)
        return push

    def receive(self, count=1, timeout=20):
        found, until = [], time.monotonic() + timeout
        while len(found) < count and time.monotonic() < until:
            self.pull.wait(0.1)
            while (got := self.pull.receive()) is not None:
                found.append(got)
        return found

    def nothing_comes(self):
        """What was sent before has come when what is sent now has."""
        push = self.push(self.nodes["node-1"])
        wait_for(lambda: push.send(b"last"))
        got = self.receive()
        return [one.message for one in got] == [b"last"]


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "HANDSHAKE_MS", 500)  # that of sockets that are made from now on
    monkeypatch.setattr(authenticator_module, "HANDSHAKE_MS", 500)
    monkeypatch.setattr(keys, "CHECK_S", 0.2)
    monkeypatch.setattr(keys, "FULL_CHECK_S", 0.5)
    with contextlib.ExitStack() as stack:
        made = Site(tmp_path, stack)
        stack.callback(made.authenticator.close)
        stack.callback(made.link.close)
        stack.callback(made.pull.close)
        yield made


def test_a_message_says_whose_key_it_came_with(site):
    site.add("node-2.example.org")
    for pair in site.nodes.values():
        push = site.push(pair)
        wait_for(lambda push=push: push.send(b"x"))
    assert sorted(site.receive(2)) == [(b"x", "127.0.0.1", "node-1"), (b"x", "127.0.0.1", "node-2.example.org")]
    assert site.authenticator.counters()["let_in"] == 2 and site.authenticator.counters()["keys"] == 2


def test_so_does_one_on_the_link_and_it_is_answered(site):
    client = LinkClient(site.link.uri, security=Client(site.nodes["node-1"], site.pair.public))
    site.stack.callback(client.close)
    wait_for(lambda: client.send(b"hello"))
    called = []
    wait_for(lambda: called.append(site.link.receive()) or called[-1])
    assert called[-1][1:] == (b"hello", "127.0.0.1", "node-1")
    site.link.send(called[-1].caller, b"ack")
    wait_for(lambda: client.receive() == b"ack")


def test_a_client_without_keys_is_not_heard_on_either_socket(site, caplog):
    plain, link = Push(site.pull.uri, 10, 0), LinkClient(site.link.uri)
    site.stack.callback(plain.close)
    site.stack.callback(link.close)
    plain.send(b"plain")
    wait_for(lambda: site.authenticator.counters()["handshake_failed"] >= 1)
    assert site.nothing_comes()
    assert not link.send(b"plain") and site.link.receive() is None
    assert "it has no key" in caplog.text


def test_a_connection_without_a_key_is_reported_with_its_address(site, caplog):
    """libzmq reports the failure without an address, and then the end of the connection."""
    events = [(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 1), (zmq.EVENT_DISCONNECTED, 7), (zmq.EVENT_DISCONNECTED, 8)]

    def next_event(_):
        if not events:
            raise zmq.Again
        return [authenticator_module._EVENT.pack(*events.pop(0)), b"tcp://0.0.0.0:5556"]

    known = site.authenticator._limit
    for descriptor, peer in ((7, "10.0.0.7"), (8, "10.0.0.8")):
        known.known[descriptor] = authenticator_module.Connection(descriptor, peer)
    site.authenticator._note(SimpleNamespace(monitor=SimpleNamespace(recv_multipart=next_event), failed=False))
    assert "no key, or another key for this collector from=[10.0.0.7] refused=1" in caplog.text
    assert "10.0.0.8" not in caplog.text and not known.known


def test_old_versions_of_zmtp_have_no_keys_and_are_not_heard(site):
    for hello in (b"\x01\x00", b"\xff" + bytes(8) + b"\x7f\x01\x08\x00\x00", greeting(version=2)):
        for uri in (site.pull.uri, site.link.uri):
            with contextlib.closing(zmtp_socket(uri)) as one, contextlib.suppress(OSError):
                one.sendall(hello + b"\x01\x00" + b"\x04\x00abc" + frame(b"old", 0))
                while one.recv(1000):
                    pass
    assert site.nothing_comes() and site.link.receive() is None


def zmtp_socket(uri):

    from tests.support.zmtp import address

    return socket.create_connection(address(uri), timeout=20)


def test_a_client_with_the_key_of_another_collector_is_not_heard(site):
    site.push(site.nodes["node-1"], server=new_pair().public).send(b"wrong")
    wait_for(lambda: site.authenticator.counters()["handshake_failed"] >= 1)
    assert site.nothing_comes()


def test_a_collector_with_another_key_gets_nothing_from_a_node(tmp_path):
    node, ours = new_pair(), new_pair()
    (tmp_path / "node-1.key").write_text(f'public-key = "{node.public}"\n')
    with contextlib.ExitStack() as stack:
        impostor = Authenticator(new_pair(), KnownKeys(str(tmp_path), "--x"))
        stack.callback(impostor.close)
        pull = Pull("tcp://127.0.0.1:*", 10, impostor)
        stack.callback(pull.close)
        push = Push(pull.uri, 10, 0, Client(node, ours.public))
        stack.callback(push.close)
        push.send(b"confidential")
        wait_for(lambda: impostor.counters()["handshake_failed"] >= 2)
        assert pull.receive() is None


def test_an_unknown_key_is_refused_until_it_is_added(site, caplog):
    stranger = new_pair()
    push = site.push(stranger)
    wait_for(lambda: site.authenticator.counters()["unknown_key"] >= 2)  # it comes again by itself
    assert "why=unknown_key from=[127.0.0.1]" in caplog.text and stranger.public in caplog.text
    (why, address, count), *others = site.authenticator.refusals()
    assert (why, address, others) == ("unknown_key", "127.0.0.1", []) and count >= 2
    assert site.receive(timeout=0.1) == []
    site.nodes["node-3"] = stranger
    (site.folder / "node-3.key").write_text(f'public-key = "{stranger.public}"\n')
    wait_for(lambda: push.send(b"late"))
    assert site.receive() == [(b"late", "127.0.0.1", "node-3")]


def test_a_key_that_is_removed_is_worth_nothing_from_then_on(site, caplog):
    site.add("node-2")
    pushes = {name: site.push(pair) for name, pair in site.nodes.items()}
    for push in pushes.values():
        wait_for(lambda push=push: push.send(b"before"))
    assert len(site.receive(2)) == 2
    (site.folder / "node-2.key").unlink()
    wait_for(lambda: site.authenticator._known.owner(site.nodes["node-2"].public) is None)
    for push in pushes.values():  # over connections that were let in before
        push.send(b"after")
    assert [one.user for one in site.receive()] == ["node-1"]

    # Its message is refused; or its connection, which was closed before, when it comes again.
    def is_refused():
        counts = site.authenticator.counters()
        return not site.receive(1, 0.1) and counts["key_withdrawn"] + counts["unknown_key"] >= 1

    wait_for(is_refused)
    assert "why=key_withdrawn" in caplog.text or "why=unknown_key" in caplog.text
    wait_for(lambda: pushes["node-1"].send(b"still"))
    assert [one.message for one in site.receive()] == [b"still"]


def test_keys_are_rotated_without_a_gap(site):
    new = new_pair()
    old = site.push(site.nodes["node-1"])
    path = site.folder / "node-1.key"
    path.write_text(path.read_text() + f'public-key = "{new.public}"\n')
    young = site.push(new)
    wait_for(lambda: young.send(b"new"))
    wait_for(lambda: old.send(b"old"))
    assert sorted(site.receive(2)) == [(b"new", "127.0.0.1", "node-1"), (b"old", "127.0.0.1", "node-1")]


@pytest.mark.slow
def test_nobody_is_let_in_where_nobody_says_who_may(tmp_path, site):
    """The thread that answers has ended: the authenticator stays shut."""
    site.authenticator._stopping = True
    site.authenticator._wakeup.wake()
    site.authenticator._thread.join()
    site.authenticator._zap.close()
    push = site.push(site.nodes["node-1"])
    push.send(b"x")
    assert site.receive(timeout=2) == []
    site.authenticator._stopping = False  # for close


@pytest.mark.slow
def test_nodes_may_have_their_keys_before_the_collector_has(site, monkeypatch):
    """libzmq gives up where somebody answered who has no keys, and our sockets do not."""
    monkeypatch.setattr(outgoing, "ANEW_S", 0.5)
    unlocked = Pull("tcp://127.0.0.1:*", 10), LinkServer("tcp://127.0.0.1:*")
    for server in unlocked:
        site.stack.callback(server.close)
    uris = [server.uri for server in unlocked]
    client = Client(site.nodes["node-1"], site.pair.public)
    push, link = Push(uris[0], 10, 0, client), LinkClient(uris[1], security=client)
    site.stack.callback(push.close)
    site.stack.callback(link.close)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert not push.connected and not link.connected
        time.sleep(0.05)
    for server in unlocked:
        server.close()
    locked = Pull(uris[0], 10, site.authenticator), LinkServer(uris[1], authenticator=site.authenticator)
    for server in locked:
        site.stack.callback(server.close)
    wait_for(lambda: push.connected and link.connected)
    push.send(b"data")
    link.send(b"hello")
    for server, content in zip(locked, (b"data", b"hello")):
        got = []
        wait_for(lambda server=server, got=got: got.append(server.receive()) or got[-1])
        assert (got[-1].message, got[-1].user) == (content, "node-1")


# -- whose data a key is good for --


def test_data_of_another_host_is_refused_and_counted(caplog):
    receiver = Receiver()
    for _ in range(10):
        assert receiver.take(message("node-2"), "10.0.0.1", "node-1") == []
    assert receiver.take(message("node-1"), "10.0.0.1", "node-1")
    assert receiver.take(message("node-1.example.org"), "10.0.0.1", "node-1") == [], "nor that of a similar name"
    one = receiver.senders["node-1"]
    assert (one.foreign, one.batches, list(receiver.senders)) == (11, 1, ["node-1"])
    assert caplog.text.count("the key is that of another host") == 2
    assert "foreign=11" in "\n".join(receiver.report())


@pytest.mark.parametrize("name", ["colmet06/frames/mixed.bin", "colmet_rs/rust-v1.bin"])
def test_old_dialects_name_a_host_too(name):
    from tests.support.batches import DATA

    old = (DATA / name).read_bytes()
    host = Receiver().take(old, "")[0].host
    assert Receiver().take(old, "", host)
    assert Receiver().take(old, "", "another") == []


def test_without_keys_every_host_is_taken():
    assert Receiver().take(message("any"), "10.0.0.1")


# -- what connections may cost --


@pytest.fixture
def closed_later():
    """Closes what it is given at the end, the latest first."""
    with contextlib.ExitStack() as stack:

        def later(one):
            stack.callback(one.close)
            return one

        yield later


@pytest.mark.parametrize("kind", [b"PUSH", b"DEALER"])
def test_a_message_that_is_too_large_costs_its_sender_the_connection(closed_later, kind):
    """The same for a message instead of a handshake command."""
    server = closed_later(Pull("tcp://127.0.0.1:*", 10) if kind == b"PUSH" else LinkServer("tcp://127.0.0.1:*"))
    greeted = closed_later(connect(server.uri, kind))
    greeted.sendall(b"\x02" + (MAX_RECEIVED_BYTES + 1).to_bytes(8, "big"))
    early = closed_later(zmtp_socket(server.uri))
    early.sendall(greeting() + b"\x06" + (MAX_RECEIVED_BYTES + 1).to_bytes(8, "big"))
    for one in (greeted, early):
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    good = closed_later(Push(server.uri, 10, 0) if kind == b"PUSH" else LinkClient(server.uri))
    wait_for(lambda: good.send(b"good") or server.receive())
    wait_for(lambda: ((got := server.receive()) and got.message == b"good") or (not good.send(b"good") and False))


def test_a_connection_that_does_not_say_who_it_is_ends(monkeypatch, closed_later):
    monkeypatch.setattr(authenticator_module, "HANDSHAKE_MS", 200)
    pull = closed_later(Pull("tcp://127.0.0.1:*", 10))
    silent = closed_later(zmtp_socket(pull.uri))
    silent.sendall(greeting())
    while silent.recv(4096):
        pass
    wait_for(lambda: pull.counters()["connections"] == 0)


def test_descriptors_are_left_when_very_many_connect(monkeypatch, closed_later):
    authenticator = closed_later(Authenticator())
    pull = closed_later(Pull("tcp://127.0.0.1:*", 10, authenticator))
    push = closed_later(Push(pull.uri, 10, 0))
    wait_for(lambda: push.send(b"x"))
    wait_for(pull.receive)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    for _ in range(60):
        closed_later(zmtp_socket(pull.uri))
    wait_for(lambda: authenticator.counters()["closed"] >= 60 + 1 - 40 * 7 / 8)
    wait_for(lambda: authenticator.counters()["connections"] <= 40)
    wait_for(lambda: push.send(b"y"))
    wait_for(lambda: (got := pull.receive()) and got.message == b"y")


@pytest.mark.slow
def test_a_message_each_does_not_keep_very_many_connections_of_one_address(monkeypatch, closed_later):
    authenticator = closed_later(Authenticator())
    pull = closed_later(Pull("tcp://127.0.0.1:*", 10, authenticator))
    push = closed_later(Push(pull.uri, 10, 0))
    wait_for(lambda: push.send(b"x"))
    wait_for(pull.receive)
    for _ in range(60):
        connection = closed_later(connect(pull.uri))
        connection.sendall(frame(b"z", 0))
        wait_for(pull.receive)
    assert authenticator.counters()["closed"] == 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    closed_later(zmtp_socket(pull.uri))  # it is looked at when one comes
    wait_for(lambda: authenticator.counters()["closed"] >= 60 + 1 - 40 * 7 / 8)
    monkeypatch.undo()
    # the node's own may be one of them, and have come again
    assert authenticator.counters()["closed"] <= 60 + 3 - authenticator_module.MANY, "those of a node are left"

    def heard():
        push.send(b"y")
        return (got := pull.receive()) is not None and got.message == b"y"

    wait_for(heard)


def test_a_message_of_many_parts_on_the_link_is_its_first_part():
    server = LinkServer("tcp://127.0.0.1:*")
    context = zmq.Context()
    sender = context.socket(zmq.DEALER)
    sender.connect(server.uri)
    sender.send_multipart([b"first"] + 5000 * [b""])
    sender.send(b"next")
    got = []
    wait_for(lambda: got.append(server.receive()) or sum(one is not None for one in got) == 2)
    assert [one.message for one in got if one] == [b"first", b"next"]
    sender.close(0)
    context.term()
    server.close()


# -- the command line --


class Options:
    def __init__(self, **options):
        self.__dict__.update(
            dict.fromkeys(("zeromq_curve_secret", "zeromq_curve_collector", "zeromq_curve_nodes")), **options
        )


def test_half_of_the_options_is_an_error_that_names_the_other_half(tmp_path):
    for read, one, other in (
        (curve.from_options, "zeromq_curve_secret", "--zeromq-curve-collector"),
        (curve.from_options, "zeromq_curve_collector", "--zeromq-curve-secret"),
        (authenticator_module.read_keys, "zeromq_curve_secret", "--zeromq-curve-nodes"),
        (authenticator_module.read_keys, "zeromq_curve_nodes", "--zeromq-curve-secret"),
    ):
        with pytest.raises(ConfigError, match=f"{other} is missing"):
            read(Options(**{one: "x"}))


def test_the_options_give_both_ends(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for name in ("collector", "n1"):
        write_pair(str(tmp_path), name, new_pair())
    os.rename(tmp_path / "n1.key", nodes / "n1.key")
    secret = {"zeromq_curve_secret": f"{tmp_path}/n1.secret"}
    client = curve.from_options(Options(zeromq_curve_collector=f"{tmp_path}/collector.key", **secret))
    keys = authenticator_module.read_keys(
        Options(zeromq_curve_secret=f"{tmp_path}/collector.secret", zeromq_curve_nodes=str(nodes))
    )
    authenticator = authenticator_module.Authenticator(*keys)
    pull = Pull("tcp://127.0.0.1:*", 10, authenticator)
    push = Push(pull.uri, 10, 0, client)
    wait_for(lambda: push.send(b"x"))
    assert pull.wait(20) and pull.receive().user == "n1"
    for one in (push, pull, authenticator):
        one.close()
    assert curve.from_options(Options()) is None and authenticator_module.read_keys(Options()) is None
    with contextlib.closing(authenticator_module.Authenticator()) as unlocked:
        assert not unlocked.locked


# -- the link --


class Calls:
    """A link server whose callers are a list."""

    def __init__(self, *called):
        self.called = list(called)
        self.said = []

    def receive(self):
        return self.called.pop(0) if self.called else None

    def send(self, caller, content):
        self.said.append((caller, wire.decode(content)))
        return True


def hello(host):
    return wire.encode(wire.Hello(host, 1, 5, "1.0", ()))


@pytest.fixture
def durable():
    made = DurableBatches()
    yield made
    made.close()


def test_a_hello_counts_for_the_host_of_its_key_alone(durable, caplog):
    server = Calls(
        Called(b"thief", hello("node-1"), "10.0.0.66", "evil"),
        Called(b"owner", hello("node-1"), "10.0.0.1", "node-1"),
        Called(b"thief", hello("node-1"), "10.0.0.66", "evil"),
        Called(b"open", hello("node-2"), "10.0.0.2", ""),
    )
    link = CollectorLink(server, Receiver(), durable, True)
    link.serve()
    assert [caller for caller, _ in server.said] == [b"owner", b"open"]
    assert sorted(link.callers) == ["node-1", "node-2"]
    assert link.counters()["refused"] == 2
    assert "link: node-1 says Hello with the key of evil" in caplog.text
    assert link.ask("node-1", 1, b"") and server.said[-1][0] == b"owner"


def test_a_flood_of_one_node_on_the_link_is_left_out(durable, caplog):
    flood = [Called(b"evil", hello("evil"), "10.0.0.66", "evil")] * 20_000
    server = Calls(*flood, Called(b"good", hello("node-1"), "10.0.0.1", "node-1"))
    link = CollectorLink(server, Receiver(), durable, True, monotonic=lambda: 0.0)
    while server.called:
        link.serve()
    assert link.counters()["limited"] == 15_000
    assert server.said[-1][0] == b"good" and len(server.said) == 5001
    assert "link: messages dropped, too many from=evil limited=10000" in caplog.text
