"""CPUs and priority of the agent: CPUs without a job if possible, and a lower priority than all jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from colmet.common.host.host import Host, is_gone
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import cpu_files, parse_cpu_list

log = logging.getLogger(__name__)

THREADS = "/proc/self/task"
# Nice 5 has a quarter of a core beside one task, a twentieth beside ten: enough for a tick of some milliseconds. At
# nice 10 ticks were skipped on a node with ten runnable tasks a core.
NICE = 5
LOOKS = 20  # at a job whose CPUs may not have been set yet


class Placement:
    """Moves all threads of this process, ZeroMQ's too, and raises their nice values to `NICE` at least.

    No method raises: errors of the system are logged once and counted.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._jobs: list[Job] = []
        self._unsettled: dict[Job, int] = {}  # jobs to check again, and how often
        self._cpus_of: dict[Job, frozenset[int]] = {}
        self._warned: set[str] = set()
        self.failures = 0  # threads that could not be moved, and jobs whose CPUs could not be read
        self._all = self.cpus = frozenset(os.sched_getaffinity(0))

    def lower_priority(self) -> None:
        """Raise every thread's nice value; later threads inherit it."""
        self._for_each_thread(self._lower, "run at a lower priority")

    def _lower(self, tid: int) -> None:
        if os.getpriority(os.PRIO_PROCESS, tid) < NICE:
            os.setpriority(os.PRIO_PROCESS, tid, NICE)

    def update(self, jobs: Sequence[Job]) -> None:
        """Avoid the CPUs of these jobs; if that leaves none, run on all CPUs of the start.

        Cheap if no job came or went. A job of unknown CPUs blocks none.
        """
        if not (self._unsettled or self._jobs != list(jobs)):
            return
        former, self._cpus_of = self._cpus_of, {}
        for job in jobs:
            cpus = former.get(job)
            if cpus is None or job in self._unsettled:
                cpus = self._allocated(job)
            if cpus is not None:
                self._cpus_of[job] = cpus
        self._jobs = list(jobs)
        # A cpuset is made first and filled some milliseconds later: until then it is empty, or has all CPUs of its
        # parent, as does that of a job with the whole node.
        self._unsettled = {
            job: looks
            for job, cpus in self._cpus_of.items()
            if (not cpus or cpus >= self._all) and (looks := self._unsettled.get(job, LOOKS) - (job in former)) > 0
        }
        self._run_on(self._all.difference(*self._cpus_of.values()) or self._all)

    def _run_on(self, cpus: frozenset[int]) -> None:
        if cpus == self.cpus:
            return
        failures = self.failures
        self._for_each_thread(lambda tid: self._move(tid, cpus), "run on the CPUs that no job has")
        self.cpus = cpus if self.failures == failures else self._all
        log.info("runs on cpus=%s", ",".join(map(str, sorted(self.cpus))))

    def _move(self, tid: int, cpus: frozenset[int]) -> None:
        try:
            os.sched_setaffinity(tid, cpus)
        except ProcessLookupError:
            raise
        except OSError:  # EINVAL: they have been unplugged meanwhile
            os.sched_setaffinity(tid, self._all)
            raise

    def _allocated(self, job: Job) -> frozenset[int] | None:
        """Return the CPUs of a job; None if unknown."""
        for path in cpu_files(job):
            try:
                return parse_cpu_list(self._host.read(path))
            except (OSError, ValueError) as err:
                if not isinstance(err, OSError) or not is_gone(err):
                    self._failed(f"learn which CPUs jobs have ({path})", err)
        return None

    def _for_each_thread(self, change: Callable[[int], None], purpose: str) -> None:
        done: set[str] = set()
        for _ in range(3):  # a thread that is not changed yet may start another one
            try:
                tids = set(self._host.names(THREADS)) - done
            except OSError as err:
                self._failed(purpose, err)
                return
            if not tids:
                return
            done |= tids
            for tid in sorted(tids):
                try:
                    change(int(tid))
                except ProcessLookupError:
                    continue  # it has ended
                except OSError as err:
                    self._failed(purpose, err)

    def _failed(self, purpose: str, err: Exception) -> None:
        self.failures += 1
        what = purpose.partition(" (")[0]
        if what not in self._warned:
            self._warned.add(what)
            log.warning("cannot %s: %s", purpose, err)
