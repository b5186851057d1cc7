"""Choice of the index for a table's rows, of the columns with a place in its mapping, and the making of indices.

Colmet declares its own tables, so their fields are fixed. Other tables, and columns unknown to this version, get the
types of the first rows. Rows of other types go to another index, or without the conflicting values, so that no document
is refused because of another sender's rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from colmet import __version__
from colmet.collector.backends.elasticsearch.documents import Fit, IndexNaming, index_form, properties
from colmet.collector.backends.elasticsearch.retention import OWN, Retention
from colmet.collector.columns import names_for
from colmet.common.database_client import DatabaseClient, Response
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Schema
from colmet.common.tables import column_types, is_declared

log = logging.getLogger(__name__)

MAX_FIELDS = 1000  # of an index: default limit of both databases
MAX_KNOWN = 10_000  # cached indices, and cached schemas
MANAGED_BY = "colmet"
# The server refuses a second template of equal priority, and uses the highest one: a site's own template always wins.
TEMPLATE_PRIORITY = 1
# Errors with a status of 400, but not caused by the document: it waits until an administrator has corrected them.
WAIT_FOR = frozenset({"index_closed_exception", "validation_exception", "cluster_block_exception"})
ALREADY_THERE = "resource_already_exists_exception"
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


class TableIndices:
    """Indices, data streams and templates for rows, made before the first document.

    Attributes:
        mappings: choose the index for rows.
    """

    def __init__(
        self, client: DatabaseClient, naming: IndexNaming, use_templates: bool, retention: Retention | None
    ) -> None:
        self._client, self._naming, self._use_templates, self._retention = client, naming, use_templates, retention
        self._templates: dict[bytes, bool] = {}  # by the schema's digest: whether it exists
        self._ready: dict[str, Schema] = {}  # by index
        self._warned: set[tuple[str, str]] = set()
        self.mappings = Mappings(self._fields_of, naming.data_stream)

    def make_again(self, index: str) -> None:
        """Make an index that was removed since its preparation."""
        schema = self._ready.pop(index, None)
        if schema is not None:
            self.prepare(schema, [index])

    def prepare(self, schema: Schema, indices: Iterable[str]) -> None:
        """Ensure that indices for documents of this schema exist, or will be created in the right form."""
        if self._use_templates and schema.digest not in self._templates:
            has_template = self._put_template(schema)
            if len(self._templates) >= MAX_KNOWN:
                self._templates.clear()
            self._templates[schema.digest] = has_template
        for index in indices:
            if index not in self._ready:
                if self._naming.data_stream:
                    self._create_data_stream(index)
                else:
                    self._create_index(index, schema)
                if self._retention is not None:
                    self._retention.attach([index])
                if len(self._ready) >= MAX_KNOWN:
                    self._ready.clear()
                self._ready[index] = schema

    def _put_template(self, schema: Schema) -> bool:
        """Create or complete the template of a table; return whether one exists now.

        A template created by others is left unchanged.
        """
        index = self._naming.prefix + self.mappings.fit(schema).name
        path = f"/_index_template/{index}"
        answer = self._client.ask("GET", path)
        if answer.status not in (200, 404):
            return self._without_template(index, answer)
        there = _own_template(index, answer)
        if there is None:
            return True
        known = dict(there["template"]["mappings"]["properties"]) if there else {}
        fields, own = self.mappings.fields_of(schema), column_types(schema.name)
        known.update({name: field for name, field in fields.items() if name in own or name not in known})
        template: dict[str, Any] = {
            "index_patterns": [f"{index}-*" if self._naming.date_format else index],
            "priority": TEMPLATE_PRIORITY,
            "template": index_form(known),
            "_meta": {"managed_by": MANAGED_BY, "version": __version__},
        }
        if self._naming.data_stream:
            template["data_stream"] = {}
        if (
            all(there.get(part) == template[part] for part in ("index_patterns", "priority", "_meta"))
            and ("data_stream" in there) == self._naming.data_stream
            and there["template"]["mappings"]["properties"] == known
        ):
            return True
        answer = self._client.ask("PUT", path, json.dumps(template).encode())
        return answer.status == 200 or self._without_template(index, answer)

    def _fields_of(self, index: str) -> Mapping[str, Any]:
        """Return the fields of Colmet's own template for an index, if any; OutputUnavailable if unreadable now."""
        if not self._use_templates:
            return {}
        index = self._naming.prefix + index
        answer = self._client.ask("GET", f"/_index_template/{index}")
        if answer.status != 200:
            _wait_where_busy(answer)
        there = _own_template(index, answer)
        return dict(there["template"]["mappings"]["properties"]) if there else {}

    def _without_template(self, index: str, answer: Response) -> bool:
        """Go on without a refused template, or without any if the server does not permit templates."""
        _wait_where_busy(answer)
        if answer.status == 400:
            self._warn(index, "index template refused, missing indices of its name are created without", answer)
        else:
            self._use_templates = False
            self._templates.clear()
            log.warning(
                "index templates cannot be made, missing indices are created without: status=%d %s; give the user the "
                "right to manage index templates, or give --elastic-no-template",
                answer.status,
                ": ".join(answer.error),
            )
        return False

    def _warn(self, index: str, phrase: str, answer: Response) -> None:
        self.warn_once(index, phrase, f"status={answer.status} {': '.join(answer.error)}")

    def warn_once(self, index: str, phrase: str, more: str) -> None:
        """Log a warning about an index, once."""
        if len(self._warned) < MAX_KNOWN and (phrase, index) not in self._warned:
            self._warned.add((phrase, index))
            log.warning("%s: index=%s %s", phrase, index, more)

    def _create_index(self, index: str, schema: Schema) -> None:
        answer = self._client.ask("HEAD", f"/{index}")
        if answer.status == 404:
            body: dict[str, Any] = {}
            if not self._templates.get(schema.digest):
                body = index_form(self.mappings.fields_of(schema))
            answer = self._client.ask("PUT", f"/{index}", json.dumps(body).encode())
        self._created(index, answer)

    def _create_data_stream(self, name: str) -> None:
        answer = self._client.ask("PUT", f"/_data_stream/{name}")
        # 405: the server lacks data streams, and would create an index with guessed types
        if answer.status in (400, 405) and answer.error[0] != ALREADY_THERE:
            raise OutputUnavailable(f"data stream {name} cannot be made: {': '.join(answer.error)}")
        self._created(name, answer)

    def _created(self, index: str, answer: Response) -> None:
        if answer.status == 200 or answer.error[0] == ALREADY_THERE:
            return
        _wait_where_busy(answer)
        self._warn(index, "index cannot be looked at or created", answer)


def _own_template(index: str, answer: Response) -> Mapping[str, Any] | None:
    """Return Colmet's template from the response, empty without one, or None for one of others.

    Raises:
        OutputUnavailable: the template has another form.
    """
    if answer.status != 200:
        return {}
    try:
        there = answer.body["index_templates"][0]["index_template"]
        if there.get("_meta", {}).get("managed_by") != MANAGED_BY:
            return None
        dict(there["template"]["mappings"]["properties"])
        return dict(there)
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise OutputUnavailable(f"index template {index} is not what was expected: {err!r}") from err


def _wait_where_busy(answer: Response) -> None:
    """Raise OutputUnavailable if a retry may succeed."""
    if answer.status in (408, 429) or answer.error[0] in WAIT_FOR:
        raise OutputUnavailable(f"status {answer.status}: {': '.join(answer.error)}")
