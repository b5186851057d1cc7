"""The page docs/metrics.md, made from the catalogue: every table and its columns. `make docs` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from colmet.common.measures import MEASURES
from colmet.common.runtime.startup import load
from colmet.common.schema import Schema
from colmet.common.tables import facility
from colmet.common.tables.agent import SCHEMA as AGENT
from colmet.common.tables.completeness import GAPS
from colmet.common.tables.completeness import SCHEMA as LEDGER
from colmet.common.tables.mapping import SCHEMA as MAPPING
from colmet.node.backend import InputBackend
from colmet.node.backends import NAMES

HEAD = """\
# Metrics

All tables of `colmet-node` and `colmet-facility`, from the catalogue in the source (`make docs` writes this page). In
HDF5 a table is `/job_<id>/<table>`, or `/job_0/<table>` for the node itself; in Elasticsearch it is the index
`colmet_<table>` in lower case. Outputs add columns to each row:

| column | outputs | meaning |
| --- | --- | --- |
| `timestamp` | all | time of the measurement, seconds since the epoch |
| `hostname` | all | the node |
| `job_id` | all | the job; 0 for the node itself |
| `metric_backend` | HDF5, JSON, CSV | the name of the table |
| `involved_jobs` | tables of the node: JSON, Elasticsearch; in HDF5 the tables of Colmet 0.6 \
(`RAPLstats_default`, `infinibandstats_default`, `lustrestats_default`, `ipmipowerstats_default`) | the jobs on the \
node at that time; in HDF5 the text of a JSON list, of 8,192 bytes at most |

A *counter* only grows, over the life of a job or from the start of the agent. A *gauge* is the value at that time, or
over the last period if its text says so. A *label* identifies the subject of the row. A missing value is -1 in HDF5,
and in Elasticsearch in the columns of Colmet 0.6; elsewhere it is absent. It is never 0. Values of tasks are summed
over the job unless the text says otherwise.
"""
MEASURES_HEAD = """\
Measures are the quantities that people read of jobs and nodes. `colmet top`, the report, `colmet plot`, the page and
the dashboards read a measure from the first of its columns with values. `colmet plot` draws those of jobs by name, and
`/api/v1/measures` serves all. The unit is that of charts. A counter is shown as its growth per second, or over a whole
job as its *total*. *all* is a sum that is missing if one host's value is missing.

In Prometheus a column of a job is `colmet_job_TABLE_COLUMN`, without `_default` and with `_total` for counters:
`cgroup.cpu_usage` is `colmet_job_cgroup_cpu_usage_total`.
"""
_SCOPES = {"job": "one row a job", "node": "of the node"}
_FOLDS = {"max": "The largest of the job's tasks.", "min": "The smallest of the job's tasks."}


def switch(backend: type[InputBackend]) -> str:
    """Return the options to turn a backend on or off."""
    on, off = backend.switches()
    if on and off:
        return f"on for values without another source; `{on}`: for all; `{off}` turns it off"
    if off:
        return f"on; `{off}` turns it off"
    return f"`{on}`" if on else "on"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(schema: Schema, about: str) -> Iterator[str]:
    yield f"\n## {schema.name}\n\n{about}\n"
    yield "| column | unit | kind | meaning | source |"
    yield "| --- | --- | --- | --- | --- |"
    for field in schema.fields:
        text, _, source = field.help.partition("Source: ")
        if schema.scope == "job" and field.fold in _FOLDS:
            text = f"{text.strip()} {_FOLDS[field.fold]}"
        unit = "" if field.unit == "none" else field.unit
        yield f"| `{field.name}` | {unit} | {field.kind} | {_cell(text.strip())} | {_cell(source.rstrip('.'))} |"


def _measures() -> Iterator[str]:
    """Yield the section of measures, with the columns of each."""
    yield f"\n## Measures\n\n{MEASURES_HEAD}"
    yield "| measure | of | meaning | unit | over time | over hosts | columns, the first with a value counts |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for measure in MEASURES.values():
        is_rate = measure.kind == "counter" and measure.is_rate
        unit = measure.unit.per_second("CPU time" in measure.help) if is_rate else measure.unit
        columns = ", ".join([f"`{table.removesuffix('_default')}.{column}`" for table, column in measure.places])
        yield (
            f"| `{measure.key}` | {measure.scope} | {_cell(measure.help)} | {unit.symbol} | {measure.time} | "
            f"{measure.hosts} | {columns} |"
        )


def page(backends: Sequence[type[InputBackend]]) -> str:
    """Return the whole page."""
    lines = [HEAD]
    index = ["| table | rows | backend | on by |", "| --- | --- | --- | --- |"]
    tables: list[str] = []

    def add(schema: Schema, backend: str, on: str, about: str) -> None:
        anchor = schema.name.lower()
        index.append(f"| [{schema.name}](#{anchor}) | {_SCOPES[schema.scope]} | {backend} | {on} |")
        tables.extend(_table(schema, about))

    for cls in backends:
        for schema in (cls.schema, *cls.others):
            module = (sys.modules[cls.__module__].__doc__ or "").partition("\n")[0]
            about = "\n\n".join(filter(None, (module, cls.notes)))
            about = about if schema is cls.schema else f"Beside `{cls.schema.name}`."
            add(schema, cls.name, switch(cls), about)
    about = "Names of numbered columns on a node; at the start, on change, hourly."
    add(MAPPING, "", "backends with numbered columns", about)
    add(AGENT, "", "on; `--disable-agent-stats` turns it off", "Costs and counters of the agent itself, once a minute.")
    on = "on; `--disable-ledger` turns it off"
    about = "Samples due, measured, sent and dropped, of each table, once a minute ([completeness](completeness.md))."
    add(LEDGER, "", on, about)
    add(GAPS, "", on, f"Beside `{LEDGER.name}`: gaps, with first and last time.")
    on = "`colmet-facility --zeromq-uri`"
    for schema in facility.SCHEMAS:
        add(schema, "", on, "Of `colmet-facility`, one row for each combination of its labels, at each run.")
    return "\n".join([*lines, *index, *_measures(), *tables]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(load(NAMES)), encoding="utf-8")
