"""The CPU time of a job's cgroup, through a file that stays open."""

import pytest

from colmet.node.accounting.job_cpu_time import GroupCpuTime
from colmet.node.jobs.job import Job
from colmet.node.jobs.mounts import Mounts


@pytest.fixture
def job(fake):
    fake.write("/proc/self/mounts", "cgroup /acct cgroup rw,cpuacct 0 0\n")
    for step, usage in (("a", 100), ("b", 900)):
        fake.write(f"/acct/{step}/job_1/cpuacct.usage", f"{usage}\n")
    mounts = Mounts(fake.host)
    mounts.refresh(anyway=True)
    mounts.close()
    job = Job(fake.host, 1, mounts=mounts)
    job.regroup(["/acct/a/job_1"], ["/acct/a/job_1"])
    return job


def test_the_open_file_is_left_once_the_job_has_another_directory_or_a_second_one(fake, job):
    group = GroupCpuTime(fake.host)
    assert group.read(job) == 100
    fake.write("/acct/a/job_1/cpuacct.usage", "101\n")
    assert group.read(job) == 101
    both = ["/acct/a/job_1", "/acct/b/job_1"]
    job.regroup(both, both)
    assert group.read(job) is None, "no directory has all of the job"
    job.regroup(both[1:], both[1:])
    assert group.read(job) == 900
    group.close()
