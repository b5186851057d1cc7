"""Power drawn by the whole node, measured by its management controller (BMC)."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.config.cli import Options, Rare
from colmet.common.errors import BackendUnavailable, ColmetError, CommandFailed, ConfigError, ParseError
from colmet.common.host.command import Command
from colmet.common.host.host import Host
from colmet.common.schema import Sample
from colmet.common.tables.power import IPMI_POWER as SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB

log = logging.getLogger(__name__)

MAX_WATTS = 1_000_000
DELL = 674  # its number as a manufacturer of BMCs, by IANA
# Known names of sensors for the power of the whole node; the first existing one is used.
SENSORS = (
    *("Pwr Consumption", "System Level", "Power Meter", "Total Power", "Total_Power", "Sys Power", "Sys_Power"),
    *("System Power", "PW Consumption", "Power_Usage", "Avg Power"),
)
_FAILURES_IN_A_ROW = 5  # then the BMC is left alone until a retry
_ANSWER_S = 10.0  # then a tool is killed
_LIST_S = 60.0  # a list of all sensors is slow, especially the first time
_SHOWN = 200  # characters shown of an answer that cannot be parsed


# Names of values in the output of freeipmi's ipmi-oem and ipmi-dcmi, and of ipmitool.
_COLUMNS = {
    "average power consumption": "average_power_consumption",
    "min power consumption": "minimum_power",
    "max power consumption": "maximum_power",
    "instantaneous power": "current_power",
    "current power": "current_power",
    "minimum power over sampling duration": "minimum_power",
    "maximum power over sampling duration": "maximum_power",
    "average power over sampling duration": "average_power_consumption",
    "instantaneous power reading": "current_power",
    "minimum during sampling period": "minimum_power",
    "maximum during sampling period": "maximum_power",
    "average power reading over sample period": "average_power_consumption",
}
_SENSOR = "sensor reading"  # ipmitool sdr get, ipmi-sensors -v
# In any other state, all values are old or void.
_STATES = {"power measurement": "active", "power reading state is": "activated"}
_NO_VALUE = frozenset({"n/a", "na", "no reading", "not available", "disabled", "unavailable"})
_NUMBER = r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?: ?\(\+/- [0-9.]+\))?"
_WATTS = re.compile(_NUMBER + r" ?(?P<unit>watts?|kw|w)", re.ASCII | re.IGNORECASE)
_BARE = re.compile(_NUMBER + r"(?: ?(?P<unit>watts?|kw|w))?", re.ASCII | re.IGNORECASE)
_MANUFACTURER = re.compile(r"^Manufacturer ID *:.*?\b([0-9]{1,8})\)?$", re.ASCII | re.MULTILINE)

Values = Mapping[str, "int | None"]


class NoPower(ColmetError):
    """An answer in a known form, without a power; the text has the reason."""


def watts(text: str, form: re.Pattern[str] = _WATTS) -> int | None:
    """Return a printed power in whole W, None for "no value"; ValueError if it is no power, or above `MAX_WATTS`."""
    text = " ".join(text.split())
    if text.lower() in _NO_VALUE:
        return None
    match = form.fullmatch(text)
    if match is None:
        raise ValueError(text)
    value = round(float(match["number"]) * (1000 if (match["unit"] or "").lower() == "kw" else 1))
    if value > MAX_WATTS:
        raise ValueError(text)
    return value


def _of_a_sensor(value: int | None) -> dict[str, int | None]:
    return {"average_power_consumption": value, "current_power": value}


def parse(text: str) -> dict[str, int | None]:
    """Return the values in a tool's output, by column; empty without power.

    Understands the output of `ipmi-oem dell`, `ipmi-dcmi`, `ipmitool dcmi`, `ipmitool sdr get`, and, for one sensor
    alone, of `ipmitool sensor reading` and `ipmi-sensors`; also a number alone.

    Raises:
        NoPower: the BMC does not measure now.
        ValueError: a value is no power, or occurs twice; the text is its line.
    """
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = " ".join(key.lower().split()), value.strip()
        if not colon:
            continue
        if value.lower() != _STATES.get(key, value.lower()):
            raise NoPower(f"the BMC says that its power measurement is {value.lower()[:_SHOWN]!r}")
        columns = _of_a_sensor(None) if key == _SENSOR else {_COLUMNS[key]: None} if key in _COLUMNS else {}
        if columns.keys() & found.keys():
            raise ValueError(f"{line.strip()} (a second value)")
        try:
            found.update(dict.fromkeys(columns, watts(value)) if columns else {})
        except ValueError:
            raise ValueError(line) from None
    if found:
        return found
    sensors = parse_sensors(text)
    if len(sensors) == 1:
        return _of_a_sensor(sensors[0].watts)
    if sensors:
        raise ValueError(f"{len(sensors)} sensors in watts")
    lines = text.strip().splitlines()
    if len(lines) != 1:
        return {}
    try:
        return _of_a_sensor(watts(lines[0].rpartition("|")[2], _BARE))
    except ValueError:
        return {}


class Sensor(NamedTuple):
    """A sensor of power, by its name in the BMC."""

    record: int  # number of its record; 0 if the tool does not print it
    name: str
    watts: int | None


def parse_sensors(text: str) -> list[Sensor]:
    """Return the sensors in watts of `ipmi-sensors` or `ipmitool sdr list`; ValueError if a reading is no power."""
    sensors = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|" if "|" in line else ",")]
        if len(cells) == 6 and cells[4] == "W" and cells[0].isascii() and cells[0].isdecimal():
            sensors.append(Sensor(int(cells[0]), cells[1], watts(f"{cells[3]} W") if cells[3] != "N/A" else None))
        elif len(cells) == 3 and cells[1].endswith("Watts"):
            sensors.append(Sensor(0, cells[0], watts(cells[1])))
    return sensors


def secrets(words: Sequence[str]) -> set[str]:
    """Return the words of a command line of freeipmi or ipmitool that are passwords or keys."""
    is_ipmitool = bool(words) and os.path.basename(words[0]) == "ipmitool"  # there -p is a port
    letters = "-P -k -y" if is_ipmitool else "-p -P -k -y"
    found = set()
    for word, following in zip(words, [*words[1:], ""]):
        name, _, value = word.partition("=")
        is_long = len(name) > 3 and ("--password".startswith(name) or "--k-g".startswith(name))
        if word in letters.split() or (is_long and not value):
            found.add(following)
        elif is_long:
            found.add(value)
        elif word[:2] in letters.split():
            found.add(word[2:])
    return found - {""}


# Remedies by the error messages of the tools; the first match is used.
_REMEDIES = {
    r"permission": "start colmet-node as root, or its container with --device /dev/ipmi0; in its unit install "
    "ipmitool, or set User=root (`systemctl edit colmet-node`), as freeipmi's programs refuse other users",
    r"password|username|user name|privilege|authentication|cipher|RAKP": "give user and password in a file that "
    "--config-file (freeipmi) or -f (ipmitool) names, in --ipmipower-cmd, and let that user log in over the network",
    r"inband|in-band|/dev/ipmi|driver": "load the kernel's driver (`modprobe -a ipmi_si ipmi_devintf`) and let the "
    "agent's user open /dev/ipmi0; if this node has no BMC, leave out --enable-ipmipower",
    r"timeout|did not end|unable to establish|hostname|connect": "see that the BMC answers at its address, to "
    "that user and password",
}
_INSTALL = "install freeipmi-tools (freeipmi) or ipmitool"
_ELSE = "name a command with --ipmipower-cmd, such as 'ipmitool sdr get NAME' of a sensor of `ipmitool sdr list full`"
_ELSE_OF_A_COMMAND = "see what the command of --ipmipower-cmd prints when root runs it in /"


class _Source(NamedTuple):
    """A command that returns the power."""

    tool: str  # freeipmi, ipmitool, or "" for another
    label: str  # of its rows
    command: Command

    def ask(self) -> Values:
        """Return its current values; CommandFailed, NoPower, or ParseError for an output in another form."""
        text = self.command.run()
        try:
            values = parse(text)
        except NoPower as err:
            raise NoPower(f"{self.command}: {err}") from None
        except ValueError as err:
            raise ParseError(str(self.command), str(err)) from err
        if not values:
            raise ParseError(str(self.command), text)
        if all(value is None for value in values.values()):
            raise NoPower(f"{self.command}: the BMC has no value of its power now")
        return values


_FAILURES = (CommandFailed, NoPower, ParseError)


class IpmipowerBackend(InputBackend):
    """One row of the BMC's measurements, read by this command; without words, by the first tool that works."""

    name = "ipmipower"
    schema = SCHEMA
    blocking = True
    capabilities = frozenset(("CAP_SYS_RAWIO",))  # freeipmi without the kernel's driver: the BMC's I/O ports, /dev/mem

    deadline_s = 6 * _ANSWER_S + 4 * _LIST_S  # of an open() that tries all; each command also has its own

    def __init__(self, host: Host, words: Sequence[str]) -> None:
        self._host = host
        self._words = words
        self._commands: dict[tuple[str, ...], Command] = {}
        self._source: _Source | None = None
        self._failures = 0
        self._errors: list[ColmetError] = []  # of an open()
        self._off: set[str] = set()  # tools that do not work

    @classmethod
    def add_options(cls, parser: Options) -> None:
        text = "measure the node's power through its BMC (freeipmi or ipmitool)"
        parser.add_argument("--enable-ipmipower", action="store_true", help=text)
        parser.add_argument(
            "--ipmipower-cmd",
            metavar="WORD",
            nargs="+",
            help=Rare(
                "command that prints the power, run without a shell; quote it as one word if it has options: "
                "--ipmipower-cmd 'ipmi-oem -h bmc ...' (default: the first tool that works)"
            ),
        )
        parser.require("--enable-ipmipower", "--ipmipower-")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> IpmipowerBackend | None:
        if not options.enable_ipmipower:
            return None
        words = options.ipmipower_cmd or []
        if len(words) == 1:
            try:
                words = shlex.split(words[0])
            except ValueError as err:
                raise ConfigError(f"--ipmipower-cmd: {words[0]!r}: {err}") from err
        if options.ipmipower_cmd and not (words and words[0]):
            raise ConfigError("--ipmipower-cmd: name a program")
        return cls(host, words)

    def open(self) -> None:
        """Find a source of the power by trying all; if none works, BackendUnavailable has the message of each tool."""
        self._errors, self._off = [], set()
        for source in self._sources():
            try:
                values = source.ask()
            except _FAILURES as err:
                self._note(err, source.tool)
                continue
            if not any(values.values()):  # usual for a BMC without a power meter
                self._errors.append(NoPower(f"{source.command}: says 0 W"))
                continue
            self._source = source
            self._failures = 0
            log.info("power of the node: source=%s command=%s", source.label, source.command)
            return
        troubles = "; ".join(map(str, self._errors))
        absent = [isinstance(err, CommandFailed) and err.why == "absent" for err in self._errors]
        remedy = _INSTALL if all(absent) and not self._words else self._remedy(*self._errors)
        raise BackendUnavailable(f"nothing says the power: {troubles}. Remedy: {remedy}")

    def sample(self, jobs: Sequence[Any]) -> Iterable[Sample]:
        """Return one row of the node; after the 5th failure in a row, the BMC is left alone until a retry."""
        assert self._source is not None
        try:
            values = self._source.ask()
        except _FAILURES as err:
            self._failures += 1
            if self._failures < _FAILURES_IN_A_ROW:
                raise
            text = f"{self._failures} failures in a row, {err}. Remedy: {self._remedy(err)}"
            raise BackendUnavailable(text) from err
        self._failures = 0
        return [Sample(NODE_JOB, {**values, "source": self._source.label.encode()})]

    def programs(self) -> Iterable[Command]:
        return list(self._commands.values())

    def close(self) -> None:
        """Forget the source; `open()` searches again."""
        self._source = None

    def _sources(self) -> Iterator[_Source]:
        """Yield possible sources of the power, in the order of the trials."""
        if self._words:
            yield _Source("", "command", self._command(self._words))
            return
        manufacturer = self._look("bmc-info", "--get-device-id")
        if manufacturer is None:
            self._off.add("freeipmi")
        # the effect of Dell's commands on other BMCs is unknown
        elif any(int(number) == DELL for number in _MANUFACTURER.findall(manufacturer)):
            yield from self._of("dell", "ipmi-oem", "dell", "power-monitoring-over-interval", "5", "systempower")
        yield from self._of("dcmi", "ipmi-dcmi", "--get-system-power-statistics")
        yield from self._of("dcmi", "ipmitool", "dcmi", "power", "reading")
        table = ("--quiet-cache", "--sdr-cache-recreate", "--comma-separated-output", "--no-header-output")
        for sensor in self._wanted(self._look("ipmi-sensors", *table, deadline_s=_LIST_S)):
            yield from self._of("sensor", "ipmi-sensors", *table, f"--record-ids={sensor.record}")
        for sensor in self._wanted(self._look("ipmitool", "sdr", "list", "full", deadline_s=_LIST_S)):
            yield from self._of("sensor", "ipmitool", "sdr", "get", sensor.name)

    def _of(self, label: str, program: str, *arguments: str, deadline_s: float = 0.0) -> Iterator[_Source]:
        """Yield the source of one of the tools' programs, unless the tool is off."""
        tool = program if program == "ipmitool" else "freeipmi"
        if tool not in self._off:
            yield _Source(tool, label, self._command([program, *arguments], deadline_s))

    def _command(self, words: Sequence[str], deadline_s: float = 0.0) -> Command:
        """Return the command of these words, always the same object: it knows its own process that has not ended."""
        key = tuple(words)
        if key not in self._commands:
            deadline_s = max(deadline_s, _ANSWER_S)
            self._commands[key] = self._host.command(words, deadline_s, hide=secrets(words))
        return self._commands[key]

    def _look(self, program: str, *arguments: str, deadline_s: float = 0.0) -> str | None:
        """Return the output of a program; None if it fails, or its tool is off."""
        for source in self._of("", program, *arguments, deadline_s=deadline_s):
            try:
                return source.command.run()
            except CommandFailed as err:
                self._note(err, source.tool)
        return None

    def _note(self, err: ColmetError, tool: str) -> None:
        self._errors.append(err)
        if isinstance(err, CommandFailed) and err.why in ("absent", "late"):
            self._off.add(tool)  # its other commands would fail, too

    def _remedy(self, *errors: ColmetError) -> str:
        # without the command lines: they may name a password file
        said = " ".join([err.text for err in errors if isinstance(err, CommandFailed) and err.why != "absent"])
        for form, remedy in _REMEDIES.items():
            if re.search(form, said, re.IGNORECASE):
                return remedy
        return _ELSE_OF_A_COMMAND if self._words else _ELSE

    def _wanted(self, listed: str | None) -> list[Sensor]:
        """Return the listed sensor of the node's power, as a list of none or one."""
        if listed is None:
            return []
        try:
            sensors = {sensor.name.lower(): sensor for sensor in parse_sensors(listed)}
        except ValueError as err:
            self._errors.append(NoPower(f"a sensor's power is {str(err)[:_SHOWN]!r}"))
            return []
        for name in SENSORS:
            if name.lower() in sensors:
                return [sensors[name.lower()]]
        there = ", ".join(sorted(sensor.name for sensor in sensors.values()))[:_SHOWN] or "none"
        self._errors.append(NoPower(f"no sensor of a known name in watts, there are: {there}"))
        return []
