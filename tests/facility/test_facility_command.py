"""colmet-facility and afmetrics_collector, from the command line to an endpoint, files and a service manager."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from colmet.batch.answers import BatchError
from colmet.batch.systems import BatchJob, BatchSystem, Queue
from colmet.facility import command, machine, options
from colmet.facility.collect import Facility
from colmet.facility.people import Logins, People, plain
from tests.support.kubernetes_server import KubernetesServer, pod
from tests.support.waiting import wait_for

CONDOR_JOBS = ("--batch-system", "condor")
CONDOR = Path(__file__).parents[1] / "data/facility/condor"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def condor(tmp_path, monkeypatch):
    """The commands of HTCondor are in PATH; what they were asked is in the file."""
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{CONDOR}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(asked))
    return asked


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    """The network counters are kept here."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


def facility(*argv):
    return command.main(["--cluster", "X", *argv])


def printed(capfd):
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


# -- from end to end --


@pytest.mark.slow
def test_all_documents_reach_the_endpoint_in_the_order_of_a_run(endpoint, condor, tmp_path, monkeypatch):
    with KubernetesServer() as kubernetes:
        kubernetes.pods["af-jupyter"] = [pod("af-jupyter", "nb", {"owner": "alice"})]
        kubernetes.pods["coffea-casa"] = [pod("coffea-casa", "nb", {"jhub_user": "bob"})]
        monkeypatch.setenv("KUBECONFIG", kubernetes.kubeconfig(tmp_path / "kubeconfig"))
        monkeypatch.setenv("COLMET_FACILITY_TOKEN", "secret")
        sources = ("--ssh", "--jupyter", "--batch-system", "condor", "--host", "--disk", "/")
        queues = ("--queue", "all:", "--queue", 'long:Q == "a::b"')
        assert facility(*sources, *queues, "--url", endpoint.url) == 0
        assert "COLMET_FACILITY_TOKEN" not in os.environ  # so that no program that is started has it
    kinds = [document["kind"] for document in endpoint.documents]
    jobs = ["condorqueue"] * 2 + ["condorjob"] * 5
    assert kinds == ["jupyter-ml", "jupyter-coffea", "ssh", "CPU", "MEM", "NETWORK", "DISK", *jobs]
    assert {(document["token"], document["cluster"]) for document in endpoint.documents} == {("secret", "X")}
    assert all(list(document)[:3] == ["token", "kind", "cluster"] for document in endpoint.documents)
    here = [document for document in endpoint.documents if "login_node" in document]
    assert {document["login_node"] for document in here} == {socket.gethostname()} and len(here) == 5
    assert [document["users"] for document in endpoint.documents[:2]] == [["alice"], ["bob"]]


def test_the_documents_of_htcondor_field_by_field(condor, tmp_path, capfd):
    assert facility(*CONDOR_JOBS, "--queue", "all:", "--queue", 'long:Queue == "a:b"', "--json-lines") == 0
    queue = {"idle": 12, "running": 7, "held": 4, "allocated_cores": 13, "allocated_mem": 26432}
    head = {"token": None, "cluster": "X"}
    assert printed(capfd) == [
        {**head, "kind": "condorqueue", "queue": "all", **queue},
        {**head, "kind": "condorqueue", "queue": "long", **queue},
        {**head, "kind": "condorjob", "users": "alice", "Id": "120.0", "Runtime": 0, "state": "idle"},
        {**head, "kind": "condorjob", "users": "bob", "Id": "121.0", "Runtime": 42, "state": "held"},
        {**head, "kind": "condorjob", "users": "bob", "Id": "122.7", "Runtime": 0, "state": "unknown"},
        {**head, "kind": "condorjob", "state": "finished", "users": "alice", "Id": "118.0", "Runtime": 3661},
        {**head, "kind": "condorjob", "state": "finished", "users": "bob", "Id": "119.3", "Runtime": 12},
    ]
    asked = condor.read_text()
    assert "condor_q [-all] [-totals] [-json]\n" in asked
    assert 'condor_q [-all] [-totals] [-json] [-constraint] [Queue == "a:b"]\n' in asked
    assert '[CpusProvisioned] [MemoryProvisioned] [-json] [-constraint] [Queue == "a:b"]\n' in asked


def test_names_of_jobs_and_hosts_are_others_where_that_is_wanted(condor, tmp_path, capfd):
    salt = tmp_path / "salt"
    salt.write_text("salt\n")
    salt.chmod(0o600)
    names = ("--salt-file", str(salt), "--obfuscate-hosts", "bnl.gov")
    assert facility(*CONDOR_JOBS, "--host", "--disk", "/", *names, "--json-lines") == 0
    found = printed(capfd)
    jobs = [document["users"] for document in found if document["kind"] == "condorjob"]
    assert set(jobs) == {"3baa379b", "07a2341c"} and jobs.count("3baa379b") == 2
    digits = "".join(re.findall(r"\d", socket.gethostname()))
    assert {document["login_node"] for document in found if "login_node" in document} == {f"atlas{digits}.bnl.gov"}


def test_a_key_makes_other_names_without_a_further_option(condor, tmp_path, capfd):
    key = str(tmp_path / "key")
    assert facility("--make-key", key) == 0
    assert facility(*CONDOR_JOBS, "--key-file", key, "--json-lines") == 0
    names = {document["users"] for document in printed(capfd)}
    assert len(names) == 2 and all(re.fullmatch("[0-9a-f]{16}", name) for name in names)


# -- what fails --


class Broken(BatchSystem):
    name = "broken"

    def queues(self):
        raise BatchError("no answer; start it")

    def jobs(self):
        return [BatchJob("1", "alice", "running", 5)]

    def ended(self, within_s):
        raise ZeroDivisionError


class Odd(Broken):
    name = "odd"

    def queues(self):
        self.skipped += 1
        return [Queue("q", 1, 2, 3)]

    def ended(self, within_s):
        return [BatchJob("2", "alice", "finished", within_s)]


def gathered(**sources):
    return Facility("X", "n", lambda: People("", plain), **sources).gather()


@pytest.fixture
def logins(monkeypatch):
    monkeypatch.setattr("colmet.facility.people.WHO", ["echo", "bob pts/0"])
    return Logins(False, 5)


def test_a_source_that_fails_does_not_cost_the_others(logins, caplog):
    found = gathered(logins=logins, batch=[Broken()])
    assert found.failed == ["queues of broken", "ended jobs of broken"]
    assert [(group.file, len(group.documents)) for group in found.groups] == [("ssh.json", 1), ("condor.json", 1)]
    assert "source failed: source=queues of broken: no answer; start it" in caplog.text
    assert "source failed, a defect: source=ended jobs of broken" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_source_that_gives_not_all_it_has_is_named():
    found = gathered(batch=[Odd()])
    assert found.failed == ["queues of odd"]
    assert [document.get("Runtime") for document in found.groups[0].documents] == [None, 5, 360]


def test_a_slow_source_does_not_keep_a_program_from_ending(logins):
    freed, asked = threading.Event(), threading.Event()

    class Slow(Odd):
        def queues(self):
            asked.set()
            freed.wait(60)
            return []

    sources = Facility("X", "n", lambda: People("", plain), logins=logins, batch=[Slow()])
    found = sources.gather(lambda: not asked.is_set())
    freed.set()
    assert found.failed == ["queues of odd", "jobs of odd", "ended jobs of odd"]
    assert [document["kind"] for group in found.groups for document in group.documents] == ["ssh"]


def test_a_batch_system_that_is_not_there_makes_the_status_1(endpoint, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nonexistent")
    argv = [*CONDOR_JOBS, "--queue", "all:", "--host", "--disk", "/", "--url", endpoint.url]
    assert facility(*argv) == 1
    assert [document["kind"] for document in endpoint.documents] == ["CPU", "MEM", "NETWORK", "DISK"]
    assert "source failed: source=jobs of condor: condor_q" in caplog.text


# -- the command line --


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "no source is chosen"),
        (["--host"], "no destination is given; give --url, --zeromq-uri or --json-lines"),
        (["--host", "--json-lines", "--ssh-history"], "--ssh-history has no effect without --ssh"),
        (["--host", "--url", "ftp://x/"], "--url: not an address"),
        (["--host", "--cluster", "", "--json-lines"], "no name of the facility is given; give --cluster NAME"),
        (["--ssh", "--group", "no-such-group", "--json-lines"], "this machine knows no group 'no-such-group'"),
        ([*CONDOR_JOBS, "--queue", "all", "--json-lines"], "'all' is not of the form NAME:CONSTRAINT"),
        (["--batch-system", "oar", "--queue", "a:", "--json-lines"], "--queue names queues of HTCondor"),
        (["--batch-system", "pbs", "--json-lines"], "invalid choice: 'pbs' (choose from"),
        (["--host", "--disk", "home", "--json-lines"], "'home' is not an absolute path"),
        (["--jupyter", "--namespace", "a b", "--json-lines"], "'a b' is no name of a namespace"),
        (["--ssh", "--token-file", "/none", "--url", "http://x/"], "--token-file /none: No such file"),
        (["--ssh", "--key-file", "", "--json-lines"], "--key-file: names no file"),
        (["--ssh", "--key-file", "/none", "--salt-file", "/none", "--json-lines"], "--key-file excludes --salt-file"),
        (["--ssh", "--interval", "0.5", "--json-lines"], "'0.5' is not a number of seconds from 1 to 86400"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(capsys, argv, reason):
    try:
        status = facility(*argv)
    except SystemExit as err:
        status = err.code
    said = capsys.readouterr()
    assert status == 2 and not said.out
    assert reason in said.err and said.err.count("\n") == 1 and said.err.startswith("colmet-facility: error: ")


def parsed(*argv):
    return options.build_parser(command.AFMETRICS).parse_args(argv)


def test_the_alias_has_the_old_defaults():
    given = parsed()
    assert (given.cluster, given.url) == ("UC-AF", "https://af.atlas-ml.org/")
    assert command.AFMETRICS.state_file == "/run/afmetrics.json"
    assert (given.namespace, given.label, given.token, given.loglevel) == ("af-jupyter", "owner", None, None)
    assert (given.salt, given.group, given.obfuscate_hosts, given.queue) == ("", "", "", [])
    flags = ("ssh", "ssh_history", "jupyter", "batch", "host", "obfuscate_users", "debug")
    assert not any(getattr(given, flag) for flag in flags)


def test_the_alias_has_the_old_short_and_long_options():
    short = parsed(
        "-sSjbod", "-n", "N", "-l", "L", "-t", "T", "-c", "C", "-u", "U", "-O", "D", "-z", "Z", "-g", "G",
        "-q", "a:b:c",
    )  # fmt: skip
    long = parsed(
        "--ssh", "--ssh-history", "--jupyter", "--batch", "--obfuscate-users", "--debug", "--namespace", "N",
        "--label", "L", "--token", "T", "--cluster", "C", "--url", "U", "--obfuscate-hosts", "D", "--salt", "Z",
        "--group", "G", "--queue", "a:b:c",
    )  # fmt: skip
    assert short == long
    assert short.queue == [("a", "b:c")] and short.ssh and short.debug and short.namespace == "N"
    assert parsed("-q", "all:").queue == [("all", "")]


@pytest.mark.slow
def test_very_verbose_logs_each_document_and_answer_without_the_token(endpoint, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    token.chmod(0o600)
    argv = ["--cluster", "X", "--host", "--disk", "/", "--url", endpoint.url, "--token-file", str(token)]
    for option, count in (("-v", 0), ("-vv", 4)):
        said = process(*COLMET, option, *argv, cwd=tmp_path).stderr
        found = re.findall(r"DEBUG \S+: document (.*)", said)
        assert len(found) == len(re.findall("DEBUG .*: answer status=200", said)) == count
        assert all(json.loads(text)["token"] is None for text in found) and "s3cret" not in said


def test_nothing_wanted_of_the_alias_is_nothing_done():
    assert command.main_of_afmetrics(["-u", "http://127.0.0.1:1/"]) == 0


# -- in processes of their own --


ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
COLMET = [sys.executable, "-m", "colmet.facility.command"]
ALIAS = [sys.executable, "-c", "import sys; from colmet.facility import command; sys.exit(command.main_of_afmetrics())"]


def process(*argv, cwd):
    return subprocess.run(
        argv, cwd=cwd, env={**os.environ, **ENVIRONMENT},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_alias_logs_to_standard_output_in_the_old_format(tmp_path):
    done = process(*ALIAS, "-v", "-s", "-d", cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert lines
    for line in lines:
        assert re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO:colmet\.facility\.\w+:", line)


def test_the_alias_is_silent_where_all_is_well(endpoint, tmp_path):
    argv = ["--host", "-s", "-o", "-z", "salt", "-t", "x", "--url", endpoint.url]
    done = process(*ALIAS, *argv, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(endpoint.documents) == 4 + len([path for path in machine.DISKS if os.path.exists(path)])


@pytest.mark.slow
def test_debug_writes_the_files_of_old_and_sends_nothing(condor, tmp_path, monkeypatch, capfd, caplog):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(tmp_path))
    with KubernetesServer() as kubernetes:
        monkeypatch.setenv("KUBECONFIG", kubernetes.kubeconfig(tmp_path / "kubeconfig"))
        disks = len([path for path in machine.DISKS if os.path.exists(path)])
        for argv in (["-sjb", "--host", "-q", "all:", "-d", "-u", "http://127.0.0.1:1/"], ["-s", "-d"]):
            assert command.main_of_afmetrics(argv) == 0 and capfd.readouterr() == ("", "")
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert sorted(os.listdir(place)) == ["condor.json", "host.json", "jupyter-debug.json", "ssh.json"]
    for name, count in (("condor.json", 6), ("host.json", 3 + disks), ("jupyter-debug.json", 2), ("ssh.json", 2)):
        text = (place / name).read_text()
        decoder, at, found = json.JSONDecoder(), 0, []
        while at < len(text):
            document, at = decoder.raw_decode(text, at)  # nothing between two documents
            found.append(document)
        assert len(found) == count
        assert text.startswith('{\n    "token": null,\n    "kind": "')


@pytest.mark.parametrize("program", ["command.PROGRAM", "command.AFMETRICS"])
def test_only_colmet_itself_says_all_of_it(tmp_path, program):
    script = (
        "import logging; from colmet.facility import command\n"
        f"command.set_up_logging({program}, logging.DEBUG)\n"
        "for name in ('oauthlib.oauth2', 'requests_oauthlib', 'urllib3.connectionpool', 'kubernetes', 'rest'):\n"
        "    logging.getLogger(name).debug('of the library')\n"
        "for name in ('colmet.batch.slurm', '__main__'):\n"
        "    logging.getLogger(name).debug('of our own')\n"
        "logging.getLogger('requests_oauthlib').info('it refreshes')\n"
    )
    done = process(sys.executable, "-c", script, cwd=tmp_path)
    said = done.stdout + done.stderr
    assert "of the library" not in said and said.count("of our own") == 2 and "it refreshes" in said


def test_a_reader_of_the_lines_who_goes_away_is_no_traceback(tmp_path):
    script = '"$0" -m colmet.facility.command --cluster X --host --disk / --json-lines | true'
    assert not process("sh", "-c", script, sys.executable, cwd=tmp_path).stderr


@pytest.mark.parametrize("reader", ["> /dev/full", "| true"])
def test_what_cannot_be_printed_is_sent(endpoint, tmp_path, reader):
    script = f'"$0" "$@" {reader}; echo "${{PIPESTATUS[0]}}" > status'
    argv = ["--cluster", "X", "--host", "--disk", "/", "--json-lines", "--url", endpoint.url]
    done = process("bash", "-c", script, *COLMET, *argv, cwd=tmp_path)
    assert [document["kind"] for document in endpoint.documents] == ["CPU", "MEM", "NETWORK", "DISK"]
    assert (tmp_path / "status").read_text() == "1\n"
    assert done.stderr.count("\n") == 1 and "ERROR __main__: documents cannot be printed: " in done.stderr


def test_a_service_runs_again_and_again_and_ends_at_a_signal(endpoint, tmp_path):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    environment = {**os.environ, **ENVIRONMENT, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
    token = tmp_path / "token"
    token.write_text("one")
    token.chmod(0o600)
    argv = ["--cluster", "X", "--host", "--disk", "/", "--url", endpoint.url, "--token-file", str(token)]
    argv += ["--interval", "1"]
    with manager, subprocess.Popen(
        [sys.executable, "-m", "colmet.facility.command", *argv],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        said = [manager.recv(4096).decode()]
        while said.count("WATCHDOG=1") < 3 or len(endpoint.documents) < 12:
            said.append(manager.recv(4096).decode())
            if len(endpoint.documents) >= 4:
                token.write_text("two")  # it is renewed while the service runs
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
        while not said[-1].startswith("STOPPING"):
            said.append(manager.recv(4096).decode())
    assert running.returncode == 0 and (out, err) == ("", "")
    assert said[0] == "READY=1" and said[-1] == "STOPPING=1" and "STATUS=runs: 1, incomplete: 0" in said
    traffic = [document["network"] for document in endpoint.documents if document["kind"] == "NETWORK"]
    assert traffic[0]["interval"] == 0.0 and traffic[1]["interval"] > 0.5
    assert (endpoint.documents[0]["token"], endpoint.documents[-1]["token"]) == ("one", "two")


@pytest.mark.parametrize(
    ("option", "program"),
    [
        ("--ssh", "who"),
        pytest.param("--batch-system=gridengine", "qstat", marks=pytest.mark.slow),
        pytest.param("--batch-system=slurm", "squeue", marks=pytest.mark.slow),
    ],
)
def test_a_command_that_hangs_does_not_outlive_a_program_that_is_to_end(tmp_path, option, program):
    hung, script = tmp_path / "hung", tmp_path / program
    script.write_text('#!/bin/sh\necho $$ >>"$HUNG"\nexec sleep 60\n')
    script.chmod(0o755)
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HUNG": str(hung)}
    argv = ["--cluster", "X", option, "--json-lines"]
    with subprocess.Popen(
        [sys.executable, "-m", "colmet.facility.command", *argv],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        while not (hung.exists() and hung.read_text().endswith("\n")) and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode == 1
    pids = hung.read_text().split()
    assert len(pids) == 1  # no other was asked in its place
    wait_for(lambda: not lives(pids[0]), 10)


def lives(pid):
    try:
        return not re.search(r"^State:\tZ", Path(f"/proc/{pid}/status").read_text(), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return False
