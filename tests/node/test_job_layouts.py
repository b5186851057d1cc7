"""Jobs in every layout: found by themselves in made-up trees, and in the running kernel's hierarchies."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest

from colmet.common.host.host import Host
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import FULL_WALK_S, MAX_DEPTH, MAX_GROUPS, JobScan, JobSource
from tests.support.machine import CgroupRoot
from tests.support.place import skip_refused
from tests.support.waiting import Clock

HYBRID = "".join(
    f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in ("cpuset", "cpuacct", "memory", "freezer")
)
HYBRID += "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
PURE_V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
SCOPE = "/sys/fs/cgroup/system.slice/slurmstepd.scope"
SLUID = "s5K1KKYAYG5D00"


class Machine:
    """A fake root with cgroup mounts, and the source that looks at it."""

    def __init__(self, fake):
        self.fake = fake
        self.clock = Clock()
        self.sources = []

    def mount(self, mounts):
        self.fake.write("/proc/self/mounts", mounts)
        for line in mounts.splitlines():
            (self.fake.path / line.split()[1].lstrip("/")).mkdir(parents=True, exist_ok=True)

    def group(self, path, pids=(), unified=True):
        text = "".join(f"{pid}\n" for pid in pids)
        self.fake.write(f"{path}/cgroup.procs", text)
        self.fake.write(f"{path}/{'cgroup.threads' if unified else 'tasks'}", text)

    def remove(self, path):
        """As the kernel removes a cgroup: files need not be removed first."""
        full = self.fake.path / path.lstrip("/")
        for file in full.iterdir():
            file.unlink()
        full.rmdir()

    def process(self, pid, command=b"", uid=0, environment=b""):
        self.fake.write(f"/proc/{pid}/cmdline", command)
        self.fake.write(f"/proc/{pid}/status", f"Name:\tx\nTgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\n")
        self.fake.write(f"/proc/{pid}/environ", environment)

    def source(self, *roots, patterns=(DEFAULT_PATTERN,), unit=None):
        source = JobSource(self.fake.host, roots, compile_patterns(patterns), unit, self.clock)
        self.sources.append(source)
        return source

    def full_look(self, source):
        return self.full_scan(source).jobs

    def full_scan(self, source):
        self.clock.now += FULL_WALK_S
        return source.scan()


@pytest.fixture
def machine(fake):
    made = Machine(fake)
    yield made
    for source in made.sources:
        source.close()
        source.close()
    assert fake.host.kept == 0, "every descriptor was given back"


def ids(jobs):
    return [(job.id, job.user) for job in jobs]


def state_of(source, name):
    return [(place.path, place.state) for place in source.describe() if place.name == name]


def test_oar_2_jobs_are_found_in_the_cpuset_hierarchy_only(machine):
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/a_b_42", [5, 6], unified=False)
    machine.fake.mkdir("/sys/fs/cgroup/cpuacct/oar/a_b_42")
    machine.fake.mkdir("/sys/fs/cgroup/cpuacct/oar/old_1")
    source = machine.source()
    (job,) = source.scan().jobs
    assert (job.id, job.user) == (42, "a_b")
    assert job.tids() == job.pids() == [5, 6]
    assert job.directory("cpuacct") == "/sys/fs/cgroup/cpuacct/oar/a_b_42"
    assert job.directory("memory") is None and job.directory("perf_event") is None and job.directory("unified") is None
    assert state_of(source, "oar2") == [("/sys/fs/cgroup/cpuset/oar", "found, 1 job")]
    assert state_of(source, "oar3") == [("/sys/fs/cgroup/unified/oar.slice", "not here")]


def test_oar_3_jobs_are_their_shallowest_directories_with_all_that_is_inside(machine, caplog):
    machine.mount(PURE_V2)
    slice_ = "/sys/fs/cgroup/oar.slice/oar-u1000.slice"
    machine.group(f"{slice_}/oar-u1000-j6095.slice")
    machine.group(f"{slice_}/oar-u1000-j6095.slice/oar-u1000-j6095-1.scope", [11])
    machine.group(f"{slice_}/oar-u1000-j6095.slice/oar-u1000-j7777-1.scope", [12])
    machine.group(f"{slice_}/oar-u1000-j6095-2.scope", [13])
    machine.group(f"{slice_}/oar-u1000-j60.slice", [20])
    source = machine.source()
    small, job = source.scan().jobs
    assert ids([small, job]) == [(60, "1000"), (6095, "1000")]
    assert job.tids() == job.pids() == [11, 12, 13] and small.tids() == [20]
    assert len(job.cgroups) == 4
    assert small.directory("unified") == f"{slice_}/oar-u1000-j60.slice"
    assert job.directory("unified") is None, "in none of the two is all of it"
    assert caplog.text.count("several cgroups side by side") == 1
    assert state_of(source, "oar3") == [("/sys/fs/cgroup/oar.slice", "found, 2 jobs")]


def captured_slurm(machine, controllers):
    """The tree of a real Slurm 22.05, in some of its hierarchies."""
    data = Path(__file__).parents[1] / "data/slurm-v1"
    for path in (data / "cgroups.running.txt").read_text().split():
        if path.split("/")[4] in controllers:
            machine.group(path, unified=False)
    for line in (data / "cgroup.procs.txt").read_text().splitlines():
        path, _, pids = line.partition("/cgroup.procs: ")
        if path.split("/")[4] in controllers:
            machine.group(path, pids.split(), unified=False)


@pytest.mark.parametrize(
    ("controllers", "first"), [(("cpuset", "freezer", "memory"), "cpuset"), (("freezer", "memory"), "freezer")]
)
def test_slurm_jobs_of_v1_have_the_tasks_of_one_hierarchy_leaves_and_inner_directories(machine, controllers, first):
    machine.mount(HYBRID)
    captured_slurm(machine, controllers)
    jobs = machine.source().scan().jobs
    assert ids(jobs) == [(1, "0"), (2, "0")]
    assert jobs[0].tids() == jobs[0].pids() == [25900, 25909, 25920, 25921]
    assert jobs[1].tids() == [25901, 25908, 25910, 25917, 25926, 25937]
    assert {path.split("/")[4] for job in jobs for path in job.cgroups} == {first}
    assert jobs[0].directory("memory") == "/sys/fs/cgroup/memory/slurm_vm/uid_0/job_1"


def test_slurm_jobs_of_v2_are_found_under_one_slurmd_and_several(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_9/step_0/user/task_0", [31])
    machine.group(f"{SCOPE}/job_9/step_0/slurm", [30])
    machine.group(f"{SCOPE}/system", [99])
    machine.group("/sys/fs/cgroup/system.slice/n2_slurmstepd.scope/job_10/step_extern/user/task_special", [40])
    machine.group("/sys/fs/cgroup/system.slice/cron.service", [7])
    source = machine.source()
    nine, ten = source.scan().jobs
    assert ids([nine, ten]) == [(9, ""), (10, "")]
    assert nine.tids() == nine.pids() == [30, 31] and ten.tids() == [40]
    assert nine.directory("unified") == f"{SCOPE}/job_9" and nine.directory("memory") is None
    machine.group(f"{SCOPE}/job_9/step_1/user/task_0", [32])
    source.scan()
    assert nine.tids() == [30, 31, 32], "steps that come later are noticed"
    machine.remove(f"{SCOPE}/job_9/step_1/user/task_0")
    source.scan()
    assert nine.tids() == [30, 31]


def test_an_id_that_two_layouts_have_is_that_of_the_first_and_is_reported_once(machine, caplog):
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_1", [1], unified=False)
    machine.group("/sys/fs/cgroup/unified/oar.slice/oar-u5-j1.slice", [2])
    source = machine.source()
    (job,) = source.scan().jobs
    machine.full_look(source)
    assert job.tids() == [1] and source.counters()["job_conflicts"] == 1
    assert caplog.text.count("two layouts") == 1


def sluid_job(machine, sluid=SLUID, job=b"77", uid=0, pid=500, command=b"slurmstepd: [%s.batch]\0\0\0"):
    machine.group(f"{SCOPE}/{sluid}/step_batch/slurm", [pid])
    machine.group(f"{SCOPE}/{sluid}/step_batch/user/task_0", [pid + 1])
    machine.process(pid, command % job, uid=uid)
    machine.process(pid + 1, b"sh\0", uid=1000)


def test_a_text_id_is_mapped_by_slurmstepd_which_is_roots(machine):
    machine.mount(PURE_V2)
    sluid_job(machine)
    (job,) = machine.source().scan().jobs
    assert job.id == 77 and job.tids() == [500, 501]
    assert job.directory("unified") == f"{SCOPE}/{SLUID}"


def test_nobody_but_root_in_the_right_directory_can_say_a_job_id(machine, caplog):
    machine.mount(PURE_V2)
    sluid_job(machine, uid=1000)
    machine.process(501, b"slurmstepd: [78.batch]\0")
    source = machine.source()
    assert source.scan().jobs == []
    assert "cannot tell" not in caplog.text, "slurmstepd may be about to start"
    for _ in range(3):
        assert machine.full_look(source) == []
    assert caplog.text.count("job of a cgroup is unknown") == 1 and "CgroupJobIdPaths=yes" in caplog.text
    assert source.counters()["jobs_unmapped"] == 1
    assert "1 whose job id is unknown" in state_of(source, "slurm-sluid")[0][1]
    machine.process(500, b"slurmstepd: [77.batch]\0", uid=0)
    assert ids(machine.full_look(source)) == [(77, "")], "tried again at each full look"


def test_a_text_id_is_mapped_as_soon_as_slurmstepd_is_put_into_its_directory(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/{SLUID}/step_batch/slurm")
    source = machine.source()
    assert source.scan().jobs == []
    machine.fake.mkdir("/proc/500")
    machine.process(500, b"slurmstepd: [77.batch]\0")
    machine.group(f"{SCOPE}/{SLUID}/step_batch/slurm", [500])
    assert ids(source.scan().jobs) == [(77, "")]


def test_of_an_environment_of_any_size_the_start_is_read(machine):
    machine.mount(PURE_V2)
    sluid_job(machine, uid=1000)
    machine.process(500, b"x" * (32 << 20), uid=0)
    machine.process(501, b"sh\0", 1000, b"A=" + b"\0" * (32 << 20) + b"\0SLURM_JOB_ID=77\0")
    source = machine.source()
    tracemalloc.start()
    try:
        assert source.scan().jobs == [], "what stands beyond says nothing"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    machine.process(501, b"sh\0", 1000, b"A=1\0SLURM_JOB_ID=77\0" + b"x" * (1 << 20))
    assert ids(machine.full_look(source)) == [(77, "")]


def test_a_process_whose_environment_does_not_answer_keeps_no_other_job_waiting(machine):
    """A FIFO that nobody writes stands for it."""
    machine.mount(PURE_V2)
    sluid_job(machine, uid=1000)
    environ = machine.fake.path / "proc/501/environ"
    environ.unlink()
    os.mkfifo(environ)
    machine.group("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_5", [7])
    source = machine.source()
    start = time.monotonic()
    assert [job.id for job in source.scan().jobs] == [5]
    assert time.monotonic() - start < 20
    assert source.processes.unanswered == 1
    os.close(os.open(environ, os.O_RDWR | os.O_NONBLOCK))


def test_the_environment_says_which_job_it_is_where_no_slurmstepd_does(machine):
    machine.mount(PURE_V2)
    sluid_job(machine, uid=1000)
    machine.process(501, b"sh\0", 1000, b"A=1\0SLURM_JOB_ID=77\0XSLURM_JOB_ID=5\0")
    source = machine.source()
    (job,) = source.scan().jobs
    assert job.id == 77
    machine.process(500, b"slurmstepd: [79.batch]\0")
    scan = machine.full_scan(source)
    assert [job.id for job in scan.jobs] == [79], "root knows better"
    assert scan.ended == [job]


def test_environments_that_disagree_or_claim_anothers_id_say_nothing(machine):
    machine.mount(PURE_V2)
    sluid_job(machine, uid=1000)
    machine.process(500, b"sh\0", 1000, b"SLURM_JOB_ID=78\0")
    machine.process(501, b"sh\0", 1000, b"SLURM_JOB_ID=77\0")
    other = "s" + "Z" * 13
    sluid_job(machine, other, b"78", pid=600)
    source = machine.source()
    (job,) = source.scan().jobs
    assert job.id == 78 and job.tids() == [600, 601]
    machine.process(501, b"sh\0", 1000, b"SLURM_JOB_ID=78\0")
    (same,) = machine.full_look(source)
    assert same is job and job.tids() == [600, 601], "although that directory's name comes later"


def test_mounts_that_come_later_are_looked_at(machine):
    source = machine.source()
    assert source.scan().jobs == []
    assert [place.state for place in source.describe()] == ["no cgroup is mounted"]
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_1", [1], unified=False)
    (job,) = machine.full_look(source)
    assert job.id == 1 and not job.witnessed, "it may have been there long before the mount"
    machine.mount(HYBRID + "cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n")
    machine.fake.mkdir("/sys/fs/cgroup/blkio/oar/bob_1")
    assert machine.full_look(source) == [job], "the jobs are the same"
    assert job.directory("blkio") == "/sys/fs/cgroup/blkio/oar/bob_1"


def test_named_roots_are_the_only_ones_and_may_be_reached_by_links(machine):
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_1", [1], unified=False)
    machine.group("/sys/fs/cgroup/unified/mine/x_2", [2])
    machine.group("/sys/fs/cgroup/unified/mine/x_2/step", [3])
    machine.group("/sys/fs/cgroup/unified/oar.slice/oar-u5-j9.slice", [9])
    machine.fake.mkdir("/sys/fs/cgroup/cpuacct/oar/bob_1")
    machine.fake.mkdir("/dev/oar_cgroups_links")
    for link in ("/dev/oar_cgroups_links/cpuset", "/dev/cpuset"):
        (machine.fake.path / link.lstrip("/")).symlink_to(machine.fake.path / "sys/fs/cgroup/cpuset")
    roots = ("/dev/oar_cgroups_links/cpuset/oar/", "/dev/cpuset/oar", "/sys/fs/cgroup/unified/mine")
    source = machine.source(*roots)
    bob, other = source.scan().jobs
    assert ids([bob, other]) == [(1, "bob"), (2, "x")]
    assert bob.cgroups == ("/sys/fs/cgroup/cpuset/oar/bob_1",), "one directory, although two roots lead there"
    assert bob.directory("cpuacct") == "/sys/fs/cgroup/cpuacct/oar/bob_1"
    assert other.tids() == [2, 3] and other.directory("unified") == "/sys/fs/cgroup/unified/mine/x_2"
    states = [(place.name, place.path, place.state) for place in source.describe()]
    assert states[0] == ("root", "/dev/oar_cgroups_links/cpuset/oar", "found, 1 job")
    assert states[2] == ("root", "/sys/fs/cgroup/unified/mine", "found, 1 job")


def test_a_link_to_old_jobs_that_comes_later_makes_nobody_a_witness_but_a_new_root_does(machine):
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_1", unified=False)
    machine.fake.mkdir("/dev/links")
    source = machine.source("/dev/links/cpuset/oar", "/sys/fs/cgroup/memory/a/oar")
    assert source.scan().jobs == []
    (machine.fake.path / "dev/links/cpuset").symlink_to(machine.fake.path / "sys/fs/cgroup/cpuset")
    assert select.select([source.fd], [], [], 2)[0]
    (old,) = source.scan().jobs
    assert not old.witnessed
    machine.group("/sys/fs/cgroup/cpuset/oar/eve_2", unified=False)
    machine.group("/sys/fs/cgroup/memory/a/oar/joe_3", unified=False)
    assert [job.witnessed for job in source.scan().jobs] == [False, True, True]


def test_only_a_job_that_came_while_its_place_was_looked_at_is_witnessed(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1")
    sluid_job(machine, uid=1000)
    source = machine.source()
    source.scan()
    machine.group("/sys/fs/cgroup/oar.slice/oar-u7.slice/oar-u7-j2.slice")
    machine.process(500, b"slurmstepd: [77.batch]\0")
    jobs = machine.full_look(source)
    assert [(job.id, job.witnessed) for job in jobs] == [(1, False), (2, True), (77, False)]


class NoFiles(Host):
    """A Host that counts what it opens, lists or looks up."""

    count = 0

    def open(self, path):
        self.count += 1
        return super().open(path)

    def directories(self, path):
        self.count += 1
        return super().directories(path)

    def inode(self, path):
        self.count += 1
        return super().inode(path)

    def is_directory(self, path):
        self.count += 1
        return super().is_directory(path)

    def resolve(self, path):
        self.count += 1
        return super().resolve(path)


@pytest.mark.parametrize("roots", [(), ("/sys/fs/cgroup/cpuset/oar",)])
def test_the_usual_scan_opens_nothing_and_a_full_look_comes_every_10_s(machine, roots):
    machine.mount(HYBRID)
    for n in range(1, 21):
        machine.group(f"/sys/fs/cgroup/cpuset/oar/bob_{n}/step", [n], unified=False)
    host = machine.fake.host = NoFiles(str(machine.fake.path))
    source = machine.source(*roots)
    assert len(source.scan().jobs) == 20
    host.count = 0
    for _ in range(9):
        machine.clock.now += 1
        assert len(source.scan().jobs) == 20
        assert source.scan().changed in ([], source.scan().jobs)
    assert host.count == 0
    machine.clock.now += 1
    source.scan()
    assert host.count > 20
    host.count = 0
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_21", [21], unified=False)
    assert len(source.scan().jobs) == 21
    assert 0 < host.count < 20 * 2 + 20, "only what changed is listed again"


def test_a_scan_returns_jobs_that_began_and_those_whose_lists_of_tasks_were_written_as_changed(machine):
    machine.mount(HYBRID)
    machine.group("/sys/fs/cgroup/cpuset/oar/bob_1/step", [1], unified=False)
    machine.group("/sys/fs/cgroup/unified/oar.slice/oar-u5-j2.slice", [2])
    source = machine.source()
    bob, other = source.scan().changed
    assert source.scan() == JobScan([bob, other], [], [])
    machine.fake.write("/sys/fs/cgroup/cpuset/oar/bob_1/memory.events", "x")
    machine.fake.write("/sys/fs/cgroup/cpuset/oar/tasks", "")
    assert source.scan().changed == []
    for name in ("tasks", "cgroup.procs", "cgroup.threads", "cgroup.events"):
        machine.fake.write(f"/sys/fs/cgroup/cpuset/oar/bob_1/step/{name}", "1\n")
        source.scan()
        assert bob.tids()
        machine.fake.write(f"/sys/fs/cgroup/cpuset/oar/bob_1/step/{name}", "1\n3\n")
        assert source.scan().changed == [bob], name
    assert bob.tids() == [1, 3] and bob.pids() == [1, 3], "read again"
    machine.fake.mkdir("/sys/fs/cgroup/unified/oar.slice/oar-u5-j2.slice/new")
    assert source.scan().changed == [other], "a directory that came may hold a task already"


def test_a_job_number_that_comes_back_is_another_job_even_between_two_scans(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1", [1])
    source = machine.source()
    (before,) = source.scan().jobs
    assert before.tids() == [1]
    machine.remove(f"{SCOPE}/job_1")
    machine.group(f"{SCOPE}/job_1", [2])
    scan = source.scan()
    (after,) = scan.jobs
    assert after is not before and after.tids() == [2]
    assert scan == JobScan([after], [after], [before])
    assert after.run != before.run
    assert source.scan() == JobScan([after], [], [])
    assert before.tids() == before.pids() == []
    machine.group(f"{SCOPE}/job_1", [2, 3])
    assert source.scan().changed == [after], "the new directory is watched, not the old one"


def test_identities_differ_between_jobs_and_last_over_a_restart(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1")
    machine.group(f"{SCOPE}/job_2")
    first, second = machine.source().scan().jobs
    assert first.identity != second.identity
    again = machine.source().scan().jobs[0]
    assert again is not first and again.identity == first.identity
    inode = (machine.fake.path / f"{SCOPE[1:]}/job_1").stat().st_ino
    assert first.identity == f"{SCOPE}/job_1 {inode}"
    assert again.run == first.run != second.run and 0 < first.run < 1 << 48
    machine.fake.write("/proc/sys/kernel/random/boot_id", "another boot\n")
    assert machine.source().scan().jobs[0].run != first.run


@pytest.mark.slow
def test_dropped_events_mean_a_full_look_and_that_all_jobs_may_have_changed(machine, caplog):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1")
    source = machine.source()
    (job,) = source.scan().jobs
    source.scan()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(most // 2 + 10):  # two alike in a row would count once
        machine.fake.write(f"{SCOPE}/job_1/cgroup.procs", "")
        machine.fake.write(f"{SCOPE}/job_1/tasks", "")
    machine.group(f"{SCOPE}/job_2")
    scan = source.scan()
    assert ids(scan.jobs) == [(1, ""), (2, "")] and job in scan.jobs
    assert source.counters()["watch_overflows"] == 1 and "dropped events" in caplog.text
    assert scan.changed == scan.jobs


def test_names_that_are_not_utf_8_stop_nothing(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1", [1])
    source = machine.source()
    (job,) = source.scan().jobs
    bad = os.fsencode(machine.fake.path) + SCOPE.encode() + b"/job_1/\xff\xfe"
    os.mkdir(bad)
    Path(os.fsdecode(bad), "cgroup.threads").write_text("2\n")
    machine.group(f"{SCOPE}/job_2", [3])
    assert [found.id for found in source.scan().jobs] == [1, 2]
    assert job.tids() == [1, 2]


def test_deep_and_many_directories_are_bounded_and_counted(machine, caplog):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1" + "/d" * (MAX_DEPTH + 1), [1])
    machine.group(f"{SCOPE}/job_1" + "/d" * MAX_DEPTH, [2])
    for n in range(MAX_GROUPS + 5):
        machine.fake.mkdir(f"{SCOPE}/job_2/{n}")
    source = machine.source()
    deep, wide = source.scan().jobs
    assert deep.tids() == [2] and len(wide.cgroups) == MAX_GROUPS
    assert source.counters()["groups_left_out"] == 1 + 6
    machine.full_look(source)
    assert source.counters()["groups_left_out"] == 7, "the same are not counted again"
    assert caplog.text.count("too many or too deep") == 1


def test_a_threaded_group_lists_no_processes_and_its_threads_tell_them(machine, monkeypatch):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1/t", [11, 12])
    machine.process(10)
    for tid in (11, 12):
        machine.fake.write(f"/proc/{tid}/status", "Tgid:\t10\n")
    host = machine.fake.host
    open_ = host.open

    def refuse(path):
        if path.endswith("/t/cgroup.procs"):
            raise OSError(95, "Operation not supported")
        return open_(path)

    monkeypatch.setattr(host, "open", refuse)
    (job,) = machine.source().scan().jobs
    assert job.tids() == [11, 12] and job.pids() == [10]


def test_v2_files_stay_open_while_their_directory_is_there(machine):
    machine.mount(PURE_V2)
    machine.group(f"{SCOPE}/job_1/step_0", [1])
    machine.group(f"{SCOPE}/job_1")
    host = machine.fake.host
    source = machine.source()
    (job,) = source.scan().jobs
    assert job.tids() == job.pids() == [1]
    kept = host.kept
    assert kept >= 4, "two lists of two directories"
    machine.remove(f"{SCOPE}/job_1/step_0")
    source.scan()
    assert host.kept == kept - 2
    machine.remove(f"{SCOPE}/job_1")
    assert source.scan().jobs == []
    assert host.kept == kept - 4


def test_without_watches_jobs_are_found_at_each_scan(machine, monkeypatch, caplog):
    import pyinotify

    machine.mount(PURE_V2)

    def refuse(*_, **__):
        raise pyinotify.WatchManagerError("No space left on device (ENOSPC)", {})

    source = machine.source()
    monkeypatch.setattr(source._directories._manager, "add_watch", refuse)
    assert source.scan().jobs == []
    machine.group("/sys/fs/cgroup/oar.slice/oar-u1-j2.slice", [1])
    assert ids(source.scan().jobs) == [(2, "1")]
    assert "max_user_watches" in caplog.text


class UnifiedRoot:
    """Job directories in the running kernel's cgroup2 hierarchy."""

    def __init__(self, stack):
        point = next(
            (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line), None
        )
        if point is None:
            skip_refused("no cgroup2 is mounted")
        self._stack = stack
        self.path = self.make(Path(point) / f"colmet-test-{os.getpid()}-{time.monotonic_ns()}")

    def make(self, path):
        path.mkdir()
        self._stack.callback(CgroupRoot.remove, path)
        return path

    def start(self, group):
        process = subprocess.Popen(["sleep", "120"])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        (group / "cgroup.procs").write_text(str(process.pid))
        return process


@pytest.fixture
def unified(root):
    with contextlib.ExitStack() as stack:
        yield UnifiedRoot(stack)


@pytest.mark.live
def test_live_v2_a_kept_descriptor_shows_tasks_that_came_after_it_at_10_reads_a_second(unified):
    source = JobSource(Host(), [str(unified.path)], compile_patterns([DEFAULT_PATTERN]))
    try:
        source.scan()
        group = unified.make(unified.path / "bob_1")
        (job,) = source.scan().jobs
        assert job.witnessed and job.tids() == [] and job.directory("unified") == str(group)
        started = []
        for _ in range(5):
            started.append(unified.start(group).pid)
            source.scan()
            assert job.tids() == job.pids() == sorted(started)
            time.sleep(0.1)
            source.scan()
            assert job.tids() == sorted(started)
        assert job._kept and all(kept.fileno() >= 0 for kept in job._kept.values())
    finally:
        source.close()


@pytest.mark.live
@pytest.mark.parametrize("version", [1, 2])
def test_live_changes_are_reported_for_moved_tasks_steps_and_on_v2_for_groups_that_empty(version, request):
    if version == 1:
        made = request.getfixturevalue("cgroups")
        group = made.job("bob_1").path
        process = subprocess.Popen(["sleep", "60"])
        root_path = made.path
    else:
        made = request.getfixturevalue("unified")
        root_path = made.path
        group = made.make(root_path / "bob_1")
        process = subprocess.Popen(["sleep", "60"])
    source = JobSource(Host(), [str(root_path)], compile_patterns([DEFAULT_PATTERN]))
    try:
        (job,) = source.scan().changed
        assert source.scan() == JobScan([job], [], [])
        assert job.tids() == []
        (group / "cgroup.procs").write_text(str(process.pid))
        assert select.select([source.fd], [], [], 5)[0]
        assert source.scan().changed == [job]
        assert job.tids() == [process.pid]
        step = made.make(group / "step")
        assert select.select([source.fd], [], [], 5)[0]
        assert source.scan().changed == [job]
        (step / "cgroup.procs").write_text(str(process.pid))
        assert source.scan().changed == [job]
        assert job.tids() == [process.pid] and len(job.cgroups) == 2
        watched = len(source._directories._paths)
        if version == 2:
            time.sleep(0.2)  # so that what the kernel says of the moves is not taken for what it says of the end
            source.scan()
            process.kill()
            process.wait()
            assert select.select([source.fd], [], [], 5)[0], "cgroup.events says that the group is empty"
            assert source.scan().changed == [job]
            assert job.tids() == []
        process.kill()
        process.wait()
        CgroupRoot.remove(step)
        CgroupRoot.remove(group)
        assert source.scan() == JobScan([], [], [job])
        assert len(source._directories._paths) == watched - 2, "no watch stays on directories that are gone"
    finally:
        process.kill()
        process.wait()
        source.close()


@pytest.mark.live
def test_live_v2_directories_made_again_between_two_scans_are_read_and_watched_again(unified):
    """No event comes from a removed cgroup itself, and descriptors of its files stay on what was removed."""
    source = JobSource(Host(), [str(unified.path)], compile_patterns([DEFAULT_PATTERN]))
    try:
        group = unified.make(unified.path / "bob_1")
        step = unified.make(group / "step")
        (job,) = source.scan().jobs
        assert job.tids() == []
        step.rmdir()
        step.mkdir()
        process = unified.start(step)
        assert source.scan().jobs == [job] and job.tids() == [process.pid]
        time.sleep(0.2)  # the directory above reports late that it is no longer empty
        source.scan()
        other = unified.start(step)
        assert source.scan().changed == [job] and job.tids() == sorted([process.pid, other.pid])
        for started in (process, other):
            started.kill()
            started.wait()
        CgroupRoot.remove(step)
        group.rmdir()
        group.mkdir()
        scan = source.scan()
        (again,) = scan.jobs
        assert again is not job and again.identity != job.identity and scan.ended == [job]
        source.scan()
        process = unified.start(group)
        assert source.scan().changed == [again] and again.tids() == [process.pid]
        process.kill()
        process.wait()
    finally:
        source.close()


def test_a_job_made_again_is_another_one_also_where_inode_numbers_are_used_again(machine, monkeypatch):
    machine.mount(PURE_V2)
    monkeypatch.setattr(machine.fake.host, "inode", lambda path: 7)
    machine.group(f"{SCOPE}/job_1", [1])
    source = machine.source()
    (before,) = source.scan().jobs
    machine.remove(f"{SCOPE}/job_1")
    machine.group(f"{SCOPE}/job_1", [2])
    scan = source.scan()
    assert scan.jobs != [before] and scan.ended == [before]
