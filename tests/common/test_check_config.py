"""--check-config: what a start refuses it refuses, in the same words, and it opens and writes nothing."""

from __future__ import annotations

import errno
import os
import pwd

import pytest

from colmet.collector import main as collector_main
from colmet.common.daemon import systemd
from colmet.common.errors import ConfigError
from colmet.common.transport import Pull
from colmet.node import main as node_main
from colmet.node.delivery import link
from tests.support.other_user import in_child

MAINS = {"node": node_main, "collector": collector_main}

# daemon, command line, part of the message; {tmp} is a directory, {users} a file of `colmet access`
REFUSED = [
    ("node", "--enable-perfhw --perfhw-list task_clock:1", "'task_clock:1': give NAME"),
    ("node", "--regex_job_id (", "not a regular expression"),
    ("node", "--regex_job_id nogroup", "put the job id in parentheses"),
    ("node", "--zeromq-uri bogus", "give tcp://HOST:PORT"),
    ("node", "--zeromq-uri tcp://head:*", "the port must be a number"),
    ("node", "--zeromq-uri tcp://a:1 --zeromq-uri tcp://a:1", "no --zeromq-uri twice"),
    ("node", "--zeromq-link-uri bogus", "--zeromq-link-uri bogus: give tcp"),
    ("node", "--zeromq-curve-secret {tmp}/no.secret --zeromq-curve-collector {tmp}/no.key", "no.secret: No such file"),
    ("node", "--zeromq-curve-secret {tmp}/no.secret", "--zeromq-curve-collector is missing"),
    ("node", "-c {tmp}/missing", "no such directory"),
    ("node", "-p 4194305", "no such process"),
    ("node", "--control-socket {tmp}/no/folder/x.sock", "folder/x.sock: No such file"),
    ("node", "--control-socket tcp://127.0.0.1:5", "not a path"),
    ("node", "--metrics-listen nosuch.invalid:9333", "--metrics-listen nosuch.invalid:9333"),
    ("collector", "", "no output chosen"),
    ("collector", "--elastic-host head", "not an address such as"),
    ("collector", "--elastic-host http://h --elastic-date-suffix %Q", "--elastic-date-suffix"),
    ("collector", "--elastic-host http://h --elastic-index-prefix Colmet", "only lower-case letters"),
    ("collector", "--elastic-host http://h --elastic-ca-file {tmp}/no.pem", "--elastic-ca-file"),
    ("collector", "--enable-stdout-backend --http-users {tmp}/no", "--http-users has no effect without --http-listen"),
    ("collector", "--hdf5-filepath {tmp}/x --stdout-format json", "no effect without --enable-stdout-backend: give th"),
    ("collector", "--hdf5-filepath {tmp}/x --elastic-keep 3d", "--elastic-keep has no effect without --elastic-h"),
    ("collector", "--elastic-host http://h --hdf5-rotate 1d", "--hdf5-rotate has no effect without --hdf5-filepath"),
    ("collector", "--hdf5-filepath {tmp}/x --metrics-jobs", "--metrics-jobs has no effect without --metrics-listen"),
    ("node", "--perfhw-yield", "--perfhw-yield has no effect without --enable-perfhw: give that, too, or leave --perf"),
    ("collector", "--hdf5-filepath {tmp}/x --hdf5-rotate 1d --hdf5-rotate 2d", "give one period, one size"),
    ("collector", "--hdf5-filepath {tmp}/x.hdf5 --hdf5-rotate 1d", "so it is the one file"),
    ("collector", "--hdf5-filepath {tmp}/text.hdf5/x", "Not a directory"),
    ("collector", "--hdf5-filepath {tmp}/", "names a directory"),
    ("collector", "--hdf5-filepath {tmp}/text.hdf5", "exists and is not an HDF5 file"),
    ("collector", "--enable-stdout-backend --journal-dir {tmp}/text.hdf5/journal", "Not a directory; give --journal-d"),
    ("collector", "--enable-stdout-backend --journal-dir {tmp}/text.hdf5", "Not a directory; give --journal-dir"),
    ("collector", "--enable-stdout-backend --zeromq-bind-uri tcp://here", "give tcp://HOST:PORT"),
    ("collector", "--enable-stdout-backend --zeromq-link-bind-uri here", "--zeromq-link-bind-uri here: give tcp"),
    (
        "collector",
        "--enable-stdout-backend --zeromq-curve-secret {tmp}/no --zeromq-curve-nodes {tmp}",
        "no: No such file",
    ),
    ("collector", "--enable-stdout-backend --zeromq-curve-nodes {tmp}", "--zeromq-curve-secret is missing"),
]


def errors(caplog, daemon, argv):
    caplog.clear()
    assert MAINS[daemon].main(argv) == 2
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--http-listen 0", "colmet-web: give either --users FILE"),
        ("--http-listen 0 --http-users {tmp}/no", "'colmet access' makes it"),
        ("--http-listen nosuch.invalid:1 --http-open", "--listen nosuch.invalid:1"),
        ("--http-listen 0 --http-config {tmp}/no", "{tmp}/no: No such file"),
    ],
)
def test_the_check_warns_of_a_page_that_cannot_be_served_as_the_start_does(line, said, tmp_path, caplog):
    argv = ["--enable-stdout-backend", *line.format(tmp=tmp_path).split(), "--check-config"]
    assert collector_main.main(argv) == 0
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warning.startswith("the page and the JSON interface do not run") and said.format(tmp=tmp_path) in warning


@pytest.mark.parametrize(("daemon", "line", "said"), REFUSED, ids=[f"{one} {line}"[:70] for one, line, _ in REFUSED])
def test_what_a_start_refuses_the_check_refuses_in_the_same_words(daemon, line, said, tmp_path, caplog, monkeypatch):
    def opened(*_):
        raise AssertionError("the start goes on")

    monkeypatch.setattr(link, "open_outbox", opened)
    monkeypatch.setattr(collector_main.authenticator, "Authenticator", opened)
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)  # it is in the names of HDF5 files
    (tmp_path / "text.hdf5").write_text("no HDF5\n")
    argv = [word.format(tmp=tmp_path) for word in line.split()] + ["--keep-privileges"] * (daemon == "node")
    messages = errors(caplog, daemon, argv)
    assert len(messages) == 1 and said.format(tmp=tmp_path) in messages[0], messages
    assert errors(caplog, daemon, [*argv, "--check-config"]) == messages
    assert [path.name for path in tmp_path.iterdir()] == ["text.hdf5"]


@pytest.mark.parametrize(
    ("daemon", "line", "said"),
    [
        ("node", "--enable-perfhw --perfhw-list a_b c d e f g", "--perfhw-list names 6 events, the first 5 are cou"),
        ("node", "--enable-perfhw --perfhw-list instrutions", "is no event; did you mean instructions"),
        ("node", "--zeromq-hwm 0", "--zeromq-hwm 0: 1000 is used"),
        ("collector", "--elastic-host http://u:p@h", "can read the user and password"),
    ],
)
def test_what_a_start_warns_of_the_check_warns_of_in_the_same_words(daemon, line, said, caplog, monkeypatch):
    """Lines that Colmet 0.6 accepted."""

    def opened(*_):
        raise ConfigError("the start goes on")

    monkeypatch.setattr(link, "open_outbox", opened)
    monkeypatch.setattr(collector_main.authenticator, "Authenticator", opened)
    argv = [*line.split(), *["--keep-privileges"] * (daemon == "node")]

    def warnings(status, *more):
        caplog.clear()
        assert MAINS[daemon].main([*argv, *more]) == status
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    checked = warnings(0, "--check-config")
    assert any(said in text for text in checked), checked
    assert set(checked) <= set(warnings(2))


@pytest.mark.parametrize("path", ["x", "none/deeper/x", "none/x.hdf5"])
def test_a_check_beside_a_running_collector_opens_nothing_and_writes_nothing(path, tmp_path, capsys):
    """A directory that does not exist is made at the start, as Colmet 0.6 did."""
    running = Pull("tcp://127.0.0.1:*", 10)
    argv = [
        "--zeromq-bind-uri",
        running.uri,
        "--control-socket",
        str(tmp_path / "s"),
        "--hdf5-filepath",
        f"{tmp_path}/{path}",
    ]
    assert collector_main.main([*argv, "--check-config"]) == 0
    running.close()
    assert capsys.readouterr().out == "OK: command line\n"
    assert not list(tmp_path.iterdir())


def test_a_misspelt_codec_is_answered_with_the_right_one(capsys):
    with pytest.raises(SystemExit):
        collector_main.main(["--hdf5-filepath", "x", "--hdf5-complib", "zlibb"])
    assert "blosc2:zstd; did you mean zlib?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("daemon", "line", "vain"),
    [
        ("node", "--perfhw-list cache_misses", "--perfhw-list requires --enable-perfhw"),
        ("node", "--omnipath", "--omnipath requires --enable-infiniband"),
        ("node", "--lustre-prefix scratch", "--lustre-prefix requires --enable-lustre"),
        ("collector", "--enable-stdout-backend --hdf5-complevel 3", "--hdf5-complevel requires --hdf5-filepath"),
        ("collector", "--enable-stdout-backend -P {tmp}/none", "--http-credentials requires --elastic-host"),
        ("collector", "--enable-stdout-backend --no-check-certificates", "--no-check-certificates requires --elastic"),
    ],
)
def test_an_option_of_0_6_without_an_effect_is_accepted_with_a_warning(daemon, line, vain, tmp_path, caplog):
    assert MAINS[daemon].main([*line.format(tmp=tmp_path).split(), "--check-config"]) == 0
    assert f"option without an effect: {vain}" in caplog.text


def test_what_a_file_turns_off_or_leaves_as_it_is_needs_no_effect(tmp_path, capsys):
    path = tmp_path / "collector.toml"
    path.write_text(
        f"hdf5-filepath = '{tmp_path}/x'\nhttp-open = false\nelastic-data-stream = false\nstdout-format = 'text'\n"
    )
    path.chmod(0o600)
    assert collector_main.main(["--config", str(path), "--check-config"]) == 0
    assert f"OK: {path}" in capsys.readouterr().out


def test_a_node_whose_collector_is_not_named_yet_is_in_order_and_says_that_it_waits(caplog):
    assert node_main.main(["--check-config", "--zeromq-uri", ""]) == 0
    assert "no collector is named" in caplog.text


# -- as the unit has it --


@pytest.fixture
def unit_of_collector(tmp_path, monkeypatch):
    """A unit with a drop-in, as files; in `etc`, which counts before `lib`."""
    folders = tmp_path / "etc", tmp_path / "lib"
    for folder in folders:
        (folder / "colmet-collector.service.d").mkdir(parents=True)
    (folders[1] / "colmet-collector.service").write_text(
        "[Unit]\nDescription=x\n[Service]\nUser=daemon\nStateDirectory=colmet more\nRuntimeDirectory=colmet/collector\n"
        'WorkingDirectory=-/nowhere\nEnvironment=A=1 "B=2 3"\n# User=root\n[Install]\nUser=x\n'
    )
    for folder, name, text in (
        (1, "10-a.conf", "[Service]\nUser=root\n"),
        (0, "10-a.conf", "[Service]\nUser=nobody\nSupplementaryGroups=daemon\nEnvironment=\nEnvironment=C=4\n"),
        (0, "notes.txt", "[Service]\nUser=daemon\n"),
    ):
        (folders[folder] / "colmet-collector.service.d" / name).write_text(text)
    monkeypatch.setattr(systemd, "FOLDERS", tuple(map(str, folders)))
    return folders


def test_a_unit_is_read_with_its_drop_ins(unit_of_collector):
    found = systemd.find_unit("colmet-collector")
    environment = {
        "C": "4",
        "STATE_DIRECTORY": "/var/lib/colmet:/var/lib/more",
        "RUNTIME_DIRECTORY": "/run/colmet/collector",
    }
    assert found == systemd.ServiceUnit(
        "colmet-collector.service", "nobody", "", ("daemon",), frozenset(), "/nowhere", environment
    )
    assert systemd.find_unit("colmet-node") is None


def test_root_checks_as_the_unit_s_user(unit_of_collector, root, public, capfd):
    users = os.getresuid()
    config = public / "collector.toml"
    config.write_text("enable-stdout-backend = true\n")
    config.chmod(0o600)
    argv = ["--config", str(config), "--check-config"]
    assert in_child(lambda: collector_main.main(argv)) == 2
    assert f"{config}: user nobody cannot read it: chgrp nogroup {config}; chmod g+r {config}" in capfd.readouterr().err
    config.chmod(0o644)
    assert in_child(lambda: collector_main.main(argv)) == 0
    assert f"OK: {config} (checked as user nobody of colmet-collector.service)" in capfd.readouterr().out
    # its own directory: what systemd makes at the start is no error before
    state = ["--hdf5-filepath", "/var/lib/more/x", "--journal-dir", "/var/lib/more/journal"]
    assert in_child(lambda: collector_main.main([*argv, *state])) == 0
    assert in_child(lambda: collector_main.main([*argv, "--journal-dir", "/root-only"])) == 2
    assert "journal /root-only: Permission denied" in capfd.readouterr().err
    assert os.getresuid() == users, "only the child became that user"


def test_root_checks_with_the_rights_of_the_unit_s_user(unit_of_collector, root, tmp_path, capfd):
    """As the node's unit gives them: root's own secret can be read."""
    (secret := tmp_path / "secret").write_text("")
    secret.chmod(0o600)
    drop_in = unit_of_collector[0] / "colmet-collector.service.d" / "20.conf"
    drop_in.write_text("[Service]\nAmbientCapabilities=CAP_DAC_READ_SEARCH CAP_NEW\n")

    def work():
        systemd.find_unit("colmet-collector").enter()
        secret.read_text()
        with pytest.raises(PermissionError):
            secret.write_text("x")
        return 0

    assert in_child(work) == 0, capfd.readouterr().err


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL], ids=["an ordinary user", "a rootless container"])
def test_who_cannot_become_the_unit_s_user_checks_as_before_and_does_not_say_otherwise(
    unit_of_collector, monkeypatch, capfd, code
):
    def refuse(groups):
        raise OSError(code, os.strerror(code))

    def work():
        monkeypatch.setattr(os, "setgroups", refuse)
        return collector_main.main(["--enable-stdout-backend", "--check-config"])

    assert in_child(work) == 0
    assert capfd.readouterr().out == "OK: command line\n"


def test_a_user_whom_nobody_has_made_is_named(unit_of_collector, root, capfd, monkeypatch):
    def unknown(name):
        raise KeyError(f"getpwnam(): name not found: {name!r}")

    monkeypatch.setattr(pwd, "getpwnam", unknown)
    assert in_child(lambda: collector_main.main(["--enable-stdout-backend", "--check-config"])) == 2
    assert "colmet-collector.service: getpwnam(): name not found: 'nobody'" in capfd.readouterr().err
