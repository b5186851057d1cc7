"""The page of the JSON interface in real browsers without a screen."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import time
import urllib.request

import pytest

from colmet.commands.usage import FIGURES
from colmet.jobs.archive.local import LocalArchive
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.stored_routes import Stored
from dev.live import JobRoot
from tests.beds.pages import CHARTS, JOB, NAME, PASSWORD, focused, served, shown, with_archive
from tests.support import web_facts
from tests.support.waiting import free_port, wait_for
from tests.support.web_store import stored_of

OFTEN = "?every=1"  # the page asks each second


def test_a_name_that_is_markup_stays_text(browser, site):
    with browser.page() as page:
        for view, where, text in (
            ("jobs", "td.of-user", NAME),
            ("job", "h1 + p", f"of {NAME}, running"),
            ("#/memory?jobs=yes", "td.of-owner", NAME),
        ):
            shown(page, site, view)
            texts = f"[...document.querySelectorAll('{where}')].map(e => e.textContent)"
            assert text in page.run(texts)
            assert page.run("document.querySelectorAll('img').length") == 0
        assert page.dialogs() == 0
        assert page.complaints() == []


def test_all_can_be_done_with_the_keyboard(browser, site):
    with browser.page() as page:
        shown(page, site)
        page.press("Tab")
        assert focused(page) == "a skip"
        page.press("Enter")
        assert focused(page) == "main main"
        page.press("/")
        assert focused(page) == "input search"
        page.type(str(JOB))
        page.wait("document.querySelectorAll('#main .of-job a').length === 1")
        assert page.run("location.hash").endswith(f"text={JOB}")

        seen = []
        for _ in range(40):  # to the first column's button, with a mark at each stop
            page.press("Tab")
            seen.append(focused(page))
            outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", seen
            if seen[-1].startswith("button User"):
                break
        assert seen[-1].startswith("button User"), seen
        page.press("Enter")
        page.wait("document.querySelector('th.of-user').getAttribute('aria-sort') === 'ascending'")
        page.press("Enter")
        page.wait("document.querySelector('th.of-user').getAttribute('aria-sort') === 'descending'")

        shown(page, site, "nodes")
        page.run("document.querySelector('.nodes a[tabindex=\"0\"]').focus()")
        first = page.run("document.activeElement.getAttribute('aria-label')")
        for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowRight"):
            page.press(key)
        assert first.startswith("node1:")
        assert page.run("document.activeElement.getAttribute('aria-label')").startswith("node3:")
        page.press("Enter")
        page.wait("document.querySelector('h1').textContent === 'Node node3'")
        page.wait("document.activeElement === document.querySelector('h1')")
        page.wait(CHARTS)
        page.press("/")
        page.wait("document.activeElement.id === 'search'")
        assert page.complaints() == []


def test_one_stop_of_the_tab_key_passes_all_nodes(browser, site):
    with browser.page() as page:
        shown(page, site, "nodes")
        assert page.run("document.querySelectorAll('.nodes a[tabindex=\"0\"]').length") == 1


def test_an_update_keeps_scroll_focus_and_what_is_open(browser, site):
    with browser.page() as page:
        shown(page, site + OFTEN)
        page.run("document.querySelector('.filters summary').click()")
        is_open = page.run("document.querySelector('.filters').open")
        page.run("document.querySelectorAll('tbody .of-job a')[40].focus()")
        before = page.run("[document.activeElement.textContent, scrollY]")
        at = page.run("document.getElementById('state').textContent")
        page.wait(f"document.getElementById('state').textContent !== {at!r}", 30)
        after = page.run("[document.activeElement.textContent, scrollY]")
        assert (after[0], before[1] > 0) == (before[0], True)
        assert abs(after[1] - before[1]) < 5
        assert page.run("document.querySelector('.filters').open") is is_open


def test_it_can_be_paused(browser, site):
    with browser.page() as page:
        shown(page, site + OFTEN)
        page.run("document.getElementById('pause').click()")
        page.wait("document.getElementById('state').textContent.startsWith('Paused')")
        time.sleep(0.5)  # what was asked before is answered by then
        count = len(page.requests())
        time.sleep(2)
        assert len(page.requests()) == count
        page.run("document.getElementById('pause').click()")
        page.wait("document.getElementById('state').textContent.startsWith('Live')")
        assert len(page.requests()) > count


def test_it_says_when_no_answer_comes_and_asks_less(browser):
    with browser.page() as page:
        with served(web_facts.MadeUpFacts(20, 100)) as url:
            shown(page, url + OFTEN)
        page.wait("document.getElementById('state').textContent === 'No answer'", 30)
        said = page.run("document.getElementById('notice').textContent")
        assert "cannot be reached" in said
        assert "The values shown are of" in said
        assert page.run("document.querySelectorAll('#main .of-job a').length") > 10, "it still shows what it knew"
        page.wait("document.getElementById('notice').textContent.includes('in 4 s')", 30)


def test_a_job_that_is_not_there_is_said_to_be_so(browser, site):
    with browser.page() as page:
        page.open(f"{site}#/job/12")
        page.wait("document.getElementById('notice')?.textContent.includes('ob 12 does not exist')")
        page.wait("document.getElementById('state').textContent === 'Not found'")


def test_jobs_that_have_ended_are_shown_with_when_they_were_seen_last(browser, site):
    with browser.page() as page:
        shown(page, site)
        assert page.run("getComputedStyle(document.querySelector('td.of-last')).display") == "none"
        page.run("[...document.querySelectorAll('select')].find(s => s.value === 'running').value = 'ended'")
        state = "[...document.querySelectorAll('select')].find(s => s.value === 'ended')"
        page.run(f"{state}.dispatchEvent(new Event('change'))")
        page.wait("document.querySelector('.pages p').textContent === '1–50 of 100'")
        assert page.run("document.querySelector('td.of-last').textContent").count(":") == 2
        assert page.run("document.querySelector('th.of-last').getAttribute('aria-sort')") == "descending"
        page.run("document.querySelectorAll('.pages button')[1].click()")
        page.wait("document.querySelector('.pages p').textContent === '51–100 of 100'")
        assert page.complaints() == []


def test_a_job_that_is_not_in_memory_is_found_in_the_store(browser, site):
    with browser.page() as page:
        shown(page, site)
        page.press("/")
        page.type(str(web_facts.STORED_ONLY))
        page.wait("document.querySelector('.pages a')?.offsetParent")
        assert "No recent job matches." in page.run("document.querySelector('.pages').textContent")
        page.run("document.querySelector('.pages a').click()")
        page.wait(CHARTS)
        assert page.run("document.querySelector('h1').textContent") == f"Job {web_facts.STORED_ONLY}"
        page.wait("document.querySelector('.charts ~ .from').textContent.includes('Its values are from ')")
        assert page.complaints() == []


def numbers(page):
    """The jobs of a list."""
    return page.run("[...document.querySelectorAll('#main .rows .of-job a')].map(e => Number(e.textContent))")


def found(page, total):
    """Wait until a list has a number of jobs in all."""
    page.wait(f"document.querySelector('.pages p').textContent.endsWith(' of {total:,}')")


def chosen(page, label, value):
    """Fill in a field."""
    page.run(
        "{ const field = [...document.querySelectorAll('#main label')]"
        f".find(one => one.firstElementChild.textContent === {label!r}).querySelector('input, select');"
        f"field.value = {value!r};"
        "field.dispatchEvent(new Event(field.type.startsWith('select') ? 'change' : 'input')) }"
    )


def test_running_and_ended_jobs_are_in_one_list_newest_first_with_their_curves(browser, archived):
    with browser.page(1700) as page:
        shown(page, archived)
        found(page, 448)
        heads = page.run("[...document.querySelectorAll('#main thead th')].map(e => e.innerText.trim())")
        assert heads == [
            *("Job", "Name", "User", "State", "Nodes", "Cores", "Wall time", "Over time", "CPU efficiency", "Memory"),
            *("Energy", "Started ▼", "Ended"),
        ]
        assert page.run("document.querySelector('th.of-start').ariaSort") == "descending"
        assert set(page.run("[...new Set([...document.querySelectorAll('.of-state')].map(e => e.textContent))]")) > {
            "running",
            "done",
        }
        labels = page.run("[...document.querySelectorAll('svg.foot')].map(e => e.getAttribute('aria-label'))")
        assert {one.split(" over time: mean ")[0] for one in labels} == {"CPU", "Memory", "GPU"}
        assert page.run("[...document.querySelectorAll('svg.foot path')].every(e => e.getAttribute('d'))")
        page.wait("[...document.querySelectorAll('.rows .of-cpus')].some(e => e.textContent.includes(' of '))")
        grades = "[...document.querySelectorAll('td[data-grade]')].map(e => [e.dataset.grade, e.lastChild.textContent])"
        assert {word for word, _ in page.run(grades)} >= {"good", "low"}
        assert all(word == text for word, text in page.run(grades))
        assert page.complaints() == []


def test_jobs_are_filtered_sorted_and_paged_and_the_address_keeps_it(browser, archived):
    with browser.page() as page:
        shown(page, archived)
        chosen(page, "State", "running")
        found(page, 48)
        assert all(number >= web_facts.FIRST for number in numbers(page))
        chosen(page, "State", "")
        found(page, 448)
        page.run("document.querySelectorAll('.pages button')[1].click()")
        page.wait("document.querySelector('.pages p').textContent === '51–100 of 448'")
        assert len(numbers(page)) == 50
        chosen(page, "CPU efficiency below", "50")
        page.wait("!document.querySelector('.pages p').textContent.endsWith(' of 448')")
        page.wait("document.querySelector('.pages p').textContent.startsWith('1–')")
        page.run(
            "[...document.querySelectorAll('#main thead button')].find(e => e.textContent === 'CPU efficiency').click()"
        )
        page.run(
            "[...document.querySelectorAll('#main thead button')].find(e => e.textContent.startsWith('CPU')).click()"
        )
        page.wait("document.querySelector('th.of-cpu_ratio').ariaSort === 'ascending'")
        shares = "[...document.querySelectorAll('.of-cpu_ratio .share')].map(e => parseFloat(e.textContent))"
        page.wait(f"(s => s.every((x, n) => !n || s[n - 1] <= x))({shares})")
        assert 0 < max(page.run(shares)) <= 50
        chosen(page, "User", "alice")
        page.wait("[...document.querySelectorAll('td.of-user')].every(e => e.textContent === 'alice')")
        before, address = numbers(page), page.run("location.hash")
        assert 0 < len(before) < 50
        shown(page, archived, address)
        assert numbers(page) == before
        assert page.run("document.querySelector('.filters summary').textContent") == "Filters (2)"
        page.run("[...document.querySelectorAll('.filters button')].find(e => e.textContent === 'Clear').click()")
        found(page, 448)
        assert page.run("location.hash").count("=") == 2, "the order alone is left"
        assert page.complaints() == []


def test_a_job_is_found_by_a_part_of_its_name_and_by_its_number_and_a_click_opens_it(browser, archived):
    with browser.page() as page:
        shown(page, archived)
        page.press("/")
        page.type("CFD")
        page.wait("[...document.querySelectorAll('td.of-name')].every(e => e.textContent === 'wing-cfd')")
        job = numbers(page)[0]
        chosen(page, "Search", str(job))
        page.wait(f"document.querySelectorAll('.rows tr').length === 1 && location.hash.endsWith('text={job}')")
        page.run("document.querySelector('.rows td.of-wall_s').click()")
        page.wait(f"location.hash.split('?')[0] === '#/job/{job}'")
        page.wait(f"document.querySelector('h1').textContent.startsWith('Job {job}')")


def test_a_column_without_any_value_is_not_shown(browser, archived):
    with browser.page() as page:
        page.open(archived)
        shown_columns = (
            "import('/static/table.js').then(({Table, column}) => {"
            " const text = row => String(row.b); const made = new Table('x', [column('a', 'A', row => row.a),"
            " column('b', 'B', text, {optional: true})], row => row.a, {sort: 'a', reverse: false}, () => {});"
            " return [[{a: '1', b: null}], [{a: '1', b: 0}, {a: '2', b: null}], []].map(rows => { made.show(rows);"
            " const cells = [...made.element.querySelectorAll('th, td')];"
            " return cells.filter(e => !e.hidden).map(e => e.innerText.trim()[0]) })})"
        )
        assert page.run(shown_columns) == [["A", "1"], ["A", "B", "1", "0", "2", "n"], ["A", "B"]]


def test_a_choice_does_not_wait_for_the_answer_to_a_poll(browser, archived):
    with browser.page() as page:
        shown(page, archived + OFTEN)
        page.run(
            "{ const plain = window.fetch; window.fetch = (url, ...more) => String(url).includes('/cluster')"
            " ? new Promise(() => {}) : plain(url, ...more); }"
        )
        time.sleep(2)  # a poll waits for the totals now
        chosen(page, "State", "failed")
        page.wait("[...document.querySelectorAll('td.of-state')].every(e => e.textContent.startsWith('failed'))", 5)


def test_one_without_jobs_in_the_archive_sees_a_line_on_it(browser, tmp_path, members):
    with with_archive(tmp_path, 10, 20, 60, users=members) as url, browser.page() as page:
        page.sign_in(url, "zoe", PASSWORD)
        page.open(url)
        page.wait("document.querySelector('.pages p')?.textContent.startsWith('You have no job here so far')")
        assert page.run("document.querySelectorAll('#main tbody tr').length") == 0
        chosen(page, "State", "failed")
        page.wait("document.querySelector('.pages').textContent.includes('No job matches.')")
        assert page.complaints() == []


def test_names_of_users_projects_and_hosts_are_suggested(browser, archived):
    with browser.page() as page:
        shown(page, archived)
        for key, some in (("user", "alice"), ("host", "node7"), ("queue", "long")):
            page.run(f"document.querySelector('[list=names-of-{key}]').focus()")
            options = f"[...document.querySelectorAll('#names-of-{key} option')].map(e => e.value)"
            page.wait(f"{options}.includes({some!r})")
        assert page.complaints() == []


def test_the_list_of_jobs_survives_a_restart_of_the_interface(browser, tmp_path):
    with with_archive(tmp_path, 10, 5, 60) as url, browser.page() as page:
        shown(page, url)
        found(page, 65)
    path = str(tmp_path / "archive.sqlite")
    empty = Queries(RecentCache(1 << 20, 60.0), None)
    with served(empty, stored=Stored(archive=lambda: LocalArchive(path))) as url, browser.page() as page:
        shown(page, url)
        found(page, 65)
        assert page.complaints() == []


def test_a_user_sees_my_jobs(browser, tmp_path, members):
    with with_archive(tmp_path, 10, 20, 60, users=members) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        shown(page, url)
        assert page.run("[document.title, document.querySelector('h1').textContent]") == ["My jobs – Colmet", "My jobs"]
        found(page, 8)
        assert page.run("getComputedStyle(document.querySelector('th.of-user')).display") == "none"
        labels = page.run("[...document.querySelectorAll('#main label')].map(e => e.firstElementChild.textContent)")
        assert "User" not in labels and "Project" in labels
        assert page.complaints() == []


FACTORS = """co2-per-kwh = 50
co2-source = "grid of <b>2025</b>"
price-per-core-hour = 0.5
price-source = "contract"
currency = "EUR"
"""


def test_usage_is_summed_by_a_group_with_co2_and_cost_and_their_sources(browser, archived, tmp_path, monkeypatch):
    path = tmp_path / "usage.toml"
    path.write_text(FACTORS)
    monkeypatch.setattr("colmet.jobs.archive.queries.FACTORS_PATH", str(path))
    heads = "[...document.querySelectorAll('#main thead th')].map(e => e.innerText.trim())"
    with browser.page() as page:
        shown(page, archived, "#/usage?span=90d")
        assert page.run(heads) == [
            *("User", "Used, wasted", "Jobs", "Core h ▼", "Used core h", "Wasted core h", "CPU efficiency", "GPU h"),
            *("Memory GiB h", "Energy", "CO2 kg", "Cost EUR"),
        ]
        assert len(page.run("[...document.querySelectorAll('.usage tbody th')].map(e => e.textContent)")) == 11
        sources = page.run("[...document.querySelectorAll('.sources li')].map(e => e.textContent)")
        assert sources == [
            "CO2: 50 g per kWh (grid of <b>2025</b>)",
            "Cost: 0.5 EUR per allocated core hour (contract)",
        ]
        command = f"colmet usage --by user --since 90d --all-users --url {archived.rstrip('/')}"
        assert page.run("document.querySelector('#main code').textContent") == command
        hours = "[...document.querySelectorAll('td.of-core_s')].map(e => parseFloat(e.textContent.replace(',', '')))"
        assert page.run(hours) == sorted(page.run(hours), reverse=True)
        chosen(page, "By", "month")
        page.wait("document.querySelector('.usage caption').textContent === 'Usage by month'")
        months = page.run("[...document.querySelectorAll('.usage tbody th')].map(e => e.textContent)")
        assert months == sorted(months, reverse=True) and len(months) > 1
        chosen(page, "Time", "dates")
        chosen(page, "From", "2001-01-01")
        page.run("document.querySelectorAll('#main input[type=date]')[0].dispatchEvent(new Event('change'))")
        chosen(page, "To", "2001-02-01")
        page.run("document.querySelectorAll('#main input[type=date]')[1].dispatchEvent(new Event('change'))")
        page.wait("document.querySelector('#main [role=status]').textContent === 'No job ran in this time.'")
        words = "colmet usage --by month --since 2001-01-01T00:00:00Z --until 2001-02-02T00:00:00Z"
        assert page.run("document.querySelector('#main code').textContent").startswith(words)
        assert page.run("location.hash") == "#/usage?span=dates&by=month&since=2001-01-01&until=2001-02-01"
        assert page.run("document.querySelectorAll('#main b').length") == 0, "a source is text"
        assert page.complaints() == []


def test_usage_is_saved_as_csv_like_that_of_the_command(browser, archived):
    with browser.page() as page:
        shown(page, archived, "#/usage?span=90d")
        page.run(
            "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return '#' };"
            "HTMLAnchorElement.prototype.click = function() { saved.push(this.download) }"
        )
        page.run("[...document.querySelectorAll('#main button')].find(e => e.textContent === 'Download CSV').click()")
        head, *lines = csv.reader(io.StringIO(page.run("saved[0].text()")))
        assert page.run("saved[1]") == "usage-by-user.csv"
        assert head == ["user", *[figure.name for figure in FIGURES]]
        asked = json.load(urllib.request.urlopen(f"{archived}api/v1/usage?by=user", timeout=30))
        sums = {one["keys"][0]: one["sums"] for one in asked["groups"]}
        assert {line[0] for line in lines} == set(sums)
        for line in lines:
            assert float(line[2]) == pytest.approx(sums[line[0]]["core_s"] / 3600)


def test_a_user_sees_the_own_usage_and_totals(browser, tmp_path, members):
    with with_archive(tmp_path, 10, 20, 60, users=members) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        shown(page, url)
        facts = page.run("[...document.querySelectorAll('.facts.line div')].map(e => e.textContent)")
        assert facts[0].startswith("Running now2 jobs, ") and facts[0].endswith(" cores")
        assert "CPU efficiency" in facts[1] and facts[1].startswith("Last 7 days")
        page.run("location.hash = '#/usage'")
        page.wait("document.querySelector('.usage tbody tr')")
        assert page.run("document.querySelector('h1').textContent") == "My usage"
        options = page.run("[...document.querySelectorAll('#main select')[0].options].map(e => e.value)")
        assert options == ["project", "queue", "month", "host"]
        assert "--all-users" not in page.run("document.querySelector('#main code').textContent")
        assert page.complaints() == []


def test_without_an_archive_there_is_no_usage_and_the_view_says_so(browser, site):
    with browser.page() as page:
        page.open(f"{site}#/usage")
        page.wait(
            "document.querySelector('#main [role=status]')?.textContent.startsWith('This collector keeps no archive')"
        )
        assert page.complaints() == []


def test_the_report_of_a_job_is_one_link_away_and_keeps_its_layout(browser):
    facts = web_facts.MadeUpFacts(20, 100)
    with served(facts, stored=stored_of(facts)) as url, browser.page() as page:
        page.open(f"{url}#/job/{web_facts.STORED_ONLY}")
        page.wait("document.querySelector('a[href*=\"report.html?zone=\"]')?.offsetParent")
        page.run("document.querySelector('a[href*=\"report.html?zone=\"]').click()")
        page.wait("document.querySelector('footer')?.textContent.includes('colmet report')")
        assert page.run("document.querySelector('h1').textContent").startswith(f"Job {web_facts.STORED_ONLY} of")
        assert page.run("document.querySelectorAll('.chart svg').length") > 2
        assert page.run("getComputedStyle(document.querySelector('.card')).borderTopStyle") == "solid"
        assert page.complaints() == []


def test_a_job_that_is_in_the_store_is_seen_to_run_as_soon_as_it_is_heard_of(browser, monkeypatch):
    """As after a restart of the interface."""
    facts, job = web_facts.MadeUpFacts(20, 100), web_facts.STORED_ONLY
    about = "document.querySelector('h1 + p').textContent"
    with served(facts, stored=stored_of(facts)) as url, browser.page() as page:
        page.open(f"{url}{OFTEN}#/job/{job}")
        page.wait("document.querySelector('h1 + p')?.textContent.includes('its values are from the store')")
        facts.on[job], facts.user[job] = ["node1"], "alice"
        monkeypatch.setattr(web_facts, "STORED_ONLY", 0)
        page.wait(f"{about} === 'of alice, running'")


def test_it_does_not_say_that_it_is_live_where_it_asks_nothing(chromium, site):
    state = "document.getElementById('state').textContent"
    with chromium.page() as page:
        page.open(f"{site}{OFTEN}#/job/{web_facts.FIRST - 1}")
        page.wait("document.querySelector('h1 + p')?.textContent.includes('ended, or silent, since')")
        page.wait(f"{state}.startsWith('Live, ')")
        before = page.run(state)
        time.sleep(2.5)
        assert page.run(state) == before
        assert page.complaints() == []


def test_a_cluster_of_which_nothing_is_known_says_so(browser):
    with served(Queries(RecentCache(1 << 20, 60.0), None)) as url, browser.page() as page:
        page.open(url)
        page.wait("document.getElementById('main')?.dataset.shown")
        assert page.run("document.querySelector('.pages p').textContent") == "No job runs now."
        page.open(f"{url}#/nodes")
        page.wait("document.querySelector('.about')?.textContent.includes('No node has been heard of')")
        assert page.complaints() == []


def test_colours_that_are_chosen_are_remembered(browser, site):
    with browser.page() as page:
        shown(page, site)
        light = page.run("getComputedStyle(document.body).backgroundColor")
        page.run(
            "{ const t = document.getElementById('theme'); t.value = 'dark'; t.dispatchEvent(new Event('change')) }"
        )
        dark = page.run("getComputedStyle(document.body).backgroundColor")
        assert dark != light
        shown(page, site, "memory")
        page.reload()
        page.wait("document.getElementById('main')?.dataset.shown")
        assert page.run("getComputedStyle(document.body).backgroundColor") == dark
        assert page.run("document.getElementById('theme').value") == "dark"


def test_a_chart_says_in_words_and_as_a_table_what_it_shows(browser, site):
    with browser.page() as page:
        shown(page, site, "job")
        text = page.run("document.querySelector('.plot').getAttribute('aria-label')")
        assert text.startswith("CPU. used: last ")
        assert "on average" in text
        page.run("document.querySelector('.chart details summary').click()")
        page.wait("document.querySelectorAll('.chart details tbody tr').length > 100")
        heads = page.run(
            "[...document.querySelectorAll('.chart:first-child .values thead th')].map(e => e.textContent)"
        )
        assert heads == ["Time", "used", "allocated"]


def test_one_who_signed_in_is_shown_and_sees_own_jobs(browser, members):
    with served(web_facts.MadeUpFacts(50, 200), members) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        shown(page, url)
        page.wait("document.getElementById('who').textContent === 'alice'")
        names = page.run("[...document.querySelectorAll('td.of-user')].map(e => e.textContent)")
        assert set(names) == {"alice"}
        assert page.complaints() == []


def test_one_who_has_no_job_is_informed(browser, members):
    with served(web_facts.MadeUpFacts(20, 50), members) as url, browser.page() as page:
        page.sign_in(url, "zoe", PASSWORD)
        page.open(url)
        page.wait("document.getElementById('main')?.dataset.shown")
        assert page.run("document.querySelector('h1').textContent") == "My jobs"
        assert "No job of yours" in page.run("document.querySelector('.pages').textContent")
        page.run("location.hash = '#/nodes'")
        page.wait("document.querySelector('.about')?.textContent.includes('No job of yours')")
        page.run("location.hash = '#/memory'")
        page.wait("document.querySelector('#main > div > p:last-child')?.textContent.startsWith('No job of yours')")
        assert page.complaints() == []


def test_grid_engines_hosts_without_colmet_have_no_link_and_the_cluster_says_where_its_jobs_are(browser):
    cell, facts = web_facts.MadeUpFacts(5, 20), web_facts.MadeUpFacts(2, 0)
    facts.qhost, facts.qstat = cell.qhost, cell.qstat
    with served(facts, gridengine=True) as url, browser.page() as page:
        page.open(url)
        page.wait("document.getElementById('main')?.dataset.shown")
        assert "Grid Engine's jobs: the view Memory" in page.run("document.querySelector('nav.pages').textContent")
        shown(page, url, "#/memory?jobs=yes")
        links = page.run("[...document.querySelectorAll('tbody th a[href]')].map(e => e.textContent)")
        assert sorted(links) == sorted(set(facts.names) & set(cell.names)) and len(links) == 2
        heads = page.run("[...document.querySelectorAll('thead th')].map(e => e.textContent.trim())")
        assert "Total" in heads and "All" not in heads
        assert page.complaints() == []


def test_a_line_is_interrupted_where_nothing_came_for_long(chromium, site):
    with chromium.page() as page:
        page.open(site)
        page.run("import('/static/measures.js').then(m => m.load(new AbortController().signal))")  # and the units
        one = page.run(
            "import('/static/series.js').then(m => m.single({unit: 'percent'},"
            "{times: [0, 5, 10, 60, 65], values: [10, 20, 30, 40, 50]}))"
        )
        assert one["times"] == [0, 5, 10, 35, 60, 65]
        assert one["values"] == pytest.approx([0.1, 0.2, 0.3, None, 0.4, 0.5])


def test_values_are_shown_as_people_read_them(chromium, site):
    with chromium.page() as page:
        page.open(site)
        texts = page.run(
            "import('/static/units.js').then(u => [u.size(1536), u.size(0), u.size(null), u.flow(2 ** 30),"
            " u.share(0.5), u.share(0.9999), u.share(0), u.cores(8), u.cores(0.25), u.lasting(7260), u.count(12345),"
            " u.number(3e6)])"
        )
        expected = ["1.50 KiB", "0 B", "–", "1.00 GiB/s", "50 %", "99.9 %", "0 %", "8", "0.25", "2 h 1 min", "12,345"]
        assert texts == [*expected, "3.00 M"]


@pytest.mark.usefixtures("root")
def test_it_shows_what_a_real_collector_receives_of_a_real_job(chromium, start_collector, start, uri, tmp_path):
    port = free_port()
    start_collector("--hdf5-filepath", str(tmp_path / "jobs"), "--http-listen", str(port), "--http-open")
    with contextlib.closing(JobRoot(f"colmet-page-{port}", ("memory", "pids"))) as root:
        work = "import os, time\nwhile True: sum(range(30000)); [os.stat('/') for n in range(9000)]; time.sleep(0.02)"
        root.job("alice_4242").start([sys.executable, "-c", work])
        start("colmet.node.main", "--zeromq-uri", uri, "-s", "1", "--cpuset_rootpath", str(root.path))
        metric = "metric=cgroup_default.cpu_usage&rate=true"
        wait_for(lambda: values(f"http://127.0.0.1:{port}/api/v1/jobs/4242/series?{metric}") >= 2)
        with chromium.page() as page:
            page.open(f"http://127.0.0.1:{port}/{OFTEN}#/")
            page.wait("document.querySelector('#main .of-job a')?.textContent === '4242'", 30)
            assert page.run("document.querySelector('td.of-user').textContent") == "alice"
            page.run("document.querySelector('#main .of-job a').click()")
            page.wait("document.querySelector('.plot')?.ariaLabel.startsWith('CPU. user: last')", 60)
            rows = "[...document.querySelectorAll('.chart:first-child .summary tr')].map(e => e.textContent)"
            page.wait(f"{rows}.some(row => row.startsWith('kernel'))", 60)  # a line that is 0 all the time has no row
            assert [row[:4] for row in page.run(rows)[1:]] == ["user", "kern", "used", "allo"]
            assert page.complaints() == []


def values(url):
    """How many values an answer has; 0 where there is none."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20) as answer:
        return sum([value is not None for one in json.load(answer)["series"] for value in one["values"]])
    return 0
