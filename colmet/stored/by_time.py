"""All rows of a store by time, whatever their job: for what is made from whole stores, in bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from colmet.stored.series import History, Series

HOUR_S = 3600
WINDOW_BYTES = 48 << 20  # of the values read at a time; copies come on top
CELL_BYTES = 8
ROW_VALUES = 3  # of a row besides its columns

Columns = Mapping[str, Collection[str]]  # to read, by table


class Window(NamedTuple):
    """An interval, both ends included."""

    first: int  # seconds since 1970
    last: int
    share: float  # of the store's values up to its end


class RowsByTime(History):
    """A store that is read by time. Every method raises ColmetError, with a remedy, if it cannot be read."""

    @abstractmethod
    def amounts(self, columns: Columns) -> Mapping[int, int]:
        """Return the number of values, by hour since 1970, of hours with rows."""

    @abstractmethod
    def between(self, columns: Columns, first: int, last: int) -> Iterable[Series]:
        """Return the rows from `first` to `last`, seconds since 1970, of all jobs: a series for each job and host."""


def windows(amounts: Mapping[int, int], window_bytes: int = WINDOW_BYTES) -> Iterator[Window]:
    """Yield intervals with about `window_bytes` of values each: several hours, or a part of one."""
    whole = sum(amounts.values())
    done = open_bytes = 0
    begins: int | None = None  # of the open window
    for hour in sorted(amounts):
        size = amounts[hour] * CELL_BYTES
        if begins is not None and open_bytes + size > window_bytes:
            yield Window(begins, hour * HOUR_S - 1, done / whole)
            begins, open_bytes = None, 0
        parts = min(HOUR_S, -(-size // window_bytes))
        for part in range(parts) if parts > 1 else ():
            first, following = [hour * HOUR_S + HOUR_S * n // parts for n in (part, part + 1)]
            yield Window(first, following - 1, (done + amounts[hour] * (part + 1) / parts) / whole)
        done += amounts[hour]
        if parts <= 1:
            begins = hour * HOUR_S if begins is None else begins
            open_bytes += size
            last = hour
    if begins is not None:
        yield Window(begins, (last + 1) * HOUR_S - 1, 1.0)
