"""Reads that may not return: FIFOs that nobody writes to stand for processes that do not answer."""

import ctypes
import os
import statistics
import threading
import time

import pytest

from colmet.common.host import processes
from colmet.common.host.host import Host
from colmet.common.host.processes import NO_ANSWER, Processes, Question
from tests.support.waiting import Clock, wait_for


class Tree:
    """Processes whose `io` is a file, or a FIFO: to open it waits until someone opens it to write."""

    def __init__(self, root):
        self.root = root
        self.host = Host(root=str(root))
        self.fifos = []

    def path(self, pid):
        (self.root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        return self.root / f"proc/{pid}/io"

    def answering(self, pid):
        self.path(pid).write_text(f"io of {pid}")
        return pid

    def silent(self, pid):
        os.mkfifo(self.path(pid))
        self.fifos.append(pid)
        return pid

    def question(self, pid, party="alice"):
        return Question(pid, party, lambda: self.host.read_start(f"/proc/{pid}/io", 100))

    def answer(self, pid):
        """Have it answer from now on."""
        path = self.path(pid)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # whoever waits gets it open, and finds it is no plain file
        path.unlink()
        self.answering(pid)
        self.fifos.remove(pid)
        return fd


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    yield made
    fds = [made.answer(pid) for pid in list(made.fifos)]
    until = time.monotonic() + 5
    while made.host.processes.waiting and time.monotonic() < until:
        made.host.processes.ask([])
        time.sleep(0.01)
    for fd in fds:
        os.close(fd)
    made.host.processes.close()


@pytest.fixture
def ask(tree):
    """Ask, and see that it does not take long."""

    def one_tick(*questions):
        start = time.monotonic()
        answers = tree.host.processes.ask(questions)
        took_s.append(time.monotonic() - start)
        return answers

    took_s = one_tick.took_s = []
    return one_tick


def test_answers_come_in_the_order_of_the_questions_and_an_error_is_an_answer(tree, ask):
    pids = [tree.answering(pid) for pid in range(10, 300)]
    answers = ask(*map(tree.question, pids), tree.question(999))
    assert answers[:-1] == [f"io of {pid}".encode() for pid in pids]
    assert isinstance(answers[-1], FileNotFoundError)
    assert tree.host.processes.unanswered == tree.host.processes.left_out == 0


def test_one_that_does_not_answer_costs_its_own_answer_and_a_moment(tree, ask, caplog):
    answers = ask(*(tree.question(pid) for pid in (tree.answering(10), tree.silent(11), tree.answering(12))))
    assert answers == [b"io of 10", NO_ANSWER, b"io of 12"]
    assert ask.took_s[0] < 1
    assert "a process does not answer pid=11 of=alice unanswered=1 blocked_in='S " in caplog.text


def test_it_is_not_asked_again_before_it_has_answered(tree, ask):
    questions = [tree.question(tree.silent(11)), tree.question(tree.answering(12))]
    ask(*questions)
    threads = threading.active_count()
    for _ in range(20):
        assert ask(*questions) == [NO_ANSWER, b"io of 12"]
    found = tree.host.processes
    assert (found.unanswered, found.left_out, found.waiting) == (1, 20, 1)
    assert threading.active_count() == threads
    assert sorted(ask.took_s[1:])[10] < 2 * processes.LOOK_S, "nothing is waited for again"
    fd = tree.answer(11)
    until = time.monotonic() + 5
    while ask(*questions)[0] is NO_ANSWER and time.monotonic() < until:
        time.sleep(0.01)
    os.close(fd)
    assert ask(*questions) == [b"io of 11", b"io of 12"]
    assert found.waiting == 0


def test_a_partys_many_silent_processes_cost_a_few_threads_and_nobody_elses_answers(tree, ask):
    """New ones each tick, before and after those of others."""
    others = [tree.question(tree.answering(pid), f"user {pid}") for pid in range(500, 520)]
    threads = threading.active_count()
    for tick in range(5):
        new = [tree.question(tree.silent(1000 * tick + n)) for n in range(10000, 10020)]
        answers = ask(*new[:10], *others, *new[10:])
        assert answers[10:30] == [f"io of {pid}".encode() for pid in range(500, 520)]
        assert set(answers[:10] + answers[30:]) == {NO_ANSWER}
    found = tree.host.processes
    assert found.waiting <= processes.MAX_OF_PARTY
    assert threading.active_count() <= threads + processes.MAX_OF_PARTY + 1
    assert found.unanswered + found.left_out == 100
    assert statistics.median(ask.took_s) < 0.1  # one may be late where others compute


def test_many_parties_at_once_are_bounded_in_time_and_in_threads(tree, ask):
    everybody = [
        tree.question(tree.silent(pid) if pid % 2 else tree.answering(pid), f"user {pid}") for pid in range(100, 400)
    ]
    for _ in range(50):
        ask(*everybody)
        time.sleep(0.02)
    found = tree.host.processes
    assert found.waiting <= processes.MAX_WAITING
    assert statistics.median(ask.took_s) < 0.1  # one may be late where others compute
    assert found.unanswered <= processes.MAX_WAITING


def test_the_time_to_wait_comes_back_and_half_of_it_is_kept_for_parties_that_answered(monkeypatch):
    clock = Clock()
    asked = Processes(monotonic=clock)
    blocked, wake = os.pipe()

    def wait(pid, party):
        return asked.ask([Question(pid, party, lambda: os.read(blocked, 1))])[0] is NO_ANSWER

    try:
        pid = 0
        while asked.ask([Question(99, "mallory", lambda: 7)]) == [7]:  # spends all that suspects may
            pid += 1
            assert wait(pid, "mallory")
        assert pid <= processes.MAX_OF_PARTY
        assert asked.ask([Question(99, "alice", lambda: 7), Question(98, "mallory", lambda: 8)]) == [7, NO_ANSWER]
        clock.now += 60
        asked.ask([])
        assert asked._left_s == processes.BUDGET_S
        os.close(wake)
        wake = -1
        until = time.monotonic() + 5
        while asked.waiting and time.monotonic() < until:
            asked.ask([])
        assert asked.ask([Question(1, "mallory", lambda: 8)]) == [8]
    finally:
        if wake >= 0:
            os.close(wake)
        os.close(blocked)
        asked.close()


def test_what_works_for_long_is_waited_for():
    """It is no matter of time, but of whether the thread is blocked."""
    asked = Processes()

    def work():
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass
        return "done"

    assert asked.ask([Question(1, "alice", work), Question(2, "alice", lambda: "next")]) == ["done", "next"]
    assert asked.unanswered == 0
    assert asked.cpu_ns > 100_000_000
    asked.close()


@pytest.mark.skipif(processes._FUTEX is None, reason="the number of the system call futex is not known here")
def test_a_thread_that_computes_beside_costs_no_answer():
    """It holds Python's lock (the GIL), and the reader waits for that; other threads are the link's, or a backend's."""
    asked = Processes()
    ends = False

    def compute():
        while not ends:
            sum(n * n for n in range(1000))

    def work():
        for _ in range(3):
            os.stat("/proc/self/statm")  # gives the lock up
        return "done"

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            assert asked.ask([Question(n, "alice", work) for n in range(100)]) == ["done"] * 100
        assert asked.unanswered == 0
    finally:
        ends = True
        for thread in threads:
            thread.join()
        asked.close()


def test_no_thread_is_left(tree, ask):
    before = set(threading.enumerate())
    ask(tree.question(tree.answering(1)))
    tree.host.processes.close()
    assert set(threading.enumerate()) <= before
    assert ask(tree.question(1)) == [b"io of 1"], "and it can be used again"


def test_a_lock_of_a_library_that_a_blocked_reader_holds_is_waited_for_a_moment_only():
    """As of a library that asks a directory server for a user's name: one question after the other."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_init(mutex, None)
    readable, writable = os.pipe()

    def look_up():
        library.pthread_mutex_lock(mutex)
        os.read(readable, 1)
        library.pthread_mutex_unlock(mutex)

    asked = Processes()
    for number in (1, 2):
        began = time.monotonic()
        assert asked.ask([Question(number, f"user{number}", look_up)]) == [NO_ANSWER]
        assert time.monotonic() - began < 5, "it would last until the server answers"
    os.write(writable, b"xx")
    wait_for(lambda: asked.ask([]) == [] and not asked.waiting)
    os.close(readable)
    os.close(writable)
