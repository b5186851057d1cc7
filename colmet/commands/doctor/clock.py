"""Checks of the clock: rows carry the time of the measuring machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import NamedTuple

from colmet.commands.doctor.target import Target
from colmet.common.runtime.checks import Finding, good, warn
from colmet.common.runtime.plural import some_of

MAX_AHEAD_S = 1.0
MAX_NAMED = 5
_UNSYNCHRONISED = 0x40  # STA_UNSYNC, include/uapi/linux/timex.h


class KernelClock(NamedTuple):
    """The state of the kernel's clock."""

    synchronised: bool  # whether a service such as NTP disciplines it
    max_error_s: float  # the kernel's bound of the error


class _Timex(ctypes.Structure):
    """The required fields of struct timex, with room for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def read_clock() -> KernelClock:
    """Return the answer of adjtimex(2) without a change of the clock.

    Raises:
        OSError: the system call does not exist, or is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    timex = _Timex()
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "adjtimex")
    return KernelClock(not timex.status & _UNSYNCHRONISED, timex.maxerror / 1e6)


def check_clock(target: Target) -> Iterator[Finding]:
    """Check that the clock is synchronised and, on a collector, that no node's clock is ahead of it."""
    clock = read_clock()
    if clock.synchronised:
        yield good(f"synchronised, wrong by at most {clock.max_error_s:.3g} s")
    else:
        yield warn(
            "the kernel's clock is not synchronised: times of different machines do not fit together",
            "`timedatectl set-ntp true`, or install chrony and see `chronyc tracking`; the host of a virtual machine "
            "may keep it right in its place",
        )
    if target.side == "collector" and target.status is not None:
        ahead = {
            one["name"]: -one["lag_s"]
            for one in target.senders
            if one["batches"] and one["lag_s"] is not None and one["lag_s"] < -MAX_AHEAD_S
        }
        if ahead:
            named = [f"{name} by {seconds:.1f} s" for name, seconds in ahead.items()]
            yield warn(
                f"clocks of nodes are ahead of this one: {some_of(named, MAX_NAMED)}",
                "on these nodes, or here, whichever is wrong: `chronyc makestep` or `timedatectl set-ntp true`",
            )
