"""The CPU time of the jobs' cgroups, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Collection

from colmet.common.host.host import Host, Kept, is_gone
from colmet.node.jobs.job import Job

# Controller, file, start of its first line, unit in ns.
_FILES = (("cpuacct", "cpuacct.usage", b"", 1), ("unified", "cpu.stat", b"usage_usec ", 1000))


class GroupCpuTime:
    """Reader of the CPU time of all tasks ever in a job's cgroup. One file of each job stays open.

    Args:
        host: the machine.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        # by job, with the start and the unit, and the job's own directories then
        self._files: dict[int, tuple[Kept, bytes, int, tuple[str, ...]]] = {}

    def read(self, job: Job) -> int | None:
        """Return the CPU time in ns; None if nothing counts it."""
        known = self._files.get(job.id)
        if known is not None and known[3] != job.tops:  # another directory, or no directory has all of the job
            self.forget(job.id)
            known = None
        if known is not None:
            try:
                return _parse(known[0].read(), *known[1:3])
            except OSError as err:
                self.forget(job.id)
                if not is_gone(err):
                    raise
        for controller, name, start, unit_ns in _FILES:
            directory = job.directory(controller)
            if directory is None:
                continue
            file = self._host.keep(f"{directory}/{name}")
            try:
                found = _parse(file.read(), start, unit_ns)
            except OSError as err:
                if not is_gone(err):
                    raise
                continue
            if found is not None:
                self._files[job.id] = file, start, unit_ns, job.tops
                return found
        return None

    def keep_only(self, jobs: Collection[int]) -> None:
        """Close the files of every other job."""
        for job in [job for job in self._files if job not in jobs]:
            self.forget(job)

    def forget(self, job: int) -> None:
        """Close a job's file."""
        known = self._files.pop(job, None)
        if known is not None:
            known[0].close()

    def close(self) -> None:
        """Close all files; can be called twice."""
        self.keep_only(())


def _parse(data: bytes, start: bytes, unit_ns: int) -> int | None:
    line = data.partition(b"\n")[0]
    return int(line[len(start) :]) * unit_ns if line.startswith(start) and line[len(start) :].isdigit() else None
