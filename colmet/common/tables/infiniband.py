"""Tables of InfiniBand, Omni-Path and RoCE ports: sums, and a row for each port."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, label
from colmet.common.tables.agent_counters import PART_FAILURES

DEVICES = "/sys/class/infiniband"
FULL = 2**32 - 1  # where 32-bit counters stop


def _sum(name: str, unit: str, text: str, key: str) -> Field:
    text += " All ports together: the counts of the ports active at the start, and all later counts."
    return counter(name, unit, text, f"{key} of each port")


SCHEMA = Schema(
    "infinibandstats_default",
    "node",
    [
        _sum("portXmitData", "bytes", "Bytes sent.", "port_xmit_data"),
        _sum("portRcvData", "bytes", "Bytes received.", "port_rcv_data"),
        _sum("portXmitPkts", "count", "Packets sent.", "port_xmit_packets"),
        _sum("portRcvPkts", "count", "Packets received.", "port_rcv_packets"),
    ],
)


def _port(name: str, text: str, unit: str = "count") -> Field:
    return counter(name, unit, text, f"counters/{name} of the port")


def _error(name: str, text: str, highest: int) -> Field:
    return _port(name, f"{text} On most adapters it stops at {highest} when it gets there.")


COUNTERS = [
    _port("port_xmit_data", "Bytes sent, the counter in words of 4 or, with --omnipath, of 8 bytes.", "bytes"),
    _port("port_rcv_data", "Bytes received, the counter in words of 4 or, with --omnipath, of 8 bytes.", "bytes"),
    _port("port_xmit_packets", "Packets sent."),
    _port("port_rcv_packets", "Packets received."),
    _port("unicast_xmit_packets", "Packets sent to one receiver."),
    _port("unicast_rcv_packets", "Unicast packets received."),
    _port("multicast_xmit_packets", "Packets sent to several receivers."),
    _port("multicast_rcv_packets", "Multicast packets received."),
    _error("symbol_error", "Minor link errors.", 65535),
    _error("link_error_recovery", "Recoveries of the link from an error.", 255),
    _error("link_downed", "Failures of the link without a recovery.", 255),
    _error("port_rcv_errors", "Received packets with an error.", 65535),
    _error("port_rcv_remote_physical_errors", "Received packets marked bad on their way.", 65535),
    _error("port_rcv_switch_relay_errors", "Received packets that could not be forwarded.", 65535),
    _error("port_xmit_discards", "Packets not sent as the port was down or congested.", 65535),
    _error("port_xmit_wait", "Clock ticks of the port with data that it could not send.", FULL),
    _error("port_xmit_constraint_errors", "Packets not sent as a partition or rule forbids it.", 255),
    _error("port_rcv_constraint_errors", "Packets received and dropped as a partition or rule forbids it.", 255),
    _error("local_link_integrity_errors", "Crossings of the error threshold of the local link.", 15),
    _error("excessive_buffer_overrun_errors", "Buffer overruns beyond the allowed time.", 15),
    _error("VL15_dropped", "Management packets dropped for lack of buffers.", 65535),
]
PORTS = Schema(
    "infinibandports_default",
    "node",
    [
        label("port", 80, "Device and number, mlx5_0/1.", DEVICES),
        label("state", 32, "ACTIVE, or why no data can go through: DOWN, INIT, ARMED.", "state of the port"),
        label("physical_state", 32, "LinkUp, Polling, Disabled, ...", "phys_state of the port"),
        label("rate", 48, "100 Gb/sec (4X EDR).", "rate of the port"),
        label("link_layer", 32, "InfiniBand, or Ethernet (RoCE).", "link_layer of the port"),
        *COUNTERS,
    ],
)

AGENT_COUNTERS = (PART_FAILURES,)
