"""What sites rely on stays: options, columns of tables and of the archive, the JSON interface (docs/stability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import stable

FOLDER = Path(__file__).resolve().parents[1] / "data/stable"


@pytest.mark.parametrize("name", stable.LISTS)
def test_nothing_that_sites_rely_on_was_removed_or_changed(name):
    gone = sorted(stable.recorded(FOLDER, name) - set(stable.LISTS[name]()))
    assert not gone, (
        f"{FOLDER / name}.txt has entries that this tree lacks: {gone[:5]}. Names, units and types are stable: restore "
        "them, or keep the former one beside the new one and announce its end as docs/stability.md says. Only a next "
        "major version may remove the entry from the list."
    )


def test_a_removal_is_seen(tmp_path, monkeypatch):
    entries = sorted(stable.columns())
    (tmp_path / "columns.txt").write_text("# a comment\n\n" + "\n".join([*entries, "taskstats_default job gone none"]))
    monkeypatch.setattr("tests.project.test_stable.FOLDER", tmp_path)
    with pytest.raises(AssertionError, match=r"lacks: \['taskstats_default job gone none'\].*restore"):
        test_nothing_that_sites_rely_on_was_removed_or_changed("columns")
