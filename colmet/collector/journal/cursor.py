"""The reading position of one output in the journal: recent records from memory, the others from the segments."""

from __future__ import annotations

from typing import NamedTuple

from colmet.collector.backend import JournalRecord
from colmet.collector.journal.journal import Journal
from colmet.collector.journal.segment_store import SegmentStore
from colmet.collector.journal.segments import DESCRIPTION, MESSAGE, SegmentReader
from colmet.common.errors import OutputUnavailable, WireError
from colmet.common.record_log import Damage
from colmet.common.wire import Decoder, v1


class Reading(NamedTuple):
    """Records in order."""

    records: list[JournalRecord]  # the records
    lost: int  # number of missing records before or between them
    after: int  # position after them


class Cursor:
    """Reader of the journal for one output. For one thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._decoder = Decoder()
        self._reader: SegmentReader | None = None
        self._first = -1  # of the segment
        self._position = -1  # of the next record in it

    def read(self, position: int, most_bytes: int) -> Reading:
        """Return records from a position on, about `most_bytes` of them; none if there are none yet.

        Raises:
            OutputUnavailable: a segment exists and cannot be read now.
        """
        records, memory_from = self._journal.recent(position, most_bytes)
        if records is None:
            try:
                records = self._from_disk(position, memory_from, most_bytes)
            except OSError as err:
                path = self._reader.path if self._reader is not None else err.filename
                self.close()  # records already read from it are read again
                raise OutputUnavailable(f"journal: cannot read {path}: {err.strerror}") from err
            if not records:  # they are gone
                records, memory_from = self._journal.recent(memory_from, most_bytes)
        else:
            self.close()
        records = records or []
        after = records[-1].number + 1 if records else max(position, memory_from)
        return Reading(records, after - position - len(records), after)

    def _from_disk(self, position: int, limit: int, most_bytes: int) -> list[JournalRecord]:
        """Return records from the segments, from `position` to before `limit`."""
        store = self._journal.store
        if store is None:
            return []
        if self._reader is None or position != self._position:
            self.close()
            self._open(store, store.segment_of(position))
        self._position = -1  # after an error the reader's position is undefined
        records: list[JournalRecord] = []
        size = 0
        # never beyond the limit: bytes after it may be incomplete
        while self._reader is not None and position < limit and (size < most_bytes or not records):
            for found in self._reader.read():
                if isinstance(found, Damage):
                    store.set_aside(self._reader, found)
                elif found.number >= limit:
                    self._reader.offset = found.offset  # memory has it
                    self._position = limit
                    return records
                elif found.kind == DESCRIPTION:
                    try:
                        self._decoder.learn(v1.inflated(found.content))
                    except WireError as err:  # of another version of Colmet
                        self._journal.refuse(found.number, err)
                elif found.kind == MESSAGE and found.number >= position:
                    position = found.number + 1  # after a failed write, one may be in two segments
                    try:
                        batches = self._decoder.decode(found.content).batches
                        rows = sum([batch.row_count for batch in batches])
                        records.append(JournalRecord(found.number, found.time_ns, batches, rows))
                        size += sum([batch.size_bytes for batch in batches])
                    except WireError as err:  # of another version of Colmet
                        self._journal.refuse(found.number, err)
                    if position >= limit or (size >= most_bytes and records):
                        break
            else:
                self._next_segment(store)
        self._position = records[-1].number + 1 if records else -1
        return records

    def _open(self, store: SegmentStore, segment: tuple[int, str] | None) -> None:
        """Open a segment, or the first existing one after it, if any."""
        while segment is not None and self._reader is None:
            self._first, path = segment
            try:
                self._reader = SegmentReader(path, self._journal.journal)
            except FileNotFoundError:
                segment = store.segment_after(self._first)

    def _next_segment(self, store: SegmentStore) -> None:
        following = store.segment_after(self._first)
        if self._reader is not None and following is not None:
            rest = self._reader.size() - self._reader.offset
            if rest > 0:
                store.set_aside(self._reader, Damage(self._reader.offset, rest))
        self.close()
        self._open(store, following)

    def close(self) -> None:
        """Close the segment; idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
