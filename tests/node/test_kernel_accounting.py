"""The kernel's sums by job, live: against the figures of each job's cgroup, and against netlink's answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.node.backends.taskstats import TaskstatsBackend
from colmet.node.jobs.directory_keys import RootDirectory, directory_key
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.kernel.job_accounting import JobAccounting, remove_pins
from colmet.node.kernel.taskstats import FIELDS, TaskstatsClient
from dev.live import mounts
from tests.support.place import cannot_run, skip_refused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.live

BURN = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass\n"
# Writes and burns before and after it reads a line: where each part counts is known.
TWO_PARTS = """
import os, sys, time
def work(seconds, size):
    until = time.process_time() + seconds
    with open(sys.argv[1], "wb", buffering=0) as file:
        file.write(bytes(size))
    while time.process_time() < until: pass
work(0.2, 3 << 20)
print("half", flush=True)
sys.stdin.readline()
work(0.1, 1 << 20)
"""

STOPPED = """
import os, signal, threading, time
open("/dev/null", "w").write("x" * 5000)
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,)).start()
sum(range(10**6))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


class Node:
    """Jobs below one root of cgroup v1, and the backend that counts them."""

    def __init__(self, root, source="kernel", state=""):
        self.root = root
        self.jobs = JobSource(Host(), [str(root.path)], compile_patterns([DEFAULT_PATTERN]))
        self.backend = TaskstatsBackend(Host(), state, source)
        self.backend.use_jobs(self.jobs)
        self.backend.open()
        self.ended = {}

    def tick(self):
        """One tick of an agent; the rows of live jobs by id. Last rows are in `ended`."""
        scan = self.jobs.scan()
        for job in scan.changed:
            self.backend.notice(job)
        for job in scan.ended:
            self.ended.setdefault(job.id, []).append(self.backend.last(job).values)
        return {sample.job_id: sample.values for sample in self.backend.sample(scan.jobs)}

    def last_row(self, number):
        """The last row of a job whose directory is removed."""
        wait_for(lambda: self.tick() is not None and number in self.ended)
        (row,) = self.ended.pop(number)
        return row

    def close(self):
        self.backend.close()
        self.jobs.close()


@pytest.fixture(scope="module")
def kernel():
    """Where the kernel takes the programs; elsewhere the tests skip with its reason."""
    try:
        JobAccounting(["unified"], "").close()
    except BackendUnavailable as err:
        if "lib_bpf.so" in str(err):
            cannot_run(str(err))
        if "libbpf.so.1" in str(err):
            pytest.skip(str(err))  # Debian 11 has none: .ci/run runs this file on its own machine, too
        skip_refused(str(err))


@pytest.fixture
def node(kernel, cgroups):
    made = Node(cgroups)
    yield made
    made.close()


def remove(job):
    """End a job, and remove its directories as the batch system does."""
    job.close()
    for path in dict.fromkeys(job.directories.values()):
        wait_for(lambda path=path: not (path / "tasks").read_text())
        path.rmdir()


def run(job, *command, **options):
    process = job.start(*command, **options)
    process.wait()
    return process


@pytest.mark.parametrize("milliseconds", [5, 50])
def test_short_jobs_have_a_row_with_all_of_their_cpu_time(node, milliseconds):
    node.tick()
    used, number = {}, 100
    for number in range(100, 110):
        job = node.root.job(f"bob_{number}")
        run(job, sys.executable, "-S", "-c", BURN, str(milliseconds / 1000))
        used[number] = job.cpu_s()
        remove(job)
    for number, seconds in used.items():
        row = node.last_row(number)
        assert row["cpu_total"] / 1e9 == pytest.approx(seconds, rel=0.01)
        assert row["tasks_ended"] == 1
    assert node.tick() == {}


THREADS = """
import threading
for _ in range(500):
    thread = threading.Thread(target=sum, args=(range(2000),))
    thread.start()
    thread.join()
"""
UNREAPED = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(100):
    os.fork() or os._exit(0)
"""
WORKLOADS = {  # command, and how many tasks it has
    "children": (["/bin/sh", "-c", "for i in $(seq 300); do /bin/true; done"], 302),
    "pipelines": (["/bin/sh", "-c", "for i in $(seq 50); do seq 2000 | cat | cat >/dev/null; done"], 152),
    "threads": ([sys.executable, "-S", "-c", THREADS], 501),
    "not waited for": ([sys.executable, "-S", "-c", UNREAPED], 101),
    "daemons": (["/bin/sh", "-c", "for i in 1 2 3; do (seq 300000 >/dev/null &) ; done; sleep 1"], None),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_tasks_of_a_job_are_counted(node, name):
    command, tasks = WORKLOADS[name]
    job = node.root.job("bob_7")
    node.tick()
    run(job, *command)
    used = job.cpu_s()
    remove(job)
    row = node.last_row(7)
    assert row["cpu_total"] / 1e9 == pytest.approx(used, rel=0.005)
    if tasks is not None:
        assert row["tasks_ended"] == tasks


def test_what_a_task_used_elsewhere_is_not_its_jobs(node, tmp_path):
    """It works outside, in a job, and in another one."""
    first, second = node.root.job("bob_1"), node.root.job("bob_2")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = first.start(sys.executable, "-S", "-c", TWO_PARTS, tmp_path / "file", **pipes)
    assert process.stdout.readline() == "half\n"
    node.tick()
    for path in second.directories.values():
        (path / "cgroup.procs").write_text(str(process.pid))
    process.communicate("\n")
    used = [first.cpu_s(), second.cpu_s()]
    remove(first)
    remove(second)
    rows = [node.last_row(1), node.last_row(2)]
    assert [row["cpu_total"] / 1e9 for row in rows] == [pytest.approx(seconds, rel=0.01) for seconds in used]
    assert rows[1]["write_char"] == 1 << 20
    assert (3 << 20) <= rows[0]["write_char"] < (3 << 20) + 4096
    assert [row["tasks_ended"] for row in rows] == [0, 1]


def test_a_directory_made_again_is_another_run(node):
    node.tick()
    rows = []
    for seconds in (0.2, 0.05):
        job = node.root.job("bob_5")
        run(job, sys.executable, "-S", "-c", BURN, str(seconds))
        rows.append(job.cpu_s())
        remove(job)
    wait_for(lambda: node.tick() is not None and len(node.ended.get(5, ())) == 2)
    assert [row["cpu_total"] / 1e9 for row in node.ended[5]] == [pytest.approx(used, rel=0.01) for used in rows]


def test_jobs_that_were_there_before_are_counted(kernel, cgroups):
    job = cgroups.job("bob_3")
    process = job.start("sleep", "60")
    node = Node(cgroups)
    try:
        row = node.tick()[3]
        assert row["ac_etime"] > 0 and abs(row["ac_btime"] - time.time()) < 30
        assert row["tasks_ended"] == 0
        process.kill()
        process.wait()
        remove(job)
        assert node.last_row(3)["tasks_ended"] == 1
    finally:
        node.close()


@pytest.mark.parametrize(
    ("directories", "number"),
    [
        (("oar.slice", "oar-u1000.slice", "oar-u1000-j42.slice", "oar-u1000-j43.slice"), 42),
        (("system.slice", "test_slurmstepd.scope", "job_44", "step_0", "user", "task_0"), 44),
    ],
)
def test_layouts_of_cgroup_v2(kernel, root, directories, number):
    """Directories inside a job's are of that job, whatever their names are."""
    top = next((Path(point) for point, _ in mounts("cgroup2")), None)
    if top is None:
        skip_refused("no cgroup v2 is mounted")
    made = []
    with contextlib.ExitStack() as stack:
        jobs = stack.enter_context(contextlib.closing(JobSource(Host(), [], compile_patterns([DEFAULT_PATTERN]))))
        backend = TaskstatsBackend(Host(), "", "kernel")
        backend.use_jobs(jobs)
        stack.callback(backend.close)
        path = top
        for name in directories:
            path /= name
            if not path.is_dir():
                path.mkdir()
                made.append(path)
            if path.name in ("oar.slice", "test_slurmstepd.scope"):  # where jobs are made
                jobs.scan()
                backend.open()
                backend.sample(jobs.scan().jobs)
        try:
            script = f"echo $$ >{path}/cgroup.procs; exec seq 300000"
            subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL, check=True)
            job = next(one for one in made if str(number) in one.name)
            used_us = int((job / "cpu.stat").read_text().split()[1])
        finally:
            for one in reversed(made):
                wait_for(lambda one=one: not (one / "cgroup.procs").read_text())
                one.rmdir()
        rows = {}

        def ended():
            scan = jobs.scan()
            rows.update({one.id: backend.last(one).values for one in scan.ended if one.id == number})
            backend.sample(scan.jobs)
            return number in rows

        wait_for(ended)
        assert rows[number]["cpu_total"] / 1e3 == pytest.approx(used_us, rel=0.02)


def test_columns_equal_netlinks_answers(node):
    """Of stopped tasks, all counters of struct taskstats are known from two sources."""
    job = node.root.job("bob_9")
    process = job.start(sys.executable, "-S", "-c", STOPPED, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    time.sleep(0.3)
    client = TaskstatsClient()
    try:
        tids = np.array(sorted(map(int, os.listdir(f"/proc/{process.pid}/task"))))
        _, answers = client.query(tids)
        # the process was made in the shell that entered the job, and counts from there: another start counts all
        other = Node(node.root)
        row = other.tick()[9]
        other.close()
    finally:
        client.close()
    answer = dict(zip(FIELDS, answers.sum(axis=0).tolist()))
    cut = {
        "read_char",
        "write_char",
        "read_syscalls",
        "write_syscalls",
        "coremem",
        "virtmem",
    }  # of each task in netlink
    for name, value in answer.items():
        if name in cut:
            assert 0 <= row[name] - value < 1024 * len(tids), name
        elif name not in ("ac_btime", "ac_etime") and row[name] is not None:
            assert row[name] == value, name
    process.send_signal(signal.SIGCONT)


def test_full_maps_are_counted_as_losses(kernel, cgroups):
    accounting = JobAccounting(["cpuset"], "", max_jobs=2, max_tasks=4)
    try:
        accounting.set_roots([RootDirectory(directory_key("cpuset", os.stat(cgroups.path).st_ino), 1)])
        jobs = [cgroups.job(f"bob_{number}") for number in range(3)]
        run(jobs[0], "/bin/sh", "-c", "for i in 1 2 3 4 5 6; do sleep 0.1 & done; wait")
        rows = accounting.read()
        losses = accounting.losses()
        assert {row["name"].decode() for row in rows} < {job.path.name for job in jobs}
        assert losses["jobs_full"] >= 1 and losses["tasks_full"] >= 1
        assert rows[rows["name"] == b"bob_0"]["ended"][0] == 7
    finally:
        accounting.close()


def test_pinned_programs_count_on_over_kill_9_of_the_agent(kernel, cgroups, tmp_path, monkeypatch):
    pins = "/sys/fs/bpf/colmet-test"
    if not os.path.ismount("/sys/fs/bpf"):
        skip_refused("no bpffs is mounted at /sys/fs/bpf")
    monkeypatch.setenv("COLMET_PINS", pins)
    code = (
        "import json, os, sys, types\nfrom pathlib import Path\nfrom tests.node.test_kernel_accounting import Node\n"
        "node = Node(types.SimpleNamespace(path=Path(sys.argv[1])))\n"
        "for line in sys.stdin: print(json.dumps(node.tick().get(6)), flush=True)\n"
    )

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", code, str(cgroups.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def row_of(agent):
        agent.stdin.write("\n")
        agent.stdin.flush()
        return json.loads(agent.stdout.readline())

    try:
        job = cgroups.job("bob_6")
        agent = start()
        wait_for(lambda: row_of(agent) is None)  # it knows the root now
        storm = job.start("/bin/sh", "-c", "for i in $(seq 1500); do /bin/true; done")
        for _ in range(3):
            row_of(agent)
            agent.kill()
            agent.communicate()
            time.sleep(0.3)
            agent = start()
        storm.wait()
        # the last counts of a task come once the kernel frees it
        wait_for(lambda: (row_of(agent) or {}).get("cpu_total", 0) / 1e9 > 0.995 * job.cpu_s())
        row = row_of(agent)
        assert row["cpu_total"] / 1e9 == pytest.approx(job.cpu_s(), rel=0.005)
        assert row["tasks_ended"] == 1502
    finally:
        agent.kill()
        agent.communicate()
        remove_pins(pins)


def test_without_pins_totals_do_not_fall_over_a_kill(kernel, cgroups, tmp_path, root):
    """What ends while nobody counts is lost; what was counted is not."""
    os.chmod(tmp_path, 0o700)
    job = cgroups.job("bob_6")
    live = job.start("sleep", "60")
    node = Node(cgroups, state=str(tmp_path))
    node.tick()
    run(job, sys.executable, "-S", "-c", BURN, "0.2")
    wait_for(lambda: node.tick()[6]["tasks_ended"] == 1)
    before = node.tick()[6]
    node.backend._accounting._accounting.close()  # as a kill does
    node.backend._accounting._accounting = None
    node.close()
    with contextlib.closing(Node(cgroups, state=str(tmp_path))) as again:
        assert again.tick()[6]["cpu_total"] >= before["cpu_total"]
        run(job, sys.executable, "-S", "-c", BURN, "0.2")
        wait_for(lambda: again.tick()[6]["tasks_ended"] == 2)
        assert again.tick()[6]["cpu_total"] / 1e9 == pytest.approx(job.cpu_s(), rel=0.03)
    live.kill()


def test_two_agents_have_programs_of_their_own(kernel, cgroups, monkeypatch):
    pins = "/sys/fs/bpf/colmet-test-two"
    if not os.path.ismount("/sys/fs/bpf"):
        skip_refused("no bpffs is mounted at /sys/fs/bpf")
    monkeypatch.setenv("COLMET_PINS", pins)
    job = cgroups.job("bob_6")
    try:
        with contextlib.closing(Node(cgroups)) as first, contextlib.closing(Node(cgroups)) as second:
            first.tick(), second.tick()
            run(job, "/bin/true")
            wait_for(lambda: [node.tick()[6]["tasks_ended"] for node in (first, second)] == [1, 1])
        with contextlib.closing(Node(cgroups)) as third:
            assert third.tick()[6]["tasks_ended"] == 1  # it took the first one's over
    finally:
        remove_pins(pins)


def test_where_the_kernel_refuses_netlink_counts_and_the_log_says_why(cgroups, monkeypatch, caplog):
    def refuse(*_):
        raise BackendUnavailable("this kernel has no BTF")

    monkeypatch.setattr("colmet.node.accounting.kernel_accounting.JobAccounting", refuse)
    with contextlib.closing(Node(cgroups, "auto")) as node:
        assert node.backend.counters().get("exit_records_on") == 1
        assert "this kernel has no BTF" in caplog.text
    with pytest.raises(BackendUnavailable, match="no BTF"):
        Node(cgroups, "kernel")


def test_without_rights_the_message_names_them(kernel, other_user):
    code = (
        "import os\nfrom colmet.node.kernel.job_accounting import JobAccounting\n"
        "os.setuid(65534)\ntry: JobAccounting(['unified'], '')\nexcept Exception as err: print(err)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CAP_BPF" in done.stdout and "CAP_PERFMON" in done.stdout


HOLDING = "held = bytearray(40 << 20)\nprint('ready', flush=True)\nimport sys; sys.stdin.readline()\n"


def test_memory_and_tasks_equal_those_of_proc(node):
    job = node.root.job("bob_4")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [job.start(sys.executable, "-S", "-c", HOLDING, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    node.tick()
    (found,) = [one for one in node.jobs.scan().jobs if one.id == 4]
    values = node.backend.job_value("memory_and_tasks")(found)
    statuses = [Path(f"/proc/{process.pid}/status").read_text() for process in processes]

    def total(name):
        return sum(int(status.split(f"\n{name}:")[1].split()[0]) for status in statuses)

    assert (values["processes"], values["tasks"]) == (2, 2)
    assert values["VmSize"] == total("VmSize")
    # CPUs add their parts of the counters in batches of 32 pages and more
    for name in ("VmRSS", "RssAnon"):
        assert values[name] == pytest.approx(total(name), abs=2 * 4 * 64 * os.cpu_count()), name
    assert values["RssAnon"] * 1024 < values["memory_used"] < (values["RssAnon"] + values["VmRSS"]) * 1024


def test_kept_totals_go_on_over_every_start(kernel, cgroups, tmp_path, root):
    """What a first start has added stays with the second one, and netlink's totals with the kernel's."""
    os.chmod(tmp_path, 0o700)
    job = cgroups.job("bob_6")
    with contextlib.closing(Node(cgroups, "netlink", state=str(tmp_path))) as node:
        live = job.start(sys.executable, "-S", "-c", f"{BURN}time.sleep(60)", "0.1")
        wait_for(lambda: node.tick()[6]["cpu_total"] > 5e7)
        before = node.tick()[6]["cpu_total"]
    assert before > 5e7
    for _ in range(3):
        with contextlib.closing(Node(cgroups, state=str(tmp_path))) as node:
            now = node.tick()[6]["cpu_total"]
            assert now >= before
            before = now
    with contextlib.closing(Node(cgroups, state=str(tmp_path))):
        pass  # it ends before its first tick
    with contextlib.closing(Node(cgroups, state=str(tmp_path))) as node:
        assert node.tick()[6]["cpu_total"] >= before
    live.kill()
