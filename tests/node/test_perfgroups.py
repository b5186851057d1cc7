from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from colmet.common.host.host import Host
from colmet.node.jobs.job import Job
from colmet.node.kernel.perfgroups import PerfGroups


class Kernel(Host):
    """A made-up machine whose groups take processes, as the kernel's do.

    Attributes:
        born: what comes into the job while a process of that number is put into a group.
        gone: processes that have ended meanwhile.
    """

    def __init__(self, root):
        super().__init__(root)
        self.born = {}
        self.gone = set()

    def write_group(self, path, text):
        pid = int(text)
        if pid in self.gone:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        with open(self.path(path), "a") as file:
            file.write(f"{pid}\n")
        with open(self.path("/cpuset/bob_1/cgroup.procs"), "a") as file:
            file.write("".join(f"{child}\n" for child in self.born.pop(pid, ())))


@pytest.fixture
def kernel(fake):
    for top in ("/cpuset", "/perf"):
        fake.write(f"{top}/bob_1/cgroup.procs", "")
    fake.write("/cpuset/bob_1/cgroup.procs", "10\n11\n")
    return Kernel(str(fake.path))


def inside(kernel):
    return [int(pid) for pid in Path(kernel.path("/perf/bob_1/cgroup.procs")).read_text().split()]


def test_what_a_process_has_started_while_it_was_moved_is_moved_too(kernel):
    kernel.born = {11: [12], 12: [13]}
    groups, job = PerfGroups(kernel), Job(kernel, 1, "bob", ["/cpuset/bob_1"])
    groups.fill("/perf/bob_1", job)
    assert inside(kernel) == [10, 11, 12, 13] and groups.moved == 4
    job.forget_tasks()
    groups.fill("/perf/bob_1", job)
    assert inside(kernel) == [10, 11, 12, 13] and groups.moved == 4 and not groups.failures


def test_a_process_that_has_ended_meanwhile_is_no_failure(kernel):
    kernel.gone = {10}
    groups = PerfGroups(kernel)
    groups.fill("/perf/bob_1", Job(kernel, 1, "bob", ["/cpuset/bob_1"]))
    assert inside(kernel) == [11] and not groups.failures


def test_a_job_that_makes_processes_for_ever_ends_no_later_for_it(kernel):
    kernel.born = {n: [n + 1] for n in range(11, 1000)}
    groups = PerfGroups(kernel)
    groups.fill("/perf/bob_1", Job(kernel, 1, "bob", ["/cpuset/bob_1"]))
    assert 2 < len(inside(kernel)) < 10


def test_a_group_that_cannot_take_processes_is_counted(kernel, caplog):
    def refuse(path, text):
        raise PermissionError(errno.EPERM, "no")

    kernel.write_group = refuse
    groups = PerfGroups(kernel)
    groups.fill("/perf/bob_1", Job(kernel, 1, "bob", ["/cpuset/bob_1"]))
    assert groups.failures == 2 and "cannot put process 10 into /perf/bob_1" in caplog.text


def test_only_groups_of_ours_are_removed_and_those_of_jobs_are_kept(fake):
    host = fake.host
    (fake.path / "perf/theirs/deep").mkdir(parents=True)
    groups = PerfGroups(host)
    for name in ("oar/bob_1", "oar/bob_2", "oar/eve_3/step"):
        assert groups.make(f"/perf/{name}", "/perf")
    groups.find_left("/perf", ["/perf/oar/bob_2"])
    groups.tidy("/perf")
    left = sorted(str(path.relative_to(fake.path)) for path in (fake.path / "perf").rglob("*"))
    assert left == ["perf/oar", "perf/oar/bob_2", "perf/theirs", "perf/theirs/deep"]
    groups.leave("/perf/oar/bob_2")
    groups.tidy("/perf")
    assert sorted(path.name for path in (fake.path / "perf").iterdir()) == ["theirs"]
    groups.tidy("/perf")
    assert groups.failures == 0


def test_a_group_that_is_made_again_is_not_removed_with_the_one_before(fake):
    groups = PerfGroups(fake.host)
    (fake.path / "perf").mkdir()
    groups.make("/perf/bob_1", "/perf")
    groups.leave("/perf/bob_1")
    fake.host.remove_group("/perf/bob_1")  # by someone else
    groups.make("/perf/bob_1", "/perf")
    groups.tidy("/perf")
    assert fake.host.is_directory("/perf/bob_1")


def test_what_was_removed_once_is_not_removed_again(fake):
    groups = PerfGroups(fake.host)
    (fake.path / "perf").mkdir()
    groups.make("/perf/bob_1", "/perf")
    groups.leave("/perf/bob_1")
    groups.tidy("/perf")
    (fake.path / "perf/bob_1").mkdir()  # a resource manager's
    groups.tidy("/perf")
    assert fake.host.is_directory("/perf/bob_1")
