"""Today's tables contain what Colmet 0.6 sent, name by name and unit by unit."""

from __future__ import annotations

import pytest

from colmet.common.daemon.startup import load
from colmet.common.tables.agent import AGENT
from colmet.common.wire.colmet06 import RECORDS
from colmet.node.backends import NAMES
from colmet.node.counter_names import SCHEMA as MAPPING

SCHEMAS = {cls.schema.name: cls.schema for cls in load(NAMES)}

# Where 0.6 named no unit, or called bytes, kilobytes and clock ticks a count, the right one is named.
REFINED = {
    **dict.fromkeys(("rchar", "wchar", "read_bytes", "write_bytes", "cancelled_write_bytes"), ("count", "bytes")),
    **dict.fromkeys(("VmRSS", "RssShmem", "VmSize"), ("count", "kbytes")),
    **dict.fromkeys(("vmstat_pgpgin", "vmstat_pgpgout", "meminfo_hugepagesize"), ("count", "kbytes")),
    # what every form of nvidia-smi's answer gives them in
    **dict.fromkeys(("memory-total", "memory-free", "memory-used"), ("count", "mbytes")),
    **dict.fromkeys(("utilization-gpu", "utilization-memory"), ("count", "percent")),
    **{"power": ("count", "watts"), "temperature": ("count", "celsius")},
    **dict.fromkeys(("stat_intr", "stat_ctxt", "stat_processes", "stat_procs_blocked"), ("n/a", "count")),
    "average_power_consumption": ("count", "watts"),
}


def unit_today(table, name, unit):
    tables = ("jobprocstats_default", "procstats_default", "ipmipowerstats_default", "nvidiastats_default")
    if table in tables and name in REFINED:
        former, today = REFINED[name]
        assert unit == former
        return today
    if unit == "n/a":
        return "jiffies" if name.startswith("stat_cpu_") else "none"
    return unit


@pytest.mark.parametrize("table", sorted(RECORDS))
def test_every_counter_is_there_with_its_unit_and_fits_its_place(table):
    schema, record = SCHEMAS[table], RECORDS[table]
    fields = {field.name: field for field in schema.fields}
    for name, wire, unit in record.counters:
        assert fields[name].unit == unit_today(table, name, unit), name
        assert fields[name].dtype == ("f4" if wire == "f4" else "i8"), name
    assert schema.scope == record.scope


def test_taskstats_folds_as_06_did():
    folds = {field.name: field.fold for field in SCHEMAS["taskstats_default"].fields}
    assert {name for name, fold in folds.items() if fold != "sum"} == {"ac_btime", "ac_etime"}
    assert (folds["ac_btime"], folds["ac_etime"]) == ("min", "max")


def test_every_field_says_what_it_is_and_where_it_comes_from():
    others = [schema for cls in load(NAMES) for schema in cls.others]
    for schema in (*SCHEMAS.values(), *others, AGENT, MAPPING):
        for field in schema.fields:
            assert "Source: " in field.help and field.help.endswith("."), f"{schema.name}.{field.name}"
