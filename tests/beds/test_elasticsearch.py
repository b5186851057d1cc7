"""The Elasticsearch output against real servers, see search.py: what dashboards ask for, and what befalls a server.

Dashboards are answered from an index that the output made, and from one that Colmet 0.6 made and began to fill. In the
columns of 0.6, -1 stands for a missing value in both.
"""

from __future__ import annotations

import collections
import json
import random
import threading
import time
import urllib.error

import numpy as np
import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch.output import ElasticsearchOutput
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.columns import LEGACY_COLUMNS
from colmet.collector.journal.output_state import OutputState
from colmet.commands.colmet import main
from colmet.common.config import cli
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire.colmet06 import columns
from colmet.node.backends import infiniband, ipmipower, jobproc, perfhw, procstats, rapl, taskstats
from colmet.stored import elastic, sources
from colmet.stored.series import RowQuery
from tests.beds import search
from tests.beds.programs import serving
from tests.beds.search import Server

pytestmark = pytest.mark.live

TIME_S = 1_700_000_000
PERIOD_S = 5
TICKS = 24
BUCKET_S = 15
HOSTS = {"dahu-1": (4241, 4242), "dahu-2": (4242,), "dahu-10": (4243,)}  # and their jobs
AWAY = ("dahu-2", range(8, 16))  # a host that is not heard of for some ticks: there are empty buckets
JOB = 4242
SCHEMAS = {
    schema.name: schema
    for schema in (
        *(taskstats.SCHEMA, jobproc.SCHEMA, perfhw.SCHEMA),
        *(rapl.SCHEMA, ipmipower.SCHEMA, infiniband.SCHEMA, procstats.SCHEMA),
    )
}
# What the dashboards of sites that use Colmet draw.
DRAWN = {
    "taskstats_default": ("cpu_run_real_total", "coremem"),
    "jobprocstats_default": ("read_bytes", "write_bytes"),
    "perfhwstats_default": ("counter_1", "counter_2", "counter_3", "counter_4"),
    "RAPLstats_default": ("counter_1", "counter_5", "counter_7", "counter_11"),
    "ipmipowerstats_default": ("average_power_consumption",),
    "infinibandstats_default": ("portRcvData", "portXmitData"),
}


def index_of(table):
    return "colmet_" + table.lower()


# -- what is sent --


def made_up(schema, rng, tick):
    """Values for a row; those of some ticks are missing."""
    values = {}
    for field in schema.fields:
        if field.dtype[0] == "S":
            values[field.name] = b"ipmi"
        elif field.dtype == "i8":  # sums of all of them are whole numbers of doubles
            values[field.name] = int(rng.integers(0, 10**12)) if tick % 7 != 3 or field.name != "coremem" else None
        else:
            values[field.name] = float(np.float32(rng.random()))
    if schema is ipmipower.SCHEMA and tick % 2:
        values["average_power_consumption"] = None  # it is asked for every other tick
    if schema is rapl.SCHEMA:  # packages without memory, nodes with one package, and with two at most
        lacking = {1: (5, 11), 2: range(5, 13)}.get(tick % 5, ())
        values.update(dict.fromkeys([f"counter_{n}" for n in (*lacking, *range(13, 25))]))
    return values


def batches():
    """What the nodes send in two minutes."""
    rng = np.random.default_rng(5)
    made = []
    for tick in range(TICKS):
        time_ns = (TIME_S + PERIOD_S * tick) * 10**9
        for host, jobs in HOSTS.items():
            if host == AWAY[0] and tick in AWAY[1]:
                continue
            tables = [
                Table.from_samples(
                    schema,
                    time_ns,
                    [Sample(job, made_up(schema, rng, tick)) for job in (jobs if schema.scope == "job" else [0])],
                )
                for schema in SCHEMAS.values()
            ]
            made.append(Batch(host, 1, tick, time_ns, jobs, tuple(tables)))
    return made


SENT = batches()


def rows_of(sent, table):
    """The documents that rows of a table are to become."""
    rows = []
    for batch in sent:
        for one in batch.tables:
            if one.schema.name == table:
                head = {"hostname": batch.host, "timestamp": one.time_ns // 10**9}
                if one.schema.scope == "node":
                    head["involved_jobs"] = list(batch.jobs)
                for sample in one.samples():
                    values = {
                        name: value.decode() if isinstance(value, bytes) else value
                        for name, value in sample.values.items()
                        if value is not None
                    }
                    rows.append({**head, "job_id": sample.job_id, **dict.fromkeys(columns(table), -1), **values})
    return rows


def put_as_06(server, sent):
    """Have the indices and the documents made as Colmet 0.6 does: no type but that of the time, and -1 for missing."""
    if not sent:
        return
    created = {"mappings": {"properties": {"timestamp": {"type": "date", "format": "epoch_second"}}}}
    lines = []
    for name, schema in SCHEMAS.items():
        server.ask("PUT", f"/{index_of(name)}", created)
        for row in rows_of(sent, name):
            lines += [{"create": {"_index": index_of(name)}}, {**dict.fromkeys(schema.names, -1), **row}]
    assert not server.ask("POST", "/_bulk/", lines)["errors"]


def records_of(sent):
    return [JournalRecord(number, batch.time_ns, (batch,)) for number, batch in enumerate(sent)]


class Writer:
    """The output as the collector has it: from the command line, and again from its position where it could not.

    Args:
        url: of the server.
        directory: for the state and the rejects, or a new one.
        options: more of the command line.
    """

    def __init__(self, url, directory, *options):
        parser = cli.Parser()
        ElasticsearchOutput.add_options(parser)
        directory.mkdir(exist_ok=True)
        self.output = ElasticsearchOutput.from_options(parser.parse_args(["--elastic-host", url, *options]))
        self.state = OutputState(str(directory / "elasticsearch.json"), "00112233aabbccdd", 0, 0)
        self.rejects = directory / "elasticsearch.rejects.ndjson"
        self.output.open(self.state)
        self.output.recover()
        self.failures = []

    def write(self, records, at_once=1000, within_s=120):
        """Write all records from the position on, some at once."""
        until = time.monotonic() + within_s
        while True:
            left = [record for record in records if record.number >= self.state.position]
            if not left:
                return
            try:
                self.output.write(left[:at_once])
            except OutputUnavailable as err:
                if time.monotonic() > until:
                    raise
                self.failures.append(str(err))
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.output.close()


def written(server, directory, records, *options, again=False):
    """Write records; what the output counted."""
    with Writer(server.url, directory, *options) as writer:
        if again:
            writer.state.save(0)
        writer.write(records)
        return writer.output.counters()


@pytest.fixture(scope="session", params=search.available())
def server(request):
    """A server for all tests; each begins with an empty one."""
    with Server(request.param) as running:
        yield running


@pytest.fixture
def empty(server):
    server.clear()
    return server


@pytest.fixture(scope="module", params=["made by the output", "made by 0.6"])
def filled(request, server, tmp_path_factory):
    """The server with all that was sent in it, what its documents are, and whether 0.6 made the indices."""
    server.clear()
    is_old = request.param == "made by 0.6"
    half = len(SENT) // 2 if is_old else 0
    put_as_06(server, SENT[:half])
    written(server, tmp_path_factory.mktemp("state"), records_of(SENT[half:]))
    server.ask("POST", "/_refresh")
    known = {
        name: [{**dict.fromkeys(schema.names, -1), **row} for row in rows_of(SENT[:half], name)]
        + rows_of(SENT[half:], name)
        for name, schema in SCHEMAS.items()
    }
    return server, known, is_old


# -- what dashboards ask --


FROM_S, TO_S = TIME_S + 20, TIME_S + PERIOD_S * TICKS - 6  # what is on the screen is not all that there is


def asked(server, index, query, aggregations, **more):
    """One search as Grafana sends it: in a multi search, by time and by a query string."""
    when = {"gte": FROM_S * 1000, "lte": TO_S * 1000, "format": "epoch_millis"}
    wanted = {"bool": {"filter": [{"range": {"timestamp": when}}]}}
    if query:
        wanted["bool"]["filter"].append({"query_string": {"analyze_wildcard": True, "query": query}})
    head = {"search_type": "query_then_fetch", "ignore_unavailable": True, "index": index}
    body = {"size": 0, "query": wanted, "aggs": aggregations, **more}
    answers = server.ask("POST", "/_msearch?max_concurrent_shard_requests=5", [head, body])
    (answer,) = answers["responses"]
    assert answer["status"] == 200, answer
    assert answer["_shards"]["failed"] == 0, answer
    return answer


def on_screen(rows):
    return [row for row in rows if FROM_S <= row["timestamp"] <= TO_S]


def of_job(rows, job=JOB):
    return [row for row in rows if job == row["job_id"] or job in row.get("involved_jobs", ())]


def histogram(aggregations):
    return {
        "date_histogram": {
            "field": "timestamp",
            "fixed_interval": f"{BUCKET_S}s",
            "min_doc_count": 0,
            "extended_bounds": {"min": FROM_S * 1000, "max": TO_S * 1000},
            "format": "epoch_millis",
        },
        "aggs": aggregations,
    }


def buckets(rows):
    """The rows of each bucket on the screen, by the time that it starts with, in ms."""
    start_s = [s - s % BUCKET_S for s in (FROM_S, TO_S)]
    return {
        s * 1000: [row for row in rows if s <= row["timestamp"] < s + BUCKET_S]
        for s in range(start_s[0], start_s[1] + 1, BUCKET_S)
    }


def computed(how, rows, field):
    """What numpy computes of a field; None of nothing, as servers say it, but a sum of nothing is 0."""
    values = np.array([row[field] for row in rows if field in row], dtype=float)
    if how == "sum" or len(values):
        return getattr(np, {"avg": "mean"}.get(how, how))(values)
    return None


def same(value, expected):
    return value is expected if expected is None else value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("table", "field"), [(table, field) for table, fields in DRAWN.items() for field in fields])
def test_a_panel_shows_the_numbers_that_were_sent(filled, table, field):
    """For each host a line of sums, averages, maxima and minima over time, and of how the sums change."""
    server, known, _ = filled
    scope = SCHEMAS[table].scope
    query = f"job_id:{JOB}" if scope == "job" else f"involved_jobs:{JOB}"
    metrics = {how: {how: {"field": field}} for how in ("sum", "avg", "max", "min")}
    metrics["change"] = {"derivative": {"buckets_path": "sum"}}
    by_host = {
        "terms": {"field": "hostname.keyword", "size": 500, "order": {"_key": "asc"}, "min_doc_count": 1},
        "aggs": {"2": histogram(metrics)},
    }
    answer = asked(server, index_of(table), query, {"3": by_host})
    rows = of_job(on_screen(known[table]))
    lines = answer["aggregations"]["3"]["buckets"]
    assert [line["key"] for line in lines] == ["dahu-1", "dahu-2"]
    values = 0
    for line in lines:
        expected = buckets([row for row in rows if row["hostname"] == line["key"]])
        found = line["2"]["buckets"]
        # there is no empty bucket before the first or after the last one but where the screen has them
        assert {bucket["key"]: bucket["doc_count"] for bucket in found} == {k: len(v) for k, v in expected.items()}
        former = None
        for bucket in found:
            inside = expected[bucket["key"]]
            for how in ("sum", "avg", "max", "min"):
                assert same(bucket[how]["value"], computed(how, inside, field)), (bucket, how)
            total = computed("sum", inside, field) if inside else None
            change = None if former is None or total is None else total - former
            assert same(bucket.get("change", {}).get("value"), change), bucket
            former = total
            values += len(inside)
    assert values == len(rows) > 0


def test_a_panel_of_the_whole_cluster_shows_the_sum_over_all_hosts(filled):
    server, known, _ = filled
    answer = asked(
        server, "colmet_RAPLstats_default".lower(), "*", {"2": histogram({"1": {"sum": {"field": "counter_1"}}})}
    )
    found = {bucket["key"]: bucket["1"]["value"] for bucket in answer["aggregations"]["2"]["buckets"]}
    expected = buckets(on_screen(known["RAPLstats_default"]))
    assert found == {key: computed("sum", rows, "counter_1") for key, rows in expected.items()}


def test_a_script_of_a_dashboard_adds_columns_that_some_nodes_cannot_measure(filled):
    """As the panel "Total energy" of 0.6's dashboard; a script fails at a field that one document lacks."""
    server, known, _ = filled
    if not server.kind.scripts:
        pytest.skip(f"the jars of {server.kind.vendor} come without a script language")
    fields = [f"counter_{n}" for n in (1, 7, 5, 11)]
    script = {"source": "+".join([f'doc["{field}"].value' for field in fields])}
    answer = asked(
        server,
        "colmet_raplstats_default",
        f"involved_jobs:{JOB}",
        {"2": histogram({"1": {"sum": {"field": "counter_1", "script": script}}, "3": {"sum": {"script": script}}})},
    )
    rows = of_job(on_screen(known["RAPLstats_default"]))
    assert any(row[field] == -1 for row in rows for field in fields)
    expected = {
        key: sum([row[field] for row in inside for field in fields]) for key, inside in buckets(rows).items() if inside
    }
    for metric in ("1", "3"):
        found = {bucket["key"]: bucket[metric]["value"] for bucket in answer["aggregations"]["2"]["buckets"]}
        assert {key: value for key, value in found.items() if value} == expected


@pytest.mark.parametrize(
    ("query", "hosts"),
    [
        ("", ["dahu-1", "dahu-10", "dahu-2"]),
        (f"job_id:{JOB}", ["dahu-1", "dahu-2"]),
        ("job_id:(4241 OR 4243)", ["dahu-1", "dahu-10"]),
        ("job_id:[4242 TO *]", ["dahu-1", "dahu-10", "dahu-2"]),
        ('hostname:"dahu-1"', ["dahu-1"]),
        ('hostname.keyword:"dahu-1"', ["dahu-1"]),
        ('hostname.keyword:("dahu-1" OR "dahu-2") AND job_id:4242', ["dahu-1", "dahu-2"]),
        ("hostname.keyword:dahu-1*", ["dahu-1", "dahu-10"]),
        ("job_id:17", []),
    ],
)
def test_a_variable_lists_the_hosts(filled, query, hosts):
    """{"find": "terms", "field": "hostname.keyword", "query": ...}, as the dashboards have it."""
    server, _, _ = filled
    terms = {"terms": {"field": "hostname.keyword", "size": 500, "order": {"_key": "asc"}}}
    answer = asked(server, "colmet_taskstats_default", query, {"1": terms})
    assert [bucket["key"] for bucket in answer["aggregations"]["1"]["buckets"]] == hosts


@pytest.mark.parametrize(
    ("table", "field"),
    [("taskstats_default", "job_id"), ("RAPLstats_default", "involved_jobs"), ("procstats_default", "job_id")],
)
def test_a_variable_lists_the_jobs(filled, table, field):
    server, known, _ = filled
    terms = {"terms": {"field": field, "size": 500, "order": {"_key": "asc"}}}
    answer = asked(server, index_of(table), "", {"1": terms})
    counts = {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["1"]["buckets"]}
    values = np.concatenate([np.atleast_1d(row[field]) for row in on_screen(known[table])])
    assert counts == dict(zip(*[part.tolist() for part in np.unique(values, return_counts=True)]))


@pytest.mark.parametrize(("field", "count"), [("hostname.keyword", 2), ("job_id", 1)])
def test_a_panel_counts_how_many_different_there_are(filled, field, count):
    server, _, _ = filled
    answer = asked(server, "colmet_taskstats_default", f"job_id:{JOB}", {"1": {"cardinality": {"field": field}}})
    assert answer["aggregations"]["1"]["value"] == count


def test_hosts_are_grouped_by_the_plain_name_too(filled):
    """In an index of 0.6's, the name is text that nothing can be grouped by."""
    server, known, is_old = filled
    if is_old:
        with pytest.raises(AssertionError, match="Text fields are not optimised"):
            asked(server, "colmet_taskstats_default", "", {"1": {"terms": {"field": "hostname", "size": 500}}})
        return
    answer = asked(server, "colmet_taskstats_default", "", {"1": {"terms": {"field": "hostname", "size": 500}}})
    counts = {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["1"]["buckets"]}
    rows = on_screen(known["taskstats_default"])
    assert counts == {host: sum(row["hostname"] == host for row in rows) for host in HOSTS}


def test_a_table_of_raw_documents_shows_the_rows(filled):
    server, known, _ = filled
    newest_first = [{"timestamp": {"order": "desc", "unmapped_type": "boolean"}}, {"job_id": {"order": "asc"}}]
    answer = asked(server, "colmet_taskstats_default", "hostname.keyword:dahu-1", {}, size=500, sort=newest_first)
    rows = [row for row in on_screen(known["taskstats_default"]) if row["hostname"] == "dahu-1"]
    rows.sort(key=lambda row: (-row["timestamp"], row["job_id"]))
    assert [hit["_source"] for hit in answer["hits"]["hits"]] == rows


def test_one_query_can_be_about_all_tables(filled):
    server, known, _ = filled
    answer = asked(server, "colmet_*", f"job_id:{JOB}", {"1": {"terms": {"field": "_index", "size": 50}}})
    counts = {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["1"]["buckets"]}
    job_tables = [name for name, schema in SCHEMAS.items() if schema.scope == "job"]
    assert counts == {index_of(name): len(of_job(on_screen(known[name]))) for name in job_tables}


def test_the_fields_that_a_dashboard_offers(filled):
    """{"find": "fields"} reads the mapping."""
    server, _, _ = filled
    for table, fields in DRAWN.items():
        (answer,) = server.ask("GET", f"/{index_of(table)}/_mapping").values()
        properties = answer["mappings"]["properties"]
        assert {"job_id", "hostname", "timestamp", *fields} <= properties.keys()
        assert properties["timestamp"]["type"] == "date"
        assert properties["hostname"]["fields"]["keyword"]["type"] == "keyword"
        assert {properties[field]["type"] for field in ("job_id", *fields)} == {"long"}


# -- what the JSON interface draws of it --


@pytest.fixture(scope="module")
def interface(filled, tmp_path_factory):
    """That of a collector which has just begun, and has nothing of its own."""
    server, _, _ = filled
    with serving(tmp_path_factory.mktemp("interface") / "log", "--elastic-host", server.url) as interface:
        yield interface


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ("taskstats_default", "cpu_run_real_total"),
        ("taskstats_default", "coremem"),
        ("perfhwstats_default", "counter_3"),
    ],
)
def test_a_curve_of_the_interface_has_the_numbers_that_were_sent(filled, interface, table, field):
    _, known, _ = filled
    since, until = TIME_S + 12, TIME_S + PERIOD_S * TICKS - 9
    asked = f"metric={table}.{field}&rate=false&source=stored&since={since}&until={until}&points=5000"
    answer = interface.ask(f"/api/v1/jobs/{JOB}/series?{asked}")
    assert (answer["source"], answer["warnings"]) == ("stored", [])
    found = {
        (line["node"], time_s): value
        for line in answer["series"]
        for time_s, value in zip(line["times"], line["values"])
        if value is not None
    }
    expected = {
        (row["hostname"], row["timestamp"]): row[field]
        for row in known[table]
        if row["job_id"] == JOB and since <= row["timestamp"] <= until and row.get(field, -1) != -1
    }
    assert found == expected and len({node for node, _ in found}) == 2


def test_the_interface_returns_which_columns_a_stored_job_has_and_no_job_that_nobody_stored(interface):
    """Whose jobs these are, nothing says, so that they are for administrators, as who asks is here."""
    job = interface.ask(f"/api/v1/jobs/{JOB}")
    assert job["tables"].keys() >= {"taskstats_default", "perfhwstats_default"}, job
    with pytest.raises(urllib.error.HTTPError, match="404"):
        interface.ask("/api/v1/jobs/17")
    assert interface.ask("/api/v1/status")["counts"]["requests_5xx"] == 0


# -- what befalls a server --


def stored(server):
    """Every document that there is, by index and id: its version and itself."""
    return {(hit["_index"], hit["_id"]): (hit["_version"], hit["_source"]) for hit in server.documents("colmet_*")}


def as_multiset(rows):
    return collections.Counter(json.dumps(row, sort_keys=True) for row in rows)


def assert_each_once(found, sent):
    """Every row that was sent is a document, once, and nothing else is."""
    by_index = collections.defaultdict(list)
    for (index, _), (version, source) in found.items():
        assert version == 1
        by_index[index].append(source)
    expected = {index_of(name): rows for name in SCHEMAS if (rows := rows_of(sent, name))}
    assert by_index.keys() == expected.keys()
    for index, rows in expected.items():
        assert as_multiset(by_index[index]) == as_multiset(rows)


def test_rows_that_are_written_again_change_nothing(empty, tmp_path):
    """By the same and by another process, in the same and in other groups; also those of nodes that do not number."""
    old_dialect = [batch._replace(epoch=None, seq=None) for batch in SENT[:5]]
    sent = [*SENT, *old_dialect, *old_dialect]
    records = records_of(sent)
    with Writer(empty.url, tmp_path / "first") as writer:
        writer.write(records)
        first = stored(empty)
        assert_each_once(first, sent)
        assert writer.output.counters()["documents"] == len(first)
        for at_once in (1, 7, 1000):
            writer.state.save(0)
            writer.write(records, at_once)
    counters = written(empty, tmp_path / "second", records)
    assert counters["already_there"] == len(first) and counters["documents"] == counters["rejected"] == 0
    in_one = [JournalRecord(0, 0, tuple(SENT[:20])), *records[20:]]  # several batches in a record
    assert written(empty, tmp_path / "third", in_one)["already_there"] == len(first)
    assert stored(empty) == first


def test_rows_go_to_the_index_of_their_day(empty, tmp_path):
    midnight = 1_700_006_400
    sent = [
        batch._replace(
            time_ns=time_ns, tables=tuple(Table(one.schema, time_ns, one.rows) for one in batch.tables), seq=tick
        )
        for tick, batch in enumerate(SENT[:8])
        for time_ns in [(midnight + PERIOD_S * (tick - 5)) * 10**9]
    ]
    for directory in ("first", "second"):
        written(empty, tmp_path / directory, records_of(sent), "--elastic-date-suffix", "%Y.%m.%d")
    found = stored(empty)
    rows = rows_of(sent, "taskstats_default")
    for day, expected in (
        ("2023.11.14", [row for row in rows if row["timestamp"] < midnight]),
        ("2023.11.15", [row for row in rows if row["timestamp"] >= midnight]),
    ):
        index = f"colmet_taskstats_default-{day}"
        assert as_multiset(one for (name, _), (_, one) in found.items() if name == index) == as_multiset(expected)
        (mapping,) = empty.ask("GET", f"/{index}/_mapping").values()
        assert mapping["mappings"]["properties"]["hostname"]["type"] == "keyword"


def test_rows_are_written_where_the_server_has_no_policies_for_old_ones(empty, tmp_path, caplog):
    """The published jars have neither ILM nor ISM, as a server that was built without them."""
    counters = written(
        empty, tmp_path, records_of(SENT[:3]), "--elastic-date-suffix", "%Y.%m.%d", "--elastic-keep", "90d"
    )
    assert counters["policy_failures"] == 1 and counters["rejected"] == 0 and counters["documents"] > 0
    assert "old rows are not removed" in caplog.text
    assert len(stored(empty)) == counters["documents"]


def test_rows_go_to_data_streams(empty, tmp_path):
    """Where the server has none, nothing is written to what is not a data stream."""
    if not empty.kind.has_data_streams:
        refused = pytest.raises(OutputUnavailable, match="data stream colmet_taskstats_default cannot be made")
        with Writer(empty.url, tmp_path, "--elastic-data-stream") as writer, refused:
            writer.output.write(records_of(SENT))
        assert stored(empty) == {}
        return
    for directory in ("first", "second"):
        written(empty, tmp_path / directory, records_of(SENT), "--elastic-data-stream")
    for name in SCHEMAS:
        (stream,) = empty.ask("GET", f"/_data_stream/{index_of(name)}")["data_streams"]
        assert stream["timestamp_field"]["name"] == "@timestamp"
        hits = empty.documents(index_of(name))
        assert {hit["_version"] for hit in hits} == {1}
        rows = rows_of(SENT, name)
        expected = [{**row, "@timestamp": row["timestamp"] * 1000} for row in rows]
        assert as_multiset(hit["_source"] for hit in hits) == as_multiset(expected)
    answer = asked(empty, "colmet_taskstats_default", f"job_id:{JOB}", {"2": histogram({})})
    assert answer["hits"]["total"]["value"] == len(of_job(on_screen(rows_of(SENT, "taskstats_default"))))


def properties_of(server, index):
    (answer,) = server.ask("GET", f"/{index}/_mapping").values()
    return answer["mappings"]["properties"]


def test_every_field_has_the_type_of_its_column(empty, tmp_path):
    """As the template says; and so has a field that is added by a newer node."""
    written(empty, tmp_path / "first", records_of(SENT))
    types = {"i8": "long", "f4": "float", "f8": "double", "S": "keyword"}
    for name, schema in SCHEMAS.items():
        properties = properties_of(empty, index_of(name))
        expected = {field.name: types[field.dtype if field.dtype[0] != "S" else "S"] for field in schema.fields}
        expected.update(hostname="keyword", job_id="long", timestamp="date")
        if schema.scope == "node":
            expected["involved_jobs"] = "long"
        assert {field: one["type"] for field, one in properties.items()} == expected
        (template,) = empty.ask("GET", f"/_index_template/{index_of(name)}")["index_templates"]
        assert template["index_template"]["template"]["mappings"]["properties"].keys() == expected.keys()
    more = [Field("new_ratio", "none", "gauge", dtype="f4"), Field("new_name", "none", "label", dtype="S8")]
    newer = Schema("taskstats_default", "job", [*taskstats.SCHEMA.fields, *more])
    sample = Sample(JOB, {"cpu_count": 3, "new_ratio": 0.5, "new_name": b"2023-11-14"})
    batch = SENT[0]._replace(seq=99, tables=(Table.from_samples(newer, TIME_S * 10**9, [sample]),))
    written(empty, tmp_path / "second", records_of([batch]))
    properties = properties_of(empty, "colmet_taskstats_default")
    assert properties["new_ratio"]["type"] in ("float", "double")
    assert properties["new_name"]["type"] == "keyword"


def test_a_template_of_the_sites_own_is_obeyed(empty, tmp_path):
    settings = {"index": {"number_of_replicas": 0, "refresh_interval": "7s"}}
    own = {"index_patterns": ["colmet_*"], "priority": 50, "template": {"settings": settings}}
    empty.ask("PUT", "/_index_template/site", own)
    written(empty, tmp_path, records_of(SENT[:3]))
    (answer,) = empty.ask("GET", "/colmet_taskstats_default/_settings").values()
    assert answer["settings"]["index"]["refresh_interval"] == "7s"


def test_without_the_right_to_make_templates_the_types_are_the_same(empty, tmp_path):
    written(empty, tmp_path / "first", records_of(SENT[:3]))
    expected = {name: properties_of(empty, index_of(name)) for name in SCHEMAS}
    empty.clear()
    written(empty, tmp_path / "second", records_of(SENT[:3]), "--elastic-no-template")
    assert {name: properties_of(empty, index_of(name)) for name in SCHEMAS} == expected
    with pytest.raises(AssertionError, match="404"):
        empty.ask("GET", "/_index_template/colmet_taskstats_default")


def test_what_a_server_refuses_is_kept_with_its_reason_and_all_else_gets_in(empty, tmp_path):
    """The index has another type for one field, of which some rows have no value."""
    empty.ask("PUT", "/colmet_perfhwstats_default", {"mappings": {"properties": {"scale_2": {"type": "boolean"}}}})
    good = Table.from_samples(perfhw.SCHEMA, TIME_S * 10**9, [Sample(7, {"counter_1": 5}), Sample(8, {})])
    sent = [*SENT[:4], SENT[4]._replace(tables=(*SENT[4].tables, good))]
    with Writer(empty.url, tmp_path) as writer:
        writer.write(records_of(sent))
        counters = writer.output.counters()
        assert writer.failures == []
    assert writer.state.position == len(sent)
    refused = rows_of(SENT[:5], "perfhwstats_default")
    lines = [json.loads(line) for line in writer.rejects.read_text().splitlines()]
    assert as_multiset(line["document"] for line in lines) == as_multiset(refused)
    assert counters["rejected"] == len(refused) > 0
    for line in lines:
        assert line["index"] == "colmet_perfhwstats_default"
        assert line["status"] == 400
        assert "scale_2" in line["reason"] and "boolean" in line["reason"]
    found = stored(empty)
    kept = [source for (index, _), (_, source) in found.items() if index == "colmet_perfhwstats_default"]
    assert sorted(row["job_id"] for row in kept) == [7, 8]
    others = [name for name in SCHEMAS if name != "perfhwstats_default"]
    assert len(found) == 2 + sum(len(rows_of(sent, name)) for name in others)
    assert counters["documents"] == len(found)


# -- what is read back --


def config_of(server, directory):
    """A collector's configuration that names the database."""
    (directory / "reader.toml").write_text(f'elastic-host = "{server.url}"\n')
    return "--config", str(directory / "reader.toml")


def history_of(*arguments):
    parser = cli.Parser()
    sources.add_options(parser)
    return sources.open_history(parser.parse_args(arguments))


def hdf5_file(directory):
    """What was sent, as the HDF5 output writes it."""
    parser = cli.Parser()
    Hdf5Output.add_options(parser)
    path = str(directory / "rows.hdf5")
    output = Hdf5Output.from_options(parser.parse_args(["--hdf5-filepath", path]))
    output.open(OutputState(str(directory / "hdf5.json"), "00112233aabbccdd", 0, 0))
    output.recover()
    output.write(records_of(SENT))
    output.close()
    return path


def assert_same_rows(found, expected):
    """Floats of 32 bits have the digits that were measured in the database, and their nearest double in HDF5."""
    assert [(series.table, series.host, series.job) for series in found] == [
        (series.table, series.host, series.job) for series in expected
    ]
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one.times, other.times)
        not_sent = {"involved_jobs", *LEGACY_COLUMNS.get(one.table, ())}  # not by all, and not to all outputs
        assert one.columns.keys() - not_sent == other.columns.keys() - not_sent
        for name in other.columns.keys() & one.columns.keys():
            have, wanted = one.columns[name], other.columns[name]
            assert have.dtype.kind == wanted.dtype.kind
            if have.dtype.kind == "f":
                have, wanted = have.astype("f4"), wanted.astype("f4")
            np.testing.assert_array_equal(have, wanted, name)


@pytest.mark.parametrize("made", ["index", "old", "dates", "stream"])
def test_what_is_read_back_is_what_is_read_from_hdf5(empty, tmp_path, monkeypatch, made):
    """From one index a table, one that 0.6 began, one each day, and a data stream; pages end anywhere."""
    if made == "stream" and not empty.kind.has_data_streams:
        return
    options = {"dates": ["--elastic-date-suffix", "%Y.%m.%d-%H"], "stream": ["--elastic-data-stream"]}.get(made, [])
    half = len(SENT) // 2 if made == "old" else 0
    put_as_06(empty, SENT[:half])
    written(empty, tmp_path / "state", records_of(SENT[half:]), *options)
    empty.ask("POST", "/_refresh")
    monkeypatch.setattr(elastic, "MIN_PAGE_ROWS", 1)
    monkeypatch.setattr(elastic, "MAX_PAGE_ROWS", 29)
    with history_of(*config_of(empty, tmp_path)) as history, history_of("--hdf5", hdf5_file(tmp_path)) as files:
        for job in (JOB, 4241, 0, 17):
            tables = files.tables(job)
            assert history.tables(job).keys() == tables.keys()
            for table in tables:
                assert_same_rows(history.read(RowQuery(job, table)), files.read(RowQuery(job, table)))
        interval = {"since": TIME_S + 12, "until": TIME_S + 60, "hosts": ["dahu-1", "dahu-10"]}
        for job, table in ((JOB, "taskstats_default"), (0, "RAPLstats_default")):
            wanted = SCHEMAS[table].names[:3]
            found = history.read(RowQuery(job, table, wanted, **interval))
            assert_same_rows(found, files.read(RowQuery(job, table, wanted, **interval)))
            assert len(found) == (1 if job else 2) and {len(series) for series in found} == {10}
        assert history.read(RowQuery(JOB, "nowhere_default")) == []


def rounded(content):
    """JSON without the digits in which floats of 32 bits differ."""
    if isinstance(content, dict):
        return {name: rounded(one) for name, one in content.items()}
    if isinstance(content, list):
        return [rounded(one) for one in content]
    return float(f"{content:.5g}") if isinstance(content, float) else content


def test_the_commands_answer_the_same_from_both(empty, tmp_path, capsys):
    """But for columns that not all outputs are sent."""
    written(empty, tmp_path / "state", records_of(SENT))
    empty.ask("POST", "/_refresh")
    stores = [config_of(empty, tmp_path), ("--hdf5", hdf5_file(tmp_path))]
    extract = ["extract", "--job", str(JOB), "--metrics", "cpu_run_real_total,read_bytes,loadavg_1min"]
    for command in (["report", str(JOB), "--json"], extract):
        answers = []
        for store in stores:
            assert main([*command, *store]) == 0
            answers.append(rounded(json.loads(capsys.readouterr().out)))
        assert answers[0] == answers[1]
        assert len(json.dumps(answers[0])) > 500


def test_what_there_is_none_of_has_no_rows(empty, tmp_path):
    with history_of(*config_of(empty, tmp_path)) as history:
        assert history.tables(JOB) == {} and history.read(RowQuery(JOB, "taskstats_default")) == []


# -- what befalls a server: many rows --


def numbered(messages, rows_each):
    """Batches of taskstats rows whose `cpu_count` is a number of their own."""
    numbers = np.arange(messages * rows_each).reshape(messages, rows_each)
    made = []
    for seq, part in enumerate(numbers):
        rows = taskstats.SCHEMA.empty_rows(rows_each)
        for name in taskstats.SCHEMA.names:
            rows[name] = part
        rows["job_id"] = 1 + part % 100
        time_ns = (TIME_S + seq) * 10**9
        made.append(Batch("dahu-9", 1, seq, time_ns, None, (Table(taskstats.SCHEMA, time_ns, rows),)))
    return made


def assert_all_numbers(server, count):
    """Each of the numbers is there once."""
    hits = server.documents("colmet_taskstats_default")
    assert sorted(hit["_source"]["cpu_count"] for hit in hits) == list(range(count))
    assert {hit["_version"] for hit in hits} == {1}


class InBackground(threading.Thread):
    """Writes records; what went wrong, if anything, comes with `join`."""

    def __init__(self, writer, records, **how):
        super().__init__(daemon=True)
        self._writer, self._records, self._how = writer, records, how
        self.error = None

    def run(self):
        try:
            self._writer.write(self._records, **self._how)
        except BaseException as err:  # noqa: BLE001 - raised by the thread that waits for it
            self.error = err

    def join(self, timeout=None):
        super().join(timeout)
        if self.error is not None:
            raise self.error
        assert not self.is_alive()


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again_has_every_row_once(empty, tmp_path):
    messages, rows_each, kills = 200, 50, 2
    rng = random.Random(1)
    records = records_of(numbered(messages, rows_each))
    with Writer(empty.url, tmp_path) as writer:
        thread = InBackground(writer, records, at_once=20)
        thread.start()
        for number in range(kills):
            # in the middle: it has some, and what is missing is more than what a bulk brings
            reached = messages * (number + 1) // (kills + 2)
            while writer.state.position < reached and thread.is_alive():
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.03))
            empty.kill()
            assert writer.state.position < messages
            empty.start()
        thread.join(120)
        counters = writer.output.counters()
    assert counters["host_failures"] >= kills
    assert counters["rejected"] == 0
    assert_all_numbers(empty, messages * rows_each)


def test_a_server_that_does_not_answer_in_time_has_every_row_once(empty, tmp_path):
    """It gets a bulk, and writes it when nobody waits for it any more."""
    messages, rows_each = 40, 20
    records = records_of(numbered(messages, rows_each))
    with Writer(empty.url, tmp_path) as writer:
        writer.write(records[:10])
        empty.pause()
        try:
            with pytest.raises(OutputUnavailable):
                writer.output.write(records[10:])
            assert writer.state.position == 10
        finally:
            empty.go_on()
        writer.write(records)
        counters = writer.output.counters()
    assert_all_numbers(empty, messages * rows_each)
    assert counters["documents"] + counters["already_there"] >= messages * rows_each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        # the tables of a bulk wait for each other: some of its documents are refused
        ({"thread_pool.write.queue_size": 1, "thread_pool.write.size": 1}, SENT),
        # all of a bulk is refused that is larger than what all bulks together may take
        ({"indexing_pressure.memory.limit": "256kb"}, numbered(60, 20)),
    ],
    ids=["short queue", "little memory"],
)
@pytest.mark.parametrize("kind", {search.KINDS[kind].vendor: kind for kind in search.available()}.values())
def test_a_server_that_has_no_room_gets_every_row_in_the_end(kind, settings, sent, tmp_path):
    with Server(kind, settings) as server:
        with Writer(server.url, tmp_path) as writer:
            writer.write(records_of(sent))
            counters = writer.output.counters()
        assert counters["retried"] > 0
        assert counters["rejected"] == 0
        assert_each_once(stored(server), sent)
