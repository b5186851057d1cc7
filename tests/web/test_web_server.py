"""The server of the JSON interface on real sockets: TLS, bounds, deadlines, and what is no HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import stat
import threading

import pytest

from colmet.common.daemon.metrics_http import ListenAddress
from colmet.common.errors import ConfigError
from colmet.web import server as server_module
from colmet.web.access import Access, client_of
from colmet.web.options import UnixAddress
from colmet.web.server import WebServer
from tests.support.place import require_ipv6
from tests.support.waiting import wait_for
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import HERE, running

WHOAMI = b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def facts():
    return MadeUpFacts(20, 40)


@pytest.fixture(scope="module")
def server(facts):
    with running(facts) as one:
        yield one


def connect(server):
    return socket.create_connection(server.address, timeout=30)


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


def test_an_answer_comes_and_has_no_version_of_the_server(server):
    [(status, body, head)] = answers(say(server, WHOAMI + b"Connection: close\r\n\r\n"))
    assert status == 200 and json.loads(body)["user"] is None
    assert b"uvicorn" not in head.lower() and b"\nserver:" not in head.lower() and b"date:" in head.lower()


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
        wait_for(lambda: open_connections(server) == 1)
        wait_for(lambda: open_connections(server) == 0)
        assert is_alive(server)


def test_half_open_connections_keep_nobody_out_below_the_limit(facts, monkeypatch):
    """Nor do silent ones. Beyond the limit requests are refused and counted until connections are closed."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 40)
    with running(facts) as server:
        with contextlib.ExitStack() as stack:
            for n in range(38):
                stack.enter_context(connect(server)).sendall(b"GET /" * (n % 2))
            wait_for(lambda: open_connections(server) == 38)
            assert is_alive(server)
            for _ in range(2):
                stack.enter_context(connect(server))
            wait_for(lambda: open_connections(server) == 40)
            assert say(server, WHOAMI + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 503")
            assert server._stats.values()["refused_connections"] >= 1
        wait_for(lambda: open_connections(server) == 0)
        assert is_alive(server)


# -- proxies --


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["198.51.100.7"], "198.51.100.7"),
        (["6.6.6.6, 198.51.100.7"], "198.51.100.7"),  # the first one is the client's own word
        (["6.6.6.6", "198.51.100.7"], "198.51.100.7"),
        (["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (["::ffff:198.51.100.7"], "198.51.100.7"),
        ([], "proxy"),
        (["198.51.100.7, unknown"], "proxy"),
    ],
)
def test_the_proxy_of_a_unix_socket_names_its_clients(forwarded, client):
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    assert client_of({"client": None, "headers": headers}) == client
    assert client_of({"client": ("192.0.2.7", 9), "headers": headers}) == "192.0.2.7", "any client may write it"


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
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        WebServer(ListenAddress("no-such-host.invalid", 1), facts, Access(None))
    with pytest.raises(ConfigError, match=r"--listen 192\.0\.2\.1"):
        WebServer(ListenAddress("192.0.2.1", 1), facts, Access(None))


def test_passwords_in_clear_on_a_network_are_warned_of(facts, caplog):
    WebServer(ListenAddress("0.0.0.0", 0), facts, Access(None))._socket.close()
    assert "http without tls" in caplog.text
    caplog.clear()
    WebServer(HERE, facts, Access(None))._socket.close()
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
        wait_for(lambda: open_connections(server) == 1)
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
        with pytest.raises(ConfigError, match=f"--listen unix:{path}: Address already in use"):
            WebServer(UnixAddress(str(path)), facts, Access(None))
        assert ask_unix(path, b"")[0] == 200
    path.write_text("kept")
    with pytest.raises(ConfigError, match="give a path that nothing else uses"):
        WebServer(UnixAddress(str(path)), facts, Access(None))
    assert path.read_text() == "kept"
