"""Tables of Lustre: sums, and a row for each mount."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, label
from colmet.common.tables.agent_counters import PART_FAILURES

_SOURCE = "llite.*.stats of the client"
# Operations on names and attributes of files, counted by every client: work of the metadata servers. Reads of extended
# attributes are not among them: clients answer most of them from their cache, one at each write.
METADATA = (
    *("open", "close", "readdir", "setattr", "truncate", "getattr", "create", "link", "unlink", "symlink", "mkdir"),
    *("rmdir", "mknod", "rename", "statfs", "setxattr", "removexattr"),
)


def _sum(name: str, unit: str, text: str, line: str) -> Field:
    return counter(name, unit, f"{text}, on all mounts of --lustre-prefix.", f"{_SOURCE}, {line}")


SCHEMA = Schema(
    "lustrestats_default",
    "node",
    [
        _sum("lustre_nb_read", "count", "Reads by programs", "samples of read_bytes"),
        _sum("lustre_bytes_read", "bytes", "Bytes read by programs, page cache included", "read_bytes"),
        _sum("lustre_nb_write", "count", "Writes by programs", "samples of write_bytes"),
        _sum("lustre_bytes_write", "bytes", "Bytes written by programs", "write_bytes"),
        _sum("lustre_nb_metadata", "count", "Metadata operations", f"samples of {', '.join(METADATA)}"),
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

AGENT_COUNTERS = (PART_FAILURES,)
