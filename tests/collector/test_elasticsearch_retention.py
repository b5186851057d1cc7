"""Policies for old rows, against a server that answers as Elasticsearch and OpenSearch do."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from colmet.collector.backends.elasticsearch import retention
from colmet.collector.backends.elasticsearch.documents import IndexNaming
from colmet.collector.backends.elasticsearch.output import ElasticsearchOutput
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from tests.collector.test_elasticsearch import record
from tests.support.elastic_server import Elastic, error
from tests.support.elastic_writer import Writer

DAY = 86400
NAMING = IndexNaming("colmet_", "%Y.%m.%d", False)
TODAY, OLD = "colmet_job_default-2023.11.14", "colmet_job_default-2022.01.01"
OTHERS = ("colmet_archive-jobs", "colmet_archive-hosts", "colmet_job_default", "other-2022.01.01")
FILES = Path(__file__).parents[2] / "packaging/elasticsearch"


class Managed(Elastic):
    """A server with ILM, or with ISM.

    Attributes:
        policies: by name.
        policy_of: of each index with one.
    """

    def __init__(self, is_ism):
        self.policies, self.policy_of, self.settings = {}, {}, {}
        self.is_ism = is_ism
        super().__init__()

    def _manage(self, method, path, body):
        content = json.loads(body) if body else None
        path = path.partition("?")[0]
        if path == "/":
            return 200, {"version": {"number": "9.0.0", **({"distribution": "opensearch"} if self.is_ism else {})}}
        start = "/_plugins/_ism/policies/" if self.is_ism else "/_ilm/policy/"
        if path.startswith(start):
            name = path[len(start) :]
            if method == "PUT":
                self.policies[name] = content
            return (200, self.policies[name]) if name in self.policies else error(404, "not_found")
        if path.endswith("/_settings"):
            return self._settings(method, path[1:].partition("/")[0], content)
        found = re.fullmatch("/_plugins/_ism/(explain|add|change_policy)/(.*)", path)
        if found and self.is_ism:
            return self._ism(found[1], found[2].split(","), content)
        return super()._manage(method, path, body)

    def _settings(self, method, names, content):
        if "*" in names:
            names = ",".join(
                [name for name in self.indices if "-" in name and name.startswith(names.partition("*")[0])]
            )
        some = [name for name in names.split(",") if name in self.indices]
        if method == "PUT":
            for name in some:
                self.policy_of[name] = content["index.lifecycle.name"]
                self.settings[name] = content
            return 200, {"acknowledged": True}
        about = {name: {"uuid": "x"} for name in some}
        for name in set(some) & set(self.policy_of):
            date = self.settings.get(name, {}).get("index.lifecycle.origination_date", "")
            about[name]["lifecycle"] = {"name": self.policy_of[name], "origination_date": str(date)}
        return 200, {name: {"settings": {"index": one}} for name, one in about.items()}

    def _ism(self, what, names, content):
        if what == "explain":
            return 200, {name: {retention.ISM_POLICY_OF: self.policy_of.get(name)} for name in names}
        for name in names:
            assert (name in self.policy_of) == (what == "change_policy")
            self.policy_of[name] = content["policy_id"]
        return 200, {"updated_indices": len(names), "failures": False, "failed_indices": []}


@pytest.fixture(params=[False, True], ids=["ilm", "ism"])
def server(request):
    made = Managed(request.param)
    for name in (OLD, *OTHERS):
        made.indices[name] = {}
    yield made
    made.close()


def write(folder, server, keep_s=90 * DAY, number=0):
    writer = Writer(folder, server.url, place=NAMING, keep_s=keep_s)
    writer.write(record(number))
    return writer


def test_dated_indices_of_today_and_of_earlier_starts_get_the_policy_and_no_others(tmp_path, server):
    write(tmp_path, server)
    (name,) = server.policies
    assert server.policy_of == {TODAY: name, OLD: name}
    text = json.dumps(server.policies[name])
    assert ('"91d"' if server.is_ism else '"90d"') in text and text.count('"delete"') >= 1
    if not server.is_ism:  # the age counts from the end of the day in the name
        assert server.settings[OLD]["index.lifecycle.origination_date"] == 1641081600000
    asked = len(server.requests)
    write(tmp_path, server, number=1)
    assert not [one for one in server.requests[asked:] if one[0] in ("PUT", "POST") and "_settings" in one[1]]


@pytest.mark.parametrize("prefix", ["", "log", "colmet_"])
def test_indices_of_other_programs_with_the_same_prefix_never_get_a_policy(tmp_path, server, prefix):
    others = [f"{prefix}stash-2022.01.01", f"{prefix}test_job_default-2022.01.01", "logstash-2022.01.01"]
    for name in (*others, f"{prefix}job_default-2022.01.01", f"{prefix}cgroup_default-2022.01.01"):
        server.indices[name] = {}
    Writer(tmp_path, server.url, place=NAMING._replace(prefix=prefix), keep_s=90 * DAY).write(record(0))
    own = {
        f"{prefix}{name}" for name in ("cgroup_default-2022.01.01", "job_default-2022.01.01", "job_default-2023.11.14")
    }
    assert own <= set(server.policy_of) and not set(server.policy_of) & set(others)


def test_a_changed_period_counts_for_all_indices(tmp_path, server):
    write(tmp_path, server)
    write(tmp_path, server, 30 * DAY, 1)
    if server.is_ism:
        assert server.policy_of == dict.fromkeys((TODAY, OLD), "colmet_rows_31d")
    else:
        assert '"30d"' in json.dumps(server.policies["colmet_rows"])


def test_an_index_with_a_policy_of_the_site_keeps_it(tmp_path, server):
    server.policy_of[OLD] = "ours"
    write(tmp_path, server)
    assert server.policy_of[OLD] == "ours" and TODAY in server.policy_of


def test_rows_are_written_where_no_policy_can_be_set(tmp_path, server, caplog):
    for status, kind in ((403, "security_exception"), (400, ""), (500, "oops")):
        server.script = {("PUT", "/_ilm"): [error(status, kind)], ("PUT", "/_plugins"): [error(status, kind)]}
        writer = write(tmp_path, server, number=status)
        assert writer.count("policy_failures") == (1,) and "old rows are not removed" in caplog.text
    assert len(server.indices[TODAY]) == 6 and not server.policy_of


def test_the_shipped_policies_are_those_that_the_collector_sets():
    period = retention.period_s("%Y.%m.%d")
    assert json.loads((FILES / "ilm-policy.json").read_text()) == retention.ilm_policy(90 * DAY)
    assert json.loads((FILES / "ism-policy.json").read_text()) == retention.ism_policy(90 * DAY + period)


def from_options(*arguments):
    parser = cli.Parser()
    ElasticsearchOutput.add_options(parser)
    options = parser.parse_args(["--elastic-host", "http://db:9200", *arguments])
    assert isinstance(options, argparse.Namespace)
    return ElasticsearchOutput.from_options(options)


def test_keeping_requires_dates_in_the_names_of_indices():
    with pytest.raises(ConfigError, match="without a date"):
        from_options("--elastic-keep", "90d")
    with pytest.raises(ConfigError, match="policy of your own"):
        from_options("--elastic-keep", "90d", "--elastic-data-stream")
    for unreadable in ("%Y.%V", "%G.%m", "%Y.%d", "%m.%d", "%Y.%m.%d.%Y"):
        with pytest.raises(ConfigError, match="does not tell when an index ends"):
            from_options("--elastic-keep", "90d", "--elastic-date-suffix", unreadable)
    output = from_options("--elastic-keep", "90d", "--elastic-date-suffix", "%Y.%m.%d")
    assert output is not None and output._retention is not None and output._retention.policy == "colmet_rows"
    output.close()
    output = from_options()
    assert output is not None and output._retention is None
    output.close()


@pytest.mark.parametrize(
    ("form", "text", "days", "end"),
    [
        ("%Y.%m.%d", "2026.11.21", 1, 1795305600),
        ("%Y-%j", "2026-325", 1, 1795305600),
        ("%Y.%m", "2026.11", 31, 1793491200 + 31 * DAY),
        ("%G-w%V", "2026-w47", 7, 1795392000),
        ("%Y.%m.%d-%H", "2026.11.21-23", 1 / 24, 1795305600),
    ],
)
def test_the_last_row_of_an_index_is_known_from_its_name(form, text, days, end):
    assert retention.period_s(form) == days * DAY
    made = retention.Retention(None, "colmet_", form, DAY)  # type: ignore[arg-type]
    assert made._end_s(f"colmet_job_default-{text}") == end
