"""CPU time that is attributed to a job: what is counted and what is beyond it, bounded by the job's cgroup."""

import pytest

from colmet.node.accounting.job_cpu_time import JobCpuTime
from colmet.node.jobs.job import Job

MS = 1_000_000


@pytest.fixture
def job():
    return Job(None, 7)


def test_it_is_what_is_counted_and_beyond_but_no_more_than_the_cgroup_used(job):
    cpu = JobCpuTime()
    cpu.add_beyond(7, 50)
    assert cpu.update(job, 100, None) == 150
    assert cpu.update(job, 100, 120) == 150, "never less than before"
    assert cpu.update(job, 200, 220) == 220
    assert cpu.attributed[job] == 220


def test_the_last_figure_of_a_removed_cgroup_is_the_bound_until_another_task_ends(job):
    cpu = JobCpuTime()
    cpu.update(job, 100, 120)
    cpu.add_beyond(7, 500)
    assert cpu.update(job, 100, None) == 120
    cpu.end_tasks(7)
    assert cpu.update(job, 101, None) == 601


def test_the_last_use_of_tasks_that_left_is_the_jobs_as_far_as_its_cgroup_has_it(job):
    cpu = JobCpuTime()
    assert cpu.update(job, 100, 120, left_ns=50) == 120
    assert cpu.update(job, 100, 120) == 120
    assert cpu.update(job, 130, 160) == 150, "what was added stays"
    assert cpu.update(job, 130, 200, left_ns=5) == 155


@pytest.mark.parametrize(
    ("counted", "group", "newcomers", "migrated", "share"),
    [
        (100 * MS, None, 40 * MS, False, 0.0),  # no cgroup: all is the job's
        (100 * MS, None, 40 * MS, True, 1.0),  # but of tasks that are known to come from elsewhere
        (100 * MS, 100 * MS, 40 * MS, True, 0.0),  # the cgroup has all of it
        (100 * MS, 80 * MS, 40 * MS, True, 0.5),
        (100 * MS, 79 * MS, 40 * MS, False, 0.5),  # with a millisecond for rounding
        (100 * MS, 10 * MS, 40 * MS, True, 1.0),
    ],
)
def test_newcomers_used_elsewhere_what_the_cgroup_has_not(counted, group, newcomers, migrated, share):
    assert JobCpuTime().share_elsewhere(7, counted, group, newcomers, migrated) == share
