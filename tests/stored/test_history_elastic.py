"""Rows that come back from Elasticsearch, against a server on loopback; real ones are in beds/test_elasticsearch.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch.output import ElasticsearchOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client as hosts
from colmet.common.config import cli
from colmet.common.errors import ColmetError
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.node.backends import rapl
from colmet.stored import elastic as history_module
from colmet.stored import elastic_columns, sources
from colmet.stored.series import NODE, RowQuery
from tests.support.elastic_server import Elastic, error

TIME = 1_700_000_000
JOB = Schema(
    "job_default",
    "job",
    [
        Field("cpu", "nsec", "counter"),
        Field("load", "none", "gauge", dtype="f8"),
        Field("model", "none", "label", dtype="S8"),
    ],
)


@pytest.fixture
def elastic():
    server = Elastic()
    yield server
    server.close()


@pytest.fixture
def opened(request, elastic, tmp_path):
    """Open the database, by a collector's configuration with these options."""

    def made(hosts=None, **settings):
        config = tmp_path / "collector.toml"
        settings = {"elastic-host": hosts or [elastic.url], **{n.replace("_", "-"): v for n, v in settings.items()}}
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        parser = cli.Parser()
        sources.add_options(parser)
        history = sources.open_history(parser.parse_args(["--config", str(config)]))
        request.addfinalizer(history.close)
        return history

    return made


def write(elastic, folder, batches, *arguments):
    """Have the collector's output write them."""
    parser = cli.Parser()
    ElasticsearchOutput.add_options(parser)
    output = ElasticsearchOutput.from_options(parser.parse_args(["--elastic-host", elastic.url, *arguments]))
    output.open(OutputState(str(folder / "state.json"), "0123456789abcdef", 0, 0))
    output.recover()
    output.write([JournalRecord(number, batch.time_ns, (batch,)) for number, batch in enumerate(batches)])
    output.close()


def batch(tick, host="node-1", jobs=(7, 8), schema=JOB, rows_each=1, values=None):
    time_ns = (TIME + 5 * tick) * 10**9
    samples = [
        Sample(job, values or {"cpu": 100 * tick + row, "load": 0.5 * tick, "model": b"a"})
        for job in (jobs if schema.scope == "job" else (NODE,))
        for row in range(rows_each)
    ]
    return Batch(host, 1, tick, time_ns, jobs, (Table.from_samples(schema, time_ns, samples),))


def put(elastic, index, *documents):
    known = elastic.indices.setdefault(index, {})
    for document in documents:
        known[f"{len(known):05x}"] = document


def row(tick=0, host="node-1", job=7, **values):
    return {"hostname": host, "job_id": job, "timestamp": TIME + tick, **values}


def test_what_the_collector_wrote_comes_back_for_each_host(elastic, opened, tmp_path):
    write(elastic, tmp_path, [batch(tick, host) for tick in range(4) for host in ("node-2", "node-10")])
    first, second = opened().read(RowQuery(7, "job_default"))
    assert (first.host, second.host) == ("node-10", "node-2")
    assert (first.table, first.job, list(first.columns)) == ("job_default", 7, ["cpu", "load", "model"])
    assert first.times.tolist() == [TIME, TIME + 5, TIME + 10, TIME + 15]
    assert first.columns["cpu"].tolist() == [0, 100, 200, 300] and first.columns["cpu"].dtype == np.int64
    assert first.columns["load"].tolist() == [0, 0.5, 1, 1.5] and first.columns["load"].dtype == np.float64
    assert first.columns["model"].tolist() == [b"a"] * 4


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(["load"], ["load"]), (["load", "no such", "cpu", "load"], ["load", "cpu"]), ([], []), (["hostname"], [])],
)
def test_only_the_wanted_columns_are_asked_for(elastic, opened, tmp_path, columns, expected):
    write(elastic, tmp_path, [batch(0)])
    [series] = opened().read(RowQuery(7, "job_default", columns))
    assert list(series.columns) == expected and len(series) == 1
    [body] = [body for _, path, _, body in elastic.requests if "_search?" in path]
    assert hosts.json.loads(body)["_source"] == (expected or False)


@pytest.mark.parametrize(
    ("asked", "ticks"),
    [
        ({"since": TIME + 5}, [1, 2, 3]),
        ({"since": TIME + 5.5}, [2, 3]),
        ({"until": TIME + 10}, [0, 1, 2]),
        ({"until": TIME + 9.9}, [0, 1]),
        ({"since": TIME + 5, "until": TIME + 5}, [1]),
        ({"since": TIME + 6, "until": TIME + 9}, []),
        ({"since": float("-inf"), "until": float("inf")}, [0, 1, 2, 3]),
        ({"until": float("-inf")}, []),
        ({"hosts": ["node-1", "node-9"]}, [0, 1, 2, 3]),
        ({"hosts": []}, []),
        ({"hosts": ["node-9"]}, []),
    ],
)
def test_time_and_hosts_are_chosen(elastic, opened, tmp_path, asked, ticks):
    write(elastic, tmp_path, [batch(tick, jobs=(7,)) for tick in range(4)])
    found = opened().read(RowQuery(7, "job_default", **asked))
    assert [(time - TIME) // 5 for series in found for time in series.times.tolist()] == ticks


@pytest.mark.parametrize("page", [7, 10, 23, 99, 100, 101, 1000])
def test_any_number_of_rows_comes_in_order_and_once(elastic, opened, tmp_path, monkeypatch, page):
    """Six rows of each host at each time, as GPUs have: a page may end in the middle of them."""
    monkeypatch.setattr(history_module, "MIN_PAGE_ROWS", 1)
    monkeypatch.setattr(history_module, "MAX_PAGE_ROWS", page)
    sent = [batch(tick, host, (7,), rows_each=6) for tick in range(11) for host in ("node-1", "node-2", "node-3")]
    write(elastic, tmp_path, sent)
    found = opened().read(RowQuery(7, "job_default"))
    assert len(found) == 3
    for series in found:
        assert series.times.tolist() == [TIME + 5 * tick for tick in range(11) for _ in range(6)]
        assert series.columns["cpu"].tolist() == [100 * tick + row for tick in range(11) for row in range(6)]
    searches = [path for path in elastic.asked("POST") if "_search?" in path]
    assert len(searches) >= 198 // page


def test_long_lists_of_jobs_do_not_make_answers_too_large(elastic, opened, monkeypatch):
    for module, name, value in ((hosts, "MAX_ANSWER_BYTES", 512 << 10), (history_module, "PAGE_BYTES", 256 << 10)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(history_module, "MIN_PAGE_ROWS", 1)
    jobs = list(range(10_000_000, 10_000_600))
    put(elastic, "colmet_procstats_default", *[row(tick, job=NODE, involved_jobs=jobs) for tick in range(200)])
    (series,) = opened().read(RowQuery(NODE, "procstats_default", ["involved_jobs"]))
    assert len(series) == 200 and set(series.columns["involved_jobs"].tolist()) == {str(jobs).encode()}


def test_more_rows_of_one_host_and_time_than_a_page_has_are_reported(elastic, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "MIN_PAGE_ROWS", 1)
    monkeypatch.setattr(history_module, "MAX_PAGE_ROWS", 5)
    write(elastic, tmp_path, [batch(0, jobs=(7,), rows_each=6)])
    with pytest.raises(ColmetError, match="job_default: more than 5 rows of node-1 at one time"):
        opened().read(RowQuery(7, "job_default"))


def test_more_rows_than_memory_is_meant_for_are_reported(elastic, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(elastic_columns, "MAX_BYTES", 1000)
    write(elastic, tmp_path, [batch(tick) for tick in range(40)])
    with pytest.raises(ColmetError, match="require more than 0 MiB; ask for fewer columns or hosts, or for a shorter"):
        opened().read(RowQuery(7, "job_default"))
    assert len(opened().read(RowQuery(7, "job_default", ["cpu"], until=TIME + 5))) == 1


# -- tables and indices --


def test_tables_of_a_job_have_their_declared_names(elastic, opened, tmp_path):
    node = batch(0, schema=rapl.SCHEMA, values={"counter_1": 5})
    write(elastic, tmp_path, [batch(0), node])
    history = opened()
    assert history.tables(7) == {"job_default": ["cpu", "load", "model"]}
    columns = sorted([*rapl.SCHEMA.names, "involved_jobs"])  # all of 0.6 are in each document
    assert history.tables(NODE) == {"RAPLstats_default": columns}
    assert history.tables(9) == {} and history.tables(-1) == {} and history.tables(1 << 63) == {}
    for name in ("RAPLstats_default", "raplstats_default"):
        [series] = history.read(RowQuery(NODE, name))
        assert series.columns["counter_1"].tolist() == [5]
        assert series.columns["involved_jobs"].tolist() == [b"[7, 8]"]  # as in HDF5


@pytest.mark.parametrize(
    "index",
    [
        "colmet_taskstats_default",
        "colmet_taskstats_default-2023.11.14",
        "colmet_taskstats_default-2023-w46",
        "colmet_taskstats_default-week-46",
        "colmet_taskstats_default-000001",
        ".ds-colmet_taskstats_default-2023.11.14-000001",
        "restored-.ds-colmet_taskstats_default-2023.11.14-000001",
    ],
)
def test_an_index_belongs_to_a_table_whatever_is_around_its_name(elastic, opened, index):
    put(elastic, index, row(cpu_count=1))
    found = opened()
    assert found._table_of(index) == "taskstats_default"
    if index.startswith("colmet_"):  # other names are the server's own for what the pattern finds
        assert list(found.tables(7)) == ["taskstats_default"]
        [series] = found.read(RowQuery(7, "taskstats_default"))
        assert series.columns["cpu_count"].tolist() == [1]


@pytest.mark.parametrize(
    ("index", "table"),
    [
        ("colmet_new_default-2023.11.14", "new_default"),
        ("colmet_new_default", "new_default"),
        ("colmet_new-ones_default-2023.11.14", "new-ones_default"),
        ("colmet_taskstats_default2", "taskstats_default2"),
        ("colmet_", None),
        ("colmet_-", None),
        ("other_taskstats_default", None),
    ],
)
def test_tables_that_nobody_has_declared_have_the_names_of_their_indices(opened, index, table):
    assert opened()._table_of(index) == table


def test_a_table_whose_name_begins_as_another_one_is_not_taken_for_it(elastic, opened):
    put(elastic, "colmet_new_default", row(cpu=1))
    put(elastic, "colmet_new_default-2023.11.14", row(5, cpu=2))
    put(elastic, "colmet_new_default-more_default", row(10, cpu=3))
    put(elastic, "colmet_new_default_more", row(15, cpu=4))
    put(elastic, "colmet_old_new_default", row(20, cpu=5))
    history = opened()
    assert set(history.tables(7)) == {"new_default", "new_default-more_default", "new_default_more", "old_new_default"}
    [series] = history.read(RowQuery(7, "new_default"))
    assert series.columns["cpu"].tolist() == [1, 2]
    [series] = history.read(RowQuery(7, "new_default-more_default"))
    assert series.columns["cpu"].tolist() == [3]


def test_another_prefix_is_another_store(elastic, opened, tmp_path):
    write(elastic, tmp_path, [batch(0)], "--elastic-index-prefix", "site_")
    assert opened().tables(7) == {} == opened(elastic_index_prefix="sites_").tables(7)
    assert list(opened(elastic_index_prefix="site_").tables(7)) == ["job_default"]
    assert list(opened(elastic_index_prefix="").tables(7)) == ["site_job_default"]


def test_indices_of_colmet_06_have_types_that_the_server_guessed(elastic, opened):
    """Text with a keyword beside it, and -1 where a value is missing: also in columns of floats."""
    elastic.text_type = "text"
    put(
        elastic,
        "colmet_procstats_default",
        row(0, job=0, loadavg_1min=-1, uptime_total=5),
        row(5, job=0, loadavg_1min=0.44, uptime_total=-1),
        row(10, job=0, loadavg_1min=2.0, uptime_total=7),
    )
    [series] = opened().read(RowQuery(NODE, "procstats_default"))
    assert series.host == "node-1" and list(series.columns) == ["loadavg_1min", "uptime_total"]
    np.testing.assert_array_equal(series.columns["loadavg_1min"], [np.nan, 0.44, 2.0])
    assert series.columns["uptime_total"].tolist() == [5, -1, 7]


def test_a_column_is_what_its_values_are(elastic, opened, monkeypatch):
    """In pages of two rows: a whole number, a fraction, text, a number that no column of numbers can hold, nothing."""
    monkeypatch.setattr(history_module, "MIN_PAGE_ROWS", 1)
    monkeypatch.setattr(history_module, "MAX_PAGE_ROWS", 2)
    values = [
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 0.5, "c": "x"},
        {},
        {"a": 1 << 63, "b": 3, "c": 0.5},
        {"c": [1, 2]},
    ]
    put(elastic, "colmet_new_default", *[row(tick, **one) for tick, one in enumerate(values)])
    [series] = opened().read(RowQuery(7, "new_default"))
    np.testing.assert_array_equal(series.columns["a"], [1, 2, np.nan, 2.0**63, np.nan])
    np.testing.assert_array_equal(series.columns["b"], [1, 0.5, np.nan, 3, np.nan])
    assert series.columns["c"].tolist() == [b"1", b"x", b"", b"0.5", b"[1, 2]"]


def test_a_template_of_the_sites_own_may_have_no_second_field_for_the_host(elastic, opened):
    put(elastic, "colmet_new_default", row(cpu=1))
    fields = {"hostname": {"keyword": {"type": "keyword"}}, "cpu": {"long": {"type": "long"}}}
    elastic.script["POST", "/colmet_new_default,colmet_new_default-*/_field_caps"] = [(200, {"fields": fields})]
    assert len(opened().read(RowQuery(7, "new_default"))) == 1
    assert b"hostname.keyword" not in elastic.requests[-1][3]


# -- servers that do not answer as they should --


SEARCH = ("POST", "/colmet_job_default,colmet_job_default-*/_search")
HIT = {"_index": "colmet_job_default", "_id": "0", "sort": [TIME * 1000, "node-1"], "_source": {"cpu": 1}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {}), "refuses these credentials, see -P and --elastic-api-key-file"),
        (error(403, "security_exception"), "may not read colmet_.*: security_exception: because; give the user"),
        (error(404, "x"), "a search is answered with status 404: x: because"),
        (error(400, "search_phase_execution_exception"), "status 400: search_phase_execution_exception: because"),
        (error(503, "no_shard_available_action_exception"), "status 503: no_shard_available_action_exception"),
        ((200, b"<html>"), "not that of Elasticsearch"),
        ((200, {"timed_out": True}), "gave up a search for lack of time; ask for a shorter interval"),
        ((200, {"hits": 3}), "not what was expected"),
        ((200, {"hits": {"hits": [3]}}), "not what was expected"),
        ((200, {"hits": {"hits": [{**HIT, "sort": [1]}]}}), "not what was expected"),
        ((200, {"hits": {"hits": [{**HIT, "sort": [None, "node-1"]}]}}), "not what was expected"),
        ((200, {"hits": {"hits": [{**HIT, "sort": [1, 2]}]}}), "not what was expected"),
        ((200, {"hits": {"hits": [{**HIT, "_source": [1]}]}}), "not what was expected"),
        ((307, b"", ("Location", "http://192.0.2.1/")), "give that as --elastic-host"),
    ],
)
def test_a_server_that_cannot_be_read_is_reported_in_a_line(elastic, opened, answer, said):
    put(elastic, "colmet_job_default", row(cpu=1))
    elastic.script[SEARCH] = [answer]
    with pytest.raises(ColmetError, match=said) as caught:
        opened().read(RowQuery(7, "job_default"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert len(opened().read(RowQuery(7, "job_default"))) == 1


def test_more_indices_than_can_be_listed_are_reported(elastic, opened, monkeypatch):
    monkeypatch.setattr(history_module, "MAX_INDICES", 2)
    for day in range(3):
        put(elastic, f"colmet_job_default-{day}", row(cpu=1))
    with pytest.raises(ColmetError, match=r"job 7 has rows in more than 2 indices colmet_\*; name one table"):
        opened().tables(7)


def test_text_of_a_server_cannot_steer_a_terminal(elastic, opened):
    elastic.script[SEARCH] = [error(400, "\x1b[2J", "a\nb\x07")]
    put(elastic, "colmet_job_default", row(cpu=1))
    with pytest.raises(ColmetError) as caught:
        opened().read(RowQuery(7, "job_default"))
    assert str(caught.value).isprintable()


def test_whichever_host_answers_is_asked(elastic, opened, caplog):
    put(elastic, "colmet_job_default", row(cpu=1))
    closed = "http://127.0.0.1:1"
    assert len(opened([closed, elastic.url]).read(RowQuery(7, "job_default"))) == 1
    with pytest.raises(ColmetError, match=r"http://127\.0\.0\.1:1: .*Connection refused"):
        opened([closed]).tables(7)


def test_credentials_are_those_of_the_collectors_options(elastic, opened, tmp_path, caplog):
    secret = tmp_path / "secret"
    secret.write_text("reader:secret\n")
    secret.chmod(0o600)
    put(elastic, "colmet_job_default", row(cpu=1))
    assert len(opened(http_credentials=str(secret)).read(RowQuery(7, "job_default"))) == 1
    assert elastic.requests[-1][2]["Authorization"] == "Basic cmVhZGVyOnNlY3JldA=="
    assert "secret" not in caplog.text


def test_rows_of_single_hosts_are_read_without_those_of_others(elastic, opened, tmp_path, monkeypatch):
    write(elastic, tmp_path, [batch(tick, host=f"node-{tick % 3}") for tick in range(12)])
    history = opened()
    whole = history.read(RowQuery(7, "job_default", ["cpu", "load"]))
    held = history.by_hosts(RowQuery(7, "job_default", ["cpu", "load"]))
    monkeypatch.setattr(history_module, "MAX_PAGE_ROWS", 5)
    paged = history.by_hosts(RowQuery(7, "job_default", ["cpu", "load"]))
    asked = len(elastic.requests)
    for rows in (held, paged):
        assert rows.counts == {"node-0": 4, "node-1": 4, "node-2": 4}
        assert (rows.first, rows.last) == (TIME, TIME + 55)
        some = rows.read(["node-2", "node-0", "none"], ["cpu"])
        assert [(one.host, one.times.tolist(), list(one.columns)) for one in some] == [
            (one.host, one.times.tolist(), ["cpu"]) for one in (whole[0], whole[2])
        ]
        assert some[0].columns["cpu"].tolist() == whole[0].columns["cpu"].tolist()
    assert all(b"node-1" not in body and b"load" not in body for _, _, _, body in elastic.requests[asked:])
    assert not history.by_hosts(RowQuery(7, "other", [])).counts
    monkeypatch.setattr(history_module, "MAX_HOSTS", 2)
    with pytest.raises(ColmetError, match="more than 2 hosts"):
        history.by_hosts(RowQuery(7, "job_default", []))
    assert history.by_hosts(RowQuery(7, "job_default", [], None, None, ["node-0", "node-2"])).counts == {
        "node-0": 4,
        "node-2": 4,
    }
