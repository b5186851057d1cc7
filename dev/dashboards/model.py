"""The content of dashboards: lines of declared columns, in panels.

A name declared by no schema is an error, and units come from the schema, so panels and tables cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.measures import Measure, Source
from colmet.common.schema import UNITS, Field, Schema
from colmet.common.tables import schemas

# Aggregations of rows to a line: the rate or the increase of a counter, the mean of a gauge, or others.
RATE, INCREASE, MEAN, LARGEST, TOTAL, DISTINCT = "rate", "increase", "mean", "largest", "total", "distinct"

# Columns added to every row by outputs. A date is milliseconds since 1970 in Elasticsearch.
_ADDED = {
    "hostname": Field("hostname_", "none", "label", "The node.", dtype="S255"),
    "job_id": Field("job_id_", "none", "gauge", "The job."),
    "timestamp": Field("timestamp_", "ts_date", "gauge", "When it was measured."),
}


class Line(NamedTuple):
    """A column over time: a line for each combination of the values of its keys.

    Attributes:
        table: name of the table.
        column: declared by the table's schema, or added by outputs.
        label: text of the legend; {host} and the like are the values of the keys.
        by: keys of the line: host, job, or labels (zone, uuid). All keys of the table must be here or in `where`.
        how: an aggregation, see above; empty for the default of the column's kind.
        where: required values of labels; an empty one: any value.
        noun: the thing counted by a rate of time: 2e9 ns a second are 2 cores, or 2 tasks.
        top: number of lines to show, those with the largest values; 0 for all.
        frame: whether to draw it as the limit of the other lines.
    """

    table: str
    column: str
    label: str = "{host}"
    by: Sequence[str] = ("host",)
    how: str = ""
    where: Mapping[str, str] = {}
    noun: str = "cores"
    top: int = 0
    frame: bool = False

    @property
    def schema(self) -> Schema:
        """The schema of the table; ValueError if no node sends such a table."""
        if self.table not in schemas():
            raise ValueError(f"no table {self.table}")
        return schemas()[self.table]

    @property
    def field(self) -> Field:
        """The declaration of the column; ValueError if the table lacks it, or one of the keys."""
        fields = {**_ADDED, **{field.name: field for field in self.schema.fields}}
        for name in (self.column, *self.where, *[key for key in self.by if key not in ("host", "job")]):
            if name not in fields:
                raise ValueError(f"table {self.table} has no column {name}")
        return fields[self.column]

    @property
    def way(self) -> str:
        """The aggregation of the line; ValueError if it does not apply to such a column."""
        kind = self.field.kind
        way = self.how or {"counter": RATE, "gauge": MEAN}.get(kind, "")
        if not way or (kind == "label" and way != DISTINCT) or (way in (RATE, INCREASE) and kind != "counter"):
            raise ValueError(f"{self.table} {self.column} is a {kind}: there is no {way or 'line'} of it")
        return way

    @property
    def unit(self) -> str:
        """The values' unit, as Grafana names it; ValueError if it has none."""
        field, way = self.field, self.way
        if way == DISTINCT:
            return "short"
        unit = UNITS[field.unit]
        name = unit.grafana_rate if way == RATE else unit.grafana
        if not name:
            raise ValueError(f"{self.table} {self.column}: no unit for the {way} of {field.unit}")
        return name.format(noun=self.noun)

    @property
    def meaning(self) -> str:
        """The meaning of the column, a sentence or two."""
        return self.field.help.partition("Source: ")[0].strip()


def of(what: Measure | Source, *more: Any, **named: Any) -> Line:
    """Return a line of a measure's best column, or of the given one; the other arguments are those of `Line`."""
    source = what.best if isinstance(what, Measure) else what
    return Line(source.table, source.column, *more, **named)


class Query(NamedTuple):
    """A line for Prometheus only, of self-metrics: PromQL, a label as `Line.label`, and Grafana's name of the unit."""

    expression: str
    label: str
    unit: str = "short"


class Panel:
    """A panel of a dashboard.

    Args:
        title: of the panel.
        lines: its content.
        text: how to read it, a sentence or two.
        kind: lines; stack, for summands; share, for parts of a whole; number, the last value in large; table, a row for
            each value of the lines' key; or rows, the unchanged rows of a table.
        slow: whether its columns are measured once a minute.
    """

    def __init__(
        self, title: str, *lines: Line | Query, text: str = "", kind: str = "lines", slow: bool = False
    ) -> None:
        self.title, self.lines, self.text, self.kind, self.slow = title, lines, text, kind, slow


class Section:
    """Panels under a heading."""

    def __init__(self, title: str, *panels: Panel) -> None:
        self.title, self.panels = title, panels


class Dashboard:
    """A dashboard; its name is its scope: cluster, node or job."""

    def __init__(self, name: str, title: str, text: str, *sections: Section) -> None:
        self.name, self.title, self.text, self.sections = name, title, text, sections
