"""The report of several jobs as a page of HTML in one file, with short curves; it runs no scripts and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from colmet import __version__
from colmet.common.lines import shown
from colmet.common.text import UNKNOWN, counted, duration, energy, rough_percent, size, some_of, utc
from colmet.jobs import footprint
from colmet.jobs.archive.queries import Row
from colmet.jobs.columns import FOOTPRINT
from colmet.jobs.grades import LOW, POOR, grades_of
from colmet.jobs.report.several import HEADINGS, UNITS, SeveralJobs, Spread, name_of, troubled

MOST_ROWS = 1000  # in the table; all are in the JSON
CURVES = (("cpu", "CPU", "cyan"), ("memory", "memory", "magenta"), ("gpu", "GPU", "blue"))
HEIGHT = 20
TEXTS = {"s": duration, "B": size, "J": energy, "share": rough_percent}  # by unit


def html(report: SeveralJobs) -> bytes:
    """Return the page."""
    return ("\n".join(_page(report)) + "\n").encode()


def title_of(report: SeveralJobs) -> str:
    """Return the jobs in a few words."""
    of = f" of array {shown(report.array)}" if report.array else ""
    part = f", {len(report.rows):,} of them here" if report.total > len(report.rows) else ""
    return f"{counted(report.total, 'jobs')}{of}{part}"


def states_of(report: SeveralJobs) -> str:
    """Return the numbers of jobs by state."""
    return ", ".join([f"{number:,} {name.replace('_', ' ')}" for name, number in report.states.items()])


def sums_of(report: SeveralJobs) -> list[str]:
    """Return lines on the sums."""
    sums = report.sums
    lines = []
    if sums["core_s"]:
        hours = [UNKNOWN if sums[name] is None else f"{(sums[name] or 0) / 3600:,.1f}" for name in ("cpu_s", "core_s")]
        lines.append(f"CPU: {hours[0]} of {hours[1]} core hours used, {rough_percent(sums['cpu_ratio'])}")
    if sums["gpu_s"]:
        lines.append(f"GPUs: {sums['gpu_s'] / 3600:,.1f} GPU hours held, {rough_percent(sums['gpu_ratio'])} used")
    if sums["energy_joules"]:
        lines.append(f"Energy: {energy(sums['energy_joules'])}")
    return lines


def unusual_of(report: SeveralJobs) -> list[str]:
    """Return lines on jobs that failed, and on those far from the others of their array."""
    lines = [
        f"{state.replace('_', ' ')}: {some_of([shown(one) for one in names], 10)}"
        for state, names in troubled(report).items()
        if len(names) < len(report.rows)  # else the states at the top say it
    ]
    for one in report.unusual:
        text = TEXTS[UNITS[one.what]]
        lines.append(f"{shown(one.name)}: {HEADINGS[one.what]} {text(one.value)}, median {text(one.median)}")
    return lines


def _page(report: SeveralJobs) -> Iterator[str]:
    title = escape(title_of(report))
    yield HEAD
    yield f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>"
    yield f'<p class="soft">{escape(states_of(report))}</p>\n</header>\n<main>\n<div class="grid">'
    yield from _card("Sums", sums_of(report))
    yield from _spread(report)
    yield from _card("Unusual", unusual_of(report))
    yield "</div>\n<section>\n<h2>Jobs</h2>"
    yield from _table(report)
    yield "</section>\n</main>\n<footer>"
    yield from [f'<p class="alarm">{escape(shown(note, 400))}</p>' for note in report.notes]
    yield f"<p><small>Made by colmet report {escape(__version__)} from the job archive. Times are UTC.</small></p>"
    yield "</footer>\n</body>\n</html>"


def _card(heading: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f'<section class="card">\n<h3>{heading}</h3>'
        yield from [f"<p>{escape(line)}</p>" for line in lines]
        yield "</section>"


def _spread(report: SeveralJobs) -> Iterator[str]:
    if not report.spread:
        return
    yield '<section class="card">\n<h3>Spread</h3>'
    rows = {HEADINGS[name]: [escape(TEXTS[UNITS[name]](value)) for value in one] for name, one in report.spread.items()}
    yield from table("of jobs", Spread._fields, rows.items())
    yield "</section>"


def table(heading: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield a table; a row is its name and its cells, all of them HTML."""
    yield f'<table>\n<thead><tr><th scope="col">{heading}</th>'
    yield from [f'<th scope="col">{name}</th>' for name in columns]
    yield "</tr></thead>\n<tbody>"
    for name, cells in rows:
        line = "".join([f'<td data-of="{column}">{cell}</td>' for column, cell in zip(columns, cells)])
        yield f'<tr><th scope="row">{name}</th>{line}</tr>'
    yield "</tbody>\n</table>"


def _table(report: SeveralJobs) -> Iterator[str]:
    rows = report.rows[:MOST_ROWS]
    columns = ["state", "exit", "start", "wall time", "CPU", "memory", "GPU", "energy", "advice", "curves"]
    cells = [_cells(row) for row in rows]
    columns = [name for name in columns if any(of[name] not in ("", UNKNOWN) for of in cells)]
    yield from table("Job", columns, [(_name(row), [of[name] for name in columns]) for row, of in zip(rows, cells)])
    if len(report.rows) > len(rows):
        yield f"<p>and {len(report.rows) - len(rows):,} more (colmet report --json has all)</p>"


def _name(row: Row) -> str:
    more = f"<br><small>{escape(shown(str(row['name'])))}</small>" if row["name"] else ""
    return escape(shown(name_of(row))) + more


def exit_of(row: Row) -> str:
    """Return the exit code or signal of a job."""
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    return "" if row["exit_code"] is None else str(row["exit_code"])


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row as HTML."""
    of = f" <small>of {escape(duration(row['requested_walltime_s']))}</small>" if row["requested_walltime_s"] else ""
    memory = f" <small>{escape(rough_percent(row['memory_used_ratio']))}</small>" if row["memory_used_ratio"] else ""
    state, grades = str(row["state"]), grades_of(row)
    return {
        "state": escape(shown(state.replace("_", " "))),
        "exit": escape(exit_of(row)),
        "start": escape(utc(row["start"])[:16]),
        "wall time": escape(duration(row["wall_s"])) + of,
        "CPU": _graded(grades["cpu_grade"], row["cpu_ratio"]),
        "memory": escape(size(row["memory_peak"])) + memory,
        "GPU": _graded(grades["gpu_grade"], row["gpu_ratio"]),
        "energy": escape(energy(row["energy_joules"])),
        "advice": escape(shown(str(row["rules"] or ""), 200)),
        "curves": "".join(_curves(row.get(FOOTPRINT.name), row["cpus"])),
    }


def _graded(word: str | None, ratio: float | None) -> str:
    text = escape(rough_percent(ratio))
    return f'<span class="{word}">{text} <small>{word}</small></span>' if word in (LOW, POOR) else text


def footprint_of(packed: Any) -> footprint.Footprint | None:
    """Return unpacked curves; None for others."""
    try:
        return footprint.decode(packed) if isinstance(packed, bytes) else None
    except ValueError:  # of a later version, or damaged
        return None


def _curves(packed: Any, cpus: float | None) -> Iterator[str]:
    """Yield the short curves of a job as pictures, of CPU up to the allocated CPUs."""
    found = footprint_of(packed)
    for name, word, colour in CURVES:
        values = None if found is None else found.curves.get(name)
        if values is None or not np.isfinite(values).any():
            continue
        most = max(float(np.nanmax(values)), (cpus or 0.0) if name == "cpu" else 0.0) or 1.0
        heights = [HEIGHT * max(0.0, float(one)) / most if np.isfinite(one) else 0.0 for one in values]
        steps = "".join([f"V{HEIGHT - height:.1f}h1" for height in heights])
        yield (
            f'<svg class="foot" viewBox="0 0 {len(heights)} {HEIGHT}" preserveAspectRatio="none" role="img">'
            f'<title>{word} over time</title><path class="{colour}" d="M0 {HEIGHT}{steps}V{HEIGHT}z"/></svg>'
        )


STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --page: #ffffff; --card: #f6f8fa; --line: #d1d9e0;
  --cyan: #0072b2; --green: #009e73; --red: #d55e00; --magenta: #a84f8c; --yellow: #b07d00; --blue: #2f81c1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b1; --page: #0f1318; --card: #181d23;
  --line: #353c45; --magenta: #cc79a7; --yellow: #e69f00; --blue: #56b4e9; --cyan: #4aa8e0; --green: #1fbf92;
  --red: #f07a2e; } .chart [stroke="#0072b2"], .names [stroke="#0072b2"] { stroke: #4aa8e0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 84rem; color: var(--ink); background: var(--page);
  font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .2rem; font-size: 1.5rem; line-height: 1.2; }
h2 { margin: 1.6rem 0 .6rem; font-size: 1.1rem; }
h3 { margin: 0 0 .3rem; font-size: .95rem; }
p { margin: .15rem 0; }
small, .soft { color: var(--soft); font-size: .87rem; }
.grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); }
.card { padding: .8rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); min-width: 0;
  margin: 0; break-inside: avoid; }
.share { display: grid; grid-template-columns: 4.4rem 1fr; gap: 0 .6rem; align-items: center; margin: .2rem 0; }
.share b { font-variant-numeric: tabular-nums; }
.share span { grid-column: 1 / -1; }
.bar { width: 100%; height: .7rem; display: block; }
.bar .rest { fill: var(--line); }
.cyan { fill: var(--cyan); } .green { fill: var(--green); } .red { fill: var(--red); } .blue { fill: var(--blue); }
.magenta { fill: var(--magenta); } .yellow { fill: var(--yellow); }
.alarm { color: var(--red); font-weight: 600; }
.good { color: var(--green); } .low { color: var(--yellow); } .poor, .exceeded { color: var(--red); }
.verdict b { margin-right: 1rem; }
.foot { width: 6rem; height: 1.3rem; margin: 0 .2rem; }
.chart svg { width: 100%; height: auto; display: block; }
.names { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0 0 .6rem; padding: 0; list-style: none; }
.names svg { width: 1.6rem; height: .6rem; }
.advice { margin: 0; padding-left: 1.2rem; }
.advice li { margin: .4rem 0; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
tr > :first-child { text-align: left; padding-left: 0; }
summary { cursor: pointer; }
footer { margin-top: 1.6rem; }
@media (max-width: 40rem) {
  body { padding: .8rem; }
  thead { position: absolute; clip-path: inset(50%); }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  th, td { padding: 0; border: 0; }
  tbody th { grid-column: 1 / -1; }
  td { display: flex; justify-content: space-between; }
  td::before { content: attr(data-of); color: var(--soft); }
}
@media print { body { max-width: none; padding: 0; } .card { background: none; } }
"""
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
)
HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">"""  # no icon: else Firefox reports that the policy forbids the default one
