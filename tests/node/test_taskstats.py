from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host import processes
from colmet.common.host.host import Host
from colmet.node.accounting.netlink_accounting import NetlinkAccounting
from colmet.node.jobs.job import Job
from colmet.node.kernel import netlink, taskstats
from colmet.node.kernel.task_source import DELAY_FIELDS, DELAYACCT
from colmet.node.kernel.taskstats import FIELDS, RecordLayout, TaskstatsClient, decode_answers
from tests.support.place import skip_refused
from tests.support.taskstats_messages import answer, slots, structure

CAPTURE = Path(__file__).parents[1] / "data/kernel/taskstats-v16-linux-6.18.bin"


def test_the_structures_have_the_sizes_that_kernels_answer_with():
    sizes = {version: ctypes.sizeof(structure(version)) for version in (8, 14, 15, 16)}
    assert sizes == {8: 328, 14: 432, 15: 560, 16: 560}


@pytest.mark.parametrize("version", [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17])
def test_every_counter_is_found_in_every_version_of_the_structure(version):
    first = {name: 1000 + n for n, name in enumerate(FIELDS)}
    second = {name: (1 << 40) + n for n, name in enumerate(FIELDS)}
    second["ac_btime"] = 0xF0000001
    decoded = decode_answers(*slots(answer(version, first), answer(version, second, pid=7, sequence=1)))
    assert decoded.tolist() == [list(first.values()), list(second.values())]


def test_the_captured_answer_of_a_kernel_decodes_to_what_it_says():
    expected = json.loads(CAPTURE.with_suffix(".json").read_text())
    message = CAPTURE.read_bytes()
    decoded = decode_answers(*slots(message))
    assert dict(zip(FIELDS, decoded[0].tolist())) == expected["values"]
    offset, size = taskstats.stats_offset(message)
    stats = structure(16).from_buffer_copy(message, offset)
    assert size == ctypes.sizeof(stats) and stats.ac_pid == expected["pid"] and stats.ac_comm == b"sh"
    assert {name: getattr(stats, name) for name in FIELDS} == expected["values"]


def test_a_version_too_old_or_a_structure_too_short_is_a_parse_error():
    with pytest.raises(ParseError, match="version 6"):
        RecordLayout.of(6)
    message = bytearray(answer(8, {}))
    offset, _ = taskstats.stats_offset(bytes(message))
    for at, cut in ((20, 16), (offset - 4, 16), (0, 16)):  # shorten the nested lengths and the message
        width = 4 if at == 0 else 2
        length = int.from_bytes(message[at : at + width], "little") - cut
        message[at : at + width] = length.to_bytes(width, "little")
    with pytest.raises(ParseError, match="of 312 bytes"):
        decode_answers(*slots(bytes(message[:-16])))


def test_answers_of_different_forms_are_not_decoded_as_if_they_were_alike():
    with pytest.raises(ParseError, match="different forms"):
        decode_answers(*slots(answer(14, {}), answer(13, {})))
    with pytest.raises(ParseError, match="different forms"):
        decode_answers(*slots(answer(16, {}), answer(15, {})))


def test_an_answer_without_statistics_is_a_parse_error():
    with pytest.raises(ParseError):
        decode_answers(*slots(netlink.pack_request(27, 2, 0, netlink.pack_attribute(9, b"x" * 40))))


# On the running kernel


@pytest.fixture
def client(root):
    made = TaskstatsClient()
    yield made
    made.close()
    made.close()


@pytest.fixture
def backend(root, monkeypatch):
    monkeypatch.setattr(processes, "LOOK_S", 1.0)  # a busy machine may hold up a read for some milliseconds
    made = NetlinkAccounting(Host())
    made.open()
    yield made
    made.close()


class Tasks(Job):
    """A job that has the threads of some processes, now."""

    def __init__(self, *pids, job_id=1):
        super().__init__(Host(), job_id, pids=pids)

    def tids(self):
        self.forget_tasks()
        return super().tids()


def spawn(code):
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def process():
    """Start Python code that prints `ready` when it is done and then waits."""
    started = []

    def start(code):
        started.append(spawn(code + "\nimport sys\nprint('ready', flush=True)\nsys.stdin.read()"))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.live
def test_live_the_kernel_answers_for_each_task_in_order_and_leaves_ended_ones_out(client, process):
    ended = subprocess.Popen(["true"])
    ended.wait()
    one, two = process(""), process("")
    tids = np.array(sorted([one.pid, two.pid, ended.pid, os.getpid()]))
    found, values = client.query(tids)
    assert found.tolist() == sorted([one.pid, two.pid, os.getpid()])
    assert values.shape == (3, len(FIELDS))
    begin = values[found.tolist().index(one.pid), FIELDS.index("ac_btime")]
    assert abs(begin - time.time()) < 60
    found, values = client.query(np.empty(0, dtype=np.int64))
    assert len(found) == len(values) == 0
    assert client.lost == 0


@pytest.mark.live
def test_live_more_tasks_than_one_send_has_room_for(client, process):
    threads = "import threading,time\nthreading.stack_size(131072)\n"
    threads += "for _ in range(1300): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    running = process(threads)
    tids = np.array(sorted(map(int, os.listdir(f"/proc/{running.pid}/task"))))
    assert len(tids) > 2 * client.BATCH
    found, values = client.query(tids)
    assert found.tolist() == tids.tolist()
    assert len(values) == len(tids)


@pytest.mark.live
def test_live_lost_answers_are_asked_for_again_and_counted(client, process):
    client._socket.set_receive_buffer(1)  # the least there can be: room for a few answers only
    running = process(
        "import threading,time\nfor _ in range(30): threading.Thread(target=time.sleep,args=(60,),daemon=True).start()"
    )
    tids = np.array(sorted(map(int, os.listdir(f"/proc/{running.pid}/task"))))
    with pytest.raises(OSError, match="lost"):
        client.query(tids)
    assert client.lost > 0
    client._socket.set_receive_buffer(client.BUFFER_BYTES)
    found, _ = client.query(tids)
    assert found.tolist() == tids.tolist(), "what came late to a failed exchange does not disturb the next"


@pytest.mark.live
def test_live_cpu_time_equals_what_the_process_says_of_itself(backend, process):
    running = process("import time\nwhile time.process_time() < 0.5: pass")
    stat = Path(f"/proc/{running.pid}/schedstat").read_text().split()
    (row,) = backend.sample([Tasks(running.pid)])
    assert row.values["cpu_run_virtual_total"] == pytest.approx(int(stat[0]), rel=0.01)
    # counted by clock ticks on many kernels, which go astray where a hypervisor steals the CPU
    assert 0 < row.values["cpu_run_real_total"] < 2e9
    assert row.values["ac_utime"] + row.values["ac_stime"] == pytest.approx(
        row.values["cpu_run_real_total"] / 1e3, 0.01
    )


@pytest.mark.live
def test_live_faults_switches_and_io_equal_the_kernels_other_interfaces(backend, process, tmp_path):
    running = process(
        f"import os\nx = bytearray(20 << 20)\nfd = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "for _ in range(4): os.write(fd, bytes(1 << 20))\nos.fsync(fd)"
    )
    time.sleep(0.1)
    (row,) = backend.sample([Tasks(running.pid)])
    stat = Path(f"/proc/{running.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert row.values["ac_minflt"] == int(stat[7]) > 5000
    assert row.values["ac_majflt"] == int(stat[9])
    status = Path(f"/proc/{running.pid}/status").read_text()
    assert f"voluntary_ctxt_switches:\t{row.values['nvcsw']}\n" in status
    assert f"nonvoluntary_ctxt_switches:\t{row.values['nivcsw']}\n" in status
    io = dict(line.split(": ") for line in Path(f"/proc/{running.pid}/io").read_text().splitlines())
    # the kernel rounds these down to whole KiB
    assert row.values["write_char"] == int(io["wchar"]) // 1024 * 1024 >= 4 << 20
    assert row.values["read_char"] == int(io["rchar"]) // 1024 * 1024
    assert row.values["write_bytes"] == int(io["write_bytes"]) // 1024 * 1024
    assert row.values["read_bytes"] == int(io["read_bytes"]) // 1024 * 1024


@pytest.mark.live
def test_live_totals_do_not_go_down_when_another_thread_calls_exec(backend):
    """It gets the number and the start time of the first thread, and brings its own, smaller counters."""
    code = "import os,sys,threading,time\nwhile time.process_time() < 0.5: pass\n"
    code += (
        "def run():\n    print('ready', flush=True)\n    sys.stdin.read(1)\n    os.execvp('sleep', ['sleep', '60'])\n"
    )
    code += "threading.Thread(target=run).start()\ntime.sleep(60)"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            job = Tasks(process.pid)
            (before,) = backend.sample([job])
            assert len(job.tids()) == 2
            process.stdin.write(b"x")
            process.stdin.flush()
            name = ""
            while name != "sleep\n":
                with contextlib.suppress(ProcessLookupError):  # in the middle of the exec nobody has its number
                    name = Path(f"/proc/{process.pid}/comm").read_text()
                time.sleep(0.01)
            (after,) = backend.sample([job])
        finally:
            process.kill()
    field = "cpu_run_virtual_total"
    # what it had used is there once, not twice
    assert 0.5e9 <= before.values[field] <= after.values[field] < before.values[field] + 0.4e9


@pytest.mark.live
def test_live_cpu_time_of_a_job_equals_its_cgroups(backend, cgroups):
    group = cgroups.job("bob_1")
    burn = "import time\nwhile time.process_time() < 0.7: pass\nprint('ready', flush=True)\ntime.sleep(60)"
    processes = [group.start(sys.executable, "-S", "-c", burn, stdout=subprocess.PIPE) for _ in range(2)]
    for one in processes:
        one.stdout.readline()
    job = Job(Host(), 1, cgroups=[str(group.path)])
    (row,) = backend.sample([job])
    # a process is made outside of the group, and enters it then
    assert row.values["cpu_run_virtual_total"] / 1e9 == pytest.approx(group.cpu_s(), rel=0.02, abs=0.08)
    assert 0 < row.values["cpu_run_real_total"] / 1e9 < 3 * group.cpu_s()


@pytest.mark.live
def test_live_of_short_processes_that_no_tick_saw_no_more_is_counted_than_their_cgroup_counts(backend, cgroups):
    """Nested shells, background processes and threads, of which only the first shell is ever listed."""
    time.sleep(0.05)  # who begins in the same clock tick as the backend may have begun before it
    group = cgroups.job("bob_1")
    burn = "import threading, time\nt = threading.Thread(target=lambda: sum(range(3000000)))\nt.start()\nt.join()"
    script = (
        "read go; i=0; while [ $i -lt 60 ]; do i=$((i+1)); (j=0; while [ $j -lt 2000 ]; do j=$((j+1)); done) & "
        f"sh -c '(true); /bin/true'; done; wait; {sys.executable} -S -c '{burn}'; echo ready; read go"
    )
    process = group.start("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job = Job(Host(), 1, cgroups=[str(group.path)])
    backend.sample([job])
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    for _ in range(2):
        job.forget_tasks()
        (row,) = backend.sample([job])
    used = group.cpu_s()
    counted = backend.counters()
    assert counted["exits_known"] + counted["exits_by_fork"] + counted["exits_by_parent"] >= 4 * 60 + 2
    assert counted["exit_records_lost"] == 0
    # a record lacks what its task used since the last clock tick, and after it
    assert 0.1 * used < row.values["cpu_total"] / 1e9 < 1.01 * used


@pytest.fixture
def delayacct(root):
    """Set kernel.task_delayacct for a test."""
    path = Path(DELAYACCT)
    if not path.exists():
        skip_refused("no kernel.task_delayacct")
    before = path.read_text()
    yield path.write_text
    path.write_text(before)


@pytest.mark.live
def test_live_delays_are_missing_while_the_kernel_does_not_count_them_and_that_is_said_once(
    backend, process, delayacct, caplog
):
    delayacct("0")
    job = Tasks(process("").pid)
    for _ in range(2):
        (row,) = backend.sample([job])
        assert {name for name, value in row.values.items() if value is None} == DELAY_FIELDS
    assert caplog.text.count("sysctl kernel.task_delayacct=1") == 1


@pytest.mark.live
def test_live_block_io_delays_are_counted_once_the_switch_is_on(backend, process, delayacct, tmp_path):
    delayacct("1")
    code = f"import os\nfd = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_RDWR)\n"
    code += "for _ in range(20): os.write(fd, bytes(1 << 20)); os.fsync(fd)"
    for job_id in range(1, 11):
        (row,) = backend.sample([Tasks(process(code).pid, job_id=job_id)])
        assert not [name for name, value in row.values.items() if value is None]
        if not backend._waits.dropped:
            assert (row.values["blkio_count"] > 0) == (row.values["blkio_delay_total"] > 0)
            return
        backend._waits.dropped = 0  # this kernel has given the task a wait that it cannot have had: the next one
    skip_refused("the kernel counts impossible waits")


@pytest.mark.live
def test_live_without_the_right_the_backend_says_which_one(root):
    code = (
        "import os; os.setuid(65534)\n"
        "from colmet.node.backends.taskstats import TaskstatsBackend\n"
        "from colmet.common.errors import BackendUnavailable\n"
        "from colmet.common.host.host import Host\n"
        "try: TaskstatsBackend(Host()).open()\n"
        "except BackendUnavailable as err: print(err)\n"
    )
    # imports come first: an unprivileged user may not read where they lie
    code = "import colmet.node.backends.taskstats, colmet.common.host.host\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CAP_NET_ADMIN" in done.stdout and "root" in done.stdout


# -- netlink --


@pytest.mark.parametrize("length", [0, 3, 200])
def test_a_length_that_does_not_fit_is_a_parse_error(length):
    with pytest.raises(ParseError):
        list(netlink.attributes(struct.pack("=HH", length, 1) + b"abcd"))
    with pytest.raises(ParseError):
        list(netlink.messages(struct.pack("=IHHII", length, 1, 0, 0, 0) + b"abcd"))


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data):
    for read in (netlink.attributes, netlink.messages):
        with contextlib.suppress(ParseError):
            list(read(data))


def test_errors_carry_their_errno():
    assert netlink.error_code(struct.pack("=i", -errno.ESRCH) + b"\0" * 16) == errno.ESRCH
    assert netlink.error_code(struct.pack("=i", 0)) == 0
    with pytest.raises(ParseError):
        netlink.error_code(b"\0")


@pytest.mark.live
def test_live_the_kernel_names_its_families():
    socket = netlink.GenericSocket()
    try:
        assert socket.family("nlctrl") == netlink.GENL_ID_CTRL
        with pytest.raises(BackendUnavailable, match="no NOSUCH interface"):
            socket.family("NOSUCH")
    finally:
        socket.close()
        socket.close()


@pytest.mark.live
def test_live_many_answers_are_taken_by_one_call():
    socket = netlink.GenericSocket()
    inbox = netlink.Inbox(8, 512)
    try:
        name = netlink.pack_attribute(netlink.CTRL_ATTR_FAMILY_NAME, b"nlctrl\0")
        requests = b"".join(
            netlink.pack_request(netlink.GENL_ID_CTRL, netlink.CTRL_CMD_GETFAMILY, n, name) for n in range(5)
        )
        socket.send(requests)
        lengths = socket.receive_many(inbox, 8)
        assert len(lengths) == 5
        for n, length in enumerate(lengths):
            ((kind, sequence, _),) = netlink.messages(inbox.slots[n, :length].tobytes())
            assert (kind, sequence) == (netlink.GENL_ID_CTRL, n)
        assert len(socket.receive_many(inbox, 8)) == 0, "none is there: it does not wait"
    finally:
        socket.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        inbox.fill(-1, 1)
