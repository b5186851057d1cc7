"""Temperatures on whole trees of machines."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from colmet.common.errors import BackendUnavailable
from colmet.common.schema import Table
from colmet.node.backends.temperature import SCHEMA, SENSOR_SCHEMA, TemperatureBackend

ZONES = "/sys/devices/virtual/thermal"


def sample(backend):
    """The columns of 0.6 that are there, by number, and the sensors' rows by name."""
    first, *others = backend.sample(backend.ask([]))
    assert first.schema is None and {row.schema for row in others} <= {SENSOR_SCHEMA}
    assert {row.job_id for row in (first, *others)} == {0}
    (packed,) = Table.from_samples(SCHEMA, 0, [first]).samples()
    columns = {int(name.partition("_")[2]): n for name, n in packed.values.items() if n is not None}
    rows = list(Table.from_samples(SENSOR_SCHEMA, 0, others).samples())
    assert len({row.values["sensor"] for row in rows}) == len(rows)
    return columns, {row.values["sensor"].decode(): row.values for row in rows}


def celsius(rows):
    return {name: row["temperature"] for name, row in rows.items()}


def opened(fake):
    backend = TemperatureBackend(fake.host)
    backend.open()
    return backend


def zone(fake, number, text, kind="x86_pkg_temp"):
    fake.write(f"{ZONES}/thermal_zone{number}/type", f"{kind}\n")
    fake.write(f"{ZONES}/thermal_zone{number}/temp", text)
    link = fake.path / f"sys/class/thermal/thermal_zone{number}"
    if not link.is_symlink():
        fake.link(f"/sys/class/thermal/thermal_zone{number}", f"../../devices/virtual/thermal/thermal_zone{number}")


def test_a_server_with_zones_fills_columns_with_them_and_rows_with_all(fake):
    backend = opened(fake.tree("intel-two-socket"))
    columns, rows = sample(backend)
    assert columns == {1: 48, 2: 51}
    assert list(rows)[:4] == [
        *("x86_pkg_temp_0", "x86_pkg_temp_1", "coretemp.0/Package id 0", "coretemp.1/Package id 1")
    ]
    assert len(rows) == 2 + 2 * 5 + 2
    assert rows["coretemp.1/Core 3"] == {
        "sensor": b"coretemp.1/Core 3",
        "source": b"hwmon",
        "temperature": 50.0,
        "critical": 101.0,
    }
    assert rows["x86_pkg_temp_0"] == {
        "sensor": b"x86_pkg_temp_0",
        "source": b"thermal",
        "temperature": 48.0,
        "critical": None,
    }
    assert rows["nvme0/Composite"]["temperature"] == 38.85 and rows["nvme0/Sensor 1"]["critical"] is None


def test_a_client_with_more_zones_than_columns_and_one_that_sleeps(fake, caplog):
    caplog.set_level(logging.INFO)
    backend = opened(fake.tree("intel-client"))
    columns, rows = sample(backend)
    # acpitz 27.8, INT3400, pch, x86_pkg_temp, iwlwifi asleep, B0D4; thermal_zone6 and 10 are beyond
    assert columns == {1: 28, 2: 20, 3: 49, 4: 55, 6: 56}
    zones = [name for name, row in rows.items() if row["source"] == b"thermal"]
    assert zones == [
        *("acpitz_0", "INT3400 Thermal_1", "pch_cannonlake_2", "x86_pkg_temp_3", "iwlwifi_1_4", "B0D4_5"),
        *("TSR0_6", "SEN1_10"),
    ]
    assert rows["SEN1_10"]["temperature"] == 41.05 and rows["iwlwifi_1_4"]["temperature"] is None
    assert (rows["acpitz_0"]["critical"], rows["pch_cannonlake_2"]["critical"]) == (119.0, 115.0)
    assert rows["x86_pkg_temp_3"]["critical"] is None
    assert not any("acpitz" in name for name in rows if name != "acpitz_0")  # hwmon has it once more
    assert backend.counters() == {"part_failures": 1} and "iwlwifi_1_4" in caplog.text
    backend.open()
    assert caplog.text.count("8 sensors, and temperaturestats_default has columns for 6") == 1


def test_amd_nodes_have_no_zones_and_the_packages_of_all_sockets_come_first(fake):
    backend = opened(fake.tree("amd-epyc"))
    columns, rows = sample(backend)
    assert [name.name for name in backend.counter_names()] == [
        *("k10temp-00:18.3/Tctl", "k10temp-00:19.3/Tctl"),
        *("k10temp-00:18.3/Tccd1", "k10temp-00:19.3/Tccd1"),
        *("k10temp-00:18.3/Tccd3", "k10temp-00:19.3/Tccd3"),
    ]
    assert columns == {1: 53, 2: 56, 3: 49, 4: 51, 5: 49, 6: 51}
    assert rows["k10temp-00:18.3/Tctl"]["temperature"] == 52.625
    assert rows["bnxt_en-41:00.0/temp1"]["critical"] == 115.0
    assert len(rows) == 12


def test_names_are_those_of_the_devices_whatever_numbers_the_chips_get_at_this_boot(fake):
    before = opened(fake.tree("amd-epyc"))
    first, rows = sample(before)
    shutil.rmtree(fake.path / "sys/class/hwmon")
    links = ("pci0000:00/0000:00:19.3/hwmon/hwmon", "pci0000:00/0000:00:18.3/hwmon/hwmon")
    for n, device in enumerate(links):
        (old,) = (fake.path / f"sys/devices/{device}").parent.glob("hwmon*")
        old.rename(old.parent / f"hwmon{n + 7}")
        fake.link(f"/sys/class/hwmon/hwmon{n + 7}", f"../../devices/{device}{n + 7}")
    again = opened(fake)
    assert again.counter_names() == before.counter_names() and sample(again)[0] == first
    # and a running backend finds them again
    columns, rows = sample(before)
    assert columns == first and "nvme0/Composite" not in rows, "it has gone, and had no column"


def test_a_number_that_another_chip_got_is_not_read_for_the_one_that_had_it(fake):
    backend = opened(fake.tree("amd-epyc"))
    chip = "/sys/devices/platform/coretemp.0/hwmon/hwmon1"
    fake.write(f"{chip}/name", "coretemp\n")
    fake.write(f"{chip}/temp1_input", "11000\n")
    fake.write(f"{chip}/temp1_crit", "0\n")
    (fake.path / "sys/class/hwmon/hwmon1").unlink()
    sample(backend)
    fake.link("/sys/class/hwmon/hwmon1", "../../devices/platform/coretemp.0/hwmon/hwmon1")
    columns, rows = sample(backend)
    assert columns == {1: 53, 3: 49, 5: 49} and rows["k10temp-00:19.3/Tctl"]["temperature"] is None
    assert rows["coretemp.0/temp1"]["temperature"] == 11.0 and rows["coretemp.0/temp1"]["critical"] is None


def test_chips_that_changed_their_numbers_between_two_samples_keep_their_columns(fake):
    """Their drivers were loaded again, in another order."""
    backend = opened(fake.tree("amd-epyc"))
    first, rows = sample(backend)
    links = {link: os.readlink(link) for link in (fake.path / "sys/class/hwmon").iterdir()}
    links = {link: place for link, place in links.items() if "18.3" in place or "19.3" in place}
    (one, first_place), (other, second_place) = links.items()
    for link, place in ((one, second_place), (other, first_place)):
        link.unlink()
        link.symlink_to(place)
    assert sample(backend) == (first, rows)


def test_the_names_of_the_counters(fake):
    backend = TemperatureBackend(fake.tree("intel-two-socket").host)
    assert list(backend.counter_names()) == []
    backend.open()
    assert backend.counter_names() == backend.counter_names()
    assert [tuple(name) for name in backend.counter_names()] == [
        ("counter_1", "x86_pkg_temp_0", "celsius", ""),
        ("counter_2", "x86_pkg_temp_1", "celsius", ""),
    ]
    unused = [f"counter_{number}, no counter " for number in range(3, 7)]
    assert backend.mapping_file() == (
        "temperature",
        ["counter_1, x86_pkg_temp_0", "counter_2, x86_pkg_temp_1", *unused],
    )


@pytest.mark.parametrize(
    "text", ["", "\n", "warm\n", "4e4\n", "40000 mC\n", "--1\n", "1\n2\n", "9" * 11, "255000\n", "-128000\n"]
)
def test_a_file_of_garbage_is_missing_and_the_others_go_on(fake, text):
    backend = opened(fake.tree("intel-two-socket"))
    zone(fake, 0, text)
    columns, rows = sample(backend)
    assert columns == {2: 51} and rows["x86_pkg_temp_0"]["temperature"] is None
    assert backend.counters() == {"part_failures": 1}
    zone(fake, 0, "50500\n")
    assert sample(backend)[0] == {1: 51, 2: 51}


def test_a_zone_that_vanishes_keeps_its_column(fake):
    backend = opened(fake.tree("intel-two-socket"))
    sample(backend)
    link = fake.path / "sys/class/thermal/thermal_zone0"
    target = os.readlink(link)
    link.unlink()
    columns, rows = sample(backend)
    assert columns == {2: 51} and rows["x86_pkg_temp_0"]["temperature"] is None
    assert [name.counter for name in backend.counter_names()] == ["counter_1", "counter_2"]
    link.symlink_to(target)
    assert sample(backend)[0] == {1: 48, 2: 51}


def test_what_is_plugged_in_again_and_again_under_new_names_is_not_kept(fake):
    backend = opened(fake.tree("amd-epyc"))
    columns, rows = sample(backend)
    for number in range(100, 120):
        disk = f"/sys/class/hwmon/hwmon{number}"
        fake.write(f"{disk}/name", f"drivetemp{number}\n")
        fake.write(f"{disk}/temp1_input", "30000\n")
        again, now = sample(backend)
        assert again == columns and len(now) == len(rows) + 1
        shutil.rmtree(fake.path / disk.lstrip("/"))
    assert sample(backend) == (columns, rows) and backend.counters()["part_failures"] == 0


def test_when_all_sensors_vanish_it_says_so(fake):
    backend = opened(fake.tree("intel-eight-socket"))
    shutil.rmtree(fake.path / "sys/class/thermal")
    with pytest.raises(BackendUnavailable, match="modprobe coretemp"):
        sample(backend)


@pytest.mark.parametrize("make", ["/sys", "/sys/class/thermal/cooling_device0", "/sys/class/hwmon/hwmon0"])
def test_a_machine_without_sensors_gets_the_remedy(fake, make):
    fake.mkdir(make)
    with pytest.raises(BackendUnavailable, match=r"modprobe coretemp.*modprobe k10temp.*virtual machines have none"):
        opened(fake)


def test_names_that_firmware_made_up_are_harmless(fake):
    zone(fake, 0, "40000\n", "a,b\x1b[31m\xe9")
    chip = "/sys/devices/virtual/hwmon/hwmon0"
    fake.link("/sys/class/hwmon/hwmon0", "../../devices/virtual/hwmon/hwmon0")
    fake.write(f"{chip}/name", "board\n")
    for number in (1, 2):
        fake.write(f"{chip}/temp{number}_label", "CPU\nTemp\n")
        fake.write(f"{chip}/temp{number}_input", f"{number}0000\n")
    _, rows = sample(opened(fake))
    assert celsius(rows) == {"a?b?[31m??_0": 40.0, "board/CPU?Temp": 10.0, "board/CPU?Temp (hwmon0 temp2)": 20.0}
