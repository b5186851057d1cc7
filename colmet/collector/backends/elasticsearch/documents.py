"""Rows as JSON documents for a bulk request, and the types of their fields in an index.

Whole tables are rendered by one template for each set of present fields, so that the work per value is done by numpy
and by one `%` for each row.

A missing value has no field, except in the columns of Colmet 0.6: these are in every document, as 0.6 wrote them, with
-1 for a missing value. Dashboards of 0.6 add them in scripts, and a script fails if a document lacks the field.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.collector.backend import JournalRecord
from colmet.collector.columns import packed_runs
from colmet.common.schema import MISSING_INT, Batch, Rows, Schema, Table
from colmet.common.wire import colmet06

NS = 1_000_000_000
NS_PER_MS = 1_000_000

BLOCK_BYTES = 256 << 10  # of packed rows rendered at a time: about five times as much text
BLOCK_ROWS = 2048
MAX_RENDERERS = 1024
MAX_PATTERNS = 128  # templates kept for one schema
MAX_TEXTS = 16384  # strings with cached JSON
MAX_DATES = 4096

# Parts of a date suffix: numbers that sort by time, none finer than an hour, and the characters of index names.
DATE_FORMAT = re.compile(r"(?:%[YmdHjGV]|[a-z0-9._-])+", re.ASCII)

KEYWORD = {"type": "keyword", "fields": {"keyword": {"type": "keyword"}}}
TYPES: Mapping[str, Mapping[str, Any]] = {
    "i8": {"type": "long"},
    "f4": {"type": "float"},
    "f8": {"type": "double"},
    "S": KEYWORD,
}


class Fit(NamedTuple):
    """Index for rows of a schema."""

    name: str  # of the index, without prefix and date
    left_out: frozenset[str]  # columns without a place there


class IndexNaming(NamedTuple):
    """Naming of the indices for documents."""

    prefix: str  # of every index
    date_format: str  # date suffix behind the table's name, as for strftime; empty for none
    data_stream: bool  # whether documents have `@timestamp`, too


class Bulk(NamedTuple):
    """Lines for a bulk request: for each document its action, then the document."""

    body: bytes  # the lines, each ended by a newline; ASCII
    documents: int  # their number

    def lines(self) -> list[bytes]:
        """Return two lines for each document, without their newlines."""
        return self.body.split(b"\n")[:-1]


def properties(schema: Schema, data_stream: bool) -> dict[str, Any]:
    """Return the field types of a table's documents.

    Strings are keywords, also available as `NAME.keyword` for dashboards made for indices with types guessed by
    Elasticsearch.
    """
    known: dict[str, Any] = {
        "hostname": KEYWORD,
        "job_id": TYPES["i8"],
        "timestamp": {"type": "date", "format": "epoch_second"},
    }
    if schema.scope == "node":
        known["involved_jobs"] = TYPES["i8"]
    if data_stream:
        known["@timestamp"] = {"type": "date"}
    dtypes = {**colmet06.columns(schema.name), **{field.name: field.dtype for field in schema.fields}}
    known.update({name: TYPES[dtype if dtype[0] != "S" else "S"] for name, dtype in dtypes.items()})
    return known


def index_form(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and mapping of an index for documents with these fields, and others sent by newer nodes.

    A string never becomes a date: the next one, if not a date, would be refused. A table with more fields than the
    default of 1000 has a higher limit.
    """
    wanted = sum([2 if field is KEYWORD else 1 for field in known.values()]) + 200
    mappings = {
        "date_detection": False,
        "dynamic_templates": [
            {"strings": {"match_mapping_type": "string", "mapping": KEYWORD}},
            {"floats": {"match_mapping_type": "double", "mapping": TYPES["f8"]}},
        ],
        "properties": dict(known),
    }
    settings = {"index.mapping.total_fields.limit": wanted} if wanted > 1000 else {}
    return {"settings": settings, "mappings": mappings}


def batch_id(journal: str, number: int, index: int, batch: Batch) -> str:
    """Return the common prefix of the ids of a batch's documents, the same for every retry and in every bulk.

    20 characters of URL-safe base64. The time comes first: a database with documents sorted by id, in ageing segments,
    can then exclude old segments by the first characters of a new id. The rest identifies the batch: by host, epoch and
    sequence number, or else by its record in the journal and its index there.
    """
    if batch.epoch is None or batch.seq is None:
        name = f"{journal} {number} {index}"
    else:
        name = f"{batch.host} {batch.epoch} {batch.seq}"
    digest = blake2b(name.encode(), digest_size=11).digest()
    seconds = struct.pack(">I", batch.time_ns // NS & 0xFFFFFFFF)
    return base64.urlsafe_b64encode(seconds + digest).decode()


def shortest(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return doubles with the shortest text of these floats: 0.44, not 0.4399999976."""
    with np.errstate(invalid="ignore", over="ignore"):
        doubles = values.astype(np.float64)
        rounded = doubles.round(2)  # precision of loads, temperatures and powers
        # below 10,000, two different numbers with two decimals are never the same float
        good = ((rounded.astype(np.float32) == values) & (np.abs(doubles) < 1e4)) | ~np.isfinite(doubles)
    if not good.all():
        rounded[~good] = values[~good].astype(str).astype(np.float64)
    return rounded


class _Texts(dict[Any, str]):
    """Cache of strings as JSON text."""

    def __missing__(self, value: bytes | str) -> str:
        if len(self) >= MAX_TEXTS:
            self.clear()
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        self[value] = quoted = json.dumps(text)
        return quoted


class _TableSource(NamedTuple):
    """One table of one batch, with the common parts of its documents."""

    table: Table
    address: str  # the index, and the prefix of the ids
    head: str  # the first fields


class _RowRenderer:
    """Renderer of one schema's rows as documents."""

    def __init__(self, schema: Schema, left_out: frozenset[str]) -> None:
        self.dtype = schema.dtype
        self.rows_at_once = max(1, min(BLOCK_ROWS, BLOCK_BYTES // self.dtype.itemsize))
        self._runs: dict[str, list[tuple[int, int]]] = {"i8": [], "f4": [], "f8": []}
        names: dict[str, list[str]] = {"i8": [], "f4": [], "f8": [], "S": []}
        dtypes = {"job_id": "i8", **{field.name: field.dtype for field in schema.fields}}
        runs = packed_runs(self.dtype)
        for name, dtype in dtypes.items():
            kind = dtype if dtype[0] != "S" else "S"
            if kind != "S" and runs[name] not in self._runs[kind]:
                self._runs[kind].append(runs[name])
            names[kind].append(name)
        self._strings = names["S"]
        self._names = [name for kind in names.values() for name in kind]
        always = {"job_id", *colmet06.columns(schema.name)}
        self._always = np.array([name in always for name in self._names])
        self._left_out = np.array([name in left_out for name in self._names])
        self._unsent = "".join(
            [f',"{name}":{MISSING_INT}' for name in colmet06.columns(schema.name) if name not in dtypes]
        )
        self._templates: dict[bytes, str] = {}

    def _numbers(self, kind: str, rows: Rows) -> npt.NDArray[Any]:
        strides = (self.dtype.itemsize, int(kind[1]))
        parts: list[npt.NDArray[Any]] = [
            np.ndarray((len(rows), columns), f"<{kind}", rows.data, offset, strides)
            for offset, columns in self._runs[kind]
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _template(self, present: npt.NDArray[np.bool_]) -> str:
        key = present.tobytes()
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_PATTERNS:
                self._templates.clear()
            fields = [f'"{name}":%s' for name, there in zip(self._names, present) if there]
            template = self._templates[key] = (
                '{"create":{"_index":"%s%05x"}}\n{%s,' + ",".join(fields) + self._unsent + "}\n"
            )
        return template

    def render(self, rows: Rows, sources: Sequence[_TableSource], source: Any, number: Any, texts: _Texts) -> str:
        """Return the lines of at most `rows_at_once` contiguous rows.

        `source` is the index of each row's source, `number` its index there.
        """
        kinds: list[npt.NDArray[Any]] = []
        missing: list[npt.NDArray[np.bool_]] = []
        ints = self._numbers("i8", rows)
        kinds.append(ints)
        missing.append(ints == MISSING_INT)
        for kind in ("f4", "f8"):
            if self._runs[kind]:
                floats = self._numbers(kind, rows)
                missing.append(~np.isfinite(floats))
                floats = shortest(floats) if kind == "f4" else floats
                kinds.append(np.where(missing[-1], MISSING_INT, floats))
        if self._strings:
            strings = np.empty((len(rows), len(self._strings)), dtype=object)
            for column, name in enumerate(self._strings):
                strings[:, column] = rows[name]
            missing.append(strings == b"")
            kinds.append(strings)
        present = ~(np.concatenate(missing, axis=1) | self._left_out) | self._always
        first = present[0]
        if (present == first).all():
            return self._lines(kinds, None, first, sources, source, number, texts)
        patterns: dict[bytes, list[int]] = {}
        packed = np.packbits(present, axis=1)
        for row, key in enumerate(packed.view(f"V{packed.shape[1]}").ravel().tolist()):
            patterns.setdefault(key, []).append(row)
        return "".join(
            [
                self._lines(kinds, np.array(picked), present[picked[0]], sources, source, number, texts)
                for picked in patterns.values()
            ]
        )

    def _lines(
        self,
        kinds: Sequence[npt.NDArray[Any]],
        picked: npt.NDArray[np.intp] | None,
        present: npt.NDArray[np.bool_],
        sources: Sequence[_TableSource],
        source: npt.NDArray[np.int64],
        number: npt.NDArray[np.int64],
        texts: _Texts,
    ) -> str:
        """Return the lines of the picked rows, all with the same fields."""
        template = self._template(present)
        if picked is not None:
            source, number = source[picked], number[picked]
        parts: list[list[list[Any]]] = []
        column = 0
        for values in kinds:
            there = np.flatnonzero(present[column : column + values.shape[1]])
            column += values.shape[1]
            if len(there) == 0:
                continue
            if picked is not None:
                values = values[picked[:, None], there]
            elif len(there) < values.shape[1]:
                values = values[:, there]
            lists = values.tolist()
            if values.dtype.kind == "O":
                lists = [[texts[value] for value in row] for row in lists]
            parts.append(lists)
        common = [sources[index] for index in source.tolist()]
        if len(parts) == 1:
            lines = [template % (s.address, n, s.head, *row) for s, n, row in zip(common, number.tolist(), parts[0])]
        else:
            lines = [
                template % (s.address, n, s.head, *chain.from_iterable(row))
                for s, n, row in zip(common, number.tolist(), zip(*parts))
            ]
        return "".join(lines)


class Documents:
    """Converter of rows to documents.

    Args:
        journal: name of the journal, for the ids of batches without epoch and sequence number.
    """

    def __init__(self, naming: IndexNaming, journal: str, fit: Callable[[Schema], Fit] | None = None) -> None:
        self._naming = naming
        self._fit = fit or (lambda schema: Fit(schema.name.lower(), frozenset()))
        self._journal = journal
        self._renderer = lru_cache(MAX_RENDERERS)(lambda schema: _RowRenderer(schema, self._fit(schema).left_out))
        self._suffix = lru_cache(MAX_DATES)(self._suffix_of)
        self._texts = _Texts()

    def tables(self, records: Iterable[JournalRecord]) -> list[tuple[Schema, dict[str, None], list[_TableSource]]]:
        """Return the tables of all records by schema, with the indices for their documents, for `render`."""
        known: dict[int, tuple[str, dict[str, None], list[_TableSource]]] = {}
        found: dict[bytes, tuple[Schema, dict[str, None], list[_TableSource]]] = {}
        texts, prefix, data_stream = self._texts, self._naming.prefix, self._naming.data_stream
        for record in records:
            for index, batch in enumerate(record.batches):
                begin = batch_id(self._journal, record.number, index, batch)
                host = texts[batch.host]
                jobs = "" if batch.jobs is None else f',"involved_jobs":[{",".join(map(str, batch.jobs))}]'
                for number, table in enumerate(batch.tables):
                    schema = table.schema
                    group = known.get(id(schema))  # a decoder returns one object for each schema
                    if group is None:
                        same = found.setdefault(schema.digest, (schema, {}, []))
                        group = known[id(schema)] = (prefix + self._fit(schema).name, *same[1:])
                    time_s = table.time_ns // NS
                    name = group[0] + self._suffix(time_s // 3600)
                    group[1][name] = None
                    head = f'"hostname":{host},"timestamp":{time_s}'
                    if data_stream:
                        head += f',"@timestamp":{table.time_ns // NS_PER_MS}'
                    if schema.scope == "node":
                        head += jobs
                    group[2].append(_TableSource(table, f'{name}","_id":"{begin}{number:03x}', head))
        return list(found.values())

    def _suffix_of(self, hour: int) -> str:
        form = self._naming.date_format
        return "-" + time.strftime(form, time.gmtime(hour * 3600)) if form else ""

    def render(self, schema: Schema, sources: Sequence[_TableSource]) -> Iterator[Bulk]:
        """Yield the documents of tables of one schema, in parts."""
        renderer = self._renderer(schema)
        packed = [source.table.packed for source in sources]
        rows = np.frombuffer(b"".join(packed), dtype=renderer.dtype)
        counts = np.array([len(part) for part in packed], dtype=np.int64) // renderer.dtype.itemsize
        source = np.repeat(np.arange(len(packed)), counts)
        number = np.arange(len(rows)) - (np.cumsum(counts) - counts)[source]
        for start in range(0, len(rows), renderer.rows_at_once):
            part = slice(start, start + renderer.rows_at_once)
            text = renderer.render(rows[part], sources, source[part], number[part], self._texts)
            yield Bulk(text.encode("ascii"), len(rows[part]))
