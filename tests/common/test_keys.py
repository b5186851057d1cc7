"""Files of keys, the folder of those of the nodes, and the command that makes them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from colmet.commands.colmet import main
from colmet.common.config import keys as module
from colmet.common.config.keys import KnownKeys, check_key, read_pair, read_public, write_pair
from colmet.common.errors import ConfigError
from colmet.common.transport import curve, new_pair
from tests.support.waiting import Clock


@pytest.fixture
def pair():
    return new_pair()


def public_file(folder, name, *keys):
    path = folder / f"{name}.key"
    path.write_text("".join(f'public-key = "{key}"\n' for key in keys))
    return path


def test_a_pair_is_written_for_its_owner_alone_and_read_again(tmp_path, pair):
    former = os.umask(0)
    try:
        public, secret = write_pair(str(tmp_path), "node-1", pair)
    finally:
        os.umask(former)
    assert (public, secret) == (f"{tmp_path}/node-1.key", f"{tmp_path}/node-1.secret")
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(public).st_mode) == 0o644
    got = read_pair(secret, "--x")
    assert (got.public, got.secret) == (pair.public, pair.secret)
    assert read_public(public, "--x") == read_public(secret, "--x") == pair.public
    assert pair.secret not in Path(public).read_text() and pair.secret not in repr(got)


def test_zeromqs_own_certificates_are_the_same_files(tmp_path, pair):
    from zmq import auth

    _, secret = write_pair(str(tmp_path), "ours", pair)
    assert auth.load_certificate(secret) == (pair.public.encode(), pair.secret.encode())
    public, secret = auth.create_certificates(tmp_path, "theirs", {"name": "a node", "key": "x"})
    os.chmod(secret, 0o600)
    assert read_pair(secret, "--x").public == read_public(public, "--x")


@pytest.mark.parametrize("suffix", [".key", ".secret"])
def test_nothing_is_overwritten(tmp_path, pair, suffix):
    path = tmp_path / f"n{suffix}"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="File exists"):
        write_pair(str(tmp_path), "n", pair)
    assert os.listdir(tmp_path) == [path.name] and path.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path, pair, mode):
    _, secret = write_pair(str(tmp_path), "n", pair)
    os.chmod(secret, mode)
    with pytest.raises(ConfigError, match=f"--x {secret}: others can read it .mode {mode:04o}.; chmod 600"):
        read_pair(secret, "--x")


@pytest.mark.usefixtures("other_owner")
def test_a_secret_of_another_user_is_refused(tmp_path, pair):
    _, secret = write_pair(str(tmp_path), "n", pair)
    os.chown(secret, 12345, 0)
    with pytest.raises(ConfigError, match=r"belongs to another user .uid 12345"):
        read_pair(secret, "--x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line public-key"),
        ("hello\n", "line 1 is not of the form"),
        ('public-key = "short"\n', "line 1: a key is 40 characters"),
        ('public-key = "%s"\n' % ("#" * 40), "line 1: a key is 40 characters"),
        ("public-key = %s\n" % ("a" * 40), "line 1 is not of the form"),
        ("x" * (module.MAX_FILE_BYTES + 1), "larger than"),
        ("\u00e9", "not text"),
        ('curve\npublic-key = "' + "a" * 40 + '"\nsecret-kye = "' + "b" * 40 + '"\n', "line 3 is not"),
    ],
)
def test_files_of_another_form_are_refused_without_showing_them(tmp_path, text, why):
    path = tmp_path / "n.secret"
    path.write_text(text)
    path.chmod(0o600)
    for read in (read_pair, read_public):
        with pytest.raises(ConfigError, match=f"--x .*n.secret: .*{why}") as caught:
            read(str(path), "--x")
        assert "b" * 40 not in str(caught.value)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, why in ((tmp_path / "fifo", "not a file"), (tmp_path, "."), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=why):
            read_pair(str(path), "--x")


def test_a_pair_whose_keys_do_not_belong_together_is_refused(pair):
    with pytest.raises(ConfigError, match="does not belong"):
        curve.check_pair(module.KeyPair(pair.public, new_pair().secret), "--x")
    assert curve.check_pair(pair, "--x") is pair


@pytest.mark.parametrize("key", ["", "a" * 39, "a" * 41, "a" * 39 + "\n", "a" * 39 + '"', "%nSc1" * 8])
def test_what_is_no_key(key):
    with pytest.raises(ValueError, match="40 characters"):
        check_key(key)


# -- the folder --


@pytest.fixture
def clock():
    return Clock(100.0)


def test_keys_come_and_go_while_it_is_read(tmp_path, clock):
    one, two, three = (new_pair().public for _ in range(3))
    public_file(tmp_path, "n1", one)
    (tmp_path / "n9.secret").write_text("not for here")
    known = KnownKeys(str(tmp_path), "--x", clock)
    assert (known.owner(one), known.owner(two), len(known)) == ("n1", None, 1)
    known.refresh()
    path = public_file(tmp_path, "n2", two)
    known.refresh()
    assert known.owner(two) is None, "it is not looked at each time"
    clock.now += 1.1
    known.refresh()
    assert known.owner(two) == "n2"
    stamp = path.stat()
    with open(path, "a") as file:  # in its place: the folder does not show it
        file.write(f'public-key = "{three}"\n')
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    clock.now += 10.1
    known.refresh()
    assert known.owner(two) == known.owner(three) == "n2", "a node may have two keys while one is replaced"
    path.unlink()
    clock.now += 1.1
    known.refresh()
    assert known.owner(two) is known.owner(three) is None
    assert known.owner(one) == "n1" and known.broken == 0


def test_a_key_that_came_a_moment_ago_is_found_when_it_is_asked_for(tmp_path, clock):
    known = KnownKeys(str(tmp_path), "--x", clock)
    known.refresh()
    public_file(tmp_path, "n1", key := new_pair().public)
    clock.now += 0.1
    known.refresh()
    assert known.owner(key) is None
    known.refresh(0.05)
    assert known.owner(key) == "n1"


def test_broken_files_are_left_out_and_reported(tmp_path, clock, caplog):
    good = new_pair().public
    public_file(tmp_path, "good", good)
    (tmp_path / "empty.key").write_text("")
    public_file(tmp_path, "no host", new_pair().public)
    (tmp_path / "folder.key").mkdir()
    (tmp_path / "gone.key").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle.key").symlink_to(tmp_path / "circle.key")
    known = KnownKeys(str(tmp_path), "--x", clock)
    assert (known.owner(good), len(known), known.broken) == ("good", 1, 4)
    for name in ("empty.key", "no host.key", "folder.key", "circle.key"):
        assert f"{name}:" in caplog.text
    clock.now += 60
    known.refresh()
    assert known.owner(good) == "good" and known.broken == 4, "what has not changed is not read again"
    time.sleep(0.02)  # a directory's time goes by ticks of the kernel
    (tmp_path / "good.key").unlink()
    clock.now += 2
    known.refresh()
    assert known.owner(good) is None and known.unreadable == 0


def test_a_key_that_two_nodes_have_is_nobodys(tmp_path, clock, caplog):
    key, other = new_pair().public, new_pair().public
    public_file(tmp_path, "n1", key)
    public_file(tmp_path, "n2", other)
    known = KnownKeys(str(tmp_path), "--x", clock)
    public_file(tmp_path, "n3", key)
    clock.now += 1.1
    known.refresh()
    assert known.owner(key) is None and known.owner(other) == "n2"
    assert "same key" in caplog.text


def test_a_folder_that_goes_away_leaves_the_keys_as_they_were(tmp_path, clock, caplog):
    folder = tmp_path / "nodes"
    with pytest.raises(ConfigError, match=r"--x .*No such file"):
        KnownKeys(str(folder), "--x", clock)
    folder.mkdir()
    key = new_pair().public
    public_file(folder, "n1", key)
    known = KnownKeys(str(folder), "--x", clock)
    folder.rename(tmp_path / "away")
    clock.now += 100
    known.refresh()
    assert known.owner(key) == "n1" and known.unreadable == 1
    assert "cannot be read" in caplog.text


# -- colmet keygen --


def test_keygen_makes_pairs_for_many_nodes_and_one_for_the_collector(tmp_path, capsys):
    (tmp_path / "list").write_text("# all of them\nn3\n\nn4  # new\n")
    folder = tmp_path / "etc/keys"
    assert main(["keygen", "node", "n1", "n2.org", "--from-file", f"{tmp_path}/list", "--directory", str(folder)]) == 0
    assert main(["keygen", "collector", "--directory", str(folder)]) == 0
    names = ["collector", "n1", "n2.org", "n3", "n4"]
    assert sorted(os.listdir(folder)) == sorted([n + s for n in names for s in (".key", ".secret")])
    pairs = [curve.check_pair(read_pair(f"{folder}/{name}.secret", "--x"), "--x") for name in names]
    assert len({pair.public for pair in pairs}) == 5
    out = capsys.readouterr().out
    assert f"{folder}/n2.org.key {folder}/n2.org.secret\n" in out
    assert not [pair for pair in pairs if pair.secret in out]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["node"], "give the host names"),
        (["node", "n1", "old"], "old.key is there already"),
        (["node", "../n1"], "not the name of a host"),
        (["node", "n1", "n1"], "twice"),
        (["collector", "a", "b"], "one pair is enough"),
        (["node", "--from-file", "/nonexistent"], "No such file"),
    ],
)
def test_keygen_refuses_and_makes_nothing(tmp_path, capsys, arguments, why):
    (tmp_path / "old.key").write_text("precious")
    assert main(["keygen", *arguments, "--directory", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["old.key"]
