"""What the node's numbered columns say on the way from sysfs through both dialects to an HDF5 file."""

from __future__ import annotations

import h5py
import pytest

from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.common.schema import Batch, Table
from colmet.common.wire import ENCODERS, Decoder
from colmet.node.backends.rapl import RaplBackend
from colmet.node.backends.temperature import TemperatureBackend
from tests.support.outputs import write

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
