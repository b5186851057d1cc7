"""Jobs of known use on each kernel: what is stored, beside the kernel's own files. `make test-machines` runs this.

The table of all machines that were run is printed, and written as table.md beside the images; table.json keeps it, so a
run of one machine replaces its column alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.beds.machines.machines import DIRECTORY, PYTHON, V1, Machine
from tests.beds.machines.truth import Cell, Stored, compare, markdown

HERE = Path(__file__).parent
PERIOD_S = 5
MACHINES = {
    "bookworm": ("bookworm", ()),
    "bookworm-v1": ("bookworm", V1),
    "bullseye": ("bullseye", ()),
    "bullseye-v1": ("bullseye", V1),
    "backports-v1": ("bookworm-backports", V1),
    "trixie": ("trixie", ()),
    "sid": ("sid", ()),
}
TASKSTATS_BYTES = {10: 352, 13: 416, 14: 432, 17: 688}


@pytest.fixture(scope="module", params=MACHINES)
def machine(request):
    """With both daemons, and jobs that have ended."""
    name, words = MACHINES[request.param]
    made = Machine(f"truth-{request.param}", name, *words)
    try:
        made.start()
        made.one_machine()
        made.version = "v1" if words else "v2"
        yield made
    finally:
        made.drop()


@pytest.fixture(scope="module")
def facts(machine):
    """Of the jobs, and of the stored rows."""
    machine.put(HERE / "jobs.py", "/root/jobs.py")
    printed = machine.run(
        f"systemd-run --quiet --slice=oar.slice -p Delegate=yes --wait --pipe python3 /root/jobs.py {PERIOD_S}"
    )
    return json.loads(printed)


def note(column, cells):
    """Keep the column of a machine, and write the table."""
    path = DIRECTORY / "table.json"
    columns = json.loads(path.read_text()) if path.exists() else {}
    columns[column] = {name: list(cell) for name, cell in cells.items()}
    path.write_text(json.dumps(columns, indent=1))
    table = markdown(
        {name: {row: Cell(*cell) for row, cell in columns[name].items()} for name in sorted(columns, key=kernel_first)}
    )
    (DIRECTORY / "table.md").write_text(table)
    return table


def kernel_first(column):
    """Order of columns: 5.10 before 6.1."""
    kernel, _, version = column.partition(" ")
    return [*map(int, kernel.split(".")), version]


def test_stored_values_are_those_of_the_kernels_files(machine, facts, tmp_path, capsys):
    doctor = json.loads(machine.run("colmet doctor --json", check=False))["findings"]
    machine.run("systemctl stop colmet-node && systemctl stop colmet-collector.socket colmet-collector")
    machine.get("/var/lib/colmet", tmp_path / "stored")
    stored = Stored(tmp_path / "stored")
    try:
        cells = compare(facts, stored)
    finally:
        stored.close()
    machine.put(HERE / "fields.py", "/root/fields.py")
    fields = json.loads(machine.run(f"cd /root && {PYTHON} fields.py"))
    right = not fields["differ"] and TASKSTATS_BYTES[fields["version"]] == fields["bytes"]
    cells["taskstats: version, bytes"] = Cell(f"{fields['version']}, {fields['bytes']}", right)
    failed = [f"{one['check']}: {one['found']}" for one in doctor if one["level"] == "fail"]
    cells["doctor: failures"] = Cell(str(len(failed)), not failed)
    table = note(f"{'.'.join(machine.kernel.split('.')[:2])} {machine.version}", cells)
    with capsys.disabled():
        print(f"\n{machine.name}, {machine.kernel}\n{table}")
    wrong = {name: cell.text for name, cell in cells.items() if not cell.is_right}
    assert not wrong, (wrong, fields["differ"], failed)
    assert facts["is_v2"] == (machine.version == "v2")
    said = {one["check"]: f"{one['found']} {one['remedy']}" for one in doctor if one["check"] == "controllers"}
    if facts["is_v2"]:
        assert "cpuacct" not in said["controllers"] and "blkio" not in said["controllers"], said
    else:
        assert "mount -t cgroup2" not in said["controllers"], "that would hide the hierarchies of v1"


def test_the_journal_has_levels_and_no_failure(machine, facts):
    """What is logged as a warning has the level of a warning, and nothing is logged as an error."""
    assert machine.run("journalctl -q -b --no-pager -p err -u colmet-node -u colmet-collector") == ""
    warnings = machine.run("journalctl -q -b --no-pager -o cat -p warning -u colmet-node -u colmet-collector")
    everything = machine.run("journalctl -q -b --no-pager -o cat -u colmet-node -u colmet-collector")
    written = [line for line in everything.splitlines() if line.startswith("WARNING")]
    assert written == [line for line in warnings.splitlines() if line.startswith("WARNING")]
    assert "evaluates to an empty string" not in everything and "Traceback" not in everything
