"""The units of columns, each declared once: its scale, its symbols, and its names in Prometheus and Grafana."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SI = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALL = ("n", "µ", "m", "")  # of seconds: kiloseconds are not in use
_NONE = ("",)


class Unit(NamedTuple):
    """A unit of stored numbers, or of their growth per second.

    Attributes:
        name: the word in schemas.
        symbol: of the unit shown in charts; empty for numbers of things.
        factor: from a stored number to the unit of `symbol`.
        prefixes: of the symbol, by steps of `step`.
        step: 1000 or 1024.
        text: ASCII text behind a stored number, for terminals; empty if the family defines the format.
        family: format of the values in programs: size, duration, date, share, power, temperature, frequency, energy;
            empty for plain numbers.
        prometheus: suffix of metric names, with the values in the unit of `symbol`; empty if both stay as stored.
        grafana: Grafana's name of the unit; empty if it has none.
        grafana_rate: Grafana's name for the growth per second, with {noun} for the counted things.
    """

    name: str
    symbol: str = ""
    factor: float = 1.0
    prefixes: Sequence[str] = _NONE
    step: int = 1000
    text: str = ""
    family: str = ""
    prometheus: str = ""
    grafana: str = ""
    grafana_rate: str = ""

    @property
    def scale(self) -> float:
        """Return the factor to bytes, seconds, watts and fractions, the units of measures and replies."""
        return 0.01 if self.family == "share" else self.factor

    @property
    def divisor(self) -> float:
        """Return the divisor of a stored number for Prometheus: the exact inverse of `factor`, 1 without a suffix."""
        if not self.prometheus:
            return 1
        return round(1 / self.factor) if self.factor < 1 else 1 / self.factor

    def scaled(self, largest: float) -> tuple[float, str]:
        """Return the divisor of values up to `largest`, and the symbol with the matching prefix."""
        plain = self.prefixes.index("")
        at = plain if largest == 0 else 0
        while at + 1 < len(self.prefixes) and largest >= float(self.step) ** (at + 1 - plain):
            at += 1
        return float(self.step) ** (at - plain), self.prefixes[at] + self.symbol

    def per_second(self, cpu_time: bool = False) -> Unit:
        """Return the unit of the growth per second.

        Args:
            cpu_time: whether it is CPU time, then in cores; other times are tasks, or shares of the time.
        """
        name = f"{self.name}/s"
        if self.symbol == "J":
            return Unit(name, "W", self.factor, _SI, family="power")
        if self.symbol == "s":
            return Unit(name, "cores" if cpu_time else "s/s", self.factor)
        family = "flow" if self.family == "size" else ""
        return Unit(name, f"{self.symbol}/s", self.factor, self.prefixes, self.step, family=family)


UNITS: Mapping[str, Unit] = {
    unit.name: unit
    for unit in (
        Unit("none", "", 1, _SI, grafana="short"),
        Unit("count", "", 1, _SI, grafana="short", grafana_rate="cps"),
        Unit("bytes", "B", 1, _BINARY, 1024, family="size", grafana="bytes", grafana_rate="binBps"),
        Unit(
            *("kbytes", "B", 1024, _BINARY, 1024),
            family="size",
            prometheus="_bytes",
            grafana="kbytes",
            grafana_rate="KiBs",
        ),
        Unit("mbytes", "B", 1 << 20, _BINARY, 1024, family="size", grafana="mbytes"),
        # si:n is a prefix with a scale of its own in Grafana: 2e9 of si:ncores are "2 cores"
        Unit("nsec", "s", 1e-9, _SMALL, 1000, "", "duration", "_seconds", "ns", "si:n{noun}"),
        Unit("usec", "s", 1e-6, _SMALL, 1000, "", "duration", "_seconds", "µs", "si:µ{noun}"),
        Unit("sec", "s", 1, _SMALL, 1000, "", "duration", "_seconds", "s"),
        Unit("jiffies", "s", 0.01, _SMALL, family="duration", grafana_rate="suffix:{noun}"),  # 1/USER_HZ s
        Unit("mbytes-usec", "MB·s", 1e-6, text="MiB s"),
        Unit("ts_date", "s since 1970", family="date", grafana="dateTimeFromNow"),
        Unit("celsius", "°C", text="C", family="temperature", grafana="celsius"),
        Unit("watts", "W", 1, _SI, text="W", family="power", grafana="watt"),
        Unit("ujoules", "J", 1e-6, _SI, text="J", family="energy", grafana_rate="si:µW"),
        Unit("mhz", "Hz", 1e6, _SI, text="MHz", family="frequency", grafana="si:MHz"),
        Unit("percent", "%", text="%", family="share", grafana="percent"),
    )
}
