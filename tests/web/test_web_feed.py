"""What the collector sends to colmet-web, and how that reads it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector import feed as feed_module
from colmet.collector.feed import LENGTH, MAX_SENDER_BYTES, NOTE, FeedServer, paths_of
from colmet.common.errors import Refused
from colmet.common.live.summary import Heard
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoder, v1
from colmet.web import feed as reader_module
from colmet.web.feed import Feed, FeedError, split_frames
from tests.support.waiting import wait_for
from tests.support.web_nodes import Cluster
from tests.support.web_process import options


def frame(content, more=0):
    return LENGTH.pack(len(content) | more) + content


# -- reading --


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=40))), st.lists(st.integers(1, 50), min_size=1))
def test_frames_are_whole_wherever_the_stream_is_cut(frames, cuts):
    stream = b"".join(frame(content, NOTE if is_note else 0) for is_note, content in frames)
    rest, found, n = bytearray(), [], 0
    while stream:
        cut = cuts[n % len(cuts)]
        n += 1
        rest += stream[:cut]
        found += split_frames(rest)
        stream = stream[cut:]
    assert found == frames


@pytest.mark.parametrize("length", [MAX_MESSAGE_BYTES + MAX_SENDER_BYTES + 1, (1 << 31) - 1, 0xFFFFFFFF])
def test_a_length_that_no_frame_has_ends_the_stream(length):
    with pytest.raises(FeedError, match="frame of"):
        list(split_frames(bytearray(LENGTH.pack(length) + b"x")))


def read(data, take=lambda batches, sender: None, note=lambda note: None):
    """A reader that has read this stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR))).start()
        reader = Feed([], take, note)
        reader.read(theirs)
    return {key: reader.counters()[key] for key in ("taken", "bad", "failures")}


def test_what_cannot_be_read_is_counted_and_the_rest_goes_on():
    (message, *_) = Cluster().messages()
    taken, notes, senders = [], [], []

    def take(batches, sender):
        if len(taken) == 1:
            taken.append(None)
            raise RuntimeError("a defect")
        taken.extend(batches)
        senders.append(sender)

    notes_sent = [frame(text, NOTE) for text in (b"[1]", b"{", b'{"left_out": 3}')]
    messages = [frame(b"[10.0.0.1]\0" + message), *notes_sent, frame(b"n1\0" + message), frame(b"\0" + message)]
    counts = read(b"".join([frame(b"garbage"), *messages, LENGTH.pack(100) + b"half"]), take, notes.append)
    assert counts == {"taken": 2, "bad": 3, "failures": 1} and senders == ["[10.0.0.1]", ""]
    assert [batch and batch.host for batch in taken] == ["n0", None, "n0"] and notes == [{"left_out": 3}]


def test_a_malformed_description_is_counted():
    counts = read(b"".join([frame(json.dumps({"description": text}).encode(), NOTE) for text in ("x", 5, "\ud800")]))
    assert counts["bad"] + counts["failures"] == 3


def test_the_bound_of_notes_holds_what_the_collector_can_say():
    heard = {f"{'n' * 248}{n:07}": [1 << 62, 1 << 62] for n in range(16384)}
    assert len(json.dumps({"heard": heard})) < reader_module.MAX_NOTE_BYTES


# -- sending --


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "feed.sock")


@contextlib.contextmanager
def sending(path, *given, status=None, **more):
    one = FeedServer([path], *given, **more)
    if status is not None:
        one.report(status)
    one.start()
    try:
        yield one
    finally:
        one.close()
        one.close()


@contextlib.contextmanager
def connected(feed):
    """The stream of a reader."""
    before = feed.counters()["readers"]
    with socket.socket(socket.AF_UNIX) as source:
        source.settimeout(30)
        source.connect(feed.path)
        wait_for(lambda: feed.counters()["readers"] == before + 1)
        yield source


def next_frame(source):
    def exactly(size):
        data = b""
        while len(data) < size:
            data += source.recv(size - len(data))
        return data

    (head,) = LENGTH.unpack(exactly(LENGTH.size))
    content = exactly(head & ~NOTE)
    return json.loads(content) if head & NOTE else content.partition(b"\0")[2]


def test_every_message_arrives_whole_and_in_order_at_each_reader(path):
    messages = [f"{n}:{'x' * (n * n % 70001)}".encode() for n in range(300)]
    with sending(path, lambda: {"n1": Heard(5, 7)}) as feed, connected(feed) as first, connected(feed) as second:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        for message in messages:
            feed.put(message)
        for source in (first, second):
            assert next_frame(source) == {"heard": {"n1": [5, 7]}}
            assert [next_frame(source) for _ in messages] == messages
        counts = {"readers": 2, "stuck": 0, "sent": 600, "left_out": 0, "waiting_bytes": 0}
        assert feed.counters() == counts
        second.close()
        wait_for(lambda: (feed.put(b"x"), feed.counters()["readers"] == 1)[1])
    assert not os.path.exists(path)


def test_the_status_of_the_collector_is_sent_every_few_seconds(path, monkeypatch):
    monkeypatch.setattr(feed_module, "STATUS_S", 0.0)
    reports = [0]

    def status():
        reports[0] += 1
        if reports[0] == 2:
            raise Refused("the daemon did not do it within 5 s")
        return {"daemon": "collector", "n": reports[0]}

    with sending(path, status=status) as feed, connected(feed) as source:
        next_frame(source)
        assert [next_frame(source)["status"]["n"] for _ in range(3)] == [1, 3, 4], (
            "one that could not be had is left out"
        )


def test_who_reads_nothing_makes_nobody_wait_and_what_is_left_out_is_counted_and_told(path, monkeypatch, caplog):
    monkeypatch.setattr(feed_module, "MAX_WAITING_BYTES", 1 << 20)
    monkeypatch.setattr(feed_module, "PERIOD_S", 3600.0)
    with sending(path) as feed, connected(feed) as source:
        for _ in range(300):
            feed.put(b"x" * 50_000)
        left_out = feed.counters()["left_out"]
        assert left_out == 280 and feed.counters()["waiting_bytes"] <= 1 << 20
        assert "messages dropped left_out=10" in caplog.text
        (reader,) = feed._readers
        next_frame(source)
        source.close()
        assert reader.take().startswith(feed_module.note({"left_out": left_out}))
        assert reader.take() == b""


def test_one_that_reads_nothing_for_long_is_disconnected(path, monkeypatch, caplog):
    monkeypatch.setattr(feed_module, "STUCK_S", 0.2)
    with sending(path) as feed, connected(feed):
        for _ in range(100):
            feed.put(b"x" * 100_000)
        wait_for(lambda: feed.counters()["readers"] == 0)
        assert feed.counters()["stuck"] == 1 and "has read nothing" in caplog.text


def test_more_readers_than_four_are_turned_away(path):
    with sending(path) as feed, contextlib.ExitStack() as stack:
        for _ in range(feed_module.READERS):
            stack.enter_context(connected(feed))
        with socket.socket(socket.AF_UNIX) as more:
            more.settimeout(30)
            more.connect(path)
            assert more.recv(1) == b""


def test_a_reader_connects_again_after_each_end_and_begins_anew(path, monkeypatch, caplog):
    monkeypatch.setattr(reader_module, "FIRST_DELAY_S", 0.05)
    (message, *_) = Cluster().messages()
    ending, taken, begun = threading.Event(), [], []
    reader = Feed(
        ["/nonexistent/feed.sock", path],
        lambda batches, _: taken.extend(batches),
        begun.append,
        lambda: begun.append(1),
    )
    thread = threading.Thread(target=reader.follow, args=(ending,))
    thread.start()
    try:
        wait_for(lambda: "no feed of the collector" in caplog.text)
        for n in range(2):
            with sending(path) as feed:
                wait_for(lambda: feed.counters()["readers"])
                wait_for(lambda: reader.counters()["away"] == 0)
                feed.put(message, "n1")
                wait_for(lambda: len(taken) == n + 1)  # noqa: B023
            wait_for(lambda: reader.counters()["away"])
        assert begun.count(1) == reader.counters()["connections"] == 2
    finally:
        ending.set()
        thread.join(30)


# -- the socket --


def test_the_feed_is_beside_the_control_socket(tmp_path):
    assert paths_of(options("--control-socket", "/run/x/c.sock")) == ["/run/x/c-feed.sock"]
    assert paths_of(options("--control-socket", "")) == []
    assert paths_of(options("--control-socket", "tcp://127.0.0.1:5")) == [""]
    assert all(path.endswith("/collector-feed.sock") for path in paths_of(options()))


def test_a_socket_in_use_is_left_alone(path, caplog):
    with sending(path):
        assert FeedServer([path]).path == "" and "in use" in caplog.text
        assert os.path.exists(path)
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(path)
    with sending(path) as feed:
        assert feed.path == path, "one of a former run is replaced"
    with sending("/nonexistent/run/feed.sock") as feed:
        feed.put(b"x")
        assert feed.path == "" and feed.counters()["sent"] == 0


# -- descriptions --


def short_messages(count):
    """Short messages, each with its batches."""
    found = []
    decoder = Decoder()
    for message in Cluster().messages():
        (one,) = decoder.decode(message).batches
        found.append((v1.encode(one, is_short=True), [one]))
    return (found * count)[:count]


@pytest.mark.parametrize("dropped", [0, 1])
def test_tables_are_described_once_a_connection_also_after_a_dropped_message(dropped, monkeypatch):
    messages = short_messages(20)
    for _ in range(2):
        reader = feed_module._Reader(None)
        if dropped:
            monkeypatch.setattr(feed_module, "MAX_WAITING_BYTES", 10)
            assert not reader.put(b"", *messages[0])
            monkeypatch.undo()
        for message, batches in messages:
            assert reader.put(LENGTH.pack(len(message) + 2) + b"n\0", message, batches)
        taken, notes = [], []
        counts = read(reader.take(), lambda batches, _: taken.extend(batches), notes.append)  # noqa: B023
        assert counts == {"taken": 20, "bad": 0, "failures": 0}
        assert [table.schema for table in taken[-1].tables] == [t.schema for t in messages[-1][1][0].tables]
        assert notes == [{"left_out": 1}] * dropped, "a description is none for the others"
