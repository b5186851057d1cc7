"""Lustre mounts, on trees of clients of several versions."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.config import cli
from colmet.common.errors import BackendUnavailable
from colmet.node.backends.lustre import MOUNTS, SCHEMA, LustreBackend
from colmet.node.kernel.textfiles import Sums

PROC = "/proc/fs/lustre/llite"
DEBUG = "/sys/kernel/debug/lustre/llite"
HOME, SOFT, SCRATCH = "lustre-ffff8803f1a2c000", "lustre-ffff8807e0b11800", "scratch-ffff88085bd8f400"
ALWAYS = [field.name for field in MOUNTS.fields if "0 while it is not listed" in field.help]


def backend_of(fake, *options):
    parser = cli.Parser()
    LustreBackend.add_options(parser)
    return LustreBackend.from_options(parser.parse_args(["--enable-lustre", *options]), fake.host)


def opened(fake, *options):
    backend = backend_of(fake, *options)
    backend.open()
    return backend


def rows(backend):
    """The node's row, and that of each mount by name."""
    first, *others = backend.sample([])
    assert first.schema is None and {row.schema for row in others} <= {MOUNTS}
    assert {row.job_id for row in (first, *others)} == {0}
    assert set(first.values) <= SCHEMA.name_set
    assert all(set(row.values) <= MOUNTS.name_set for row in others)
    return first.values, {row.values["mount"].decode(): row.values for row in others}


def data(values):
    return [values[name] for name in ("nb_read", "bytes_read", "nb_write", "bytes_write")]


def totals(values):
    """Reads and writes, the columns of Colmet 0.6."""
    return [values[name] for name in SCHEMA.names[:4]]


def stats(*lines):
    return "\n".join(["snapshot_time             1523008010.817348 secs.usecs", *lines, ""])


def reads(count, total):
    return stats(f"read_bytes                {count} samples [bytes] 1 4096 {total}")


def test_a_client_of_2_10_has_its_statistics_in_proc(fake):
    fake.tree("lustre-2.10")
    total, mounts = rows(opened(fake))
    assert totals(total) == [25673 + 10, 145121869 + 40960, 13641, 468230469]
    assert sorted(mounts) == [HOME, SOFT]
    home = mounts[HOME]
    assert data(home) == [25673, 145121869, 13641, 468230469]
    expected = {
        "open": 1043,
        "close": 1040,
        "getattr": 20211,
        "create": 7,
        "getxattr_hits": 41,
        "inode_permission": 90031,
    }
    assert {name: home[name] for name in expected} == expected
    assert (home["osc_read"], home["osc_write"], home["alloc_inode"]) == (20, 470, 513)
    assert data(mounts[SOFT]) == [10, 40960, 0, 0]


def test_what_is_not_listed_has_not_happened_but_only_where_every_client_would_tell(fake):
    fake.tree("lustre-2.10")
    _, mounts = rows(opened(fake))
    soft = mounts[SOFT]
    assert len(ALWAYS) == 25
    assert {name for name in ALWAYS if soft[name]} == {"open", "close", "inode_permission"}
    for name in ("page_fault", "fallocate", "osc_read", "getxattr_hits", "alloc_inode", "dirty_pages_hits"):
        assert soft.get(name) is None


def test_a_client_of_2_12_has_them_in_debugfs(fake):
    fake.tree("lustre-2.12")
    total, mounts = rows(opened(fake))
    assert totals(total) == [1000, 30994606834, 9007, 31008331389]
    (mount,) = mounts.values()
    assert (mount["fsname"], mount["mount_point"]) == (b"lustre", b"/scratch")
    assert (mount["open"], mount["close"], mount["getattr"], mount["unlink"]) == (77, 76, 301, 0)


def test_a_client_of_2_15_prints_sums_of_squares_and_times_which_are_no_bytes(fake):
    fake.tree("lustre-2.15")
    total, mounts = rows(opened(fake))
    assert totals(total) == [42, 4398046511, 43, 4398046777]
    (mount,) = mounts.values()
    assert (mount["open"], mount["mkdir"], mount["page_fault"], mount["fallocate"]) == (13812423, 7906554, 5, 1)
    assert "opencount" not in mount


def test_the_prefix_chooses_file_systems(fake):
    fake.tree("lustre-2.10")
    total, mounts = rows(opened(fake, "--lustre-prefix", "scratch"))
    assert list(mounts) == [SCRATCH] and totals(total) == [0, 0, 0, 0]  # nothing has happened there yet
    assert (mounts[SCRATCH]["fsname"], mounts[SCRATCH]["mount_point"]) == (b"scratch", b"/mnt/my scratch")
    _, mounts = rows(opened(fake, "--lustre-prefix", ""))
    assert sorted(mounts) == [HOME, SOFT, SCRATCH]
    assert mounts[HOME]["mount_point"] is None  # of two mounts of one file system, which is which is not known


@pytest.mark.parametrize("pattern", ["*", "scr*", "[a-z]cratch", "scratc?"])
def test_the_prefix_may_be_a_pattern_as_in_06(fake, pattern):
    fake.tree("lustre-2.10")
    _, mounts = rows(opened(fake, "--lustre-prefix", pattern))
    assert SCRATCH in mounts


def test_no_client_at_all_is_reported_with_the_remedy(fake, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    backend = backend_of(fake)
    with pytest.raises(BackendUnavailable, match=r"no Lustre mount in .*no such program; mount it, start as root"):
        backend.open()
    backend.close()
    backend.close()


# -- lctl --


def lctl(fake, script):
    fake.write("/usr/sbin/lctl", f"#!/bin/sh\n{script}\n").chmod(0o755)


def answer_of(fake, name):
    """What `lctl get_param` says on a machine that shows these files to nobody."""
    fake.tree(name)
    lines = []
    for folder in (PROC, DEBUG):
        files = sorted((fake.path / folder.lstrip("/")).glob("*/stats"))
        lines += [f"llite.{file.parent.name}.stats=\n{file.read_text()}" for file in files]
        shutil.rmtree(fake.path / folder.lstrip("/"), ignore_errors=True)
    fake.write("/answer", "".join(lines))
    return f"cat {fake.path}/answer"


@pytest.mark.parametrize("name", ["lustre-2.10", "lustre-2.12", "lustre-2.15"])
def test_lctl_prints_the_same_where_no_file_does(fake, tmp_path_factory, name):
    from tests.support.machine import FakeRoot

    expected = rows(opened(FakeRoot(tmp_path_factory.mktemp("files")).tree(name)))
    lctl(fake, f'[ "$*" = "get_param llite.*.stats" ] && {answer_of(fake, name)}')
    assert rows(opened(fake)) == expected


def test_lctl_that_fails_says_why(fake):
    lctl(fake, "echo \"error: get_param: param_path 'llite/*/stats': No such file or directory\" >&2; exit 2")
    with pytest.raises(BackendUnavailable, match=r"returned 2: error: get_param.*No such file"):
        opened(fake)


# -- what changes --


def test_a_new_mount_is_found_and_one_that_goes_stays_in_the_sum(fake):
    fake.tree("lustre-2.12")
    backend = opened(fake)
    fake.write(f"{DEBUG}/lustre-ffff000000000002/stats", reads(2, 8192))
    total, mounts = rows(backend)
    assert len(mounts) == 2 and totals(total) == [1002, 30994606834 + 8192, 9007, 31008331389]
    shutil.rmtree(fake.path / DEBUG.lstrip("/") / "lustre-ffff000000000002")
    total, mounts = rows(backend)
    assert len(mounts) == 1 and totals(total) == [1002, 30994606834 + 8192, 9007, 31008331389]


def test_a_mount_that_cannot_be_read_for_a_while_is_still_the_same(fake):
    fake.write("/proc/mounts", "")
    fake.write(f"{PROC}/lustre-ffff01/stats", reads(100, 1000))
    fake.write(f"{PROC}/lustre-ffff02/stats", reads(10, 100))
    backend = opened(fake)
    before = rows(backend)[0]
    (fake.path / PROC.lstrip("/") / "lustre-ffff02/stats").unlink()
    fake.mkdir(f"{PROC}/lustre-ffff02/stats")  # reading it is an error
    total, mounts = rows(backend)
    assert total == before and "nb_read" not in mounts["lustre-ffff02"]
    assert backend.counters() == {"part_failures": 1}
    (fake.path / PROC.lstrip("/") / "lustre-ffff02/stats").rmdir()
    fake.write(f"{PROC}/lustre-ffff02/stats", reads(11, 105))
    assert totals(rows(backend)[0])[:2] == [111, 1105]


def test_cleared_statistics_never_take_the_sum_down(fake):
    fake.write(f"{PROC}/lustre-ffff01/stats", reads(100, 1000))
    backend = opened(fake)
    rows(backend)
    fake.write(f"{PROC}/lustre-ffff01/stats", stats())
    assert totals(rows(backend)[0]) == [100, 1000, 0, 0]
    fake.write(f"{PROC}/lustre-ffff01/stats", reads(7, 70))
    assert totals(rows(backend)[0]) == [107, 1070, 0, 0]


def test_metadata_operations_of_all_mounts_are_added_up_and_never_decrease(fake):
    fake.tree("lustre-2.10")
    backend = opened(fake)
    first = 1043 + 1040 + 88 + 31 + 9 + 20211 + 7 + 5 + 2 + 4  # of one mount; neither ioctl, seek, fsync nor getxattr
    assert rows(backend)[0]["lustre_nb_metadata"] == first + 10 + 10
    fake.write(f"{PROC}/{HOME}/stats", stats("open                      3 samples [regs]"))
    assert rows(backend)[0]["lustre_nb_metadata"] == first + 10 + 10 + 3
    fake.write(f"{PROC}/{HOME}/stats", "damaged")
    assert rows(backend)[0]["lustre_nb_metadata"] == first + 10 + 10 + 3


@pytest.mark.parametrize("script", ["", "echo 'error: get_param: No such file or directory' >&2; exit 2"])
def test_when_nothing_shows_a_mount_any_more_it_is_off_and_the_totals_go_on(fake, monkeypatch, script):
    monkeypatch.setenv("PATH", "/nowhere")
    fake.write(f"{PROC}/lustre-ffff01/stats", reads(100, 1000))
    backend = opened(fake)
    rows(backend)
    shutil.rmtree(fake.path / PROC.lstrip("/"))
    if script:
        lctl(fake, script)
    with pytest.raises(BackendUnavailable, match=r"no Lustre mount in .*mount it, start as root"):
        backend.sample([])
    backend.close()
    fake.write(f"{PROC}/lustre-ffff01/stats", reads(130, 1300))
    backend.open()
    assert totals(rows(backend)[0]) == [130, 1300, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "snapshot_time\nread_bytes many samples [bytes] 1 2 3\n",
        "snapshot_time\nread_bytes 1 samples [bytes]\n",
        "snapshot_time\nopen -1 samples [regs]\n",
        f"snapshot_time\nopen {2**63} samples [regs]\n",
        "snapshot_time\nopen " + "9" * 5000 + " samples [regs]\n",
        "snapshot_time\nread_bytes 1 sam",
        "snapshot_time\n\xff\xfe\n",
    ],
)
def test_statistics_that_turn_to_garbage_are_missing_alone(fake, caplog, text):
    fake.tree("lustre-2.10")
    backend = opened(fake)
    before, mounts_before = rows(backend)
    fake.write(f"{PROC}/{SOFT}/stats", text.encode("latin-1"))
    total, mounts = rows(backend)
    assert total == before
    assert mounts[HOME] == mounts_before[HOME]
    assert mounts[SOFT] == {"mount": SOFT.encode(), "fsname": b"lustre", "mount_point": None}
    assert backend.counters() == {"part_failures": 1}
    assert f"{SOFT}/stats: cannot parse" in caplog.text


@pytest.mark.parametrize(("mounts", "points"), [(1, ["/a", "/b"]), (2, ["/a"]), (1, [])])
def test_where_a_mount_is_is_missing_where_it_cannot_be_known(fake, mounts, points):
    for number in range(mounts):
        fake.write(f"{PROC}/lustre-ffff0{number}/stats", reads(1, 1))
    if points:
        fake.write("/proc/mounts", "".join([f"1.1.1.1@tcp:/lustre {point} lustre rw 0 0\n" for point in points]))
    _, found = rows(opened(fake))
    assert len(found) == mounts and {mount["mount_point"] for mount in found.values()} == {None}


# -- totals over parts that come and go --


def test_what_started_again_while_a_counter_could_not_be_read_counts_from_0():
    sums = Sums()
    sums.add("a", {"read": 10, "written": 2})
    sums.add("a", {"read": 1, "written": None})
    sums.add("a", {"read": 1, "written": 3})
    assert sums.totals() == {"read": 11, "written": 5}


def test_a_total_that_no_column_holds_is_missing():
    sums = Sums()
    for part in "ab":
        sums.add(part, {"read": 2**62, "written": 1})
    assert sums.totals() == {"read": None, "written": 2}


COUNTER = st.one_of(st.none(), st.integers(0, 20))
READING = st.tuples(st.sampled_from("abc"), st.fixed_dictionaries({"x": COUNTER, "y": COUNTER}), st.booleans())


@given(st.lists(st.one_of(READING, st.lists(st.sampled_from("abc")))))
def test_no_total_ever_goes_down(steps):
    sums = Sums()
    before = {}
    for step in steps:
        if isinstance(step, list):
            sums.keep_only(step)
        else:
            sums.add(*step)
        now = sums.totals()
        assert all(now[name] >= total for name, total in before.items())
        before = now
