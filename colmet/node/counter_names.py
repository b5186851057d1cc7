"""Names of numbered columns such as `counter_7`, as rows of mapping_default and as files in the form of Colmet 0.6."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from colmet.common.config import cli
from colmet.common.host.host import Host
from colmet.common.schema import Sample, Table
from colmet.common.tables.agent import MAPPING as SCHEMA
from colmet.node.jobs.job import NODE_JOB

if TYPE_CHECKING:
    from colmet.node.backend import InputBackend

log = logging.getLogger(__name__)

PERIOD_S = 3600.0


class CounterName(NamedTuple):
    """The meaning of a numbered column of a table on this node."""

    counter: str  # the column, ``counter_7``
    name: str  # of the counted event or zone, ``package-0``, ``instructions``
    unit: str  # of its values
    zone: str = ""  # the measured part of the node, "" for the whole node


def add_options(parser: cli.Options) -> None:
    """Declare --mapping-dir."""
    parser.add_argument(
        "--mapping-dir",
        metavar="DIR",
        default=".",
        help=cli.Rare(
            "write the names of counter_1, counter_2, ... to files such as RAPL_mapping.<time>.csv in this directory; "
            "'': no files, the table mapping_default has the same (default: the working directory)"
        ),
    )


class CounterNames:
    """Builds the table of names and writes the files: at each start and when a name changes; the table hourly, too.

    A thread writes the files, as the directory may be on a hung file system; "" for no files. `failures` counts files
    that could not be written.
    """

    def __init__(self, host: Host, directory: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._host = host
        self._directory = os.path.abspath(directory) if directory else ""
        self._monotonic = monotonic
        self._due_at = 0.0
        self._known: dict[str, Sequence[CounterName]] = {}
        self._filed: set[str] = set()  # tables with a file
        self._files: dict[str, tuple[Sequence[str], int]] = {}  # to be written, by the prefix of their names
        self._writer: threading.Thread | None = None

    def tables(
        self, time_ns: int, backends: Iterable[InputBackend], closed: Iterable[InputBackend] = ()
    ) -> list[Table]:
        """Return the table if it is due; write the changed files.

        The open `backends` have names. Earlier names of `closed` ones stay true for their earlier rows, and they have a
        file, too, as in Colmet 0.6.
        """
        changed = False
        for backend in backends:
            names = backend.counter_names()
            if names and names != self._known.get(backend.schema.name):
                self._known[backend.schema.name] = names
                changed = True
                self._add_file(backend, time_ns)
        for backend in closed:
            if backend.schema.name not in self._filed:
                self._add_file(backend, time_ns)
        if self._files and (self._writer is None or not self._writer.is_alive()):
            self._writer = threading.Thread(target=self._write, args=(self._files,), name="colmet-mapping", daemon=True)
            self._files = {}
            self._writer.start()
        now = self._monotonic()
        if not self._known or (not changed and now < self._due_at):
            return []
        self._due_at = now + PERIOD_S
        samples = [
            Sample(
                NODE_JOB,
                {"metric": metric.encode(), **{field: value.encode() for field, value in name._asdict().items()}},
            )
            for metric, names in self._known.items()
            for name in names
        ]
        return [Table.from_samples(SCHEMA, time_ns, samples)]

    def _add_file(self, backend: InputBackend, time_ns: int) -> None:
        self._filed.add(backend.schema.name)
        file = backend.mapping_file()
        if file is not None and self._directory:
            self._files[file[0]] = (file[1], time_ns // 10**9)

    def join(self, within_s: float) -> None:
        """Wait until the files are written, at most `within_s` seconds."""
        if self._writer is not None:
            self._writer.join(within_s)

    def _write(self, files: Mapping[str, tuple[Sequence[str], int]]) -> None:
        for prefix, (lines, time_s) in files.items():
            path = f"{self._directory}/{prefix}_mapping.{time_s}.csv"
            try:
                self._host.write_new(path, "".join([f"{line}\n" for line in lines]).encode())
                log.info("counter names written path=%s", path)
            except OSError as err:
                self.failures += 1
                log.warning(
                    "cannot write %s: %s; name another directory with --mapping-dir, or '' for none: the table %s "
                    "has the same names",
                    path,
                    err.strerror,
                    SCHEMA.name,
                )
