"""Line charts drawn with matplotlib: PNG, SVG, and SVG for a page of HTML."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from colmet.common.errors import ConfigError
from colmet.common.lines import Line, shown
from colmet.common.schema import Unit
from colmet.common.text import UTC, Clock, how_to_install
from colmet.stored.curves import Band, band, thinned

# Else it logs warnings about fonts, and about its cache if the home directory is not writable.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
try:
    import matplotlib
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ImportError as err:
    raise ConfigError(f"pictures require the Python module matplotlib: {how_to_install('matplotlib')}") from err

DPI = 100
MAX_LINES = 10  # more are drawn as a band
POINTS_A_PIXEL = 0.7  # of a line
DAY_S = 86400
# Distances between ticks of a time axis.
STEPS_S = (
    *(1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800),
    *[3600 * hours for hours in (1, 2, 3, 4, 6, 12)],
    *[DAY_S * days for days in (1, 2, 4, 7, 14, 28, 56, 112, 224, 448)],
)
TEXT_HEIGHT, LABEL_WIDTH, BAR_WIDTH = 18, 90, 130  # pixels
BAR_HEIGHT = 0.55  # of a line
MOST_ROOM = 4  # an axis includes a bound up to this multiple of the largest value

INK = "#1f2328"  # of text; replaced by the page's colour in a page
FAINT = "#8c959f"
REST = "#e3e8ed"  # of a bar
# Distinguishable with colour blindness (Okabe and Ito, 2008); without their yellow, too light on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")

_STYLE: Any = {
    "text.parse_math": False,  # names come from nodes and may contain a $
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.6,
    "svg.fonttype": "none",  # text stays text: searchable, and smaller
    "svg.hashsalt": "colmet",  # equal pictures are equal files
}


@dataclass(frozen=True)
class Panel:
    """One chart: lines of one unit over time."""

    title: str
    unit: Unit
    lines: Sequence[Line]  # by name; may be empty
    bound: float | None = None  # upper bound of all lines, in their unit


class TextRow(NamedTuple):
    """A line of text above charts."""

    label: str  # at its left; empty for further lines of the same label
    text: str
    share: float | None = None  # length of a bar before the text, 0 to 1; None without one
    colour: str = ""  # of the bar, else of the text


BAR_COLOURS = {
    **dict(zip(("cyan", "red", "green", "magenta", "blue", "yellow"), COLOURS)),
    **{"good": "#00785a", "low": "#8a6200", "poor": "#b34700", "exceeded": "#b34700"},  # readable as text
}


@contextmanager
def _style() -> Iterator[None]:
    """Apply these settings without the user's settings files, and without warnings."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs or little room are no concern of the user
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def span(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the first and the last time of lines; 1970 without lines."""
    ends = [time for line in lines for time in (float(line.times[0]), float(line.times[-1]))]
    return (min(ends), max(ends)) if ends else (0.0, 0.0)


def draw(
    panels: Sequence[Panel],
    width: int,
    height: int,
    clock: Clock = UTC,
    title: str = "",
    names: Sequence[str] = (),
    text: Sequence[TextRow] = (),
    columns: int = 1,
    ends: tuple[float, float] | None = None,
) -> Figure:
    """Draw charts below one another, or in columns, with one time axis.

    Sizes are in pixels. With `names`, those of the lines in the order of their colours, the legend is outside the
    picture. `text` has lines above the charts; `ends` are those of the time axis, else of the lines.
    """
    first, last = ends or span([line for panel in panels for line in panel.lines])
    order = list(dict.fromkeys([*names, *[line.name for panel in panels for line in panel.lines]]))
    legends: set[tuple[str, ...]] = set()
    with _style():
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(shown(title, 200), x=0.01, ha="left", weight="bold")
        rows = -(-len(panels) // columns)
        heights = [TEXT_HEIGHT * len(text) or 1e-3, *[max(1, (height - TEXT_HEIGHT * len(text)) / (rows or 1))] * rows]
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=heights)
        if text:
            _write(figure.add_subplot(grid[0, :]), text, width)
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(grid[1 + number // columns, number % columns])
            _draw(axes, panel, order, int(POINTS_A_PIXEL * width / columns) + 2)
            lines = 0
            if not names or len(panel.lines) > MAX_LINES:
                lines = _legend(axes, width // columns, legends)
            axes.set_title(shown(panel.title, 100), loc="left", fontsize=9.0, pad=6 + 13 * lines)
            _time_axis(axes, first, last, clock.at(first), min(7, width // columns // 65))
            if number + columns < len(panels):
                axes.tick_params(labelbottom=False)
                axes.set_xlabel("")
    return figure


def _write(axes: Axes, text: Sequence[TextRow], width: int) -> None:
    axes.axis("off")
    for number, row in enumerate(text):
        at = 1 - (number + 0.5) / len(text)
        axes.text(0, at, row.label, weight="bold", va="center", transform=axes.transAxes)
        left = LABEL_WIDTH / width
        colour = BAR_COLOURS.get(row.colour, INK)
        if row.share is not None:
            height = BAR_HEIGHT / len(text)
            for part, of in ((1.0, REST), (row.share, colour)):
                corner = left, at - height / 2
                axes.add_patch(Rectangle(corner, part * BAR_WIDTH / width, height, color=of, transform=axes.transAxes))
            left += (BAR_WIDTH + 10) / width
            colour = INK
        weight = "normal" if colour == INK else "bold"
        axes.text(left, at, row.text, color=colour, weight=weight, va="center", transform=axes.transAxes)


def look(number: int) -> tuple[str, bool]:
    """Return the colour of a line, and whether it is dashed."""
    return COLOURS[number % len(COLOURS)], number // len(COLOURS) % 2 == 1


def _legend(axes: Axes, width: int, drawn: set[tuple[str, ...]]) -> int:
    """Draw a legend above a panel, unless an earlier panel has the same one; return its number of rows."""
    handles, labels = axes.get_legend_handles_labels()
    names = tuple(map(str, labels))
    if len(names) < 2 or names in drawn:
        return 0
    drawn.add(names)
    columns = max(1, min(len(names), int(width / (45 + 6 * max(map(len, names))))))
    axes.legend(
        *(handles, labels),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        borderaxespad=0.1,
        borderpad=0.1,
        handlelength=1.6,
        columnspacing=1.2,
        labelspacing=0.3,
        fontsize=8.0,
    )
    return -(-len(names) // columns)


def _draw(axes: Axes, panel: Panel, order: Sequence[str], most: int) -> None:
    """Draw the lines of a panel, of `most` points each, or their band; and its value axis."""
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.tick_params(left=False, bottom=False, labelsize=8.0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    values = np.concatenate([np.empty(0), *[line.values for line in panel.lines]])
    values = values[np.isfinite(values)]
    if not len(values):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=FAINT)
        return
    if panel.bound is not None and panel.bound <= MOST_ROOM * values.max():
        values = np.append(values, panel.bound)
    divisor, unit = panel.unit.scaled(float(np.abs(values).max()))
    if panel.bound is not None:  # a distant one is outside the picture
        axes.axhline(panel.bound / divisor, color=FAINT, linestyle=(0, (2, 2)), linewidth=1)
    if len(panel.lines) > MAX_LINES:
        _draw_band(axes, band(panel.lines, most), len(panel.lines), divisor)
    else:
        for line in panel.lines:
            _draw_line(axes, thinned(line, most), order.index(line.name), divisor)
    _value_axis(axes, float(values.min()) / divisor, float(values.max()) / divisor, unit)


def _draw_line(axes: Axes, line: Line, number: int, divisor: float) -> None:
    colour, dashed = look(number)
    known = ~np.isnan(line.values)
    alone = known & ~np.append(known[1:], False) & ~np.append(False, known[:-1])  # no line passes through these
    axes.plot(
        *(line.times / DAY_S, line.values / divisor),
        color=colour,
        linestyle=(0, (4, 1.5)) if dashed else "-",
        linewidth=1.3,
        label=line.name,
    )
    axes.plot(line.times[alone] / DAY_S, line.values[alone] / divisor, ".", color=colour)


def _draw_band(axes: Axes, found: Band, count: int, divisor: float) -> None:
    days = found.times / DAY_S
    axes.plot(days, found.middle / divisor, color=COLOURS[0], linewidth=1.3, label="median")
    axes.fill_between(
        *(days, found.low / divisor, found.high / divisor),
        color=COLOURS[4],
        alpha=0.35,
        linewidth=0,
        label=f"lowest to highest of {count}",
    )


def _value_axis(axes: Axes, low: float, high: float, unit: str) -> None:
    if low >= 0 and unit not in ("°C", "s since 1970"):
        axes.set_ylim(0, 1.06 * high or 1)
    elif low == high:
        axes.set_ylim(low - 1, high + 1)
    every = ticker.MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10])
    axes.yaxis.set_major_locator(ticker.FixedLocator([0]) if low == high == 0 else every)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.10g} {unit}".strip()))


def _time_axis(axes: Axes, first: float, last: float, where: tzinfo, most: int) -> None:
    """Draw a time axis with up to `most` ticks."""
    margin = max(0.01 * (last - first), 1.0)
    low, high = first - margin, last + margin
    axes.set_xlim(low / DAY_S, high / DAY_S)
    begin, end = [datetime.fromtimestamp(time, where) for time in (first, last)]
    days = f"{begin:%Y-%m-%d}" if begin.date() == end.date() else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    axes.set_xlabel(f"{days}, {begin:%Z}", loc="right", fontsize=8.0)
    offset = (begin.utcoffset() or timedelta()).total_seconds()  # ticks are at round times of that zone
    step = next((step for step in STEPS_S if high - low <= step * most), (high - low) // most)
    at = np.arange(-(-(low + offset) // step), (high + offset) // step + 1) * step - offset
    axes.set_xticks(at / DAY_S, [_clock(datetime.fromtimestamp(time, where), step) for time in at.tolist()])


def _clock(moment: datetime, step_s: float) -> str:
    """Return a tick's label: a time, or the date at midnight."""
    if step_s < 60:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%H:%M}" if (moment.hour or moment.minute) and step_s < DAY_S else f"{moment:%d %b}"


_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the picture as a file of this kind, png or svg."""
    with _style(), io.BytesIO() as file:
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
        return file.getvalue()


_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_REFERENCE = re.compile(r"#([A-Za-z0-9_-]+)")
_NUMBER = re.compile(r"-?\d+\.\d+")


def inline_svg(figure: Figure, name: str, title: str, text: str) -> str:
    """Return the picture as an element of HTML: in the page's colours and fonts, without styles of its own.

    `name`, of letters and digits, is unique in the page; `title` and `text` are for screen readers.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    root = ElementTree.fromstring(rendered(figure, "svg"))
    wanted = {
        match[1] for node in root.iter() for value in node.attrib.values() for match in _REFERENCE.finditer(value)
    }
    for parent in list(root.iter()):
        for node in list(parent):
            if node.tag in (f"{_SVG}metadata", f"{_SVG}style") or (node.tag == f"{_SVG}defs" and not len(node)):
                parent.remove(node)
    for node in root.iter():
        node.tag = node.tag.replace(_SVG, "")
        node.attrib = dict(_attributes(node.attrib, name, wanted))
        node.tail = None
        node.text = node.text if node.tag == "text" else None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": f"{name}-title {name}-text"}
    for number, (tag, said) in enumerate((("title", title), ("desc", text))):
        node = ElementTree.Element(tag, {"id": f"{name}-{'text' if number else 'title'}"})
        node.text = shown(said, 1000)
        root.insert(number, node)
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(given: dict[str, str], name: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the attributes of an element: its style split into attributes, its id and references made unique."""
    for key, value in given.items():
        if key == "style":
            for part in value.split(";"):
                style, _, of_it = [text.strip() for text in part.partition(":")]
                if style == "font":
                    yield "font-size", of_it.split()[0]
                elif of_it and style != "font-family":  # the page has its own
                    yield style, of_it.replace(INK, "currentColor")
        elif key == "id":
            if value in wanted:
                yield key, f"{name}-{value}"
        elif key == "d":
            tenths = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}", " ".join(value.split()))
            yield key, re.sub(r" *([A-Za-z]) *", r"\1", tenths)
        elif key.startswith(_XLINK) or "url(#" in value:
            yield key.replace(_XLINK, ""), _REFERENCE.sub(rf"#{name}-\1", value)
        elif not value.startswith("rotate(-0 "):
            yield key, value
