"""A report as JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from colmet.common.errors import ColmetError
from colmet.common.lines import LONGEST, JobGap, shown
from colmet.jobs import figures as model
from colmet.jobs.figures import Report
from colmet.jobs.report.ending import ending_of
from colmet.jobs.report.requested import complete_advice, uses_of, verdict


def document_of(report: Report) -> dict[str, Any]:
    """Return a report without its curves as JSON values; docs/tools/report.md has the names."""
    document = asdict(replace(report, curves=()))
    del document["curves"]
    document["cores"] = report.cores
    document["completeness"]["here_ratio"] = report.completeness.here_ratio
    document["cpu"]["used_ratio"] = report.cpu.used_ratio
    document["time"]["shares"] = asdict(report.shares)
    ending = ending_of(report)
    document["ending"] = None if ending is None else asdict(ending)
    document["advice"] = [asdict(one) for one in complete_advice(report)]
    document["uses"] = [asdict(one) for one in uses_of(report)]
    document["verdict"] = [asdict(one) for one in verdict(report)]
    for host, of_it in zip(document["hosts"], report.hosts):
        host.update(cores=of_it.cores, cpu_used_ratio=of_it.cpu_used_ratio)
    return {name: _finite(value) for name, value in document.items()}


def report_of(document: Any) -> Report:
    """Return the report of a JSON document, without curves; ColmetError for another document.

    Its texts are without control characters.
    """
    try:
        made = _made(Report, {**document, "curves": []})
    except (KeyError, TypeError, ValueError) as err:
        raise ColmetError("the answer is no report; is the interface of another version?") from err
    assert isinstance(made, Report)
    return made


def _made(kind: Any, value: Any) -> Any:
    """Return a JSON value as a value of a declared type."""
    if kind in _PARTS:
        hints = get_type_hints(kind)
        return kind(**{field.name: _made(hints[field.name], value[field.name]) for field in fields(kind)})
    if get_origin(kind) is tuple:
        return tuple([_made(get_args(kind)[0], one) for one in value])
    if get_origin(kind) is Union:
        return None if value is None else _made(get_args(kind)[0], value)
    if kind is str and isinstance(value, str):
        return shown(value, LONGEST)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (kind is float and is_number) or (kind in (int, bool) and type(value) is kind):
        return value
    raise TypeError(f"{value!r:.80} is no {kind}")


_PARTS = {JobGap, *[one for one in vars(model).values() if is_dataclass(one)]}


def _finite(value: Any) -> Any:
    """Return a JSON value without NaN and infinities, which JSON lacks, but None; arrays become lists."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _finite(value.tolist()) if hasattr(value, "tolist") else value


def to_json(content: Any) -> bytes:
    """Return JSON, with null for each NaN and infinity."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except ValueError:  # rare, so NaN is replaced only then
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"), default=_plain)
    return text.encode("ascii")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy
        return _finite(value.tolist())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
