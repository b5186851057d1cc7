"""The configuration file of a daemon: every option of its command line, by its long name, in TOML.

Its keys are derived from the parser of the command line, so there is no second list of options.
"""

from __future__ import annotations

import argparse
import grp
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from colmet.common.errors import ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.suggestions import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 64 << 10
_MARK = "colmet-here"
_MAX_PLACES = 20  # bound on candidate lines of a key: text of several lines may contain look-alikes
_PLACE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")
# Without meaning in a file read at each start.
_NOT_IN_FILES = frozenset({"help", "help_all", "version", "config", "check_config"})
_REQUIRED = "required"  # the registry of `require`, shared by all groups of a parser


def require(options: argparse._ActionsContainer, required: str, *names: str) -> None:
    """Declare that options have no effect without another one: long names; one that ends in a dash is a prefix."""
    for name in names:
        options.register(_REQUIRED, name, required)


def add_options(parser: argparse._ActionsContainer) -> None:
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
        "socket or writing a file, as the user of the daemon's unit; status 2: the daemon or its page would not start",
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
        deprecated: given options that are deprecated, each with its note.
    """

    def __init__(self, build: Callable[[], cli.Parser], argv: Sequence[str] | None) -> None:
        self._build = build
        self.argv = tuple(sys.argv[1:] if argv is None else argv)
        parser = build()
        parser.parse_args(argv)  # answers --help, with the defaults, and reports errors
        self.names = {action.dest: name for name, action in _by_name(parser).items()}
        for action in parser._actions:
            action.default = argparse.SUPPRESS  # so that only given options remain
        self._given = vars(parser.parse_args(argv))
        self.path: str | None = self._given.get("config")
        self.program = parser.prog
        self.is_check = bool(self._given.get("check_config"))
        self.vain: list[tuple[str, str]] = []
        self.ignored: list[str] = list(parser.ignored)
        self.deprecated: list[str] = list(parser.deprecated)

    def read(self) -> argparse.Namespace:
        """Return all options: from the command line, else the file, else the defaults.

        Raises:
            ConfigError: the file cannot be used; the text names file, line and key.
        """
        parser = self._build()
        options: argparse.Namespace = parser.parse_args([])
        if self.path is not None:
            vars(options).update(parse(file_text(self.path), self.path, parser))
            self.ignored += parser.ignored
            self.deprecated += parser.deprecated
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


def parse(text: str, path: str, parser: cli.Parser) -> dict[str, Any]:
    """Return the values of the options in a configuration file, by dest; ConfigError names file, line and key."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as err:
        said = _PLACE.search(str(err))
        line = f":{said[1] or len(text.splitlines())}" if said else ""
        hint = "; texts are in quotes" if "Invalid value" in str(err) else ""
        raise ConfigError(f"{path}{line}: not TOML: {_PLACE.sub('', str(err))}{hint}") from err
    actions = _by_name(parser)
    values: dict[str, Any] = {}
    for key, value in found.items():
        action = actions.get(key)
        if action is None and parser.ignores_unknown:
            parser.ignored.append(f"--{key}")
            continue
        try:
            if action is None:
                raise ValueError(_unknown(key, value, actions))
            if action.dest in values:
                raise ValueError("given twice, by two names")
            values[action.dest] = _checked(action, value)
            parser.notice(action)
        except ValueError as err:
            raise ConfigError(f"{path}{_line(text, key)}: {key}: {err}") from err
    return values


def check_effects(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Check that each option that differs from its default has its required one, as declared by `require`.

    Returns:
        accepted options without an effect, as those of Colmet 0.6 are, each with its required one.

    Raises:
        ConfigError: for any other option without an effect.
    """
    vain = list(_find_vain(parser, options))
    for option, required in vain:
        if option not in getattr(parser, "older", ()):
            raise ConfigError(f"{option} has no effect without {required}: give that, too, or leave {option} out")
    return vain


def _find_vain(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    declared: Mapping[str, str] = parser._registries.get(_REQUIRED, {})
    for name, action in _by_name(parser).items():
        option = f"--{name}"
        prefixes = [prefix for prefix in declared if prefix.endswith("-") and option.startswith(prefix)]
        required = declared.get(option) or (declared[max(prefixes, key=len)] if prefixes else option)
        if required == option or getattr(options, parser._option_string_actions[required].dest):
            continue
        default = action.default
        if isinstance(default, str):
            default = parser._get_value(action, default)  # as the parser does
        if getattr(options, action.dest) != default:
            yield option, required


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options accepted in a file, by their long names."""
    return {
        name[2:]: action
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--") and action.dest not in _NOT_IN_FILES
    }


def _unknown(key: str, value: Any, known: Mapping[str, object]) -> str:
    if isinstance(value, dict) or (type(value) is list and dict in map(type, value)):
        return "there are no sections in this file, and no dots in names; give the options by their names alone"
    if key in _NOT_IN_FILES or key.replace("-", "_") in _NOT_IN_FILES:
        return "only for the command line"
    return f"no such option{did_you_mean(key, known)}"


def _checked(action: argparse.Action, value: Any) -> Any:
    """Return a value of the file as the command line would have it; ValueError if it is invalid."""
    if isinstance(action, argparse._CountAction):
        if type(value) is not int or not 0 <= value <= 9:
            raise ValueError(f"{_shown(value)} is not a whole number from 0 to 9")
        return value
    if action.nargs == 0:
        if type(value) is not bool:
            raise ValueError(f"{_shown(value)} is neither true nor false")
        return action.const if value else action.default
    if action.nargs == "?" and type(value) is bool:
        return action.const if value else action.default
    if action.nargs in (None, "?") and not isinstance(action, argparse._AppendAction):
        return _converted(action, value)
    elements = value if type(value) is list else [value]
    if not elements:
        raise ValueError("an empty array; leave the option out instead")
    return [_converted(action, element) for element in elements]


def _converted(action: argparse.Action, value: Any) -> Any:
    """Convert a text or number by the option's type and choices."""
    if type(value) is str:
        text = value
        if "\0" in text:
            raise ValueError("a text that contains a NUL byte")
    elif type(value) in (int, float) and action.type is not None:
        if not -(2.0**63) <= value <= 2.0**63 and value == value:
            raise ValueError("a number that is too large")
        text = repr(value)
    else:
        raise ValueError(f"{_shown(value)} is not a text" + (" or a number" if action.type is not None else ""))
    converted: Any = text
    if action.type is not None:
        assert callable(action.type)
        try:
            converted = action.type(text)
        except argparse.ArgumentTypeError as err:
            raise ValueError(str(err)) from err
        except (TypeError, ValueError) as err:
            raise ValueError(f"{text!r:.100} is not a value of this option") from err
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{text!r:.100} is none of {', '.join(map(str, action.choices))}")
    return converted


def _shown(value: Any) -> str:
    """Return the type of a wrong value, not the value: it may be secret."""
    kinds = {bool: "a truth value", str: "a text", list: "an array", dict: "a section"}
    return "a number" if type(value) in (int, float) else kinds.get(type(value), "a date or time")


def _line(text: str, key: str) -> str:
    """Return the line of a key, ``:7``; "" if it cannot be found.

    The TOML library does not report it. So each text that looks like the key is replaced by a mark in turn, until the
    mark is a key.
    """
    name = re.escape(key)
    pattern = re.compile(rf"^[ \t]*(?:\[\[?[ \t]*)?(\"{name}\"|'{name}'|{name})(?=[ \t]*[=.\]])", re.MULTILINE)
    for match in islice(pattern.finditer(text), _MAX_PLACES):
        try:
            marked = tomllib.loads(f"{text[: match.start(1)]}{_MARK}{text[match.end(1) :]}")
        except (ValueError, RecursionError):
            continue
        if _MARK in marked:
            return f":{text.count(chr(10), 0, match.start(1)) + 1}"
    return ""


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
    """Return the names of this process's user and group; numbers if they have none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return str(os.geteuid()), str(os.getegid())
