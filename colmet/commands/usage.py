"""Sum up core hours, GPU hours, memory, energy, CO2 and cost by user, project, queue, month or host.

The sums are of the job archive. A job counts with the share of its wall time within the interval. Users see their own
jobs; root sees all.
"""

from __future__ import annotations

import argparse
import calendar
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from colmet.commands import archives, selection
from colmet.commands.selection import moment
from colmet.commands.top_view import clean
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.text import UNKNOWN, Clock, percent
from colmet.jobs.archive.queries import (
    FACTORS_PATH,
    GROUPS,
    HOUR_S,
    JOULES_PER_KWH,
    SPANS,
    Factors,
    UsageGroup,
    read_factors,
    total_of,
)

GIB = 1 << 30
BAR = 10  # characters


class Figure(NamedTuple):
    """A column of the answer."""

    name: str
    heading: str
    value: Callable[[UsageGroup, Factors], float | None]
    rank: int  # those of the highest rank are not shown where the terminal is narrow


def _sum(name: str, unit: float) -> Callable[[UsageGroup, Factors], float | None]:
    def value(group: UsageGroup, _factors: Factors) -> float | None:
        found = group.sums[name]
        return None if found is None else found / unit

    return value


FIGURES = (
    Figure("jobs", "Jobs", lambda group, _: float(group.jobs), 2),
    Figure("core_hours", "Core h", _sum("core_s", HOUR_S), 0),
    Figure("used_core_hours", "used", _sum("cpu_s", HOUR_S), 5),
    Figure("wasted_core_hours", "wasted", _sum("wasted_core_s", HOUR_S), 1),
    Figure("used_ratio", "CPU", lambda group, _: group.cpu_ratio, 1),
    Figure("gpu_hours", "GPU h", _sum("gpu_s", HOUR_S), 4),
    Figure("used_gpu_hours", "GPU used", _sum("gpu_busy_s", HOUR_S), 5),
    Figure("memory_gib_hours", "GiB h", _sum("memory_byte_s", GIB * HOUR_S), 6),
    Figure("energy_kwh", "kWh", _sum("energy_joules", JOULES_PER_KWH), 3),
)
CO2 = Figure("co2_kg", "CO2 kg", lambda group, known: None if (g := known.co2_g(group)) is None else g / 1000, 3)
COST = Figure("cost", "Cost", lambda group, known: known.cost(group), 2)
RANK_OF_SHARE = 2


def add_options(parser: cli.Parser) -> None:
    """Declare the options: groups, the selection, and the outputs."""
    parser.epilog = """\
examples:
  colmet usage --by user
  colmet usage --by project --by month --since 2026-01-01
  colmet usage --by queue --since 1w --csv

exit status:
  0  done, also without any job
  1  the archive cannot be read
  2  wrong command line or configuration"""
    parser.add_argument(
        "--by",
        metavar="WORD",
        action="append",
        default=[],
        help=f"group by {', '.join(GROUPS)}; repeatable (default: user); months, weeks and days are in UTC",
    )
    archives.add_users(parser)
    archives.add_filter(parser, ("project", "queue"))
    parser.add_argument(
        "--since", metavar="TIME", type=moment, help="count from this time on (default: the first of this month, UTC)"
    )
    parser.add_argument("--until", metavar="TIME", type=moment, help="count up to this time (default: now)")
    parser.add_argument(
        "--factors",
        metavar="FILE",
        help=f"CO2 and prices of this site, in TOML (default: {FACTORS_PATH}, if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    archives.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the sums; return 0."""
    if options.json and options.csv:
        raise ConfigError("--json and --csv: choose one")
    by = options.by or ["user"]
    known = read_factors(options.factors)
    now = int(time.time())
    if options.since is None:
        options.since = calendar.timegm((*time.gmtime(now)[:2], 1, 0, 0, 0))
    options.until = now if options.until is None else options.until
    selection.check_interval(options)
    with archives.open_archive(options) as archive:
        scope = archives.scope_of(options, archive)
        where = archives.filter_of(options, scope.users)
        groups = archive.usage(where, by)
    has_cost = known.price_per_kwh is not None or known.price_per_core_hour is not None
    figures = [*FIGURES, *([CO2] if known.co2_per_kwh is not None else []), *([COST] if has_cost else [])]
    span = next((n for n, word in enumerate(by) if word in SPANS), None)
    if span is not None:  # those of one user or project together, the largest first, and in order
        sizes: dict[tuple[str, ...], float] = defaultdict(float)
        for group in groups:
            sizes[group.keys[:span]] += group.sums["core_s"] or 0.0
        groups = sorted(groups, key=lambda one: (-sizes[one.keys[:span]], one.keys))
    if options.json:
        rows = [_row(group, by, figures, known) for group in groups]
        print(json.dumps({"since": options.since, "until": options.until, "by": by, "groups": rows}, allow_nan=False))
    elif options.csv:
        rows = [_row(group, by, figures, known) for group in groups]
        archives.print_csv([*by, *[figure.name for figure in figures]], rows)
    else:
        _print_table(groups, by, figures, known, Clock().interval(options.since, options.until))
    archives.print_note(scope.note, not (options.json or options.csv))
    return 0


def _row(group: UsageGroup, by: Sequence[str], figures: Sequence[Figure], known: Factors) -> dict[str, Any]:
    values = {figure.name: figure.value(group, known) for figure in figures}
    return {**dict(zip(by, group.keys)), **values, "jobs": group.jobs}


def _texts(figure: Figure, groups: Sequence[UsageGroup], known: Factors) -> list[str]:
    """Return the cells of a column, with decimals that show three digits of its largest value."""
    values = [figure.value(group, known) for group in groups]
    if figure.name == "used_ratio":
        return [percent(value) for value in values]
    most = max([value for value in values if value is not None], default=0)
    decimals = 0 if most >= 100 or figure.name == "jobs" else 1 if most >= 10 else 2
    return [UNKNOWN if value is None else f"{value:,.{decimals}f}" for value in values]


def _print_table(
    groups: Sequence[UsageGroup], by: Sequence[str], figures: Sequence[Figure], known: Factors, interval: str
) -> None:
    """Print the sums as a table, with a bar of each share of the core hours."""
    print(interval)
    if not groups:
        print("no jobs")
        return
    whole = total_of(groups)
    lines = [*groups, *([whole._replace(keys=("total", *[" "] * (len(by) - 1)))] if len(groups) > 1 else [])]
    columns = [
        archives.TableColumn(word.capitalize(), [clean(line.keys[n][:40]) or UNKNOWN for line in lines], False)
        for n, word in enumerate(by)
    ]
    for figure in figures:
        if any(figure.value(group, known) for group in groups):
            cells = _texts(figure, lines, known)
            if figure.name == "jobs" and len(lines) > len(groups) and {"host", *SPANS}.intersection(by):
                cells[-1] = UNKNOWN  # a job of several months or hosts counts in each
            columns.append(archives.TableColumn(figure.heading, cells, rank=figure.rank))
    all_s = whole.sums["core_s"]
    shares = [held / all_s if all_s and (held := group.sums["core_s"]) is not None else None for group in groups]
    cells = [f"{archives.bar(share, BAR)} {percent(share):>5}" for share in shares]
    columns.append(archives.TableColumn("Share", [*cells, *[""] * (len(lines) - len(groups))], False, RANK_OF_SHARE))
    styles = ["" if n < len(groups) else "bold" for n in range(len(lines))]
    archives.print_table(columns, archives.width(), styles, "--csv and --json have all")
    for text in known.sources:
        print(clean(text))
