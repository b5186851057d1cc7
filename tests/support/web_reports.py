"""Shared by tests: reporter_of."""

from __future__ import annotations

from colmet.web.report_process import report_of
from tests.support.made_up_history import START, MadeUp, job_rows


def reporter_of(facts):
    """Reports of the jobs of a made-up cluster (`tests.support.web_facts`), each with rows of its own."""

    def reporter(query):
        owner = facts.owner(query.job)
        history = MadeUp()
        for host in facts.on.get(query.job, ["node0"]) if owner is not None else ():
            job_rows(history, job=query.job, host=host, count=5, user=owner.encode())
        return report_of(history, query, START + 9999)

    return reporter
