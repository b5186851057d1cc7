"""Programs with a deadline: what they print, how they fail, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from colmet.common.errors import CommandFailed
from colmet.common.host import command as module
from colmet.common.host.command import MAX_ANSWER, Command
from colmet.common.host.host import Host
from tests.support.place import skip_refused

LONG = 60  # seconds that nothing here lasts


def sh(script, deadline_s=LONG, **options):
    return Command(["sh", "-c", script], deadline_s, **options)


def fails(command, why=None):
    """The text of its failure."""
    with pytest.raises(CommandFailed) as failed:
        command.run()
    if why is not None:
        assert failed.value.why == why
    return str(failed.value)


def lives(pid):
    """Whether a process is there, and is no zombie that its new parent has still to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition, timeout_s=60):
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def pids_in(path, count):
    """The numbers that processes have written to a file, each on a line."""
    assert eventually(lambda: path.exists() and path.read_text().count("\n") >= count)
    return [int(line) for line in path.read_text().split()]


def late(script, pids, **options):
    """A command whose run was killed at its deadline, after it had written a number to `pids`."""
    for deadline_s in (0.3, 2, 20):  # this machine may be so busy that a shell starts slowly
        command = sh(script, deadline_s, **options)
        text = fails(command, "late")
        if pids.exists():
            return command, text
    raise AssertionError(f"{script} did not come to run")


def open_files():
    return sorted(os.listdir("/proc/self/fd"))


def children():
    found = []
    for tid in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread may have ended meanwhile
            found += Path(f"/proc/self/task/{tid}/children").read_text().split()
    return found


def readable(file):
    return bool(select.select([file], [], [], 0)[0])


def test_a_program_reads_what_it_is_given_and_may_leave_it():
    given = b"x" * (1 << 20)
    assert sh("wc -c").run_bytes(given).split() == [b"1048576"]
    assert sh("echo done").run_bytes(given) == b"done\n"
    assert sh("wc -c").run_bytes().split() == [b"0"]


def test_it_says_what_the_program_prints():
    assert sh("echo one; echo two").run() == "one\ntwo\n"
    assert sh("printf 'no end of line'").run() == "no end of line"
    assert sh("true").run() == ""


def test_arguments_reach_it_as_they_are_and_no_shell_sees_them():
    words = ["a b", "$HOME", "*", "; echo", "", "'"]
    assert Command(["printf", "<%s>", *words], LONG).run() == "".join(f"<{word}>" for word in words)


def test_messages_are_in_english_whatever_the_agents_language(monkeypatch):
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    monkeypatch.setenv("KEPT", "yes")
    assert sh('echo "$LC_ALL $KEPT $MORE"', env={"MORE": "too"}).run() == "C yes too\n"


def test_it_has_nothing_to_read_and_runs_in_the_root_in_a_session_of_its_own():
    assert sh("cat; pwd").run() == "/\n"
    assert sh("cut -d' ' -f6 /proc/$$/stat; echo $$").run().split()[0] != str(os.getsid(0))


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 3", "returned 3"),
        ("echo why >&2; exit 1", "returned 1: why"),
        ("echo why; exit 1", "returned 1: why"),  # freeipmi's tools say some of it there
        ("echo value; echo why >&2; exit 1", "returned 1: why"),
        ("printf 'on\\ttwo\\n\\n lines\\n' >&2; exit 1", "returned 1: on two lines"),
        ("kill -TERM $$", "was ended by signal 15"),
        ("echo core >&2; kill -SEGV $$", "was ended by signal 11: core"),
    ],
)
def test_a_failure_names_the_command_its_status_and_what_it_said(script, text):
    command = sh(script)
    assert fails(command, "status") == f"sh -c {script}: {text}"
    assert str(command) == f"sh -c {script}"


def test_words_that_are_secret_are_in_no_text_of_it():
    command = sh("echo not hunter2 >&2; exit 1", hide=["hunter2", "", "hunt"])
    assert fails(command) == "sh -c echo not *** >&2; exit 1: returned 1: not ***"
    assert str(command) == "sh -c echo not *** >&2; exit 1"
    assert sh("echo hunter2", hide=["hunter2"]).run() == "hunter2\n"  # an answer is no text of it


def test_a_program_that_is_not_there_says_so_and_is_found_once_it_is(tmp_path):
    path = tmp_path / "power"
    command = Command([str(path)], LONG)
    assert fails(command, "absent") == f"{path}: no such program"
    path.write_text("#!/bin/sh\necho 207\n")
    path.chmod(0o644)
    assert "no such program" in fails(command, "absent")
    path.chmod(0o755)
    assert command.run() == "207\n"
    path.unlink()
    assert "no such program" in fails(command, "absent")
    assert command.runs == 1


def test_at_its_deadline_it_is_killed_and_may_be_asked_again(tmp_path):
    pids = tmp_path / "pids"
    begun = time.monotonic()
    command, text = late(f"echo started; echo $$ >> {pids}; exec sleep {LONG}", pids)
    assert text.endswith(f"did not end within {command.deadline_s:g} s and was killed")
    assert time.monotonic() - begun < LONG / 2
    assert not lives(pids_in(pids, 1)[0])
    command.argv = ["echo", "207"]
    assert command.run() == "207\n"
    assert (command.runs, command.killed) == (2, 1)


@pytest.mark.parametrize(
    "script",
    [
        "{tell}; sleep 60 & sleep 60",  # a child that holds the pipes
        "trap '' TERM HUP INT; {tell}; sleep 60 & wait; sleep 60",  # ignores what can be ignored
        "({tell}; sleep 60 & sleep 60 &) & {tell}; sleep 60",  # double-forked, its parents gone
        "{tell}; (trap '' TERM; exec >/dev/null 2>&1; {tell}; sleep 60) & sleep 60",  # without the pipes
        "{tell}; kill -STOP $$",  # stopped
        "exec >&- 2>&-; {tell}; sleep 60",  # closes its pipes and stays
    ],
)
def test_at_its_deadline_its_whole_process_group_is_killed(tmp_path, script):
    pids = tmp_path / "pids"
    late(script.format(tell=f"cut -d' ' -f5 /proc/$$/stat >> {pids}"), pids)
    group = pids_in(pids, 1)[0]

    def is_empty():
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state not in "ZX":
                    return False
        return True

    assert eventually(is_empty)


def test_what_a_program_leaves_running_when_it_ends_is_killed_and_its_answer_counts(tmp_path):
    command = sh(f"echo 207; sleep {LONG} & echo $! >> {tmp_path}/pids")
    begun = time.monotonic()
    assert command.run() == "207\n"
    assert time.monotonic() - begun < LONG / 2
    assert eventually(lambda: not lives(pids_in(tmp_path / "pids", 1)[0]))


def test_a_daemon_that_it_starts_outside_its_group_holds_up_nothing(tmp_path):
    command = sh(f"setsid sh -c 'echo $$ >> {tmp_path}/pids; exec sleep {LONG}' & echo 207")
    try:
        assert [command.run() for _ in range(2)] == ["207\n"] * 2
    finally:
        for pid in pids_in(tmp_path / "pids", 2):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_an_endless_answer_is_cut_off(stream):
    command = sh(f"yes{stream}")
    assert fails(command, "").endswith(f"printed more than {MAX_ANSWER} bytes and was killed")
    assert command.killed == 0


def test_what_a_kill_does_not_end_is_not_piled_up(monkeypatch, tmp_path):
    """As a process that a driver holds: it does not go until the driver lets it."""
    pids = tmp_path / "pids"
    with monkeypatch.context() as held:
        held.setattr(module, "_kill", lambda process: None)
        held.setattr(module, "_REAP_S", 0.05)
        command, text = late(f"echo $$ >> {pids}; exec sleep {LONG}", pids)
        assert text.endswith("and was killed; it has not gone yet, a driver or a file system holds it")
        for _ in range(3):
            assert fails(command, "late").endswith(": was killed before; " + text.rpartition("; ")[2])
    (pid,) = pids_in(pids, 1)
    assert lives(pid) and command.runs == 1
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not lives(pid))
    command.argv = ["echo", "207"]
    assert command.run() == "207\n"
    assert command.runs == 2


def test_cancelled_from_another_thread_it_ends_at_once_and_starts_no_more(tmp_path):
    command = sh(f"echo $$ >> {tmp_path}/pids; sleep {LONG} & wait")
    said = []
    thread = threading.Thread(target=lambda: said.append(fails(command)))
    thread.start()
    (pid,) = pids_in(tmp_path / "pids", 1)
    command.cancel()
    thread.join(LONG / 2)
    assert not thread.is_alive() and not lives(pid)
    assert said[0].endswith("was stopped, colmet-node ends")
    assert fails(command).endswith("is not started, colmet-node ends")
    command.cancel()
    assert (command.runs, command.killed) == (1, 0)


class TestOfAHost:
    @staticmethod
    def program(fake, name, text):
        path = fake.write(name, f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def test_programs_are_those_under_its_root(self, fake):
        assert fake.host.program("sh") is None and fake.host.program("/bin/sh") is None
        path = self.program(fake, "/usr/sbin/ipmi-oem", 'echo "207 $*"')
        assert fake.host.program("ipmi-oem") == fake.host.program("/usr/sbin/ipmi-oem") == str(path)
        assert fake.host.command(["ipmi-oem", "dell"], LONG).run() == "207 dell\n"
        assert fake.host.command(["/usr/sbin/ipmi-oem"], LONG).run() == "207 \n"
        assert "no such program" in fails(fake.host.command(["sh"], LONG), "absent")

    def test_those_of_administrators_are_found_where_the_path_lacks_them(self, fake, monkeypatch):
        path = self.program(fake, "/usr/sbin/ipmi-oem", "true")
        for value in ("/usr/bin:/bin", "", ":", "relative"):
            monkeypatch.setenv("PATH", value)
            assert fake.host.program("ipmi-oem") == str(path)
        monkeypatch.delenv("PATH")
        assert fake.host.program("ipmi-oem") == str(path)

    def test_those_that_the_path_names_come_first(self, fake, monkeypatch):
        self.program(fake, "/usr/bin/tool", "true")
        first = self.program(fake, "/opt/bin/tool", "true")
        monkeypatch.setenv("PATH", "/opt/bin:/usr/bin")
        assert fake.host.program("tool") == str(first)

    def test_what_is_no_program_is_none(self, fake):
        fake.write("/usr/bin/tool", "not executable")
        fake.mkdir("/usr/bin/folder")
        for name in ("tool", "folder", "/usr/bin/folder", "", "/", "a\0b"):
            assert fake.host.program(name) is None, name

    def test_a_relative_path_is_that_of_where_colmet_was_started(self, fake, monkeypatch):
        """The program itself runs in the root directory."""
        self.program(fake, "/here/tool", "echo 207")
        monkeypatch.chdir(fake.path / "here")
        assert Host().command(["./tool"], LONG).run() == "207\n"

    def test_stopping_ends_all_that_run_and_lets_none_start(self, fake, tmp_path):
        self.program(fake, "/bin/slow", f"echo $$ >> {tmp_path}/pids; sleep {LONG}")
        said = []
        threads = [
            threading.Thread(target=lambda: said.append(fails(fake.host.command(["slow"], LONG)))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        pids = pids_in(tmp_path / "pids", 3)
        fake.host.stop_commands()
        for thread in threads:
            thread.join(LONG / 2)
        assert len(said) == 3 and not any(lives(pid) for pid in pids)
        later = fake.host.command(["slow"], LONG)
        assert "is not started" in fails(later)
        assert later.runs == 0

    def test_secrets_are_hidden(self, fake):
        command = fake.host.command(["none", "-p", "hunter2"], LONG, hide=["hunter2"])
        assert fails(command, "absent") == "none -p ***: no such program"


GATE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
content, open_perm, here = 4, ctypes.c_uint64(0x10000), -100  # of linux/fanotify.h and fcntl.h
fd = libc.fanotify_init(content, os.O_RDONLY)
shut = fd >= 0 and libc.fanotify_mark(fd, 1, open_perm, here, os.fsencode(sys.argv[1])) == 0
print("shut" if shut else os.strerror(ctypes.get_errno()), flush=True)
time.sleep(20)
print("open", flush=True)
"""


@pytest.mark.live
def test_a_program_whose_file_system_does_not_answer_holds_up_no_other_thread(tmp_path, root):
    """Opening the file, also for execution, waits for the permission of another process."""
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    ended = []

    def run():
        try:
            ended.append(Command([str(program)], LONG).run())
        except CommandFailed as err:
            ended.append(str(err))

    thread = threading.Thread(target=run)
    with subprocess.Popen([sys.executable, "-c", GATE, str(program)], stdout=subprocess.PIPE, text=True) as gate:
        said = gate.stdout.readline().strip()
        if said != "shut":
            skip_refused(f"fanotify with permissions: {said}")
        start = time.monotonic()
        thread.start()
        while not (opened := readable(gate.stdout)) and len(children()) < 2 and not ended:
            time.sleep(0.005)
        seen = children(), time.monotonic() - start, ended[:]
        gate.kill()
    thread.join(LONG)
    assert not opened and ended == [""], (seen, ended)
