"""Keys of cgroup directories, as the kernel's programs have them, and roots of jobs' directories."""

from __future__ import annotations

from typing import NamedTuple

# The numbers of enum hierarchy in lib_bpf/accounting.h; a hierarchy of cgroup v1 is named by one of its controllers.
HIERARCHIES = {
    name: number
    for number, name in enumerate(
        ("cpuset", "freezer", "memory", "devices", "pids", "cpuacct", "cpu", "blkio", "unified"), start=1
    )
}
PINS = "/sys/fs/bpf/colmet"  # programs that go on without an agent; COLMET_PINS names another directory, "" none
MAX_NAME_BYTES = 63  # of a directory in the programs' maps; a longer name is cut
MAX_HIERARCHIES = 4  # that programs follow at once


class RootDirectory(NamedTuple):
    """A directory below which the directories of jobs are made."""

    key: int  # see `directory_key`
    depth: int  # levels from it down to the directories of jobs; with `is_oar3` at most this many
    is_oar3: bool = False  # whether only names of OAR 3 are jobs'


class DirectoryName(NamedTuple):
    """A job's directory, as the kernel's programs name it."""

    root: int  # key of the root that it is below; 0 without one
    parent: str
    name: str


def directory_key(hierarchy: str, inode: int) -> int:
    """Return the key of a directory: the number of its inode, which two hierarchies may share, and its hierarchy."""
    return inode | HIERARCHIES[hierarchy] << 56


def inode_of(key: int) -> int:
    """Return the inode of a directory's key."""
    return key & (1 << 56) - 1


def hierarchy_number(key: int) -> int:
    """Return the number in `HIERARCHIES` of a directory's key."""
    return key >> 56
