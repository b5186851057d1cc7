"""docs/metrics.md says what the schemas say."""

from __future__ import annotations

from pathlib import Path

from colmet.common.daemon.startup import load
from colmet.common.tables import column_types, is_declared, misfits, schemas
from colmet.common.wire import colmet06, colmet_rs
from colmet.node.backends import NAMES
from dev.metrics import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/metrics.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(load(NAMES)), "run `make docs`"


def test_the_catalogue_knows_what_this_version_and_older_nodes_send():
    older = [record.schema for record in colmet06.RECORDS.values()] + list(colmet_rs.SCHEMAS.values())
    for schema in (*schemas().values(), *older):
        types = column_types(schema.name)
        assert [types[field.name] for field in schema.fields] == [field.dtype for field in schema.fields]
        assert not misfits(schema) and not schema.undeclared
    assert not is_declared("site_default") and not column_types("site_default")


def test_each_backend_measures_tables_of_the_catalogue_and_each_of_these_is_sent():
    measured = [schema for cls in load(NAMES) for schema in (cls.schema, *cls.others)]
    assert all(schemas()[schema.name] is schema for schema in measured)
    others = {"mapping_default", "agent_default", "completeness_default", "gaps_default"}
    others |= {name for name in schemas() if name.startswith("facility_")}
    assert set(schemas()) == {schema.name for schema in measured} | others
