"""Documents on their way to a real HTTP server that is down, refuses, hangs, breaks off or has another certificate."""

from __future__ import annotations

import contextlib
import html
import json
import logging
import socket
import ssl
import threading
import time
from email.utils import formatdate
from urllib.parse import quote

import pytest
import requests

from colmet.common.errors import ConfigError
from colmet.facility import sender as module
from colmet.facility.sender import DocumentSender, Outcome, parse_retry_after
from tests.support.endpoint_server import CUT, DRIP, HALF, HEADERS_ONLY, SILENCE, Endpoint, certificate
from tests.support.place import require_programs

TOKEN = "s3cret-t0ken"


class SleepingClock:
    """Time that goes by on request, and when somebody sleeps."""

    def __init__(self):
        self.now_s = time.time()
        self.slept = []

    def monotonic(self):
        return self.now_s

    time = monotonic

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: 1.0)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module, "time", SleepingClock())
    return module.time


@pytest.fixture
def make(endpoint, clock):
    made = []

    def run(url=None, token=TOKEN, **options):
        made.append(DocumentSender(url or endpoint.url, token, **options))
        return made[-1]

    yield run
    for one in made:
        one.close()


def documents(*numbers):
    return [{"token": None, "kind": "ssh", "cluster": "UC-AF", "n": number} for number in numbers]


def taken(endpoint):
    return [document["n"] for document in endpoint.documents]


def test_a_document_is_one_post_with_the_bytes_that_the_old_program_sent(endpoint, make):
    document = {"token": None, "kind": "CPU", "cluster": "UC-AF", "login_node": "é", "load": 0.07, "users": ["a", "b"]}
    assert make().send([document]) == Outcome(1, 0, 0)
    requests.post(endpoint.url, json={**document, "token": TOKEN}, timeout=5)
    (path, headers, body), (_, old_headers, old_body) = endpoint.requests
    assert path == "/in" and headers["Content-Type"] == old_headers["Content-Type"]
    assert body == old_body and json.loads(body)["token"] == TOKEN


def test_the_order_holds_and_without_a_token_it_is_null(endpoint, make):
    assert make(token=None).send(documents(*range(200))) == Outcome(200, 0, 0)
    assert taken(endpoint) == list(range(200))
    assert {document["token"] for document in endpoint.documents} == {None}


def test_an_endpoint_that_is_down_is_tried_until_the_deadline_and_then_all_are_lost(endpoint, make, clock, caplog):
    endpoint.stop()
    assert make().send(documents(1, 2)) == Outcome(0, 0, 2)
    assert module.DEADLINE_S / 2 < sum(clock.slept) < module.DEADLINE_S
    assert "documents not sent, and lost lost=2" in caplog.text and "refused" in caplog.text


def test_an_endpoint_that_comes_back_within_the_run_gets_all(endpoint, make, clock):
    endpoint.stop()
    pass_time = clock.sleep

    def sleep(seconds):
        pass_time(seconds)
        if len(clock.slept) == 20:
            endpoint.start()

    clock.sleep = sleep
    one = make()
    assert one.send(documents(1, 2)) == Outcome(2, 0, 0)
    assert one.send(documents(3)) == Outcome(1, 0, 0)
    assert taken(endpoint) == [1, 2, 3]


def test_a_document_that_meets_a_500_is_sent_some_times_and_does_not_hold_up_the_others(endpoint, make):
    endpoint.script = [500, 502]
    assert make().send(documents(8, 9)) == Outcome(2, 0, 0)
    assert taken(endpoint) == [8, 9]
    endpoint.documents.clear(), endpoint.requests.clear()
    endpoint.always = lambda document: 500 if document["n"] == 1 else None
    assert make().send(documents(*range(5))) == Outcome(4, 0, 1)
    assert taken(endpoint) == [0, 2, 3, 4] and len(endpoint.requests) == 4 + module.TRIES


@pytest.mark.parametrize("form", [json.dumps, html.escape, lambda text: quote(text, safe=""), lambda text: text[3:14]])
def test_no_form_of_the_token_comes_from_an_answer_into_the_log(endpoint, make, caplog, form):
    secret = 'abc/def&tok"en<1>'
    endpoint.always = 413, {}, f"what is {form(secret)}?".encode()
    assert make(token=secret).send(documents(1)).refused == 1
    assert "413" in caplog.text
    for part in (form(secret), "def&", "def%26", "def&amp;"):
        assert part not in caplog.text


def test_a_token_that_is_renewed_counts_from_the_next_run_on(endpoint, make, caplog):
    tokens = iter(["old", "new"])

    def read_token():
        try:
            return next(tokens)
        except StopIteration:
            raise ConfigError("--token-file t: Permission denied") from None

    one = make(read_token=read_token)
    for number in (1, 2, 3):
        assert one.send(documents(number)).complete
    assert [document["token"] for document in endpoint.documents] == ["old", "new", "new"]
    assert "token not read again, the former one is used: --token-file t: Permission denied" in caplog.text


def test_what_a_redirect_repeats_of_the_address_is_not_in_the_log(endpoint, make, caplog):
    endpoint.always = 301, {"Location": "https://me:secret@good.example/in?key=SECRET"}, b""
    make(url=f"{endpoint.url}?key=SECRET").send(documents(1))
    assert "https://good.example/in" in caplog.text
    assert "SECRET" not in caplog.text and "secret" not in caplog.text


def test_a_refused_document_is_reported_and_the_others_are_sent(endpoint, make, caplog):
    endpoint.always = lambda document: (413, {}, b"too\nlarge") if document["n"] == 1 else None
    assert make().send(documents(0, 1, 2)) == Outcome(2, 1, 0)
    assert taken(endpoint) == [0, 2] and len(endpoint.requests) == 3
    assert "document refused, and not sent again kind=ssh refused=1: status 413: too large" in caplog.text


@pytest.mark.parametrize("what", [float("nan"), {1, 2}, b"bytes"])
def test_what_is_no_json_is_refused_and_the_others_are_sent(endpoint, make, what):
    bad = {"token": None, "kind": "CPU", "load": what}
    assert make().send([*documents(1), bad, *documents(2)]) == Outcome(2, 1, 0)


@pytest.mark.parametrize(("status", "advice"), [(401, "is the token right"), (404, "is --url right")])
def test_a_wrong_token_or_address_ends_the_sending(endpoint, make, caplog, status, advice):
    endpoint.always = status, {}, b"who are you?"
    assert make().send(documents(*range(10))) == Outcome(0, 0, 10)
    assert len(endpoint.requests) == 1, "it is the same for all of them"
    assert f"status {status}: who are you?; {advice}" in caplog.text


@pytest.mark.parametrize("status", [301, 308])
def test_a_redirect_is_not_followed_and_reported(endpoint, make, caplog, status):
    endpoint.always = status, {"Location": "/elsewhere"}, b""
    assert make().send(documents(1, 2)) == Outcome(0, 0, 2)
    assert [path for path, _, _ in endpoint.requests] == ["/in"] and not endpoint.gets
    assert "a redirection to '/elsewhere', which is not followed; give the right address with --url" in caplog.text


@pytest.mark.parametrize(
    ("status", "pause"), [(429, lambda now_s: "17"), (503, lambda now_s: formatdate(now_s + 17, usegmt=True))]
)
def test_it_waits_as_long_as_the_endpoint_asks_for(endpoint, make, clock, status, pause):
    endpoint.script = [(status, {"Retry-After": pause(clock.now_s)}, b"")]
    assert make().send(documents(1, 2)) == Outcome(2, 0, 0)
    assert sum(clock.slept) == pytest.approx(17, abs=1.1)


def test_where_the_endpoint_asks_for_longer_than_the_run_may_take_it_is_left_alone(endpoint, make, clock):
    endpoint.script = [(429, {"Retry-After": "9" * 50}, b"")]
    assert make().send(documents(1, 2)) == Outcome(0, 0, 2)
    assert len(endpoint.requests) == 1 and not clock.slept


@pytest.mark.parametrize("value", [None, "", "soon", "-5", "1.5", "x" * 200, "Mon, 99 Foo 2026 00:00:00 GMT", "١"])
def test_a_pause_in_no_known_form_is_none(value):
    assert parse_retry_after(value, 0.0) is None


@pytest.mark.live
@pytest.mark.parametrize("how", [SILENCE, DRIP])
def test_an_endpoint_that_accepts_and_says_nothing_gets_few_copies(endpoint, make, monkeypatch, how):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    endpoint.always = how
    assert make().send(documents(1)) == Outcome(0, 0, 1)
    assert endpoint.hanging == module.TRIES
    endpoint.always = None
    assert make().send(documents(3)) == Outcome(1, 0, 0)


@pytest.mark.live
@pytest.mark.parametrize("how", [HEADERS_ONLY, HALF])
def test_a_document_counts_as_taken_with_the_status_whatever_becomes_of_the_rest(endpoint, make, monkeypatch, how):
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    monkeypatch.setattr(module, "TIMEOUT_S", 1.0)
    endpoint.script = [how]
    assert make().send(documents(1, 2)) == Outcome(2, 0, 0)
    assert taken(endpoint) == [1, 2], "none twice"


def test_a_connection_that_is_cut_is_made_again(endpoint, make):
    endpoint.script = [CUT, None, CUT]
    assert make().send(documents(1, 2, 3)) == Outcome(3, 0, 0)
    assert taken(endpoint) == [1, 2, 3]


def test_an_answer_cannot_steer_the_terminal_of_who_reads_the_log(endpoint, make, caplog):
    endpoint.always = 400, {}, b"\x1b[2Jgone\r\nERROR other line " + b"y" * 10_000
    make().send(documents(1))
    (record,) = [record for record in caplog.records if "refused" in record.getMessage()]
    assert "\x1b" not in record.getMessage() and "\n" not in record.getMessage() and len(record.getMessage()) < 400


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 1000,
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 500 no\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz",
        b"HTTP/1.1 302 no\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 no\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 no\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n",
        b"HTTP/1.1 500 no\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=lambda said: repr(said[:40]),
)
def test_whatever_answers_that_is_no_endpoint_is_a_loss_that_is_counted(make, said):
    stop = threading.Event()

    def answer(server):
        while not stop.is_set():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                if connection.recv(65536):
                    connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            address = server.getsockname()
            outcome = make(url=f"http://127.0.0.1:{address[1]}/").send(documents(1, 2))
        finally:
            stop.set()
            socket.create_connection(address).close()
            thread.join()
    assert outcome == Outcome(0, 0, 2)


def test_a_signal_ends_the_sending(endpoint, make, caplog):
    one = make(stopping=lambda: len(endpoint.requests) >= 3)
    assert one.send(documents(*range(10))) == Outcome(3, 0, 7)
    assert "lost=7" in caplog.text and "this program is stopping" in caplog.text


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    require_programs("openssl")
    folder = tmp_path_factory.mktemp("certificates")
    return {name: certificate(folder, name) for name in ("right", "other")}


@pytest.fixture
def secure(certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates["right"])
    made = Endpoint(context)
    yield made
    made.stop()


def test_a_certificate_that_nobody_vouches_for_gets_no_document(secure, make, certificates, caplog, monkeypatch):
    for ca_file in (None, certificates["other"][0]):
        assert make(url=secure.url, ca_file=ca_file).send(documents(1)) == Outcome(0, 0, 1)
    # what the environment says does not count before the option
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates["right"][0])
    assert make(url=secure.url, ca_file=certificates["other"][0]).send(documents(1)).lost == 1
    assert not secure.requests and "see --ca-file" in caplog.text
    assert make(url=secure.url, ca_file=certificates["right"][0]).send(documents(1)) == Outcome(1, 0, 0)


def test_a_proxy_of_the_environment_is_used(endpoint, make, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{endpoint.port}")
    assert make(url="http://af.example.org/in").send(documents(1)) == Outcome(1, 0, 0)
    assert endpoint.requests[0][0] == "http://af.example.org/in"


def test_a_token_in_clear_is_warned_of_but_for_this_machine(make, caplog):
    make(url="http://127.0.0.1:1/")
    make(url="https://af.example.org/")
    assert not caplog.records
    make(url="http://user:pass@af.example.org/x?key=abc")
    assert "can be read on the way" in caplog.text and "http://af.example.org/x" in caplog.text
    assert "pass@" not in caplog.text and "abc" not in caplog.text


@pytest.mark.parametrize("url", ["", "af.example.org", "ftp://x/", "https://a b/", "http://x:99999/", "http://[/"])
def test_what_is_no_address_is_an_error_of_the_command_line(url):
    with pytest.raises(ConfigError, match="--url"):
        DocumentSender(url, None)


def test_a_file_of_certificates_that_holds_none_is_an_error_of_the_command_line(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigError, match="--ca-file"):
            DocumentSender("https://x/", None, ca_file=str(tmp_path / name))


def test_logging_of_a_run_is_one_line_where_all_is_well(make, caplog):
    caplog.set_level(logging.INFO, logger="colmet")
    make().send(documents(1, 2, 3))
    assert [record.getMessage().split(" endpoint")[0] for record in caplog.records] == [
        "documents sent=3 refused=0 lost=0"
    ]
