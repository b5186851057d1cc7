"""Shared by tests: Writer."""

from __future__ import annotations

from colmet.collector.backends.elasticsearch.documents import IndexNaming
from colmet.collector.backends.elasticsearch.output import ElasticsearchOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client as hosts
from colmet.common.http_client import HttpClient

JOURNAL = "0123456789abcdef"


PLACE = IndexNaming("colmet_", "", False)


class Writer:
    """An output with its state, as a collector has it."""

    def __init__(self, folder, *urls, place=PLACE, journal=JOURNAL, **options):
        self.state = OutputState(str(folder / "state.json"), journal, 0, 0)
        self.output = ElasticsearchOutput(urls, HttpClient({}, max_bytes=hosts.MAX_ANSWER_BYTES), place, **options)
        self.output.open(self.state)

    def write(self, *records):
        try:
            self.output.recover()
            self.output.write(records)
        finally:
            self.output.close()

    def count(self, *names):
        counters = self.output.counters()
        return tuple(counters[name] for name in names)
