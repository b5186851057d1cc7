"""What a scientist does with the page, by clicks and by keys alone: five questions on a job of yesterday.

`COLMET_PICTURES=DIR` keeps a picture of each step.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from pathlib import Path

import pytest

from tests.beds.pages import CHARTS, PASSWORD, served
from tests.support.waiting import wait_for
from tests.support.web_past import DAY_S, PAST, SLOW, Past

PICTURES = os.environ.get("COLMET_PICTURES", "")
ROWS = "[...document.querySelectorAll('.rows tr')]"
CPU = "[...document.querySelectorAll('.chart')].find(e => e.ariaLabel === 'CPU')"
HOSTS = "[...document.querySelectorAll('.report details tbody tr')]"
# the mean of the hosts, in a band
SPREAD = f"/used\\s*5\\.8/.test(({CPU}).querySelector('.lines').textContent) && {CHARTS}"
MOST_KEYS = 120  # until something is reached


class Steps:
    """The steps of a user, with a picture of what each leads to."""

    def __init__(self, page, name):
        self.page, self.name, self.done = page, name, []

    def step(self, what):
        """Note a step: an action of the user, or a look at what is there."""
        self.done.append(what)
        if PICTURES:
            words = "".join(c if c.isalnum() else "-" for c in what)
            file = Path(PICTURES, f"task {self.name} {len(self.done)} {words}.png".replace(" ", "-"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.page.picture())

    def tab_to(self, wanted):
        """Press Tab until something that an expression finds has the focus; return how often."""
        for count in range(1, MOST_KEYS):
            self.page.press("Tab")
            if self.page.run(f"document.activeElement === ({wanted})"):
                return count
        raise AssertionError(f"not reached by {MOST_KEYS} keys: {wanted}")


@pytest.fixture
def past(tmp_path, members):
    """The address of the page for alice, whose job ran yesterday."""
    made = Past(tmp_path)
    with served(made.queries, members, stored=made.stored) as url:
        yield url


def yesterday():
    """The link of the job that began yesterday, by the times on the screen."""
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - DAY_S))
    return f"{ROWS}.filter(row => row.textContent.includes('{day}')).map(row => row.querySelector('.of-job a'))"


def text(page, selector):
    return page.run(f"document.querySelector({selector!r}).innerText")


def answers(page):
    """What the page says on the job: was it efficient, which host was slow, how much memory to ask for."""
    assert text(page, ".judged").replace("\n", " ").startswith("CPU efficiency 73 %: good")
    hosts = page.run(
        f"{HOSTS}.filter(row => row.checkVisibility()).map(row => row.innerText.split(/\\s+/).slice(0, 2))"
    )
    assert len(hosts) == 4
    assert hosts[0] == [SLOW, "14"], "the slow host is first"
    assert "9.00 GiB of 64.0 GiB of memory at most. Ask for less, such as 10.8 GiB," in text(page, ".advice")


def curve(folder):
    """The mean of the downloaded curve of used cores."""
    wait_for(lambda: [file for file in folder.glob("*.csv") if file.stat().st_size])  # Firefox makes it empty first
    (file,) = folder.glob("*.csv")
    rows = list(csv.reader(file.read_text(encoding="utf-8-sig").splitlines()))
    at = next(n for n, head in enumerate(rows[0]) if head.startswith("used"))
    values = [float(row[at]) for row in rows[1:] if row[at]]
    assert len(values) > 100 and str(PAST) in file.name
    return sum(values) / len(values)


@contextlib.contextmanager
def my_jobs(browser, past, folder, name):
    """The page after its first step, and its steps; downloads are in the folder."""
    folder.mkdir()
    with browser.page(downloads=str(folder)) as page:
        page.time_zone("UTC")
        page.sign_in(past, "alice", PASSWORD)
        steps = Steps(page, f"{type(browser).__name__} {name}")
        page.open(past)
        page.wait(f"{ROWS}.length === 3")
        assert text(page, "h1") == "My jobs"
        steps.step("open the page")
        yield page, steps


def test_five_tasks_need_three_clicks_at_most(browser, past, tmp_path):
    folder = tmp_path / "downloads"
    with my_jobs(browser, past, folder, "clicks") as (page, steps):
        assert page.run(f"{yesterday()}.map(link => link.textContent)") == [str(PAST)]
        page.click(f"{yesterday()}[0]")
        page.wait(f"document.querySelector('h1').textContent === 'Job {PAST}' && {HOSTS}.length && {SPREAD}")
        steps.step("click the job of yesterday")
        if not page.run(f"{HOSTS}[0].checkVisibility()"):
            page.click("document.querySelector('.report details summary')")
            steps.step("open the hosts")
        answers(page)
        page.click(f"[...({CPU}).querySelectorAll('button')].find(e => e.textContent === 'CSV')")
        assert curve(folder) == pytest.approx(5.83, rel=0.01), "cores, the mean of the hosts"
        steps.step("click CSV of the chart CPU")
        print(f"{len(steps.done)} steps: {'; '.join(steps.done)}")
        assert page.clicks <= 3
        assert page.complaints() == []


def test_the_same_tasks_by_keys_alone(browser, past, tmp_path):
    folder = tmp_path / "downloads"
    with my_jobs(browser, past, folder, "keys") as (page, steps):
        keys = steps.tab_to(f"{yesterday()}[0]") + 1
        page.press("Enter")
        page.wait(f"document.querySelector('h1').textContent === 'Job {PAST}' && {HOSTS}.length && {SPREAD}")
        steps.step("Tab to the job of yesterday, Enter")
        answers(page)
        keys += steps.tab_to(f"[...({CPU}).querySelectorAll('button')].find(e => e.textContent === 'CSV')") + 1
        page.press("Enter")
        assert curve(folder) == pytest.approx(5.83, rel=0.01), "cores, the mean of the hosts"
        steps.step("Tab to CSV of the chart CPU, Enter")
        print(f"{keys} keys, {len(steps.done)} steps: {'; '.join(steps.done)}")
        assert keys < 80
        assert page.complaints() == []
