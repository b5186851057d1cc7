"""The JSON interface of a running collector: schemathesis on its description, and wrk, a load tool, while nodes
send."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from colmet.common.transport import Push
from colmet.web.credentials import Credential
from tests.support.daemons import Daemon
from tests.support.place import cannot_run
from tests.support.waiting import free_port
from tests.support.web_nodes import Cluster
from tests.support.web_schema import PATIENCE, report_of, schemathesis, texts_of
from tests.support.web_users import cheap

COMMON = Path(__file__).with_name("common.sh")
NODES, JOBS = 100, 100
TICK_S = 1.0  # sooner than nodes do, so that there is something to measure
ROUND_S = 2
ROUNDS, MOST_ROUNDS = 4, 16  # of each kind; more where the machine's other work disturbs
EXAMPLES = int(os.environ.get("COLMET_HTTP_EXAMPLES", "3"))  # of each route; more take longer
PATHS = (
    "/api/v1/cluster",
    "/api/v1/jobs?limit=100",
    "/api/v1/nodes?limit=500",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/series?metric=cgroup_default.cpu_usage&rate=true&source=memory",
    "/api/v1/nodes/n1/series?metric=procstats_default.loadavg_1min&source=memory",
    "/qhost",
    "/qstat",
)
LUA = """
local paths = {%s}
local n = 0
request = function()
  n = n + 1
  return wrk.format("GET", paths[n %% #paths + 1])
end
"""


@pytest.fixture(scope="module")
def wrk():
    done = subprocess.run(["bash", "-c", '. "$0"; install_packages wrk', str(COMMON)], check=False)
    if done.returncode or shutil.which("wrk") is None:
        cannot_run("this needs the package wrk")


class Nodes:
    """A cluster that sends at its pace in a thread of its own; `late_s` is by how much it fell behind at most."""

    def __init__(self, uri):
        self.cluster = Cluster(NODES, JOBS, period=TICK_S, start=time.time(), epoch=time.time_ns())
        self.sent = 0
        self.late_s = 0.0
        self._push = Push(uri, 10_000, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        due = time.monotonic()
        while not self._stop.is_set():
            messages = self.cluster.messages()
            for n, message in enumerate(messages):
                at = due + n * TICK_S / len(messages)
                self._stop.wait(max(0.0, at - time.monotonic()))
                self.late_s = max(self.late_s, time.monotonic() - at)
                while not self._push.send(message):
                    time.sleep(0.001)
                self.sent += 1
                if self._stop.is_set():
                    break
            due += TICK_S

    def close(self):
        self._stop.set()
        self._thread.join()
        self._push.close()


class Interface:
    """A collector with the interface, and nodes that send to it."""

    def __init__(self, directory):
        users = directory / "users"
        lines = [Credential("alice", cheap("a")), Credential("root", cheap("r"), frozenset({"admin"}))]
        users.write_text("".join(f"{line.text()}\n" for line in lines))
        users.chmod(0o600)
        uri, self.port = f"tcp://127.0.0.1:{free_port()}", free_port()
        options = ["--zeromq-bind-uri", uri, "--control-socket", ""]
        options += ["--hdf5-filepath", str(directory / "stored")]
        options += ["--http-listen", str(self.port), "--http-users", str(users)]
        self.daemon = Daemon("colmet.collector.main", directory / "log", *options)
        self.daemon.said("listening")
        self.nodes = Nodes(uri)
        self.wait_for(lambda: self.ask("/api/v1/cluster")["nodes"]["heard"] == NODES)
        self.wait_for(lambda: self.ask("/api/v1/jobs?limit=1&user=alice")["items"][0]["cpu"])

    def ask(self, path, login="root:r"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait_for(self, condition, seconds=90):
        end = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (OSError, IndexError):  # it is about to start
                pass
            assert time.monotonic() < end, self.daemon.log.read_text()
            time.sleep(0.1)

    def cpu_s(self):
        """CPU time of the collector, without its children."""
        return time.clock_gettime((~self.daemon.process.pid << 3) | 2)  # clock_getcpuclockid(3)

    def close(self):
        self.nodes.close()
        return self.daemon.stop()


@pytest.fixture(scope="module")
def interface(tmp_path_factory):
    one = Interface(tmp_path_factory.mktemp("interface"))
    yield one
    status, _ = one.close()
    assert status == 0


def load(interface, directory, login, job, connections=32):
    """Have wrk ask all that it can for a round; what it says."""
    paths = ", ".join([f'"{path.format(job=job)}"' for path in PATHS])
    (directory / "paths.lua").write_text(LUA % paths)
    header = "Authorization: Basic " + base64.b64encode(login.encode()).decode()
    command = [
        "wrk",
        "-t",
        "1",
        "-c",
        str(connections),
        "-d",
        f"{ROUND_S}s",
        "-H",
        header,
        "--latency",
        "--timeout",
        "30",
    ]
    command += ["-s", str(directory / "paths.lua"), f"http://127.0.0.1:{interface.port}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def counts(interface):
    return interface.ask("/api/v1/status")["counts"]


@pytest.mark.slow
@pytest.mark.parametrize("login", ["alice:a", "root:r"])
def test_no_request_made_of_the_description_fails_and_none_discloses_others(interface, tmp_path, login):
    """As alice, nothing of all that comes back names another user or another user's job."""
    report = tmp_path / "report.har"
    command = [schemathesis(), "run", f"http://127.0.0.1:{interface.port}/openapi.json", "--auth", login]
    command += ["--checks", "all", "--exclude-checks", "ignored_auth", "--max-examples", str(EXAMPLES), "--no-color"]
    command += ["--phases", "examples,fuzzing", "--no-shrink", "--generation-database", "none"]
    command += ["--continue-on-failure", *PATIENCE, *report_of(report)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    texts = list(texts_of(report))
    assert len(texts) > 20
    if login.startswith("alice"):
        others = {job for jobs in interface.nodes.cluster.on.values() for job in jobs if Cluster.user(job) != "alice"}
        for text in texts:
            assert not re.search(r'"(bob|carol|dave)"', text), text[:2000]
            assert not {int(job) for job in re.findall(r'"job":(\d+)', text)} & others, text[:2000]
    found = counts(interface)
    assert found["requests_5xx"] == found["defects"] == 0


@pytest.fixture
def other(tmp_path):
    """An interface of another collector, whose nodes have sent what it has to show, and send no more."""
    one = Interface(tmp_path)
    one.nodes.close()
    yield one
    assert one.daemon.stop()[0] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("wrk")
def test_ingest_is_not_slowed_by_more_than_a_tenth_while_a_load_tool_asks(interface, other, tmp_path, capsys):
    """CPU time of the collector for a message, in turns while it and while another is asked, and that messages are
    taken in time.

    Both ways the same programs compute beside it: what they take from it by sharing CPUs and caches is not compared.
    """
    spent, said = {interface: [], other: []}, []
    jobs = {one: one.ask("/api/v1/jobs?limit=1&user=alice")["items"][0]["job"] for one in spent}

    def ratio():
        return statistics.median(spent[interface]) / statistics.median(spent[other])

    for n in range(MOST_ROUNDS):
        login = ("root:r", "alice:a")[n % 2]
        for asked in (interface, other) if n % 2 else (other, interface):
            before, sent = interface.cpu_s(), interface.nodes.sent
            said.append(load(asked, tmp_path, login, jobs[asked]))
            spent[asked].append(1000 * (interface.cpu_s() - before) / (interface.nodes.sent - sent))
        if n + 1 >= ROUNDS and ratio() < 1.1:
            break
    found = counts(interface)
    messages = interface.ask("/api/v1/cluster")["messages"]
    with capsys.disabled():
        shown = " quiet ".join([" ".join([f"{ms:.3f}" for ms in some]) for some in spent.values()])
        print(f"\ncollector, ms a message: loaded {shown}, ratio {ratio():.3f}, {messages}, {found}")
        print("\n".join(said))
    assert ratio() < 1.1
    assert found["requests_5xx"] == found["defects"] == 0
    assert found["requests_2xx"] > 100
    for text in said:
        assert "Socket errors" not in text, text
    # what was sent has come: the collector did not fall behind by more than a tick
    sent = interface.nodes.sent
    interface.wait_for(lambda: interface.ask("/api/v1/cluster")["messages"]["taken"] >= sent, TICK_S * 5)
    assert interface.ask("/api/v1/cluster")["messages"]["left_out"] == 0
