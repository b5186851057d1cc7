"""Table of the power measured by the BMC."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, gauge, label


def _power(name: str, text: str) -> Field:
    source = "ipmi-oem dell, ipmi-dcmi, ipmitool dcmi, a sensor, or --ipmipower-cmd"
    return gauge(name, "watts", text, f"{source}")


SCHEMA = Schema(
    "ipmipowerstats_default",
    "node",
    [
        _power(
            "average_power_consumption",
            "Power averaged by the BMC: of a Dell over 5 s, by DCMI over a time of its own; of a sensor, its reading.",
        ),
        _power("current_power", "Power at the time of the measurement."),
        _power("minimum_power", "Minimum within the BMC's averaging time."),
        _power("maximum_power", "Maximum within the BMC's averaging time."),
        label("source", 8, "Source of the values: dell, dcmi, sensor or command.", "the backend"),
    ],
)
