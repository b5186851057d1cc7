"""Requests of the shared archive to its database: making the indices, reads by id, bulks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from colmet import __version__
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.database_client import DatabaseClient, Response, reason_of
from colmet.common.errors import OutputUnavailable
from colmet.common.text import document
from colmet.jobs.archive.documents import forms

log = logging.getLogger(__name__)

MANAGED_BY = "colmet"
TEMPLATE_PRIORITY = 1  # a site's own template always wins
AT_ONCE = 500  # documents of one read by id
MAX_BULK_BYTES = 4 << 20
CONFLICT, NOT_FOUND = 409, 404
_PARTS = ("_id", "_index", "status", "error.type", "error.reason", "error.caused_by.reason")
_BULK = "/_bulk?filter_path=" + ",".join(["errors", *[f"items.*.{part}" for part in _PARTS]])
# Statuses of 400 that are not of the document: an administrator has to act.
WAIT_FOR = frozenset({"index_closed_exception", "validation_exception", "cluster_block_exception"})
ALREADY_THERE = "resource_already_exists_exception"


class StoredDocument(NamedTuple):
    """A document in an index."""

    source: Mapping[str, Any]
    seq_no: int
    primary_term: int


class Write(NamedTuple):
    """A document to write, or to delete."""

    name: str  # of the index, without prefix
    id: str
    document: Mapping[str, Any] | None  # None to delete it
    version: int | None = None  # it is written unless there is one of a higher version
    over: StoredDocument | None = None  # it replaces this one alone
    is_new: bool = False  # it must not be there


class Indices:
    """The indices of a shared archive; `refused` counts the documents refused for good."""

    def __init__(self, client: DatabaseClient, prefix: str, use_templates: bool = True) -> None:
        self.client = client
        self._prefix = prefix
        self._use_templates = use_templates
        self._is_ready = False
        self.refused = 0

    def prepare(self) -> None:
        """Make the indices if they are missing, and their templates; add missing fields."""
        if self._is_ready:
            return
        for name, form in forms().items():
            index = self._prefix + name
            if self._use_templates:
                self._put_template(index, form)
            answer = self.client.ask("GET", f"/{index}/_mapping")
            if answer.status == NOT_FOUND:
                answer = self.client.ask("PUT", f"/{index}", json.dumps(form).encode())
                if answer.status != 200 and answer.error[0] != ALREADY_THERE:
                    raise OutputUnavailable(
                        f"index {index} cannot be made: status {answer.status}: {': '.join(answer.error)}; give the "
                        "user the right to create indices"
                    )
            elif answer.status == 200:
                self._add_fields(index, form["mappings"]["properties"], answer)
        self._is_ready = True

    def _put_template(self, index: str, form: Mapping[str, Any]) -> None:
        path = f"/_index_template/{index}"
        answer = self.client.ask("GET", path)
        template = {
            "index_patterns": [index],
            "priority": TEMPLATE_PRIORITY,
            "template": form,
            "_meta": {"managed_by": MANAGED_BY, "version": __version__},
        }
        if answer.status == 200:
            try:
                there = answer.body["index_templates"][0]["index_template"]
                if there.get("_meta") == template["_meta"] or there["_meta"]["managed_by"] != MANAGED_BY:
                    return
            except (LookupError, TypeError, AttributeError):  # of others
                return
        if answer.status in (200, NOT_FOUND):
            answer = self.client.ask("PUT", path, json.dumps(template).encode())
        if answer.status != 200:
            self._use_templates = False
            log.warning(
                "index templates of the archive cannot be made, its indices are made without: status=%d %s; give the "
                "user the right to manage index templates, or give --elastic-no-template",
                *(answer.status, ": ".join(answer.error)),
            )

    def _add_fields(self, index: str, fields: Mapping[str, Any], answer: Response) -> None:
        """Add the fields of a later version to an index."""
        try:
            (there,) = answer.body.values()  # behind an alias, the index has another name
            known = there["mappings"].get("properties", {})
            missing = {name: field for name, field in fields.items() if name not in known}
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise OutputUnavailable(f"the mapping of {index} is not what was expected: {err!r}") from err
        if missing:
            body = json.dumps({"properties": missing}).encode()
            answer = self.client.ask("PUT", f"/{index}/_mapping", body)
            if answer.status != 200:
                log.warning(
                    "index lacks fields, they cannot be searched for: index=%s fields=%s status=%d %s",
                    *(index, ",".join(sorted(missing)[:10]), answer.status, ": ".join(answer.error)),
                )

    def get(self, name: str, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Return the documents with these ids, as they are now, also those that no search finds yet."""
        found: dict[str, StoredDocument] = {}
        for at in range(0, len(ids), AT_ONCE):
            body = json.dumps({"ids": ids[at : at + AT_ONCE]}).encode()
            answer = self.client.ask("POST", f"/{self._prefix}{name}/_mget", body)
            _check(answer, "documents cannot be read")
            try:
                for one in answer.body["docs"]:
                    if "error" in one:
                        self._is_ready = False  # removed while the collector runs
                        raise OutputUnavailable(f"documents cannot be read: {': '.join(reason_of(one['error']))}")
                    if one["found"]:
                        found[one["_id"]] = StoredDocument(
                            dict(one["_source"]), int(one["_seq_no"]), int(one["_primary_term"])
                        )
            except (LookupError, TypeError, ValueError, AttributeError) as err:
                raise _unexpected(err) from err
        return found

    def write(self, writes: Sequence[Write]) -> list[int]:
        """Write documents, and return the status of each: `CONFLICT` for one that is not as expected.

        A document that the server refuses for good is counted, and its status is below 500. OutputUnavailable: not now,
        and some may be written.
        """
        statuses: list[int] = []
        for lines, count in _bulks([self._lines(one) for one in writes]):
            answer = self.client.ask("POST", _BULK, lines, "application/x-ndjson")
            _check(answer, "a bulk request is refused")
            statuses += self._statuses(answer, count)
        return statuses

    def _lines(self, one: Write) -> bytes:
        about: dict[str, Any] = {"_index": self._prefix + one.name, "_id": one.id}
        if one.version is not None:
            about.update(version=one.version, version_type="external_gte")
        if one.over is not None:
            about.update(if_seq_no=one.over.seq_no, if_primary_term=one.over.primary_term)
        if one.document is None:
            return json.dumps({"delete": about}).encode() + b"\n"
        action = json.dumps({"create" if one.is_new else "index": about}).encode()
        return action + b"\n" + json.dumps(one.document, separators=(",", ":")).encode() + b"\n"

    def _statuses(self, answer: Response, count: int) -> list[int]:
        try:
            items = [item for one in answer.body["items"] for item in one.values()]
            statuses = [int(item["status"]) for item in items]
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise _unexpected(err) from err
        if len(items) != count:
            raise _unexpected(ValueError(f"{len(items)} answers for {count} documents"))
        for status, item in zip(statuses, items):
            error = item.get("error")
            if status < 300 or status == CONFLICT or (status == NOT_FOUND and error is None):
                continue
            kind, reason = reason_of(error)
            if status == NOT_FOUND:  # removed while the collector runs
                self._is_ready = False
            if status in (401, 403, NOT_FOUND, 408, 429) or status >= 500 or kind in WAIT_FOR:
                raise OutputUnavailable(f"documents are refused, status {status}: {kind}: {reason}")
            self.refused += 1
            if not powers_of_ten(self.refused):
                continue
            log.error(
                "summary refused for good by the database, the local archive has it: refused=%d index=%s id=%s %s: %s",
                *(self.refused, item.get("_index"), item.get("_id"), kind, reason),
            )
        return statuses


def _bulks(parts: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the bodies of bulk requests, and the number of documents in each."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        if chunk and size + len(part) > MAX_BULK_BYTES:
            yield b"".join(chunk), len(chunk)
            chunk, size = [], 0
        chunk.append(part)
        size += len(part)
    if chunk:
        yield b"".join(chunk), len(chunk)


def _check(answer: Response, what: str) -> None:
    if answer.status == 403:
        raise OutputUnavailable(
            f"{what}: {': '.join(answer.error)}; see {document('outputs/archive.md')} for its rights"
        )
    if answer.status != 200:
        raise OutputUnavailable(f"{what}: status {answer.status}: {': '.join(answer.error)}")


def _unexpected(err: Exception) -> OutputUnavailable:
    return OutputUnavailable(f"an answer is not that of Elasticsearch: {err!r}"[:500])
