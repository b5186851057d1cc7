from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from colmet.common.errors import BackendUnavailable
from colmet.node.kernel import task_source
from colmet.node.kernel.netlink import Inbox
from colmet.node.kernel.task_source import ForkEvents
from tests.support.place import skip_refused

FORK, EXEC, EXIT, NONE = 0x1, 0x2, 0x80000000, 0


def event(what, *numbers):
    """A message of the connector: nlmsghdr, cn_msg and struct proc_event, of include/uapi/linux/cn_proc.h."""
    data = struct.pack("=IIQ", what, 0, 123456789) + struct.pack(f"={len(numbers)}I", *numbers)
    message = struct.pack("=IIIIHH", 1, 1, 7, 0, len(data), 0) + data
    return struct.pack("=IHHII", 16 + len(message), 3, 0, 0, 0) + message


class FakeSocket:
    """A netlink socket whose other end is the test's."""

    answer = event(NONE, 0)
    made = None

    def __init__(self, protocol, groups):
        assert (protocol, groups) == (11, 1)
        self._own, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self.sent = b""
        self.errors = []
        self.program = None
        self.closed = False
        FakeSocket.made = self

    def send(self, data):
        self.sent = data
        self.kernel.send(event(FORK, 1, 1, 2, 2))  # before the answer: left out
        if FakeSocket.answer:
            self.kernel.send(FakeSocket.answer)

    def receive(self):
        return self._own.recv(1 << 16)

    def receive_many(self, inbox, count):
        if self.errors:
            raise self.errors.pop(0)
        return inbox.fill(self._own.fileno(), count)

    def set_filter(self, program):
        self.program = program

    def set_receive_buffer(self, size):
        self.buffer = size

    def close(self):
        self.closed = True
        self._own.close()
        self.kernel.close()


@pytest.fixture
def listen(monkeypatch):
    monkeypatch.setattr(task_source, "NetlinkSocket", FakeSocket)
    FakeSocket.answer = event(NONE, 0)
    made = []

    def start():
        made.append(ForkEvents(Inbox(4, 256)))
        return made[-1], FakeSocket.made.kernel

    yield start
    for one in made:
        one.close()
        one.close()
    assert FakeSocket.made.closed


def test_forks_are_reported_in_their_order_however_many_there_are(listen):
    events, kernel = listen()
    assert events.receive().shape == (0, 4)
    sent = [[10 + n, 10, 0xFFFFFF00 + n, 0xFFFFFF00] for n in range(11)]
    for numbers in sent:
        kernel.send(event(FORK, *numbers))
    assert events.receive().tolist() == sent
    assert (events.events, events.overflows) == (11, 0)
    assert events.receive().shape == (0, 4)


def test_a_message_that_is_too_short_is_left_out_and_not_read_as_the_one_before_it(listen):
    events, kernel = listen()
    kernel.send(event(FORK, 1, 1, 2, 2))
    events.receive()
    for message in (event(FORK, 1, 1, 3), event(FORK, 1, 1, 4, 4), b"x" * 20):
        kernel.send(message)
    assert events.receive().tolist() == [[1, 1, 4, 4]]
    kernel.send(event(FORK, 1, 1, 3))
    assert events.receive().shape == (0, 4) and events.events == 2


def test_a_full_buffer_is_counted_and_what_is_queued_still_comes(listen):
    events, kernel = listen()
    kernel.send(event(FORK, 1, 1, 2, 2))
    FakeSocket.made.errors.append(OSError(errno.ENOBUFS, "no room"))
    assert events.receive().tolist() == [[1, 1, 2, 2]]
    assert events.overflows == 1
    FakeSocket.made.errors.append(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        events.receive()


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"", "outside of containers, with CONFIG_PROC_EVENTS"), (event(NONE, errno.EPERM), "Operation not permitted")],
)
def test_a_kernel_that_does_not_tell_or_refuses_is_unavailable_and_leaves_no_socket_open(listen, answer, text):
    FakeSocket.answer = answer
    with pytest.raises(BackendUnavailable, match=text):
        listen()
    assert FakeSocket.made.closed


# On the running kernel


@pytest.fixture
def events(root):
    try:
        made = ForkEvents(Inbox(64, 256))
    except BackendUnavailable as err:
        skip_refused(str(err))
    made.receive()
    yield made
    made.close()
    made.close()


def received(events, wanted):
    """The forks that have come, once all that are wanted have."""
    found = []
    for _ in range(200):
        found += events.receive().tolist()
        if all(one in [numbers[2] for numbers in found] for one in wanted):
            return found
        time.sleep(0.01)
    raise AssertionError(f"{wanted} not among {found}")


@pytest.mark.live
def test_live_children_and_threads_come_with_their_ids_in_order(events):
    script = "sh -c 'exec true' & echo $!; wait; true & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        children = [int(number) for number in process.stdout.read().split()]
    found = received(events, [process.pid, *children])
    ours = [numbers[2:] for numbers in found if numbers[2] in (process.pid, *children)]
    assert ours == [[pid, pid] for pid in (process.pid, *children)]
    assert [numbers[:2] for numbers in found if numbers[2] in children] == [[process.pid, process.pid]] * 2
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    tid = thread.native_id
    thread.join()
    found = received(events, [tid])
    # the kernel reports the parent of its process as the parent of a thread
    assert [numbers[1:] for numbers in found if numbers[2] == tid] == [[os.getppid(), tid, os.getpid()]]


@pytest.mark.live
def test_live_nothing_but_forks_comes(events):
    """Else the filter would not be there: a shell's run is a fork, an exec and an exit at least."""
    for _ in range(20):
        subprocess.run(["true"], check=True)
    kinds = set()
    while True:
        try:
            message = events._socket.receive()
        except BlockingIOError:
            break
        kinds.add(struct.unpack_from("=I", message, 36)[0])
    assert kinds - {NONE} == {FORK}, "and the answers to the subscriptions of other programs"


@pytest.mark.live
def test_live_a_child_of_a_thread_names_the_thread(events):
    ids = []

    def fork():
        ids.extend([threading.get_native_id(), subprocess.Popen([sys.executable, "-S", "-c", ""])])
        ids[1].wait()

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    tid, child = ids
    found = received(events, [child.pid])
    assert [numbers for numbers in found if numbers[2] == child.pid] == [[tid, os.getpid(), child.pid, child.pid]]
