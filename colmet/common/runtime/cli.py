"""The command line of every Colmet program: its parser, its help, and the types of its options."""

from __future__ import annotations

import argparse
import logging
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from colmet.common.runtime import logs
from colmet.common.runtime.plural import counted
from colmet.common.runtime.suggestions import did_you_mean

log = logging.getLogger(__name__)

EXIT_CONFIG = 2
DETAIL = "; "  # in a help, outside of parentheses: the rest is for `--help-all`
_DETAIL_OUTSIDE = re.compile(r"; (?![^(]*\))")

_PERIOD = re.compile(r"([1-9][0-9]{0,5})(m|h|d|w|y)", re.ASCII)
_PERIODS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}

Options = argparse._ActionsContainer  # a parser, or a group of one


class Rare(str):
    """The help of a rarely needed option, printed only by `--help-all` and in the manual page."""

    __slots__ = ()


class Deprecated(str):
    """The help of an option that a later major version removes; each start that gets the option logs a warning.

    Args:
        since: the version that deprecates it.
        remedy: what replaces it, such as "use --new".
        text: its help.

    Attributes:
        note: version and remedy, the beginning of the help.
    """

    note: str

    def __new__(cls, since: str, remedy: str, text: str = "") -> Deprecated:
        """Return the help."""
        note = f"deprecated since {since}, {remedy}"
        made = super().__new__(cls, f"{note}{DETAIL}{text}" if text else note)
        made.note = note
        return made


class Parser(argparse.ArgumentParser):
    """The ArgumentParser of every Colmet program.

    ``-h`` and ``--help`` print the usual options, each with its help up to the first semicolon and its default.
    ``--help-all`` prints all of it, and the options with `Rare` help. An error is one line; it names the help and, for
    a misspelt option or word, the right one.

    Attributes:
        older: options of Colmet 0.6: they keep their abbreviations, even if later options begin with the same letters,
            and ``--help`` names them all.
        ignores_unknown: whether unknown options are accepted, as they may belong to a missing plug-in.
        ignored: ignored options.
        deprecated: the given options that are deprecated, each with its note.
    """

    older: frozenset[str] = frozenset()
    ignores_unknown = False

    def __init__(self, prog: str | None = None, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(prog, None, description, epilog, formatter_class=_Formatter, add_help=False)
        self.ignored: list[str] = []
        self.deprecated: list[str] = []
        self._positionals.title, self._optionals.title = "arguments", "options"
        self._negative_number_matcher = re.compile(r"-\d")  # --since -2h: a value, no option
        self.add_argument("-h", "--help", action=_Help, const=False, help="print this help, and exit")
        self.add_argument("--help-all", action=_Help, const=True, help=Rare("print the help of all options, and exit"))

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(EXIT_CONFIG, f"{logs.priority('ERROR')}{self.prog}: error: {message} (try {self.prog} --help)\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line. An unknown option is reported first: its value may look like another error."""
        words = list(sys.argv[1:] if args is None else args)
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            for word in words[: words.index("--") if "--" in words else None]:
                self._check_option(word.partition("=")[0])
        options, left = self.parse_known_args(words, namespace)
        if left and self.ignores_unknown:
            self.ignored += [word.partition("=")[0] for word in left if word.startswith("--")]
        elif left:
            if left[0].startswith("-"):
                self._refuse_option(left[0])
            self.error(f"unexpected argument {left[0]!r:.100}")
        return options

    def notice(self, action: argparse.Action) -> None:
        """Add a given option to `deprecated`, if it is deprecated."""
        if isinstance(action.help, Deprecated):
            self.deprecated.append(f"{max(action.option_strings, key=len)} is {action.help.note}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        self.notice(action)
        return super()._get_values(action, arg_strings)

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as err:
            if not action.option_strings:
                raise
            form = f"{max(action.option_strings, key=len)} {form_of(action)}"
            raise argparse.ArgumentError(action, f"requires a value: {form}") from err

    def _get_positional_kwargs(self, dest: str, **settings: Any) -> Any:
        if settings.get("metavar") is None and settings.get("choices"):  # its name in errors
            settings["metavar"] = "|".join(map(str, settings["choices"]))
        if settings.get("nargs") == "*":  # else errors list it as required
            settings.setdefault("default", [])
        return super()._get_positional_kwargs(dest, **settings)

    def _check_option(self, word: str) -> None:
        is_known = any(name.startswith(word) for name in self._option_string_actions)
        if word.startswith("--") and not is_known and not self.ignores_unknown:
            self._refuse_option(word)

    def _get_option_tuples(self, option_string: str) -> Any:
        found = super()._get_option_tuples(option_string)
        older = [one for one in found if one[1] in self.older]
        return older if len(older) == 1 else found

    def _refuse_option(self, word: str) -> NoReturn:
        self.error(f"there is no option {word:.100}{did_you_mean(word, self._option_string_actions)}")

    def synopsis(self) -> list[str]:
        """Return the forms of the command line, without options: the help lists them."""
        forms = [form_of(action) for action in self._get_positional_actions()]
        return (self.usage or " ".join([self.prog, "[OPTION ...]", *forms])).split("\n")

    def sections(self, everything: bool = True) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield the title of each group of options, and the options; `everything`: with rarely needed ones."""
        for group in self._action_groups:
            visible = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
            actions = [action for action in visible if everything or not isinstance(action.help, Rare)]
            if actions:
                yield str(group.title), actions

    def help_of(self, action: argparse.Action, everything: bool = True) -> str:
        """Return the help of an option with its default; `everything`: with the text behind the first semicolon."""
        return self._formatter(everything)._expand_help(action) if action.help else ""

    def _formatter(self, everything: bool) -> _Formatter:
        formatter = self._get_formatter()
        assert isinstance(formatter, _Formatter)
        formatter.is_brief = not everything
        return formatter

    def format_usage(self) -> str:
        """Return the lines of usage."""
        return "usage: " + "\n       ".join(self.synopsis()) + "\n"

    def format_help(self, everything: bool = False) -> str:
        """Return the help; `everything`: with rarely needed options."""
        formatter = self._formatter(everything)
        formatter.add_text(self.description)
        for title, actions in self.sections(everything):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        hidden = 0 if everything else sum(isinstance(action.help, Rare) for action in self._actions)
        if hidden > 1:  # --help-all itself is one
            options = self._option_string_actions
            names = [name for name in sorted(self.older) if name in options and isinstance(options[name].help, Rare)]
            former = f" (of Colmet 0.6: {', '.join(names)})" if names else ""
            count = counted(hidden - 1, "more options")
            formatter.add_text(f"{self.prog} --help-all: {count}{former}, and these in full")
        elif hidden and any(DETAIL in str(action.help) for action in self._actions):
            formatter.add_text(f"{self.prog} --help-all: the same options in full")
        formatter.add_text(self.epilog)
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            hint = did_you_mean(str(value), known)
            raise argparse.ArgumentError(action, f"{value!r:.100} is none of {', '.join(known)}{hint}")


def warn_of_deprecated(notes: Sequence[str]) -> None:
    """Log the given options that are deprecated; see `Parser.deprecated`."""
    for note in dict.fromkeys(notes):
        log.warning("option deprecated: %s", note)


class _Help(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, 0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_help(self.const), sys.stdout)
        parser.exit()


class _Formatter(argparse.HelpFormatter):
    """Wraps paragraphs, except those with indented lines, such as examples; cuts brief help at the first semicolon."""

    is_brief = False

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join([part if "\n  " in part else "\n".join(self._split_lines(part, width)) for part in parts])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not self.is_brief or action.help is None:
            return action.help
        first, *more = _DETAIL_OUTSIDE.split(action.help)
        default = re.search(r" \(default: (?:[^()]|\([^()]*\))*\)$", more[-1]) if more else None
        return first + (default[0] if default else "")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return name_of(action)
        names = [name for name in action.option_strings if not name.startswith("--")]
        long = [name for name in action.option_strings if name.startswith("--")]
        names += long[:1] if self.is_brief else long
        return f"{', '.join(names)} {'' if action.nargs == 0 else form_of(action)}".rstrip()


def form_of(action: argparse.Action) -> str:
    """Return the form of an argument, or of an option's value: ``FILE``, ``[FILE]``, ``FILE [FILE ...]``."""
    name = name_of(action)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def name_of(action: argparse.Action) -> str:
    """Return the name of an argument, or of an option's value."""
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest)


def positive_seconds(text: str) -> float:
    """Convert a period, an option type: a number of seconds from 0.01 to 86400."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return value


def positive_number(text: str) -> float:
    """Convert a number above 0 and below 10^9, an option type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a number above 0")
    return value


def period(text: str) -> int:
    """Convert a period to seconds, an option type: 30m, 12h, 90d, 4w; y for 365 days."""
    found = _PERIOD.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a period such as 30m, 12h, 90d, 4w, 2y")
    return int(found[1]) * _PERIODS_S[found[2]]


def whole_number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Return an option type: a whole number from `low` to `high`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return convert


class DefaultBound(int):
    """The default of an option given as 0, "no bound" in Colmet 0.6: here nothing grows without a bound."""


def bound(default: int) -> Callable[[str], int]:
    """Return an option type: a whole number; for 0 the default, as a `DefaultBound`."""

    def convert(text: str) -> int:
        return whole_number(0)(text) or DefaultBound(default)

    return convert


def size_bytes(text: str) -> int:
    """Convert a size, an option type: 500M or 4G (powers of 1024), at least 1 MiB; return bytes."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.strip().upper(), re.ASCII)
    size = int(match[1]) << (10 * " KMGT".index(match[2] or " ")) if match else 0
    if not 1 << 20 <= size < 1 << 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1M, such as 500M or 4G")
    return size
