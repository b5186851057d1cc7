"""A Kubernetes API that knows one call: the list of the pods of a namespace, by label, in pages."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def pod(namespace, name, labels):
    """A pod, with the fields that real ones have (shortened)."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "7a1e4bd2-57fb-4a0d-9d8b-0f1c6f1f7d3c",
            "resourceVersion": "81544101",
            "creationTimestamp": "2026-11-20T08:00:00Z",
            **({} if labels is None else {"labels": labels}),
            "annotations": {"hub.jupyter.org/username": "somebody"},
        },
        "spec": {"containers": [{"name": "notebook", "image": "jupyter:1", "resources": {}}], "nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.42.0.17", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class KubernetesServer:
    """Serves pods on a port of this machine. As a context manager.

    Attributes:
        pods: namespace -> pods.
        token: that a request needs.
        page: pods in a page at most, however many are asked for.
        status: of every answer, where it is not 200; and `said`, its message.
        answer: bytes instead of any list.
        requests: the query of each request.
        hang: answer nothing until the end.
    """

    def __init__(self):
        self.pods = {}
        self.token = "good"
        self.page = 500
        self.status, self.said = 200, ""
        self.answer = None
        self.requests = []
        self.hang = False
        self._end = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer._serve(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, path):
        """Write a kubeconfig file for it."""
        user = {"name": "me", "user": {"token": "good"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [user],
            "contexts": [{"name": "it", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "it",
        }
        path.write_text(json.dumps(config))
        return str(path)

    def _serve(self, handler):
        parts = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append(query)
        if self.hang:
            self._end.wait(60)
            return
        words = parts.path.strip("/").split("/")
        if self.answer is not None:
            self._answer(handler, 200, self.answer)
        elif self.status != 200:
            self._fail(handler, self.status, self.said)
        elif handler.headers.get("Authorization") != f"Bearer {self.token}":
            self._fail(handler, 401, "Unauthorized")
        elif words[:3] != ["api", "v1", "namespaces"] or words[4:] != ["pods"]:
            self._fail(handler, 404, "the server could not find the requested resource")
        else:
            self._list(handler, words[3], query)

    def _list(self, handler, namespace, query):
        label = query.get("labelSelector", "")
        chosen = [one for one in self.pods.get(namespace, []) if label in (one["metadata"].get("labels") or {})]
        start = int(query.get("continue", "0"))
        end = start + min(self.page, int(query.get("limit", "500")))
        more = {"continue": str(end), "remainingItemCount": len(chosen) - end} if end < len(chosen) else {}
        metadata = {"resourceVersion": "81544200", **more}
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": chosen[start:end]}
        self._answer(handler, 200, json.dumps(body).encode())

    def _fail(self, handler, status, said):
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": said,
            "code": status,
        }
        self._answer(handler, status, json.dumps(body).encode())

    @staticmethod
    def _answer(handler, status, body):
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
