"""Tables of InfiniBand, Omni-Path and RoCE ports and of Lustre: sums, and a row for each port and mount."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, label
from colmet.common.tables import PART_FAILURES

DEVICES = "/sys/class/infiniband"
FULL = 2**32 - 1  # where 32-bit counters stop


def _all_ports(name: str, unit: str, text: str, key: str) -> Field:
    text += " All ports together: the counts of the ports active at the start, and all later counts."
    return counter(name, unit, text, f"{key} of each port")


INFINIBAND = Schema(
    "infinibandstats_default",
    "node",
    [
        _all_ports("portXmitData", "bytes", "Bytes sent.", "port_xmit_data"),
        _all_ports("portRcvData", "bytes", "Bytes received.", "port_rcv_data"),
        _all_ports("portXmitPkts", "count", "Packets sent.", "port_xmit_packets"),
        _all_ports("portRcvPkts", "count", "Packets received.", "port_rcv_packets"),
    ],
)


def _port(name: str, text: str, unit: str = "count") -> Field:
    return counter(name, unit, text, f"counters/{name} of the port")


def _error(name: str, text: str, highest: int) -> Field:
    return _port(name, f"{text} On most adapters it stops at {highest} when it gets there.")


PORT_COUNTERS = [
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
        *PORT_COUNTERS,
    ],
)

INFINIBAND_COUNTERS = (PART_FAILURES,)


_SOURCE = "llite.*.stats of the client"
# Operations on names and attributes of files, counted by every client: work of the metadata servers. Reads of extended
# attributes are not among them: clients answer most of them from their cache, one at each write.
METADATA = (
    *("open", "close", "readdir", "setattr", "truncate", "getattr", "create", "link", "unlink", "symlink", "mkdir"),
    *("rmdir", "mknod", "rename", "statfs", "setxattr", "removexattr"),
)


def _all_mounts(name: str, unit: str, text: str, line: str) -> Field:
    return counter(name, unit, f"{text}, on all mounts of --lustre-prefix.", f"{_SOURCE}, {line}")


LUSTRE = Schema(
    "lustrestats_default",
    "node",
    [
        _all_mounts("lustre_nb_read", "count", "Reads by programs", "samples of read_bytes"),
        _all_mounts("lustre_bytes_read", "bytes", "Bytes read by programs, page cache included", "read_bytes"),
        _all_mounts("lustre_nb_write", "count", "Writes by programs", "samples of write_bytes"),
        _all_mounts("lustre_bytes_write", "bytes", "Bytes written by programs", "write_bytes"),
        _all_mounts("lustre_nb_metadata", "count", "Metadata operations", f"samples of {', '.join(METADATA)}"),
    ],
)


def _data(name: str, unit: str, text: str, line: str) -> Field:
    return counter(name, unit, text, f"{_SOURCE}, {line}")


def _always(name: str, text: str) -> Field:
    """Return the declaration of an operation counted by every client: Lustre lists it after its first occurrence."""
    return _data(name, "count", f"{text} 0 while it is not listed.", f"samples of {name}")


def _sometimes(name: str, text: str, clients: str) -> Field:
    text += f" Missing before its first occurrence, or if the client does not count it ({clients} do)."
    return _data(name, "count", text, f"samples of {name}")


ALWAYS = [
    _always("ioctl", "ioctl() calls."),
    _always("open", "Files opened."),
    _always("close", "Files closed."),
    _always("mmap", "Files mapped."),
    _always("seek", "Seeks."),
    _always("fsync", "fsync() calls."),
    _always("readdir", "Reads of directories."),
    _always("setattr", "Changes of attributes: owner, mode, times, size."),
    _always("truncate", "Files truncated."),
    _always("flock", "Locks of files taken or released."),
    _always("getattr", "Reads of attributes (stat)."),
    _always("create", "Files created."),
    _always("link", "Hard links made."),
    _always("unlink", "Files removed."),
    _always("symlink", "Symbolic links made."),
    _always("mkdir", "Directories made."),
    _always("rmdir", "Directories removed."),
    _always("mknod", "Special files made; newer clients count files created here, too."),
    _always("rename", "Files and directories renamed."),
    _always("statfs", "Queries of the space of the file system (df)."),
    _always("setxattr", "Extended attributes set."),
    _always("getxattr", "Extended attributes read."),
    _always("listxattr", "Lists of extended attributes."),
    _always("removexattr", "Extended attributes removed."),
    _always("inode_permission", "Checks of permissions."),
]
SOMETIMES = [
    _sometimes("getxattr_hits", "Extended attributes found in the client's cache.", "2.5 and later"),
    _sometimes("page_fault", "Pages read for programs with mapped files.", "2.13 and later"),
    _sometimes("page_mkwrite", "Pages written by programs with mapped files.", "2.13 and later"),
    _sometimes("fallocate", "Space of files reserved or released.", "2.14 and later"),
    _sometimes("alloc_inode", "Inodes made in memory.", "older ones"),
    _sometimes("dirty_pages_hits", "Writes to dirty pages.", "older ones"),
    _sometimes("dirty_pages_misses", "Writes to other pages.", "older ones"),
    _sometimes("osc_read", "Reads sent to servers.", "older ones"),
    _sometimes("osc_write", "Writes sent to servers.", "older ones"),
]
MOUNTS = Schema(
    "lustremounts_default",
    "node",
    [
        label("mount", 64, "The client's name for the mount, scratch-ffff8803f1a2c000.", "its folder in llite"),
        label("fsname", 32, "Name of the file system, scratch.", "the same, up to the last dash"),
        label("mount_point", 255, "Mount point; missing with several mounts.", "/proc/mounts"),
        _data("nb_read", "count", "Reads by programs.", "samples of read_bytes"),
        _data("bytes_read", "bytes", "Bytes read by programs, page cache included.", "read_bytes"),
        _data("nb_write", "count", "Writes by programs.", "samples of write_bytes"),
        _data("bytes_write", "bytes", "Bytes written by programs.", "write_bytes"),
        *ALWAYS,
        *SOMETIMES,
    ],
)

LUSTRE_COUNTERS = (PART_FAILURES,)
