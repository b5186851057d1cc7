"""The command line of every Colmet program: its parser, its help, and the types of its options."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Union

from colmet.common.daemon import logs
from colmet.common.text import counted

EXIT_CONFIG = 2
DETAIL = "; "  # in a help, outside of parentheses: the rest is for `--help-all`
_DETAIL_OUTSIDE = re.compile(r"; (?![^(]*\))")
_HELP_COLUMN = 24  # at most; where the help of options begins

_PERIOD = re.compile(r"([1-9][0-9]{0,5})(m|h|d|w|y)", re.ASCII)
_PERIODS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}


class Rare(str):
    """The help of a rarely needed option, printed only by `--help-all` and in the manual page."""

    __slots__ = ()


class UsageError(Exception):
    """Raised for a wrong command line; the text says what is wrong."""


class _ArgumentParser(argparse.ArgumentParser):
    """Python's parser, which raises UsageError instead of exiting; `owner` is the Parser."""

    def __init__(self, owner: Parser, prog: str | None) -> None:
        super().__init__(prog, add_help=False)
        self.owner = owner

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class OptionGroup:
    """Options below one title of the help; `group` is that of argparse."""

    def __init__(self, parser: Parser, title: str, group: Any) -> None:
        self._parser = parser
        self._title = title
        self._group = group

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Declare an option, as in argparse."""
        return self._parser.declare(self._title, self._group, names, settings)

    def add_argument_group(self, title: str) -> OptionGroup:
        """Return a group of the parser with a title of its own."""
        return self._parser.add_argument_group(title)

    def add_mutually_exclusive_group(self) -> OptionGroup:
        """Return a group of options that exclude each other, below the same title."""
        return OptionGroup(self._parser, self._title, self._group.add_mutually_exclusive_group())

    def set_defaults(self, **values: Any) -> None:
        """Set values that no option sets."""
        self._parser.set_defaults(**values)

    def require(self, option: str, *names: str) -> None:
        """Declare that options have no effect without `option`; a name that ends in a dash is a prefix."""
        self._parser.require(option, *names)


class Parser:
    """The command line of a Colmet program: Python's argparse, with help in two lengths.

    ``-h`` and ``--help`` print the usual options, each with its help up to the first semicolon and its default.
    ``--help-all`` prints all of it, and the options with `Rare` help. An error is one line; it names the help and, for
    a misspelt option, the right one.

    Attributes:
        prog, description, epilog, usage: as in argparse.
        actions: all declared options and arguments.
        names: the options by their names.
        required: options without an effect unless another one is given, by name or prefix: see `require`.
        older: options of Colmet 0.6: they keep their abbreviations, even if later options begin with the same letters,
            and ``--help`` names them all.
        ignores_unknown: whether unknown options are accepted, as they may belong to a missing plug-in.
        ignored: ignored options.
    """

    def __init__(
        self,
        prog: str | None = None,
        description: str | None = None,
        epilog: str | None = None,
        help_names: Sequence[str] = ("-h", "--help"),
    ) -> None:
        self._argparse = _ArgumentParser(self, prog)
        self.prog: str = self._argparse.prog
        self.description, self.epilog = description, epilog
        self.usage: str | None = None
        self.older: frozenset[str] = frozenset()
        self.ignores_unknown = False
        self.ignored: list[str] = []
        self.actions: list[argparse.Action] = []
        self.names: dict[str, argparse.Action] = {}
        self.required: dict[str, str] = {}
        self._sections: dict[str, list[argparse.Action]] = {"arguments": [], "options": []}
        self._repeated: set[str] = set()
        self.add_argument(*help_names, action=_Help, const=False, help="print this help, and exit")
        self.add_argument("--help-all", action=_Help, const=True, help=Rare("print the help of all options, and exit"))

    # -- declarations --

    def declare(self, title: str, group: Any, names: Sequence[str], settings: dict[str, Any]) -> argparse.Action:
        """Declare an option of a group of argparse, below a title."""
        action: argparse.Action = group.add_argument(*names, **settings)
        self.actions.append(action)
        self.names.update(dict.fromkeys(action.option_strings, action))
        self._sections.setdefault(title, []).append(action)
        if settings.get("action") in ("append", "count") or action.nargs in ("*", "+"):
            self._repeated.add(action.dest)
        return action

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Declare an option or an argument, as in argparse."""
        return self.declare("options" if names[0].startswith("-") else "arguments", self._argparse, names, settings)

    def add_argument_group(self, title: str) -> OptionGroup:
        """Return a group of options with a title."""
        self._sections.setdefault(title, [])
        return OptionGroup(self, title, self._argparse)

    def add_mutually_exclusive_group(self) -> OptionGroup:
        """Return a group of options that exclude each other."""
        return OptionGroup(self, "options", self._argparse.add_mutually_exclusive_group())

    def set_defaults(self, **values: Any) -> None:
        """Set values that no option sets."""
        self._argparse.set_defaults(**values)

    def get_default(self, dest: str) -> Any:
        """Return the default of an option."""
        return self._argparse.get_default(dest)

    def require(self, option: str, *names: str) -> None:
        """Declare that options have no effect without `option`; a name that ends in a dash is a prefix."""
        self.required.update(dict.fromkeys(names, option))

    def repeats(self, action: argparse.Action) -> bool:
        """Return whether an option takes several values, or counts."""
        return action.dest in self._repeated

    # -- parsing --

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the options of a command line; exit with status 2 and one line if it is wrong."""
        try:
            return self.parse(sys.argv[1:] if args is None else args)
        except UsageError as err:
            self.error(str(err))

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the options of a command line; UsageError if it is wrong."""
        has_rest = any(action.nargs == argparse.REMAINDER for action in self.actions)
        options, left = self._argparse.parse_known_args(list(args) if has_rest else list(self._expand(args)))
        if left and self.ignores_unknown:
            self.ignored += [word.partition("=")[0] for word in left if word.startswith("--")]
        elif left:
            raise UsageError(self._unknown(left[0]) if left[0][:1] == "-" else f"unexpected argument {left[0]!r:.100}")
        return options

    def _expand(self, args: Sequence[str]) -> Iterator[str]:
        """Yield the words of a command line as argparse understands them.

        An unknown option is refused first: its value may look like another error. An abbreviation of Colmet 0.6 is
        replaced by its option, and ``--since -2h`` by ``--since=-2h``, as a value that begins with a dash is an option
        for argparse.
        """
        words = list(args)
        end = words.index("--") if "--" in words else len(words)
        for n, word in enumerate(words[:end]):
            name = word.partition("=")[0]
            if re.match(r"-\d", word) and n and words[n - 1] in self.names:
                continue  # yielded with its option
            if name.startswith("--") and name not in self.names:
                known = [one for one in self.names if one.startswith(name)]
                if not known and not self.ignores_unknown:
                    raise UsageError(self._unknown(name))
                older = [one for one in known if one in self.older]
                word = older[0] + word[len(name) :] if len(older) == 1 else word
            following = words[n + 1] if n + 1 < end else ""
            if word in self.names and re.match(r"-\d", following):
                word = f"{word}={following}" if word.startswith("--") else word + following
            yield word
        yield from words[end:]

    def _unknown(self, word: str) -> str:
        return f"there is no option {word:.100}{did_you_mean(word, self.names)}"

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(EXIT_CONFIG, f"{logs.priority('ERROR')}{self.prog}: error: {message} (try {self.prog} --help)\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit, with a message on standard error."""
        self._argparse.exit(status, message)

    # -- help --

    def synopsis(self) -> list[str]:
        """Return the forms of the command line, without options: the help lists them."""
        forms = [form_of(action) for action in self.actions if not action.option_strings]
        return (self.usage or " ".join([self.prog, "[OPTION ...]", *forms])).split("\n")

    def sections(self, everything: bool = True) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield the title of each group of options, and the options; `everything`: with rarely needed ones."""
        for title, section in self._sections.items():
            visible = [action for action in section if action.help is not argparse.SUPPRESS]
            actions = [action for action in visible if everything or not isinstance(action.help, Rare)]
            if actions:
                yield title, actions

    def help_of(self, action: argparse.Action, everything: bool = True) -> str:
        """Return the help of an option with its default; `everything`: with the text behind the first semicolon."""
        text = action.help or ""
        if not everything and text:
            text, *more = _DETAIL_OUTSIDE.split(text)
            default = re.search(r" \(default: (?:[^()]|\([^()]*\))*\)$", more[-1]) if more else None
            text += default[0] if default else ""
        return text % {**vars(action), "prog": self.prog}

    def format_help(self, everything: bool = False) -> str:
        """Return the help; `everything`: with rarely needed options."""
        width = shutil.get_terminal_size((80, 24)).columns - 2
        parts = ["usage: " + "\n       ".join(self.synopsis()), _filled(self.description or "", width)]
        sections = dict(self.sections(everything))
        heads = {action: f"  {_head(action, everything)}" for actions in sections.values() for action in actions}
        column = min(max(map(len, heads.values()), default=0) + 2, _HELP_COLUMN)
        for title, actions in sections.items():
            lines = [f"{title}:"]
            for action in actions:
                text = _wrap(self.help_of(action, everything), max(width - column, 11))
                fits = len(heads[action]) <= column - 2
                lines += [heads[action].ljust(column) + text.pop(0) if fits and text else heads[action]]
                lines += [" " * column + line for line in text]
            parts.append("\n".join(lines))
        hidden = 0 if everything else sum(isinstance(action.help, Rare) for action in self.actions)
        if hidden > 1:  # --help-all itself is one
            names = [name for name in sorted(self.older) if isinstance(getattr(self.names.get(name), "help", ""), Rare)]
            former = f" (of Colmet 0.6: {', '.join(names)})" if names else ""
            count = counted(hidden - 1, "more options")
            parts.append(_filled(f"{self.prog} --help-all: {count}{former}, and these in full", width))
        elif hidden and any(DETAIL in str(action.help) for action in self.actions):
            parts.append(f"{self.prog} --help-all: the same options in full")
        return "\n\n".join(filter(None, [*parts, _filled(self.epilog or "", width)])) + "\n"

    def print_help(self, everything: bool = False) -> None:
        """Print the help."""
        print(self.format_help(everything), end="")


Options = Union[Parser, OptionGroup]


class _Help(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, 0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, _ArgumentParser)
        parser.owner.print_help(bool(self.const))
        parser.exit()


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def _filled(text: str, width: int) -> str:
    """Return paragraphs wrapped, except for those with indented lines, such as examples."""
    parts = text.strip("\n").split("\n\n")
    return "\n\n".join([part if "\n  " in part else "\n".join(_wrap(part, width)) for part in parts])


def _head(action: argparse.Action, everything: bool) -> str:
    """Return the names and the value of an option, as the help begins with; the first long name, or all."""
    if not action.option_strings:
        return name_of(action)
    names = [name for name in action.option_strings if not name.startswith("--")]
    long = [name for name in action.option_strings if name.startswith("--")]
    names += long if everything else long[:1]
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


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive_seconds(text: str) -> float:
    """Convert a period, an option type: a number of seconds from 0.01 to 86400."""
    value = _number(text)
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return value


def positive_number(text: str) -> float:
    """Convert a number above 0 and below 10^9, an option type."""
    value = _number(text)
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


MAX_WORD = 100  # compared characters
MAX_NAMED = 3
ALIKE = 0.65  # "system" is not meant by "team"


def near(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `count` known words like a word, the best first; case, dashes and underscores are ignored.

    The minimum similarity `cutoff` is from 0 to 1.
    """
    import difflib  # here: it is large, and rarely needed

    forms = {_form(one): one for one in known}
    form = _form(word[:MAX_WORD])
    begins = [one for one in forms if len(form) > 2 and one.startswith(form)]
    like = difflib.get_close_matches(form, forms, n=count, cutoff=cutoff)
    best = like if like and like[0] == form else [*begins, *like]
    return [forms[one] for one in dict.fromkeys(best)][:count]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message, ``; did you mean ...?``, or nothing if no known word is near.

    If none is, it names those that begin with a word near it: memory_peak for memori.
    """
    words = list(known)
    found = near(word, words, cutoff=ALIKE)
    if not found:
        beginnings = {known_word: _form(known_word).partition("-")[0] for known_word in words}
        beginning = near(word, beginnings.values(), cutoff=ALIKE)
        found = [known_word for known_word in words if beginnings[known_word] in beginning][:MAX_NAMED]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _form(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")
