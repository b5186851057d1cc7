"""Sources of this machine: load, memory, network, disks."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.files import write_whole
from colmet.common.text import how_to_install
from colmet.facility.deadlines import Deadlines, SourceFailed
from colmet.facility.documents import Space, Traffic

log = logging.getLogger(__name__)

MTAB = "/proc/self/mounts"  # /etc/mtab is a link to it, missing on minimal systems
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MOUNTINFO = "/proc/self/mountinfo"
DISKS = ("/home", "/data", "/scratch")
MAX_AGE_S = 3600.0  # of the previous measurement
_MAX_STATE_BYTES = 4096
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Counted(NamedTuple):
    """Totals of the network interfaces at a time."""

    sent: int  # bytes
    received: int  # bytes
    timestamp: int  # milliseconds since 1970


def memory() -> tuple[int, int]:
    """Return bytes of memory, total and available without swapping; raise SourceFailed without psutil."""
    found = _psutil().virtual_memory()
    return found.total, found.available


def count_traffic() -> Counted:
    """Return the present totals of all network interfaces; raise SourceFailed without any, or without psutil."""
    counters = _psutil().net_io_counters(nowrap=False)
    if counters is None:
        raise SourceFailed("this machine has no network interface")
    return Counted(counters.bytes_sent, counters.bytes_recv, int(time.time() * 1000))


def _psutil() -> Any:
    try:
        import psutil
    except ModuleNotFoundError as err:
        raise SourceFailed(f"--host requires the Python module psutil: {how_to_install('psutil')}") from err
    return psutil


def counting() -> str:
    """Return the owner of the counters: this machine's name and boot; containers share its boot, not its name."""
    try:
        boot = Path(BOOT_ID).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return f"{socket.gethostname()} {boot}"


def parse_counted(text: bytes, of: str = "") -> Counted | None:
    """Return the content of a state file; None for another form, machine or boot.

    `of` is the owner from `counting`; afmetrics_collector's file has none.
    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or state.get("of", of) != of:
        return None
    counts = [state.get(field, -1) for field in Counted._fields]
    return Counted(*counts) if all(type(count) is int and count >= 0 for count in counts) else None  # True is no count


def since(before: Counted | None, now: Counted, max_age_s: float = MAX_AGE_S) -> Traffic | None:
    """Return the traffic between two measurements.

    None if unknown: the first measurement is missing, too old or from the future, or the counters were reset (a reboot,
    an interface removed).
    """
    if before is None or not 0 <= now.timestamp - before.timestamp <= max_age_s * 1000:
        return None
    sent, received = now.sent - before.sent, now.received - before.received
    if sent < 0 or received < 0:
        return None
    return Traffic(sent, received, (now.timestamp - before.timestamp) / 1000)


class Network:
    """Traffic since the previous measurement, kept in a file from one run to the next.

    Its form is {"sent": bytes, "received": bytes, "timestamp": milliseconds, "of": owner}.
    """

    def __init__(self, path: str, count: Callable[[], Counted] = count_traffic, max_age_s: float = MAX_AGE_S) -> None:
        self._path = Path(path)
        self._count = count
        self._max_age_s = max_age_s
        self._before: Counted | None = None
        self._of = counting()
        self.failures = 0  # failed writes of the file

    def traffic(self) -> Traffic:
        """Return the traffic since the previous measurement; zeros without one; SourceFailed without an interface.

        A state that cannot be replaced is not used: the next run would count the same bytes again.
        """
        now = self._count()
        found = self._before or self._read()
        is_kept = self._write(now)
        before = found if is_kept or self._before is not None else None
        traffic = since(before, now, self._max_age_s)
        if traffic is None:
            log.info("network counters start from now: file=%s", self._path)
        self._before = now
        return traffic or Traffic(0, 0, 0.0)

    def _read(self) -> Counted | None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            with open(descriptor, "rb") as file:
                return parse_counted(file.read(_MAX_STATE_BYTES) or b"", self._of)
        except (OSError, ValueError):
            return None  # as for the first run

    def _write(self, counted: Counted) -> bool:
        """Keep counters for the next run; return whether it succeeded."""
        text = json.dumps({**counted._asdict(), "of": self._of}).encode()
        try:
            try:
                os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
                # byte counts of a machine, visible to all of its users
                write_whole(str(self._path), text, mode=0o644, durable=False, shared=True)
            except PermissionError:
                # a file created by root for another user, in root's directory
                flags = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                with open(os.open(self._path, flags), "wb") as file:
                    file.write(text)
        except (OSError, ValueError) as err:
            self.failures += 1
            if powers_of_ten(self.failures):
                message = "network state cannot be written, runs have no traffic: file=%s: %s; set STATE_DIRECTORY"
                log.warning(message, self._path, getattr(err, "strerror", None) or err)
            return False
        return True


def parse_mounts(text: str) -> dict[str, str]:
    r"""Return devices by their mount paths, without `/dev/`, from /proc/self/mounts, with blanks as `\040`.

    Of several mounts on one path the last one, the visible one, counts.
    """
    found = {}
    for line in text.split("\n"):
        words = line.split(" ")
        if len(words) >= 2:
            device, path = map(_plain, words[:2])
            found[path] = device.replace("/dev/", "")
    return found


def parse_self_binds(text: str) -> set[str]:
    """Return paths in /proc/self/mountinfo mounted only on themselves, as /home by ProtectHome= of a unit."""
    lines = [words for line in text.split("\n") if len(words := line.split(" ")) >= 5]
    mounts = {number: (device, _plain(root), _plain(path)) for number, _, device, root, path, *_ in lines}
    self_binds: set[str] = set()
    others: set[str] = set()
    for number, above, *_ in lines:
        device, root, path = mounts[number]
        device_above, root_above, path_above = mounts.get(above, ("", "", ""))
        inside = path[len(path_above.rstrip("/")) :]  # of the mount above
        is_self_bind = device == device_above and root.rstrip("/") == root_above.rstrip("/") + inside
        (self_binds if is_self_bind else others).add(path)
    return self_binds - others


def _plain(word: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)


class Disks:
    """Space of file systems, by their mount paths or any path inside.

    A missing one is logged as a warning where they are `wanted`: named by an option.
    """

    def __init__(self, paths: Sequence[str], deadlines: Deadlines, deadline_s: float, wanted: bool = True) -> None:
        self._paths = list(dict.fromkeys(paths))
        self._deadlines = deadlines
        self._deadline_s = deadline_s
        self._level = logging.WARNING if wanted else logging.INFO
        self.missing: set[str] = set()  # paths missing at the last query

    def spaces(self) -> list[Space]:
        """Return the space of the existing ones; DisksSilent if some do not answer.

        Each missing one is logged once, when it disappears.
        """
        devices = self._devices()
        found, silent = [], []
        for path in self._paths:
            usage = partial(shutil.disk_usage, path)
            try:
                total, used, free = self._deadlines.call(f"the file system of {path}", self._deadline_s, usage)
            except SourceFailed as err:
                silent.append(str(err))
                continue
            except (OSError, ValueError) as err:
                self._miss(path, getattr(err, "strerror", None) or str(err))
                continue
            if total <= 0:
                self._miss(path, "it has no size")
                continue
            self.missing.discard(path)
            found.append(Space(path, devices.get(path), total, used, free))
        if silent:
            raise DisksSilent("; ".join(silent), found)
        return found

    def _miss(self, path: str, why: str) -> None:
        if path not in self.missing:
            log.log(self._level, "disk skipped: path=%s: %s (see --disk)", path, why)
        self.missing.add(path)

    def _devices(self) -> dict[str, str]:
        try:
            mtab, mountinfo = (Path(file).read_text(encoding="utf-8", errors="replace") for file in (MTAB, MOUNTINFO))
        except OSError as err:
            log.warning("devices are missing: file=%s: %s", err.filename, err.strerror or err)
            return {}
        none = parse_self_binds(mountinfo)
        return {path: device for path, device in parse_mounts(mtab).items() if path not in none}


class DisksSilent(SourceFailed):
    """Some file systems do not answer; the arguments are a text, and the space of the others."""
