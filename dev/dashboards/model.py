"""What a dashboard shows: lines of columns that a schema declares, in panels.

A name that no schema declares is an error here, and units follow from the schema: panels and tables cannot drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.measures import Measure, Source
from colmet.common.schema import Field, Schema
from colmet.common.tables import schemas
from colmet.common.units import UNITS

# Ways to make a line of rows: of a counter, how it grows a second or a step, of a gauge its mean, or others.
RATE, INCREASE, MEAN, LARGEST, TOTAL, DISTINCT = "rate", "increase", "mean", "largest", "total", "distinct"

# Columns that outputs add to every row. A date is milliseconds since 1970 in Elasticsearch.
_ADDED = {
    "hostname": Field("hostname_", "none", "label", "The node.", dtype="S255"),
    "job_id": Field("job_id_", "none", "gauge", "The job."),
    "timestamp": Field("timestamp_", "ts_date", "gauge", "When it was measured."),
}


class Line(NamedTuple):
    """A column over time: a line for each value of what it is split by.

    Attributes:
        table: where it is.
        column: one that a schema declares, or one that outputs add.
        label: text of the legend; {host} and the like are the values that it is split by.
        by: host, job, or a label of the row: zone, uuid. What tells the table's rows apart belongs here or in `where`.
        how: one of those above; empty for what the column's kind suggests.
        where: values of labels that rows have to have; an empty one: any value.
        noun: of what a rate of time counts: 2e9 ns a second are 2 cores, or 2 tasks.
        top: show only so many, those with the largest values; 0 for all.
        frame: whether it is drawn as what frames the others: their limit.
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
        """Of the table.

        Raises:
            ValueError: no node sends such a table.
        """
        if self.table not in schemas():
            raise ValueError(f"no table {self.table}")
        return schemas()[self.table]

    @property
    def field(self) -> Field:
        """Of the column.

        Raises:
            ValueError: the table has no such column, or one of what it is split by is none of its labels.
        """
        fields = {**_ADDED, **{field.name: field for field in self.schema.fields}}
        for name in (self.column, *self.where, *[key for key in self.by if key not in ("host", "job")]):
            if name not in fields:
                raise ValueError(f"table {self.table} has no column {name}")
        return fields[self.column]

    @property
    def way(self) -> str:
        """How the line is made.

        Raises:
            ValueError: it cannot be made of such a column.
        """
        kind = self.field.kind
        way = self.how or {"counter": RATE, "gauge": MEAN}.get(kind, "")
        if not way or (kind == "label" and way != DISTINCT) or (way in (RATE, INCREASE) and kind != "counter"):
            raise ValueError(f"{self.table} {self.column} is a {kind}: there is no {way or 'line'} of it")
        return way

    @property
    def unit(self) -> str:
        """The values' unit, as Grafana names it.

        Raises:
            ValueError: Grafana has none for it.
        """
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
        """What the column is, a sentence or two."""
        return self.field.help.partition("Source: ")[0].strip()


def of(what: Measure | Source, *more: Any, **named: Any) -> Line:
    """Return a line of a measure's best column, or of another one; `Line` has the other arguments."""
    source = what.best if isinstance(what, Measure) else what
    return Line(source.table, source.column, *more, **named)


class Query(NamedTuple):
    """A line that only Prometheus has: of what the daemons tell of themselves.

    Attributes:
        expression: in PromQL.
        label: text of the legend, with labels in braces: {host}.
        unit: as Grafana names it.
    """

    expression: str
    label: str
    unit: str = "short"


class Panel(NamedTuple):
    """A picture.

    Attributes:
        title: of it.
        lines: what it shows.
        text: what to read out of it, a sentence or two.
        kind: lines; stack, for what adds up; share, for parts of a whole; number, the last value in large; table, a row
            for each value of what the lines are split by; or rows, the rows of a table as they are.
        slow: whether what it shows is measured once a minute.
    """

    title: str
    lines: Sequence[Line | Query]
    text: str = ""
    kind: str = "lines"
    slow: bool = False


class Section(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """One of them.

    Attributes:
        name: cluster, node or job: what can be chosen in it.
        title: of it.
        text: what it is for.
        sections: its panels.
    """

    name: str
    title: str
    text: str
    sections: Sequence[Section]
