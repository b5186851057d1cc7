"""Change the sample period or the perf events of a running node, by the requests of the Rust node.

The request is a map: `sample_period`, in seconds, and `metrics` or `perfhw_metrics`, a list of events with commas, each
`name` or `name:period:job_id`. Each of the two is applied, or refused with a reason. It lasts until the node's next
start, or until its configuration file is read again.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from colmet.common.config import cli
from colmet.common.config.configuration import Settings
from colmet.common.daemon.control import RUST_COMMAND, Control, Errands, Handler
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError, Refused, WireError
from colmet.common.wire.control import Request, decode_request, encode
from colmet.node.kernel import perfevents

log = logging.getLogger(__name__)

_EVENTS = ("metrics", "perfhw_metrics")
_NAMES = {"sample_period": "sample_period", "perfhw_list": "metrics"}  # of options, in requests


def add_options(parser: cli.Options) -> None:
    """Declare --allow-remote-configure."""
    parser.add_argument(
        "--allow-remote-configure",
        action="store_true",
        help=cli.Rare(
            "accept changes of the sample period and perf events from the collector without keys, too; any machine "
            "with the collector's address can then make them (default: only with keys)"
        ),
    )


def parse(request: Request) -> dict[str, Any]:
    """Return the options in a request, by their names in argparse.

    Raises:
        Refused: an unknown key, no option, or a wrong value.
    """
    values: dict[str, Any] = {}
    for key, value in request.items():
        if key == "command":
            continue
        if key not in ("sample_period", *_EVENTS):
            raise Refused(f"{key}: cannot be changed; there are sample_period and {' or '.join(_EVENTS)}")
        try:
            if key == "sample_period":
                values["sample_period"] = cli.positive_seconds(_text(value))
            else:
                if "perfhw_list" in values:
                    raise ConfigError("given twice, by two names")
                texts = perfevents.split_choices(_text(value))
                values["perfhw_list"] = [perfevents.choice_text(perfevents.parse_choice(text)) for text in texts]
        except (argparse.ArgumentTypeError, ConfigError) as err:
            raise Refused(f"{key}: {err}") from err
    if not values:
        raise Refused(f"nothing to change; give sample_period or {' or '.join(_EVENTS)}")
    return values


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[: perfevents.MAX_TEXT + 1]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    raise ConfigError("neither a text nor a number")


def change(settings: Settings, values: dict[str, Any]) -> dict[str, Any]:
    """Apply new values, in the main thread; return the answer to the request.

    Each value that is possible is applied, as by a node of Rust; the answer has the reason for each of the others.

    Raises:
        Refused: none of them is possible; nothing has changed.
    """
    changes: dict[str, list[Any]] = {}
    unchanged: list[str] = []
    refused: dict[str, str] = {}
    for option, value in values.items():
        name = _NAMES[option]
        try:
            if option == "perfhw_list" and option not in settings:
                raise ConfigError("perf events are not counted on this node; start it with --enable-perfhw")
            changed = settings.change({option: value})
        except ConfigError as err:
            refused[name] = str(err)
            continue
        if changed:
            changes[name] = [_shown(part) for part in changed[option]]
        else:
            unchanged.append(name)
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    if not changes and not unchanged:
        raise Refused(reasons)
    if changes:
        log.info("configuration changed on request: %s", "; ".join(f"{k}: {a} -> {b}" for k, (a, b) in changes.items()))
    if refused:
        log.warning("part of a requested configuration is not possible here: %s", reasons)
    return {
        "ok": not refused,
        "changed": changes,
        "unchanged": unchanged,
        "refused": refused,
        "lasts": "until the next start, or SIGHUP",
    }


def _shown(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) else value


def handler(settings: Settings, errands: Errands) -> Handler:
    """Return the handler of `configure`, for any thread: the change itself is made between two ticks."""

    def configure(request: Request) -> dict[str, Any]:
        values = parse(request)
        return errands.call(lambda: change(settings, values))

    return configure


class Remote:
    """Requests from other machines: `configure`, and nothing else.

    Args:
        control: answers them.
        is_known: whether the client is authenticated as the collector, or need not be.
        way: the connection, for errors.
    """

    def __init__(self, control: Control, is_known: bool, way: str = "over the link") -> None:
        self._control = control
        self._is_known = is_known
        self._way = way
        self._requests = self._refused = 0

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, and of those refused before they were handled."""
        return {"requests": self._requests, "refused": self._refused}

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request, both as bytes; a wrong request has an answer, too."""
        self._requests += 1
        why = ""
        if not self._is_known:
            why = (
                "this node has no keys, so it cannot authenticate the sender; give it keys (--zeromq-curve-...), or "
                "start it with --allow-remote-configure"
            )
        else:
            try:
                if decode_request(content).get("command", RUST_COMMAND) != RUST_COMMAND:
                    why = f"{self._way} there is {RUST_COMMAND} alone"
            except WireError as err:
                why = str(err)
        if not why:
            return self._control.answer(content)
        self._refused += 1
        if powers_of_ten(self._refused):
            log.warning("change of the configuration refused %s refused=%d: %.300s", self._way, self._refused, why)
        return encode({"error": why[:1000]})
