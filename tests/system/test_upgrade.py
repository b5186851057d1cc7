"""Today's daemons continue with the files of earlier versions: everything is read, nothing is lost or twice."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import time
from collections import Counter

import h5py
import msgpack
import numpy as np
import pytest

from colmet.archive.store import ArchiveStore
from colmet.commands import colmet, extract
from colmet.common.record_log import LogReader
from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import Decoder
from colmet.node.accounting import kept_totals
from colmet.node.backends.taskstats import WAITS
from colmet.node.delivery.spool import FORM, read_head
from colmet.node.kernel.taskstats import FIELDS
from colmet.node.system.state import BOOT_ID, StateFile
from tests.support.bulk_server import Database
from tests.support.upgraded import (
    DATA,
    ENDED,
    HDF5,
    JOURNAL,
    RUNNING,
    SPOOL,
    VERSIONS,
    TodaysCollector,
    deliver,
    found_rows,
    stored_rows,
    unpacked,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow
COLMET06 = DATA.parent / "colmet06"
JOB_TABLES = ("cgroup_default", "taskstats_default")


@pytest.fixture(params=VERSIONS)
def left(request, tmp_path):
    return unpacked(request.param, tmp_path)


@pytest.fixture
def database():
    made = Database(1)
    yield made
    made.stop()


def column(left, table, name, job=None):
    """The values of a column, with their times, in order."""
    columns = left.tables[table]["columns"]
    at, when, of = [columns.index(one) for one in (name, "timestamp", "job_id")]
    return sorted((row[when], row[at]) for row in left.tables[table]["rows"] if job in (None, row[of]))


def documents_of(database, left):
    """How often each row is in the database: table, host, job and time, and some values."""
    found = Counter()
    for (index, _), document in database.documents.items():
        table = index[len("colmet_") :]
        if table in left.tables and document["timestamp"] <= left.killed:
            found[table, document["hostname"], document["job_id"], document["timestamp"]] += 1
    return found


def keys_of(left):
    """How often each row is expected: table, host, job and time."""
    return Counter(
        (table, *[dict(zip(rows["columns"], row))[name] for name in ("hostname", "job_id", "timestamp")])
        for table, rows in left.tables.items()
        for row in rows["rows"]
    )


def test_there_are_fixtures_of_an_earlier_version_and_of_this_one():
    assert "e089782" in VERSIONS and len(VERSIONS) >= 2
    for version in VERSIONS:
        assert sum(path.stat().st_size for path in (DATA / version).iterdir()) < 200_000


def test_journal_spool_and_files_that_were_left_are_read_each_row_once(left, database):
    before = found_rows(left)
    with TodaysCollector(left.folder, "--elastic-host", database.url, "--no-shared-archive") as collector:
        counted = deliver(left, collector.uri)
        wait_for(lambda: len(documents_of(database, left)) >= len(keys_of(left)))
    assert counted["damaged"] == counted["torn_bytes"] == 0
    expected = left.expected()
    assert not before - expected and before != expected, "rows waited in the journal and in the spool"
    assert found_rows(left) == expected
    assert documents_of(database, left) == keys_of(left)
    assert "damaged=0 unreadable=0 torn_bytes=0" in collector.text()
    assert not [line for line in collector.text().splitlines() if " ERROR " in line]
    with TodaysCollector(left.folder):  # once more: nothing is written again
        pass
    assert found_rows(left) == expected


def test_the_archive_has_each_job_once_with_all_its_samples_and_so_has_one_made_again(left, tmp_path, capsys):
    own, again = left.folder / f"{HDF5}.archive.sqlite", tmp_path / "again.sqlite"
    paths = [again, own] if own.exists() else [again]  # the first versions had no archive
    with TodaysCollector(left.folder) as collector:
        deliver(left, collector.uri)
    assert "unreadable" not in collector.text().replace("unreadable=0", "")
    words = ["--archive", str(tmp_path / "none"), "--hdf5", str(left.folder / HDF5), "--output", str(again)]
    assert colmet.main(["archive", "rebuild", *words]) == 0, capsys.readouterr().err
    for path in paths:
        with contextlib.closing(ArchiveStore(str(path))) as store:
            jobs = {row["job"]: dict(row) for row in store.database.execute("SELECT * FROM jobs")}
        assert jobs.keys() == {ENDED, RUNNING}
        for job, row in jobs.items():
            totals = column(left, "taskstats_default", "cpu_run_real_total", job)
            assert (row["samples"], row["last"]) == (len({at for at, _ in totals}), totals[-1][0]), path
            waits = column(left, "taskstats_default", "cpu_delay_total", job)
            assert row["wait_cpu_s"] == pytest.approx(waits[-1][1] / 1e9)


def test_extract_reads_rows_of_both_versions(left):
    with TodaysCollector(left.folder) as collector:
        deliver(left, collector.uri)
    out = io.BytesIO()
    names = "cpu_run_real_total", "read_bytes"
    words = (str(left.folder / HDF5), str(RUNNING), str(left.killed - 600), str(left.killed), ",".join(names))
    assert extract.answer_oar(words, out) == 0
    found = json.loads(gzip.decompress(out.getvalue()))
    for name in names:
        values = [(at, value) for at, value in zip(found["timestamp"], found[name]) if value != -1]
        assert set(column(left, "taskstats_default", name, RUNNING)) <= set(values)


def test_totals_of_running_jobs_continue(left, fake):
    """The last saved totals are those of the last row of the job."""
    data = (left.folder / "state/taskstats.state").read_bytes()
    boot = np.frombuffer(data, "u1", 16, 8).tobytes().hex()
    fake.write(BOOT_ID, f"{boot[:8]}-{boot[8:12]}-{boot[12:16]}-{boot[16:20]}-{boot[20:]}\n")
    state = StateFile(fake.host, "/state")
    fake.write("/state/taskstats.state", data).parent.chmod(0o700)
    assert state.open()
    payload = state.load()
    state.close()
    jobs = kept_totals.unpack(payload, len(WAITS))
    assert RUNNING in jobs
    kept = jobs[RUNNING]
    at = FIELDS.index("read_syscalls")
    ended = max(0, int(kept.sums[0][at]))
    total = ended + int(kept.values[:, at].sum()) - int(kept.sums[1][at])
    assert total == column(left, "taskstats_default", "read_syscalls", RUNNING)[-1][1]


def test_an_agent_of_e089782_is_understood_and_understands_the_acknowledgements(tmp_path):
    """Its messages are those in its spool, sent as it sends them; an Ack is checked by its rules."""
    left = unpacked("e089782", tmp_path)
    (path,) = (left.folder / SPOOL).glob("*.spool")
    data = path.read_bytes()
    head = read_head(data)
    records = list(LogReader.of_bytes(FORM, head.seed, data, head.start).read())
    first, last = records[0].number, records[-1].number
    hello = msgpack.packb([1, "hello", left.host, head.epoch, last + 1, "1.0.0.dev0", [[head.epoch, first, last]]])
    acknowledged = set()
    with TodaysCollector(left.folder) as collector, contextlib.ExitStack() as stack:
        push, link = Push(collector.uri, 1000, 0), LinkClient(link_uri(collector.uri))
        stack.callback(push.close)
        stack.callback(link.close)
        for record in records:
            wait_for(lambda record=record: push.send(record.content))
        until = time.monotonic() + 30
        while len(acknowledged) < len(records) and time.monotonic() < until:
            link.send(hello)
            time.sleep(0.2)
            while (message := link.receive()) is not None:
                version, kind, *fields = msgpack.unpackb(message)
                assert (version, kind, len(fields)) == (1, "ack", 5)
                text, started, durable, duplicates, ranges = fields
                assert len(text) <= 64 and text.isprintable() and durable is True
                assert type(started) is type(duplicates) is int
                for epoch, begin, end in ranges:
                    assert epoch == head.epoch
                    acknowledged.update(range(begin, end + 1))
    assert acknowledged >= {record.number for record in records}
    assert found_rows(left) == left.expected()


def test_messages_of_colmet_06_are_stored_beside_a_file_of_colmet_06(tmp_path):
    old = tmp_path / f"{HDF5}.1600000000.hdf5"
    old.write_bytes((COLMET06 / "hdf5/sample.hdf5").read_bytes())
    content = old.read_bytes()
    frames = [(COLMET06 / f"frames/{name}.bin").read_bytes() for name in ("taskstats", "procstats", "jobprocstats")]
    with TodaysCollector(tmp_path) as collector:
        push = Push(collector.uri, 1000, 0)
        for frame in frames:
            wait_for(lambda frame=frame: push.send(frame))
        rows = sum(
            len(table) for frame in frames for batch in Decoder().decode(frame).batches for table in batch.tables
        )
        state = tmp_path / JOURNAL / "hdf5.json"
        wait_for(lambda: json.loads(state.read_text())["position"] == len(frames))
        push.close()
    (new,) = [path for path in tmp_path.glob(f"{HDF5}.*.hdf5") if path != old]
    assert sum(len(table["rows"]) for table in stored_rows([new], 1 << 40).values()) == rows
    assert old.read_bytes() == content
    words = ["--hdf5", str(tmp_path / HDF5), "--output", str(tmp_path / "again.sqlite")]
    assert colmet.main(["archive", "rebuild", "--archive", str(tmp_path / "none"), *words]) == 0
    with contextlib.closing(ArchiveStore(str(tmp_path / "again.sqlite"))) as store:
        jobs = {row[0] for row in store.database.execute("SELECT job FROM jobs")}
    with h5py.File(old) as file:
        assert jobs >= {int(name[4:]) for name in file if name != "job_0"}
