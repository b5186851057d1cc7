"""What the collector sends to the process of the JSON interface, and how that reads it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector import web_launcher
from colmet.collector.web_launcher import DROPPED, FEED, LENGTH, MAX_SENDER_BYTES, NOTE, WebLauncher
from colmet.common.errors import Refused
from colmet.common.live.summary import Heard
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoder, v1
from colmet.web import feed as feed_module
from colmet.web.feed import Feed, FeedError, Frames, inherited
from tests.support.waiting import wait_for
from tests.support.web_nodes import Cluster

SINK = """
import json, os, socket, struct, sys
feed = socket.socket(fileno=int(os.environ["COLMET_HTTP_FEED"]))
out = open(sys.argv[1], "a")
stream = feed.makefile("rb")
print("sink: begins", file=out, flush=True)
while head := stream.read(4):
    (size,) = struct.unpack("<I", head)
    content = stream.read(size & 0x7FFFFFFF)
    sender, _, content = (b"", b"", content) if size >> 31 else content.partition(b"\\0")
    said = ["note", json.loads(content)] if size >> 31 else ["message", content.decode()]
    print(json.dumps(said), file=out, flush=True)
print("2026-01-01 10:00:00,000 ERROR x.y: it is over", file=sys.stderr)
sys.exit(3)
"""


def frame(content, more=0):
    return LENGTH.pack(len(content) | more) + content


# -- reading --


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=40))), st.lists(st.integers(1, 50), min_size=1))
def test_frames_are_whole_wherever_the_stream_is_cut(frames, cuts):
    stream = b"".join(frame(content, NOTE if is_note else 0) for is_note, content in frames)
    reader, found, n = Frames(), [], 0
    while stream:
        cut = cuts[n % len(cuts)]
        n += 1
        found += reader.add(stream[:cut])
        stream = stream[cut:]
    assert found == frames


@pytest.mark.parametrize("length", [MAX_MESSAGE_BYTES + MAX_SENDER_BYTES + 1, (1 << 31) - 1, 0xFFFFFFFF])
def test_a_length_that_no_frame_has_ends_the_stream(length):
    with pytest.raises(FeedError, match="frame of"):
        list(Frames().add(LENGTH.pack(length) + b"x"))


@pytest.mark.parametrize("number", ["", "x", "9999", "-1"])
def test_without_a_collector_there_is_no_feed(number):
    with pytest.raises(FeedError, match="colmet-collector starts this"):
        inherited({FEED: number} if number else {})


def test_what_cannot_be_read_is_counted_and_the_rest_goes_on():
    ours, theirs = socket.socketpair()
    (message, *_) = Cluster().messages()
    taken, notes, senders = [], [], []

    def take(batches, sender):
        if len(taken) == 1:
            taken.append(None)
            raise RuntimeError("a defect")
        taken.extend(batches)
        senders.append(sender)

    reader = Feed(theirs, take, notes.append)
    notes_sent = [frame(text, NOTE) for text in (b"[1]", b"{", b'{"left_out": 3}')]
    messages = [frame(b"[10.0.0.1]\0" + message), *notes_sent, frame(b"n1\0" + message), frame(b"\0" + message)]
    ours.sendall(b"".join([frame(b"garbage"), *messages]))
    ours.close()
    reader.run()
    theirs.close()
    assert reader.counters() == {"taken": 2, "bad": 3, "failures": 1} and senders == ["[10.0.0.1]", ""]
    assert [batch and batch.host for batch in taken] == ["n0", None, "n0"] and notes == [{"left_out": 3}]


def test_a_connection_that_breaks_ends_the_reading():
    ours, theirs = socket.socketpair()
    ours.sendall(LENGTH.pack(100) + b"half")
    ours.close()
    reader = Feed(theirs, lambda batches, sender: None, lambda note: None)
    reader.run()
    theirs.close()
    assert reader.counters() == {"taken": 0, "bad": 0, "failures": 0}


def test_the_bound_of_notes_holds_what_the_collector_can_say():
    heard = {f"{'n' * 248}{n:07}": [1 << 62, 1 << 62] for n in range(16384)}
    assert len(json.dumps({"heard": heard})) < feed_module.MAX_NOTE_BYTES


# -- sending --


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "child.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def start(script, tmp_path):
    started = []

    def run(text=SINK, heard=dict, status=None, **options):
        out = tmp_path / "out"
        out.touch()
        one = WebLauncher([str(out)], heard, script(text), **options)
        if status is not None:
            one.report(status)
        started.append(one)
        one.start()
        wait_for(lambda: one.counters()["running"])
        return one, out

    yield run
    for one in started:
        one.close()
        one.close()


def sent(out):
    whole = out.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if not line.startswith("sink")]


def flushed(one):
    def all_gone():
        one.flush()
        return one.delay_s() > 1

    wait_for(all_gone)


def test_every_message_arrives_whole_and_in_order(start):
    one, out = start(heard=lambda: {"n1": Heard(5, 7)})
    messages = [f"{n}:{'x' * (n * n % 70001)}" for n in range(500)]
    for n, message in enumerate(messages):
        one.put(message.encode())
        if n % 7 == 0:
            one.flush()
    flushed(one)
    wait_for(lambda: len(sent(out)) == 501)
    assert sent(out)[0] == ["note", {"heard": {"n1": [5, 7]}}]
    assert [text for _, text in sent(out)[1:]] == messages
    assert one.counters() == {
        **{"running": 1, "restarts": 0, "stuck": 0, "sent": 500, "left_out": 0, "waiting_bytes": 0},
        **dict.fromkeys(DROPPED, 0),
    }


def test_the_status_of_the_collector_is_sent_every_few_seconds_between_the_messages(start, monkeypatch):
    monkeypatch.setattr(web_launcher, "STATUS_S", 0.1)
    monkeypatch.setattr(web_launcher, "LOOK_S", 0.05)
    reports = [0]

    def status():
        reports[0] += 1
        if reports[0] == 2:
            raise Refused("the daemon did not do it within 5 s")
        return {"daemon": "collector", "n": reports[0]}

    one, out = start(status=status)
    for n in range(200):
        one.put(f"{n}".encode())
    wait_for(lambda: (one.flush(), reports[0] > 4)[1])
    flushed(one)
    wait_for(lambda: len(sent(out)) >= 200 + 4)
    said = sent(out)
    assert [content for kind, content in said if kind == "message"] == [str(n) for n in range(200)]
    found = [content["status"]["n"] for kind, content in said if kind == "note" and "status" in content]
    assert found[:3] == [1, 3, 4], "one that could not be had is left out"


def test_what_the_process_drops_is_counted_by_the_collector():
    ours, theirs = socket.socketpair()
    (message, *_) = Cluster().messages()
    ours.setblocking(False)
    one = WebLauncher([])
    one._socket = ours
    one.put(message, "[10.0.0.1]")
    one.flush()
    theirs.shutdown(socket.SHUT_RD)
    senders = []
    reader = Feed(
        theirs, lambda batches, sender: senders.append(sender), lambda note: None, lambda: dict(zip(DROPPED, (1, 2, 3)))
    )
    reader.run()
    assert senders == ["[10.0.0.1]"]
    assert one._hear(ours) and [one.counters()[name] for name in DROPPED] == [1, 2, 3]
    for line in (b'{"tables_left_out": 9}\n', b"[1]\n", b"nonsense\n", b"x" * 5000 + b"\n"):
        theirs.sendall(line)
        assert one._hear(ours) and one._hear(ours)
    assert [one.counters()[name] for name in DROPPED] == [1, 2, 3], "what is none changes nothing"
    theirs.close()
    assert not one._hear(ours)
    ours.close()


def test_who_reads_nothing_makes_nobody_wait_and_what_is_left_out_is_counted_and_reported(start, monkeypatch, caplog):
    monkeypatch.setattr(web_launcher, "MAX_WAITING_BYTES", 1 << 20)
    one, out = start()
    process = one._process
    process.send_signal(signal.SIGSTOP)
    for _ in range(300):
        one.put(b"x" * 50_000)
        one.flush()
    left_out = one.counters()["left_out"]
    assert 100 < left_out < 290 and one.counters()["waiting_bytes"] <= 1 << 20
    assert "messages dropped left_out=10" in caplog.text
    process.send_signal(signal.SIGCONT)
    flushed(one)
    flushed(one)
    wait_for(lambda: ["note", {"left_out": left_out}] in sent(out))
    assert len([kind for kind, _ in sent(out) if kind == "message"]) == 300 - left_out


def test_one_that_hangs_for_too_long_is_ended_and_started_again(start, monkeypatch, caplog):
    monkeypatch.setattr(web_launcher, "FIRST_DELAY_S", 0.05)
    now = [0.0]
    one, out = start(monotonic=lambda: now[0])
    wait_for(lambda: "begins" in out.read_text())
    one._process.send_signal(signal.SIGSTOP)
    for _ in range(100):
        one.put(b"x" * 50_000)
    one.flush()
    now[0] += web_launcher.STUCK_S + 1
    one.flush()
    wait_for(lambda: out.read_text().count("begins") == 2)
    counts = one.counters()
    assert (counts["stuck"], counts["restarts"]) == (1, 1)
    assert "has read nothing for 60 s" in caplog.text and "SIGKILL" in caplog.text


def test_one_that_dies_is_started_again_and_gets_what_comes_then(start, monkeypatch, caplog):
    monkeypatch.setattr(web_launcher, "FIRST_DELAY_S", 0.05)
    one, out = start()
    wait_for(lambda: "begins" in out.read_text())
    one._process.kill()
    wait_for(lambda: out.read_text().count("begins") == 2)
    wait_for(lambda: one.counters()["running"])
    one.put(b"hello")
    flushed(one)
    wait_for(lambda: ["message", "hello"] in sent(out))
    assert one.counters()["restarts"] == 1 and "JSON interface ended, it is restarted" in caplog.text


def test_why_it_ended_is_logged_in_its_own_words(start, monkeypatch, caplog, capfd):
    monkeypatch.setattr(web_launcher, "MAX_DELAY_S", 0.05)
    monkeypatch.setattr(web_launcher, "FIRST_DELAY_S", 0.05)
    text = 'import sys; print("2026-01-01 1:0 ERROR a.b: the port is taken\\nsome more", file=sys.stderr); sys.exit(2)'
    one, _ = start(text)
    wait_for(lambda: one.counters()["restarts"] >= 10)
    said = [record.message for record in caplog.records]
    assert "failures=1 delay_s=0.05: the port is taken (status 2)" in said[0]
    assert len([line for line in said if "it is restarted" in line]) == 2, "the 1st and the 10th time"
    assert "some more" in capfd.readouterr().err, "what it logs comes where the collector logs"


def test_what_cannot_be_started_is_tried_again(monkeypatch, caplog):
    monkeypatch.setattr(web_launcher, "MAX_DELAY_S", 0.05)
    monkeypatch.setattr(web_launcher, "FIRST_DELAY_S", 0.05)
    one = WebLauncher([], command=["/nonexistent/python"])
    one.put(b"nobody is there")
    one.flush()
    assert one.counters()["left_out"] == 1 and one.delay_s() > 1
    one.start()
    wait_for(lambda: one.counters()["restarts"] > 1)
    one.close()
    assert one.failure.startswith("cannot start /nonexistent/python: No such file")
    assert "cannot start /nonexistent/python: No such file" in caplog.text


def test_it_ends_with_the_collector_and_one_that_does_not_is_killed(start, monkeypatch):
    monkeypatch.setattr(web_launcher, "END_S", 0.2)
    one, out = start("import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    wait_for(lambda: out.read_text())
    one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(out.read_text()), 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "web"]


# -- descriptions --


def short_messages(count):
    """Short messages, each with its batches."""
    found = []
    decoder = Decoder()
    for message in Cluster().messages():
        (one,) = decoder.decode(message).batches
        found.append((v1.encode(one, is_short=True), [one]))
    return (found * count)[:count]


def test_tables_are_described_once_a_connection():
    one = WebLauncher([])
    messages = short_messages(20)
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs, one._feeding(ours, None):
            for message, batches in messages:
                one.put(message, "n", batches)
            one.flush()
            taken, notes = [], []
            reader = Feed(theirs, lambda batches, sender: taken.extend(batches), notes.append)  # noqa: B023
            theirs.shutdown(socket.SHUT_RD)
            reader.run()
            assert reader.counters() == {"taken": 20, "bad": 0, "failures": 0} and len(taken) == 20
            assert [table.schema for table in taken[-1].tables] == [t.schema for t in messages[-1][1][0].tables]
            assert len(notes) == 1, "a description is none for the others"


def test_dropped_messages_leave_no_table_without_its_description(monkeypatch):
    messages = short_messages(20)
    ours, theirs = socket.socketpair()
    one = WebLauncher([])
    with ours, theirs, one._feeding(ours, None):
        monkeypatch.setattr(web_launcher, "MAX_WAITING_BYTES", 10)
        one.put(*messages[0][:1], "n", messages[0][1])
        assert one.counters()["left_out"] == 1
        monkeypatch.undo()
        for message, batches in messages:
            one.put(message, "n", batches)
        one.flush()
        theirs.shutdown(socket.SHUT_RD)
        reader = Feed(theirs, lambda batches, sender: None, lambda note: None)
        reader.run()
        assert reader.counters() == {"taken": 20, "bad": 0, "failures": 0}


def test_a_malformed_description_is_counted():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(frame(json.dumps({"description": text}).encode(), NOTE) for text in ("x", 5, "\ud800")))
        ours.close()
        reader = Feed(theirs, lambda batches, sender: None, lambda note: None)
        reader.run()
        assert reader.counters()["bad"] + reader.counters()["failures"] == 3
