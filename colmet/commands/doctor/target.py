"""The examined daemon: its configuration and, if it runs, its reported state."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from colmet.common.config.cli import EXIT_CONFIG
from colmet.common.daemon.checks import Unchecked
from colmet.common.errors import ColmetError, CommandFailed, ConfigError, Unreachable
from colmet.common.host.capabilities import bits
from colmet.common.host.command import python_command, python_environment
from colmet.common.host.host import Host

if TYPE_CHECKING:
    from colmet.common.config.plugins import Backends

SIDES = ("node", "collector")
MAX_FILE_BYTES = 64 << 10
ASK_S = 10.0  # the daemon's main thread has half of it to answer
ALL = -1  # senders: those with a fast clock or another version are not among the worst
COMMAND_S = 5.0
CHECK_S = 30.0  # for --check-config, which loads all of the daemon
# Modules are imported before the change of user: this Python's may be unreadable for the daemon's user.
_CHECK = """
import json, sys
from colmet.common.host import capabilities
from colmet.{side} import main
main.load_backends()
groups, group, uid, rights = json.loads(sys.argv.pop(1))
try:
    capabilities.become(uid, group, groups, rights)
except OSError:
    sys.exit({refused})
sys.exit(main.main())
"""
_REFUSED = 77  # exit status of _CHECK, not a daemon's: the system does not permit the change of user
_LOGGED = re.compile(r"^(\S+ \S+ )?ERROR \S+: ")
_UNIT_PROPERTIES = (
    "LoadState,UnitFileState,ActiveState,SubState,Result,NRestarts,User,RuntimeDirectory,AmbientCapabilities"
)


class User(NamedTuple):
    """The user of a daemon."""

    name: str
    uid: int
    group: int  # the first one
    groups: frozenset[int]  # all of them
    reads_all: bool = False  # whether it may read every file (CAP_DAC_READ_SEARCH), as in the node's unit

    @classmethod
    def of(cls, uid: int, reads_all: bool = False) -> User:
        """Return the user with this uid, with all its groups."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(str(uid), uid, uid, frozenset(), reads_all)
        groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return cls(entry.pw_name, uid, entry.pw_gid, groups, reads_all)


class Target:
    """A daemon, "node" or "collector", and its machine.

    `supposed`: whether the command line is hypothetical, not that of a running daemon.
    """

    def __init__(
        self,
        side: str,
        host: Host,
        argv: Sequence[str] | None = None,
        control_socket: str | None = None,
        supposed: bool = False,
    ) -> None:
        self.side = side
        self.program = f"colmet-{side}"
        self.unit_name = f"{self.program}.service"
        self.host = host
        self.status: dict[str, Any] | None = None  # reported by the daemon
        self.unreachable = ""  # why it reports none
        self.denied = False  # whether this user lacks the rights to ask
        self.is_given = argv is not None  # the command line: given, rather than found
        self._argv = list(argv or ())
        self._socket = control_socket
        self.supposed = supposed

    def ask(self) -> None:
        """Ask the daemon for its state, on the default control socket or its own, unless it is hypothetical."""
        if self._socket is None and self.supposed:
            return
        if not self.is_given:
            self._ask(self._socket)
        if self.status is None:
            place = self._socket or getattr(self._parsed[0], "control_socket", None)
            if place == "":
                self.unreachable = "--control-socket is '': it cannot be asked"
            else:
                self._ask(place)

    def _ask(self, place: str | None) -> None:
        try:
            from colmet.common.daemon.control import ask
        except Exception as err:  # noqa: BLE001 - of a library that was built for another one, say
            self.unreachable = f"it cannot be asked, a module cannot be loaded: {err}"
            return
        try:
            self.status = ask(place, self.side, {"command": "status", "senders": ALL}, ASK_S)
        except Unreachable as err:
            self.unreachable, self.denied = str(err), err.why == "denied"
        except ColmetError as err:
            self.unreachable = str(err)

    @property
    def pid(self) -> int:
        """The process of the daemon; 0 if it does not answer."""
        return int(self.status["pid"]) if self.status is not None else 0

    # -- the configuration --

    @cached_property
    def argv(self) -> list[str]:
        """The command line: the given one, else the running daemon's, else its unit's."""
        if self.is_given:
            return self._argv
        if self.pid:
            running = arguments(self.host, self.pid, self.side)
            if running is not None:
                return running
        config = self.host.path(f"/etc/colmet/{self.side}.toml")
        given = ["--config", config] if os.path.exists(config) else []
        with contextlib.suppress(OSError, ValueError):  # the environment file is optional for the unit, too
            text = self.host.read_start(f"/etc/default/{self.program}", MAX_FILE_BYTES).decode()
            for line in text.splitlines():
                name, _, value = line.strip().partition("=")
                if name == "OPTIONS":
                    return given + shlex.split(" ".join(shlex.split(value)))
        return given

    @cached_property
    def _loaded(self) -> tuple[Any, Backends]:
        """The daemon's module, and the available backends with the plug-ins and their problems."""
        main = importlib.import_module(f"colmet.{self.side}.main")
        return main, main.load_backends()

    @property
    def plugins(self) -> Backends:
        """The available backends, with the plug-ins and their problems."""
        return self._loaded[1]

    @cached_property
    def damage(self) -> str:
        """Why the daemon's modules cannot be imported; "" if they can."""
        try:
            self._loaded  # noqa: B018 - kept
        except ImportError as err:
            return str(err)
        except Exception as err:  # noqa: BLE001 - of a library that was built for another one, say
            return f"{type(err).__name__}: {err}"
        return ""

    @cached_property
    def _parsed(self) -> tuple[argparse.Namespace | None, Sequence[type[Any]], str]:
        """The options, the classes of the backends, and the error in the command line or its file."""
        from colmet.common.config import configuration

        if self.damage:
            return None, [], f"it cannot be read without the modules of {self.program}"
        main, classes = self._loaded[0], self.plugins.classes
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                return configuration.Configuration(main.full_parser, self.argv).read_for_start(), classes, ""
        except ConfigError as err:
            return None, [], str(err)
        except SystemExit:
            text = said.getvalue().strip().removeprefix(f"{self.program}: error: ")
            return None, [], text or "its command line has it print something and exit"

    @property
    def options(self) -> argparse.Namespace:
        """The options of the daemon; `Unchecked` is raised if they cannot be read."""
        if self._parsed[0] is None:
            raise Unchecked("its configuration cannot be used")
        return self._parsed[0]

    @property
    def config(self) -> str:
        """The configuration file; "" without one. The other options are not shown: they may contain a password."""
        for n, word in enumerate(self.argv):
            if word.startswith("--config="):
                return word.partition("=")[2]
            if word == "--config" and n + 1 < len(self.argv):
                return self.argv[n + 1]
        return ""

    @property
    def problem(self) -> str:
        """The error in the configuration; "" if it can be read."""
        return self._parsed[2]

    def refusal(self) -> tuple[str, bool]:
        """Return why the daemon would not start with its options, "" if it would, and whether this is as its own user.

        Where the system does not permit to become its user, it is as this one.
        """
        is_own = self.user.uid == os.geteuid()
        answer = None if is_own else _check_as(self.side, self.argv, self.user)
        if answer is not None:
            return answer, True
        main, classes = self._loaded[0], self.plugins.classes
        try:
            if self.side == "node":
                main.build(self.options, classes, self.host).source.close()
            else:
                main.check(self.options, classes)
        except ConfigError as err:
            return str(err), is_own
        return "", is_own

    @cached_property
    def backends(self) -> list[Any]:
        """The enabled backends: made, not opened, and without effects on the machine."""
        options = argparse.Namespace(**vars(self.options))
        if self.side == "node":
            options.state_dir, options.perfhw_make_cgroup = "", False
        from colmet.common.config import plugins

        more = [self.host] if self.side == "node" else []
        made = [plugins.make(cls, options, *more) for cls in self._parsed[1]]
        return [backend for backend in made if backend is not None]

    # -- the machine --

    @cached_property
    def has_systemd(self) -> bool:
        """Whether systemd runs this machine's services."""
        return self.host.is_directory("/run/systemd/system")

    @cached_property
    def unit(self) -> dict[str, str]:
        """The properties of the daemon's unit; empty without systemd."""
        if not self.has_systemd:
            return {}
        command = ["systemctl", "show", self.unit_name, "--no-pager", f"--property={_UNIT_PROPERTIES}"]
        try:
            text = self.host.command(command, COMMAND_S).run()
        except CommandFailed:
            return {}
        return dict([line.partition("=")[::2] for line in text.splitlines() if "=" in line])

    @cached_property
    def user(self) -> User:
        """The user of the running daemon, or of its unit."""
        if self.pid:
            with contextlib.suppress(OSError, KeyError):  # it may just have ended
                text = self.host.read(f"/proc/{self.pid}/status").decode("ascii", "replace")
                status = dict([line.partition(":")[::2] for line in text.splitlines()])
                held = int(status.get("CapEff", "0"), 16)
                return User.of(int(status["Uid"].split()[1]), bool(held & bits(["CAP_DAC_READ_SEARCH"])))
        if self.unit.get("LoadState") == "loaded":
            name = self.unit.get("User") or "root"
            with contextlib.suppress(KeyError):
                ambient = self.unit.get("AmbientCapabilities", "")
                return User.of(pwd.getpwnam(name).pw_uid, "cap_dac_read_search" in ambient.split())
        return User.of(0 if self.denied else os.geteuid())

    @cached_property
    def runtime_directory(self) -> str:
        """The directory in /run made by the daemon's unit; "" without one."""
        if self.pid:
            with contextlib.suppress(OSError):  # it may be another user's
                entries = self.host.read(f"/proc/{self.pid}/environ").split(b"\0")
                return os.fsdecode(dict([one.partition(b"=")[::2] for one in entries]).get(b"RUNTIME_DIRECTORY", b""))
        elif self.unit.get("RuntimeDirectory"):
            return f"/run/{self.unit['RuntimeDirectory']}"
        return os.environ.get("RUNTIME_DIRECTORY", "")


def _check_as(side: str, argv: Sequence[str], user: User) -> str | None:
    """Return the error of the daemon's --check-config, run as this user; "" without one, None if this is refused."""
    kept = bits(["CAP_DAC_READ_SEARCH"] if user.reads_all else [])
    rights = json.dumps([sorted(user.groups), user.group, user.uid, kept])
    try:
        done = subprocess.run(
            python_command(_CHECK.format(side=side, refused=_REFUSED), rights, *argv, "--check-config"),
            env=python_environment(),  # the current directory is the daemon's
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as err:
        raise Unchecked(f"--check-config as user {user.name}: {err}") from err
    if done.returncode in (0, _REFUSED):
        return None if done.returncode else ""
    last = done.stderr.strip().rpartition("\n")[2]
    if done.returncode != EXIT_CONFIG:
        raise Unchecked(f"--check-config as user {user.name}: {last}")
    return _LOGGED.sub("", last).removeprefix(f"colmet-{side}: error: ")


def arguments(host: Host, pid: int, side: str) -> list[str] | None:
    """Return the arguments of a daemon of this side; None if the process is another one or has ended."""
    try:
        data = host.read_start(f"/proc/{pid}/cmdline", MAX_FILE_BYTES)
    except OSError:
        return None
    words = [os.fsdecode(word) for word in data.split(b"\0")[:-1]]
    at = 0  # index of the program, or of Python's module or script
    if words and os.path.basename(words[0]).startswith("python"):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-c", "-m"):
            at += 2 if words[at] in ("-W", "-X") else 1
        if words[at : at + 1] == ["-m"]:
            at += 1
    for word in words[at : at + 1]:
        is_it = os.path.basename(word) in (f"colmet-{side}", f"colmet.{side}.main")
        if is_it or word.endswith(f"colmet/{side}/main.py"):
            return words[at + 1 :]
    return None


def find_sides(host: Host) -> list[str]:
    """Return the daemons configured or running on this machine."""
    places = ("/etc/colmet/{0}.toml", "/run/colmet/{0}.sock", "/run/colmet/{0}/{0}.sock")
    return [side for side in SIDES if any(os.path.exists(host.path(place.format(side))) for place in places)]
