"""colmet extract: what OAR's REST API gets, whatever it passes, and what people get."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmet.collector.backends.hdf5.library import tables
from colmet.commands import extract, extract_rows
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.node.backends import rapl
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.series import RowQuery, Series
from tests.support.hdf5_writer import write_once

SAMPLE = Path(__file__).parents[1] / "data/colmet06/hdf5/sample.hdf5"
OAR_DEFAULT = "ac_etime,cpu_run_real_total,coremem,read_bytes,write_bytes"
START = 1_700_000_000
TASKS = Schema("taskstats_default", "job", [Field("cpu", "nsec", "counter"), Field("read_bytes", "bytes", "counter")])
PROCS = Schema(
    "jobprocstats_default", "job", [Field("read_bytes", "bytes", "counter"), Field("rchar", "bytes", "counter")]
)
GPUS = Schema(
    "nvidiajobs_default",
    "job",
    [Field("gpu", "none", "label", dtype="S16"), Field("power", "watts", "gauge", dtype="f8")],
)
NODES = Schema(
    "procstats_default", "node", [Field("free", "kbytes", "gauge"), Field("load", "none", "gauge", dtype="f8")]
)


def batch(time_s, host, *parts):
    """A batch; each part is a schema and (job, values) for each row."""
    made = [Table.from_samples(schema, time_s * 10**9, [Sample(*row) for row in rows]) for schema, *rows in parts]
    return Batch(host, 1, time_s, time_s * 10**9, (7, 8), tuple(made))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A prefix: job 7 on two hosts, with several tables; rows of nodes for longer, and of another host."""
    made = tmp_path_factory.mktemp("stored") / "made.hdf5"
    batches = []
    for n in range(6):
        for host in ("node-2", "node-1"):
            parts = [[NODES, (0, {"free": 100 + n, "load": n / 2})]]
            if n < 4:
                parts.append([TASKS, (7, {"cpu": n, "read_bytes": 10 * n}), (8, {"cpu": 1})])
            if n in (1, 2):
                parts.append([PROCS, (7, {"read_bytes": 1000 + n, "rchar": n})])
            if n == 1 and host == "node-1":
                parts.append([GPUS, (7, {"gpu": b"a", "power": 70.5}), (7, {"gpu": b"b\x1b[2J"})])
            batches.append(batch(START + n, host, *parts))
        batches.append(batch(START + n, "node-3", [NODES, (0, {"free": 5})]))
    write_once(made, batches)
    made.rename(made.with_name(f"cluster.{START - 5}.hdf5"))
    return str(made.with_name("cluster"))


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A prefix with a file of Colmet 0.6."""
    folder = tmp_path_factory.mktemp("old")
    shutil.copy(SAMPLE, folder / "colmet.1600000000.hdf5")
    return str(folder / "colmet")


def oar(*arguments):
    """Status, data and text, as OAR would have them."""
    out = io.BytesIO()
    kept, text = os.dup(2), os.memfd_create("stderr")
    os.dup2(text, 2)
    try:
        status = extract.answer_oar(arguments, out)
    finally:
        os.dup2(kept, 2)
    said = os.pread(text, 1 << 20, 0).decode()
    for descriptor in (kept, text):
        os.close(descriptor)
    return status, json.loads(gzip.decompress(out.getvalue())) if out.getvalue() else None, said


def answer(*arguments):
    status, data, said = oar(*arguments)
    assert (status, said) == (0, "")
    assert {len(values) for values in data.values()} == {len(data["timestamp"])}
    return data


# -- as OAR calls it --


def test_the_program_writes_gzip_and_nothing_on_stderr(old):
    argv = [sys.executable, "-m", "colmet.commands.extract", old, "17", "1600000000", "1800000000", OAR_DEFAULT]
    done = subprocess.run(argv, capture_output=True, check=False, cwd=Path(extract.__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, b"")
    data = json.loads(gzip.decompress(done.stdout))
    with tables.open_file(str(SAMPLE)) as file:
        row = file.get_node("/job_17/taskstats_default")[0]
    assert data == {
        "timestamp": [row["timestamp"]],
        "hostname": [row["hostname"].decode()],
        **{name: [row[name]] for name in OAR_DEFAULT.split(",")},
    }


def test_only_the_database_and_the_terminal_libraries_stay_away():
    """OAR's users wait for each import."""
    code = "import sys, colmet.commands.extract as e, colmet.stored.hdf5; e.build_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"requests", "zmq", "rich", "pyarrow", "matplotlib", "msgpack"} & set(done.stdout.split())


def test_rows_of_a_job_are_all_those_of_the_files_by_time_and_host(stored):
    """As in Colmet 0.6: OAR's STOP is the end of the job, and its totals are in a row measured later."""
    data = answer(stored, "7", str(START + 1), f"{START + 2}.5", "cpu")
    assert data == {
        "timestamp": [START + n for n in range(4) for _ in range(2)],
        "hostname": ["node-1", "node-2"] * 4,
        "cpu": [0, 0, 1, 1, 2, 2, 3, 3],
    }


def test_columns_of_several_tables_have_one_length_and_minus_one_for_what_is_missing(stored):
    data = answer(stored, "7", "0", "9999999999", "rchar,cpu,gpu,power,no_such")
    assert data["rchar"] == [-1, -1, 1, -1, 1, 2, 2, -1, -1]
    assert data["cpu"] == [0, 0, 1, -1, 1, 2, 2, 3, 3]
    assert data["gpu"] == ["", "", "a", "b\\x1b[2J", *[""] * 5]
    assert data["power"] == [-1, -1, 70.5, *[-1] * 6]
    assert data["no_such"] == [-1] * 9


@pytest.mark.parametrize(("job", "rows"), [("7", 8), ("0", 18)])
def test_time_and_host_alone_are_those_of_the_main_table(stored, run, job, rows):
    data = answer(stored, job, "0", "9999999999", "timestamp,hostname")
    assert list(data) == ["timestamp", "hostname"] and len(data["timestamp"]) == rows
    assert json.loads(run("extract", "--hdf5", stored, "--job", job, "--metrics", "timestamp")[1]) == data


def test_metrics_that_no_table_has_take_no_memory():
    times = START + np.arange(100_000)
    series = Series("taskstats_default", "node-1", 7, times, {"cpu": np.arange(len(times))})
    chosen = [
        extract_rows.OutputColumn("cpu", series.table, "cpu"),
        *[extract_rows.OutputColumn(f"no{n}") for n in range(999)],
    ]
    found = extract_rows.join({(series.table, False): [series]}, chosen)
    assert sum([column.strides[0] * len(column) for column in found.columns.values()]) == 8 * len(times)
    assert extract_rows.plain(found.columns["no7"], -1) == [-1] * len(times)


def test_columns_of_nodes_are_those_of_the_jobs_hosts_and_time(stored):
    data = answer(stored, "7", "0", "9999999999", "free,load")
    assert data["timestamp"] == [START + n for n in range(4) for _ in range(2)]
    assert data["hostname"] == ["node-1", "node-2"] * 4
    assert data["free"] == [100 + n for n in range(4) for _ in range(2)]


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({}, 0, ""),
        ({"job": "9"}, 4, "no data of job 9 from 0 to 2000000000: no file of that time has rows of it"),
        ({"stop": "5"}, 4, "no data of job 7 from 0 to 5"),
        ({"job": "0", "start": "1900000000"}, 4, "no data"),
        ({"metrics": "nope"}, 4, "none of its tables, jobprocstats_default"),
        ({"prefix": "/nowhere/x"}, 2, "no file is named '/nowhere/x'"),
        ({"job": "-h"}, 1, "JOB_ID '-h' is not"),
        ({"job": "7;id"}, 1, "JOB_ID"),
        ({"job": str(1 << 63)}, 1, "JOB_ID"),
        ({"job": "9" * 5000}, 1, "JOB_ID"),
        ({"job": "\u0667"}, 1, "JOB_ID"),
        ({"start": "nan"}, 1, "START"),
        ({"stop": "inf"}, 1, "STOP"),
        ({"metrics": ""}, 1, "METRICS"),
        ({"metrics": "a,$(id)"}, 1, "METRICS"),
        ({"metrics": "cpu\x1b]0;x\x07"}, 1, "METRICS"),
        ({"metrics": ",".join([f"m{n}" for n in range(200_000)])}, 1, "METRICS"),
        ({"metrics": "m" * (1 << 20)}, 1, "METRICS"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_a_status(stored, change, status, text):
    given_ = {"prefix": stored, "job": "7", "start": "0", "stop": "2000000000", "metrics": "cpu", **change}
    found, data, said = oar(*given_.values())
    assert found == status and (data is None) == (status != 0) and text in said
    assert len(said) < 500 and said.count("\n") == (status != 0) and said.rstrip("\n").isprintable()


@pytest.mark.parametrize("metric", ["cpu", "rchar", "free", "nope"])
def test_files_of_another_time_are_left_alone(stored, tmp_path, monkeypatch, metric):
    """There may be thousands of them."""
    for begins in (START - 1000, START - 5):
        shutil.copy(f"{stored}.{START - 5}.hdf5", tmp_path / f"cluster.{begins}.hdf5")
    for begins in (START - 10**6, START + 10**6):
        other = tmp_path / f"cluster.{begins}.hdf5"
        other.write_bytes(b"not HDF5 at all")  # which is an error where it is opened
        os.utime(other, (1, 1))
    logged = []
    monkeypatch.setattr("syslog.syslog", lambda *line: logged.append(line))
    assert oar(str(tmp_path / "cluster"), "7", str(START), str(START + 9), metric)[0] == 4 * (metric == "nope")
    assert logged == []


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=30),
            st.from_regex(r"[-+]?[0-9.eE]{1,30}"),
            st.sampled_from(["17", "0", "-h", "--version", "$(id)", "`id`", "a;b", "../..", "cpu,cpu", "x" * 10_000]),
        ),
        min_size=5,
        max_size=5,
    )
)
def test_hostile_arguments_do_nothing(arguments):
    status, data, said = oar("/nowhere/x", *[text.replace("\0", "") for text in arguments[1:]])
    assert status in (1, 2) and data is None
    assert said.count("\n") == 1 and said[:-1].isprintable() and len(said) < 400


def test_a_damaged_file_is_one_line(tmp_path):
    path = tmp_path / "c.1600000000.hdf5"
    path.write_bytes(SAMPLE.read_bytes()[:60_000])
    os.utime(path, (1, 1))
    status, data, said = oar(str(tmp_path / "c"), "17", "1600000000", "1800000000", "coremem")
    assert (status, data) == (2, None) and said.count("\n") == 1 and "damaged" in said


# -- as people call it --


def test_json_has_null_for_what_is_missing(stored, run):
    status, out, err = run(
        "extract", "--hdf5", stored, "--job", "7", "--host", "node-1", "--metrics", "rchar,gpu,power,load"
    )
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["rchar"] == [None, 1, None, 2, None]
    assert data["gpu"] == [None, "a", "b\\x1b[2J", None, None]
    assert data["power"] == [None, 70.5, None, None, None]
    assert data["load"] == [0.0, 0.5, None, 1.0, 1.5] and set(data["hostname"]) == {"node-1"}


def test_csv_has_a_header_and_empty_cells(stored, run):
    until = str(START + 1)
    status, out, err = run(
        "extract", *("--hdf5", stored, "--job", "7", "--metrics", "cpu,rchar", "--until", until, "--format", "csv")
    )
    assert (status, err) == (0, "")
    assert list(csv.reader(io.StringIO(out)))[:2] == [
        ["timestamp", "hostname", "cpu", "rchar"],
        [str(START), "node-1", "0", ""],
    ]
    assert out.count("\n") == 5 and "\r" not in out


def test_columns_with_numbers_are_in_the_order_of_these(tmp_path, run):
    path = tmp_path / "x.hdf5"
    names = [f"counter_{n}" for n in range(1, 25)]
    table = Table.from_samples(rapl.SCHEMA, START * 10**9, [Sample(0, dict.fromkeys(names, 1))])
    write_once(path, [Batch("node-1", 1, 1, START * 10**9, (), (table,))])
    for metrics in ((), ("--metrics", "RAPLstats.*")):
        _, out, _ = run("extract", "--hdf5", str(path), "--job", "0", "--format", "csv", *metrics)
        header = [name.rpartition(".")[2] for name in out.splitlines()[0].split(",")]
        assert [name for name in header if name in names] == names
    _, out, _ = run("extract", "--hdf5", str(path), "--job", "0", "--list")
    assert out.index("counter_2 ") < out.index("counter_10 ")


def test_all_tables_of_the_job_by_default_or_a_whole_table(stored, run):
    _, out, _ = run("extract", "--hdf5", stored, "--job", "7")
    every = json.loads(out)
    assert {"taskstats_default.cpu", "taskstats_default.read_bytes", "nvidiajobs_default.power"} < set(every)
    _, out, _ = run("extract", "--hdf5", stored, "--job", "7", "--metrics", "taskstats_default.*")
    whole = json.loads(out)
    assert list(whole)[:2] == ["timestamp", "hostname"] == list(every)[:2]
    assert set(whole) == {"timestamp", "hostname", *[name for name in every if name.startswith("taskstats_default.")]}
    # a table of Colmet's has all of its columns; what a node did not send is missing
    assert {*whole["taskstats_default.ac_etime"]} == {None}


def test_a_table_may_be_named_without_default_and_a_wrong_name_has_near_ones(stored, run):
    whole = run("extract", "--hdf5", stored, "--job", "7", "--metrics", "taskstats_default.cpu")
    short = run("extract", "--hdf5", stored, "--job", "7", "--metrics", "taskstats.cpu")
    assert short[0] == whole[0] == 0 and short[1] == whole[1].replace("taskstats_default.cpu", "taskstats.cpu")
    status, _, err = run("extract", "--hdf5", stored, "--job", "7", "--metrics", "taskstats.read_bites")
    assert status == 1 and "near it: taskstats.read_bytes" in err


def test_parquet_has_types_and_nulls(stored, run, tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "job.parquet")
    argv = ["--job", "7", "--hdf5", stored, "--metrics", "cpu,gpu,power", "--format", "parquet", "--output", path]
    assert run("extract", *argv) == (0, "", "")
    table = pyarrow.read_table(path)
    assert [str(kind) for kind in table.schema.types][2:] == ["int64", "string", "double"]
    assert table.column("power").to_pylist() == [None, None, 70.5, *[None] * 6]
    assert table.column("hostname").to_pylist()[:2] == ["node-1", "node-2"]


def test_without_pyarrow_it_says_what_to_install(stored, run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "job.parquet"
    status, _, err = run(
        "extract", *("--job", "7", "--hdf5", stored, "--format", "parquet", "--output", str(path), "--metrics", "cpu")
    )
    assert status == 2 and "pip install pyarrow" in err and list(tmp_path.iterdir()) == []


def test_hdf5_is_a_file_as_the_collector_writes_it(stored, run, tmp_path):
    path = str(tmp_path / "job.hdf5")
    metrics = "taskstats_default.*,nvidiajobs_default.*,load"
    argv = ["--job", "7", "--hdf5", stored, "--metrics", metrics, "--format", "hdf5", "--output", path]
    assert run("extract", *argv) == (0, "", "")
    with Hdf5History([stored]) as before, Hdf5History([path]) as after:
        assert list(after.tables(7)) == ["nvidiajobs_default", "taskstats_default"]
        for table in after.tables(7):
            for one, other in zip(before.read(RowQuery(7, table)), after.read(RowQuery(7, table))):
                assert one.host == other.host and one.times.tolist() == other.times.tolist()
                assert {n: v.tobytes() for n, v in one.columns.items()} == {
                    n: v.tobytes() for n, v in other.columns.items()
                }
        assert [len(series) for series in after.read(RowQuery(0, "procstats_default"))] == [4, 4]
    with tables.open_file(path) as file:
        table = file.get_node("/job_7/nvidiajobs_default")
        assert table.attrs.backend_version == 2 and sorted(table.read(field="power")) == [-1, 70.5]


def test_the_list_has_tables_rows_and_units(stored, run):
    _, out, _ = run("extract", "--hdf5", stored, "--job", "7", "--list")
    assert "taskstats_default: 8 rows of 2 hosts\n  from 2023-11-14 22:13:20 to 2023-11-14 22:13:23 UTC\n" in out
    assert "read_bytes (bytes)" in out and max(map(len, out.splitlines())) <= 80
    _, out, _ = run("extract", "--hdf5", stored, "--job", "7", "--list", "--format", "json")
    assert {one["table"]: one["rows"] for one in json.loads(out)}["jobprocstats_default"] == 4
    assert run("extract", "--hdf5", stored, "--job", "99", "--list")[0] == 1


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        ([], 2, "--job JOB"),
        (["--job", "7", "--format", "parquet"], 2, "--output FILE"),
        (["--job", "99"], 1, "nothing is stored of job 99"),
        (["--job", "7", "--metrics", "nope"], 1, "none of 'nope'"),
        (["--job", "7", "--output", "/nowhere/file"], 1, "/nowhere/file: cannot be written"),
    ],
)
def test_what_cannot_be_done_is_one_line(stored, run, argv, status, text):
    found, out, err = run("extract", "--hdf5", stored, *argv)
    assert (found, out) == (status, "") and text in err and err.count("\n") == 1


def test_ctrl_c_ends_the_program_in_silence(monkeypatch, capfd):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "answer_oar", interrupted)
    assert extract.main(["prefix", "7", "0", "1", "cpu"]) == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["extract", "--hdf5", "{}", "--job", "7", "--format", "csv"], 141),
        (["extract", "{}", "7", "0", "9e9", "cpu"], 0),
    ],
)
def test_a_reader_that_goes_away_is_no_error(stored, options, status):
    argv = [
        sys.executable,
        "-m",
        "colmet.commands.colmet",
        *[word.format(stored).replace("9e9", "9999999999") for word in options],
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == status


@pytest.mark.parametrize(
    ("program", "status"),
    [(["extract", "{}", "7", "0", "9999999999", "cpu"], 3), (["extract", "--hdf5", "{}", "--job", "7"], 1)],
)
def test_an_answer_that_cannot_be_written_is_one_line(stored, program, status):
    argv = [sys.executable, "-m", "colmet.commands.colmet", *[word.format(stored) for word in program]]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.endswith(": No space left on device\n") and done.stderr.count("\n") == 1


def test_an_answer_that_needs_too_much_memory_is_one_line(stored, monkeypatch):
    def too_much(*_):
        raise MemoryError

    monkeypatch.setattr(extract_rows, "join", too_much)
    status, _, said = oar(stored, "7", "0", "9999999999", "cpu")
    assert status == 3 and "memory" in said and said.count("\n") == 1


def test_the_output_replaces_files_alone(stored, tmp_path, run):
    argv = ["--hdf5", stored, "--job", "7", "--metrics", "cpu", "--output"]
    os.mkfifo(tmp_path / "pipe")
    status, _, err = run("extract", *argv, str(tmp_path / "pipe"))
    assert status == 1 and err.endswith("/pipe: cannot be written: it is there, and no file\n")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert run("extract", *argv, str(tmp_path / "link")) == (0, "", "")
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "file").read_text())["cpu"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "link", "pipe"]


@pytest.mark.parametrize(("more", "status"), [(["--list"], 0), (["--metrics", "nope"], 1), (["--metrics", "cpu"], 0)])
def test_a_file_that_cannot_be_read_beside_others_is_reported(stored, tmp_path, run, more, status):
    shutil.copy(f"{stored}.{START - 5}.hdf5", tmp_path)
    damaged = tmp_path / f"cluster.{START}.hdf5"
    damaged.write_bytes(b"not HDF5 at all")
    os.utime(damaged, (1, 1))
    found, _, err = run("extract", "--hdf5", str(tmp_path / "cluster"), "--job", "7", *more)
    assert found == status and err.startswith(f"colmet extract: {damaged}: cannot be read: it is no HDF5 file")
