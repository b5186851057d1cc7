"""Sum up core hours, GPU hours, memory, energy, CO2 and cost by user, project, queue, month or host.

The sums are of the job archive. A job counts with the share of its wall time within the interval. Users see their own
jobs; root sees all.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from colmet.commands import archives, selection
from colmet.commands.times import moment
from colmet.commands.top.view import clean
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


def _used_ratio(group: UsageGroup, _factors: Factors) -> float | None:
    return group.cpu_ratio


def _co2_kg(group: UsageGroup, known: Factors) -> float | None:
    grams = known.co2_g(group)
    return None if grams is None else grams / 1000


FIGURES = (
    Figure("jobs", "Jobs", lambda group, _: float(group.jobs), 2),
    Figure("core_hours", "Core h", _sum("core_s", HOUR_S), 0),
    Figure("used_core_hours", "used", _sum("cpu_s", HOUR_S), 5),
    Figure("wasted_core_hours", "wasted", _sum("wasted_core_s", HOUR_S), 1),
    Figure("used_ratio", "CPU", _used_ratio, 1),
    Figure("gpu_hours", "GPU h", _sum("gpu_s", HOUR_S), 4),
    Figure("used_gpu_hours", "GPU used", _sum("gpu_busy_s", HOUR_S), 5),
    Figure("memory_gib_hours", "GiB h", _sum("memory_byte_s", GIB * HOUR_S), 6),
    Figure("energy_kwh", "kWh", _sum("energy_joules", JOULES_PER_KWH), 3),
)
CO2 = Figure("co2_kg", "CO2 kg", _co2_kg, 3)
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
    options.since = _month(now) if options.since is None else options.since
    options.until = now if options.until is None else options.until
    selection.check_interval(options)
    with archives.open_archive(options) as archive:
        scope = archives.scope_of(options, archive)
        where = archives.filter_of(options, scope.users)
        groups = archive.usage(where, by)
    figures = [*FIGURES, *([CO2] if known.co2_per_kwh is not None else []), *([COST] if _has_cost(known) else [])]
    span = next((n for n, word in enumerate(by) if word in SPANS), None)
    if span is not None:
        groups = _in_time(groups, span)
    if options.json:
        rows = [_row(group, by, figures, known) for group in groups]
        print(json.dumps({"since": options.since, "until": options.until, "by": by, "groups": rows}, allow_nan=False))
    elif options.csv:
        _print_csv(groups, by, figures, known)
    else:
        _print_table(groups, by, figures, known, Clock().interval(options.since, options.until))
    archives.print_note(scope.note, not (options.json or options.csv))
    return 0


def _in_time(groups: Sequence[UsageGroup], span: int) -> list[UsageGroup]:
    """Return groups with the months, weeks or days of one user or project together and in order, the largest first.

    Args:
        groups: to be sorted.
        span: place of the month, week or day among their keys.
    """
    sizes: dict[tuple[str, ...], float] = defaultdict(float)
    for one in groups:
        sizes[one.keys[:span]] += one.sums["core_s"] or 0.0
    return sorted(groups, key=lambda one: (-sizes[one.keys[:span]], one.keys))


def _has_cost(known: Factors) -> bool:
    return known.price_per_kwh is not None or known.price_per_core_hour is not None


def _month(now: int) -> int:
    when = time.gmtime(now)
    return now - ((when.tm_mday - 1) * 86400 + when.tm_hour * 3600 + when.tm_min * 60 + when.tm_sec)


def _row(group: UsageGroup, by: Sequence[str], figures: Sequence[Figure], known: Factors) -> dict[str, Any]:
    values = {figure.name: figure.value(group, known) for figure in figures}
    return {**dict(zip(by, group.keys)), **values, "jobs": group.jobs}


def _print_csv(groups: Sequence[UsageGroup], by: Sequence[str], figures: Sequence[Figure], known: Factors) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [*by, *[figure.name for figure in figures]]
    writer.writerow(names)
    for group in groups:
        row = _row(group, by, figures, known)
        writer.writerow([archives.csv_cell(row[name]) for name in names])


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
    shares = [_share(group, whole) for group in groups]
    cells = [f"{archives.bar(share, BAR)} {percent(share):>5}" for share in shares]
    columns.append(archives.TableColumn("Share", [*cells, *[""] * (len(lines) - len(groups))], False, RANK_OF_SHARE))
    styles = ["" if n < len(groups) else "bold" for n in range(len(lines))]
    archives.print_table(columns, archives.width(), styles, "--csv and --json have all")
    for text in known.sources:
        print(clean(text))


def _share(group: UsageGroup, whole: UsageGroup) -> float | None:
    held, all_s = group.sums["core_s"], whole.sums["core_s"]
    return None if not all_s or held is None else held / all_s
