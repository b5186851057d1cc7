"""RAPL on whole trees of machines, through the C library as it is built from this source."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import h5py
import pytest

from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.common.errors import BackendUnavailable
from colmet.common.schema import Batch, Table
from colmet.common.wire import ENCODERS, Decoder
from colmet.node.backends import rapl
from colmet.node.backends.rapl import SCHEMA, ZONE_SCHEMA, RaplBackend, _Described
from colmet.node.backends.temperature import TemperatureBackend
from tests.support.machine import LIB_RAPL, open_files
from tests.support.outputs import write

pytestmark = pytest.mark.usefixtures("lib_rapl")
BASE = "/sys/devices/virtual/powercap/intel-rapl"
XEON_RANGE, DRAM_RANGE, EPYC_RANGE = 262_143_328_850, 65_712_999_613, 65_532_610_987


class Machine:
    """A tree, a clock that stands still until it is moved, and the backend."""

    def __init__(self, fake, period_s=5.0):
        self.fake = fake
        self.now = 1000.0
        self.backend = RaplBackend(fake.host, period_s, monotonic=lambda: self.now)

    def file(self, zone, name="energy_uj"):
        top = zone.split(":")[0]
        part = f"intel-rapl:{top}" + (f"/intel-rapl:{zone}" if ":" in zone else "")
        return self.fake.path / f"{BASE}/{part}/{name}".lstrip("/")

    def uses(self, seconds, **joules):
        """Time passes, and counters go on by a number of joules, zones written as z0 and z0_1."""
        self.now += seconds
        for zone, more in joules.items():
            path = self.file(zone[1:].replace("_", ":"))
            limit = int((path.parent / "max_energy_range_uj").read_text())
            path.write_text(f"{(int(path.read_text()) + int(more * 1e6)) % limit}\n")

    def unplug(self, zone):
        """As the kernel does it: the directory and the links to it are gone; all that is needed to plug it again."""
        gone = self.file(zone).parent
        aside = self.fake.path / f"aside-{zone}"
        gone.rename(aside)
        links = [
            (link, os.readlink(link))
            for link in (self.fake.path / "sys/class/powercap").iterdir()
            if link.name == f"intel-rapl:{zone}" or link.name.startswith(f"intel-rapl:{zone}:")
        ]
        for link, _ in links:
            link.unlink()

        def plug():
            aside.rename(gone)
            for link, target in links:
                link.symlink_to(target)

        return plug

    def sample(self):
        """The columns of 0.6 that are there, by number, and the zones' rows by label."""
        first, *others = self.backend.sample([])
        assert first.schema is None and {row.schema for row in others} <= {ZONE_SCHEMA}
        assert {row.job_id for row in (first, *others)} == {0}
        Table.from_samples(SCHEMA, 0, [first])
        (packed,) = Table.from_samples(SCHEMA, 0, [first]).samples()
        columns = {int(name.partition("_")[2]): n for name, n in packed.values.items() if n is not None}
        rows = Table.from_samples(ZONE_SCHEMA, 0, others).samples()
        return columns, {row.values["zone"].decode(): row.values for row in rows}


@pytest.fixture
def machine(fake):
    made = Machine(fake)
    yield made
    made.backend.close()
    made.backend.close()


def energies(zones):
    return {label: row["energy"] for label, row in zones.items()}


def test_two_sockets_with_dram(machine):
    machine.fake.tree("intel-two-socket")
    machine.backend.open()
    machine.uses(5, z0=600, z0_0=50, z1=700, z1_0=60)
    columns, zones = machine.sample()
    # no sample came before, so there is nothing since; how far counters go is known
    assert columns == {2: XEON_RANGE, 6: DRAM_RANGE, 8: XEON_RANGE, 12: DRAM_RANGE}
    assert energies(zones) == {
        "package-0": 600_000_000,
        "package-0/dram": 50_000_000,
        "package-1": 700_000_000,
        "package-1/dram": 60_000_000,
    }
    machine.uses(10, z0=1500, z0_0=125.5, z1=0, z1_0=1)
    columns, zones = machine.sample()
    assert columns == {
        **{1: 1_500_000_000, 2: XEON_RANGE, 5: 125_500_000, 6: DRAM_RANGE},
        **{7: 0, 8: XEON_RANGE, 11: 1_000_000, 12: DRAM_RANGE},
    }
    assert zones["package-0/dram"] == {
        "zone": b"package-0/dram",
        "name": b"dram",
        "package": b"package-0",
        "energy": 175_500_000,
        "power": pytest.approx(12.55),
        "max_energy_range": DRAM_RANGE,
    }
    assert zones["package-0"]["power"] == pytest.approx(150) and zones["package-1"]["power"] == 0


def test_a_client_with_uncore_and_psys_whose_package_is_not_counted_twice(machine):
    machine.fake.tree("intel-client")
    machine.backend.open()
    machine.sample()
    machine.uses(2, z0=40, z0_0=30, z0_1=1, z1=100)
    columns, zones = machine.sample()
    assert columns == {1: 40_000_000, 2: XEON_RANGE, 3: 30_000_000, 4: XEON_RANGE}
    assert energies(zones) == {
        "package-0": 40_000_000,
        "package-0/core": 30_000_000,
        "package-0/uncore": 1_000_000,
        "psys": 100_000_000,
    }
    assert zones["psys"]["package"] is None and zones["psys"]["power"] == pytest.approx(50)


def test_amd_has_no_dram_and_its_columns_are_missing_not_0(machine):
    machine.fake.tree("amd-epyc")
    machine.backend.open()
    machine.sample()
    machine.uses(5, z0=900, z0_0=100, z1=800, z1_0=90)
    columns, zones = machine.sample()
    assert columns == {
        **{1: 900_000_000, 2: EPYC_RANGE, 3: 100_000_000, 4: EPYC_RANGE},
        **{7: 800_000_000, 8: EPYC_RANGE, 9: 90_000_000, 10: EPYC_RANGE},
    }
    assert len(zones) == 4


def test_of_eight_packages_four_have_columns_by_their_numbers_and_all_have_rows(machine, caplog):
    machine.fake.tree("intel-eight-socket")
    machine.backend.open()
    machine.backend.close()
    machine.backend.open()
    (record,) = caplog.records
    assert "8 packages" in record.getMessage() and "package-4, package-5, package-6, package-7" in record.getMessage()
    machine.sample()
    # the zone of package p: 0, 4, 1, 5, 2, 6, 3, 7 come in this order
    machine.uses(5, z0=1, z2=2, z4=3, z6=4, z6_1=0.5, z1=5, z7=8)
    columns, zones = machine.sample()
    used = {number: n for number, n in columns.items() if number % 2 and n}
    assert used == {1: 1_000_000, 7: 2_000_000, 13: 3_000_000, 19: 4_000_000, 23: 500_000}
    assert sorted(columns) == list(range(1, 25))  # 0.6's counter_24 too
    assert len(zones) == 24
    assert (zones["package-4"]["energy"], zones["package-7"]["energy"]) == (5_000_000, 8_000_000)


def test_dies_of_a_package_are_packages_of_their_own(machine):
    for n, name in enumerate(("package-1-die-0", "package-0-die-1", "package-0-die-0")):
        for file, text in (("name", name), ("energy_uj", "1"), ("max_energy_range_uj", str(XEON_RANGE))):
            machine.fake.write(f"{BASE}/intel-rapl:{n}/{file}", f"{text}\n")
        machine.fake.link(
            f"/sys/class/powercap/intel-rapl:{n}", f"../../devices/virtual/powercap/intel-rapl/intel-rapl:{n}"
        )
    machine.backend.open()
    machine.sample()
    machine.uses(5, z0=3, z1=2, z2=1)
    columns, _ = machine.sample()
    assert [columns[n] for n in (1, 7, 13)] == [1_000_000, 2_000_000, 3_000_000]


def test_counters_that_wrap_go_on(machine):
    machine.fake.tree("amd-epyc")
    machine.backend.open()
    machine.sample()
    total = 0
    for _ in range(400):  # 160 kJ: the counter holds 65.5
        machine.uses(1, z0=400)
        columns, zones = machine.sample()
        total += 400_000_000
        assert columns[1] == 400_000_000
        assert zones["package-0"]["energy"] == total and zones["package-0"]["power"] == pytest.approx(400)
    assert machine.backend.counters() == {"part_failures": 0, "zone_resets": 0}


def test_a_counter_that_begins_again_is_missing_once_and_counted(machine, caplog):
    machine.fake.tree("intel-two-socket")
    machine.backend.open()
    machine.sample()
    machine.uses(5, z0=500, z1=500)
    machine.file("0").write_text("17\n")
    columns, zones = machine.sample()
    assert 1 not in columns and columns[2] == XEON_RANGE and columns[7] == 500_000_000
    assert zones["package-0"]["energy"] is None and zones["package-0"]["power"] is None
    assert machine.backend.counters()["zone_resets"] == 1 and "counter of zone restarted" in caplog.text
    machine.uses(5, z0=5)
    columns, zones = machine.sample()
    assert columns[1] == 5_000_000 and zones["package-0"]["energy"] == 5_000_000


@pytest.mark.parametrize("garbage", ["", "much\n", "-3\n", "1 2\n", "99999999999999999999\n", str(XEON_RANGE + 1)])
def test_a_file_of_garbage_is_one_missing_value_and_the_energy_comes_with_the_next(machine, garbage, caplog):
    machine.fake.tree("intel-two-socket")
    machine.backend.open()
    machine.sample()
    machine.uses(5, z0=500, z1=500)
    good = machine.file("0").read_text()
    machine.file("0").write_text(garbage)
    columns, zones = machine.sample()
    assert 1 not in columns and columns[7] == 500_000_000
    assert zones["package-0"]["energy"] is None and zones["package-1"]["energy"] == 500_000_000
    assert machine.backend.counters() == {"part_failures": 1, "zone_resets": 0} and "package-0" in caplog.text
    machine.file("0").write_text(good)
    machine.uses(5, z0=100)
    columns, zones = machine.sample()
    assert columns[1] == 600_000_000 and zones["package-0"]["power"] == pytest.approx(60)


def test_a_zone_that_vanishes_is_missing_and_keeps_its_columns_when_it_comes_back(machine):
    machine.fake.tree("intel-two-socket")
    machine.backend.open()
    machine.sample()
    names = machine.backend.counter_names()
    before = open_files(str(machine.fake.path))
    plug = machine.unplug("0")
    machine.uses(5, z1=500, z1_0=50)
    columns, zones = machine.sample()
    assert columns == {7: 500_000_000, 8: XEON_RANGE, 11: 50_000_000, 12: DRAM_RANGE}
    assert energies(zones)["package-0"] is None and energies(zones)["package-0/dram"] is None
    assert machine.backend.counter_names() == names
    assert machine.backend.counters()["part_failures"] == 2
    plug()
    machine.file("0").write_text("5\n")  # what it did meanwhile nobody knows
    machine.uses(5, z1=500)
    columns, zones = machine.sample()
    assert 1 not in columns and columns[2] == XEON_RANGE and energies(zones)["package-0"] == 0
    machine.uses(5, z0=7, z1=500)
    columns, zones = machine.sample()
    assert columns[1] == 7_000_000 and energies(zones)["package-1"] == 1_500_000_000
    assert machine.backend.counters() == {"part_failures": 2, "zone_resets": 0}
    assert open_files(str(machine.fake.path)) == before


def test_when_all_zones_vanish_the_backend_is_off_until_they_are_back(machine):
    machine.fake.tree("intel-two-socket")
    machine.backend.open()
    machine.sample()
    machine.uses(5, z0=500)
    machine.sample()
    plugs = [machine.unplug(zone) for zone in ("0", "1")]
    with pytest.raises(BackendUnavailable, match="modprobe intel_rapl_msr"):
        machine.sample()
    for plug in plugs:
        plug()
    machine.backend.open()
    machine.uses(5, z0=100)
    assert energies(machine.sample()[1])["package-0"] == 600_000_000
    shutil.rmtree(machine.fake.path / "sys/class")
    with pytest.raises(BackendUnavailable, match="No such file"):
        machine.sample()


@pytest.mark.parametrize("make", ["/sys", "/sys/class/powercap", "/sys/class/powercap/dtpm"])
def test_a_machine_without_rapl_gets_the_remedy(machine, make):
    machine.fake.mkdir(make)
    with pytest.raises(BackendUnavailable, match=r"modprobe intel_rapl_msr.*virtual machines have none"):
        machine.backend.open()


def test_counters_of_root_alone_say_so(root, machine, tmp_path):
    machine.fake.tree("intel-two-socket")
    # The other user may not be able to read the source: the library is loaded before.
    machine.backend.open()
    machine.backend.close()
    for path in tmp_path.rglob("energy_uj"):
        path.chmod(0o400)
    closed = [path for path in (tmp_path, *tmp_path.parents) if not path.stat().st_mode & 0o001]
    modes = [path.stat().st_mode for path in closed]
    for path, mode in zip(closed, modes):
        path.chmod(mode | 0o011)
    os.seteuid(65534)
    try:
        with pytest.raises(BackendUnavailable, match="start colmet-node as root"):
            machine.backend.open()
    finally:
        os.seteuid(0)
        for path, mode in zip(closed, modes):
            path.chmod(mode)
    machine.backend.open()


def test_counters_that_all_fail_are_reported_with_their_error(machine):
    machine.fake.tree("amd-epyc")
    for zone in ("0", "0:0", "1", "1:0"):
        machine.file(zone).unlink()
        machine.file(zone).mkdir()
    with pytest.raises(BackendUnavailable, match="no counter can be read: Is a directory"):
        machine.backend.open()


@pytest.mark.parametrize(("period_s", "warns"), [(60, False), (131, False), (132, True), (3600, True)])
def test_a_period_in_which_counters_could_wrap_unseen_is_a_warning(fake, caplog, period_s, warns):
    machine = Machine(fake.tree("amd-epyc"), period_s)
    machine.backend.open()
    machine.backend.close()
    assert ("--sample-period" in caplog.text) is warns


def test_the_names_of_the_counters(machine):
    machine.fake.tree("amd-epyc")
    assert list(machine.backend.counter_names()) == []
    machine.backend.open()
    names = machine.backend.counter_names()
    assert names == machine.backend.counter_names() and len(names) == 8
    assert tuple(names[0]) == ("counter_1", "energy_microjoule", "ujoules", "package-0")
    assert tuple(names[-1]) == ("counter_10", "max_energy_range_microjoule", "ujoules", "package-1/core")
    prefix, lines = machine.backend.mapping_file()
    assert prefix == "RAPL" and len(lines) == 24
    assert lines[:6] == [
        "counter_1,energy_microjoule,package-0,zone_package",
        "counter_2,max_energy_range_microjoule,package-0,zone_package",
        "counter_3,energy_microjoule,package-0,zone_core",
        "counter_4,max_energy_range_microjoule,package-0,zone_core",
        "counter_5,counter_not_supported_by_hardware,package-0,zone_dram",
        "counter_6,counter_not_supported_by_hardware,package-0,zone_dram",
    ]
    assert lines[11] == "counter_12,counter_not_supported_by_hardware,package-1,zone_dram"
    assert lines[12:] == [f"counter_{number},no_counter,," for number in range(13, 25)]


def test_python_and_c_agree_on_the_abi(lib_rapl):
    header = (LIB_RAPL / "rapl.h").read_text()
    assert f"#define RAPL_ABI {rapl.ABI}\n" in header
    program = lib_rapl / "sizes.c"
    program.write_text(
        '#include "rapl.h"\n#include <stdio.h>\n#define AT(f) printf("%zu ", offsetof(struct rapl_zone, f))\n'
        "int main(void) { AT(id); AT(name); AT(parent); AT(package); AT(die); AT(max_energy_range_uj); "
        'printf("%zu", sizeof(struct rapl_zone)); return 0; }\n'
    )
    subprocess.run(["cc", "-o", str(lib_rapl / "sizes"), str(program)], check=True)
    said = subprocess.run([str(lib_rapl / "sizes")], capture_output=True, text=True, check=True).stdout
    ours = [getattr(_Described, name).offset for name, _ in _Described._fields_]
    assert [int(number) for number in said.split()] == [*ours, ctypes.sizeof(_Described)]


# -- on the way to a file --


TIME_S = 1_700_000_000


def tables_of(backend):
    by_schema = {}
    for row in backend.sample([]):
        by_schema.setdefault(row.schema or backend.schema, []).append(row)
    return [Table.from_samples(schema, TIME_S * 10**9, rows) for schema, rows in by_schema.items()]


@pytest.mark.usefixtures("lib_rapl")
@pytest.mark.parametrize("wire", ENCODERS)
def test_counter_24_and_all_others_reach_a_file(fake, tmp_path, wire):
    fake.tree("intel-eight-socket")
    now = [0.0]
    rapl, temperature = RaplBackend(fake.host, 5.0, monotonic=lambda: now[0]), TemperatureBackend(fake.host)
    rapl.open()
    temperature.open()
    list(rapl.sample([]))
    now[0] += 5
    for n, zone in enumerate(sorted(fake.path.rglob("energy_uj"))):
        zone.write_text(f"{int(zone.read_text()) + 1000 + n}\n")
    tables = [*tables_of(rapl), *tables_of(temperature)]
    rapl.close()

    message = ENCODERS[wire](Batch("dahu-7", 1, 1, TIME_S * 10**9, (17,), tuple(tables)))
    write(Hdf5Output(str(tmp_path / "x.hdf5")), Decoder().decode(message).batches)

    with h5py.File(tmp_path / "x.hdf5") as file:
        stored = {name: file["job_0"][name][()] for name in file["job_0"]}
    both = {"RAPLstats_default": 24, "temperaturestats_default": 6}
    assert set(stored) == {*both, *({"raplzones_default", "temperatures_default"} if wire == "v1" else ())}
    for table in tables[:1] + tables[2:3]:
        (row,) = stored[table.schema.name]
        columns = [f"counter_{n + 1}" for n in range(both[table.schema.name])]
        assert [row[name] for name in columns] == [table.rows[name][0] for name in columns]
        assert -1 not in [row[name] for name in columns]
        assert (row["timestamp"], row["hostname"], row["job_id"]) == (TIME_S, b"dahu-7", 0)
    if wire == "v1":
        assert len(stored["raplzones_default"]) == 24 and len(stored["temperatures_default"]) == 8
