from __future__ import annotations

import os
import select
import shutil
import sys
import time

import pytest

from colmet.common.errors import ConfigError
from colmet.common.host.host import Host
from colmet.node.jobs.job import Job
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import FULL_WALK_S, JobSource
from tests.support.waiting import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def source_of(fake, clock):
    made = []

    def make(*roots, patterns=(DEFAULT_PATTERN,), unit=None, host=None):
        source = JobSource(host or fake.host, roots or ("/oar/",), compile_patterns(patterns), unit, clock)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()
        source.close()


def ids(jobs):
    return [(job.id, job.user) for job in jobs]


def test_the_users_pattern_replaces_the_default(fake, source_of):
    fake.mkdir("/slurm/job_12")
    fake.mkdir("/slurm/bob_13")
    fake.mkdir("/slurm/step9")
    assert ids(source_of("/slurm", patterns=[r"^job_(\d+)$"]).scan().jobs) == [(12, "")]


@pytest.mark.parametrize("pattern", ["(", "[a", r"_\d+$", ""])
def test_a_pattern_that_cannot_give_a_job_id_is_refused(pattern):
    with pytest.raises(ConfigError, match="--regex_job_id"):
        compile_patterns([pattern])


def test_all_roots_are_used_and_the_same_job_under_two_is_one(fake, source_of):
    for name, tasks in (("/a/bob_1", "10\n11\n"), ("/b/bob_1", "11\n12\n"), ("/b/eve_2", "20\n")):
        fake.write(f"{name}/tasks", tasks)
        fake.write(f"{name}/cgroup.procs", tasks)
    jobs = source_of("/a", "/b/").scan().jobs
    assert ids(jobs) == [(1, "bob"), (2, "eve")]
    assert jobs[0].tids() == jobs[0].pids() == [10, 11, 12]


def test_a_root_that_does_not_exist_yet_is_waited_for(fake, source_of, caplog):
    caplog.set_level("INFO")
    source = source_of("/sys/cpuset/oar")
    assert source.scan().jobs == source.scan().jobs == []
    assert caplog.text.count("waiting for the jobs' cgroups") == 1
    fake.mkdir("/sys/cpuset/oar/bob_1")
    assert select.select([source.fd], [], [], 20)[0], "no inotify event when the root appeared"
    assert ids(source.scan().jobs) == [(1, "bob")]
    fake.mkdir("/sys/cpuset/oar/bob_2")
    assert select.select([source.fd], [], [], 20)[0], "and from then on of jobs"
    assert len(source.scan().jobs) == 2


def test_inotify_reports_starts_and_ends_at_once(fake, source_of):
    fake.mkdir("/oar")
    source = source_of()
    source.scan()
    assert not select.select([source.fd], [], [], 0.05)[0]
    path = fake.mkdir("/oar/bob_1")
    assert select.select([source.fd], [], [], 20)[0]
    assert ids(source.scan().jobs) == [(1, "bob")]
    path.rmdir()
    assert select.select([source.fd], [], [], 20)[0]
    assert source.scan().jobs == []
    assert (source.started, source.ended) == (1, 1)
    assert not select.select([source.fd], [], [], 0.05)[0], "events are taken in by a scan"


def test_a_root_that_goes_and_comes_back_is_watched_again(fake, source_of):
    fake.mkdir("/oar/bob_1").rmdir()
    source = source_of()
    source.scan()
    (fake.path / "oar").rmdir()
    source.scan()
    fake.mkdir("/oar/bob_2")
    assert ids(source.scan().jobs) == [(2, "bob")]
    source.scan()
    assert not select.select([source.fd], [], [], 0.05)[0]
    fake.mkdir("/oar/bob_3")
    assert select.select([source.fd], [], [], 20)[0]


def test_an_error_other_than_absence_does_not_end_the_jobs(fake, source_of, monkeypatch, caplog, clock):
    fake.mkdir("/oar/bob_1")
    source = source_of()
    before = source.scan().jobs

    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fake.host, "directories", fail)
    clock.now += FULL_WALK_S
    assert source.scan().jobs == before
    assert source.counters()["discovery_failures"] == 2, "the root, and the job's directory"
    assert "Input/output error" in caplog.text


def test_the_unit_of_the_command_line_comes_first_as_job_0(fake, source_of):
    fake.mkdir("/oar/bob_1")
    fake.write("/cg/tasks", "1\n2\n")
    fake.write("/cg/cgroup.procs", "1\n")
    fake.mkdir("/proc/7/task/7")
    fake.mkdir("/proc/7/task/8")
    fake.write("/proc/21/status", "Name:\tx\nTgid:\t20\nPid:\t21\n")
    unit = Job(fake.host, 0, cgroups=["/cg"], pids=[7, 99], tids=[21])
    jobs = source_of(unit=unit).scan().jobs
    assert [job.id for job in jobs] == [0, 1]
    assert jobs[0].tids() == [1, 2, 7, 8, 21]
    assert jobs[0].pids() == [1, 7, 20], "99 is no process"


@pytest.mark.live
def test_live_a_real_cgroup_is_found_with_its_threads_at_once_and_never_from_a_stale_list(cgroups, source_of):
    """cgroup v1 caches the list behind a kept descriptor: new tasks must show even when it is read all the time."""
    source = source_of(str(cgroups.path), host=Host())
    assert source.scan().jobs == []
    job = cgroups.job("jean-luc.p_4242")
    assert select.select([source.fd], [], [], 20)[0], "inotify reports the cgroup"
    assert ids(source.scan().jobs) == [(4242, "jean-luc.p")]
    threads = "import threading,time\nfor _ in range(3): threading.Thread(target=time.sleep,args=(60,)).start()\n"
    process = job.start(sys.executable, "-c", threads)
    for _ in range(200):
        (found,) = source.scan().jobs
        tids = found.tids()
        if len(tids) == 4:
            break
        time.sleep(0.02)
    assert tids == sorted(map(int, os.listdir(f"/proc/{process.pid}/task")))
    assert found.pids() == [process.pid]
    sleeper = job.start("sleep", "60")
    assert sleeper.pid in source.scan().jobs[0].tids()


def test_a_named_number_that_another_program_has_later_is_not_measured(fake):
    fake.write("/proc/7/stat", "")
    unit = Job(fake.host, 0, pids=[7])
    assert unit.pids() == [7]
    shutil.rmtree(fake.path / "proc/7")
    unit.forget_tasks()
    assert unit.pids() == []
    fake.write("/proc/7/stat", "")
    unit.forget_tasks()
    assert unit.pids() == []
