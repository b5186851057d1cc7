"""Choice of the index for a table's rows, and of the columns with a place in its mapping.

Colmet declares its own tables, so their fields are fixed. Other tables, and columns unknown to this version, get the
types of the first rows. Rows of other types go to another index, or without the conflicting values, so that no document
is refused because of another sender's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from colmet.collector.backends.elasticsearch.documents import Fit, properties
from colmet.collector.columns import names_for
from colmet.common.schema import Schema
from colmet.common.tables import column_types, is_declared, table_names

MAX_FIELDS = 1000  # of an index: default limit of both databases
MAX_KNOWN = 10_000  # cached indices, and cached schemas
OWN = frozenset(name.lower() for name in table_names())
_KINDS = {"long": "i", "float": "f", "double": "f", "keyword": "S"}


class Mappings:
    """Choice of the index for rows, with a cache of each index's fields.

    Args:
        load: returns the current fields of an index or its template, by name; empty if it does not exist.
        data_stream: whether documents have `@timestamp`.
    """

    def __init__(self, load: Callable[[str], Mapping[str, Any]], data_stream: bool) -> None:
        self._load = load
        self._data_stream = data_stream
        self._fields: dict[str, dict[str, Any]] = {}
        self._fits: dict[bytes, Fit] = {}

    def fit(self, schema: Schema) -> Fit:
        """Return the index for rows of a schema, after adding their fields; OutputUnavailable if unreadable now."""
        fit = self._fits.get(schema.digest)
        if fit is None:
            if len(self._fits) >= MAX_KNOWN or len(self._fields) >= MAX_KNOWN:
                self._fits.clear()
                self._fields.clear()
            fit = self._fits[schema.digest] = self._find(schema)
            self.add(fit.name, self.fields_of(schema))
        return fit

    def fields_of(self, schema: Schema) -> dict[str, Any]:
        """Return the fields of a schema's documents, without dropped ones."""
        wanted = properties(schema, self._data_stream)
        fit = self._fits.get(schema.digest)
        return {name: field for name, field in wanted.items() if fit is None or name not in fit.left_out}

    def fields(self, index: str) -> dict[str, Any]:
        """Return the known fields of an index."""
        fields = self._fields.get(index)
        if fields is None:
            fields = self._fields[index] = dict(self._load(index))
        return fields

    def add(self, index: str, fields: Mapping[str, Any]) -> None:
        """Add fields to those of an index; existing ones keep their type."""
        self._fields[index] = {**fields, **self.fields(index)}

    def _find(self, schema: Schema) -> Fit:
        wanted = properties(schema, self._data_stream)
        own = column_types(schema.name) if is_declared(schema.name) else {}
        fit = Fit("", frozenset())
        for index in _indices(schema):
            fit = Fit(index, frozenset(_misfits(wanted, self.fields(index), own)))
            if not fit.left_out:
                break
        return fit


def _indices(schema: Schema) -> list[str]:
    """Return the possible indices for rows of a schema, the best first.

    Only Colmet's own tables use the indices of Colmet's tables. A dash would be read as the beginning of a date.
    """
    names = [name.lower() for name in names_for(schema)]
    if is_declared(schema.name):
        return names
    names = [name.replace("-", "_") for name in names]
    return [name for name in names if name not in OWN]


def _misfits(wanted: Mapping[str, Any], there: Mapping[str, Any], own: Iterable[str]) -> list[str]:
    """Return the columns without a place among the fields `there` of an index; those in `own` always have one."""
    groups = {part for name in (*there, *wanted) for part in _groups(name)}
    found = []
    room = MAX_FIELDS - len(there) - sum([name in wanted and name not in there for name in own])
    for name, field in wanted.items():
        if name in own:
            continue
        if name in there:
            fits = _is_same(there[name], field)
        else:
            is_object = name in groups or any(part in wanted or part in there for part in _groups(name))
            fits = room > 0 and not is_object
            room -= fits
        if not fits:
            found.append(name)
    return found


def _groups(name: str) -> list[str]:
    """Return the objects containing a field, by the dots in its name."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _is_same(there: Mapping[str, Any], field: Mapping[str, Any]) -> bool:
    """Return whether a field accepts values of another description: an integer is a number as well."""
    have, want = _KINDS.get(str(there.get("type"))), _KINDS.get(str(field.get("type")))
    return None in (have, want) or have == want or (have == "f" and want == "i")
