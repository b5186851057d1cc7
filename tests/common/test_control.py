"""The control socket: what is refused, who may ask, and what becomes of whoever asks wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.daemon import control
from colmet.common.daemon.control import Control, ControlServer, Errands, ask
from colmet.common.errors import ConfigError, Refused, Unreachable, WireError
from colmet.common.wire.control import MAX_REQUEST_BYTES, decode_answer, decode_request, encode
from tests.support.errands import served_errands


def hello(request):
    return {"hello": request.get("name", "")}


@pytest.fixture
def served():
    """Control sockets that are closed at the end."""
    made = []

    def serve(place, daemon="node", **handlers):
        made.append(Control({"hello": hello, **handlers}))
        made[-1].listen(place, daemon)
        return made[-1]

    yield serve
    for one in made:
        one.close()


# -- what is said --


@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=64),
        st.none()
        | st.text()
        | st.integers(-(2**63), 2**64 - 1)
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=20,
    )
)
def test_a_request_arrives_as_it_was_sent(request_):
    assert decode_request(encode(request_)) == request_


def test_texts_may_be_byte_strings_as_older_packers_have_them():
    assert decode_request(msgpack.packb({b"sample_period": b"3.5"})) == {"sample_period": "3.5"}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "not a map"),
        (b"\xc1", "not a map"),
        (msgpack.packb({"a": 1})[:-1], "not a map"),
        (msgpack.packb({"a": 1}) + b"\0", "1 bytes behind"),
        (msgpack.packb({1: "a"}), "1 is not a key"),
        (msgpack.packb({"a" * 65: 1}), "is not a key"),
        (b"\x82\xa1a\x01\xa1a\x02", "a is there twice"),
        (msgpack.packb({"a": [1]}), "not a map"),
        (msgpack.packb({"a": {"b": 1}}), "not a map"),
        (msgpack.packb({"a": msgpack.ExtType(1, b"x")}), "not a map"),
        (msgpack.packb({"a": msgpack.Timestamp(1)}), "a is a Timestamp|a is Timestamp|not a map"),
        (msgpack.packb({"a": float("nan")}), "a is nan"),
        (msgpack.packb({"a": b"\xff"}), "not UTF-8"),
        (msgpack.packb({str(n): n for n in range(65)}), "65 keys"),
        (b"\xdf\xff\xff\xff\xff", "keys, more than|not a map"),
        (msgpack.packb({"a": "x" * MAX_REQUEST_BYTES}), "bytes, more than"),
        (b"\x81\xa1a" + b"\x91" * 60000, "not a map"),
    ],
)
def test_what_is_no_request_is_refused(message, why):
    with pytest.raises(WireError, match=why):
        decode_request(message)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_request_an_answer_or_refused(message):
    for decode in (decode_request, decode_answer):
        with contextlib.suppress(WireError):
            assert isinstance(decode(message), dict)


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x90", msgpack.packb({1: 2}), msgpack.packb({"a": [b"x"]}), msgpack.packb({"a": [[[[[[[[[1]]]]]]]]]})],
)
def test_what_is_no_answer_is_refused(answer):
    with pytest.raises(WireError, match="answer"):
        decode_answer(answer)


# -- who answers --


def answered(made, request):
    return decode_answer(made.answer(request if isinstance(request, bytes) else encode(request)))


def test_a_request_without_a_command_is_the_rust_nodes():
    made = Control({"configure": lambda request: {"period": request["sample_period"]}, "hello": hello})
    assert answered(made, {"sample_period": "2"}) == {"period": "2"}


@pytest.mark.parametrize("command", ["nonsense", 3, None, True, "", "__class__"])
def test_an_unknown_command_is_refused_and_the_known_ones_named(command):
    made = Control({"hello": hello})
    assert answered(made, {"command": command})["error"].endswith("there are: hello")
    assert made.counters() == {"requests": 1, "refused": 1, "failures": 0}


def test_refused_requests_are_counted_and_logged_at_powers_of_ten(caplog):
    made = Control({"hello": hello})
    for _ in range(12):
        assert "error" in answered(made, b"\xc1garbage")
    assert made.counters()["refused"] == 12
    assert [record.args[0] for record in caplog.records] == [1, 10]


def test_a_defect_of_a_handler_is_reported_and_ends_nothing(caplog):
    def broken(request):
        raise ZeroDivisionError("secret")

    made = Control({"broken": broken, "hello": hello})
    assert answered(made, {"command": "broken"}) == {
        "error": "a defect of the daemon, its log has more: ZeroDivisionError"
    }
    assert answered(made, {"command": "hello"}) == {"hello": ""}
    assert made.counters()["failures"] == 1 and "Traceback" in caplog.text


def test_an_answer_beyond_the_bound_is_refused():
    made = Control({"big": lambda request: {"x": "x" * (17 << 20)}})
    assert "bytes, more than" in answered(made, {"command": "big"})["error"]


# -- the socket --


def test_a_daemon_is_asked_and_answers(served, tmp_path):
    path = str(tmp_path / "node.sock")
    made = served(path)
    for name in ("one", "two"):
        assert ask(path, "node", {"command": "hello", "name": name}) == {"hello": name}
    with pytest.raises(Refused, match="no command 'bye'"):
        ask(path, "node", {"command": "bye"})
    assert made.counters() == {"requests": 3, "refused": 1, "failures": 0}


def test_the_socket_is_its_users_alone_and_gone_at_the_end(served, tmp_path):
    path = tmp_path / "run" / "node.sock"
    made = served(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    made.close()
    made.close()
    assert not path.exists()
    with pytest.raises(Unreachable, match="no daemon listens") as err:
        ask(str(path), "node", {"command": "hello"})
    assert err.value.why == "absent"


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(served, tmp_path):
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    with pytest.raises(Unreachable, match="no daemon listens"):
        ask(str(path), "node", {"command": "hello"})
    served(str(path))
    with pytest.raises(ConfigError, match="another daemon listens there"):
        served(str(path))
    assert ask(str(path), "node", {"command": "hello"}) == {"hello": ""}


def test_what_is_not_a_socket_is_left_alone(served, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="another file is there"):
        served(str(path))
    assert path.read_text() == "precious"


def test_a_directory_in_which_others_may_write_is_refused(served, tmp_path):
    open_one = tmp_path / "open"
    open_one.mkdir()
    open_one.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write"):
        served(str(open_one / "node.sock"))


@pytest.mark.parametrize("place", ["/proc/nothing/node.sock", "tcp://127.0.0.1:5560", "/tmp/" + "x" * 120])
def test_a_place_that_cannot_be_is_refused(served, place):
    with pytest.raises(ConfigError, match="--control-socket"):
        served(place)


def test_without_the_right_the_error_says_whom_to_be(served, root, public):
    path = str(public / "node.sock")
    served(path)
    code = (
        "import os\nfrom colmet.common.daemon import control\nos.setgid(65534); os.setuid(65534)\n"
        f"try:\n    control.ask({path!r}, 'node', {{}})\n"
        "except control.Unreachable as err:\n    print(err.why, err)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"denied {path}: permission denied; ask as its user, or root of the machine\n", done.stderr


def test_a_daemon_that_hangs_is_distinguished_from_one_that_is_away(served, tmp_path):
    path, release = str(tmp_path / "node.sock"), threading.Event()
    served(path, hang=lambda request: {"free": release.wait(30)})
    with pytest.raises(Unreachable, match=r"no answer .* within 0.1 s") as err:
        ask(path, "node", {"command": "hang"}, timeout_s=0.1)
    assert err.value.why == "silent"
    release.set()
    assert ask(path, "node", {"command": "hello"}) == {"hello": ""}


def send_raw(path, raw):
    """Send bytes; return what comes back until the end."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(raw)
            return b"".join(iter(lambda: client.recv(4096), b""))
    return b""


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        *((raw, "not JSON") for raw in (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"[" * 5000 + b"\n")),
        (b"9" * 60000 + b"\n", "not JSON|not a map"),
        (b"[1]\n", "not a map"),
        (b'{"a": [1]}\n', "a is a list"),
        (b'{"a": NaN}\n', "a is nan"),
        (json.dumps({str(n): n for n in range(65)}).encode() + b"\n", "64 keys"),
        (b'{"command": "bye"}\n', "no command 'bye'"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_what_is_no_request_gets_an_error_and_is_counted(served, tmp_path, raw, why):
    path = str(tmp_path / "node.sock")
    made = served(path)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(json.loads(send_raw(path, raw))["error"])
    assert ask(path, "node", {"command": "hello"}) == {"hello": ""}
    assert made.counters() == {"requests": 2, "refused": 1, "failures": 0}


def test_what_is_too_long_or_has_no_end_costs_the_connection_alone(served, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "REQUEST_S", 0.2)
    path = str(tmp_path / "node.sock")
    made = served(path)
    send_raw(path, b"x" * (1 << 20))
    assert send_raw(path, b'{"command": ') == b""
    assert ask(path, "node", {"command": "hello"}) == {"hello": ""}
    assert made.counters()["requests"] == 2


def test_a_request_that_comes_byte_by_byte_is_answered(served, tmp_path):
    path = str(tmp_path / "node.sock")
    served(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        for byte in b'{"command": "hello"}\n':
            client.sendall(bytes([byte]))
        assert json.loads(client.recv(4096)) == {"hello": ""}


def test_a_client_that_does_not_read_its_reply_is_closed_and_keeps_nobody_waiting(served, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "REPLY_S", 0.3)
    path = str(tmp_path / "node.sock")
    served(path, big=lambda request: {"x": "x" * (8 << 20)})
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b'{"command": "big"}\n')
        assert ask(path, "node", {"command": "hello"}) == {"hello": ""}
        time.sleep(0.5)
        assert len(b"".join(iter(lambda: client.recv(1 << 20), b""))) < 8 << 20


def test_an_answer_of_megabytes_comes_whole_and_two_clients_get_their_own(served, tmp_path):
    path = str(tmp_path / "node.sock")
    served(path, big=lambda request: {"x": request["name"] * (1 << 20)})
    with futures.ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: ask(path, "node", {"command": "big", "name": name}), "abcd")
    assert [one["x"] for one in found] == [name * (1 << 20) for name in "abcd"]


def test_connections_that_are_held_open_keep_nobody_out(served, tmp_path):
    path = str(tmp_path / "node.sock")
    served(path)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * control.MAX_CLIENTS):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(path)
        assert ask(path, "node", {"command": "hello"}) == {"hello": ""}


@pytest.mark.live
def test_without_descriptors_a_client_waits_and_the_daemon_lives(tmp_path):
    code = """
import os, resource, sys
from colmet.common.daemon.control import Control
made = Control({"hello": lambda request: {"hello": ""}})
made.listen(sys.argv[1], "node")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("full", flush=True)
sys.stdin.readline()
for one in opened:
    os.close(one)
sys.stdin.readline()
"""
    path = str(tmp_path / "node.sock")
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout.readline() == "full\n"
        with pytest.raises(Unreachable, match="no answer"):
            ask(path, "node", {"command": "hello"}, timeout_s=0.5)
        assert daemon.poll() is None
        daemon.stdin.write("\n")
        daemon.stdin.flush()
        assert ask(path, "node", {"command": "hello"}) == {"hello": ""}
        daemon.stdin.write("\n")


# -- the default place --


def test_the_default_socket_is_under_run_or_in_the_users_own_directory(served, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "DIRECTORY", "/proc/nothing")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    served(None, "collector")
    assert (tmp_path / "colmet" / "collector.sock").exists()
    assert ask(None, "collector", {"command": "hello"}) == {"hello": ""}
    with pytest.raises(Unreachable, match=r"no colmet-node listens on /proc/nothing/node\.sock or"):
        ask(None, "node", {"command": "hello"})


def test_a_daemon_that_may_not_write_there_uses_the_directory_of_its_unit(served, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "DIRECTORY", "/proc/nothing")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "unit"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    served(None, "collector")
    assert (tmp_path / "unit" / "collector.sock").exists() and not (tmp_path / "colmet").exists()


def test_without_a_default_place_there_is_none_and_it_is_said_once(served, monkeypatch, caplog):
    monkeypatch.setattr(control, "DIRECTORY", "/proc/nothing")
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    served(None)
    assert len(caplog.records) == 1 and "no control socket" in caplog.text


def test_a_daemon_of_the_unit_is_found_and_a_second_one_by_hand_goes_on_without(served, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(control, "DIRECTORY", str(tmp_path))
    unit = served(str(tmp_path / "node" / "node.sock"))
    by_hand = served(None)
    assert "another daemon listens on" in caplog.text and not (tmp_path / "node.sock").exists()
    ask(None, "node", {"command": "hello"})
    assert (unit.counters()["requests"], by_hand.counters()["requests"]) == (1, 0)


def test_a_file_system_that_is_read_only_is_distinguished_from_a_missing_right(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_, **options: False)
    with pytest.raises(ConfigError, match="Permission denied"):
        ControlServer(f"{tmp_path}/s", bytes)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(ConfigError, match="Read-only file system"):
        ControlServer(f"{tmp_path}/s", bytes)


def test_an_empty_place_is_none(served, monkeypatch, tmp_path):
    monkeypatch.setattr(control, "DIRECTORY", str(tmp_path))
    served("")
    assert not list(tmp_path.iterdir())


# -- errands --


def test_an_errand_is_done_by_the_thread_that_serves_and_its_errors_come_back():
    with served_errands() as errands:
        assert errands.call(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            errands.call(lambda: 1 // 0)
        with pytest.raises(TimeoutError, match="mine"):
            errands.call(lambda: (_ for _ in ()).throw(TimeoutError("mine")))


def test_an_errand_that_is_not_begun_in_time_is_never_done():
    done = []
    with Errands() as errands:
        with pytest.raises(Refused, match="will not do it later"):
            errands.call(lambda: done.append(1), timeout_s=0.01)
        errands.serve()
    assert not done


def test_at_the_end_errands_are_refused():
    said = []

    def call():
        try:
            errands.call(lambda: None, timeout_s=30)
        except Refused as err:
            said.append(str(err))

    with Errands() as errands:
        thread = threading.Thread(target=call)
        thread.start()
        while not errands._waiting:
            time.sleep(0.001)
    thread.join(20)
    with pytest.raises(Refused, match="about to end"):
        errands.call(lambda: None)
    assert said == ["the daemon is about to end"]
