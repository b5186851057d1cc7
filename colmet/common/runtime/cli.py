"""What the command lines of both daemons share: option types, logging, signals, exit status."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import math
import os
import re
import resource
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from colmet import __version__
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import configuration, logs, service_unit
from colmet.common.runtime.readable import readable
from colmet.common.runtime.reload import Settings, verbosity
from colmet.common.runtime.suggestions import did_you_mean

log = logging.getLogger(__name__)

EXIT_CONFIG = 2
HWM = 1000  # messages in a queue of ZeroMQ

# What options are added to: a parser, or a group of one.
Options = argparse._ActionsContainer


DETAIL = "; "  # in a help: what follows is for `--help-all`


class Rare(str):
    """The help of an option that few need: `--help` leaves it to `--help-all` and the manual page."""

    __slots__ = ()


class Parser(argparse.ArgumentParser):
    """The ArgumentParser of every Colmet program.

    ``-h`` and ``--help`` print the usual options, each with its help up to the first semicolon and its default.
    ``--help-all`` prints all of it, and the options whose help is `Rare`. An error is one line, which names the help
    and, of a misspelt option or word, the right one.

    Attributes:
        older: options that an abbreviation means, though options that came later begin with it, too.
    """

    older: frozenset[str] = frozenset()

    def __init__(self, prog: str | None = None, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(prog, None, description, epilog, formatter_class=_Formatter, add_help=False)
        self._positionals.title, self._optionals.title = "arguments", "options"
        self._negative_number_matcher = re.compile(r"-\d")  # --since -2h: a value, no option
        self.add_argument("-h", "--help", action=_Help, const=False, help="print this help, and exit")
        self.add_argument("--help-all", action=_Help, const=True, help=Rare("print the help of all options, and exit"))

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(EXIT_CONFIG, f"{logs.priority('ERROR')}{self.prog}: error: {message} (try {self.prog} --help)\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line. An option that there is not is the first error: its value may look like another one."""
        words = list(sys.argv[1:] if args is None else args)
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            for word in words[: words.index("--") if "--" in words else None]:
                self._check_option(word.partition("=")[0])
        options, left = self.parse_known_args(words, namespace)
        if left:
            if left[0].startswith("-"):
                self._refuse_option(left[0])
            self.error(f"unexpected argument {left[0]!r:.100}")
        return options

    def _get_positional_kwargs(self, dest: str, **settings: Any) -> Any:
        if settings.get("metavar") is None and settings.get("choices"):  # errors name an argument by it
            settings["metavar"] = "|".join(map(str, settings["choices"]))
        if settings.get("nargs") == "*":  # else an error names it as required
            settings.setdefault("default", [])
        return super()._get_positional_kwargs(dest, **settings)

    def _check_option(self, word: str) -> None:
        if word.startswith("--") and not any(name.startswith(word) for name in self._option_string_actions):
            self._refuse_option(word)

    def _get_option_tuples(self, option_string: str) -> Any:
        found = super()._get_option_tuples(option_string)
        older = [one for one in found if one[1] in self.older]
        return older if len(older) == 1 else found

    def _refuse_option(self, word: str) -> NoReturn:
        self.error(f"there is no option {word:.100}{did_you_mean(word, self._option_string_actions)}")

    def synopsis(self) -> list[str]:
        """Return the forms of the command line. Options are not listed, the help has them."""
        forms = [form_of(action) for action in self._get_positional_actions()]
        return (self.usage or " ".join([self.prog, "[OPTION ...]", *forms])).split("\n")

    def sections(self, everything: bool = True) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield the title of each group of options, and the options.

        Args:
            everything: with those that few need.
        """
        for group in self._action_groups:
            visible = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
            actions = [action for action in visible if everything or not isinstance(action.help, Rare)]
            if actions:
                yield str(group.title), actions

    def help_of(self, action: argparse.Action, everything: bool = True) -> str:
        """Return the help of an option with its default.

        Args:
            action: the option.
            everything: with its details, those behind the first semicolon.
        """
        formatter = self._formatter(everything)
        return formatter._expand_help(action) if action.help else ""

    def _formatter(self, everything: bool) -> _Formatter:
        formatter = self._get_formatter()
        assert isinstance(formatter, _Formatter)
        formatter.is_brief = not everything
        return formatter

    def format_usage(self) -> str:
        """Return the lines of usage."""
        return "usage: " + "\n       ".join(self.synopsis()) + "\n"

    def format_help(self, everything: bool = False) -> str:
        """Return the help.

        Args:
            everything: with the options that few need.
        """
        formatter = self._formatter(everything)
        formatter.add_text(self.description)
        for title, actions in self.sections(everything):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        hidden = 0 if everything else sum(isinstance(action.help, Rare) for action in self._actions)
        if hidden > 1:  # --help-all itself is one
            formatter.add_text(
                f"{self.prog} --help-all: {hidden - 1} more option{'s' * (hidden > 2)}, and details of these"
            )
        elif hidden and any(DETAIL in str(action.help) for action in self._actions):
            formatter.add_text(f"{self.prog} --help-all: details of these")
        formatter.add_text(self.epilog)
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            hint = did_you_mean(str(value), known)
            raise argparse.ArgumentError(action, f"{value!r:.100} is none of {', '.join(known)}{hint}")


class _Help(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, 0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_help(self.const), sys.stdout)
        parser.exit()


class _Formatter(argparse.HelpFormatter):
    """Wraps paragraphs, and leaves those with indented lines, such as examples, as they are.

    Attributes:
        is_brief: cut the help of an option at the first semicolon.
    """

    is_brief = False

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join([part if "\n  " in part else "\n".join(self._split_lines(part, width)) for part in parts])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not self.is_brief or action.help is None:
            return action.help
        first, *more = action.help.split(DETAIL)
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
    """A period: a finite number of seconds, at least 0.01."""
    value = _float(text)
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """An option type: a whole number from `low` to `high`."""

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
    """The default of an option whose 0 was no bound in Colmet 0.6: nothing here grows without one."""


def bound(default: int) -> Callable[[str], int]:
    """An option type: a whole number; for 0 the default, as a `DefaultBound`."""

    def convert(text: str) -> int:
        return whole_number(0)(text) or DefaultBound(default)

    return convert


def size_bytes(text: str) -> int:
    """An option type: a size such as 500M or 4G (powers of 1024), at least 1 MiB; in bytes."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.strip().upper(), re.ASCII)
    size = int(match[1]) << (10 * " KMGT".index(match[2] or " ")) if match else 0
    if not 1 << 20 <= size < 1 << 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1M, such as 500M or 4G")
    return size


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options that both daemons have."""
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    configuration.add_options(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log starts, stops and jobs (INFO); twice: every tick (DEBUG)",
    )


def add_queue_options(parser: Options) -> None:
    """The options of ZeroMQ's queues, which both daemons have."""
    parser.add_argument(
        "--zeromq-hwm",
        metavar="N",
        type=bound(HWM),
        default=HWM,
        help=Rare("queue at most N messages between node and collector (default: %(default)s)"),
    )
    parser.add_argument(
        "--zeromq-linger",
        metavar="MS",
        type=whole_number(-1),
        default=0,
        help=Rare("send queued messages for MS milliseconds at exit; -1: without limit (default: %(default)s)"),
    )


def set_up_logging(verbose: int) -> None:
    """Log to stderr. `-v` once is INFO, twice or more DEBUG, none WARNING, as in Colmet 0.6 (30 - 10 x count)."""
    logs.set_up(verbosity(verbose))


def load(names: Mapping[str, str]) -> list[Any]:
    """The classes that a table of backends names as ``module:Class``."""
    classes = []
    for target in names.values():
        module, _, name = target.partition(":")
        classes.append(getattr(importlib.import_module(module), name))
    return classes


class Signals:
    """Signals as data: a descriptor that becomes readable, and the set of those that came.

    Use in the main thread, as a context manager; the former handlers are put back at the end.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self.pending: set[signal.Signals] = set()
        self._wanted = tuple(wanted)
        self._former: dict[signal.Signals, Any] = {}
        self._former_fd = -1
        self.fd = self._write_fd = -1

    def __enter__(self) -> Signals:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in self._wanted:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self.fd)
        os.close(self._write_fd)

    def _note(self, number: int, _frame: object) -> None:
        self.pending.add(signal.Signals(number))

    def stop_wanted(self) -> bool:
        """Whether SIGTERM or SIGINT came."""
        return bool(self.pending & {signal.SIGTERM, signal.SIGINT})

    def take(self, number: signal.Signals) -> bool:
        """Whether this signal came since the last call."""
        came = number in self.pending
        self.pending.discard(number)
        return came

    def drain(self) -> None:
        """Make the descriptor unreadable again. The next wait sees every signal that comes after this."""
        while readable([self.fd], 0):
            os.read(self.fd, 4096)


def raise_open_file_limit(wanted: int = 65536) -> int:
    """Raise this process's soft limit on open files towards `wanted`, as far as the hard limit lets; the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def tune_garbage_collector() -> None:
    """Have Python look for cycles seldom: what daemons handle by the thousands is in none.

    With the default thresholds half of the collector's CPU time from bytes to HDF5 goes into looking again and again.
    """
    gc.collect()
    gc.freeze()  # modules and code, which stay
    gc.set_threshold(50_000, 20, 100)


def run_daemon(
    names: Mapping[str, str],
    build_parser: Callable[[Sequence[type[Any]]], argparse.ArgumentParser],
    check: Callable[[argparse.Namespace, Sequence[type[Any]]], None],
    run: Callable[[argparse.Namespace, Sequence[type[Any]], Settings], int | None],
    argv: Sequence[str] | None,
) -> int:
    """What an entry point does: load the backends, read the command line and the configuration file, run.

    The exit status is what `run` says, 0 where it says nothing.
    An error raised on purpose is one line on stderr.

    With --check-config `check` is called in place of `run`: all that a start does before it opens anything, as the
    user whom the daemon's unit names, where root asks.
    """
    classes = load(names)
    read = configuration.Configuration(lambda: build_parser(classes), argv)
    try:
        own = service_unit.find(read.program) if read.is_check else None
        if own is not None:
            own.enter()
        options = read.read_for_start()
    except ConfigError as err:
        set_up_logging(0)
        log.error("%s", err)
        return EXIT_CONFIG
    set_up_logging(options.verbose)
    for option, required in read.vain:
        log.warning("option without an effect: %s requires %s", option, required)
    if isinstance(options.zeromq_hwm, DefaultBound):
        log.warning("--zeromq-hwm 0: %d is used; no queue is without a bound", options.zeromq_hwm)
    try:
        if read.is_check:
            check(options, classes)
            user = f" (checked as user {own.user} of {own.name})" if own is not None else ""
            print(f"OK: {read.path or 'command line'}{user}")
            return 0
        return run(options, classes, Settings(options, read)) or 0
    except ConfigError as err:
        log.error("%s", err)
        return EXIT_CONFIG
    except ColmetError as err:
        log.error("%s", err)
        return 1


def powers_of_ten(count: int) -> bool:
    """Whether a repeated event is to be logged: the 1st, 10th, 100th, ... time."""
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1
