"""Field, Schema, Sample and Table: what they refuse, and how a missing value travels through them."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.common.schema import MAX_FIELDS, RESERVED, UNITS, Batch, Field, Sample, Schema, Table, present

SCHEMA = Schema(
    "demo_default",
    "job",
    [
        Field("reads", "count", "counter", "Source: nowhere."),
        Field("load", "none", "gauge", dtype="f8", fold="max"),
        Field("share", "percent", "gauge", dtype="f4", fold="min"),
        Field("model", "none", "label", dtype="S8", fold="first"),
    ],
)


@pytest.mark.parametrize("name", ["", "1st", "_x", "a b", "a\n", "a/b", "é", "a\0", "x" * 129, "-", *sorted(RESERVED)])
def test_a_field_name_that_outputs_cannot_store_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a field name"):
        Field(name, "count", "counter")


@pytest.mark.parametrize("dtype", ["i4", "u8", "<i8", "S0", "S", "S10000", "O", "", "f16", "i8\n", "S01"])
def test_a_field_type_beyond_the_four_is_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="not a field type"):
        Field("reads", "count", "counter", dtype=dtype)


@pytest.mark.parametrize(
    ("unit", "kind", "fold"),
    [("furlong", "counter", "sum"), ("count", "histogram", "sum"), ("count", "counter", "mean")],
)
def test_a_field_of_unknown_unit_kind_or_fold_is_refused(unit: str, kind: str, fold: str) -> None:
    with pytest.raises(ValueError, match="field reads"):
        Field("reads", unit, kind, fold=fold)


def test_a_schema_refuses_what_is_not_a_table() -> None:
    field = Field("reads", "count", "counter")
    with pytest.raises(ValueError, match="not a table name"):
        Schema("a table", "job", [field])
    with pytest.raises(ValueError, match="not a scope"):
        Schema("demo", "cluster", [field])
    with pytest.raises(ValueError, match="one twice"):
        Schema("demo", "job", [field, field])
    with pytest.raises(ValueError, match="no fields"):
        Schema("demo", "job", [])


def test_a_schema_has_a_bounded_number_of_fields() -> None:
    fields = [Field(f"c{n}", "count", "counter") for n in range(MAX_FIELDS + 1)]
    assert len(Schema("demo", "node", fields[:-1]).fields) == MAX_FIELDS
    with pytest.raises(ValueError, match="too many"):
        Schema("demo", "node", fields)


def test_a_description_gives_back_an_equal_schema() -> None:
    again = Schema.parse(SCHEMA.text)
    assert again == SCHEMA and hash(again) == hash(SCHEMA) and again.digest == SCHEMA.digest
    assert again.dtype == SCHEMA.dtype and again.text == SCHEMA.text
    assert [f.name for f in again.fields] == ["reads", "load", "share", "model"]
    assert again.fields[0].help == ""  # help is for the documentation, it does not travel


def test_another_order_unit_or_scope_is_another_digest() -> None:
    digests = {
        SCHEMA.digest,
        Schema("demo_default", "node", SCHEMA.fields).digest,
        Schema("demo_other", "job", SCHEMA.fields).digest,
        Schema("demo_default", "job", SCHEMA.fields[::-1]).digest,
        Schema("demo_default", "job", [Field("reads", "bytes", "counter"), *SCHEMA.fields[1:]]).digest,
    }
    assert len(digests) == 5
    assert Schema("demo_default", "node", SCHEMA.fields) != SCHEMA


def test_a_row_is_little_endian_and_packed_with_the_job_first() -> None:
    assert SCHEMA.dtype.names == ("job_id", "reads", "load", "share", "model")
    assert SCHEMA.dtype.itemsize == 8 + 8 + 8 + 4 + 8
    row = SCHEMA.empty_rows(1)
    row["job_id"], row["reads"] = 1, 2
    assert row.tobytes()[:16] == b"\1" + bytes(7) + b"\2" + bytes(7)


def test_in_empty_rows_every_field_is_missing() -> None:
    rows = SCHEMA.empty_rows(2)
    assert rows["job_id"].tolist() == [0, 0]
    assert rows["reads"].tolist() == [-1, -1]
    assert np.isnan(rows["load"]).all() and np.isnan(rows["share"]).all()
    assert rows["model"].tolist() == [b"", b""]
    assert [s.values for s in Table(SCHEMA, 0, rows).samples()] == [dict.fromkeys(SCHEMA.names)] * 2
    assert len(SCHEMA.empty_rows(0)) == 0


def test_none_and_a_name_left_out_are_missing_and_zero_is_not() -> None:
    table = Table.from_samples(
        SCHEMA,
        5,
        [Sample(7, {"reads": 0, "load": 0.0, "share": None, "model": b"x"}), Sample(8, {"load": -1.0}), Sample(9, {})],
    )
    assert (table.schema, table.time_ns) == (SCHEMA, 5)
    assert list(table.samples()) == [
        Sample(7, {"reads": 0, "load": 0.0, "share": None, "model": b"x"}),
        Sample(8, {"reads": None, "load": -1.0, "share": None, "model": None}),
        Sample(9, {"reads": None, "load": None, "share": None, "model": None}),
    ]


def test_a_value_under_a_name_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="writes"):
        Table.from_samples(SCHEMA, 0, [Sample(1, {"writes": 1})])


@pytest.mark.parametrize(
    ("dtype", "packed", "value"),
    [
        ("i8", -1, None),
        ("i8", 0, 0),
        ("i8", -2, -2),
        ("i8", 2**63 - 1, 2**63 - 1),
        ("f8", np.nan, None),
        ("f8", -1.0, -1.0),
        ("f4", np.inf, np.inf),
        ("S4", b"", None),
        ("S4", b"ab", b"ab"),
    ],
)
def test_present_is_the_value_or_none_where_it_is_missing(dtype: str, packed: object, value: object) -> None:
    cell = np.array([packed], dtype=dtype)[0]
    found = present(Field("x", "none", "gauge", dtype=dtype), cell)
    assert found == value and type(found) is type(value)


def test_a_batch_counts_the_rows_of_all_its_tables() -> None:
    tables = tuple([Table(SCHEMA, 0, SCHEMA.empty_rows(n)) for n in (0, 2, 3)])
    assert Batch("n", 1, 2, 0, None, tables).row_count == 5


@pytest.mark.parametrize(
    ("name", "divisor"), [("nsec", 10**9), ("usec", 10**6), ("sec", 1), ("kbytes", 1 / 1024), ("bytes", 1)]
)
def test_a_divisor_for_prometheus_is_exact(name, divisor):
    assert UNITS[name].divisor == divisor


def test_units_without_a_base_unit_in_prometheus_stay_as_stored():
    assert {name for name, unit in UNITS.items() if unit.prometheus} == {"nsec", "usec", "sec", "kbytes"}
    assert UNITS["ujoules"].divisor == 1


def test_answers_have_shares_of_one_and_charts_per_cent():
    assert (UNITS["percent"].scale, UNITS["percent"].factor, UNITS["percent"].symbol) == (0.01, 1.0, "%")


def test_the_growth_of_energy_is_power_and_that_of_cpu_time_is_cores():
    assert UNITS["ujoules"].per_second().symbol == "W"
    assert UNITS["nsec"].per_second(cpu_time=True).symbol == "cores"
    assert UNITS["nsec"].per_second().symbol == "s/s"
    assert UNITS["kbytes"].per_second().scaled(3 << 20) == (1 << 20, "MiB/s"), "the same family as sizes"
