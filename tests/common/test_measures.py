"""Measures: what people read, declared once, from columns that the catalogue has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from colmet.common.live.summary import JOB_KEYS, NODE_KEYS
from colmet.common.measures import BY_CPUS, BY_TASKS, BY_TIME, MEASURES, ORIGINS, TOTAL, bounded, columns_of
from colmet.common.tables import schemas

ROOT = Path(__file__).resolve().parents[2]
# Folders and files that fill tables, or that are frozen.
FILLERS = {
    "colmet/common/tables/": "the catalogue",
    "colmet/common/measures.py": "the measures",
    "colmet/node/": "backends and self-metrics fill the tables",
    "colmet/facility/": "it fills its own tables",
    "colmet/common/wire/colmet06.py": "the frozen columns of Colmet 0.6",
    "colmet/common/wire/colmet_rs.py": "the frozen columns of the Rust node",
    "colmet/collector/backends/stdout.py": "the frozen texts of Colmet 0.6",
}
# Readers of single columns that are no measure, by file.
READERS = {
    "colmet/jobs/columns.py": ({"allocated_cores", "read_bytes"}, "columns of job summaries have these names, too"),
    "colmet/jobs/archive/matching.py": ({"allocated_cores"}, "the same column"),
    "colmet/commands/status.py": ({"jobs_started", "batches_dropped"}, "the agent's own counters"),
    "colmet/commands/doctor/node.py": ({"kernel_accounting_on"}, "the agent's own account"),
    "colmet/common/daemon/status_checks.py": (
        {"jobs_without_rows", "placement_failures", "reads_unanswered"},
        "the agent's own counters",
    ),
    "colmet/web/static/jobreport.js": ({"read_bytes"}, "a figure of hosts in the report's JSON has this name, too"),
    "colmet/web/catalogue.py": ({"is_on"}, "the agent's own account of its backends"),
    "colmet/stored/completeness.py": ({"rows_now", "first_batch", "is_last"}, "the ledger of completeness"),
    "dev/dashboards/panels.py": (
        {
            *("port_xmit_data", "port_rcv_data", "bytes_read", "bytes_write", "symbol_error", "link_error_recovery"),
            *("link_downed", "port_rcv_errors", "vmstat_pswpin", "vmstat_pswpout", "cpu_time"),
            *("discovery_failures", "batches_dropped", "batches_waiting"),
        },
        "columns that only a dashboard shows; the catalogue refuses others when dashboards are made",
    ),
    "colmet/web/interface.py": ({"cpu_usage", "loadavg_1min"}, "examples in the description of the interface"),
    "dev/demo.py": ({"cpu_total", "cpu_time"}, "compares one table with the kernel itself"),
    "dev/workloads.py": ({"cpu_total"}, "compares columns of one table with each other"),
}
KEYS_OF_ANSWERS = {*MEASURES, *JOB_KEYS, *NODE_KEYS, "left_out"}
# Columns with names that are words of English, such as `power`, cannot be distinguished from words.
COLUMNS = {
    field.name for schema in schemas().values() for field in schema.fields if re.search(r"[-_A-Z0-9]", field.name)
} - KEYS_OF_ANSWERS


def test_a_measure_has_columns_of_one_scope_kind_and_family_of_units():
    for key, measure in MEASURES.items():
        fields = [source.field for source in measure.sources]
        assert {schemas()[source.table].scope for source in measure.sources} == {measure.scope}, key
        assert len({field.kind for field in fields}) == 1, key
        assert len({measure.unit.family, *[source.unit.family for source in measure.sources]}) == 1, key
        assert {source.origin for source in measure.sources} <= {"", *ORIGINS}, key
        assert len({*measure.places}) == len(measure.places), key


def test_only_a_counter_has_a_total_and_a_measure_says_what_it_is():
    for key, measure in MEASURES.items():
        assert measure.time != TOTAL or measure.kind == "counter", key
        assert measure.label and measure.help.endswith("."), key


def test_what_bounds_a_counter_of_time_is_declared_with_it():
    every = [bounded(bound) for bound in (BY_CPUS, BY_TASKS, BY_TIME)]
    assert sum(map(len, every)) == len(frozenset().union(*every))
    times = [source.unit for measure in MEASURES.values() if measure.bound for source in measure.sources]
    assert {unit.family for unit in times} == {"duration"}


def test_columns_are_named_once_in_the_order_of_the_measures():
    read, written = MEASURES["io_read"], MEASURES["charged_read"]
    assert columns_of([read, written]) == {
        "cgroup_default": ("io_read_bytes",),
        "taskstats_default": ("read_bytes",),
        "jobprocstats_default": ("read_bytes",),
    }


def literals(path):
    """The texts in the source of a program."""
    text = path.read_text()
    if path.suffix == ".js":
        return re.findall(r"""["'`]([\w.-]+)["'`]""", text)
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]


def columns_in(path):
    texts = [text for text in literals(path) if isinstance(text, str)]
    return {column for text in texts if (column := text.rpartition(".")[2]) in COLUMNS}


def sources():
    found = [
        *(ROOT / "colmet").rglob("*.py"),
        *(ROOT / "dev").rglob("*.py"),
        *(ROOT / "colmet/web/static").glob("*.js"),
    ]
    return {str(path.relative_to(ROOT)): path for path in sorted(found)}


@pytest.mark.slow
def test_no_other_list_of_columns_is_there():
    named = {name: columns_in(path) for name, path in sources().items() if not name.startswith(tuple(FILLERS))}
    assert {name: found for name, found in named.items() if found} == {
        name: found for name, (found, _) in READERS.items()
    }, "name the measure (colmet/common/measures.py), or add the file to READERS with a reason"


def test_a_list_of_columns_would_be_found(tmp_path):
    for name, text in (
        ("job.js", 'line("used", cgroup("cpu_usage"))'),
        ("top.py", 'X = ("cgroup_default.cpu_usage",)'),
    ):
        (tmp_path / name).write_text(text)
        assert columns_in(tmp_path / name) == {"cpu_usage"}
