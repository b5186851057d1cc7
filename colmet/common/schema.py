"""Data types of all measurements.

A backend declares one `Schema` of `Field`s and yields `Sample`s; the agent packs them into `Table`s and one `Batch` a
tick. The collector uses the same types, built from descriptions sent with the rows, so it needs no list of metrics of
its own.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

try:  # as random.py does it: hashlib loads all of OpenSSL, 3.5 MB of every agent's memory
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

# -- units --

_SI = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALL = ("n", "µ", "m", "")  # of seconds: kiloseconds are not in use
_NONE = ("",)


class Unit(NamedTuple):
    """A unit of stored numbers, or of their growth per second.

    Attributes:
        name: the word in schemas.
        symbol: of the unit shown in charts; empty for numbers of things.
        factor: from a stored number to the unit of `symbol`.
        prefixes: of the symbol, by steps of `step`.
        step: 1000 or 1024.
        text: ASCII text behind a stored number, for terminals; empty if the family defines the format.
        family: format of the values in programs: size, duration, date, share, power, temperature, frequency, energy;
            empty for plain numbers.
        prometheus: suffix of metric names, with the values in the unit of `symbol`; empty if both stay as stored.
        grafana: Grafana's name of the unit; empty if it has none.
        grafana_rate: Grafana's name for the growth per second, with {noun} for the counted things.
    """

    name: str
    symbol: str = ""
    factor: float = 1.0
    prefixes: Sequence[str] = _NONE
    step: int = 1000
    text: str = ""
    family: str = ""
    prometheus: str = ""
    grafana: str = ""
    grafana_rate: str = ""

    @property
    def scale(self) -> float:
        """Return the factor to bytes, seconds, watts and fractions, the units of measures and replies."""
        return 0.01 if self.family == "share" else self.factor

    @property
    def divisor(self) -> float:
        """Return the divisor of a stored number for Prometheus: the exact inverse of `factor`, 1 without a suffix."""
        if not self.prometheus:
            return 1
        return round(1 / self.factor) if self.factor < 1 else 1 / self.factor

    def scaled(self, largest: float) -> tuple[float, str]:
        """Return the divisor of values up to `largest`, and the symbol with the matching prefix."""
        plain = self.prefixes.index("")
        at = plain if largest == 0 else 0
        while at + 1 < len(self.prefixes) and largest >= float(self.step) ** (at + 1 - plain):
            at += 1
        return float(self.step) ** (at - plain), self.prefixes[at] + self.symbol

    def per_second(self, cpu_time: bool = False) -> Unit:
        """Return the unit of the growth per second.

        Args:
            cpu_time: whether it is CPU time, then in cores; other times are tasks, or shares of the time.
        """
        name = f"{self.name}/s"
        if self.symbol == "J":
            return Unit(name, "W", self.factor, _SI, family="power")
        if self.symbol == "s":
            return Unit(name, "cores" if cpu_time else "s/s", self.factor)
        family = "flow" if self.family == "size" else ""
        return Unit(name, f"{self.symbol}/s", self.factor, self.prefixes, self.step, family=family)


UNITS: Mapping[str, Unit] = {
    unit.name: unit
    for unit in (
        Unit("none", "", 1, _SI, grafana="short"),
        Unit("count", "", 1, _SI, grafana="short", grafana_rate="cps"),
        Unit("bytes", "B", 1, _BINARY, 1024, family="size", grafana="bytes", grafana_rate="binBps"),
        Unit(
            *("kbytes", "B", 1024, _BINARY, 1024),
            family="size",
            prometheus="_bytes",
            grafana="kbytes",
            grafana_rate="KiBs",
        ),
        Unit("mbytes", "B", 1 << 20, _BINARY, 1024, family="size", grafana="mbytes"),
        # si:n is a prefix with a scale of its own in Grafana: 2e9 of si:ncores are "2 cores"
        Unit("nsec", "s", 1e-9, _SMALL, 1000, "", "duration", "_seconds", "ns", "si:n{noun}"),
        Unit("usec", "s", 1e-6, _SMALL, 1000, "", "duration", "_seconds", "µs", "si:µ{noun}"),
        Unit("sec", "s", 1, _SMALL, 1000, "", "duration", "_seconds", "s"),
        Unit("jiffies", "s", 0.01, _SMALL, family="duration", grafana_rate="suffix:{noun}"),  # 1/USER_HZ s
        Unit("mbytes-usec", "MB·s", 1e-6, text="MiB s"),
        Unit("ts_date", "s since 1970", family="date", grafana="dateTimeFromNow"),
        Unit("celsius", "°C", text="C", family="temperature", grafana="celsius"),
        Unit("watts", "W", 1, _SI, text="W", family="power", grafana="watt"),
        Unit("ujoules", "J", 1e-6, _SI, text="J", family="energy", grafana_rate="si:µW"),
        Unit("mhz", "Hz", 1e6, _SI, text="MHz", family="frequency", grafana="si:MHz"),
        Unit("percent", "%", text="%", family="share", grafana="percent"),
    )
}

# -- fields and tables --

KINDS = frozenset({"counter", "gauge", "label"})
FOLDS = frozenset({"sum", "max", "min", "first"})
SCOPES = frozenset({"job", "node"})

# Names become HDF5 columns and Elasticsearch fields. Colmet 0.6 has capitals and dashes in some.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}", re.ASCII)
DTYPE = re.compile(r"i8|f4|f8|S[1-9][0-9]{0,3}", re.ASCII)
# Columns that outputs add to every row.
RESERVED = frozenset({"job_id", "hostname", "timestamp", "metric_backend", "involved_jobs"})
MAX_FIELDS = 1024

FEW_ROWS = 16  # read without an array
MISSING_INT = -1  # in packed rows; NaN for floats, an empty string for strings

Rows = npt.NDArray[np.void]
Value = Union[int, float, bytes, None]


@dataclass(frozen=True)
class Field:
    """One measured quantity, declared once."""

    name: str  # the kernel's or Colmet 0.6's name
    unit: str  # one of `UNITS`
    kind: str  # counter (only grows), gauge, or label
    help: str = ""  # meaning; ends with its source (file, struct field, command column)
    dtype: str = "i8"  # i8, f4, f8 or S<bytes>
    fold: str = "sum"  # how the values of tasks are combined into the job's value: sum, max, min or first

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name in RESERVED:
            raise ValueError(f"not a field name: {self.name!r}")
        if not DTYPE.fullmatch(self.dtype):
            raise ValueError(f"not a field type: {self.dtype!r}")
        if self.unit not in UNITS or self.kind not in KINDS or self.fold not in FOLDS:
            raise ValueError(f"field {self.name}: unit {self.unit!r}, kind {self.kind!r}, fold {self.fold!r}")

    @property
    def missing(self) -> int | float | bytes:
        """Return the packed value for "not measured"."""
        if self.dtype[0] == "S":
            return b""
        return float("nan") if self.dtype[0] == "f" else MISSING_INT


def label(name: str, size: int, text: str, source: str) -> Field:
    """Return the declaration of a label of its row, at most `size` bytes.

    Args:
        name: of the field.
        size: in bytes; longer values are truncated.
        text: meaning, a sentence.
        source: file, struct field or command column, without a full stop.
    """
    return Field(name, "none", "label", f"{text} Source: {source}.", dtype=f"S{size}", fold="first")


def counter(name: str, unit: str, text: str, source: str, fold: str = "sum") -> Field:
    """Return the declaration of a counter; arguments as for `label` and `Field`."""
    return Field(name, unit, "counter", f"{text} Source: {source}.", fold=fold)


def gauge(name: str, unit: str, text: str, source: str, dtype: str = "i8") -> Field:
    """Return the declaration of a gauge; arguments as for `label` and `Field`."""
    return Field(name, unit, "gauge", f"{text} Source: {source}.", dtype)


def digest_of(text: bytes) -> bytes:
    """Return the digest of a description's text."""
    return blake2b(text, digest_size=16).digest()


class Schema:
    """An ordered set of fields under a table name; ValueError if a name, type, unit, scope or count is not allowed.

    Args:
        name: table name, e.g. ``taskstats_default``.
        scope: ``job`` (one row a job) or ``node`` (rows of job 0, the node itself).
        fields: at most `MAX_FIELDS`, names all different.
    """

    def __init__(self, name: str, scope: str, fields: Iterable[Field]) -> None:
        self.name = name
        self.scope = scope
        self.fields = tuple(fields)
        self.names = tuple(field.name for field in self.fields)
        self.name_set = frozenset(self.names)
        if not NAME.fullmatch(name):
            raise ValueError(f"not a table name: {name!r}")
        if scope not in SCOPES:
            raise ValueError(f"not a scope: {scope!r}")
        if not 0 < len(self.fields) <= MAX_FIELDS or len(self.name_set) != len(self.names):
            raise ValueError(f"table {name}: no fields, too many, or one twice")

    def __repr__(self) -> str:
        return f"Schema({self.name!r}, {self.scope!r}, {len(self.fields)} fields)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """Return the type of a packed row, little-endian: ``job_id`` (i8), then the fields in order."""
        kinds = [(f.name, f.dtype if f.dtype[0] == "S" else "<" + f.dtype) for f in self.fields]
        return np.dtype([("job_id", "<i8"), *kinds])

    @cached_property
    def row_bytes(self) -> int:
        """Return the size of a packed row in bytes."""
        return int(self.dtype.itemsize)

    @cached_property
    def missing(self) -> tuple[tuple[str, int | float | bytes], ...]:
        """Return each field's name and its packed value for "not measured"."""
        return tuple([(field.name, field.missing) for field in self.fields])

    @cached_property
    def undeclared(self) -> int:
        """Return the number of columns unknown to this Colmet: those of a later version, or a site's own."""
        from colmet.common.tables import undeclared  # imported here: it consists of schemas

        return undeclared(self)

    @cached_property
    def text(self) -> str:
        """Return the canonical description: a line for the table, then one for each field."""
        lines = [f"{self.name} {self.scope}"]
        lines += [f"{f.name} {f.unit} {f.kind} {f.dtype} {f.fold}" for f in self.fields]
        return "\n".join(lines)

    @cached_property
    def digest(self) -> bytes:
        """Return 16 bytes that identify this description for ever (BLAKE2b of `text`)."""
        return digest_of(self.text.encode())

    @cached_property
    def deflated(self) -> bytes:
        """Return `text` in zlib format. It is kept as long as the schema, so a limit on schemas limits it too."""
        return zlib.compress(self.text.encode(), 9)

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Return the schema of a canonical description; ValueError for any other text."""
        lines = text.split("\n")
        if len(lines) > MAX_FIELDS + 1:
            raise ValueError(f"more than {MAX_FIELDS} fields")
        name, scope = lines[0].split(" ")
        fields = []
        for line in lines[1:]:
            field, unit, kind, dtype, fold = line.split(" ")
            fields.append(Field(field, unit, kind, dtype=dtype, fold=fold))
        return cls(name, scope, fields)

    def empty_rows(self, count: int) -> Rows:
        """Return `count` rows of job 0 with every field missing."""
        return self._empty_row.repeat(count)

    @cached_property
    def _empty_row(self) -> Rows:
        row = np.zeros(1, dtype=self.dtype)
        for field in self.fields:
            row[field.name] = field.missing
        return row


class Sample(NamedTuple):
    """A row as a backend yields it. None, or an absent name, is a missing value."""

    job_id: int  # job of the row; 0 is the node
    values: Mapping[str, Value]  # by name
    schema: Schema | None = None  # of the row's table; None for the backend's first


@lru_cache(maxsize=1024)
def _ids_of(row_bytes: int, count: int) -> struct.Struct:
    """Return the layout of the job ids in packed rows."""
    return struct.Struct("<" + f"q{row_bytes - 8}x" * count)


class Table:
    """Rows of one schema, measured at one time.

    Args:
        schema: of every row.
        time_ns: time of the measurement, since the epoch.
        rows: an array of the schema's type, or its bytes. Bytes become an array on first use: on the way from message
            to file that is once for the rows of thousands of messages.
    """

    __slots__ = ("_rows", "schema", "time_ns")

    def __init__(self, schema: Schema, time_ns: int, rows: Rows | bytes) -> None:
        self.schema = schema
        self.time_ns = time_ns
        self._rows = rows

    def __repr__(self) -> str:
        return f"Table({self.schema!r}, {self.time_ns}, {len(self)} rows)"

    def __len__(self) -> int:
        rows = self._rows
        return len(rows) // self.schema.row_bytes if type(rows) is bytes else len(rows)

    @property
    def rows(self) -> Rows:
        """Return the rows, shape (n,); read-only."""
        if isinstance(self._rows, bytes):
            self._rows = np.frombuffer(self._rows, self.schema.dtype)
        return self._rows

    @property
    def job_ids(self) -> Sequence[int]:
        """Return the job of each row."""
        rows = self._rows
        if type(rows) is bytes and len(rows) <= FEW_ROWS * self.schema.row_bytes:
            return _ids_of(self.schema.row_bytes, len(rows) // self.schema.row_bytes).unpack(rows)
        ids: list[int] = self.rows["job_id"].tolist()
        return ids

    @property
    def packed(self) -> bytes:
        """Return the rows as contiguous bytes."""
        rows = self._rows  # read once: another thread may convert it meanwhile
        return rows if isinstance(rows, bytes) else rows.tobytes()

    @classmethod
    def from_samples(cls, schema: Schema, time_ns: int, samples: Sequence[Sample]) -> Table:
        """Pack samples; raise ValueError for a name unknown to the schema."""
        packed = []
        for sample in samples:
            values = sample.values
            if not values.keys() <= schema.name_set:
                raise ValueError(f"table {schema.name} has no {sorted(values.keys() - schema.name_set)}")
            row: list[Value] = [sample.job_id]
            for name, missing in schema.missing:
                value = values.get(name)
                row.append(missing if value is None else value)
            packed.append(tuple(row))
        return cls(schema, time_ns, np.array(packed, dtype=schema.dtype))

    def samples(self) -> Iterable[Sample]:
        """Return the rows as samples, missing values as None. For people and tests; outputs use `rows`."""
        for row in self.rows:
            yield Sample(int(row["job_id"]), {f.name: present(f, row[f.name]) for f in self.schema.fields})


def present(field: Field, packed: Any) -> Value:
    """Return the Python value of one packed cell, or None if it is missing."""
    value: Value = packed.item()
    if value == field.missing or value != value:
        return None
    # 0.44 as f4 is 0.4399999976 as a Python float; its text is the shortest for the same f4
    return float(str(packed)) if field.dtype == "f4" else value


class Batch(NamedTuple):
    """One tick of one agent.

    (host, epoch, seq) identifies a batch for ever; epoch and seq are None in the dialects of older nodes, which do not
    number their messages. `jobs` are the jobs on the node at that tick, None if the dialect lacks them.
    """

    host: str
    epoch: int | None
    seq: int | None
    time_ns: int
    jobs: tuple[int, ...] | None
    tables: tuple[Table, ...]

    @property
    def row_count(self) -> int:
        """Return the number of rows in all tables."""
        return sum(map(len, self.tables))

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory used, in bytes."""
        tables = sum([len(table) * table.schema.row_bytes + 500 for table in self.tables])
        return tables + 36 * len(self.jobs or ()) + 1000
