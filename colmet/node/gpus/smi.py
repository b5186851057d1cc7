"""Read GPUs through nvidia-smi, without NVML: no energy, no PCIe, no MIG instances."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import LONGEST_TEXT, BackendUnavailable, CommandFailed, ParseError
from colmet.common.host.command import Command
from colmet.common.host.host import Host
from colmet.common.schema import Value
from colmet.node.gpus import Gpu, GpuReader, Process, read_number

log = logging.getLogger(__name__)

PROGRAM = "nvidia-smi"
DEADLINE_S = 20.0  # without persistence mode, the driver initialises each GPU for each run
MIB = 1 << 20
_REMARK = "WARNING:"
_WARNED = 14  # its exit status with a remark on an infoROM; its values are right

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
    """Return a number of nvidia-smi times a factor; None for any text in brackets; ValueError for another form.

    Forms: ``34``, ``61.25``, ``P0``, ``0x0000000000000001``, ``[N/A]``.
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


def parse_gpu(line: str, columns: Sequence[str]) -> Gpu:
    """Return the GPU in a line of ``--query-gpu``: its identity, then the queried columns; ValueError otherwise."""
    index, uuid, name, pci, *cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(columns) or not uuid.startswith("GPU-") or not re.fullmatch(r"[0-9]{1,4}", index):
        raise ValueError(line)
    values = {column: parse_value(cell, _QUERIES[column][1], column in _REALS) for column, cell in zip(columns, cells)}
    return Gpu(uuid, name, pci, int(index), values=values)


def parse_process(line: str) -> tuple[str, Process | None]:
    """Return uuid and process of a line of ``--query-compute-apps``; ValueError for another form.

    The process is None if the driver does not say its number: ``[N/A]``.
    """
    uuid, pid, used = [cell.strip() for cell in line.split(",")]
    if not uuid.startswith("GPU-"):
        raise ValueError(line)
    number, memory = parse_value(pid, 1, of_reals=False), parse_value(used, MIB, of_reals=False)
    if number is None:
        return uuid, None
    return uuid, Process(int(number), memory if isinstance(memory, int) else None)


class SmiReader(GpuReader):
    """Runs nvidia-smi, twice for each reading."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._columns = list(_QUERIES)
        self._once = OnceLog(log)
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
        """Return all GPUs; none is marked lost, as the program fails as a whole in that case.

        A GPU whose line cannot be read is left out. A process whose line cannot be read may be on any GPU, so that no
        GPU's processes are known.
        """
        gpus = self._gpus()
        processes: dict[str, list[Process] | None] = {gpu.uuid: [] for gpu in gpus}
        for line in self._rows(self._ask_processes.run()):
            try:
                uuid, process = parse_process(line)
            except ValueError:
                self._unread(line, "the processes on GPUs are unknown")
                processes = dict.fromkeys(processes)
                break
            on_it = processes.get(uuid)
            if process is None and uuid in processes:
                self._unread(line, "the processes on this GPU are unknown")
                processes[uuid] = None
            elif process is not None and on_it is not None:
                on_it.append(process)
        for gpu in gpus:
            gpu.processes = processes[gpu.uuid]
        return gpus

    def _rows(self, text: str) -> list[str]:
        """Return the lines with values; log its warnings between them, such as of a corrupted infoROM, each once."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in lines:
            if line.startswith(_REMARK):
                self._once.warning(f"nvidia-smi has a remark: {line[:LONGEST_TEXT]}")
        return [line for line in lines if not line.startswith(_REMARK)]

    def _unread(self, line: str, so: str) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.error("cannot read a line of nvidia-smi failures=%d: %s: %r", self.failures, so, line[:LONGEST_TEXT])

    def _query(self) -> Command:
        names = [*_IDENTITY, *[_QUERIES[column][0] for column in self._columns]]
        return self._command(f"--query-gpu={','.join(names)}")

    def _command(self, query: str) -> Command:
        words = [PROGRAM, query, "--format=csv,noheader,nounits"]
        made = self._host.command(words, DEADLINE_S, statuses=(0, _WARNED))
        self.programs = (*self.programs, made)
        return made

    def _gpus(self) -> list[Gpu]:
        text = self._run()
        gpus, unread = [], []
        for line in self._rows(text):
            try:
                gpus.append(parse_gpu(line, self._columns))
            except ValueError:
                unread.append(line)
        if not gpus and unread:
            if _ABSENT.search(text):
                raise BackendUnavailable(f"{PROGRAM}: {' '.join(unread)[:LONGEST_TEXT]}")
            raise ParseError(PROGRAM, unread[0])
        for line in unread:
            self._unread(line, "its GPU is left out")
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
