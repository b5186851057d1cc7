"""What a soak samples of daemons and their files, and whether it stays flat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from measuring import rss_mb

FLAT, ROWS, LINES = "flat", "rows", "lines"  # must not grow; grows with the rows; log lines
SETTLED = 0.25  # of the time: by then all that is bounded has been filled
SHARE = 0.05  # of its middle value: growth that counts as flat
MOST_LINES = 60.0  # of a log, an hour
PER_ROW = 1.15  # how much more space a batch may use in the second half than in the first


class Figure(NamedTuple):
    """A sampled quantity."""

    name: str
    unit: str
    kind: str = FLAT
    slack: float = 0.0  # growth in the whole time that counts as flat, in its unit


Samples = Mapping[str, Sequence[float]]  # by name of the figure; "hours" and "batches" are their abscissas


def of_process(name: str, pid: int) -> dict[str, float]:
    """Return memory, descriptors, threads and CPU time of a process."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    return {
        f"{name} memory": rss_mb(pid),
        f"{name} descriptors": len(os.listdir(folder / "fd")),
        f"{name} threads": len(os.listdir(folder / "task")),
        f"{name} CPU": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    }


def of_files(name: str, paths: Iterable[Path]) -> dict[str, float]:
    """Return number and size of files."""
    sizes = []
    for path in paths:
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # removed since it was listed
    return {f"{name} files": len(sizes), f"{name} size": sum(sizes) / 1e6}


def process_figures(name: str) -> list[Figure]:
    """Return the figures of a process."""
    return [
        Figure(f"{name} memory", "MB", slack=3.0),
        Figure(f"{name} descriptors", "", slack=20),  # of the agent some for each job
        Figure(f"{name} threads", "", slack=1),
    ]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the growth of ys for each unit of xs: the median of all pairs (Theil and Sen), so peaks do not count."""
    found = [(ys[k] - ys[n]) / (xs[k] - xs[n]) for n in range(len(xs)) for k in range(n + 1, len(xs)) if xs[k] > xs[n]]
    return median(found) if found else 0.0


def judge(figure: Figure, samples: Samples) -> tuple[bool, str]:
    """Return whether a figure is as it must be, and a text that says so."""
    hours, values = samples["hours"], samples[figure.name]
    settled = next((n for n, at in enumerate(hours) if at >= SETTLED * hours[-1]), 0)
    grown = slope(hours[settled:], values[settled:])
    if figure.kind == LINES:
        rate = (values[-1] - values[0]) / max(hours[-1] - hours[0], 1e-9)
        return rate <= MOST_LINES, f"{rate:.1f} lines an hour" + ("" if rate <= MOST_LINES else ": TOO MANY")
    if figure.kind == ROWS:
        half = len(hours) // 2
        batches = samples["batches"]
        first, second = slope(batches[:half], values[:half]), slope(batches[half:], values[half:])
        is_good = second <= PER_ROW * first
        text = f"{second * 1e6:,.0f} bytes a batch, {first * 1e6:,.0f} in the first half"
        return is_good, text + ("" if is_good else ": GROWS FASTER")
    whole = grown * (hours[-1] - hours[settled])
    is_flat = whole <= max(figure.slack, SHARE * median(values[settled:]))
    return is_flat, "flat" if is_flat else f"GROWS by {grown:,.2f} {figure.unit} an hour".replace("  ", " ")


def table(figures: Sequence[Figure], samples: Samples) -> tuple[bool, list[str]]:
    """Return whether all figures are as they must be, and a table of them."""
    lines = [f"{'':<24} {'start':>10} {'middle':>10} {'end':>10} {'largest':>10} {'an hour':>10}  verdict"]
    are_good = True
    hours = samples["hours"]
    for figure in figures:
        values = samples[figure.name]
        is_good, verdict = judge(figure, samples)
        are_good &= is_good
        settled = next((n for n, at in enumerate(hours) if at >= SETTLED * hours[-1]), 0)
        shown = [values[0], values[len(values) // 2], values[-1], max(values), slope(hours[settled:], values[settled:])]
        name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
        lines.append(f"{name:<24} {' '.join(f'{value:10,.2f}' for value in shown)}  {verdict}")
    return are_good, lines
