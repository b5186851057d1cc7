"""Both daemons as processes, over a real socket."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tables

from colmet.common.errors import WireError
from colmet.common.transport import Push
from colmet.common.wire import Decoder, v1
from colmet.common.wire.colmet06 import RECORDS
from tests.support.daemons import rows_of
from tests.support.damaged_messages import GOOD, damaged
from tests.support.hdf5_files import numbers
from tests.support.place import cannot_run, machine_refusal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.live
DATA = Path(__file__).parents[1] / "data"


def test_a_program_that_hangs_is_killed_when_the_node_ends(start, uri, tmp_path, monkeypatch):
    program, pids = tmp_path / "power", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ >> {pids}\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    node = start(
        *("colmet.node.main", "--zeromq-uri", uri, "-s", "0.2", "--mapping-dir", ""),
        *("--enable-ipmipower", "--ipmipower-cmd", "power"),
    )
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    assert node.stop()[0] == 0
    # looked at as soon as the node has gone: its deadline is not over by then
    assert not Path(f"/proc/{pids.read_text().split()[-1]}").exists()


def test_a_job_that_ends_and_one_that_starts_are_reported_at_once(start, uri, cgroups):
    node = start("colmet.node.main", "--zeromq-uri", uri, "-s", "30", "--cpuset_rootpath", str(cgroups.path))
    node.said("backend on backend=procstats")
    time.sleep(0.2)
    job = cgroups.job("bob_1")
    node.said("job started job=1", timeout=20)
    job.path.rmdir()
    node.said("job ended job=1", timeout=20)
    assert node.stop()[0] == 0


@pytest.mark.parametrize(
    ("number", "when"),
    [
        pytest.param(signal.SIGTERM, "at once", marks=pytest.mark.slow),
        (signal.SIGINT, "later"),
        pytest.param(signal.SIGTERM, "later", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "at once", marks=pytest.mark.slow),
    ],
)
def test_both_end_cleanly_on_a_signal(start, start_collector, uri, number, when):
    collector = start_collector("--enable-stdout-backend")
    node = start("colmet.node.main", "--zeromq-uri", uri, "-s", "0.1", "--cpuset_rootpath", "/none")
    node.said("backend on backend=procstats")
    if when == "later":
        time.sleep(0.5)
    assert node.stop(number)[0] == 0
    assert collector.stop(number)[0] == 0
    for daemon in (node, collector):
        assert "Traceback" not in daemon.log.read_text()
        assert "stopping" in daemon.log.read_text()


def test_a_second_signal_does_not_end_a_node_before_it_has_sent(start, uri):
    from colmet.common.transport import Pull

    pull = Pull(uri, 100)  # it never acknowledges, so the node waits for a while at its end
    options = ("--zeromq-uri", uri, "--wire", "v1", "-s", "0.1", "--cpuset_rootpath", "/none")
    node = start("colmet.node.main", *options)
    assert pull.wait(20)
    node.process.terminate()
    node.said("stopping ticks=")
    assert node.stop()[0] == 0
    assert "that no collector has acknowledged, and that are lost" in node.log.read_text()
    pull.close()


def test_a_new_node_feeds_an_old_collector(start, uri):
    """What goes out with --wire colmet06 is records of 0.6 and nothing else."""
    from colmet.common.transport import Pull

    pull = Pull(uri, 100)
    node = start(
        *("colmet.node.main", "--zeromq-uri", uri, "-s", "0.1", "--wire", "colmet06", "--cpuset_rootpath", "/none"),
        *("-p", str(os.getpid()), "--enable-jobproc"),
    )
    assert pull.wait(20)
    message = pull.receive().message
    assert node.stop()[0] == 0
    assert re.search(r"WARNING \S+ collectors do not acknowledge: .* lost when", node.log.read_text())
    pull.close()
    names = []
    while message:
        name = message[:255].rstrip(b"\0").decode()
        assert message[255:510].rstrip(b"\0").decode() == socket.gethostname()
        names.append(name)
        message = message[RECORDS[name].dtype.itemsize :]
    expected = ["taskstats_default", "procstats_default", "jobprocstats_default"]
    assert names == (expected[1:] if machine_refusal() else expected)


@pytest.mark.slow
def test_nodes_of_every_dialect_share_one_port_and_bad_messages_stop_nothing(start_collector, uri):
    """10,000 random, cut, oversized, extended, spliced and flipped messages of each dialect, then good ones."""
    collector = start_collector("--enable-stdout-backend", "--stdout-format", "json")
    printed = []
    reader = threading.Thread(target=lambda: printed.extend(collector.process.stdout))
    reader.start()
    push, decoder, rng, refused = Push(uri, 100, 60_000), Decoder(), random.Random(3), 0

    def send(message):
        while not push.send(message):
            time.sleep(0.001)

    for dialect in GOOD:
        for _ in range(10_000):
            message = damaged(rng, dialect)
            try:
                decoder.decode(message)
            except WireError:
                refused += 1
            send(message)
    frames = [DATA / "colmet06/frames/mixed.bin", DATA / "colmet_rs/rust-v1.bin", DATA / "colmet_rs/rust-v0.bin"]
    for frame in frames:
        send(frame.read_bytes())
    send(v1.encode(numbers(1, 1, host="the-last")[0]))  # a node has a connection of its own, and may be read before
    push.close()
    node = [sys.executable, "-m", "colmet.node.main", "--zeromq-uri", uri, "-s", "0.1", "--cpuset_rootpath", "/none"]
    node += ["--state-dir", "", "--spool-dir", ""]
    with subprocess.Popen(node, stderr=subprocess.DEVNULL) as process:
        for host in (socket.gethostname(), "the-last"):
            wait_for(lambda: any(f'"hostname":"{host}"' in line for line in list(printed)), timeout_s=60)  # noqa: B023
        process.terminate()
    collector.process.terminate()
    reader.join(timeout=30)
    assert collector.process.wait(timeout=30) == 0
    assert refused > 15_000
    assert re.search(rf"sender \[127\.0\.0\.1\] .* refused={refused} ", collector.log.read_text())
    rows = [json.loads(line) for line in printed]
    good = [(row["hostname"], row["metric_backend"]) for row in rows[-2000:]]
    for expected in (("dahu-7", "taskstats_default"), ("dahu-3", "memory_default"), ("dahu-3", "cpu_default")):
        assert expected in good
    assert "Traceback" not in collector.log.read_text()


@pytest.mark.slow
def test_sighup_starts_the_next_file_and_loses_nothing(start_collector, uri, tmp_path):
    collector = start_collector("--hdf5-filepath", str(tmp_path / "colmet"))
    (first,) = tmp_path.glob("colmet.*.hdf5")
    assert re.fullmatch(r"colmet\.\d{10}\.hdf5", first.name)
    (batch,) = Decoder().decode((DATA / "colmet06/frames/taskstats.bin").read_bytes()).batches
    push = Push(uri, 1000, 5000)

    def send(*numbers):
        for seq in numbers:
            message = v1.encode(batch._replace(epoch=1, seq=seq))
            wait_for(lambda message=message: push.send(message))

    def stored():
        count = 0
        for path in tmp_path.glob("colmet.*.hdf5"):
            try:
                with tables.open_file(str(path)) as file:
                    count += sum(table.nrows for table in file.walk_nodes("/", "Table"))
            except tables.HDF5ExtError:
                return None  # in the middle of a burst
        return count

    send(*range(1, 11))
    wait_for(lambda: stored() == 10)
    time.sleep(1.1)  # the next second has another name
    collector.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(list(tmp_path.glob("colmet.*.hdf5"))) == 2)
    send(*range(11, 16))
    wait_for(lambda: stored() == 15)
    push.close()
    assert collector.stop()[0] == 0
    counts = []
    for path in sorted(tmp_path.glob("colmet.*.hdf5")):
        with tables.open_file(str(path)) as file:
            counts.append(file.get_node("/job_4242/taskstats_default").nrows)
    assert counts == [10, 5]


def test_without_root_the_node_says_what_it_lacks_and_measures_the_rest(start_collector, uri, root, tmp_path):
    collector = start_collector("--enable-stdout-backend", "--stdout-format", "json")
    lines, tables_wanted = [], {"procstats_default", "agent_default", "completeness_default"}
    reader = threading.Thread(target=lambda: lines.extend(collector.process.stdout))
    reader.start()
    code = (
        "import locale, os, sys, colmet.node.jobs.watches\nimport colmet.node.main as main\n"
        "from colmet.common.daemon import startup\n"
        "from colmet.node.backends import NAMES\nstartup.load(NAMES)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"sys.exit(main.main(['-s', '0.2', '--zeromq-uri', {uri!r}, '--cpuset_rootpath', '/none', '--spool-dir', '']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as node:
        try:
            wait_for(lambda: {row["metric_backend"] for row in rows_of("".join(lines))} >= tables_wanted)
        finally:
            node.terminate()
        _, said = node.communicate(timeout=60)
    assert node.returncode == 0, said
    assert said.count("needs CAP_NET_ADMIN") == 1
    collector.process.terminate()
    reader.join()
    rows = rows_of("".join(lines))
    # a busy machine skips ticks: gaps_default has these
    assert {row["metric_backend"] for row in rows} - {"gaps_default"} == tables_wanted
    own = {row["backend"]: row["is_on"] for row in rows if row["metric_backend"] == "agent_default"}
    assert own == {"agent": 1, "taskstats": 0, "cgroup": 1, "procstats": 1, "jobproc": 1}


def test_the_installed_commands_exist():
    """`make venv` installs them; the tests otherwise start the modules."""
    for name in ("colmet-node", "colmet-collector"):
        path = Path(sys.executable).parent / name
        if not path.exists():
            cannot_run("Colmet is not installed in this Python environment: make venv")
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(name)
