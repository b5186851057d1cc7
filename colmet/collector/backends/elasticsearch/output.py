"""Rows as documents in Elasticsearch (7.8 and later) and OpenSearch, through bulk requests.

The id of a document is derived from its row, and documents are only created: a bulk request repeated after a timeout or
a restart changes nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from colmet import __version__
from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.elasticsearch import documents
from colmet.collector.backends.elasticsearch.dead_letters import DeadLetters
from colmet.collector.backends.elasticsearch.documents import Bulk, Documents, IndexNaming
from colmet.collector.backends.elasticsearch.mappings import MAX_KNOWN, Mappings
from colmet.collector.backends.elasticsearch.retention import Retention, period_s
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client
from colmet.common.config import cli
from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.database_client import DatabaseClient, Response, reason_of
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.http_client import HttpClient
from colmet.common.schema import Schema
from colmet.common.tables import column_types
from colmet.common.text import counted, document

log = logging.getLogger(__name__)

MAX_BULK_BYTES = 5 << 20
MIN_BULK_BYTES = 64 << 10
GROW_AFTER = 10  # successful bulks before larger ones are retried
MAX_BULK_DOCUMENTS = 10_000
CHUNK_BYTES = 4 << 20  # of records between two saved positions
MAX_REJECTED_BYTES = 1 << 20  # of a document in the reject file
WAITS_S = (0.5, 1.0, 2.0, 4.0)  # back-off before documents are sent again to a server without room

# Fields of the response to a bulk, for each document.
BULK_PATH = "/_bulk?filter_path=" + ",".join(
    ["errors", *[f"items.*.{field}" for field in ("status", "error.type", "error.reason", "error.caused_by.reason")]]
)
REJECT_FILE = "elasticsearch.rejects.ndjson"
MANAGED_BY = "colmet"
# The server refuses a second template of equal priority, and uses the highest one: a site's own template always wins.
TEMPLATE_PRIORITY = 1

# Errors with a status of 400, but not caused by the document: it waits until an administrator has corrected them.
WAIT_FOR = frozenset({"index_closed_exception", "validation_exception", "cluster_block_exception"})
ALREADY_THERE = "resource_already_exists_exception"


class ElasticsearchOutput(OutputBackend):
    """Output of rows as documents.

    Args:
        urls: of the hosts, in order of preference.
        use_templates: whether index templates may be created.
        keep_s: rows of indices with a date may be removed by the database when they are older; 0 keeps all.
    """

    name = "elasticsearch"
    share = 0.1
    max_delay_s = 5.0

    def __init__(
        self,
        urls: Sequence[str],
        http: HttpClient,
        naming: IndexNaming,
        timeout_s: float = database_client.TIMEOUT_S,
        use_templates: bool = True,
        keep_s: int = 0,
    ) -> None:
        self._stop = threading.Event()
        self._client = DatabaseClient(urls, http, timeout_s, self._stop)
        self._naming = naming
        self._retention = Retention(self._client, naming.prefix, naming.date_format, keep_s) if keep_s else None
        self._use_templates = use_templates
        self._bulk_bytes = MAX_BULK_BYTES
        self._bulks_in_a_row = 0
        self._templates: dict[bytes, bool] = {}  # by the schema's digest: whether it exists
        self._ready: dict[str, Schema] = {}  # by index
        self._refused: list[bytes] = []  # lines for the reject file, until the position behind them is saved
        self._warned: set[tuple[str, str]] = set()
        self._looked_at: dict[str, Response] = {}  # templates, until they are created or completed
        self._mappings = Mappings(self._fields_of, naming.data_stream)
        self._counters = dict.fromkeys(
            ("documents", "already_there", "rejected", "values_left_out", "retried", "bulks", "splits"), 0
        )

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options of this output; those of Colmet 0.6 come first."""
        database_client.add_options(parser, "write to")
        parser.add_argument(
            "--elastic-date-suffix",
            metavar="FORMAT",
            default="",
            help=Rare("add the date of each row (UTC) to the index name in this format, such as %%Y.%%m.%%d"),
        )
        parser.add_argument(
            "--elastic-keep",
            metavar="PERIOD",
            type=cli.period,
            default=0,
            help=Rare(
                "have the database remove indices whose rows are older than this, by a policy of ILM or ISM: 90d, 52w; "
                "requires --elastic-date-suffix (default: keep all)"
            ),
        )
        parser.add_argument(
            "--elastic-data-stream",
            action="store_true",
            help=Rare("write to data streams, with @timestamp in documents"),
        )
        parser.add_argument(
            "--elastic-no-template",
            action="store_true",
            help=Rare("create no index templates (they require a privilege), but each index with its types"),
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> ElasticsearchOutput | None:
        """Return the output, or None without --elastic-host; ConfigError for an unusable address, name or file."""
        if not options.elastic_host:
            return None
        urls, prefix = database_client.checked_urls(options), database_client.checked_prefix(options)
        date_format = options.elastic_date_suffix
        if date_format and (len(date_format) > 32 or not documents.DATE_FORMAT.fullmatch(date_format)):
            raise ConfigError(
                f"--elastic-date-suffix {date_format!r}: only %Y %m %d %H %j %G %V, lower-case letters, digits, "
                "'.', '_' and '-'"
            )
        if date_format and options.elastic_data_stream:
            raise ConfigError("--elastic-date-suffix and --elastic-data-stream: choose one, a data stream rolls over")
        if options.elastic_keep and not period_s(date_format):
            raise ConfigError(
                "--elastic-keep: an index without a date in its name is written for ever, and cannot be removed; give "
                f"--elastic-date-suffix %Y.%m.%d; for data streams, a policy of your own ({document('retention.md')})"
            )
        return cls(
            urls,
            database_client.open_http(options, urls),
            IndexNaming(prefix, date_format, options.elastic_data_stream),
            database_client.TIMEOUT_S,
            not options.elastic_no_template,
            options.elastic_keep,
        )

    def open(self, state: OutputState) -> None:
        """Prepare the output without a request: the server may be unavailable."""
        self._state = state
        self._documents = Documents(self._naming, state.journal, self._mappings.fit)
        self._dead_letters = DeadLetters(os.path.join(state.directory, REJECT_FILE) if state.directory else "")
        if not state.directory:
            log.warning("without a journal, rows that wait for the database are lost at the end; give --journal-dir")

    def interrupt(self) -> None:
        """Send no more requests; the current one keeps its timeout."""
        self._stop.set()

    def counters(self) -> dict[str, int]:
        """Return the counts of documents, retries and failures."""
        return {
            **self._counters,
            **({} if self._retention is None else {"policy_failures": self._retention.failures}),
            "rejects_not_kept": self._dead_letters.not_kept,
            "host_failures": self._client.failures,
            "failovers": self._client.failovers,
        }

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Write all rows, and save the position every few megabytes.

        Raises:
            OutputUnavailable: no host answers, it has no room, or it refuses the credentials.
        """
        for chunk in _chunks(records):
            self._refused.clear()
            self._write(chunk)
            self._keep_refused()
            self._state.save(chunk[-1].number + 1)

    def _write(self, records: Sequence[JournalRecord]) -> None:
        bodies: list[bytes] = []
        count = 0
        for schema, indices, sources in self._documents.tables(records):
            self._prepare(schema, indices)
            self._count_left_out(schema, sum([len(source.table) for source in sources]))
            for bulk in self._documents.render(schema, sources):
                if bodies and (
                    sum(map(len, bodies)) + len(bulk.body) > self._bulk_bytes
                    or count + bulk.documents > MAX_BULK_DOCUMENTS
                ):
                    self._send(Bulk(b"".join(bodies), count))
                    bodies, count = [], 0
                bodies.append(bulk.body)
                count += bulk.documents
        if bodies:
            self._send(Bulk(b"".join(bodies), count))
        self._looked_at.clear()

    def _count_left_out(self, schema: Schema, rows: int) -> None:
        """Count the values without a place in the index of their rows, and log their columns."""
        index, left_out = self._mappings.fit(schema)
        if left_out:
            self._counters["values_left_out"] += rows * len(left_out)
            self._warn_once(
                index,
                "columns left out, the index has them as another type or has too many fields",
                f"columns={','.join(sorted(left_out)[:10])}",
            )

    # -- bulks --

    def _send(self, bulk: Bulk) -> None:
        """Send a bulk until every document is created, or refused for good."""
        waiting = [bulk]
        while waiting:
            part = waiting.pop()
            if (part.documents > 1 and len(part.body) > self._bulk_bytes) or not self._send_part(part):
                waiting.extend(reversed(_halves(part)))

    def _send_part(self, bulk: Bulk) -> bool:
        """Send a bulk until all its documents are settled; return False if it is too large."""
        tries = 0  # since the server last accepted part of it
        while True:
            try:
                answer = self._client.ask("POST", BULK_PATH, bulk.body, "application/x-ndjson")
            except OutputUnavailable:
                # it may be too large for a proxy, which then resets the connection, or for the timeout
                self._shrink(len(bulk.body))
                raise
            self._counters["bulks"] += 1
            if answer.status == 413:
                self._shrink(len(bulk.body))
                if bulk.documents > 1:
                    self._counters["splits"] += 1
                    return False
                action, document = bulk.lines()
                self._refuse(action, document, 413, "", "larger than the server accepts")
                return True
            why = ": ".join(answer.error)
            if answer.status == 200:
                left, why = self._settle(bulk, answer)
                self._grow()
                if not left:
                    return True
                if len(left) < 2 * bulk.documents:
                    tries = 0  # part of it was accepted; sending all of it again would get no further
                bulk = Bulk(b"".join([line + b"\n" for line in left]), len(left) // 2)
            elif answer.status == 403:
                raise OutputUnavailable(f"may not write: {why}; give the user the right to create documents")
            elif answer.status not in (408, 429):
                raise OutputUnavailable(f"a bulk request is answered with status {answer.status}: {why}")
            elif bulk.documents > 1 and len(bulk.body) > MIN_BULK_BYTES:
                # the server limits the memory for requests: a larger one is never accepted, however long it waits
                self._shrink(len(bulk.body))
                self._counters["splits"] += 1
                self._counters["retried"] += bulk.documents
                self._stop.wait(WAITS_S[0])
                return False
            if tries == len(WAITS_S):
                what = counted(bulk.documents, "documents")
                raise OutputUnavailable(f"no room for {what} in {tries + 1} tries: {why}")
            self._counters["retried"] += bulk.documents
            self._stop.wait(WAITS_S[tries])
            tries += 1

    def _settle(self, bulk: Bulk, answer: Response) -> tuple[list[bytes], str]:
        """Count the results of all documents; return the lines to be sent again, and the reason.

        Raises:
            OutputUnavailable: documents were refused for reasons other than their content.
        """
        try:
            items = [item["create"] for item in answer.body["items"]]
            statuses = [item["status"] for item in items]
        except (KeyError, TypeError) as err:
            raise OutputUnavailable(f"the answer to a bulk request is not that of Elasticsearch: {err!r}") from err
        if len(items) != bulk.documents or not all(type(status) is int for status in statuses):
            raise OutputUnavailable(f"a bulk of {counted(bulk.documents, 'documents')} is answered for {len(items)}")
        created = statuses.count(201)
        self._counters["documents"] += created
        if created == bulk.documents:
            return [], ""
        lines = bulk.lines()
        left: list[bytes] = []
        missing: set[str] = set()
        why = blocked = ""
        for number, (status, item) in enumerate(zip(statuses, items)):
            if status == 201:
                continue
            action, document = lines[2 * number : 2 * number + 2]
            kind, reason = reason_of(item.get("error"))
            if status == 409:
                self._counters["already_there"] += 1
            elif status == 429 or status >= 500 or status < 300:
                left += (action, document)
                why = f"status {status}: {kind}: {reason}"
            elif status == 404:
                left += (action, document)
                missing.add(json.loads(action)["create"]["_index"])
                why = f"status {status}: {kind}: {reason}"
            elif status in (401, 403) or kind in WAIT_FOR:
                blocked = f"status {status}: {kind}: {reason}"
            else:
                self._refuse(action, document, status, kind, reason)
        if blocked:
            raise OutputUnavailable(f"documents are refused, {blocked}")
        for index in missing:  # removed since its preparation
            schema = self._ready.pop(index, None)
            if schema is not None:
                self._prepare(schema, [index])
        return left, why

    def _shrink(self, size: int) -> None:
        self._bulk_bytes = max(MIN_BULK_BYTES, min(self._bulk_bytes, size // 2))
        self._bulks_in_a_row = 0

    def _grow(self) -> None:
        self._bulks_in_a_row += 1
        if self._bulks_in_a_row % GROW_AFTER == 0:
            self._bulk_bytes = min(MAX_BULK_BYTES, 2 * self._bulk_bytes)

    # -- dead letters --

    def _refuse(self, action: bytes, document: bytes, status: int, kind: str, reason: str) -> None:
        target = json.loads(action)["create"]
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "index": target["_index"],
            "id": target["_id"],
            "status": status,
            "type": kind,
            "reason": reason,
            "document_bytes": len(document),
        }
        kept = document if len(document) <= MAX_REJECTED_BYTES else b"null"
        self._refused.append(json.dumps(about)[:-1].encode() + b', "document": ' + kept + b"}")

    def _keep_refused(self) -> None:
        """Write refused documents to the dead letters, once all documents are settled."""
        if not self._refused:
            return
        self._dead_letters.add(self._refused)
        for line in self._refused:
            self._counters["rejected"] += 1
            if powers_of_ten(self._counters["rejected"]):
                log.error(
                    "document refused for good rejected=%d path=%s: %.600s",
                    *(self._counters["rejected"], self._dead_letters.path, line.decode()),
                )
        self._refused.clear()

    # -- indices --

    def _prepare(self, schema: Schema, indices: Iterable[str]) -> None:
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
        index = self._naming.prefix + self._mappings.fit(schema).name
        path = f"/_index_template/{index}"
        answer = self._looked_at.pop(index, None) or self._client.ask("GET", path)
        if answer.status not in (200, 404):
            return self._without_template(index, answer)
        there = _own_template(index, answer)
        if there is None:
            return True
        known = dict(there["template"]["mappings"]["properties"]) if there else {}
        fields, own = self._mappings.fields_of(schema), column_types(schema.name)
        known.update({name: field for name, field in fields.items() if name in own or name not in known})
        template: dict[str, Any] = {
            "index_patterns": [f"{index}-*" if self._naming.date_format else index],
            "priority": TEMPLATE_PRIORITY,
            "template": documents.index_form(known),
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
        self._looked_at[index] = answer
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
        """Warn once of the server's response about an index."""
        self._warn_once(index, phrase, f"status={answer.status} {': '.join(answer.error)}")

    def _warn_once(self, index: str, phrase: str, more: str) -> None:
        if len(self._warned) < MAX_KNOWN and (phrase, index) not in self._warned:
            self._warned.add((phrase, index))
            log.warning("%s: index=%s %s", phrase, index, more)

    def _create_index(self, index: str, schema: Schema) -> None:
        answer = self._client.ask("HEAD", f"/{index}")
        if answer.status == 404:
            body: dict[str, Any] = {}
            if not self._templates.get(schema.digest):
                body = documents.index_form(self._mappings.fields_of(schema))
            answer = self._client.ask("PUT", f"/{index}", json.dumps(body).encode())
        self._created(index, answer)

    def _create_data_stream(self, name: str) -> None:
        answer = self._client.ask("PUT", f"/_data_stream/{name}")
        # 405: the server lacks data streams, and would create an index with guessed types
        if answer.status in (400, 405) and answer.error[0] != ALREADY_THERE:
            raise OutputUnavailable(f"data stream {name} cannot be made: {': '.join(answer.error)}")
        self._created(name, answer)

    def _created(self, index: str, answer: Response) -> None:
        """Check that an index exists now; without permission, the responses to documents show it."""
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


def _chunks(records: Sequence[JournalRecord]) -> Iterator[list[JournalRecord]]:
    """Yield the records in parts of a few megabytes."""
    chunk: list[JournalRecord] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += sum([batch.size_bytes for batch in record.batches])
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _halves(bulk: Bulk) -> list[Bulk]:
    lines = bulk.lines()
    middle = bulk.documents // 2
    return [
        Bulk(b"".join([line + b"\n" for line in part]), len(part) // 2)
        for part in (lines[: 2 * middle], lines[2 * middle :])
    ]
