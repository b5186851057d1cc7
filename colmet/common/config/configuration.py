"""The configuration file of a daemon, and changes of options while it runs, by that file and SIGHUP or by a request.

The file has every option of the command line, by its long name, in TOML. Its keys are derived from the parser of the
command line, so there is no second list of options.
"""

from __future__ import annotations

import argparse
import grp
import logging
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.daemon.logs import visible
from colmet.common.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 64 << 10
# Without meaning in a file read at each start.
_NOT_IN_FILES = frozenset({"help", "help_all", "version", "config", "check_config"})


def add_options(parser: cli.Options) -> None:
    """Declare --config and --check-config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read options from this TOML file; a line is such as sample-period = 5; the command line overrides it; "
        "SIGHUP reads it again",
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="check the options and the file of --config, and exit; makes all checks of a start without opening a "
        "socket or writing a file, as the user of the daemon's unit; status 2: the daemon would not start",
    )


class Configuration:
    """The options of a command line and of its configuration file.

    Args:
        build: makes the parser of the command line, with `add_options`.
        argv: the command line.

    Attributes:
        path: of the file; None without one.
        program: owner of the options.
        is_check: whether --check-config is given.
        names: options accepted in a file, by their names in argparse.
        vain: accepted options without an effect, each with its required one.
        ignored: unknown options, possibly those of a missing plug-in.
    """

    def __init__(self, build: Callable[[], cli.Parser], argv: Sequence[str] | None) -> None:
        self._build = build
        self.argv = tuple(sys.argv[1:] if argv is None else argv)
        parser = build()
        parser.parse_args(argv)  # answers --help, with the defaults, and reports errors
        self.names = {action.dest: name for name, action in _by_name(parser).items()}
        self._given = vars(_without_defaults(parser).parse_args(argv))
        self.path: str | None = self._given.get("config")
        self.program = parser.prog
        self.is_check = bool(self._given.get("check_config"))
        self.vain: list[tuple[str, str]] = []
        self.ignored: list[str] = list(parser.ignored)

    def read(self) -> argparse.Namespace:
        """Return all options: from the command line, else the file, else the defaults.

        Raises:
            ConfigError: the file cannot be used; the text names file and key.
        """
        parser = self._build()
        options = parser.parse_args([])
        if self.path is not None:
            vars(options).update(parse(file_text(self.path), self.path, parser))
            self.ignored += parser.ignored
        vars(options).update(self._given)
        return options

    def read_for_start(self) -> argparse.Namespace:
        """Return all options, as `read`, and check that each has an effect.

        Options of Colmet 0.6 without an effect are accepted, and listed in `vain`.

        Raises:
            ConfigError: as `read`; or an option has no effect without another one.
        """
        options = self.read()
        self.vain = check_effects(self._build(), options)
        return options


def _without_defaults(parser: cli.Parser) -> cli.Parser:
    """Return the parser; from now on only given options are in its results."""
    for action in parser.actions:
        action.default = argparse.SUPPRESS
    return parser


def parse(text: str, path: str, parser: cli.Parser) -> dict[str, Any]:
    """Return the values of the options in a configuration file, by dest; ConfigError names file and key.

    Each key is parsed as the words that it means on the command line. The parser loses its defaults.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as err:
        hint = "; texts are in quotes" if "Invalid value" in str(err) else ""
        raise ConfigError(f"{path}: not TOML: {err}{hint}") from err
    actions = _by_name(_without_defaults(parser))
    values: dict[str, Any] = {}
    for key, value in table.items():
        action = actions.get(key)
        if action is None and parser.ignores_unknown:
            parser.ignored.append(f"--{key}")
            continue
        try:
            if action is None:
                raise ValueError(_unknown(key, value, actions))
            if action.dest in values:
                raise ValueError("given twice, by two names")
            values.update(vars(parser.parse(_words(parser, action, key, value))))
        except (ValueError, cli.UsageError) as err:
            why = re.sub(r"^argument \S+: ", "", str(err))
            raise ConfigError(f"{path}: {visible(key):.100}: {why}") from err
    return values


def check_effects(parser: cli.Parser, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Check that each option that differs from its default has its required one, as declared by `Parser.require`.

    Returns:
        accepted options without an effect, as those of Colmet 0.6 are, each with its required one.

    Raises:
        ConfigError: for any other option without an effect.
    """
    vain = list(_find_vain(parser, options))
    for option, required in vain:
        if option not in parser.older:
            raise ConfigError(f"{option} has no effect without {required}: give that, too, or leave {option} out")
    return vain


def _find_vain(parser: cli.Parser, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    declared = parser.required
    for name, action in _by_name(parser).items():
        option = f"--{name}"
        prefixes = [prefix for prefix in declared if prefix.endswith("-") and option.startswith(prefix)]
        required = declared.get(option) or (declared[max(prefixes, key=len)] if prefixes else option)
        if required == option or getattr(options, parser.names[required].dest):
            continue
        default = action.default
        if isinstance(default, str) and callable(action.type):
            default = action.type(default)  # as argparse does
        if getattr(options, action.dest) != default:
            yield option, required


def _by_name(parser: cli.Parser) -> dict[str, argparse.Action]:
    return {
        name[2:]: action
        for name, action in parser.names.items()
        if name.startswith("--") and action.dest not in _NOT_IN_FILES
    }


def _unknown(key: str, value: Any, known: Mapping[str, object]) -> str:
    if isinstance(value, dict) or (type(value) is list and dict in map(type, value)):
        return "there are no sections in this file, and no dots in names; give the options by their names alone"
    if key.replace("-", "_") in _NOT_IN_FILES:
        return "only for the command line"
    return f"no such option{did_you_mean(key, known)}"


def _words(parser: cli.Parser, action: argparse.Action, name: str, value: Any) -> list[str]:
    """Return the words that mean a value on the command line; ValueError without it, as it may be secret."""
    option = f"--{name}"
    if type(value) is bool and action.nargs in (0, "?"):
        return [option] * value
    if action.nargs == 0:
        if not (parser.repeats(action) and type(value) is int and 0 <= value <= 9):
            raise ValueError("give a number from 0 to 9" if parser.repeats(action) else "give true or false")
        return [option] * value
    texts = [_text(one) for one in (value if type(value) is list and parser.repeats(action) else [value])]
    if not texts:
        raise ValueError("an empty array; leave the option out instead")
    return [option, *texts] if action.nargs == "+" else [f"{option}={text}" for text in texts]


def _text(value: Any) -> str:
    if type(value) is str and "\0" not in value:
        return value
    if type(value) in (int, float):
        return repr(value)
    raise ValueError("give a text in quotes, or a number")


def file_text(path: str) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: it cannot be read, is no regular file, is too large, or another user could have written it.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: not a regular file")
            if os.geteuid() == 0 and (status.st_uid != 0 or status.st_mode & 0o022):
                raise ConfigError(
                    f"{path}: others than root can write it, and it says what root does: chown root {path}; "
                    f"chmod go-w {path}"
                )
            data = file.read(MAX_BYTES + 1)
    except PermissionError as err:
        user, group = _user_and_group()
        raise ConfigError(
            f"{path}: user {user} cannot read it: chgrp {group} {path}; chmod g+r {path}; and let this user pass the "
            "directories above it"
        ) from err
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}:{data.count(10, 0, err.start) + 1}: not UTF-8") from err


def _user_and_group() -> tuple[str, str]:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return str(os.geteuid()), str(os.getegid())


log = logging.getLogger(__name__)

# Prepares for a new value, and returns a function that puts it into effect; raises ConfigError if impossible.
Prepare = Callable[[Any], Callable[[], None]]


def at_once(take: Callable[[Any], None]) -> Prepare:
    """Return how to change an option that accepts every value."""
    return lambda value: lambda: take(value)


class Settings:
    """The options in effect, and changes of some of them at run time.

    For the daemon's main thread.

    Args:
        options: in effect.
        configuration: source of the options; None if no file can be read again.

    Attributes:
        reloads: number of times the file was read again.
        failures: number of these with an unusable file.
    """

    def __init__(self, options: argparse.Namespace, configuration: Configuration | None = None) -> None:
        self._options = options
        self._configuration = configuration
        self._prepares: dict[str, Prepare] = {
            "verbose": at_once(lambda count: logging.getLogger().setLevel(verbosity(count)))
        }
        self.reloads = self.failures = 0

    def add(self, prepares: Mapping[str, Prepare]) -> None:
        """Declare options that can change, by their names in argparse."""
        self._prepares.update(prepares)

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command line; empty if unknown."""
        return self._configuration.argv if self._configuration is not None else ()

    def refresh(self) -> None:
        """Read the configuration again before anything has begun: all options change.

        Raises:
            ConfigError: it cannot be used.
        """
        if self._configuration is not None:
            vars(self._options).update(vars(self._configuration.read_for_start()))

    def __contains__(self, name: str) -> bool:
        return name in self._prepares

    def value(self, name: str) -> Any:
        """Return the value in effect."""
        return getattr(self._options, name)

    def change(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Put new values into effect, all or none; return those that changed, as (old, new).

        Raises:
            ConfigError: one of them cannot be; nothing has changed.
        """
        changes = {name: (self.value(name), value) for name, value in values.items() if value != self.value(name)}
        commits = []
        for name, (_, value) in changes.items():
            prepare = self._prepares.get(name)
            if prepare is None:
                raise ConfigError(f"{self._named(name)} cannot be changed while this runs")
            commits.append((name, value, prepare(value)))
        for name, value, commit in commits:
            commit()
            setattr(self._options, name, value)
        return changes

    def reload(self) -> None:
        """Read the configuration file again, on SIGHUP. An unusable one changes nothing."""
        configuration = self._configuration
        if configuration is None or configuration.path is None:
            log.info("SIGHUP: nothing to read again, there is no --config")
            return
        self.reloads += 1
        try:
            wanted = vars(configuration.read_for_start())
            others = [n for n, v in wanted.items() if n not in self._prepares and v != getattr(self._options, n, v)]
            changes = self.change({name: value for name, value in wanted.items() if name in self._prepares})
        except ConfigError as err:
            self.failures += 1
            log.error("configuration not changed failures=%d: %s", self.failures, err)
            return
        changed = [f"{self._named(name)}: {old} -> {new}" for name, (old, new) in changes.items()]
        none = "nothing takes effect before a restart" if others else "nothing has changed"
        log.info("configuration read again %s: %s", configuration.path, "; ".join(changed) or none)
        if others:
            log.warning("configuration needs a restart: %s", ", ".join(sorted(map(self._named, others))))

    def counters(self) -> dict[str, int]:
        """Return the number of times the file was read again, and those with an unusable file."""
        return {"reloads": self.reloads, "failures": self.failures}

    def _named(self, name: str) -> str:
        return self._configuration.names.get(name, name) if self._configuration is not None else name


def verbosity(count: int) -> int:
    """Return the level of the log for a number of -v: WARNING, INFO, DEBUG, as in Colmet 0.6 (30 - 10 x count)."""
    return max(logging.DEBUG, logging.WARNING - 10 * count)
