"""The dashboard of usage, from the shared job archive: core hours by user, project and queue, waste, energy, states.

Its fields are the values of `colmet.jobs.archive.derived`; an unknown one is refused. A job counts in the step in which
it ended, or was seen last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.documents import JOBS as JOBS_INDEX
from colmet.jobs.columns import INTEGER, REAL, TEXT

Object = dict[str, Any]

TIME = "end"
TITLE = "Colmet: usage"
TEXT_OF_ALL = "What finished and running jobs used, from the job archive; a job counts on the day of its last row."
NOBODY = "none"  # of jobs without a project or queue
STEPS = ("1h", "6h", "12h", "1d", "7d", "30d")
TOP, ROWS = 10, 25
COUNT = "count"


class Figure(NamedTuple):
    """A sum over jobs, in a unit of its own."""

    label: str
    field: str
    divisor: float = 3600.0
    unit: str = "suffix: h"


ALLOCATED = Figure("core h allocated", "core_s")
USED = Figure("core h used", "cpu_s")
WASTED = Figure("core h wasted", "wasted_core_s")
GPU = Figure("GPU h", "gpu_s")
ENERGY = Figure("energy", "energy_joules", 3.6e6, "kwatth")
JOBS = Figure("jobs", COUNT, 1, "short")


class Chart(NamedTuple):
    """A panel: figures over time, or of each value of a field.

    Attributes:
        kind: lines, bars (stacked), number or table.
        by: field whose values are lines or rows; empty for all jobs together.
    """

    title: str
    kind: str
    figures: Sequence[Figure]
    by: str = ""
    text: str = ""


_WHO = (("user", "users"), ("project", "projects"), ("queue", "queues"))
_OF_ROW = (JOBS, ALLOCATED, USED, WASTED, GPU, ENERGY)
SECTIONS: Mapping[str, Sequence[Chart]] = {
    "All jobs of the time range": (
        *[Chart(one.label, "number", [one]) for one in (JOBS, ALLOCATED, USED, ENERGY)],
        Chart("Core hours", "lines", [ALLOCATED, USED, WASTED], text="Allocated: wall time times cores."),
        Chart("Energy", "bars", [ENERGY], text="The jobs' shares of their nodes' energy, GPUs included."),
        Chart("Jobs by state", "bars", [JOBS], "state"),
        Chart("GPU hours", "lines", [GPU, Figure("GPU h used", "gpu_busy_s")]),
    ),
    **{
        f"By {field}": (
            Chart(f"Core hours allocated: the {TOP} largest {several}", "bars", [ALLOCATED], field),
            Chart(f"Energy: the {TOP} largest {several}", "bars", [ENERGY], field),
            Chart(f"Usage of {several}", "table", _OF_ROW, field),
        )
        for field, several in _WHO
    },
    "Waste": (
        Chart(f"Core hours wasted: the {TOP} users with most", "bars", [WASTED], "user"),
        Chart("Users who waste most", "table", (WASTED, ALLOCATED, USED, JOBS), "user"),
        Chart("Jobs that waste most", "table", (WASTED, ALLOCATED, USED, ENERGY), "job"),
    ),
}


class Source(NamedTuple):
    """A database: its data source's kind, its name, and parameters of each query."""

    kind: str
    name: str
    more: Mapping[str, str]


def _known(field: str, *kinds: str) -> str:
    """Return the name of a field; ValueError if the archive has none of these kinds."""
    if field not in ANSWERS or ANSWERS[field].kind not in kinds:
        raise ValueError(f"the archive has no {field} of kind {' or '.join(kinds)}")
    return field


def _metrics(figures: Sequence[Figure]) -> list[Object]:
    """Return the sums of fields, hidden, each followed by its quotient; the first sum has id 1."""
    made: list[Object] = []
    for figure in figures:
        if figure.field == COUNT:
            made.append({"id": str(len(made) + 1), "type": "count"})
            continue
        at = str(len(made) + 1)
        made.append({"id": at, "type": "sum", "field": _known(figure.field, INTEGER, REAL), "hide": True})
        variable = {"name": figure.field, "pipelineAgg": at}
        settings = {"script": f"params.{figure.field} / {figure.divisor:.0f}"}
        made.append(
            {"id": str(len(made) + 1), "type": "bucket_script", "pipelineVariables": [variable], "settings": settings}
        )
    return made


def _terms(number: int, field: str, size: int, first: Object) -> Object:
    """Return the values of a field with the largest first figure; jobs without one are `NOBODY`."""
    order = "_count" if first["type"] == "count" else first["id"]
    settings = {"min_doc_count": "1", "size": str(size), "orderBy": order, "order": "desc"}
    if field != "job":
        settings["missing"] = NOBODY
    return {"id": str(number), "type": "terms", "field": _known(field, TEXT, INTEGER), "settings": settings}


def _targets(chart: Chart, source: Source) -> list[Object]:
    """Return the queries of a panel: one for each line, or one for a table."""
    histogram = {"type": "date_histogram", "field": TIME, "settings": {"interval": "$step", "min_doc_count": "0"}}
    if chart.kind == "number":
        histogram["settings"] = {"interval": "30d", "min_doc_count": "0"}
    targets = []
    for n, figures in enumerate([chart.figures] if chart.kind == "table" else [[one] for one in chart.figures]):
        metrics = _metrics(figures)
        buckets: list[Object] = []
        if chart.by:
            buckets.append(_terms(90, chart.by, ROWS if chart.kind == "table" else TOP, metrics[0]))
        if chart.kind != "table":
            buckets.append({"id": "91", **histogram})
        alias = f"{{{{term {chart.by}}}}}" if chart.by else figures[0].label
        targets.append(
            {
                "refId": chr(ord("A") + n),
                "datasource": _source(source),
                "query": f"_index:${{prefix}}{JOBS_INDEX}",
                "timeField": TIME,
                "metrics": metrics,
                "bucketAggs": buckets,
                "alias": "" if chart.kind == "table" else alias,
                **source.more,
            }
        )
    return targets


def _source(source: Source) -> Object:
    return {"type": source.kind, "uid": "${datasource}"}


def _override(name: str, **properties: Any) -> Object:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def _panel(chart: Chart, number: int, place: Object, source: Source) -> Object:
    targets = _targets(chart, source)
    defaults: Object = {"unit": chart.figures[0].unit, "min": 0}
    overrides: list[Object] = []
    if chart.kind == "table":
        link = [{"title": "This job", "url": f"/d/colmet-{source.name}-job?var-job=${{__value.raw}}"}]
        overrides.append(
            _override(chart.by, displayName=chart.by, unit="none", **({"links": link} if chart.by == "job" else {}))
        )
        for figure in chart.figures:  # Grafana names a column by its script, and a count Count
            name = "Count" if figure.field == COUNT else f"params.{figure.field} / {figure.divisor:.0f}"
            overrides.append(_override(name, displayName=figure.label, unit=figure.unit, decimals=0))
        options: Object = {"showHeader": True, "cellHeight": "sm"}
    elif chart.kind == "number":
        reduce = {"calcs": ["sum"], "fields": "", "values": False}
        options = {"reduceOptions": reduce, "textMode": "auto", "colorMode": "none"}
    else:
        bars = {"drawStyle": "bars", "fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
        defaults["custom"] = bars if chart.kind == "bars" else {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0}
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": ["sum"]}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": {"table": "table", "number": "stat"}.get(chart.kind, "timeseries"),
        "title": chart.title,
        "description": _description(chart),
        "datasource": _source(source),
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": options,
    }


def _description(chart: Chart) -> str:
    fields = dict.fromkeys([one.field for one in chart.figures if one.field != COUNT])
    return "\n\n".join([*([chart.text] if chart.text else []), *[f"{one}: {ANSWERS[one].help}" for one in fields]])


def _variables(source: Source) -> list[Object]:
    chosen = {"type": "datasource", "name": "datasource", "label": "Job archive", "query": source.kind, "refresh": 1}
    prefix = {"type": "constant", "name": "prefix", "label": "Prefix of the indices", "query": "colmet_", "hide": 2}
    automatic = {"text": "auto", "value": "$__auto_interval_step", "selected": True}
    steps = [{"text": one, "value": one, "selected": False} for one in STEPS]
    step = {"type": "interval", "name": "step", "label": "Step", "query": ",".join(STEPS), "auto": True, "refresh": 2}
    filters = {"type": "adhoc", "name": "filter", "label": "Jobs with", "datasource": _source(source)}
    return [
        {**chosen, "regex": "/archive/i"},
        {**prefix, "skipUrlSync": True},
        {**step, "auto_count": 60, "auto_min": "1h", "options": [automatic, *steps], "current": automatic},
        filters,
    ]


def build(source: Source, links: Object, schema_version: int) -> Object:
    """Return the dashboard for import into Grafana."""
    panels: list[Object] = []
    top = 0
    for title, charts in SECTIONS.items():
        head = {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []}
        panels.append({**head, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top, left, height = top + 1, 0, 0
        for chart in charts:
            width, high = {"number": (6, 4), "table": (24, 9)}.get(chart.kind, (12, 8))
            if left + width > 24 or (left and high != height):
                left, top = 0, top + height
            height = high
            place = {"x": left, "y": top, "w": width, "h": height}
            panels.append(_panel(chart, len(panels) + 1, place, source))
            left += width
        top += height
    return {
        "uid": f"colmet-{source.name}-usage",
        "title": f"{TITLE} ({source.name.capitalize()})",
        "description": TEXT_OF_ALL,
        "tags": ["colmet", source.name],
        "schemaVersion": schema_version,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5m",
        "time": {"from": "now-30d", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(source)},
        "annotations": {"list": []},
        "links": [links],
        "panels": panels,
    }
