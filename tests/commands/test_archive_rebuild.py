"""colmet archive rebuild: equal to what the collector wrote, in bounded memory, and nothing of the former one lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from colmet.collector.backends.hdf5.library import tables
from colmet.commands import archive, colmet
from colmet.jobs.archive.store import SUFFIX, ArchiveStore, lock
from colmet.jobs.columns import MEASURED
from tests.support.archive_fleet import cluster, collected, content
from tests.support.archives import Archive, records_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """HDF5 files and the archive that a real collector wrote."""
    directory = tmp_path_factory.mktemp("stored")
    collected(cluster(6, 25, 150, seed=7), directory, "--hdf5-filepath", str(directory / "cluster"))
    return directory


@pytest.mark.parametrize("window_bytes", [archive.WINDOW_BYTES, 40_000])
def test_an_archive_made_again_from_hdf5_equals_the_first_one(stored, tmp_path, run, monkeypatch, window_bytes):
    windows = archive.windows
    monkeypatch.setattr(archive, "windows", lambda amounts: windows(amounts, window_bytes))
    prefix, again = stored / "cluster", tmp_path / "again.sqlite"
    status, _, err = run("archive", "rebuild", "--archive", tmp_path / "none", "--hdf5", prefix, "--output", again)
    assert (status, err) == (0, "")
    expected, found = content(f"{prefix}{SUFFIX}"), content(again)
    assert len([key for key in expected if len(key) == 1]) == 25
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == row, key


def test_files_of_another_machine_need_no_configuration_here(stored, tmp_path, run):
    again = tmp_path / "again.sqlite"
    words = ("--hdf5", stored / "cluster", "--config", tmp_path / "none.toml")
    assert run("archive", "rebuild", *words, "--output", again)[::2] == (0, "")
    assert content(again)
    status, _, err = run("archive", "rebuild", *words)
    assert status == 2 and "give --archive PATH" in err


@pytest.fixture
def site(stored, tmp_path):
    """A copy of it all, and the collector's configuration."""
    for one in stored.iterdir():
        if one.is_dir():
            shutil.copytree(one, tmp_path / one.name)
        elif one.name != "collector.log":
            shutil.copy(one, tmp_path)
    config = tmp_path / "collector.toml"
    config.write_text(f'hdf5-filepath = "{tmp_path / "cluster"}"\n')
    return Site(tmp_path, config)


class Site(NamedTuple):
    directory: Path
    config: Path

    @property
    def archive(self):
        return f"{self.directory / 'cluster'}{SUFFIX}"

    def run(self, *statements):
        with closing(sqlite3.connect(self.archive)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    def files(self):
        """The archive's files, except those that readers leave."""
        names = [path.name for path in self.directory.glob("cluster.archive*")]
        return sorted(name for name in names if not name.endswith(("sqlite-wal", "sqlite-shm")))


def test_the_archive_is_replaced_and_keeps_what_rows_do_not_show(site, run):
    before = content(site.archive)
    with closing(ArchiveStore(site.archive)) as store:
        position = store.position
    jobs = sorted(key[0] for key in before if len(key) == 1)
    several = next(job for job in jobs if before[job,]["hosts"] > 1)
    lost, known = [job for job in jobs if job != several][:2]
    host = next(key for key in before if key[0] == several and len(key) == 2)
    names = ", ".join(f'"{column.name}"' for column in MEASURED if column.name != "last")
    then = "1700000000, 1700000100"
    site.run(
        f"DELETE FROM jobs WHERE job = {lost}",
        f"DELETE FROM hosts WHERE job = {lost}",
        f"UPDATE jobs SET cpu_s = 0, name = 'run7', state = 'failed', exit_code = 3, owner = 'eve' WHERE job = {known}",
        # a job whose rows have gone, and a host of another one with fewer rows than there were
        f"INSERT INTO jobs (job, start, last, {names}) SELECT 5, {then}, {names} FROM jobs WHERE job = {known}",
        f"INSERT INTO hosts (job, host, start, last, {names}) SELECT 5, host, {then}, {names} FROM hosts "
        f"WHERE job = {known}",
        "INSERT INTO job_details (job, start) VALUES (5, 1700000000)",
        "INSERT INTO host_details (job, host, start) SELECT job, host, start FROM hosts WHERE job = 5",
        f"UPDATE hosts SET rows = rows + 10, cpu_s = cpu_s + 1000 WHERE job = {host[0]} AND host = '{host[1]}'",
        "CREATE TABLE of_others (id INTEGER PRIMARY KEY, word TEXT)",
        "INSERT INTO of_others VALUES (1, 'kept')",
    )
    status, out, err = run("archive", "rebuild", "--config", site.config)
    assert (status, err) == (0, "")
    assert "26 jobs" in out
    found = content(site.archive)
    assert {key[0] for key in found} == {*jobs, 5}
    batch = {"name": "run7", "state": "failed", "exit_code": 3, "owner": "eve"}
    for key, row in before.items():
        if key[0] != several:
            assert found[key] == {**row, **(batch if key == (known,) else {})}, key
    assert found[host]["cpu_s"] == before[host]["cpu_s"] + 1000
    assert found[several,]["cpu_s"] == pytest.approx(before[several,]["cpu_s"] + 1000)
    assert found[5,]["last"] == 1700000100
    with closing(ArchiveStore(site.archive)) as store:
        assert store.position == position
        assert store.database.execute("SELECT word FROM of_others").fetchone()[0] == "kept"
        listed = store.database.execute("SELECT job, user, state FROM listed WHERE job = ?", [known]).fetchone()
        assert tuple(listed) == (known, "eve", "failed")
        assert store.database.execute("SELECT count(*) FROM listed").fetchone()[0] == 26
        assert store.database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    aside = [name for name in site.files() if ".before." in name]
    assert site.files() == ["cluster.archive.sqlite", *aside]
    assert len(aside) == 1
    assert os.stat(site.archive).st_mode & 0o777 == 0o640


def test_it_is_refused_while_a_collector_writes_the_archive(site, run):
    descriptor = lock(site.archive)
    try:
        status, _, err = run("archive", "rebuild", "--config", site.config)
    finally:
        os.close(descriptor)
    assert status == 2
    assert "another process writes it" in err
    assert "--output" in err
    assert site.files() == ["cluster.archive.sqlite"]


def test_it_is_refused_where_the_outputs_are_at_different_places(site, run):
    state = site.directory / "cluster.journal/hdf5.json"
    document = json.loads(state.read_text())
    state.write_text(json.dumps({**document, "position": document["position"] - 1}))
    status, _, err = run("archive", "rebuild", "--config", site.config)
    assert status == 2
    assert "start the collector" in err


def test_an_interrupted_one_leaves_everything_as_it_was(site, run, monkeypatch):
    before = content(site.archive)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("colmet.jobs.archive.rebuild.keep_former", interrupted)
    assert run("archive", "rebuild", "--config", site.config)[0] == colmet.INTERRUPTED
    assert site.files() == ["cluster.archive.sqlite"]
    assert content(site.archive) == before


def test_a_damaged_archive_is_named_and_one_in_no_place_is_made(site, run):
    before = content(site.archive)
    Path(site.archive).write_bytes(b"no database at all" * 100)
    status, _, err = run("archive", "rebuild", "--config", site.config)
    assert status == 2
    assert "move it" in err
    os.unlink(site.archive)
    assert run("archive", "rebuild", "--config", site.config)[0] == 0
    assert content(site.archive) == before
    assert site.files() == ["cluster.archive.sqlite"]


def test_a_store_without_rows_leaves_no_file(tmp_path, run):
    with tables.open_file(str(tmp_path / "empty.hdf5"), "w"):
        pass
    words = ("--archive", tmp_path / "none", "--hdf5", tmp_path / "empty.hdf5", "--output", tmp_path / "again")
    status, _, err = run("archive", "rebuild", *words)
    assert status == 2
    assert "no rows" in err
    assert [path.name for path in tmp_path.iterdir()] == ["empty.hdf5"]


def test_the_collector_goes_on_with_unfinished_jobs_afterwards(tmp_path, run):
    scripts = cluster(4, 12, 100, seed=3)
    prefix = tmp_path / "cluster"
    written = ("--hdf5-filepath", str(prefix))
    collected({host: some[:50] for host, some in scripts.items()}, tmp_path, *written)
    config = tmp_path / "collector.toml"
    config.write_text(f'hdf5-filepath = "{prefix}"\n')
    assert run("archive", "rebuild", "--config", config)[0] == 0
    collected({host: some[50:] for host, some in scripts.items()}, tmp_path, *written)
    expected = Archive(tmp_path / "undisturbed.sqlite")
    ordered = [batch for some in zip_longest(*scripts.values()) for batch in some if batch is not None]
    expected.take(records_of(ordered))
    expected.write(whole=True)
    expected.store.close()
    found, wanted = content(f"{prefix}{SUFFIX}"), content(tmp_path / "undisturbed.sqlite")
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert found[key] == row, key


def test_info_prints_what_the_archive_has(site, run):
    status, out, _ = run("archive", "info", "--config", site.config)
    assert status == 0
    assert "jobs        25 of " in out and "summaries of hosts" in out
    assert "position    record" in out


@pytest.mark.parametrize(
    "words",
    [("rebuild", "--user", "a"), ("rebuild", "--dry-run"), ("info", "--output", "x"), ("info", "--yes"), ("shrink",)],
)
def test_options_of_other_actions_are_refused(words, run, tmp_path):
    assert run("archive", *words, "--archive", tmp_path / "a")[0] == 2
