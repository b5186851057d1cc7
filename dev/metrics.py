"""The page docs/metrics.md, made from the catalogue: every table and its columns. `make docs` writes it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from colmet.common.daemon.startup import load
from colmet.common.measures import MEASURES
from colmet.common.schema import Field, Schema
from colmet.common.tables import facility
from colmet.common.tables.agent import AGENT, GAPS, MAPPING
from colmet.common.tables.agent import COMPLETENESS as LEDGER
from colmet.node.backend import InputBackend
from colmet.node.backends import NAMES

HEAD = """\
# Metrics

All tables of `colmet-node` and `colmet-facility`, from the catalogue in the source (`make docs` writes this page). In
HDF5 a table is `/job_<id>/<table>`, or `/job_0/<table>` for the node itself; in Elasticsearch it is the index
`colmet_<table>` in lower case. Outputs add columns to each row:

* `timestamp`: time of the measurement, seconds since the epoch.
* `hostname`: the node. `job_id`: the job; 0 for the node itself.
* `metric_backend` (HDF5, JSON, CSV): the name of the table.
* `involved_jobs` (tables of the node in JSON and Elasticsearch; in HDF5 `RAPLstats_default`, `infinibandstats_default`,
  `lustrestats_default`, `ipmipowerstats_default`): the jobs on the node at that time; in HDF5 the text of a JSON list,
  of 8,192 bytes at most.

A column is a *counter* where its line names no other kind: it only grows, over the life of a job or from the start of
the agent. A *gauge* is the value at that time, or over the last period if its text says so. A *label* identifies the
subject of the row. The last brackets have the source. A missing value is -1 in HDF5, and in Elasticsearch in the
columns of Colmet 0.6; elsewhere it is absent. It is never 0. Values of tasks are summed over the job unless the text
says otherwise.
"""
MEASURES_HEAD = """\
Measures are the quantities that people read of jobs and nodes. `colmet top`, the report, `colmet plot`, the page and
the dashboards read a measure from the first of its columns with values. `colmet plot` draws those of jobs by name, and
`/api/v1/measures` serves all. The unit is that of charts. A counter is shown as its growth per second, or over a whole
job as its *total*. *all* is a sum that is missing if one host's value is missing. Brackets have the unit, what counts
over time, and over hosts.

In Prometheus a column of a job is `colmet_job_TABLE_COLUMN`, without `_default` and with `_total` for counters:
`cgroup.cpu_usage` is `colmet_job_cgroup_cpu_usage_total`.
"""
_FOLDS = {"max": "The largest of the job's tasks.", "min": "The smallest of the job's tasks."}


def switch(backend: type[InputBackend]) -> str:
    """Return the options to turn a backend on or off."""
    on, off = backend.switches()
    if on and off:
        return f"on for values without another source; `{on}`: for all; `{off}` turns it off"
    if off:
        return f"on; `{off}` turns it off"
    return f"`{on}`" if on else "on"


def _plain(text: str) -> str:
    return text.strip().replace("<", "&lt;")


def _join_texts(texts: Sequence[str]) -> str:
    """Return texts that differ in numbers alone as one, with all values of a number that differs."""
    parts = zip(*(re.split(r"(\d+)", text) for text in texts))
    return "".join(", ".join(dict.fromkeys(values)) for values in parts)


def _shorten_repeats(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts, with "as above" for clauses at the end that the text before has, too."""
    before: list[str] = []
    for text in texts:
        words = text.split()
        same = 0
        while words[-1 - same :] == before[-1 - same :]:
            same += 1
        while same and not words[-1 - same].endswith((",", ".")):
            same -= 1
        head = words[: len(words) - same]
        yield " ".join([*head, "as above." if head[-1][-1] == "," else "As above."]) if same > 5 else text
        before = words


def _columns(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Yield names, description and source of the columns; numbered columns of one kind together."""
    groups: dict[tuple[str, ...], list[Field]] = {}
    for field in schema.fields:
        texts = (field.name, field.help) if field.name[-1].isdigit() else ()
        key = tuple(re.sub(r"\d+", "#", text) for text in texts) or (field.name,)
        groups.setdefault((*key, field.unit, field.kind), []).append(field)
    for fields in groups.values():
        field = fields[0]
        text, _, source = _join_texts([one.help for one in fields]).partition("Source: ")
        if schema.scope == "job" and field.fold in _FOLDS:
            text = f"{text.strip()} {_FOLDS[field.fold]}"
        kind = "" if field.kind == "counter" else field.kind
        unit = "" if field.unit in ("none", "count") else field.unit
        brackets = ", ".join(filter(None, (kind, unit)))
        names = ", ".join(f"`{one.name}`" for one in fields)
        yield names, f"{names}{f' ({brackets})' if brackets else ''}: {_plain(text)}", source.strip().rstrip(".")


def _table(schema: Schema, about: str) -> Iterator[str]:
    """Yield the section of a table; the source of most columns is named once, above them."""
    columns = list(_columns(schema))
    places = [source.replace(names.strip("`"), "NAME") for names, _, source in columns]
    usual, times = Counter(places).most_common(1)[0]
    usual = usual if times > 2 else ""
    yield f"\n## {schema.name}\n\n{about}"
    if usual:
        yield f"\nSource, where no other is named: {_plain(usual)}."
    yield ""
    texts = _shorten_repeats([text for _, text, _ in columns])
    for text, (_, _, source), place in zip(texts, columns, places):
        yield f"* {text}" if place == usual else f"* {text.rstrip('.')} ({_plain(source)})."


def _measures() -> Iterator[str]:
    """Yield the section of measures, with the columns of each."""
    yield f"\n## Measures\n\n{MEASURES_HEAD}"
    for scope in ("job", "node"):
        yield f"Of a {scope}:\n"
        for measure in MEASURES.values():
            if measure.scope == scope:
                is_rate = measure.kind == "counter" and measure.is_rate
                unit = measure.unit.per_second("CPU time" in measure.help) if is_rate else measure.unit
                columns = ", ".join(f"`{table.removesuffix('_default')}.{name}`" for table, name in measure.places)
                brackets = ", ".join(filter(None, (unit.symbol, measure.time, measure.hosts)))
                yield f"* `{measure.key}` ({brackets}): {_plain(measure.help)} {columns}"
        yield ""


def page(backends: Sequence[type[InputBackend]]) -> str:
    """Return the whole page."""
    index: dict[str, list[str]] = {"job": [], "node": []}
    tables: list[str] = []

    def add(schema: Schema, about: str) -> None:
        index[schema.scope].append(f"[{schema.name}](#{schema.name.lower()})")
        tables.extend(_table(schema, about))

    for cls in backends:
        for schema in (cls.schema, *cls.others):
            module = (sys.modules[cls.__module__].__doc__ or "").partition("\n")[0]
            about = "\n\n".join(filter(None, (f"{module} Backend {cls.name}: {switch(cls)}.", cls.notes)))
            add(schema, about if schema is cls.schema else f"Beside `{cls.schema.name}`.")
    add(MAPPING, "Names of numbered columns on a node; at the start, on change, hourly.")
    add(AGENT, "Costs and counters of the agent itself, once a minute.")
    about = "Samples due, measured, sent and dropped, of each table, once a minute ([completeness](completeness.md))."
    add(LEDGER, about)
    add(GAPS, f"Beside `{LEDGER.name}`: gaps, with first and last time.")
    for schema in facility.SCHEMAS:
        add(schema, "Of `colmet-facility --zeromq-uri`: one row for each combination of its labels, at each run.")
    links = [f"Tables of {scope}s: {', '.join(names)}.\n" for scope, names in index.items()]
    return "\n".join([HEAD, *links, *_measures(), *tables]).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(load(NAMES)), encoding="utf-8")
