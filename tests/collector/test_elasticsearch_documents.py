"""Rows as documents: what is in them, what is not, and what they are called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch import documents
from colmet.collector.backends.elasticsearch.documents import (
    DATE_FORMAT,
    Documents,
    IndexNaming,
    index_form,
    properties,
)
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder, colmet06
from tests.support.documents import TIME

DATA = Path(__file__).parents[1] / "data/colmet06"
JOURNAL = "0123456789abcdef"
JOB = Schema(
    "Job_default",
    "job",
    [
        Field("cpu", "nsec", "counter"),
        Field("model", "none", "label", dtype="S8"),
        Field("load", "none", "gauge", dtype="f4"),
        Field("n-b", "count", "counter"),
        Field("exact", "none", "gauge", dtype="f8"),
    ],
)
NODE = Schema("node_default", "node", [Field("load", "none", "gauge", dtype="f4")])


def batch(*tables, seq=1, epoch=1, host="node-1", jobs=(7, 9), time_ns=TIME):
    return Batch(host, epoch, seq, time_ns, jobs, tables)


def table(schema, *rows, time_ns=TIME):
    return Table.from_samples(schema, time_ns, [Sample(job, values) for job, values in rows])


def rendered(*batches, place=None, number=5, maker=None):
    """(index, id, document) of all rows; each batch is a record of its own."""
    maker = maker or Documents(place or IndexNaming("colmet_", "", False), JOURNAL)
    records = [JournalRecord(number + n, TIME, (each,)) for n, each in enumerate(batches)]
    return of_records(maker, records)


def of_records(maker, records):
    found = []
    for schema, indices, sources in maker.tables(records):
        here = []
        for bulk in maker.render(schema, sources):
            lines = bulk.lines()
            assert len(lines) == 2 * bulk.documents
            for action, document in zip(lines[::2], lines[1::2]):
                target = json.loads(action)["create"]
                here.append((target["_index"], target["_id"], json.loads(document, parse_constant=pytest.fail)))
        assert {index for index, _, _ in here} <= set(indices)
        found += here
    return found


def test_the_documents_are_those_of_06():
    """Field by field those that 0.6.10 posted, -1 for what was not measured included."""
    recorded = json.loads((DATA / "elastic/mixed.json").read_text())
    lines = [json.loads(line) for line in recorded[-1]["body"] if line]
    theirs = [(action["create"]["_index"], document) for action, document in zip(lines[::2], lines[1::2])]
    batches = Decoder().decode((DATA / "frames/mixed.bin").read_bytes()).batches
    ours = [
        (index, document) for index, _, document in rendered(*batches, place=IndexNaming("colmet_dahu_", "", False))
    ]
    key = lambda pair: (pair[0], pair[1]["job_id"])  # noqa: E731
    assert sorted(ours, key=key) == sorted(theirs, key=key)
    assert len(ours) == 7 and any(-1 in document.values() for document in lines[1::2])


@pytest.mark.parametrize("table_name", colmet06.RECORDS)
def test_columns_of_06_are_in_every_document_and_others_where_they_have_a_value(table_name):
    """Also those that the sender's schema lacks; scripts of dashboards do not check that a field is there."""
    record = colmet06.RECORDS[table_name].schema
    fields = [*record.fields[1:], Field("new", "count", "gauge"), Field("ratio", "none", "gauge", dtype="f8")]
    sent = Schema(table_name, record.scope, fields)
    first = fields[0].name
    found = rendered(batch(table(sent, (7, {first: 5}), (7, {"new": 6, "ratio": 0.5}), (7, {}))))
    head = {"hostname": "node-1", "job_id": 7, "timestamp": 1_700_000_005}
    if record.scope == "node":
        head["involved_jobs"] = [7, 9]
    head.update(dict.fromkeys(record.names, -1))
    expected = [{**head, first: 5}, {**head, "new": 6, "ratio": 0.5}, head]
    by_text = lambda each: json.dumps(each, sort_keys=True)  # noqa: E731
    assert sorted([document for _, _, document in found], key=by_text) == sorted(expected, key=by_text)
    assert properties(sent, False).keys() >= head.keys()


def test_what_is_missing_has_no_field_whatever_else_is_there():
    full = {"cpu": 5, "model": b"x", "load": 0.44, "n-b": 0, "exact": 1e300}
    rows = [(7, {name: value for name, value in full.items() if name != left_out}) for left_out in (None, *full)]
    rows += [(8, {}), (-1, {}), (9, {"cpu": 1, "load": 2.0}), (7, full)]
    documents_ = [document for _, _, document in rendered(batch(table(JOB, *rows)))]
    common = {"hostname": "node-1", "timestamp": 1_700_000_005}
    wanted = [{**common, "job_id": job, **values} for job, values in rows]
    for each in wanted:
        if "model" in each:
            each["model"] = "x"
    by_text = lambda each: json.dumps(each, sort_keys=True)  # noqa: E731
    assert sorted(documents_, key=by_text) == sorted(json.loads(json.dumps(wanted)), key=by_text)


def test_floats_are_finite_short_and_floats_to_whoever_guesses_types():
    rows = JOB.empty_rows(4)
    rows["load"] = [np.float32(0.1), np.inf, -np.inf, 3.0]
    rows["exact"] = [0.1, np.nan, 5.0, -np.inf]
    rows["job_id"] = 1
    maker = Documents(IndexNaming("c_", "", False), JOURNAL)
    [(schema, _, sources)] = maker.tables([JournalRecord(0, 0, (batch(Table(JOB, TIME, rows)),))])
    text = b"".join(bulk.body for bulk in maker.render(schema, sources)).decode()
    assert '"load":0.1,"exact":0.1}' in text and '"load":3.0}' in text and '"exact":5.0}' in text
    assert "inf" not in text.lower() and "nan" not in text.lower()


@given(
    st.lists(st.binary(max_size=8), min_size=1, max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
)
def test_whatever_a_label_or_a_number_holds_is_one_line_of_json(labels, numbers):
    rows = JOB.empty_rows(max(len(labels), len(numbers)))
    rows["model"][: len(labels)] = labels
    rows["cpu"][: len(numbers)] = numbers
    found = [document for _, _, document in rendered(batch(Table(JOB, TIME, rows)))]
    texts = [label.rstrip(b"\0").decode("utf-8", "replace") for label in labels]
    assert sorted(d["model"] for d in found if "model" in d) == sorted(filter(None, texts))
    assert sorted(d["cpu"] for d in found if "cpu" in d) == sorted(n for n in numbers if n != -1)


def test_rows_of_the_node_name_its_jobs():
    both = (table(JOB, (7, {"cpu": 1})), table(NODE, (0, {"load": 0.44})))
    of_job, of_node = [document for _, _, document in rendered(batch(*both))]
    assert "involved_jobs" not in of_job and of_node["involved_jobs"] == [7, 9]
    [document] = [document for _, _, document in rendered(batch(both[1], jobs=()))]
    assert document["involved_jobs"] == []
    [document] = [document for _, _, document in rendered(batch(both[1], jobs=None))]
    assert "involved_jobs" not in document


def test_an_index_has_the_tables_name_in_lower_case_and_the_rows_own_date():
    first, second = 1_700_006_399, 1_700_006_400  # around midnight, UTC
    rows = [table(JOB, (1, {"cpu": time_s}), time_ns=time_s * 10**9) for time_s in (first, second)]
    found = rendered(batch(*rows), place=IndexNaming("x_", "%Y.%m.%d", False))
    assert [(index, document["cpu"]) for index, _, document in found] == [
        ("x_job_default-2023.11.14", first),
        ("x_job_default-2023.11.15", second),
    ]


def test_a_data_stream_has_its_own_time_field_in_milliseconds():
    [(index, _, document)] = rendered(batch(table(JOB, (1, {"cpu": 1}))), place=IndexNaming("colmet_", "", True))
    assert index == "colmet_job_default"
    assert (document["@timestamp"], document["timestamp"]) == (1_700_000_005_999, 1_700_000_005)


def test_an_id_names_its_row_whatever_is_written_with_it():
    """Ids are the same after a restart, alone or with others, in any grouping; no two rows have one."""
    batches = [
        batch(
            table(JOB, *[(job, {"cpu": job} if job % 2 else {"load": 1.5}) for job in range(10)]),
            table(NODE, (0, {})),
            table(JOB, (1, {"cpu": seq})),
            seq=seq,
            epoch=epoch,
            host=host,
        )
        for host in ("a", "b")
        for epoch, seq in ((1, 1), (1, 2), (2, 1), (None, None))
    ]
    row = lambda found: {id_: (index, document) for index, id_, document in found}  # noqa: E731
    together = row(rendered(*batches))
    assert len(together) == 12 * len(batches)
    alone = {}
    for number, each in enumerate(batches):
        alone.update(row(rendered(each, number=5 + number)))
    assert alone == together
    assert all(len(id_) == 28 and id_.replace("-", "a").replace("_", "a").isalnum() for id_ in together)


def test_a_batch_without_a_name_is_named_by_its_place_in_the_journal():
    unnamed = batch(table(JOB, (1, {"cpu": 1})), epoch=None, seq=None)
    place = IndexNaming("colmet_", "", False)
    ids = set()
    for journal, number, batches in (("a" * 16, 5, 2), ("a" * 16, 6, 1), ("b" * 16, 5, 1)):
        found = of_records(Documents(place, journal), [JournalRecord(number, TIME, (unnamed,) * batches)])
        ids.update(id_ for _, id_, _ in found)
    assert len(ids) == 4
    named = batch(table(JOB, (1, {"cpu": 1})))
    assert rendered(named, number=1) == rendered(named, number=2, maker=Documents(place, "c" * 16))


def test_more_rows_than_are_rendered_at_a_time_keep_their_order_and_numbers(monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_ROWS", 3)
    rows = [table(JOB, *[(job, {"cpu": job}) for job in range(count)]) for count in (4, 0, 1, 7)]
    found = rendered(batch(*rows))
    assert [document["job_id"] for _, _, document in found] == [*range(4), *range(1), *range(7)]
    assert [(id_[20:23], id_[23:]) for _, id_, _ in found] == [
        (f"{number:03x}", f"{row:05x}") for number, count in enumerate((4, 0, 1, 7)) for row in range(count)
    ]


def test_types_are_compact_and_old_dashboards_find_their_names():
    known = properties(JOB, False)
    keyword = {"type": "keyword", "fields": {"keyword": {"type": "keyword"}}}
    assert known == {
        "hostname": keyword,
        "job_id": {"type": "long"},
        "timestamp": {"type": "date", "format": "epoch_second"},
        "cpu": {"type": "long"},
        "model": keyword,
        "load": {"type": "float"},
        "n-b": {"type": "long"},
        "exact": {"type": "double"},
    }
    assert properties(NODE, True)["involved_jobs"] == {"type": "long"}
    assert properties(NODE, True)["@timestamp"] == {"type": "date"}
    mappings = index_form(known)["mappings"]
    assert mappings["properties"] == known and mappings["date_detection"] is False


def test_a_table_with_very_many_fields_gets_room_for_them():
    labels = Schema("wide", "job", [Field(f"f{n}", "none", "label", dtype="S1") for n in range(1000)])
    assert index_form(properties(labels, False))["settings"]["index.mapping.total_fields.limit"] > 2000
    assert index_form(properties(JOB, False))["settings"] == {}


@pytest.mark.parametrize("form", ["%Y.%m.%d", "%Y-%m", "%G.w%V", "%Y_%j_%H"])
def test_dates_that_sort_and_that_index_names_can_have_are_taken(form):
    assert DATE_FORMAT.fullmatch(form)


@pytest.mark.parametrize("form", ["%A", "%Y/%m", "%", "%Y %m", "%s", "%%Y", "X", "%M", "%Y\n", "%Y*", ""])
def test_other_dates_are_not(form):
    assert not DATE_FORMAT.fullmatch(form)
