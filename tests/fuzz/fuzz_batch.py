"""What batch systems print of single jobs: the first byte chooses the command."""

from __future__ import annotations

import json

from colmet.batch import gridengine, oar, slurm
from colmet.batch.answers import BatchError, FormError
from colmet.batch.systems import JobRecord

_OAR = {
    **{"Job_Id": 7, "state": "Error", "startTime": 5, "stopTime": 9, "owner": "ann", "assigned_resources": [1, 2]},
    **{"wanted_resources": '-l "/host=2/gpu=1,walltime=1:0:0" ', "events": [{"type": "WALLTIME"}], "exit_code": 256},
    **{"array_id": 6, "array_index": 2, "dependencies": [3], "assigned_network_address": ["n1"], "walltime": 60},
}
_SACCT = b"14|6_2|ann|physics|bed|4|5|9|CANCELLED by 7|0:9|5|7|billing=1,cpu=1,mem=100M,gres/gpu:a=2|cpu=1|n[1-3],m7|a|"
_SQUEUE = b"14|6_2|ann|physics|bed|4|5|9|RUNNING|1|1-02:03:04|n[1-3]|None|a|"
_GIVEN = b"14 6_2 768  cpu=1,mem=100M,gres/gpu=1\n15 15 0\n"
_ACCOUNT = (
    b"main.q:node2:g:ann:sleep:1:sge:0:4:5:9:100:137:1:0:0:0:0:0:0:0:2:0:0:0:8:0:0:0:5:0:NONE:d:NONE:2:3:0.5:0:0:"
    b"-l h_rt=0:0:4,h_vmem=100M,gpu=1:0:NONE:3e8:0:0"
)
SEEDS = [b"o" + json.dumps(_OAR).encode(), b"a" + _SACCT, b"q" + _SQUEUE, b"g" + _GIVEN, b"e" + _ACCOUNT]


def one(data: bytes) -> None:
    """A record, none, or a refusal; what is in a record can be stored and shown."""
    text = data[1:].decode("utf-8", "replace")
    try:
        record = _read(data[:1], text)
    except (BatchError, FormError):
        return
    if record is None:
        return
    for value in record:
        assert value is None or isinstance(value, (int, str))
        assert not isinstance(value, int) or -1 << 63 <= value < 1 << 63
        assert not isinstance(value, str) or value.isprintable()
    assert record.started > 0 and (record.ended is None or record.ended > 0)


def _read(kind: bytes, text: str) -> JobRecord | None:
    if kind == b"o":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return None
        oar.OarRecords().read([content], "oarstat", None)
        return oar.job_record(content, {7})
    if kind == b"a":
        (*_, words) = slurm.split_records(text, "|", len(slurm.ACCOUNTED), "sacct") or [[]]
        return slurm.accounted(words) if words else None
    if kind == b"q":
        (*_, words) = slurm.split_records(text, "|", len(slurm.QUEUED), "squeue") or [[]]
        return slurm.queued(words, {"14": slurm.Given(9, {"mem": text})}) if words else None
    if kind == b"g":
        slurm.given_of(text)
        slurm.dependencies_of(text)
        return None
    return gridengine.account(text)
