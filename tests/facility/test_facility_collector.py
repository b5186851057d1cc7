"""Facility documents as rows: what each becomes, and that it reaches HDF5 by a real collector."""

from __future__ import annotations

import socket
import time

import h5py
import pytest

from colmet.common.config import cli
from colmet.common.config.keys import write_pair
from colmet.common.tables.facility import DISKS, HOSTS, JOBS, JUPYTER, LOGINS, QUEUES, USERS
from colmet.common.transport import new_pair
from colmet.facility import collector_output, options
from colmet.facility.collector_output import rows_of, tables_of
from colmet.facility.sender import Outcome

TIME_S = int(time.time())  # rows of long ago are dropped for their age
TIME_NS = TIME_S * 10**9
ABOUT = {"token": None, "cluster": "UC-AF"}
NODE = {"login_node": "login1"}
NODE_ROW = {"login_node": b"login1"}
DOCUMENTS = [
    {**ABOUT, "kind": "jupyter-ml", "jupyter_user_count": 1, "users": ["carol"]},
    {**ABOUT, "kind": "jupyter-coffea", "jupyter_user_count": 0, "users": []},
    {**ABOUT, "kind": "ssh", **NODE, "ssh_user_count": 3, "users": ["alice", "bob", "alice"]},
    {**ABOUT, "kind": "CPU", **NODE, "load": 0.25},
    {**ABOUT, "kind": "MEM", **NODE, "total": 1 << 40, "available": 5},
    {**ABOUT, "kind": "NETWORK", **NODE, "network": {"sent": 0, "received": 7, "interval": 300.5}},
    {**ABOUT, "kind": "DISK", **NODE, "device": "sda1", "mount": "/home", "total": 10, "used": 4, "free": 6}
    | {"utilization": 0.4},
    {**ABOUT, "kind": "DISK", **NODE, "mount": "/data", "total": 10, "used": 10, "free": 0, "utilization": 1.0},
    {**ABOUT, "kind": "condorqueue", "queue": "all", "idle": 3, "running": 2, "held": 1}
    | {"allocated_cores": 8, "allocated_mem": 4096},
    {**ABOUT, "kind": "condorqueue", "queue": "short", "idle": 0, "running": 0, "held": 0},
    {**ABOUT, "kind": "condorjob", "users": "alice", "Id": "12.0", "Runtime": 60, "state": "running"},
    {**ABOUT, "kind": "condorjob", "users": "bob", "Id": "12.1", "Runtime": 0, "state": "idle"},
]


def rows(schema, documents=DOCUMENTS):
    found, _ = rows_of(documents)
    tables = [table for table in tables_of(found, TIME_NS, 1000) if table.schema == schema]
    return [
        {name: value for name, value in sample.values.items() if name != "cluster"}
        for table in tables
        for sample in table.samples()
    ]


def test_each_document_is_a_row_of_its_table():
    assert rows(LOGINS) == [{**NODE_ROW, "users": 3}]
    assert rows(JUPYTER) == [{"kind": b"jupyter-ml", "users": 1}, {"kind": b"jupyter-coffea", "users": 0}]
    assert rows(QUEUES) == [
        {"queue": b"all", "idle": 3, "running": 2, "held": 1, "allocated_cores": 8, "allocated_mem": 4096},
        {"queue": b"short", "idle": 0, "running": 0, "held": 0, "allocated_cores": None, "allocated_mem": None},
    ]
    assert rows(JOBS) == [
        {"id": b"12.0", "user": b"alice", "state": b"running", "runtime": 60},
        {"id": b"12.1", "user": b"bob", "state": b"idle", "runtime": 0},
    ]
    assert rows(DISKS) == [
        {**NODE_ROW, "device": b"sda1", "mount": b"/home", "total": 10, "used": 4, "free": 6, "utilization": 0.4},
        {**NODE_ROW, "device": None, "mount": b"/data", "total": 10, "used": 10, "free": 0, "utilization": 1.0},
    ]


def test_a_list_of_users_is_a_row_each_with_how_often_the_document_names_them():
    assert rows(USERS) == [
        {"kind": b"jupyter-ml", "login_node": None, "user": b"carol", "times": 1},
        {"kind": b"ssh", **NODE_ROW, "user": b"alice", "times": 2},
        {"kind": b"ssh", **NODE_ROW, "user": b"bob", "times": 1},
    ]


def test_what_documents_say_of_one_machine_is_one_row():
    (row,) = rows(HOSTS)
    assert row == {
        **NODE_ROW,
        "load": 0.25,
        "memory_total": 1 << 40,
        "memory_available": 5,
        "network_sent": 0,
        "network_received": 7,
        "network_interval": 300.5,
    }
    other = {**DOCUMENTS[3], "login_node": "login2"}
    first, second = rows(HOSTS, [DOCUMENTS[3], other])
    assert (first["login_node"], second["login_node"]) == (b"login1", b"login2")
    assert first["memory_total"] is None and first["network_sent"] is None, "missing is not 0"


@pytest.mark.parametrize("value", [None, -1, True, 1 << 63, "3", 2.5, float("nan"), float("inf"), [], 10**400])
def test_a_value_of_another_type_is_missing(value):
    queue = {**ABOUT, "kind": "condorqueue", "queue": "all", "idle": value, "running": 1, "held": 1}
    assert rows(QUEUES, [queue])[0]["idle"] is None
    load = rows(HOSTS, [{**ABOUT, "kind": "CPU", **NODE, "load": value}])[0]["load"]
    assert load == (value if value in (-1, 2.5) else None)


def test_text_of_any_length_and_alphabet_is_cut_between_characters():
    (row,) = rows(LOGINS, [{**DOCUMENTS[2], "login_node": "é" * 200}])
    assert row["login_node"].decode() == "é" * 64
    (row,) = rows(JOBS, [{**DOCUMENTS[-1], "users": "\udcff", "Id": 3}])
    assert row["user"] == b"?" and row["id"] is None


def test_documents_without_a_table_are_counted():
    assert rows_of([{"kind": "unheard"}, {}, {"kind": "NETWORK", "network": 3}, DOCUMENTS[0]])[1] == 3


def options_of(uri, *arguments):
    parser = cli.Parser()
    options.add_collector(parser)
    return parser.parse_args(["--zeromq-uri", uri, *arguments])


@pytest.fixture
def output(uri, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "login1")
    made = []

    def run(*arguments):
        made.append(collector_output.from_options(options_of(uri, *arguments)))
        return made[-1]

    yield run
    for one in made:
        one.close()


@pytest.mark.slow
@pytest.mark.live
def test_rows_reach_a_file_with_the_name_of_their_sender(output, start_collector, tmp_path):
    path = tmp_path / "x.hdf5"
    collector = start_collector("--hdf5-filepath", str(path), "-s", "0.1")
    one = output()
    one.put(DOCUMENTS, TIME_NS)
    assert one.finish() == Outcome(1, 0, 0)
    one._seq += 2
    one._queue.overflowed += 2  # as while its thread is behind
    assert one.finish() == Outcome(0, 0, 2)
    assert one.finish() == Outcome(0, 0, 0), "what one run lost is not counted for each that follows"
    one.close()
    assert collector.stop()[0] == 0
    with h5py.File(path) as file:
        stored = {name: file["job_0"][name][()] for name in file["job_0"] if name.startswith("facility_")}
    counts = {"logins": 1, "jupyter": 2, "users": 3, "hosts": 1, "disks": 2, "queues": 2, "jobs": 2}
    assert {name.split("_")[1]: len(found) for name, found in stored.items()} == counts
    row = stored["facility_queues_default"][1]
    assert (row["timestamp"], row["hostname"], row["job_id"]) == (TIME_S, b"login1-facility", 0)
    assert (row["queue"], row["idle"], row["allocated_cores"], row["cluster"]) == (b"short", 0, -1, b"UC-AF")
    assert stored["facility_hosts_default"][0]["load"] == 0.25


@pytest.mark.slow
@pytest.mark.live
def test_with_keys_its_name_is_the_one_of_its_pair(output, start_collector, tmp_path):
    pairs = {name: new_pair() for name in ("collector", "login1-facility")}
    (tmp_path / "known").mkdir()
    for name, pair in pairs.items():
        write_pair(str(tmp_path), name, pair)
    (tmp_path / "login1-facility.key").rename(tmp_path / "known/login1-facility.key")
    collector = start_collector(
        *("--enable-stdout-backend", "--stdout-format", "json"),
        *("--zeromq-curve-secret", str(tmp_path / "collector.secret")),
        *("--zeromq-curve-nodes", str(tmp_path / "known")),
    )
    one = output(
        *("--zeromq-curve-secret", str(tmp_path / "login1-facility.secret")),
        *("--zeromq-curve-collector", str(tmp_path / "collector.key")),
    )
    one.put(DOCUMENTS, TIME_NS)
    assert one.finish() == Outcome(1, 0, 0)
    one.close()
    assert collector.stop()[0] == 0


def test_what_no_collector_accepts_is_lost_and_reported(output, caplog):
    one = output()
    one.put(DOCUMENTS, TIME_NS)
    assert one.finish(deadline_s=0.3) == Outcome(0, 0, 1)
    assert "they are lost when this program ends" in caplog.text
