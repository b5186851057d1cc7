from __future__ import annotations

import errno
import os
import runpy
import socket
import time
from types import SimpleNamespace

import pytest
import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport import (
    LinkClient,
    LinkServer,
    Pull,
    Push,
    check_target,
    check_uri,
    link_uri,
    outgoing,
    wait,
)
from colmet.common.transport import ports as waiting
from colmet.common.transport.outgoing import Outgoing
from tests.support.waiting import free_port, wait_for


def test_pyzmq_22_whose_sockets_have_no_index_suffices(monkeypatch):
    monkeypatch.setattr(zmq, "Socket", type("Socket", (), {}))
    assert runpy.run_path(waiting.__file__)["Socket"] is zmq.Socket


def test_a_socket_beside_another_has_no_thread_of_its_own():
    push = Push("tcp://127.0.0.1:1", 10, 0)
    threads = len(os.listdir("/proc/self/task"))
    link = LinkClient("tcp://127.0.0.1:1", beside=push)
    assert len(os.listdir("/proc/self/task")) == threads
    link.close()
    push.close()


def test_a_connection_can_be_opened_again_at_any_time(monkeypatch):
    """libzmq frees the address of a monitor some time after the monitor is closed."""

    class Shared(zmq.Context):
        def term(self):
            pass

    context = Shared()
    with monkeypatch.context() as patched:
        patched.setattr(zmq, "Context", lambda: context)
        many = [Push("tcp://127.0.0.1:1", 10, 0) for _ in range(50)]
    for push in many * 5:
        push.reopen()
    for push in many:
        push.close()
    zmq.Context.term(context)


@pytest.fixture
def pull():
    made = Pull("tcp://127.0.0.1:*", 100)
    yield made
    made.close()
    made.close()


def receive(pull, count, timeout=30):
    found, until = [], time.monotonic() + timeout
    while len(found) < count and time.monotonic() < until:
        pull.wait(0.2)
        while (got := pull.receive()) is not None:
            found.append(got)
    return found


def connected(push, timeout=10):
    until = time.monotonic() + timeout
    while not push.connected:
        assert time.monotonic() < until
        wait((), (push.socket,), 0.1)
    return push


def test_messages_arrive_in_order_with_the_address_they_came_from(pull):
    push = connected(Push(pull.uri, 100, 1000))
    for n in range(50):
        assert push.send(b"%d" % n)
    got = receive(pull, 50)
    push.close()
    push.close()
    assert [one.message for one in got] == [b"%d" % n for n in range(50)]
    assert {one.peer for one in got} == {"127.0.0.1"}
    assert pull.receive() is None and not pull.wait(0)


def test_sending_never_waits_and_says_that_nobody_is_there():
    with socket.socket() as nobody:  # bound, not listening: nothing answers there
        nobody.bind(("127.0.0.1", 0))
        push = Push(f"tcp://127.0.0.1:{nobody.getsockname()[1]}", 10, 0)
        started = time.monotonic()
        assert not any(push.send(b"x") for _ in range(100))
        assert not push.connected
        push.reopen()
        assert not push.send(b"x")
        push.close()
        assert time.monotonic() - started < 5


def test_a_collector_that_does_not_receive_is_given_no_more_than_fits(pull):
    push = connected(Push(pull.uri, 10, 0))
    until, taken = time.monotonic() + 5, 0
    while push.connected and time.monotonic() < until:
        taken += push.send(bytes(1 << 20))
    assert not push.connected and 10 <= taken < 1000
    push.close()


def test_what_was_queued_for_a_connection_is_dropped_when_it_is_made_again(pull):
    push = connected(Push(pull.uri, 100, 0))
    sent = 0
    while push.send(bytes(1 << 20)):
        sent += 1
    push.reopen()
    assert connected(push).send(b"new")
    got, until = [], time.monotonic() + 20
    while not any(one.message == b"new" for one in got):
        assert time.monotonic() < until
        got += receive(pull, 1)
    assert len(got) <= sent
    push.close()


def test_one_that_cannot_be_connected_again_stays_as_it_is(pull, monkeypatch):
    push = connected(Push(pull.uri, 100, 1000))

    def failing(*args):
        raise zmq.ZMQError(errno.EMFILE)

    with monkeypatch.context() as patch:
        patch.setattr(zmq.Socket, "connect", failing)
        with pytest.raises(zmq.ZMQError):
            push.reopen()
    assert push.connected and push.send(b"x")
    assert [got.message for got in receive(pull, 1)] == [b"x"]
    push.close()


def test_a_collector_that_comes_later_is_connected_to(tmp_path):
    uri = f"ipc://{tmp_path}/socket"
    push = Push(uri, 10, 1000)
    assert not push.send(b"early")
    pull = Pull(uri, 10)
    assert connected(push).send(b"late")
    assert receive(pull, 1) == [(b"late", "", "")]
    push.close()
    pull.close()


def test_a_collector_that_was_away_for_hours_is_connected_to(monkeypatch):
    """libzmq reports each attempt, and its thread waits for the reader of some 2,000 reports."""
    monkeypatch.setattr(outgoing, "random", SimpleNamespace(randrange=lambda *_: 1))  # milliseconds between attempts
    noted = []
    monkeypatch.setattr(LinkClient, "_note", lambda link, event: noted.append(event))
    uri = f"tcp://127.0.0.1:{free_port()}"
    link = LinkClient(uri)
    try:
        until = time.monotonic() + 20
        while len(noted) < 3000 and time.monotonic() < until:
            assert not link.connected
            time.sleep(0.01)
        server = LinkServer(uri)
        try:
            wait_for(lambda: link.connected, 20)
        finally:
            server.close()
    finally:
        link.close()


def test_the_link_goes_both_ways_and_says_who_has_gone(pull):
    server = LinkServer("tcp://127.0.0.1:*")
    client = LinkClient(server.uri)
    until = time.monotonic() + 10
    while not client.send(b"hello"):
        assert time.monotonic() < until
        wait((), (client.socket,), 0.1)
    while (called := server.receive()) is None:
        assert time.monotonic() < until
        wait((server.socket,), (), 0.1)
    assert (called.message, called.peer) == (b"hello", "127.0.0.1")
    assert server.send(called.caller, b"answer")
    while (answer := client.receive()) is None:
        assert time.monotonic() < until
        wait((client.socket,), (), 0.1)
    assert answer == b"answer" and client.connected
    client.close()
    while server.send(called.caller, b"?"):
        assert time.monotonic() < until
        time.sleep(0.01)
    server.close()


def test_a_descriptor_wakes_the_wait(pull):
    read, write = os.pipe()
    pull.wake_on(read)
    os.write(write, b"x")
    started = time.monotonic()
    assert not pull.wait(30)
    assert time.monotonic() - started < 5
    os.close(read)
    os.close(write)


def test_each_part_of_a_message_is_a_message():
    pull = Pull("tcp://127.0.0.1:*", 100)
    context = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.connect(pull.uri)
    sender.send_multipart([b"a", b"b", b"c"])
    sender.send(b"next")
    assert [one.message for one in receive(pull, 4)] == [b"a", b"b", b"c", b"next"]
    sender.close()
    context.term()
    pull.close()


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:5556", "tcp://head.cluster:1", "tcp://[::1]:5556", "ipc:///run/x"])
def test_uris_that_zeromq_can_use(uri):
    assert check_uri(uri, "--x") == uri


@pytest.mark.parametrize(
    "uri",
    ["", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:65536", "tcp://host:x", "udp://h:1", "h:1", "ipc://"],
)
def test_other_uris_are_refused_with_an_example(uri):
    with pytest.raises(ConfigError, match=r"--x .*(tcp://127.0.0.1:5556|from 1 to 65535)"):
        check_uri(uri, "--x")


def test_a_node_with_several_addresses_chooses_the_one_it_connects_from():
    """As Colmet 0.6 did: its line went to libzmq as it was."""
    pull = Pull("tcp://127.0.0.1:*", 10)
    uri = f"tcp://127.0.0.2:0;{pull.uri.removeprefix('tcp://')}"
    push = connected(Push(uri, 10, 1000))
    assert push.send(b"x")
    assert [(one.message, one.peer) for one in receive(pull, 1)] == [(b"x", "127.0.0.2")]
    push.close()
    pull.close()
    assert link_uri("tcp://10.0.0.1:0;head:5556") == "tcp://10.0.0.1:0;head:5557"


@pytest.mark.parametrize(
    "uri", ["tcp://10.0.0.1;h:1", "tcp://10.0.0.1:x;h:1", "tcp://:0;h:1", "tcp://a:0;h", "a:0;h:1"]
)
def test_an_address_to_connect_from_has_a_port_and_one_to_connect_to(uri):
    with pytest.raises(ConfigError, match=r"--x .*(tcp://SOURCE:0;HOST:PORT|tcp://HOST:PORT)"):
        check_target(uri, "--x")
    with pytest.raises(ConfigError, match="give tcp://HOST:PORT"):
        check_uri("tcp://10.0.0.1:0;h:1", "--zeromq-bind-uri")


def test_an_address_that_cannot_be_bound_is_refused(pull):
    with pytest.raises(ConfigError, match="Address already in use"):
        Pull(pull.uri, 10)
    with pytest.raises(ConfigError, match="--zeromq-bind-uri"):
        Pull("tcp://192.0.2.1:5556", 10)


def events(outgoing, *kinds):
    for kind in kinds:
        outgoing._note(kind)
    return outgoing.problem


def test_a_connection_is_numbered_and_one_made_again_has_another_number(pull):
    push = connected(Push(pull.uri, 100, 0))
    assert push.connection == 1
    push.reopen()
    assert push.connection == 0 or connected(push)
    assert connected(push).connection == 2
    uri = pull.uri
    pull.close()
    until = time.monotonic() + 10
    while push.connection:
        assert time.monotonic() < until
        time.sleep(0.01)
    again = Pull(uri, 100)
    assert connected(push).connection == 3
    again.close()
    push.close()


def test_a_link_opened_again_has_nothing_of_what_came_before():
    server = LinkServer("tcp://127.0.0.1:*")
    client = LinkClient(server.uri)
    until = time.monotonic() + 10
    for text in (b"first", b"second"):
        while not client.send(text):
            assert time.monotonic() < until
            wait((), (client.socket,), 0.1)
        while (called := server.receive()) is None:
            wait((server.socket,), (), 0.1)
        assert called.message == text and client.problem == ""
        server.send(called.caller, b"answer to " + text)
        wait((client.socket,), (), 5)
        if text == b"first":
            client.reopen()
    assert client.receive() == b"answer to second" and client.receive() is None
    client.close()
    server.close()


def test_why_there_is_no_connection_is_known(pull):
    """A port that nobody has, and one that another program has: here the data of a collector."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        clients = [LinkClient(uri) for uri in (f"tcp://127.0.0.1:{nobody.getsockname()[1]}", pull.uri)]
        until = time.monotonic() + 10
        while not all(client.problem for client in clients):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert "refused" in clients[0].problem and "something listens there" in clients[1].problem
        for client in clients:
            client.close()


def test_an_attempt_that_nobody_answers_is_distinguished_from_one_that_is_refused():
    now = [0.0]
    outgoing = Outgoing(zmq.PUSH, "tcp://127.0.0.1:1", "--zeromq-uri", {zmq.LINGER: 0}, monotonic=lambda: now[0])
    outgoing.socket.disable_monitor()  # no others than the test's
    outgoing.connection  # noqa: B018
    assert "refused" in events(outgoing, zmq.EVENT_CONNECT_DELAYED, zmq.EVENT_CLOSED)
    events(outgoing, zmq.EVENT_CONNECT_DELAYED)
    now[0] += 5.0
    assert "not answered" in events(outgoing, zmq.EVENT_CLOSED)
    assert "something listens" in events(outgoing, zmq.EVENT_CONNECTED), "and says nothing"
    assert events(outgoing, zmq.EVENT_HANDSHAKE_SUCCEEDED) == ""
    outgoing.close()
