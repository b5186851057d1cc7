"""Removal of old rows by the database itself (--elastic-keep): policies of ILM (Elasticsearch) and ISM (OpenSearch).

The indices of each day are given to a policy, which removes them as a whole. Indices without a date in their name, the
shared archive's among them, are never given to one; nor those with a policy of the site, nor those of tables that this
collector does not know: other programs may have indices whose names begin with the same prefix.
"""

from __future__ import annotations

import calendar
import json
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from colmet.common.database_client import DatabaseClient, Response
from colmet.common.errors import OutputUnavailable
from colmet.common.tables import table_names
from colmet.common.text import document

log = logging.getLogger(__name__)

DAY_S = 86400
RETRY_S = 3600.0
AT_ONCE = 50  # names of indices in one address
# What a part of a name's date stands for, in digits and as a period; the shortest of a format counts.
_PARTS = {
    **{"%H": (r"\d\d", 3600), "%d": (r"\d\d", DAY_S), "%j": (r"\d\d\d", DAY_S), "%V": (r"\d\d", 7 * DAY_S)},
    **{"%m": (r"\d\d", 31 * DAY_S), "%Y": (r"\d\d\d\d", 366 * DAY_S), "%G": (r"\d\d\d\d", 366 * DAY_S)},
}
OWN = frozenset(name.lower() for name in table_names())  # indices of Colmet's tables
ISM_POLICY_OF = "index.plugins.index_state_management.policy_id"


def period_s(date_format: str) -> int:
    """Return the longest time between the first and the last row of an index with this date in its name."""
    return min([seconds for part, (_, seconds) in _PARTS.items() if part in date_format], default=0)


def _begin_s(text: str, date_format: str) -> int:
    """Return the begin of the period that a date names; ValueError if it names none."""
    if "%V" in date_format and "%u" not in date_format:
        text, date_format = f"{text} 1", f"{date_format} %u"
    return calendar.timegm(time.strptime(text, date_format))


def names_periods(date_format: str) -> bool:
    """Return whether each date in this format can be read back, as one period that has all rows of its index."""
    period = period_s(date_format)
    if not any(year in date_format for year in ("%Y", "%G", "%y")):
        return False
    try:
        return all(
            0 <= t - _begin_s(time.strftime(date_format, time.gmtime(t)), date_format) < period
            for t in range(1_700_000_000, 1_800_000_000, 25 * 3600)
        )
    except (ValueError, re.error):  # re.error: a part that stands twice
        return False


def ilm_policy(keep_s: int) -> dict[str, Any]:
    """Return the policy of Elasticsearch; an index has the age of its last possible row."""
    delete = {"min_age": _age(keep_s), "actions": {"delete": {}}}
    return {"policy": {"phases": {"hot": {"actions": {}}, "delete": delete}}}


def ism_policy(keep_s: int) -> dict[str, Any]:
    """Return the policy of OpenSearch; the age of an index counts from its creation."""
    remove = {"state_name": "removed", "conditions": {"min_index_age": _age(keep_s)}}
    return {
        "policy": {
            "description": "Colmet: removes indices with old rows.",
            "default_state": "kept",
            "states": [
                {"name": "kept", "actions": [], "transitions": [remove]},
                {"name": "removed", "actions": [{"delete": {}}], "transitions": []},
            ],
        }
    }


def _age(seconds: int) -> str:
    return f"{seconds // DAY_S}d" if seconds % DAY_S == 0 else f"{-(-seconds // 60)}m"


class Retention:
    """The policy of one collector's indices.

    Args:
        keep_s: rows younger than this are never removed.

    Attributes:
        failures: requests about policies that failed.
    """

    def __init__(self, client: DatabaseClient, prefix: str, date_format: str, keep_s: int) -> None:
        self._client = client
        self._prefix = prefix
        self._format = date_format
        self._keep_s = keep_s
        digits = re.escape(date_format)
        for part, (pattern, _) in _PARTS.items():
            digits = digits.replace(re.escape(part), pattern)
        self._dated = re.compile(rf"{re.escape(prefix)}(?P<table>[a-z0-9_.+]+)-(?P<date>{digits})", re.ASCII)
        self._is_ism = False
        self._is_ready = False
        self._tables = set(OWN)  # in lower case; those that are written join them
        self._waiting: set[str] = set()  # indices without the policy, as far as known
        self._try_at = 0.0
        self.failures = 0

    @property
    def policy(self) -> str:
        """Return the name of the policy. Policies of ISM do not change for the indices that have them."""
        return f"{self._prefix}rows" if not self._is_ism else f"{self._prefix}rows_{_age(self._longer_s)}"

    @property
    def _longer_s(self) -> int:
        """Return the age of an index, since its creation, at which its last row is old."""
        return self._keep_s + period_s(self._format)

    def attach(self, indices: Collection[str]) -> None:
        """Give indices to the policy, those of earlier starts as well; a failure is logged, with a retry later."""
        for index, table in self._of_tables(indices):
            self._waiting.add(index)
            if table not in self._tables:
                self._tables.add(table)
                self._is_ready = False  # look for indices of it from earlier starts
        if time.monotonic() < self._try_at:
            return
        try:
            if not self._is_ready:
                self._install()
                self._waiting.update(self._there())
                self._is_ready = True
            names = sorted(self._waiting)
            for some in [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]:
                (self._give_ism if self._is_ism else self._give_ilm)(some)
                self._waiting.difference_update(some)
        except OutputUnavailable as err:
            self.failures += 1
            self._try_at = time.monotonic() + RETRY_S
            log.warning(
                "old rows are not removed, the policy cannot be set: policy=%s indices=%d cause=%s; give the user the "
                "rights of %s, or remove --elastic-keep",
                *(self.policy, len(self._waiting), err, document("retention.md")),
            )

    def _install(self) -> None:
        about = self._ask("GET", "/").body.get("version")
        self._is_ism = isinstance(about, Mapping) and about.get("distribution") == "opensearch"
        if self._is_ism:
            path = f"/_plugins/_ism/policies/{self.policy}"
            if self._ask("GET", path, missing=True).status != 200:
                self._ask("PUT", path, ism_policy(self._longer_s))
        else:
            self._ask("PUT", f"/_ilm/policy/{self.policy}", ilm_policy(self._keep_s))
        log.info("policy for old rows is set: policy=%s keep=%s", self.policy, _age(self._keep_s))

    def _of_tables(self, indices: Collection[str]) -> Iterator[tuple[str, str]]:
        for index in indices:
            match = self._dated.fullmatch(index)
            if match is not None:
                yield index, match["table"]

    def _there(self) -> Iterator[str]:
        """Yield the dated indices of known tables in the database."""
        answer = self._ask("GET", f"/{self._prefix}*-*/_settings?filter_path=*.settings.index.uuid", missing=True)
        yield from [index for index, table in self._of_tables(answer.body) if table in self._tables]

    def _give_ilm(self, indices: list[str]) -> None:
        path = f"/{','.join(indices)}/_settings"
        names = "filter_path=*.settings.index.uuid,*.settings.index.lifecycle"
        found = self._ask("GET", f"{path}?{names}&ignore_unavailable=true", missing=True)
        for index, about in found.body.items():
            lifecycle = _at(about, "settings", "index", "lifecycle")
            if _at(lifecycle, "name") in (None, self.policy):
                end_ms = 1000 * self._end_s(index)
                if _at(lifecycle, "name") is None or _at(lifecycle, "origination_date") != str(end_ms):
                    wanted = {"index.lifecycle.name": self.policy, "index.lifecycle.origination_date": end_ms}
                    self._ask("PUT", f"/{index}/_settings", wanted, missing=True)

    def _give_ism(self, indices: list[str]) -> None:
        found = self._ask("GET", f"/_plugins/_ism/explain/{','.join(indices)}", missing=True).body
        ours = f"{self._prefix}rows_"
        for way in ("add", "change_policy"):
            some = []
            for index in indices:
                there = _at(found.get(index), ISM_POLICY_OF)
                is_new = not isinstance(there, str) or not there
                is_other = isinstance(there, str) and there.startswith(ours) and there != self.policy
                if (is_new if way == "add" else is_other) and index in found:
                    some.append(index)
            if some:
                answer = self._ask("POST", f"/_plugins/_ism/{way}/{','.join(some)}", {"policy_id": self.policy})
                if answer.body.get("failures"):
                    raise OutputUnavailable(f"{way}: {json.dumps(answer.body.get('failed_indices'))[:300]}")

    def _end_s(self, index: str) -> int:
        """Return the end of the time in the name of an index."""
        match = self._dated.fullmatch(index)
        assert match is not None  # of `_there` and `attach`
        try:
            begin = _begin_s(match["date"], self._format)
        except ValueError:
            begin = int(time.time())
        return begin + period_s(self._format)

    def _ask(self, method: str, path: str, body: Any = None, missing: bool = False) -> Response:
        """Return an answer; with `missing`, also one of status 404."""
        answer = self._client.ask(method, path, None if body is None else json.dumps(body).encode())
        if answer.status in (200, 201) or (missing and answer.status == 404):
            return answer
        raise OutputUnavailable(
            f"{method} {path[:100]}: status {answer.status}: {': '.join(filter(None, answer.error))}"
        )


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
