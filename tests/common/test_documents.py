"""A program names a page where this machine has it."""

from __future__ import annotations

from colmet.common import text as installation


def test_a_page_is_named_where_the_packages_have_it_and_else_in_the_source(tmp_path, monkeypatch):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/notices.md").touch()
    monkeypatch.setattr(installation, "DIRECTORIES", ("/nonexistent", str(tmp_path)))
    assert installation.document("tools/notices.md") == f"{tmp_path}/tools/notices.md"
    assert installation.document("keys.md") == "docs/keys.md of Colmet's source"
