"""The node as a whole: uptime, memory, paging, CPU time, load."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from colmet.common.config.cli import Options, Rare
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host, Kept
from colmet.common.schema import Sample
from colmet.common.tables.procstats import CPU, LOAD, SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.kernel.textfiles import Keyed, Parser, Values

_MEMINFO = Keyed(
    {f.name[8:]: f.name for f in SCHEMA.fields if f.name.startswith("meminfo_")},
    name=lambda key: key.rstrip(b":").lower(),
)
_VMSTAT = Keyed({f.name[7:]: f.name for f in SCHEMA.fields if f.name.startswith("vmstat_")})
_STAT_KEYS = {key.encode(): f"stat_{key}" for key in ("intr", "ctxt", "processes", "procs_blocked")}


def parse_uptime(data: bytes, values: Values) -> None:
    """Parse /proc/uptime: two times in seconds."""
    total, idle = data.split()
    values.update(uptime_total=int(float(total)), uptime_idle=int(float(idle)))


def parse_meminfo(data: bytes, values: Values) -> None:
    """Parse /proc/meminfo: ``MemTotal:  24590436 kB``."""
    _MEMINFO(data.replace(b" kB\n", b"\n"), values)


def parse_stat(data: bytes, values: Values) -> None:
    """Parse /proc/stat: the cpu line, in jiffies, the number of lines of single CPUs, and counts."""
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


def parse_loadavg(data: bytes, values: Values) -> None:
    """Parse /proc/loadavg: ``0.56 0.39 0.17 1/123 4567``."""
    one, five, fifteen, tasks = data.split()[:4]
    numbers = (one, five, fifteen, *tasks.split(b"/"))
    values.update({field.name: float(number) for field, number in zip(LOAD, numbers)})


class ProcstatsBackend(InputBackend):
    """One row of the node."""

    name = "procstats"
    schema = SCHEMA

    def __init__(self, host: Host) -> None:
        self._sources: list[tuple[Kept, Parser]] = [
            (host.keep("/proc/uptime"), parse_uptime),
            (host.keep("/proc/meminfo"), parse_meminfo),
            (host.keep("/proc/vmstat"), _VMSTAT),
            (host.keep("/proc/stat"), parse_stat),
            (host.keep("/proc/loadavg"), parse_loadavg),
        ]

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument("--disable-procstats", action="store_true", help=Rare("do not measure the node as a whole"))

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> ProcstatsBackend | None:
        return None if options.disable_procstats else cls(host)

    def open(self) -> None:
        for source, _ in self._sources:
            try:
                source.read()
            except OSError as err:
                raise BackendUnavailable(f"cannot read {source.path}: {err.strerror}; is /proc mounted?") from err

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        values: Values = {}
        for source, parse in self._sources:
            data = source.read()
            try:
                parse(data, values)
            except (ValueError, IndexError) as err:
                raise ParseError(source.path, data[:80]) from err
        return [Sample(NODE_JOB, values)]

    def close(self) -> None:
        for source, _ in self._sources:
            source.close()
