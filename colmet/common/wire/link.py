"""Messages between node and collector besides the data: acknowledgements, and requests to the node.

Each message is one msgpack list: version, kind, then the fields of the kind. A node sends `Hello` on connecting and
every few seconds; the collector replies with an `Ack` of those batches it has, and sends further ones as more are
written to its disk. (docs/wire.md)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Union

import msgpack

from colmet.common.errors import WireError
from colmet.common.wire.limits import checked_host, checked_int, shown

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
MAX_RANGES = 4096
MAX_TEXT = 64 << 10
SHORT = "short"  # after the version in an Ack: the collector reads the short form of v1


class Range(NamedTuple):
    """Batches of one start of a node, from the first to the last, both included."""

    epoch: int
    first: int
    last: int


class Hello(NamedTuple):
    """Sent by a node: its identity, and its outbox."""

    host: str  # name of the node
    epoch: int  # of this start
    coming: int  # number of its next batch
    version: str  # of Colmet
    # batches not acknowledged: one range an epoch, from the oldest to the newest. No other batch with a lower number
    # than `coming`, and none of any other epoch before this one, is ever sent again
    held: tuple[Range, ...]


class Ack(NamedTuple):
    """Sent by the collector: batches it will not lose any more."""

    version: str  # of Colmet, the collector's; after a space, what else it reads: `SHORT`
    started: int  # start of the collector, ns since the epoch: after a restart, batches in transit are lost
    durable: bool  # whether they are on disk there, not only in memory
    duplicates: int  # batches of this host received more than once, since the collector's start
    ranges: tuple[Range, ...]  # acknowledged batches


class Describe(NamedTuple):
    """Sent by the collector: it lacks a description. The node sends its unacknowledged batches again, in full."""

    epoch: int  # of the batch without it


class Request(NamedTuple):
    """Sent by the collector: a client's request to the node; `content` is as on the control socket."""

    number: int
    content: bytes


class Answer(NamedTuple):
    """Sent by the node: its reply to the request with this number."""

    number: int
    content: bytes


Message = Union[Hello, Ack, Describe, Request, Answer]
KINDS: dict[str, type[Any]] = {"hello": Hello, "ack": Ack, "describe": Describe, "request": Request, "answer": Answer}
_NAMES = {kind: name for name, kind in KINDS.items()}


def encode(message: Message) -> bytes:
    """Encode a message; the fields are not checked."""
    packed: bytes = msgpack.packb([VERSION, _NAMES[type(message)], *message])
    return packed


def decode(message: bytes) -> Message:
    """Decode a message; WireError for any defect, and no other exception."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise WireError(f"link: {len(message)} bytes, more than the {MAX_MESSAGE_BYTES} that a message may have")
    try:
        values = msgpack.unpackb(
            message,
            max_array_len=MAX_RANGES,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=MAX_TEXT,
            max_bin_len=MAX_MESSAGE_BYTES,
        )
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"link: not a message: {type(err).__name__}: {err}") from err
    if type(values) is not list or len(values) < 2:
        raise WireError("link: not a list with a version and a kind")
    version, name, *fields = values
    kind = KINDS.get(name) if type(name) is str else None
    if type(version) is not int or version != VERSION or kind is None:
        raise WireError(
            f"link: message of version {shown(version)} and kind {shown(name)}, which this version does not know"
        )
    if len(fields) != len(kind._fields):
        raise WireError(f"link: {name} has {len(fields)} fields instead of {len(kind._fields)}")
    checked = [_CHECKS[field](value) for field, value in zip(kind._fields, fields)]
    made: Message = kind(*checked)
    return made


def _integer(value: Any) -> int:
    return checked_int(value, "link: a number")


def _version(value: Any) -> str:
    if type(value) is not str or len(value) > 64 or not value.isprintable():
        raise WireError(f"link: {shown(value)} is not a version")
    return value


def _typed(kind: type, what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise WireError(f"link: {shown(value)} is not {what}")
        return value

    return check


def _ranges(value: Any) -> tuple[Range, ...]:
    if type(value) is not list:
        raise WireError("link: the ranges are not a list")
    ranges = []
    for entry in value:
        if type(entry) is not list or len(entry) != 3:
            raise WireError(f"link: {shown(entry)} is not a range")
        found = Range(*[_integer(value) for value in entry])
        if found.first > found.last:
            raise WireError(f"link: {shown(entry)} is not a range that goes up")
        ranges.append(found)
    return tuple(ranges)


def _held(value: Any) -> tuple[Range, ...]:
    ranges = _ranges(value)
    if any(one.epoch >= following.epoch for one, following in zip(ranges, ranges[1:])):
        raise WireError("link: what is held is not one range an epoch, from the oldest to the newest")
    return ranges


_CHECKS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("epoch", "coming", "started", "duplicates", "number"), _integer),
    "host": checked_host,
    "version": _version,
    "held": _held,
    "durable": _typed(bool, "a truth value"),
    "ranges": _ranges,
    "content": _typed(bytes, "a byte string"),
}


def joined(numbers: Sequence[tuple[int, int]]) -> tuple[Range, ...]:
    """Return the fewest ranges for (epoch, sequence number) pairs, in any order and repeated or not."""
    ranges: list[Range] = []
    for epoch, number in sorted(set(numbers)):
        last = ranges[-1] if ranges else None
        if last is not None and last.epoch == epoch and last.last + 1 == number:
            ranges[-1] = Range(epoch, last.first, number)
        else:
            ranges.append(Range(epoch, number, number))
    return tuple(ranges)


class Ranges:
    """A set of `count` integers, kept as the fewest ranges; a range is its first and last number."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.count = 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, ascending."""
        return zip(self._firsts, self._lasts)

    def __contains__(self, number: int) -> bool:
        """Return whether the set contains this number."""
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    @property
    def first(self) -> int:
        """Return the lowest number; IndexError if empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """Return the highest number; IndexError if empty."""
        return self._lasts[-1]

    def follow(self, number: int) -> bool:
        """Add the number after the highest one; return False for any other number, which is not added."""
        lasts = self._lasts
        if not lasts or number != lasts[-1] + 1:
            return False
        lasts[-1] = number
        self.count += 1
        return True

    def add(self, first: int, last: int) -> int:
        """Add a range; return how many of its numbers were new."""
        if first == last and self.follow(first):  # by far the most frequent
            return 1
        # overlapping and adjacent ranges are merged
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        before = self.count
        if start < end:
            self.count -= sum([b - a + 1 for a, b in zip(self._firsts[start:end], self._lasts[start:end])])
            first, last = min(first, self._firsts[start]), max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]
        self.count += last - first + 1
        return self.count - before

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove a range; return the removed numbers, as ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        if start >= end:
            return []
        low, high = self._firsts[start], self._lasts[end - 1]
        gone = self.within(first, last)
        left = [(a, b) for a, b in ((low, first - 1), (last + 1, high)) if a <= b]
        self._firsts[start:end] = [a for a, _ in left]
        self._lasts[start:end] = [b for _, b in left]
        self.count -= sum([b - a + 1 for a, b in gone])
        return gone

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the numbers present in a range, as ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        return [(max(a, first), min(b, last)) for a, b in zip(self._firsts[start:end], self._lasts[start:end])]

    def at_or_after(self, number: int) -> int | None:
        """Return the lowest number not below this one; None without one."""
        at = bisect_left(self._lasts, number)
        return max(number, self._firsts[at]) if at < len(self._firsts) else None
