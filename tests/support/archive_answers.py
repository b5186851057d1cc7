"""Shared by tests: a shared archive gives the same answers as a local one with the same summaries."""

from __future__ import annotations

import itertools

import pytest

from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import SUMS, JobFilter
from tests.support.archive_data import YEAR_S, YEAR_START

SORTED_BY = ("start", "queue", "exit_code", "cpu_ratio", "gpu_s", "end", "rules", "array", "memory_peak")
GROUPED_BY = (
    *(["user"], ["project", "queue"], ["month"], ["user", "month"], ["day"], ["week", "state"], ["system"]),
    *(["name"], ["host"], ["host", "month"], ["user", "host"]),
)
FILTERS = (
    JobFilter(),
    JobFilter(since=YEAR_START + YEAR_S // 3, until=YEAR_START + YEAR_S // 2),
    JobFilter(since=YEAR_START + 1e7 + 0.5),
    JobFilter(until=YEAR_START + 1e7, users=["user1", "user2"]),
    JobFilter(hosts=["node8", "node9", "node10"]),
    JobFilter(states=["running"], since=YEAR_START + YEAR_S - 1e5),
    JobFilter(since=YEAR_START - 1e6, until=YEAR_START),
)


def assert_same_lists(local, shared, count, sorts=SORTED_BY):
    """All columns, in any order, by pages."""
    pages = ((0, count), (count // 3, 50), (count - 3, 100), (count + 10, 10))
    for sort, descending, (offset, limit) in itertools.product(sorts, (True, False), pages):
        question = (JobFilter(), list(ANSWERS), sort, descending, offset, limit)
        assert shared.jobs(*question) == local.jobs(*question), question[2:]


def assert_same_jobs(local, shared, jobs):
    for job in jobs:
        found = local.job(job)
        assert shared.job(job) == found
        assert found is None or shared.job(job, found.starts[-1]) == local.job(job, found.starts[-1])


def assert_same_sums(local, shared, filters=FILTERS):
    for where, by in itertools.product(filters, GROUPED_BY):
        found = {group.keys: group for group in shared.usage(where, by)}
        expected = {group.keys: group for group in local.usage(where, by)}
        assert found.keys() == expected.keys(), (where, by)
        for keys, group in expected.items():
            assert found[keys].jobs == group.jobs, (where, by, keys)
            for name in SUMS:
                value = group.sums[name]
                of = None if value is None else pytest.approx(value, rel=1e-9)
                assert found[keys].sums[name] == of, (where, by, keys, name)
