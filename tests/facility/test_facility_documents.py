"""The documents field by field, and names that are not to leave the site."""

from __future__ import annotations

import hashlib
import hmac
import json
import os

import pytest

from colmet.batch.systems import BatchJob, Queue
from colmet.common.config import secretfile
from colmet.common.errors import ColmetError, ConfigError
from colmet.facility import documents, people
from colmet.facility.documents import DocumentGroup, Space, Traffic

ALICE_AND_BOB = ["alice", "bob", "alice"]


def test_documents_of_users_begin_as_all_do():
    head = [("token", None), ("kind", "jupyter-ml"), ("cluster", "UC-AF")]
    found = documents.jupyter("jupyter-ml", "UC-AF", ALICE_AND_BOB[:2])
    assert list(found.items()) == [*head, ("jupyter_user_count", 2), ("users", ALICE_AND_BOB[:2])]
    head = [("token", None), ("kind", "ssh"), ("cluster", "UC-AF"), ("login_node", "login1")]
    found = documents.ssh("UC-AF", "login1", ALICE_AND_BOB)
    assert list(found.items()) == [*head, ("ssh_user_count", 3), ("users", ALICE_AND_BOB)]


def test_the_documents_of_a_host():
    head = {"token": None, "cluster": "UC-AF", "login_node": "login1"}
    assert documents.cpu("UC-AF", "login1", 0.25) == {**head, "kind": "CPU", "load": 0.25}
    assert documents.memory("UC-AF", "login1", 100, 40) == {**head, "kind": "MEM", "total": 100, "available": 40}
    network = {"kind": "NETWORK", "network": {"sent": 10, "received": 20, "interval": 299.987}}
    assert documents.network("UC-AF", "login1", Traffic(10, 20, 299.987)) == {**head, **network}
    space = {"kind": "DISK", "mount": "/home", "total": 1000, "used": 250, "free": 700, "utilization": 0.25}
    for device, shown in (("sda1", {"device": "sda1"}), (None, {})):
        found = documents.disk("UC-AF", "login1", Space("/home", device, 1000, 250, 700))
        assert found == {**head, **space, **shown}


def test_the_documents_of_queues_and_jobs():
    head = {"token": None, "cluster": "UC-AF"}
    queue = {"kind": "condorqueue", "queue": "all", "idle": 3, "running": 2, "held": 1}
    given = {"allocated_cores": 16, "allocated_mem": 32000}
    for cores, memory, shown in ((16, 32000, given), (None, None, {}), (0, None, {"allocated_cores": 0})):
        assert documents.queue("UC-AF", Queue("all", 3, 2, 1, cores, memory)) == {**head, **queue, **shown}
    job = BatchJob("12.0", "alice", "running", 61)
    fields = {"kind": "condorjob", "users": "alice", "Id": "12.0", "Runtime": 61}
    assert documents.job("UC-AF", job, "alice") == {**head, **fields, "state": "running"}
    assert documents.ended_job("UC-AF", job, "alice") == {**head, **fields, "state": "finished"}


# -- names --


def test_the_compatible_names_have_the_check_values():
    assert people.salted("")("alice") == "2bd806c9"
    assert people.salted("salt")("alice") == "3baa379b"


def test_keyed_names_are_16_digits_of_the_hmac():
    key = bytes(range(32))
    assert people.keyed(key)("alice") == hmac.new(key, b"alice", hashlib.sha256).hexdigest()[:16]
    assert people.keyed(key)("alice") != people.keyed(bytes(32))("alice")
    with pytest.raises(ValueError, match="31 bytes is too short"):
        people.keyed(bytes(31))


@pytest.mark.parametrize(
    ("name", "domain", "shown"),
    [
        ("condor123.example.edu", "bnl.gov", "atlas123.bnl.gov"),
        ("login.example.edu", "bnl.gov", "atlas.bnl.gov"),
        ("login1.site2.edu", "bnl.gov", "atlas12.bnl.gov"),
        ("n01-c2", "x", "atlas012.x"),
        ("login1.example.edu", "", "login1.example.edu"),
    ],
)
def test_the_name_of_a_host_keeps_all_its_digits(name, domain, shown):
    assert people.host(name, domain) == shown


# -- secrets --


def secret(path, content, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"abc\n", 0o644, r"others can read it \(mode 0644\); chmod 600"),
        (b"abc\ndef\n", 0o600, "not one line"),
        (b"", 0o600, "not one line"),
        (b"\n", 0o600, "not one line"),
        (b"a\x1bb\n", 0o600, "control characters"),
        (b"\xff\n", 0o600, "not text in UTF-8"),
        (b"x" * 5000, 0o600, "larger than the 4096 bytes"),
    ],
)
def test_a_secret_file_that_cannot_be_used_is_reported(tmp_path, content, mode, why):
    with pytest.raises(ConfigError, match=f"^--token-file .*{why}"):
        secretfile.read_safe_line("--token-file", secret(tmp_path / "token", content, mode))


def test_a_key_that_was_made_can_be_read(tmp_path):
    path = tmp_path / "key"
    people.make_key(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    key = people.read_key("--key-file", str(path))
    assert key == path.read_bytes() and len(set(key)) > 8
    with pytest.raises(ConfigError, match="is there already; with another key all names change"):
        people.make_key(str(path))
    assert path.read_bytes() == key


# -- -d --


GROUP = DocumentGroup("host.json", [documents.cpu("X", "n", 0.5)])


def test_debug_files_hold_the_documents_one_behind_the_other_for_their_owner_alone(tmp_path):
    second = documents.jupyter("jupyter-ml", "X", ["é"])
    documents.write_files([DocumentGroup("host.json", GROUP.documents * 2)], None, str(tmp_path))
    groups = [GROUP, DocumentGroup("jupyter-debug.json", [second]), DocumentGroup("ssh.json", [])]
    documents.write_files(groups, None, str(tmp_path))
    text = '{\n    "token": null,\n    "kind": "CPU",\n    "cluster": "X",\n    "login_node": "n",\n    "load": 0.5\n}'
    assert (tmp_path / "host.json").read_text() == text * 3
    assert '"\\u00e9"' in (tmp_path / "jupyter-debug.json").read_text()
    assert json.loads((tmp_path / "jupyter-debug.json").read_text()) == second
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"host.json": 0o600, "jupyter-debug.json": 0o600}, "a source that failed leaves no empty file"


def test_debug_files_have_the_token_of_the_command_line(tmp_path):
    documents.write_files([GROUP], "secret", str(tmp_path))
    written = json.loads((tmp_path / "host.json").read_text())
    assert next(iter(written)) == "token" and written["token"] == "secret"


def refused(folder, why):
    with pytest.raises(ColmetError, match=rf"host\.json cannot be written: {why}"):
        documents.write_files([GROUP], "secret", str(folder))


def test_a_file_that_others_may_read_gets_no_token(tmp_path):
    path = tmp_path / "host.json"
    path.touch()
    for mode in (0o644, 0o660, 0o602):
        path.chmod(mode)
        refused(tmp_path, ".* others may read this file; remove it")
    path.chmod(0o600)
    os.link(path, tmp_path / "another")
    refused(tmp_path, "")
    assert path.read_bytes() == b""


@pytest.mark.usefixtures("other_owner")
def test_a_file_of_another_user_gets_no_token(tmp_path):
    path = tmp_path / "host.json"
    path.touch(0o600)
    os.chown(path, 65534, 65534)
    refused(tmp_path, ".* others may read this file")
    assert path.read_bytes() == b""


def test_debug_files_are_no_links_pipes_or_directories(tmp_path):
    path = tmp_path / "host.json"
    path.symlink_to(tmp_path / "other")
    refused(tmp_path, "it is a link")
    assert not (tmp_path / "other").exists()
    path.unlink()
    os.mkfifo(path)
    refused(tmp_path, "No such device")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    refused(tmp_path, "it is not a file")
    assert os.read(reader, 100) == b""
    os.close(reader)
    path.unlink()
    path.mkdir()
    refused(tmp_path, "Is a directory")
