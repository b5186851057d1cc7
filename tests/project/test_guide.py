"""docs/guide.md explains the words of the report: each heading, verdict, grade, ending and rule of advice."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from colmet.common.text import percent
from colmet.jobs.advice import RULES
from colmet.jobs.grades import THRESHOLDS
from colmet.jobs.report import ending
from colmet.jobs.report.requested import WORDS
from colmet.jobs.report.text import Page

PAGE = (Path(__file__).parents[2] / "docs/guide.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r'"([\w/]+)": self\._\w+', inspect.getsource(Page.sections))


def rows(heading):
    """The cells of the first table below a heading."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)[0]
    return [[cell.strip() for cell in re.split(r" ?\|", line)[1:-1]] for line in table.splitlines()[2:]]


def test_each_rule_of_advice_is_explained_once_in_the_order_of_the_code():
    assert [cells[0] for cells in rows("Advice")] == [f"`{rule.name}`" for rule in RULES]


def test_each_heading_of_the_report_is_explained():
    assert len(HEADINGS) >= 10
    explained = [cells[0] for cells in rows("Words of the report")]
    assert [name for name in (*HEADINGS, "Job", "Host", "Advice") if name not in explained] == []


def test_each_grade_has_its_thresholds():
    by_word = {cells[0]: cells[1:] for cells in rows("Was my job efficient?")}
    assert list(THRESHOLDS) == list(WORDS)
    for column, (good, low) in enumerate(THRESHOLDS.values()):
        assert by_word["*good*"][column] == f"from {percent(good)}"
        assert by_word["*low*"][column] == f"from {percent(low)}"
    assert set(by_word) == {"*good*", "*low*", "*poor*", "*exceeded*"}


@pytest.mark.parametrize("word", WORDS.values())
def test_each_part_of_the_verdict_is_explained(word):
    assert f"*{word}*" in PAGE


def test_each_ending_is_explained():
    """By the first words of its sentence."""
    begun = set(re.findall(r'Ending\(\s*[\w.]+,\s*f?"([A-Z][\w ]*)', inspect.getsource(ending)))
    explained = " ".join(cells[0] for cells in rows("Why was it killed?"))
    assert len(begun) >= 7
    assert sorted(words for words in begun if words.strip() not in explained) == []
