"""Documents on their way to a real HTTP server that is down, refuses, hangs, breaks off or has another certificate."""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import logging
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import pytest

from colmet.common.errors import ConfigError
from colmet.common.runtime import http_client
from colmet.facility import options
from colmet.facility import sender as module
from colmet.facility.sender import DocumentSender, Outcome, parse_retry_after
from colmet.facility.spool import DocumentSpool
from tests.support.endpoint_server import CUT, DRIP, HALF, HEADERS_ONLY, SILENCE, Endpoint, Handler, certificate
from tests.support.place import require_programs
from tests.support.waiting import wait_for

NS = 10**9
TOKEN = "s3cret-t0ken"


class SleepingClock:
    """Time that goes by on request, and when somebody sleeps."""

    def __init__(self):
        self.now_s = 1_700_000_000.0
        self.slept = []

    def now_ns(self):
        self.now_s += 1e-5
        return int(self.now_s * NS)

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def endpoint():
    made = Endpoint()
    yield made
    made.stop()


@pytest.fixture
def clock():
    return SleepingClock()


@pytest.fixture
def make(endpoint, clock, tmp_path):
    made = []

    def run(spooled=True, url=None, token=TOKEN, **options):
        options = {"timeout_s": 5.0, "rate": 1e6, "jitter": lambda: 0.5, **options}
        spool = DocumentSpool(str(tmp_path / "spool"), now_ns=clock.now_ns) if spooled else None
        times = {"now_ns": clock.now_ns, "monotonic": clock.monotonic, "sleep": clock.sleep}
        made.append(DocumentSender(url or endpoint.url, token, spool, **{**times, **options}))
        return made[-1]

    yield run
    for one in made:
        one.close()


def documents(*numbers):
    return [{"token": None, "kind": "ssh", "cluster": "UC-AF", "n": number} for number in numbers]


def taken(endpoint):
    return [document["n"] for document in endpoint.documents]


def test_a_document_is_one_post_with_the_bytes_that_the_old_program_sent(endpoint, make):
    import requests

    document = {"token": None, "kind": "CPU", "cluster": "UC-AF", "login_node": "é", "load": 0.07, "users": ["a", "b"]}
    assert make().send([document]) == Outcome(1, 0, 0, 0)
    requests.post(endpoint.url, json={**document, "token": TOKEN}, timeout=5)
    (path, headers, body), (_, old_headers, old_body) = endpoint.requests
    assert path == "/in" and headers["Content-Type"] == old_headers["Content-Type"]
    assert body == old_body and json.loads(body)["token"] == TOKEN


def test_the_order_holds_and_without_a_token_it_is_null(endpoint, make):
    assert make(token=None).send(documents(*range(200))) == Outcome(200, 0, 0, 0)
    assert taken(endpoint) == list(range(200))
    assert {document["token"] for document in endpoint.documents} == {None}


def test_the_token_is_on_no_disk(endpoint, make, tmp_path):
    endpoint.always = lambda document: (400, {}, b"no " + TOKEN.encode()) if document["n"] == 1 else 503
    assert make().send(documents(1, 2)) == Outcome(0, 1, 1, 0)
    found = [path.read_bytes() for path in (tmp_path / "spool").iterdir()]
    assert any(b"status 400" in data for data in found)
    assert not [data for data in found if TOKEN.encode() in data]


def test_only_where_it_is_asked_for_a_document_says_when_it_was_true(endpoint, make, clock):
    make().send(documents(1))
    make(timestamp=True).send(documents(2))
    assert "timestamp" not in endpoint.documents[0]
    assert endpoint.documents[1] == {**documents(2)[0], "token": TOKEN, "timestamp": int(clock.now_s)}


def test_what_an_endpoint_that_is_down_misses_comes_with_the_next_run_and_first(endpoint, make):
    endpoint.stop()
    one = make()
    assert one.send(documents(1, 2)) == Outcome(0, 2, 0, 0)
    assert one.send(documents(3)) == Outcome(0, 3, 0, 0)
    one.close()
    endpoint.start()
    assert make().send(documents(4)) == Outcome(4, 0, 0, 0)
    assert taken(endpoint) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "how", ["down", *[pytest.param(how, marks=pytest.mark.slow) for how in (500, 503, SILENCE, CUT)]]
)
def test_an_hour_without_the_endpoint_loses_nothing(endpoint, make, clock, monkeypatch, how):
    monkeypatch.setattr(module, "GRACE_S", 0.01)
    if how == "down":
        endpoint.stop()
    endpoint.always = how
    number = 0
    for _ in range(12):
        one = make(timeout_s=0.1 if how == SILENCE else 5.0, tries=1)
        assert one.send(documents(*range(number, number + 20))) == Outcome(0, number + 20, 0, 0)
        one.close()
        number += 20
        clock.now_s += 300
    endpoint.always = None
    if how == "down":
        endpoint.start()
    assert make().send(documents(number)) == Outcome(241, 0, 0, 0)
    assert taken(endpoint) == list(range(241))


def test_beyond_the_bounds_of_the_spool_the_oldest_are_lost_and_counted(endpoint, clock, tmp_path, make):
    endpoint.stop()
    spool = DocumentSpool(str(tmp_path / "spool"), max_age_s=3600, now_ns=clock.now_ns)
    one = DocumentSender(endpoint.url, None, spool, now_ns=clock.now_ns, monotonic=clock.monotonic, sleep=clock.sleep)
    assert one.send(documents(1, 2)).kept == 2
    clock.now_s += 3601
    assert one.send(documents(3)) == Outcome(0, 1, 0, 2)
    one.close()


def test_without_a_spool_what_cannot_be_sent_is_lost_and_counted(endpoint, make):
    endpoint.stop()
    assert make(spooled=False).send(documents(1, 2)) == Outcome(0, 0, 0, 2)
    endpoint.start()
    assert make(spooled=False).send(documents(3)) == Outcome(1, 0, 0, 0)


def test_an_endpoint_that_answers_500_for_a_while_gets_all_within_the_run(endpoint, make, clock):
    endpoint.script = [500, 502]
    assert make().send(documents(1, 2)) == Outcome(2, 0, 0, 0)
    assert taken(endpoint) == [1, 2]
    assert sum(clock.slept) == pytest.approx(1 + 2, abs=0.1)


def test_pauses_differ_between_hosts(endpoint, make, clock):
    endpoint.script = [500]
    make(jitter=lambda: 0.25).send(documents(1))
    assert sum(clock.slept) == pytest.approx(0.75, abs=0.1)


def test_an_endpoint_that_answers_500_for_ever_keeps_nobody_for_long(endpoint, make):
    endpoint.always = 500
    assert make().send(documents(*range(100))) == Outcome(0, 100, 0, 0)
    assert len(endpoint.requests) == 3 + 1 + 1 + 1, "the newest one is tried, too"


def test_one_document_that_meets_a_500_does_not_hold_up_the_others(endpoint, make):
    endpoint.always = lambda document: 500 if document["n"] == 1 else None
    one = make()
    assert one.send(documents(*range(5))) == Outcome(4, 1, 0, 0)
    assert taken(endpoint) == [0, 2, 3, 4]
    endpoint.always = None
    assert one.send([]) == Outcome(1, 0, 0, 0)


KINDS = ("ssh", "CPU", "MEM", "NETWORK")


def run_of(number, kinds=KINDS):
    return [{"token": None, "kind": kind, "cluster": "UC-AF", "n": number} for kind in kinds]


def kinds_taken(endpoint):
    taken, endpoint.documents = endpoint.documents, []
    return [(document["kind"], document["n"]) for document in taken]


@pytest.mark.parametrize("status", [500, *[pytest.param(status, marks=pytest.mark.slow) for status in (403, 404)]])
@pytest.mark.parametrize("bad", [("MEM",), ("CPU", "MEM", "NETWORK"), ("ssh", "CPU", "MEM")])
def test_kinds_that_the_endpoint_never_accepts_hold_up_no_other(endpoint, make, status, bad):
    """Run after run: all others are there, in order, and what is not taken is kept."""
    endpoint.always = lambda document: status if document["kind"] in bad else None
    good = [kind for kind in KINDS if kind not in bad]
    for number in range(12):
        made = make()
        assert made.send(run_of(number)) == Outcome(len(good), len(bad) * (number + 1), 0, 0)
        made.close()
        assert sorted(kinds_taken(endpoint)) == sorted((kind, number) for kind in good)
    assert len(endpoint.requests) < 12 * 70
    endpoint.always = None
    assert make().send([]) == Outcome(12 * len(bad), 0, 0, 0)
    assert kinds_taken(endpoint) == [(kind, n) for n in range(12) for kind in KINDS if kind in bad]


def test_documents_that_meet_a_500_do_not_hold_up_others_of_their_kind(endpoint, make):
    endpoint.always = lambda document: 500 if document["n"] < 5 else None
    assert make().send(documents(*range(30))) == Outcome(25, 5, 0, 0)
    assert sorted(taken(endpoint)) == list(range(5, 30))


def test_a_kind_that_is_never_taken_is_not_tried_without_end(endpoint, make):
    endpoint.always = lambda document: 500 if document["kind"] == "ssh" else None
    assert make().send([*documents(*range(200)), *run_of(1, ("CPU",))]) == Outcome(1, 200, 0, 0)
    assert len(endpoint.requests) < 40


def test_a_slow_endpoint_is_given_more_time_rather_than_more_copies(endpoint, make, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.02)
    answer, request, timeouts = Handler.answer, http_client.HttpClient.request, []

    def note(client, *what, timeout_s, **more):
        timeouts.append(timeout_s)
        return request(client, *what, timeout_s=timeout_s, **more)

    def slow_at_first(handler, *what):  # it has the document before it says so
        if len(endpoint.requests) < 3:
            endpoint.over.wait(60)
        answer(handler, *what)

    monkeypatch.setattr(http_client.HttpClient, "request", note)
    monkeypatch.setattr(Handler, "answer", slow_at_first)
    assert make(timeout_s=0.2, tries=3).send(documents(1, 2, 3)) == Outcome(3, 0, 0, 0)
    assert taken(endpoint) == [1, 1, 1, 2, 3], "the first one thrice"
    assert timeouts == [0.2, 0.4, 0.8, 0.8, 0.8]


@pytest.mark.parametrize("form", [json.dumps, html.escape, lambda text: quote(text, safe=""), lambda text: text[3:14]])
def test_no_form_of_the_token_comes_from_an_answer_into_the_log_or_the_spool(endpoint, make, caplog, tmp_path, form):
    secret = 'abc/def&tok"en<1>'
    endpoint.always = 413, {}, f"what is {form(secret)}?".encode()
    assert make(token=secret).send(documents(1)).refused == 1
    written = caplog.text + (tmp_path / "spool/refused.jsonl").read_text()
    assert "413" in written
    for part in (form(secret), "def&", "def%26", "def&amp;"):
        assert part not in written


def test_a_token_that_is_renewed_counts_from_the_next_run_on_for_what_waits_too(endpoint, make, caplog):
    tokens = iter(["old", "new"])

    def renew():
        try:
            return next(tokens)
        except StopIteration:
            raise ConfigError("--token-file t: Permission denied") from None

    endpoint.always = 401, {}, b""
    one = make(renew=renew)
    one.send(documents(1))
    endpoint.always = None
    for number in (2, 3):
        assert one.send(documents(number)).complete
    assert [(document["n"], document["token"]) for document in endpoint.documents] == [
        (1, "new"),
        (2, "new"),
        (3, "new"),
    ]
    assert "token not read again, the former one is used: --token-file t: Permission denied" in caplog.text


def test_what_a_redirect_repeats_of_the_address_is_not_in_the_log(endpoint, make, caplog):
    endpoint.always = 301, {"Location": "https://me:secret@good.example/in?key=SECRET"}, b""
    make(url=f"{endpoint.url}?key=SECRET").send(documents(1))
    assert "https://good.example/in" in caplog.text
    assert "SECRET" not in caplog.text and "secret" not in caplog.text


def test_a_refused_document_is_reported_put_aside_and_not_sent_again(endpoint, make, tmp_path, caplog):
    endpoint.always = lambda document: (413, {}, b"too\nlarge") if document["n"] == 1 else None
    one = make()
    assert one.send(documents(0, 1, 2)) == Outcome(2, 0, 1, 0)
    assert one.send([]) == Outcome(0, 0, 0, 0)
    assert taken(endpoint) == [0, 2] and len(endpoint.requests) == 3
    (line,) = (tmp_path / "spool/refused.jsonl").read_text().splitlines()
    refused = json.loads(line)
    assert refused["document"] == documents(1)[0] and refused["reason"] == "status 413: too large"
    assert "document refused, and not sent again kind=ssh refused=1: status 413: too large" in caplog.text


@pytest.mark.parametrize("what", [float("nan"), {1, 2}, b"bytes"])
def test_what_is_no_json_is_refused_and_the_others_are_sent(endpoint, make, what):
    bad = {"token": None, "kind": "CPU", "load": what}
    assert make().send([*documents(1), bad, *documents(2)]) == Outcome(2, 0, 1, 0)


@pytest.mark.parametrize("text", [b"", b"[]", b'["token"]', b"nonsense", b"[" * 100_000])
def test_what_is_no_document_in_the_spool_is_left_to_the_endpoint(endpoint, make, tmp_path, text):
    endpoint.script = [400]
    spool = DocumentSpool(str(tmp_path / "spool"))
    assert spool.put([text]) == 1
    spool.close()
    assert make().send([]) == Outcome(0, 0, 1, 0)
    assert endpoint.requests[0][2] == text


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_wrong_token_or_address_keeps_the_documents_until_it_is_mended(endpoint, make, caplog, status):
    endpoint.always = status, {}, b"who are you?"
    one = make()
    assert one.send(documents(*range(10))) == Outcome(0, 10, 0, 0)
    assert len(endpoint.requests) == 1, "it is the same for all of them"
    assert f"status {status}: who are you?; the documents are kept" in caplog.text
    assert ("is the token right" in caplog.text) == (status < 404)
    endpoint.always = None
    assert one.send([]) == Outcome(10, 0, 0, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_reported(endpoint, make, caplog, status):
    endpoint.always = status, {"Location": "/elsewhere"}, b""
    assert make().send(documents(1, 2)) == Outcome(0, 2, 0, 0)
    assert [path for path, _, _ in endpoint.requests] == ["/in"] and not endpoint.gets
    assert "a redirection to '/elsewhere', which is not followed; give the right address with --url" in caplog.text


def test_it_waits_as_long_as_the_endpoint_asks_for(endpoint, make, clock):
    endpoint.script = [(429, {"Retry-After": "17"}, b"")]
    assert make().send(documents(1, 2)) == Outcome(2, 0, 0, 0)
    assert sum(clock.slept) == pytest.approx(17, abs=0.1)


def test_it_waits_until_a_date_that_the_endpoint_gives(endpoint, make, clock):
    endpoint.script = [(503, {"Retry-After": formatdate(clock.now_s + 20, usegmt=True)}, b"")]
    assert make().send(documents(1)) == Outcome(1, 0, 0, 0)
    assert sum(clock.slept) == pytest.approx(20, abs=1.1)


def test_where_the_endpoint_asks_for_longer_than_the_run_may_take_it_is_left_alone(endpoint, make, clock):
    endpoint.script = [(429, {"Retry-After": "600"}, b"")]
    one = make(deadline_s=60)
    assert one.send(documents(1, 2)) == Outcome(0, 2, 0, 0)
    clock.now_s += 300
    assert one.send(documents(3)) == Outcome(0, 3, 0, 0)
    assert len(endpoint.requests) == 1 and sum(clock.slept) == 0
    clock.now_s += 300
    assert one.send([]) == Outcome(3, 0, 0, 0)


def test_nobody_can_ask_for_more_than_an_hour(endpoint, make, clock):
    endpoint.script = [(429, {"Retry-After": "9" * 50}, b"")]
    one = make()
    assert one.send(documents(1)).kept == 1
    clock.now_s += 3601
    assert one.send([]).sent == 1


@pytest.mark.parametrize("value", [None, "", "soon", "-5", "1.5", "x" * 200, "Mon, 99 Foo 2026 00:00:00 GMT", "١"])
def test_a_pause_in_no_known_form_is_none(value):
    assert parse_retry_after(value, 0.0) is None


@pytest.mark.live
@pytest.mark.parametrize("how", [SILENCE, DRIP])
def test_an_endpoint_that_accepts_and_says_nothing_is_given_up(endpoint, make, monkeypatch, how):
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    endpoint.always = how
    assert make(timeout_s=0.4, tries=2).send(documents(1, 2)) == Outcome(0, 2, 0, 0)
    assert endpoint.hanging == 2
    endpoint.always = None
    assert make().send(documents(3)) == Outcome(3, 0, 0, 0)


@pytest.mark.live
def test_exchanges_that_hang_for_ever_do_not_pile_up(endpoint, make, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    monkeypatch.setattr(http_client, "MAX_STUCK", 3)
    endpoint.always = DRIP
    before = set(threading.enumerate())
    assert make(timeout_s=0.15, tries=50, deadline_s=1e6).send(documents(1)).kept == 1
    hanging = [thread for thread in set(threading.enumerate()) - before if thread.name == "exchange"]
    assert len(hanging) == 3


@pytest.mark.live
@pytest.mark.parametrize("how", [HEADERS_ONLY, HALF])
def test_a_document_counts_as_taken_with_the_status_whatever_becomes_of_the_rest(endpoint, make, monkeypatch, how):
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    endpoint.script = [how]
    assert make(timeout_s=1.0).send(documents(1, 2)) == Outcome(2, 0, 0, 0)
    assert taken(endpoint) == [1, 2], "none twice"


def test_a_connection_that_is_cut_is_made_again(endpoint, make):
    endpoint.script = [CUT, None, CUT]
    assert make().send(documents(1, 2, 3)) == Outcome(3, 0, 0, 0)
    assert taken(endpoint) == [1, 2, 3]


def test_an_answer_of_any_size_is_read_in_part_alone(endpoint, make):
    endpoint.always = 200, {}, b"x" * (1 << 22)
    assert make().send(documents(1, 2)) == Outcome(2, 0, 0, 0)


def test_an_answer_cannot_steer_the_terminal_of_who_reads_the_log(endpoint, make, caplog):
    endpoint.always = 400, {}, b"\x1b[2Jgone\r\nERROR other line " + b"y" * 10_000
    make().send(documents(1))
    (record,) = [record for record in caplog.records if "refused" in record.getMessage()]
    assert "\x1b" not in record.getMessage() and "\n" not in record.getMessage() and len(record.getMessage()) < 400


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"\x00" * 1000,
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 -200 OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 no\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n",
        b"HTTP/1.1 500 no\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz",
        b"HTTP/1.1 999 no\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 no\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 no\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 no\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n",
        b"HTTP/1.1 500 no\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=lambda said: repr(said[:40]),
)
def test_whatever_answers_that_is_no_endpoint_gets_nothing_and_loses_nothing(make, said):
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
            outcome = make(url=f"http://127.0.0.1:{address[1]}/", tries=2).send(documents(1, 2))
        finally:
            stop.set()
            socket.create_connection(address).close()
            thread.join()
    assert outcome == Outcome(0, 2, 0, 0)


def test_a_run_ends_at_its_deadline_and_the_next_goes_on(endpoint, make):
    one = make(rate=10, deadline_s=5)
    first = one.send(documents(*range(100)))
    assert 45 <= first.sent <= 55 and first.kept == 100 - first.sent
    while one.send([]).kept:
        pass
    assert taken(endpoint) == list(range(100))


def test_a_signal_ends_the_sending_and_nothing_is_lost(endpoint, make):
    one = make(stopping=lambda: len(endpoint.requests) >= 3)
    outcome = one.send(documents(*range(10)))
    assert outcome == Outcome(3, 7, 0, 0)


def test_while_another_run_sends_documents_are_put_into_the_spool_only(endpoint, make):
    first, second = make(), make()
    held = threading.Event()
    release = threading.Event()

    def hold(document):
        held.set()
        release.wait(20)

    endpoint.always = hold
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(first.send(documents(1, 2))))
    thread.start()
    assert held.wait(20)
    assert second.send(documents(3)) == Outcome(0, 1, 0, 0)
    endpoint.always = None
    release.set()
    thread.join()
    assert outcomes == [Outcome(2, 0, 0, 0)]
    assert second.send([]) == Outcome(1, 0, 0, 0)
    assert taken(endpoint) == [1, 2, 3]


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
        assert make(url=secure.url, ca_file=ca_file).send(documents(1)).sent == 0
    # what the environment says does not count before the option
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates["right"][0])
    assert make(url=secure.url, ca_file=certificates["other"][0]).send([]).kept == 2
    assert not secure.requests and "see --ca-file" in caplog.text
    assert make(url=secure.url, ca_file=certificates["right"][0]).send([]) == Outcome(2, 0, 0, 0)
    assert taken(secure) == [1, 1]


def test_a_proxy_of_the_environment_is_used(endpoint, make, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{endpoint.port}")
    assert make(url="http://af.example.org/in").send(documents(1)) == Outcome(1, 0, 0, 0)
    assert endpoint.requests[0][0] == "http://af.example.org/in"


def test_a_token_in_clear_is_warned_of_but_for_this_machine(make, caplog):
    make(url="http://127.0.0.1:1/")
    make(url="https://af.example.org/")
    assert not caplog.records
    make(url="http://user:pass@af.example.org/x?key=abc")
    assert "can be read on the way" in caplog.text and "http://af.example.org/x" in caplog.text
    assert "pass@" not in caplog.text and "abc" not in caplog.text


@pytest.mark.parametrize(
    "url", ["", "af.example.org", "ftp://x/", "http://", "https://a b/", "http://x:99999/", "http://[/"]
)
def test_what_is_no_address_is_an_error_of_the_command_line(url):
    with pytest.raises(ConfigError, match="--url"):
        DocumentSender(url, None, None)


def options_of(*arguments):
    parser = argparse.ArgumentParser()
    options.add_sending(parser)
    return parser.parse_args(arguments)


def test_the_options_make_a_sender(endpoint, tmp_path):
    options = options_of("--spool-dir", str(tmp_path / "s"), "--timeout", "3", "--rate", "1000", "--timestamp")
    one = module.from_options(options, endpoint.url, TOKEN)
    assert one.send(documents(1)) == Outcome(1, 0, 0, 0)
    one.close()
    assert "timestamp" in endpoint.documents[0]
    assert [path.name for path in (tmp_path / "s/documents").iterdir()] == ["lock"]


def test_a_spool_that_cannot_be_used_is_reported_and_documents_are_sent_all_the_same(endpoint, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    one = module.from_options(options_of("--spool-dir", str(tmp_path / "file")), endpoint.url, None)
    assert one.send(documents(1)) == Outcome(1, 0, 0, 0)
    one.close()
    assert "nothing is kept between runs: documents that cannot be sent are lost" in caplog.text


def test_a_file_of_certificates_that_holds_none_is_an_error_of_the_command_line(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigError, match="--ca-file"):
            module.from_options(options_of("--ca-file", str(tmp_path / name), "--spool-dir", ""), "https://x/", None)


RUN = """
import sys
from colmet.facility.sender import DocumentSender
from colmet.facility.spool import DocumentSpool
url, directory, notes, first, count = sys.argv[1:]
sender = DocumentSender(url, None, DocumentSpool(directory), timeout_s=5, rate=1e5)
documents = [{"token": None, "kind": "ssh", "n": n} for n in range(int(first), int(first) + int(count))]
put = sender._spool.put
def noting(texts):
    written = put(texts)
    print(first, count, written, flush=True)
    return written
sender._spool.put = noting
print(sender.send(documents), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_loses_nothing_that_it_had_written(endpoint, tmp_path):
    rng = random.Random(8)
    root = Path(__file__).resolve().parents[2]
    first, expected = 0, set()
    endpoint.always = lambda document: time.sleep(0.002)
    for number in range(10):
        count = 60
        command = [sys.executable, "-c", RUN, endpoint.url, str(tmp_path / "spool"), "-", str(first), str(count)]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if number < 9:
                line = process.stdout.readline()
                seen = len(endpoint.requests)
                wanted = seen + rng.randrange(count)
                wait_for(
                    lambda wanted=wanted, process=process: (
                        len(endpoint.requests) >= wanted or process.poll() is not None
                    )
                )
                process.send_signal(signal.SIGKILL)
                process.wait(20)
            else:
                line = process.stdout.readline()
                assert process.wait(60) == 0, process.stderr.read()
            assert line.split() == [str(first), str(count), str(count)]
        expected.update(range(first, first + count))
        first += count
    assert set(taken(endpoint)) == expected
    repeated = len(endpoint.documents) - len(expected)
    assert repeated <= 9 * 2, "one that is on its way when the run is killed, and one of which the note is missing"
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["lock"]


def test_logging_of_a_run_is_one_line_where_all_is_well(make, caplog):
    caplog.set_level(logging.INFO, logger="colmet")
    make().send(documents(1, 2, 3))
    assert [record.getMessage().split(" endpoint")[0] for record in caplog.records] == [
        "documents sent=3 kept=0 refused=0 lost=0"
    ]
