"""Colmet on a node of a real Slurm, with the options it is delivered with. `make test-beds` runs this."""

from __future__ import annotations

import time

import pytest
from bed import Bed, assert_found_at_once, assert_whole, burn, running

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=["none", "cgroup"])
def site(request, tmp_path_factory):
    """Once without Slurm's own accounting, when jobs have no cgroup of cpuacct, and once with it."""
    directory = tmp_path_factory.mktemp(f"slurm-{request.param}")
    bed = Bed("slurm", GATHER=request.param)
    with running(request, directory, bed, "/sys/fs/cgroup/freezer/slurm*/uid_*/job", "freezer") as site:
        site.accounts = request.param == "cgroup"
        yield site


def assert_measured(site, job, at_least_s):
    """Held against the kernel's account where Slurm asks for it, and against what the job computed."""
    seen = site.at_end(job, 0.95 * at_least_s)
    assert_found_at_once(site, job)
    if site.accounts:
        assert_whole(site, job, seen.cpu_s)
    assert site.colmet.rows(job), f"job {job} has no row; {site.colmet.node.log.read_text()}"
    assert 0.95 * at_least_s <= site.colmet.cpu_s(job) < at_least_s + 1
    return seen


def test_a_job_of_a_second_is_found_and_has_a_row(site):
    """The period is five seconds. (The cgroup of `true` is there for 20 ms.)"""
    (job,) = site.bed.submit("sleep 1")
    assert_measured(site, job, 0)
    assert site.bed.wait(job) == "COMPLETED"


def test_two_jobs_at_once_are_kept_apart(site):
    (busy,) = site.bed.submit(burn(3))
    (idle,) = site.bed.submit("sleep 5")
    busy_seen, idle_seen = assert_measured(site, busy, 3), assert_measured(site, idle, 0)
    assert idle_seen.appeared + 2 < busy_seen.gone, "they did not run at once"


def test_the_steps_of_a_job_are_one_job(site):
    """Two steps after one another, with processes that end between two samples, and the script around them."""
    step = f'srun sh -c "for i in 1 2; do {burn(0.3)}; done"'
    (job,) = site.bed.submit(f"{step}; {step}; {burn(0.3)}")
    assert_measured(site, job, 1.5)


def test_a_job_that_scancel_ends_is_whole(site):
    (job,) = site.bed.submit(f"{burn(2)}; sleep 60")
    site.seen(job)
    time.sleep(3)
    site.bed.delete(job)
    assert_measured(site, job, 2)
    assert site.bed.wait(job) == "CANCELLED"


def test_nothing_was_lost_and_both_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (site.colmet.node, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
