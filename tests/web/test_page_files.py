"""The files of the page that the JSON interface serves; what they do in a browser is tested in beds/test_page.py."""

from __future__ import annotations

import gzip
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from colmet.common.measures import NODE_CPU
from colmet.jobs.archive.queries import SORTS
from colmet.jobs.columns import RUNNING, STATES
from colmet.web.catalogue import measures_answer
from colmet.web.stored_models import SHOWN

STATIC = Path(__file__).resolve().parents[2] / "colmet/web/static"
VENDOR = STATIC / "vendor/uplot"
OWN = sorted(path for path in STATIC.iterdir() if path.is_file())
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
MOST_BYTES = 200_000  # of all of it but uPlot, as it is sent
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*"(\./[^"]+)\"""")


class Elements(HTMLParser):
    """The elements of a page, and their text."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style"):
            assert not data.strip(), f"text within <{self.found[-1][0]}>: the policy forbids it"


def test_the_page_holds_no_script_and_no_style_of_its_own():
    for tag, attributes in Elements((STATIC / "index.html").read_text()).found:
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_only_files_that_there_are(path):
    assert [name for name in IMPORT.findall(path.read_text()) if not (STATIC / name).is_file()] == []


@pytest.mark.parametrize("name", ["job.js", "node.js"])
def test_the_page_draws_measures_that_the_collector_declares(name):
    drawn = re.findall(r'\b(line|sum)\("[^"]*", "(\w+)"', (STATIC / name).read_text())
    declared = measures_answer()
    assert len(drawn) > 10
    assert [key for how, key in drawn if key not in declared["measures" if how == "line" else "sums"]] == []


def test_the_parts_of_a_nodes_cpus_make_the_whole():
    """All states of /proc/stat; those of guests are parts of user and of low priority."""
    text = (STATIC / "node.js").read_text()
    parts = re.findall(r'\b(line|sum)\("[^"]*", "(node_cpu_\w+)", (?:PART|\{ \.\.\.PART)', text)
    sums = measures_answer()["sums"]
    keys = [one for how, key in parts for one in ([part["measure"] for part in sums[key]] if how == "sum" else [key])]
    states = {measure.key for state, measure in NODE_CPU.items() if not state.startswith("guest")}
    assert sorted(keys) == sorted(states)


def test_the_page_lists_and_sorts_by_values_of_the_archive():
    text = (STATIC / "archived.js").read_text()
    values = re.findall(r'"(\w+)"', re.search(r"export const VALUES = \[(.*?)\]", text, re.DOTALL)[1])
    assert len(values) > 15 and set(values) <= set(SHOWN)
    columns = re.findall(r'^  (?:column|linked|graded|shared)\("(\w+)"', text, re.MULTILINE)
    assert len(columns) > 10
    assert set(columns) - {"footprint"} <= set(SORTS), "the charts alone do not sort"


def test_the_page_offers_the_states_of_the_archive():
    offered = re.search(r"export const STATES = \[(.*?)\n\];", (STATIC / "archived.js").read_text(), re.DOTALL)[1]
    values = re.findall(r'^  \["([^"]*)",', offered, re.MULTILINE)
    assert sorted(values) == sorted(["", *STATES, ",".join(one for one in STATES if one != RUNNING)])


def test_every_script_is_used():
    text = "".join(path.read_text() for path in (STATIC / "index.html", STATIC / "login.html", *SCRIPTS))
    assert [path.name for path in SCRIPTS if not re.search(rf'["/]{re.escape(path.name)}"', text)] == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_file_names_no_other_site(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name that nobody asks
    assert re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+", re.sub(r"(?m)^\s*//.*$", "", text)) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_text(path):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|Function\("
    )
    assert re.findall(forbidden, path.read_text()) == []


def test_the_page_is_small():
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in OWN) < MOST_BYTES


def test_uplot_is_as_its_makers_published_it():
    sums = dict(re.findall(r"SHA-256 of `([^`]+)` \| `([0-9a-f]{64})`", (VENDOR / "README.md").read_text()))
    assert set(sums) == {"uPlot.esm.js", "uPlot.min.css"}
    for name, expected in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected
    assert "MIT License" in (VENDOR / "LICENSE").read_text()
