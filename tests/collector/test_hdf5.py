"""The HDF5 output against a file that the collector of 0.6.10 wrote, and against what disks and people do to files."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colmet
from colmet.collector import columns
from colmet.collector.backends.hdf5 import calls, job_tables
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.common.config import cli
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import Decoder, colmet06
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from tests.support.hdf5_files import TASKSTATS, TIME_S, batch, numbers, stored, table, tables
from tests.support.hdf5_writer import Writer, opened, write_once
from tests.support.place import cannot_run, mount_tmpfs

DATA = Path(__file__).parents[1] / "data" / "colmet06"
SAMPLE = DATA / "hdf5" / "sample.hdf5"
SAMPLE_FRAMES = ("mixed", "taskstats", "jobprocstats", "procstats")  # what the sample was written from
COLUMNS = json.loads((DATA / "hdf5" / "columns.json").read_text())
METRICS = json.loads((DATA / "metrics.json").read_text())


def decoded(name: str) -> tuple[Batch, ...]:
    return Decoder().decode((DATA / "frames" / f"{name}.bin").read_bytes()).batches


def schema_of(*fields: str, name: str = "site_default", scope: str = "job") -> Schema:
    """A schema of gauges, each given as ``name:type``."""
    return Schema(name, scope, [Field(f.split(":")[0], "none", "gauge", dtype=f.split(":")[1]) for f in fields])


def counts(path: Path | str) -> dict[str, int]:
    """Rows in the file, by table."""
    with tables.open_file(str(path)) as file:
        return {node._v_pathname: len(node.read()) for node in file.walk_nodes("/", "Table")}


@pytest.fixture(autouse=True)
def _quiet_names() -> None:
    # the tests open files with PyTables too, which complains about 0.6's utilization-gpu
    warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)


# -- joining --


# -- what 0.6 wrote --


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our file of the frames that the sample was written from."""
    path = tmp_path_factory.mktemp("sample") / "ours.hdf5"
    output = opened(path, complevel=9)
    for name in SAMPLE_FRAMES:
        output.write(decoded(name))
    output.close()
    return path


def test_every_table_column_type_default_and_attribute_of_the_0_6_sample_is_in_our_file(rewritten: Path) -> None:
    with tables.open_file(str(SAMPLE)) as theirs, tables.open_file(str(rewritten)) as ours:
        their_tables = {t._v_pathname: t for t in theirs.walk_nodes("/", "Table")}
        assert len(their_tables) == 9
        assert {t._v_pathname for t in ours.walk_nodes("/", "Table")} == set(their_tables)
        for path, their in their_tables.items():
            our = ours.get_node(path)
            assert our.title == their.title
            assert our.attrs.backend_version == their.attrs.backend_version == 2
            assert type(our.attrs.backend_version) is type(their.attrs.backend_version)
            assert our.filters == their.filters
            assert list(our.colnames) == sorted(our.colnames)
            for name in their.colnames:
                assert our.coltypes[name] == their.coltypes[name]
                assert our.coldtypes[name] == their.coldtypes[name]
                assert our.coldflts[name] == their.coldflts[name]


def test_every_value_of_the_0_6_sample_is_in_our_file(rewritten: Path) -> None:
    with tables.open_file(str(SAMPLE)) as theirs, tables.open_file(str(rewritten)) as ours:
        for their in theirs.walk_nodes("/", "Table"):
            expected = np.sort(their.read(), order=["hostname", "timestamp"])
            got = np.sort(ours.get_node(their._v_pathname).read(), order=["hostname", "timestamp"])
            for name in their.colnames:
                assert got[name].tolist() == expected[name].tolist(), (their._v_pathname, name)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_that_0_6_knows_reaches_the_file_with_all_its_counters(metric: str, tmp_path: Path) -> None:
    record = colmet06.RECORDS[metric]
    names = [f["name"] for f in METRICS[metric]["fields"] if f["name"] != "involved_jobs"]
    values = {name: n + 1 for n, name in enumerate(names)}
    job = 0 if record.scope == "node" else 17
    message = colmet06.encode(batch(table(record.schema, (job, values)), host="dahu-7"))
    write_once(tmp_path / "x.hdf5", Decoder().decode(message).batches)
    (row,) = stored(tmp_path / "x.hdf5", f"/job_{job}/{metric}")
    assert {name: row[name] for name in names} == values
    assert (row["timestamp"], row["hostname"], row["job_id"]) == (TIME_S, b"dahu-7", job)
    assert row["metric_backend"] == metric.encode()
    # nothing that 0.6's own table of that metric had is absent
    dtypes = {name: np.dtype(dtype) for name, dtype in COLUMNS.get(metric, [])}  # nvidia had none
    assert {name: row.dtype[name] for name in dtypes} == dtypes


def test_a_missing_value_is_minus_one_in_every_number_and_empty_in_strings(tmp_path: Path) -> None:
    schema = schema_of("i:i8", "single:f4", "double:f8", "text:S6")
    write_once(
        tmp_path / "x.hdf5",
        [batch(table(schema, (1, {}), (1, {"i": 5, "single": 1.5, "double": 2.5, "text": b"abc"})))],
    )
    rows = stored(tmp_path / "x.hdf5", "/job_1/site_default")
    assert [rows[n][0] for n in ("i", "single", "double", "text")] == [-1, -1.0, -1.0, b""]
    assert [rows[n][1] for n in ("i", "single", "double", "text")] == [5, 1.5, 2.5, b"abc"]
    assert [rows.dtype[n] for n in ("i", "single", "double", "text")] == ["i8", "f4", "f8", "S6"]


@pytest.mark.parametrize("metric", sorted(columns.NODE_TABLES))
def test_node_rows_say_which_jobs_were_on_the_node_where_0_6_has_that_column(metric: str, tmp_path: Path) -> None:
    schema = colmet06.RECORDS[metric].schema
    write_once(
        tmp_path / "x.hdf5",
        [
            batch(table(schema, (0, {}), (5, {})), jobs=(5, 60)),
            batch(table(schema, (0, {}), time_s=TIME_S + 1), jobs=None),
            batch(table(schema, (0, {}), time_s=TIME_S + 2), jobs=()),
            batch(table(schema, (0, {}), time_s=TIME_S + 3), jobs=tuple(range(9000))),
        ],
    )
    involved = stored(tmp_path / "x.hdf5", f"/job_0/{metric}")["involved_jobs"]
    assert involved[:3].tolist() == [b"[5, 60]", b"", b"[]"]
    kept = json.loads(involved[3])  # what does not fit is left out, and it is JSON still
    assert kept == list(range(len(kept))) and len(kept) > 1000
    assert stored(tmp_path / "x.hdf5", f"/job_5/{metric}")["involved_jobs"].tolist() == [b""]


def test_jobprocstats_has_an_empty_involved_jobs_as_in_0_6(tmp_path: Path) -> None:
    write_once(tmp_path / "x.hdf5", [batch(table(colmet06.RECORDS["jobprocstats_default"].schema, (0, {}), (5, {})))])
    for job in (0, 5):
        assert stored(tmp_path / "x.hdf5", f"/job_{job}/jobprocstats_default")["involved_jobs"].tolist() == [b""]


def test_rows_larger_than_a_block_and_jobs_larger_than_a_block_arrive_in_order(tmp_path: Path) -> None:
    jobs = [1, 2, 2, 3] * 700
    schema = schema_of("n:i8", "wide:S2000")  # about 200 rows a block
    values = [table(schema, (job, {"n": n, "wide": b"%d" % n})) for n, job in enumerate(jobs)]
    write_once(tmp_path / "x.hdf5", [batch(*values[:1000], host="a-long-host-name"), batch(*values[1000:], host="b")])
    for job in (1, 2, 3):
        rows = stored(tmp_path / "x.hdf5", f"/job_{job}/site_default")
        expected = [n for n, owner in enumerate(jobs) if owner == job]
        assert rows["n"].tolist() == expected
        assert rows["wide"].tolist() == [b"%d" % n for n in expected]
        assert rows["hostname"].tolist() == [b"a-long-host-name" if n < 1000 else b"b" for n in expected]


def test_a_shorter_value_leaves_nothing_of_the_longer_one_written_before(tmp_path: Path) -> None:
    output = opened(tmp_path / "x.hdf5")
    schema = schema_of("text:S20")
    output.write([batch(table(schema, (1, {"text": b"a long text"})), host="a-long-host-name")])
    output.write([batch(table(schema, (1, {"text": b"x"})), host="b")])
    output.close()
    row = stored(tmp_path / "x.hdf5", "/job_1/site_default")[1]
    assert (row["text"], row["hostname"]) == (b"x", b"b")


# -- files --


def test_a_path_that_ends_in_hdf5_is_used_as_it_is_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "all.hdf5"
    write_once(path, numbers(7, 2))
    write_once(path, numbers(7, 2, first=2))
    assert os.listdir(tmp_path) == ["all.hdf5"]
    assert stored(path, "/job_7/taskstats_default")["cpu_count"].tolist() == [0, 1, 2, 3]


def test_another_path_gets_the_time_of_opening_in_ten_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 123456789.9)
    write_once(tmp_path / "colmet", numbers(7, 1))
    assert os.listdir(tmp_path) == ["colmet.0123456789.hdf5"]


def test_reopen_completes_the_file_and_starts_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    output = opened(tmp_path / "colmet")
    output.write(numbers(7, 1))
    output.reopen()  # within the same second: the same file
    output.write(numbers(7, 1, first=1))
    now[0] = 1001.0
    output.reopen()
    output.write(numbers(7, 1, first=2))
    output.close()
    first, second = tmp_path / "colmet.0000001000.hdf5", tmp_path / "colmet.0000001001.hdf5"
    assert stored(first, "/job_7/taskstats_default")["cpu_count"].tolist() == [0, 1]
    assert stored(second, "/job_7/taskstats_default")["cpu_count"].tolist() == [2]


def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "all.hdf5"
    output = opened(path)
    output.write(numbers(7, 2))
    path.rename(tmp_path / "old.hdf5")
    output.write(numbers(7, 1, first=2))
    output.close()
    assert stored(tmp_path / "old.hdf5", "/job_7/taskstats_default")["cpu_count"].tolist() == [0, 1]
    assert stored(path, "/job_7/taskstats_default")["cpu_count"].tolist() == [2]


def test_when_the_next_file_cannot_be_opened_rows_wait_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    output = opened(folder / "colmet")
    output.write(numbers(7, 1))
    folder.rename(tmp_path / "away")
    output.reopen()
    with pytest.raises(OutputUnavailable, match="does not exist"):
        output.write(numbers(7, 1))
    folder.mkdir()
    output.write(numbers(7, 3))
    output.close()
    (path,) = folder.iterdir()
    assert counts(path) == {"/job_7/taskstats_default": 3}


def test_a_missing_directory_is_made_as_in_06(tmp_path: Path) -> None:
    path = tmp_path / "none" / "deeper" / "x.hdf5"
    write_once(path, numbers(7, 1))
    assert counts(path) == {"/job_7/taskstats_default": 1}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not an HDF5 file; move it"),
        (b"timestamp,hostname\n" * 100, "is not an HDF5 file; move it"),
        (SAMPLE.read_bytes()[:5000], "cannot be opened for writing"),
    ],
)
def test_a_file_of_another_kind_and_a_damaged_one_are_refused_and_left_as_they_are(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "x.hdf5"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        opened(path)
    assert path.read_bytes() == content


def test_a_directory_and_a_path_below_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "x.hdf5").mkdir()
    for name, why in (
        ("file/none/x.hdf5", "Not a directory; check"),
        ("x.hdf5", "Is a directory"),
        ("", "a directory"),
    ):
        with pytest.raises(ConfigError, match=why):
            opened(f"{tmp_path}/{name}")


def test_a_path_that_cannot_be_written_is_refused_at_start(tmp_path: Path, small_disk: SmallDisk) -> None:
    small_disk.mount("size=1m")
    write_once(small_disk.path / "old.hdf5", numbers(7, 1))
    small_disk.remount("ro")
    for name in ("old.hdf5", "new.hdf5"):
        with pytest.raises(ConfigError, match="Read-only file system"):
            opened(small_disk.path / name)
    assert os.listdir(small_disk.path) == ["old.hdf5"]


def test_a_full_disk_at_start_is_refused_and_leaves_nothing(small_disk: SmallDisk) -> None:
    small_disk.mount("size=64k")
    (small_disk.path / "filler").write_bytes(bytes(64 << 10))
    with pytest.raises(ConfigError, match="No space left on device"):
        opened(small_disk.path / "x.hdf5")
    assert os.listdir(small_disk.path) == ["filler"]


@pytest.mark.usefixtures("other_user")
def test_another_user_without_rights_is_refused(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from colmet.collector.backends.hdf5.output import Hdf5Output\n"
        "from colmet.collector.journal.output_state import OutputState\nfrom colmet.common.errors import ConfigError\n"
        "os.setuid(65534)\n"
        "try: Hdf5Output(sys.argv[1]).open(OutputState('', '', 0, 0))\n"
        "except ConfigError as err: print(err)\n"
    )
    folder = Path("/var/tmp") / f"colmet-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        done = run_python(script, str(folder / "x.hdf5"))
        assert "cannot be opened for writing: Permission denied" in done
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)


# -- options --


def from_command_line(*words: str) -> Hdf5Output | None:
    parser = cli.Parser()
    Hdf5Output.add_options(parser)
    return Hdf5Output.from_options(parser.parse_args(words))


@pytest.mark.parametrize(("lib", "level"), [("zlib", 9), ("blosc", 3), ("bzip2", 1), ("blosc:lz4", 5)])
def test_compression_is_what_the_options_say(tmp_path: Path, lib: str, level: int) -> None:
    if tables.which_lib_version(lib.partition(":")[0]) is None:
        pytest.skip(f"this PyTables has no {lib}")  # pip's wheels differ: nothing that CI could install
    path = tmp_path / "x.hdf5"
    output = from_command_line(f"--hdf5-filepath={path}", f"--hdf5-complib={lib}", f"--hdf5-complevel={level}")
    assert output is not None
    writer = Writer(output)
    for burst in range(3):
        writer.write(numbers(7, 500, first=500 * burst))
    writer.close()
    with tables.open_file(str(path)) as file:
        assert (file.root.job_7.taskstats_default.filters.complib) == lib
        assert (file.root.job_7.taskstats_default.filters.complevel) == level
    assert stored(path, "/job_7/taskstats_default")["cpu_count"].tolist() == list(range(1500))
    assert path.stat().st_size < 1500 * 766 / 2


def test_a_compression_library_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "which_lib_version", lambda lib: None if lib == "lzo" else ("1", "1", "date"))
    with pytest.raises(ConfigError, match="lacks it; it has zlib, bzip2, blosc"):
        from_command_line("--hdf5-filepath=x", "--hdf5-complib=lzo")


# -- files of other versions --


def test_a_0_6_file_is_appended_to_and_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "old.hdf5"
    shutil.copy(SAMPLE, path)
    before = stored(path, "/job_4242/jobprocstats_default")
    row = {"VmRSS": 1, "RssShmem": 2, "VmSize": 3, "rchar": 4}
    schema = colmet06.RECORDS["jobprocstats_default"].schema
    output = opened(path)
    for n in range(3):  # the rebuilt table is appended to like any other, at once and after a flush
        output.write([batch(table(schema, (4242, {**row, "rchar": 4 + n})))])
    output.close()
    write_once(path, [batch(table(schema, (4242, {**row, "rchar": 7})))])
    after = stored(path, "/job_4242/jobprocstats_default")
    assert len(before) == 1
    for name in before.dtype.names:
        assert after[name][0] == before[name][0]
    assert [after[name].tolist() for name in ("VmRSS", "RssShmem", "VmSize")] == [
        [-1, 1, 1, 1, 1],
        [-1, 2, 2, 2, 2],
        [-1, 3, 3, 3, 3],
    ]
    assert after["rchar"][1:].tolist() == [4, 5, 6, 7]
    with tables.open_file(str(SAMPLE)) as theirs, tables.open_file(str(path)) as ours:
        node = ours.root.job_4242.jobprocstats_default
        assert node.title == "Metrics for the Job 4242"
        assert node.attrs.backend_version == 2
        assert node.filters.complevel == 9
        assert list(node.colnames) == sorted(node.colnames)
        assert node.coldflts["VmRSS"] == -1
        assert [n._v_name for n in ours.root.job_4242] == [n._v_name for n in theirs.root.job_4242]


def test_a_string_column_that_is_too_short_is_made_wider(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    write_once(path, [batch(table(schema_of("text:S4", "x:f4"), (1, {"text": b"abcd", "x": 1.5})))])
    write_once(path, [batch(table(schema_of("text:S10", "x:f8"), (1, {"text": b"abcdefghij", "x": 0.1})))])
    rows = stored(path, "/job_1/site_default")
    assert rows["text"].tolist() == [b"abcd", b"abcdefghij"]
    assert rows["x"].tolist() == [1.5, 0.1]


def test_rows_with_a_column_of_another_kind_go_to_another_table_and_that_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who comes first decides what a table that Colmet does not know is like, and keeps nobody else's values out."""
    path = tmp_path / "x.hdf5"
    output = opened(path)
    output.write([batch(table(schema_of("label:S8", "x:i8"), (1, {"label": b"abc", "x": 1}), (2, {})))])
    for n in range(3):
        output.write([batch(table(schema_of("label:f8", "x:i8"), (1, {"label": 2.5, "x": n}), (2, {"x": n})))])
    output.write([batch(table(schema_of("label:S8", "x:i8"), (1, {"label": b"def", "x": 2})))])
    output.close()
    (other,) = [name for name in names_in(path, "/job_1") if name != "site_default"]
    assert stored(path, "/job_1/site_default")["label"].tolist() == [b"abc", b"def"]
    rows = stored(path, f"/job_1/{other}")
    assert rows["label"].tolist() == [2.5] * 3 and rows["x"].tolist() == [0, 1, 2]
    assert stored(path, f"/job_2/{other}")["x"].tolist() == [0, 1, 2]
    assert output.values_left_out == output.rows_left_out == 0
    assert [r.getMessage() for r in caplog.records] == [
        f"rows go to another table, others came first with other columns: path={path} table=site_default other={other}"
    ]


def names_in(path: Path, group: str) -> list[str]:
    with tables.open_file(str(path)) as file:
        return sorted(file.get_node(group)._v_children)


def test_nobody_decides_what_the_other_table_is_like(tmp_path: Path) -> None:
    """A message may name it, too: its rows then go to a table that is made of its own columns."""
    path = tmp_path / "x.hdf5"
    first, second = schema_of("x:S8"), schema_of("x:i8")
    (_, other) = columns.names_for(second)
    write_once(path, [batch(table(schema_of("x:f4", name=other), (1, {"x": 0.5})))])
    write_once(path, [batch(table(first, (1, {"x": b"first"})))])
    write_once(path, [batch(table(second, (1, {"x": 7})))])
    assert stored(path, f"/job_1/{other}")["x"].tolist() == [7]
    assert len(names_in(path, "/job_1")) == 3


@pytest.mark.parametrize(
    "first",
    ["narrow", *[pytest.param(first, marks=pytest.mark.slow) for first in ("one column", "full", "many versions")]],
)
def test_who_comes_first_spoils_no_column_of_colmets_own_tables(tmp_path: Path, first: str) -> None:
    """A made-up row of a job to come, with fewer columns, narrow ones, and as many others as HDF5 can describe."""
    path = tmp_path / "x.hdf5"
    output = opened(path)
    if first == "one column":
        output.write([batch(table(schema_of("pids_peak:i8", name=CGROUP.name), (1, {})))])
    elif first == "narrow":
        output.write([batch(table(schema_of("user:S1", name=CGROUP.name), (1, {})))])
    elif first == "full":
        others = [f"{'x' * 120}{n}:i8" for n in range(1023)]
        output.write([batch(table(schema_of("user:S1", *others, name=CGROUP.name), (1, {})))])
    else:
        for n in range(2 * job_tables.MAX_REBUILDS):
            output.write([batch(table(schema_of("user:S1", f"x{n}:i8", name=CGROUP.name), (1, {})))])
    values = {name: n for n, name in enumerate(CGROUP.names) if name != "user"}
    output.write([batch(table(CGROUP, (1, {**values, "user": b"u" * 64})))])
    left_out = output.values_left_out
    output.write([batch(table(CGROUP, (1, {**values, "user": b"u" * 64})))])
    output.close()
    row = stored(path, f"/job_1/{CGROUP.name}")[-1]
    assert {name: row[name] for name in values} == values and row["user"] == b"u" * 64
    assert output.values_left_out == left_out


def test_whole_numbers_go_into_a_column_of_floats(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    write_once(path, [batch(table(schema_of("x:f8"), (1, {"x": 0.5})))])
    output = write_once(path, [batch(table(schema_of("x:i8"), (1, {"x": 3}), (1, {})))])
    assert stored(path, "/job_1/site_default")["x"].tolist() == [0.5, 3.0, -1.0]
    assert output.values_left_out == 0


def test_something_else_under_the_name_of_a_table_costs_only_its_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.hdf5"
    with tables.open_file(str(path), "w") as file:
        file.create_array("/", "job_1", [1])
        file.create_group("/job_2", "taskstats_default", createparents=True)
    output = opened(path)
    for n in range(2):
        output.write([*numbers(1, 1, n), *numbers(2, 1, n), *numbers(3, 1, n)])
    output.close()
    assert counts(path) == {"/job_3/taskstats_default": 2}
    assert output.rows_left_out == 4
    assert len(caplog.records) == 2


def test_a_schema_with_more_columns_than_hdf5_can_describe_keeps_the_first(tmp_path: Path) -> None:
    schema = schema_of(*[f"{'long' * 30}_{n}:i8" for n in range(1024)])
    output = opened(tmp_path / "x.hdf5")
    output.write([batch(table(schema, (1, dict.fromkeys(schema.names, 5))), table(TASKSTATS, (1, {"cpu_count": 4})))])
    output.close()
    rows = stored(tmp_path / "x.hdf5", "/job_1/site_default")
    kept = [name for name in schema.names if name in rows.dtype.names]
    assert kept == list(schema.names[: len(kept)]) and len(kept) > 300
    assert all(rows[name].tolist() == [5] for name in kept)
    assert output.values_left_out == 1024 - len(kept)


def test_a_schema_with_longer_rows_than_hdf5_can_describe_keeps_what_fits(tmp_path: Path) -> None:
    wide = [f"wide_{n}:S9000" for n in range(9)]
    schema = schema_of("a:i8", *wide, "z:i8")
    output = opened(tmp_path / "x.hdf5")
    for n in range(2):
        output.write([batch(table(schema, (1, {"a": n, "wide_0": b"x", "wide_8": b"y", "z": 6})))])
    output.close()
    rows = stored(tmp_path / "x.hdf5", "/job_1/site_default")
    assert rows["a"].tolist() == [0, 1] and rows["z"].tolist() == [6, 6] and rows["wide_0"].tolist() == [b"x", b"x"]
    assert "wide_8" not in rows.dtype.names
    assert output.values_left_out == 4


# -- other processes --


def run_python(script: str, *arguments: str) -> str:
    """What a program prints that is run as a user would: without our environment variable."""
    environment = {k: v for k, v in os.environ.items() if k != "HDF5_USE_FILE_LOCKING"}
    environment["PYTHONPATH"] = str(Path(colmet.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COUNT_WITH_PYTABLES = """
import sys, json, tables
with tables.open_file(sys.argv[1]) as file:
    print(json.dumps({t._v_pathname: t.read()["cpu_count"].tolist() for t in file.walk_nodes("/", "Table")}))
"""
COUNT_WITH_H5PY = """
import sys, json, h5py
found = {}
with h5py.File(sys.argv[1], "r") as file:
    file.visititems(lambda n, t: found.update({"/" + n: t["cpu_count"].tolist()}) if hasattr(t, "dtype") else None)
print(json.dumps(found))
"""


@pytest.mark.parametrize("complevel", [0, pytest.param(9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "reader", [COUNT_WITH_H5PY, pytest.param(COUNT_WITH_PYTABLES, marks=pytest.mark.slow)], ids=["h5py", "PyTables"]
)
def test_another_process_reads_the_live_file_between_bursts(tmp_path: Path, reader: str, complevel: int) -> None:
    if reader is COUNT_WITH_H5PY and importlib.util.find_spec("h5py") is None:
        cannot_run("no h5py")
    path = tmp_path / "x.hdf5"
    output = opened(path, complevel=complevel)
    assert json.loads(run_python(reader, str(path))) == {}
    for burst in range(2):
        output.write([b for job in range(1, 40) for b in numbers(job, 7, first=7 * burst)])
        expected = list(range(7 * burst + 7))
        assert json.loads(run_python(reader, str(path))) == {
            f"/job_{job}/taskstats_default": expected for job in range(1, 40)
        }
    output.close()


@pytest.mark.slow
@pytest.mark.parametrize("complevel", [0, 9])
def test_after_sigkill_between_bursts_every_table_opens_with_all_its_rows(tmp_path: Path, complevel: int) -> None:
    path = tmp_path / "x.hdf5"
    script = (
        "import sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tests.support.hdf5_files import numbers\nfrom tests.support.hdf5_writer import opened\n"
        "output = opened(sys.argv[2], complevel=int(sys.argv[3]))\n"
        "for burst in range(3):\n"
        "    output.write([b for job in range(20) for b in numbers(job, 50, first=50 * burst)])\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(colmet.__file__).parent.parent)}
    command = [sys.executable, "-c", script, str(Path(__file__).parents[1]), str(path), str(complevel)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    found = json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
    assert found == {f"/job_{job}/taskstats_default": list(range(150)) for job in range(20)}
    write_once(path, numbers(5, 1, first=150))  # and it can be gone on with
    assert counts(path)["/job_5/taskstats_default"] == 151


# -- memory --


@pytest.mark.slow
def test_tables_are_not_kept_open_and_those_known_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_tables, "MAX_KNOWN", 16)
    path = tmp_path / "x.hdf5"
    output = opened(path)
    for burst in range(3):
        output.write([b for job in range(60) for b in numbers(job, 2, first=2 * burst)])
        datasets = calls._function("H5Fget_obj_count", ctypes.c_ssize_t, ctypes.c_int64, ctypes.c_uint)
        assert len(output.file.jobs._known) == 16 and datasets(output.file._file._id, 2) == 0
    output.close()
    for job in range(60):
        assert stored(path, f"/job_{job}/taskstats_default")["cpu_count"].tolist() == list(range(6))


# -- all or nothing --


class SmallDisk:
    """A file system in memory, as small as a test wants it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mounted = False

    def mount(self, options: str) -> None:
        self.path.mkdir(exist_ok=True)
        mount_tmpfs(self.path, options)
        self.mounted = True

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


def burst_of(first: int, jobs: Sequence[int] = range(1, 6), count: int = 60) -> list[Batch]:
    """Rows with random counters, so that compression does not make them small."""
    rng = np.random.default_rng(first)
    parts = []
    for n in range(count):
        rows = TASKSTATS.empty_rows(len(jobs))
        for name in TASKSTATS.names:
            rows[name] = rng.integers(0, 1 << 60, len(jobs))
        rows["job_id"] = jobs
        rows["cpu_count"] = first + n
        parts.append(batch(Table(TASKSTATS, (TIME_S + first + n) * 10**9, rows)))
    return parts


def take_all_space(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(path).f_bavail == 0


def only(found: dict[str, list[int]], jobs: Sequence[int]) -> list[list[int] | None]:
    return [found.get(f"/job_{job}/taskstats_default") for job in jobs]


def fill_up(output: Writer) -> tuple[int, list[int], list[Batch]]:
    """Write until the disk is full; how many bursts went in, the jobs of the one that did not, and that one."""
    for done in range(100):
        jobs = [1, 2, 3, 100 + 2 * done, 101 + 2 * done]  # every burst creates tables, too
        failed = burst_of(60 * done, jobs)
        try:
            output.write(failed)
        except OutputUnavailable as err:
            text = str(err)
            break
    assert text == f"cannot write to {output.path}: No space left on device"
    return done, jobs, failed


# Sizes so that space runs out at different places of a burst.
@pytest.mark.slow
@pytest.mark.parametrize(("size_k", "options"), [(1024, {}), (2048, {"complevel": 9}), (2504, {})])
def test_a_write_onto_a_full_disk_leaves_the_file_as_it_was_and_succeeds_when_there_is_space(
    small_disk: SmallDisk, size_k: int, options: dict[str, Any]
) -> None:
    small_disk.mount(f"size={size_k}k")
    path = small_disk.path / "x.hdf5"
    output = opened(path, **options)
    done, jobs, failed = fill_up(output)
    for _ in range(3):
        found = json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
        assert len(found) == (3 + 2 * done if done else 0)
        assert only(found, jobs) == [list(range(60 * done)) or None] * 3 + [None] * 2
        with pytest.raises(OutputUnavailable):
            output.write(failed)
    small_disk.remount("size=20m")
    output.write(failed)
    output.write(burst_of(60 * (done + 1), [1, 2, 3]))
    found = json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
    output.close()
    assert found == json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
    assert only(found, jobs) == [list(range(60 * (done + 2)))] * 3 + [list(range(60 * done, 60 * done + 60))] * 2


# The burst asks for space twice: for the five tables that it creates, then for the rows.
@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("complevel", [0, 9])
def test_a_burst_ends_well_or_leaves_nothing_when_others_take_all_space_meanwhile(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, after: int, complevel: int
) -> None:
    small_disk.mount("size=8m")
    path, filler = small_disk.path / "x.hdf5", small_disk.path / "filler"
    reserve, calls = Hdf5File._reserve, -2  # those of the first burst

    def reserve_and_lose_the_rest(self: Hdf5File, size: int) -> None:
        nonlocal calls
        reserve(self, size)
        calls += 1
        if calls == after:
            take_all_space(filler)

    monkeypatch.setattr(Hdf5File, "_reserve", reserve_and_lose_the_rest)
    output = opened(path, complevel=complevel)
    output.write(burst_of(0, [1, 2, 3]))
    burst = burst_of(60, [1, 2, 3, *range(100, 105)])
    if after < 2:
        with pytest.raises(OutputUnavailable, match="No space left on device"):
            output.write(burst)
        found = json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
        assert found == {f"/job_{job}/taskstats_default": list(range(60)) for job in (1, 2, 3)}
        filler.unlink()
    output.write(burst)
    found = json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
    output.close()
    assert found == json.loads(run_python(COUNT_WITH_PYTABLES, str(path)))
    assert only(found, [1, 2, 3]) == [list(range(120))] * 3
    assert only(found, range(100, 105)) == [list(range(60, 120))] * 5


@pytest.mark.parametrize(("rows", "most_bytes"), [(1, 21_000), (50, 90_000)])
def test_a_table_of_few_rows_needs_little_space(tmp_path: Path, rows: int, most_bytes: int) -> None:
    """A node can make jobs up; the description of the columns alone has 16 kB."""
    output = opened(tmp_path / "x.hdf5")
    output.write([batch(table(CGROUP, *[(1, {"cpu_usage": n}) for n in range(rows)]))])
    before = (tmp_path / "x.hdf5").stat().st_size
    output.write([batch(table(CGROUP, *[(job, {"cpu_usage": n}) for n in range(rows)])) for job in range(2, 102)])
    assert (tmp_path / "x.hdf5").stat().st_size - before < 100 * most_bytes
    output.close()


def test_a_file_keeps_no_space_that_it_does_not_need(tmp_path: Path) -> None:
    output = opened(tmp_path / "x.hdf5", complevel=9)
    output.write(numbers(1, 10))
    size = (tmp_path / "x.hdf5").stat().st_size
    for n in range(1, 10):
        output.write(numbers(1, 1, first=10 * n))
    assert (tmp_path / "x.hdf5").stat().st_size < size + 10_000
    output.close()
    assert size < 40_000


def test_a_file_system_that_cannot_promise_space_is_asked_for_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    output = opened(tmp_path / "x.hdf5")
    output.write(numbers(1, 3))
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((4096, 4096, 1000, 9, 9, 0, 0, 0, 0, 255)))
    with pytest.raises(OutputUnavailable, match="No space left on device"):
        output.write(numbers(1, 3))
    monkeypatch.undo()
    output.write(numbers(1, 3))
    output.close()
    assert counts(tmp_path / "x.hdf5") == {"/job_1/taskstats_default": 6}


def test_a_rebuild_that_fails_leaves_the_table_as_it_was(small_disk: SmallDisk) -> None:
    small_disk.mount("size=3m")
    path = small_disk.path / "x.hdf5"
    output = opened(path)
    old, new = schema_of("a:i8", "text:S200"), schema_of("a:i8", "text:S200", "b:i8")
    output.write([batch(*[table(old, (1, {"a": n})) for n in range(2000)])])  # 1.4 MB, so not twice
    rows = [batch(table(new, (1, {"a": 2000, "b": 5}), (2, {"a": 1})))]
    for _ in range(2):
        with pytest.raises(OutputUnavailable, match="No space left"):
            output.write(rows)
        assert json.loads(run_python(COUNT_WITH_PYTABLES.replace("cpu_count", "a"), str(path))) == {
            "/job_1/site_default": list(range(2000))
        }
    output.write([batch(table(old, (1, {"a": 2000})))])  # what needs no rebuild goes on
    small_disk.remount("size=20m")
    rows = [batch(table(new, (1, {"a": 2001, "b": 5}), (2, {"a": 1})))]
    output.write(rows)
    output.close()
    assert stored(path, "/job_1/site_default")["a"].tolist() == list(range(2002))
    assert stored(path, "/job_1/site_default")["b"].tolist() == [-1] * 2001 + [5]
    assert stored(path, "/job_2/site_default")["a"].tolist() == [1]


class Failure:
    """Makes a method of the output's file or tables fail when it is called for the n-th time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, at: int) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls >= at and self.active:
                raise error
            return original(*args, **kwargs)

        self.active = True
        monkeypatch.setattr(owner, name, called)


FAILURES = [OSError(errno.EIO, os.strerror(errno.EIO)), tables.HDF5ExtError("Problems appending the records.")]


@pytest.mark.parametrize(
    ("error", "at"),
    [(FAILURES[0], 1), *[pytest.param(*case, marks=pytest.mark.slow) for case in ((FAILURES[1], 3), (FAILURES[0], 6))]],
)
def test_a_write_that_fails_midway_is_taken_back_and_its_retry_stores_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, at: int
) -> None:
    path = tmp_path / "x.hdf5"
    output = opened(path)
    output.write(burst_of(0, [1, 2, 3]))
    failure = Failure(monkeypatch, Dataset, "append", error, at)
    with pytest.raises(OutputUnavailable, match=f"{path}: (Input/output error|Problems appending)"):
        output.write(burst_of(60, [1, 2, 3, 4, 5, 6]))
    assert counts_live(path) == {f"/job_{job}/taskstats_default": 60 for job in (1, 2, 3)}
    failure.active = False
    output.write(burst_of(60, [1, 2, 3, 4, 5, 6]))
    output.close()
    assert counts(path) == {f"/job_{job}/taskstats_default": 120 if job < 4 else 60 for job in range(1, 7)}


def counts_live(path: Path) -> dict[str, int]:
    return {name: len(rows) for name, rows in json.loads(run_python(COUNT_WITH_PYTABLES, str(path))).items()}


@pytest.mark.parametrize(
    "then", ["write", *[pytest.param(then, marks=pytest.mark.slow) for then in ("reopen", "close")]]
)
def test_a_file_that_cannot_even_be_taken_back_is_taken_back_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    path = tmp_path / "x.hdf5"
    output = opened(path)
    output.write(burst_of(0, [1, 2]))
    append = Failure(monkeypatch, Dataset, "append", FAILURES[1], 2)
    truncate = Failure(monkeypatch, tables.Table, "truncate", TypeError("PyTables in disorder"), 1)
    with pytest.raises(OutputUnavailable):
        output.write(burst_of(60, [1, 3, 2]))
    append.active = False
    with pytest.raises(OutputUnavailable):  # now it is the taking back that fails
        output.write(burst_of(60, [1, 3, 2]))
    truncate.active = False
    if then == "write":
        output.write(burst_of(60, [1, 3, 2]))
    elif then == "reopen":
        output.reopen()
    output.close()
    extra = 60 if then == "write" else 0
    expected = {"/job_1/taskstats_default": 60 + extra, "/job_2/taskstats_default": 60 + extra}
    assert counts(path) == {**expected, **({"/job_3/taskstats_default": 60} if extra else {})}


def test_rows_of_a_failed_write_are_left_out_of_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.hdf5"
    write_once(path, [batch(table(schema_of("user:S8", name=CGROUP.name), (1, {})))])
    output = opened(path)
    failure = Failure(monkeypatch, Dataset, "append", FAILURES[0], 1)
    with pytest.raises(OutputUnavailable):
        output.write([batch(table(schema_of("user:i8", name=CGROUP.name), (1, {})))])
    failure.active = False
    output.write([batch(table(schema_of("user:i8", name=CGROUP.name), (1, {})))])
    output.close()
    assert output.values_left_out == 1


def test_an_unexpected_exception_is_taken_back_too_and_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.hdf5"
    output = opened(path)
    failure = Failure(monkeypatch, Dataset, "append", ZeroDivisionError("a bug"), 2)
    with pytest.raises(OutputUnavailable, match="a bug"):  # the file may be the cause, and is checked
        output.write(burst_of(0))
    with pytest.raises(ZeroDivisionError):
        output.write(burst_of(0))
    failure.active = False
    output.write(burst_of(0))
    output.close()
    assert set(counts(path).values()) == {60}


def test_two_collectors_never_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    first = opened(path)
    first.write([batch(table(TASKSTATS, (1, {"cpu_count": 1})))])
    code = (
        "import sys\nfrom colmet.collector.backends.hdf5.output import Hdf5Output\n"
        "from colmet.collector.journal.output_state import OutputState\nfrom colmet.common.errors import ConfigError\n"
        "try: Hdf5Output(sys.argv[1]).open(OutputState('', '', 0, 0))\nexcept ConfigError as err: print(err)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(colmet.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "another process writes to it; stop the other colmet-collector" in done.stdout
    first.write([batch(table(TASKSTATS, (1, {"cpu_count": 2})))])  # its flush did not give the lock up
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "another process" in done.stdout
    first.close()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == ""
    with tables.open_file(str(path)) as file:
        assert file.get_node("/job_1/taskstats_default").col("cpu_count").tolist() == [1, 2]


def test_a_table_is_not_rebuilt_at_the_wish_of_every_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_tables, "MAX_REBUILDS", 3)
    output = opened(tmp_path / "x.hdf5")
    for n in range(8):
        output.write([batch(table(schema_of("a:i8", f"b{n}:i8"), (1, {"a": n, f"b{n}": 7})))])
    output.close()
    rows = stored(tmp_path / "x.hdf5", "/job_1/site_default")
    assert rows["a"].tolist() == list(range(4))
    assert [name for name in rows.dtype.names if name[0] == "b"] == ["b0", "b1", "b2", "b3"]
    with tables.open_file(str(tmp_path / "x.hdf5")) as file:
        assert sorted(n for one in file.walk_nodes("/", "Table") for n in one.col("a")) == list(range(8)), (
            "none is lost"
        )
    assert output.values_left_out == 0


def test_a_burst_into_another_table_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.hdf5"
    output = opened(path)
    output.write([batch(table(schema_of("x:S8"), (1, {})))])
    one = [batch(table(schema_of("x:i8"), (1, {"x": 5})), table(schema_of("y:i8", name="z_default"), (1, {})))]
    failure = Failure(monkeypatch, Dataset, "append", FAILURES[0], 2)
    with pytest.raises(OutputUnavailable):
        output.write(one)
    failure.active = False
    output.write(one)
    output.close()
    (other,) = [name for name in names_in(path, "/job_1") if name.startswith("site_default_")]
    assert stored(path, f"/job_1/{other}")["x"].tolist() == [5]


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="--hdf5-filepath is empty"):
        from_command_line("--hdf5-filepath", "")
