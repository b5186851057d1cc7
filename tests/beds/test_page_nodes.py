"""The views of nodes and of the health of the collector, in a real browser."""

from __future__ import annotations

import time

import pytest

from colmet.jobs.archive.queries import JobFilter
from colmet.web.health import health_answer
from colmet.web.stored_routes import Stored
from tests.beds.pages import PASSWORD, choose, served, shown, texts
from tests.support import web_facts
from tests.support.status_answers import COLLECTOR
from tests.support.web_health import NODE_7, health_of
from tests.support.web_jobs import jobs_in

pytestmark = pytest.mark.slow

CELLS = "[...document.querySelectorAll('.nodes a')]"


def field(label):
    return f"[...document.querySelectorAll('.tools label')].find(l => l.textContent.startsWith({label!r})).control"


def test_nodes_are_coloured_by_a_measure_to_choose(browser, site):
    with browser.page() as page:
        shown(page, site, "#/nodes")
        assert page.run("document.querySelectorAll('.nodes li').length") == 60
        assert texts(page, ".legend li")[0] == "idle: below 20 %"
        choose(page, field("Measure"), "temperature")
        assert texts(page, ".legend li")[4] == "hot: from 80 °C"
        assert "hottest sensor" in page.run(f"{CELLS}[3].getAttribute('aria-label')")
        assert "measure=temperature" in page.run("location.hash")
        choose(page, field("Measure"), "io")
        assert texts(page, ".legend li")[0].startswith("little: below ")
        assert page.complaints() == []


def test_nodes_are_ordered_by_value_with_silent_ones_last(browser):
    with served(web_facts.MadeUpFacts(120, 10)) as url, browser.page() as page:
        shown(page, url, "#/nodes?order=value")
        classes = page.run(f"{CELLS}.map(a => a.className.replace('cell ', ''))")
        levels = [int(one[1]) for one in classes if one.startswith("u")]
        assert levels == sorted(levels, reverse=True) and len(set(levels)) > 2
        assert classes[-1] == "silent"
        page.run("document.getElementById('search').value = 'node97'")
        page.run("document.getElementById('search').dispatchEvent(new Event('input'))")
        assert page.run(f"{CELLS}.map(a => a.title)") == ["node97: silent"]


def test_nodes_over_time_are_a_map_with_a_table_of_the_same(browser, site):
    with browser.page() as page:
        shown(page, site, "#/nodes")
        choose(page, field("Time"), "hour")
        page.wait(
            "document.querySelector('.map')?.offsetParent && document.querySelector('.map').ariaLabel.includes('mean')"
        )
        words = page.run("document.querySelector('.map').ariaLabel")
        assert words.startswith("CPU of 60 nodes over the last hour, by minute: mean ")
        assert page.run("document.querySelector('.nodes').offsetParent") is None
        page.run("[...document.querySelectorAll('details summary')].find(e => e.offsetParent).click()")
        page.wait("document.querySelectorAll('details[open] tbody tr').length === 60")
        assert texts(page, "details[open] thead th")[0].startswith("Node")
        assert page.run(seen("--u0", "--u4", "--bad")) == [True, True, False]
        map_text = "document.querySelector('.map').ariaValueText"
        page.run("document.querySelector('.map').focus()")
        assert page.run(map_text).startswith("node1, ")
        former = page.run(map_text)
        for key, expected in (
            ("ArrowDown", "node2, "),
            ("ArrowLeft", "node2, "),
            ("End", "node2, "),
            ("ArrowUp", "node1, "),
        ):
            page.press(key)
            assert page.run(map_text).startswith(expected)
        assert page.run(map_text) == former
        page.press("ArrowUp")
        assert page.run(map_text) == former, "there is no node above the first"
        page.run(pointed("mousemove"))
        about = "[...document.querySelectorAll('.about')].find(e => e.offsetParent).textContent"
        page.wait(f"/^node[0-9]+, .*: CPU /.test({about})")
        page.run(pointed("click"))
        page.wait("document.querySelector('h1').textContent.startsWith('Node node')")
        assert page.complaints() == []


def test_a_map_of_5000_nodes_over_a_day_has_each_of_them(browser):
    """480,000 values, of a measure whose colours follow the largest of all."""
    with served(web_facts.MadeUpFacts(5000, 50)) as url, browser.page() as page:
        page.open(f"{url}#/nodes?time=day&measure=io")
        page.wait("document.querySelector('.map')?.ariaLabel?.includes(' of 5,000 nodes ')", 90)
        words = page.run("document.querySelector('.map').ariaLabel")
        assert words.startswith("storage of 5,000 nodes over the last day, by quarter of an hour: mean ")
        limits = [float(one.split("from ")[1].split()[0]) for one in texts(page, ".legend li")[1:5]]
        assert limits == [40, 80, 120, 160], "fifths of 200 MiB/s, the largest value rounded up"
        assert page.run(seen("--u0", "--u2", "--u4")) == [True, True, True]
        tall = page.run("document.querySelector('.map').clientHeight")
        assert 5000 <= tall < 5100, "a pixel for each node, and the axis"
        about = "[...document.querySelectorAll('.about')].find(e => e.offsetParent).textContent"
        page.run("document.querySelector('.map').focus()")
        for _ in range(2):
            page.press("ArrowDown")
        page.wait(f"{about}.startsWith('node3, ')")
        page.run(
            "(e => { const b = e.getBoundingClientRect(); e.dispatchEvent(new MouseEvent('mousemove', {bubbles: true,"
            " clientX: b.right - 5, clientY: b.top + 7 + 4999.5})); })(document.querySelector('.map'))"
        )
        page.wait(f"{about}.startsWith('node5000, ')")
        assert page.complaints() == []


def pointed(kind):
    """An event of the mouse amid the map."""
    return (
        "(e => { const b = e.getBoundingClientRect(); e.dispatchEvent(new MouseEvent("
        f"{kind!r}, {{bubbles: true, clientX: b.left + b.width / 2, clientY: b.top + b.height / 2}})); }})"
        "(document.querySelector('.map'))"
    )


def seen(*names):
    """Whether colours of the page are among the map's pixels, amid of it."""
    return (
        "(names => { const m = document.querySelector('.map');"
        "const d = m.getContext('2d').getImageData(100, 0, m.width - 100, m.height - 30).data, found = new Set();"
        "for (let n = 0; n < d.length; n += 4) found.add(`${d[n]},${d[n + 1]},${d[n + 2]}`);"
        "const style = getComputedStyle(document.documentElement);"
        "return names.map(name => { const c = style.getPropertyValue(name).trim();"
        "return found.has([1, 3, 5].map(n => parseInt(c.slice(n, n + 2), 16)).join()); }); })"
        f"({list(names)!r})"
    )


def test_ordinary_users_see_no_health_and_no_times_of_other_nodes(browser, members):
    with served(web_facts.MadeUpFacts(20, 50), members) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        page.open(url + "#/nodes?time=hour")
        page.wait("document.querySelectorAll('.nodes li').length > 0")
        page.wait("document.getElementById('who').textContent === 'alice'")
        assert "Health" not in texts(page, "header nav a")
        assert texts(page, ".map") == []
        page.open(url + "#/health")
        page.wait("document.getElementById('notice')?.textContent.includes('for administrators')")
        page.wait("document.getElementById('state')?.textContent === 'Not found'")


def test_health_names_each_problem_with_its_remedy(browser, site):
    with browser.page() as page:
        page.open(f"{site}#/health")
        page.wait("document.querySelector('.verdict')?.textContent === 'Critical: 3 findings'")
        assert "Health" in texts(page, "header nav a")
        said = texts(page, ".findings li")
        assert said[0].startswith("Critical: elasticsearch away for 5 min: Connection refused")
        assert "journalctl -u colmet-collector -n 50 shows more" in said[0]
        assert texts(page, ".of-state.bad") == ["AWAY for 5 min"]
        assert "node7" in texts(page, "tbody th")
        assert page.complaints() == []


def test_a_collector_in_good_health_has_no_empty_tables(browser):
    facts = web_facts.MadeUpFacts(20, 50)
    facts.health = lambda: health_of([], 1e9, {**COLLECTOR, "connections": {"connections": 3, "let_in": 3}})
    with served(facts) as url, browser.page() as page:
        page.open(f"{url}#/health")
        page.wait("document.querySelector('.verdict')?.textContent === 'OK: 800 nodes heard'")
        assert texts(page, ".findings li") == []
        assert texts(page, "#main h2 + p")[:2] == ["No node is silent.", "No node's rows arrive more than 10 s late."]
        assert len(texts(page, "table")) == 1
        assert any(one.startswith("Keys are off") for one in texts(page, "#main h2 + p"))


def test_lists_of_the_health_name_the_number_of_all_nodes(browser):
    nodes = [{"node": f"node{n}", "silent": False, "lag": 30.0} for n in range(150)]
    spools = [{"node": f"node{n}", "waiting": 90, "dropped": 0, "acknowledged": 1} for n in range(140)]
    silent = [{**NODE_7, "name": f"node{n}"} for n in range(200)]
    senders = {**COLLECTOR["senders"], "silent": 3000, "worst": silent}
    events = {"dropped_rows": 5, "output_failures": 2, "jobs_without_rows": 4}
    facts = web_facts.MadeUpFacts(3, 3)
    facts.health = lambda: health_answer(
        {**COLLECTOR, "senders": senders, "last_hour": events}, 1.0, nodes, spools, time.time()
    )
    with served(facts) as url, browser.page() as page:
        page.open(f"{url}#/health")
        page.wait("document.querySelector('.verdict')?.textContent")
        rest = texts(page, "#main section > p.soft")
        assert rest == [
            "and 2,980 more: colmet status collector --all",
            "and 130 more: colmet status collector --all",
            "and 120 more",
        ]
        rows = {
            title: page.run(
                f"[...document.querySelectorAll('[aria-labelledby={title}] tbody tr')].map(e => e.innerText.trim())"
            )
            for title in ("drops-title", "events-title")
        }
        assert [one.split("\t") for one in rows["drops-title"]] == [["dropped rows", "5"]]
        assert [one.split("\t")[0] for one in rows["events-title"]] == [
            "jobs without rows (harmless)",
            "output failures",
        ]


def test_events_that_are_no_drops_are_not_called_drops(browser):
    facts = web_facts.MadeUpFacts(3, 3)
    facts.health = lambda: health_of([], 1e9, {**COLLECTOR, "last_hour": {"jobs_without_rows": 4}})
    with served(facts) as url, browser.page() as page:
        page.open(f"{url}#/health")
        page.wait("document.querySelector('.verdict')?.textContent.startsWith('OK')")
        assert "Nothing was dropped or refused in the last hour." in texts(page, "#main h2 + p")


CHART = "document.querySelector('figure[aria-label=\"%s\"]')"


def test_the_cpu_modes_of_a_node_make_all_of_its_cpus(browser, site):
    with browser.page() as page:
        shown(page, site, "#/node/node3")
        page.wait(f"{CHART % 'CPU cores'}?.querySelector('canvas')")
        names = page.run(f"[...{CHART % 'CPU cores'}.querySelectorAll('.lines li span')].map(e => e.textContent)")
        assert names == [
            *("user", "system", "interrupts", "low priority", "waiting for storage", "hypervisor", "idle"),
            "all CPUs (limit)",
        ]
        page.run(f"{CHART % 'CPU cores'}.querySelector('details summary').click()")
        page.wait(f"{CHART % 'CPU cores'}.querySelectorAll('.values tbody tr').length > 9")
        rows = page.run(
            f"[...{CHART % 'CPU cores'}.querySelectorAll('.values tbody tr')]"
            ".map(tr => [...tr.cells].slice(1).map(td => Number(td.textContent)))"
        )
        whole = [row for row in rows if row[0] is not None]
        assert len(whole) > 9
        for *parts, cpus in whole:
            assert cpus == web_facts.CPUS and abs(sum(parts) - cpus) < 0.5


def test_a_cpu_mode_has_its_colour_also_where_others_are_not_drawn(browser, monkeypatch):
    colours = (
        f"Object.fromEntries([...{CHART % 'CPU cores'}.querySelectorAll('.lines li')]"
        ".map(e => [e.children[1].textContent, e.querySelector('svg').classList[1]]))"
    )
    found = []
    for unused in ((), ("nice", "iowait")):
        for state in unused:
            monkeypatch.setitem(web_facts.BUSY, state, 0.0)
        with served(web_facts.MadeUpFacts(3, 3)) as url, browser.page() as page:
            shown(page, url, "#/node/node1")
            page.wait(f"{colours}.idle === 'idle'")
            found.append(page.run(colours))
    assert set(found[0]) - set(found[1]) == {"low priority", "waiting for storage"}
    assert all(found[0][name] == colour for name, colour in found[1].items())


@pytest.mark.parametrize("dark", [False, True])
def test_a_limit_has_a_dash_pattern_and_a_colour_that_no_measured_line_has(chromium, dark):
    with chromium.page(dark=dark) as page, served(web_facts.MadeUpFacts(3, 3)) as url:
        shown(page, url, "#/node/node1")
        limits, lines = page.run(
            "import('/static/layers.js').then(m => {"
            "const limits = m.looks([1, 2].map(n => ({name: `l${n}`, role: 'limit'})));"
            "const lines = m.looks([1, 2, 3, 4, 5, 6].map(n => ({name: `m${n}`})));"
            "const all = [...lines, ...m.looks([{name: 'p', role: 'part'}, {name: 'used'}]),"
            "  ...m.looks([{name: 'a'}, {name: 'b', role: 'other', like: 'a'}])];"
            "const form = list => list.map(l => [l.dash, m.ink(`--${l.colour}`)]); return [form(limits), form(all)]; })"
        )
        # a dash and a dot: lengths that differ
        assert all(len(set(dash[::2])) == 2 for dash, _ in limits) and limits[0][0] != limits[1][0]
        assert all(len(set(dash[::2])) < 2 for dash, _ in lines)
        coloured = {colour for _, colour in lines[:6]}
        assert len(coloured) == 6 and limits[0][1] not in coloured


@pytest.mark.parametrize("span", ["900", "86400", "604800"])
def test_the_charts_of_a_node_and_its_time_line_have_one_range(browser, site, span):
    facts_since = int(time.time())
    with browser.page() as page:
        shown(page, site, f"#/node/node3?range={span}")
        page.wait("document.querySelector('.lanes').ariaLabel.includes(' from ')")
        lanes = "document.querySelector('.lanes').ariaLabel"
        ends = (
            "[...new Set([...document.querySelectorAll('.plot')].filter(e => e.offsetParent)"
            ".map(e => `${e.ariaValueMin} ${e.ariaValueMax}`))]"
        )
        page.wait(f"{ends}.length === 1 && {ends}[0] !== 'null null'")
        (both,) = page.run(ends)
        since, until = map(int, both.split())
        assert until - since == int(span) and abs(until - facts_since) < 60
        expected = f"import('/static/units.js').then(u => `from ${{u.when({since})}} to ${{u.when({until})}}`)"
        assert page.run(lanes).endswith(page.run(expected))


BARS = "[...document.querySelectorAll('.lanes a')]"


def test_a_nodes_jobs_are_bars_on_a_time_line(browser, tmp_path):
    facts = web_facts.MadeUpFacts(8, 40)
    opener = jobs_in(tmp_path / "archive.sqlite", facts, 300)
    with opener() as archive:
        where = JobFilter(hosts=("node3",), since=time.time() - 7 * 86400)
        stored = archive.jobs(where, ("job", "state"), "start", True, 0, 200)
    ended = [row["job"] for row in stored.rows if row["state"] != "running"]
    assert ended, "else this test shows nothing"
    with served(facts, stored=Stored(archive=opener)) as url, browser.page() as page:
        page.open(f"{url}#/node/node3?range=604800")
        page.wait(f"{BARS}.length >= {len(facts.at['node3']) + len(ended)}")
        words = page.run(f"{BARS}.map(a => a.ariaLabel)")
        for job in facts.at["node3"]:
            assert len([one for one in words if f"Job {job}," in one and "running" in one]) == 1
        assert sum([" from " in one and " to " in one for one in words]) == len(ended)
        places = page.run(f"{BARS}.map(a => a.getBoundingClientRect().toJSON())")
        box = page.run("document.querySelector('.lanes').getBoundingClientRect().toJSON()")
        for n, one in enumerate(places):
            assert box["left"] - 1 <= one["left"] and one["bottom"] <= box["bottom"] + 1
            for other in places[:n]:
                apart = one["left"] >= other["right"] - 6 or other["left"] >= one["right"] - 6  # the least width is 5
                assert apart or one["top"] != other["top"], "bars of one lane do not overlap"
        assert texts(page, ".axis span")
        assert page.complaints() == []
        page.run(f"{BARS}.find(a => a.dataset.state !== 'running').click()")
        page.wait("document.querySelector('h1').textContent.startsWith('Job ')")


def test_without_an_archive_the_time_line_has_the_jobs_that_run(browser, site):
    with browser.page() as page:
        shown(page, site, "#/node/node3")
        page.wait(f"{BARS}.length > 0")
        assert all("cores here, since " in one for one in page.run(f"{BARS}.map(a => a.title)"))
        assert "keeps no archive" in page.run("document.querySelector('.timeline p').textContent")


def test_a_node_has_no_empty_card_and_says_what_was_not_measured(browser, site):
    with browser.page() as page:
        shown(page, site, "node")
        assert page.run("[...document.querySelectorAll('.chart')].filter(e => !e.querySelector('canvas')).length") == 0
        assert any(
            one.startswith("Not measured: ") and "Power (off by default, --enable-ipmipower" in one
            for one in texts(page, "#main p")
        )
        assert page.run("document.querySelector('.plot').ariaLabel").startswith("CPU cores")
