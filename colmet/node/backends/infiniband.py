"""Traffic, errors and state of the node's InfiniBand, Omni-Path and RoCE ports."""

from __future__ import annotations

import argparse
import errno
import itertools
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.runtime.cli import Options, Rare
from colmet.common.runtime.configuration import require
from colmet.common.runtime.logs import OnceLog, powers_of_ten
from colmet.common.schema import Sample, Value
from colmet.common.tables.infiniband import AGENT_COUNTERS, COUNTERS, DEVICES, FULL, PORTS, SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.system.command import Command
from colmet.node.system.host import Host, is_gone
from colmet.node.system.sums import Sums

log = logging.getLogger(__name__)

DEADLINE_S = 5.0  # of ibstat and perfquery; they usually run for 10 ms
MAX_PORTS = 256
MAX_COUNT = 2**60 - 1  # times 8 it still fits a column

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_STATES = {"INITIALIZING": "INIT"}  # ibstat's name -> sysfs's, if different
_Listed = TypeVar("_Listed")
_NOT_OFFERED = (errno.EINVAL, errno.EOPNOTSUPP)  # from reading a counter that a device does not have


_DATA = {  # column of the sums -> counter of a port
    "portXmitData": "port_xmit_data",
    "portRcvData": "port_rcv_data",
    "portXmitPkts": "port_xmit_packets",
    "portRcvPkts": "port_rcv_packets",
}
_IN_WORDS = ("port_xmit_data", "port_rcv_data")
_WAYS = ("xmit", "rcv")
# If `counters` has 32 bits, drivers of that time have 64 here: kernels before 4.5, and Mellanox OFED 2 to 4.
_WIDE = {
    **{name: f"{name}_64" for name in _DATA.values()},
    **{f"{cast}_{way}_packets": f"port_{cast}_{way}_packets" for cast in ("unicast", "multicast") for way in _WAYS},
}
_EXTENDED = {  # names in perfquery -x
    **{name.replace("port", "Port"): counter for name, counter in _DATA.items()},
    "PortUnicastXmitPkts": "unicast_xmit_packets",
    "PortUnicastRcvPkts": "unicast_rcv_packets",
    "PortMulticastXmitPkts": "multicast_xmit_packets",
    "PortMulticastRcvPkts": "multicast_rcv_packets",
}
_BASIC = {  # names in perfquery, of counters missing in -x
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "PortXmitWait": "port_xmit_wait",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
}


class Port(NamedTuple):
    """A reading of one port."""

    name: str  # device and number, ``mlx5_0/1``
    labels: dict[str, str]  # state, physical_state, rate and link_layer, as far as known
    counters: dict[str, int]  # by their names in sysfs, in the port's units: data in words. Unknown ones are missing

    @property
    def is_active(self) -> bool:
        """Whether data can go through."""
        return self.labels.get("state") == "ACTIVE"


class PortSource(ABC):
    """A source of readings of ports.

    Attributes:
        failures: number of parts of ports that could not be read or parsed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.failures = 0
        self._once = OnceLog(log)

    def _bounded(self, ports: Sequence[_Listed]) -> Sequence[_Listed]:
        if len(ports) > MAX_PORTS:
            self._once.warning(
                "%d ports, and %d are measured: the others are in no row and no sum", len(ports), MAX_PORTS
            )
        return ports[:MAX_PORTS]

    def programs(self) -> Iterable[Command]:
        """Return the programs used so far."""
        return ()

    @abstractmethod
    def read(self) -> list[Port]:
        """Return all ports; none if the node has no device. A program that fails for all ports is an error."""


def parse_count(text: bytes) -> int:
    """Return one counter; ValueError if it is not a number, or beyond the reach of any port."""
    text = text.strip()
    if not text.isdigit() or len(text) > 20 or int(text) > MAX_COUNT:
        raise ValueError(f"not a counter: {text[:80]!r}")
    return int(text)


def parse_ibstat(text: str) -> list[Port]:
    """Return the ports in the output of `ibstat`: devices, and the ports of each; ValueError for another form."""
    keys = {"State": "state", "Physical state": "physical_state", "Rate": "rate", "Link layer": "link_layer"}
    ports: list[Port] = []
    device = ""
    for line in text.splitlines():
        if line.startswith("CA '"):
            device = line[4:].rstrip("'")
            if not _DEVICE.fullmatch(device):
                raise ValueError(f"not a device: {line[:80]!r}")
        elif (number := re.fullmatch(r"\s+Port (\d{1,3}):", line)) and device:
            ports.append(Port(f"{device}/{number[1]}", {}, {}))
        elif ports and ports[-1].name.startswith(f"{device}/"):
            key, _, value = line.strip().partition(": ")
            if key in keys:
                ports[-1].labels[keys[key]] = value
    for port in ports:
        state = port.labels.get("state", "").upper()
        if not state:
            raise ValueError(f"no state of port {port.name}")
        port.labels["state"] = _STATES.get(state, state)
        if re.fullmatch(r"[\d.]+", port.labels.get("rate", "")):
            port.labels["rate"] += " Gb/sec"
    if text.strip() and not device:
        raise ValueError(f"no device: {text[:80]!r}")
    return ports


def parse_perfquery(text: str, names: dict[str, str]) -> dict[str, int]:
    """Return the counters in the output of `perfquery`: a comment, then ``PortXmitData:....................648``.

    `names` has those to find, with their names in sysfs.

    Raises:
        ValueError: another form.
    """
    counters: dict[str, int] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key in names:
            try:
                counters[names[key]] = parse_count(value.lstrip(".").encode())
            except ValueError:
                raise ValueError(f"not a counter: {line[:80]!r}") from None
    if not counters:
        raise ValueError(f"no counters: {text[:80]!r}")
    return counters


class SysfsPorts(PortSource):
    """Ports in the kernel's sysfs."""

    def read(self) -> list[Port]:
        """Return all ports."""
        listed = [
            (f"{device}/{number}", f"{DEVICES}/{device}/ports/{number}")
            for device in self._host.sorted_names(DEVICES)
            for number in sorted(self._host.sorted_names(f"{DEVICES}/{device}/ports"), key=len)
        ]
        return [Port(name, self._labels(path), self._counters(path)) for name, path in self._bounded(listed)]

    def _labels(self, path: str) -> dict[str, str]:
        labels = {}
        for name in ("state", "physical_state", "rate", "link_layer"):
            file = "phys_state" if name == "physical_state" else name
            try:
                text = self._host.read(f"{path}/{file}").decode("ascii").strip()
            except OSError as err:
                if not is_gone(err):
                    self._failed(err)
            except UnicodeDecodeError as err:
                self._failed(ParseError(f"{path}/{file}", err.object[:80]))
            else:
                if name in ("state", "physical_state"):
                    if ": " not in text:  # "4: ACTIVE"
                        self._failed(ParseError(f"{path}/{file}", text))
                        continue
                    text = text.partition(": ")[2]
                labels[name] = text
        return labels

    def _counters(self, path: str) -> dict[str, int]:
        offered = self._host.sorted_names(f"{path}/counters")
        wide = self._host.sorted_names(f"{path}/counters_ext")
        counters = {}
        for field in COUNTERS:
            name = field.name
            value = None
            if _WIDE.get(name) in wide:
                value = self._counter(f"{path}/counters_ext/{_WIDE[name]}")
            elif name in offered:
                value = self._counter(f"{path}/counters/{name}")
            if value is not None:
                counters[name] = value
        return counters

    def _counter(self, file: str) -> int | None:
        try:
            data = self._host.read(file)
        except OSError as err:
            if not is_gone(err) and err.errno not in _NOT_OFFERED:
                self._failed(err)
            return None
        if data.startswith(b"N/A"):  # "N/A (no PMA)", of virtual functions
            return None
        try:
            return parse_count(data)
        except ValueError:
            self._failed(ParseError(file, data[:80]))
            return None

    def _failed(self, err: Exception) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.error("cannot read part of a port failures=%d: %s", self.failures, err)


class AskedPorts(PortSource):
    """Ports listed by `ibstat`, with the counters of `perfquery` for active ones that are not Ethernet."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._ibstat = host.command(["ibstat"], DEADLINE_S)
        self._commands: dict[str, tuple[Command, Command]] = {}

    def read(self) -> list[Port]:
        """Return all ports."""
        text = self._ibstat.run()
        try:
            ports = list(self._bounded(parse_ibstat(text)))
        except ValueError as err:
            raise ParseError("ibstat", str(err)) from err
        asked = [port for port in ports if port.is_active and port.labels.get("link_layer") != "Ethernet"]
        failed = hung = 0
        for port in asked:
            try:
                self._ask(port)
            except (CommandFailed, ParseError) as err:
                why = err.why if isinstance(err, CommandFailed) else "status"
                failed += 1
                hung += why == "late"
                # after two timeouts, the others would follow, and the sample would last minutes
                if failed == len(asked) or hung > 1 or why not in ("status", "late"):
                    raise
                self.failures += 1
                if powers_of_ten(self.failures):
                    log.error("cannot read a port port=%s failures=%d: %s", port.name, self.failures, err)
        return ports

    def programs(self) -> Iterable[Command]:
        """Return ibstat, and perfquery of each port."""
        return [self._ibstat, *itertools.chain(*list(self._commands.values()))]

    def _ask(self, port: Port) -> None:
        if port.name not in self._commands:
            device, _, number = port.name.partition("/")
            where = ["-C", device, "-P", number]
            self._commands[port.name] = (
                self._host.command(["perfquery", "-x", *where], DEADLINE_S),
                self._host.command(["perfquery", *where], DEADLINE_S),
            )
        for command, names in zip(self._commands[port.name], (_EXTENDED, _BASIC)):
            text = command.run()
            try:
                counters = parse_perfquery(text, names)
            except ValueError as err:
                raise ParseError(str(command), str(err)) from err
            lacking = [name for name, counter in names.items() if counter not in counters]
            if lacking:
                self._once.warning("perfquery does not print some counters, and they are missing: %s", lacking)
            port.counters.update(counters)


class InfinibandBackend(InputBackend):
    """One row of the node, and one for each port; a word of the ports' data counters has `word_bytes`."""

    name = "infiniband"
    schema = SCHEMA
    others = (PORTS,)
    agent_counters = AGENT_COUNTERS
    blocking = True

    def __init__(self, source: PortSource, word_bytes: int = 4) -> None:
        self._source = source
        self._word_bytes = word_bytes
        self._sums = Sums()
        self._was_active = False
        self._full: set[tuple[str, str]] = set()  # ports and counters

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare --enable-infiniband, --omnipath and --infiniband-perfquery."""
        parser.add_argument(
            "--enable-infiniband", action="store_true", help="measure InfiniBand, Omni-Path and RoCE ports"
        )
        parser.add_argument(
            "--omnipath",
            action="store_true",
            help=Rare("count data in words of 8 bytes, as Omni-Path adapters do (default: 4, as InfiniBand)"),
        )
        parser.add_argument(
            "--infiniband-perfquery",
            action="store_true",
            help=Rare(
                "run ibstat and perfquery -x instead of reading /sys/class/infiniband, for drivers with no counters, "
                "or only 32-bit ones, there"
            ),
        )
        require(parser, "--enable-infiniband", "--infiniband-", "--omnipath")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> InfinibandBackend | None:
        """Return the backend if it is turned on, else None."""
        if not options.enable_infiniband:
            return None
        source = AskedPorts(host) if options.infiniband_perfquery else SysfsPorts(host)
        return cls(source, 8 if options.omnipath else 4)

    def open(self) -> None:
        """Search ports; BackendUnavailable without any, or if the programs fail."""
        try:
            ports = self._source.read()
        except CommandFailed as err:
            remedy = {
                "absent": "; install infiniband-diags, or start without --infiniband-perfquery",
                "late": "; is the adapter's driver stuck?",
            }.get(err.why, "; does it work by hand, as root? Start without --infiniband-perfquery otherwise")
            raise BackendUnavailable(f"{err}{remedy}") from err
        if not ports:
            raise BackendUnavailable(
                "this node has no InfiniBand, Omni-Path or RoCE port; load the adapter's driver (mlx5_ib, hfi1, ...), "
                "or start without --enable-infiniband"
            )

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return one row of job 0, and one for each port."""
        ports = self._source.read()
        if not ports:
            raise BackendUnavailable("all ports have gone; has the adapter's driver been unloaded?")
        rows = []
        unknown = set()
        for port in ports:
            values: dict[str, int | None] = dict(port.counters)
            for name in _DATA.values():
                if values.get(name) == FULL:
                    values[name] = None
                    self._tell_full(port.name, name)
                    if port.is_active:
                        unknown.add(name)
                elif name in _IN_WORDS and name in port.counters:
                    values[name] = port.counters[name] * self._word_bytes
            self._was_active |= port.is_active
            self._sums.add(port.name, {name: values.get(key) for name, key in _DATA.items()}, port.is_active)
            labels = {name: text.encode("ascii", "replace") for name, text in port.labels.items()}
            rows.append(Sample(NODE_JOB, {"port": port.name.encode(), **labels, **values}, PORTS))
        sums = self._sums.totals() if self._was_active else {}
        totals: dict[str, Value] = {name: total for name, total in sums.items() if _DATA[name] not in unknown}
        return [Sample(NODE_JOB, totals), *rows]

    def _tell_full(self, port: str, counter: str) -> None:
        if (port, counter) not in self._full:
            self._full.add((port, counter))
            log.warning(
                "counter of 32 bits is full and counts no more port=%s counter=%s: reset it with 'perfquery -R', and "
                "give --infiniband-perfquery, which asks for 64 bits",
                port,
                counter,
            )

    def counters(self) -> dict[str, int]:
        """Return the number of parts of ports that could not be read or parsed."""
        return {"part_failures": self._source.failures}

    def programs(self) -> Iterable[Command]:
        """Return ibstat and perfquery, if they are used."""
        return self._source.programs()
