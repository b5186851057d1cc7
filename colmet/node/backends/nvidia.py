"""NVIDIA GPUs: each job's, and each GPU of the node. Asks NVML, or nvidia-smi where there is none."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.common.errors import BackendUnavailable
from colmet.common.runtime.cli import Options, powers_of_ten
from colmet.common.schema import Field, Sample, Schema, Value, label
from colmet.node.backend import InputBackend
from colmet.node.gpus.allocation import Holdings
from colmet.node.gpus.nvml import NvmlReader
from colmet.node.gpus.reading import Gpu, Process, Reader, whole
from colmet.node.gpus.smi import SmiReader
from colmet.node.jobs.jobs import NODE_JOB, Job
from colmet.node.system.command import Command
from colmet.node.system.host import Host

log = logging.getLogger(__name__)

MIB = 1 << 20
MAX_JOBS = 256  # bytes of the ids of the jobs that hold or use a GPU


def _gauge(name: str, unit: str, text: str, source: str, dtype: str = "i8") -> Field:
    return Field(name, unit, "gauge", f"{text} Source: {source}.", dtype)


def _counter(name: str, unit: str, text: str, source: str) -> Field:
    return Field(name, unit, "counter", f"{text} Source: {source}.")


# "Its GPUs" are those and the MIG instances that it holds, and those on which one of its processes runs.
SCHEMA = Schema(
    "nvidiastats_default",
    "job",
    [
        _gauge("power", "watts", "Power of the job's GPUs now, summed.", "nvmlDeviceGetPowerUsage"),
        _gauge("temperature", "celsius", "The hottest of the job's GPUs.", "nvmlDeviceGetTemperature"),
        _gauge(
            "utilization-gpu",
            "percent",
            "Share of the time in which something computed on a GPU, mean of the job's GPUs.",
            "nvmlDeviceGetUtilizationRates gpu",
        ),
        _gauge(
            "utilization-memory",
            "percent",
            "Share of the time in which a GPU's memory was read or written, mean of the job's GPUs.",
            "nvmlDeviceGetUtilizationRates memory",
        ),
        _gauge("memory-total", "mbytes", "Memory of the job's GPUs, summed.", "nvmlDeviceGetMemoryInfo total"),
        _gauge("memory-free", "mbytes", "Unused memory of the job's GPUs, summed.", "nvmlDeviceGetMemoryInfo free"),
        _gauge(
            "memory-used",
            "mbytes",
            "Used memory of the job's GPUs, summed, whoever uses it.",
            "nvmlDeviceGetMemoryInfo used",
        ),
        _gauge("gpus", "count", "The job's GPUs and MIG instances.", "the nvidia backend"),
        _gauge("gpus_idle", "count", "Those of them on which no process of the job runs.", "the nvidia backend"),
        _gauge("gpus_shared", "count", "Those of them on which another job's processes run.", "the nvidia backend"),
    ],
)

GPUS = Schema(
    "nvidiagpus_default",
    "node",
    [
        label("uuid", 80, "UUID of the GPU or MIG instance.", "nvmlDeviceGetUUID"),
        label("name", 96, "Product, and profile of an instance.", "nvmlDeviceGetName"),
        label("pci", 32, "Bus id; of an instance, its GPU's.", "nvmlDeviceGetPciInfo busId"),
        label("parent", 80, "UUID of the GPU that an instance is part of.", "nvmlDeviceGetMigDeviceHandleByIndex"),
        label("jobs", MAX_JOBS, "Ids of the jobs that hold or use it, separated by commas.", "the nvidia backend"),
        _gauge("index", "none", "nvidia-smi's number; an instance's within its GPU.", "nvmlDeviceGetHandleByIndex"),
        _gauge("power", "watts", "Power now.", "nvmlDeviceGetPowerUsage", "f4"),
        _gauge("power_limit", "watts", "Power that it may take.", "nvmlDeviceGetEnforcedPowerLimit", "f4"),
        _counter("energy", "ujoules", "Energy since the driver was loaded.", "nvmlDeviceGetTotalEnergyConsumption"),
        _gauge(
            "utilization_gpu",
            "percent",
            "Share of the time in which something computed on it.",
            "nvmlDeviceGetUtilizationRates gpu",
        ),
        _gauge(
            "utilization_memory",
            "percent",
            "Share of the time in which its memory was read or written.",
            "nvmlDeviceGetUtilizationRates memory",
        ),
        _gauge("memory_total", "bytes", "Its memory.", "nvmlDeviceGetMemoryInfo total"),
        _gauge("memory_used", "bytes", "Used memory.", "nvmlDeviceGetMemoryInfo used"),
        _gauge("memory_free", "bytes", "Unused memory.", "nvmlDeviceGetMemoryInfo free"),
        _gauge("memory_reserved", "bytes", "What the driver keeps for itself.", "nvmlDeviceGetMemoryInfo_v2 reserved"),
        _gauge("temperature", "celsius", "Of the processor.", "nvmlDeviceGetTemperature"),
        _gauge("temperature_memory", "celsius", "Of its memory.", "NVML_FI_DEV_MEMORY_TEMP"),
        _gauge("fan", "percent", "Speed that its fan is to have, of the most.", "nvmlDeviceGetFanSpeed"),
        _gauge("clock_graphics", "mhz", "Graphics clock now.", "nvmlDeviceGetClockInfo GRAPHICS"),
        _gauge("clock_sm", "mhz", "Clock of the multiprocessors now.", "nvmlDeviceGetClockInfo SM"),
        _gauge("clock_memory", "mhz", "Memory clock now.", "nvmlDeviceGetClockInfo MEM"),
        _gauge("performance_state", "none", "0 (fastest) to 15.", "nvmlDeviceGetPerformanceState"),
        _gauge(
            "clock_event_reasons",
            "none",
            "Why the clocks are not higher, a bit each: 1 idle, 2 clocks set, 4 power cap, 8 hardware slowdown, 16 "
            "sync boost, 32 software thermal, 64 hardware thermal, 128 power brake, 256 display.",
            "nvmlDeviceGetCurrentClocksEventReasons",
        ),
        _counter(
            "ecc_corrected_volatile",
            "count",
            "Corrected memory errors since the driver was loaded.",
            "nvmlDeviceGetTotalEccErrors",
        ),
        _counter(
            "ecc_uncorrected_volatile",
            "count",
            "Uncorrected memory errors since the driver was loaded.",
            "nvmlDeviceGetTotalEccErrors",
        ),
        _counter(
            "ecc_corrected_aggregate",
            "count",
            "Corrected memory errors in its life.",
            "nvmlDeviceGetTotalEccErrors",
        ),
        _counter(
            "ecc_uncorrected_aggregate",
            "count",
            "Uncorrected memory errors in its life.",
            "nvmlDeviceGetTotalEccErrors",
        ),
        _gauge("pcie_tx", "kbytes", "Sent over PCIe a second, over 20 ms.", "nvmlDeviceGetPcieThroughput TX"),
        _gauge("pcie_rx", "kbytes", "Received over PCIe a second, over 20 ms.", "nvmlDeviceGetPcieThroughput RX"),
        _counter("pcie_replays", "count", "Repeated transfers over PCIe.", "nvmlDeviceGetPcieReplayCounter"),
        _gauge("processes", "count", "Processes on it.", "nvmlDeviceGetComputeRunningProcesses and others"),
        _gauge("processes_no_job", "count", "Those of them that are no job's.", "the nvidia backend"),
    ],
)

JOBS = Schema(
    "nvidiajobs_default",
    "job",
    [
        label("uuid", 80, "UUID of a GPU or MIG instance that the job holds or uses.", "nvmlDeviceGetUUID"),
        label("held_by", 16, "Who says what the job holds: devices, oar or environment.", "the nvidia backend"),
        _gauge(
            "held",
            "count",
            "1 where the job holds it, 0 where others say otherwise; missing where nobody says.",
            "devices.list of the job's devices cgroup, /var/lib/oar/<job>_resources, /proc/<pid>/environ",
        ),
        _gauge(
            "processes",
            "count",
            "The job's processes on it; 0 with held 1: it is held and not used.",
            "nvmlDeviceGetComputeRunningProcesses and others",
        ),
        _gauge(
            "memory_used",
            "bytes",
            "Memory that these processes use there.",
            "nvmlDeviceGetComputeRunningProcesses usedGpuMemory",
        ),
        _gauge(
            "utilization_sm",
            "percent",
            "Share of the time in which these processes computed there since the last sample; missing where the driver "
            "took no sample of them.",
            "nvmlDeviceGetProcessUtilization smUtil",
            "f4",
        ),
    ],
)


class Asked(NamedTuple):
    """What has to be known of a job.

    Attributes:
        job_id: of the job.
        identity: tells it from an earlier job of that id.
        pids: its processes.
        devices: its directory in the devices hierarchy of cgroup v1.
    """

    job_id: int
    identity: str
    pids: Sequence[int]
    devices: str | None


class _Share(NamedTuple):
    """A job's part in one GPU.

    Attributes:
        gpu: the GPU, or instance.
        is_held: None where nobody says.
        source: who says, "" for nobody.
        processes: the job's on it; None where they are not known.
    """

    gpu: Gpu
    is_held: bool | None
    source: str
    processes: Sequence[Process] | None


def _is_in(part: Gpu, gpu: Gpu) -> bool:
    """Whether it is this GPU, or an instance of it."""
    return gpu.uuid in (part.uuid, part.parent)


def _all(gpus: Iterable[Gpu], column: str) -> list[float] | None:
    """A column's numbers of all GPUs; None where one is missing: the rest would pass for the whole."""
    values = [gpu.values.get(column) for gpu in gpus]
    numbers = [value for value in values if isinstance(value, (int, float))]
    return numbers if len(numbers) == len(values) else None


def _of_job(
    job_id: int, shares: Sequence[_Share], gpus: Sequence[Gpu], owners: Mapping[int, set[int]]
) -> dict[str, Value]:
    """A job's row, from its shares; `owners` says whose processes there are, by pid."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    mine = [share.gpu for share in shares]

    def total(column: str) -> float | None:
        numbers = _all(mine, column)
        return None if numbers is None else sum(numbers)

    def mean(column: str) -> int | None:
        numbers = _all(mine, column)
        return None if numbers is None else _rounded(sum(numbers) / len(numbers))

    def mib(column: str) -> int | None:
        size = total(column)
        return None if size is None else int(size) // MIB

    power = total("power")
    temperatures = _all(
        [by_uuid.get(gpu.parent, gpu) for gpu in mine], "temperature"
    )  # an instance is as hot as its GPU
    idle = shared = None
    if all(share.processes is not None for share in shares):
        idle = sum(not share.processes for share in shares)
        shared = sum(any(owners.get(process.pid, set()) - {job_id} for process in gpu.processes or ()) for gpu in mine)
    return {
        "power": None if power is None else _rounded(power),
        "temperature": None if temperatures is None else _rounded(max(temperatures)),
        "utilization-gpu": mean("utilization_gpu"),
        "utilization-memory": mean("utilization_memory"),
        "memory-total": mib("memory_total"),
        "memory-free": mib("memory_free"),
        "memory-used": mib("memory_used"),
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


def _rounded(value: float) -> int:
    return int(value + 0.5)


def _label_of(text: str) -> bytes:
    return text.encode("ascii", "replace")


def _joined(jobs: Iterable[int]) -> bytes:
    """Ids as they fit; ``...`` behind those that do."""
    text = ",".join(map(str, sorted(jobs))).encode()
    return text if len(text) <= MAX_JOBS else text[: text.rindex(b",", 0, MAX_JOBS - 2)] + b",..."


class NvidiaBackend(InputBackend):
    """Rows of jobs that hold or use GPUs, of GPUs, and of each job on each of its GPUs."""

    name = "nvidia"
    schema = SCHEMA
    others = (GPUS, JOBS)
    blocking = True

    def __init__(self, host: Host) -> None:
        self._readers: tuple[Reader, ...] = (NvmlReader(), SmiReader(host))
        self._reader: Reader | None = None
        self._holdings = Holdings(host)
        self._devices: dict[str, str] = {}
        self._unread = 0
        self._told = False

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """One option to turn it on."""
        parser.add_argument(
            "--enable-nvidia",
            action="store_true",
            help="measure NVIDIA GPUs, of the node and of each job",
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> NvidiaBackend | None:
        """Off, unless it is asked for."""
        return cls(host) if options.enable_nvidia else None

    def open(self) -> None:
        """Find a way to the GPUs.

        Raises:
            BackendUnavailable: neither NVML nor nvidia-smi leads to one.
        """
        reasons = []
        for reader in self._readers:
            try:
                reader.open()
            except BackendUnavailable as err:
                reasons.append(str(err))
                continue
            if reasons and not self._told:
                self._told = True
                log.warning("nvidia-smi is used instead of NVML, and reports less: %s", reasons[0])
            self._reader = reader
            return
        raise BackendUnavailable("; ".join(reasons))

    def ask(self, jobs: Sequence[Job]) -> Sequence[Asked]:
        """The jobs' processes, and where their devices cgroups are; a job that cannot be read is left out."""
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
        """Rows of each job that holds or uses GPUs, and a row for each GPU and MIG instance that answers.

        Raises:
            BackendUnavailable: the driver has gone.
            CommandFailed: nvidia-smi failed this time.
            ParseError: nvidia-smi prints another form.
        """
        assert self._reader is not None
        gpus = self._reader.read()
        shares = {one.job_id: list(self._shares(one, gpus)) for one in jobs}
        self._holdings.keep([one.identity for one in jobs])
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
                theirs = [job_id for job_id, some in shares.items() if any(_is_in(share.gpu, gpu) for share in some)]
                samples.append(Sample(NODE_JOB, _of_gpu(gpu, theirs, owners), GPUS))
        return samples

    def _shares(self, job: Asked, gpus: Sequence[Gpu]) -> Iterable[_Share]:
        held = self._holdings.of(job.job_id, job.identity, job.devices, job.pids, gpus)
        pids = set(job.pids)
        for gpu in whole(gpus):
            on_it = None if gpu.processes is None else [process for process in gpu.processes if process.pid in pids]
            is_held = None if held is None else gpu.uuid in held.uuids
            if on_it or is_held:
                yield _Share(gpu, is_held, "" if held is None else held.source, on_it)

    def counters(self) -> Mapping[str, int]:
        """GPUs that did not answer, answers that failed, and jobs whose processes could not be read."""
        return {
            "gpus_lost": sum(reader.lost for reader in self._readers),
            "part_failures": sum(reader.failures for reader in self._readers),
            "jobs_unread": self._unread,
        }

    def programs(self) -> Iterable[Command]:
        """nvidia-smi, whether it is asked or not."""
        return [program for reader in self._readers for program in reader.programs]

    def close(self) -> None:
        """Shut NVML down; also twice."""
        for reader in self._readers:
            reader.close()
        self._reader = None
