from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from colmet.common.config import cli
from colmet.common.errors import BackendUnavailable, CommandFailed, ConfigError, ParseError
from colmet.common.schema import Table
from colmet.node.backends import ipmipower
from colmet.node.backends.ipmipower import SCHEMA, IpmipowerBackend, NoPower, parse, secrets

DATA = Path(__file__).parents[1] / "data/ipmi"
DELL_5S = ["ipmi-oem", "dell", "power-monitoring-over-interval", "5", "systempower"]


def recorded(name):
    return (DATA / f"{name}.txt").read_text()


def values(average=None, current=None, minimum=None, maximum=None):
    columns = ("average_power_consumption", "current_power", "minimum_power", "maximum_power")
    return {name: value for name, value in zip(columns, (average, current, minimum, maximum)) if value is not None}


ALL = values(207, 213, 180, 260)
A_SENSOR = values(240, 240)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dell-5s", values(207)),
        ("dell-60s", values(207, None, 180, 260)),
        ("ipmi-dcmi", ALL),
        ("ipmitool-dcmi", ALL),
        ("ipmi-sensors-table", A_SENSOR),
        ("ipmi-sensors-commas", A_SENSOR),
        ("ipmi-sensors-verbose", A_SENSOR),
        ("ipmitool-sdr-list", A_SENSOR),
        ("ipmitool-sdr-get", A_SENSOR),
        ("ipmitool-sensor-reading", A_SENSOR),
        ("bmc-info", {}),
    ],
)
def test_what_the_tools_printed_is_understood(name, expected):
    assert parse(recorded(name)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("207", values(207, 207)),
        ("207 W\n", values(207, 207)),
        ("Instantaneous Power : 213 W\nInstantaneous Amps  : 0.90 A\n", values(None, 213)),
        ("Average Power Consumption : N/A\n", {"average_power_consumption": None}),
        ("Average Power Consumption : 1.5 kW\n", values(1500)),
        ("Average Power Consumption : 0 W\n", values(0)),
        ("AVERAGE  power consumption:207 Watts", values(207)),
        (" Sensor Reading        : No Reading\n", {"average_power_consumption": None, "current_power": None}),
        ("Pwr Consumption  | no reading | ns", {}),
        ("", {}),
        *((text, {}) for text in ("\n \n", "no such command", "207\n208\n", "-207")),
    ],
)
def test_other_answers_are_what_they_say_and_nothing_more(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (recorded("ipmi-dcmi-off"), "not available"),
        (recorded("ipmitool-dcmi-off"), "deactivated"),
        ("Power reading state is: deactivated\nCurrent Power : 5 W\n", "deactivated"),
        ("Current Power : 5 W\nPower Measurement : Not Available\n", "not available"),
    ],
)
def test_a_bmc_that_does_not_measure_has_no_power(text, state):
    with pytest.raises(NoPower, match=f"power measurement is '{state}'"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "Average Power Consumption : 207",  # of what?
        "Average Power Consumption : 207 A",
        "Average Power Consumption : -1 W",
        "Average Power Consumption : nan W",
        "Average Power Consumption : 1e3 W",
        "Average Power Consumption : 1_000 W",
        "Average Power Consumption : 1000001 W",
        "Average Power Consumption : 1001 kW",
        "Average Power Consumption : 12345678901234567890 W",
        "Average Power Consumption : \N{ARABIC-INDIC DIGIT TWO} W",
        "Average Power Consumption :",
        "Average Power Consumption : 207 W\nAverage Power Consumption : 208 W",  # of which node?
        "Current Power : 207 W\nInstantaneous Power : 208 W",
        recorded("ipmi-sensors-commas") + "3,PSU 1,Power Supply,100.00,W,'OK'\n",
        "3,Power,Current,much,W,'OK'\n",
    ],
)
def test_an_answer_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"\S"):
        parse(text)


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("ipmi-oem -h bmc -u colmet -p hunter2 dell", {"hunter2"}),
        ("ipmi-oem -phunter2 dell", {"hunter2"}),
        ("ipmi-oem --password=hunter2 dell", {"hunter2"}),
        ("ipmi-oem --password hunter2 dell", {"hunter2"}),
        ("ipmi-oem --pass=hunter2 --k-g=key -k 0xab dell", {"hunter2", "key", "0xab"}),
        ("ipmitool -H bmc -p 623 -U colmet -P hunter2 -k key -y abcd dcmi", {"hunter2", "key", "abcd"}),
        ("/usr/bin/ipmitool -Phunter2 -p623 dcmi", {"hunter2"}),
        ("ipmitool -f /etc/colmet/password dcmi power reading", set()),
        ("ipmi-dcmi --config-file /etc/colmet/bmc.conf --privilege-level=ADMIN --get-system-power-statistics", set()),
        ("script -p", set()),
    ],
)
def test_passwords_and_keys_on_command_lines_are_known(line, secret):
    assert secrets(line.split()) == secret


class Tools:
    """A node's tools: scripts that print what the real ones did, and note how they are called."""

    def __init__(self, fake):
        self.host = fake.host
        self._fake = fake
        self._calls = fake.path / "calls"

    def has(self, name, **answers):
        """A tool: what it prints, by a word on its command line; any other word is an error of it."""
        cases = "".join(f"*{word.replace('_', '-')}*) {script};;\n" for word, script in answers.items())
        path = self._fake.write(
            f"/usr/sbin/{name}",
            f'#!/bin/sh\necho {name} "$@" >> {self._calls}\ncase "$*" in\n{cases}*) echo unknown >&2; exit 1;;\nesac\n',
        )
        path.chmod(0o755)

    def calls(self):
        found = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return found

    def backend(self, *arguments):
        parser = cli.Parser()
        IpmipowerBackend.add_options(parser)
        return IpmipowerBackend.from_options(parser.parse_args(["--enable-ipmipower", *arguments]), self.host)


def prints(name):
    return f"cat {shlex.quote(str(DATA / name))}.txt"


def says(text, status=1):
    return f"echo {shlex.quote(text)} >&2; exit {status}"


@pytest.fixture
def tools(fake):
    return Tools(fake)


@pytest.fixture
def dell(tools):
    tools.has("bmc-info", get=prints("bmc-info"))
    tools.has("ipmi-oem", dell=prints("dell-5s"))
    tools.has("ipmi-dcmi", get=prints("ipmi-dcmi"))
    tools.has("ipmi-sensors", cache=prints("ipmi-sensors-commas"))
    tools.has(
        "ipmitool", dcmi=prints("ipmitool-dcmi"), list=prints("ipmitool-sdr-list"), get=prints("ipmitool-sdr-get")
    )
    return tools


def row(backend):
    (sample,) = backend.sample([])
    assert sample.job_id == 0
    (packed,) = Table.from_samples(SCHEMA, 1, [sample]).samples()
    found = {name: value for name, value in packed.values.items() if value is not None}
    return found.pop("source").decode(), found


def opened(backend):
    backend.open()
    return backend


def test_on_a_dell_its_own_command_is_asked_as_06_did(dell, caplog):
    caplog.set_level(logging.INFO)
    backend = opened(dell.backend())
    assert dell.calls() == ["bmc-info --get-device-id", " ".join(DELL_5S)]
    assert row(backend) == ("dell", values(207))
    assert dell.calls() == [" ".join(DELL_5S)]
    assert caplog.text.count("power of the node: source=dell command=" + " ".join(DELL_5S)) == 1
    assert [(program.runs, program.killed) for program in backend.programs()] == [(1, 0), (2, 0)]


def test_a_bmc_of_another_never_sees_dells_command(dell):
    dell.has("bmc-info", get="echo 'Manufacturer ID       : Supermicro (10876)'")
    backend = opened(dell.backend())
    assert row(backend) == ("dcmi", ALL)
    assert not [call for call in dell.calls() if "dell" in call]


@pytest.mark.parametrize(
    ("broken", "expected", "asked"),
    [
        ([], ("dell", values(207)), "ipmi-oem"),
        (["ipmi-oem"], ("dcmi", ALL), "ipmi-dcmi"),
        (["ipmi-oem", "ipmi-dcmi"], ("dcmi", ALL), "ipmitool dcmi power reading"),
        (["bmc-info"], ("dcmi", ALL), "ipmitool dcmi power reading"),
        (["ipmi-oem", "ipmi-dcmi", "ipmitool"], ("sensor", A_SENSOR), "ipmi-sensors"),
    ],
)
def test_what_fails_gives_way_to_the_next(dell, broken, expected, asked):
    for name in broken:
        dell.has(name)
    backend = opened(dell.backend())
    dell.calls()
    assert row(backend) == expected
    (call,) = dell.calls()
    assert call.startswith(asked)


def test_sensors_are_asked_for_by_their_record_or_name(dell):
    for name in ("ipmi-oem", "ipmi-dcmi"):
        dell.has(name)
    dell.has("ipmitool", list=prints("ipmitool-sdr-list"), get=prints("ipmitool-sdr-get"))
    backend = opened(dell.backend())
    dell.calls()
    assert row(backend) == ("sensor", A_SENSOR)
    assert dell.calls()[0].endswith("--no-header-output --record-ids=2")
    dell.has("ipmi-sensors")
    backend = opened(dell.backend())
    dell.calls()
    assert row(backend) == ("sensor", A_SENSOR)
    assert dell.calls() == ["ipmitool sdr get Pwr Consumption"]


def test_a_source_that_says_no_power_at_all_is_not_taken(dell):
    dell.has("ipmi-oem", dell="echo 'Average Power Consumption : 0 W'")
    dell.has("ipmi-dcmi", get=prints("ipmi-dcmi-off"))
    assert row(opened(dell.backend())) == ("dcmi", ALL)
    assert dell.calls()[-1] == "ipmitool dcmi power reading"
    for name in ("ipmitool", "ipmi-sensors"):
        dell.has(name)
    with pytest.raises(BackendUnavailable, match=r"systempower: says 0 W; .*--ipmipower-cmd"):
        dell.backend().open()


@pytest.mark.parametrize(
    "words",
    [
        DELL_5S,  # as 0.6 took them
        ["/usr/sbin/ipmi-oem", *DELL_5S[1:]],
        ["ipmi-oem -h bmc1 --config-file '/etc/the bmc.conf' dell 'power-monitoring-over-interval' 5 systempower"],
    ],
)
def test_the_command_of_the_command_line_is_asked_as_it_is(dell, words):
    dell.calls()
    backend = opened(dell.backend("--ipmipower-cmd", *words))
    assert row(backend) == ("command", values(207))
    calls = dell.calls()
    assert len(calls) == 2 and calls[0] == calls[1]
    assert calls[0].endswith(" ".join(DELL_5S[1:]))


def test_no_shell_sees_the_command(dell, fake):
    dell.has("power", x="echo 207 W")
    backend = dell.backend("--ipmipower-cmd", f"power x '; touch {fake.path}/made' $HOME `id`")
    backend.open()
    assert "; touch" in dell.calls()[0] and not (fake.path / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ipmipower-cmd", "x 'y"], "No closing quotation"),
        (["--ipmipower-cmd", ""], "name a program"),
        (["--ipmipower-cmd", "", "x"], "name a program"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tools, arguments, text):
    with pytest.raises(ConfigError, match=text):
        tools.backend(*arguments)


# What the tools of Debian 12 said when it went wrong.
NO_DEVICE = "Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: No such file or directory"
NO_POWER = "dell:power-monitoring-over-interval failed: Cannot execute command. Command, or request parameter(s), "


@pytest.mark.parametrize(
    ("freeipmi", "ipmitool", "text"),
    [
        ("could not find inband device", NO_DEVICE, "modprobe -a ipmi_si ipmi_devintf"),
        ("bmc-info: password invalid", "Error: Unable to establish IPMI v2 / RMCP+ session", "and password in a file"),
        ("bmc-info: privilege level cannot be obtained for this user", "", "let that user log in"),
        ("bmc-info: connection timeout", "Error: Unable to establish IPMI v2 / RMCP+ session", "that the BMC answers"),
        ("bmc-info: permission denied", "", "start colmet-node as root"),
        (NO_POWER + "not supported in present state.", "", "name a command with --ipmipower-cmd"),
        (None, None, "install freeipmi-tools"),
        (None, NO_DEVICE, "modprobe"),
    ],
)
def test_what_is_wrong_is_reported_with_its_remedy(tools, freeipmi, ipmitool, text):
    if freeipmi is not None:
        for name in ("bmc-info", "ipmi-oem", "ipmi-dcmi", "ipmi-sensors"):
            tools.has(name, **{"": says(freeipmi)})
    if ipmitool is not None:
        tools.has("ipmitool", **{"": says(ipmitool)})
    with pytest.raises(BackendUnavailable, match="nothing says the power: ") as failed:
        tools.backend().open()
    said = str(failed.value)
    assert text in said.rpartition(" Remedy: ")[2]
    for remark in (freeipmi, ipmitool):
        assert (remark or "") in said
    assert "\n" not in said and len(said) < 2000


# ipmitool on a BMC of OpenBMC, which prints this state always.
DEACTIVATED = """
    Instantaneous power reading:                   360 Watts
    Minimum during sampling period:                360 Watts
    Maximum during sampling period:                360 Watts
    Average power reading over sample period:      360 Watts
    IPMI timestamp:                           Thu Jan  1 00:00:00 1970
    Sampling period:                          00000000 Seconds.
    Power reading state is:                   deactivated
"""


@pytest.mark.parametrize(
    ("tool", "answers", "why"),
    [
        ("ipmitool", {"dcmi": DEACTIVATED}, "the BMC says that its power measurement is 'deactivated'"),
        ("ipmitool", {"dcmi": DEACTIVATED.replace("360 W", "215,5 W")}, "reading:                   215,5 Watts'"),
        (
            "ipmitool",
            {"list": "Pwr Consumption | 5 Watts | ok\n", "get": "Sensor Reading : 5 Watts\nSensor Reading : 6 Watts\n"},
            "Sensor Reading : 6 Watts (a second value)",
        ),
        (
            "ipmi-dcmi",
            {"get": "Current Power : 0 Watts\nPower Measurement : Not Available\n"},
            "the BMC says that its power measurement is 'not available'",
        ),
    ],
)
def test_an_answer_without_power_says_why_and_a_tool_that_is_there_need_not_be_installed(tools, tool, answers, why):
    tools.has(tool, **{word: f"echo {shlex.quote(text)}" for word, text in answers.items()})
    if tool != "ipmitool":
        tools.has("bmc-info", get=prints("bmc-info"))
        tools.has("ipmi-oem", dell=says(NO_POWER))
    with pytest.raises(BackendUnavailable) as failed:
        tools.backend().open()
    assert why in str(failed.value)
    remedy = str(failed.value).rpartition(" Remedy: ")[2]
    assert "--ipmipower-cmd" in remedy and "install" not in remedy


def test_a_password_on_the_command_line_is_in_no_text(tools, caplog):
    caplog.set_level(logging.DEBUG)
    tools.has("ipmitool", **{"": says("hunter2 is not it")})
    with pytest.raises(BackendUnavailable) as failed:
        tools.backend("--ipmipower-cmd", "ipmitool -H bmc -P hunter2 dcmi power reading").open()
    assert "hunter2" not in str(failed.value) + caplog.text and "-P ***" in str(failed.value)
    tools.has("power", secret="echo 207")
    opened(tools.backend("--ipmipower-cmd", "power -p secret"))
    assert "secret" not in caplog.text and "power -p ***" in caplog.text


def test_a_command_that_prints_no_power_is_reported_with_the_remedy(tools):
    tools.has("power", **{"": "echo hello"})
    with pytest.raises(BackendUnavailable, match=r"power x: cannot parse 'hello\\n'\. Remedy: see what the command"):
        tools.backend("--ipmipower-cmd", "power", "x").open()
    for script in ("yes Average | head -c 100000", "echo Current Power: $(yes Average | head -c 100000)"):
        tools.has("power", **{"": script})
        with pytest.raises(BackendUnavailable, match="Average") as failed:
            tools.backend("--ipmipower-cmd", "power", "x").open()
        assert len(str(failed.value)) < 1000


def test_a_failure_leaves_a_row_out_and_five_in_a_row_give_the_bmc_a_rest(dell):
    backend = opened(dell.backend())
    dell.has("ipmi-oem", dell=says("ipmi-oem: BMC busy"))
    for _ in range(4):
        with pytest.raises(CommandFailed, match="BMC busy"):
            row(backend)
    dell.has("ipmi-oem", dell=prints("dell-5s"))
    assert row(backend) == ("dell", values(207))
    dell.has("ipmi-oem", dell="echo 'Average Power Consumption : lots'")
    for _ in range(4):
        with pytest.raises(ParseError, match="lots"):
            row(backend)
    with pytest.raises(BackendUnavailable, match=r"5 failures in a row, .*lots.* Remedy: "):
        row(backend)
    backend.close()
    backend.close()
    assert row(opened(backend)) == ("dcmi", ALL)


def test_a_tool_that_does_not_answer_is_killed_and_its_others_are_not_tried(dell, monkeypatch):
    monkeypatch.setattr(ipmipower, "_ANSWER_S", 0.2)
    for name in ("bmc-info", "ipmitool"):
        dell.has(name, **{"": "sleep 60"})
    backend = dell.backend()
    with pytest.raises(BackendUnavailable, match=r"did not end within 0\.2 s and was killed"):
        backend.open()
    assert dell.calls() in (
        ["bmc-info --get-device-id", "ipmitool dcmi power reading"],
        ["bmc-info --get-device-id"],
        [],
    )
    assert [(program.runs, program.killed) for program in backend.programs()] == [(1, 1), (1, 1)]


@pytest.mark.live
@pytest.mark.parametrize("ignored", [False, True])
def test_live_once_prints_the_power_also_where_who_starts_it_ignores_the_ends_of_children(ignored):
    code = "import signal, sys; from colmet.node.main import main; "
    code += f"signal.signal(signal.SIGCHLD, signal.SIG_IGN) if {ignored} else 0; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--once", "--enable-ipmipower", "--ipmipower-cmd", "echo 123 W"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"average_power_consumption +123 W", done.stdout), done.stdout
