"""NVIDIA GPUs of the node, and of each job, read by NVML, or by nvidia-smi without it."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from colmet.common.config.cli import Options
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import BackendUnavailable
from colmet.common.host.command import Command
from colmet.common.host.host import Host
from colmet.common.schema import Sample, Value
from colmet.common.tables.nvidia import GPUS, JOBS, MAX_JOBS, SCHEMA
from colmet.common.tables.nvidia import NVIDIA_COUNTERS as AGENT_COUNTERS
from colmet.node.backend import InputBackend
from colmet.node.gpus import Gpu, GpuReader, Process, whole
from colmet.node.gpus.allocation import Allocations
from colmet.node.gpus.nvml import NvmlReader
from colmet.node.gpus.smi import SmiReader
from colmet.node.jobs.job import NODE_JOB, Job

log = logging.getLogger(__name__)

MIB = 1 << 20


class Asked(NamedTuple):
    """The data needed of a job."""

    job_id: int
    identity: str  # distinguishes it from an earlier job of that id
    pids: Sequence[int]
    devices: str | None  # its directory in the devices hierarchy of cgroup v1


class _Share(NamedTuple):
    """A job's part in one GPU."""

    gpu: Gpu  # or instance
    is_held: bool | None  # whether it is allocated to the job; None if unknown
    source: str  # of the allocation, "" without one
    processes: Sequence[Process] | None  # the job's on it; None if unknown


def _all(gpus: Iterable[Gpu], column: str) -> list[float] | None:
    """Return a column's numbers of all GPUs; None if one is missing: the sum of the rest would be misleading."""
    values = [gpu.values.get(column) for gpu in gpus]
    numbers = [value for value in values if isinstance(value, (int, float))]
    return numbers if len(numbers) == len(values) else None


def _of_job(
    job_id: int, shares: Sequence[_Share], gpus: Sequence[Gpu], owners: Mapping[int, set[int]]
) -> dict[str, Value]:
    """Return a job's row, from its shares; `owners` has the jobs of each process, by pid."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    mine = [share.gpu for share in shares]
    whole_gpus = [by_uuid.get(gpu.parent, gpu) for gpu in mine]  # an instance is as hot as its GPU

    def folded(fold: Callable[[list[float]], float], column: str, of: Sequence[Gpu] = mine) -> float | None:
        numbers = _all(of, column)
        return None if numbers is None else fold(numbers)

    memory = {part: folded(sum, f"memory_{part}") for part in ("total", "free", "used")}
    idle = shared = None
    if all(share.processes is not None for share in shares):
        idle = sum(not share.processes for share in shares)
        shared = sum(any(owners.get(process.pid, set()) - {job_id} for process in gpu.processes or ()) for gpu in mine)
    return {
        "power": _rounded(folded(sum, "power")),
        "temperature": _rounded(folded(max, "temperature", whole_gpus)),
        "utilization-gpu": _rounded(folded(fmean, "utilization_gpu")),
        "utilization-memory": _rounded(folded(fmean, "utilization_memory")),
        **{f"memory-{part}": None if size is None else int(size) // MIB for part, size in memory.items()},
        "gpus": len(shares),
        "gpus_idle": idle,
        "gpus_shared": shared,
    }


def _of_share(share: _Share) -> dict[str, Value]:
    memory = busy = count = None
    if share.processes is not None:
        count = len(share.processes)
        sizes = [process.memory for process in share.processes]
        memory = sum([size or 0 for size in sizes]) if None not in sizes else None
        busy = [process.sm_percent for process in share.processes if process.sm_percent is not None]
    return {
        "uuid": _label_of(share.gpu.uuid),
        "held_by": _label_of(share.source),
        "held": None if share.is_held is None else int(share.is_held),
        "processes": count,
        "memory_used": memory,
        "utilization_sm": sum(busy) if busy else None,
    }


def _of_gpu(gpu: Gpu, jobs: Iterable[int], owners: Mapping[int, set[int]]) -> dict[str, Value]:
    known = gpu.processes is not None
    processes = gpu.processes or ()
    return {
        **gpu.values,
        "uuid": _label_of(gpu.uuid),
        "name": _label_of(gpu.name),
        "pci": _label_of(gpu.pci),
        "parent": _label_of(gpu.parent),
        "jobs": _joined(jobs),
        "index": gpu.index,
        "processes": len(processes) if known else None,
        "processes_no_job": sum(process.pid not in owners for process in processes) if known else None,
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else int(value + 0.5)


def _label_of(text: str) -> bytes:
    return text.encode("ascii", "replace")


def _joined(jobs: Iterable[int]) -> bytes:
    """Return a list of ids; ids beyond the column's width are replaced by ``...``."""
    text = ",".join(map(str, sorted(jobs))).encode()
    return text if len(text) <= MAX_JOBS else text[: text.rindex(b",", 0, MAX_JOBS - 2)] + b",..."


class NvidiaBackend(InputBackend):
    """Rows of jobs with allocated or used GPUs, of GPUs, and of each job on each of its GPUs."""

    name = "nvidia"
    schema = SCHEMA
    others = (GPUS, JOBS)
    agent_counters = AGENT_COUNTERS
    blocking = True

    def __init__(self, host: Host) -> None:
        self._readers: tuple[GpuReader, ...] = (NvmlReader(), SmiReader(host))
        self._reader: GpuReader | None = None
        self._allocations = Allocations(host)
        self._devices: dict[str, str] = {}
        self._unread = 0
        self._once = OnceLog(log)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        text = "measure NVIDIA GPUs, of the node and of each job"
        parser.add_argument("--enable-nvidia", action="store_true", help=text)

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> NvidiaBackend | None:
        return cls(host) if options.enable_nvidia else None

    def open(self) -> None:
        reasons = []
        for reader in self._readers:
            try:
                reader.open()
            except BackendUnavailable as err:
                reasons.append(str(err))
                continue
            if reasons:
                self._once.warning("nvidia-smi is used instead of NVML, and reports less: %s", reasons[0])
            self._reader = reader
            return
        raise BackendUnavailable("; ".join(reasons))

    def ask(self, jobs: Sequence[Job]) -> Sequence[Asked]:
        """Return the jobs' processes and devices cgroups; unreadable jobs are skipped."""
        asked = []
        for job in jobs:
            try:
                asked.append(Asked(job.id, job.identity, job.pids(), self._devices_of(job)))
            except OSError as err:
                self._unread += 1
                if powers_of_ten(self._unread):
                    log.warning("cannot read a job's processes job=%d failures=%d: %s", job.id, self._unread, err)
        here = {one.identity for one in asked}
        self._devices = {identity: path for identity, path in self._devices.items() if identity in here}
        return asked

    def _devices_of(self, job: Job) -> str | None:
        found = self._devices.get(job.identity) or job.directory("devices")
        if found is not None:
            self._devices[job.identity] = found
        return found

    def sample(self, jobs: Sequence[Asked]) -> Iterable[Sample]:
        assert self._reader is not None
        gpus = self._reader.read()
        shares = {one.job_id: list(self._shares(one, gpus)) for one in jobs}
        self._allocations.keep([one.identity for one in jobs])
        owners: dict[int, set[int]] = {}
        for one in jobs:
            for pid in one.pids:
                owners.setdefault(pid, set()).add(one.job_id)
        samples = []
        for job_id, some in shares.items():
            if some:
                samples.append(Sample(job_id, _of_job(job_id, some, gpus, owners)))
                samples += [Sample(job_id, _of_share(share), JOBS) for share in some]
        for gpu in gpus:
            if not gpu.lost:
                # its own, or those of its instances
                theirs = {
                    job_id
                    for job_id, some in shares.items()
                    for share in some
                    if gpu.uuid in (share.gpu.uuid, share.gpu.parent)
                }
                samples.append(Sample(NODE_JOB, _of_gpu(gpu, theirs, owners), GPUS))
        return samples

    def _shares(self, job: Asked, gpus: Sequence[Gpu]) -> Iterable[_Share]:
        held = self._allocations.of(job.job_id, job.identity, job.devices, job.pids, gpus)
        pids = set(job.pids)
        for gpu in whole(gpus):
            on_it = None if gpu.processes is None else [process for process in gpu.processes if process.pid in pids]
            is_held = None if held is None else gpu.uuid in held.uuids
            if on_it or is_held:
                yield _Share(gpu, is_held, "" if held is None else held.source, on_it)

    def counters(self) -> Mapping[str, int]:
        return {
            "gpus_lost": sum(reader.lost for reader in self._readers),
            "part_failures": sum(reader.failures for reader in self._readers),
            "jobs_unread": self._unread,
        }

    def programs(self) -> Iterable[Command]:
        return [program for reader in self._readers for program in reader.programs]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._reader = None
