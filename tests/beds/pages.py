"""What tests of the page have in common: its addresses, waiting until a view is shown, and what axe-core finds."""

from __future__ import annotations

import contextlib
import threading

from colmet.common.daemon.metrics_http import ListenAddress
from colmet.web.access import Access
from colmet.web.credentials import make_password
from colmet.web.server import WebServer
from colmet.web.stored_routes import Stored
from tests.support import web_facts
from tests.support.web_jobs import jobs_in

NAME = "<img src=x onerror=alert(1)>"
web_facts.USERS = (*web_facts.USERS, NAME)  # the job is that user's
JOB, NODE = web_facts.FIRST + 450, "node51"
VIEWS = {"jobs": "#/", "nodes": "#/nodes", "job": f"#/job/{JOB}", "node": f"#/node/{NODE}", "memory": "#/memory"}
CHARTS = "document.querySelectorAll('.chart').length >= 3 && !document.querySelector('.plot p')"
SERIOUS = ("serious", "critical")
PASSWORD = "a-word-that-passes"


@contextlib.contextmanager
def served(facts, users=None, **more):
    """The address of an interface."""
    server = WebServer(ListenAddress("127.0.0.1", 0), facts, Access(users), **more)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.stop()
        thread.join(20)


def members_in(folder):
    """The path of a file of logins: alice and zoe, and root, an administrator."""
    path = folder / "users"
    word = make_password(PASSWORD).text()
    path.write_text(f"alice:{word}\nzoe:{word}\nroot:{word}:admin\n")
    path.chmod(0o600)
    return str(path)


def with_archive(folder, nodes, jobs, ended, **options):
    """The address of an interface with an archive."""
    facts = web_facts.MadeUpFacts(nodes, jobs)
    return served(facts, stored=Stored(archive=jobs_in(folder / "archive.sqlite", facts, ended)), **options)


def shown(page, url, view="jobs"):
    """Go to a view, and wait until it is there."""
    page.open("about:blank")  # else only the hash changes, and what was shown before is there still
    page.open(url + VIEWS.get(view, view))
    page.wait("document.getElementById('main')?.dataset.shown && document.querySelector('tbody tr, .nodes li')")
    if view in ("job", "node"):
        page.wait(CHARTS)


def focused(page):
    """What has the focus, in words."""
    return page.run(
        "(e => [e.tagName.toLowerCase(), e.id || e.getAttribute('aria-label') || e.textContent.trim()].join(' '))"
        "(document.activeElement)"
    )


def findings(page, axe, rules="null"):
    """What axe-core finds that keeps people out."""
    if page.run("typeof axe") == "undefined":
        page.run(axe)
    found = page.run(
        f"axe.run(document, {{resultTypes: ['violations'], runOnly: {rules} || undefined}}).then(r => r.violations"
        ".map(v => ({impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 3)"
        ".map(n => [n.html.slice(0, 200), n.failureSummary.slice(0, 300)])})))"
    )
    return [
        f"{one['impact']}: {one['help']}: {html} {failure}"
        for one in found
        if one["impact"] in SERIOUS
        for html, failure in one["nodes"]
    ]


def choose(page, element, value):
    """Choose a value of a field, as its user does."""
    page.run(f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change', {{bubbles: true}})); }})({element})")


def texts(page, selector):
    return page.run(f"[...document.querySelectorAll({selector!r})].filter(e => e.offsetParent).map(e => e.textContent)")
