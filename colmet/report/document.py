"""A report as JSON values."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from colmet.report.model import Report


def document_of(report: Report) -> dict[str, Any]:
    """Return a report without its curves as JSON values; docs/tools/report.md has the names."""
    document = asdict(replace(report, curves=()))
    del document["curves"]
    document["cores"] = report.cores
    document["completeness"]["here_ratio"] = report.completeness.here_ratio
    document["cpu"]["used_ratio"] = report.cpu.used_ratio
    document["time"]["shares"] = asdict(report.shares)
    for host, of_it in zip(document["hosts"], report.hosts):
        host.update(cores=of_it.cores, cpu_used_ratio=of_it.cpu_used_ratio)
    return {name: _finite(value) for name, value in document.items()}


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
