"""The output for Elasticsearch against a server on loopback that fails in every way that a test can ask for."""

from __future__ import annotations

import json
import logging
import ssl
import stat
import subprocess
import threading
import time

import pytest

from colmet.collector import main as collector_main
from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch import indices, output
from colmet.collector.backends.elasticsearch.documents import IndexNaming
from colmet.collector.backends.elasticsearch.output import DeadLetters, ElasticsearchOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client as hosts
from colmet.common.database_client import checked_url
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from tests.support.elastic_server import RESET, SILENCE, Elastic, error
from tests.support.elastic_writer import JOURNAL, Writer
from tests.support.place import require_programs

TIME = 1_700_000_005 * 10**9
JOB = Schema("job_default", "job", [Field("cpu", "nsec", "counter"), Field("model", "none", "label", dtype="S8")])
GROWN = Schema("job_default", "job", [*JOB.fields, Field("gpu", "percent", "gauge", dtype="f4")])
NODE = Schema("node_default", "node", [Field("load", "none", "gauge", dtype="f4")])
INDEX = "colmet_job_default"


@pytest.fixture
def make(request):
    def made(**options):
        elastic = Elastic(**options)
        request.addfinalizer(elastic.close)
        return elastic

    return made


@pytest.fixture
def elastic(make):
    return make()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(output, "WAITS_S", (0.01, 0.01))


def record(number, jobs=2, schema=JOB, time_ns=TIME):
    samples = [Sample(job, {"cpu": number} if schema.scope == "job" else {"load": 0.5}) for job in range(jobs)]
    tables = (Table.from_samples(schema, time_ns, samples),)
    return JournalRecord(number, TIME, (Batch("node-1", 1, number, time_ns, (1, 2), tables),))


def stored(elastic, index=INDEX):
    return sorted((document["cpu"], document["job_id"]) for document in elastic.indices[index].values())


def rows(*numbers, jobs=2):
    return [(number, job) for number in numbers for job in range(jobs)]


def test_rows_are_documents_and_the_position_is_saved(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0), record(1), record(2, 1, NODE))
    assert stored(elastic) == rows(0, 1)
    [node] = elastic.indices["colmet_node_default"].values()
    assert node == {"hostname": "node-1", "job_id": 0, "timestamp": TIME // 10**9, "involved_jobs": [1, 2], "load": 0.5}
    assert writer.state.position == 3 and OutputState(writer.state._path, JOURNAL, 0, 9).position == 3
    assert writer.count("documents", "already_there", "rejected", "bulks") == (5, 0, 0, 1)


def test_what_is_written_again_changes_nothing(tmp_path, elastic):
    Writer(tmp_path, elastic.url).write(record(0), record(1))
    before = json.dumps(elastic.indices, sort_keys=True)
    again = Writer(tmp_path, elastic.url)
    again.write(record(1))
    again.write(record(0), record(1))
    assert json.dumps(elastic.indices, sort_keys=True) == before
    assert again.count("documents", "already_there", "retried") == (0, 6, 0)


def test_an_answer_that_is_lost_leaves_every_row_there_once(tmp_path, elastic):
    """The server has taken a bulk when the connection breaks, so the collector does not know."""
    writer = Writer(tmp_path, elastic.url)
    take = elastic.take

    def broken(*request):
        answer = take(*request)
        return RESET if request[1].startswith("/_bulk") else answer

    elastic.take = broken
    with pytest.raises(OutputUnavailable):
        writer.write(record(0), record(1))
    assert writer.state.position == 0 and stored(elastic) == rows(0, 1)
    elastic.take = take
    writer.write(record(0), record(1), record(2))
    assert writer.state.position == 3 and stored(elastic) == rows(0, 1, 2)


def test_what_two_collectors_have_taken_is_there_once(tmp_path, elastic):
    """Each of them has a journal of its own, and has taken other batches, too."""
    writers = []
    for journal, numbers in (("a" * 16, (0, 1, 2)), ("b" * 16, (1, 2, 3))):
        (tmp_path / journal).mkdir()
        writers.append(Writer(tmp_path / journal, elastic.url, journal=journal))
        writers[-1].write(*[record(number)._replace(number=place) for place, number in enumerate(numbers)])
    assert stored(elastic) == rows(0, 1, 2, 3)
    assert [writer.count("documents", "already_there") for writer in writers] == [(6, 0), (2, 4)]


def test_documents_that_find_no_room_are_sent_again_alone(tmp_path, elastic):
    refused = []

    def item(action, document):
        if document["job_id"] == 1 and len(refused) < 3:
            refused.append(action["_id"])
            return (429, 503, 500)[len(refused) - 1], "es_rejected_execution_exception"
        return None

    elastic.item = item
    writer = Writer(tmp_path, elastic.url)
    writer.write(*[record(number) for number in range(4)])
    assert stored(elastic) == rows(0, 1, 2, 3) and writer.state.position == 4
    first, second = elastic.bulks
    assert first.count(b"\n") == 16 and second.count(b"\n") == 6
    assert writer.count("documents", "already_there", "retried") == (8, 0, 3)


def test_documents_that_never_find_room_wait_in_the_journal(tmp_path, elastic):
    elastic.item = lambda action, document: (429, "full") if document["cpu"] == 1 else None
    writer = Writer(tmp_path, elastic.url)
    with pytest.raises(OutputUnavailable, match="no room for 2 documents in 3 tries: status 429: full"):
        writer.write(record(0), record(1))
    assert writer.state.position == 0 and stored(elastic) == rows(0)
    elastic.item = lambda action, document: None
    writer.write(record(0), record(1))
    assert writer.state.position == 2 and stored(elastic) == rows(0, 1)
    assert writer.count("documents", "already_there") == (4, 2)


@pytest.mark.parametrize("kind", ["mapper_parsing_exception", "illegal_argument_exception"])
def test_what_is_refused_for_good_goes_to_the_reject_file_with_the_reason(tmp_path, elastic, kind, caplog):
    elastic.item = lambda action, document: (400, kind) if document["job_id"] == 1 else None
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0), record(1))
    assert stored(elastic) == [(0, 0), (1, 0)] and writer.state.position == 2
    path = tmp_path / "elasticsearch.rejects.ndjson"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["index"], first["status"], first["type"], first["reason"]) == (INDEX, 400, kind, "because")
    assert first["document"] == {"hostname": "node-1", "job_id": 1, "timestamp": TIME // 10**9, "cpu": 0}
    assert first["id"] != second["id"] and second["document"]["cpu"] == 1
    assert writer.count("documents", "rejected", "rejects_not_kept") == (2, 2, 0)
    assert caplog.text.count("document refused for good") == 1


def test_what_is_refused_is_kept_once_though_its_bulk_is_repeated(tmp_path, elastic):
    elastic.item = lambda action, document: {0: (400, "bad"), 1: (429, "full")}[document["job_id"]]
    writer = Writer(tmp_path, elastic.url)
    for _ in range(3):
        with pytest.raises(OutputUnavailable):
            writer.write(record(0))
    elastic.item = lambda action, document: (400, "bad") if document["job_id"] == 0 else None
    writer.write(record(0))
    assert len((tmp_path / "elasticsearch.rejects.ndjson").read_text().splitlines()) == 1
    assert writer.count("documents", "rejected") == (1, 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, "security_exception"),
        (403, "cluster_block_exception"),
        (401, "security_exception"),
        (400, "index_closed_exception"),
        (400, "validation_exception"),
    ],
)
def test_what_an_administrator_can_put_right_waits(tmp_path, elastic, status, kind):
    elastic.item = lambda action, document: (status, kind)
    writer = Writer(tmp_path, elastic.url)
    with pytest.raises(OutputUnavailable, match=f"documents are refused, status {status}: {kind}: because"):
        writer.write(record(0))
    assert writer.state.position == 0 and len(elastic.bulks) == 1
    assert not (tmp_path / "elasticsearch.rejects.ndjson").exists()


def test_an_index_that_is_removed_is_made_again(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0))
    elastic.indices.clear()
    writer.write(record(1))
    assert stored(elastic) == rows(1) and len(elastic.asked("PUT", f"/{INDEX}")) == 2


def test_a_bulk_that_is_too_large_is_split_and_later_ones_are_smaller(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url)
    elastic.max_bytes = 1000
    writer.write(*[record(number, 8) for number in range(4)])
    assert stored(elastic) == rows(0, 1, 2, 3, jobs=8) and writer.state.position == 4
    taken = [document["cpu"] for document in elastic.indices[INDEX].values()]
    assert taken == sorted(taken)  # in order
    assert writer.count("documents", "rejected") == (32, 0) and writer.count("splits") > (2,)


def test_one_document_that_is_too_large_is_refused_alone(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "MAX_REJECTED_BYTES", 100)
    elastic.item = lambda action, document: None
    writer = Writer(tmp_path, elastic.url)
    large = Schema("wide", "job", [Field("text", "none", "label", dtype="S2000"), Field("cpu", "none", "gauge")])
    samples = [Sample(1, {"cpu": 1}), Sample(2, {"cpu": 2, "text": b"x" * 2000}), Sample(3, {"cpu": 3})]
    batch = Batch("node-1", 1, 1, TIME, (), (Table.from_samples(large, TIME, samples),))
    elastic.max_bytes = 1500
    writer.write(JournalRecord(0, TIME, (batch,)))
    assert stored(elastic, "colmet_wide") == [(1, 1), (3, 3)]
    [line] = (tmp_path / "elasticsearch.rejects.ndjson").read_text().splitlines()
    reject = json.loads(line)
    assert reject["status"] == 413 and reject["document"] is None and reject["document_bytes"] > 2000


def test_positions_are_saved_in_between(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "CHUNK_BYTES", 1)
    elastic.script["POST", "/_bulk"] = [None, None, (503, b"")]
    writer = Writer(tmp_path, elastic.url)
    with pytest.raises(OutputUnavailable, match="503"):
        writer.write(*[record(number) for number in range(5)])
    assert writer.state.position == 2 and stored(elastic) == rows(0, 1)


def test_smaller_bulks_are_tried_after_failures_and_larger_ones_after_success(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "MIN_BULK_BYTES", 100)
    monkeypatch.setattr(output, "GROW_AFTER", 2)
    writer = Writer(tmp_path, elastic.url)
    elastic.script["POST", "/_bulk"] = [RESET, RESET]
    for _ in range(2):
        with pytest.raises(OutputUnavailable):
            writer.write(record(0, 30))
    writer.write(record(0, 30))
    sizes = [len(body) for body in elastic.bulks]
    assert sizes[1] < 0.6 * sizes[0] and max(sizes[2:]) < 0.4 * sizes[0]
    for number in range(1, 20):
        writer.write(record(number, 30))
    assert elastic.bulks[-1].count(b"\n") == 60 and stored(elastic) == rows(*range(20), jobs=30)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RESET, "IncompleteRead|ConnectionReset|not that of Elasticsearch"),
        ((200, b"<html>"), "not that of Elasticsearch"),
        ((200, b"[]"), "not that of Elasticsearch"),
        ((200, b'{"items": 3}'), "not that of Elasticsearch"),
        ((200, {"items": [{"create": 201}, {"create": 201}]}), "not that of Elasticsearch"),
        ((200, {"items": [{"create": {"status": "201"}}] * 2}), "a bulk of 2 documents is answered for 2"),
        ((200, {"items": [{"create": {"status": 201}}]}), "a bulk of 2 documents is answered for 1"),
        ((200, b'{"a":' * 100_000), "not that of Elasticsearch"),
        ((200, b" " * 3000), "the answer has more than"),
        (error(503, "cluster_block_exception"), "status 503: cluster_block_exception: because"),
        ((502, b"<html>bad gateway</html>"), "status 502"),
        ((307, b"", ("Location", "http://192.0.2.1/")), "points to 'http://192.0.2.1/'; give that as --elastic-host"),
        ((401, {}), "refuses these credentials, see -P"),
        (error(403, "security_exception"), "may not write: security_exception: because"),
        (error(404, "x"), "status 404"),
        (error(400, "illegal_argument_exception"), "status 400: illegal_argument_exception"),
    ],
)
def test_a_server_that_cannot_be_used_loses_nothing(tmp_path, elastic, answer, said, monkeypatch):
    if answer[1] == b" " * 3000:
        monkeypatch.setattr(hosts, "MAX_ANSWER_BYTES", 2000)
    elastic.script["POST", "/_bulk"] = [answer]
    writer = Writer(tmp_path, elastic.url)
    with pytest.raises(OutputUnavailable, match=said):
        writer.write(record(0))
    assert writer.state.position == 0
    writer.write(record(0))
    assert writer.state.position == 1 and stored(elastic) == rows(0)


def test_a_server_that_does_not_answer_is_left_in_time(tmp_path, elastic):
    elastic.script["POST", "/_bulk"] = [SILENCE]
    writer = Writer(tmp_path, elastic.url, timeout_s=0.3)
    start = time.monotonic()
    with pytest.raises(OutputUnavailable, match="timed out"):
        writer.write(record(0))
    assert time.monotonic() - start < 20
    writer.write(record(0))
    assert stored(elastic) == rows(0)


def test_what_is_more_than_the_server_has_room_for_at_a_time_is_sent_in_parts(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "MIN_BULK_BYTES", 100)
    take = elastic.take

    def room(method, path, headers, body):
        return error(429, "es_rejected_execution_exception") if len(body) > 1000 else take(method, path, headers, body)

    elastic.take = room
    writer = Writer(tmp_path, elastic.url)
    writer.write(*[record(number, 8) for number in range(4)])
    assert stored(elastic) == rows(0, 1, 2, 3, jobs=8) and writer.state.position == 4
    assert writer.count("documents", "already_there") == (32, 0)


def test_a_server_that_accepts_some_each_time_is_given_the_rest_however_often(tmp_path, elastic):
    taken = []

    def item(action, document):
        room = len(taken) < len(elastic.bulks)
        if room:
            taken.append(action["_id"])
        return None if room else (429, "es_rejected_execution_exception")

    elastic.item = item
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0, 10))
    assert stored(elastic) == rows(0, jobs=10) and len(elastic.bulks) == 10


def test_waiting_ends_when_it_is_interrupted(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "WAITS_S", (600.0,))
    elastic.item = lambda action, document: (429, "full")
    writer = Writer(tmp_path, elastic.url)
    failed = []

    def work():
        try:
            writer.write(record(0))
        except OutputUnavailable as err:
            failed.append(str(err))

    thread = threading.Thread(target=work)
    thread.start()
    while not elastic.bulks:
        time.sleep(0.01)
    writer.output.interrupt()
    thread.join(60)
    assert failed == ["stopping"]


# -- several hosts --


def test_the_next_host_is_asked_until_the_first_is_back(tmp_path, make, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(hosts.time, "monotonic", lambda: now[0])
    first, second = make(), make()
    second.indices = first.indices  # one cluster
    first.script["POST", "/_bulk"] = [(503, b"")]
    writer = Writer(tmp_path, first.url, second.url)
    writer.write(record(0))
    assert (len(first.bulks), len(second.bulks)) == (1, 1) and writer.count("failovers", "host_failures") == (1, 1)
    writer.write(record(1))
    assert (len(first.bulks), len(second.bulks)) == (1, 2)
    now[0] += 1.1
    writer.write(record(2))
    assert (len(first.bulks), len(second.bulks)) == (2, 2) and stored(first) == rows(0, 1, 2)
    assert writer.count("failovers", "host_failures") == (2, 1)


@pytest.mark.parametrize("answer", [RESET, SILENCE, (200, b"garbage"), (500, b""), (301, b"")])
def test_every_kind_of_failure_leads_to_the_next_host(tmp_path, make, answer):
    first, second = make(), make()
    second.indices = first.indices
    first.script["POST", "/_bulk"] = [answer]
    writer = Writer(tmp_path, first.url, second.url, timeout_s=0.5)
    writer.write(record(0))
    assert stored(second) == rows(0) and writer.count("failovers") == (1,)


def test_a_host_that_is_not_there_rests_longer_and_longer(tmp_path, make, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(hosts.time, "monotonic", lambda: now[0])
    gone = Elastic()
    gone.close()
    there = make()
    writer = Writer(tmp_path, gone.url, there.url)
    failures = []
    for number in range(60):
        writer.write(record(number))
        now[0] += 1.0
        failures.append(writer.count("host_failures")[0])
    assert failures[-1] <= 7 and stored(there) == rows(*range(60))


def test_all_hosts_away_is_said_with_the_last_reason(tmp_path, caplog):
    gone = [Elastic(), Elastic()]
    for each in gone:
        each.close()
    writer = Writer(tmp_path, *[each.url for each in gone])
    for _ in range(10):
        with pytest.raises(OutputUnavailable, match="refused"):
            writer.write(record(0))
    assert writer.count("host_failures") == (20,)
    assert caplog.text.count("database host failed") == 4  # the 1st and 10th time of each


# -- indices --


def test_a_template_is_made_and_the_index_gets_its_types_from_it(tmp_path, elastic):
    Writer(tmp_path, elastic.url).write(record(0), record(1), record(2, 1, NODE))
    template = elastic.templates[INDEX]
    assert template["index_patterns"] == [INDEX] and template["priority"] == 1
    assert template["template"]["mappings"]["properties"]["cpu"] == {"type": "long"}
    assert template["_meta"]["managed_by"] == "colmet" and "data_stream" not in template
    assert elastic.asked("HEAD") == [f"/{INDEX}", "/colmet_node_default"]
    created = [body for method, path, _, body in elastic.requests if (method, path) == ("PUT", f"/{INDEX}")]
    assert created == [b"{}"]


def test_a_template_learns_new_fields_and_keeps_the_old_ones(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0, schema=GROWN))
    writer.write(record(1))  # an older node
    assert "gpu" in elastic.templates[INDEX]["template"]["mappings"]["properties"]
    assert len(elastic.asked("PUT", "/_index_template")) == 1
    del elastic.templates[INDEX]["template"]["mappings"]["properties"]["cpu"]
    Writer(tmp_path, elastic.url).write(record(2))
    assert {"cpu", "gpu"} <= set(elastic.templates[INDEX]["template"]["mappings"]["properties"])


def test_a_template_of_the_site_under_the_same_name_is_left_as_it_is(tmp_path, elastic):
    theirs = {"index_patterns": [INDEX], "priority": 5}
    elastic.templates[INDEX] = theirs
    Writer(tmp_path, elastic.url).write(record(0))
    assert elastic.templates[INDEX] is theirs and stored(elastic) == rows(0)
    assert not elastic.asked("PUT", "/_index_template")


@pytest.mark.parametrize(
    ("method", "answer"),
    [("PUT", error(403, "security_exception")), ("GET", error(403, "security_exception")), ("GET", (405, b""))],
)
def test_where_templates_cannot_be_made_indices_are_created_with_their_types(tmp_path, elastic, method, answer, caplog):
    elastic.script[method, "/_index_template"] = [answer] * (3 if method == "GET" else 1)
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0), record(1, 1, NODE))
    assert stored(elastic) == rows(0)
    bodies = [json.loads(body) for verb, path, _, body in elastic.requests if verb == "PUT" and path.startswith("/c")]
    assert [body["mappings"]["properties"]["timestamp"]["format"] for body in bodies] == ["epoch_second"] * 2
    assert caplog.text.count("index templates cannot be made") == 1


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_template_that_is_refused_leaves_the_others(tmp_path, elastic, method, caplog):
    refusal = error(400, "illegal_argument_exception", "no\nsuch\x1b[1m")
    elastic.script[method, f"/_index_template/{INDEX}"] = [refusal] * (2 if method == "GET" else 1)
    writer = Writer(tmp_path, elastic.url)
    writer.write(record(0), record(1, 1, NODE))
    writer.write(record(2))
    bodies = {path: json.loads(body) for verb, path, _, body in elastic.requests if verb == "PUT"}
    assert "mappings" in bodies[f"/{INDEX}"] and bodies["/colmet_node_default"] == {}
    assert list(elastic.templates) == ["colmet_node_default"] and stored(elastic) == rows(0, 2)
    assert caplog.text.count("index template refused") == 1 and r"no\nsuch\x1b[1m" in caplog.text


def test_without_templates_it_asks_for_indices_as_06_did(tmp_path, elastic):
    Writer(tmp_path, elastic.url, use_templates=False).write(record(0))
    asked = [(method, path.partition("?")[0]) for method, path, _, _ in elastic.requests]
    assert asked == [("HEAD", f"/{INDEX}"), ("PUT", f"/{INDEX}"), ("POST", "/_bulk")]


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "/_index_template", error(429, "x")),
        ("PUT", "/_index_template", error(503, "x")),
        ("GET", "/_index_template", (200, {"index_templates": []})),
        ("GET", "/_index_template", (401, {})),
        ("HEAD", "/colmet", (503, b"")),
        ("PUT", "/colmet", error(400, "validation_exception", "too many shards")),
        ("PUT", "/colmet", error(429, "x")),
    ],
)
def test_what_fails_before_the_bulk_is_tried_again(tmp_path, elastic, method, path, answer):
    elastic.script[method, path] = [answer]
    writer = Writer(tmp_path, elastic.url)
    with pytest.raises(OutputUnavailable):
        writer.write(record(0))
    assert not elastic.bulks
    writer.write(record(0))
    assert stored(elastic) == rows(0) and INDEX in elastic.templates


@pytest.mark.parametrize("answers", [[(403, b"")], [(404, b""), error(400, "resource_already_exists_exception")]])
def test_an_index_that_may_not_be_looked_at_or_that_another_makes_is_written_to(tmp_path, elastic, answers):
    elastic.indices[INDEX] = {}
    elastic.script["HEAD", f"/{INDEX}"] = answers[:1]
    elastic.script["PUT", f"/{INDEX}"] = answers[1:]
    Writer(tmp_path, elastic.url).write(record(0))
    assert stored(elastic) == rows(0)


def test_dates_make_an_index_each_and_one_template(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url, place=IndexNaming("colmet_", "%Y.%m.%d", False))
    writer.write(record(0), record(1, time_ns=TIME + 86400 * 10**9))
    assert sorted(elastic.indices) == [f"{INDEX}-2023.11.14", f"{INDEX}-2023.11.15"]
    assert elastic.templates[INDEX]["index_patterns"] == [f"{INDEX}-*"] and len(elastic.templates) == 1


def test_data_streams_are_made_from_their_template(tmp_path, elastic):
    place = IndexNaming("colmet_", "", True)
    for number in range(2):
        Writer(tmp_path, elastic.url, place=place).write(record(number))
    template = elastic.templates[INDEX]
    assert template["data_stream"] == {}
    assert template["template"]["mappings"]["properties"]["@timestamp"] == {"type": "date"}
    assert stored(elastic) == rows(0, 1) and elastic.data_streams == {INDEX}
    assert {document["@timestamp"] for document in elastic.indices[INDEX].values()} == {TIME // 10**6}


def test_a_data_stream_without_a_template_waits_for_one(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url, place=IndexNaming("colmet_", "", True), use_templates=False)
    with pytest.raises(OutputUnavailable, match="no matching index template"):
        writer.write(record(0))
    assert not elastic.bulks
    elastic.templates[INDEX] = {"data_stream": {}}
    writer.write(record(0))
    assert stored(elastic) == rows(0)


# -- the command line --


def options(*arguments):
    return collector_main.build_parser([ElasticsearchOutput]).parse_args(arguments)


def from_options(*arguments):
    return ElasticsearchOutput.from_options(options(*arguments))


def test_the_defaults_are_those_of_06():
    assert from_options() is None
    parsed = options()
    assert (parsed.elastic_host, parsed.elastic_index_prefix) == (None, "colmet_")
    assert (parsed.http_credentials, parsed.no_check_certificates) == (None, False)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        *(("http://192.0.2.1/es/", "http://192.0.2.1/es"), ("https://[::1]:9200/", "https://[::1]:9200")),
        *(("localhost:9200", "http://localhost:9200"), ("db.x:9200/", "http://db.x:9200")),  # as in Colmet 0.6
    ],
)
def test_addresses_that_can_be_asked(given, used):
    assert checked_url(given) == used


@pytest.mark.parametrize(
    "url",
    ["localhost", "ftp://db", "http://", "http://db:99999", "http://db:x", "http://db:0", "http://a b", "http://d?q",
     "http://db#f", "http://[::1", "//db", "http://d\n", "", "http://-x", "http://é"],
)  # fmt: skip
def test_addresses_that_cannot(url):
    with pytest.raises(ConfigError, match="not an address such as"):
        checked_url(url)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "with `ps`; put them into a file, -P"),
        (["-P", "{secret}"], "put them into a file, -P, which is used and not these"),
        (["--elastic-host", "http://me:geheim@other:9200"], "-P"),
        (["--elastic-host", "http://you:geheim@other:9200"], "different users or passwords"),
        (["--elastic-host", "http://you:geheim@"], "--elastic-host 'http://': not an address"),
        (["--elastic-host", "you:geheim@other"], "--elastic-host 'other': not an address"),
        (["--elastic-host", "http://you:ge/heim#@:x"], "--elastic-host 'http://:x': not an address"),
    ],
)
def test_a_password_in_an_address_is_used_with_a_warning_and_never_repeated(more, said, tmp_path, caplog, capsys):
    """As in Colmet 0.6, which took it from the command line."""
    caplog.set_level(logging.DEBUG)
    more = [word.format(secret=secret(tmp_path, b"user:pass")) for word in more]
    arguments = ["-vv", "--elastic-host", "http://me:geheim@db:9200", *more, "--check-config"]
    assert collector_main.main(arguments) == (2 if "not an" in said or "different" in said else 0)
    everything = caplog.text + "".join(capsys.readouterr())
    assert said in everything and "heim" not in everything


def test_the_user_of_an_address_is_who_writes(elastic):
    url = elastic.url.replace("http://", "http://user:pa%3Ass@")
    output = from_options("--elastic-host", url)
    output.open(OutputState("", JOURNAL, 0, 0))
    output.write([record(0)])
    assert {headers.get("Authorization") for _, _, headers, _ in elastic.requests} == {"Basic dXNlcjpwYTpzcw=="}
    output.close()


def test_a_server_without_tls_is_named_as_such(elastic):
    output = from_options("--elastic-host", elastic.url.replace("http:", "https:"))
    output.open(OutputState("", JOURNAL, 0, 0))
    with pytest.raises(OutputUnavailable, match=r"it does not speak TLS, is it http://\?"):
        output.write([record(0)])
    output.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--elastic-index-prefix", "Colmet_"], "--elastic-index-prefix"),
        (["--elastic-index-prefix", "_x"], "--elastic-index-prefix"),
        (["--elastic-index-prefix", "a/b"], "--elastic-index-prefix"),
        (["--elastic-date-suffix", "%d/%m"], "--elastic-date-suffix"),
        (["--elastic-date-suffix", "%Y", "--elastic-data-stream"], "choose one"),
        (["-P", "/no/such/file"], "No such file"),
        (["-P", "x", "--elastic-api-key-file", "y"], "choose one"),
        (["--elastic-ca-file", "/no/such/file"], "--elastic-ca-file /no/such/file: No such file"),
        (["--elastic-ca-file", "/dev/null"], "--elastic-ca-file /dev/null"),
        (["--elastic-client-cert", "/dev/null"], "--elastic-client-cert /dev/null"),
        (["--elastic-client-key", "x"], "give --elastic-client-cert"),
        (["--elastic-ca-file", "x", "--no-check-certificates"], "choose one"),
    ],
)
def test_options_that_cannot_work_are_reported(arguments, said):
    with pytest.raises(ConfigError, match=said):
        from_options("--elastic-host", "http://127.0.0.1:1", *arguments)


def secret(tmp_path, text, mode=0o600):
    path = tmp_path / "secret"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("text", [b"", b"user", b"a:b\nc:d\n", b"\xff:b", b"a:" + b"b" * (1 << 17)])
def test_a_credentials_file_that_is_none_is_refused_without_its_content(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        from_options("--elastic-host", "http://127.0.0.1:1", "-P", secret(tmp_path, text))
    assert "a:b" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "text", "header"),
    [
        ("-P", b"user:pa:ss\n", "Basic dXNlcjpwYTpzcw=="),
        ("-P", "user:pässe".encode(), "Basic dXNlcjpww6Rzc2U="),
        ("--elastic-api-key-file", b"id:key\n", "ApiKey aWQ6a2V5"),
        ("--elastic-api-key-file", b"aWQ6a2V5", "ApiKey aWQ6a2V5"),
    ],
)
def test_credentials_go_with_every_request_and_nowhere_else(tmp_path, elastic, option, text, header, caplog):
    caplog.set_level(logging.DEBUG)
    output = from_options("--elastic-host", elastic.url, option, secret(tmp_path, text))
    output.open(OutputState("", JOURNAL, 0, 0))
    elastic.script["POST", "/_bulk"] = [(307, b"", ("Location", f"{elastic.url}/elsewhere"))]
    with pytest.raises(OutputUnavailable) as caught:
        output.write([record(0)])
    assert {headers.get("Authorization") for _, _, headers, _ in elastic.requests} == {header}
    assert not elastic.asked("POST", "/elsewhere")
    for said in (str(caught.value), caplog.text):
        assert "pa:ss" not in said and header not in said
    assert "others than its owner" not in caplog.text
    output.close()


def test_a_credentials_file_that_others_can_read_is_reported(tmp_path, caplog):
    path = secret(tmp_path, b"user:pass", 0o644)
    from_options("--elastic-host", "http://db.example.org", "-P", path).close()
    assert f"chmod 600 {path}" in caplog.text and "use https" in caplog.text


def test_neither_proxies_nor_netrc_of_the_environment_are_used(tmp_path, elastic, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    output = from_options("--elastic-host", elastic.url)
    output.open(OutputState("", JOURNAL, 0, 0))
    output.write([record(0)])
    assert all("Authorization" not in headers for _, _, headers, _ in elastic.requests)
    assert all(headers["Accept-Encoding"] == "identity" for _, _, headers, _ in elastic.requests)
    output.close()


# -- https --


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate authority, and certificates of a server and of a client that it vouches for."""
    require_programs("openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    # A configuration of its own: that of the system may add the same extensions again.
    (folder / "ca.cnf").write_text(
        "[req]\ndistinguished_name=dn\nx509_extensions=ca\n[dn]\n[ca]\nbasicConstraints=critical,CA:TRUE\n"
        "keyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n"
    )
    ca = ["-config", "ca.cnf"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2", *ca)
    for name in ("server", "client"):
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "ext"),
        )
    openssl("ec", "-in", "client.key", "-aes256", "-passout", "pass:x", "-out", "locked.key")
    return folder


@pytest.fixture
def secure(make, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    return make(context=context)


def written_by(output):
    output.open(OutputState("", JOURNAL, 0, 0))
    try:
        output.write([record(0)])
    finally:
        output.close()


def test_a_server_that_nobody_vouches_for_is_not_written_to(secure):
    with pytest.raises(OutputUnavailable, match=r"(?i)certificate.*see --elastic-ca-file"):
        written_by(from_options("--elastic-host", secure.url))
    assert not secure.requests


def test_a_server_that_the_ca_file_vouches_for_is(secure, certificates):
    written_by(from_options("--elastic-host", secure.url, "--elastic-ca-file", str(certificates / "ca.pem")))
    assert stored(secure) == rows(0)


def test_the_ca_file_vouches_for_no_other_name(secure, certificates):
    url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(OutputUnavailable, match=r"(?i)hostname"):
        written_by(from_options("--elastic-host", url, "--elastic-ca-file", str(certificates / "ca.pem")))


def test_without_checks_every_server_is_believed_and_that_is_said_once(secure, caplog, recwarn):
    written_by(from_options("--elastic-host", secure.url, "--no-check-certificates"))
    assert stored(secure) == rows(0)
    assert caplog.text.count("--no-check-certificates") == 1 and not list(recwarn)


def test_a_client_certificate_is_shown(make, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    elastic = make(context=context)
    base = ["--elastic-host", elastic.url, "--elastic-ca-file", str(certificates / "ca.pem")]
    with pytest.raises(OutputUnavailable):
        written_by(from_options(*base))
    client = ["--elastic-client-cert", str(certificates / "client.pem")]
    written_by(from_options(*base, *client, "--elastic-client-key", str(certificates / "client.key")))
    assert stored(elastic) == rows(0)


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(certificates):
    arguments = ["--elastic-client-cert", str(certificates / "client.pem")]
    arguments += ["--elastic-client-key", str(certificates / "locked.key")]
    with pytest.raises(ConfigError, match="--elastic-client-cert"):
        from_options("--elastic-host", "https://127.0.0.1:1", *arguments)


def test_the_reject_file_is_private_and_bounded_and_all_that_is_not_in_it_is_counted(tmp_path, caplog):
    path, link = tmp_path / "rejects", tmp_path / "link"
    rejects = DeadLetters(str(path), 15)
    for lines in ([b"one"], [b"two", b"three", b"x" * 15]):
        rejects.add(lines)
    assert path.read_bytes() == b"one\ntwo\nthree\n" and rejects.not_kept == 1 and "full; look at it" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link.symlink_to(tmp_path / "other")
    for place, why in ((str(link), "symbolic links"), (str(tmp_path / "none/x"), "No such file"), ("", "no file")):
        nowhere = DeadLetters(place)
        nowhere.add([b"1", b"2"])
        assert nowhere.not_kept == 2 and why in caplog.text
    assert not (tmp_path / "other").exists()


def test_bulks_are_bounded_in_bytes_and_documents(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(output, "MAX_BULK_DOCUMENTS", 10)
    monkeypatch.setattr(output, "GROW_AFTER", 1000)
    writer = Writer(tmp_path, elastic.url)
    schemas = [Schema(f"t{number}", "job", JOB.fields) for number in range(6)]
    writer.write(*[record(number, 4, schema) for number, schema in enumerate(schemas)])
    assert [body.count(b"\n") // 2 for body in elastic.bulks] == [8, 8, 8]
    writer.output._bulk_bytes = 400
    writer.write(*[record(number, 4, schema) for number, schema in enumerate(schemas, 6)])
    assert all(len(body) <= 400 for body in elastic.bulks[3:]) and writer.count("documents") == (48,)


def test_what_is_known_of_the_server_is_bounded(tmp_path, elastic, monkeypatch):
    monkeypatch.setattr(indices, "MAX_KNOWN", 3)
    writer = Writer(tmp_path, elastic.url)
    for number in range(10):
        writer.write(record(number, schema=Schema(f"t{number}", "job", JOB.fields)))
    assert (
        len(writer.output._indices._ready) <= 3
        and len(writer.output._indices._templates) <= 3
        and len(elastic.indices) == 10
    )
