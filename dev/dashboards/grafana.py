"""Dashboards in Grafana's format: JSON of schema version 39 (Grafana 10.4; later versions migrate it)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from colmet.common.daemon.daemon_health import named
from colmet.common.measures import CPU_USED, TASKS
from colmet.common.wire import colmet06
from dev.dashboards import usage
from dev.dashboards.model import DISTINCT, INCREASE, LARGEST, MEAN, RATE, TOTAL, Dashboard, Line, Panel, Query
from dev.dashboards.panels import SCRAPED, STORED, metric

Object = dict[str, Any]

SCHEMA_VERSION = 39
COLUMNS = 24  # of Grafana's grid
POINTS = 200  # in a line: with 250 nodes, 50,000 buckets; the limit of a search is 65,536
NODES = 250  # lines in a panel
ROWS = 100  # of a table
_STEPS = ("15s", "30s", "1m", "2m", "5m", "10m", "30m", "1h")
LEAST, SLOW = "15s", "2m"  # shortest steps for columns measured each 5 s, and once a minute
_CLOCK_TICK = "10ms"  # USER_HZ is 100 on all Linux: a clock tick a tick is a core
_SECOND = "1s"
_COLOURS = ("green", "yellow", "orange", "purple", "red")  # of parts of a whole
# Grafana's names of the kinds of panels.
_TYPES = {"lines": "timeseries", "stack": "timeseries", "share": "timeseries", "number": "stat"}
_LABEL = re.compile(r"\{(\w+)\}")
# The data source's names of aggregations, in queries and in column titles.
_METRICS = {LARGEST: ("max", "Max"), MEAN: ("avg", "Average"), DISTINCT: ("cardinality", "Unique Count")}


class _Store:
    """The queries of Elasticsearch and OpenSearch: their data sources differ in a few parameters.

    Args:
        kind: of the data source, a plug-in's name.
        name: of the database, a tag of its dashboards.
        edges: number of steps to skip at each end: OpenSearch's data source reads a number, Elasticsearch's types
            require a text.
        more: parameters added to each query.
    """

    def __init__(self, kind: str, name: str, edges: str | int, more: Mapping[str, str]) -> None:
        self.kind = kind
        self.name = name
        self._edges = edges
        self.more = more

    def targets(self, panel: Panel, dashboard: str) -> list[Object]:
        """Return the queries of a panel."""
        lines = [line for line in panel.lines if isinstance(line, Line)]
        if panel.kind == "rows":
            metrics = [{"id": "1", "type": "raw_data", "settings": {"size": str(ROWS)}}]
            return [self._target(0, lines[0], dashboard, metrics, [])]
        if panel.kind == "table":
            metrics = [_metric(n, line) for n, line in enumerate(lines, 1)]
            first = lines[0]
            aggregations = [_terms(len(lines) + 1, _column(first.by[0]), ROWS, "1")]
            return [self._target(0, first, dashboard, metrics, aggregations)]
        targets: list[Object] = []
        for line in lines:
            for part in _parts(line):
                targets.append(self._over_time(len(targets), part, "slow_step" if panel.slow else "step", dashboard))
        return targets

    def _over_time(self, number: int, line: Line, step: str, dashboard: str) -> Object:
        if line.way in (RATE, INCREASE):
            unit = _CLOCK_TICK if line.field.unit == "jiffies" else _SECOND
            in_unit: Object = {"settings": {"unit": unit}} if line.way == RATE else {}
            metrics: list[Object] = [
                {"id": "1", "type": "max", "field": line.column, "hide": True},
                {"id": "2", "type": "derivative", "field": "1", **in_unit},
            ]
        else:
            metrics = [_metric(1, line)]
        aggregations = []
        for n, key in enumerate(line.by):
            top = line.top if n == 0 else 0
            aggregations.append(_terms(n + 3, _column(key), top or NODES, "1" if top else ""))
        # skip the first and the last step: their rows are partly outside the time range, or not stored yet
        settings = {"interval": f"${step}", "min_doc_count": "0", "trimEdges": self._edges}
        histogram = {"id": "9", "type": "date_histogram", "field": "timestamp", "settings": settings}
        target = self._target(number, line, dashboard, metrics, [*aggregations, histogram])
        return {**target, "alias": _LABEL.sub(lambda found: f"{{{{term {_column(found[1])}}}}}", line.label)}

    def _target(
        self, number: int, line: Line, dashboard: str, metrics: Sequence[Object], aggregations: Sequence[Object]
    ) -> Object:
        return {
            "refId": _reference(number),
            "datasource": _source(self.kind),
            "query": self._rows(line, dashboard),
            "timeField": "timestamp",
            "metrics": metrics,
            "bucketAggs": aggregations,
            "alias": "",
            **self.more,
        }

    def _rows(self, line: Line, dashboard: str) -> str:
        """Return the selection of a line's rows, as a query string."""
        scope, wanted = line.schema.scope, [f"_index:${{prefix}}{line.table.lower()}*"]
        if dashboard == "job":
            wanted += [f"{'job_id' if scope == 'job' else 'involved_jobs'}:$job", "hostname.keyword:$host"]
        elif dashboard == "node":
            wanted.append("hostname.keyword:$host")
        where = dict(line.where)
        if line.column in colmet06.columns(line.table):
            where[line.column] = ""
        wanted += [_matches(line.table, name, value) for name, value in where.items()]
        return " AND ".join(wanted)

    def variables(self, dashboard: str) -> Iterator[Object]:
        """Yield the variables to choose, besides the data source."""
        prefix = {"type": "constant", "name": "prefix", "label": "Prefix of the indices", "query": "colmet_", "hide": 2}
        yield {**prefix, "skipUrlSync": True}
        rows = "_index:${prefix}procstats_default*"
        if dashboard == "job":
            jobs = "_index:${prefix}taskstats_default*"
            yield _choice("job", "Job", self, self._find("job_id", jobs, order="desc"))
            rows = f"{jobs} AND job_id:$job"
        if dashboard != "cluster":
            yield _choice("host", "Node", self, self._find("hostname.keyword", rows), several="*")
        text = "At least twice the nodes' --sample-period, and a multiple of it."
        yield _step("step", LEAST, label="Step", description=text)
        yield _step("slow_step", SLOW, hide=2)

    def _find(self, field: str, query: str, order: str = "asc") -> str:
        return json.dumps(
            {"find": "terms", "field": field, "query": query, "size": 1000, "orderBy": "key", "order": order}
        )


class _Prometheus:
    """The queries of Prometheus."""

    kind = "prometheus"
    name = "prometheus"

    def targets(self, panel: Panel, dashboard: str) -> list[Object]:
        """Return the queries of a panel."""
        targets = []
        for n, line in enumerate(panel.lines):
            query = line if isinstance(line, Query) else _in_promql(line, dashboard)
            label = _LABEL.sub(r"{{\1}}", query.label)
            target = {"refId": _reference(n), "datasource": _source(self.kind), "expr": query.expression}
            targets.append({**target, "legendFormat": label, "editorMode": "code", "range": True, "instant": False})
        return targets

    def variables(self, dashboard: str) -> Iterator[Object]:
        """Yield the variables to choose, besides the data source."""
        known = metric(*CPU_USED.of(TASKS)[0][:2])
        if dashboard == "job":
            yield _choice("job", "Job", self, f"label_values({known}, job)")
            yield _choice("host", "Node", self, f'label_values({known}{{job="$job"}}, host)', several=".+")
        elif dashboard == "node":
            yield _choice("host", "Node", self, "label_values(colmet_node_info, host)", several=".+")


def _in_promql(line: Line, dashboard: str) -> Query:
    """Return the query of a line of a table of jobs, with duplicates from the node and the collector merged."""
    labels = ['job="$job",host=~"$host"' if dashboard == "job" else 'host=~"$host"']
    labels += [f'{named(name)}="{value}"' for name, value in line.where.items()]
    rows = f"{metric(line.table, line.column)}{{{','.join(labels)}}}"
    functions = {RATE: "rate", INCREASE: "increase"}
    if line.way in functions:
        rows = f"{functions[line.way]}({rows}[$__rate_interval])"
    return Query(f"max by ({', '.join(map(named, line.by))}) ({rows})", line.label, line.unit)


def _column(key: str) -> str:
    """Return the field of a document for a key of a line."""
    return {"host": "hostname.keyword", "job": "job_id"}.get(key, f"{key}.keyword")


def _matches(table: str, name: str, value: str) -> str:
    """Return the query string for rows with this value in a column; an empty value: any.

    In columns of Colmet 0.6, -1 is a missing value.
    """
    if value:
        return f'{name}.keyword:"{value}"'
    return f"{name}:>=0" if name in colmet06.columns(table) else f"_exists_:{name}"


def _parts(line: Line) -> list[Line]:
    """Split a line into queries: the panel multiplies the mean by the number of nodes to get a total."""
    if line.way != TOTAL:
        return [line]
    known = {**line.where, line.column: ""}
    return [
        line._replace(how=MEAN, label="mean", where=known),
        line._replace(how=DISTINCT, label="nodes", where=known, column="hostname"),
    ]


def _metric(number: int, line: Line) -> Object:
    field = "hostname.keyword" if line.column == "hostname" else line.column
    return {"id": str(number), "type": _METRICS[line.way][0], "field": field}


def _terms(number: int, field: str, size: int, largest: str = "") -> Object:
    order = {"orderBy": largest, "order": "desc"} if largest else {"orderBy": "_key", "order": "asc"}
    settings = {"min_doc_count": "1", "size": str(size), **order}
    return {"id": str(number), "type": "terms", "field": field, "settings": settings}


def _source(kind: str) -> Object:
    """Return a reference to the chosen data source."""
    return {"type": kind, "uid": "${datasource}"}


def _reference(number: int) -> str:
    return chr(ord("A") + number)


def _choice(name: str, label: str, source: _Store | _Prometheus, query: str, several: str = "") -> Object:
    """Return a variable with values queried from the database."""
    more: Object = {}
    if several:
        everything = {"text": ["All"], "value": ["$__all"], "selected": True}
        more = {"multi": True, "includeAll": True, "allValue": several, "current": everything}
    made = {"type": "query", "name": name, "label": label, "datasource": _source(source.kind), "query": query}
    return {**made, "refresh": 2, "sort": 0, "allowCustomValue": True, **more}  # 2: as the time range changes


def _step(name: str, least: str, **more: Any) -> Object:
    """Return the variable for the length of a step: from the time range by default, or chosen by the user."""
    automatic = {"text": "auto", "value": f"$__auto_interval_{name}", "selected": True}
    steps = [{"text": step, "value": step, "selected": False} for step in _STEPS]
    made = {"type": "interval", "name": name, "query": ",".join(_STEPS), "auto": True, "auto_count": POINTS}
    made |= {"auto_min": least, "refresh": 2, "options": [automatic, *steps]}  # 2: as the time range changes
    return {**made, "current": automatic, **more}


def _panel(panel: Panel, number: int, place: Object, source: _Store | _Prometheus, dashboard: str) -> Object:
    made: Object = {
        "id": number,
        "type": _TYPES.get(panel.kind, "table"),
        "title": panel.title,
        "description": _description(panel),
        "datasource": _source(source.kind),
        "gridPos": place,
        "targets": source.targets(panel, dashboard),
    }
    lines = panel.lines
    defaults: Object = {"unit": lines[0].unit, "min": 0} if panel.kind != "rows" else {}
    overrides = []
    if panel.kind in ("table", "rows"):
        overrides = list(_columns(panel, source))
        options: Object = {"showHeader": True, "cellHeight": "sm"}
    elif panel.kind == "number":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "auto"}
        options["colorMode"] = "none"
    else:
        defaults["custom"] = _style(panel.kind)
        overrides = [
            {"matcher": {"id": "byFrameRefID", "options": _reference(n)}, "properties": properties}
            for n, line in enumerate(lines)
            if (properties := list(_differences(n, line, panel)))
        ]
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    made["fieldConfig"] = {"defaults": defaults, "overrides": overrides}
    made["options"] = options
    transformations = list(_transformations(panel))
    return {**made, "transformations": transformations} if transformations else made


def _style(kind: str) -> Object:
    style: Object = {"lineWidth": 1, "fillOpacity": 0, "showPoints": "auto", "spanNulls": False}
    if kind != "lines":
        mode = {"stack": "normal", "share": "percent"}[kind]
        style.update(fillOpacity=40, lineWidth=0, showPoints="never", stacking={"mode": mode, "group": "A"})
    return style


def _differences(number: int, line: Line | Query, panel: Panel) -> Iterator[Object]:
    """Yield the properties of a line different from its panel's."""
    if line.unit != panel.lines[0].unit:
        yield {"id": "unit", "value": line.unit}
    if isinstance(line, Line) and line.frame:
        yield {"id": "custom.stacking", "value": {"mode": "normal", "group": "frame"}}
        yield {"id": "custom.fillOpacity", "value": 0}
        yield {"id": "custom.lineWidth", "value": 1}
        yield {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 4]}}
    if panel.kind == "share":
        yield {"id": "color", "value": {"mode": "fixed", "fixedColor": _COLOURS[number]}}


def _columns(panel: Panel, source: _Store | _Prometheus) -> Iterator[Object]:
    """Yield names and units of a table's columns: the data source's own names consist of aggregation and field."""
    lines = [line for line in panel.lines if isinstance(line, Line)]
    if panel.kind == "rows":
        for line in lines:
            if line.field.unit == "ts_date":
                yield _override(line.label, {"unit": "dateTimeAsIso"})
            else:
                yield _override(line.column, {"displayName": line.label})
        return
    ways = [line.way for line in lines]
    key = lines[0].by[0]
    link = f"/d/{_uid(source, {'job': 'job', 'host': 'node'}[key])}?var-{key}=${{__value.raw}}&${{__url_time_range}}"
    properties: Object = {"displayName": {"job": "job", "host": "node"}[key], "unit": "none"}
    yield _override(
        _column(key), {**properties, "links": [{"title": f"This {properties['displayName']}", "url": link}]}
    )
    for line in lines:
        several = ways.count(line.way) > 1
        name = _METRICS[line.way][1] + (f" {_metric(1, line)['field']}" if several else "")
        yield _override(name, {"displayName": line.label, "unit": line.unit})


def _override(name: str, properties: Mapping[str, Any]) -> Object:
    values = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": values}


def _transformations(panel: Panel) -> Iterator[Object]:
    """Yield Grafana's transformations of the answers: a choice of columns for rows, the product for totals."""
    lines = [line for line in panel.lines if isinstance(line, Line)]
    if panel.kind == "rows":
        dates = [line for line in lines if line.field.unit == "ts_date"]
        for line in dates:  # the column is in seconds, Grafana's dates in milliseconds
            yield _product(line.column, "1000", {"alias": line.label})
        names = [line.label if line in dates else line.column for line in lines]
        yield {"id": "filterFieldsByName", "options": {"include": {"names": names}}}
    elif lines and lines[0].way == TOTAL:
        yield _product("mean", "nodes", {"alias": lines[0].label, "replaceFields": True})


def _product(left: str, right: str, more: Object) -> Object:
    binary = {"left": left, "operator": "*", "right": right}
    return {"id": "calculateField", "options": {"mode": "binary", "binary": binary, **more}}


def _description(panel: Panel) -> str:
    """Return the description of a panel: its text, and the schema's help on its columns."""
    texts = [panel.text] if panel.text else []
    lines = [line for line in panel.lines if isinstance(line, Line) and line.column in line.schema.name_set]
    texts += [f"{line.table} {line.column}: {line.meaning}" for line in lines]
    return "\n\n".join(texts)


def _uid(source: _Store | _Prometheus, dashboard: str) -> str:
    return f"colmet-{source.name}-{dashboard}"


def build(dashboard: Dashboard, source: _Store | _Prometheus) -> Object:
    """Return a dashboard for import into Grafana; ValueError if a panel has an undeclared column."""
    chosen = {"type": "datasource", "name": "datasource", "label": "Data source", "query": source.kind, "refresh": 1}
    panels: list[Object] = []
    top = 0
    for section in dashboard.sections:
        place: Object = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        head = {"id": len(panels) + 1, "type": "row", "title": section.title, "collapsed": False}
        panels.append({**head, "gridPos": place, "panels": []})
        top += 1
        left = height = 0
        for panel in section.panels:
            width, height = (6, 4) if panel.kind == "number" else (12, 8)
            if left + width > COLUMNS:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place, source, dashboard.name))
            left += width
        top += height
    return {
        "uid": _uid(source, dashboard.name),
        "title": f"{dashboard.title} ({source.name.capitalize()})",
        "description": dashboard.text,
        "tags": ["colmet", source.name],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair in all panels
        "refresh": "1m",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [chosen, *source.variables(dashboard.name)]},
        "annotations": {"list": []},
        "links": [_links(source)],
        "panels": panels,
    }


def _links(source: _Store | _Prometheus) -> Object:
    """Return links to the other dashboards, with the present choice of variables."""
    link = {"type": "dashboards", "title": "Colmet", "tags": ["colmet", source.name], "icon": "external link"}
    return {**link, "tooltip": "", "asDropdown": False, "targetBlank": False, "includeVars": True, "keepTime": True}


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and text of the files of all dashboards; ValueError if a panel has an undeclared column."""
    elasticsearch = _Store("elasticsearch", "elasticsearch", "1", {})
    opensearch = _Store(
        "grafana-opensearch-datasource", "opensearch", 1, {"queryType": "lucene", "luceneQueryType": "Metric"}
    )
    sources: tuple[_Store | _Prometheus, ...] = (elasticsearch, opensearch, _Prometheus())
    for source in sources:
        for dashboard in SCRAPED if isinstance(source, _Prometheus) else STORED:
            yield Path(source.name, f"{dashboard.name}.json"), _text(build(dashboard, source))
        if isinstance(source, _Store):
            archive = usage.Source(source.kind, source.name, source.more)
            made = usage.build(archive, _links(source), SCHEMA_VERSION)
            yield Path(source.name, "usage.json"), _text(made)


def _text(made: Object) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
