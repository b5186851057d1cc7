"""docs/metrics.md and colmet/common/catalogue.py, from the schemas: every table and its columns.

``make docs`` writes both; tests tell when they are behind the schemas.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from colmet.common.runtime.cli import load
from colmet.common.schema import Schema
from colmet.common.wire import colmet06, colmet_rs
from colmet.node.backend import InputBackend
from colmet.node.backends import NAMES
from colmet.node.selfmetrics.agent_stats import SCHEMA as AGENT
from colmet.node.selfmetrics.completeness import GAPS
from colmet.node.selfmetrics.completeness import SCHEMA as LEDGER
from colmet.node.selfmetrics.mapping import SCHEMA as MAPPING
from colmet.tools.facility.tables import SCHEMAS as FACILITY

HEAD = """\
# Metrics

Every table that `colmet-node` and `colmet-facility` send, from the schemas in the source (`make docs` writes this
page). In HDF5 a table is `/job_<id>/<table>`, that of the node itself `/job_0/<table>`; in Elasticsearch it is the
index `colmet_<table>` in lower case. Outputs add columns to each row:

| column | where | meaning |
| --- | --- | --- |
| `timestamp` | everywhere | when it was measured, seconds since the epoch |
| `hostname` | everywhere | the node |
| `job_id` | everywhere | the job; 0 for the node itself |
| `metric_backend` | HDF5, JSON, CSV | the name of the table |
| `involved_jobs` | tables of the node: JSON, Elasticsearch; HDF5 where Colmet 0.6 had it \
(`RAPLstats_default`, `infinibandstats_default`, `lustrestats_default`, `ipmipowerstats_default`) | the jobs on the \
node at that time; in HDF5 the text of a JSON list, of 8,192 bytes at most |

A *counter* only grows, over the life of a job or from the start of the agent; a *gauge* is the value at that time, or
over the last period where its text says so; a *label* says what the row is about. A value that is missing is -1 in
HDF5, and in Elasticsearch in the columns of Colmet 0.6; elsewhere it is absent. It is never 0. A row's values of tasks
are summed over the job where nothing else is said.
"""
CATALOGUE_HEAD = '''\
"""The types of the columns of all tables that Colmet's nodes send, the older ones too: one text for each table.

``make docs`` writes this module from the schemas. `colmet.common.declared` reads it.
"""

TABLES = {
'''
_SCOPES = {"job": "one row a job", "node": "of the node"}
_FOLDS = {"max": "The largest of the job's tasks.", "min": "The smallest of the job's tasks."}


def declared() -> list[Schema]:
    """The schemas of all tables that this version can send."""
    backends: list[type[InputBackend]] = load(NAMES)
    of_backends = [schema for cls in backends for schema in (cls.schema, *cls.others)]
    return [*of_backends, MAPPING, AGENT, LEDGER, GAPS, *FACILITY]


def catalogue() -> str:
    """The module with the columns of all tables that this version or an older one can send.

    Raises:
        ValueError: two versions have a column with different types.
    """
    older = [record.schema for record in colmet06.RECORDS.values()] + list(colmet_rs.SCHEMAS.values())
    types: dict[str, dict[str, str]] = {}
    for schema in (*declared(), *older):
        columns = types.setdefault(schema.name, {})
        for field in schema.fields:
            if columns.setdefault(field.name, field.dtype) != field.dtype:
                raise ValueError(f"{schema.name}.{field.name} is {columns[field.name]}, and {field.dtype}")
    lines = []
    for table, columns in sorted(types.items()):
        lines.append(f'    "{table}": """')
        for dtype in sorted(set(columns.values())):
            names = " ".join(sorted([name for name, one in columns.items() if one == dtype]))
            lines += textwrap.wrap(f"{dtype}: {names}", 116, break_on_hyphens=False, break_long_words=False)
        lines.append('""",')
    return CATALOGUE_HEAD + "\n".join(lines) + "\n}\n"


def switch(backend: type[InputBackend]) -> str:
    """The options that turn a backend on or off."""
    on, off = backend.switches()
    if on and off:
        return f"on for what nothing else measures; `{on}`: for all; `{off}` turns it off"
    if off:
        return f"on; `{off}` turns it off"
    return f"`{on}`" if on else "on"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(schema: Schema, about: str) -> Iterator[str]:
    yield ""
    yield f"## {schema.name}"
    yield ""
    yield about
    yield ""
    yield "| column | unit | kind | meaning | source |"
    yield "| --- | --- | --- | --- | --- |"
    for field in schema.fields:
        text, _, source = field.help.partition("Source: ")
        if schema.scope == "job" and field.fold in _FOLDS:
            text = f"{text.strip()} {_FOLDS[field.fold]}"
        unit = "" if field.unit == "none" else field.unit
        yield f"| `{field.name}` | {unit} | {field.kind} | {_cell(text.strip())} | {_cell(source.rstrip('.'))} |"


def page(backends: Sequence[type[InputBackend]]) -> str:
    """The whole page."""
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
            about = (
                "\n\n".join(filter(None, (module, cls.notes)))
                if schema is cls.schema
                else f"Beside `{cls.schema.name}`."
            )
            add(schema, cls.name, switch(cls), about)
    add(
        MAPPING,
        "",
        "backends with numbered columns",
        "What numbered columns hold on a node; at the start, on change, hourly.",
    )
    add(AGENT, "", "on; `--disable-agent-stats` turns it off", "What the agent itself costs and counts, once a minute.")
    on = "on; `--disable-ledger` turns it off"
    add(LEDGER, "", on, "What was due, measured, sent and dropped, of each table, once a minute (completeness.md).")
    add(GAPS, "", on, f"Beside `{LEDGER.name}`: what is missing, from when to when.")
    on = "`colmet-facility --zeromq-uri`"
    for schema in FACILITY:
        add(schema, "", on, "Of `colmet-facility`, one row for each thing that its labels name, at each run.")
    return "\n".join([*lines, *index, *tables]) + "\n"


def main() -> int:
    """Write the page to the file that is named, or to standard output; and the catalogue, where that is named."""
    parser = argparse.ArgumentParser(prog="metrics", description="Write the page of all metrics, from the schemas.")
    parser.add_argument("file", type=Path, nargs="?", help="where to (default: standard output)")
    parser.add_argument("--catalogue", metavar="FILE", type=Path, help="write the types of all columns there")
    options = parser.parse_args()
    if options.catalogue is not None:
        options.catalogue.write_text(catalogue(), encoding="utf-8")
    text = page(load(NAMES))
    if options.file is not None:
        options.file.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
