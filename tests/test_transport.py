from __future__ import annotations

import os
import socket
import time

import pytest

from colmet.common.errors import ConfigError
from colmet.common.transport import Pull, Push, check_uri


@pytest.fixture
def pull():
    made = Pull("tcp://127.0.0.1:*", 100)
    yield made
    made.close()
    made.close()


def receive(pull, count, timeout=5):
    found, until = [], time.monotonic() + timeout
    while len(found) < count and time.monotonic() < until:
        pull.wait(0.2)
        while (got := pull.receive()) is not None:
            found.append(got)
    return found


def test_messages_arrive_in_order_with_the_address_they_came_from(pull):
    push = Push(pull.uri, 100, 1000)
    for n in range(50):
        assert push.send(b"%d" % n)
    got = receive(pull, 50)
    push.close()
    push.close()
    assert [one.message for one in got] == [b"%d" % n for n in range(50)]
    assert {one.peer for one in got} == {"127.0.0.1"}
    assert pull.receive() is None and not pull.wait(0)


def test_sending_never_waits_and_says_when_there_is_no_room():
    with socket.socket() as nobody:  # bound, not listening: nothing answers there
        nobody.bind(("127.0.0.1", 0))
        push = Push(f"tcp://127.0.0.1:{nobody.getsockname()[1]}", 10, 0)
        started = time.monotonic()
        taken = [push.send(b"x") for _ in range(100)]
        assert time.monotonic() - started < 1
        assert taken == [True] * 10 + [False] * 90
        push.close()


def test_a_collector_that_comes_later_gets_what_waited(tmp_path):
    uri = f"ipc://{tmp_path}/socket"
    push = Push(uri, 10, 1000)
    push.send(b"early")
    pull = Pull(uri, 10)
    assert receive(pull, 1) == [(b"early", "")]
    push.close()
    pull.close()


def test_a_descriptor_wakes_the_wait(pull):
    read, write = os.pipe()
    pull.wake_on(read)
    os.write(write, b"x")
    started = time.monotonic()
    assert not pull.wait(30)
    assert time.monotonic() - started < 5
    os.close(read)
    os.close(write)


def test_a_message_in_parts_is_one_message():
    import zmq

    pull = Pull("tcp://127.0.0.1:*", 100)
    context = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.connect(pull.uri)
    sender.send_multipart([b"a", b"b", b"c"])
    sender.send(b"next")
    assert [one.message for one in receive(pull, 2)] == [b"abc", b"next"]
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


def test_an_address_that_cannot_be_bound_is_refused(pull):
    with pytest.raises(ConfigError, match="Address already in use"):
        Pull(pull.uri, 10)
    with pytest.raises(ConfigError, match="--zeromq-bind-uri"):
        Pull("tcp://192.0.2.1:5556", 10)
