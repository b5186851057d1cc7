"""What the agent keeps of root's rights, and that it measures as much with it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.common.host import capabilities
from colmet.common.host.capabilities import CORE, bits, choose, drop, suggest
from colmet.node.kernel.task_source import DELAY_FIELDS
from tests.support.daemons import Daemon
from tests.support.other_user import in_child
from tests.support.perfjobs import hierarchy
from tests.support.waiting import free_port

NOBODY = 65534
PERF = ("--enable-perfhw", "--perfhw-list", "page_faults", "task_clock")  # counted on every machine
ALL = sum(1 << number for number in range(41))


def test_perf_events_take_sys_admin_where_there_is_no_right_of_their_own():
    old = ALL & ~bits({"CAP_PERFMON"})  # before Linux 5.8
    assert choose({"CAP_PERFMON"}, ALL) == {"CAP_PERFMON"}
    assert choose({"CAP_PERFMON"}, old) == {"CAP_SYS_ADMIN"}
    assert choose({"CAP_NET_ADMIN"}, old) == {"CAP_NET_ADMIN"}


def test_a_refusal_is_logged_and_nothing_ends(monkeypatch, caplog):
    class Libc:
        def capget(self, header, words):
            words[0] = words[1] = bits(["CAP_NET_ADMIN", "CAP_SYS_PTRACE"])
            return 0

        def prctl(self, *_):
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr("ctypes.get_errno", lambda: 1)
    drop(["CAP_NET_ADMIN"])
    assert "cannot drop privileges, the agent keeps all it has: [Errno 1]" in caplog.text


def test_root_of_a_container_keeps_its_rights_and_so_reads_the_io_of_its_jobs(root):
    """Without CAP_SYS_PTRACE the kernel compares the capabilities of reader and job."""
    engine = bits(["CAP_DAC_OVERRIDE"]) | 1 << 0
    code = f"""if True:
        import subprocess
        from colmet.common.host import capabilities
        from colmet.common.host.capabilities import drop
        capabilities.keep({engine})
        with subprocess.Popen(["sleep", "60"]) as job:
            drop(["CAP_NET_ADMIN"])
            print(open(f"/proc/{{job.pid}}/io").readline(), capabilities.held())
            job.kill()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["rchar:", done.stdout.split()[1], str(engine)], done.stderr


def as_the_unit():
    """Return the command that gives another one the user and rights of the node's unit."""
    unit = (Path(__file__).parents[2] / "packaging/systemd/colmet-node.service").read_text()
    names = re.findall(r"^AmbientCapabilities=(.+)$", unit, re.M)[0].lower().replace("cap_", "+").split()
    kinds = (f"--{kind}={','.join(['-all', *names])}" for kind in ("inh-caps", "bounding-set", "ambient-caps"))
    if subprocess.run(["setpriv", "--inh-caps=+perfmon", "true"], capture_output=True, check=False).returncode:
        # Nothing that could be installed: util-linux of Debian 11 is older than this capability.
        pytest.skip("setpriv does not know CAP_PERFMON")
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", *kinds]


def test_the_units_user_keeps_what_is_needed_and_its_programs_get_nothing(root):
    code = """if True:
        import subprocess
        from colmet.common.host.capabilities import drop
        drop(["CAP_NET_ADMIN"])
        print(open("/proc/self/status").read(), flush=True)
        subprocess.run(["cat", "/proc/self/status"], check=True)
    """
    command = [*as_the_unit(), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    held = [
        {int(value, 16) for value in re.findall(rf"^Cap{kind}:\t(\w+)$", done.stdout, re.M)} for kind in ("Inh", "Amb")
    ]
    assert held == [{0}, {0}]
    agent, program = (int(value, 16) for value in re.findall(r"^CapEff:\t(\w+)$", done.stdout, re.M))
    assert (agent, program) == (bits(CORE | {"CAP_NET_ADMIN"}), 0)


@pytest.fixture
def node(tmp_path, root):
    started = []

    def start(*options):
        uri = f"tcp://127.0.0.1:{free_port()}"
        started.append(
            Daemon("colmet.collector.main", tmp_path / "collector.log", "--zeromq-bind-uri", uri,
                   "--enable-stdout-backend", "--stdout-format", "json", "--buffer-size", "1")
        )  # fmt: skip
        started[-1].said("listening")
        started.append(
            Daemon("colmet.node.main", tmp_path / "node.log", "--zeromq-uri", uri, "-s", "0.2", "--state-dir",
                   str(tmp_path / "state"), "--spool-dir", "", "--mapping-dir", str(tmp_path), *options)
        )  # fmt: skip
        return started

    yield start
    for daemon in started:
        daemon.process.kill()
        daemon.process.communicate()


def statuses(pid):
    """What the kernel says of each thread's rights, and of a program's that it would start."""
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread ends meanwhile
            yield dict(re.findall(r"^(Cap\w+|NoNewPrivs):\t(\w+)$", (path / "status").read_text(), re.M))


@pytest.mark.live
def test_each_thread_of_the_agent_keeps_only_what_its_backends_need(node):
    daemon = node("--enable-jobproc", *PERF)[1]
    daemon.said("backend on backend=perfhw")
    kept = CORE | {"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"}
    assert f"privileges kept: {','.join(sorted(kept))}" in daemon.log.read_text()
    found = list(statuses(daemon.process.pid))
    assert len(found) >= 3  # ZeroMQ's, too
    for status in found:
        assert {name: int(value, 16) for name, value in status.items()} == {
            "CapInh": 0, "CapPrm": bits(kept), "CapEff": bits(kept), "CapBnd": bits(kept), "CapAmb": 0, "NoNewPrivs": 1,
        }  # fmt: skip


@pytest.mark.live
def test_all_rights_are_kept_where_that_is_asked_for(node):
    daemon = node("--keep-privileges")[1]
    daemon.said("backend on backend=taskstats")
    own = re.search(r"^CapEff:\t(\w+)$", Path("/proc/self/status").read_text(), re.M)[1]
    assert {status["CapEff"] for status in statuses(daemon.process.pid)} == {own}


def once(*options, prefix=()):
    """For each column of the job, whether it is known; without those that other tests switch off."""
    command = [*prefix, sys.executable, "-m", "colmet.node.main", "--once", "--enable-jobproc"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=60)
    return {
        (match[1], match[2] == "-")
        for line in done.stdout.splitlines()
        if (match := re.fullmatch(r"  (\w+) +(\S.*)", line)) and match[1] not in DELAY_FIELDS
    }


@pytest.mark.live
def test_as_much_is_measured_of_another_users_job_as_with_all_rights(cgroups):
    job = cgroups.job("bob_42", ("memory",))
    job.start("setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "60")
    options = ("--cpuset_rootpath", str(cgroups.path), *PERF)
    kept = once(*options)
    assert kept == once(*options, "--keep-privileges") == once(*options, prefix=as_the_unit())
    assert {("read_bytes", False), ("cpu_total", False), ("VmRSS", False)} <= kept


@pytest.mark.slow
@pytest.mark.live
def test_groups_for_perf_events_are_made_for_another_users_job(node, cgroups):
    job = cgroups.job("bob_42")
    loop = job.start("setpriv", f"--reuid={NOBODY}", "--clear-groups", "sh", "-c", "while :; do /bin/true; done")
    with hierarchy("v1"):
        collector, daemon = node("--cpuset_rootpath", str(cgroups.path), "--perfhw-make-cgroup", *PERF)
        daemon.said("backend on backend=perfhw")
        until = time.monotonic() + 20
        for line in collector.process.stdout:
            row = json.loads(line)
            if row["metric_backend"] == "perfhwstats_default" and row["job_id"] == 42 and row.get("counter_1"):
                break
            assert time.monotonic() < until, daemon.log.read_text()
        assert daemon.stop()[0] == 0
        loop.kill()  # it is in a group of this hierarchy
        loop.wait()
    assert "perf_group_failures" not in daemon.log.read_text()


@pytest.mark.parametrize(
    ("held", "bounding", "over_machine", "remedy"),
    [
        (0, ALL, True, "start colmet-node as root, or give it CAP_NET_ADMIN"),
        (bits({"CAP_SYS_PTRACE"}), 0, True, "start the container with --cap-add NET_ADMIN (unit: CapabilityBound"),
        (ALL, ALL, False, "start colmet-node outside of this user namespace (rootless container), as root of the"),
        (ALL, ALL, True, "see which security module or seccomp filter refuses it"),
    ],
    ids=["user", "container", "rootless container", "refused all the same"],
)
def test_the_remedy_is_that_of_the_place(monkeypatch, held, bounding, over_machine, remedy):
    monkeypatch.setattr(capabilities, "held", lambda: held)
    monkeypatch.setattr(capabilities, "bounding", lambda: bounding)
    monkeypatch.setattr(capabilities, "hold_for_machine", lambda: over_machine)
    assert suggest("CAP_NET_ADMIN", "CAP_SYS_PTRACE").startswith(remedy.partition(", or give")[0])
    assert remedy in suggest("CAP_NET_ADMIN")
    assert capabilities.has_all() == (not bounding or held == ALL)


def test_a_user_who_cannot_be_become_leaves_the_groups_as_they_were(root, monkeypatch):
    """In a user namespace without this user: setuid(2) fails with EINVAL."""

    def refuse(uid):
        raise OSError(errno.EINVAL, "Invalid argument")

    def work():
        os.setgroups([1, 2])
        monkeypatch.setattr(os, "setuid", refuse)
        with pytest.raises(OSError, match="Invalid argument"):
            capabilities.become(NOBODY, NOBODY, [3], 0)
        return int((os.geteuid(), os.getgid(), os.getgroups()) != (0, 0, [1, 2]))

    assert in_child(work) == 0
