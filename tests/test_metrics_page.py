"""docs/metrics.md says what the schemas say."""

from __future__ import annotations

from pathlib import Path

from colmet.common.cli import load
from colmet.node.backends import NAMES
from colmet.tools.metrics import page

PAGE = Path(__file__).resolve().parents[1] / "docs/metrics.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(load(NAMES)), "run `make docs`"


def test_every_table_and_column_is_on_it_once():
    text = PAGE.read_text(encoding="utf-8")
    for cls in load(NAMES):
        for schema in (cls.schema, *cls.others):
            part = text.split(f"\n## {schema.name}\n")[1].split("\n## ")[0]
            for field in schema.fields:
                assert part.count(f"| `{field.name}` |") == 1
                assert field.help.partition("Source: ")[2]
