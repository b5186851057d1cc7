"""Find the job ids of cgroups named by text ids (SLUIDs) in Slurm 26.05 and later."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.host import Host
from colmet.common.host.processes import Question
from colmet.node.jobs.places import job_number

log = logging.getLogger(__name__)

_STEPD = re.compile(rb"slurmstepd: \[([0-9]+)\.[^\]]*\]")
_STEPD_GROUP = re.compile(r"/step_[^/]+/slurm")
_ROOT = re.compile(rb"^Uid:\s+0\s+0\s+0\s+0\s*$", re.M)
_JOB_ID = re.compile(rb"(?:\A|\0)SLURM_JOB_ID=([^\0]*)(?=\0|\Z)")
_MAX_FILE = 256 << 10  # bytes of an environment or a command line: a user chooses their length
_MAX_PROCESSES = 64  # of one directory, read in one walk
_MAX_WARNINGS = 1000
GRACE_S = 5.0  # Slurm makes the directory before slurmstepd is in it


class Sluids:
    """Search for the job of each directory with a text id.

    The id is in the command line of slurmstepd, ``slurmstepd: [<job id>.<step>]``. Users can give their own processes
    any command line, so only those of root in the job's ``step_*/slurm`` count. Without one, the environment of the
    job's processes counts, unless two disagree; users can write it, so it is read again at each walk.

    Attributes:
        guessed: jobs of directories, known only from the environment of processes.
        waiting: directories with an unknown job, each with the start of waiting.
        unmapped: number of directories without a known job after GRACE_S.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sure: dict[str, int] = {}
        self._warned: set[str] = set()
        self.guessed: dict[str, int] = {}
        self.waiting: dict[str, float] = {}
        self.unmapped = 0

    def sure(self, path: str, groups: Callable[[], Sequence[str]]) -> int:
        """Return the job id that slurmstepd has for a directory; 0 without one. `groups`: it and those inside it."""
        job = self._sure.get(path, 0)
        if not job:
            job = self._from_stepd(path, groups())
            if job:
                self._sure[path] = job
                self.guessed.pop(path, None)
                self.waiting.pop(path, None)
        return job

    def guess(self, path: str, groups: Sequence[str], others: Container[int], now: float) -> int:
        """Return the job id in the environments of a directory's processes; 0 if unknown, or among those of `others`.

        `groups`: the directory and those inside it; `now`: monotonic time.
        """
        job = self._from_environment(path, groups)
        if job and job not in others:
            self.guessed[path] = job
            self.waiting.pop(path, None)
            return job
        self.guessed.pop(path, None)
        since = self.waiting.setdefault(path, now)
        if now - since >= GRACE_S and path not in self._warned:
            self._warned.add(path)
            self.unmapped += 1
            if self.unmapped <= _MAX_WARNINGS or powers_of_ten(self.unmapped):
                log.warning(
                    "job of a cgroup is unknown path=%s directories=%d; its tasks are not measured "
                    "(with CgroupJobIdPaths=yes in cgroup.conf, Slurm 26.05.2 and later name cgroups job_<id>)",
                    path,
                    self.unmapped,
                )
        return 0

    def keep(self, paths: Container[str]) -> None:
        """Forget all other directories."""
        self._sure = {path: job for path, job in self._sure.items() if path in paths}
        self.guessed = {path: job for path, job in self.guessed.items() if path in paths}
        self._warned = {path for path in self._warned if path in paths}
        self.waiting = {path: since for path, since in self.waiting.items() if path in paths}

    def forget(self, path: str) -> None:
        """Forget a path: it has another directory now."""
        self._sure.pop(path, None)
        self.guessed.pop(path, None)
        self._warned.discard(path)
        self.waiting.pop(path, None)

    def _from_stepd(self, path: str, groups: Sequence[str]) -> int:
        inside = [group for group in groups if _STEPD_GROUP.fullmatch(group[len(path) :])]
        return self._agreed(path, [pid for group in inside for pid in self._processes(group)], self._in_command_line)

    def _from_environment(self, path: str, groups: Sequence[str]) -> int:
        pids: list[int] = []
        for group in groups:
            pids += self._processes(group)[: _MAX_PROCESSES - len(pids)]
        return self._agreed(path, pids, self._in_environment)

    def _agreed(self, path: str, pids: Iterable[int], find: Callable[[int], set[int]]) -> int:
        """Return the id agreed on by the processes of a directory; 0 without one."""
        ids: set[int] = set()
        for answer in self._host.processes.ask([Question(pid, path, partial(find, pid)) for pid in pids]):
            if isinstance(answer, set):
                ids |= answer
        return ids.pop() if len(ids) == 1 else 0

    def _in_command_line(self, pid: int) -> set[int]:
        if not _ROOT.search(self._read(f"/proc/{pid}/status")):
            return set()
        match = _STEPD.match(self._read(f"/proc/{pid}/cmdline"))
        return {job_number(match[1].decode()) or 0} if match else set()

    def _in_environment(self, pid: int) -> set[int]:
        found = _JOB_ID.findall(self._read(f"/proc/{pid}/environ"))
        return {job_number(text.decode("ascii", "replace")) or 0 for text in found}

    def _processes(self, group: str) -> list[int]:
        return [int(pid) for pid in self._read(f"{group}/cgroup.procs").split()[:_MAX_PROCESSES]]

    def _read(self, path: str) -> bytes:
        try:
            return self._host.read_start(path, _MAX_FILE)
        except OSError:
            return b""  # ended meanwhile, a threaded group, or no permission: no id in it
