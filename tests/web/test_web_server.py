"""The server of the JSON interface on real sockets: TLS, bounds, deadlines, and what is no HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import http.client
import ipaddress
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
import warnings

import pytest

from colmet.collector.web_options import UnixAddress, trusted_proxy
from colmet.common.errors import ConfigError
from colmet.common.runtime.metrics_http import ListenAddress, resolve
from colmet.web import server as server_module
from colmet.web.access import Access, Unauthorized
from colmet.web.credentials import Credential
from colmet.web.limits import Busy
from colmet.web.peers import _HEADER, NETLINK_SOCK_DIAG, Peers
from colmet.web.server import Tls, WebServer
from tests.support.machine import fork
from tests.support.place import require_ipv6, skip_refused
from tests.support.web_access import cheap
from tests.support.web_client import basic
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import HERE, OLD_TLS, make_certificate, running

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")] if OLD_TLS else []

WHOAMI = b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def facts():
    return MadeUpFacts(20, 40)


@pytest.fixture(scope="module")
def server(facts):
    with running(facts) as one:
        yield one


def connect(server):
    return socket.create_connection(server.addresses[0], timeout=30)


def read_all(connection):
    """Everything up to the end of the connection; what was there, where it was cut."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def say(server, data, half_close=False):
    """The answer to what is sent; with `half_close` nothing more comes, so that half a request is not waited for."""
    with connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def open_connections(server):
    return len(server._server.server_state.connections)


def answers(data):
    """Status and body of each of the answers that came, by the lengths in their heads."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        found.append((int(head.split()[1]), data[:length], head))
        data = data[length:]
    return found


def is_alive(server):
    [(status, body, _)] = answers(say(server, WHOAMI + b"Connection: close\r\n\r\n"))
    return status == 200 and json.loads(body)["admin"]


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_answer_comes_and_has_no_version_of_the_server(server):
    [(status, body, head)] = answers(say(server, WHOAMI + b"Connection: close\r\n\r\n"))
    assert status == 200 and json.loads(body)["user"] is None
    assert b"uvicorn" not in head.lower() and b"\nserver:" not in head.lower() and b"date:" in head.lower()


def test_head_has_no_body(server):
    data = say(server, WHOAMI.replace(b"GET", b"HEAD") + b"Connection: close\r\n\r\n")
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and body == b"" and int(re.search(rb"content-length: (\d+)", head)[1]) > 0


def test_requests_that_follow_each_other_unanswered_are_answered_in_order(server):
    data = say(server, (WHOAMI + b"\r\n") * 3 + b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert [status for status, _, _ in answers(data)] == [200, 200, 200, 404]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of a handshake of TLS
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without a Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded: x\r\n: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000,
        b"GET /" + b"x" * 100_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=range(20),
)
def test_what_is_no_http_is_400_or_ends_the_connection(server, data):
    answer = say(server, data, half_close=True)
    assert not answer or (answer.startswith(b"HTTP/1.1 400 ") and b"Traceback" not in answer)
    assert is_alive(server)


@pytest.mark.parametrize(
    "data",
    [
        # a second request hidden in the body of the first, as a proxy in front might be made to let pass
        (
            b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /qhost HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
        (
            b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\n\r\n"
            b"GET /qhost HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
        (
            b"POST /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n0\r\n\r\nGET /qhost HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
        (
            b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"zz\r\nGET /qhost HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
    ],
    ids=range(4),
)
def test_a_request_with_a_body_is_the_last_of_its_connection(server, data):
    answer = say(server, data)
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 ") == 1
    assert b"node1" not in answer and not server._stats.values()["defects"]
    assert is_alive(server)


def test_ten_thousand_headers_are_refused(server):
    answer = say(server, WHOAMI + b"".join(b"x-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n")
    assert not answer or answers(answer)[0][0] == 400
    assert is_alive(server)


def test_an_upgrade_is_not_taken(server):
    data = say(
        server, WHOAMI + b"Connection: upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert data.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), "the latter of old versions of uvicorn"
    assert is_alive(server)


@pytest.mark.parametrize(
    "target", [b"http://evil.example/api/v1/whoami", b"*", b"//evil.example/x", b"/%00", b"/%ff%fe", b"/%"]
)
def test_odd_targets_are_answered(server, target):
    [(status, _, _)] = answers(say(server, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target))
    assert status in (400, 404)


def test_who_leaves_in_the_middle_does_no_harm(server):
    for data in (b"", b"G", WHOAMI, WHOAMI + b"\r\n"):
        for _ in range(20):
            connect(server).close()
            with connect(server) as connection:
                connection.sendall(data)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends with a reset
    assert is_alive(server)


def test_a_body_that_is_refused_is_not_waited_for(server):
    with connect(server) as connection:
        connection.sendall(WHOAMI + b"Content-Length: 1000000\r\n\r\nx")
        assert answers(read_all(connection))[0][0] == 400


def test_a_connection_that_is_not_used_any_more_is_ended(facts, monkeypatch):
    monkeypatch.setattr(server_module, "KEEP_ALIVE_S", 0.2)
    with running(facts) as server, connect(server) as connection:
        connection.sendall(WHOAMI + b"\r\n")
        assert len(answers(read_all(connection))) == 1


def test_who_does_not_take_the_answer_is_cut_off(facts, monkeypatch):
    class Large(MadeUpFacts):
        def qhost(self):
            return {"host": {"num_proc": "1" * (8 << 20), "mem_total": "-", "jobs": {}}}

    monkeypatch.setattr(server_module, "UNACKNOWLEDGED_MS", 300)
    with running(Large(2, 2)) as server, connect(server) as connection:
        connection.sendall(WHOAMI.replace(b"/api/v1/whoami", b"/qhost") + b"\r\n")
        wait_until(lambda: open_connections(server) == 1)
        wait_until(lambda: open_connections(server) == 0)
        assert is_alive(server)


def test_half_open_connections_keep_nobody_out_below_the_limit(facts, monkeypatch):
    """Nor do silent ones. Beyond the limit requests are refused and counted until connections are closed."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 40)
    with running(facts) as server:
        with contextlib.ExitStack() as stack:
            for n in range(38):
                stack.enter_context(connect(server)).sendall(b"GET /" * (n % 2))
            wait_until(lambda: open_connections(server) == 38)
            assert is_alive(server)
            for _ in range(2):
                stack.enter_context(connect(server))
            wait_until(lambda: open_connections(server) == 40)
            assert say(server, WHOAMI + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 503")
            assert server._stats.values()["refused_connections"] >= 1
        wait_until(lambda: open_connections(server) == 0)
        assert is_alive(server)


def scope_of(client, server=("10.0.0.1", 80), forwarded=()):
    return {"client": client, "server": server, "headers": [(b"x-forwarded-for", one.encode()) for one in forwarded]}


def keys_of_users(peers, *uids):
    """What counts as the peers of users of this machine, by connections over loopback."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        found = []
        for uid in uids:
            os.seteuid(uid)
            try:
                client = socket.create_connection(listening.getsockname(), timeout=20)
            finally:
                os.seteuid(0)
            accepted, address = listening.accept()
            with client, accepted:
                found.append(peers.client(scope_of(address, listening.getsockname(), ["198.51.100.7"])))
    return found


def test_users_of_this_machine_count_apart(root):
    assert keys_of_users(Peers(), 0, 65534) == ["uid 0", "uid 65534"]


def test_they_do_in_a_user_namespace_with_a_socket_of_the_service_manager(root, capfd):
    """As in the packaged service, which sees no other users itself (PrivateUsers=)."""
    netlink = (socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)
    with socket.socket(*netlink) as kernel, socket.create_server(("127.0.0.1", 0)) as listening:
        os.seteuid(12345)
        client = socket.create_connection(listening.getsockname(), timeout=20)
        os.seteuid(0)
        accepted, address = listening.accept()
        child = fork()
        if not child:
            if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
                os._exit(3)
            peers = Peers(kernel=kernel)
            for _ in range(3):
                kernel.sendto(_HEADER.pack(_HEADER.size, 99, 1, 0, 0), (0, 0))  # its answer is still there
                scope = scope_of(address, listening.getsockname())
                print(Peers().client(scope), peers.client(scope), sep=", ", flush=True)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.close()
        accepted.close()
    if status == 3:
        skip_refused("no user namespace is allowed")
    assert status == 0 and capfd.readouterr().out == "uid 65534, uid 12345\n" * 3


@pytest.mark.parametrize(
    ("client", "server", "key"),
    [
        (("127.0.0.1", 9), ("127.0.0.1", 9), "127.0.0.1"),  # gone
        (("127.0.0.1", 9), None, "127.0.0.1"),
        (("192.0.2.7", 9), ("10.0.0.1", 80), "192.0.2.7"),
        (("2001:db8::7", 9), ("2001:db8::1", 80), "2001:db8::/64"),
    ],
)
def test_a_peer_elsewhere_or_that_is_gone_counts_by_address(client, server, key):
    assert Peers().client(scope_of(client, server)) == key


# -- proxies --


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["198.51.100.7"], "198.51.100.7"),
        (["6.6.6.6, 198.51.100.7"], "198.51.100.7"),  # the first one is the client's own word
        (["6.6.6.6", "198.51.100.7"], "198.51.100.7"),
        (["198.51.100.7, 10.0.0.9"], "198.51.100.7"),  # over two proxies
        (["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (["::ffff:198.51.100.7"], "198.51.100.7"),
        ([], "10.0.0.5"),
        ([""], "10.0.0.5"),
        (["198.51.100.7, unknown"], "10.0.0.5"),
        (["10.0.0.8"], "10.0.0.5"),
    ],
)
def test_a_trusted_proxy_names_its_clients(forwarded, client):
    peers = Peers([ipaddress.ip_network("10.0.0.0/28")])
    assert peers.client(scope_of(("10.0.0.5", 9), forwarded=forwarded)) == client
    other = peers.client(scope_of(("192.0.2.7", 9), forwarded=forwarded))
    assert other == "192.0.2.7", "another peer may write that header, too"
    assert peers.client(scope_of(None, forwarded=forwarded)) == ("proxy" if client == "10.0.0.5" else client)


def test_a_proxy_on_this_machine_is_known_by_its_user(root):
    peers = Peers([65534])
    assert keys_of_users(peers, 0, 65534) == ["uid 0", "198.51.100.7"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.5", ipaddress.ip_network("10.0.0.5")),
        ("10.0.0.5/8", ipaddress.ip_network("10.0.0.0/8")),
        ("2001:db8::/48", ipaddress.ip_network("2001:db8::/48")),
        ("root", 0),
    ],
)
def test_a_proxy_is_named_by_address_network_or_user(text, found):
    assert trusted_proxy(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [("127.0.0.1", "every user of this machine"), ("::1", "every user"), ("no-such-user", "give an addr")],
)
def test_a_proxy_that_cannot_be_distinguished_from_others_is_refused(text, why):
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        trusted_proxy(text)


def test_clients_of_a_proxy_do_not_lock_each_other_out(facts, root):
    access, asked = Access(None), []

    async def visitor(given, client):
        asked.append(client)
        raise Busy("slow down", 1.0) if client == "6.6.6.6" else Unauthorized

    access.visitor = visitor
    with running(facts, access=access, peers=Peers([os.geteuid()])) as server:
        for client, status in (("6.6.6.6", 429), ("198.51.100.7", 401), ("198.51.100.8, 198.51.100.9", 401)):
            connection = connect(server)
            connection.sendall(WHOAMI + f"X-Forwarded-For: {client}\r\nConnection: close\r\n\r\n".encode())
            assert read_all(connection).startswith(f"HTTP/1.1 {status} ".encode())
            connection.close()
    assert asked == ["6.6.6.6", "198.51.100.7", "198.51.100.9"]


def resolve_to(monkeypatch, *addresses):
    """Let each name have these addresses, as /etc/hosts may have it."""
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)


def test_a_name_may_have_addresses_that_the_machine_has_not(facts, monkeypatch):
    """As ::1 of localhost, where there is no IPv6."""
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    assert resolve(ListenAddress("head", 0), "--metrics-listen")[1][0] == "127.0.0.1"
    with running(facts, ListenAddress("head", 0)) as server:
        monkeypatch.undo()
        assert is_alive(server)


def test_a_name_without_an_address_of_the_machine_is_refused(facts, monkeypatch):
    resolve_to(monkeypatch, "192.0.2.1")
    with pytest.raises(ConfigError, match="Cannot assign requested address; give an address of this machine"):
        running(facts, ListenAddress("head", 0)).__enter__()
    assert resolve(ListenAddress("head", 0), "--metrics-listen")[1][0] == "192.0.2.1"


@pytest.mark.parametrize("host", ["::1", "localhost", "::"])
def test_it_listens_on_every_kind_of_address(facts, host):
    if host != "localhost":
        require_ipv6()
    with running(facts, ListenAddress(host, 0)) as server:
        assert is_alive(server)
        for address in ("127.0.0.1", "::1") if host == "::" else ():
            connection = http.client.HTTPConnection(address, server.port, timeout=30)
            connection.request("GET", "/api/v1/whoami")
            assert connection.getresponse().status == 200
            connection.close()


def test_a_port_that_is_taken_and_an_address_that_is_none_are_reported(facts, server):
    with pytest.raises(ConfigError, match="already in use"):
        WebServer(ListenAddress("127.0.0.1", server.port), facts, Access(None))
    with pytest.raises(ConfigError, match="no such address"):
        WebServer(ListenAddress("no-such-host.invalid", 1), facts, Access(None))
    with pytest.raises(ConfigError, match=r"--http-listen 192\.0\.2\.1"):
        WebServer(ListenAddress("192.0.2.1", 1), facts, Access(None))


def test_passwords_in_clear_on_a_network_are_warned_of(facts, caplog):
    WebServer(ListenAddress("0.0.0.0", 0), facts, Access(None))._sockets[0].close()
    assert "http without tls" in caplog.text
    caplog.clear()
    WebServer(HERE, facts, Access(None))._sockets[0].close()
    assert "http without tls" not in caplog.text


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # its connection is given up with the process
def test_it_ends_while_a_store_hangs(facts, monkeypatch):
    release = threading.Event()

    class Hanging(MadeUpFacts):
        def job(self, job, own=None):
            release.wait(60)
            return super().job(job)

    monkeypatch.setattr(server_module, "STOP_S", 0.2)
    with running(Hanging(2, 2)) as server, connect(server) as connection:
        connection.sendall(WHOAMI.replace(b"/whoami", b"/jobs/1") + b"\r\n")
        wait_until(lambda: open_connections(server) == 1)
        server.stop()
    release.set()


def test_it_can_be_stopped_before_it_runs(facts):
    server = WebServer(HERE, facts, Access(None))
    server.stop()
    server.run()


def test_an_answer_that_is_under_way_is_finished_at_the_end(facts):
    begun, release = threading.Event(), threading.Event()

    class Slow(MadeUpFacts):
        def cluster(self, user):
            begun.set()
            release.wait(60)
            return super().cluster(user)

    with running(Slow(2, 2)) as server, connect(server) as connection:
        connection.sendall(WHOAMI.replace(b"whoami", b"cluster") + b"\r\n")
        assert begun.wait(30)
        server.stop()
        release.set()
        assert answers(read_all(connection))[0][0] == 200


def test_a_client_behind_a_proxy_cannot_pretend_to_be_elsewhere(facts, tmp_path):
    users = tmp_path / "users"
    users.write_text(Credential("alice", cheap("a")).text() + "\n")
    users.chmod(0o600)
    access = Access(str(users), pause=lambda _: asyncio.sleep(0))
    with running(facts, access=access) as server:
        statuses = []
        for n in range(7):
            connection = http.client.HTTPConnection(*server.addresses[0], timeout=30)
            headers = dict([basic("alice", f"wrong{n}"), ("X-Forwarded-For", f"192.0.2.{n}")])
            connection.request("GET", "/api/v1/whoami", headers=headers)
            statuses.append(connection.getresponse().status)
            connection.close()
        assert statuses == [401] * 7
        assert access.stats.values()["passwords_slowed"] == 2


# -- a Unix socket, for a proxy --


def ask_unix(path, headers):
    """Status and content of the answer to a proxy's request."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(WHOAMI + b"Connection: close\r\n" + headers + b"\r\n")
        [(status, body, _)] = answers(read_all(connection))
        return status, json.loads(body)


def test_on_a_unix_socket_the_proxy_names_the_user(facts, tmp_path):
    path = tmp_path / "http.sock"
    access = Access(None, "admins", is_member=lambda user, group: user == "root", user_header="X-Remote-User")
    with running(facts, UnixAddress(str(path)), access):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for name, is_admin in (("alice", False), ("root", True), ("Zoë", False)):
            status, answer = ask_unix(path, b"x-remote-user: " + name.encode() + b"\r\n")
            assert (status, answer["user"], answer["admin"]) == (200, name, is_admin)
        two = b"X-Remote-User: alice\r\nX-Remote-User: root\r\n"
        joined = b"X-Remote-User: alice, root\r\n", b"X-Remote-User: alice root\r\n", b"X-Remote-User: alice,root\r\n"
        for headers in (b"", b"X-Remote-User:\r\n", two, *joined):
            status, answer = ask_unix(path, b"Authorization: Basic cm9vdDpyb290\r\n" + headers)
            assert status == 403 and "X-Remote-User" in answer["error"]
    assert not path.exists()


def test_on_a_unix_socket_an_open_interface_answers_to_the_names_of_the_proxy(facts, tmp_path):
    path = tmp_path / "http.sock"
    with running(facts, UnixAddress(str(path))), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /api/v1/whoami HTTP/1.1\r\nHost: jobs.example.org\r\nConnection: close\r\n\r\n")
        assert answers(read_all(connection))[0][0] == 200


def test_a_socket_of_the_run_before_is_replaced_and_one_in_use_or_another_file_is_not(facts, tmp_path):
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(str(path))
    with running(facts, UnixAddress(str(path))):
        assert ask_unix(path, b"")[0] == 200
        with pytest.raises(ConfigError, match=f"--http-listen unix:{path}: Address already in use"):
            WebServer(UnixAddress(str(path)), facts, Access(None))
        assert ask_unix(path, b"")[0] == 200
    path.write_text("kept")
    with pytest.raises(ConfigError, match="give a path that nothing else uses"):
        WebServer(UnixAddress(str(path)), facts, Access(None))
    assert path.read_text() == "kept"


# -- TLS --


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"), "first")


@pytest.fixture
def tls_server(facts, tls):
    with running(facts, tls=tls) as one:
        yield one


def peer_name(server):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(server) as plain, context.wrap_socket(plain) as connection:
        der = connection.getpeercert(binary_form=True)
        return next(name for name in (b"first", b"second") if name in der).decode()


def test_it_speaks_tls_and_no_old_version_of_it(tls_server, tls):
    context = ssl.create_default_context(cafile=tls.certificate)
    connection = http.client.HTTPSConnection(*tls_server.addresses[0], context=context, timeout=30)
    connection.request("GET", "/api/v1/whoami")
    assert connection.getresponse().status == 200
    connection.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is why it is tried
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
    with connect(tls_server) as plain, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(plain, server_hostname="localhost")


def test_http_on_the_port_of_tls_and_handshakes_that_are_none_do_no_harm(tls_server, tls):
    for data in (WHOAMI + b"\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 200, b"\0" * 5000):
        assert b"200" not in say(tls_server, data)
    assert peer_name(tls_server) == "first"
    wait_until(lambda: open_connections(tls_server) == 0)


def test_a_new_certificate_is_taken_without_a_restart_and_a_wrong_one_is_not(facts, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "LOOK_S", 0.0)
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    with running(facts, tls=first) as server:
        assert peer_name(server) == "first"
        shutil.copy(second.certificate, first.certificate)  # the key is still that of the first
        wait_until(lambda: server._stats.values()["certificate_failures"] == 1)
        assert peer_name(server) == "first"
        shutil.copy(second.key, first.key)
        wait_until(lambda: server._stats.values()["certificate_reloads"] == 1)
        assert peer_name(server) == "second"
    assert "certificate not read again" in caplog.text


def test_a_certificate_that_cannot_be_used_is_reported(facts, tls, tmp_path):
    for certificate, key in ((tls.key, tls.key), (tls.certificate, tls.certificate), (str(tmp_path / "no"), tls.key)):
        with pytest.raises(ConfigError, match="--http-tls-cert"):
            WebServer(HERE, facts, Access(None), tls=Tls(certificate, key))
    subprocess.run(
        ["openssl", "ec", "-in", tls.key, "-aes128", "-passout", "pass:x", "-out", tmp_path / "locked"],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ConfigError, match="--http-tls-key"):
        WebServer(HERE, facts, Access(None), tls=Tls(tls.certificate, str(tmp_path / "locked")))
