"""Traffic, errors and state of the node's InfiniBand, Omni-Path and RoCE ports."""

from __future__ import annotations

import argparse
import errno
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host, is_gone
from colmet.common.schema import Sample, Value
from colmet.common.tables.network import DEVICES, FULL, PORT_COUNTERS, PORTS
from colmet.common.tables.network import INFINIBAND as SCHEMA
from colmet.common.tables.network import INFINIBAND_COUNTERS as AGENT_COUNTERS
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.kernel.textfiles import Sums, parse_file

log = logging.getLogger(__name__)

MAX_COUNT = 2**60 - 1  # times 8 it still fits a column

_NOT_OFFERED = (errno.EINVAL, errno.EOPNOTSUPP)  # from reading a counter that a device does not have


_DATA = {  # column of the sums -> counter of a port
    "portXmitData": "port_xmit_data",
    "portRcvData": "port_rcv_data",
    "portXmitPkts": "port_xmit_packets",
    "portRcvPkts": "port_rcv_packets",
}
_IN_WORDS = ("port_xmit_data", "port_rcv_data")
_COUNTERS = [field.name for field in PORT_COUNTERS]


class Port(NamedTuple):
    """A reading of one port."""

    name: str  # device and number, ``mlx5_0/1``
    labels: dict[str, str]  # state, physical_state, rate and link_layer, as far as known
    counters: dict[str, int]  # by their names in sysfs, in the port's units: data in words. Unknown ones are missing


def parse_count(text: bytes) -> int:
    """Return one counter; ValueError if it is not a number, or beyond the reach of any port."""
    text = text.strip()
    if not text.isdigit() or len(text) > 20 or int(text) > MAX_COUNT:
        raise ValueError(f"not a counter: {text[:80]!r}")
    return int(text)


class InfinibandBackend(InputBackend):
    """One row of the node, and one for each port; a word of the ports' data counters has `word_bytes`."""

    name = "infiniband"
    schema = SCHEMA
    others = (PORTS,)
    agent_counters = AGENT_COUNTERS
    blocking = True

    def __init__(self, host: Host, word_bytes: int = 4) -> None:
        self._host = host
        self._failures = 0  # parts of ports that could not be read or parsed
        self._word_bytes = word_bytes
        self._sums = Sums()
        self._was_active = False
        self._once = OnceLog(log)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument(
            "--enable-infiniband", action="store_true", help="measure InfiniBand, Omni-Path and RoCE ports"
        )
        parser.add_argument(
            "--omnipath",
            action="store_true",
            help=Rare("count data in words of 8 bytes, as Omni-Path adapters do (default: 4, as InfiniBand)"),
        )
        parser.require("--enable-infiniband", "--omnipath")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> InfinibandBackend | None:
        if not options.enable_infiniband:
            return None
        return cls(host, 8 if options.omnipath else 4)

    def open(self) -> None:
        if not self._read():
            raise BackendUnavailable(
                "this node has no InfiniBand, Omni-Path or RoCE port; load the adapter's driver (mlx5_ib, hfi1, ...), "
                "or start without --enable-infiniband"
            )

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        ports = self._read()
        if not ports:
            raise BackendUnavailable("all ports have gone; has the adapter's driver been unloaded?")
        rows = []
        unknown = set()
        for port in ports:
            values: dict[str, int | None] = dict(port.counters)
            is_active = port.labels.get("state") == "ACTIVE"  # data can go through
            for name in _DATA.values():
                if values.get(name) == FULL:
                    values[name] = None
                    self._once.warning(
                        f"counter of 32 bits is full and counts no more port={port.name} counter={name}: reset it "
                        "with 'perfquery -R'"
                    )
                    if is_active:
                        unknown.add(name)
                elif name in _IN_WORDS and name in port.counters:
                    values[name] = port.counters[name] * self._word_bytes
            self._was_active |= is_active
            self._sums.add(port.name, {name: values.get(key) for name, key in _DATA.items()}, is_active)
            labels = {name: text.encode("ascii", "replace") for name, text in port.labels.items()}
            rows.append(Sample(NODE_JOB, {"port": port.name.encode(), **labels, **values}, PORTS))
        sums = self._sums.totals() if self._was_active else {}
        totals: dict[str, Value] = {name: total for name, total in sums.items() if _DATA[name] not in unknown}
        return [Sample(NODE_JOB, totals), *rows]

    def _read(self) -> list[Port]:
        """Return all ports; none if the node has no device."""
        listed = [
            (f"{device}/{number}", f"{DEVICES}/{device}/ports/{number}")
            for device in self._host.sorted_names(DEVICES)
            for number in sorted(self._host.sorted_names(f"{DEVICES}/{device}/ports"), key=len)
        ]
        return [Port(name, self._labels(path), self._counters(path)) for name, path in listed]

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
                labels[name] = text.rpartition(": ")[2]  # "4: ACTIVE" of the states
        return labels

    def _counters(self, path: str) -> dict[str, int]:
        offered = self._host.sorted_names(f"{path}/counters")
        read = {name: self._counter(f"{path}/counters/{name}") for name in _COUNTERS if name in offered}
        return {name: value for name, value in read.items() if value is not None}

    def _counter(self, file: str) -> int | None:
        try:
            data = self._host.read(file)
            # "N/A (no PMA)", of virtual functions
            return None if data.startswith(b"N/A") else parse_file(file, data, parse_count)
        except OSError as err:
            if not is_gone(err) and err.errno not in _NOT_OFFERED:
                self._failed(err)
        except ParseError as err:
            self._failed(err)
        return None

    def _failed(self, err: Exception) -> None:
        self._failures += 1
        if powers_of_ten(self._failures):
            log.error("cannot read part of a port failures=%d: %s", self._failures, err)

    def counters(self) -> dict[str, int]:
        return {"part_failures": self._failures}
