"""The frame of the page, in a real browser: views, the time zone, the sign-out, keys."""

from __future__ import annotations

import contextlib

from tests.beds.pages import PASSWORD, choose, focused, served, shown, texts
from tests.support import web_facts
from tests.support.waiting import wait_for

ZONE = "document.getElementById('zone')"


def heading(page):
    """The heading; None while the browser goes elsewhere."""
    with contextlib.suppress(AssertionError):
        return page.run("document.querySelector('h1')?.textContent")
    return None


def marked(page):
    links = "[...document.querySelectorAll('header nav [aria-current]')]"
    return page.run(f"{links}.map(e => [e.textContent, e.ariaCurrent])")


def test_the_present_view_is_marked(browser, site):
    with browser.page() as page:
        for address, expected in (
            ("#/", [["Jobs", "page"]]),
            ("#/nodes", [["Nodes", "page"]]),
            ("#/node/node1", [["Nodes", "true"]]),
            (f"#/job/{web_facts.FIRST}", [["Jobs", "true"]]),
            ("#/memory", [["Memory", "page"]]),
        ):
            shown(page, site, address)
            assert marked(page) == expected
        assert page.complaints() == []


def test_all_times_are_of_one_named_zone_which_is_remembered(browser, site):
    words = "import('/static/units.js').then(u => [u.when(1e9), u.when(1e9 + 1, 1e12), u.day(1e12), u.clock(1e12)])"
    with browser.page() as page:
        page.time_zone("Asia/Dubai")
        shown(page, site)
        page.wait(f"{ZONE}.options.length === 2")
        assert texts(page, "#zone")[0].startswith("Asia/Dubai (UTC+4)")
        assert page.run(words) == ["2001-09-09 05:46:40", "05:46:41", "2001-09-09", "05:46:40"]
        choose(page, ZONE, page.run(f"{ZONE}.options[1].value"))
        page.wait("document.getElementById('state').textContent.startsWith('Live')")
        assert page.run(words) == ["2001-09-09 01:46:40", "01:46:41", "2001-09-09", "01:46:40"]
        shown(page, site, "#/nodes")
        page.wait(f"{ZONE}.options.length === 2")
        assert page.run(f"{ZONE}.selectedOptions[0].textContent").startswith("UTC")
        assert page.run(words)[0] == "2001-09-09 01:46:40"
        assert page.complaints() == []


def test_titles_have_the_chosen_zone_and_name_it(browser, site):
    with browser.page() as page:
        page.time_zone("Asia/Dubai")
        shown(page, site, f"#/job/{web_facts.FIRST}")
        words = "import('/static/units.js').then(u => [u.moment(1e9), u.moment(null), u.moment(1e300)])"
        assert page.run(words) == ["2001-09-09 05:46:40 UTC+4", None, None]
        named = "[...document.querySelectorAll('#main [title]')].map(e => e.title).filter(t => /\\d:\\d\\d/.test(t))"
        page.wait(f"{named}.some(t => t.endsWith(' UTC+4'))")
        assert [one for one in page.run(named) if "Z" in one] == []


def test_the_full_report_has_the_zone_of_the_page(browser, archived):
    link = "[...document.querySelectorAll('a')].find(a => a.textContent === 'Full report')"
    with browser.page() as page:
        page.time_zone("Asia/Dubai")
        shown(page, archived, f"#/job/{web_facts.FIRST}")
        page.wait(f"{link}?.href.includes('zone=Asia%2FDubai')")
        choose(page, ZONE, page.run(f"[...{ZONE}.options].find(o => o.textContent.startsWith('UTC')).value"))
        page.wait(f"/zone=(Etc%2F)?UTC$/.test({link}?.href)")  # the browser's name of it, or the head node's


def test_a_zone_that_is_the_browsers_and_the_head_nodes_is_offered_once(browser, site):
    with browser.page() as page:
        page.time_zone("UTC")
        shown(page, site)
        page.wait("document.getElementById('who').textContent === 'open to all'")
        assert page.run(f"[...{ZONE}.options].map(o => o.textContent)") == ["UTC"]


def test_the_keys_are_listed(browser, site):
    with browser.page() as page:
        shown(page, site)
        page.press("?")
        page.wait("document.querySelector('dialog').open")
        assert "search" in page.run("document.querySelector('dialog').textContent")
        page.press("/")
        assert page.run("document.querySelector('dialog').open"), "a key of the page behind it has no effect"
        page.press("Escape")
        page.wait("!document.querySelector('dialog').open")
        page.run("document.getElementById('help').click()")
        page.wait("document.querySelector('dialog').open")
        assert focused(page) == "button Close"
        page.press("Enter")
        page.wait("!document.querySelector('dialog').open")
        assert page.complaints() == []


def test_a_sign_out_ends_the_login(browser, members):
    asked = (
        "fetch(location.origin + '/api/v1/whoami', {signal: AbortSignal.timeout(2000)})"
        ".then(a => a.json()).then(a => a.user, e => e.name)"
    )
    with served(web_facts.MadeUpFacts(20, 50), members) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        page.open(url)
        page.wait("document.getElementById('who')?.textContent === 'alice'")
        assert page.run(asked) == "alice"
        assert texts(page, "header nav a")[0] == "My jobs"
        page.run("document.getElementById('sign-out').click()")
        wait_for(lambda: page.run("location.pathname") == "/login")
        assert page.run(asked) is None
        page.open(f"{url}#/nodes")
        wait_for(lambda: page.run("location.pathname + location.hash") == "/login#/nodes")
        page.wait("document.activeElement.name === 'name'")
        page.type("root")
        page.press("Tab")
        page.type("wrong")
        page.press("Enter")
        page.wait("document.querySelector('[role=alert]').textContent.startsWith('This name')")
        assert page.run("document.forms[0].elements.namedItem('name').value") == "root"
        page.run("document.forms[0].elements.namedItem('password').focus()")
        page.type(PASSWORD)
        page.press("Enter")
        page.wait("document.getElementById('who')?.textContent === 'root (sees all jobs)'")


def test_without_a_login_there_is_no_sign_out(browser, site):
    with browser.page() as page:
        shown(page, site)
        page.wait("document.getElementById('who').textContent === 'open to all'")
        assert texts(page, "#sign-out") == []
