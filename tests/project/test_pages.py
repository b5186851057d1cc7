"""The pages: links, headings, navigation and diagrams, as a code host and the built site show them."""

from __future__ import annotations

import re
import runpy
import unicodedata
from pathlib import Path

import pytest

from dev.diagrams import digest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks/README.md"])


def prose(path):
    """The text of a page without blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(path):
    """Targets of the page's links and pictures that are not addresses on the web."""
    targets = re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path)))
    return [target for target in targets if not re.match(r"https?:|mailto:", target)]


def anchors(path):
    """Anchors of the page's headings, as far as code hosts and the site make the same ones."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.M):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
        host = plain.replace(" ", "-")
        site = unicodedata.normalize("NFKD", re.sub(r"[-\s]+", "-", plain)).encode("ascii", "ignore").decode()
        if host == site:
            found.add(host)
    return found


def broken(path, target):
    """Why this link of a page does not work, or None."""
    name, _, anchor = target.partition("#")
    goal = (path.parent / name).resolve() if name else path
    if not goal.is_file():
        return f"{target}: no such file"
    if path.is_relative_to(DOCS) and not goal.is_relative_to(DOCS):
        return f"{target}: the site has pages below docs/ only"
    if anchor and anchor not in anchors(goal):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading(path):
    assert [why for target in links(path) if (why := broken(path, target))] == []


@pytest.mark.parametrize("target", ["gone.md", "link.md#gone", "../README.md", "inputs"])
def test_a_dead_link_is_found(target):
    assert broken(DOCS / "wire.md", target)


def test_a_path_in_the_source_names_a_page_that_exists():
    sources = [path for folder in ("colmet", "packaging", "benchmarks", "dev") for path in (ROOT / folder).rglob("*")]
    named = {
        (path, page)
        for path in sources
        if path.suffix in (".py", ".service", ".socket", ".toml", ".conf", ".rules", ".h", ".c", ".js", ".md", "")
        and path.is_file()
        for page in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text(encoding="utf-8", errors="replace"))
    }
    assert len(named) > 10
    assert sorted(f"{path}: {page}" for path, page in named if not (ROOT / page).is_file()) == []


def test_the_navigation_of_the_site_has_each_page_once():
    navigation = runpy.run_path(str(ROOT / "dev/site/conf.py"))["NAVIGATION"]
    named = ["index", *(page for _, pages in navigation for page in pages)]
    assert sorted(named) == sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))


def test_each_page_has_one_title_and_no_level_is_skipped():
    for path in sorted(DOCS.rglob("*.md")):
        levels = [len(marks) for marks in re.findall(r"^(#+) ", prose(path), re.M)]
        assert levels[0] == 1 and levels.count(1) == 1, path
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), path


def test_each_diagram_is_rendered_from_its_source():
    sources = sorted(DOCS.rglob("*.dot"))
    assert sources
    for source in sources:
        svg = source.with_suffix(".svg").read_text(encoding="utf-8")
        assert svg.endswith(digest(source.read_text(encoding="utf-8")) + "\n"), f"{source}: run `make diagrams`"


def test_the_paths_that_pages_name_exist():
    folders = "colmet|dev|docs|packaging|scripts|benchmarks|tests"
    named = {
        (path, name)
        for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert sorted(f"{path.name}: {name}" for path, name in named if not (ROOT / name).exists()) == []


def test_the_architecture_names_every_package():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "colmet").glob("*/__init__.py")]
    assert [name for name in packages if f"| `colmet/{name}/` |" not in text] == []
