"""Read GPUs through nvidia-smi, without NVML: no energy, no PCIe, no MIG instances."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence

from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.schema import Value
from colmet.node.gpus.reading import Gpu, GpuReader, Process, read_number
from colmet.node.system.command import Command
from colmet.node.system.host import Host

log = logging.getLogger(__name__)

PROGRAM = "nvidia-smi"
DEADLINE_S = 20.0  # without persistence mode, the driver initialises each GPU for each run
MIB = 1 << 20

_IDENTITY = ("index", "uuid", "name", "pci.bus_id")
# column: its name there, and the factor from its unit to that of the column
_QUERIES: dict[str, tuple[str, int]] = {
    "power": ("power.draw", 1),
    "power_limit": ("enforced.power.limit", 1),
    "utilization_gpu": ("utilization.gpu", 1),
    "utilization_memory": ("utilization.memory", 1),
    "memory_total": ("memory.total", MIB),
    "memory_free": ("memory.free", MIB),
    "memory_used": ("memory.used", MIB),
    "memory_reserved": ("memory.reserved", MIB),
    "temperature": ("temperature.gpu", 1),
    "temperature_memory": ("temperature.memory", 1),
    "fan": ("fan.speed", 1),
    "clock_graphics": ("clocks.gr", 1),
    "clock_sm": ("clocks.sm", 1),
    "clock_memory": ("clocks.mem", 1),
    "performance_state": ("pstate", 1),
    "clock_event_reasons": ("clocks_throttle_reasons.active", 1),
    "ecc_corrected_volatile": ("ecc.errors.corrected.volatile.total", 1),
    "ecc_uncorrected_volatile": ("ecc.errors.uncorrected.volatile.total", 1),
    "ecc_corrected_aggregate": ("ecc.errors.corrected.aggregate.total", 1),
    "ecc_uncorrected_aggregate": ("ecc.errors.uncorrected.aggregate.total", 1),
}
_REALS = frozenset({"power", "power_limit"})
_REFUSED = re.compile(r'Field "([a-z0-9_.]{1,64})" is not a valid field')
_ABSENT = re.compile(r"couldn't communicate|No devices were found|version mismatch|not supported on this", re.I)
_REMEDY = "is the NVIDIA driver loaded, and of the version of its libraries?"


def parse_value(text: str, factor: int, of_reals: bool) -> Value:
    """Return a number of nvidia-smi times a factor; None for ``[N/A]`` and any other text in brackets.

    Forms: ``34``, ``61.25``, ``P0``, ``0x0000000000000001``.

    Raises:
        ValueError: another form.
    """
    if text.startswith("[") or text in ("N/A", "Not Supported", "ERR!"):
        return None
    if re.fullmatch(r"P\d{1,2}", text):
        return int(text[1:])
    if re.fullmatch(r"0x[0-9a-fA-F]{1,15}|0x0[0-9a-fA-F]{15}", text):
        return int(text, 16)
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text) is None:  # times MIB, a column holds it
        raise ValueError(f"not a number: {text!r}")
    number = float(text) * factor
    return number if of_reals else int(number)


def parse_gpus(text: str, columns: Sequence[str]) -> list[Gpu]:
    """Return the GPUs in the output of ``--query-gpu``, one a line: their identity, then the queried columns.

    Raises:
        ValueError: another form.
    """
    gpus = []
    for line in text.splitlines():
        index, uuid, name, pci, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(columns) or not uuid.startswith("GPU-") or not re.fullmatch(r"[0-9]{1,4}", index):
            raise ValueError(line)
        values = {
            column: parse_value(cell, _QUERIES[column][1], column in _REALS) for column, cell in zip(columns, cells)
        }
        gpus.append(Gpu(uuid, name, pci, int(index), values=values, processes=[]))
    return gpus


def parse_processes(text: str) -> Iterator[tuple[str, Process]]:
    """Return uuid and process of each line of ``--query-compute-apps=gpu_uuid,pid,used_gpu_memory``."""
    for line in text.splitlines():
        uuid, pid, used = [cell.strip() for cell in line.split(",")]
        if not uuid.startswith("GPU-"):
            raise ValueError(line)
        memory = parse_value(used, MIB, of_reals=False)
        yield uuid, Process(int(pid), memory if isinstance(memory, int) else None)


class SmiReader(GpuReader):
    """Runs nvidia-smi, twice for each reading."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._columns = list(_QUERIES)
        self._ask_gpus = self._query()
        self._ask_processes = self._command("--query-compute-apps=gpu_uuid,pid,used_gpu_memory")

    def open(self) -> None:
        """Run it once; BackendUnavailable without the program or a GPU, or if it fails."""
        try:
            self._gpus()
        except CommandFailed as err:
            if err.why == "absent":
                raise BackendUnavailable(f"there is no {PROGRAM}, which comes with the driver") from err
            raise BackendUnavailable(f"{err}; {_REMEDY}") from err

    def read(self) -> list[Gpu]:
        """Return all GPUs; none is marked lost, as the program fails as a whole in that case."""
        gpus = {gpu.uuid: gpu for gpu in self._gpus()}
        answer = self._ask_processes.run()
        processes: dict[str, list[Process]] = {uuid: [] for uuid in gpus}
        try:
            for uuid, process in parse_processes(answer):
                if uuid in processes:
                    processes[uuid].append(process)
        except ValueError as err:
            raise ParseError(str(self._ask_processes), answer[:200]) from err
        for uuid, gpu in gpus.items():
            gpu.processes = processes[uuid]
        return list(gpus.values())

    def _query(self) -> Command:
        names = [*_IDENTITY, *[_QUERIES[column][0] for column in self._columns]]
        return self._command(f"--query-gpu={','.join(names)}")

    def _command(self, query: str) -> Command:
        made = self._host.command([PROGRAM, query, "--format=csv,noheader,nounits"], DEADLINE_S)
        self.programs = (*self.programs, made)
        return made

    def _gpus(self) -> list[Gpu]:
        answer = self._run()
        try:
            gpus = parse_gpus(answer, self._columns)
        except ValueError as err:
            if _ABSENT.search(answer):
                raise BackendUnavailable(f"{PROGRAM}: {' '.join(answer.split())[:200]}") from err
            raise ParseError(PROGRAM, answer[:200]) from err
        if not gpus:
            raise BackendUnavailable(f"{PROGRAM} finds no NVIDIA GPU on this node")
        for gpu in gpus:
            gpu.minor = self._minor(gpu.pci)
        return gpus

    def _run(self) -> str:
        """Return its output; drop columns unknown to this version from the query."""
        while True:
            try:
                return self._ask_gpus.run()
            except CommandFailed as err:
                refused = _REFUSED.search(str(err))
                known = [column for column in self._columns if refused and _QUERIES[column][0] == refused[1]]
                if not known:
                    if _ABSENT.search(str(err)):
                        raise BackendUnavailable(f"{err}; {_REMEDY}") from err
                    raise
                self._columns.remove(known[0])
                self._ask_gpus = self._query()

    def _minor(self, pci: str) -> int | None:
        """Return the N of a GPU's ``/dev/nvidiaN``. Source: /proc/driver/nvidia/gpus/<bus id>/information."""
        if re.fullmatch(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]", pci) is None:
            return None
        path = f"/proc/driver/nvidia/gpus/{pci[4:].lower()}/information"
        return read_number(self._host, path, rb"^Device Minor:\s+(\d{1,6})\s*$")
