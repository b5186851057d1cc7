"""What root writes in a folder of another user: links that are planted, or swapped in, lead to no other file."""

from __future__ import annotations

import os
import signal
import time

import pytest

from colmet.commands import colmet
from colmet.common.errors import ConfigError
from colmet.common.host import capabilities
from tests.support.machine import fork
from tests.support.other_user import in_child
from tests.support.small_store import START, make_store

OTHER = 65534
ROWS = 200_000  # their copy takes some 100 ms
FILE, ARCHIVE = f"rows.{START}.hdf5", "rows.archive.sqlite"
FORGET = ("archive", "forget", "--user", "alice", "--rows", "--yes")
WRITERS = {
    "forget": FORGET,
    "pseudonym": ("archive", "forget", "--user", "alice", "--pseudonym", "--yes"),
    "rebuild": ("archive", "rebuild"),
    "rebuild to a file": ("archive", "rebuild", "--output", "again.sqlite"),
}
SIDES = (
    *(f"{FILE}.forgetting", f"{FILE}.tails", f"{ARCHIVE}-wal", f"{ARCHIVE}-shm", f"{ARCHIVE}-journal"),
    *(f"{ARCHIVE}.rebuild", f"{ARCHIVE}.rebuild-wal", f"{ARCHIVE}.rebuild-shm", f"{ARCHIVE}.rebuild-journal"),
    *("again.sqlite", "again.sqlite-wal", "again.sqlite-shm", "again.sqlite-journal"),
)

pytestmark = pytest.mark.usefixtures("other_user", "other_owner")


class Folder:
    """A store in a folder of another user, and a file of root's."""

    def __init__(self, public, count):
        self.path, self.victim = public / "site", public / "own" / "victim"
        self.path.mkdir()
        make_store(self.path, count)
        (self.path / "collector.toml").write_text(f"hdf5-filepath = '{self.path}/rows'\n")
        for path in (self.path, *self.path.iterdir()):
            if path.suffix != ".toml":
                os.chown(path, OTHER, OTHER)
        self.victim.parent.mkdir(mode=0o700)
        self.victim.write_text("of root\n")
        self.victim.chmod(0o600)

    def call(self, *words):
        """Run a command as root in the folder, in a process of its own; return its exit status."""

        def run():
            signal.alarm(10)  # the other user can keep SQLite waiting by new files
            os.chdir(self.path)
            return colmet.main([*words, "--config", f"{self.path}/collector.toml"])

        return in_child(run)

    def assert_untouched(self):
        found = self.victim.stat()
        assert self.victim.read_text() == "of root\n"
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (0, 0, 0o600)
        assert not [path for path in self.path.iterdir() if path.lstat().st_uid == 0 and path.suffix != ".toml"]


@pytest.fixture
def folder(public):
    return Folder(public, 3)


def race(folder):
    """In a process of the other user: put a link to root's file in the place of each file that appears, for ever."""
    known = {path.name for path in folder.path.iterdir()}
    child = fork()
    if child:
        return child
    try:
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        os.chdir(folder.path)
        while True:
            for entry in os.scandir("."):
                if entry.name not in known and not entry.is_symlink() and entry.stat().st_size:
                    try:
                        os.rename(entry.name, f"{entry.name}.x{time.monotonic_ns()}")
                        os.symlink(folder.victim, entry.name)
                    except OSError:
                        continue
                    known |= {one.name for one in os.scandir(".") if ".x" in one.name}
    finally:
        os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_links_that_are_swapped_in_meanwhile_lead_to_no_file_of_root(public, words):
    folder = Folder(public, ROWS)
    racer = race(folder)
    try:
        folder.call(*words)
    finally:
        os.kill(racer, signal.SIGKILL)
        os.waitpid(racer, 0)
    folder.assert_untouched()


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_links_that_are_planted_lead_to_no_file_of_root(folder, words, link):
    for name in SIDES:
        if not (folder.path / name).exists():
            link(folder.victim, folder.path / name)
    folder.call(*words)
    assert folder.victim.read_text() == "of root\n"
    assert (folder.victim.stat().st_uid, folder.victim.stat().st_mode & 0o7777) == (0, 0o600)


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_what_root_writes_there_belongs_to_the_other_user(folder, words):
    assert folder.call(*words) == 0
    folder.assert_untouched()


def test_a_folder_that_several_users_may_write_is_refused(other_owner, folder, capfd):
    os.chown(folder.path, 0, 0)
    folder.path.chmod(0o777)
    assert folder.call(*FORGET) == 2
    assert "sudo -u colmet" in capfd.readouterr().err
    folder.assert_untouched()


def test_files_of_different_users_are_refused(other_owner, folder, public, capfd):
    (public / "third").mkdir()
    os.chown(public / "third", 12345, 12345)
    assert folder.call(*FORGET, "--hdf5", str(folder.path / "rows"), "--archive", str(public / "third/a.sqlite")) == 2
    assert "belong to different users" in capfd.readouterr().err


def test_a_user_whom_root_cannot_become_is_named(folder, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(capabilities, "become", refuse)
    with pytest.raises(ConfigError, match=r"belongs to user nobody, .* sudo -u nobody"):
        capabilities.become_owner(str(folder.path / ARCHIVE))


def test_in_folders_of_its_own_root_stays_root(folder):
    before = os.geteuid()
    capabilities.become_owner(str(folder.victim), "/tmp/x")
    assert os.geteuid() == before
