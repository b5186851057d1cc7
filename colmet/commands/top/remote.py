"""Ask the JSON interface of a collector in place of its control socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.common.errors import ColmetError
from colmet.common.live.summary import JOB_KEYS, NODE_KEYS, arranged

MAX_ROWS = 1000  # of an answer
_FILTERS = ("user", "node", "text")


class RemoteTop:
    """Answers the requests of `colmet top` by the routes of an interface, with what its user may see."""

    def __init__(self, client: InterfaceClient) -> None:
        self._client = client
        self._host = urlsplit(client.url).netloc

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, as `colmet.common.live.summary.Top.answer` returns it.

        Raises:
            ColmetError: there is no answer, or not of the described form.
        """
        try:
            return self._answer(request)
        except (KeyError, TypeError, AttributeError) as err:
            raise ColmetError(
                f"{self._client.url}: the answer has not the described form; is it of another version?"
            ) from err

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cluster = self._client.get("cluster")
        heard = int(cluster["nodes"]["heard"] or 0)
        answer = {
            "daemon": "interface",
            "host": self._host,
            "time": cluster["time"],
            "kept_s": cluster["kept_s"],
            "nodes_heard": heard,
            "nodes_measured": heard,
            "left_out": 0,
            "view": request["view"],
        }
        if request["view"] == "job":
            return {**answer, **self._job(request)}
        keys = NODE_KEYS if request["view"] == "nodes" else JOB_KEYS
        asked: dict[str, object] = {name: request.get(name) or None for name in ("sort", "reverse", "text")}
        asked["limit"] = max(1, min(MAX_ROWS, request.get("limit", MAX_ROWS)))
        if request["view"] == "jobs":
            asked.update({name: request.get(name) or None for name in _FILTERS})
        found = self._client.get(request["view"], asked)
        rows = [_row(row, keys) for row in found["items"]]
        if request["view"] == "nodes":
            answer["totals"] = cluster["nodes"]
        elif not any(asked[name] for name in _FILTERS):
            answer["totals"] = cluster["jobs"]
        return {**answer, "count": int(found["total"]), "rows": rows}

    def _job(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = self._client.get(f"jobs/{int(request['job'])}")
        except InterfaceError as err:
            if err.status != 404:
                raise
            return {"job": None, "count": 0, "rows": []}
        rows = [_row(row, ("node", *JOB_KEYS)) for row in found["nodes"]]
        rows = arranged(rows, str(request.get("sort", "cpu")), bool(request.get("reverse")))
        job = _row(found["job"], JOB_KEYS) if found["job"]["running"] else None
        return {"job": job, "count": len(rows), "rows": rows}


def _row(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {**{key: row[key] for key in keys}, **({"silent": row["silent"]} if "silent" in row else {})}
