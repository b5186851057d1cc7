"""Users of notebooks, by the real client and a server that speaks the list of pods."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmet.common.errors import ConfigError
from colmet.facility import jupyter
from colmet.facility.deadlines import Deadlines, SourceFailed
from colmet.facility.jupyter import Jupyter, check_names, parse
from tests.support.kubernetes_server import KubernetesServer, pod


@pytest.fixture
def server():
    with KubernetesServer() as made:
        yield made


@pytest.fixture
def asked(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kubeconfig"))
    return Jupyter(Deadlines(), 20)


def test_users_are_the_values_of_the_label_each_once_in_the_order_of_the_pods(server, asked):
    server.pods["af-jupyter"] = [
        pod("af-jupyter", "nb-1", {"owner": "carol", "app": "nb"}),
        pod("af-jupyter", "nb-2", {"owner": "alice"}),
        pod("af-jupyter", "hub", {"app": "hub"}),
        pod("af-jupyter", "proxy", None),
        pod("af-jupyter", "nb-3", {"owner": "carol"}),
    ]
    server.pods["coffea-casa"] = [pod("coffea-casa", "nb", {"jhub_user": "dave", "owner": "x"})]
    assert asked.users("af-jupyter", "owner") == ["carol", "alice"]
    assert asked.users("coffea-casa", "jhub_user") == ["dave"]
    assert asked.users("nowhere", "owner") == []
    assert [query["labelSelector"] for query in server.requests] == ["owner", "jhub_user", "owner"]


def test_a_list_in_pages_is_read_to_its_end(server, asked):
    server.page = 3
    server.pods["ns"] = [pod("ns", f"nb-{n}", {"owner": f"user{n % 7}"}) for n in range(20)]
    assert asked.users("ns", "owner") == [f"user{n}" for n in range(7)]
    assert [query.get("continue") for query in server.requests] == [None, "3", "6", "9", "12", "15", "18"]


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (401, "Unauthorized", "answers 401: Unauthorized; the credentials .* are not, or no longer, good"),
        (403, 'pods is forbidden: User "x"', r"answers 403: pods is forbidden.*may `list` `pods` in the namespace ns"),
        (404, "page not found", "is this the address of the cluster's API"),
        (500, "etcdserver: request timed out", "answers 500: etcdserver: request timed out; the cluster's admin"),
        (503, "x" * 5000, r"answers 503: x{200}\.\.\.; "),
        (302, "elsewhere", "answers 302"),
    ],
)
def test_an_answer_without_a_list_says_why(server, asked, status, said, why):
    server.status, server.said = status, said
    with pytest.raises(SourceFailed, match=why):
        asked.users("ns", "owner")
    assert len(server.requests) == 1


def test_a_server_that_hangs_is_given_up(server, tmp_path, monkeypatch):
    server.hang = True
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kubeconfig"))
    asked = Jupyter(Deadlines(), 0.5)
    with pytest.raises(SourceFailed, match=r"did not answer within 0\.5 s|does not answer"):
        asked.users("ns", "owner")


def test_a_server_that_is_not_there_is_reported(tmp_path, monkeypatch):
    with KubernetesServer() as server:
        monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kubeconfig"))
    with pytest.raises(SourceFailed, match=r"the Kubernetes cluster does not answer: .*refused"):
        Jupyter(Deadlines(), 20).users("ns", "owner")


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b"{}", b'{"items": {}, "metadata": {}}', b'{"items": [], "metadata": []}', b"[" * 5000],
)
def test_an_answer_in_another_form_is_refused(server, asked, answer):
    server.answer = answer
    with pytest.raises(SourceFailed, match="is this the address of its API"):
        asked.users("ns", "owner")


def test_pods_in_an_unknown_form_are_left_out_and_counted(server, asked, caplog):
    items = [None, 7, {}, {"metadata": None}, {"metadata": {"labels": []}}, {"metadata": {"labels": {"owner": 5}}}]
    items += [{"metadata": {"labels": {"owner": owner}}} for owner in ("", "x" * 300, "alice")]
    server.answer = json.dumps({"metadata": {}, "items": items}).encode()
    assert asked.users("ns", "owner") == ["alice"]
    assert asked.odd == 7 and "pods skipped, their form is unknown: namespace=ns pods=7" in caplog.text


def test_a_list_that_never_ends_is_given_up(server, asked, monkeypatch):
    monkeypatch.setattr(jupyter, "MAX_PAGES", 5)
    server.answer = b'{"metadata": {"continue": "x"}, "items": []}'
    with pytest.raises(SourceFailed, match="lists more than 2500 pods"):
        asked.users("ns", "owner")


def test_a_page_has_a_bound(server, asked, monkeypatch):
    monkeypatch.setattr(jupyter, "MAX_PAGE_BYTES", 100_000)
    server.pods["ns"] = [pod("ns", f"nb-{n}", {"owner": "u"}) for n in range(500)]
    with pytest.raises(SourceFailed, match="answers with more than 100000 bytes"):
        asked.users("ns", "owner")


@pytest.mark.parametrize("text", ["", "{", "apiVersion: v1\nclusters: 5\n", "current-context: none\n"])
def test_a_file_that_names_no_account_is_reported(tmp_path, monkeypatch, text):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(SourceFailed, match=r"no account for the Kubernetes cluster: .*KUBECONFIG in the environment"):
        Jupyter(Deadlines(), 20).users("ns", "owner")


def test_in_a_pod_its_own_account_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(SourceFailed, match="Service token file does not exist"):
        Jupyter(Deadlines(), 20).users("ns", "owner")


def test_names_that_cannot_be_asked_for_are_refused():
    check_names("af-jupyter", "hub.jupyter.org/owner")
    for namespace, label, why in (
        ("", "owner", "-n: ''"),
        ("a/../b?x", "o", "-n"),
        ("ns", "owner=x,y", "-l: .*no name of a label"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_names(namespace, label)


KEYS = st.sampled_from(["items", "metadata", "labels", "owner", "continue"])


@pytest.mark.slow
@settings(max_examples=50)
@given(st.dictionaries(KEYS, st.none() | st.text() | st.lists(st.dictionaries(KEYS, st.dictionaries(KEYS, st.text())))))
def test_any_json_is_pods_or_refused(value):
    try:
        found = parse(json.dumps({"metadata": {}, **value}).encode(), "owner")
    except SourceFailed:
        return
    assert all(isinstance(user, str) for user in found.users) and isinstance(found.more, str)
