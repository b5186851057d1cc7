"""What one sender writes to a database ruins nothing that others write."""

from __future__ import annotations

import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch.indices import MAX_FIELDS, Mappings
from colmet.collector.columns import names_for
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from tests.support.documents import TIME
from tests.support.elastic_server import Elastic
from tests.support.elastic_writer import Writer

FURTHER = Field("to_come", "count", "gauge")


def schema(name, *fields):
    return Schema(name, "job", fields)


def text(name):
    return Field(name, "none", "label", dtype="S8")


def number(name, dtype="i8"):
    return Field(name, "count", "gauge", dtype=dtype)


def grown(*fields):
    return schema("cgroup_default", *CGROUP.fields, *fields)


@pytest.fixture
def mappings():
    return Mappings(lambda index: {}, False)


def test_columns_that_are_not_declared_have_the_type_of_those_that_came_first(mappings):
    assert mappings.fit(grown(FURTHER)) == ("cgroup_default", frozenset())
    assert mappings.fit(grown(text("to_come"), number("more"))) == ("cgroup_default", {"to_come"})
    assert mappings.fit(grown(number("more"), FURTHER)) == ("cgroup_default", frozenset())
    assert mappings.fields("cgroup_default")["to_come"] == {"type": "long"}


def test_a_column_of_floats_accepts_integers_and_not_the_other_way_round(mappings):
    assert not mappings.fit(grown(number("a", "f8"), number("b"))).left_out
    assert not mappings.fit(grown(number("a"))).left_out
    assert mappings.fit(grown(number("b", "f8"))).left_out == {"b"}


def test_rows_of_another_table_that_do_not_fit_go_to_an_index_of_their_own(mappings):
    first, second = schema("site_default", number("x")), schema("site_default", text("x"), number("y"))
    assert mappings.fit(first) == ("site_default", frozenset())
    assert mappings.fit(second) == (names_for(second)[1], frozenset())
    assert mappings.fit(schema("site_default", number("x"), number("z"))).name == "site_default"


@pytest.mark.parametrize("name", ["CGROUP_default", "cgroup-default", "raplstats_default", "Cgroup-Default"])
def test_no_table_of_another_name_goes_to_an_index_of_colmets_own_tables(mappings, name):
    found = mappings.fit(schema(name, text("cpu_usage")))
    assert found.name not in ("cgroup_default", "raplstats_default") and "-" not in found.name
    assert mappings.fit(CGROUP) == ("cgroup_default", frozenset())


def test_a_dash_does_not_make_a_table_look_like_the_date_of_another_one(mappings):
    assert mappings.fit(schema("cgroup_default-2026", number("x"))).name == "cgroup_default_2026"


def test_dots_make_no_object_of_what_is_a_value(mappings):
    assert mappings.fit(grown(text("cpu_usage.x"), number("a.b"))).left_out == {"cpu_usage.x"}
    assert mappings.fit(grown(number("a"))).left_out == {"a"}
    assert mappings.fit(schema("s_default", number("x"), number("x.y"), number("z"))).left_out == {"x", "x.y"}


def test_an_index_has_no_more_fields_than_a_database_accepts(mappings):
    many = [number(f"f{n}") for n in range(970)]
    assert len(mappings.fit(grown(*many)).left_out) > 20
    more = [number(f"g{n}") for n in range(900)]
    assert len(mappings.fit(grown(*more)).left_out) == 900
    assert not mappings.fit(CGROUP).left_out
    assert len(mappings.fields("cgroup_default")) <= MAX_FIELDS
    wide = schema("site_default", *more)
    assert mappings.fit(wide) == ("site_default", frozenset())
    assert mappings.fit(schema("site_default", *many)).name == names_for(schema("site_default", *many))[1]


def test_fields_of_before_a_restart_count():
    again = Mappings(lambda index: {"to_come": {"type": "keyword"}} if index == "cgroup_default" else {}, False)
    assert again.fit(grown(FURTHER)).left_out == {"to_come"}


# -- with a server --


@pytest.fixture
def elastic():
    """One that refuses documents whose values do not fit the mapping of their template, as real ones do."""
    one = Elastic()

    def item(action, document):
        fields = one.templates[action["_index"]]["template"]["mappings"]["properties"]
        for name, value in document.items():
            kind = fields[name]["type"]
            if (kind == "long" and not isinstance(value, int)) or (kind == "keyword" and not isinstance(value, str)):
                return 400, "mapper_parsing_exception"
        return None

    one.item = lambda action, document: item(action, document) if action["_index"] in one.templates else None
    yield one
    one.close()


def record(number_, host, one, **values):
    table = Table.from_samples(one, TIME, [Sample(7, values)])
    return JournalRecord(number_, TIME, (Batch(host, 1, number_, TIME, (7,), (table,)),))


def test_no_document_is_refused_for_what_another_sender_has_sent(tmp_path, elastic):
    writer = Writer(tmp_path, elastic.url)
    site, evil = schema("site_default", number("x")), schema("site_default", text("x"))
    writer.write(
        record(0, "evil", grown(text("to_come")), to_come=b"evil", cpu_usage=1),
        record(1, "evil", evil, x=b"evil"),
        record(2, "evil", schema("Cgroup_Default", text("cpu_usage")), cpu_usage=b"evil"),
        record(3, "n1", grown(FURTHER), to_come=5, cpu_usage=2),
        record(4, "n1", site, x=6),
    )
    assert writer.count("documents", "rejected", "values_left_out") == (5, 0, 1)
    cgroup = {document["hostname"]: document for document in elastic.indices["colmet_cgroup_default"].values()}
    assert cgroup.keys() == {"evil", "n1"} and cgroup["n1"]["cpu_usage"] == 2 and "to_come" not in cgroup["n1"]
    (own,) = elastic.indices[f"colmet_{names_for(site)[1]}"].values()
    assert (own["hostname"], own["x"]) == ("n1", 6)
    again = Writer(tmp_path, elastic.url)
    again.write(record(5, "n1", grown(FURTHER), to_come=5, cpu_usage=3), record(6, "n1", site, x=7))
    assert again.count("documents", "rejected", "values_left_out") == (2, 0, 1)
