"""Shared by tests: SCHEMA, Fake, make_agent, raising."""

from __future__ import annotations

from colmet.common.errors import BackendUnavailable
from colmet.common.schema import Field, Sample, Schema
from colmet.common.wire import v1
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.schedule import Schedule
from tests.support.direct import Direct

SCHEMA = Schema("fake_default", "job", [Field("cpu", "nsec", "counter")])


class Fake(InputBackend):
    """A backend that does what a test wants."""

    name = "fake"
    schema = SCHEMA

    def __init__(self, behave=None):
        self.behave = behave or (lambda jobs: [Sample(job.id, {"cpu": 5}) for job in jobs])
        self.unavailable = None
        self.opened = self.closed = 0

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options, host):
        return cls()

    def open(self):
        self.opened += 1
        if self.unavailable:
            raise BackendUnavailable(self.unavailable)

    def sample(self, jobs):
        return self.behave(jobs)

    def close(self):
        self.closed += 1


def raising(error):
    def behave(jobs):
        raise error

    return behave


def make_agent(fake, backends, sent, period=0.05):
    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]))
    return Agent("node-1", source, backends, Direct(v1.encode, sent), Schedule(period))
