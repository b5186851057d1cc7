"""colmet-collector --check-journal: the content of a journal, for people. Read-only, at any time."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing

from colmet.collector.journal import segments
from colmet.collector.journal.segment_store import NAME_FILE, read_name, read_positions
from colmet.collector.journal.segments import DESCRIPTION, MESSAGE, SegmentReader
from colmet.common.errors import ConfigError, WireError
from colmet.common.record_log import Damage, LogRecord
from colmet.common.wire import Decoder, v1

NS = 1_000_000_000


def check(directory: str) -> int:
    """Print a summary of all records of a journal; return 1 for damage, else 0; ConfigError without a journal."""
    if not directory:
        raise ConfigError("--check-journal: give --journal-dir DIR, or the --hdf5-filepath PATH that it is beside")
    try:
        journal = read_name(directory)
        paths = segments.list_segments(directory)
        positions = read_positions(directory)
    except OSError as err:
        raise ConfigError(f"--check-journal: {directory}: {err.strerror}") from err
    if not journal:
        raise ConfigError(f"--check-journal: {directory}: no journal here ({NAME_FILE} is missing)")
    print(f"journal {journal} in {directory}")
    decoder = Decoder()
    damaged = 0
    end = 0
    for n, (first, path) in enumerate(paths):
        found = _SegmentReport(path, journal, decoder)
        last = n == len(paths) - 1
        damaged += found.damages + found.unreadable + (0 if last else bool(found.rest))
        end = max(end, found.after, first)
        print(found.text(last))
    for name, (position, keep_from) in positions.items():
        print(f"output {name} position={position} waiting={max(0, end - position)} keeps_from={keep_from}")
    if damaged:
        print(f"damaged places: {damaged}; the collector passes them over, and keeps a copy in {directory}/damaged")
    sys.stdout.flush()
    return 1 if damaged else 0


class _SegmentReport:
    """The content of one segment."""

    def __init__(self, path: str, journal: str, decoder: Decoder) -> None:
        self.path = path
        self.records = self.rows = self.damages = self.unreadable = self.rest = self.size = self.after = 0
        self._first = self._first_ns = self._last_ns = 0
        self.cause = ""
        try:
            self._read(journal, decoder)
        except FileNotFoundError:
            self.cause = "removed by the collector meanwhile"
        except OSError as err:
            self.cause = f"cannot be read: {err.strerror}"
            self.damages += 1

    def _read(self, journal: str, decoder: Decoder) -> None:
        with closing(SegmentReader(self.path, journal)) as reader:
            if reader.header is None:
                self.cause = "damaged header"
                self.damages = 1
            for record in reader.read():
                if isinstance(record, Damage):
                    self.damages += 1
                elif record.kind == MESSAGE:
                    self._count(record, decoder)
                elif record.kind == DESCRIPTION:
                    self._learn(record, decoder)
            self.size = reader.size()
            self.rest = self.size - reader.offset

    def _count(self, record: LogRecord, decoder: Decoder) -> None:
        if not self.records:
            self._first, self._first_ns = record.number, record.time_ns
        self.records += 1
        self.after, self._last_ns = record.number + 1, record.time_ns
        try:
            self.rows += sum([batch.row_count for batch in decoder.decode(record.content).batches])
        except WireError:
            self.unreadable += 1

    def _learn(self, record: LogRecord, decoder: Decoder) -> None:
        try:
            decoder.learn(v1.inflated(record.content))
        except WireError:
            self.unreadable += 1

    def text(self, last: bool) -> str:
        """Return one line for the segment."""
        line = f"segment {os.path.basename(self.path)} bytes={self.size} records={self.records} rows={self.rows}"
        if self.records:
            line += f" numbers={self._first}..{self.after - 1} from={_when(self._first_ns)} to={_when(self._last_ns)}"
        if self.damages or self.unreadable:
            line += f" damaged={self.damages} unreadable={self.unreadable}"
        if self.rest:
            line += f" {'unfinished' if last else 'damaged'}_bytes={self.rest}"
        return f"{line} ({self.cause})" if self.cause else line


def _when(time_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // NS))
