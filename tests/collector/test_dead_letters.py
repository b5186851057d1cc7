"""The reject file: bounded, private, and nothing that is not in it goes uncounted."""

from __future__ import annotations

import os
import stat

from colmet.collector.backends.elasticsearch.dead_letters import DeadLetters


def test_lines_are_added_to_what_is_there_for_the_owner_alone(tmp_path):
    path = tmp_path / "rejects"
    for _ in range(2):
        DeadLetters(str(path)).add([b"one", b"two"])
    assert path.read_bytes() == b"one\ntwo\n" * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_file_is_moved_aside_once_and_then_lines_are_counted(tmp_path, caplog):
    path, aside = tmp_path / "rejects", tmp_path / "rejects.1"
    rejects = DeadLetters(str(path), 10)
    rejects.add([b"1234"] * 3)
    assert (aside.read_bytes(), path.read_bytes()) == (b"1234\n" * 2, b"1234\n")
    rejects.add([b"5678"] * 12)
    assert (aside.read_bytes(), path.read_bytes()) == (b"1234\n" * 2, b"1234\n5678\n")
    assert rejects.not_kept == 11 and caplog.text.count("refused rows not kept") == 2
    assert f"look at it and at {aside}" in caplog.text
    aside.unlink()
    rejects.add([b"9"])
    assert (aside.exists(), path.read_bytes(), rejects.not_kept) == (True, b"9\n", 11)


def test_a_line_that_is_longer_than_the_file_may_be_moves_nothing(tmp_path):
    path = tmp_path / "rejects"
    rejects = DeadLetters(str(path), 10)
    rejects.add([b"1", b"x" * 10])
    assert path.read_bytes() == b"1\n" and not (tmp_path / "rejects.1").exists() and rejects.not_kept == 1


def test_a_file_that_cannot_be_written_is_reported_and_counted(tmp_path, caplog):
    DeadLetters(str(tmp_path / "none/rejects")).add([b"1"])
    assert "No such file" in caplog.text
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "other")
    rejects = DeadLetters(str(path))
    rejects.add([b"1", b"2"])
    assert rejects.not_kept == 2 and not os.path.exists(tmp_path / "other")
    nowhere = DeadLetters("")
    nowhere.add([b"1"])
    assert nowhere.not_kept == 1 and "there is no file" in caplog.text
