"""The trees of other machines that tests measure."""

from __future__ import annotations

import pytest

from tests.support.machine import TREES


@pytest.mark.parametrize("name", sorted(path.stem for path in TREES.glob("*.txt")))
def test_a_tree_says_where_it_is_from_and_all_its_links_lead_somewhere(fake, name):
    assert (TREES / f"{name}.txt").read_text().startswith("# ")
    fake.tree(name)
    dangling = [path for path in fake.path.rglob("*") if path.is_symlink() and not path.exists()]
    assert not dangling
