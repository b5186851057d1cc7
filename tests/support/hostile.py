"""A collector with CURVE under siege: everything that peers can do to it at once, while its nodes go on measuring.

As a program it is a soak, which prints what was done and what it did to the collector:

    python -m tests.support.hostile --seconds 600
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import zmq

from colmet.common.config.keys import read_pair, read_public, write_pair
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.transport import Client, Push, new_pair
from colmet.common.wire import v1
from tests.support.zmtp import address, greeting, huge_command

COMMAND = (sys.executable, "-m", "tests.support.hostile")
SCHEMA = Schema("number_default", "job", [Field("number", "count", "counter")])
NODES = 10
PERIOD_S = 0.1
EVIL = "evil"  # a member of the cluster: it has a key


def message(host, number, rows=1):
    table = Table.from_samples(SCHEMA, time.time_ns(), [Sample(n, {"number": number}) for n in range(1, rows + 1)])
    return v1.encode(Batch(host, 1, number, time.time_ns(), (1,), (table,)))


# -- what attackers do, each until a time; each returns how many times --


def raw(uri):
    connection = socket.create_connection(address(uri), timeout=5)
    connection.settimeout(5)
    return connection


def garbage(uri, keys, until):
    """Bytes that mean nothing, or nearly something."""
    rng, count = random.Random(1), 0
    starts = (b"", greeting(), greeting(b"CURVE"), greeting(b"PLAIN"), b"\x01\x00", b"GET / HTTP/1.1\r\n")
    while time.monotonic() < until:
        count += 1
        with contextlib.suppress(OSError), contextlib.closing(raw(uri)) as one:
            one.sendall(rng.choice(starts) + rng.randbytes(rng.randrange(2000)))
    return count


def slow(uri, keys, until):
    """Very many connections, with one byte a second each."""
    startup.raise_open_file_limit(6000)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200
    hello = greeting(b"CURVE") + b"\x06" + bytes(1000)
    opened, turn = 0, 0
    sent = {}
    while time.monotonic() < until:
        began = time.monotonic()
        for one in list(sent):
            try:
                one.send(hello[sent[one] : sent[one] + 1])
                sent[one] += 1
            except OSError:
                one.close()
                del sent[one]
        while len(sent) < most and time.monotonic() < min(until, began + 0.9):
            with contextlib.suppress(OSError):
                one = raw(uri)
                one.setblocking(False)
                sent[one] = 0
                opened += 1
        turn += 1
        time.sleep(max(0, min(began + 1, until) - time.monotonic()))
    for one in sent:
        one.close()
    return opened


def huge(uri, keys, until):
    """Commands before the greeting is over that are as large as can be, over many connections at once."""
    count, body = 0, bytes(1 << 16)
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < until:
            while len(selector.get_map()) < 50:
                with contextlib.suppress(OSError):
                    one = raw(uri)
                    one.sendall(greeting(b"CURVE") + huge_command(15 << 20))
                    one.setblocking(False)
                    selector.register(one, selectors.EVENT_WRITE)
                    count += 1
            for key, _ in selector.select(0.1):
                try:
                    key.fileobj.send(body)
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return count


def clients(uri, until, secure, send, stay_s=0.2, most=20):
    """ZeroMQ's own client, again and again; every fourth time it stays until a handshake is over on a busy machine."""
    count = rounds = 0
    with zmq.Context() as context:
        while time.monotonic() < until:
            sockets = []
            for _ in range(most):
                one = context.socket(zmq.PUSH)
                one.setsockopt(zmq.LINGER, 0)
                secure(one)
                one.connect(uri)
                send(one)
                sockets.append(one)
                count += 1
            rounds += 1
            time.sleep(stay_s if rounds % 4 else 10 * stay_s)
            for one in sockets:
                one.close()
    return count


def plain(uri, keys, until):
    """Clients without keys."""
    return clients(uri, until, lambda one: None, lambda one: one.send(message("node-0", 10**6)))


def unknown(uri, keys, until):
    """Clients with keys that nobody knows, in the name of nodes."""
    server = read_public(f"{keys}/collector.key", "")
    return clients(
        uri, until, lambda one: Client(new_pair(), server).secure(one), lambda one: one.send(message("node-0", 10**6))
    )


def mistaken(uri, keys, until):
    """A member that expects another key than the collector's."""
    pair = read_pair(f"{keys}/{EVIL}.secret", "")
    return clients(
        uri, until, lambda one: Client(pair, new_pair().public).secure(one), lambda one: one.send(message(EVIL, 10**6))
    )


def member(uri, keys):
    pair = read_pair(f"{keys}/{EVIL}.secret", "")
    return Push(uri, 1000, 0, Client(pair, read_public(f"{keys}/collector.key", "")))


def flood(uri, keys, until, made):
    """One member that sends as much as it can."""
    push, count = member(uri, keys), 0
    while time.monotonic() < until:
        if push.send(made(count)):
            count += 1
        else:
            time.sleep(0.001)
    push.close()
    return count


def foreign(uri, keys, until):
    """In the name of the others."""
    return flood(uri, keys, until, lambda n: message(f"node-{n % NODES}", 10**6 + n))


def small(uri, keys, until):
    """Small messages that are right."""
    return flood(uri, keys, until, lambda n: message(EVIL, n))


def large(uri, keys, until):
    """Messages as large as they may be that mean nothing."""
    body = b"\x87" + bytes(7 << 20)
    return flood(uri, keys, until, lambda n: body)


def parts(uri, keys, until):
    """A member's messages of very many parts."""
    pair, server = read_pair(f"{keys}/{EVIL}.secret", ""), read_public(f"{keys}/collector.key", "")
    return clients(
        uri, until, Client(pair, server).secure, lambda one: one.send_multipart(10_000 * [b"part"]), stay_s=0.5, most=2
    )


MEMBERS = (foreign, small, large, parts)
OUTSIDERS = (garbage, slow, huge, plain, unknown, mistaken)


# -- the cluster --


class Nodes:
    """The nodes that measure as ever, in a thread."""

    def __init__(self, uri, keys, locked):
        server = read_public(f"{keys}/collector.key", "")
        self.pushes = {}
        for n in range(NODES):
            pair = read_pair(f"{keys}/node-{n}.secret", "")
            self.pushes[f"node-{n}"] = Push(uri, 1000, 0, Client(pair, server) if locked else None)
        self.taken = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        waiting = {host: collections.deque() for host in self.pushes}
        while not self._stop.wait(PERIOD_S):
            for host, push in self.pushes.items():
                waiting[host].append(message(host, self.taken))
                while waiting[host] and push.send(waiting[host][0]):
                    waiting[host].popleft()
            self.taken += 1
        until = time.monotonic() + 30
        for host, push in self.pushes.items():
            while waiting[host] and time.monotonic() < until:
                if push.send(waiting[host][0]):
                    waiting[host].popleft()
                else:
                    time.sleep(0.01)

    def finish(self):
        """Measure no more; how many batches each has taken."""
        self._stop.set()
        self._thread.join()
        return self.taken

    def close(self):
        self.finish()
        for push in self.pushes.values():
            push.close()


class Site:
    """A real collector, and what it has written.

    Args:
        folder: for its files.
        locked: whether it has keys.
        options: more of its command line.
    """

    def __init__(self, folder, *options, locked=True):
        self.folder, self.keys, self.locked = folder, folder / "keys", locked
        nodes = self.keys / "nodes"
        nodes.mkdir(parents=True)
        for name in ["collector", EVIL, *[f"node-{n}" for n in range(NODES)]]:
            write_pair(str(self.keys), name, new_pair())
            if name != "collector":
                (nodes / f"{name}.key").write_bytes((self.keys / f"{name}.key").read_bytes())
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.uri = f"tcp://127.0.0.1:{one.getsockname()[1]}"
        secret = ("--zeromq-curve-secret", f"{self.keys}/collector.secret", "--zeromq-curve-nodes", str(nodes))
        self.log, self.out = folder / "log", folder / "out"
        with open(self.log, "w") as log, open(self.out, "w") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "colmet.collector.main", "-v", "--zeromq-bind-uri", self.uri),
                    *("--zeromq-link-bind-uri", "tcp://127.0.0.1:*"),
                    *("--enable-stdout-backend", "--stdout-format", "json", "-s", "0.5"),
                    *(secret if locked else ()),
                    *options,
                ],
                stdout=out,
                stderr=log,
            )
        self.nodes = Nodes(self.uri, self.keys, locked)

    def watch(self, seconds, enough=lambda: False):
        """Note its memory for so long, or until it is enough; the largest."""
        until, most = time.monotonic() + seconds, 0.0
        while time.monotonic() < until and not enough():
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            most = max(most, pages * resource.getpagesize() / 1e6)
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)
        return most

    def stored(self):
        """How often each number of each host was written."""
        found = collections.defaultdict(collections.Counter)
        with open(self.out) as file:
            for line in file:
                if line.endswith("\n"):
                    row = json.loads(line)
                    found[row["hostname"]][row["number"]] += 1
        return found

    def wait_for_all(self, taken, timeout_s=120):
        """Wait until what the nodes took is there; what is there."""
        until = time.monotonic() + timeout_s
        while True:
            stored = self.stored()
            if all(len(stored[host]) >= taken for host in self.nodes.pushes) or time.monotonic() > until:
                return stored
            self.watch(0.5)

    def summary(self):
        """What the collector logged of its senders and connections at the end."""
        lines = [line.partition(": ")[2] for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.startswith(("received ", "sender ", "connections "))]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def close(self):
        self.nodes.close()
        self.process.kill()
        self.process.wait()


def besiege(site, attacks, seconds):
    """Have all of these done at once, by a process each; how often each was done, and the most memory meanwhile."""
    processes = {
        attack.__name__: subprocess.Popen(
            [*COMMAND, "attack", attack.__name__, site.uri, str(site.keys), str(seconds)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for attack in attacks
    }
    try:
        most = site.watch(seconds + 60, lambda: all(one.poll() is not None for one in processes.values()))
        counts = {name: int(one.communicate(timeout=60)[0]) for name, one in processes.items()}
    finally:
        for one in processes.values():
            one.kill()
            one.communicate()
    return counts, most


def main():
    if sys.argv[1:2] == ["attack"]:
        name, uri, keys, seconds = sys.argv[2:]
        print(globals()[name](uri, keys, time.monotonic() + float(seconds)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        quiet = site.watch(5)
        counts, most = besiege(site, MEMBERS, options.seconds / 2)
        more, most_then = besiege(site, OUTSIDERS, options.seconds / 2)
        counts.update(more)
        taken = site.nodes.finish()
        stored = site.wait_for_all(taken)
        missing = {host: taken - len(stored[host]) for host in site.nodes.pushes if len(stored[host]) != taken}
        twice = sum(n > 1 for host in site.nodes.pushes for n in stored[host].values())
        others = {host: len(numbers) for host, numbers in stored.items() if host not in site.nodes.pushes}
        for name, count in counts.items():
            print(f"{name:10} {count:9} times, as in an hour with {count / 3600:.1f} a second")
        print(f"memory {quiet:.0f} MB before, at most {most:.0f} MB with members, {most_then:.0f} MB with outsiders")
        print(f"{taken} batches of each of {NODES} nodes: missing {missing or 0}, twice {twice}; of others: {others}")
        status = site.stop()
        print("\n".join(site.summary()))
        site.close()
    return int(bool(missing or twice or status))


if __name__ == "__main__":
    sys.exit(main())
