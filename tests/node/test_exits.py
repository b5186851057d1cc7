from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.node.kernel import netlink
from colmet.node.kernel.taskstats import FIELDS, ExitRecords, Form, SequenceCount, stats_offset
from tests.support.place import skip_refused
from tests.support.taskstats_messages import answer, slots, structure

CAPTURE = Path(__file__).parents[1] / "data/kernel/taskstats-exits-v16-linux-6.18.bin"
VERSIONS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
LAST = 2**32 - 1


# The numbers of records


def lost(*batches):
    count = SequenceCount()
    for batch in batches:
        count.add(list(batch))
    return count.lost


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        # without a gap, wherever they begin and wrap
        ([[5, 6, 7], [8], [9, 10]], 0),
        ([[LAST - 1, LAST, 0, 1], [2]], 0),
        # missing within a batch and between two
        ([[5], [7]], 1),
        ([[5, 7]], 1),
        ([[5, 6, 10], [11, 12, 20]], 3 + 7),
        ([[LAST - 1], [2]], 3),
        ([[LAST, 1]], 1),
        ([[5], [5 + 2**31 - 1]], 2**31 - 2),
        ([[*range(500), *range(600, 900)], [901]], 101),
        # a number of another CPU, behind or ahead: it is missing there, so one too few here is one too many there
        ([[500, 501, 2, 502, 503]], -1),
        ([[500], [501], [900], [502], [503]], -1),
        # a gap after or before such a number is a gap still
        ([[500, 501, 2, 503]], 1 - 1),
        ([[500, 501, 900, 502, 505]], 2 - 1),
        # two records of one CPU that overtake each other
        ([[500, 502, 501, 503, 504]], 0),
        # several of another CPU hide where the own went on: the next two of its own tell
        ([[500, 900, 905, 501, 502]], -2),
        ([[500, 900, 503, 504], [505]], 2 - 1),
    ],
)
def test_lost_records_are_counted_by_gaps_in_their_numbers(batches, expected):
    assert lost(*batches) == expected


class Cpus:
    """CPUs that number their records, lose some, and send some to another CPU's listener."""

    def __init__(self, starts):
        self.next = list(starts)
        self.arrived = [[] for _ in starts]
        self.dropped = 0
        for cpu in range(len(starts)):
            self.record(cpu, cpu)

    def record(self, cpu, listener):
        number, self.next[cpu] = self.next[cpu], (self.next[cpu] + 1) % 2**32
        if listener is None:
            self.dropped += 1
        else:
            self.arrived[listener].append(number)


@given(
    starts=st.lists(st.sampled_from([0, 3, 10, 1000, 2**30, 2**31 - 100]), min_size=2, max_size=4),
    base=st.sampled_from([0, 7, 2**31, LAST - 5]),
    events=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["own"] * 4 + ["drop", "stray"])), max_size=60),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_the_sum_over_all_cpus_is_what_was_dropped_once_two_more_of_each_have_come(starts, base, events, cuts):
    cpus = Cpus([(base + start) % 2**32 for start in starts])
    for cpu, what in events:
        cpu %= len(starts)
        cpus.record(cpu, {"own": cpu, "drop": None, "stray": (cpu + 1) % len(starts)}[what])
    for cpu in range(len(starts)):
        cpus.record(cpu, cpu)
        cpus.record(cpu, cpu)
    total = 0
    for numbers in cpus.arrived:
        batches, sizes = [], cuts * len(numbers)
        while numbers:
            size = sizes.pop()
            batches.append(numbers[:size])
            numbers = numbers[size:]
        total += lost(*batches)
    assert total == cpus.dropped


# The records themselves


def exit_record(version, thread, process, parent, sequence=0, last=False, **values):
    """A record as the kernel makes it; of a process's last thread, it has the process's own statistics behind."""
    ids = {"ac_pid": thread, "ac_ppid": parent, **({"ac_tgid": process} if version >= 12 else {})}
    message = answer(version, {**ids, **values}, pid=thread, sequence=sequence)
    if last:
        more = netlink.pack_attribute(5, netlink.pack_attribute(2, process.to_bytes(4, "little")) + bytes(600))
        message = struct.pack("=I", len(message) + len(more)) + message[4:] + more
    return message


@pytest.mark.parametrize("version", VERSIONS)
def test_thread_process_and_parent_are_found_in_every_version_and_the_thread_stands_in_where_it_does_not_tell(version):
    first = exit_record(version, 0xFFFFFFF0, 0xFFFFFFE0, 0xFFFFFFD0, cpu_run_virtual_total=2**40)
    second = exit_record(version, 9, 8, 7, sequence=1, ac_minflt=5)
    filled, _ = slots(first, second)
    form = Form(first)
    assert form.fits(filled)
    assert form.ids(filled).tolist() == [
        [0xFFFFFFF0, 0xFFFFFFE0 if version >= 12 else 0xFFFFFFF0, 0xFFFFFFD0],
        [9, 8 if version >= 12 else 9, 7],
    ]
    values = form.values(filled)
    assert values[:, FIELDS.index("cpu_run_virtual_total")].tolist() == [2**40, 0]
    assert values[:, FIELDS.index("ac_minflt")].tolist() == [0, 5]


def capture():
    """The captured records, and what they are known to say."""
    data, expected = CAPTURE.read_bytes(), json.loads(CAPTURE.with_suffix(".json").read_text())
    found = []
    while data:
        length = int.from_bytes(data[:4], "little")
        found.append(data[:length])
        data = data[length:]
    return found, expected


def test_the_captured_records_of_a_kernel_decode_to_what_they_say():
    records, expected = capture()
    assert [len(record) for record in records] == [one["bytes"] for one in expected] == [596, 596, 596, 1172]
    assert [one["attributes"] for one in expected] == [[4], [4], [4], [4, 5]], "the last has its process's as well"
    for record, one in zip(records, expected):
        stats = structure(16).from_buffer_copy(record, stats_offset(record)[0])
        assert {name: getattr(stats, name) for name in FIELDS} == one["values"]
        assert [stats.ac_pid, stats.ac_tgid, stats.ac_ppid] == [one["thread"], one["process"], one["parent"]]
    filled, _ = slots(*[record[:1024] for record in records])  # as much as an inbox holds
    form = Form(records[0])
    assert form.fits(filled)
    assert form.ids(filled).tolist() == [[one["thread"], one["process"], one["parent"]] for one in expected]
    assert form.values(filled).tolist() == [list(one["values"].values()) for one in expected]
    assert form.fits(slots(records[3][:1024])[0]) and Form(records[3][:1024]).fits(filled)


class FakeSocket:
    """A netlink socket whose other end is the test's."""

    made: list

    def __init__(self):
        self._own, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self.errors = []
        self.refusal = FakeSocket.refusals.pop(0) if FakeSocket.refusals else 0
        self.closed = False
        self.masks = b""
        FakeSocket.made.append(self)

    def fileno(self):
        return self._own.fileno()

    def set_receive_buffer(self, size):
        self.buffer = size

    def family(self, name):
        return 27

    def send(self, data):
        self.masks += data[24:]
        self.kernel.send(FakeSocket.early)
        self.kernel.send(netlink.pack_request(2, 0, 0, b"")[:16] + struct.pack("=i", -self.refusal))

    def receive(self):
        return self._own.recv(1 << 16)

    def receive_many(self, inbox, count, start=0):
        if self.errors:
            raise self.errors.pop(0)
        return inbox.fill(self._own.fileno(), count, start)

    def close(self):
        self.closed = True
        self._own.close()
        self.kernel.close()


@pytest.fixture
def listen(monkeypatch, fake):
    """Listen on sockets of the test's; the machine has CPUs 0 to 2."""
    FakeSocket.made, FakeSocket.refusals = [], []
    FakeSocket.early = exit_record(16, 1, 1, 1)  # while it registers: left out
    monkeypatch.setattr(netlink, "GenericSocket", FakeSocket)
    fake.write("/sys/devices/system/cpu/possible", "0-2\n")
    made = []

    def start(slot_count=8):
        made.append(ExitRecords(fake.host, netlink.Inbox(slot_count, 1024)))
        return made[-1]

    yield start
    for one in made:
        one.close()
        one.close()
    assert all(one.closed for one in FakeSocket.made)


def test_it_listens_on_a_socket_for_each_cpu_each_with_its_share_of_room(listen):
    exits = listen()
    assert [one.masks.strip(b"\0") for one in FakeSocket.made] == [b"0", b"1", b"2"]
    assert {one.buffer for one in FakeSocket.made} == {16 << 20}, "the most there is for one"
    assert exits.fd >= 0 and exits.records == exits.lost == exits.overflows == 0


def test_records_of_all_cpus_are_taken_in_however_many_there_are_and_the_missing_ones_are_counted(listen):
    exits = listen()
    one, two, _ = FakeSocket.made
    for number in range(20):
        one.kernel.send(exit_record(16, 100 + number, 100, 9, sequence=number, last=number % 3 == 0, ac_minflt=number))
    two.kernel.send(exit_record(16, 200, 200, 8, sequence=7))
    two.kernel.send(exit_record(16, 201, 201, 8, sequence=9))
    found = exits.receive()
    assert sorted(found.ids.tolist()) == [
        *[[100 + number, 100, 9] for number in range(20)],
        *[[200, 200, 8], [201, 201, 8]],
    ]
    of_one = found.values[found.ids[:, 1] == 100]
    assert of_one[:, FIELDS.index("ac_minflt")].tolist() == list(range(20))
    assert (exits.records, exits.lost) == (22, 1)
    again = exits.receive()
    assert again.ids.shape == (0, 3) and again.values.shape == (0, len(FIELDS))


def test_a_full_buffer_is_counted_and_what_is_queued_still_comes(listen):
    exits = listen()
    FakeSocket.made[0].kernel.send(exit_record(16, 5, 5, 5))
    FakeSocket.made[0].errors.append(OSError(errno.ENOBUFS, "no room"))
    assert exits.receive().ids.tolist() == [[5, 5, 5]]
    assert exits.overflows == 1
    FakeSocket.made[0].kernel.send(exit_record(16, 5, 5, 5))
    FakeSocket.made[0].errors.append(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        exits.receive()


@pytest.mark.parametrize("other", [exit_record(15, 6, 6, 6, 1), exit_record(14, 6, 6, 6, 1), answer(16, {}, family=28)])
def test_records_of_different_forms_are_a_parse_error_and_those_after_them_are_read(listen, other):
    exits = listen()
    sender = FakeSocket.made[0].kernel
    sender.send(exit_record(16, 5, 5, 5))
    sender.send(other)
    with pytest.raises(ParseError, match="different forms"):
        exits.receive()
    sender.send(exit_record(16, 7, 7, 7, sequence=2))
    assert exits.receive().ids.tolist() == [[7, 7, 7]]


@pytest.mark.parametrize(
    ("code", "text"), [(errno.EPERM, "CAP_NET_ADMIN"), (errno.EINVAL, "containers"), (errno.ENOMEM, "CPU 1")]
)
def test_a_refusal_says_what_is_missing_and_leaves_no_socket_open(listen, code, text):
    FakeSocket.refusals = [0, code]
    with pytest.raises(BackendUnavailable, match=text):
        listen()
    assert len(FakeSocket.made) == 2 and all(one.closed for one in FakeSocket.made)


# On the running kernel


@pytest.fixture
def exits(root):
    try:
        made = ExitRecords(Host(), netlink.Inbox(512, 1024))
    except BackendUnavailable as err:
        skip_refused(str(err))
    yield made
    made.close()
    made.close()


def collect(exits, processes, threads=0):
    """The records of some processes' threads, once as many have come, by thread."""
    found = {}
    for _ in range(200):
        ids, values = exits.receive()
        for who, what in zip(ids.tolist(), values.tolist()):
            if who[1] in processes:
                found[who[0]] = (who, dict(zip(FIELDS, what)))
        if len(found) >= (threads or len(processes)):
            break
        time.sleep(0.01)
    return found


@pytest.mark.live
def test_live_the_ends_of_children_come_with_their_ids_and_their_cpu_time(exits):
    code = "import os,time\nwhile time.process_time() < {}: pass\nprint(time.process_time_ns())"
    started = []
    for seconds in (0.1, 0.3):
        command = [sys.executable, "-S", "-c", code.format(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            started.append((process.pid, int(process.stdout.read())))
    found = collect(exits, {pid for pid, _ in started})
    for pid, own_ns in started:
        ids, values = found[pid]
        assert ids == [pid, pid, os.getpid()]
        # the record is as of the last clock tick, and what follows the process's own last look is short
        assert values["cpu_run_virtual_total"] == pytest.approx(own_ns, abs=30e6)
        assert abs(values["ac_btime"] - time.time()) < 60
    assert exits.records >= 2


@pytest.mark.live
def test_live_threads_are_reported_one_by_one_as_they_end(exits):
    exits.receive()  # of earlier tests' threads
    tids = []

    def burn(seconds):
        tids.append(threading.get_native_id())
        while time.thread_time() < seconds:
            pass

    threads = [threading.Thread(target=burn, args=(seconds,)) for seconds in (0.1, 0.1, 0.1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {}
    for _ in range(20):  # threads of earlier tests may end meanwhile
        found.update(collect(exits, {os.getpid()}))
        if found.keys() >= set(tids):
            break
    for tid in tids:
        ids, values = found[tid]
        assert ids == [tid, os.getpid(), os.getppid()]
        assert values["cpu_run_virtual_total"] == pytest.approx(0.1e9, abs=30e6)


@pytest.mark.live
def test_live_more_ends_than_there_is_room_for_are_counted_as_lost(root, monkeypatch):
    monkeypatch.setattr(ExitRecords, "BUFFER_BYTES", (1, 1))
    try:
        exits = ExitRecords(Host(), netlink.Inbox(16, 1024))
    except BackendUnavailable as err:
        skip_refused(str(err))
    try:
        subprocess.run(["sh", "-c", "for i in $(seq 50); do (true) & done; wait"], check=True)
        exits.receive()
        for _ in range(20):  # on every CPU something ends that shows the gap
            subprocess.run(["sh", "-c", "for i in 1 2 3 4; do (true) & done; wait"], check=True)
            exits.receive()
        assert exits.overflows > 0 and exits.lost >= 10
    finally:
        exits.close()


@pytest.mark.live
def test_live_outside_of_the_first_pid_namespace_the_backend_goes_on_without_and_says_so_once(root):
    code = (
        "import logging, os\n"
        "from colmet.node.accounting.netlink_accounting import NetlinkAccounting\n"
        "from colmet.common.host.host import Host\n"
        "from colmet.node.jobs.job import Job\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        "backend = NetlinkAccounting(Host())\n"
        "for _ in range(2):\n"
        "    backend.open()\n"
        "    (row,) = backend.sample([Job(Host(), 0, pids=[os.getpid()])])\n"
        "    print(row.values['cpu_run_virtual_total'] > 0, list(backend.drain()), backend.fd)\n"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        skip_refused("no process namespace is allowed")
    assert done.stdout == "True [] -1\n" * 2, done.stderr
    assert done.stderr.count("what starts and ends between two samples is not counted") == 1
    assert "containers" in done.stderr
