"""Read GPUs through NVML: the only import of pynvml (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import BackendUnavailable
from colmet.common.text import how_to_install
from colmet.node.gpus import Gpu, GpuReader, Process

log = logging.getLogger(__name__)

MAX_GPUS = 64
MAX_PROCESSES = 4096  # of one GPU
RENEW_S = 60.0  # between two attempts to find lost GPUs again

# nvmlReturn_t, as nvml.h numbers them
_NO_SUCH_VALUE = frozenset({2, 3, 4, 6, 13, 21, 22, 24, 25, 26})  # not supported, not found, no permission, ...
_NO_SUCH_GPU = frozenset({15, 16, 28})  # lost, to be reset, not found
_NO_DRIVER = frozenset({1, 9, 12, 18})  # not initialised, not loaded, no library, another version
_MEMORY_V2 = (40 | 2 << 24) & 0xFFFFFFFF  # nvmlMemory_v2: size and version
_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
_UINT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN
# Larger values mean "not available". 2^53 is more than any GPU has, and leaves room for energy in uJ and for sums.
_MAX = {32: (1 << 32) - 1, 64: 1 << 53}
_MIG_ON = 1
_REMEDY = "is the NVIDIA driver loaded (see `nvidia-smi`), and of the version of its libraries?"


class _Lost(Exception):
    """A GPU has stopped answering."""


def _number(value: Any, bits: int = 32) -> int | None:
    """Return a whole number; None for numbers with the meaning "not available"."""
    return value if type(value) is int and 0 <= value < _MAX[bits] else None


def _text(value: Any) -> str:
    """Return a text; older versions of the module return bytes."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""


class NvmlReader(GpuReader):
    """Queries NVML, in this process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._nvml: Any = None
        self._renew_at: float | None = None
        self._known: dict[int, Gpu] = {}
        self._sampled_until: dict[str, int] = {}  # uuid -> time stamp of the last utilisation sample of processes

    def open(self) -> None:
        """Load NVML and initialise it; BackendUnavailable without the module, the library, the driver or GPUs."""
        try:
            import pynvml
        except ImportError as err:
            raise BackendUnavailable(f"the Python module pynvml is missing: {how_to_install('pynvml')}") from err
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as err:
            raise BackendUnavailable(f"NVML does not start: {err}; {_REMEDY}") from err
        self._nvml = pynvml
        self._renew_at = None
        if not self._count():
            self.close()
            raise BackendUnavailable("NVML finds no NVIDIA GPU on this node")

    def close(self) -> None:
        """Shut NVML down; can be called twice."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def read(self) -> list[Gpu]:
        """Return all GPUs and instances.

        While a GPU is lost, NVML is restarted every `RENEW_S`: a GPU answers only then after its reset.
        """
        if self._renew_at is not None and self._monotonic() >= self._renew_at:
            self.close()
            self.open()
        gpus: list[Gpu] = []
        for index in range(self._count()):
            try:
                gpus += list(self._gpu(index))
            except _Lost as err:
                self.lost += 1
                if powers_of_ten(self.lost):
                    log.warning("a GPU does not answer index=%d lost=%d: %s", index, self.lost, err)
                if self._renew_at is None:
                    self._renew_at = self._monotonic() + RENEW_S
                known = self._known.get(index)
                if known is not None:
                    gpus.append(Gpu(known.uuid, known.name, known.pci, known.index, known.minor, lost=True))
        return gpus

    def _count(self) -> int:
        try:
            return min(int(self._nvml.nvmlDeviceGetCount()), MAX_GPUS)
        except self._nvml.NVMLError as err:
            raise BackendUnavailable(f"NVML counts no GPUs: {err}; {_REMEDY}") from err

    def _gpu(self, index: int) -> Iterator[Gpu]:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            raise _Lost("it has no handle")
        gpu = Gpu(
            _text(self._ask("nvmlDeviceGetUUID", handle)),
            _text(self._ask("nvmlDeviceGetName", handle)),
            _text(getattr(self._ask("nvmlDeviceGetPciInfo", handle), "busId", "")),
            index,
            _number(self._ask("nvmlDeviceGetMinorNumber", handle)),
        )
        if not gpu.uuid:
            raise _Lost("it has no UUID")
        self._known[index] = gpu
        gpu.values = self._values(handle)
        instances = list(self._instances(handle, gpu))
        gpu.processes = self._processes(handle, gpu.uuid, not instances)
        yield gpu
        yield from instances

    def _instances(self, handle: Any, gpu: Gpu) -> Iterator[Gpu]:
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != _MIG_ON:
            return
        for index in range(min(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, MAX_GPUS)):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuid = _text(self._ask("nvmlDeviceGetUUID", instance)) if instance is not None else ""
            if not uuid:
                continue
            numbers = [_number(self._ask(f"nvmlDeviceGet{part}InstanceId", instance)) for part in ("Gpu", "Compute")]
            yield Gpu(
                uuid,
                _text(self._ask("nvmlDeviceGetName", instance)),
                gpu.pci,
                index,
                gpu.minor,
                gpu.uuid,
                None if None in numbers else (int(numbers[0] or 0), int(numbers[1] or 0)),
                self._memory(instance),
                self._processes(instance, uuid, False),
            )

    def _values(self, handle: Any) -> dict[str, Any]:
        def ask(name: str, *arguments: int) -> int | None:
            return _number(self._ask(f"nvmlDeviceGet{name}", handle, *arguments))

        def ask_long(name: str, *arguments: int) -> int | None:
            return _number(self._ask(f"nvmlDeviceGet{name}", handle, *arguments), 64)

        power_mw, limit_mw = ask("PowerUsage"), ask("EnforcedPowerLimit")
        energy_mj = ask_long("TotalEnergyConsumption")
        busy = self._ask("nvmlDeviceGetUtilizationRates", handle)
        reasons = ask_long("CurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = ask_long("CurrentClocksThrottleReasons")
        state = ask("PerformanceState")
        return {
            "power": None if power_mw is None else power_mw / 1000,
            "power_limit": None if limit_mw is None else limit_mw / 1000,
            "energy": None if energy_mj is None else energy_mj * 1000,
            "utilization_gpu": _number(getattr(busy, "gpu", None)),
            "utilization_memory": _number(getattr(busy, "memory", None)),
            **self._memory(handle),
            "temperature": ask("Temperature", 0),
            "temperature_memory": self._memory_temperature(handle),
            "fan": ask("FanSpeed"),
            "clock_graphics": ask("ClockInfo", 0),
            "clock_sm": ask("ClockInfo", 1),
            "clock_memory": ask("ClockInfo", 2),
            "performance_state": None if state == _UNKNOWN_STATE else state,
            "clock_event_reasons": reasons,
            "ecc_corrected_volatile": ask_long("TotalEccErrors", 0, 0),
            "ecc_uncorrected_volatile": ask_long("TotalEccErrors", 1, 0),
            "ecc_corrected_aggregate": ask_long("TotalEccErrors", 0, 1),
            "ecc_uncorrected_aggregate": ask_long("TotalEccErrors", 1, 1),
            "pcie_tx": ask("PcieThroughput", 0),
            "pcie_rx": ask("PcieThroughput", 1),
            "pcie_replays": ask("PcieReplayCounter"),
        }

    def _memory(self, handle: Any) -> dict[str, Any]:
        # The first form counts the driver's reserved memory as used; nvidia-smi does not, since driver 510.
        memory = None
        with contextlib.suppress(TypeError):  # a module older than that
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
        if memory is None:
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return {
            f"memory_{part}": _number(getattr(memory, part, None), 64) for part in ("total", "free", "used", "reserved")
        }

    def _memory_temperature(self, handle: Any) -> int | None:
        answers = self._ask("nvmlDeviceGetFieldValues", handle, [_MEMORY_TEMPERATURE])
        if not answers or answers[0].nvmlReturn != 0 or answers[0].valueType != _UINT:
            return None
        return _number(answers[0].value.uiVal)

    def _processes(self, handle: Any, uuid: str, with_utilization: bool) -> list[Process] | None:
        compute = self._listed("Compute", handle)
        if compute is None:
            return None
        memory: dict[int, int | None] = {}
        others = [process for kind in ("Graphics", "MPSCompute") for process in self._listed(kind, handle) or ()]
        for process in (*compute, *others):
            used = _number(process.usedGpuMemory, 64)
            memory[process.pid] = max([n for n in (used, memory.get(process.pid)) if n is not None], default=None)
        busy = self._utilization(handle, uuid) if with_utilization and memory else {}
        return [Process(pid, memory[pid], busy.get(pid)) for pid in sorted(memory)]

    def _listed(self, kind: str, handle: Any) -> list[Any] | None:
        """Return the processes of one kind, by the newest call of both module and driver."""
        for version in ("_v3", "_v2", ""):
            processes = self._ask(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
            if processes is not None:
                return list(processes[:MAX_PROCESSES])
        return None

    def _utilization(self, handle: Any, uuid: str) -> dict[int, float]:
        """Return the mean of the driver's samples since the last reading, by process."""
        since = self._sampled_until.get(uuid, 0)
        shares: dict[int, list[int]] = {}
        for sample in self._ask("nvmlDeviceGetProcessUtilization", handle, since) or ():
            if sample.timeStamp > since and 0 <= sample.smUtil <= 100:
                shares.setdefault(sample.pid, []).append(sample.smUtil)
                self._sampled_until[uuid] = max(self._sampled_until.get(uuid, 0), sample.timeStamp)
        return {pid: sum(some) / len(some) for pid, some in shares.items()}

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return one answer; None if this GPU, this driver or this version of the module lacks it."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError as err:
            if err.value in _NO_DRIVER:
                raise BackendUnavailable(f"NVML does not answer any more: {err}; {_REMEDY}") from err
            if err.value in _NO_SUCH_GPU:
                raise _Lost(str(err)) from err
            if err.value not in _NO_SUCH_VALUE:
                self.failures += 1
                if powers_of_ten(self.failures):
                    log.warning("NVML fails function=%s failures=%d: %s", name, self.failures, err)
            return None
        except getattr(self._nvml, "NVMLLibraryMismatchError", ()):
            return None  # the driver is older than the module
