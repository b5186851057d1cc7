"""Factors from energy and core hours to CO2 and cost: a site's own, each with its source."""

from __future__ import annotations

import os
from typing import NamedTuple

from colmet.common.config import cli
from colmet.common.config.configuration import file_text, parse
from colmet.common.errors import ConfigError
from colmet.jobs.archive.queries import UsageGroup

DEFAULT_PATH = "/etc/colmet/usage.toml"
JOULES_PER_KWH, HOUR_S = 3.6e6, 3600.0


class Factors(NamedTuple):
    """The factors of a site; None for an unknown one."""

    co2_per_kwh: float | None = None  # grams
    co2_source: str = ""
    price_per_kwh: float | None = None
    price_per_core_hour: float | None = None  # of allocated cores
    price_source: str = ""
    currency: str = ""

    @property
    def sources(self) -> list[str]:
        """Return a line for each factor, with its source."""
        found = []
        if self.co2_per_kwh is not None:
            found.append(f"CO2: {self.co2_per_kwh:g} g per kWh ({self.co2_source})")
        parts = ((self.price_per_kwh, "kWh"), (self.price_per_core_hour, "allocated core hour"))
        prices = [f"{price:g} {self.currency} per {of}" for price, of in parts if price is not None]
        if prices:
            found.append(f"Cost: {', '.join(prices)} ({self.price_source})")
        return found

    def co2_g(self, group: UsageGroup) -> float | None:
        """Return grams of CO2; None without the factor or the energy."""
        joules = group.sums["energy_joules"]
        return None if joules is None or self.co2_per_kwh is None else joules / JOULES_PER_KWH * self.co2_per_kwh

    def cost(self, group: UsageGroup) -> float | None:
        """Return the cost of energy and core hours; None without a factor, or where one of them is missing."""
        parts = (
            (self.price_per_kwh, group.sums["energy_joules"], JOULES_PER_KWH),
            (self.price_per_core_hour, group.sums["core_s"], HOUR_S),
        )
        known = [
            None if amount is None else price * amount / unit for price, amount, unit in parts if price is not None
        ]
        return None if not known or None in known else sum([one for one in known if one is not None])


def add_options(parser: cli.Options) -> None:
    """Declare the factors."""
    parser.add_argument("--co2-per-kwh", metavar="GRAMS", type=cli.positive_number, help="CO2 of a kWh, in grams")
    parser.add_argument("--co2-source", metavar="TEXT", default="", help="where this number is from")
    parser.add_argument("--price-per-kwh", metavar="PRICE", type=cli.positive_number, help="price of a kWh")
    parser.add_argument(
        "--price-per-core-hour", metavar="PRICE", type=cli.positive_number, help="price of an hour of an allocated core"
    )
    parser.add_argument("--price-source", metavar="TEXT", default="", help="where these prices are from")
    parser.add_argument("--currency", metavar="NAME", default="", help="currency of the prices, such as EUR")


def read(path: str | None) -> Factors:
    """Return the factors of a file in TOML, by default `DEFAULT_PATH` if there is one; none without a file.

    Raises:
        ConfigError: the file cannot be read or used, or a factor has no source.
    """
    if path is None and not os.path.exists(DEFAULT_PATH):
        return Factors()
    path = path or DEFAULT_PATH
    parser = cli.Parser(prog="colmet usage")
    add_options(parser)
    found = Factors(**parse(file_text(path), path, parser))
    for values, source in (
        ((found.co2_per_kwh,), "co2-source"),
        ((found.price_per_kwh, found.price_per_core_hour), "price-source"),
    ):
        if any(value is not None for value in values) and not getattr(found, source.replace("-", "_")):
            raise ConfigError(f"{path}: {source} is missing: readers need to know where the number is from")
    return found
