"""Colmet's programs beside a batch system: what they tell of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request

from tests.beds.bed import eventually
from tests.support.daemons import Daemon
from tests.support.waiting import free_port

CLUSTER = "bed"
ANSWER_S = 10  # a slower answer hangs


def run(module, *arguments):
    """What a program prints, and what it says on standard error."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def documents(system):
    """What colmet-facility reports of a batch system, whose commands are on PATH: of its queues, and of its jobs.

    Returns:
        Name of the queue -> its document, and id of the job -> its document; all without the fields that every
        document has, which are looked at here.
    """
    options = ("--cluster", CLUSTER, "--batch-system", system, "--json-lines")
    out, said = run("colmet.facility.command", *options)
    assert said == ""
    queues, jobs = {}, {}
    for document in [json.loads(line) for line in out.splitlines()]:
        common = [document.pop(name) for name in list(document)[:3]]
        if common == [None, "condorqueue", CLUSTER]:
            into, key = queues, document.pop("queue")
        else:
            assert common == [None, "condorjob", CLUSTER]
            into, key = jobs, document.pop("Id")
        assert key not in into
        into[key] = document
    return queues, jobs


def cpus_of(text):
    """Numbers of a list such as 0,2-3."""
    numbers = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


class Interface:
    """The JSON interface of a running collector.

    Args:
        port: of this machine.
    """

    def __init__(self, port):
        self.place = f"127.0.0.1:{port}"

    def is_there(self):
        """Whether it listens; it begins after the collector."""
        with contextlib.suppress(OSError):
            return self.ask("/api/v1/whoami")["admin"]
        return False

    def ask(self, path):
        with urllib.request.urlopen(f"http://{self.place}{path}", timeout=ANSWER_S) as response:
            assert response.status == 200
            return json.load(response)

    def success(self):
        """Whether /qhost and /qstat have data; both or none."""
        answers = [self.ask("/qhost"), self.ask("/qstat")]
        for name, answer in zip(("qhost", "qstat"), answers):
            if not answer["success"]:
                assert answer == {"success": False, "message": f"No data for {name}", "data": {}}
        return answers[0]["success"] and answers[1]["success"]

    def data(self, name):
        """Of /qhost or /qstat, once all of the envelope has been looked at."""
        answer = self.ask(f"/{name}")
        assert list(answer) == ["success", "message", "data"]
        assert (answer["success"], answer["message"]) == (True, "")
        return answer["data"]

    def mem(self, *options):
        """What `colmet mem` prints and says."""
        return run("colmet.commands.colmet", "mem", f"http://{self.place}", *options)

    def qmemview(self, *options):
        """What `qmemview` prints and says."""
        return run("colmet.gridengine.qmemview", self.place, *options)


@contextlib.contextmanager
def serving(log, *options):
    """A collector with such options and the interface."""
    port = free_port()
    own = ("--zeromq-bind-uri", f"tcp://127.0.0.1:{free_port()}", "--control-socket", "", "--journal-dir", "")
    shown = ("--enable-stdout-backend", "--http-listen", str(port), "--http-open")
    daemon = Daemon("colmet.collector.main", log, *own, *shown, *options)
    try:
        daemon.said("listening")
        interface = Interface(port)
        interface.log = log
        assert eventually(interface.is_there), log.read_text()
        yield interface
        status, _ = daemon.stop()
        assert status == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        daemon.process.kill()
        daemon.process.communicate()
