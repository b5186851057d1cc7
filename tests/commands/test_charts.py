"""Lines over time and their charts: rates, units, gaps, bands, and names that mean something elsewhere."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import numpy as np
import pytest

from colmet.common.lines import Line
from colmet.common.schema import UNITS, Field, Unit
from colmet.common.text import UTC, Clock
from colmet.jobs.report import charts
from colmet.jobs.report.charts import Panel
from colmet.stored import curves
from colmet.stored.curves import lines, unit_of
from colmet.stored.series import Series

START = 1_700_000_000
CPU = Field("cpu_usage", "nsec", "counter", "CPU time.")
NASTY = '$x^2$ <script>alert(1)</script> \x1b[31m"&\ud800'


def series(times, host="node-1", **columns):
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Series("table", host, 1, np.array(times, np.int64), arrays)


def line(values, host="node-1", step=5):
    return Line(host, "", START + step * np.arange(len(values), dtype=float), np.array(values, float))


def drawn(*panels, **options):
    return charts.draw(panels, 500, 200, UTC, **options)


def data(axes):
    """What the lines of a chart show, by name; without the dots of lone samples."""
    return {one.get_label(): one.get_xydata() for one in axes.lines if one.get_linestyle() != "None"}


def test_a_counter_is_a_rate_in_the_unit_of_its_quantity():
    found = [series([0, 5, 10], cpu=[10 * 10**9, 15 * 10**9, 25 * 10**9])]
    of_it = unit_of(CPU, rate=True)
    (one,) = lines(found, "cpu", None, True, of_it.factor)
    assert of_it.symbol == "cores" and one.times.tolist() == [5, 10]
    assert one.values.tolist() == pytest.approx([1, 2])


def test_no_line_goes_over_a_gap():
    times = [0, 5, 10, 100, 105, 110]
    (gauge,) = lines([series(times, n=[1, 1, 1, 2, 2, 2])], "n", None, False, 1.0)
    assert gauge.times.tolist() == [0, 5, 10, 55, 100, 105, 110] and np.isnan(gauge.values[3])
    (rate,) = lines([series(times, n=[0, 5, 10, 500, 505, 510])], "n", None, True, 1.0)
    assert np.array_equal(rate.values, [1, 1, np.nan, 1, 1], equal_nan=True)


def test_rows_of_several_things_at_one_time_are_a_line_each():
    found = [series([0, 0, 5, 5], zone=[b"core", b"dram"] * 2, energy=[1, 2, 3, 6])]
    made = lines(found, "energy", "zone", True, 1.0)
    assert {one.name: one.values.tolist() for one in made} == {"node-1 core": [0.4], "node-1 dram": [0.8]}


def test_a_long_line_keeps_its_peaks_and_gaps():
    values = np.zeros(10_000)
    values[1234], values[7000], values[5000:5100] = 9, -9, np.nan
    thin = curves.thinned(line(values), 100)
    assert len(thin.times) < 200 and np.nanmax(thin.values) == 9 and np.nanmin(thin.values) == -9
    assert np.isnan(thin.values).any() and (np.diff(thin.times) > 0).all()


def test_the_chart_shows_the_values_in_its_unit_and_a_lone_sample_as_a_dot():
    figure = drawn(Panel("memory", UNITS["bytes"], [line([2**30, np.nan, 2**31, 2**31])]))
    (axes,) = figure.axes
    shown = data(axes)["node-1"]
    assert np.array_equal(shown[:, 1], [1, np.nan, 2, 2], equal_nan=True)
    assert shown[0, 0] * 86400 == pytest.approx(START)
    assert [one.get_ydata().tolist() for one in axes.lines if one.get_linestyle() == "None"] == [[1]]
    assert "2 GiB" in [text.get_text() for text in axes.get_yticklabels()] and axes.get_ylim()[0] == 0
    assert axes.get_xlabel() == "2023-11-14, UTC"


def test_many_lines_become_a_band_that_says_so():
    many = [line([n, np.nan if n else 5, n], f"node-{n}") for n in range(21)]
    figure = drawn(Panel("load", Unit("", ""), many))
    (axes,) = figure.axes
    middle = data(axes)["median"][:, 1]
    assert middle.tolist() == [10, 5, 10]
    (area,) = axes.collections
    assert {0.0, 20.0, 5.0} == set(area.get_paths()[0].vertices[:, 1])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["median", "lowest to highest of 21"]


def test_a_host_has_one_colour_in_all_charts_and_is_named_once():
    a, b = line([1, 2], "a"), line([2, 3], "b")
    first, second, third = drawn(*[Panel("x", Unit("", ""), some) for some in ([a, b], [b], [a, b])]).axes
    assert [one.get_label() for one in second.lines[:1]] == ["b"]
    assert second.lines[0].get_color() == charts.COLOURS[1] == first.lines[2].get_color()
    assert first.get_legend() is not None and third.get_legend() is None


def test_ticks_are_at_round_times_of_the_zone(monkeypatch):
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    try:
        (axes,) = charts.draw([Panel("", Unit("", ""), [])], 900, 190, Clock(), ends=(START, START + 20_000)).axes
        assert [text.get_text() for text in axes.get_xticklabels()][:4] == ["04:00", "05:00", "06:00", "07:00"]
        assert axes.get_xlabel() == "2023-11-15, IST"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.slow
def test_names_mean_nothing_in_pictures():
    """TeX, XML and control characters in names are text."""
    figure = drawn(Panel(NASTY, Unit("bytes", "B"), [line([1, 2], NASTY), line([1, 2])]), title=NASTY)
    assert charts.rendered(figure, "png").startswith(b"\x89PNG")
    text = charts.rendered(figure, "svg")
    root = ElementTree.fromstring(text)
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    assert "$x^2$ <script>alert(1)</script>" in "".join(root.itertext())
    assert "\x1b" not in charts.inline_svg(figure, "c1", NASTY, NASTY)


def test_a_picture_in_a_page_has_the_page_s_colours_and_ids_of_its_own():
    figure = drawn(Panel("x", Unit("bytes", "B"), [line([1, 2, 3])]))
    text = charts.inline_svg(figure, "c7", "CPU", "of a job")
    root = ElementTree.fromstring(text)
    assert root.tag == "svg" and [node.text for node in root[:2]] == ["CPU", "of a job"]
    assert not [node for node in root.iter() if "style" in node.attrib or node.tag in ("style", "metadata")]
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert ids and all(name.startswith("c7-") for name in ids)
    for node in root.iter():
        clip = node.attrib.get("clip-path")
        assert clip is None or clip[5:-1] in ids
    assert charts.INK not in text and "currentColor" in text
    assert len(text) < 20_000
