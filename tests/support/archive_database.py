"""A database for the shared archive, in this process: versions, conflicts, searches in order, pages and sums."""

from __future__ import annotations

import json
import re
import threading

from colmet.common.database_client import DatabaseClient
from colmet.common.http_client import HttpClient, TlsOptions
from colmet.jobs.archive.documents import HOSTS, JOBS, host_document, host_id, job_document, job_id
from colmet.jobs.archive.indices import Indices, Write
from tests.support.elastic_server import Elastic, error

PREFIX = "t_"


def client_of(url, timeout_s=30):
    return DatabaseClient([url], HttpClient({}, TlsOptions(), 32 << 20), timeout_s, threading.Event())


def values_of(document, field):
    """All values of a field, as a list."""
    name, _, part = field.partition(".")
    value = document.get(name)
    if value is None:
        return []
    if part == "words":
        return value.split()
    return value if isinstance(value, list) else [value]


def holds(query, document):
    ((how, about),) = query.items()
    if how == "match_none":
        return False
    if how == "bool":
        return (
            all(holds(one, document) for one in about.get("filter", ()))
            and (not about.get("should") or any(holds(one, document) for one in about["should"]))
            and not any(holds(one, document) for one in about.get("must_not", ()))
        )
    if how == "exists":
        return bool(values_of(document, about["field"]))
    ((field, wanted),) = about.items()
    values = values_of(document, field)
    if how == "term":
        return wanted in values
    if how == "terms":
        return any(value in wanted for value in values)
    if how == "wildcard":
        parts = re.findall(r"\\.|[^\\]", wanted["value"], re.DOTALL)
        pattern = "".join([".*" if part == "*" else re.escape(part[-1]) for part in parts])
        return any(re.fullmatch(pattern, value, re.DOTALL) for value in values)
    assert how == "range", how
    tests = {"gte": lambda a, b: a >= b, "lte": lambda a, b: a <= b, "lt": lambda a, b: a < b}
    return any(all(tests[name](value, to) for name, to in wanted.items() if name != "format") for value in values)


class Order:
    """A place in an order, from the values that a client sees."""

    def __init__(self, sort, ways):
        self.parts = list(zip(sort, ways))

    def __lt__(self, other):
        for (mine, way), (its, _) in zip(self.parts, other.parts):
            if mine == its:
                continue
            if mine is None or its is None:  # missing ones are last
                return its is None
            return (mine < its) == (way == "asc")
        return False


def aggregated(about, documents):
    """The answer to one aggregation, dates in milliseconds."""
    how = next(name for name in about if name != "aggs")
    options = about[how]
    if how == "composite":
        return composite(options, about["aggs"], documents)
    found = [value for one in documents for value in values_of(one, options["field"])]
    if how == "stats":
        return {"count": len(found), "sum": sum(found)}
    return {"value": {"min": min, "max": max}[how](found) * 1000 if found else None}


def composite(options, within, documents):
    names = [(name, one["terms"]["field"]) for source in options["sources"] for name, one in source.items()]
    groups = {}
    for one in documents:
        groups.setdefault(tuple((values_of(one, field) or [None])[0] for _, field in names), []).append(one)
    keys = sorted(groups, key=lambda key: [(value is not None, value or "") for value in key])
    if "after" in options:
        keys = keys[keys.index(tuple(options["after"].values())) + 1 :]
    buckets = [
        {
            "key": dict(zip([name for name, _ in names], key)),
            "doc_count": len(groups[key]),
            **{name: aggregated(one, groups[key]) for name, one in within.items()},
        }
        for key in keys[: options["size"]]
    ]
    return {"buckets": buckets, **({"after_key": buckets[-1]["key"]} if buckets else {})}


class ArchiveDatabase(Elastic):
    """The server.

    Attributes:
        stored: of each document (source, sequence number, version), by index and id.
        deleted: versions of deleted documents.
    """

    def __init__(self):
        self.stored, self.deleted, self.mappings = {}, {}, {}
        self._seq = 0
        super().__init__()

    def clear(self):
        """Remove everything."""
        for some in (self.stored, self.deleted, self.mappings, self.templates):
            some.clear()

    def sources(self, name):
        """All documents of an index, by id."""
        return {key: source for key, (source, _, _) in self.stored.get(PREFIX + name, {}).items()}

    def _manage(self, method, path, body):
        index, _, what = path.lstrip("/").partition("/")
        if what == "_mget":
            known = self.stored.get(index)
            if known is None:
                return error(404, "index_not_found_exception")
            return 200, {"docs": [self._got(known, key) for key in json.loads(body)["ids"]]}
        if what == "_mapping":
            if index not in self.stored:
                return error(404, "index_not_found_exception")
            if method == "PUT":
                self.mappings[index]["properties"].update(json.loads(body)["properties"])
                return 200, {"acknowledged": True}
            return 200, {index: {"mappings": self.mappings[index]}}
        if method == "PUT" and not what:
            if index in self.stored:
                return error(400, "resource_already_exists_exception")
            self.stored[index] = {}
            self.mappings[index] = json.loads(body)["mappings"]
            return 200, {"acknowledged": True}
        return super()._manage(method, path, body)

    @staticmethod
    def _got(known, key):
        if key not in known:
            return {"_id": key, "found": False}
        source, seq, _ = known[key]
        return {"_id": key, "found": True, "_source": source, "_seq_no": seq, "_primary_term": 1}

    def _bulk(self, body):
        lines = iter(body.split(b"\n")[:-1])
        items = []
        for line in lines:
            ((action, about),) = json.loads(line).items()
            document = json.loads(next(lines)) if action != "delete" else None
            status, why = self.item(about, document) or (self._write(action, about, document), "")
            why = {404: "index_not_found_exception", 409: "version_conflict_engine_exception"}.get(status, why)
            kept = {"error": {"type": why, "reason": "because"}} if why and (action, status) != ("delete", 404) else {}
            items.append({action: {"_id": about["_id"], "_index": about["_index"], "status": status, **kept}})
        return 200, {"errors": any("error" in one for item in items for one in item.values()), "items": items}

    def _write(self, action, about, document):
        known = self.stored.get(about["_index"])
        if known is None:
            return 404
        key = about["_id"]
        there = known.get(key)
        _, seq, version = there or (None, None, self.deleted.get((about["_index"], key), 0))
        if about.get("version") is not None:
            if version > about["version"]:
                return 409
            version = about["version"]
        else:
            version += 1
        if "if_seq_no" in about and (about["if_seq_no"], about["if_primary_term"]) != (seq, 1):
            return 409
        if action == "create" and there:
            return 409
        if action == "delete":
            self.deleted[about["_index"], key] = version
            return 200 if known.pop(key, None) else 404
        self._seq += 1
        known[key] = (document, self._seq, version)
        return 200 if there else 201

    def _look(self, path, body):
        index = path[1:].partition("/")[0]
        query = json.loads(body)
        found = [source for source, _, _ in self.stored.get(index, {}).values() if holds(query["query"], source)]
        answer = {"timed_out": False, "hits": {"hits": []}}
        if query.get("track_total_hits"):
            answer["hits"]["total"] = {"value": len(found), "relation": "eq"}
        if "aggs" in query:
            answer["aggregations"] = {name: aggregated(one, found) for name, one in query["aggs"].items()}
        if not query["size"]:
            return 200, answer
        fields = [(name, one["order"]) for sort in query["sort"] for name, one in sort.items()]
        ways = [way for _, way in fields]
        hits = []
        for source in found:
            sort = [(values_of(source, name) or [None])[0] for name, _ in fields]
            hits.append((Order(sort, ways), sort, source))
        hits.sort(key=lambda hit: hit[0])
        if "search_after" in query:
            after = Order(query["search_after"], ways)
            hits = [hit for hit in hits if after < hit[0]]
        first = query.get("from", 0)
        assert first + query["size"] <= 10_000
        wanted = query["_source"] or ()
        answer["hits"]["hits"] = [
            {"sort": sort, "_source": {name: source[name] for name in wanted if name in source}}
            for _, sort, source in hits[first : first + query["size"]]
        ]
        return 200, answer


def copied(store, client, prefix=PREFIX):
    """Write all summaries of a local archive to a shared one, as they are."""
    indices = Indices(client, prefix)
    indices.prepare()
    rows = store.database.execute("SELECT * FROM jobs LEFT JOIN job_details USING (job, start)").fetchall()
    writes = []
    for row in map(dict, rows):
        hosts = store.hosts_of(row["job"])
        writes += [Write(HOSTS, host_id((row["job"], one["host"], one["start"])), host_document(one)) for one in hosts]
        writes.append(Write(JOBS, job_id(row["job"], row["start"]), job_document(row, hosts)))
    assert all(status in (200, 201) for status in indices.write(writes))
