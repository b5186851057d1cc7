"""What is read back from HDF5 files: of the collector, of Colmet 0.6, live, damaged and hostile."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import re
import select
import signal
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from colmet.collector.backends.hdf5.library import close_library, opened_library, tables
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.node.delivery.outbox import MAX_AGE_S
from colmet.stored import reading_process as reading
from colmet.stored import rows, sources
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.reading_process import files_of
from colmet.stored.series import RowQuery
from tests.support.hdf5_writer import opened, write_once
from tests.support.machine import fork

SAMPLE = Path(__file__).parents[1] / "data/colmet06/hdf5/sample.hdf5"
START = 1_700_000_000
JOBS = Schema(
    "taskstats_default",
    "job",
    [
        Field("cpu", "nsec", "counter"),
        Field("load", "none", "gauge", dtype="f8"),
        Field("label", "none", "label", dtype="S16"),
    ],
)
NODES = Schema("procstats_default", "node", [Field("free", "kbytes", "gauge")])


def batch(time_s, host="node-1", jobs=(7,), free=None, **values):
    """A batch with a row for each job, and one of the node."""
    parts = [Table.from_samples(JOBS, time_s * 10**9, [Sample(job, values) for job in jobs])]
    if free is not None:
        parts.append(Table.from_samples(NODES, time_s * 10**9, [Sample(0, {"free": free})]))
    return Batch(host, 1, time_s, time_s * 10**9, tuple(jobs), tuple(parts))


def read(path, job=7, table="taskstats_default", *wanted, **options):
    with Hdf5History([str(path)]) as history:
        return history.read(RowQuery(job, table, *wanted, **options))


def rows_of(series, column="cpu"):
    """(host, time, value) of all rows."""
    return [(one.host, *row) for one in series for row in zip(one.times.tolist(), one.columns[column].tolist())]


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "cluster"


def put(prefix, begins, batches):
    """A file of a collector that was started at a time."""
    made = prefix.with_name("made.hdf5")
    write_once(made, batches)
    return made.rename(f"{prefix}.{begins:010}.hdf5")


# -- which files --


def test_files_of_a_prefix_are_those_with_ten_digits_by_time(prefix):
    names = ["cluster.1700000500.hdf5", "cluster.0900000000.hdf5", "cluster.170000050.hdf5", "clusterx1700000500.hdf5"]
    for name in [*names, "cluster.1700000500.hdf5.damaged", "cluster.hdf5", "other.1700000500.hdf5"]:
        prefix.with_name(name).touch()
    found = [(os.path.basename(file.path), file.begins, file.ends) for file in files_of(str(prefix))]
    assert found == [(names[1], 9e8, 1700000500.0), (names[0], 1700000500, float("inf"))]


def test_only_files_that_overlap_the_interval_are_opened(prefix):
    put(prefix, START, [batch(START + 1, cpu=1)])
    put(prefix, START + 10**6, [batch(START + 10**6 + 1, cpu=2)])
    for begins in (START - 10**6, START + 2 * 10**6):
        Path(f"{prefix}.{begins}.hdf5").write_bytes(b"not HDF5 at all")  # an error where it is opened
    assert [row[2] for row in rows_of(read(prefix, since=START + 2000, until=START + 10**6 + 5))] == [2]


def test_rows_that_came_late_are_in_a_later_file(prefix):
    put(prefix, START, [batch(START + 1, cpu=1)])
    put(prefix, START + 7200, [batch(START + 2, cpu=2)])  # the node could not send it for two hours
    put(prefix, START + int(MAX_AGE_S), [batch(START + 3, cpu=3)])  # for as long as it keeps what it cannot send
    assert [row[2] for row in rows_of(read(prefix, since=START, until=START + 10))] == [1, 2, 3]


# -- rows --


def test_a_file_of_colmet_06_is_read():
    with Hdf5History([str(SAMPLE)]) as history:
        assert set(history.tables(17)) == {"taskstats_default", "jobprocstats_default"}
        (series,) = history.read(RowQuery(17, "taskstats_default", ["read_bytes", "no_such"]))
        (node, other) = history.read(RowQuery(0, "procstats_default", ["loadavg_1min"]))
        assert history.tables(5) == {} and history.read(RowQuery(5, "taskstats_default")) == []
    with tables.open_file(str(SAMPLE)) as file:
        row = file.get_node("/job_17/taskstats_default")[0]
    assert series.host.encode() == row["hostname"] and series.times.tolist() == [row["timestamp"]]
    assert {name: values.tolist() for name, values in series.columns.items()} == {"read_bytes": [row["read_bytes"]]}
    assert node.host < other.host and node.columns["loadavg_1min"].dtype == np.float64


def test_rows_are_by_host_and_time_however_they_lie_in_files(prefix):
    times = [5, 1, 3, 2, 4]
    put(prefix, START, [batch(START + n, host, cpu=n) for host in ("node-2", "node-1") for n in times])
    put(prefix, START + 1000, [batch(START + 6, "node-2", cpu=6)])
    assert rows_of(read(prefix)) == [
        *[("node-1", START + n, n) for n in range(1, 6)],
        *[("node-2", START + n, n) for n in range(1, 7)],
    ]


def test_rows_are_those_of_the_interval_and_the_hosts(prefix):
    put(prefix, START, [batch(START + n, host, cpu=n) for n in range(5) for host in ("a", "b", "c")])
    found = rows_of(read(prefix, since=START + 1, until=START + 2.5, hosts=["a", "c", "d"]))
    assert found == [(host, START + n, n) for host in ("a", "c") for n in (1, 2)]
    assert read(prefix, hosts=[]) == []


def test_large_tables_are_read_in_blocks(prefix, monkeypatch):
    put(prefix, START, [batch(START + n, f"node-{n % 3}", cpu=n) for n in range(200)])
    whole = rows_of(read(prefix, since=START + 20))
    monkeypatch.setattr(rows, "BLOCK_BYTES", 7 * 1024)
    assert rows_of(read(prefix, since=START + 20)) == whole and len(whole) == 180


def test_what_is_missing_is_minus_one_nan_or_empty(prefix):
    put(prefix, START, [batch(START, cpu=1, load=0.5, label=b"x"), batch(START + 1)])
    (series,) = read(prefix)
    assert series.columns["cpu"].tolist() == [1, -1]
    assert series.columns["load"][0] == 0.5 and np.isnan(series.columns["load"][1])
    assert series.columns["label"].tolist() == [b"x", b""] and series.columns["label"].dtype.itemsize == 2


def test_a_column_that_another_file_lacks_is_missing_there(prefix):
    put(prefix, START, [batch(START, cpu=1)])
    more = Schema("taskstats_default", "job", [Field("cpu", "nsec", "counter"), Field("new", "bytes", "counter")])
    part = Table.from_samples(more, (START + 10**6) * 10**9, [Sample(7, {"cpu": 2, "new": 3})])
    put(prefix, START + 10**6, [Batch("node-1", 1, 2, (START + 10**6) * 10**9, (7,), (part,))])
    (series,) = read(prefix)
    assert series.columns["new"].tolist() == [-1, 3] and series.columns["cpu"].tolist() == [1, 2]
    assert np.isnan(series.columns["load"]).tolist() == [False, True] or np.isnan(series.columns["load"]).all()


def test_rows_that_two_files_have_count_once_and_equal_rows_of_one_file_stay(prefix):
    """As where a file was rebuilt from the journal, and the damaged one was copied back."""
    both = [batch(START, cpu=1), batch(START + 5, cpu=2), batch(START + 5, cpu=2), batch(START + 5, cpu=3)]
    put(prefix, START, [*both, batch(START + 10, cpu=4)])
    put(prefix, START + 60, [*both, batch(START + 5, cpu=9), batch(START + 15, cpu=5)])
    values = sorted([row[1:] for row in rows_of(read(prefix))])
    wanted = [(0, 1), (5, 2), (5, 2), (5, 3), (5, 9), (10, 4), (15, 5)]
    assert values == [(START + time_s, value) for time_s, value in wanted]


def test_rows_that_come_while_the_file_is_written_are_there(tmp_path):
    write_once(tmp_path / "live.hdf5", [batch(START - 1, jobs=(8,))])
    with Hdf5History([str(tmp_path / "live.hdf5")]) as history:
        assert history.tables(7) == {}
        writer = opened(tmp_path / "live.hdf5")
        for n in range(4):
            writer.write([batch(START + n, cpu=n, jobs=(7, 100 + n))])
            assert [row[2] for row in rows_of(history.read(RowQuery(7, "taskstats_default")))] == list(range(n + 1))
            assert list(history.tables(100 + n)) == ["taskstats_default"]
        writer.close()


# -- damage --


def test_one_damaged_file_of_several_is_reported_and_the_others_are_read(prefix):
    put(prefix, START, [batch(START, cpu=1)])
    damaged = Path(f"{prefix}.{START + 60}.hdf5")
    damaged.write_bytes(SAMPLE.read_bytes()[:50_000])
    os.utime(damaged, (START, START))
    with Hdf5History([str(prefix)]) as history:
        assert len(rows_of(history.read(RowQuery(7, "taskstats_default")))) == 1
        history.tables(7)
        assert [damaged.name in text for text in history.warnings] == [True]


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x89HDF\r\n\x1a\n" + bytes(1000)])
def test_a_file_that_is_none_is_one_error(tmp_path, content):
    path = tmp_path / "bad.hdf5"
    path.write_bytes(content)
    os.utime(path, (START, START))
    with pytest.raises(ConfigError, match=r"bad\.hdf5: cannot be read: it is"):
        read(path)


@pytest.mark.slow
def test_whatever_is_damaged_ends_in_an_error_or_in_rows(tmp_path):
    """The HDF5 library crashes on about one in ten of such files."""
    good, path, seen = SAMPLE.read_bytes(), tmp_path / "bad.hdf5", set()
    rng = random.Random(1)
    for _ in range(15):
        data = bytearray(good)
        for _ in range(rng.choice([1, 8, 64])):
            data[rng.randrange(20_000)] = rng.randrange(256)
        path.write_bytes(data)
        os.utime(path, (START, START))
        try:
            seen.add(len(read(path, 17)) <= 1)
        except ColmetError as err:
            seen.add(f"error, printable: {str(err).isprintable()}")
    assert seen == {True, "error, printable: True"}


def crashing(_file):
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_of_the_library_is_an_error_and_the_next_file_is_read(prefix):
    file = put(prefix, START, [batch(START)])
    reader = reading.Reader(crashing, counting)
    with pytest.raises(reading.Unreadable, match=r"crashed on it \(SIGSEGV\)"):
        reader.ask(str(file), partial(crashing))
    assert reader.ask(str(file), partial(counting)) == 1
    reader.close()


def counting(file):
    return sum(1 for _ in file.walk_nodes("/", "Table"))


def endless(_file):
    signal.pause()


def test_a_file_whose_reading_never_ends_is_an_error(prefix, monkeypatch):
    monkeypatch.setattr(reading, "QUIET_S", 0.2)
    started, real = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: started.append(real()) or started[-1])
    reader = reading.Reader(endless)
    with pytest.raises(reading.Unreadable, match="no end"):
        reader.ask(str(put(prefix, START, [batch(START)])), partial(endless))
    reader.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)


def lying(_file):
    return partial  # has no form in an answer


def test_an_answer_of_another_form_is_an_error_and_runs_nothing(prefix):
    reader = reading.Reader(lying)
    with pytest.raises(reading.Unreadable, match="crashed on it"):
        reader.ask(str(put(prefix, START, [batch(START)])), partial(lying))
    reader.close()


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


PICKLED = [
    ("/job_17/taskstats_default", "backend_version"),
    ("/job_17/taskstats_default", "TITLE"),
    ("/job_17/taskstats_default", "FLAVOR"),
    ("/job_17/taskstats_default", "FIELD_0_FILL"),
    ("/job_17/taskstats_default", "FIELD_0_NAME"),
    ("/job_17", "TITLE"),
    ("/job_17", "FILTERS"),
    ("/", "FILTERS"),
    ("/", "PYTABLES_FORMAT_VERSION"),
]


@pytest.mark.parametrize(
    ("node", "name", "version"),
    [
        *[(*place, "2.1") for place in PICKLED],
        *[(*place, version) for place in PICKLED[-3:] for version in ("1.5", "1.0")],
    ],
)
def test_a_file_with_a_pickled_attribute_runs_no_code(tmp_path, node, name, version):
    path, mark = tmp_path / "sent.hdf5", tmp_path / "ran"
    path.write_bytes(SAMPLE.read_bytes())
    with h5py.File(path, "a") as file:
        file.attrs["PYTABLES_FORMAT_VERSION"] = np.bytes_(version)
        file[node].attrs[name] = np.bytes_(pickle.dumps(RunsCode(mark), 0))
    os.utime(path, (START, START))
    with contextlib.suppress(ColmetError):
        assert len(read(path, 17)) == 1
    with contextlib.suppress(Exception), opened_library(str(path), "r") as library:  # as the collector opens it
        for one in library.walk_nodes("/"):
            for attribute in one._v_attrs._v_attrnames:
                with contextlib.suppress(Exception):
                    one._v_attrs[attribute]
    for left in set(tables.file._open_files.handlers):  # PyTables keeps a file open whose root it cannot read
        with contextlib.suppress(Exception):
            close_library(left)
    assert not mark.exists()


def test_rows_of_pickled_objects_are_not_read(tmp_path):
    path, mark = tmp_path / "sent.hdf5", tmp_path / "ran"
    with opened_library(str(path), "w") as file:
        objects = file.create_vlarray("/", "objects", tables.ObjectAtom())
        with pytest.raises(pickle.PicklingError):
            objects.append(RunsCode(mark))
    with h5py.File(path, "a") as file:
        file["objects"].resize((1,))
        file["objects"][0] = np.frombuffer(pickle.dumps(RunsCode(mark)), "u1")
    with opened_library(str(path), "r") as file, pytest.raises(pickle.UnpicklingError):
        file.root.objects[0]
    assert not mark.exists()


def test_nothing_is_pickled_in_the_source():
    """Data between processes and in files is read as data, by JSON or msgpack."""
    imports = re.compile(r"^\s*(import|from) (pickle|marshal|shelve|dill|multiprocessing)\b", re.MULTILINE)
    found = {str(path) for path in Path("colmet").rglob("*.py") if imports.search(path.read_text())}
    assert found == {"colmet/collector/backends/hdf5/library.py"}  # which keeps PyTables from it


@pytest.mark.slow
def test_the_process_that_reads_ends_also_where_nobody_waits_for_it(prefix, monkeypatch):
    monkeypatch.setattr(reading, "QUIET_S", 1)
    file = str(put(prefix, START, [batch(START)]))
    said, say = os.pipe()
    asking = fork()
    if not asking:
        try:
            reading.Reader(telling_and_endless).ask(file, partial(telling_and_endless, to=say))
        finally:
            os._exit(1)
    os.close(say)
    assert os.read(said, 1) == b"x"
    os.kill(asking, signal.SIGKILL)
    os.waitpid(asking, 0)
    assert select.select([said], [], [], 30)[0] and os.read(said, 1) == b""  # nobody has its other end
    os.close(said)


def telling_and_endless(_file, to):
    os.write(to, b"x")
    signal.pause()


def killed(_file):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_reading_that_the_system_ends_is_not_the_files_fault(prefix):
    reader = reading.Reader(killed)
    with pytest.raises(reading.Unreadable, match="memory") as error:
        reader.ask(str(put(prefix, START, [batch(START)])), partial(killed))
    assert not error.value.may_change
    reader.close()


def test_a_system_that_has_no_room_for_a_process_is_reported(prefix, monkeypatch):
    file = put(prefix, START, [batch(START)])

    def full():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(ConfigError, match=r"no process can be started for it: Resource temporarily unavailable"):
        read(file)


def test_rows_without_a_host_or_a_time_are_left_out_and_counted(tmp_path):
    path = tmp_path / "odd.hdf5"
    with tables.open_file(str(path), "w") as file:
        dtype = np.dtype([("hostname", "S255"), ("timestamp", "<i8"), ("temp", "<i8")])
        table = file.create_table("/job_0", "temperaturestats_default", dtype, createparents=True)
        table.append(
            np.array([(b"", -1, 5), (b"node-1", START, 6), (b"node-1", 1 << 62, 7), (b"node-1", -2, 7)], dtype)
        )
    os.utime(path, (START, START))
    with Hdf5History([str(path)]) as history:
        assert rows_of(history.read(RowQuery(0, "temperaturestats_default")), "temp") == [("node-1", START, 6)]
        assert history.warnings == ["job_0/temperaturestats_default: rows without a host or a time skipped: 3"]


def test_a_table_that_claims_more_rows_than_a_file_can_have_is_an_error(tmp_path):
    path = tmp_path / "odd.hdf5"
    with tables.open_file(str(path), "w") as file:
        dtype = np.dtype([("hostname", "S255"), ("timestamp", "<i8")])
        file.create_table("/job_7", "taskstats_default", dtype, createparents=True)
    with h5py.File(path, "a") as file:
        file["job_7/taskstats_default"].resize((1 << 50,))
    os.utime(path, (START, START))
    with pytest.raises(ConfigError, match="said to have"):
        read(path)


@pytest.mark.parametrize("name", ["no file\n\x1b[2J", "\udcff\n"])
def test_a_path_does_not_steer_the_terminal(tmp_path, name):
    with pytest.raises(ConfigError) as none:
        Hdf5History([str(tmp_path / name)])
    damaged = tmp_path / f"{name}.hdf5"
    damaged.write_bytes(b"nothing")
    os.utime(damaged, (START, START))
    with pytest.raises(ConfigError) as unreadable:
        read(damaged)
    assert str(none.value).isprintable() and str(unreadable.value).isprintable()


# -- which store --


def options(*argv):
    parser = cli.Parser()
    sources.add_options(parser)
    return parser.parse_args(argv)


def test_without_options_it_is_what_the_collector_writes(prefix, tmp_path):
    put(prefix, START, [batch(START)])
    config = tmp_path / "collector.toml"
    config.write_text(f'hdf5-filepath = "{prefix}"\n')
    config.chmod(0o600)
    with sources.open_history(options("--config", str(config))) as history:
        assert list(history.tables(7)) == ["taskstats_default"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [(["--config", "/nowhere/collector.toml"], "give --hdf5 PATH"), (["--hdf5", "/nowhere/x"], "no such file")],
)
def test_a_store_that_cannot_be_had_is_one_error(argv, text):
    with pytest.raises(ConfigError, match=text):
        sources.open_history(options(*argv))


def test_a_collector_without_a_store_is_said_so(tmp_path):
    config = tmp_path / "collector.toml"
    config.write_text("verbose = 1\n")
    config.chmod(0o600)
    with pytest.raises(ConfigError, match="neither hdf5-filepath nor elastic-host"):
        sources.open_history(options("--config", str(config)))


@pytest.mark.parametrize("is_looked_through", [False, True])
def test_a_file_that_is_removed_while_rows_are_read_by_time_is_an_error_with_a_remedy(tmp_path, is_looked_through):
    path = tmp_path / "a.hdf5"
    write_once(path, [batch(START + n, cpu=n) for n in range(5)])
    columns = {JOBS.name: ("cpu",)}
    with Hdf5History([str(path)]) as history:
        if is_looked_through:
            history.amounts(columns)
            assert [len(one) for one in history.between(columns, START, START + 1)] == [2]
        path.unlink()
        with pytest.raises(ConfigError, match=r"a\.hdf5: No such file.*run it again"):
            list(history.between(columns, START, START + 1)) if is_looked_through else history.amounts(columns)
