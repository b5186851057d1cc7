"""A server on loopback that answers as Elasticsearch does, as far as the output asks, and fails as a test wants."""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import json
import random
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESET = "reset"  # the connection ends in the middle of the answer
SILENCE = "silence"  # no answer for as long as the test runs


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in one piece
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(OSError):  # clients that time out
            super().handle()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        elastic = self.server.elastic
        done = elastic.take(self.command, self.path, self.headers, body)
        if done == SILENCE:
            elastic.over.wait(60)
            self.close_connection = True
            return
        if done == RESET:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"errors":')
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        status, content, *headers = done
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815 - names that http.server looks for


def error(status, kind, reason="because"):
    return status, {"error": {"type": kind, "reason": reason}, "status": status}


def aggregated(about, found):
    """The answer to one aggregation."""
    ((how, options),) = about.items()
    field = options["field"].partition(".")[0]
    if how != "terms":
        values = [document[field] * 1000 for _, _, document in found]
        return {"value": {"min": min, "max": max}[how](values) if values else None}
    values = [name if field == "_index" else document[field] for name, _, document in found]
    counts = collections.Counter(values).most_common()
    buckets = [{"key": key, "doc_count": count} for key, count in counts[: options["size"]]]
    return {"buckets": buckets, "sum_other_doc_count": sum(count for _, count in counts[options["size"] :])}


def fits(how, wanted, value):
    """Whether a value passes a filter."""
    if how == "range":
        return value is not None and wanted["gte"] <= value <= wanted["lte"]
    return value == wanted if how == "term" else value in wanted if how == "terms" else value is not None


class Elastic:
    """The server, its indices and what was asked of it.

    Attributes:
        indices: documents by id, by index.
        templates: as they were put.
        requests: (method, path, headers, body) of each.
        script: what to answer to the next requests of a kind, `(method, start of path) -> [answers]`; an answer is
            (status, content), RESET, SILENCE, or None for what a good server answers.
        item: called with (action, document) for each document of a bulk; its (status, error) instead of the usual.
        max_bytes: of a request.
        text_type: of fields that are text.
    """

    def __init__(self, context=None):
        self.indices, self.templates, self.data_streams = {}, {}, set()
        self.requests, self.script = [], {}
        self.item = lambda action, document: None
        self.max_bytes = 1 << 30
        self.text_type = "keyword"
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.elastic = self
        self.port = self._server.server_address[1]
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def asked(self, method, start=""):
        return [path for verb, path, _, _ in self.requests if verb == method and path.startswith(start)]

    @property
    def bulks(self):
        return [body for verb, path, _, body in self.requests if path.startswith("/_bulk")]

    def take(self, method, path, headers, body):
        with self._lock:
            self.requests.append((method, path, dict(headers), body))
            for (verb, start), answers in self.script.items():
                if answers and verb == method and path.startswith(start):
                    answer = answers.pop(0)
                    if answer is not None:
                        return answer
            if len(body) > self.max_bytes:
                return 413, b"too large"
            if "/_search?" in path or "/_field_caps?" in path:
                return self._look(path, body)
            if path.startswith("/_bulk"):
                assert headers["Content-Type"] == "application/x-ndjson"
                return self._bulk(body)
            return self._manage(method, path, body)

    def _manage(self, method, path, body):
        if body:
            body = json.loads(body)
        name = path.rpartition("/")[2]
        if path.startswith("/_index_template/"):
            if method == "PUT":
                self.templates[name] = body
            elif name not in self.templates:
                return error(404, "resource_not_found_exception")
            return 200, {"index_templates": [{"name": name, "index_template": self.templates[name]}]}
        if path.startswith("/_data_stream/"):
            if name in self.data_streams:
                return error(400, "resource_already_exists_exception")
            if "data_stream" not in self.templates.get(name, {}):
                return error(400, "illegal_argument_exception", "no matching index template found")
            self.data_streams.add(name)
            self.indices.setdefault(name, {})
            return 200, {"acknowledged": True}
        if method == "PUT":
            self.indices.setdefault(name, {})
            return 200, {"acknowledged": True}
        return (200, b"") if name in self.indices else (404, b"")

    def _look(self, path, body):
        """A search, or the fields that there are, in the indices that a pattern names."""
        patterns = path[1:].partition("/")[0].split(",")
        found = [
            (name, key, document)
            for name, documents in self.indices.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            for key, document in documents.items()
        ]
        if "/_field_caps?" in path:
            fields = {}
            for name, value in [item for _, _, document in found for item in document.items()]:
                first = value[0] if isinstance(value, list) else value
                kind = {int: "long", float: "double", str: self.text_type}[type(first)]
                fields.setdefault(name, {})[kind] = {"type": kind}
                if kind == self.text_type:
                    fields[name + ".keyword"] = {"keyword": {"type": "keyword"}}
            return 200, {"fields": fields}
        query = json.loads(body)
        for wanted in query["query"].get("bool", {"filter": [query["query"]]})["filter"]:
            ((how, about),) = wanted.items()
            ((field, value),) = about.items() if how != "exists" else [(about["field"], None)]
            field = field.partition(".")[0]
            found = [hit for hit in found if fits(how, value, hit[2].get(field))]
        if "aggs" in query:
            return 200, {"aggregations": {name: aggregated(about, found) for name, about in query["aggs"].items()}}
        hits = [
            {
                "_index": name,
                "_id": key,
                "sort": [document["timestamp"] * 1000, document["hostname"]],
                "_source": {name: document[name] for name in query["_source"] or () if name in document},
            }
            for name, key, document in found
        ]
        random.Random(len(self.requests)).shuffle(hits)
        hits = [hit for hit in hits if hit["sort"] > query.get("search_after", [])]
        hits.sort(key=lambda hit: hit["sort"])
        return 200, {"timed_out": False, "hits": {"hits": hits[: query["size"]]}}

    def _bulk(self, body):
        lines = body.split(b"\n")
        assert lines.pop() == b"" and len(lines) % 2 == 0
        items = []
        for action, document in zip(lines[::2], lines[1::2]):
            target = json.loads(action)["create"]
            known = self.indices.get(target["_index"])
            status, why = self.item(target, json.loads(document)) or (201, None)
            if status == 201 and known is None:
                status, why = 404, "index_not_found_exception"
            elif status == 201 and target["_id"] in known:
                status, why = 409, "version_conflict_engine_exception"
            elif status == 201:
                known[target["_id"]] = json.loads(document)
            items.append(
                {"create": {"status": status, **({"error": {"type": why, "reason": "because"}} if why else {})}}
            )
        return 200, {"errors": any("error" in item["create"] for item in items), "items": items}
