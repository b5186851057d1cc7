"""An endpoint for documents on loopback, that answers, fails and hangs as a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SILENCE = "silence"  # accepts, and says nothing
DRIP = "drip"  # headers, a byte at a time
HEADERS_ONLY = "headers only"  # says headers, and then nothing
HALF = "half"  # headers and half of what they announce, then the connection ends
CUT = "cut"  # the connection ends before a word


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(OSError):
            super().handle()

    def do_GET(self):
        self.server.endpoint.gets.append(self.path)
        self.answer(200, {}, b"")

    def do_POST(self):
        endpoint = self.server.endpoint
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # who sent it was killed
            self.close_connection = True
            return
        what = endpoint.take(self.path, dict(self.headers), body)
        if what in (SILENCE, DRIP, HEADERS_ONLY, HALF, CUT):
            self.close_connection = True
            if what == CUT:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if what != HALF:
                endpoint.hang()
            if what == DRIP:
                for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 20_000:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if endpoint.over.wait(0.05):
                        return
            if what in (HEADERS_ONLY, HALF):
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"x" * (500 if what == HALF else 0))
                self.wfile.flush()
            if what != HALF:
                endpoint.over.wait(600)
            return
        self.answer(*what)

    def answer(self, status, headers, content):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


class Endpoint:
    """Attributes:
    documents: that were taken, in order.
    requests: (path, headers, body) of all.
    script: what to do with the next requests; then, and for None, they are taken.
    always: what to do with all of them; a function of the document may say so for each.
    hanging: requests that it does not end before `stop`.
    gets: paths that somebody asked for with GET.
    """

    def __init__(self, context=None, port=0):
        self.documents, self.requests, self.gets, self.script = [], [], [], []
        self.always = None
        self.hanging = 0
        self.over = threading.Event()
        self.port = port
        self._context = context
        self._lock = threading.Lock()
        self._listener = None
        self.start()

    @property
    def url(self):
        return f"http{'s' if self._context else ''}://127.0.0.1:{self.port}/in"

    def take(self, path, headers, body):
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        with self._lock:
            self.requests.append((path, headers, body))
            what = self.script.pop(0) if self.script else None
            if what is None:
                what = self.always(document) if callable(self.always) else self.always
            if isinstance(what, int):
                what = what, {}, b""
            if what is None or what in (HEADERS_ONLY, HALF) or (isinstance(what, tuple) and what[0] < 300):
                self.documents.append(document)
            return what or (200, {}, b"ok")

    def hang(self):
        with self._lock:
            self.hanging += 1

    def start(self):
        self._listener = Listener(("127.0.0.1", self.port), Handler)
        self._listener.endpoint = self
        self.port = self._listener.server_address[1]
        if self._context:
            self._listener.socket = self._context.wrap_socket(self._listener.socket, server_side=True)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self):
        if self._listener is not None:
            self.over.set()
            self._listener.shutdown()
            self._listener.server_close()
            self._thread.join()
            self._listener = None


def certificate(folder, name):
    """A certificate of its own for this name and 127.0.0.1: paths of it and of its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(cert), "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)
