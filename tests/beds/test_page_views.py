"""Every view of the page: axe-core in light and dark at two widths, the console, the accessibility tree."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.beds.pages import CHARTS, JOB, NODE, PASSWORD, findings, members_in, served
from tests.support import web_facts
from tests.support.web_jobs import jobs_in
from tests.support.web_past import GONE, PAST, Past
from tests.support.web_store import stored_of

PICTURES = os.environ.get("COLMET_PICTURES", "")  # a folder for pictures of every view, to be looked at
WIDTHS = {1280: False, 390: True}
NAMED = (
    "button",
    "link",
    "textbox",
    "searchbox",
    "spinbutton",
    "combobox",
    "checkbox",
    "slider",
    "img",
    "image",
    "table",
)
ARCHIVED = "document.querySelectorAll('.charts .plot canvas').length >= 2"


class View(NamedTuple):
    """What is opened.

    Attributes:
        site: whose address.
        user: who signs in.
        address: of the view.
        heading: its first.
        there: an expression, true as soon as all is there.
    """

    site: str
    user: str
    address: str
    heading: str
    there: str


VIEWS = {
    "jobs": View("live", "root", "#/?user=alice", "Jobs", "document.querySelector('.rows tr')"),
    "my jobs": View("past", "alice", "#/", "My jobs", "document.querySelectorAll('.rows tr').length === 3"),
    "job running": View("live", "root", f"#/job/{JOB}", f"Job {JOB}", CHARTS),
    "job ended": View("past", "alice", f"#/job/{PAST}", f"Job {PAST}", CHARTS),
    "job of the archive alone": View("past", "alice", f"#/job/{GONE}", f"Job {GONE}", ARCHIVED),
    "nodes": View("live", "root", "#/nodes", "Nodes", "document.querySelector('.nodes li')"),
    "nodes over time": View("live", "root", "#/nodes?time=hour", "Nodes", "document.querySelector('.map')"),
    "node": View("live", "root", f"#/node/{NODE}", f"Node {NODE}", CHARTS),
    "usage": View("live", "root", "#/usage?span=90d", "Usage", "document.querySelector('tbody tr')"),
    "health": View("live", "root", "#/health", "Health", "document.querySelector('.verdict')"),
    "memory": View(
        "live", "root", "#/memory?jobs=yes&text=node51", "Memory by host", "document.querySelector('tbody tr')"
    ),
}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """A cluster whose jobs run, and one whose jobs are of yesterday; for an ordinary user and an administrator."""
    folder = tmp_path_factory.mktemp("sites")
    users = members_in(folder)
    past = Past(folder)
    facts = web_facts.MadeUpFacts(60, 480)
    stored = stored_of(facts)._replace(archive=jobs_in(folder / "live.sqlite", facts, 100))
    with served(past.queries, users, stored=past.stored) as then, served(facts, users, stored=stored) as live:
        yield {"past": then, "live": live}


def opened(page, sites, name):
    """The view, and wait until all of it is there; return its site."""
    view = VIEWS[name]
    page.sign_in(sites[view.site], view.user, PASSWORD)
    page.open(sites[view.site] + view.address)
    page.wait("document.getElementById('main')?.dataset.shown")
    page.wait(view.there)
    page.wait(f"document.querySelector('h1')?.textContent === {view.heading!r}")
    return sites[view.site]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_keeps_nobody_out_fits_its_width_and_says_nothing_to_the_console(browser, sites, axe, name):
    with browser.page() as page:
        site = opened(page, sites, name)
        for width, phone in WIDTHS.items():
            page.resize(width, 900, phone)
            page.wait(f"innerWidth === {width}")
            for dark in (False, True):
                page.colours(dark)
                page.wait(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
                # the colours alone differ in the dark
                assert findings(page, axe, "['color-contrast']" if dark else "null") == []
                assert page.run("document.documentElement.scrollWidth") <= width
                if PICTURES:
                    colours = "dark" if dark else "light"
                    file = Path(
                        PICTURES, f"{type(browser).__name__.lower()} {name} {width} {colours}.png".replace(" ", "-")
                    )
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(page.picture(True))
        assert page.complaints() == []
        asked = [re.sub("//root:[^@]*@|//alice:[^@]*@", "//", url) for url in page.requests()]
        others = [url for url in asked if not url.startswith((site, "about:blank", "data:", "blob:"))]
        assert others == []


def value(node, key):
    return node.get(key, {}).get("value", "")


@pytest.mark.parametrize("name", VIEWS)
def test_a_screen_reader_gets_headings_in_order_tables_with_captions_and_names(chromium, sites, name):
    """Of the accessibility tree that Chromium gives to screen readers."""
    with chromium.page() as page:
        opened(page, sites, name)
        nodes = page.tree()
        roles = [value(node, "role") for node in nodes]
        levels = [
            (next(one["value"]["value"] for one in node["properties"] if one["name"] == "level"), value(node, "name"))
            for node in nodes
            if value(node, "role") == "heading"
        ]
        assert levels[0] == (1, VIEWS[name].heading)
        assert [level for level, _ in levels].count(1) == 1
        assert all(after <= before + 1 for (before, _), (after, _) in zip(levels, levels[1:])), levels
        assert "" not in [text for _, text in levels]
        nameless = [
            value(node, "role") for node in nodes if value(node, "role") in NAMED and not value(node, "name").strip()
        ]
        assert nameless == []
        tables = [value(node, "name") for node in nodes if value(node, "role") == "table"]
        assert len(tables) == len(set(tables)), f"two tables have one name: {tables}"
        assert roles.count("main") == roles.count("banner") == 1 and "navigation" in roles
        assert roles.count("columnheader") > 0 or not tables
