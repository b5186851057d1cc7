"""Formats of extracted rows: JSON, CSV, Parquet and HDF5."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, Any

import numpy as np

from colmet.commands.extract_rows import Extraction, Found, OutputColumn, Values, has, join
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.schema import MISSING_INT
from colmet.common.text import how_to_install
from colmet.stored.series import NODE

ALWAYS = ("timestamp", "hostname")
BLOCK_ROWS = 10_000  # of text formatted at a time


def plain(column: Values, missing: Any) -> list[Any]:
    """Return the values of a column as Python numbers and text, with a placeholder for missing ones."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "S":
        values = list(map(text, values))
    there = has(column)
    if there.all():
        return values
    return [value if here else missing for value, here in zip(values, there.tolist())]


def text(value: bytes) -> str:
    """Decode text of a row, without terminal control characters."""
    decoded = value.decode("utf-8", "replace")
    return decoded if decoded.isprintable() else decoded.encode("unicode_escape").decode()


def host_names(answer: Extraction) -> list[str]:
    """Return the printable names of the hosts, by their numbers."""
    return [text(name.encode("utf-8", "replace")) for name in answer.names]


def write_json(out: IO[bytes] | gzip.GzipFile, answer: Extraction, missing: Mapping[str, Any]) -> None:
    """Write one JSON object: the columns of an answer, and ``timestamp`` and ``hostname``, as lists.

    `missing` has the placeholder for missing values, by kind of column.
    """
    names = host_names(answer)
    head = [("timestamp", answer.times.tolist()), ("hostname", [names[n] for n in answer.hosts.tolist()])]
    between = "{"
    for name, values in chain(head, ((n, plain(c, missing[c.dtype.kind])) for n, c in answer.columns.items())):
        out.write(f"{between}{json.dumps(name)}: {json.dumps(values, allow_nan=False)}".encode())
        between = ", "
    out.write(b"}\n")


@contextlib.contextmanager
def opened_output(path: str | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file under a temporary name, renamed when complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    real = os.path.realpath(path)
    if os.path.exists(real) and not os.path.isfile(real):  # a device would be replaced
        raise ColmetError(f"{path}: cannot be written: it is there, and no file")
    part = f"{real}.{os.getpid()}.part"
    try:
        with open(part, "xb") as out:
            yield out
        os.replace(part, real)
    except OSError as err:
        raise ColmetError(f"{path}: cannot be written: {err.strerror or err}") from err
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _write_csv(out: IO[bytes], parts: Iterable[Extraction], _chosen: Sequence[OutputColumn]) -> None:
    for number, answer in enumerate(parts):
        if not number:
            out.write(f"{','.join([_cell(name) for name in (*ALWAYS, *answer.columns)])}\n".encode())
        names = [_cell(name) for name in host_names(answer)]
        for begin in range(0, len(answer.times), BLOCK_ROWS):
            rows = slice(begin, begin + BLOCK_ROWS)
            changing = [answer.times[rows].tolist(), [names[n] for n in answer.hosts[rows].tolist()]]
            cells = ["%s", "%s"]
            for column in answer.columns.values():
                block = column[rows]
                if (block == block[0]).all():  # many are
                    cells.append(_cell(*plain(block[:1], "")).replace("%", "%%"))
                    continue
                cells.append("%s")
                values = plain(block, "")
                changing.append([*map(_cell, values)] if block.dtype.kind == "S" else values)
            line = f"{','.join(cells)}\n"
            out.write("".join([line % row for row in zip(*changing)]).encode())


def _cell(value: Any) -> str:
    """Return a value as a cell of CSV; text has no line breaks."""
    cell = str(value)
    return cell if '"' not in cell and "," not in cell else '"{}"'.format(cell.replace('"', '""'))


def _write_parquet(out: IO[bytes], parts: Iterable[Extraction], chosen: Sequence[OutputColumn]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as err:
        raise ConfigError(f"--format parquet requires the Python module pyarrow: {how_to_install('pyarrow')}") from err
    from colmet.common.tables import schemas  # the whole catalogue, which OAR's form does not need

    tables = (_arrow_table(pyarrow, answer) for answer in parts)
    table = next(tables)
    following = next(tables, None)
    if following is None:
        pyarrow.parquet.write_table(table, out)
        return
    kinds = {"i": pyarrow.int64(), "f": pyarrow.float64(), "S": pyarrow.string()}
    declared = {
        (schema.name, field.name): kinds[field.dtype[0]] for schema in schemas().values() for field in schema.fields
    }
    types = {column.name: declared[column[1:3]] for column in chosen if column[1:3] in declared}
    schema = pyarrow.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema])
    try:
        with pyarrow.parquet.ParquetWriter(out, schema) as writer:
            for part in chain([table, following], tables):
                writer.write_table(part.cast(schema))
    except pyarrow.ArrowInvalid as err:
        raise ColmetError(f"a column has values of several types; give --format csv: {err}") from err


def _arrow_table(pyarrow: Any, answer: Extraction) -> Any:
    columns: dict[str, Any] = {
        "timestamp": pyarrow.array(answer.times),
        "hostname": pyarrow.DictionaryArray.from_arrays(
            answer.hosts.astype(np.int32), pyarrow.array(host_names(answer))
        ),
    }
    for name, column in answer.columns.items():
        if column.dtype.kind == "S":
            columns[name] = pyarrow.array(plain(column, None), pyarrow.string())
        else:
            columns[name] = pyarrow.array(column, mask=~has(column))
    return pyarrow.table(columns)


def _write_hdf5(out: IO[bytes], job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    """Write tables in the collector's own format, readable by the same programs."""
    from colmet.collector.backends.hdf5.library import BACKEND_VERSION, STORAGE_ERRORS, cause, opened_library
    from colmet.collector.columns import HEADER

    try:
        with opened_library(out.name, "w") as file:
            for (name, of_node), some in found.items():
                owner = NODE if of_node else job
                wanted = [column.column for column in chosen if (column.table, column.of_node) == (name, of_node)]
                columns = join({(name, of_node): some}, [OutputColumn(n, name, n, of_node) for n in wanted])
                fields = {**HEADER, **{n: values.dtype for n, values in columns.columns.items()}}
                rows = np.zeros(len(columns.times), np.dtype(sorted(fields.items())))
                rows["timestamp"], rows["job_id"], rows["metric_backend"] = columns.times, owner, name.encode()
                rows["hostname"] = (
                    np.array([n.encode() for n in columns.names], "S255")[columns.hosts] if len(rows) else b""
                )
                for n, values in columns.columns.items():
                    rows[n] = np.where(has(values), values, MISSING_INT) if values.dtype.kind == "f" else values
                table = file.create_table(
                    f"/job_{owner}", name, rows.dtype, f"Metrics for the Job {owner}", createparents=True
                )
                table.append(rows)
                table.attrs.backend_version = BACKEND_VERSION
    except STORAGE_ERRORS as err:
        raise OSError(cause(err)) from err


def _write_json(out: IO[bytes], parts: Iterable[Extraction], _chosen: Sequence[OutputColumn]) -> None:
    (answer,) = parts
    write_json(out, answer, dict.fromkeys("ifS"))


_WRITERS: Mapping[str, Callable[[IO[bytes], Iterable[Extraction], Sequence[OutputColumn]], None]] = {
    **{"json": _write_json, "csv": _write_csv, "parquet": _write_parquet},
}
FORMATS = (*_WRITERS, "hdf5")
BY_PARTS = ("csv", "parquet")  # formats written part by part, so that their memory is bounded


def write(form: str, out: IO[bytes], job: int, found: Iterable[Found], chosen: Sequence[OutputColumn]) -> None:
    """Write the rows in one of the formats, of which only `BY_PARTS` have several parts.

    Raises:
        ConfigError: a Python module is missing.
        OSError: they cannot be written.
    """
    if form == "hdf5":
        (one,) = found
        _write_hdf5(out, job, one, chosen)
    else:
        _WRITERS[form](out, (join(one, chosen) for one in found), chosen)
