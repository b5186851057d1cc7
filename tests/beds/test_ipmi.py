"""The power of the node from a simulated BMC, which the real freeipmi and ipmitool ask. `make test-beds` runs this."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.common.transport import Pull
from colmet.common.wire import Decoder
from colmet.node.backends import ipmipower
from colmet.node.backends.ipmipower import IpmipowerBackend, NoPower
from tests.beds.bed import Bed, eventually
from tests.support.daemons import Daemon

pytestmark = pytest.mark.live
OTHER_VENDOR = "0x00b980"
SILENT_S = 35  # three commands are killed in it
SECRET = "bed-secret"


def free_udp_port():
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Bmc(Bed):
    """The BMC, and the options that lead the tools to it."""

    def __init__(self, **environment):
        self.port = free_udp_port()
        super().__init__("ipmi", PORT=str(self.port), **environment)
        path = self.path = Path(self.directory)
        self.freeipmi = f"-h 127.0.0.1:{self.port} --config-file {path}/freeipmi.conf"
        ipmitool = f"-I lanplus -C 3 -H 127.0.0.1 -p {self.port} -U colmet -L ADMINISTRATOR"
        self.ipmitool = f"{ipmitool} -f {path}/password"
        self.wrong = {"freeipmi": f"{self.freeipmi} -p not-it", "ipmitool": f"{ipmitool} -P not-it"}

    def says(self, current, minimum, maximum, average):
        self._write("power", f"{current} {minimum} {maximum} {average} 1\n")
        return values(average, current, minimum, maximum)

    def sensor_says(self, watts):
        self._write("sensor", f"{watts // 2}\n")
        return values(watts, watts)

    def _write(self, name, text):
        (self.path / f"{name}.new").write_text(text)
        (self.path / f"{name}.new").rename(self.path / name)  # never half of it

    @contextlib.contextmanager
    def silent(self):
        pid = int((self.path / "ipmi_sim.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def values(average, current=None, minimum=None, maximum=None):
    columns = ("average_power_consumption", "current_power", "minimum_power", "maximum_power")
    return {name: n for name, n in zip(columns, (average, current, minimum, maximum)) if n is not None}


@pytest.fixture(scope="module")
def bmc(request):
    """Brings BMCs up: one of each kind, when it is first asked for."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    made = {}

    def tell(text):
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    def get(**environment):
        key = tuple(environment.items())
        if key not in made:
            made[key] = Bmc(**environment)
            made[key].up(tell)
        return made[key]

    yield get
    for one in made.values():
        one.down()


PROGRAMS = {"freeipmi": ("bmc-info", "ipmi-oem", "ipmi-dcmi", "ipmi-sensors"), "ipmitool": ("ipmitool",)}


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """Return a function that makes a backend: its tools are led to a BMC, all others fail."""
    path = os.environ["PATH"]

    def make(tools):
        for tool, programs in PROGRAMS.items():
            for program in programs:
                real = shutil.which(program, path=f"{path}:/usr/sbin")
                script = f'exec {real} {tools[tool]} "$@"' if tool in tools else "exit 1"
                (tmp_path / program).write_text(f"#!/bin/sh\n{script}\n")
                (tmp_path / program).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{path}")
        return IpmipowerBackend(Host(), ())

    return make


def led_to(bmc, *tools):
    return {tool: getattr(bmc, tool) for tool in tools}


def row(opened):
    (sample,) = opened.sample([])
    assert sample.job_id == 0
    found = {name: value for name, value in sample.values.items() if value is not None}
    return found.pop("source").decode(), found


@pytest.mark.parametrize(
    ("environment", "tools", "source", "command"),
    [
        ({}, ["freeipmi", "ipmitool"], "dell", "ipmi-oem"),
        ({"VENDOR": OTHER_VENDOR}, ["freeipmi", "ipmitool"], "dcmi", "ipmi-dcmi"),
        ({}, ["ipmitool"], "dcmi", "ipmitool"),
    ],
)
def test_the_first_that_answers_is_asked_and_says_what_the_bmc_measures(
    bmc, backend, caplog, environment, tools, source, command
):
    caplog.set_level(logging.INFO)
    one = bmc(**environment)
    opened = backend(led_to(one, *tools))
    one.says(400, 300, 500, 410)
    opened.open()
    assert re.search(rf"source={source} command={command} ", caplog.text)
    for numbers in ((213, 180, 260, 207), (333, 180, 401, 312), (65535, 1, 65535, 40000)):
        all_of_it = one.says(*numbers)
        wanted = values(all_of_it["average_power_consumption"]) if source == "dell" else all_of_it
        assert row(opened) == (source, wanted)
    opened.close()


@pytest.mark.parametrize("tool", ["freeipmi", "ipmitool"])
def test_a_bmc_that_has_a_sensor_only_is_asked_for_that(bmc, backend, tool):
    one = bmc(MODULE="0")
    opened = backend(led_to(one, tool))
    opened.open()
    for watts in (240, 300):
        wanted = ("sensor", one.sensor_says(watts))
        assert eventually(lambda wanted=wanted: row(opened) == wanted, 10), row(opened)  # it polls its file
    opened.close()


def test_a_command_of_the_command_line_is_asked_as_it_is(bmc):
    one = bmc()
    wanted = one.says(213, 180, 260, 207)
    for tail, expected in (
        ("dell power-monitoring-over-interval 5 systempower", values(207)),
        ("dell power-monitoring-over-interval 60 systempower", values(207, None, 180, 260)),
    ):
        opened = IpmipowerBackend(Host(), ["ipmi-oem", *one.freeipmi.split(), *tail.split()])
        opened.open()
        assert row(opened) == ("command", expected)
    for words in (
        ["ipmi-dcmi", *one.freeipmi.split(), "--get-system-power-statistics"],
        ["ipmitool", *one.ipmitool.split(), "dcmi", "power", "reading"],
    ):
        opened = IpmipowerBackend(Host(), words)
        opened.open()
        assert row(opened) == ("command", wanted)


@pytest.mark.parametrize("tool", ["freeipmi", "ipmitool"])
def test_a_wrong_password_is_one_clear_remark(bmc, backend, tool):
    one = bmc()
    opened = backend({tool: one.wrong[tool]})
    with pytest.raises(BackendUnavailable) as failed:
        opened.open()
    said = str(failed.value)
    assert ("password invalid" if tool == "freeipmi" else "Unable to establish IPMI v2 / RMCP+ session") in said
    assert "Remedy: " in said and "password" in said.rpartition("Remedy: ")[2]


def test_a_bmc_that_switches_its_meter_off_has_no_row_and_no_zero(bmc, backend):
    one = bmc(VENDOR=OTHER_VENDOR)
    one.says(213, 180, 260, 207)
    for tool in ("freeipmi", "ipmitool"):
        opened = backend(led_to(one, tool))
        opened.open()
        one._write("power", "0 0 0 0 0\n")
        with pytest.raises((NoPower, ParseError), match=r"not available|deactivated|cannot parse"):
            row(opened)
        one.says(213, 180, 260, 207)
        assert row(opened)[1]["current_power"] == 213


def test_a_bmc_that_does_not_answer_at_the_start_is_reported_within_the_deadlines(bmc, backend, monkeypatch):
    monkeypatch.setattr(ipmipower, "_ANSWER_S", 1)
    one = bmc()
    opened = backend(led_to(one, "freeipmi", "ipmitool"))
    begun = time.monotonic()
    with one.silent(), pytest.raises(BackendUnavailable, match=r"did not end within 1 s and was killed.*Remedy: see"):
        opened.open()
    assert time.monotonic() - begun < 10
    assert [(program.runs, program.killed) for program in opened.programs()] == [(1, 1), (1, 1)]
    opened.open()
    opened.close()


class Ticks:
    """What an agent sends, by table: times of the rows in s, and the rows."""

    def __init__(self, pull):
        self._pull = pull
        self._decoder = Decoder()
        self.tables = {}

    def take(self, seconds):
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self._pull.wait(left_s):
                (batch,) = self._decoder.decode(self._pull.receive().message).batches
                for table in batch.tables:
                    for sample in table.samples():
                        row = (batch.time_ns / 1e9, table.time_ns / 1e9, sample.values)
                        self.tables.setdefault(table.schema.name, []).append(row)
        return self.tables

    def power(self):
        return self.tables.get("ipmipowerstats_default", [])


def test_while_the_bmc_does_not_answer_the_ticks_of_the_agent_stay_on_time(bmc, tmp_path):
    one = bmc()
    one.says(213, 180, 260, 207)
    pull = Pull("tcp://127.0.0.1:*", 1000)
    ticks = Ticks(pull)
    options = ["--zeromq-uri", pull.uri, "--wire", "v1", "-s", "1"]
    options += ["--state-dir", "", "--spool-dir", ""]
    command = f"ipmi-oem {one.freeipmi} dell power-monitoring-over-interval 5 systempower"
    options += ["--enable-ipmipower", "--ipmipower-cmd", command]
    node = Daemon("colmet.node.main", tmp_path / "node.log", *options)
    try:
        node.said("source=command")
        ticks.take(4)
        before = len(ticks.power())
        assert before >= 2 and ticks.power()[-1][2]["average_power_consumption"] == 207
        with one.silent():
            silent_from = time.time()
            ticks.take(SILENT_S)
            silent_until = time.time()
        one.says(333, 180, 401, 312)
        until = time.monotonic() + 90
        while ticks.power()[-1][2]["average_power_consumption"] != 312 and time.monotonic() < until:
            ticks.take(1)
        status, _ = node.stop()
    finally:
        node.process.kill()
        node.process.communicate()
        pull.close()
    log = node.log.read_text()
    assert status == 0 and "Traceback" not in log, log
    assert ticks.power()[-1][2]["average_power_consumption"] == 312, log
    # no row is made up, and those that are sent carry the time of their measurement
    assert not [row for row in ticks.power() if silent_from + 1 < row[1] < silent_until], log
    assert all(sent - 3 < measured <= sent + 0.1 for sent, measured, _ in ticks.power()), ticks.power()
    assert "did not end within 10 s and was killed" in log
    # and no tick waited for it: a command needs 10 s, others on this machine a moment now and then
    times = [sent for sent, _, _ in ticks.tables["procstats_default"]]
    late_s = sorted(abs(after - before - 1) for before, after in zip(times, times[1:]))
    print(f"{len(times)} ticks, off 1 s by {late_s[len(late_s) // 2]:.4f} in the middle, {late_s[-1]:.4f} at most")
    assert len([at for at in times if silent_from < at < silent_until]) >= SILENT_S - 5
    assert late_s[len(late_s) // 2] < 0.1 and late_s[-1] < 5, late_s
    rows = [values for _, _, values in ticks.tables["agent_default"]]
    assert [row["overruns"] for row in rows if row["backend"] == b"agent"][-1] <= 5
    own = [row for row in rows if row["backend"] == b"ipmipower"][-1]
    # one more may fail in between, in a session of which the BMC has slept through a part
    assert own["commands_killed"] >= 2 and 0 <= own["failures"] - own["commands_killed"] <= 1, own
    assert own["left_out"] >= SILENT_S / 2
    assert SECRET not in log
