"""colmet archive forget: nothing of a user is left where it reports so, and all of others is."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from colmet.collector.backends.hdf5.library import tables
from colmet.commands import colmet
from colmet.jobs.archive.store import SUFFIX, lock
from colmet.stored import removal
from tests.support.archive_fleet import cluster, collected, content

pytestmark = pytest.mark.slow


copy = removal._copy


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two HDF5 files and the archive that a real collector wrote; jobs of both files, and of the second alone."""
    directory = tmp_path_factory.mktemp("stored")
    scripts = cluster(4, 20, 120, seed=5)
    for some in (slice(0, 80), slice(80, None)):
        collected(
            {host: one[some] for host, one in scripts.items()}, directory, "--hdf5-filepath", f"{directory}/cluster"
        )
    return directory


@pytest.fixture
def site(stored, tmp_path, monkeypatch):
    for one in stored.glob("cluster.*"):
        if one.is_file() and not one.name.endswith(("-wal", "-shm")):
            shutil.copy(one, tmp_path)
    (tmp_path / "collector.toml").write_text(f'hdf5-filepath = "{tmp_path}/cluster"\n')
    logged = []
    monkeypatch.setattr("colmet.commands.archive.syslog.syslog", lambda _level, text: logged.append(text))
    return Site(tmp_path, logged)


class Site:
    def __init__(self, directory, logged):
        self.directory, self.logged = directory, logged
        self.archive = f"{directory}/cluster{SUFFIX}"

    def call(self, capsys, *words):
        status = colmet.main(["archive", "forget", "--config", f"{self.directory}/collector.toml", *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    def run(self, *statements):
        with closing(sqlite3.connect(self.archive)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    def files(self):
        """The archive and the HDF5 files."""
        return [Path(self.archive), *self.directory.glob("*.hdf5")]

    def rows(self):
        """The numbers of rows, by file and path of the table."""
        found = {}
        for path in sorted(self.directory.glob("cluster.1*.hdf5")):
            with tables.open_file(str(path)) as file:
                found[path.name] = {table._v_pathname: table.read() for table in file.walk_nodes("/", "Table")}
        return found


def jobs_of(site, user):
    return {key[0] for key, row in content(site.archive).items() if row["user"] == user}


def bytes_of(site):
    return b"".join(path.read_bytes() for path in site.directory.glob(f"cluster{SUFFIX}*"))


def test_all_of_a_user_is_removed_and_nothing_of_others(site, capsys):
    before = content(site.archive)
    alice = jobs_of(site, "alice")
    assert alice
    status, out, _ = site.call(capsys, "--user", "alice", "--yes")
    assert status == 0
    assert f"has lost the whole summary of {len(alice)} job" in out
    assert "--rows" in out
    after = content(site.archive)
    assert after == {key: row for key, row in before.items() if key[0] not in alice}
    assert b"alice" not in bytes_of(site)
    with closing(sqlite3.connect(site.archive)) as database:
        assert not database.execute("SELECT 1 FROM listed WHERE user = 'alice'").fetchall()
        assert not database.execute(
            "SELECT 1 FROM folds WHERE job IN (SELECT job FROM listed WHERE user = 'alice')"
        ).fetchall()
    (line,) = site.logged
    assert "user=alice" in line
    assert f"jobs={len(alice)}" in line
    assert "by=" in line


def test_a_pseudonym_keeps_the_figures(site, capsys):
    alice = jobs_of(site, "alice")
    one = min(alice)
    site.run(f"UPDATE jobs SET owner = 'alice', name = 'thesis of alice', project = 'p1' WHERE job = {one}")
    before = content(site.archive)
    status, out, _ = site.call(capsys, "--user", "alice", "--pseudonym", "--yes")
    assert status == 0
    after = content(site.archive)
    assert after.keys() == before.keys()
    names = {after[key]["user"] for key in after if key[0] in alice}
    (name,) = names
    assert name.startswith("user-")
    assert name in out
    assert b"alice" not in bytes_of(site)
    for key, row in before.items():
        changed = {"user": name} if key[0] in alice else {}
        if key == (one,):
            changed.update(owner=name, name=None)
        assert after[key] == {**row, **changed}


def test_a_job_of_the_batch_systems_user_is_found_by_that_name(site, capsys):
    one = min(jobs_of(site, "alice"))
    site.run(f"UPDATE jobs SET owner = 'zoe' WHERE job = {one}")
    assert site.call(capsys, "--user", "zoe", "--yes")[0] == 0
    assert one not in {key[0] for key in content(site.archive)}


def test_tables_of_others_with_names_of_users_are_changed_as_well(site, capsys):
    site.run("CREATE TABLE notes (id INTEGER, user TEXT)", "INSERT INTO notes VALUES (1, 'alice'), (2, 'bob')")
    assert site.call(capsys, "--user", "alice", "--yes")[0] == 0
    with closing(sqlite3.connect(site.archive)) as database:
        assert database.execute("SELECT * FROM notes").fetchall() == [(2, "bob")]


def test_jobs_that_a_collector_still_adds_to_stay(site, capsys):
    alice = jobs_of(site, "alice")
    with closing(sqlite3.connect(site.archive)) as database:
        unfinished = {row[0] for row in database.execute("SELECT DISTINCT job FROM folds")} & alice
    assert unfinished
    descriptor = lock(site.archive)
    try:
        status, out, _ = site.call(capsys, "--user", "alice", "--yes")
    finally:
        os.close(descriptor)
    assert status == 1
    assert "repeat this" in out
    assert jobs_of(site, "alice") == unfinished


def test_rows_go_from_all_but_the_newest_file(site, capsys, monkeypatch):
    before = site.rows()
    modes = site.directory / "modes"  # of the copy, while it is written, in another process

    def copy_and_note(old, new, jobs):
        modes.write_text(f"{os.stat(new.filename).st_mode & 0o777:o}")
        copy(old, new, jobs)

    monkeypatch.setattr(removal, "_copy", copy_and_note)
    old, newest = sorted(before)
    alice = jobs_of(site, "alice")
    kept = {int(path.split("/")[1][4:]) for path in before[newest]} & alice
    of_alice = {f"/job_{job}" for job in alice}
    mode = os.stat(site.directory / old).st_mode
    status, out, err = site.call(capsys, "--user", "alice", "--rows", "--yes")
    assert (status, err) == (1 if kept else 0, "")
    assert f"{old} has lost" in out
    after = site.rows()
    assert after.keys() == before.keys()
    assert all((after[newest][path] == rows).all() for path, rows in before[newest].items())
    assert after[old].keys() == {path for path in before[old] if path.rpartition("/")[0] not in of_alice}
    for path, rows in after[old].items():
        assert rows.dtype == before[old][path].dtype
        assert (rows == before[old][path]).all()
    assert os.stat(site.directory / old).st_mode == mode and modes.read_text() == "600"
    assert jobs_of(site, "alice") == kept  # else nobody would find their rows later
    assert not list(site.directory.glob("*.forgetting"))


def test_rows_of_another_job_with_the_same_number_stay(site, capsys):
    """One of alice's has the number of one of long ago, of which a row is in the file."""
    old = min(path for path in site.directory.glob("cluster.1*.hdf5"))
    alice = {f"/job_{job}" for job in jobs_of(site, "alice")}
    with tables.open_file(str(old), "a") as file:
        table = next(one for one in file.walk_nodes("/", "Table") if one._v_pathname.rpartition("/")[0] in alice)
        path = table._v_pathname
        row = table.read(0, 1)
        row["timestamp"] = 1_600_000_000
        table.append(row)
    site.call(capsys, "--user", "alice", "--rows", "--yes")
    with tables.open_file(str(old)) as file:
        left = file.get_node(path).read()
    assert left["timestamp"].tolist() == [1_600_000_000]


def test_an_unreadable_file_keeps_its_jobs_in_the_archive(site, capsys):
    before = content(site.archive)
    old = min(site.directory.glob("cluster.1*.hdf5"))
    old.write_bytes(b"no HDF5")
    status, _, err = site.call(capsys, "--user", "alice", "--rows", "--yes")
    assert status == 1
    assert old.name in err
    assert content(site.archive) == before


def test_a_dry_run_changes_nothing(site, capsys):
    before = {path.name: path.read_bytes() for path in site.files()}
    status, out, _ = site.call(capsys, "--user", "alice", "--rows", "--dry-run")
    assert status in (0, 1)
    assert "would lose" in out
    assert {path.name: path.read_bytes() for path in site.files()} == before
    assert not site.logged
    status, out, _ = site.call(capsys, "--user", "alice", "--pseudonym", "--dry-run")
    assert status == 0 and "would lose the name of the user, of the job, and its dependency" in out
    assert "user-" not in out, "no pseudonym is used"


def test_it_asks_on_a_terminal_alone(site, capsys, monkeypatch):
    before = content(site.archive)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    status, _, err = site.call(capsys, "--user", "alice")
    assert status == 2
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _text: "no")
    assert site.call(capsys, "--user", "alice")[0] == 2
    assert content(site.archive) == before
    monkeypatch.setattr("builtins.input", lambda _text: "yes")
    assert site.call(capsys, "--user", "alice")[0] == 0
    assert not jobs_of(site, "alice")


@pytest.mark.parametrize("words", [(), ("--user", "a", "--pseudonym", "--rows"), ("--user", "a", "--output", "x")])
def test_unusable_options_are_named(site, capsys, words):
    assert site.call(capsys, *words)[0] == 2


def test_former_archives_are_named(site, capsys):
    Path(f"{site.archive}.before.1700000000").write_bytes(b"")
    _, out, _ = site.call(capsys, "--user", "alice", "--yes")
    assert "before.1700000000: a former archive" in out


def test_an_unknown_user_and_a_hostile_name_change_nothing(site, capsys):
    before = content(site.archive)
    status, out, _ = site.call(capsys, "--user", "x' OR '1'='1\x1b[2J", "--yes")
    assert status == 0
    assert "\x1b" not in out
    assert content(site.archive) == before


def test_values_that_a_reader_keeps_in_the_log_are_reported(site, capsys, monkeypatch):
    monkeypatch.setattr("colmet.jobs.archive.store.BUSY_S", 0.05)
    user = min({row["user"] for row in content(site.archive).values() if row["user"]})
    with closing(sqlite3.connect(site.archive)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchone()
        status, out, _ = site.call(capsys, "--user", user, "--yes")
        assert status == 1 and "-wal still has the former values" in out
    assert not jobs_of(site, user) and len(site.logged) == 1
