"""The page of jobs of former days in real browsers: what is shown without samples, and what it says of failures."""

from __future__ import annotations

import re
import shutil

import pytest

from colmet.common.errors import ColmetError
from colmet.web.server import FOLDER
from tests.beds.pages import CHARTS, PASSWORD, served
from tests.support.web_past import GONE, OLDER, OTHER, PAST, Past

pytestmark = pytest.mark.slow

CHART = "[...document.querySelectorAll('.chart')].find(e => e.ariaLabel === {!r})"
LINES = f"({CHART.format('CPU')})?.querySelector('.lines')?.textContent ?? ''"
MAIN = "document.querySelector('main').innerText"
ROWS = "document.querySelectorAll('.rows tr').length"


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    return Past(tmp_path_factory.mktemp("past"))


@pytest.fixture(scope="module")
def site(past):
    """The page for everybody."""
    with served(past.queries, stored=past.stored) as url:
        yield url


def slow_answers(page, part, seconds):
    """Delay the answers of requests whose address has this part."""
    page.run(
        "window.fetched ??= window.fetch; window.fetch = (url, more) => String(url).includes("
        f"{part!r}) ? new Promise(done => setTimeout(done, {1000 * seconds})).then(() => fetched(url, more))"
        " : fetched(url, more); 0"
    )


# -- samples that are gone, or cannot be read --


def test_samples_are_gone_only_where_the_whole_store_was_read(browser, past, members, monkeypatch):
    with served(past.queries, members, stored=past.stored) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        page.open(f"{url}#/job/{GONE}")
        page.wait("document.querySelectorAll('.chart canvas').length > 0")
        assert "Its samples are no longer stored: the charts are" in page.run(MAIN)
        # of 92.5 % the server and the page make the same
        assert page.run("document.querySelector('.judged b').textContent") == "CPU efficiency 93 %: good"
        cpu = page.run("document.querySelector('.uses > div').innerText").replace("\n", " ")
        assert "93 % good" in cpu and "14.8 cores on average, of 16 allocated" in cpu

        def fail(*_):
            raise ColmetError("/data/c.hdf5: input/output error")

        monkeypatch.setattr(past.history, "tables", fail)
        past.reader._kept.clear()
        page.open("about:blank")
        page.open(f"{url}#/job/{GONE}")
        page.wait("document.querySelectorAll('.chart canvas').length > 0")
        page.wait("!document.querySelector('.warnings').hidden")
        text = page.run(MAIN)
        assert "no longer stored" not in text and "the stored data cannot be read" in text.lower()
        assert "/data" not in text
        past.reader._kept.clear()


def test_a_job_without_samples_is_compared_by_its_short_curves_and_its_figures(browser, site):
    with browser.page() as page:
        page.open(f"{site}#/job/{PAST}?with={GONE}")
        page.wait(f"({LINES}).includes('used, job {GONE}')", 60)
        page.wait(CHARTS)
        said = page.run("[...document.querySelectorAll('p[role=status]')].map(e => e.innerText).join(' ')")
        assert f"job {GONE} of alice, only CPU and memory, by the short curves of the archive" in said
        assert "Its samples are no longer stored." in said and "CPU efficiency 93 %: good" in said and "lasted" in said
        memory = f"({CHART.format('Memory')}).querySelector('.lines').textContent"
        assert f"used, job {GONE}" in page.run(memory)
        # the mean of its two hosts beside the mean of four
        found = re.search(rf"used, job {GONE}\s*([0-9.]+)", page.run(LINES))
        assert float(found[1]) == pytest.approx(7.4, rel=0.05)
        assert page.complaints() == []


def test_a_job_chosen_while_another_one_is_requested_is_the_one_that_is_drawn(browser, site):
    compare = "(e => { e.value = {}; e.form.requestSubmit(); })(document.querySelector('form.field input')); 0"
    said = "[...document.querySelectorAll('p[role=status]')].map(e => e.innerText).join(' ')"
    with browser.page() as page:
        page.open(f"{site}#/job/{PAST}")
        page.wait(CHARTS)
        slow_answers(page, f"jobs/{GONE}/summary", 3)
        page.run(compare.replace("{}", str(GONE)))
        page.wait(f"performance.getEntriesByType('resource').some(e => e.name.endsWith('/jobs/{GONE}'))")
        page.run(compare.replace("{}", str(OTHER)))
        page.wait(f"({LINES}).includes('used, job {OTHER}')", 60)
        assert f"Dashed: job {OTHER} of bob. " in page.run(said), "the answers on the first one are of no use"
        assert page.complaints() == []


def test_a_job_without_anything_to_draw_is_said_to_have_none(browser, site):
    with browser.page() as page:
        page.open(f"{site}#/job/{PAST}?with=99")
        page.wait(
            "[...document.querySelectorAll('p[role=status]')].some(e => e.innerText.includes('Job 99 does not exist'))",
            60,
        )


def test_memory_without_a_limit_has_no_bar_but_words(browser, site):
    with browser.page() as page:
        page.open(site)
        page.wait(f"{ROWS} === 4")
        of = "[...document.querySelectorAll('.rows tr')].find(e => e.querySelector('a').textContent === '{}')"
        for job, has_bar in ((OLDER, False), (PAST, True)):
            row = of.format(job)
            assert page.run(f"({row}).querySelectorAll('.foot.of-cpu').length") == 1
            assert page.run(f"({row}).querySelectorAll('.foot.of-memory').length") == has_bar
            text = page.run(f"({row}).querySelector('.of-memory_used_ratio').textContent")
            assert text.endswith("no limit known") != has_bar


# -- once --


def test_the_charts_of_an_ended_job_show_the_mean_of_its_hosts_from_the_first_drawing_on(browser, site):
    with browser.page() as page:
        page.open(site)
        page.wait(f"{ROWS} === 4")
        slow_answers(page, "/summary", 5)
        page.run(
            "window.seen = new Set(); new MutationObserver(() => { const found = /used\\s*([0-9.]+)/.exec("
            f"{LINES}); if (found) seen.add(found[1]); }}).observe(document.body, "
            "{subtree: true, childList: true, characterData: true}); 0"
        )
        page.run(f"location.hash = '#/job/{PAST}'; 0")
        page.wait("document.querySelector('.uses > div')", 60)
        page.wait(f"{CHARTS} && document.querySelector('.from').textContent !== ''", 60)
        assert page.run("[...seen].map(Number)") == [pytest.approx(5.83, abs=0.1)]
        assert page.complaints() == []


# -- the way there and back --


def test_the_way_back_leads_to_my_jobs_as_they_were_left(browser, past, members, site):
    with served(past.queries, members, stored=past.stored) as url, browser.page() as page:
        page.sign_in(url, "alice", PASSWORD)
        page.open(f"{url}#/?text={GONE}")
        page.wait(f"{ROWS} === 1")
        page.click("document.querySelector('.rows a')")
        page.wait("document.querySelector('.crumbs a')?.textContent === '← My jobs'")
        page.click("document.querySelector('.crumbs a')")
        page.wait(f"document.querySelector('h1').textContent === 'My jobs' && {ROWS} === 1")
        assert page.run("location.hash") == f"#/?text={GONE}"

        page.open(f"{site}#/job/{PAST}")  # for everybody, who sees all jobs
        page.wait("document.querySelector('.report:not([hidden])')")
        assert page.run("document.querySelector('.crumbs a').textContent") == "← Jobs"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        *(("17_3", "task=17_3"), ("17.3", "task=17.3"), ("4242", "job=4242"), ("2024_run", "name=2024_run")),
        *(("17_", "name=17_"), ("wing-cfd", "name=wing-cfd")),
    ],
)
def test_a_number_or_a_task_is_searched_as_one_and_every_other_text_in_names(browser, site, text, asked):
    with browser.page() as page:
        page.open(f"{site}#/?text={text}")
        page.wait(
            f"performance.getEntriesByType('resource').some(e => e.name.includes('archive/jobs?') && "
            f"e.name.split(/[?&]/).includes({asked!r}))"
        )
        page.wait("document.getElementById('main')?.dataset.shown")


# -- failures --


def test_a_busy_collector_is_named_and_the_names_to_choose_are_requested_again(browser, site):
    with browser.page() as page:
        page.open(site)
        page.wait(f"{ROWS} === 4")
        page.run(
            "window.fetched = window.fetch; window.refused = 0; window.fetch = (url, more) => "
            "String(url).includes('by=project') && !refused++ ? Promise.resolve(new Response("
            "JSON.stringify({error: 'too many requests at once; retry later'}),"
            " {status: 429, headers: {'Retry-After': '1'}}))"
            " : fetched(url, more); 0"
        )
        page.run(
            "document.querySelector('.filters').open = true;"
            " document.querySelector('[list=names-of-project]').focus(); 0"
        )
        page.wait("document.getElementById('notice').textContent.includes('Too many requests at once')")
        assert "Next try in" in page.run("document.getElementById('notice').textContent")
        page.wait("refused === 2", 30)
        page.wait("!document.getElementById('notice').textContent")


def test_a_view_that_cannot_be_loaded_is_named_with_what_happened(browser, past, tmp_path):
    folder = tmp_path / "static"
    shutil.copytree(FOLDER, folder)
    (folder / "usage.js").write_text("export const Usage = (;\n")
    notice = "document.getElementById('notice').textContent"
    with browser.page() as page:
        with served(past.queries, stored=past.stored, folder=folder) as url:
            page.open(url)
            page.wait(f"{ROWS} === 4")
            page.run("location.hash = '#/usage'; 0")
            page.wait(f"{notice}.includes('could not be loaded')")
            text = page.run(notice)
            assert "cannot be reached" not in text and "The collector answers" in text
            page.run("location.hash = '#/'; 0")
            page.wait(f"{ROWS} === 4 && !{notice}")
        page.run("location.hash = '#/health'; 0")
        page.wait(f"{notice}.includes('could not be loaded')")
        assert "The collector cannot be reached." in page.run(notice)
