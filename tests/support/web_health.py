"""Shared by tests: the health of a made-up collector, and made-up values of nodes over time."""

from __future__ import annotations

import math

from colmet.web.health import health_answer
from colmet.web.node_history import MEASURES, SPANS
from tests.support.status_answers import COLLECTOR, OUTPUT, SENDER

SCALES = {"io": 2e8, "network": 1e9, "power": 400.0, "temperature": 60.0, "lag": 2.0, "load": 1.4}
NODE_7 = {**SENDER, "name": "node7", "seen_age_s": 900.0, "silent": True, "version": "0.9"}
# Of a collector with troubles of each kind.
STATUS = {
    **COLLECTOR,
    "senders": {
        **COLLECTOR["senders"],
        **{"heard": 499, "silent": 1, "versions": {"1.0": 480, "0.9": 15, "colmet06": 4}, "worst": [NODE_7, SENDER]},
    },
    "outputs": [
        {**OUTPUT, "name": "hdf5"},
        {
            **OUTPUT,
            **{"name": "elasticsearch", "available": False, "why": "Connection refused", "away_s": 320.0},
            **{"behind_s": 330.0, "waiting": 12345},
        },
    ],
    "connections": {
        **{"let_in": 812, "unknown_key": 3, "key_withdrawn": 0, "handshake_failed": 240, "closed": 5, "pauses": 0},
        **{"connections": 499, "keys": 500, "broken_keys": 0},
    },
    "refused": [
        {"why": "handshake_failed", "address": "192.0.2.7", "count": 240},
        {"why": "unknown_key", "address": "192.0.2.9", "count": 3},
    ],
    "last_hour": {"missing_batches": 12, "refused_messages": 0, "lost_records": 0},
}


def health_of(nodes, now, status=STATUS, age_s=3.0):
    """The answer on the health of a made-up collector; two nodes have a spool."""
    spools = [{"node": row["node"], "waiting": 1, "dropped": 0, "acknowledged": 99} for row in nodes]
    for one, (waiting, dropped) in zip(spools, ((2400, 0), (300, 20))):
        one.update(waiting=waiting, dropped=dropped)
    return health_answer(status, age_s, nodes, spools, now)


def history_of(nodes, query, now):
    """The answer on nodes over time: waves; the silent nodes have no values, and no node has any of one time."""
    step, count = SPANS[query.span]
    last = int(now // step)
    starts = [step * (last - count + 1 + n) for n in range(count)]
    rows = sorted((row for row in nodes if query.text in row["node"]), key=lambda row: row["node"])
    scale = SCALES.get(query.measure, 1.0)

    def value(row, at):
        if row["silent"] or int(at / step) % 41 == 0:
            return None
        return scale * (0.5 + 0.5 * math.sin(at / 1200.0 + int(row["node"][4:]) / 9))

    page = rows[query.offset : query.offset + query.limit]
    return {
        **{"time": now, "measure": query.measure, "unit": MEASURES[query.measure], "span": query.span, "step": step},
        **{"since": now - 90_000.0, "starts": starts, "total": len(rows), "offset": query.offset},
        "items": [{"node": row["node"], "values": [value(row, at) for at in starts]} for row in page],
    }
