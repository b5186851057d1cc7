"""A file of a later version stays as it is; the error names it and says what to do."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import zlib
from contextlib import closing

import h5py
import pytest

from colmet.collector.journal.journal import Journal
from colmet.collector.journal.segments import list_segments
from colmet.commands import remote
from colmet.common.errors import ColmetError, ConfigError, OutputUnavailable, WireError
from colmet.common.host.host import Host
from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from colmet.common.wire import Decoder, link, v1
from colmet.jobs.archive.archiver import WHOLE, Archiver
from colmet.jobs.archive.store import ArchiveError, ArchiveStore
from colmet.node.accounting.accumulator import unpack_totals
from colmet.node.delivery.spool import EncodedBatch, Spool
from colmet.node.state import BOOT_ID, StateFile
from colmet.notices.state import State, StateError
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.series import RowQuery
from tests.support.hdf5_writer import write_once

SAYS = r"is of a later Colmet \(form [^)]*, this version reads up to \d\); install that version again, or "
SCHEMA = schemas()["cgroup_default"]
BATCH = Batch("node-1", 5, 1, 10**18, (7,), (Table.from_samples(SCHEMA, 10**18, [Sample(7, {"cpu_usage": 1})]),))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def journal(tmp_path):
    """A closed journal with one record, and a state of an output."""
    made = Journal(str(tmp_path / "journal"), 64 << 20)
    made.state("hdf5")
    made.start(lambda: b"{}")
    made.append(v1.encode(BATCH), (BATCH,))
    made.close()
    return tmp_path / "journal"


def opened(path):
    made = Journal(str(path), 64 << 20)
    try:
        made.state("hdf5")
    finally:
        made.close()


@pytest.mark.parametrize("name", ["journal.json", "hdf5.json"])
def test_a_journal_and_a_position(journal, name):
    document = json.loads((journal / name).read_text())
    (journal / name).write_text(json.dumps({**document, "form": 9}))
    before = content(journal)
    with pytest.raises(ConfigError, match=f"{name} {SAYS}move"):
        opened(journal)
    assert content(journal) == before


def test_a_segment(journal):
    ((_, path),) = list_segments(str(journal))
    with open(path, "r+b") as file:
        file.write(b"ColmetJ7")
    before = content(journal)
    with pytest.raises(ConfigError, match=f"segment {SAYS}move"):
        opened(journal)
    assert content(journal) == before


def test_a_segment_of_the_spool(tmp_path, caplog):
    path = tmp_path / "spool"

    def spool(epoch):
        return Spool(Host().private_directory(str(path)), "node-1", epoch, 1 << 20, 9e9)

    first = spool(5)
    assert first.append([EncodedBatch(5, 1, 10**18, b"message")]) == 1
    first.close()
    (name,) = path.glob("*.spool")
    with open(name, "r+b") as file:
        file.write(b"ColmetS9")
    before = content(path)
    again = spool(6)
    assert again.scan() == [] and again.damaged == 0
    again.close()
    assert content(path) == before
    assert caplog.text.count("ERROR") == 1
    assert "is of a later Colmet" in caplog.text and "install that version again, or remove it" in caplog.text


def test_the_state_of_an_agent(fake, caplog):
    fake.write(BOOT_ID, "be9a910b-f225-4156-b5b1-ae7b79859c0c\n")
    fake.mkdir("/run/colmet").chmod(0o700)
    state = StateFile(fake.host, "/run/colmet")
    assert state.open() and state.save(b"payload")
    path = fake.path / "run/colmet/taskstats.state"
    data = path.read_bytes().replace(b"colmet1", b"colmet2")
    path.write_bytes(data)
    assert state.load() is None
    assert state.save(b"of this version") and state.load() == b"of this version"
    state.close()
    assert (fake.path / "run/colmet/taskstats.state.later").read_bytes() == data
    assert "taskstats.state is of a later Colmet (form 2, this version reads up to 1)" in caplog.text


def test_totals_with_other_fields():
    text = json.dumps({"fields": ["one"], "schema": "", "jobs": [], "waits": 0}).encode()
    with pytest.raises(ValueError, match="other columns"):
        unpack_totals(struct.pack("<I", len(text)) + text, ["another"], 4)


def test_the_archive(tmp_path):
    path = str(tmp_path / "a.sqlite")
    ArchiveStore(path, writable=True).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA user_version = 9")
    for writable in (True, False):
        with pytest.raises(ArchiveError, match=f"{SAYS}move it away, and make the archive again"):
            ArchiveStore(path, writable)


@pytest.mark.parametrize(
    ("key", "state"),
    [((7, "node-1", 10), struct.pack("<HHI", 9, 0, 3) + zlib.compress(b"x")), (WHOLE, b'{"form": 9}\n')],
)
def test_the_state_of_the_archive(tmp_path, key, state):
    with closing(ArchiveStore(str(tmp_path / "a.sqlite"), writable=True)) as store:
        store.database.execute("INSERT INTO folds VALUES (?, ?, ?, ?)", (*key, state))
        with pytest.raises(OutputUnavailable, match=r"later Colmet \(form of the state 9"):
            Archiver(store)
        assert len(store.folds()) == 1


def test_an_hdf5_file(tmp_path):
    path = tmp_path / "x.hdf5"
    write_once(path, [BATCH])
    os.utime(path, (10**9, 10**9))
    with h5py.File(path, "a") as file:
        file["job_7/cgroup_default"].attrs["backend_version"] = 9
    with closing(Hdf5History([str(path)])) as history, pytest.raises(ColmetError, match=SAYS):
        history.read(RowQuery(7, "cgroup_default"))


def test_kept_logins(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    login = remote.Login(remote.BEARER, "secret", "bob")
    remote.keep_login("https://here", login)
    path = tmp_path / "colmet/logins.json"
    document = json.loads(path.read_text())
    assert document.pop("form") == 1
    path.write_text(json.dumps(document))  # as the first versions wrote it
    assert remote.find_login("https://here") == login
    path.write_text(json.dumps({**document, "form": 9}))
    before = content(path.parent)
    for use in (remote.find_login, remote.remove_login, lambda url: remote.keep_login(url, login)):
        with pytest.raises(ConfigError, match=f"logins.json {SAYS}remove it, and log in again"):
            use("https://here")
    assert content(path.parent) == before


def test_the_state_of_notices(tmp_path):
    path = str(tmp_path / "state")
    with State(path, True, 10**9):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(StateError, match=f"{SAYS}move"):
        State(path, True, 10**9)


def test_messages():
    newer = v1.encode(BATCH).replace(b"\xa1v\x01", b"\xa1v\x02", 1)
    with pytest.raises(WireError, match="wire version 2; this collector reads version 1: update it"):
        Decoder().decode(newer)
    hello = link.encode(link.Hello("node-1", 5, 1, "2.0", ()))
    with pytest.raises(WireError, match="message of version 2"):
        link.decode(hello[:1] + b"\x02" + hello[2:])
    assert Decoder().decode(v1.encode(BATCH)).batches
