from __future__ import annotations

import errno
import os
import re

import pytest

from colmet.collector import main as collector
from colmet.collector.journal import segments
from colmet.collector.journal.journal import Journal
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import v1

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


def batch(seq):
    table = Table.from_samples(SCHEMA, 1, [Sample(1, {"cpu": seq}), Sample(2, {"cpu": seq})])
    return Batch("h", 1, seq, 1, (), (table,))


def fill(directory, *seqs):
    journal = Journal(str(directory), 1 << 30)
    state = journal.state("hdf5")
    journal.start(lambda: b"{}")
    for seq in seqs:
        journal.append(v1.encode(batch(seq)), [batch(seq)])
    journal.close()
    return state


def test_it_prints_what_is_there(tmp_path, capsys):
    state = fill(tmp_path / "x.journal", 1, 2, 3)
    state.save(2, keep_from=1)
    assert collector.main(["--check-journal", "--hdf5-filepath", str(tmp_path / "x")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^journal [0-9a-f]{16} in .*/x\.journal$", out, re.M)
    assert re.search(r"^segment 0{20}\.segment bytes=\d+ records=3 rows=6 numbers=0\.\.2 from=\S+Z to=\S+Z$", out, re.M)
    assert "output hdf5 position=2 waiting=1 keeps_from=1\n" in out and "damaged" not in out


def test_it_changes_nothing_and_can_run_beside_the_collector(tmp_path):
    directory = tmp_path / "j"
    journal = Journal(str(directory), 1 << 30)
    journal.start(lambda: b"{}")
    journal.append(v1.encode(batch(1)), [batch(1)])
    journal.finish()
    with open(journal.store.paths[-1][1], "ab") as file:
        file.write(b"half a record")
    before = {name: (directory / name).read_bytes() for name in os.listdir(directory)}
    assert collector.main(["--check-journal", "--journal-dir", str(directory)]) == 0, "it may be being written"
    assert {name: (directory / name).read_bytes() for name in os.listdir(directory)} == before
    journal.close()


def test_damage_is_printed_and_the_exit_status_says_so(tmp_path, capsys):
    fill(tmp_path / "j", *range(10))
    ((_, path),) = segments.list_segments(str(tmp_path / "j"))
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"\xff" * 8)
    assert collector.main(["--check-journal", "--journal-dir", str(tmp_path / "j")]) == 1
    out = capsys.readouterr().out
    assert "records=9 " in out and " damaged=1 " in out and "damaged places: 1" in out


def test_where_there_is_none_it_says_what_to_do(tmp_path, caplog):
    assert collector.main(["--check-journal"]) == 2
    assert "give --journal-dir DIR" in caplog.text
    assert collector.main(["--check-journal", "--journal-dir", str(tmp_path / "none")]) == 2
    assert "No such file" in caplog.text
    assert collector.main(["--check-journal", "--journal-dir", str(tmp_path)]) == 2
    assert "no journal here" in caplog.text


@pytest.mark.parametrize(("error", "status"), [(errno.EACCES, 1), (errno.EIO, 1), (errno.ENOENT, 0)])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_segment_that_cannot_be_read_is_reported(tmp_path, monkeypatch, capsys, error, status, call):
    fill(tmp_path / "j", 1, 2)
    monkeypatch.setattr(segments.os, call, lambda *_: (_ for _ in ()).throw(OSError(error, os.strerror(error))))
    assert collector.main(["--check-journal", "--journal-dir", str(tmp_path / "j")]) == status
    assert (os.strerror(error) if status else "removed by the collector meanwhile") in capsys.readouterr().out
