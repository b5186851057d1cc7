"""Every panel of every dashboard, asked of a real OpenSearch and a real Prometheus as Grafana asks, see grafana.py.

Both are fed by the real daemons: a node with a real job, and made-up nodes with all that this machine has not, which
send what they measured in the last twenty minutes, and then live. What a panel shows is compared with the collector's
HDF5 file, and for the real job with its cgroup.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import random
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from colmet.common.measures import MEMORY
from colmet.common.schema import Batch, Sample, Table
from colmet.common.transport import Push
from colmet.common.wire import v1
from dev.dashboards.model import DISTINCT, INCREASE, LARGEST, MEAN, RATE, TOTAL, Line, schemas
from dev.dashboards.panels import SCRAPED, STORED
from dev.live import JobRoot
from tests.beds import grafana
from tests.beds.search import Server
from tests.support.daemons import Daemon
from tests.support.place import cannot_run
from tests.support.waiting import free_port, wait_for

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "packaging/grafana/dashboards"
COMMON = Path(__file__).with_name("common.sh")

HOSTS = {"dahu-1": (4241, 4242), "dahu-2": (4242,), "gros-3.site": (4243,)}  # made up, and their jobs
JOB = 4242
REAL_JOB = 101
ON_HOSTS = 1 + sum([len(jobs) for jobs in HOSTS.values()])  # jobs on hosts, the real one, too
PERIOD_S = 10
TICKS = 120
AWAY = ("dahu-2", range(40, 55))  # a host that is not heard of for some ticks: there are empty steps
LIVE_S = 18
STEP_S = 5  # of Prometheus' panels
NOT_HERE = {"mapping_default"}  # no panel shows it
SPLIT = collections.defaultdict(set)  # table -> the labels that tell its rows apart
for _dashboard in STORED:
    for _section in _dashboard.sections:
        for _panel in _section.panels:
            for _line in _panel.lines:
                SPLIT[_line.table].update({*_line.by, *_line.where} - {"host", "job"})
LABELS = {"backend": (b"agent", b"procstats"), "table": (b"taskstats_default", b"*")}


class MadeUp:
    """Nodes that have everything: counters that grow at a pace of their own, and gauges."""

    def __init__(self, uri):
        self._push = {host: Push(uri, 10_000, 10_000) for host in HOSTS}
        self._rng = random.Random(7)
        self._epoch = time.time_ns()
        self._seq = collections.Counter()
        self._counters = {}

    def tick(self, host, time_s, passed_s, steady=False):
        """What a node measures at a time, so long after the time before."""
        jobs, tables = HOSTS[host], []
        for schema in schemas().values():
            if schema.name in NOT_HERE or (schema.name == "gaps_default" and self._seq[host] != 5):
                continue
            samples = [
                Sample(job, self._values(schema, host, job, labels, passed_s, steady))
                for job in (jobs if schema.scope == "job" else (0,))
                for labels in self._labels(schema)
            ]
            tables.append(Table.from_samples(schema, time_s * 10**9, samples))
        batch = Batch(host, self._epoch, self._seq[host], time_s * 10**9, jobs, tuple(tables))
        self._seq[host] += 1
        assert self._push[host].send(v1.encode(batch))

    def _labels(self, schema):
        rows = [{}]
        for name in sorted(SPLIT[schema.name]):
            cells = LABELS.get(name, (f"{name}-a".encode(), f"{name}-b".encode()))
            rows = [{**row, name: cell} for row in rows for cell in cells]
        return rows

    def _values(self, schema, host, job, labels, passed_s, steady):
        values = {}
        for field in schema.fields:
            if field.dtype[0] == "S":
                values[field.name] = labels.get(field.name, b"some text")
            elif field.kind == "counter":
                key = (host, schema.name, job, *labels.values(), field.name)
                pace, total = self._counters.get(key, (self._rng.randrange(10**3, 10**6), 10**6))
                total += int(pace * passed_s * (1 if steady else 2 * self._rng.random()))
                self._counters[key] = pace, total
                values[field.name] = total if steady or self._rng.random() < 0.97 else None
            else:
                values[field.name] = (
                    float(np.float32(self._rng.random())) if field.dtype[0] == "f" else self._rng.randrange(10**9)
                )
        return values

    def remember(self):
        """Send what was measured in the last twenty minutes; when it began and ended."""
        end_s = int(time.time()) // PERIOD_S * PERIOD_S - 60
        times = [end_s - PERIOD_S * (TICKS - 1 - n) for n in range(TICKS)]
        for n, time_s in enumerate(times):
            for host in HOSTS:
                if (host, n) not in {(AWAY[0], tick) for tick in AWAY[1]}:
                    self.tick(host, time_s, PERIOD_S)
        return times[0], times[-1]

    def close(self):
        for push in self._push.values():
            push.close()


class Stored:
    """What the collector has written to its HDF5 files, by table: an array with one more column, `job`."""

    def __init__(self, prefix):
        self.tables = collections.defaultdict(list)
        for path in sorted(prefix.parent.glob(f"{prefix.name}.*.hdf5")):
            with h5py.File(path, "r") as file:
                for group in file:
                    for table in file[group]:
                        rows = file[group][table][...]
                        columns = {name: rows[name] for name in rows.dtype.names}
                        columns["job"] = np.full(len(rows), int(group.partition("_")[2]))
                        self.tables[table].append(columns)

    def rows(self, line, hosts, job, start_s, end_s):
        """Rows of a line: what it is split by, time, and the value or None."""
        if job is not None and line.schema.scope == "node":  # all of the nodes that it is on
            hosts, job = [host for host, jobs in hosts.items() if job in jobs], None
        hosts = [host.encode() for host in hosts]
        for columns in self.tables[line.table]:
            names = {"host": "hostname", "hostname": "hostname", "job_id": "job"}
            chosen = (columns["timestamp"] >= start_s) & (columns["timestamp"] <= end_s)
            chosen &= np.isin(columns["hostname"], hosts)
            if job is not None:
                chosen &= columns["job"] == job
            for name, value in line.where.items():
                column = columns[name]
                chosen &= column == value.encode() if value else (column != -1) & (column == column)
            wanted = [columns[names.get(name, name)][chosen].tolist() for name in (*line.by, line.column)]
            *keys, values = [[as_text(cell) for cell in cells] for cells in wanted]
            if line.column == "timestamp":
                values = [1000 * value for value in values]
            for n, (at_s, value) in enumerate(zip(columns["timestamp"][chosen].tolist(), values)):
                yield tuple([cells[n] for cells in keys]), at_s, None if missing(value) else value


def as_text(value):
    return value.decode() if isinstance(value, bytes) else value


def missing(value):
    return value in ("", -1) or value != value


def computed(line, rows, step_s, start_s, end_s):
    """What a line is to show: split by what -> {start of a step: value}; computed of the rows alone."""
    split = collections.defaultdict(lambda: collections.defaultdict(list))
    for key, at_s, value in rows:
        split[key][at_s // step_s * step_s].append(value)
    made = {}
    for key, steps in split.items():
        known = {s: [float(v) for v in values if v is not None] for s, values in steps.items() if line.way != DISTINCT}
        if line.way == DISTINCT:
            made[key] = {s: len(set(values)) for s, values in steps.items()}
        elif line.way in (RATE, INCREASE):
            ends = {s: max(values) for s, values in known.items() if values}
            unit_s = {RATE: 0.01 if line.field.unit == "jiffies" else 1, INCREASE: step_s}[line.way]
            made[key] = {s: (ends[s] - ends[s - step_s]) * unit_s / step_s for s in sorted(ends) if s - step_s in ends}
        else:
            made[key] = {s: float(np.mean(values)) for s, values in known.items() if values}
    return {key: steps for key, steps in made.items() if steps}


def total(line, rows, step_s):
    """What a total is to show: the mean of all rows, times the nodes that have a value."""
    steps = collections.defaultdict(list)
    for (host,), at_s, value in rows:
        if value is not None:
            steps[at_s // step_s * step_s].append((host, float(value)))
    return {s: np.mean([v for _, v in some]) * len({h for h, _ in some}) for s, some in steps.items()}


class Site:
    """All that was fed, after the daemons have ended, and what is known of it."""

    def __init__(self, folder):
        self.folder = folder
        self.host = socket.gethostname()
        self.hosts = {**HOSTS, self.host: (REAL_JOB,)}
        self.cpu = []  # of the real job's cgroup: seconds since 1970, ns


@pytest.fixture(scope="module")
def prometheus_program():
    # without starting the service that the package brings
    done = subprocess.run(["bash", "-c", '. "$0"; install_packages prometheus', str(COMMON)], check=False)
    if done.returncode or shutil.which("prometheus") is None:
        cannot_run("this needs the package prometheus")
    return "prometheus"


@pytest.fixture(scope="module")
def site(tmp_path_factory, prometheus_program):
    """Both servers, fed by both daemons."""
    made = Site(tmp_path_factory.mktemp("grafana"))
    with contextlib.ExitStack() as stack:
        made.server = stack.enter_context(Server("opensearch"))
        feed(made, prometheus_program, stack)
        made.server.ask("POST", "/colmet_*/_refresh")
        made.stored = Stored(made.folder / "h")
        yield made


def feed(site, program, stack):
    uri, folder = f"tcp://127.0.0.1:{free_port()}", site.folder
    root = JobRoot(f"colmet-grafana-{time.monotonic_ns()}")
    stack.callback(root.close)
    common = ("--control-socket", "", "--metrics-listen", "0", "--metrics-jobs")
    stores = (
        "--elastic-host",
        site.server.url,
        "--hdf5-filepath",
        str(folder / "h"),
        "--journal-dir",
        str(folder / "j"),
    )
    collector = Daemon(
        *("colmet.collector.main", folder / "collector.log", "--zeromq-bind-uri", uri, "--buffer-size", "1"),
        *(*common, *stores),
    )
    stack.callback(collector.stop)
    collector.said("listening")
    node = Daemon(
        *("colmet.node.main", folder / "node.log", "--zeromq-uri", uri, "-s", "1", "--cpuset_rootpath", str(root.path)),
        *("--state-dir", "", "--spool-dir", "", *common),
    )
    stack.callback(node.stop)
    site.pages = []
    for daemon in (collector, node):
        daemon.said("metrics at http")
        site.pages.append(re.search(r"metrics at http://(\S+)/metrics", daemon.log.read_text())[1])
    site.prometheus = start_prometheus(site, program, stack)
    nodes = MadeUp(uri)
    stack.callback(nodes.close)
    job = root.job(f"bob_{REAL_JOB}")
    job.start(["/bin/sh", "-c", "while :; do :; done"])
    node.said(f"job started job={REAL_JOB}")
    time.sleep(2)  # it has a row before those of the made-up nodes, whose connections come about
    site.began_s, site.ended_s = nodes.remember()
    site.live_s = int(time.time()) + 1
    second = 0
    while second < LIVE_S or not is_archived(site):
        assert second < LIVE_S + 90, collector.log.read_text()
        while time.time() < site.live_s + second:
            time.sleep(0.02)
            site.cpu.append((time.time(), job.cpu_ns()))
        for host in HOSTS:
            nodes.tick(host, site.live_s + second, 1, steady=True)
        second += 1
    site.over_s = int(time.time())
    url = f"{site.prometheus}"
    wait_for(lambda: grafana.asked(url, "query", query="colmet_node_ticks_total")["result"], timeout_s=60)
    assert node.stop()[0] == 0
    # at its end, the collector leaves in the journal what the database does not take in a few seconds
    behind = 'max_over_time(colmet_collector_output_waiting_records{output="elasticsearch"}[3s]) == 0'
    wait_for(lambda: grafana.asked(url, "query", query=behind)["result"], timeout_s=400)
    assert collector.stop()[0] == 0, collector.log.read_text()


def is_archived(site):
    """Whether the archive, which gathers rows for up to a minute, has all jobs since the last point of a panel."""
    query = f"min_over_time(colmet_collector_archive_open[{STEP_S + 1}s]) >= {ON_HOSTS}"
    return bool(grafana.asked(site.prometheus, "query", query=query)["result"])


def start_prometheus(site, program, stack):
    """Prometheus, scraping both daemons as the example that comes with the dashboards says, but each second."""
    example = (ROOT / "packaging/grafana/prometheus.yml").read_text()
    assert "honor_labels: true" in example
    targets = json.dumps(site.pages)
    text = re.sub(r"(?m)^( *- targets:).*$", rf"\1 {targets}", example).replace("15s", "1s")
    assert text.count(targets) == 1
    (site.folder / "prometheus.yml").write_text(text)
    listen = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={site.folder}/prometheus.yml", f"--storage.tsdb.path={site.folder}/d"]
    with open(site.folder / "prometheus.log", "w") as log:
        process = subprocess.Popen([program, *options, f"--web.listen-address={listen}"], stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return f"http://{listen}"


def panels(source, dashboard):
    """The panels of a dashboard as it is to be imported, beside what it was made of."""
    made = json.loads((DASHBOARDS / source / f"{dashboard.name}.json").read_text())
    made_panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    meant = [panel for section in dashboard.sections for panel in section.panels]
    assert [panel["title"] for panel in made_panels] == [panel.title for panel in meant]
    return zip(made_panels, meant)


def chosen(start_s, end_s, job=JOB, hosts=None, step="30s"):
    """The variables of a dashboard; all nodes are chosen where none is named."""
    made = json.loads((DASHBOARDS / "opensearch/cluster.json").read_text())
    (slow,) = [one for one in made["templating"]["list"] if one["name"] == "slow_step"]
    values = {"datasource": "x", "prefix": "colmet_", "step": step, "job": str(job)}
    return {**values, "slow_step": grafana.automatic(slow, start_s, end_s), "host": hosts or grafana.All("*")}


def close(value, expected):
    return value == pytest.approx(expected, rel=1e-6, abs=1e-9)


def assert_shown(drawn, expected, where):
    """Every line is drawn with its values; at the edges of the screen up to two steps are left out."""
    known = {tuple(map(str, key)): steps for key, steps in expected.items()}
    assert {tuple(map(str, line.labels.values())) for line in drawn} >= known.keys() and known, where
    for line in drawn:
        steps = known.get(tuple(map(str, line.labels.values())), {})
        found = {int(s): value for s, value in line.points if value is not None}
        assert found.keys() <= steps.keys(), where
        assert len(found) >= max(len(steps) - 2, min(len(steps), 1)), where
        for s, value in found.items():
            assert close(value, steps[s]), (where, line.name, s, value, steps[s])


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("dashboard", "hosts"),
    [*[(one, None) for one in STORED], pytest.param(STORED[-1], ["dahu-1", "gros-3.site"], marks=pytest.mark.slow)],
    ids=[*[one.name for one in STORED], "job on nodes that are chosen"],
)
def test_panels_show_what_is_stored(site, dashboard, hosts):
    start_s, end_s = site.began_s + 7, site.ended_s - 3
    job = JOB if dashboard.name == "job" else None
    values = chosen(start_s, end_s, hosts=hosts)
    wanted = {host: jobs for host, jobs in site.hosts.items() if hosts is None or host in hosts}
    for panel, meant in panels("opensearch", dashboard):
        step_s = grafana.seconds(values["slow_step" if meant.slow else "step"])
        answers = grafana.searched(site.server, panel, values, start_s, end_s)
        where = f"{dashboard.name}: {panel['title']}"
        if meant.kind in ("table", "rows"):
            rows = grafana.rows_of(panel["targets"][0], answers[0])
            (assert_table if meant.kind == "table" else assert_rows)(
                site, meant, panel, rows, (wanted, job, start_s, end_s), where
            )
            continue
        drawn = [grafana.draw(target, answer) for target, answer in zip(panel["targets"], answers)]
        if meant.lines[0].way == TOTAL:
            (line,) = meant.lines
            rows = site.stored.rows(line._replace(by=("host",)), wanted, job, start_s, end_s)
            expected, found = total(line, rows, step_s), grafana.product([one for lines in drawn for one in lines])
            assert len(found) >= len(expected) - 2 > 0, where
            assert all(close(value, expected[int(s)]) for s, value in found.items()), where
            continue
        assert len(drawn) == len(meant.lines)
        for line, lines in zip(meant.lines, drawn):
            # what stands before the range is not asked for
            rows = list(site.stored.rows(line, wanted, job, start_s, end_s))
            if line.way == DISTINCT:
                lines = [one._replace(points=[(s, v) for s, v in one.points if v]) for one in lines]
            assert_shown(lines, computed(line, rows, step_s, start_s, end_s), f"{where}: {line.column}")


def assert_table(site, meant, panel, rows, which, where):
    """A row for each job or node, with the values of the range."""
    names = {
        {one["id"]: one["value"] for one in override["properties"]}["displayName"]: override["matcher"]["options"]
        for override in panel["fieldConfig"]["overrides"]
    }
    key = panel["targets"][0]["bucketAggs"][0]["field"]
    assert rows, where
    for line in meant.lines:
        known = collections.defaultdict(list)
        for (one,), _, value in site.stored.rows(line, *which):
            if value is not None:
                known[one].append(value)
        assert known.keys() == {row[key] for row in rows}, where
        for row in rows:
            expected = {LARGEST: max, DISTINCT: lambda some: len(set(some))}[line.way](known[row[key]])
            assert close(row[names[line.label]], float(expected)), (where, line.label, row)


def assert_rows(site, meant, panel, rows, which, where):
    """The rows of a table as they are stored; dates are of seconds there, and of milliseconds in Grafana."""
    products = [one["options"] for one in panel["transformations"] if one["id"] == "calculateField"]
    for row in rows:
        row.update({one["alias"]: row[one["binary"]["left"]] * int(one["binary"]["right"]) for one in products})
    names = panel["transformations"][-1]["options"]["include"]["names"]
    columns = [list(site.stored.rows(line._replace(how=LARGEST), *which)) for line in meant.lines]
    scales = [1000 if line.field.unit == "ts_date" else 1 for line in meant.lines]
    expected = [tuple([v * scale for (_, _, v), scale in zip(cells, scales)]) for cells in zip(*columns)]
    assert sorted(expected) == sorted([tuple([row[name] for name in names]) for row in rows]) and rows, where


@pytest.mark.usefixtures("root")
def test_the_cores_of_a_real_job_are_those_of_its_cgroup(site):
    """What the kernel counted between the ends of two steps, read beside Colmet."""
    dashboard = next(one for one in STORED if one.name == "job")
    panel, meant = next(iter(panels("opensearch", dashboard)))
    values = chosen(site.live_s, site.over_s, REAL_JOB, step="5s")
    (line,) = grafana.draw(
        panel["targets"][0], grafana.searched(site.server, panel, values, site.live_s, site.over_s)[0]
    )
    assert line.name == f"used {site.host}" and meant.lines[0].unit == "si:ncores"
    times, usage = zip(*site.cpu)
    found = [(s, value) for s, value in line.points if value is not None and times[0] <= s - 1 and s + 4 <= times[-1]]
    assert found
    for s, value in found:
        kernel = np.interp([s - 1, s + 4], times, usage)
        assert value / 1e9 == pytest.approx((kernel[1] - kernel[0]) / 5e9, abs=0.15)


@pytest.mark.usefixtures("root")
def test_variables_offer_the_jobs_and_their_nodes(site):
    made = json.loads((DASHBOARDS / "opensearch/job.json").read_text())
    variables = {one["name"]: one for one in made["templating"]["list"]}
    values, when = {"prefix": "colmet_", "job": str(JOB)}, (site.began_s, site.over_s)
    jobs = grafana.choices(site.server, variables["job"], values, *when)
    assert jobs == sorted({job for jobs in site.hosts.values() for job in jobs}, reverse=True)
    assert grafana.choices(site.server, variables["host"], values, *when) == ["dahu-1", "dahu-2"]


# -- Prometheus --

# Where other work takes all CPUs, an answer within the second comes late, and the series end: CI has no such machine.
in_time = pytest.mark.slow


@in_time
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("dashboard", SCRAPED, ids=lambda dashboard: dashboard.name)
def test_panels_of_prometheus_show_what_was_measured(site, dashboard):
    """Lines of columns are compared with the stored rows; the last values of others with what is known of it."""
    job = JOB if dashboard.name == "job" else None
    values = {"job": str(JOB), "host": grafana.All(".+")}
    start_s, end_s = site.live_s + 5, site.over_s
    for panel, meant in panels("prometheus", dashboard):
        found = grafana.ranged(site.prometheus, panel, values, start_s, end_s, STEP_S, 1)
        for line, lines in zip(meant.lines, found):
            where = f"{dashboard.name}: {panel['title']}: {line.label}"
            assert any(one.points for one in lines), where
            if isinstance(line, Line):
                rows = site.stored.rows(line, site.hosts, job, site.live_s, site.over_s)
                assert_measured(line, lines, list(rows), where)
            else:
                for one in lines:
                    assert is_right(site, dashboard.name, panel["title"], one, end_s // STEP_S * STEP_S), (where, one)


def is_right(site, dashboard, title, line, at_s):
    """Whether the last value of a query is right: what Colmet reports of itself, or a sum over jobs or nodes."""
    value = line.points[-1][1]
    if title in ("CPU cores used by jobs", "Jobs that compute most: CPU cores used"):
        cores = np.diff(np.interp([at_s - 7, at_s - 1], *zip(*site.cpu)))[0] / 6e9
        real = line.name in ("cores", f"job {REAL_JOB}")
        return value == pytest.approx(cores, abs=0.4) if real else 0 < value < 0.01
    if title in ("Memory used by jobs", "Jobs with most memory"):
        known = collections.defaultdict(set)
        for table, column in MEMORY.places[:2]:  # of the processes where no cgroup counts it
            here = collections.defaultdict(set)
            of_all = Line(table, column, by=("host", "job"))
            for (host, job), _, measured in site.stored.rows(of_all, site.hosts, None, at_s - 5, at_s):
                if measured is not None and line.name in ("memory", f"job {job}"):
                    here[host, job].add(measured)
            known.update({place: values for place, values in here.items() if place not in known})
        return value in set(map(sum, itertools.product(*known.values())))
    if title == "Rows received":
        times = np.concatenate([rows["timestamp"] for tables in site.stored.tables.values() for rows in tables])
        return value == pytest.approx(np.sum((times > at_s - 8) & (times <= at_s - 2)) / 6, rel=0.5)
    low, high = BOUNDS[dashboard, title]
    return low <= value <= high


# What Colmet reports of itself when nothing is wrong; "Nodes" is looked at below.
BOUNDS = {
    ("cluster", "Nodes"): (0, 4),
    ("cluster", "Jobs"): (4, 4),
    ("cluster", "What went wrong"): (0, 10),
    ("cluster", "Age of batches as they come"): (-1, 10),
    ("cluster", "Outputs that are there"): (1, 1),
    ("cluster", "How far outputs are behind"): (0, 20),
    ("cluster", "Rows written"): (0, 10**6),
    ("cluster", "Rows given up"): (0, 0),
    ("cluster", "Unfinished summaries"): (ON_HOSTS, ON_HOSTS),
    ("cluster", "Summaries written"): (0, 5),
    ("cluster", "Rows late or left out"): (0, 0),
    ("cluster", "Size of the archive"): (50_000, 10**7),
    ("cluster", "Backends that are off"): (0, 0),
    ("cluster", "CPU used by colmet-node"): (1e-4, 0.5),
    ("node", "Jobs"): (1, 1),
    ("node", "Backends that measure"): (1, 1),
    ("node", "Time that a sample takes"): (1e-5, 5),
    ("node", "CPU used"): (1e-6, 0.5),
    ("node", "What went wrong"): (0, 2),
    ("node", "Batches that wait for a collector"): (0, 10),
    ("node", "How long the oldest batch has waited"): (0, 10),
}


def assert_measured(line, lines, rows, where):
    """A gauge has values that were measured; a counter grows as the rows say, on the whole."""
    known = collections.defaultdict(list)
    for key, at_s, value in rows:
        if value is not None:
            known[tuple(map(str, key))].append((at_s, float(value)))
    found = {tuple([one.labels[key] for key in line.by]): [value for _, value in one.points] for one in lines}
    assert found.keys() >= known.keys() and {key[0] for key in known} & HOSTS.keys(), where
    for key, rows_of_it in known.items():
        times, values = zip(*rows_of_it)
        if line.way == MEAN:
            assert all(any(close(value, one) for one in values) for value in found[key]), (where, key)
            continue
        if key[0] not in HOSTS:  # what it does, it does at no steady pace
            continue
        pace = (values[-1] - values[0]) / (times[-1] - times[0]) * (1 if line.way == RATE else 6)
        assert np.mean(found[key]) == pytest.approx(pace, rel=0.3), (where, key)


@in_time
@pytest.mark.usefixtures("root")
def test_what_prometheus_counts_of_nodes_and_jobs(site):
    (cluster,) = [one for one in SCRAPED if one.name == "cluster"]
    shown = {meant.title: panel for panel, meant in panels("prometheus", cluster) if meant.kind == "number"}
    last = {}
    for title, panel in shown.items():
        (lines,) = grafana.ranged(site.prometheus, panel, {}, site.over_s - 10, site.over_s, 5, 1)
        last[title] = {one.name: one.points[-1][1] for one in lines}
    assert last["Nodes"] == {"heard": 4, "silent": 0, "gone": 0}
    assert last["Jobs"] == {"jobs": 4}


@pytest.mark.usefixtures("root")
def test_variables_of_prometheus_offer_the_jobs_and_their_nodes(site):
    made = json.loads((DASHBOARDS / "prometheus/job.json").read_text())
    offered = {}
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            query = grafana.filled(variable["query"], {"job": str(JOB)}, grafana.regular)
            match, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
            start, end = site.live_s, site.over_s
            parameters = {"match[]": match, "start": start, "end": end}
            offered[variable["name"]] = grafana.asked(site.prometheus, f"label/{label}/values", get=True, **parameters)
    assert offered == {"job": ["101", "4241", "4242", "4243"], "host": ["dahu-1", "dahu-2"]}
