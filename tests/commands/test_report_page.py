"""The report as a page and as a picture: whole, self-contained, and safe whatever the names are."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from colmet.commands import report as command
from colmet.common.errors import ColmetError
from colmet.common.lines import JobCompleteness, JobGap, Line
from colmet.jobs.figures import (
    Advice,
    Cpu,
    Curve,
    Energy,
    GpuUse,
    HostFigures,
    InputOutput,
    MemoryUse,
    Report,
    Shared,
    Whereabouts,
)
from colmet.jobs.report import charts, page
from colmet.jobs.report.charts import TextRow
from colmet.jobs.report.requested import verdict

START = 1_700_000_000
NASTY = "<script>alert(1)</script>\"'&\x1b[31m\u202e$x$"
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Parsed(HTMLParser):
    """A page: its elements, and whether each that was opened was closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attrs for one, attrs in self.elements if one == tag]


def made(hosts=("node-1", "node-2"), samples=50):
    times = START + 5.0 * np.arange(samples)
    lines = tuple(Line(host, "", times, np.linspace(0, 2 + n % 3, samples)) for n, host in enumerate(hosts))
    return Report(
        *(4242, "alice", "ended", START, START + 250, 250.0, None, None, samples, 5.0),
        cpu=Cpu(300.0, "cgroup", 200.0, 100.0, 1.0, cpus=8.0, available_s=1000.0),
        time=Whereabouts(300.0, 100.0, note="waits for swap are not counted"),
        memory=MemoryUse(hosts[0], 4 << 30, limit_bytes=4 << 30, oom_kills=2),
        io=InputOutput(1e9, 2e9, source="tasks"),
        nodes=Shared(network_sent_bytes=1e9),
        gpus=(GpuUse(hosts[0], "GPU-1", "H200", use_ratio=0.25),),
        energy=Energy(1000.0, 200.0, 300.0, None, 1500.0, "rapl", "by CPU time", 1.0),
        completeness=JobCompleteness(90, 10, "ledger", (JobGap(hosts[0], START, START + 9, "late", ("t",), 2),)),
        hosts=tuple(HostFigures(host, START, START + 250, 50, 250.0, 4.0, 150.0, 3 << 30) for host in hosts),
        advice=(Advice("cpu-low", "used 1.2 of 8 cores", "less than half"),),
        curves=(
            Curve("cpu", "CPU", "cores", lines, 4.0),
            Curve("memory", "Memory", "bytes", lines),
            Curve("read", "Read", "bytes/s", ()),
        ),
    )


def html(report):
    return page.html(report).decode()


def test_the_page_has_all_that_the_report_says():
    text = html(made())
    parsed = Parsed(text)
    for said in (
        *(
            "Job 4242 of alice on 2 hosts: ended",
            "used 1.2 of 8 cores",
            "30 %",
            "less than half",
            "H200",
            "CPU, of 4 cores",
        ),
        *("2 hosts: from 0 to 3 cores, 1.25 on average.", "node-2", "by CPU time", "90 %"),
    ):
        assert said in parsed.text, said
    assert '<p class="alarm">processes killed for lack of memory: 2</p>' in text
    bars = [float(attrs["width"]) for attrs in parsed.all("rect") if attrs.get("class") == "cyan"]
    assert bars == [30.0]
    assert len(parsed.all("figure")) == 3 and len(parsed.all("tr")) == 3
    assert len(text) < 60_000


def test_the_page_loads_nothing_and_runs_nothing():
    text = html(made())
    parsed = Parsed(text)
    assert not [url for url in re.findall(r"(?i)[a-z]+://[^\s\"'<)]*", text) if "www.w3.org" not in url]
    assert {tag for tag, _ in parsed.elements}.isdisjoint({"script", "img", "iframe", "object", "base", "form"})
    assert [attrs["href"] for attrs in parsed.all("link")] == ["data:,"]  # no icon, which browsers request otherwise
    for tag, attrs in parsed.elements:
        assert "style" not in attrs and not [name for name in attrs if name.startswith("on")]
        named = [attrs[name] for name in ("href", "src", "xlink:href") if name in attrs and tag != "link"]
        assert all(one.startswith("#") for one in named)
    (policy,) = [attrs["content"] for attrs in parsed.all("meta") if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = [name for attrs in parsed.all("svg") for name in attrs.get("aria-labelledby", "").split()]
    assert named and set(named) <= set(ids)


@pytest.mark.slow
def test_names_are_text_in_the_page_and_in_the_picture():
    """Whatever comes from a node, a user or a file."""
    report = replace(
        made((NASTY, "b")),
        user=NASTY,
        advice=(Advice(NASTY, NASTY, NASTY),),
        advice_withheld=NASTY,
        gpus=(GpuUse(NASTY, NASTY, NASTY, use_ratio=2.0),),
        time=Whereabouts(1.0, note=NASTY),
        warnings=(NASTY,),
    )
    report = replace(report, curves=(replace(report.curves[0], title=NASTY),))
    text = html(report)
    parsed = Parsed(text)
    assert not parsed.all("script")
    assert "\x1b" not in text and "\u202e" not in text and "<script>alert(1)</script>" in parsed.text
    assert page.png(report).startswith(b"\x89PNG")


def test_many_hosts_are_bands_and_a_table_that_ends():
    hosts = [f"node-{n}" for n in range(500)]
    report = made(hosts)
    text = html(replace(report, curves=report.curves[:1]))
    parsed = Parsed(text)
    assert "lowest to highest of 500" in parsed.text and "and 300 more" in parsed.text
    assert len(parsed.all("tr")) == 1 + page.MOST_HOSTS and len(parsed.all("details")) == 1
    assert len(text) < 100_000


def test_a_report_of_which_little_is_known_is_a_page_too():
    nothing = Report(
        *(1, "", "unknown", START, START, 0.0, None, None, 1, None),
        *(Cpu(), Whereabouts(), MemoryUse(), InputOutput(), Shared(), (), Energy(), JobCompleteness(1, 0, "steps")),
        hosts=(HostFigures("node-1", START, START, 1, 0.0),),
        advice_withheld="it has fewer than 2 samples",
    )
    parsed = Parsed(html(nothing))
    assert "it has fewer than 2 samples" in parsed.text and not parsed.all("figure") and not parsed.all("table")
    assert page.png(nothing)


@pytest.mark.slow
def test_the_picture_says_why_advice_is_withheld_and_what_could_not_be_read(monkeypatch):
    texts = []
    draw = page.charts.draw
    monkeypatch.setattr(page.charts, "draw", lambda *a, **more: texts.append(more["text"]) or draw(*a, **more))
    report = replace(made(), curves=(), advice=(), gpus=(), warnings=("jobs.hdf5: cannot be read",))
    report = replace(report, cpu=replace(report.cpu, used_s=900.0))
    for why in ("", "only 90 % of its samples are there"):
        page.png(replace(report, advice_withheld=why))
    warning = TextRow("Warning", "jobs.hdf5: cannot be read")
    assert all(text[-1] == warning for text in texts)
    assert [[row for row in text if "dvice" in row.label + row.text] for text in texts] == [
        [],
        [TextRow("Advice", "No advice: only 90 % of its samples are there.")],
    ]


def test_the_picture_has_bars_for_shares_and_the_verdict_in_its_colours():
    report = made()
    rows = {row.text.replace("\N{NO-BREAK SPACE}", " "): row for row in page.text_rows(report)}
    graded = [row for row in rows.values() if row.colour in ("good", "low", "poor", "exceeded") and row.share is None]
    assert [row.text for row in graded][: len(verdict(report))] == [one.sentence for one in verdict(report)]
    shares = [row for row in rows.values() if row.share is not None]
    assert len(shares) > 3 and all(0 <= row.share <= 1 and row.colour in charts.BAR_COLOURS for row in shares)
    figure = charts.draw([], 800, 400, text=page.text_rows(report))
    (axes,) = figure.axes
    assert len(axes.patches) == 2 * len(shares)


def test_where_it_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(ColmetError, match="No such file"):
        command.save(str(tmp_path / "none" / "report.html"), b"")
