"""Rows of single hosts: the same as those of all hosts, from every store."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from colmet.collector.backends.hdf5.library import tables  # before PyTables itself: its settings
from colmet.commands import colmet, extract, extract_rows, plot
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.growth import NODE_CPUS
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.jobs.report.document import document_of
from colmet.jobs.report.rows import gather
from colmet.stored import reading_process, series, sources
from colmet.stored import rows as reading
from colmet.stored.completeness import hosts_of
from colmet.stored.curves import capacities
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.job_rows import JobInterval, JobRows
from colmet.stored.series import NODE, HeldRows, RowQuery
from tests.support.hdf5_writer import write_once
from tests.support.made_up_history import START, MadeUp, job_rows, ledger_rows, node_rows

JOBS = Schema(
    "taskstats_default",
    "job",
    [
        Field("cpu", "nsec", "counter"),
        Field("load", "none", "gauge", dtype="f8"),
        Field("label", "none", "label", dtype="S16"),
        Field("unused", "none", "gauge"),
    ],
)


def equal(found, wanted):
    assert [one.host for one in found] == [one.host for one in wanted]
    for one, other in zip(found, wanted):
        assert one.times.tolist() == other.times.tolist() and one.columns.keys() == other.columns.keys()
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column, other.columns[name])
            assert column.dtype.kind == other.columns[name].dtype.kind


def random_batches(rng, count):
    """Rows in nearly the order of time: some late, some twice, some with more than one row of a time."""
    batches = []
    for number in range(count):
        time_s = START + 5 * number - rng.choice([0, 0, 0, 0, 300])
        host = f"node-{rng.randrange(9)}"
        values = {
            "cpu": rng.choice([None, number, number << 40]),
            "load": rng.choice([None, number / 3]),
            "label": rng.choice([b"", b"a", b"a longer label"]),
        }
        samples = [Sample(7, values)] * rng.choice([1, 1, 2])
        table = Table.from_samples(JOBS, time_s * 10**9, samples)
        batches.append(Batch(host, 1, number, time_s * 10**9, (7,), (table,)))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_some_hosts_are_those_of_a_whole_read(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(reading, "SEGMENT_BYTES", rng.choice([1, 3000, 1 << 20]))
    monkeypatch.setattr(reading, "BLOCK_BYTES", rng.choice([2000, 1 << 20]))
    batches = random_batches(rng, 120)
    half = rng.randrange(20, 100)
    for begins, part in ((START, batches[: half + 10]), (START + 5 * half, batches[half:])):  # some are in both
        write_once(tmp_path / "made.hdf5", part)
        (tmp_path / "made.hdf5").rename(tmp_path / f"cluster.{begins}.hdf5")
    with Hdf5History([str(tmp_path / "cluster")]) as history:
        for limits in ((None, None), (START + 100, START + 300), (START + 10**6, None)):
            columns = ["cpu", "load", "label", "unused", "missing"]
            whole = history.read(RowQuery(7, "taskstats_default", columns, *limits))
            rows = history.by_hosts(RowQuery(7, "taskstats_default", columns, *limits))
            assert dict(rows.counts).keys() == {one.host for one in whole}
            assert all(rows.counts[one.host] >= len(one) for one in whole), "rows in two files count twice"
            if whole:
                assert rows.first == min(one.times[0] for one in whole)
                assert rows.last == max(one.times[-1] for one in whole)
            names = sorted(rows.counts)
            rng.shuffle(names)
            for hosts in (names[:1], names[1:4], names, [*names[4:], "no-node"]):
                equal(rows.read(hosts), [one for one in whole if one.host in hosts])
            only = history.by_hosts(RowQuery(7, "taskstats_default", columns, *limits, hosts=names[:2]))
            assert dict(only.counts) == {host: rows.counts[host] for host in names[:2]}
            equal(only.read(names), [one for one in whole if one.host in names[:2]])
            some = rows.read(names, ["load"])
            equal(some, history.read(RowQuery(7, "taskstats_default", ["load"], *limits)))
        assert not history.by_hosts(RowQuery(7, "no_table", [])).counts


def test_a_full_disk_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    def full(*_, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_once(tmp_path / "a.hdf5", random_batches(random.Random(1), 3))
    monkeypatch.setattr(reading, "_narrowed", full)
    with Hdf5History([str(tmp_path / "a.hdf5")]) as history, pytest.raises(ConfigError, match="No space left"):
        history.by_hosts(RowQuery(7, "taskstats_default", ["cpu"]))
    monkeypatch.undo()
    monkeypatch.setattr(reading_process.tempfile, "TemporaryFile", full)
    with Hdf5History([str(tmp_path / "a.hdf5")]) as history:
        assert history.read(RowQuery(7, "taskstats_default")), "it needs no temporary file"
        with pytest.raises(ConfigError, match="set TMPDIR to a directory with space"):
            history.by_hosts(RowQuery(7, "taskstats_default", ["cpu"]))


def test_the_temporary_file_has_the_rows_in_use_once(tmp_path, monkeypatch):
    monkeypatch.setattr(reading_process, "WAIT_S", 0.01)
    write_once(tmp_path / "a.hdf5", random_batches(random.Random(1), 60))
    with tables.open_file(str(tmp_path / "a.hdf5"), "a") as file:  # a row without a host, as within a burst
        file.get_node("/job_7/taskstats_default").row.append()
    columns = ["cpu", "load"]
    with Hdf5History([str(tmp_path / "a.hdf5")]) as history:
        with monkeypatch.context() as patched:
            patched.setattr(reading_process, "is_live", lambda path: False)
            rows = history.by_hosts(RowQuery(7, "taskstats_default", columns))
        bytes_once = history._reader.spool_bytes
        more = history.by_hosts(RowQuery(7, "taskstats_default", columns))
        assert more.counts == rows.counts and history._reader.spool_bytes == 2 * bytes_once
        wanted = rows.read(["node-1"])
        del rows
        equal(more.read(["node-1"]), wanted)
        del more
        assert history._reader.spool_bytes == 0, "a process that serves requests keeps the history open"
        equal(history.by_hosts(RowQuery(7, "taskstats_default", columns)).read(["node-1"]), wanted)


@pytest.fixture
def cluster():
    history = MadeUp()
    for number in range(6):
        host, more = f"node-{number}", {"cores": 1 + number % 3}
        start = START + 7 * number
        job_rows(history, host=host, start=start, count=121 - 3 * number, **more)
        job_rows(history, job=43, host=host, count=90, cores=0.5)
        node_rows(history, host=host, jobs=(42, 43))
        ledger_rows(history, host=host, lost=number % 2)
    times, columns = history.rows[42, "cgroup_default"]["node-3"]
    columns["cpu_usage"] = np.where(np.arange(len(times)) > 60, columns["cpu_usage"] // 3, columns["cpu_usage"])
    return history


@pytest.mark.parametrize(("since", "until"), [(None, None), (START + 100, START + 400)])
def test_a_report_is_the_same_whatever_number_of_hosts_is_in_memory(cluster, monkeypatch, since, until):
    found = []
    for room in (1, 100_000, 1 << 30):
        monkeypatch.setattr(series, "GROUP_BYTES", room)
        report = gather(cluster, JobInterval(42, since, until), START + 10**6)
        lines = [
            (curve.name, line.host, line.times.tolist(), line.values) for curve in report.curves for line in curve.lines
        ]
        found.append((document_of(report), lines))
    for document, lines in found[1:]:
        assert document == found[0][0]
        for one, other in zip(lines, found[0][1]):
            assert one[:3] == other[:3]
            np.testing.assert_array_equal(one[3], other[3])
    assert len(found[0][0]["hosts"]) == 6 and found[0][0]["energy"]["job_joules"] > 0


def test_rows_of_other_hosts_of_the_cluster_are_not_read(cluster, monkeypatch):
    asked = []
    read = cluster.read
    monkeypatch.setattr(cluster, "read", lambda query: asked.append(query) or read(query))
    job_rows(cluster, job=43, host="elsewhere")
    node_rows(cluster, host="elsewhere", jobs=(43,))
    job_rows(cluster, host="node-7", count=9)  # the rows of the first agent are in no file
    node_rows(cluster, host="node-7", jobs=(42, 43))
    found = gather(cluster, JobInterval(42), START + 10**6)
    assert found.energy.others_joules > 0 and all(host.energy_joules for host in found.hosts)
    others = [query.hosts for query in asked if query.job != 42]
    assert others and all("elsewhere" not in hosts and "node-0" in hosts for hosts in others)


def test_completeness_by_host_is_that_of_each_host_alone_and_read_by_group(cluster, monkeypatch):
    found = hosts_of(cluster, JobInterval(42))
    assert [*found] == [f"node-{n}" for n in range(6)]
    assert found["node-1"].here < found["node-0"].here
    asked = []
    read = HeldRows.read
    monkeypatch.setattr(HeldRows, "read", lambda rows, *limits: asked.append(limits) or read(rows, *limits))
    assert hosts_of(cluster, JobInterval(42)) == found
    assert len(asked) < 20, "of all hosts together"
    monkeypatch.setattr(series, "GROUP_BYTES", 1)
    assert hosts_of(cluster, JobInterval(42)) == found


def test_the_bound_of_a_host_is_the_same_whatever_hosts_are_read_with_it(cluster):
    cluster.add(NODE, NODE_CPUS[0], "bare", [START, START + 5], **{NODE_CPUS[1]: 4})
    alone = capacities(cluster, 42, hosts=["bare"])["bare"]
    assert alone.cpus == 4 and capacities(cluster, 42, hosts=["bare", "node-0"])["bare"] == alone


def test_rows_removed_while_they_are_read_are_no_defect(cluster, monkeypatch):
    monkeypatch.setattr(series, "GROUP_BYTES", 1)
    rows = JobRows(cluster, JobInterval(42), {})
    assert rows.outline is not None
    for table in rows._tables.values():
        table._found.pop("node-0", None)
    assert [[stay.host for stay in group] for group in rows.groups()] == [[f"node-{n}"] for n in range(1, 6)]


def test_more_rows_of_a_host_than_memory_allows_are_an_error(cluster, monkeypatch):
    monkeypatch.setattr(series, "MAX_HOST_BYTES", 1000)
    with pytest.raises(ColmetError, match="the rows on node-0 require 0 MiB"):
        JobRows(cluster, JobInterval(42), {})


def test_lines_of_a_picture_are_the_same_whatever_number_of_hosts_is_in_memory(cluster, monkeypatch):
    found = []
    for room in (1, 1 << 30):
        monkeypatch.setattr(series, "GROUP_BYTES", room)
        found.append(plot.document(42, plot.gather(cluster, 42, ["cpu_used", "memory", "stat_cpu_user", "energy"])))
    assert found[0] == found[1] and len(found[0]["metrics"][0]["series"]) == 6


def test_lines_of_very_many_values_are_shortened_with_their_peaks_and_means(cluster, monkeypatch):
    whole = plot.gather(cluster, 42, ["cpu_used"])[0].lines
    monkeypatch.setattr(plot, "MAX_SAMPLES", 500)
    monkeypatch.setattr(plot, "MAX_POINTS", 20)
    with pytest.raises(ColmetError, match="too many for --json"):
        plot.gather(cluster, 42, ["cpu_used"])
    short = plot.gather(cluster, 42, ["cpu_used"], is_drawn=True)[0].lines
    for one, other in zip(short, whole):
        assert one.host == other.host and len(one.times) <= 30
        assert (np.nanmin(one.values), np.nanmax(one.values)) == (np.nanmin(other.values), np.nanmax(other.values))
    means = [plot.shortened(line, 11) for line in whole]
    for one, other in zip(means, whole):
        assert len(one.times) <= 10 and np.mean(one.values) == pytest.approx(np.nanmean(other.values), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "windows"),
    [
        pytest.param([], (1 << 20, 100), marks=pytest.mark.slow),
        (["--since", str(START + 100), "--until", str(START + 400)], (1 << 20, 1)),
        pytest.param(["--host", "node-3"], (1 << 20, 30), marks=pytest.mark.slow),
    ],
)
def test_an_extract_is_the_same_in_windows_of_time(cluster, monkeypatch, tmp_path, limits, windows):
    monkeypatch.setattr(sources, "open_history", lambda _options: cluster)
    names = ["cpu_usage", "user", "ac_btime", "stat_cpu_user", "raplzones.energy", "raplzones.name"]
    parquet = pytest.importorskip("pyarrow.parquet")
    found = {}
    for values in windows:
        monkeypatch.setattr(extract_rows, "WINDOW_VALUES", values)
        for form in ("csv", "parquet"):
            path = tmp_path / f"{values}.{form}"
            asked = ["extract", "-j", "42", "--metrics", ",".join(names), "--format", form, "--output", str(path)]
            assert colmet.main([*asked, *limits]) == 0
            content = path.read_text() if form == "csv" else parquet.read_table(path).to_pydict()
            assert found.setdefault(form, content) == content
    assert found["csv"].count("\n") > 150


def test_an_extract_too_large_for_its_format_is_refused_with_a_remedy(cluster, monkeypatch, capsys):
    monkeypatch.setattr(sources, "open_history", lambda _options: cluster)
    monkeypatch.setattr(extract, "MAX_VALUES", 1000)
    assert colmet.main(["extract", "-j", "42"]) == 1
    assert (
        "values are too many for --format json, and the limit is 1000; give --format csv or parquet"
        in capsys.readouterr().err
    )
