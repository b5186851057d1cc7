"""InfiniBand, Omni-Path and RoCE ports, on whole trees of other machines."""

from __future__ import annotations

import logging

import pytest

from colmet.common.config import cli
from colmet.common.errors import BackendUnavailable
from colmet.node.backends.infiniband import PORTS, SCHEMA, InfinibandBackend

MLX5 = "/sys/class/infiniband/mlx5_{}/ports/1"
MLX4 = "/sys/class/infiniband/mlx4_0/ports/{}"


def backend_of(fake, *options):
    parser = cli.Parser()
    InfinibandBackend.add_options(parser)
    return InfinibandBackend.from_options(parser.parse_args(["--enable-infiniband", *options]), fake.host)


def rows(backend):
    """The node's row, and that of each port by name."""
    first, *others = backend.sample([])
    assert first.schema is None and {row.schema for row in others} <= {PORTS}
    assert {row.job_id for row in (first, *others)} == {0}
    assert set(first.values) <= SCHEMA.name_set
    assert all(set(row.values) <= PORTS.name_set for row in others)
    return first.values, {row.values["port"].decode(): row.values for row in others}


def opened(fake, *options):
    backend = backend_of(fake, *options)
    backend.open()
    return backend


def in_file(fake, path):
    return int((fake.path / path.lstrip("/")).read_text())


def test_two_ports_are_reported_each_and_summed(fake):
    fake.tree("infiniband-mlx5")
    total, ports = rows(opened(fake))
    assert total == {
        "portXmitData": 4 * (237159415345822 + 1000000007),
        "portRcvData": 4 * (318000111222333 + 2000000011),
        "portXmitPkts": 801977655075 + 30000001,
        "portRcvPkts": 801977655999 + 40000003,
    }
    assert sorted(ports) == ["mlx5_0/1", "mlx5_1/1"]
    for number, port in enumerate(ports[name] for name in sorted(ports)):
        assert port["state"] == b"ACTIVE" and port["physical_state"] == b"LinkUp"
        assert port["rate"] == b"100 Gb/sec (4X EDR)" and port["link_layer"] == b"InfiniBand"
        for field in PORTS.fields:
            if field.kind == "counter":
                words = 4 if field.unit == "bytes" else 1
                assert port[field.name] == words * in_file(fake, f"{MLX5.format(number)}/counters/{field.name}")
    assert ports["mlx5_0/1"]["link_downed"] == 1 and ports["mlx5_0/1"]["symbol_error"] == 3


def test_omnipath_counts_in_words_of_8_bytes_where_the_user_says_so(fake):
    fake.tree("infiniband-hfi1")
    total, ports = rows(opened(fake, "--omnipath"))
    assert (total["portXmitData"], total["portRcvData"]) == (8 * 123456789012, 8 * 210987654321)
    assert (total["portXmitPkts"], total["portRcvPkts"]) == (3456789012, 4567890123)
    assert ports["hfi1_0/1"]["port_xmit_data"] == 8 * 123456789012
    assert rows(opened(fake))[0]["portXmitData"] == 4 * 123456789012


def test_a_full_32_bit_counter_is_missing_and_reported_once(fake, caplog):
    fake.tree("infiniband-mlx4-ofed")
    backend = opened(fake)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            total, ports = rows(backend)
    assert total == {"portXmitPkts": 812345678, "portRcvPkts": 1912345678}
    up, down = ports["mlx4_0/1"], ports["mlx4_0/2"]
    assert (up["port_xmit_data"], up["symbol_error"], down["state"]) == (None, 65535, b"DOWN")
    assert "port_xmit_wait" not in up  # this driver does not count it
    full = ["port=mlx4_0/1 counter=port_xmit_data", "port=mlx4_0/1 counter=port_rcv_data"]
    assert [text.partition(" more ")[2].partition(":")[0] for text in caplog.messages] == full
    fake.write(f"{MLX4.format(1)}/state", "1: DOWN\n")
    assert rows(backend)[0].keys() == {"portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts"}
    assert "perfquery -R" in caplog.text


def test_roce_ports_count_and_a_function_without_counters_has_none(fake):
    fake.tree("infiniband-roce")
    backend = opened(fake)
    total, ports = rows(backend)
    assert total["portXmitData"] == 4 * 55000000001
    assert ports["mlx5_0/1"]["link_layer"] == b"Ethernet"
    assert set(ports["mlx5_2/1"]) == {"port", "state", "physical_state", "rate", "link_layer"}
    assert backend.counters() == {"part_failures": 0}


def test_a_port_that_goes_down_and_comes_back_is_reported_and_the_sum_goes_on(fake):
    fake.tree("infiniband-mlx5")
    backend = opened(fake)
    before = rows(backend)[0]
    fake.write(f"{MLX5.format(1)}/state", "1: DOWN\n")
    fake.write(f"{MLX5.format(1)}/phys_state", "2: Polling\n")
    fake.write(f"{MLX5.format(0)}/counters/port_xmit_data", f"{237159415345822 + 5}\n")
    total, ports = rows(backend)
    assert total == {**before, "portXmitData": before["portXmitData"] + 20}
    assert (ports["mlx5_1/1"]["state"], ports["mlx5_1/1"]["physical_state"]) == (b"DOWN", b"Polling")
    assert ports["mlx5_0/1"]["state"] == b"ACTIVE"
    fake.write(f"{MLX5.format(1)}/state", "4: ACTIVE\n")
    fake.write(f"{MLX5.format(1)}/counters/port_xmit_data", f"{1000000007 + 7}\n")
    assert rows(backend)[0]["portXmitData"] == before["portXmitData"] + 20 + 28


def test_what_a_port_had_counted_before_it_came_up_is_no_burst(fake):
    fake.tree("infiniband-mlx5")
    fake.write(f"{MLX5.format(1)}/state", "1: DOWN\n")
    backend = opened(fake)
    before = rows(backend)[0]
    fake.write(f"{MLX5.format(1)}/state", "4: ACTIVE\n")
    fake.write(f"{MLX5.format(1)}/counters/port_xmit_data", f"{1000000007 + 3}\n")
    assert rows(backend)[0] == {**before, "portXmitData": before["portXmitData"] + 12}


def test_a_reset_adapter_never_lowers_the_sum(fake):
    fake.tree("infiniband-mlx5")
    backend = opened(fake)
    before = rows(backend)[0]
    fake.write(f"{MLX5.format(1)}/counters/port_xmit_data", "10\n")
    fake.write(f"{MLX5.format(1)}/counters/port_xmit_packets", "2\n")
    total, ports = rows(backend)
    assert total["portXmitData"] == before["portXmitData"] + 40
    assert total["portXmitPkts"] == before["portXmitPkts"] + 2
    assert ports["mlx5_1/1"]["port_xmit_data"] == 40


@pytest.mark.parametrize("text", ["", "rubbish\n", "-1\n", "1e9\n", "9" * 4000, "18446744073709551615\n", "\xff\n"])
def test_a_counter_that_turns_to_garbage_is_missing_alone(fake, caplog, text):
    fake.tree("infiniband-mlx5")
    backend = opened(fake)
    before, ports_before = rows(backend)
    fake.write(f"{MLX5.format(1)}/counters/port_xmit_data", text.encode("latin-1"))
    total, ports = rows(backend)
    assert total == before
    assert ports["mlx5_1/1"].get("port_xmit_data") is None
    del ports_before["mlx5_1/1"]["port_xmit_data"]
    assert ports == ports_before | {"mlx5_1/1": ports["mlx5_1/1"]}
    assert backend.counters() == {"part_failures": 1}
    assert "counters/port_xmit_data: cannot parse" in caplog.text


def test_a_port_that_vanishes_leaves_the_others_and_its_share_of_the_sum(fake):
    fake.tree("infiniband-mlx5")
    backend = opened(fake)
    before = rows(backend)[0]
    (fake.path / "sys/class/infiniband/mlx5_1").unlink()
    total, ports = rows(backend)
    assert total == before and list(ports) == ["mlx5_0/1"]
    (fake.path / "sys/class/infiniband/mlx5_0").unlink()
    with pytest.raises(BackendUnavailable, match=r"driver"):
        rows(backend)
    backend.close()
    fake.link("/sys/class/infiniband/mlx5_0", "../../devices/pci0000:80/0000:80:02.0/0000:81:00.0/infiniband/mlx5_0")
    backend.open()
    assert rows(backend)[0] == before  # and not less, with one port


@pytest.mark.parametrize("made", [False, True])
def test_no_fabric_is_reported_with_the_remedy(fake, made):
    if made:
        fake.mkdir("/sys/class/infiniband")
    backend = backend_of(fake)
    with pytest.raises(BackendUnavailable, match=r"no InfiniBand.*load the adapter's driver.*--enable-infiniband"):
        backend.open()
    backend.close()
    backend.close()
