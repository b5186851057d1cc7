from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.common.config import cli
from colmet.common.errors import ParseError
from colmet.common.host import capabilities
from colmet.common.host.host import Host
from colmet.node.backends.cgroup import SLOW_TICKS, CgroupBackend
from colmet.node.backends.jobproc import SCHEMA, JobprocBackend
from colmet.node.jobs.job import Job

CAPTURE = Path(__file__).parents[1] / "data/kernel/proc-linux-6.18"
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
IO = SCHEMA.names[:7]


class Tree:
    """A fake /proc of processes in one job."""

    def __init__(self, fake, every=True):
        self.fake = fake
        self.backend = JobprocBackend(fake.host, every)
        self.job = Job(fake.host, 1, "bob", ["/job"])
        self.pids = []
        self.began = {}  # by pid, in clock ticks

    def process(self, pid, io=0, ppid=1, pages=100, shared=20, shmem_kb=4, ticks=(0, 0, 0, 0), cpus="3", began_s=None):
        """Make or change a process; its I/O counters are io, io+1, ... It begins now, or `began_s` after the boot."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        began = int((now_s if began_s is None else began_s) * os.sysconf("SC_CLK_TCK"))
        began = self.began.setdefault(pid, began)
        if pid not in self.pids:
            self.pids.append(pid)
        counters = "".join(f"{name}: {io + n}\n" for n, name in enumerate(IO))
        self.fake.write(f"/proc/{pid}/io", counters)
        self.fake.write(f"/proc/{pid}/statm", f"{pages * 2} {pages} {shared} 1 0 5 0\n")
        times = " ".join(map(str, ticks))
        self.fake.write(
            f"/proc/{pid}/stat", f"{pid} (a ) b) S {ppid} 1 1 0 -1 4194560 1 0 0 0 {times} 20 0 1 0 {began} 8 7\n"
        )
        status = f"Name:\tx\nTgid:\t{pid}\nPPid:\t{ppid}\nVmRSS:\t1 kB\nRssShmem:\t     {shmem_kb} kB\n"
        status += f"Threads:\t1\nCpus_allowed:\t{cpus}\n"
        self.fake.write(f"/proc/{pid}/status", status)

    def end(self, pid):
        self.pids.remove(pid)
        del self.began[pid]
        shutil.rmtree(self.fake.path / f"proc/{pid}")

    def list(self):
        for name in ("cgroup.procs", "tasks"):
            self.fake.write(f"/job/{name}", "".join(f"{pid}\n" for pid in self.pids))
        self.job.forget_tasks()

    def sample(self):
        self.list()
        rows = list(self.backend.sample([self.job]))
        return rows[0].values if rows else None


@pytest.fixture
def tree(fake):
    made = Tree(fake)
    yield made
    made.backend.close()
    made.backend.close()
    assert fake.host.kept == 0, "every descriptor is given back"


def test_a_captured_process_reads_as_its_files_say(fake):
    for name in ("io", "stat", "status", "statm"):
        fake.write(f"/proc/40/{name}", (CAPTURE / f"pid_{name}").read_bytes())
    fake.write("/job/cgroup.procs", "40\n")
    backend = JobprocBackend(fake.host)
    (row,) = backend.sample([Job(fake.host, 1, "", ["/job"])])
    backend.close()
    lines = dict(line.split(":") for line in (CAPTURE / "pid_io").read_text().splitlines())
    assert [row.values[name] for name in IO] == [int(lines[name]) for name in IO]
    status = dict(line.split(":", 1) for line in (CAPTURE / "pid_status").read_text().splitlines())
    for name in ("VmSize", "VmRSS", "RssShmem"):
        assert f"{row.values[name]} kB" == status[name].strip()
    assert row.values["cpu_time"] == (7 + 15) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert row.values["cpus_allowed"] == 2


def test_io_and_memory_are_summed_over_processes(tree):
    tree.process(10, io=100, pages=100, shmem_kb=4)
    tree.process(11, io=1000, pages=50, shmem_kb=8)
    values = tree.sample()
    assert [values[name] for name in IO] == [1100 + 2 * n for n in range(7)]
    assert values["VmRSS"] == 150 * PAGE_KB
    assert values["VmSize"] == 300 * PAGE_KB
    assert values["RssShmem"] == 12
    assert values["RssAnon"] == (80 + 30) * PAGE_KB
    assert values["memory_used"] == (80 + 30 + 20) * PAGE_KB * 1024, "what they share counts once"
    assert values["processes"] == 2


def test_cpu_time_is_of_its_processes_and_of_children_that_they_waited_for(tree):
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    tree.process(10, ticks=(1, 2, 3, 4))
    tree.process(11, ppid=10, ticks=(20, 10, 0, 0))
    assert tree.sample()["cpu_time"] == 40 * tick_ns
    tree.end(11)
    tree.process(10, io=10, ticks=(1, 2, 23, 14))
    assert tree.sample()["cpu_time"] == 40 * tick_ns, "its parent has waited for it"
    tree.process(12, io=50, ppid=10, ticks=(5, 0, 0, 0))
    tree.sample()
    tree.end(12)
    assert tree.sample()["cpu_time"] == 45 * tick_ns, "nobody waits for it"


def test_cpus_are_those_of_all_processes_and_missing_when_unknown(tree):
    tree.process(10, cpus="00000001,00000003")
    tree.process(11, cpus="6")
    assert tree.sample()["cpus_allowed"] == 4
    tree.process(10, pages=101, shared=21, cpus="?")
    tree.process(11, pages=101, shared=21, cpus="")
    assert tree.sample()["cpus_allowed"] is None


def test_what_a_process_did_before_it_came_into_the_job_is_left_out(tree):
    tree.process(10, io=100, began_s=1)
    assert tree.sample()["rchar"] == 100, "it was there before the agent"
    tree.process(11, io=5000, began_s=1, ticks=(7, 0, 0, 0))
    values = tree.sample()
    assert (values["rchar"], values["cpu_time"]) == (100, 0)
    tree.process(11, io=5020, ticks=(9, 0, 0, 0))
    tree.process(12, io=30)
    values = tree.sample()
    assert values["rchar"] == 150, "one that began since the last look began in the job"
    assert values["cpu_time"] == 2 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    tree.end(11)
    assert tree.sample()["rchar"] == 150


def test_the_last_row_has_what_was_read_when_tasks_ended(tree):
    tree.process(10, io=100)
    tree.sample()
    tree.process(10, io=9000, ticks=(5, 0, 0, 0))
    tree.list()
    tree.backend.notice(tree.job)
    tree.end(10)
    tree.list()
    row = tree.backend.last(tree.job)
    assert (row.values["rchar"], row.values["wchar"]) == (9000, 9001)
    assert "VmRSS" not in row.values and "processes" not in row.values, "no present use is known"
    assert tree.backend.last(tree.job) is None, "once"
    tree.process(20, io=7)
    assert tree.sample()["rchar"] == 7, "the next job with its number begins with nothing"


def test_a_job_without_a_process_has_no_row_until_it_had_one(tree):
    assert tree.sample() is None
    tree.process(10, io=100)
    assert tree.sample()["rchar"] == 100
    tree.end(10)
    values = tree.sample()
    assert values["rchar"] == 100 and values["VmRSS"] == values["RssShmem"] == 0


def test_shared_memory_is_read_again_when_the_process_maps_or_shares_otherwise(tree):
    tree.process(10, shared=20, shmem_kb=4)
    assert tree.sample()["RssShmem"] == 4
    tree.process(10, shared=30, shmem_kb=44)
    assert tree.sample()["RssShmem"] == 44
    tree.process(10, pages=120, shared=30, shmem_kb=20)
    assert tree.sample()["RssShmem"] == 20


def test_a_child_that_its_parent_waited_for_is_not_counted_twice(tree):
    """The kernel adds its I/O to the parent's."""
    tree.process(10, io=1000)
    tree.process(11, io=500, ppid=10)
    assert tree.sample()["rchar"] == 1500
    tree.end(11)
    tree.process(10, io=1000 + 500 + 6 + 40)
    assert tree.sample()["rchar"] == 1546


def test_a_child_that_nobody_of_the_job_waited_for_stays_in_the_total(tree):
    tree.process(10, io=1000)
    tree.process(11, io=500, ppid=1)
    tree.process(12, io=300, ppid=10)  # its parent ignores SIGCHLD
    assert tree.sample()["rchar"] == 1800
    tree.end(11)
    tree.end(12)
    assert tree.sample()["rchar"] == 1800


def test_a_whole_line_of_descendants_that_ends_within_a_tick_is_counted_once(tree):
    tree.process(10, io=1000)
    tree.process(11, io=500, ppid=10)
    tree.process(12, io=200, ppid=11)
    assert tree.sample()["rchar"] == 1700
    tree.end(11)
    tree.end(12)
    tree.process(10, io=1000 + 700 + 12)
    assert tree.sample()["rchar"] == 1712


def test_an_orphan_is_followed_to_who_adopted_it(tree):
    tree.process(9, io=100)
    tree.process(10, io=1000, ppid=1)
    tree.process(11, io=500, ppid=10)
    tree.sample()
    tree.end(10)
    tree.process(11, io=500, ppid=9)  # 9 is a subreaper
    assert tree.sample()["rchar"] == 1600
    tree.sample()
    tree.end(11)
    tree.process(9, io=100 + 500 + 6)
    assert tree.sample()["rchar"] == 1606


def test_a_pid_that_is_used_again_is_a_new_process(tree, fake):
    tree.process(10, io=1000)
    assert tree.sample()["rchar"] == 1000
    tree.end(10)
    assert tree.sample()["rchar"] == 1000
    tree.process(10, io=5000)
    assert tree.sample()["rchar"] == 6000


def test_processes_that_cannot_be_read_make_io_missing_not_smaller(tree, monkeypatch, caplog):
    tree.process(10, io=1000)
    tree.process(11, io=1000)
    keep = tree.fake.host.keep

    def refuse(path):
        file = keep(path)

        class Refused:
            def __getattr__(self, name):
                return getattr(file, name)

            def read(self):
                if path == "/proc/11/io":
                    raise PermissionError(13, "Permission denied")
                return file.read()

        return Refused()

    monkeypatch.setattr(tree.fake.host, "keep", refuse)
    monkeypatch.setattr(capabilities, "held", lambda: 0)
    monkeypatch.setattr(capabilities, "hold_for_machine", lambda: True)
    monkeypatch.setattr(capabilities, "bounding", lambda: 0)
    for _ in range(2):
        values = tree.sample()
        assert all(values[name] is None for name in IO)
        assert values["VmRSS"] == 200 * PAGE_KB
    assert caplog.text.count("start the container with --cap-add SYS_PTRACE") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("io", "rchar: x\n"), ("io", ""), ("io", "wchar: 1\n"), ("statm", ""), ("statm", "a b c"), ("status", "")],
)
def test_a_file_of_another_form_is_a_parse_error_that_names_it(tree, fake, name, text):
    tree.process(10)
    fake.write(f"/proc/10/{name}", text)
    with pytest.raises(ParseError, match=f"/proc/10/{name}"):
        tree.sample()
    tree.process(10)
    assert tree.sample() is not None, "and the next sample is good"


def test_a_zombie_has_no_memory(tree, fake):
    tree.process(10, io=5)
    fake.write("/proc/10/statm", "0 0 0 0 0 0 0\n")
    fake.write("/proc/10/status", "Name:\tx\nState:\tZ (zombie)\nPPid:\t1\nThreads:\t1\n")
    values = tree.sample()
    assert values["VmRSS"] == values["RssShmem"] == values["VmSize"] == 0


# In place of cgroups


@pytest.fixture
def stand_in(fake):
    made = Tree(fake, every=False)
    made.counted = None
    made.backend.use_value("columns_counted", lambda job: made.counted)
    yield made
    made.backend.close()
    made.backend.close()
    assert fake.host.kept == 0, "every descriptor is given back"


def test_memory_and_tasks_of_a_job_that_no_cgroup_counts_are_measured_without_an_option(stand_in):
    assert stand_in.sample() is None
    stand_in.process(10, pages=100, shared=20)
    stand_in.process(11, pages=50, shared=30)
    values = stand_in.sample()
    assert values == {
        "VmRSS": 150 * PAGE_KB,
        "VmSize": 300 * PAGE_KB,
        "RssAnon": 100 * PAGE_KB,
        "memory_used": 130 * PAGE_KB * 1024,
        "processes": 2,
        "tasks": 2,
    }
    assert stand_in.fake.host.kept == 2, "one descriptor for each process"
    stand_in.end(10)
    assert stand_in.sample()["memory_used"] == 50 * PAGE_KB * 1024
    assert stand_in.fake.host.kept == 1
    stand_in.end(11)
    values = stand_in.sample()
    assert values["memory_used"] == values["tasks"] == values["processes"] == 0


def test_what_the_cgroups_of_a_job_count_is_left_to_them(stand_in):
    stand_in.process(10)
    stand_in.counted = frozenset(("memory_current", "pids_current"))
    assert stand_in.sample() is None
    assert stand_in.fake.host.kept == 0
    stand_in.counted = frozenset(("memory_current",))
    assert stand_in.sample() == {"processes": 1, "tasks": 1}
    stand_in.counted = frozenset(("pids_current",))
    assert stand_in.sample()["memory_used"] == 100 * PAGE_KB * 1024


def test_memory_that_cannot_be_read_is_missing_not_zero(stand_in, monkeypatch, caplog):
    stand_in.process(10)
    shutil.rmtree(stand_in.fake.path / "proc/10")  # hidepid=2, for a user other than root
    assert stand_in.sample() == {"processes": 1, "tasks": 1}
    stand_in.process(10)
    stand_in.process(11)
    opened = Host.open

    def refuse(host, path):
        if path == "/proc/11/statm":
            raise PermissionError(1, "Operation not permitted", path)
        return opened(host, path)

    monkeypatch.setattr(Host, "open", refuse)
    assert stand_in.sample() == {"processes": 2, "tasks": 2}
    assert stand_in.sample() == {"processes": 2, "tasks": 2}
    assert caplog.text.count("cannot read /proc/<pid>/statm of all processes") == 1


def test_the_cgroup_backend_says_what_a_job_s_cgroups_count(fake):
    fake.write("/proc/self/mounts", "c /c cgroup rw,cpuset 0 0\nm /m cgroup rw,memory 0 0\np /p cgroup rw,pids 0 0\n")
    for controller in "cmp":
        fake.write(f"/{controller}/oar/bob_1/cgroup.procs", "")
    fake.write("/p/oar/bob_1/pids.current", "3\n")
    job = Job(fake.host, 1, "bob", ["/c/oar/bob_1"])
    backend = CgroupBackend(fake.host)
    list(backend.sample([job]))
    counted = backend.job_value("columns_counted")
    assert counted(job) == {"pids_current"}
    fake.write("/m/oar/bob_1/memory.usage_in_bytes", "4096\n")
    for _ in range(SLOW_TICKS):
        list(backend.sample([job]))
    counted = backend.job_value("columns_counted")
    assert counted(job) == {"pids_current", "memory_current"}
    backend.close()


@pytest.mark.parametrize(("given", "expected"), [([], False), (["--enable-jobproc"], True)])
def test_it_stands_in_unless_it_is_asked_for(fake, given, expected):
    parser = cli.Parser()
    JobprocBackend.add_options(parser)
    backend = JobprocBackend.from_options(parser.parse_args(given), fake.host)
    assert backend.every is expected


# On the running kernel


@pytest.mark.live
def test_live_memory_without_a_memory_cgroup_is_what_was_allocated():
    """600 MB, and an interpreter of some MB, in one of two processes that share a mapping of 50 MB."""
    code = "import mmap,os,sys\nm = mmap.mmap(-1, 50_000_000)\nm[:] = bytes(50_000_000)\n"
    code += "if os.fork():\n    x = b'x' * 600_000_000\n    os.write(1, b'ready')\n"
    code += "else:\n    sum(m[n] for n in range(0, len(m), 4096))\n    os.write(1, b'ready')\nsys.stdin.read()"
    backend = JobprocBackend(Host(), every=False)
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(5) + process.stdout.read(5) == b"readyready"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            (row,) = backend.sample([Job(Host(), 1, pids=[process.pid, *map(int, children)])])
        finally:
            process.stdin.close()
    backend.close()
    assert row.values["memory_used"] == pytest.approx(650e6, rel=0.03)
    assert row.values["processes"] == row.values["tasks"] == 2


@pytest.fixture
def backend():
    made = JobprocBackend(Host())
    yield made
    made.close()


@pytest.mark.live
def test_live_eight_threads_that_write_5_mb_count_5_mb_and_memory_once(backend, tmp_path):
    code = f"import os,sys,threading\nfd = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_WRONLY)\n"
    code += "b = threading.Barrier(9)\nx = bytearray(30 << 20)\n"
    code += "def run():\n    os.write(fd, bytes(625000)); b.wait(); b.wait()\n"
    code += "for _ in range(8): threading.Thread(target=run, daemon=True).start()\n"
    code += "b.wait(); os.fsync(fd); os.write(1, b'ready'); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(5) == b"ready"
            (row,) = backend.sample([Job(Host(), 1, pids=[process.pid])])
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.kill()
    assert row.values["wchar"] == 5_000_000 + 5
    written = 5_000_000 if os.major(tmp_path.stat().st_dev) else 0  # nothing to a file system in memory
    assert written <= row.values["write_bytes"] < 5_000_000 + 65536
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "Threads:\t9\n" in status
    for name in ("VmRSS", "VmSize", "RssShmem"):
        assert row.values[name] == pytest.approx(int(lines[name].split()[0]), rel=0.02, abs=256), name


@pytest.mark.live
def test_live_a_child_that_is_waited_for_late_is_counted_once(backend, cgroups, tmp_path):
    """Meanwhile it is a zombie, which its cgroup does not list, and then its parent gets its I/O."""
    group = cgroups.job("bob_1")
    code = "import os,sys\nfd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\npid = os.fork()\n"
    code += "if pid == 0:\n    os.write(fd, bytes(3000000)); os.write(1, b'w'); sys.stdin.read(1); os._exit(0)\n"
    code += "os.read(int(sys.argv[2]), 1)\nos.waitpid(pid, 0)\nos.write(1, b'e')\nos.read(int(sys.argv[2]), 1)"
    read, write = os.pipe()
    command = [sys.executable, "-S", "-u", "-c", code, str(tmp_path / "f"), str(read)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [read]}
    process = group.start(*command, **options)
    job = Job(Host(), 1, cgroups=[str(group.path)])

    def written():
        job.forget_tasks()
        (row,) = backend.sample([job])
        return row.values["wchar"]

    assert process.stdout.read(1) == "w"
    before = written()
    assert 3_000_001 <= before < 3_000_030
    process.stdin.write("x")
    process.stdin.flush()
    while len(job.pids()) == 2:
        job.forget_tasks()
        time.sleep(0.01)
    assert written() == before, "ended, and not waited for"
    assert written() == before
    os.write(write, b"x")
    assert process.stdout.read(1) == "e"
    assert written() == before + 1, "waited for"
    assert written() == before + 1
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_process_that_moved_to_another_job_counts_there_alone(fake, first, second):
    tree = Tree(fake)
    jobs = {1: tree.job, 2: Job(fake.host, 2, "eve", ["/other"])}
    folders = {1: "/job", 2: "/other"}

    def listed(number, *pids):
        for name in ("cgroup.procs", "tasks"):
            fake.write(f"{folders[number]}/{name}", "".join(f"{pid}\n" for pid in pids))
        jobs[number].forget_tasks()

    def rows():
        return {one.job_id: one.values for one in tree.backend.sample([jobs[1], jobs[2]])}

    listed(1), listed(2)
    rows()
    tree.process(7, io=100, began_s=1.0)
    listed(first, 7), listed(second)
    before = rows()[first]["rchar"]
    listed(first), listed(second, 7)
    rows()
    tree.process(7, io=500, began_s=1.0)
    found = rows()
    assert found[first]["rchar"] == before and found[first]["VmRSS"] == 0
    assert found[second]["rchar"] == 400
