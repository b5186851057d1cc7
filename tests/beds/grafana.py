"""What Grafana does with a panel: the requests that it makes, and the lines that it draws of the answers.

After the documentation of Grafana 10 to 13 (data sources Elasticsearch and Prometheus: query editor, template
variables; panels: query options) and what is known of its requests:

* A variable is written into a query in the data source's own form: in Lucene special characters are escaped, and
  several values become ("a" OR "b"); for Prometheus several values become a regular expression. "All" is the variable's
  own value for it, as it stands.
* The automatic value of a variable of steps is the time range divided by its count, rounded, but not less than its
  least.
* The Elasticsearch data source sends /_msearch: a filter by time (both ends included, in ms), a query string, and
  nested aggregations, in the panel's order. A date histogram has a fixed interval, and buckets for all of the range. Of
  a derivative in a unit the normalised value is drawn; hidden metrics are not drawn; `trimEdges` cuts points off both
  ends. The OpenSearch data source does the same.
* In a table a column of a script has the script as its name, if there are several.
* $__rate_interval is the larger one of $__interval + the scrape interval, and four times the scrape interval.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from typing import NamedTuple

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LUCENE = re.compile(r'([!*+\-=<>\s&|()\[\]{}^~?:\\/"])')
_REGULAR = re.compile(r"[\\^$.|?*+()\[\]{}]")
_ALIAS = re.compile(r"\{\{\s*(?:term )?([^}]+?)\s*\}\}")


class All(str):
    """The value of a variable of which everything is chosen."""


class Drawn(NamedTuple):
    """A line.

    Attributes:
        name: in the legend.
        labels: what it is split by.
        points: seconds since 1970, and the value or None.
    """

    name: str
    labels: dict
    points: list


def lucene(value):
    if isinstance(value, All):
        return str(value)
    if isinstance(value, list):
        return "(" + " OR ".join(f'"{lucene(one)}"' for one in value) + ")"
    return _LUCENE.sub(lambda found: "\\" + found[0], value)


def regular(value):
    if isinstance(value, list):
        return "(" + "|".join(_REGULAR.sub(lambda found: 2 * "\\" + found[0], one) for one in value) + ")"
    return str(value)


def filled(text, values, form=str):
    """A text with its variables written in; what no variable is stays as it is."""
    return _VARIABLE.sub(
        lambda found: form(values[found[1] or found[2]]) if (found[1] or found[2]) in values else found[0], text
    )


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def automatic(variable, start_s, end_s):
    """The value of a variable of steps where none is chosen; the ranges of the tests are short enough for the least."""
    assert (end_s - start_s) / variable["auto_count"] <= seconds(variable["auto_min"])
    return variable["auto_min"]


# -- Elasticsearch and OpenSearch --


def search_of(target, values, start_s, end_s):
    """The search of a target: head and body."""
    text = json.dumps({**target, "query": filled(target["query"], values, lucene)})
    target = json.loads(filled(text, values))
    field = target["timeField"]  # as in the settings of the data source
    when = {field: {"gte": start_s * 1000, "lte": end_s * 1000, "format": "epoch_millis"}}
    strings = {"query_string": {"analyze_wildcard": True, "query": target["query"]}}
    body = {"size": 0, "query": {"bool": {"filter": [{"range": when}, strings]}}}
    if target["metrics"][0]["type"] == "raw_data":
        order = {"timestamp": {"order": "desc", "unmapped_type": "boolean"}, "_doc": {"order": "desc"}}
        body.update(size=int(target["metrics"][0]["settings"]["size"]), sort=order)
    else:
        body["aggs"] = _aggregations(target, start_s, end_s)
    index = "colmet_*" if field == "timestamp" else "colmet_archive-jobs"
    return {"search_type": "query_then_fetch", "ignore_unavailable": True, "index": index}, body


def _aggregations(target, start_s, end_s):
    metrics = {}
    for metric in target["metrics"]:
        if metric["type"] == "derivative":
            metrics[metric["id"]] = {"derivative": {"buckets_path": metric["field"], **metric.get("settings", {})}}
        elif metric["type"] == "bucket_script":
            paths = {one["name"]: one["pipelineAgg"] for one in metric["pipelineVariables"]}
            metrics[metric["id"]] = {"bucket_script": {"buckets_path": paths, "script": metric["settings"]["script"]}}
        elif metric["type"] == "count":  # a bucket has it
            continue
        else:
            metrics[metric["id"]] = {metric["type"]: {"field": metric["field"]}}
    made = metrics
    for one in reversed(target["bucketAggs"]):
        settings = one["settings"]
        if one["type"] == "terms":
            own = {
                "field": one["field"],
                "size": int(settings["size"]),
                "order": {settings["orderBy"]: settings["order"]},
            }
            own["min_doc_count"] = int(settings["min_doc_count"])
            if "missing" in settings:
                own["missing"] = settings["missing"]
            if settings["orderBy"] in metrics:  # what it is sorted by is computed for the term, too
                made = {**made, settings["orderBy"]: metrics[settings["orderBy"]]}
        else:
            own = {"field": one["field"], "fixed_interval": settings["interval"], "format": "epoch_millis"}
            own["min_doc_count"] = int(settings["min_doc_count"])
            own["extended_bounds"] = {"min": start_s * 1000, "max": end_s * 1000}
        made = {one["id"]: {one["type"]: own, **({"aggs": made} if made else {})}}
    return made


def draw(target, answer):
    """The lines of a target over time, of the database's answer to it."""
    drawn = []

    def walk(found, aggregations, labels):
        one, rest = aggregations[0], aggregations[1:]
        for bucket in found[one["id"]]["buckets"] if rest else ():
            walk(bucket, rest, {**labels, one["field"]: bucket["key"]})
        if rest:
            return
        for metric in target["metrics"]:
            if not metric.get("hide"):
                values = [(b["key"] / 1000, _value(metric, b)) for b in found[one["id"]]["buckets"]]
                values = [(s, value) for s, value in values if value is not None]
                points = [(s, value.get("normalized_value", value["value"])) for s, value in values]
                trim = int(one["settings"].get("trimEdges", 0))
                points = points[trim:-trim] if trim and len(points) > 2 * trim else points
                name = _ALIAS.sub(lambda found: str(labels.get(found[1], found[0])), target["alias"])
                drawn.append(Drawn(name, labels, points))

    walk(answer["aggregations"], target["bucketAggs"], {})
    return drawn


def _value(metric, bucket):
    return {"value": bucket["doc_count"]} if metric["type"] == "count" else bucket.get(metric["id"])


def rows_of(target, answer):
    """The rows of a table: of the documents, or of the buckets, by the names that Grafana gives to their columns."""
    if not target["bucketAggs"]:
        return [hit["_source"] for hit in answer["hits"]["hits"]]
    (terms,) = target["bucketAggs"]
    names = {"max": "Max", "min": "Min", "avg": "Average", "sum": "Sum", "cardinality": "Unique Count"}
    names["count"] = "Count"
    types = [metric["type"] for metric in target["metrics"]]
    rows = []
    for bucket in answer["aggregations"][terms["id"]]["buckets"]:
        row = {terms["field"]: bucket["key"]}
        for metric in [one for one in target["metrics"] if not one.get("hide")]:
            several = types.count(metric["type"]) > 1
            if metric["type"] == "count":
                row["Count"] = bucket["doc_count"]
                continue
            if metric["type"] == "bucket_script":
                name = metric["settings"]["script"] if several else "Bucket Script"
                row[name] = bucket.get(metric["id"], {}).get("value")
                continue
            row[names[metric["type"]] + (f" {metric['field']}" if several else "")] = bucket[metric["id"]]["value"]
        rows.append(row)
    return rows


def searched(server, panel, values, start_s, end_s):
    """The answers to all targets of a panel."""
    lines = [one for target in panel["targets"] for one in search_of(target, values, start_s, end_s)]
    answers = server.ask("POST", "/_msearch?max_concurrent_shard_requests=5", lines)["responses"]
    for answer in answers:
        assert answer["status"] == 200 and answer["_shards"]["failed"] == 0, (panel["title"], answer)
    return answers


def choices(server, variable, values, start_s, end_s):
    """What a variable offers."""
    query = json.loads(variable["query"])
    when = {"timestamp": {"gte": start_s * 1000, "lte": end_s * 1000, "format": "epoch_millis"}}
    strings = {"query_string": {"analyze_wildcard": True, "query": filled(query["query"], values, lucene)}}
    order = {{"key": "_key"}[query["orderBy"]]: query["order"]}
    terms = {"terms": {"field": query["field"], "size": query["size"], "order": order}}
    body = {"size": 0, "query": {"bool": {"filter": [{"range": when}, strings]}}, "aggs": {"1": terms}}
    head = {"search_type": "query_then_fetch", "ignore_unavailable": True, "index": "colmet_*"}
    (answer,) = server.ask("POST", "/_msearch?max_concurrent_shard_requests=5", [head, body])["responses"]
    return [bucket["key"] for bucket in answer["aggregations"]["1"]["buckets"]]


def product(lines):
    """The transformation of a total: the line "mean" times the line "nodes"."""
    named = {line.name: dict(line.points) for line in lines}
    assert named.keys() == {"mean", "nodes"}
    return {
        s: mean * named["nodes"][s] for s, mean in named["mean"].items() if mean is not None and named["nodes"].get(s)
    }


# -- Prometheus --


def asked(url, path, get=False, **parameters):
    """An answer of Prometheus' API."""
    text = urllib.parse.urlencode(parameters)
    request = (f"{url}/api/v1/{path}?{text}",) if get else (f"{url}/api/v1/{path}", text.encode())
    with urllib.request.urlopen(*request, timeout=30) as answer:
        return json.load(answer)["data"]


def ranged(url, panel, values, start_s, end_s, step, scrape_s):
    """The lines of each target of a panel."""
    rate = max(step + scrape_s, 4 * scrape_s)
    drawn = []
    for target in panel["targets"]:
        expression = filled(target["expr"], {"__rate_interval": f"{rate}s"})
        expression = filled(expression, values, regular)
        start, end = start_s // step * step, end_s // step * step
        found = asked(url, "query_range", query=expression, start=start, end=end, step=step)["result"]
        drawn.append(
            [
                Drawn(
                    _ALIAS.sub(lambda label, one=one: one["metric"].get(label[1], ""), target["legendFormat"]),
                    one["metric"],
                    [(s, float(value)) for s, value in one["values"]],
                )
                for one in found
            ]
        )
    return drawn
