"""A thinned file has the totals, peaks, gaps and layout of the one before, and a tenth of the rows."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from colmet.archive.fold import columns_read
from colmet.collector.backends.hdf5 import isolated, thin_file, thin_times
from colmet.collector.backends.hdf5.file_lock import lock
from colmet.collector.backends.hdf5.last_rows import last_row_s
from colmet.collector.backends.hdf5.removal import remove_rows
from colmet.collector.backends.hdf5.thin_rows import Around, thinned
from colmet.collector.backends.hdf5.thin_rules import rules_of
from colmet.commands import completeness
from colmet.commands.colmet import main
from colmet.common.errors import OutputUnavailable
from colmet.common.growth import summed
from colmet.report.collect import gather
from colmet.stored.accounts import look
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.replay import Replay
from colmet.stored.stays import JobInterval
from tests.support.archives import Archive, records_of
from tests.support.hdf5_files import tables
from tests.support.hdf5_writer import write_once
from tests.support.thin_data import SITE, START, Cluster

NOW = 1_800_000_000
STEP = 60


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same rows in two files: as they came, and thinned."""
    folder = tmp_path_factory.mktemp("thin")
    raw, thin = folder / "raw.hdf5", folder / "thin.hdf5"
    write_once(raw, Cluster().batches)
    found = isolated.thin(str(raw), str(thin), STEP, NOW, lambda _: None)
    assert found.result == thin_file.DONE and found.rows_left < found.rows / 6
    assert os.path.getsize(thin) < os.path.getsize(raw) / 5
    return raw, thin


def contents(path):
    with tables.open_file(str(path)) as file:
        nodes = [node for node in file.walk_nodes("/", "Table") if node._v_name != thin_times.NAME]
        return {node._v_pathname: node.read() for node in nodes}


def series_of(rows, keys):
    """Rows of one host and key by time, as an independent reader would part them."""
    parts = {}
    for row in np.sort(rows, order="timestamp", kind="stable"):
        parts.setdefault((row["hostname"], *[row[key] for key in keys]), []).append(row)
    return {key: np.array(some, rows.dtype) for key, some in parts.items()}


def test_tables_columns_types_and_attributes_are_those_of_before(both):
    def layout(path):
        with tables.open_file(str(path)) as file:
            return {
                node._v_pathname: (
                    *(node.dtype, node.title, node.filters, str(node.coldescrs)),
                    {name: str(node.attrs[name]) for name in node.attrs._f_list("all") if name != "NROWS"},
                )
                for node in file.walk_nodes("/", "Table")
                if node._v_name != thin_times.NAME
            }

    assert layout(both[1]) == layout(both[0])


def test_growth_of_every_counter_and_the_first_and_last_rows_are_kept(both):
    raw, thin = map(contents, both)
    seen = 0
    for path, rows in raw.items():
        rules = rules_of(path.rsplit("/", 1)[1], rows.dtype)
        left = series_of(thin[path], rules.keys)
        for key, some in series_of(rows, rules.keys).items():
            assert (left[key][[0, -1]]["timestamp"] == some[[0, -1]]["timestamp"]).all()
            for name, value in rules.values.items():
                if value != "last":
                    continue
                growths = []
                for one in (some, left[key]):
                    values = one[name][one[name] != -1].astype(object)  # whole numbers without a bound
                    growths.append(sum([max(0, after - before) for before, after in zip(values, values[1:])]))
                    seen += len(values) > 1
                assert growths[0] == growths[1], (path, key, name)
    assert seen > 100


@pytest.mark.slow
def test_value_times_time_of_gauges_is_kept_within_rounding(both):
    raw, thin = map(contents, both)
    for path, name in (
        *(("/job_7/cgroup_default", "memory_current"), ("/job_8/cgroup_default", "memory_current")),
        *(("/job_8/nvidiastats_default", "gpus_idle"), ("/job_8/nvidiastats_default", "power")),
    ):
        for key, some in series_of(raw[path], ()).items():
            left = series_of(thin[path], ())[key]
            found = []
            for one in (some, left):
                steps = np.diff(one["timestamp"], prepend=one["timestamp"][0])
                found.append(int((one[name] * steps)[one[name] != -1].sum()))
            assert abs(found[0] - found[1]) <= 10 * STEP, (path, key)  # units of bytes, GPUs and watts
            if name == "gpus_idle":
                assert found[0] == found[1]


def test_peaks_stay_and_missing_values_stay_missing(both):
    raw, thin = map(contents, both)
    for job, name in ((7, "memory_peak"), (7, "memory_current"), (8, "memory_current"), (8, "pids_current")):
        path = f"/job_{job}/cgroup_default"
        for key, some in series_of(raw[path], ()).items():
            assert series_of(thin[path], ())[key][name].max() == some[name].max()
    hole = thin["/job_7/cgroup_default"]
    inside = (hole["timestamp"] >= START + 5 * 130) & (hole["timestamp"] < START + 5 * 150)
    assert inside.sum() >= 2 and (hole["memory_current"][inside] == -1).all()
    assert (hole["memory_current"][~inside] > 0).all()


def test_gaps_stay_gaps(both):
    raw, thin = [
        np.unique(rows["timestamp"][rows["hostname"] == b"n2"])
        for rows in (contents(path)["/job_0/procstats_default"] for path in both)
    ]
    wide = [(before, after) for before, after in zip(raw, raw[1:]) if after - before > STEP]
    assert wide and all(pair in zip(thin, thin[1:]) for pair in wide)
    assert np.diff(thin).max() == np.diff(raw).max()


def flat(value, name=""):
    if isinstance(value, dict):
        for key, one in value.items():
            yield from flat(one, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for n, one in enumerate(value):
            yield from flat(one, f"{name}.{n}")
    else:
        yield name[1:], value


@pytest.mark.parametrize("job", [7, *[pytest.param(job, marks=pytest.mark.slow) for job in (8, 9)]])
def test_a_report_has_the_same_totals(both, job):
    """All but the division of the nodes' energy among jobs, which is by minute then."""
    reports = []
    for path in both:
        with Hdf5History([str(path)]) as history:
            reports.append(dict(flat(asdict(gather(history, JobInterval(job), NOW)))))
    ways = ("samples", "period_s", "curves", "job_joules", "others_joules", "nobody_joules", "energy_joules", "state")
    compared = 0
    for name, value in reports[0].items():
        if "gpus." not in name and any(way in name for way in ways):
            continue
        compared += 1
        if isinstance(value, float):
            assert reports[1][name] == pytest.approx(value, rel=1e-12), name
        else:
            assert reports[1][name] == value, name
    assert compared > 70
    for name in ("energy.job_joules", "energy.others_joules"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=0.15)  # of random power and use


@pytest.mark.slow
def test_an_archive_of_thinned_rows_has_the_same_sums(both, tmp_path):
    found = []
    for n, path in enumerate(both):
        with Hdf5History([str(path)]) as history:
            series = [one for job in (0, 7, 8, 9) for table in history.tables(job) for one in history.read(job, table)]
        archive = Archive(tmp_path / f"{n}.sqlite")
        archive.take(records_of(list(Replay(columns_read()).batches(series))))
        archive.end()
        found.append(archive.jobs())
        archive.store.close()
    assert [one["job"] for one in found[0]] == [7, 8, 9]
    own = ("samples", "rows", "missing", "joules", "footprint", "advice", "rules")
    for raw, thin in zip(*found):
        for name, value in raw.items():
            if name in own:
                continue
            close = 1e-6 if name in ("memory_byte_s", "node_joules", "gpu_joules") else 1e-12
            assert thin[name] == (pytest.approx(value, rel=close) if isinstance(value, float) else value), name
        assert thin["missing"] <= 6


@pytest.mark.slow
def test_the_former_times_of_removed_jobs_go_with_their_rows(both, tmp_path):
    path = tmp_path / "thin.hdf5"
    shutil.copy(both[1], path)

    def runs():
        with tables.open_file(str(path)) as file:
            return file.get_node(f"/{thin_times.NAME}").read()

    before = runs()
    assert {7, 8} <= set(before["job_id"].tolist())
    last = int(before["first"][before["job_id"] == 7].max())
    assert remove_rows(str(path), {7: [(START, NOW)], 8: [(START - 100, START - 1)]}).jobs == {7}
    assert last > START and (runs() == before[before["job_id"] != 7]).all()


@pytest.mark.parametrize("at_once", [thin_times.BLOCK, pytest.param(2, marks=pytest.mark.slow)])
def test_completeness_counts_what_was_stored_before(both, monkeypatch, at_once):
    monkeypatch.setattr(thin_times, "BLOCK", at_once)
    raw, thin = [list(look(completeness.read([str(path)]), None, None, None)) for path in both]
    assert raw == thin and any(line.found.missing for line in raw)
    of_job = [list(look(completeness.read([str(path)]), 7, None, None)) for path in both]
    assert of_job[0] == of_job[1]


@pytest.mark.slow
def test_rows_of_a_table_that_the_catalogue_does_not_know_are_the_last_of_each_minute(both):
    raw, thin = map(contents, both)
    path = f"/job_0/{SITE.name}"
    for key, some in series_of(raw[path], ("rack",)).items():
        left = series_of(thin[path], ("rack",))[key]
        assert len(left) < len(some) / 6
        by_time = {row["timestamp"]: row for row in some}
        assert all(row == by_time[row["timestamp"]] for row in left)


def test_a_reset_before_and_a_return_in_one_leap_count_as_before():
    """Two agents of one name alternate, then one is reset: what readers make of it does not change."""
    for seed in range(20):
        draw = random.Random(seed)
        value, at, made = 0, START, []
        for _ in range(600):
            at += draw.choice((1, 5, 5, 5, 30))
            chance = draw.random()
            value = 0 if chance < 0.01 else value + draw.randint(0, 10)
            made.append((at, value if chance < 0.95 else -1))
        rows = np.zeros(len(made), [("timestamp", "<i8"), ("hostname", "S4"), ("job_id", "<i8"), ("nvcsw", "<i8")])
        rows["hostname"], rows["job_id"] = b"n1", 7
        rows["timestamp"], rows["nvcsw"] = zip(*made)
        rules = rules_of("taskstats_default", rows.dtype)
        left = thinned("taskstats_default", rows, rules, STEP, Around({}, {}))
        assert len(left) < len(rows)
        totals = [
            summed(one["timestamp"], np.where(one["nvcsw"] < 0, np.nan, one["nvcsw"].astype(float))).total
            for one in (rows, left)
        ]
        assert totals[0] == totals[1]


def test_growth_that_no_hardware_can_have_is_still_seen():
    rows = np.zeros(100, [("timestamp", "<i8"), ("hostname", "S4"), ("cpu_usage", "<i8")])
    rows["hostname"], rows["timestamp"] = b"n1", START + 5 * np.arange(100)
    rows["cpu_usage"] = 10**9 * np.arange(100)
    rows["cpu_usage"][50:] += 60 * 10**9
    around = Around({}, {b"n1": thin_file.Capacity(4.0)})
    left = thinned("cgroup_default", rows, rules_of("cgroup_default", rows.dtype), STEP, around)
    at = START + 5 * 49
    assert {at, at + 5} <= set(left["timestamp"].tolist()) and len(left) < 20


def test_times_come_back_from_their_runs():
    draw = random.Random(3)
    for _ in range(200):
        steps = [draw.choice((0, 1, 5, 5, 5, 60)) for _ in range(draw.randint(0, 40))]
        times = START + np.cumsum([0, *steps]).astype(np.int64)
        first, step, samples, rows = thin_times.runs_of(times)
        runs = np.zeros(len(first), thin_times.dtype_of(4))
        runs["first"], runs["step"], runs["samples"], runs["rows"] = first, step, samples, rows
        assert (thin_times.times_of(runs) == times).all()
    runs["samples"] = 1 << 60
    with pytest.raises(ValueError, match="no table can have"):
        thin_times.times_of(runs)


@pytest.mark.slow
def test_a_large_table_is_thinned_some_hosts_at_a_time(tmp_path, monkeypatch):
    raw = tmp_path / "raw.hdf5"
    write_once(raw, Cluster(120).batches)
    whole, parts = str(tmp_path / "whole.hdf5"), str(tmp_path / "parts.hdf5")
    nothing = lambda *_: None  # noqa: E731
    found = [thin_file.thin(str(raw), whole, STEP, NOW, nothing)]
    monkeypatch.setattr(thin_file, "GROUP_BYTES", 50_000)
    monkeypatch.setattr(thin_file, "BLOCK_BYTES", 20_000)
    found.append(thin_file.thin(str(raw), parts, STEP, NOW, nothing))
    assert found[0] == found[1]
    both = [{path: sorted(map(bytes, rows)) for path, rows in contents(one).items()} for one in (whole, parts)]
    assert both[0] == both[1]


# -- the command --


@pytest.fixture
def store(tmp_path):
    """Two files of one collector, of which the newer one may still grow."""
    paths = [tmp_path / f"cluster.{START + 1000 * n}.hdf5" for n in range(2)]
    write_once(paths[0], Cluster(100).batches)
    shutil.copy(*paths)
    return paths


def test_the_command_thins_all_but_the_newest_file_once(store, capsys, monkeypatch):
    copies = []  # modes of the copies, before they get those of the files
    verify = isolated.verify
    monkeypatch.setattr(
        isolated, "verify", lambda path, *more: (copies.append(os.stat(path).st_mode), verify(path, *more))
    )
    before = [path.read_bytes() for path in store]
    mode, times = store[0].stat().st_mode, store[0].stat().st_mtime_ns
    paths = [str(path) for path in store]
    assert main(["thin", "--dry-run", *paths]) == 0
    assert "to gain" in capsys.readouterr().out and [path.read_bytes() for path in store] == before
    (store[0].parent / f"{store[0].name}.thinning").write_bytes(b"of a run that was killed")
    assert main(["thin", *paths]) == 0
    said = capsys.readouterr().out
    assert "1 file thinned" in said and "the newest of its collector" in said
    assert store[0].stat().st_size < len(before[0]) / 2 and store[1].read_bytes() == before[1]
    assert (store[0].stat().st_mode, store[0].stat().st_mtime_ns) == (mode, times)
    assert sorted(path.name for path in store[0].parent.iterdir()) == [path.name for path in store]
    assert {one & 0o777 for one in copies} == {0o600}
    once = store[0].read_bytes()
    assert main(["thin", *paths]) == 0 and store[0].read_bytes() == once
    assert "is thinned already" in capsys.readouterr().out
    assert main(["thin", "--step", "300", *paths]) == 0 and store[0].stat().st_size < len(once)
    counts = [[line.found for line in look(completeness.read([str(path)]), None, None, None)] for path in store]
    assert counts[0] == counts[1]  # of both files, thinned twice and not at all
    assert last_row_s(str(store[0]), lambda *_: None) == last_row_s(str(store[1]), lambda *_: None)


def test_files_with_new_rows_in_use_or_unreadable_are_left_alone(store, capsys, monkeypatch):
    path = str(store[0])
    before = store[0].read_bytes()
    monkeypatch.setattr(time, "time", lambda: START + 86400.0)
    assert main(["thin", path]) == 0 and "not old enough" in capsys.readouterr().out
    monkeypatch.undo()
    descriptor = lock(path)
    try:
        assert main(["thin", path]) == 0 and "another process writes to it" in capsys.readouterr().out
    finally:
        os.close(descriptor)
    tails = store[0].parent / f"{store[0].name}.tails"
    tails.write_bytes(b"")
    assert main(["thin", path]) == 0 and "last write did not end" in capsys.readouterr().out
    tails.unlink()
    assert store[0].read_bytes() == before
    store[0].write_bytes(before[: len(before) // 2])
    assert main(["thin", path]) == 1
    assert len(store[0].read_bytes()) == len(before) // 2 and len(list(store[0].parent.iterdir())) == 2
    assert main(["thin", path + "x"]) == 1


@pytest.mark.slow
def test_a_file_of_the_collector_that_is_removed_meanwhile_is_no_failure(store, capsys, monkeypatch):
    settings = store[0].parent / "collector.toml"
    settings.write_text(f'hdf5-filepath = "{str(store[0]).rsplit(".", 2)[0]}"\n')

    def removed(path, *arguments):
        os.unlink(path)
        return isolated_thin(path, *arguments)

    isolated_thin = isolated.thin
    monkeypatch.setattr(isolated, "thin", removed)
    assert main(["thin", "--config", str(settings)]) == 0
    assert f"{store[0]}: skipped: it was removed meanwhile" in capsys.readouterr().out
    assert main(["thin", str(store[0])]) == 1  # named, it must exist


def test_a_full_disk_leaves_the_file_as_it_was(store, monkeypatch, capsys):
    before = store[0].read_bytes()

    def full(*_):
        raise OutputUnavailable("cannot write: No space left on device")

    monkeypatch.setattr(isolated, "verify", full)
    assert main(["thin", str(store[0])]) == 1 and "No space left" in capsys.readouterr().err
    assert store[0].read_bytes() == before and len(list(store[0].parent.iterdir())) == 2
    with pytest.raises(OutputUnavailable, match="cannot write /proc/self/x: No such file"):
        thin_file.thin(str(store[0]), "/proc/self/x", STEP, NOW, lambda *_: None)


@pytest.mark.slow
def test_a_file_of_colmet_06_is_thinned_and_keeps_its_growth(tmp_path):
    sample = Path(__file__).parents[1] / "data/colmet06/hdf5/sample.hdf5"
    raw, thin = tmp_path / "raw.hdf5", tmp_path / "thin.hdf5"
    shutil.copy(sample, raw)
    found = isolated.thin(str(raw), str(thin), STEP, NOW, lambda _: None)
    assert found.result == thin_file.DONE
    before, after = map(contents, (raw, thin))
    assert before.keys() == after.keys() and {path: rows.dtype for path, rows in before.items()} == {
        path: rows.dtype for path, rows in after.items()
    }
    for path, rows in before.items():
        nameless = rows[rows["hostname"] == b""]
        assert (after[path][after[path]["hostname"] == b""] == nameless).all()


@pytest.mark.slow
def test_reports_read_thinned_and_other_files_of_one_collector_together(tmp_path, capsys):
    """The job goes on in the next file, which is not thinned yet."""
    batches = Cluster().batches
    half = len(batches) // 2
    (tmp_path / "raw").mkdir()
    for n, part in enumerate((batches[:half], batches[half:])):
        write_once(tmp_path / "raw" / f"cluster.{START + n}.hdf5", part)
    shutil.copytree(tmp_path / "raw", tmp_path / "both")
    assert (
        main(["thin", str(tmp_path / "both" / f"cluster.{START}.hdf5")]) == 0
        and "1 file thinned" in capsys.readouterr().out
    )
    reports, shares = [], []
    for folder in ("raw", "both"):
        with Hdf5History([str(tmp_path / folder / "cluster")]) as history:
            reports.append(gather(history, JobInterval(7), NOW))
        paths = [str(path) for path in sorted((tmp_path / folder).iterdir())]
        shares.append([line.found for line in look(completeness.read(paths), 7, None, None)])
    raw, both = reports
    assert raw.completeness == both.completeness and shares[0] == shares[1]
    assert raw.cpu.used_s == pytest.approx(both.cpu.used_s, rel=1e-12)
    assert raw.memory.peak_bytes == both.memory.peak_bytes and raw.io == both.io
    assert raw.energy.nodes_joules == pytest.approx(both.energy.nodes_joules, rel=1e-12)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_a_file_as_it_was_or_thinned(store):
    path, before = store[0], store[0].read_bytes()
    assert main(["thin", str(path)]) == 0
    expected = contents(path)
    command = [sys.executable, "-m", "colmet.commands.colmet", "thin", str(path)]
    draw = random.Random(5)
    seen = set()
    for _ in range(12):
        path.write_bytes(before)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            process.wait(0.5 + 1.5 * draw.random())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        is_thin = path.read_bytes() != before
        seen.add(is_thin)
        if is_thin:
            assert {name: rows.tobytes() for name, rows in contents(path).items()} == {
                name: rows.tobytes() for name, rows in expected.items()
            }
        assert main(["thin", str(path)]) == 0
        assert {file.name for file in path.parent.iterdir()} == {file.name for file in store}
    assert False in seen
