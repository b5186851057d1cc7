"""The page for Prometheus: its format, as Prometheus' own parser reads it, and what a hostile client can do."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from colmet.common.daemon import metrics_http
from colmet.common.daemon.daemon_health import PIECE, Family, in_base_unit, labels, named, render
from colmet.common.daemon.metrics_http import ListenAddress, MetricsServer, listen_address
from colmet.common.errors import ConfigError, Refused
from colmet.common.live.latest_tables import JobMetrics, LatestTables
from colmet.common.schema import Batch, Field, Sample, Schema, Table, label
from tests.support.waiting import Clock


def parsed(text):
    """name -> (kind, help, {labels: value}) as Prometheus' parser sees it."""
    return {
        family.name: (
            family.type,
            family.documentation,
            {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples},
        )
        for family in text_string_to_metric_families(text)
    }


# -- the format --


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_in_labels_and_help_arrives_as_it_was(value, text):
    families = [Family("a", "gauge", text, [(labels({"x": value, "y": "z"}), 1)])]
    text = "".join(render(families))
    assert text.count("\n") == 3, "no text makes a line of its own"
    kind, _, samples = parsed(text)["a"]
    assert kind == "gauge" and samples == {(("x", value), ("y", "z")): 1}


def test_pieces_are_small_and_families_without_samples_left_out():
    families = [
        Family("a", "counter", "A.", [(labels({"n": str(n)}), n) for n in range(1000)]),
        Family("b", "gauge", "B.", []),
        Family("c", "gauge", "C.", [("", 1.5)]),
    ]
    pieces = list(render(families))
    assert max(piece.count("\n") for piece in pieces) <= PIECE + 2
    text = "".join(pieces)
    assert text.count("# TYPE") == 2 and "b" not in text.replace("bytes", "")
    assert parsed(text)["c"] == ("gauge", "C.", {(): 1.5})
    assert len(parsed(text)["a"][2]) == 1000


@pytest.mark.parametrize("count", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_no_sample_is_lost_where_pieces_meet(count):
    text = "".join(render([Family("a", "gauge", "", [(labels({"n": str(n)}), n) for n in range(count)])]))
    assert len(parsed(text)["a"][2]) == count


def test_names_and_units():
    assert named("colmet_job", "a-b.c", kind="counter") == "colmet_job_a_b_c_total"
    assert named("x_total", kind="counter") == "x_total"
    assert in_base_unit("wall_time", "usec", "counter") == ("wall_time_seconds_total", 1e6)
    name, divisor = in_base_unit("rss", "kbytes", "gauge")
    assert (name, 3 / divisor) == ("rss_bytes", 3072)


# -- the latest rows --

CPU = Schema(
    "taskstats_default",
    "job",
    (
        Field("cpu_total", "usec", "counter", "CPU time."),
        Field("load-1", "percent", "gauge", dtype="f4"),
        Field("x", "count", "gauge"),
    ),
)
CGROUP = Schema("cgroup_default", "job", (label("user", 32, "Whose.", "the name"), Field("tasks", "count", "gauge")))
GPUS = Schema(
    "nvidiajobs_default",
    "job",
    (Field("gpu", "none", "gauge"), label("uuid", 40, "Which.", "NVML"), Field("sm", "percent", "gauge")),
)
NODE = Schema("procstats_default", "node", (Field("uptime", "sec", "counter"),))


class Page:
    """A page of metrics, and the tables that it is made of."""

    def __init__(self, clock=time.monotonic, **options):
        self.latest = LatestTables((), always=True, all_jobs=True, monotonic=clock)
        self.take = self.latest.take
        self.metrics = JobMetrics(self.latest, monotonic=clock, **options)
        self.families = self.metrics.families


def batch(host, jobs, *tables, seq=1):
    return Batch(host, 1, seq, seq, jobs, tuple(Table.from_samples(schema, seq, samples) for schema, samples in tables))


def families_of(latest):
    return parsed("".join(render(latest.families())))


def values(latest, name):
    return {
        tuple(dict(pairs)[key] for key in ("host", "job")): value
        for pairs, value in families_of(latest)[name][2].items()
    }


def test_the_latest_values_of_jobs_have_their_labels_kinds_and_units():
    latest = Page()
    rows = [Sample(7, {"cpu_total": 5, "load-1": 0.44, "x": None}), Sample(9, {"cpu_total": 6})]
    users = [Sample(7, {"user": b'b"ob', "tasks": 1}), Sample(9, {"tasks": 2})]
    gpus = [
        Sample(7, {"uuid": b"GPU-a", "sm": 10}),
        Sample(7, {"uuid": b"GPU-b", "sm": 20}),
        Sample(7, {"uuid": b"GPU-b", "sm": 30}),
    ]
    latest.take([batch("n1", (7, 9), (CPU, rows), (CGROUP, users), (GPUS, gpus), (NODE, [Sample(0, {"uptime": 1})]))])
    families = families_of(latest)
    ours = (("host", "n1"), ("job", "7"), ("user", 'b"ob'))
    # the parser removes _total from the names of counters
    assert families["colmet_job_taskstats_cpu"] == (
        "counter",
        "taskstats_default cpu_total, in usec. CPU time.",
        {ours: 5, (("host", "n1"), ("job", "9")): 6},
    )
    assert families["colmet_job_taskstats_load_1"][2] == {ours: 0.44}
    assert "colmet_job_taskstats_x" not in families, "a missing value is absent"
    assert families["colmet_job_nvidiajobs_sm"][2] == {
        tuple(sorted((*ours, ("uuid", "GPU-a")))): 10,
        tuple(sorted((*ours, ("uuid", "GPU-b")))): 20,
    }, "no set of labels is there twice"
    assert not any("procstats" in name for name in families)


def test_a_job_that_ends_between_samples_does_not_take_the_others_with_it():
    latest = Page()
    latest.take([batch("n1", (7, 9), (CPU, [Sample(7, {"x": 1}), Sample(9, {"x": 2})]))])
    latest.take([batch("n1", (7, 9), (CPU, [Sample(9, {"x": 3})]), seq=2)])
    assert values(latest, "colmet_job_taskstats_x") == {("n1", "7"): 1, ("n1", "9"): 3}
    latest.take([batch("n1", (7,), (CPU, [Sample(7, {"x": 4})]), seq=3)])
    assert values(latest, "colmet_job_taskstats_x") == {("n1", "7"): 4}


def test_hosts_without_a_row_for_five_periods_are_left_out():
    clock = Clock()
    latest = Page(clock)
    for seq in range(3):
        rows = (CPU, [Sample(7, {"x": 1})])
        latest.take([batch("old", None, rows, seq=seq), batch("slow", (7,), rows, seq=seq)])
        clock.now += 30
    clock.now += 115
    latest.take([batch("old", None, (CPU, [Sample(8, {"x": 1})]), seq=4)])
    assert values(latest, "colmet_job_taskstats_x") == {("slow", "7"): 1, ("old", "8"): 1}
    clock.now += 10
    assert values(latest, "colmet_job_taskstats_x") == {("old", "8"): 1}
    clock.now += 1000
    assert not families_of(latest)


def test_made_up_jobs_of_one_sender_leave_room_to_the_jobs_of_others():
    latest = Page(max_rows=100)
    made_up = [Sample(job, {"x": job}) for job in range(1000, 2000)]
    latest.take([batch("evil", None, (CPU, made_up)), batch("evil2", None, (CPU, made_up))], "[10.0.0.66]")
    for n in range(20):
        latest.take([batch(f"n{n}", None, (CPU, [Sample(7, {"x": n})]))], f"[10.0.0.{n}]")
    found = values(latest, "colmet_job_taskstats_x")
    assert {(f"n{n}", "7") for n in range(20)} < found.keys() and len(found) == 70
    assert latest.metrics.counters() == {"rows": 70, "left_out": 1950}
    rows = [Sample(job, {"x": -job}) for job in range(1000, 2000)]
    latest.take([batch("evil", None, (CPU, rows), seq=2)], "[10.0.0.66]")
    assert values(latest, "colmet_job_taskstats_x")["evil", "1000"] == -1000, "of what it has, the latest"


def test_tables_of_other_versions_and_of_hostile_nodes_make_one_well_formed_page():
    latest = Page()
    other = Schema(
        "taskstats_default",
        "job",
        (Field("cpu_total", "usec", "gauge"), Field("load-1", "percent", "gauge", dtype="f8")),
    )
    text = Schema(
        "taskstats_default",
        "job",
        (label("cpu_total", 8, "", ""), label("host", 8, "", ""), Field("load.1", "none", "gauge")),
    )
    latest.take([batch("a", (1,), (CPU, [Sample(1, {"cpu_total": 1, "load-1": 1})]))])
    latest.take([batch("b", (1,), (other, [Sample(1, {"cpu_total": 2, "load-1": 2})]))])
    latest.take([batch("c", (1,), (text, [Sample(1, {"cpu_total": b"\xff\n", "host": b"x", "load.1": 3})]))])
    page = "".join(render(latest.families()))
    lines = [line.rpartition(" ")[0] for line in page.splitlines()]
    assert len(lines) == len(set(lines)), "nothing is there twice"
    assert values(latest, "colmet_job_taskstats_load_1") == {("a", "1"): 1, ("b", "1"): 2}


def test_reading_while_batches_come_never_fails():
    latest, ends, failed = Page(), threading.Event(), []

    def read():
        while not ends.is_set():
            try:
                "".join(render(latest.families()))
            except Exception as err:  # noqa: BLE001 - that is what the test looks for
                failed.append(err)

    thread = threading.Thread(target=read)
    thread.start()
    rng = random.Random(1)
    for seq in range(2000):
        jobs = tuple(rng.sample(range(20), 3))
        latest.take([batch(f"n{rng.randrange(30)}", jobs, (CPU, [Sample(job, {"x": 1}) for job in jobs]), seq=seq)])
    ends.set()
    thread.join()
    assert not failed


# -- the server --


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9333", ("127.0.0.1", 9333)),
        ("0.0.0.0:9333", ("0.0.0.0", 9333)),
        ("[::1]:9333", ("::1", 9333)),
        ("head:1", ("head", 1)),
    ],
)
def test_a_port_alone_is_for_this_machine(text, address):
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", ":9333", "x", "1:2:3", "65536", "-1", "head:", "²", "[]:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="is not"):
        listen_address(text)


@pytest.fixture
def serve():
    made = []

    def start(families, **options):
        made.append(MetricsServer(ListenAddress("127.0.0.1", 0), families, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()
        one.close()


FAMILIES = [Family("a", "gauge", "A.", [(labels({"n": str(n)}), n) for n in range(20_000)])]


def get(server, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address.port}{path}", timeout=30) as answer:
        return answer.headers, answer.read().decode()


def test_the_page_is_served_whole(serve):
    server = serve(lambda: FAMILIES, pause=lambda: None)
    headers, text = get(server)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert text == "".join(render(FAMILIES))
    assert get(server, "/metrics?x=1")[1] == text
    assert "/metrics" in get(server, "/")[1]
    with pytest.raises(urllib.error.HTTPError, match="404") as answer:
        get(server, "/etc/passwd")
    answer.value.close()
    assert server.counters() == {"served": 2, "refused": 0, "failures": 0}


def raw(server, request):
    """What comes back on these bytes."""
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(request)
        parts = []
        try:
            while part := connection.recv(1 << 16):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def test_an_old_client_gets_it_without_chunks(serve):
    server = serve(lambda: FAMILIES[:1])
    assert raw(server, b"GET /metrics HTTP/1.0\n\n").split(b"\r\n\r\n", 1)[1].decode() == "".join(render(FAMILIES))


@pytest.mark.parametrize(
    "request_", [b"\0" * 100 + b"\n\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"x" * 100_000, b"GET / HTTP/2\n\n"]
)
def test_what_is_no_get_request_is_refused_and_counted(serve, request_):
    server = serve(lambda: FAMILIES)
    assert raw(server, request_) == b""
    assert server.counters()["refused"] == 1
    assert get(server, "/")


def test_slow_clients_and_too_many_of_them_keep_nobody_out_for_long(serve, monkeypatch):
    monkeypatch.setattr(metrics_http, "REQUEST_S", 1.0)
    server = serve(lambda: FAMILIES[:0])
    slow = [socket.create_connection(server.address, timeout=30) for _ in range(metrics_http.MAX_CONNECTIONS)]
    for connection in slow:
        connection.sendall(b"GET /metr")
    for _ in range(3):
        assert get(server, "/"), "it is answered"
    for connection in slow:
        assert connection.recv(10) == b"", "it was closed"
        connection.close()
    assert server.counters()["refused"] >= metrics_http.MAX_CONNECTIONS
    assert get(server, "/")


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_little_and_is_dropped(serve, monkeypatch):
    monkeypatch.setattr(metrics_http, "ANSWER_S", 1.0)
    made = []

    def endless():
        yield Family("a", "gauge", "A.", ((made.append(1) or labels({"n": "x" * 100}), 1) for _ in range(10**9)))

    server = serve(endless, pause=lambda: None)
    with socket.create_connection(server.address) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until = time.monotonic() + 30
        while server.counters()["refused"] == 0:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert len(made) < 200_000, "what nobody reads is not made"


def test_a_page_that_cannot_be_made_is_an_error_and_one_that_breaks_off_is_seen(serve, caplog):
    def refused():
        raise Refused("the daemon is busy")
        yield

    def breaks():
        yield FAMILIES[0]
        raise ZeroDivisionError

    server = serve(refused)
    with pytest.raises(urllib.error.HTTPError, match="503") as answer:
        get(server)
    answer.value.close()
    server = serve(breaks, pause=lambda: None)
    with pytest.raises(http.client.IncompleteRead):
        get(server)
    assert server.counters()["failures"] == 1 and "Traceback" in caplog.text


def test_an_address_that_is_taken_or_not_ours_is_a_configuration_error(serve):
    server = serve(lambda: FAMILIES)
    for listen in (server.address, ListenAddress("192.0.2.1", 9333), ListenAddress("no-such-host.invalid", 1)):
        with pytest.raises(ConfigError, match="--metrics-listen"):
            MetricsServer(listen, lambda: FAMILIES)


@pytest.mark.parametrize(
    ("host", "status"), [("rebound.evil.example", 400), ("localhost:9333", 200), ("127.0.0.1", 200), ("[::1]:1", 200)]
)
def test_on_loopback_no_strange_name_is_answered(serve, host, status):
    server = serve(lambda: FAMILIES[:0])
    answer = raw(server, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
