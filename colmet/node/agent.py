"""One tick: the jobs once, each backend once, one batch."""

from __future__ import annotations

import logging
import math
import select
import time
from collections.abc import Callable, Mapping, Sequence

from colmet.common.cli import Signals, powers_of_ten
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.schema import Batch, Sample, Table
from colmet.node.account import Account, Meter
from colmet.node.backend import InputBackend
from colmet.node.jobs import NODE_JOB, Job, JobSource
from colmet.node.placement import Placement
from colmet.node.schedule import Schedule
from colmet.node.spool import Spool

log = logging.getLogger(__name__)

FIRST_RETRY_S = 60.0
LAST_RETRY_S = 3600.0


class Runner:
    """A backend with its state: open or waiting to be tried again, what it has cost and what has gone wrong with it.

    Attributes:
        meter: what its work has taken; every call into the backend is made within it.
        rows: measured.
        failures: samples that failed.
        overruns: samples that took longer than the period.
    """

    def __init__(
        self,
        backend: InputBackend,
        monotonic: Callable[[], float] = time.monotonic,
        period_s: float = math.inf,
    ) -> None:
        self.backend = backend
        self.name = backend.name
        self.meter = Meter()
        self.rows = 0
        self.failures = 0
        self.overruns = 0
        self.is_open = False
        self._period_ns = period_s * 1e9
        self._monotonic = monotonic
        self._retry_at = monotonic()
        self._retry_s = FIRST_RETRY_S

    def open(self) -> bool:
        """Open it if it is closed and its time has come; whether it is open."""
        if not self.is_open and self._monotonic() >= self._retry_at:
            try:
                self.backend.open()
            except BackendUnavailable as err:
                self._wait(err)
            else:
                self.is_open = True
                log.info("backend on backend=%s", self.backend.name)
        return self.is_open

    def _wait(self, err: BackendUnavailable) -> None:
        if self._retry_s == FIRST_RETRY_S:
            log.warning("backend off backend=%s: %s", self.backend.name, err)
        else:
            log.debug("backend still off backend=%s: %s", self.backend.name, err)
        self.backend.close()
        self.is_open = False
        self._retry_at = self._monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)

    def sample(self, jobs: Sequence[Job], time_ns: int) -> Table | None:
        """Its table at this tick; None where it has no rows."""
        with self.meter:
            table = self._sample(jobs, time_ns)
        self.overruns += self.meter.last_wall_ns > self._period_ns
        if table is not None:
            self.rows += len(table)
        return table

    def _sample(self, jobs: Sequence[Job], time_ns: int) -> Table | None:
        if not self.open():
            return None
        samples: list[Sample] = []
        try:
            samples.extend(self.backend.sample(jobs))
            if not samples:
                return None
            return Table.from_samples(self.backend.schema, time_ns, samples)
        except BackendUnavailable as err:
            self._wait(err)
        except (ParseError, OSError) as err:
            self._failed(err)
        except Exception as err:  # noqa: BLE001 - a defect of ours in one backend must not stop the others
            self._failed(err, defect=True)
        return None

    def counters(self) -> Mapping[str, int]:
        """What the backend counts beside its rows."""
        return self.backend.counters()

    def _failed(self, err: Exception, defect: bool = False) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.error(
                "sample failed backend=%s failures=%d: %s", self.backend.name, self.failures, err, exc_info=defect
            )

    def close(self) -> None:
        """Close the backend; also twice."""
        self.backend.close()
        self.is_open = False


class Agent:
    """The node's daemon.

    Args:
        host_name: under which the rows are stored.
        source: finds the jobs.
        backends: what measures them.
        spool: takes each tick's batch.
        schedule: when ticks are due.
        placement: keeps the agent off the jobs' CPUs; None leaves it where it is.
        account: makes the table of what the agent itself costs; None sends none.
    """

    def __init__(
        self,
        host_name: str,
        source: JobSource,
        backends: Sequence[InputBackend],
        spool: Spool,
        schedule: Schedule,
        placement: Placement | None = None,
        account: Account | None = None,
    ) -> None:
        self._host_name = host_name
        self._source = source
        self._runners = [Runner(backend, period_s=schedule.period_s) for backend in backends]
        self._spool = spool
        self._schedule = schedule
        self._placement = placement
        self._account = account
        self._account_failures = 0
        self._meter = Meter()
        # Unlike any earlier start on this host, and greater: the collector tells starts apart by it.
        self._epoch = time.time_ns()
        self._seq = 0

    def tick(self) -> Batch:
        """Measure everything once."""
        with self._meter:
            return self._tick()

    def _tick(self) -> Batch:
        time_ns = time.time_ns()
        jobs = self._source.scan()
        if self._placement is not None:
            self._placement.update(jobs)
        tables = [runner.sample(jobs, time_ns) for runner in self._runners]
        self._seq += 1
        job_ids = tuple([job.id for job in jobs if job.id != NODE_JOB])
        tables.append(self._own_table(time_ns, len(job_ids)))
        return Batch(
            self._host_name,
            self._epoch,
            self._seq,
            time_ns,
            job_ids,
            tuple([table for table in tables if table is not None]),
        )

    def _own_table(self, time_ns: int, jobs: int) -> Table | None:
        """What the agent itself costs, or None where that is not asked for."""
        if self._account is None:
            return None
        try:
            return self._account.table(time_ns, self._runners, self._totals(jobs))
        except Exception:  # a defect of ours here must not stop the measuring
            self._account_failures += 1
            if powers_of_ten(self._account_failures):
                log.exception("no row of the agent itself failures=%d", self._account_failures)
            return None

    def _totals(self, jobs: int) -> dict[str, int]:
        """What the agent as a whole counts, by column of `agent_default`."""
        totals = {
            "wall_time": self._meter.wall_ns // 1000,
            "overruns": self._schedule.overruns,
            "ticks": self._seq,
            "batches_sent": self._spool.sent,
            "batches_dropped": self._spool.dropped,
            "jobs": jobs,
            "jobs_started": self._source.started,
            "jobs_ended": self._source.ended,
            "discovery_failures": self._source.failures,
        }
        if self._placement is not None:
            totals["cpus"] = len(self._placement.cpus)
            totals["placement_failures"] = self._placement.failures
        return totals

    def run(self, signals: Signals) -> None:
        """Tick until SIGTERM or SIGINT; in between, hear of jobs that come and go."""
        for runner in self._runners:
            runner.open()
        self._source.scan()
        poll = select.poll()
        poll.register(self._source.fd, select.POLLIN)
        poll.register(signals.fd, select.POLLIN)
        while not signals.stop_wanted():
            # rounded up: a poll that ends early would only be called again
            for fd, _ in poll.poll(self._schedule.delay_s() * 1000 + 0.5):
                if fd == signals.fd:
                    signals.drain()
                else:
                    self._source.scan()
            if not signals.stop_wanted() and self._schedule.delay_s() == 0:
                self._spool.put(self.tick())
                skipped = self._schedule.done()
                if skipped and powers_of_ten(self._schedule.overruns):
                    log.warning(
                        "tick took longer than the period, %d skipped, overruns=%d; is --sample-period %g s too short "
                        "for what is measured?",
                        skipped,
                        self._schedule.overruns,
                        self._schedule.period_s,
                    )
        log.info(
            "stopping ticks=%d sent=%d dropped=%d overruns=%d",
            self._seq,
            self._spool.sent,
            self._spool.dropped,
            self._schedule.overruns,
        )

    def close(self) -> None:
        """Give everything back; also twice."""
        for runner in self._runners:
            runner.close()
        if self._account is not None:
            self._account.close()
        self._source.close()
