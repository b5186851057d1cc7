"""Self-metrics: one row of agent_default for the agent as a whole and one for each backend."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from colmet.common.errors import ParseError
from colmet.common.host.host import Host
from colmet.common.host.processes import Processes
from colmet.common.schema import MISSING_INT, Table
from colmet.common.tables.agent import AGENT as SCHEMA
from colmet.node.schedule import Every

if TYPE_CHECKING:
    from colmet.node.runner import Runner

AGENT = b"agent"  # the label of the row of the agent as a whole
_ROW = struct.Struct("<q" + "".join(["q" if field.dtype == "i8" else f"{field.dtype[1:]}s" for field in SCHEMA.fields]))
_PLACES = {name: n for n, name in enumerate(("job_id", *SCHEMA.names))}
_EMPTY = [0, *[field.missing for field in SCHEMA.fields]]
_KBYTES_A_PAGE = resource.getpagesize() // 1024


def _programs_cpu_us() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e6)


class Meter:
    """Sums CPU time and wall time of the code within ``with meter:``.

    Args:
        processes: its thread works for the code, too, and is counted; None: no such thread.

    Attributes:
        cpu_ns: CPU time.
        wall_ns: wall time.
        last_wall_ns: wall time of the last run.
    """

    __slots__ = ("_cpu", "_processes", "_wall", "cpu_ns", "last_wall_ns", "wall_ns")

    def __init__(self, processes: Processes | None = None) -> None:
        self._processes = processes
        self.cpu_ns = self.wall_ns = self.last_wall_ns = self._cpu = self._wall = 0

    def __enter__(self) -> None:
        self._wall = time.perf_counter_ns()
        self._cpu = self._cpu_ns()

    def __exit__(self, *_: object) -> None:
        self.cpu_ns += self._cpu_ns() - self._cpu
        self.last_wall_ns = time.perf_counter_ns() - self._wall
        self.wall_ns += self.last_wall_ns

    def _cpu_ns(self) -> int:
        return time.thread_time_ns() + (self._processes.cpu_ns if self._processes is not None else 0)


class AgentStats:
    """Builds agent_default, at the first tick and then at most once a period.

    Args:
        host: the machine.
        period_s: seconds between two tables; 0 for one at every tick.
    """

    def __init__(self, host: Host, period_s: float = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._every = Every(period_s, monotonic)
        self._statm = host.keep("/proc/self/statm")

    def is_due(self) -> bool:
        """Return whether the period has passed since the last table; if so, begin the next period."""
        return self._every.is_due()

    def change(self, period_s: float) -> None:
        """Set the period, in seconds."""
        self._every.change(period_s)

    def table(self, time_ns: int, runners: Iterable[Runner], totals: Mapping[str, int]) -> Table:
        """Return a row for the agent, then one for each backend.

        Args:
            time_ns: of the tick.
            runners: of the backends.
            totals: the agent's counters, by column.

        Raises:
            ParseError: /proc/self/statm has an unknown form.
        """
        packed = []
        rows = failures = 0
        for runner in runners:
            rows += runner.rows
            failures += runner.failures
            packed.append(
                self._pack(
                    {
                        "is_on": int(runner.is_open),
                        "cpu_time": runner.cpu_ns // 1000,
                        "wall_time": runner.wall_ns // 1000,
                        "rows": runner.rows,
                        "failures": runner.failures,
                        "overruns": runner.overruns,
                        **runner.counters(),
                    },
                    runner.name.encode(),
                )
            )
        agent = {
            "is_on": 1,
            "cpu_time": time.process_time_ns() // 1000,
            "rows": rows,
            "failures": failures,
            "programs_cpu_time": _programs_cpu_us(),
            "rss": self._rss(),
            "open_files": self._open_files(),
            "kept_files": self._host.kept,
            **totals,
        }
        return Table(SCHEMA, time_ns, b"".join([self._pack(agent, AGENT), *packed]))

    @staticmethod
    def _pack(values: Mapping[str, int], label: bytes) -> bytes:
        row = _EMPTY.copy()
        row[1] = label
        for name, value in values.items():
            row[_PLACES[name]] = value
        return _ROW.pack(*row)

    def _rss(self) -> int:
        try:
            data = self._statm.read()
            return int(data.split(None, 2)[1]) * _KBYTES_A_PAGE
        except OSError:
            return MISSING_INT
        except (ValueError, IndexError) as err:
            raise ParseError(self._statm.path, data) from err

    def _open_files(self) -> int:
        try:
            return self._host.size("/proc/self/fd") or MISSING_INT
        except OSError:
            return MISSING_INT

    def close(self) -> None:
        """Close the file; also twice."""
        self._statm.close()
