"""Colmet on a node of a real OAR, with the options it is delivered with. `make test-beds` runs this."""

from __future__ import annotations

import time

import pytest
from bed import Bed, assert_found_at_once, assert_whole, burn, running

pytestmark = pytest.mark.live
COMPUTES_THEN_SLEEPS = f"{burn(2)}; sleep 60"


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """The agent is there before the first job, and so before OAR has made any cgroup."""
    directory = tmp_path_factory.mktemp("oar")
    with running(request, directory, Bed("oar"), "/sys/fs/cgroup/cpuset/oar/*", "cpuset") as site:
        # beside all the others, since OAR takes half a minute to end a job at its walltime
        (site.late,) = site.bed.submit("-l", "/resource_id=1,walltime=0:0:10", COMPUTES_THEN_SLEEPS)
        yield site


def assert_measured(site, job):
    seen = site.at_end(job)
    assert_found_at_once(site, job)
    assert_whole(site, job, seen.cpu_s)
    return seen


def test_the_shortest_job_is_found_and_has_a_row(site):
    """Its cgroup lives for less than two seconds; the period is five."""
    (job,) = site.bed.submit("true")
    seen = assert_measured(site, job)
    assert seen.gone - seen.appeared < 5
    assert site.bed.wait(job) == "Terminated"


def test_two_jobs_at_once_are_kept_apart(site):
    (busy,) = site.bed.submit(burn(3))
    (idle,) = site.bed.submit("sleep 6")
    busy_seen, idle_seen = assert_measured(site, busy), assert_measured(site, idle)
    assert idle_seen.appeared + 2 < busy_seen.gone, "they did not run at once"
    assert 2.9 <= site.colmet.cpu_s(busy) < 4
    assert site.colmet.cpu_s(idle) < 1


def test_every_job_of_an_array_is_measured(site):
    """Each computes in processes that end between two samples."""
    jobs = site.bed.submit("--array", "3", f"for i in 1 2 3; do {burn(0.3)}; done")
    assert len(jobs) == 3
    for job in jobs:
        assert_measured(site, job)
        assert 0.9 <= site.colmet.cpu_s(job) < 2


def test_a_job_that_oardel_ends_is_whole(site):
    (job,) = site.bed.submit(COMPUTES_THEN_SLEEPS)
    site.seen(job)
    time.sleep(4)
    site.bed.delete(job)
    assert_measured(site, job)
    assert site.bed.wait(job) == "Error"
    assert 1.9 <= site.colmet.cpu_s(job) < 3


def test_a_job_that_its_walltime_ends_is_whole(site):
    seen = assert_measured(site, site.late)
    assert site.bed.wait(site.late) == "Error"
    assert 10 <= seen.gone - seen.appeared < 50
    assert 1.9 <= site.colmet.cpu_s(site.late) < 3


def test_nothing_was_lost_and_both_daemons_end_cleanly(site):
    """The last test: it ends them."""
    assert site.colmet.close() == [0, 0]
    assert "missing=0 duplicates=0 refused=0" in site.colmet.collector.log.read_text()
    for daemon in (site.colmet.node, site.colmet.collector):
        assert "Traceback" not in daemon.log.read_text()
