"""What the page costs: bytes on the wire, time until it is painted, work for an interaction; in Chromium.

The work is the CPU time of the page's main thread, as the browser counts it, so that other processes do not lengthen
it. It is divided by that of a fixed work in the same browser, so that a slow machine does not, either; the fixed work
repeats within 3 % at a load of 24 on two CPUs. Of several tries the best was disturbed least. A clock is used for the
first paint alone, which is three times faster than its limit.
"""

from __future__ import annotations

import http.client

import pytest

from colmet.web.files import FOLDER as STATIC
from tests.beds.pages import VIEWS, shown

MOST_BYTES = 300_000
PAINTED_MS, INTERACTION_MS = 1000, 100
FIXED_MS = 170  # CPU time of `fixed_work` where these limits are meant
TRIES = 5
# a table of 10,000 cells, laid out
FIXED = """(() => {
    const table = document.createElement("table");
    for (let r = 0; r < 1000; r += 1) {
        const row = table.insertRow();
        for (let c = 0; c < 10; c += 1) row.insertCell().textContent = `cell ${r} ${c}`;
    }
    document.body.append(table);
    return table.offsetHeight;
})()"""
PAINT = "performance.getEntriesByName('first-contentful-paint')"
ANSWERS = "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/') && e.responseEnd).length"


def busy_ms(page):
    """CPU time of the page's main thread."""
    page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")  # after the paint
    return 1000 * {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}["TaskDuration"]


@pytest.fixture
def page(chromium):
    """A page whose work is counted; its `pace` is 1 where the limits are meant, 2 on a machine half as fast."""
    with chromium.page() as one:
        one.call("Performance.enable", timeDomain="threadTicks")
        took = []
        for _ in range(3):
            one.open("about:blank")
            before = busy_ms(one)
            one.run(FIXED)
            took.append(busy_ms(one) - before)
        one.pace = min(took) / FIXED_MS
        print(f"the fixed work needed {min(took):.0f} ms")
        yield one


def of_interaction(page, act):
    """CPU time of the main thread for an input, and for the answers that follow: the least of some."""
    took = []
    for number in range(TRIES):
        before, answers = busy_ms(page), page.run(ANSWERS)
        act(number)
        page.wait(f"{ANSWERS} > {answers}")
        took.append(busy_ms(page) - before)
        page.wait("document.getElementById('main').dataset.shown")
    print(f"interaction {[round(ms) for ms in took]} ms of CPU, pace {page.pace:.2f}")
    assert min(took) > 0
    return min(took) / page.pace


def test_all_files_of_the_page_have_at_most_300_kb_on_the_wire(large_site):
    host = large_site[len("http://") : -1]
    sizes = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix in (".js", ".css", ".svg", ".html"):
            connection = http.client.HTTPConnection(host, timeout=20)
            name = path.relative_to(STATIC).as_posix()
            connection.request("GET", f"/static/{name}", headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            head = sum(len(key) + len(value) + 4 for key, value in answer.getheaders())
            sizes[name] = len(answer.read()) + head
            assert answer.status == 200, name
            connection.close()
    print(f"{sum(sizes.values())} bytes: {sizes}")
    assert sum(sizes.values()) < MOST_BYTES


@pytest.mark.parametrize("view", ["jobs", "nodes"])
def test_it_is_painted_within_a_second_with_500_nodes_and_2000_jobs(page, large_site, view):
    """The best of ten, each with an empty cache: a clock's time is only ever lengthened by others."""
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    paints = []
    while len(paints) < 10 and min(paints, default=PAINTED_MS) >= PAINTED_MS:
        shown(page, large_site, view)
        page.wait(f"{PAINT}.length")
        paints.append(page.run(f"{PAINT}[0].startTime"))
        print(f"whole view {page.run('performance.getEntriesByName(`colmet-shown`)[0].startTime'):.0f} ms")
    print(f"first contentful paint {[round(ms) for ms in paints]} ms")
    assert min(paints) < PAINTED_MS


@pytest.mark.parametrize("view", ["jobs", "nodes"])
def test_the_work_until_a_view_is_whole_stays_below_a_second(page, large_site, view):
    page.open(f"{large_site}static/icon.svg")  # the browser has a process for each large_site
    before = busy_ms(page)
    page.open(large_site + VIEWS[view])
    page.wait("document.getElementById('main')?.dataset.shown && document.querySelector('tbody tr, .nodes li')")
    work = busy_ms(page) - before
    print(f"{work:.0f} ms of CPU, pace {page.pace:.2f}")
    assert 0 < work / page.pace < PAINTED_MS


def test_sorting_2000_jobs_needs_less_than_100_ms(page, large_site):
    shown(page, large_site)
    button = "[...document.querySelectorAll('#main table thead th button')].filter(b => b.checkVisibility())[%d]"
    assert of_interaction(page, lambda number: page.click(button % (number % 2))) < INTERACTION_MS


def test_searching_2000_jobs_needs_less_than_100_ms_a_key(page, large_site):
    shown(page, large_site)
    page.press("/")
    page.wait("document.activeElement.id === 'search'")
    assert of_interaction(page, lambda number: page.press("10045"[number])) < INTERACTION_MS


def test_a_change_of_the_view_by_keyboard_needs_less_than_100_ms(page, large_site):
    """To a view without charts, and back."""
    shown(page, large_site)

    def follow(number):
        page.run(f"document.querySelectorAll('nav[aria-label=Views] a')[{1 - number % 2}].focus()")
        page.press("Enter")

    assert of_interaction(page, follow) < INTERACTION_MS


@pytest.mark.parametrize("time", ["", "day"])
def test_another_order_of_500_nodes_needs_less_than_100_ms(page, large_site, time):
    """As cells, and as a map of 96 intervals: without another request."""
    page.open(f"{large_site}#/nodes?time={time}")
    page.wait("document.getElementById('main')?.dataset.shown")
    cells, cell_map = "document.querySelectorAll('.nodes li')", "document.querySelector('.map')"
    page.wait(f"{cells}.length === 500 || {cell_map}.ariaLabel.includes('500')")
    label = "l => l.textContent.startsWith('Order by')"
    order = f"[...document.querySelectorAll('.tools label')].find({label}).control"
    took = []
    for number in range(TRIES):
        before = busy_ms(page)
        page.choose(order, "" if number % 2 else "value")
        took.append(busy_ms(page) - before)
    print(f"another order {[round(ms) for ms in took]} ms of CPU, pace {page.pace:.2f}")
    assert 0 < min(took) / page.pace < INTERACTION_MS
