"""The state file: what a restart finds after whatever ended the agent before, and who is kept out of it."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from colmet.common.host.host import Host
from colmet.node.state import BOOT_ID, HEADER_BYTES, StateFile

BOOT = "0c8f5a2e-4b0d-4c53-9a63-5a1b8f0f3f10\n"
OTHER_BOOT = "9c8f5a2e-4b0d-4c53-9a63-5a1b8f0f3f10\n"


@pytest.fixture
def machine(fake):
    fake.write(BOOT_ID, BOOT)
    fake.mkdir("/run")
    return fake


@pytest.fixture
def make(machine):
    made = []

    def build(directory="/run/colmet", **options):
        made.append(StateFile(machine.host, directory, **options))
        return made[-1]

    yield build
    for state in made:
        state.close()


def path_of(machine, name="taskstats.state"):
    return machine.path / "run/colmet" / name


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_saved_last_is_loaded_by_the_next_start(make, machine):
    first = make()
    assert first.open() and first.load() is None
    assert first.save(b"one") and first.save(b"two" * 1000)
    first.close()
    first.close()
    second = make()
    assert second.open() and second.load() == b"two" * 1000
    assert mode(machine.path / "run/colmet") == 0o700
    assert mode(path_of(machine)) == 0o600
    assert sorted(os.listdir(machine.path / "run/colmet")) == ["taskstats.state", "taskstats.state.lock"]


@pytest.mark.parametrize("length", range(HEADER_BYTES + 9))
def test_a_file_cut_anywhere_is_put_aside_with_a_warning(make, machine, length, caplog):
    state = make()
    state.open()
    state.save(b"payload!!")
    whole = path_of(machine).read_bytes()
    assert len(whole) == HEADER_BYTES + 9
    path_of(machine).write_bytes(whole[:length])
    assert state.load() is None
    assert "damaged" in caplog.text and "lost" in caplog.text
    assert path_of(machine, "taskstats.state.damaged").read_bytes() == whole[:length]
    assert not path_of(machine).exists()
    assert state.load() is None and caplog.text.count("damaged, ") == 1
    assert state.save(b"again") and state.load() == b"again"


def test_a_flipped_bit_anywhere_is_seen(make, machine, caplog):
    state = make()
    state.open()
    state.save(b"payload")
    whole = path_of(machine).read_bytes()
    for place in range(len(whole)):
        for bit in (1, 128):
            changed = bytearray(whole)
            changed[place] ^= bit
            path_of(machine).write_bytes(changed)
            assert state.load() is None, place
    assert caplog.text.count("damaged, ") == 2 * len(whole)
    assert os.listdir(path_of(machine).parent).count("taskstats.state.damaged") == 1


def test_the_state_of_another_boot_is_left_out(make, machine, caplog):
    caplog.set_level("INFO")
    state = make()
    state.open()
    state.save(b"of this boot")
    state.close()
    machine.write(BOOT_ID, OTHER_BOOT)
    after = make()
    assert after.open() and after.load() is None
    assert "earlier boot" in caplog.text and "WARNING" not in caplog.text
    assert after.save(b"of the next") and after.load() == b"of the next"


def test_a_second_agent_goes_on_without_state_and_says_so_once(make, caplog):
    first, second = make(), make()
    assert first.open() and first.save(b"first")
    assert not second.open()
    assert caplog.text.count("--state-dir") == 1 and "/run/colmet" in caplog.text
    assert not second.save(b"second") and second.load() is None
    assert second.failures == 0 and first.load() == b"first"
    assert make(name="other.state").open(), "another file of the same directory is another matter"
    first.close()
    assert second.open() and second.load() == b"first"


def test_a_full_disk_leaves_the_former_state_whole(make, machine, caplog):
    state = make()
    state.open()
    state.save(b"former")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the first 4096 bytes are written, as on a full disk
    try:
        assert not state.save(b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert state.failures == 1 and "state not saved" in caplog.text
    assert state.load() == b"former"
    assert sorted(os.listdir(path_of(machine).parent)) == ["taskstats.state", "taskstats.state.lock"]


def test_links_put_in_its_way_lead_nowhere(make, machine, caplog):
    """A directory that was open to others before it was made private may still hold what they put there."""
    secret = machine.write("/secret", b"keep me")
    directory = machine.mkdir("/run/colmet")
    directory.chmod(0o700)
    (directory / ".taskstats.state.new").symlink_to(secret)
    (directory / "taskstats.state").symlink_to(secret)
    state = make()
    assert state.open()
    assert state.load() is None and "damaged" in caplog.text
    assert state.save(b"x") and state.load() == b"x"
    assert secret.read_bytes() == b"keep me"
    assert not path_of(machine).is_symlink()
    state.close()
    (directory / "taskstats.state.lock").unlink()
    (directory / "taskstats.state.lock").symlink_to(machine.path / "made-by-link")
    assert not state.open()
    assert not (machine.path / "made-by-link").exists()


@pytest.mark.parametrize("rights", [0o770, 0o707, 0o777, 0o1777, 0o722])
def test_a_directory_in_which_others_may_write_is_refused(make, machine, caplog, rights):
    machine.mkdir("/run/colmet").chmod(rights)
    state = make()
    assert not state.open()
    assert "others may write" in caplog.text and caplog.text.count("WARNING") == 1
    assert os.listdir(machine.path / "run/colmet") == []


def test_a_directory_of_another_user_is_refused(make, machine, caplog, other_owner):
    os.chown(machine.mkdir("/run/colmet"), 65534, 65534)
    assert not make().open()
    assert "belongs to user 65534" in caplog.text


@pytest.mark.parametrize(
    ("directory", "said"),
    [("/none/colmet", "make the directory"), ("/run/file", "Not a directory"), ("/run/file/x", "")],
)
def test_a_place_that_cannot_be_is_one_warning_with_the_remedy(make, machine, caplog, directory, said):
    machine.write("/run/file", "")
    assert not make(directory).open()
    assert caplog.text.count("WARNING") == 1 and "--state-dir" in caplog.text and said in caplog.text


def test_whoever_may_not_write_there_gets_the_remedy(root, caplog):
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        for state in (StateFile(Host(), f"{path}/colmet"), StateFile(Host(), path)):
            os.seteuid(65534)
            try:
                assert not state.open() and not state.save(b"x")
            finally:
                os.seteuid(0)
        assert os.listdir(path) == []
    assert caplog.text.count("with --state-dir a directory of its user's own") == 2


@pytest.mark.slow
@pytest.mark.live
def test_a_kill_at_any_moment_leaves_a_whole_save_and_the_next_start_has_it(tmp_path):
    code = (
        "import sys\nfrom colmet.common.host.host import Host\nfrom colmet.node.state import StateFile\n"
        "state = StateFile(Host(), sys.argv[1])\nassert state.open()\nfirst = int(state.load()[:8] or b'0')\n"
        "print('on', flush=True)\n"
        "for n in range(first + 1, 10**8):\n    assert state.save(b'%08d' % n * 5000)\n"
    )
    directory = tmp_path / "colmet"
    state = StateFile(Host(), str(directory))
    assert state.open() and state.save(b"")
    state.close()
    last = 0
    for n in range(12):
        process = subprocess.Popen([sys.executable, "-c", code, directory], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"on\n"
        time.sleep(0.0137 * n)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert state.open()
        payload = state.load()
        state.close()
        number = int(payload[:8] or b"0")
        assert payload == b"%08d" % number * 5000 or (n == 0 and payload == b"")
        assert number >= last
        last = number
    assert last > 12
    assert not Path(directory / "taskstats.state.damaged").exists()
