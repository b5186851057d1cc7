"""Files that have the former content or the new one, whatever ends the writer."""

from __future__ import annotations

import errno
import os

import pytest

from colmet.common.host import files
from colmet.common.host.files import write_all, write_whole


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_written_and_replaced_with_its_mode(tmp_path, shared):
    path = tmp_path / "file"
    write_whole(str(path), b"one", shared=shared)
    write_whole(str(path), b"two", mode=0o640, shared=shared)
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "fchmod"])
def test_a_failure_leaves_the_former_content_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"former")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            write_whole(str(path), b"new")
    assert path.read_bytes() == b"former" and os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_left_is_written_over_and_a_link_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / ".file.new").symlink_to(other)
    write_whole(str(tmp_path / "file"), b"new")
    assert other.read_bytes() == b"precious" and (tmp_path / "file").read_bytes() == b"new"
    assert not os.path.lexists(tmp_path / ".file.new")


def test_without_replace_an_existing_file_stays(tmp_path):
    path = tmp_path / "file"
    write_whole(str(path), b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_whole(str(path), b"second", replace=False)
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_a_descriptor_of_the_directory_is_enough(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        write_whole("file", b"x", directory=directory)
    finally:
        os.close(directory)
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_write_that_accepts_nothing_is_a_full_disk(monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, content: 0)
    with pytest.raises(OSError, match="No space left"):
        write_all(1, b"x")


def test_a_copy_has_the_owner_of_the_former_file_or_is_refused(tmp_path, monkeypatch):
    (tmp_path / "new").touch()
    files.copy_owner(str(tmp_path / "new"), (tmp_path / "new").stat())
    like = os.stat_result((0o600, 1, 1, 1, 950, 951, 0, 0, 0, 0))
    given = []
    monkeypatch.setattr(os, "chown", lambda *words: given.append(words))
    files.copy_owner(str(tmp_path / "new"), like)
    assert given == [(str(tmp_path / "new"), 950, 951)]

    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(OSError, match="may not belong to user 950 and group 951, as the former file: Invalid argument"):
        files.copy_owner(str(tmp_path / "new"), like)


def test_a_read_only_place_has_the_remedy_for_a_unit():
    """Nearly always it is the sandbox of systemd."""
    reason = files.reason_with_remedy("/srv/colmet/rows", os.strerror(errno.EROFS))
    assert reason.startswith("Read-only file system; ") and reason.endswith(
        "ReadWritePaths=/srv/colmet below [Service]"
    )
    assert files.reason_with_remedy("/srv/colmet/rows", "No space left on device") == "No space left on device"
