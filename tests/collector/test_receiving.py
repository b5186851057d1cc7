"""The main thread of the collector: what it receives, and when it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from colmet.collector import collector as main_loop
from colmet.collector.backend import OutputBackend
from colmet.collector.collector import Collector
from colmet.collector.journal import journal as module
from colmet.collector.journal.journal import Journal
from colmet.collector.output_worker import OutputWorker
from colmet.common.daemon.control import Errands
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.transport import Pull, Received
from colmet.common.wire import v1
from tests.support.waiting import wait_for

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


class Queue:
    """Messages of one node without an end."""

    def __init__(self):
        self.taken = 0

    def receive(self):
        self.taken += 1
        table = Table.from_samples(SCHEMA, 1, [Sample(n, {"cpu": n}) for n in range(1000)])
        return Received(v1.encode(Batch("h", 1, self.taken, 1, (), (table,))), "10.0.0.1")

    def receive_all(self, most, most_bytes):
        return [self.receive() for _ in range(most)]


def test_nothing_is_taken_in_beyond_what_may_wait_for_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 200_000)
    monkeypatch.setattr(main_loop, "LOOK", 2)
    monkeypatch.setattr(main_loop, "BURST_S", 60)  # on a loaded machine it would end for the time
    queue = Queue()
    journal = Journal(str(tmp_path / "j"), 1 << 30)  # nothing goes to disk before it is started
    with Errands() as errands:
        assert Collector(queue, journal, [], errands, Service())._receive(), "there may be more"
    assert 200_000 <= journal.pending_bytes < 300_000 and queue.taken < 20
    journal.close()


class Unheard:
    """A link on which nobody says Hello."""

    def took(self, fresh, again):
        pass

    def counters(self):
        return {}


def test_nodes_that_take_no_acknowledgements_are_reported_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(main_loop, "ACQUAINTED_S", 0)
    monkeypatch.setattr(main_loop, "BURST", 3)
    monkeypatch.setattr(main_loop, "LOOK", 3)
    journal = Journal(str(tmp_path / "j"), 1 << 30)
    with Errands() as errands:
        collector = Collector(Queue(), journal, [], errands, Service(), link=Unheard())
        collector._receive()
        for _ in range(3):
            collector._report_state()
    journal.close()
    assert caplog.text.count("nodes=1 wait for no acknowledgements") == 1


class LastWrite(OutputBackend):
    """Looks, when its worker asks for the last write, whether a node could still send."""

    name = "last"
    was_open = True

    def __init__(self, port):
        self._port = port

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options):
        pass

    def open(self, state):
        pass

    def write(self, records):
        pass

    def close(self):
        with contextlib.suppress(AssertionError):
            wait_for(self._is_closed, 2)  # libzmq closes it in a thread of its own
            self.was_open = False

    def _is_closed(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) != 0


def test_nodes_cannot_send_any_more_once_the_last_writes_begin(tmp_path):
    """What libzmq accepts then is lost: nodes without acknowledgements keep it only while no collector is there."""
    journal = Journal(str(tmp_path / "j"), 1 << 30)
    with contextlib.closing(Pull("tcp://127.0.0.1:*", 10)) as pull, Errands() as errands:
        output = LastWrite(int(pull.uri.rpartition(":")[2]))
        worker = OutputWorker(output, journal, journal.state(output.name), 1, 0.01)
        with Signals((signal.SIGTERM,)) as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            assert Collector(pull, journal, [worker], errands, Service()).run(signals)
    journal.close()
    assert not output.was_open
