from __future__ import annotations

import os
import subprocess

import pytest

from colmet.common.daemon.startup import raise_open_file_limit
from colmet.common.host.host import Host, is_gone
from tests.support.machine import open_files


def test_a_kept_file_is_read_from_its_start_each_time(fake):
    path = fake.write("/proc/uptime", "1 2")
    kept = fake.host.keep("/proc/uptime")
    assert kept.read() == b"1 2"
    path.write_text("3 4")
    assert kept.read() == b"3 4"
    kept.close()
    kept.close()
    assert fake.host.kept == 0


def test_a_large_file_is_read_whole(fake):
    fake.write("/proc/big", "x" * 100_001)
    assert len(fake.host.keep("/proc/big").read()) == 100_001
    assert len(fake.host.read("/proc/big")) == 100_001


def test_a_file_is_read_whole_if_a_read_ends_before_a_long_record(fake, monkeypatch):
    """As the kernel ends a read of /proc/mounts before a mount with many layers."""
    records = [b"a" * 1000 + b"\n", b"b" * 3500 + b"\n", b"c" * 100 + b"\n"]
    fake.write("/mounts", b"".join(records))
    ends = [0, 1001, 4502, 4603]

    def pread(fd, count, offset, _original=os.pread):
        return _original(fd, next((end for end in ends if end > offset), offset) - offset, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert fake.host.read("/mounts", has_long_records=True) == b"".join(records)
    kept = fake.host.keep("/mounts")
    assert kept.read(has_long_records=True) == b"".join(records)
    kept.close()


def test_no_more_of_a_file_is_read_than_was_asked_for(fake):
    fake.write("/large", bytes(range(256)) * 100)
    assert fake.host.read_start("/large", 300) == bytes(range(256)) + bytes(range(44))
    assert fake.host.read_start("/large", 10**6) == bytes(range(256)) * 100
    assert fake.host.read_start("/large", 0) == b""
    assert len(Host().read_start(f"/proc/{os.getpid()}/maps", 20)) == 20


def test_beyond_the_limit_files_are_read_without_keeping_descriptors(fake):
    host = Host(str(fake.path), max_kept=2)
    for n in range(5):
        fake.write(f"/f{n}", str(n))
    kept = [host.keep(f"/f{n}") for n in range(5)]
    assert [file.read() for file in kept] == [b"0", b"1", b"2", b"3", b"4"]
    assert host.kept == 2
    assert open_files(str(fake.path)) == 2
    for file in kept:
        file.close()
    assert host.kept == 0


def test_a_kept_file_of_a_process_that_ended_says_so_even_if_its_number_is_used_again():
    with subprocess.Popen(["sleep", "10"]) as process:
        kept = Host().keep(f"/proc/{process.pid}/statm")
        assert kept.read()
        process.kill()
    with pytest.raises(ProcessLookupError) as err:
        kept.read()
    assert is_gone(err.value)
    kept.close()


def test_descriptors_that_others_keep_count_as_kept(fake):
    fake.write("/f", "x")
    host = Host(str(fake.path), max_kept=4)
    assert host.reserve(3) and not host.reserve(2)
    kept = [host.keep("/f") for _ in range(3)]
    assert [file.read() for file in kept] == [b"x"] * 3
    assert host.kept == 4 and open_files(str(fake.path)) == 1
    host.release(3)
    assert host.kept == 1 and host.reserve(3)
    for file in kept:
        file.close()


def test_a_group_is_made_with_its_permissions_written_to_and_removed(fake):
    former = os.umask(0o077)
    try:
        fake.host.make_group("/g", 0o1755)
    finally:
        os.umask(former)
    assert fake.host.mode("/g") & 0o7777 == 0o1755
    path = fake.write("/g/cgroup.procs", "")
    fake.host.write_group("/g/cgroup.procs", "42")
    assert path.read_text() == "42"
    with pytest.raises(OSError, match="not empty"):
        fake.host.remove_group("/g")
    path.unlink()
    fake.host.remove_group("/g")
    assert not fake.host.is_directory("/g")
    with pytest.raises(FileNotFoundError):
        fake.host.write_group("/g/cgroup.procs", "42")


def test_a_link_says_where_it_leads(fake):
    (fake.path / "fd").symlink_to("anon_inode:[perf_event]")
    assert fake.host.link("/fd") == "anon_inode:[perf_event]"


def test_directories_are_distinguished_from_files(fake):
    fake.mkdir("/c/bob_1")
    fake.write("/c/tasks", "")
    assert fake.host.directories("/c") == ["bob_1"]
    assert sorted(fake.host.names("/c")) == ["bob_1", "tasks"]
    with pytest.raises(FileNotFoundError) as err:
        fake.host.directories("/none")
    assert is_gone(err.value)


def test_the_limit_on_open_files_is_raised_as_far_as_allowed():
    assert raise_open_file_limit(64) >= 64
