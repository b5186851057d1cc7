"""State of the screen of `colmet top`, and its reaction to keys, independent of the terminal."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Union

from colmet.commands import top_view as view
from colmet.commands.top_view import BAD, DIM, KEY, TITLE, Part
from colmet.common.text import Clock

Scalar = Union[str, int, float, bool, None]

ROWS = 1000  # requested
HISTORY = 240  # samples of one job
HISTORIES = 2000  # jobs
HISTORY_KEYS = ("time", "cpu", "memory", "read", "write", "gpu")
FILTERS = {"user": "only user ", "node": "only on ", "text": "only with "}

JOB_SORTS = {
    **{"c": "cpu", "e": "cpu_share", "m": "memory", "l": "memory_share", "i": "io", "w": "wait", "t": "tasks"},
    **{"g": "gpu", "a": "age", "o": "user", "j": "job"},
}
NODE_SORTS = {**{"c": "cpu", "m": "memory_share", "i": "io", "l": "load", "j": "jobs", "s": "seen_age", "h": "node"}}
DETAIL_SORTS = {**{key: name for key, name in JOB_SORTS.items() if name not in ("user", "job")}, "h": "node"}
SORTS = {"jobs": JOB_SORTS, "nodes": NODE_SORTS, "job": DETAIL_SORTS}
FOOTERS = {
    "jobs": (
        *(("q", "quit"), ("Enter", "job"), ("n", "nodes"), ("c", "CPU"), ("m", "mem"), ("i", "I/O"), ("/", "find")),
        *(("u", "user"), ("r", "reverse"), ("p", "pause"), ("?", "all keys")),
    ),
    "nodes": (
        *(("q", "quit"), ("Enter", "its jobs"), ("n", "jobs"), ("c", "CPU"), ("m", "mem"), ("l", "load")),
        *(("s", "seen"), ("/", "find"), ("r", "reverse"), ("p", "pause"), ("?", "all keys")),
    ),
    "job": (
        *(("q", "quit"), ("Esc", "back"), ("c", "CPU"), ("m", "mem"), ("i", "I/O"), ("w", "wait"), ("h", "node")),
        *(("r", "reverse"), ("p", "pause"), ("?", "all keys")),
    ),
}
HELP = """\
arrows, PgUp, PgDn, Home, End  choose a row
Enter                          the chosen job; the jobs of the chosen node
Esc, Backspace                 back; without a filter: all
n, Tab                         nodes, and back to jobs
r                              the other way round
u                              only this user's jobs (empty: all)
/                              only what has this text in its user's or node's
                               name, or begins a job's number (empty: all)
p, Space                       pause, and go on
q                              quit

sort jobs by   c CPUs used   e share of its CPUs    m memory    l of its limit
               i I/O         w tasks that wait      t tasks     g GPUs
               a age         o user                 j job
sort nodes by  c CPU         m memory               i I/O       l load
               j jobs        s last seen            h name

CPU is in CPUs, WAIT in tasks: how many ran, and how many waited for a CPU, I/O,
swap or memory, on average since the sample before. MEM% is of the limit, where
a job is nearest to it; ! from 95 % on. A - is not known: it is not measured, or
there is no second sample yet.                               Any key goes back."""


class ScreenState:
    """The state of the screen; `request` is the current request, `ended` whether the user wants to leave."""

    def __init__(self, request: Mapping[str, Scalar], interval_s: float, bars: str = view.BARS) -> None:
        self.request: dict[str, Scalar] = {**request, "command": "top", "limit": ROWS}
        self.ended = False
        self._interval_s = interval_s
        self._bars = bars
        self._before: list[dict[str, Scalar]] = []  # to go back to
        self._answer: dict[str, Any] | None = None
        self._answered = 0.0
        self._trouble = ""
        self._paused: dict[str, Any] | None = None
        self._is_help = False
        self._prompt: tuple[str, str] | None = None  # the request's key, and the typed text
        self._selected: object = None  # the job or node
        self._at = 0
        self._top = 0
        self._page = 10
        self._histories: OrderedDict[int, deque[dict[str, Any]]] = OrderedDict()

    # -- answers --

    def take(self, request: Mapping[str, Scalar], answer: dict[str, Any], now: float) -> None:
        """Add an answer to this request, received now."""
        self._trouble = ""
        self._answered = now
        jobs = list(answer.get("rows") or ()) if answer.get("view") == "jobs" else [answer.get("job")]
        for row in jobs:
            if row:
                self._note(row)
        if request == self.request:
            self._answer = answer

    def fail(self, why: str) -> None:
        """Record a failed request."""
        self._trouble = view.clean(why)

    def _note(self, row: Mapping[str, Any]) -> None:
        history = self._histories.setdefault(row["job"], deque(maxlen=HISTORY))
        self._histories.move_to_end(row["job"])
        if len(self._histories) > HISTORIES:
            self._histories.popitem(last=False)
        if not history or row.get("time") != history[-1]["time"]:
            history.append({key: row.get(key) for key in HISTORY_KEYS})

    # -- keys --

    def press(self, key: str) -> None:
        """Process a key: a character, or a name such as up or enter."""
        if self._prompt is not None:
            self._type(key)
        elif self._is_help:
            self._is_help = False
        elif key == "q":
            self.ended = True
        elif key == "?":
            self._is_help = True
        elif key in ("p", " "):
            self._paused = None if self._paused is not None else self._answer
        elif key in ("n", "tab"):
            self._open({"view": "jobs" if self._view == "nodes" else "nodes"})
        elif key == "enter":
            self._enter()
        elif key in ("esc", "backspace"):
            self._back()
        elif key == "r":
            self._ask(reverse=not self.request.get("reverse", False))
        elif key in ("u", "/") and self._view != "job" and not (key == "u" and self._view == "nodes"):
            name = "user" if key == "u" else "text"
            self._prompt = (name, str(self.request.get(name) or ""))
        elif key in SORTS[self._view]:
            self._ask(sort=SORTS[self._view][key], reverse=False)
        else:
            self._move(key)

    @property
    def _view(self) -> str:
        return str(self.request["view"])

    @property
    def _sort(self) -> str:
        return str(self.request.get("sort") or ("node" if self._view == "nodes" else "cpu"))

    def _ask(self, **changes: Scalar) -> None:
        self.request = {**self.request, **changes}
        self._paused = None

    def _open(self, changes: Mapping[str, Scalar]) -> None:
        self._before = [*self._before[-9:], self.request]
        kept = {key: value for key, value in self.request.items() if key not in (*FILTERS, "sort", "reverse")}
        self._show({**kept, **changes})

    def _show(self, request: dict[str, Scalar]) -> None:
        self.request = request
        self._answer = self._paused = self._selected = None
        self._at = self._top = 0

    def _enter(self) -> None:
        rows = self._rows()
        if not rows or self._view == "job":
            return
        row = rows[min(self._at, len(rows) - 1)]
        is_jobs = self._view == "jobs"
        self._open({"view": "job", "job": row["job"]} if is_jobs else {"view": "jobs", "node": row["node"]})

    def _back(self) -> None:
        if self._before:
            self._show(self._before.pop())
        elif self._view == "job":
            self._show({"command": "top", "limit": ROWS, "view": "jobs"})
        else:
            self._ask(**dict.fromkeys(FILTERS, ""))

    def _type(self, key: str) -> None:
        assert self._prompt is not None
        name, text = self._prompt
        if key == "enter":
            self._ask(**{name: text})
            self._prompt = None
        elif key == "esc":
            self._prompt = None
        elif key == "backspace":
            self._prompt = (name, text[:-1])
        elif len(key) == 1 and key.isprintable() and len(text) < 60:
            self._prompt = (name, text + key)

    def _move(self, key: str) -> None:
        rows = self._rows()
        steps = {"up": -1, "down": 1, "pageup": -self._page, "pagedown": self._page, "home": -len(rows)}
        steps["end"] = len(rows)
        if key in steps and rows:
            self._at = max(0, min(len(rows) - 1, self._at + steps[key]))
            self._selected = self._name(rows[self._at])

    # -- output --

    def _shown(self) -> dict[str, Any] | None:
        return self._paused if self._paused is not None else self._answer

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return (self._shown() or {}).get("rows") or ()

    def _name(self, row: Mapping[str, Any]) -> object:
        return row.get("job") if self._view == "jobs" else row.get("node")

    def lines(self, width: int, height: int, now: float) -> list[list[Part]]:
        """Return all lines of a screen of this size."""
        if self._is_help:
            lines = [[Part(line)] for line in HELP.splitlines()]
            return [view.cut(line, width) for line in lines[:height]]
        answer = self._shown()
        head = [self._title(answer, width, now)]
        if answer is None:
            head.append([Part(self._trouble or "waiting for the first answer ...", BAD if self._trouble else "")])
        elif self._view == "job":
            number = int(self.request.get("job") or 0)
            head += view.detail(answer.get("job"), number, self._histories.get(number, ()), width, self._bars)
        else:
            head += [[Part(line)] for line in view.summary(answer)]
        head.append(self._what(answer, now))
        room = max(0, height - len(head) - 2)
        self._page = max(1, room - 1)
        lines = head + (self._table(answer, width, room) if answer is not None else [])
        lines = lines[: height - 1]
        lines += [[Part("")]] * (height - 1 - len(lines))
        return [view.cut(line, width) for line in [*lines, self._footer(width)]]

    def _title(self, answer: Mapping[str, Any] | None, width: int, now: float) -> list[Part]:
        left = "colmet top" + (f" - {view.where(answer)}" if answer is not None else "")
        right = f"{view.clock(now)} {Clock().zone(now)}  every {self._interval_s:g} s"
        return [Part(left, TITLE), Part(" " * max(1, width - len(left) - len(right))), Part(right, DIM)]

    def _what(self, answer: Mapping[str, Any] | None, now: float) -> list[Part]:
        if answer is not None and self._trouble:
            since = f"{view.clock(self._answered)} ({view.age(now - self._answered)})"
            return [Part(f"NO ANSWER since {since}: {self._trouble}", BAD)]
        words = []
        if self._paused is not None:
            words.append(Part("PAUSED, p goes on; ", BAD))
        words.append(Part(f"sorted by {self._sort.replace('_', ' ')}", DIM))
        if self.request.get("reverse"):
            words.append(Part(", reversed", DIM))
        for name, what in FILTERS.items():
            if self.request.get(name):
                words.append(Part(f"; {what}{view.clean(self.request[name])} (Esc: all)", KEY))
        return words

    def _table(self, answer: Mapping[str, Any], width: int, room: int) -> list[list[Part]]:
        rows = self._rows()
        if not rows:
            what = {"jobs": "No jobs.", "nodes": "No nodes.", "job": ""}[self._view]
            if any(self.request.get(name) for name in FILTERS):
                what = what.replace(".", " that the filter lets through.")
            return [[Part("")], [Part(what)]]
        names = [self._name(row) for row in rows]
        if self._selected in names:  # the selection follows its row
            self._at = names.index(self._selected)
        self._at = max(0, min(len(rows) - 1, self._at))
        if self._selected is None and self._at == 0:
            self._top = 0
        self._top = max(min(self._top, self._at, max(0, len(rows) - room)), self._at - max(0, room - 1))
        shown = rows[self._top : self._top + room]
        lines = view.table(self._view, rows, width, self._sort, self._at - self._top, shown)
        hidden = len(rows) - self._top - len(shown)
        if hidden > 0 and len(lines) > 1 and self._at - self._top < room - 1:
            lines[-1] = [Part(f"  and {hidden + 1:,} more below", DIM)]
        return lines

    def _footer(self, width: int) -> list[Part]:
        if self._prompt is not None:
            name, text = self._prompt
            asks = "user" if name == "user" else "text in user, node or job"
            return [Part(f"{asks}: ", KEY), Part(view.clean(text)), Part("_", "blink"), Part("   Enter sets it", DIM)]
        *entries, last = FOOTERS[self._view]
        while entries and sum([len(key) + len(what) + 3 for key, what in (*entries, last)]) - 2 > width:
            entries.pop()
        return [part for key, what in (*entries, last) for part in (Part(key, KEY), Part(f" {what}  "))]
