"""Requests on the control socket, and what the node is asked to change; answers."""

from __future__ import annotations

from pathlib import Path

from colmet.common.errors import Refused, WireError
from colmet.common.wire.control import decode_answer, decode_request, encode
from colmet.node import live_config
from colmet.node.kernel import perfevents

SEEDS = [
    (Path(__file__).parents[1] / "data/control/reconfigure.bin").read_bytes(),
    encode({"command": "configure", "perfhw_metrics": "cpu/event=0x3c,umask=1/:-1:7,r1a8", "sample_period": 0.5}),
    encode({"command": "status", "x": None, "y": True}),
    encode({"ok": True, "changed": {"sample_period": [5.0, 1.5]}, "unchanged": ["metrics"], "silent": []}),
]


def one(data: bytes) -> None:
    """A request is read as a whole or refused, and so is what it asks for; an answer can be said again."""
    try:
        request = decode_request(data)
    except WireError:
        pass
    else:
        assert decode_request(encode(request)) == request
        try:
            values = live_config.parse(request)
        except Refused:
            pass
        else:
            assert values and 0.01 <= values.get("sample_period", 1.0) <= 86400
            for text in values.get("perfhw_list", []):
                assert perfevents.choice_text(perfevents.parse_choice(text)) == text
    try:
        answer = decode_answer(data)
    except WireError:
        return
    assert encode(decode_answer(encode(answer))) == encode(answer)
