"""Documents of the shared archive in Elasticsearch or OpenSearch, and the types of their fields.

Three indices: summaries of hosts, those of whole jobs, and for each job number which of them belong to it. A whole
job's document is made of its hosts' ones and of what the batch system knows; it has all values of
`colmet.jobs.archive.derived`, computed by the same expressions.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from colmet.jobs import columns, footprint
from colmet.jobs.archive.derived import ANSWERS, DERIVED, sql_of
from colmet.jobs.archive.matching import plan
from colmet.jobs.archive.queries import SPANS, spans
from colmet.jobs.archive.store import HostKey, with_rules
from colmet.jobs.columns import JobColumn, Summary, Value
from colmet.jobs.job_summaries import hosts_of_job, job_summary, keyed_runs

HOSTS, JOBS, STATE = "archive-hosts", "archive-jobs", "archive-state"  # names of indices, behind the prefix
MAX_TEXT = 1024  # characters of a text that can be searched for and sorted by

Document = dict[str, Any]

# Fields of whole jobs besides the columns.
HOST_NAMES = "host_names"  # the hosts that it ran on
LOWER_NAME = "name_lower"
WHOLE = {span: f"whole_{span}" for span in SPANS}  # the month, week or day that has all of it; missing for longer jobs
RULE_WORDS = f"{columns.RULES.name}.words"

_KEYWORD: Mapping[str, Any] = {"type": "keyword", "ignore_above": MAX_TEXT}
_TYPES: Mapping[str, Mapping[str, Any]] = {
    columns.INTEGER: {"type": "long"},
    columns.REAL: {"type": "double"},
    columns.TEXT: _KEYWORD,
    columns.BLOB: {"type": "binary"},
}


def _field(column: JobColumn) -> Mapping[str, Any]:
    """Return the type of a column's field."""
    if column.unit == "date":
        return {"type": "date", "format": "epoch_second"}
    if column == columns.ADVICE:
        return {"type": "keyword", "index": False, "doc_values": False}
    if column == columns.RULES:
        return {**_KEYWORD, "fields": {"words": {"type": "text", "analyzer": "whitespace"}}}
    return _TYPES[column.kind]


_OWN_FIELDS = dict.fromkeys((HOST_NAMES, LOWER_NAME, *WHOLE.values()), _KEYWORD)
_PACKED = {"index.codec": "best_compression"}


def forms() -> dict[str, Document]:
    """Return settings and mappings of the indices, by name without prefix."""
    fields = {
        HOSTS: {name: _field(column) for name, column in columns.HOST_COLUMNS.items()},
        JOBS: {**{name: _field(column) for name, column in ANSWERS.items()}, **_OWN_FIELDS},
        STATE: {"job": {"type": "long"}},
    }
    return {
        name: {"settings": _PACKED, "mappings": {"dynamic": False, "properties": properties}}
        for name, properties in fields.items()
    }


def host_id(key: HostKey) -> str:
    """Return the id of a host's document."""
    job, host, start = key
    return f"{job}-{start}-{host}"


def job_id(job: int, start: int) -> str:
    """Return the id of a whole job's document."""
    return f"{job}-{start}"


def host_document(row: Summary) -> Document:
    """Return the document of a host's summary."""
    return {name: _json(row[name]) for name in columns.HOST_COLUMNS if row.get(name) is not None}


def host_version(row: Summary) -> int:
    """Return a number that grows with the summary: after its last row it ends.

    A host that has sent rows of a job to two collectors has a summary at each: that with the later last row counts.
    """
    last, is_running = row.get("last"), row.get("is_running")
    return 2 * last + (not is_running) if isinstance(last, int) else 1


def _json(value: Value) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def row_of(document: Mapping[str, Any], declared: Mapping[str, JobColumn], names: Sequence[str]) -> dict[str, Value]:
    """Return the values of a document by the names of columns; those of another type are missing."""
    return {name: _value(declared[name], document.get(name)) for name in names}


def host_row(document: Mapping[str, Any], key: HostKey) -> dict[str, Value]:
    """Return the summary of a host; curves that cannot be read are missing."""
    row = row_of(document, columns.HOST_COLUMNS, list(columns.HOST_COLUMNS))
    row.update(zip(("job", "host", "start"), key))
    packed = row[columns.FOOTPRINT.name]
    if isinstance(packed, bytes):
        try:
            footprint.decode(packed)
        except ValueError:
            row[columns.FOOTPRINT.name] = None
    return row


def _value(column: JobColumn, value: Any) -> Value:
    if column.kind == columns.REAL and type(value) in (int, float):
        return float(value)
    if column.kind == columns.INTEGER and type(value) is int:
        return int(value)
    if not isinstance(value, str):
        return None
    if column.kind == columns.TEXT:
        return value
    if column.kind == columns.BLOB:
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            return None
    return None


_DERIVED = ", ".join([f'{sql_of(one.column.name)} AS "{one.column.name}"' for one in DERIVED])
_GIVEN = ", ".join([f'? AS "{name}"' for name in columns.JOB_COLUMNS])


def answers_of(row: Summary) -> dict[str, Value]:
    """Return the derived values of a row of table `jobs`, by the expressions in SQL that the local archive uses."""
    given = [row.get(name) for name in columns.JOB_COLUMNS]
    question = f'SELECT {_DERIVED}, lower(name) AS "{LOWER_NAME}" FROM (SELECT {_GIVEN})'
    return dict(_calculator().execute(question, given).fetchone())


@cache
def _calculator() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.row_factory = sqlite3.Row
    return database


_OF_BATCH = {column.name: column for column in columns.BATCH}
_NO_FACTS: Mapping[str, Value] = dict.fromkeys(_OF_BATCH)


class Facts(NamedTuple):
    """What the batch system knows of a job."""

    start: int  # of the summary that a collector has joined it to
    values: Mapping[str, Value]


def job_documents(job: int, hosts: Sequence[Summary], facts: Sequence[Facts]) -> dict[int, Document]:
    """Return the documents of all jobs with one number, by their starts, from all summaries of its hosts."""
    keyed = keyed_runs(hosts, [one.values for one in facts])
    rows = [dict(with_rules({**job_summary(run), "start": start})) for start, run in keyed.items()]
    change = plan(rows, [{**_NO_FACTS, **one.values} for one in facts])
    known = dict(change.updates)
    rows = [{**row, **known.get(int(str(row["start"])), {})} for row in rows]
    # the batch system knows jobs whose nodes have sent nothing
    rows += [{"job": job, **row} for row in change.inserts]
    return {int(str(row["start"])): job_document(row, hosts) for row in rows}


def job_document(row: Mapping[str, Value], hosts: Sequence[Summary]) -> Document:
    """Return the document of a whole job's row, with summaries of all hosts with its number."""
    whole = {**row, **answers_of(row)}
    start, end = int(str(row["start"])), int(str(whole["end"]))
    within = [one for one in hosts if start <= int(str(one["start"])) <= end]
    names = {str(one["host"]) for one in hosts_of_job(row, within)}
    found = {name: _json(value) for name, value in whole.items() if value is not None}
    for span, field in WHOLE.items():
        (first,) = spans(span, start, start)
        if end <= first.until:
            found[field] = first.name
    return {**found, HOST_NAMES: sorted(names)} if names else found


class JobState(NamedTuple):
    """Which documents belong to the jobs with one number."""

    version: int = 0  # grows with each change; documents of whole jobs have the version of what they are made from
    members: frozenset[tuple[str, int]] = frozenset()  # host and start of each host's document
    starts: frozenset[int] = frozenset()  # of whole jobs, also of those that have another start by now
    facts: tuple[Facts, ...] = ()

    def document(self, job: int) -> Document:
        """Return its document."""
        return {
            "job": job,
            "version": self.version,
            "members": sorted(self.members),
            "starts": sorted(self.starts),
            "facts": [[one.start, dict(one.values)] for one in self.facts],
        }


def state_of(document: Mapping[str, Any]) -> JobState:
    """Return the content of a document; ValueError for one of others."""
    try:
        return JobState(
            int(document["version"]),
            frozenset([(str(host), int(start)) for host, start in document["members"]]),
            frozenset(map(int, document["starts"])),
            tuple([Facts(int(start), row_of(values, _OF_BATCH, list(values))) for start, values in document["facts"]]),
        )
    except (LookupError, TypeError, AttributeError) as err:
        raise ValueError(f"no document of Colmet: {json.dumps(document)[:200]}") from err
