"""This machine's documents: load, memory, network and disks, beside what free, df and the kernel say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.facility import machine
from colmet.facility.deadlines import Deadlines, SourceFailed
from colmet.facility.documents import Traffic
from colmet.facility.machine import Counted, Disks, DisksSilent, Network, parse_counted, parse_mounts, parse_self_binds
from tests.support.machine import fork
from tests.support.place import require_programs


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", **os.environ}).stdout


@pytest.mark.live
def test_memory_is_what_free_says():
    require_programs("free")
    total, available = machine.memory()
    words = said("free", "-b").splitlines()[1].split()
    assert total == int(words[1])
    assert abs(available - int(words[6])) < 1 << 30  # others take and give back meanwhile


def test_traffic_is_the_sum_of_all_interfaces():
    def kernels():
        rows = [line.replace(":", " ").split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
        return sum(int(row[9]) for row in rows), sum(int(row[1]) for row in rows)

    before = kernels()
    counted = machine.count_traffic()
    after = kernels()
    assert before[0] <= counted.sent <= after[0] and before[1] <= counted.received <= after[1]


# -- the state file of the network --


def held(state):
    """What the state has for every program, and whose it is."""
    of_all = json.loads(state.read_text())
    assert of_all.pop("of") == machine.counting()
    return of_all


def test_traffic_is_the_difference_to_the_state_file(tmp_path):
    now_ms = int(time.time() * 1000)
    state = tmp_path / "afmetrics.json"
    state.write_text(json.dumps({"sent": 1000, "received": 5000, "timestamp": now_ms - 300_000}))
    network = Network(str(state), lambda: Counted(1250, 9000, now_ms))
    assert network.traffic() == Traffic(250, 4000, 300.0)
    assert held(state) == {"sent": 1250, "received": 9000, "timestamp": now_ms}
    assert os.listdir(tmp_path) == ["afmetrics.json"]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "text",
    [
        *(None, b"", b"not JSON", b"[1, 2, 3]", b'{"sent": 1, "received": 1}', b"[" * 4096, b'{"sent": ' + b"9" * 4096),
        *[
            b'{"sent": %s, "received": %s, "timestamp": %s}' % values
            for values in (
                *((b"1.5", b"1", b"99000000"), (b"true", b"1", b"99000000"), (b"-1", b"1", b"99000000")),
                (b'"1"', b"1", b"99000000"),
                (b"1", b"1", b"96399999"),  # older than an hour
                (b"1", b"1", b"100000001"),  # from the future
                *((b"11", b"1", b"99000000"), (b"1", b"21", b"99000000")),  # counters began again
            )
        ],
    ],
)
def test_a_state_without_content_begins_again(tmp_path, text):
    state = tmp_path / "state"
    if text is not None:
        state.write_bytes(text)
    network = Network(str(state), lambda: Counted(10, 20, 100_000_000))
    assert network.traffic() == Traffic(0, 0, 0.0)
    assert held(state) == {"sent": 10, "received": 20, "timestamp": 100_000_000}


def test_the_counters_of_another_machine_or_boot_are_none_of_ours(tmp_path, monkeypatch):
    state = tmp_path / "state"
    counts = iter([Counted(10, 20, 0), Counted(15, 30, 60_000), Counted(25, 50, 120_000), Counted(45, 90, 180_000)])

    def traffic():
        return Network(str(state), lambda: next(counts)).traffic()

    assert traffic() == Traffic(0, 0, 0.0)
    assert traffic() == Traffic(5, 10, 60.0)
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "login2")
    assert traffic() == Traffic(0, 0, 0.0)
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(machine, "BOOT_ID", str(tmp_path / "boot"))
    assert traffic() == Traffic(0, 0, 0.0)
    assert json.loads(state.read_text())["of"] == "login2 another"


def test_a_state_that_cannot_be_written_is_logged_once_and_kept_in_memory(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    counts = iter([Counted(10, 20, 1000), Counted(15, 30, 61_000)])
    network = Network(str(tmp_path / "file/state"), lambda: next(counts))
    assert network.traffic() == Traffic(0, 0, 0.0)
    assert network.traffic() == Traffic(5, 10, 60.0)
    assert network.failures == 2
    assert len(caplog.messages) == 1 and "network state cannot be written" in caplog.text


def test_a_file_that_root_made_for_another_user_is_written_in_its_place(other_user, other_owner):
    with tempfile.TemporaryDirectory() as folder:  # pytest's are for nobody else
        os.chmod(folder, 0o755)
        state = Path(folder, "afmetrics.json")
        state.write_text("")
        os.chown(state, 65534, 65534)
        pid = fork()
        if pid == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                Network(str(state), lambda: Counted(1, 2, 3)).traffic()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert held(state) == {"sent": 1, "received": 2, "timestamp": 3}
        assert state.stat().st_uid == 65534


def test_a_link_in_the_place_of_the_state_is_not_followed_and_all_can_read_it(tmp_path):
    other, state = tmp_path / "other", tmp_path / "state"
    other.write_text("precious")
    state.symlink_to(other)
    Network(str(state), lambda: Counted(1, 2, 3)).traffic()
    assert other.read_text() == "precious" and not state.is_symlink()
    assert state.stat().st_mode & 0o777 == 0o644


# -- disks --


@pytest.mark.live
def test_a_disk_is_what_df_says():
    [space] = Disks(["/"], Deadlines(), 10).spaces()
    source, total, used, free = said("df", "-B1", "--output=source,size,used,avail", "/").splitlines()[1].split()
    assert space.mount == "/" and space.total == int(total)
    assert abs(space.used - int(used)) < 1 << 30 and abs(space.free - int(free)) < 1 << 30
    if source.startswith("/dev/"):
        assert space.device is not None and not space.device.startswith("/")


def test_devices_are_those_of_the_table_of_mounts():
    text = (
        "/dev/mapper/vg-home /home ext4 rw 0 0\n"
        "server:/export/data /data nfs4 rw 0 0\n"
        "auto /scratch autofs rw 0 0\n"
        "/dev/sdb1 /scratch xfs rw 0 0\n"
        "/dev/sdc1 /my\\040disk xfs rw 0 0\n"
        "odd\n"
        "fuse /home/u\u2028/dev/sda1 / ext4 rw 0 0\n"
    )
    assert parse_mounts(text) == {
        "/home/u\u2028/dev/sda1": "fuse",
        "/home": "mapper/vg-home",
        "/data": "server:/export/data",
        "/scratch": "sdb1",
        "/my disk": "sdc1",
    }


def test_what_is_mounted_on_itself_alone_is_no_mount():
    """As systemd does with /home for a unit; a part of a disk that somebody mounts elsewhere is another matter."""
    text = (
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "50 27 254:0 /home /home ro shared:1 - ext4 /dev/vda rw\n"
        "51 50 254:0 /home /home ro - ext4 /dev/vda rw\n"
        "52 27 254:0 /srv/data /data rw - ext4 /dev/vda rw\n"
        "54 53 8:16 /top/my\\040disk /scratch/my\\040disk ro - xfs /dev/sdb rw\n"
        "53 27 8:16 /top /scratch rw - xfs /dev/sdb rw\n"
        "55 27 8:32 / /own rw - xfs /dev/sdc rw\n"
        "56 55 8:32 / /own ro - xfs /dev/sdc rw\n"  # on top of a disk
        "57 27 0:40 /nfs /nfs rw - nfs4 server:/nfs rw\n"
        "odd\n"
    )
    assert parse_self_binds(text) == {"/home", "/scratch/my disk"}
    subvolumes = "27 1 0:21 /@ / rw - btrfs /dev/vda rw\n28 27 0:21 /@home /home rw - btrfs /dev/vda rw\n"
    assert parse_self_binds(subvolumes) == set()


@pytest.mark.live
def test_a_directory_that_is_mounted_on_itself_has_no_device(tmp_path, mounts):
    script = """set -e; cd "$1"; shift
    mkdir home data elsewhere own; mount -t tmpfs disk own
    mount --bind home home; mount -o remount,bind,ro home; mount --bind data elsewhere; mount --bind own own
    exec "$@" """
    command = ["-m", "colmet.facility.command", "--cluster", "X", "--host", "--json-lines"]
    places = [str(tmp_path / name) for name in ("home", "elsewhere", "own")]
    disks = [word for place in places for word in ("--disk", place)]
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, *command, *disks]
    documents = [json.loads(line) for line in said(*argv).splitlines()]
    devices = {document["mount"]: document.get("device") for document in documents if document["kind"] == "DISK"}
    home, elsewhere, own = (devices[place] for place in places)
    assert home is None and elsewhere and own == "disk"


def test_a_missing_disk_is_left_out_with_a_warning_at_first(tmp_path, caplog):
    disks = Disks([str(tmp_path), str(tmp_path / "none"), "/proc"], Deadlines(), 10)
    assert [space.mount for space in disks.spaces()] == [str(tmp_path)]
    assert f"disk skipped: path={tmp_path}/none: No such file or directory" in caplog.text
    assert "disk skipped: path=/proc: it has no size" in caplog.text
    caplog.clear()
    assert len(disks.spaces()) == 1 and not caplog.text
    (tmp_path / "none").mkdir()
    assert len(disks.spaces()) == 2
    (tmp_path / "none").rmdir()
    disks.spaces()
    assert "disk skipped" in caplog.text


def test_a_file_system_that_does_not_answer_does_not_cost_the_others(tmp_path, monkeypatch):
    freed = threading.Event()
    usage = machine.shutil.disk_usage
    asked = []

    def slow(path):
        asked.append(path)
        if path == "/gone":
            freed.wait(30)
        return usage("/")

    monkeypatch.setattr(machine.shutil, "disk_usage", slow)
    disks = Disks(["/gone", str(tmp_path)], Deadlines(), 0.05)
    with pytest.raises(DisksSilent, match=r"the file system of /gone did not answer within 0\.05 s") as caught:
        disks.spaces()
    assert [space.mount for space in caught.value.args[1]] == [str(tmp_path)]
    with pytest.raises(DisksSilent, match="was asked before and still does not answer"):
        disks.spaces()
    assert asked.count("/gone") == 1  # threads do not pile up
    freed.set()


def test_what_is_raised_within_a_deadline_is_raised_to_the_caller():
    with pytest.raises(ZeroDivisionError):
        Deadlines().call("x", 10, lambda: 1 // 0)
    with pytest.raises(SourceFailed, match=r"x cannot be asked: SystemExit\(3\)"):
        Deadlines().call("x", 10, lambda: sys.exit(3))


@given(st.binary(max_size=60) | st.dictionaries(st.text(), st.integers()).map(lambda held: json.dumps(held).encode()))
def test_any_bytes_are_a_state_or_none(text):
    found = parse_counted(text)
    assert found is None or all(type(value) is int and value >= 0 for value in found)
