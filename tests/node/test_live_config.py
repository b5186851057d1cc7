"""Another sample period and other perf events for a node that runs."""

from __future__ import annotations

import argparse
import logging
import threading
import time
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.config.configuration import Settings, at_once
from colmet.common.daemon.control import Control, Errands
from colmet.common.errors import ConfigError, Refused
from colmet.common.transport import Push
from colmet.common.wire.control import decode_answer, decode_request, encode
from colmet.node import live_config
from colmet.node.live_config import Remote, change, parse

RUST = (Path(__file__).parents[1] / "data/control/reconfigure.bin").read_bytes()


class Node:
    """The settings of a node, and what came of them."""

    def __init__(self, *events):
        options = argparse.Namespace(verbose=0, sample_period=5.0, perfhw_list=["instructions"])
        self.settings = Settings(options)
        self.taken = []
        self.events = events
        self.settings.add({"sample_period": at_once(lambda value: self.taken.append(value))})
        if events:
            self.settings.add({"perfhw_list": self.prepare})

    def prepare(self, texts):
        for text in texts:
            if text.split(":")[0] not in self.events:
                raise ConfigError(f"--perfhw-list: {text} is not supported by this CPU")
        return lambda: self.taken.append(texts)


def test_the_message_of_the_rust_client_is_taken(caplog):
    caplog.set_level(logging.INFO)
    node = Node("cache_ll", "emulation_faults")
    assert change(node.settings, parse(decode_request(RUST))) == {
        "ok": True,
        "changed": {"sample_period": [5.0, 1.5], "metrics": ["instructions", "cache_ll,emulation_faults:2:4242"]},
        "unchanged": [],
        "refused": {},
        "lasts": "until the next start, or SIGHUP",
    }
    assert node.taken == [1.5, ["cache_ll", "emulation_faults:2:4242"]]
    assert caplog.messages == [
        (
            "configuration changed on request: sample_period: 5.0 -> 1.5; "
            "metrics: instructions -> cache_ll,emulation_faults:2:4242"
        )
    ]


@pytest.mark.parametrize(
    ("request_", "values"),
    [
        ({"sample_period": "5"}, {"sample_period": 5.0}),
        ({"sample_period": b"0.25"}, {"sample_period": 0.25}),
        ({"sample_period": 2}, {"sample_period": 2.0}),
        ({b"command": b"configure", b"perfhw_metrics": b"r1a8"}, {"perfhw_list": ["r1a8"]}),
        ({"metrics": "a:-1:-1, b:0.50:-1"}, {"perfhw_list": ["a", "b:0.5:-1"]}),
        ({"metrics": "cpu/event=0x3c,umask=1/:-1:7"}, {"perfhw_list": ["cpu/event=0x3c,umask=1/:-1:7"]}),
    ],
)
def test_what_is_asked_for(request_, values):
    assert parse(decode_request(msgpack.packb(request_))) == values


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "nothing to change; give sample_period or metrics"),
        ({"command": "configure"}, "nothing to change"),
        ({"sample_period": "0"}, "sample_period: '0' is not a number of seconds from 0.01 to 86400"),
        ({"sample_period": True}, "sample_period: neither a text nor a number"),
        ({"sample_period": None}, "sample_period: neither"),
        ({"sample_period": "1", "metrics": "a:b"}, "metrics: 'a:b': give NAME"),
        ({"metrics": ""}, "metrics: '': give NAME"),
        ({"metrics": "a,"}, "metrics: '': give NAME"),
        ({"metrics": "a", "perfhw_metrics": "a"}, "perfhw_metrics: given twice, by two names"),
        ({"metrics": "x" * 5000}, "metrics: a list of events of 4097 characters"),
        ({"zeromq_uri": "tcp://evil:1"}, "zeromq_uri: cannot be changed"),
    ],
)
def test_what_is_malformed_is_refused(request_, says):
    with pytest.raises(Refused) as error:
        parse(request_)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Node("page_faults"), "cache_ll is not supported by this CPU"),
        (Node(), "perf events are not counted on this node; start it with --enable-perfhw"),
    ],
)
def test_what_this_node_cannot_do_is_refused_and_the_rest_is_done(node, why, caplog):
    answer = change(node.settings, parse({"sample_period": "1", "metrics": "cache_ll"}))
    assert node.taken == [1.0] and answer["changed"] == {"sample_period": [5.0, 1.0]} and answer["ok"] is False
    assert why in answer["refused"]["metrics"] and why in caplog.text
    with pytest.raises(Refused, match=why):
        change(node.settings, parse({"metrics": "cache_ll"}))


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["sample_period", "metrics", "perfhw_metrics", "command", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.text(alphabet="a:-1,/."),
    )
)
def test_whatever_the_request_it_is_values_or_refused(request_):
    try:
        values = parse(request_)
    except Refused:
        return
    assert values and values.keys() <= {"sample_period", "perfhw_list"}
    assert 0.01 <= values.get("sample_period", 1) <= 86400


# -- who may ask --


@pytest.fixture
def served():
    """A node whose main thread serves errands meanwhile: Control, and what it has taken."""
    node = Node("cache_ll", "emulation_faults")
    ended = threading.Event()
    with Errands() as errands:

        def main_thread():
            while not ended.wait(0.005):
                errands.serve()

        thread = threading.Thread(target=main_thread)
        thread.start()
        asked = Control({"status": lambda _: {}, "configure": live_config.handler(node.settings, errands)})
        try:
            yield asked, node
        finally:
            ended.set()
            thread.join()


def test_the_change_is_made_by_the_main_thread_and_answered(served):
    asked, node = served
    threads = []
    node.settings.add({"sample_period": lambda _: lambda: threads.append(threading.current_thread())})
    assert decode_answer(asked.answer(RUST))["changed"]["sample_period"] == [5.0, 1.5]
    assert threads and threads[0] is not threading.current_thread()
    assert decode_answer(asked.answer(encode({"sample_period": "never"})))["error"].startswith(
        "sample_period: 'never' is"
    )


def test_a_collector_that_has_not_proved_who_it_is_changes_nothing(served, caplog):
    asked, node = served
    remote = Remote(asked, is_known=False)
    error = decode_answer(remote.answer(RUST))["error"]
    assert "this node has no keys" in error and "--allow-remote-configure" in error
    assert (
        node.taken == []
        and remote.counters() == {"requests": 1, "refused": 1}
        and "change of the configuration refused over the link refused=1" in caplog.text
    )


def test_a_collector_that_is_known_changes_what_it_may_and_asks_nothing_else(served):
    asked, node = served
    remote = Remote(asked, is_known=True)
    assert decode_answer(remote.answer(RUST))["ok"] is True and node.taken[0] == 1.5
    assert (
        decode_answer(remote.answer(encode({"command": "status"})))["error"] == "over the link there is configure alone"
    )
    assert decode_answer(remote.answer(b"\xc1"))["error"].startswith("request: ")
    assert remote.counters() == {"requests": 3, "refused": 2}


@pytest.fixture
def pushed(served):
    """What a sender of the Rust node does: connect, push, and go."""
    asked, node = served
    port = live_config.RustPort("tcp://127.0.0.1:*", asked)
    port.start()
    push = Push(port.uri, 10, 5000)

    def push_all(*messages):
        until = time.monotonic() + 20
        for message in messages:
            while not push.send(message):
                assert time.monotonic() < until
                time.sleep(0.01)
        while port.counters()["requests"] < len(messages):
            assert time.monotonic() < until
            time.sleep(0.01)
        port.close()
        return port.counters()

    yield node, push_all
    push.close()
    port.close()


def test_what_a_sender_of_the_rust_node_pushes_is_done(pushed):
    node, push_all = pushed
    assert push_all(RUST) == {"requests": 1, "refused": 0}
    assert node.taken == [1.5, ["cache_ll", "emulation_faults:2:4242"]]


def test_whatever_else_is_pushed_changes_nothing_and_is_counted_as_is_what_is_refused_in_part(pushed, caplog):
    node, push_all = pushed
    bad = (b"\xc1", b"", encode({"command": "status"}), encode({"sample_period": "0"}), bytes(100_000))
    in_part = encode({"sample_period": "2", "metrics": "dummy"})
    assert push_all(*bad, in_part) == {"requests": 6, "refused": 6}
    assert node.taken == [2.0]
    assert "change of the configuration refused from --enable-rust-configuration refused=1" in caplog.text


def test_a_port_of_another_program_is_left_to_it(served, caplog):
    asked, _ = served
    port = live_config.RustPort("tcp://127.0.0.1:*", asked)
    assert "any user of this machine can change the sample period" in caplog.text
    with pytest.raises(ConfigError, match=r"--enable-rust-configuration tcp://127.0.0.1:\d+: Address already in use"):
        live_config.RustPort(port.uri, asked)
    port.close()
    port.close()
