"""No command, and no process that it starts, imports a module of the current directory or of a daemon's."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from colmet.collector.backends.hdf5 import isolated
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.commands.colmet import COMMANDS
from colmet.commands.doctor.target import User, _check_as
from colmet.common.host.command import python_command, python_environment
from colmet.web.reports import ReportProcesses, ReportQuery
from tests.support.small_store import START, make_store
from tests.support.waiting import free_port, wait_for

MODULES = (
    *("json", "os", "sys", "re", "site", "sitecustomize", "usercustomize", "typing", "logging", "argparse", "signal"),
    *("struct", "threading", "subprocess", "sqlite3", "ctypes", "importlib", "encodings", "codecs", "abc", "io"),
    *("colmet", "numpy", "tables", "zmq", "msgpack", "matplotlib", "rich", "requests", "tomllib", "tomli", "six"),
)
RUN = "import sys; from colmet.commands.colmet import main; sys.exit(main())"
FILES = ("--hdf5", "rows")
ARCHIVE = ("--archive", "rows.archive.sqlite")
CALLS = {
    "status": [["collector", "--control-socket", "none.sock"]],
    "doctor": [["--collector", "--", "--hdf5-filepath", "rows"]],
    "top": [["--once", "--control-socket", "none.sock"]],
    "jobs": [[*ARCHIVE]],
    "usage": [[*ARCHIVE]],
    "notices": [["--dry-run", "--config", "notices.toml", *ARCHIVE]],
    "report": [["17", *FILES, *ARCHIVE]],
    "plot": [["17", *FILES, "-o", "plot.png"]],
    "extract": [["--job", "17", *FILES]],
    "completeness": [[f"rows.{START}.hdf5"]],
    "archive": [
        ["info", *ARCHIVE],
        ["rebuild", "--output", "again.sqlite", *FILES],
        ["forget", "--user", "alice", "--rows", "--yes", *FILES, *ARCHIVE],
    ],
    "mem": [["http://127.0.0.1:9"]],
    "configure": [["--node", "--control-socket", "none.sock", "--sample-period", "5"]],
    "enrol": [["--keys", "keys", "node-1"]],
    "keygen": [["node", "node-1", "--directory", "keys"]],
    "access": [["users", "list"]],
    "login": [["--url", "http://127.0.0.1:9"]],
    "logout": [[]],
    "completion": [["bash"]],
}


@pytest.fixture
def planted(public):
    """A directory of another user, with a store, and a module of each name that says that it was imported."""
    folder = public / "planted"
    (public / "imported").mkdir(mode=0o777)
    os.chmod(public / "imported", 0o777)
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(public / 'imported' / name)!r}, 'w').close()\n")
    make_store(folder)
    return folder


def imported(planted):
    return sorted(path.name for path in (planted.parent / "imported").iterdir())


def test_each_command_has_a_call_here():
    assert CALLS.keys() == COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [(name, words) for name, calls in CALLS.items() for words in calls])
def test_a_command_imports_nothing_of_the_current_directory(planted, name, words):
    command, environment = python_command(RUN, name, *words), python_environment()
    done = subprocess.run(command, cwd=planted, env=environment, input="", capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and "usage:" not in done.stderr, done.stderr
    assert imported(planted) == []


def test_the_modules_are_imported_by_a_python_that_searches_there(planted):
    subprocess.run([sys.executable, "-c", "import json"], cwd=planted, check=True)
    assert "json" in imported(planted)


def test_a_process_that_reads_a_file_imports_nothing_of_it(planted, monkeypatch):
    monkeypatch.chdir(planted)
    assert isolated.last_row_s(f"rows.{START}.hdf5") == START + 2
    with pytest.raises(Damaged):
        isolated.check(f"rows.{START}.hdf5", 5, {}, {})
    assert imported(planted) == []


def test_a_process_that_makes_a_report_imports_nothing_of_it(planted, monkeypatch):
    monkeypatch.chdir(planted)
    options = argparse.Namespace(hdf5_filepath="rows", elastic_host=None, archive="", journal_dir="")
    ReportProcesses(options)(ReportQuery(17))
    assert imported(planted) == []


def test_the_check_of_a_configuration_imports_nothing_of_it(planted, monkeypatch):
    monkeypatch.chdir(planted)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ['PYTHONPATH']}")  # an empty entry is the current directory
    _check_as("collector", ["--hdf5-filepath", "rows"], User.of(os.geteuid()))
    assert imported(planted) == []


# A daemon of another user, who may not read the modules of this Python: they are imported before the change.
DAEMON = """
import os, sys
from colmet.collector import main
main.load_backends()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main.main())
"""


@pytest.fixture
def daemon(planted):
    """The control socket of a collector of another user, whose working directory is the planted one."""
    os.chown(planted, 65534, 65534)
    script, socket, log = planted.parent / "colmet-collector", f"{planted}/c.sock", planted.parent / "log"
    script.write_text(DAEMON)
    words = ["--zeromq-bind-uri", f"tcp://127.0.0.1:{free_port()}", "--hdf5-filepath", "new", "--archive-batch", "none"]
    words += ["--zeromq-curve-secret", "", "--control-socket", socket]
    with (
        open(log, "wb") as file,
        subprocess.Popen([sys.executable, script, *words], stderr=file, cwd=planted) as process,
    ):
        try:
            wait_for(lambda: os.path.exists(socket) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield socket
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.usefixtures("other_user")
def test_doctor_imports_nothing_of_the_directory_of_a_daemon(planted, daemon):
    words = python_command(RUN, "doctor", "--collector", "--control-socket", daemon)
    done = subprocess.run(words, cwd="/", env=python_environment(), capture_output=True, text=True, check=False)
    assert "as user nobody" in done.stdout, done.stdout
    assert imported(planted) == []
