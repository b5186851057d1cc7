"""Every panel of the dashboard of usage, asked of a real OpenSearch as Grafana asks, against sums of the summaries."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from colmet.jobs.archive.derived import ANSWERS, sql_of
from colmet.jobs.archive.documents import JOBS, forms
from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import BLOB
from dev.dashboards import usage
from tests.beds import grafana
from tests.beds.search import Server
from tests.support.archive_data import YEAR_START, summaries, write

pytestmark = pytest.mark.live

DASHBOARD = Path(__file__).parents[2] / "packaging/grafana/dashboards/opensearch/usage.json"
INDEX = f"colmet_{JOBS}"
DAY = 86400
START, END = YEAR_START + 100 * DAY, YEAR_START + 160 * DAY - 1
CHARTS = [chart for charts in usage.SECTIONS.values() for chart in charts]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with a thousand jobs, and these."""
    store = ArchiveStore(str(tmp_path_factory.mktemp("archive") / "a.sqlite"), writable=True)
    write(store, summaries(1000))
    names = [name for name, column in ANSWERS.items() if column.kind != BLOB and name != "advice"]
    chosen = ", ".join(f'{sql_of(name)} AS "{name}"' for name in names)
    jobs = [dict(row) for row in store.database.execute(f"SELECT {chosen} FROM jobs")]
    store.close()
    form = forms()[JOBS]
    documents = [{name: value for name, value in job.items() if value is not None} for job in jobs]
    with Server("opensearch") as server:
        server.ask("PUT", f"/{INDEX}", form)
        server.ask("PUT", "/colmet_taskstats_default", {})  # of other indices nothing counts
        lines = [line for n, one in enumerate(documents) for line in ({"index": {"_index": INDEX, "_id": str(n)}}, one)]
        assert not server.ask("POST", "/_bulk?refresh=true", lines)["errors"]
        yield server, [job for job in jobs if START <= job["end"] <= END]


def panels():
    return [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]


def figure_of(figure, jobs):
    if figure.field == usage.COUNT:
        return len(jobs)
    return sum([job[figure.field] or 0 for job in jobs]) / figure.divisor


@pytest.mark.parametrize("number", range(len(CHARTS)), ids=[f"{one.title}" for one in CHARTS])
def test_a_panel_has_the_sums_of_the_jobs(site, number):
    server, jobs = site
    chart, panel = CHARTS[number], panels()[number]
    assert panel["title"] == chart.title and len(jobs) > 100
    answers = grafana.searched(server, panel, {"prefix": "colmet_", "step": "1d"}, START, END)
    groups = collections.defaultdict(list)
    for job in jobs:
        groups[(job[chart.by] or usage.NOBODY) if chart.by else ""].append(job)
    size = usage.ROWS if chart.kind == "table" else usage.TOP
    first = chart.figures[0]
    largest = sorted(groups, key=lambda one: figure_of(first, groups[one]), reverse=True)[:size]
    if chart.kind == "table":
        (target,) = panel["targets"]
        shown = {one["matcher"]["options"]: one["properties"][0]["value"] for one in panel["fieldConfig"]["overrides"]}
        rows = grafana.rows_of(target, answers[0])
        assert [figure_of(first, groups[row[chart.by]]) for row in rows] == pytest.approx(
            [figure_of(first, groups[one]) for one in largest]
        )
        for row in rows:
            by_label = {shown[name]: value for name, value in row.items()}
            for figure in chart.figures:
                assert by_label[figure.label] == pytest.approx(figure_of(figure, groups[row[chart.by]]), rel=1e-9)
        return
    for figure, target, answer in zip(chart.figures, panel["targets"], answers):
        lines = grafana.draw(target, answer)
        assert len(lines) == (len(largest) if chart.by else 1)
        for line in lines:
            name = line.labels.get(chart.by, "")
            days = collections.defaultdict(list)
            for job in groups[name]:
                days[job["end"] // DAY * DAY].append(job)
            if chart.kind == "number":
                assert sum([value or 0 for _, value in line.points]) == pytest.approx(figure_of(figure, jobs), rel=1e-9)
                continue
            assert name == line.name or not chart.by
            found = {at: value for at, value in line.points if value}
            assert found == pytest.approx(
                {at: value for at, some in days.items() if (value := figure_of(figure, some))}
            )
