from __future__ import annotations

import errno
import subprocess

import pytest

from colmet.common.host.host import Host
from colmet.node.jobs.mounts import CgroupMount, Mounts, parse_mounts
from colmet.node.jobs.places import LAYOUTS, Claim
from tests.support.place import skip_refused

BY_NAME = {layout.name: layout for layout in LAYOUTS}
SCOPE = "/system.slice/slurmstepd.scope"
SLUID = "s5K1KKYAYG5D00"


@pytest.mark.parametrize(
    ("layout", "path", "claim"),
    [
        ("oar2", "/oar/bob_42", Claim(42, "bob")),
        ("oar2", "/oar/jean-luc.p_7", Claim(7, "jean-luc.p")),
        ("oar2", "/oar/x@site.org_5", Claim(5, "x@site.org")),
        ("oar2", "/oar/Ünï_3", Claim(3, "Ünï")),
        ("oar3", "/oar.slice/oar-u1000.slice/oar-u1000-j6095.slice", Claim(6095, "1000")),
        ("oar3", "/oar.slice/oar-u1000.slice/oar-u1000-j6095-1.scope", Claim(6095, "1000")),
        ("oar3", "/oar.slice/oar-u1000.slice/oar-u1000-j6095", Claim(6095, "1000")),
        ("oar3", "/oar.slice/a/b/c/oar-u0-j1.slice", Claim(1, "0")),
        ("slurm-v1", "/slurm/uid_1000/job_12", Claim(12, "1000")),
        ("slurm-v1", "/slurm_node-1/uid_0/job_1", Claim(1, "0")),
        ("slurm-v2", f"{SCOPE}/job_9", Claim(9)),
        ("slurm-v2", "/system.slice/node_1_slurmstepd.scope/job_9", Claim(9)),
        ("slurm-sluid", f"{SCOPE}/{SLUID}", Claim(0, "", SLUID)),
        ("slurm-sluid", f"{SCOPE}/s234567890", Claim(0, "", "s234567890")),
    ],
)
def test_a_job_directory_says_whose_it_is_to_one_layout_only(layout, path, claim):
    assert {one.name: one.match(path) for one in LAYOUTS if one.match(path)} == {layout: claim}
    above = path.rpartition("/")[0]
    while above:
        assert BY_NAME[layout].leads(above), "what is above a job is looked into"
        assert BY_NAME[layout].match(above) is None
        above = above.rpartition("/")[0]
    assert not BY_NAME[layout].leads(path), "and jobs are not looked into for other jobs"


@pytest.mark.parametrize(
    "path",
    [
        "/oar/_7",
        "/oar/bob_0",
        "/oar/bob_x",
        "/oar/bob_7/step_8",
        "/oar/bob_99999999999999999999",
        "/oar/bob_9223372036854775808",
        "/oar/bob_٣",
        "/oar/bob\nx_7",
        "/oar.slice/oar-u1000.slice",
        "/oar.slice/oar-u1000-j6095.slice/oar-u1000-j7.scope",
        "/oar.slice/a/b/c/d/oar-u0-j1.slice",
        "/slurm/uid_bob/job_1",
        "/slurm/uid_1000/job_1/step_0",
        "/slurm/job_1",
        f"{SCOPE}/system",
        f"{SCOPE}/job_1/step_0",
        f"{SCOPE}/job_1/step_0/user/task_0/{SLUID}",
        "/system.slice/slurmd.service/job_1",
        "/user.slice/slurmstepd.scope/job_1",
        f"{SCOPE}/s5k1kkyayg5d00",
        f"{SCOPE}/s5K1KKYAYG5DIL",
        f"{SCOPE}/s12345678901234567890",
        f"{SCOPE}/{SLUID}.x",
    ],
)
def test_other_directories_are_nobodys(path):
    assert [one.name for one in LAYOUTS if one.match(path)] == []


def test_mounts_are_read_with_their_controllers_and_escapes():
    text = (
        b"proc /proc proc rw 0 0\n"
        b"cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
        b"cgroup /a\\040b\\134c\\303\\251 cgroup rw,cpuset,clone_children 0 0\n"
        b"cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n"
        b"cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n"
        b"cgroup\n"
        b"\xff /odd ext4 rw 0 0\n"
        b"fuse /home/u\rx\x0bcgroup2 fuse rw 0 0\n"
        b"fuse /home/a\rcgroup /forged cgroup rw,cpu 0 0\n"
    )
    assert parse_mounts(text) == [
        CgroupMount("/sys/fs/cgroup/cpu,cpuacct", 1, ("cpu", "cpuacct")),
        CgroupMount("/a b\\cé", 1, ("cpuset",)),
        CgroupMount("/sys/fs/cgroup/systemd", 1, ("name=systemd",)),
        CgroupMount("/sys/fs/cgroup/unified", 2),
    ]


def test_the_mount_of_a_path_is_the_innermost_one(fake):
    fake.write("/proc/self/mounts", "c /g cgroup2 rw 0 0\nc /g/cpu cgroup rw,cpu 0 0\n")
    mounts = Mounts(fake.host)
    assert mounts.refresh(anyway=True)
    assert not mounts.refresh(anyway=True), "the same as before"
    assert mounts.unified == "/g" and mounts.v1 == {"cpu": "/g/cpu"}
    assert mounts.is_unified("/g") and mounts.is_unified("/g/cpux") and not mounts.is_unified("/g/cpu/x")
    assert mounts.of("/gx") is None
    mounts.close()
    mounts.close()
    assert fake.host.kept == 0


def test_a_read_that_fails_leaves_the_mounts_as_they_were_and_is_counted(fake, monkeypatch):
    fake.write("/proc/self/mounts", "c /g cgroup2 rw 0 0\n")
    mounts = Mounts(fake.host)
    mounts.refresh(anyway=True)

    def fail(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(type(mounts._file), "read", fail)
    assert not mounts.refresh(anyway=True) and (mounts.unified, mounts.failures) == ("/g", 1)
    mounts.close()


@pytest.mark.live
def test_live_a_mount_is_noticed_without_reading_the_file_at_each_look(root, tmp_path):
    host = Host()
    mounts = Mounts(host)
    mounts.refresh(anyway=True)
    mounts.refresh()
    done = subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        skip_refused("no cgroup v2 can be mounted")
    try:
        assert mounts.refresh()
        assert CgroupMount(str(tmp_path), 2) in mounts.mounts
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert mounts.refresh()
    assert CgroupMount(str(tmp_path), 2) not in mounts.mounts
    mounts.close()
