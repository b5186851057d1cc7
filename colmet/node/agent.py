"""The agent: at each tick, one scan of the jobs, one sample of each backend, one batch."""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from colmet.common.config.configuration import Prepare, at_once
from colmet.common.daemon.control import Errands
from colmet.common.daemon.daemon_health import ClockWatch
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import TokenBucket
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals
from colmet.common.schema import Batch, Sample, Table
from colmet.node.agent_tables import AgentStats, CompletenessStats, Meter
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterNames
from colmet.node.delivery.outbox import SendQueue
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.source import JobScan, JobSource
from colmet.node.node_health import NodeHealth
from colmet.node.placement import Placement
from colmet.node.runner import BackgroundBackend, Runner, connect
from colmet.node.schedule import Schedule, self_metrics_period_s

log = logging.getLogger(__name__)

_NS = 1_000_000_000
# Wake-ups between ticks: a second, and at once.
LOOKS = (20.0, 20)  # for jobs and tasks that begin or end
DRAINS = (4.0, 10)  # for tasks that have ended
DRAINS_AT_ONCE = 3  # of one wake-up, while there are jobs to measure
WORK_SHARE = 1 / 30  # of a CPU, between ticks, for one reason
WORK_AT_ONCE_S = 0.2  # CPU time without a rest after a quiet time
FAREWELL_S = 1.0  # for background backends to end; one blocked by a driver ends with the process


class Pace:
    """Bound on the agent's wake-ups between ticks for one reason.

    Events wait in the kernel meanwhile, and cost less when they are read together.

    Args:
        per_s: wake-ups a second in a storm.
        at_once: wake-ups without a rest after a quiet time.
    """

    def __init__(self, per_s: float, at_once: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wakes = TokenBucket(per_s, at_once, monotonic)
        self._work_s = TokenBucket(WORK_SHARE, WORK_AT_ONCE_S, monotonic)

    def rest_s(self) -> float:
        """Return the seconds to rest before the next wake-up; 0 for none."""
        return max(self._wakes.wait_s(1), self._work_s.wait_s(0))

    def woken(self, took_s: float = 0) -> None:
        """Count a wake-up and its CPU time in seconds: the more CPU time, the longer the rest."""
        self._wakes.use(1)
        self._work_s.use(took_s)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count a wake-up with the CPU time of this thread within the block."""
        start_s = time.thread_time()
        yield
        self.woken(time.thread_time() - start_s)


def _runs_apart(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return jobs in groups with each number once: a batch has one row of a job in a table."""
    groups: defaultdict[int, list[Job]] = defaultdict(list)
    runs: Counter[int] = Counter()
    for job in jobs:
        groups[runs[job.id]].append(job)
        runs[job.id] += 1
    return list(groups.values())


class Agent:
    """The node's daemon.

    Args:
        backends: measure the jobs; each is called after the providers of the values it needs (`runner.connect`).
        placement: keeps the agent off the jobs' CPUs.
        agent_stats, mapping, completeness: make the agent's own tables.
        health: receives the agent's state and its batches.

    Attributes:
        runners: one for each backend, in calling order.

    Raises:
        ConfigError: backends need values of each other, or provide one value twice.
    """

    def __init__(
        self,
        host_name: str,
        source: JobSource,
        backends: Sequence[InputBackend],
        queue: SendQueue,
        schedule: Schedule,
        placement: Placement | None = None,
        agent_stats: AgentStats | None = None,
        mapping: CounterNames | None = None,
        health: NodeHealth | None = None,
        completeness: CompletenessStats | None = None,
    ) -> None:
        self._host_name = host_name
        self._source = source
        for backend in backends:
            backend.use_jobs(source)
        self.runners = [
            Runner(
                BackgroundBackend(backend) if backend.blocking else backend,
                period_s=schedule.period_s,
                processes=None if backend.blocking else source.processes,
            )
            for backend in connect(backends)
        ]
        self._queue = queue
        self._schedule = schedule
        self._placement = placement
        self._agent_stats = agent_stats
        self._mapping = mapping
        self._health = health
        self._completeness = completeness
        self._own_failures = 0
        self._meter = Meter()
        self._clock = ClockWatch()
        self._seq = 0
        self._ticks = 0
        self._jobs_without_rows = 0
        self._ticked_ns = 0  # the time of the last tick's rows
        self._looks, self._drains = Pace(*LOOKS), Pace(*DRAINS)
        self._jobs: dict[int, Job] = {}
        self._poll, self._polled = select.poll(), set[int]()

    def changes(self) -> dict[str, Prepare]:
        """Return the options that can change between two ticks."""

        def pace(period_s: float) -> None:
            self._schedule.change(period_s)
            for runner in self.runners:
                runner.pace(period_s)
            for own in (self._agent_stats, self._completeness):
                if own is not None:
                    own.every.change(self_metrics_period_s(period_s))

        found: dict[str, Prepare] = {"sample_period": at_once(pace)}
        for runner in self.runners:
            for name, prepare in runner.changes().items():
                found[name] = functools.partial(self._prepare, runner, prepare)
        return found

    def _prepare(
        self, runner: Runner, prepare: Callable[[Any], Callable[[], Iterable[Sample]]], value: Any
    ) -> Callable[[], None]:
        commit = prepare(value)

        def put() -> None:
            time_ns = time.time_ns()
            tables = runner.change(commit, time_ns)
            if tables:
                self._send(self._batch(time_ns, tables))

        return put

    def tick(self) -> Batch:
        """Measure everything once, and return the batch."""
        self._clock.look()
        with self._meter:
            time_ns = time.time_ns()
            scan = self._scan()
            self._notice(scan.changed)
            tables = [table for runner in self.runners for table in runner.sample(scan.jobs, time_ns)]
            self._ticks += 1
            self._ticked_ns = time_ns
            self._note_missed(time_ns)
            return self._batch(time_ns, [*tables, *self._own_tables(time_ns)])

    def _batch(self, time_ns: int, tables: Iterable[Table], ended: Iterable[Job] = (), is_last: bool = False) -> Batch:
        self._seq += 1
        ids = {job.id for job in (*self._jobs.values(), *ended)} - {NODE_JOB}
        batch = Batch(self._host_name, self._queue.outbox.epoch, self._seq, time_ns, tuple(sorted(ids)), tuple(tables))
        if self._completeness is not None:
            with self._spared("completeness rows not sent failures=%d"):
                return self._completeness.add(batch, self._schedule.period_s, is_last)
        return batch

    def _note_missed(self, time_ns: int) -> None:
        """Report the samples missing in this tick."""
        if self._completeness is not None:
            self._completeness.begin_tick(time_ns)
            for runner in self.runners:
                if runner.missed:
                    schemas = (runner.backend.schema, *runner.backend.others)
                    self._completeness.missed(runner.missed, schemas, bool(self._jobs), runner.is_open)

    def _own_tables(self, time_ns: int) -> list[Table]:
        """Return the tables of numbered columns and of self-metrics, if wanted and due."""
        tables: list[Table] = []
        with self._spared():
            if self._mapping is not None:
                open_backends = [runner.backend for runner in self.runners if runner.is_open]
                closed_backends = [runner.backend for runner in self.runners if not runner.is_open]
                tables += self._mapping.tables(time_ns, open_backends, closed_backends)
        with self._spared():
            if self._agent_stats is not None and self._agent_stats.every.is_due():
                tables.append(self._agent_stats.table(time_ns, self.runners, self._totals()))
        return tables

    def _totals(self) -> dict[str, int]:
        """Return the agent's own counters, by column of `agent_default`."""
        totals = {
            "wall_time": self._meter.wall_ns // 1000,
            "overruns": self._schedule.overruns,
            "ticks": self._ticks,
            "batches_sent": self._queue.outbox.sent_batches,
            "batches_dropped": self._queue.dropped,
            "batches_acknowledged": self._queue.outbox.acknowledged,
            "batches_waiting": len(self._queue.outbox),
            "jobs": len(self._jobs.keys() - {NODE_JOB}),
            "jobs_without_rows": self._jobs_without_rows,
            **self._source.counters(),
        }
        if self._mapping is not None:
            totals["mapping_failures"] = self._mapping.failures
        if self._placement is not None:
            totals["cpus"] = len(self._placement.cpus)
            totals["placement_failures"] = self._placement.failures
        return totals

    def _scan(self) -> JobScan:
        """Find the jobs; send the last rows of ended ones."""
        scan = self._source.scan()
        if self._placement is not None:
            self._placement.update(scan.jobs)
        self._jobs = {job.id: job for job in scan.jobs}
        if scan.ended:
            time_ns = self._time_of_last_rows_ns()
            for ended in _runs_apart(scan.ended):
                tables = [table for runner in self.runners for table in runner.last(ended, time_ns)]
                with_rows = {int(job) for table in tables for job in table.rows["job_id"]}
                self._jobs_without_rows += sum(job.id not in with_rows for job in ended)
                if tables:
                    self._send(self._batch(time.time_ns(), tables, ended))
        return scan

    def _time_of_last_rows_ns(self) -> int:
        """Return the time of last rows: now, or the next second if the last tick was in this one.

        Files and databases have whole seconds. Two rows of a job in one would count twice in sums over a second.
        """
        now_ns = time.time_ns()
        following = now_ns // _NS + 1
        return following * _NS if self._ticked_ns // _NS == following - 1 else now_ns

    def open(self) -> None:
        """Open the backends, and have them measure every existing job."""
        for runner in self.runners:
            runner.open()
        self._notice(self._scan().jobs)

    def step(self, ready: Collection[int]) -> None:
        """Handle the events of these readable descriptors: jobs that began, changed or ended, and those of backends."""
        if self._source.fd in ready:
            with self._looks.working():
                changed = self._scan().changed
                self._notice(changed)
                if changed:  # that may have read events of other jobs
                    self._drain()
        if any(runner.fd in ready for runner in self.runners):
            with self._drains.working():
                self._drain()

    def _notice(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            for runner in self.runners:
                runner.notice(job)

    def _drain(self) -> None:
        """Have backends read their events; measure once more the jobs possibly about to end."""
        for _ in range(DRAINS_AT_ONCE):
            drained = {job for runner in self.runners if runner.fd >= 0 for job in runner.drain()}
            emptied = [self._jobs[job] for job in sorted(drained) if job in self._jobs]
            if not emptied:
                break
            for job in emptied:
                job.forget_tasks()
            self._notice(emptied)  # that may read further events

    def run(
        self,
        signals: Signals,
        errands: Errands | None = None,
        service: Service | None = None,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        """Tick until SIGTERM or SIGINT; between ticks, handle events of jobs and tasks, `errands` and SIGHUP."""
        service = service or Service()
        self.open()
        self._schedule.start()  # what opening took is no overrun
        always = {signals.fd, errands.fd} if errands is not None else {signals.fd}
        service.ready()
        while not signals.stop_wanted():
            service.alive()
            ready = self._wait(always, min(self._schedule.delay_s(), service.delay_s()))
            if signals.stop_wanted():
                break
            if self._schedule.delay_s() == 0:  # other descriptors stay readable until the next iteration
                self._sample()
                self._note_state(service)
                continue
            if signals.fd in ready:
                signals.drain()
            if errands is not None and errands.fd in ready:
                errands.serve()
            if signals.take(signal.SIGHUP):
                service.reloading()
                reload()
                service.ready()
            self.step(ready)
        service.stopping()
        self._send_last()

    def _wait(self, always: Iterable[int], delay_s: float) -> set[int]:
        """Wait for events, for `delay_s` at most; return the readable descriptors.

        Events of jobs and backends count only while their wake-ups need no rest.
        """
        waited = set(always)
        backend_fds = [runner.fd for runner in self.runners]
        for pace, fds in ((self._looks, [self._source.fd]), (self._drains, backend_fds)):
            rest_s = pace.rest_s()
            if rest_s:
                delay_s = min(delay_s, rest_s)
            else:
                waited.update(fds)
        waited.discard(-1)
        if waited != self._polled:
            self._poll, self._polled = select.poll(), waited
            for fd in waited:
                self._poll.register(fd, select.POLLIN)
        # rounded up: a poll that ends early would only be called again
        return {fd for fd, _ in self._poll.poll(delay_s * 1000 + 0.5)}

    def _send_last(self) -> None:
        """Send the rows measured since the last tick, and log all counts."""
        tables = [table for runner in self.runners for table in runner.take()]
        if tables or self._completeness is not None:
            self._queue.put(self._batch(time.time_ns(), tables, is_last=True))
        for runner in self.runners:
            counts = {"rows": runner.rows, "failures": runner.failures, **runner.counters()}
            log.info("stopping backend=%s %s", runner.name, " ".join(f"{name}={n}" for name, n in counts.items() if n))
        log.info(
            "stopping ticks=%d sent=%d dropped=%d overruns=%d",
            self._ticks,
            self._queue.outbox.sent_batches,
            self._queue.dropped,
            self._schedule.overruns,
        )

    def _sample(self) -> None:
        """Tick, and send."""
        if self._health is not None:
            self._health.sampling = True
        self._send(self.tick())
        self._note_overruns()
        if self._health is not None:
            self._health.sampling = False

    def _note_state(self, service: Service) -> None:
        """Note the agent's state, for its control socket and the service manager."""
        if self._health is not None:
            with self._spared():
                self._health.note(self.runners, self._totals(), self._meter.last_wall_ns, self._schedule.period_s)
                service.status(self._health.line)

    def _send(self, batch: Batch) -> None:
        self._queue.put(batch)
        if self._health is not None:
            with self._spared():
                self._health.take(batch)

    @contextlib.contextmanager
    def _spared(self, message: str = "agent_default not sent failures=%d") -> Iterator[None]:
        """Log and count a defect of ours in the block, and continue after it."""
        try:
            yield
        except Exception:
            self._own_failures += 1
            if powers_of_ten(self._own_failures):
                log.exception(message, self._own_failures)

    def _note_overruns(self) -> None:
        skipped = self._schedule.done()
        if skipped and self._completeness is not None:
            self._completeness.skipped(skipped, self._schedule.period_s)
        if powers_of_ten(self._schedule.overruns, self._schedule.overruns - skipped):
            log.warning(
                "tick took longer than the period, %d skipped, overruns=%d; is --sample-period %g s too short "
                "for what is measured?",
                skipped,
                self._schedule.overruns,
                self._schedule.period_s,
            )

    def close(self) -> None:
        """Release everything; can be called twice."""
        for runner in self.runners:
            try:
                runner.close()
            except Exception:  # the others are to be closed as well
                log.exception("close failed backend=%s", runner.name)
        until = time.monotonic() + FAREWELL_S
        for runner in self.runners:
            if isinstance(runner.backend, BackgroundBackend):
                runner.backend.join(max(0.0, until - time.monotonic()))
        if self._mapping is not None:
            self._mapping.join(max(0.0, until - time.monotonic()))
        self._source.close()
