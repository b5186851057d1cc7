"""The state of unfinished folds: arrays of whole numbers, a row for each job and host."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from colmet.common.schema import MISSING_INT
from colmet.jobs.fold_layout import LAYOUTS, Ints
from colmet.jobs.footprint import FIELDS as FOOTPRINT_FIELDS

FORM = 4  # of a packed fold; one of another form is begun again
MOST_FOLDS = 100_000

_HEADER = struct.Struct("<HHI")  # form, bytes of the user's name, numbers of a whole fold


class Head:
    """Columns of `FoldState.head`.

    `BEGAN` is the start of the first task, negative if there were rows before it (`START` is then the first one's
    time), 0 if unknown; `CPU_MARK` the CPU time at the last energy sample; energies are in microjoules.
    """

    JOB, HOST, START, BEGAN, FIRST, LAST, SEEN, OVER, USER, MOST_CPUS, MOST_TASKS, NODE_CPUS = range(12)
    CPU_MARK, JOULES, NODE_JOULES, ENERGY_S, SOURCE, WRITTEN = range(12, 18)


class RunOf:
    """Columns of `FoldState.runs`, see `colmet.common.tables`; -1 for an unknown value.

    They are the run's number, that of the run before, when the machine booted by the clock of the first row, and that
    clock less that of the last row.
    """

    RUN, FORMER_RUN, BOOTED, CLOCK_STEP = range(4)


class Rows:
    """Columns of `FoldState.tables`: time of the last row, rows, the usual step between them, and its majority."""

    TIME, ROWS, STEP, VOTES = range(4)


class Count:
    """Parts of a counter."""

    LAST, TIME, GROWN, COUNT, LEFT = range(5)


class Gauge:
    """Parts of a gauge."""

    LAST, MOST, SUM, HELD, COUNT = range(5)


def form_of(packed: bytes) -> int | None:
    """Return the form of a packed fold; None if it is damaged."""
    return int(_HEADER.unpack_from(packed)[0]) if len(packed) >= _HEADER.size else None


class FoldState:
    """Unfinished folds, by slot.

    Attributes:
        head: see `Head`, shape (slots, ...).
        tables: of each table, see `Rows`.
        counters: of each table, shape (slots, 5, counters), see `Count`.
        gauges: of each table, shape (slots, 5, gauges), see `Gauge`.
        footprint: see `colmet.jobs.footprint`.
        runs: see `RunOf`.
        users: names of users; `Head.USER` is an index, -1 if unknown.
        touched: whether a slot has changed since it was saved.
        unwritten: whether it has changed since its summary was written.
    """

    def __init__(self) -> None:
        self.capacity = 0
        self.users: list[str] = []
        self._user_of: dict[str, int] = {}
        self.free: list[int] = []
        self.used = np.zeros(0, np.bool_)
        self.touched = np.zeros(0, np.bool_)
        self.unwritten = np.zeros(0, np.bool_)
        self._empty = {name: self._empty_row(name) for name in self._names()}
        self._arrays = {name: np.repeat(row[None], 0, axis=0) for name, row in self._empty.items()}
        self._bind()

    @staticmethod
    def _names() -> list[tuple[str, str]]:
        parts = [("table", name) for name in LAYOUTS]
        parts += [("counter", name) for name in LAYOUTS] + [("gauge", name) for name in LAYOUTS]
        return [("head", ""), *parts, *[("footprint", name) for name in FOOTPRINT_FIELDS], ("run", "")]

    @staticmethod
    def _empty_row(name: tuple[str, str]) -> Ints:
        kind, of = name
        if kind == "head":
            row = np.zeros(Head.WRITTEN + 1, np.int64)
            row[[Head.USER, Head.MOST_CPUS, Head.MOST_TASKS, Head.NODE_CPUS]] = MISSING_INT
            return row
        if kind == "run":
            return np.array([MISSING_INT, MISSING_INT, MISSING_INT, 0], np.int64)
        if kind == "table":
            return np.array([MISSING_INT, 0, 0, 0], np.int64)
        if kind == "footprint":
            return np.full(FOOTPRINT_FIELDS[of].size, FOOTPRINT_FIELDS[of].empty, np.int64)
        count = len(LAYOUTS[of].counters if kind == "counter" else LAYOUTS[of].gauges)
        missing = (Count.LAST, Count.TIME) if kind == "counter" else (Gauge.LAST, Gauge.MOST)
        rows = np.zeros((5, count), np.int64)
        rows[list(missing)] = MISSING_INT
        return rows

    def _bind(self) -> None:
        arrays = self._arrays
        self.head: Ints = arrays["head", ""]
        self.tables: dict[str, Ints] = {name: arrays["table", name] for name in LAYOUTS}
        self.counters: dict[str, Ints] = {name: arrays["counter", name] for name in LAYOUTS}
        self.gauges: dict[str, Ints] = {name: arrays["gauge", name] for name in LAYOUTS}
        self.footprint: dict[str, Ints] = {name: arrays["footprint", name] for name in FOOTPRINT_FIELDS}
        self.runs: Ints = arrays["run", ""]

    @property
    def count(self) -> int:
        """Return the number of slots in use."""
        return self.capacity - len(self.free)

    def user(self, name: str) -> int:
        """Return the index of a user."""
        if name not in self._user_of:
            self._user_of[name] = len(self.users)
            self.users.append(name)
        return self._user_of[name]

    def take(self) -> int:
        """Return a free slot with an empty state; -1 if there are too many."""
        if not self.free:
            if self.capacity >= MOST_FOLDS:
                return -1
            self._grow(min(MOST_FOLDS, max(64, 2 * self.capacity)))
        slot = self.free.pop()
        self.used[slot] = True
        return slot

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        for name, row in self._empty.items():
            self._arrays[name] = np.concatenate([self._arrays[name], np.repeat(row[None], more, axis=0)])
        self.used = np.concatenate([self.used, np.zeros(more, np.bool_)])
        self.touched = np.concatenate([self.touched, np.zeros(more, np.bool_)])
        self.unwritten = np.concatenate([self.unwritten, np.zeros(more, np.bool_)])
        self.free += range(capacity - 1, self.capacity - 1, -1)
        self.capacity = capacity
        self._bind()

    def release(self, slots: Sequence[int]) -> None:
        """Free slots."""
        if not slots:
            return
        at = np.array(slots)
        for name, row in self._empty.items():
            self._arrays[name][at] = row
        self.used[at] = self.touched[at] = self.unwritten[at] = False
        self.free += slots

    def pack(self, slots: Ints) -> Iterator[bytes]:
        """Yield the states of slots as bytes.

        They are a header, the name of the user, then a bit for each byte of a whole fold, as zlib, and the bytes whose
        bit is set: all others are those of an empty fold. SQLite writes rows below 1 kB faster: a page has several.
        """
        parts = [array[slots].reshape(len(slots), -1) for array in self._arrays.values()]
        numbers = np.concatenate(parts, axis=1)
        whole = numbers.view(np.uint8)
        is_kept = (whole != self._empty_numbers().view(np.uint8)).any(axis=0)
        bits = zlib.compress(np.packbits(is_kept).tobytes())
        kept = whole[:, np.flatnonzero(is_kept)]
        for row, user_at in zip(kept, numbers[:, Head.USER].tolist()):
            user = self.users[user_at].encode() if user_at >= 0 else b""
            yield _HEADER.pack(FORM, len(user), numbers.shape[1]) + user + bits + row.tobytes()

    def _empty_numbers(self) -> Ints:
        return np.concatenate([empty.ravel() for empty in self._empty.values()])

    def unpack(self, packed: bytes, host: int) -> int:
        """Take a slot for a packed fold; return it, -1 if there are too many. ValueError for another form."""
        whole = self._empty_numbers()
        try:
            form, user_bytes, count = _HEADER.unpack_from(packed)
            if form != FORM or count != len(whole):
                raise ValueError(f"a fold of another form, {form}")
            user, rest = packed[_HEADER.size :][:user_bytes].decode(), packed[_HEADER.size + user_bytes :]
            unpacker = zlib.decompressobj()
            bits = np.frombuffer(unpacker.decompress(rest, whole.nbytes), np.uint8)
            is_kept, rest = np.unpackbits(bits, count=whole.nbytes).astype(np.bool_), unpacker.unused_data
        except (struct.error, zlib.error, UnicodeDecodeError) as err:
            raise ValueError(f"a damaged fold: {err}") from err
        if len(rest) != int(is_kept.sum()):
            raise ValueError("a damaged fold: cut off, or too long")
        whole.view(np.uint8)[is_kept] = np.frombuffer(rest, np.uint8)
        slot = self.take()
        if slot < 0:
            return slot
        at = 0
        for name, empty in self._empty.items():
            self._arrays[name][slot] = whole[at : at + empty.size].reshape(empty.shape)
            at += empty.size
        self.head[slot, Head.HOST] = host
        self.head[slot, Head.USER] = self.user(user) if user else MISSING_INT
        self.unwritten[slot] = self.head[slot, Head.WRITTEN] != self.head[slot, Head.LAST]
        return slot
