"""Charts of lines over time as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from colmet.common.lines import Line, shown
from colmet.common.schema import Unit
from colmet.common.text import Clock, counted

BARS = " ▁▂▃▄▅▆▇█"
ASCII_BARS = " .:#"
ZERO = "_"
HEIGHT = 5  # rows of a chart
AXIS = 10  # characters of the labels at the left


def chart(
    title: str, unit: Unit, lines: Sequence[Line], ends: tuple[float, float], width: int, bars: str = BARS
) -> Iterator[str]:
    """Yield the rows of a chart: the mean over its lines, of each part of the time the highest value.

    A time without values is blank. `ends` are the first and last second of the time axis, `bars` characters of growing
    height, the first for nothing.
    """
    columns = max(10, width - AXIS - 1)
    each = np.array([_columns_of(line, ends, columns) for line in lines])
    known = (~np.isnan(each)).sum(axis=0)
    values = np.where(known > 0, np.nansum(each, axis=0) / np.maximum(known, 1), np.nan)
    most = float(np.nanmax(values))
    if most <= 0:
        yield f"{title}: nothing above 0"
        return
    divisor, symbol = unit.scaled(most)
    of = ""
    if len(lines) > 1:
        highest = max(lines, key=lambda line: float(np.nanmax(line.values)))
        peak = float(np.nanmax(highest.values)) / divisor
        of = f" (mean of {counted(len(lines), 'lines')}; highest {peak:.3g} {symbol} on {shown(highest.name)})"
    yield f"{title}{of}"
    steps = len(bars) - 1
    level = np.nan_to_num(values) / most * HEIGHT * steps
    level = np.where((np.nan_to_num(values) > 0) & (level < 1), 1, np.round(level)).astype(int)  # not 0: visible
    for row in reversed(range(HEIGHT)):
        label = f"{most / divisor:.3g} {symbol}".rstrip() if row == HEIGHT - 1 else "0" if row == 0 else ""
        cells = [bars[min(steps, max(0, one - row * steps))] for one in level.tolist()]
        if row == 0:
            cells = [ZERO if is_zero else cell for is_zero, cell in zip((values == 0).tolist(), cells)]
        yield f"{label:>{AXIS}} {''.join(cells)}".rstrip()


def axis(ends: tuple[float, float], clock: Clock, width: int) -> str:
    """Return the time axis below charts, with the zone."""
    first, last = clock.text(ends[0]), f"{clock.text(ends[1])} {clock.zone(*ends)}"
    room = max(10, width - AXIS - 1)
    return f"{'':>{AXIS}} {first}{last:>{max(len(last) + 1, room - len(first))}}"


def _columns_of(line: Line, ends: tuple[float, float], columns: int) -> npt.NDArray[np.float64]:
    """Return the highest value of each part of the time; between two samples with a line, the later one's."""
    first, last = ends
    found = np.full(columns, np.nan)
    span = max(last - first, 1.0)
    at = np.minimum((line.times - first) / span * columns, columns - 1).astype(int)
    before = -1
    for place, value in zip(at.tolist(), line.values.tolist()):
        if np.isnan(value):
            before = -1
            continue
        begin = place if before < 0 else min(before + 1, place)
        found[begin : place + 1] = np.fmax(found[begin : place + 1], value)
        before = place
    return found
