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
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.elasticsearch import documents
from colmet.collector.backends.elasticsearch.documents import Bulk, Documents, IndexNaming
from colmet.collector.backends.elasticsearch.indices import WAIT_FOR, TableIndices
from colmet.collector.backends.elasticsearch.retention import Retention, names_periods, period_s
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client
from colmet.common.config import cli
from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.database_client import DatabaseClient, Response, reason_of
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host.files import write_all
from colmet.common.http_client import HttpClient
from colmet.common.schema import Schema
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
MAX_REJECTS_BYTES = 128 << 20  # of the reject file
REJECT_FILE = "elasticsearch.rejects.ndjson"


class DeadLetters:
    """Bounded file of lines refused for good by the database, for the administrator; more lines are only counted.

    Args:
        path: of the file; empty to count only. The first line creates it, readable by its owner only.

    Attributes:
        not_kept: dropped lines: without a file, for lack of space or after a write error.
    """

    def __init__(self, path: str, max_bytes: int = MAX_REJECTS_BYTES) -> None:
        self.path = path
        self.not_kept = 0
        self._max_bytes = max_bytes

    def add(self, lines: Sequence[bytes]) -> None:
        """Append lines (without newlines) durably; count and log dropped ones."""
        kept, why = 0, "there is no file for them"
        try:
            if self.path:
                kept, why = self._append(lines), "full; look at it, and remove it"
        except OSError as err:
            why = str(err.strerror)
        for _ in lines[kept:]:
            self.not_kept += 1
            if powers_of_ten(self.not_kept):
                log.error("refused rows not kept path=%s rows=%d: %s", self.path, self.not_kept, why)

    def _append(self, lines: Sequence[bytes]) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
            ends = list(accumulate([len(line) + 1 for line in lines]))
            kept = bisect_right(ends, self._max_bytes - os.fstat(file.fileno()).st_size)
            write_all(file.fileno(), b"".join([line + b"\n" for line in lines[:kept]]))
            os.fsync(file.fileno())
        return kept


class ElasticsearchOutput(OutputBackend):
    """Output of rows as documents.

    Args:
        urls: of the hosts, in order of preference.
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
        self._indices = TableIndices(self._client, naming, use_templates, self._retention)
        self._bulk_bytes = MAX_BULK_BYTES
        self._bulks_in_a_row = 0
        self._refused: list[bytes] = []  # lines for the reject file, until the position behind them is saved
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
        if options.elastic_keep and not names_periods(date_format):
            raise ConfigError(
                f"--elastic-keep: --elastic-date-suffix {date_format!r} does not tell when an index ends; "
                "give %Y.%m.%d, or %G.%V for weeks"
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
        self._documents = Documents(self._naming, state.journal, self._indices.mappings.fit)
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
            self._indices.prepare(schema, indices)
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

    def _count_left_out(self, schema: Schema, rows: int) -> None:
        """Count the values without a place in the index of their rows, and log their columns."""
        index, left_out = self._indices.mappings.fit(schema)
        if left_out:
            self._counters["values_left_out"] += rows * len(left_out)
            self._indices.warn_once(
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
        for index in missing:
            self._indices.make_again(index)
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


def _chunks(records: Sequence[JournalRecord]) -> Iterator[list[JournalRecord]]:
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
