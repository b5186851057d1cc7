"""The node as a whole: uptime, memory, paging, CPU time, load."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from colmet.common.config.cli import Options, Rare
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.common.schema import Sample, Value
from colmet.common.tables.procstats import CPU, LOAD, SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.kernel.cgroupfiles import Keyed

_MEMINFO = Keyed(
    {f.name[8:]: f.name for f in SCHEMA.fields if f.name.startswith("meminfo_")},
    name=lambda key: key.rstrip(b":").lower(),
)
_VMSTAT = Keyed({f.name[7:]: f.name for f in SCHEMA.fields if f.name.startswith("vmstat_")})
_STAT_KEYS = {key.encode(): f"stat_{key}" for key in ("intr", "ctxt", "processes", "procs_blocked")}


def parse_uptime(data: bytes) -> dict[str, Value]:
    """Return the values of /proc/uptime: two times in seconds."""
    total, idle = data.split()
    return {"uptime_total": int(float(total)), "uptime_idle": int(float(idle))}


def parse_meminfo(data: bytes) -> dict[str, Value]:
    """Return the values of /proc/meminfo: ``MemTotal:  24590436 kB``."""
    values: dict[str, Value] = {}
    _MEMINFO(data.replace(b" kB\n", b"\n"), values)
    return values


def parse_vmstat(data: bytes) -> dict[str, Value]:
    """Return the values of /proc/vmstat: ``pgfault 12345``."""
    values: dict[str, Value] = {}
    _VMSTAT(data, values)
    return values


def parse_stat(data: bytes) -> dict[str, Value]:
    """Return the values of /proc/stat: the cpu line, in jiffies, the number of lines of single CPUs, and counts."""
    values: dict[str, Value] = {}
    cpus = 0
    for line in data.splitlines():
        key, _, rest = line.partition(b" ")
        if key == b"cpu":
            # kernels before 2.6.33 have fewer columns; later ones may add more
            values.update({field.name: int(number) for field, number in zip(CPU, rest.split())})
        elif key in _STAT_KEYS:
            values[_STAT_KEYS[key]] = int(rest.split(None, 1)[0])
        elif key[:3] == b"cpu":
            cpus += 1
    if cpus:
        values["stat_cpus"] = cpus
    if "stat_cpu_user" not in values:
        raise ValueError("no cpu line")
    return values


def parse_loadavg(data: bytes) -> dict[str, Value]:
    """Return the values of /proc/loadavg: ``0.56 0.39 0.17 1/123 4567``."""
    one, five, fifteen, tasks = data.split()[:4]
    runnable, total = tasks.split(b"/")
    numbers = (one, five, fifteen, runnable, total)
    return {field.name: float(number) for field, number in zip(LOAD, numbers)}


class ProcstatsBackend(InputBackend):
    """One row of the node."""

    name = "procstats"
    schema = SCHEMA

    def __init__(self, host: Host) -> None:
        self._sources = [
            (host.keep("/proc/uptime"), parse_uptime),
            (host.keep("/proc/meminfo"), parse_meminfo),
            (host.keep("/proc/vmstat"), parse_vmstat),
            (host.keep("/proc/stat"), parse_stat),
            (host.keep("/proc/loadavg"), parse_loadavg),
        ]

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the option to turn it off."""
        parser.add_argument("--disable-procstats", action="store_true", help=Rare("do not measure the node as a whole"))

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> ProcstatsBackend | None:
        """Return the backend, unless it is turned off."""
        return None if options.disable_procstats else cls(host)

    def open(self) -> None:
        """Read each file once; BackendUnavailable if one is missing."""
        for source, _ in self._sources:
            try:
                source.read()
            except OSError as err:
                raise BackendUnavailable(f"cannot read {source.path}: {err.strerror}; is /proc mounted?") from err

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return one row of job 0."""
        values: dict[str, Value] = {}
        for source, parse in self._sources:
            data = source.read()
            try:
                values.update(parse(data))
            except (ValueError, IndexError) as err:
                raise ParseError(source.path, data[:80]) from err
        return [Sample(NODE_JOB, values)]

    def close(self) -> None:
        """Close the files; can be called twice."""
        for source, _ in self._sources:
            source.close()
