"""The one HTTP client: what it refuses to follow, to unpack and to wait for."""

from __future__ import annotations

import pytest

from colmet.common.http_client import HttpClient, HttpFailure, is_readable_on_the_way, parse_url
from tests.support.endpoint_server import HALF, SILENCE, Endpoint


@pytest.fixture
def endpoint():
    made = Endpoint()
    yield made
    made.stop()


@pytest.fixture
def http():
    made = HttpClient({"X-Mine": "1"}, max_bytes=1000)
    yield made
    made.close()


def test_a_redirect_is_an_answer_whose_body_is_read_to_the_bound_alone(endpoint, http):
    endpoint.always = 307, {"Location": "/elsewhere"}, b"x" * (1 << 22)
    response = http.request("POST", endpoint.url, b"{}", timeout_s=5)
    assert (response.status, response.headers["location"]) == (307, "/elsewhere")
    assert [path for path, _, _ in endpoint.requests] == ["/in"] and not endpoint.gets
    assert response.start == b"x" * 1000
    with pytest.raises(HttpFailure, match="more than"):
        response.body()


def test_cookies_are_not_sent_back_and_nothing_is_unpacked(endpoint, http):
    endpoint.always = 200, {"Set-Cookie": "a=b", "Content-Encoding": "gzip"}, b"not gzip"
    for _ in range(2):
        assert http.request("POST", endpoint.url, b"{}", timeout_s=5).body() == b"not gzip"
    for _, headers, _ in endpoint.requests:
        assert headers["X-Mine"] == "1" and headers["Accept-Encoding"] == "identity" and "Cookie" not in headers


def test_a_body_that_breaks_off_has_its_status_and_a_reason(endpoint, http):
    endpoint.always = HALF
    response = http.request("POST", endpoint.url, b"{}", timeout_s=5)
    assert response.status == 200
    with pytest.raises(HttpFailure, match="IncompleteRead"):
        response.body()


def test_the_reason_is_the_systems_own(http):
    with pytest.raises(HttpFailure, match=r"^Connection refused$") as caught:
        http.request("GET", "http://127.0.0.1:1/", timeout_s=5)
    assert isinstance(caught.value.cause, ConnectionRefusedError) and not caught.value.is_late


def test_an_exchange_ends_with_its_deadline(endpoint, http):
    endpoint.always = SILENCE
    with pytest.raises(HttpFailure, match=r"no whole answer within 0\.1 s") as caught:
        http.request("POST", endpoint.url, b"{}", timeout_s=60, deadline_s=0.1)
    assert caught.value.is_late
    endpoint.always = None
    assert http.request("POST", endpoint.url, b'{"n": 1}', timeout_s=5, deadline_s=5).status == 200


@pytest.mark.parametrize("url", ["", "db:1", "ftp://db", "http://", "http://db:0", "http://db:x", "http://a b", "//db"])
def test_what_is_no_address_of_http_has_no_parts(url):
    assert parse_url(url) is None


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("http://db:1", True),
        ("http://192.0.2.1", True),
        *((text, False) for text in ("https://db", "http://localhost:1", "http://127.9.9.9", "http://[::1]:1")),
    ],
)
def test_others_can_read_what_goes_in_clear_to_another_machine(url, readable):
    assert is_readable_on_the_way(url) == readable
