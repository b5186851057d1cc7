"""docs/tutorial.md, run to the letter by a shell in a temporary root directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.run_page import blocks_of, run_blocks
from tests.support.page_folder import page_folder

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(root):
    with page_folder() as path:
        yield path


@pytest.mark.slow
@pytest.mark.live
def test_each_command_of_the_tutorial_prints_what_the_page_shows(folder):
    outputs = {block.commands: output for block, output in run_blocks(blocks_of(PAGE), folder)}
    assert len(outputs) > 15
    # digits may differ, but not these two: nothing is missing after the kill of the collector
    expected, stored = re.search(r": (\d+) of (\d+), 0 missing", outputs["colmet completeness -j 4242\n"]).groups()
    assert expected == stored and int(stored) > 10
    (rows,) = [output for commands, output in outputs.items() if commands.endswith("python read.py\n")]
    assert len(rows.splitlines()) == 2, "the outage was not within the job"
