"""Reads of /proc/<pid> that never block the caller for long.

A process can block its readers for any time. Most files below /proc/<pid> need a lock that
execve(2) holds while it closes files (``exec_update_lock``: io, environ, in kernels of 2026 also stat and the links in
fd). Closing a file of a FUSE mount waits for the program behind the mount, and any user can run one. Opening a file
there by its path needs the lock of the directory, and a user can block that in a similar way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from colmet.common.daemon.logs import powers_of_ten

log = logging.getLogger(__name__)

LOOK_S = 0.004  # between two checks of a reader
BUDGET_S = 0.032  # of waiting for blocked readers, at once
REFILL = 0.032  # of the budget, in seconds a second
START_S = 0.2  # for a reader to begin
LOCK_S = 0.2  # of waiting for a lock: Python's is free within that, one of a library may be held by a blocked reader
MAX_WAITING = 32  # blocked readers
MAX_OF_PARTY = 4  # blocked readers of one party's processes
SUSPECT_S = 600.0  # a party with a blocking process comes last for this time
MAX_SUSPECTS = 1024
# The number of the system call futex: a thread waits in it for Python's lock (the GIL) while another one computes.
# None if unknown. Source: the kernel's tables of system calls (arch/*/kernel/syscalls, asm-generic).
_FUTEX = {"x86_64": b"202", "ppc64le": b"221", "s390x": b"238", "aarch64": b"98", "riscv64": b"98"}.get(
    os.uname().machine
)


class Question(NamedTuple):
    """A question about a process."""

    pid: int  # the process, or a thread of it
    party: str  # able to make it wait, in most cases a user; bounds apply by party, so that others lose nothing
    find: Callable[[], Any]  # returns the answer, in another thread, and may block there


class NoAnswer:
    """In place of an answer: the process did not answer in time, or the question was skipped."""


NO_ANSWER = NoAnswer()


class _Work:
    """Questions for one reader; `place` is its current index in `order`."""

    __slots__ = ("answers", "ended", "given_up", "is_done", "lock", "order", "place", "questions")

    def __init__(self, questions: Sequence[Question], order: Sequence[int], answers: list[Any]) -> None:
        self.questions = questions
        self.order = order
        self.answers = answers
        self.place = -1
        self.given_up = self.is_done = False
        self.lock = threading.Lock()
        self.ended = threading.Lock()
        self.ended.acquire()

    def advance(self) -> bool:
        """Go on to the next question; return False after the last, or if the reader was given up."""
        with self.lock:
            if self.given_up or self.place + 1 == len(self.order):
                self.is_done = True
                return False
            self.place += 1
            return True

    def give_up(self) -> bool:
        """Stop the reader after its current question; return False if it has finished all."""
        with self.lock:
            self.given_up = not self.is_done
            return self.given_up


class _ReaderThread:
    """A thread that finds answers. Once given up, it ends when it returns.

    Attributes:
        cpu_ns: CPU time used.
        blocked_in: its state in the kernel and its system call at the last check that found it blocked.
    """

    def __init__(self) -> None:
        self.cpu_ns = 0
        self.blocked_in = "not begun"
        self._work: _Work | None = None
        self._fd = self._call_fd = -1
        self._start_by = time.monotonic() + START_S
        self._wake = threading.Lock()
        self._wake.acquire()
        self.thread = threading.Thread(target=self._run, name="colmet-processes", daemon=True)
        self.thread.start()

    def begin(self, work: _Work) -> None:
        """Start work on these questions."""
        self._work = work
        self._wake.release()

    def end(self) -> None:
        """End the thread; once, while it is idle."""
        self._wake.release()

    def runs(self, may_lock: bool = True) -> bool:
        """Return whether it runs, or needs only a CPU or, with `may_lock`, a lock: no process blocks it."""
        if self._fd < 0:
            return time.monotonic() < self._start_by
        stat = os.pread(self._fd, 512, 0)
        state = stat[stat.rfind(b")") + 2 :][:1]
        if state == b"R":
            return True
        call = os.pread(self._call_fd, 512, 0).split(None, 1)[:1] if self._call_fd >= 0 else []
        # -1: in no system call, but waits for a page of its own memory: no other process can delay that
        if call in ([b"running"], [b"-1"]) or (may_lock and call == [_FUTEX]):
            return True
        self.blocked_in = b" ".join([state, *call]).decode("ascii", "replace")
        return False

    def _run(self) -> None:
        # kept open: checking the reader must need no lock of a directory
        with contextlib.suppress(OSError):  # a kernel without it, or files of /proc/self that are root's
            self._call_fd = os.open("/proc/thread-self/syscall", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._fd = os.open("/proc/thread-self/stat", os.O_RDONLY | os.O_CLOEXEC)
            while True:
                self._wake.acquire()
                work, self._work = self._work, None
                if work is None:
                    return
                start = time.thread_time_ns()
                while work.advance():
                    n = work.order[work.place]
                    try:
                        work.answers[n] = work.questions[n].find()
                    except Exception as err:  # noqa: BLE001 - it is the answer, for the caller to judge
                        work.answers[n] = err
                self.cpu_ns += time.thread_time_ns() - start
                is_over = work.given_up
                work.ended.release()
                if is_over:
                    return
                del work  # with the open files of its questions
        finally:
            fds = self._fd, self._call_fd
            self._fd = self._call_fd = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)


class Processes:
    """Queries about processes, run in a thread; continues without processes that do not answer.

    The caller waits for the thread while it works, and for some milliseconds once it is blocked. Then the thread is
    given up, and another one continues with the other questions. The blocked thread is left alone until it returns;
    its process is skipped until then. All waits together are bounded (`BUDGET_S`, `REFILL`), and so are the threads.
    Parties with recently blocked processes come last, and half of both bounds is reserved for other parties.

    Not thread-safe.

    Attributes:
        unanswered: processes that did not answer in time.
        left_out: questions skipped, as processes of the same party, or too many in all, do not answer.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.unanswered = 0
        self.left_out = 0
        self._monotonic = monotonic
        self._left_s = BUDGET_S
        self._as_of = monotonic()
        self._idle: list[_ReaderThread] = []  # at most one; a list, for `finalize`
        self._waiting: dict[int, tuple[str, _ReaderThread]] = {}  # by the blocked process
        self._of_party: Counter[str] = Counter()  # of these
        self._suspects: dict[str, float] = {}  # with the end of suspicion
        self._cpu_ns = 0
        weakref.finalize(self, _end_all, self._idle).atexit = False

    @property
    def waiting(self) -> int:
        """Number of unanswered processes, each with a blocked thread."""
        return len(self._waiting)

    @property
    def cpu_ns(self) -> int:
        """CPU time of the threads."""
        return self._cpu_ns + sum(reader.cpu_ns for reader in self._idle)

    def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Return an answer to each question: the result or exception of its `find`, or NO_ANSWER."""
        answers: list[Any] = [NO_ANSWER] * len(questions)
        self._forget()
        order: Sequence[int] = range(len(questions))
        while order:
            order = self._admitted(questions, order)
            reader = self._reader() if order else None
            if reader is None:
                self.left_out += len(order)
                break
            work = _Work(questions, order, answers)
            reader.begin(work)
            if self._has_ended(reader, work):
                self._idle.append(reader)
                break
            if not work.give_up():
                work.ended.acquire()
                self._idle.append(reader)
                break
            self._note(work, reader)
            order = order[work.place + 1 :]
        return answers[:]  # a copy: a thread that was given up may still write to the other list

    def close(self) -> None:
        """End the idle thread; blocked ones end when they return, or with the process."""
        readers = self._idle[:]
        _end_all(self._idle)
        for reader in readers:
            reader.thread.join(1)
            self._cpu_ns += reader.cpu_ns

    def _has_ended(self, reader: _ReaderThread, work: _Work) -> bool:
        """Wait for a reader; return False if it is blocked, or its party has used up the time to wait."""
        if work.ended.acquire(timeout=LOOK_S):
            return True
        at, since = work.place, time.monotonic()
        while True:
            if work.place != at:
                at, since = work.place, time.monotonic()
            may_lock = time.monotonic() - since < LOCK_S
            if reader.runs(may_lock):
                if work.ended.acquire(timeout=LOOK_S):
                    return True
                continue
            place = work.place
            ended = work.ended.acquire(timeout=LOOK_S)
            self._left_s -= 2 * LOOK_S
            if ended:
                return True
            if place < 0:
                return False
            party = work.questions[work.order[place]].party
            self._suspect(party)
            if (work.place == place and not reader.runs(may_lock)) or not self._may_wait(party):
                return False

    def _admitted(self, questions: Sequence[Question], order: Sequence[int]) -> list[int]:
        """Return the questions to ask, those of suspects last; count the others."""
        may_wait = {party: self._may_wait(party) for party in {questions[n].party for n in order}}
        admitted = [n for n in order if may_wait[questions[n].party] and questions[n].pid not in self._waiting]
        self.left_out += len(order) - len(admitted)
        if self._suspects:
            admitted.sort(key=lambda n: questions[n].party in self._suspects)  # stable
        return admitted

    def _may_wait(self, party: str) -> bool:
        """Return whether time and a thread are left for a party's process, in case it does not answer."""
        share = 2 if party in self._suspects else 1
        return (
            self._left_s > BUDGET_S - BUDGET_S / share
            and len(self._waiting) < MAX_WAITING // share
            and self._of_party[party] < MAX_OF_PARTY
        )

    def _reader(self) -> _ReaderThread | None:
        """Return an idle or new reader; None if the system provides no thread."""
        if self._idle:
            return self._idle.pop()
        try:
            return _ReaderThread()
        except RuntimeError:
            return None

    def _note(self, work: _Work, reader: _ReaderThread) -> None:
        if work.place < 0:  # the thread has not begun
            question = Question(-(reader.thread.native_id or 1), "colmet-node", lambda: None)
        else:
            question = work.questions[work.order[work.place]]
        reader.cpu_ns -= (counted := reader.cpu_ns)
        self._cpu_ns += counted
        self._waiting[question.pid] = question.party, reader
        self._of_party[question.party] += 1
        self.unanswered += 1
        if powers_of_ten(self.unanswered):
            log.warning(
                "a process does not answer pid=%d of=%s unanswered=%d blocked_in=%r: its values from /proc are missing "
                "until they can be read",
                question.pid,
                question.party,
                self.unanswered,
                reader.blocked_in,
            )

    def _suspect(self, party: str) -> None:
        self._suspects.pop(party, None)
        if len(self._suspects) >= MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        self._suspects[party] = self._monotonic() + SUSPECT_S

    def _forget(self) -> None:
        """Refill the budget by the elapsed time; forget readers that have returned."""
        now = self._monotonic()
        self._left_s = min(BUDGET_S, self._left_s + (now - self._as_of) * REFILL)
        self._as_of = now
        if self._waiting:
            for pid in [pid for pid, (_, reader) in self._waiting.items() if not reader.thread.is_alive()]:
                party, reader = self._waiting.pop(pid)
                self._of_party[party] -= 1
                self._cpu_ns += reader.cpu_ns
            self._of_party += Counter()  # drops parties without any
        if self._suspects:
            self._suspects = {party: until for party, until in self._suspects.items() if now < until}


def _end_all(readers: list[_ReaderThread]) -> None:
    while readers:
        readers.pop().end()
