"""A report as a page of HTML in one file, and as one picture.

Both contain the report's text and its curves. The page runs no scripts and loads nothing; its layout suits a desktop, a
phone and paper, light and dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from rich.style import Style
from rich.text import Text

from colmet import __version__
from colmet.common.lines import shown
from colmet.common.schema import UNITS, Unit
from colmet.common.text import UTC, Clock, counted, percent
from colmet.jobs.figures import Curve, HostFigures, Number, Report
from colmet.jobs.report import charts
from colmet.jobs.report.charts import TextRow
from colmet.jobs.report.jobs_page import HEAD, STYLE, table
from colmet.jobs.report.requested import complete_advice, no_advice, no_verdict, verdict
from colmet.jobs.report.text import MOST_LINES, Page, by_use, host_columns

CHART_SIZE = (360, 190)  # pixels; charts wrap to the width of the page, and are not scaled down
PICTURE_WIDTH, ROW_HEIGHT, LINE_HEIGHT = 1200, 210, 18
CHARACTERS = 150  # of a line in the picture
MOST_HOSTS = 200  # in the table; all are in the JSON
FEW_HOSTS = 16  # a longer table is folded
LONGEST = 400  # characters of a line of text
TITLES = {"End": "Why it ended", "Request": "Requested and used"}

_UNITS_OF_CURVES = {
    "cores": Unit("cores", "cores"),
    "tasks": Unit("tasks", "tasks"),
    "bytes/s": UNITS["bytes"].per_second(),
    **{name: UNITS[name] for name in ("bytes", "percent", "watts")},
}


class Words(Page):
    """The report's text with a mark in place of each bar, to be drawn elsewhere."""

    def bar(self, part: Number, style: str = "cyan") -> Text:
        """Return the share as a number, with the bar's share and colour as metadata."""
        if part is None:
            return Text("")
        return Text(f"{percent(part)}  ", Style(meta={"share": part, "colour": style}))


class Said(NamedTuple):
    """A line of the report."""

    text: str  # without control characters
    share: tuple[float, str] | None = None  # length of a bar, from 0 to 1, and its colour; None without a bar
    alarm: bool = False  # whether the line is a problem


def said(line: Text) -> Said:
    """Convert a line of the text for the page and the picture."""
    named = (line.style, *[span.style for span in line.spans])
    styles = [style if isinstance(style, Style) else Style.parse(str(style)) for style in named]
    found = [style.meta for style in styles if "share" in style.meta]
    share = (min(1.0, max(0.0, float(found[0]["share"]))), str(found[0]["colour"])) if found else None
    text = shown(line.plain.strip(), LONGEST).replace(" %", "\N{NO-BREAK SPACE}%")
    return Said(text, share, any(style.bold and not style.meta for style in styles))


def capital(text: str) -> str:
    """Return a sentence with an upper-case first letter."""
    return shown(text[:1].upper() + text[1:], LONGEST)


def panel(curve: Curve, titled: bool) -> charts.Panel:
    """Return the chart of a curve."""
    return charts.Panel(heading(curve) if titled else "", _UNITS_OF_CURVES[curve.unit], curve.lines, curve.bound)


def heading(curve: Curve) -> str:
    """Return the title of a chart."""
    if curve.bound is None or curve.unit == "percent":
        return curve.title
    divisor, unit = _UNITS_OF_CURVES[curve.unit].scaled(curve.bound)
    return f"{curve.title}, of {curve.bound / divisor:.4g} {unit}{' a host' if len(curve.lines) > 1 else ''}"


def _description(curve: Curve) -> str:
    """Return the description of a chart in words."""
    values = np.concatenate([line.values[np.isfinite(line.values)] for line in curve.lines] or [np.empty(0)])
    if not len(values):
        return "No values."
    divisor, unit = _UNITS_OF_CURVES[curve.unit].scaled(float(values.max()))
    low, mean, high = [value / divisor for value in (values.min(), values.mean(), values.max())]
    return f"{counted(len(curve.lines), 'hosts')}: from {low:.3g} to {high:.3g} {unit}, {mean:.3g} on average."


def html(report: Report, clock: Clock = UTC, unknown: str = "") -> bytes:
    """Return the page, with the times of a clock; `unknown` is the zone that was chosen in vain."""
    return ("\n".join(_page(report, clock, unknown)) + "\n").encode()


def _page(report: Report, clock: Clock, unknown: str) -> Iterator[str]:
    words = Words(clock)
    title, *about = [said(line) for line in words.title(report)]
    yield HEAD
    yield f"<title>{escape(title.text)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f"<header>\n<h1>{escape(title.text)}</h1>"
    grades = [f'<b class="{one.grade}">{escape(one.sentence)}</b>' for one in verdict(report)]
    yield f'<p class="verdict">{" ".join(grades) or escape(no_verdict(report))}</p>'
    yield from [f'<p class="soft">{escape(line.text)}</p>' for line in about]
    yield "</header>\n<main>"
    yield from _advice(report)
    yield '<h2>Figures</h2>\n<div class="grid">'
    for label, lines in words.sections(report):
        yield f'<section class="card">\n<h3>{escape(TITLES.get(label, label))}</h3>'
        yield from [_line(said(line)) for line in lines]
        yield "</section>"
    yield "</div>"
    yield from _charts(report, clock)
    if len(report.hosts) > 1:
        yield from _hosts(report.hosts)
    yield "</main>\n<footer>"
    yield from [f'<p class="alarm">{escape(shown(text, LONGEST))}</p>' for text in report.warnings]
    why = f", as the collector's machine does not know the zone {escape(shown(unknown, 100))}" if unknown else ""
    zone = escape(clock.full_name(report.start, report.end))
    yield f"<p><small>Made by colmet report {escape(__version__)}. Times are {zone}{why}.</small></p>\n</footer>"
    yield "</body>\n</html>"


def _line(line: Said) -> str:
    if line.share is None:
        return f'<p class="alarm">{escape(line.text)}</p>' if line.alarm else f"<p>{escape(line.text)}</p>"
    part, colour = line.share
    number, _, rest = line.text.partition("  ")
    return (
        f'<div class="share"><b>{escape(number)}</b><svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect class="rest" width="100" height="6"/><rect class="{escape(colour)}" '
        f'width="{100 * part:.1f}" height="6"/></svg><span>{escape(rest.strip())}</span></div>'
    )


def _advice(report: Report) -> Iterator[str]:
    advice = complete_advice(report)
    withheld = no_advice(report, advice)
    if not advice and not withheld:
        return
    yield "<section>\n<h2>Advice</h2>"
    if advice:
        yield '<ul class="advice">'
        for one in advice:
            rule = f"{shown(one.rule)}: {shown(one.because, LONGEST)}"
            yield f"<li>{escape(capital(one.text))}<br><small>{escape(rule)}</small></li>"
        yield "</ul>"
    if withheld:
        yield f"<p>{escape(shown(withheld, LONGEST))}</p>"
    yield "</section>"


def _charts(report: Report, clock: Clock) -> Iterator[str]:
    if not report.curves:
        return
    yield "<h2>Over time</h2>"
    hosts = sorted({line.name for curve in report.curves for line in curve.lines})
    names = hosts if 1 < len(hosts) <= charts.MAX_LINES else []
    if names:
        yield '<ul class="names">'
        for number, name in enumerate(names):
            colour, dash = charts.look(number)
            dashes = ' stroke-dasharray="6 2"' if dash else ""
            yield (
                f'<li><svg viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4H24" stroke="{colour}" stroke-width="3"'
                f"{dashes}/></svg> {escape(name)}</li>"
            )
        yield "</ul>"
    ends = charts.span([line for curve in report.curves for line in curve.lines])
    yield '<div class="grid">'
    for number, curve in enumerate(report.curves):
        figure = charts.draw([panel(curve, titled=False)], *CHART_SIZE, clock, names=names, ends=ends)
        picture = charts.inline_svg(figure, f"chart{number}", heading(curve), _description(curve))
        yield f'<figure class="card chart">\n<h3>{escape(shown(heading(curve), 100))}</h3>\n{picture}\n</figure>'
    yield "</div>"


def _hosts(hosts: Sequence[HostFigures]) -> Iterator[str]:
    columns = host_columns(hosts)
    order = by_use(hosts)[:MOST_HOSTS]
    yield "<section>\n<h2>Hosts</h2>"
    if len(hosts) > FEW_HOSTS:
        yield f"<details>\n<summary>{counted(len(hosts), 'hosts')}, those with most CPU time first</summary>"
    rows = [(escape(shown(host.host, 100)), [escape(of(host)) for of in columns.values()]) for host in order]
    yield from table("Host", [*columns], rows)
    if len(hosts) > len(order):
        yield f"<p>and {len(hosts) - len(order)} more (colmet report --json has all)</p>"
    if len(hosts) > FEW_HOSTS:
        yield "</details>"
    yield "</section>"


def png(report: Report, clock: Clock = UTC) -> bytes:
    """Return the picture, with the times of a clock."""
    rows = text_rows(report, clock)
    title = said(next(Words(clock).title(report))).text
    panels = [panel(curve, titled=True) for curve in report.curves]
    height = LINE_HEIGHT * (len(rows) + 4) + ROW_HEIGHT * -(-len(panels) // 2)
    return charts.rendered(charts.draw(panels, PICTURE_WIDTH, height, clock, title, text=rows, columns=2), "png")


def text_rows(report: Report, clock: Clock = UTC) -> list[TextRow]:
    """Return the text of the picture: the verdict, and all lines with their bars."""
    words = Words(clock)
    _, *about = [said(line) for line in words.title(report)]
    rows = [TextRow("", one.sentence, None, one.grade) for one in verdict(report)]
    rows += [] if rows else [TextRow("", no_verdict(report))]
    rows += _rows("", about)
    for label, lines in words.sections(report):
        rows += _rows(label, [said(line) for line in lines])
    advice = complete_advice(report)
    rows += _rows("Advice", [Said(capital(one.text)) for one in advice])
    withheld = no_advice(report, advice)
    rows += _rows("" if advice else "Advice", [Said(shown(withheld, LONGEST))] if withheld else [])
    return rows + _rows("Warning", [Said(shown(one, LONGEST)) for one in report.warnings[:MOST_LINES]])


def _rows(label: str, lines: Sequence[Said]) -> list[TextRow]:
    """Return lines of the picture, the first one with a label."""
    found: list[TextRow] = []
    for line in lines:
        for n, part in enumerate(textwrap.wrap(line.text, CHARACTERS)):
            share, colour = (None, "") if line.share is None or n else line.share
            found.append(TextRow("" if found else label, part, share, colour or ("poor" if line.alarm else "")))
    return found
