"""What inotify reports of directories while they are being listed."""

from __future__ import annotations

import pytest

from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobScan, JobSource
from colmet.node.jobs.watches import Directories


@pytest.fixture
def before_listing(fake, monkeypatch):
    """Have something happen between the watch on a directory and its listing, once."""
    listing = fake.host.directories
    todo = {}

    def directories(path):
        todo.pop(path, lambda: None)()
        return listing(path)

    monkeypatch.setattr(fake.host, "directories", directories)
    return todo


@pytest.fixture
def directories(fake):
    made = Directories(fake.host)
    yield made
    made.close()


def walk(directories, *paths):
    directories.begin()
    found = [directories.names(path, tasks=True) for path in paths]
    directories.end()
    return found


def test_what_comes_while_it_is_listed_has_come_once(fake, directories, before_listing):
    fake.mkdir("/a")
    before_listing["/a"] = lambda: fake.mkdir("/a/x")
    assert walk(directories, "/a") == [("x",)]
    directories.drain()
    assert directories.removed == set() and not directories.stale


def test_tasks_that_came_before_a_directory_was_watched_are_looked_for(fake, directories):
    fake.mkdir("/a")
    walk(directories, "/a")
    assert directories.changed == {"/a"}
    directories.changed.clear()
    directories.expire()
    walk(directories, "/a")
    assert directories.changed == set(), "it was watched all the time"
    directories.clear()
    walk(directories, "/a")
    assert directories.changed == {"/a"}


def test_a_job_whose_directories_come_one_after_the_other_while_they_are_listed_does_not_end(fake, before_listing):
    """As Slurm makes them, which has one in each hierarchy of cgroup v1: freezer, cpuset, memory, ..."""
    mounts = "".join(f"x /cg/{name} cgroup rw,{name} 0 0\n" for name in ("freezer", "cpuset"))
    fake.write("/proc/self/mounts", mounts)
    for name in ("freezer", "cpuset"):
        fake.mkdir(f"/cg/{name}/slurm/uid_7")
    source = JobSource(fake.host, (), compile_patterns([DEFAULT_PATTERN]))
    try:
        assert source.scan().jobs == []
        (fake.path / "cg/freezer/slurm/uid_7").rmdir()
        fake.mkdir("/cg/freezer/slurm/uid_7")  # as after a job of that user
        before_listing["/cg/freezer/slurm/uid_7"] = lambda: fake.mkdir("/cg/freezer/slurm/uid_7/job_42")
        (job,) = source.scan().jobs
        fake.mkdir("/cg/cpuset/slurm/uid_7/job_42")
        assert source.scan() == JobScan([job], [job], []) and (source.started, source.ended) == (1, 0)
        assert [top.split("/")[2] for top in job.tops] == ["cpuset"]
    finally:
        source.close()
