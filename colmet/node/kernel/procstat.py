"""The fields of /proc/<pid>/stat needed for the accounting of tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from colmet.common.errors import ParseError
from colmet.common.host.host import Host, is_gone
from colmet.common.host.processes import NoAnswer, Question

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_EXITING = 0x4  # PF_EXITING


class Stat(NamedTuple):
    """A process, or a thread of it."""

    parent: int  # its parent process
    is_ending: bool  # whether the kernel is removing it
    charged_ns: int  # CPU time of the children it has waited for, and of theirs
    began_ns: int  # its start, since boot


def parse_stat(data: bytes) -> Stat:
    """Return the fields of /proc/<pid>/stat; ValueError or IndexError for another form."""
    fields = data[data.rfind(b")") + 1 :].split()  # a name may contain anything
    charged = int(fields[13]) + int(fields[14])
    return Stat(int(fields[1]), bool(int(fields[6]) & _EXITING), charged * _TICK_NS, int(fields[19]) * _TICK_NS)


def ask_stats(host: Host, asked: Iterable[tuple[int, str]]) -> list[Stat | NoAnswer | None]:
    """Return the stat of processes or threads, each given by number and party (`Question`); None for ended ones.

    Raises:
        OSError: it cannot be read, though it has not ended.
        ParseError: another form.
    """
    answers = host.processes.ask([Question(pid, party, partial(_read, host, pid)) for pid, party in asked])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _read(host: Host, pid: int) -> Stat | None:
    path = f"/proc/{pid}/stat"
    try:
        data = host.read(path)
    except OSError as err:
        if not is_gone(err):
            raise
        return None
    try:
        return parse_stat(data)
    except (ValueError, IndexError) as err:
        raise ParseError(path, data[:80]) from err
