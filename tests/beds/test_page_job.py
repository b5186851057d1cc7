"""The view of a job in real browsers: its report, and what can be done with its charts."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
import urllib.request
from datetime import datetime
from urllib.parse import urlencode

import numpy as np
import pytest

from tests.beds.pages import CHARTS, findings, served, shown
from tests.support import web_facts
from tests.support.web_jobs import ENDED_FIRST, jobs_in
from tests.support.web_store import archive_in, stored_of

pytestmark = pytest.mark.slow

ALONE, SPREAD, OTHER = web_facts.FIRST + 10, web_facts.FIRST + 50, web_facts.FIRST + 60  # on one node, on eight, on one
CHART = "[...document.querySelectorAll('.chart')].find(e => e.ariaLabel === {!r})"
CPU = CHART.format("CPU")
X = "({}).querySelector('.u-over').getBoundingClientRect()"
LABELS = "[...document.querySelectorAll('.chart')].filter(e => !e.hidden).map(e => e.getAttribute('aria-label'))"


@pytest.fixture(scope="module")
def facts():
    return web_facts.MadeUpFacts(60, 480)


@pytest.fixture(scope="module")
def site(facts, tmp_path_factory):
    """Jobs with samples, the archive of all of them, and of earlier ones."""
    folder = tmp_path_factory.mktemp("archive")
    with served(facts, stored=stored_of(facts)._replace(archive=jobs_in(folder / "archive.sqlite", facts, 200))) as url:
        yield url


def answer(site, path, **parameters):
    with urllib.request.urlopen(f"{site}api/v1/jobs/{path}?{urlencode(parameters)}", timeout=30) as found:
        return json.load(found)


def drawn(page, site, job, more=""):
    shown(page, site, f"#/job/{job}{more}")
    page.wait(CHARTS, 60)
    page.wait("document.querySelector('.from').textContent !== ''")


def file_of(page, button, title="CPU"):
    """The name and the content of a file that a button of a chart makes."""
    page.run("window.made ??= URL.createObjectURL; URL.createObjectURL = b => { window.blob = b; return made(b); }; 0")
    page.run(
        "window.saved = ''; addEventListener('click', e => { if (e.target.download) saved = e.target.download; }); 0"
    )
    page.click(
        f"[...({CHART.format(title)}).querySelectorAll('.files button')].find(e => e.textContent === {button!r})"
    )
    page.wait("window.blob")
    text = page.run(
        "new Promise(done => { const r = new FileReader(); r.onload = () => done(r.result.split(',')[1]);"
        " r.readAsDataURL(window.blob); window.blob = null; })"
    )
    return page.run("saved"), base64.b64decode(text)


def rows_of(content):
    heads, *rows = csv.reader(io.StringIO(content.decode()))
    times = [datetime.fromisoformat(row[0].replace("Z", "+00:00")).timestamp() for row in rows]
    columns = {head: [float(row[n]) if row[n] else None for row in rows] for n, head in enumerate(heads) if n}
    return times, columns


def reached(page, title="CPU"):
    """The ends of the time axis."""
    return [float(page.run(f"({CHART.format(title)}).querySelector('.plot').ariaValue{end}")) for end in ("Min", "Max")]


# -- the report --


def test_the_report_is_at_the_top_with_the_grades_of_the_interface_as_colours_and_words(browser, site):
    with browser.page() as page:
        shown(page, site, f"#/job/{ALONE}")
        page.wait("document.querySelector('.uses > div')")
        report = answer(site, f"{ALONE}/summary")["report"]
        judged = page.run("[...document.querySelectorAll('.judged b')].map(e => [e.textContent, e.dataset.grade])")
        assert judged == [[f"{one['text']}: {one['grade']}", one["grade"]] for one in report["verdict"]]
        uses = page.run(
            "[...document.querySelectorAll('.uses > div')].map(e => [e.dataset.grade ?? '', e.textContent])"
        )
        assert [grade for grade, _ in uses] == [use["grade"] for use in report["uses"]]
        assert all(use["grade"] in text for use, (_, text) in zip(report["uses"], uses))
        order = page.run(
            "[...document.querySelectorAll('.report, .advice, .uses, .charts')].map(e => e.className.split(' ')[0])"
        )
        assert order == ["report", "advice", "uses", "charts"]
        link = page.run("document.querySelector('.report a').href")
        assert f"/api/v1/jobs/{ALONE}/report.html?zone=" in link


def test_a_job_that_the_archive_alone_has_left_is_shown_with_why_it_ended_and_its_short_curves(browser, site):
    chosen = None
    for number in range(ENDED_FIRST, ENDED_FIRST + 200):
        found = answer(site, f"{number}/summary")
        if found["footprint"] and found["report"]["advice"] and found["report"]["ending"]:
            chosen, report = number, found["report"]
            break
    assert chosen, "none has all of it"
    with browser.page() as page:
        page.open(f"{site}#/job/{chosen}")
        page.wait("document.querySelectorAll('.chart canvas').length > 0")
        text = page.run("document.querySelector('main').textContent")
        assert report["ending"]["text"] in text
        assert report["advice"][0]["because"] in text
        assert "no longer stored" in text
        assert page.complaints() == []


def test_a_job_that_is_in_the_store_alone_has_the_report_of_its_rows(browser, site):
    with browser.page() as page:
        shown(page, site, f"#/job/{web_facts.STORED_ONLY}")
        page.wait("document.querySelector('.uses > div')", 60)
        assert page.run("document.querySelector('.report .facts').textContent").count("alice") == 1
        assert page.complaints() == []


def test_hosts_are_compared_over_the_whole_job_the_least_busy_first(browser, site):
    number = next(
        one
        for one in range(ENDED_FIRST, ENDED_FIRST + 200)
        if 1 < len((answer(site, f"{one}/summary")["report"] or {"hosts": []})["hosts"]) <= 8
    )
    hosts = answer(site, f"{number}/summary")["report"]["hosts"]
    with browser.page() as page:
        page.open(f"{site}#/job/{number}")
        page.wait("document.querySelector('.report tbody tr')")
        names = page.run("[...document.querySelectorAll('.report tbody th')].map(e => e.textContent)")
        order = sorted(hosts, key=lambda one: (one["cpu_used_ratio"] is None, one["cpu_used_ratio"]))
        ratios = {one["host"]: one["cpu_used_ratio"] for one in hosts}
        assert [ratios[name] for name in names] == [one["cpu_used_ratio"] for one in order]


def test_of_several_jobs_with_a_number_the_charts_have_the_time_of_one(browser, facts, tmp_path):
    user = facts.user[ALONE]
    archive = archive_in(tmp_path / "archive.sqlite", [(ALONE, user), (ALONE, user)])
    with served(facts, stored=stored_of(facts)._replace(archive=archive)) as url, browser.page() as page:
        starts = answer(url, f"{ALONE}/summary")["report"]["starts"]
        assert len(starts) == 2
        end = answer(url, f"{ALONE}/summary", start=starts[1])["report"]["end"]
        page.open(f"{url}#/job/{ALONE}?start={starts[1]}&range=all")
        page.wait("document.querySelector('.report a[href*=\"start=\"]')")
        page.wait(
            f"performance.getEntriesByType('resource').some(e => e.name.includes('since={starts[1]}&until={end}'))"
        )
        assert f"start={starts[0]}" in page.run("document.querySelector('.report p.soft:last-child a').href")


# -- charts --


def test_parts_are_stacked_up_to_their_whole_and_what_was_not_measured_is_a_line(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        names = page.run(f"[...({CPU}).querySelectorAll('.lines li span')].map(e => e.textContent)")
        assert names[:4] == ["user", "kernel", "used", "allocated (limit)"]
        shapes = page.run(
            f"[...({CPU}).querySelectorAll('.stroke')].map(e => e.querySelector('rect')?.className.baseVal ?? '')"
        )
        assert shapes[:4] == ["area", "area", "", ""]

        lacking = page.run("document.querySelector('.charts + p').textContent")
        assert re.fullmatch(
            r"Not measured: GPU use, GPU memory, GPU power \(off by default, --enable-nvidia .*\)\.", lacking
        )
        assert "GPU use" not in page.run(LABELS)
        assert page.complaints() == []


def test_a_drag_zooms_all_charts_the_address_keeps_it_and_a_button_shows_the_whole_time(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        whole = reached(page)
        page.point(f"({CPU}).querySelector('.u-over')")
        box = page.run(f"(r => [r.x, r.y, r.width, r.height])({X.format(CPU)})")
        page.mouse(box[0] + 0.25 * box[2], box[1] + 60, (box[0] + 0.5 * box[2], box[1] + 70))
        page.wait("location.hash.includes('from=')")
        page.wait("!document.querySelector('.plot p')")
        span = whole[1] - whole[0]
        wanted = [whole[0] + 0.25 * span, whole[0] + 0.5 * span]
        for title in ("CPU", "Memory", "Tasks"):
            assert reached(page, title) == pytest.approx(wanted, abs=0.02 * span)
        kept = page.run("location.href")
        page.open("about:blank")
        page.open(kept)
        page.wait(CHARTS, 60)
        page.wait("document.querySelector('.from').textContent !== ''")
        assert reached(page) == pytest.approx(wanted, abs=0.02 * span)
        page.click("[...document.querySelectorAll('button')].find(e => e.textContent === 'Whole time')")
        page.wait("!location.hash.includes('from=')")
        page.wait(
            f"({CPU}).querySelector('.plot').ariaValueMax - ({CPU}).querySelector('.plot').ariaValueMin > {0.9 * span}"
        )
        assert page.complaints() == []


def test_one_cursor_is_over_all_charts(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        x, y = page.point(f"({CPU}).querySelector('.u-over')")
        page.mouse(x, y)
        page.wait(
            "[...document.querySelectorAll('.chart:not([hidden]) .lines p')].every(e => /[0-9]/.test(e.textContent))"
        )
        times = page.run("[...document.querySelectorAll('.chart:not([hidden]) .lines p')].map(e => e.textContent)")
        assert len(times) > 3
        seconds = [
            int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in re.findall(r"(\d+):(\d+):(\d+)", " ".join(times))
        ]
        assert max(seconds) - min(seconds) <= 30, "a point each 20 s"


def test_a_chart_is_read_and_zoomed_by_keys(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        page.run(f"({CPU}).querySelector('.plot').focus()")
        page.press("ArrowLeft")
        page.wait(f"({CPU}).querySelector('.plot').ariaValueText.includes('used ')")
        last = float(page.run(f"({CPU}).querySelector('.plot').ariaValueNow"))
        page.press("ArrowLeft")
        page.wait(f"({CPU}).querySelector('.plot').ariaValueNow < {last}")
        for _ in range(8):
            page.press("ArrowLeft", shift=True)
        page.press("Enter")
        page.wait("location.hash.includes('from=')")
        least, most = reached(page)
        assert most - least == pytest.approx(8 * 20, abs=21)
        page.run(f"({CPU}).querySelector('.plot').focus()")
        page.press("Escape")
        page.wait("!location.hash.includes('from=')")


def test_the_file_has_the_values_of_the_interface_with_units_and_times_in_utc(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        name, content = file_of(page, "CSV", "Memory")
        assert name == f"job-{ALONE}-Memory.csv"
        times, columns = rows_of(content)
        assert [head for head in columns if "requested" not in head] == [
            "programs [B]",
            "files [B]",
            "kernel [B]",
            "used [B]",
            "limit [B]",
        ]
        span = {"since": int(times[0]) - 60, "until": int(times[-1]) + 60, "points": 5000}
        raw = answer(site, f"{ALONE}/series", metric="cgroup_default.memory_current", **span)["series"][0]
        known = [(at, value) for at, value in zip(times, columns["used [B]"]) if value is not None]
        assert len(known) > 100
        fine = [(at, value) for at, value in zip(raw["times"], raw["values"]) if value is not None]
        expected = np.interp([at for at, _ in known], *np.array(fine).T)
        assert np.median(np.abs(np.array([value for _, value in known]) - expected)) < 0.01 * max(expected)


def test_a_band_reaches_from_numpys_min_to_max_over_the_hosts(browser, site):
    with browser.page() as page:
        until = int(time.time()) - 60
        drawn(page, site, SPREAD, f"?from={until - 900}&to={until}")
        _, content = file_of(page, "CSV", "Tasks")
        times, columns = rows_of(content)
        assert list(columns) == ["tasks [count]", "tasks, min [count]", "tasks, max [count]"]
        asked = page.run(
            "performance.getEntriesByType('resource').map(e => e.name).findLast(e => e.includes('pids_current'))"
        )
        parameters = dict(part.split("=") for part in asked.partition("?")[2].split("&"))
        del parameters["together"]
        apart = answer(site, f"{SPREAD}/series", **{**parameters, "metric": "cgroup_default.pids_current"})["series"]
        assert len(apart) == 8
        table = np.array([one["values"] for one in apart], float)
        assert times == pytest.approx(apart[0]["times"], abs=0.01)
        for head, fold in zip(columns, (np.nanmean, np.nanmin, np.nanmax)):
            assert columns[head] == pytest.approx(fold(table, axis=0).tolist(), rel=1e-5, abs=1e-6)


def test_the_picture_is_a_png_with_the_lines_on_it(browser, site):
    image = pytest.importorskip("PIL.Image")
    with browser.page() as page:
        drawn(page, site, ALONE)
        name, content = file_of(page, "PNG")
        assert name == f"job-{ALONE}-CPU.png"
        with image.open(io.BytesIO(content)) as made:
            pixels = np.asarray(made.convert("RGB")).reshape(-1, 3)
            assert made.width > 300 and made.height > 206
        colours, counts = np.unique(pixels, axis=0, return_counts=True)
        assert len(colours) > 20
        assert counts.max() < 0.9 * len(pixels), "more than a background"


def test_another_job_is_drawn_dashed_on_the_time_since_the_start(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE)
        page.run("document.querySelector('form.field input').focus()")
        page.type(str(OTHER))
        page.press("Enter")
        page.wait(f"({CPU}).querySelector('.lines').textContent.includes('used, job {OTHER}')", 60)
        assert f"with={OTHER}" in page.run("location.hash")
        assert "since the start of each job" in page.run("document.querySelector('main').textContent")
        _, content = file_of(page, "CSV")
        times, columns = rows_of(content)
        known = [(at, v) for at, v in zip(times, columns[f"used, job {OTHER} [cores]"]) if v is not None]
        starts = [answer(site, f"{job}/summary")["report"]["start"] for job in (ALONE, OTHER)]
        until = known[-1][0] + starts[1] - starts[0]
        raw = answer(
            site,
            f"{OTHER}/series",
            metric="cgroup_default.cpu_usage",
            rate="true",
            since=max(0, until - 3600),
            until=until,
        )["series"][0]
        fine = [
            (at - starts[1] + starts[0], value) for at, value in zip(raw["times"], raw["values"]) if value is not None
        ]
        expected = np.interp([at for at, _ in known], *np.array(fine).T)
        assert np.median(np.abs(np.array([value for _, value in known]) - expected)) < 0.1
        page.click("[...document.querySelectorAll('button')].find(e => e.textContent === 'End comparison')")
        page.wait(f"!({CPU}).querySelector('.lines').textContent.includes('job {OTHER}')", 60)
        assert page.complaints() == []


def test_each_node_has_a_small_chart_and_the_slow_one_is_first_if_asked_for(browser, site):
    with browser.page() as page:
        shown(page, site, f"#/job/{SPREAD}?hosts=each&order=low")
        page.wait("document.querySelectorAll('.multiples li').length === 8", 60)
        names = page.run("[...document.querySelectorAll('.multiples a')].map(e => e.textContent)")
        means = page.run(
            "[...document.querySelectorAll('.multiples span')].map(e => parseFloat(e.textContent.slice(5)))"
        )
        assert sorted(names) == sorted(web_facts.MadeUpFacts(60, 480).on[SPREAD])
        assert means == sorted(means)
        assert page.run("[...document.querySelectorAll('.multiples path')].every(e => e.getAttribute('d').length > 50)")
        page.choose("[...document.querySelectorAll('select')].find(e => e.value === '*each')", "*sum")
        page.wait(CHARTS, 60)
        assert "hosts=sum" in page.run("location.hash")
        assert page.complaints() == []


def test_a_link_with_all_choices_is_copied(browser, site):
    with browser.page() as page:
        drawn(page, site, ALONE, f"?with={OTHER}&range=900&column=cgroup_default.memory_file")
        page.click("[...document.querySelectorAll('button')].find(e => e.textContent === 'Copy link')")
        page.wait("[...document.querySelectorAll('[role=status]')].some(e => e.textContent.includes('Copied'))")
        assert page.run("document.querySelector('.chart h3').textContent") == "cgroup_default.memory_file"
        assert page.complaints() == []


@pytest.mark.parametrize("more", ["", "?hosts=each", f"?with={OTHER}"])
def test_the_view_of_a_job_is_accessible_at_both_widths_and_in_both_colours(chromium, site, axe, more):
    with chromium.page() as page:
        shown(page, site, f"#/job/{SPREAD}{more}")
        page.wait(
            "document.querySelector('.uses > div') && document.querySelector('.chart canvas, .multiples path')", 60
        )
        for width in (1280, 390):
            page.resize(width, 900, phone=width < 400)
            page.wait(f"innerWidth === {width}")
            for dark in (False, True):
                page.colours(dark=dark)
                assert findings(page, axe) == [], (width, dark)
            assert page.run("document.documentElement.scrollWidth") <= width
        assert page.complaints() == []
