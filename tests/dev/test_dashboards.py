"""The dashboards for Grafana. That their panels show what is stored, tests/beds/test_grafana.py tests."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from colmet.jobs.archive.derived import ANSWERS
from dev.dashboards import usage
from dev.dashboards.grafana import files
from dev.dashboards.model import DISTINCT, INCREASE, LARGEST, MEAN, RATE, Line
from dev.dashboards.panels import agent, metric

FOLDER = Path(__file__).resolve().parents[2] / "packaging/grafana/dashboards"
TEXTS = {str(name): text for name, text in files()}
MADE = {name: json.loads(text) for name, text in TEXTS.items()}
BUILT_IN = {"__all", "__auto_interval_step", "__auto_interval_slow_step"}
BUILT_IN |= {"__rate_interval", "__url_time_range", "__value"}


def test_the_files_are_up_to_date():
    there = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.json")}
    assert there == TEXTS, "run `make dashboards`"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (Line("cgroups", "cpu_usage"), "no table cgroups"),
        (Line("cgroup_default", "cpu_usages"), "has no column cpu_usages"),
        (Line("raplzones_default", "power", by=("host", "zones")), "has no column zones"),
        (Line("agent_default", "rss", where={"backends": "agent"}), "has no column backends"),
        (Line("cgroup_default", "memory_current", how=RATE), "is a gauge: there is no rate of it"),
        (Line("cgroup_default", "user"), "is a label: there is no line of it"),
        (Line("cgroup_default", "user", how=LARGEST), "is a label: there is no largest of it"),
        (Line("taskstats_default", "coremem"), "no unit for the rate of mbytes-usec"),
    ],
)
def test_what_no_schema_declares_is_refused(line, why):
    with pytest.raises(ValueError, match=why):
        _ = line.unit


def test_names_in_prometheus_are_of_declared_columns_only():
    assert metric("cgroup_default", "cpu_usage") == "colmet_job_cgroup_cpu_usage_total"
    assert metric("nvidiastats_default", "utilization-gpu") == "colmet_job_nvidiastats_utilization_gpu"
    assert agent("cpu_time") == "colmet_node_cpu_time_seconds_total"
    with pytest.raises(ValueError, match="no column cpu"):
        metric("cgroup_default", "cpu")
    with pytest.raises(KeyError):
        agent("cpu")


@pytest.mark.parametrize(
    ("table", "column", "how", "unit"),
    [
        ("cgroup_default", "cpu_usage", "", "si:ncores"),
        ("cgroup_default", "cpu_usage", LARGEST, "ns"),
        ("cgroup_default", "cpu_pressure_some", "", "si:µcores"),
        ("procstats_default", "stat_cpu_user", "", "suffix:cores"),
        ("procstats_default", "vmstat_pgpgin", "", "KiBs"),
        ("procstats_default", "meminfo_memfree", "", "kbytes"),
        ("taskstats_default", "read_bytes", "", "binBps"),
        ("taskstats_default", "read_bytes", INCREASE, "bytes"),
        ("raplzones_default", "energy", "", "si:µW"),
        ("raplzones_default", "power", MEAN, "watt"),
        ("temperatures_default", "temperature", "", "celsius"),
        ("nvidiagpus_default", "clock_sm", "", "si:MHz"),
        ("cgroup_default", "user", DISTINCT, "short"),
    ],
)
def test_units_follow_from_the_schema(table, column, how, unit):
    assert Line(table, column, how=how).unit == unit


def test_elasticsearch_and_opensearch_are_asked_the_same():
    for name in ("cluster", "node", "job", "usage"):
        one, other = [(FOLDER / source / f"{name}.json").read_text() for source in ("elasticsearch", "opensearch")]
        other = other.replace("grafana-opensearch-datasource", "elasticsearch").replace("opensearch", "elasticsearch")
        made = json.loads(other.replace("Opensearch", "Elasticsearch"))
        for panel in made["panels"]:
            for target in panel.get("targets", ()):
                assert (target.pop("queryType"), target.pop("luceneQueryType")) == ("lucene", "Metric")
                for one_of in target["bucketAggs"]:
                    if "trimEdges" in one_of["settings"]:  # its own data source reads a number only
                        assert one_of["settings"]["trimEdges"] == 1
                        one_of["settings"]["trimEdges"] = "1"
        assert made == json.loads(one)


def test_usage_has_fields_of_the_archive_only():
    source = usage.Source("elasticsearch", "elasticsearch", {})
    for chart, why in (
        (usage.Chart("-", "lines", [usage.Figure("-", "cores")]), "no cores of kind"),
        (usage.Chart("-", "lines", [usage.Figure("-", "queue")]), "no queue of kind"),
        (usage.Chart("-", "table", [usage.JOBS], "cpu_ratio"), "no cpu_ratio of kind"),
    ):
        with pytest.raises(ValueError, match=why):
            usage._targets(chart, source)
    assert ANSWERS[usage.TIME].unit == "date"


@pytest.mark.parametrize("name", MADE)
def test_a_dashboard_is_whole(name):
    """Ids are its own, panels do not cover each other, and every variable that is used is there."""
    dashboard = MADE[name]
    assert len({one["uid"] for one in MADE.values()}) == len(MADE) and len(dashboard["uid"]) <= 40
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 4
    covered = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not covered & cells and place["x"] + place["w"] <= 24
        covered |= cells
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)
        ids = [re.findall(r'"id": "(\d+)"', json.dumps(target)) for target in panel.get("targets", ())]
        assert all(len(set(one)) == len(one) for one in ids)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {one or other for one, other in re.findall(r"\$(?:(\w+)|\{(\w+))", json.dumps(dashboard))}
    assert variables | BUILT_IN >= used >= {"datasource"}
    assert {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())} == {"${datasource}"}


if sys.version_info >= (3, 11):  # which the package requires
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    def lost(given, kept, place=""):
        """What of some JSON is not in other JSON, or not the same."""
        if isinstance(given, dict) and isinstance(kept, dict):
            for key, value in given.items():
                yield from lost(value, kept.get(key), f"{place}/{key}")
        elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
            for n, (one, other) in enumerate(zip(given, kept)):
                yield from lost(one, other, f"{place}/{n}")
        elif given != kept:
            yield place

    def through_the_schema(dashboard):
        """A dashboard as the types that Grafana publishes read and write it: what these do not know is gone."""
        plugins.register_default_plugins()
        return json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))

    @pytest.mark.parametrize("name", MADE)
    def test_a_dashboard_has_nothing_that_the_schema_of_grafana_does_not_know(name):
        assert list(lost(MADE[name], through_the_schema(MADE[name]))) == []

    def test_the_schema_knows_panels_and_queries():
        made = json.loads(json.dumps(MADE["elasticsearch/job.json"]))
        made["unknown"] = 1
        made["panels"][1]["options"].update(unknown=1)
        made["panels"][1]["targets"][0]["metrics"][0]["unknown"] = 1
        made["panels"][1]["fieldConfig"]["defaults"]["unknown"] = 1
        assert [place.rpartition("/")[2] for place in lost(made, through_the_schema(made))] == ["unknown"] * 4
