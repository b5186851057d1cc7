"""A database in this process: HTTP, bulks of `create` and `index`, conflicts, and failures of all kinds on the way."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.database.connections.add(self.connection)

    def finish(self):
        self.server.database.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        fate = self.server.database.fate() if "_bulk" in self.path else ""
        if fate == "lost before":
            self._vanish()
            return
        if fate in ("429", "503"):
            self._answer(int(fate), {"error": {"type": "too_busy", "reason": "later"}, "status": int(fate)})
            return
        if "_bulk" in self.path:
            answer = self.server.database.bulk(body, some_busy=fate == "items busy")
        elif self.path == "/":
            answer = {"version": {"number": "8.14.0", "build_flavor": "default"}, "tagline": "You Know, for Search"}
        elif self.command in ("GET", "HEAD"):  # no index and no template is there, as far as its answers go
            self._answer(404, {"error": {"type": "resource_not_found_exception", "reason": "no"}, "status": 404})
            return
        else:
            answer = {"acknowledged": True}
        if fate == "lost after":
            self._vanish()
            return
        self._answer(200, answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - the names are http.server's

    def _vanish(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status, document):
        body = b"" if self.command == "HEAD" else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Elastic-Product", "Elasticsearch")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_):
        pass  # the client was killed


class Database:
    """It keeps its documents while it is down.

    Args:
        seed: of what goes wrong.
        trouble: share of the bulks that meet with something.

    Attributes:
        trouble: see there.
        documents: by (index, _id).
        conflicts: documents that were there when they were to be created.
        bulks: answered, or not.
    """

    FATES = ("lost before", "lost after", "429", "503", "items busy")

    def __init__(self, seed, trouble=0.0):
        self.documents = {}
        self.conflicts = self.bulks = 0
        self.connections = set()
        self.fates = []
        self._rng = random.Random(seed)
        self.trouble = trouble
        self._lock = threading.Lock()
        self._listener = None
        self.port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def fate(self):
        with self._lock:
            self.bulks += 1
            chosen = self._rng.choice(self.FATES) if self._rng.random() < self.trouble else ""
            self.fates.append(chosen)
            return chosen

    def bulk(self, body, some_busy):
        lines = iter(body.decode().splitlines())
        items = []
        failed = False
        with self._lock:
            for line in lines:
                ((action, target),) = json.loads(line).items()
                document = json.loads(next(lines))
                key = target["_index"], target["_id"]
                there = key in self.documents
                if some_busy and self._rng.random() < 0.3:
                    status = 429
                elif there and action == "create":
                    status = 409
                    self.conflicts += 1
                else:
                    status = 200 if there else 201
                    self.documents[key] = document
                item = {"_index": key[0], "_id": key[1], "status": status}
                if status >= 400:
                    failed = True
                    kind = "version_conflict_engine_exception" if status == 409 else "es_rejected_execution_exception"
                    item["error"] = {"type": kind, "reason": "because"}
                items.append({action: item})
        return {"took": 1, "errors": failed, "items": items}

    def start(self):
        self._listener = Listener(("127.0.0.1", self.port), Handler)
        self._listener.database = self
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        """It is gone in the middle of whatever it does."""
        self._listener.shutdown()
        self._listener.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
