"""Twenty-five questions of administrators and scientists: from the index, the answer is at most two pages away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
# question: pages from the index on, and words of the answer on the last one
ANSWERS = {
    "Which ports must be open?": (["install.md"], "| 5556 | samples"),
    "What is the rule of a firewall?": (["install.md"], "firewall-cmd --permanent --add-rich-rule="),
    "How do I install it on Rocky 9?": (["install.md"], "such as RHEL and Rocky 9"),
    "How do I give keys to 100 nodes?": (["recipes.md"], "colmet enrol --from-file nodes.txt"),
    "Why has my OAR job no memory?": (["troubleshooting.md"], '$Enable_mem_cg = "YES"'),
    "How does a user on the login node see her report?": (["tools/login.md"], "colmet report 4242"),
    "How long is data kept, and how do I prune?": (["retention.md"], "| rows in HDF5 files, each sample | for ever"),
    "How do I load HDF5 into pandas?": (["recipes.md"], "h5py.File(name)"),
    "What is cpu_unattributed?": (["faq.md", "measured.md"], "`cpu_unattributed` (`cpu_usage` less `cpu_total`)"),
    "What does it cost on the nodes?": (["sizing.md"], "6 ms of CPU, 46 MB of memory"),
    "Who wasted most last week?": (["faq.md"], "colmet jobs --all-users --since 1w --sort wasted_core_s"),
    "Was signal 9 for lack of memory?": (["guide.md"], "ended by signal SIGKILL (9)"),
    "What is lost while the collector is down?": (["link.md"], "**A batch is stored once**"),
    "How do users log in with LDAP or single sign-on?": (
        ["tools/http.md"],
        "adds the site's certificate, single sign-on",
    ),
    "How do I mail users of idle GPUs?": (["tools/notices.md"], "| `gpu-idle` |"),
    "How much disk for 800 nodes?": (["sizing.md"], "| HDF5 files a day |"),
    "How do I remove what is stored of a user?": (["privacy.md"], "colmet archive forget --user NAME --rows"),
    "How do I measure GPUs?": (["inputs/nvidia.md"], "colmet-node --enable-nvidia"),
    "How do names and exit codes of Slurm get in?": (["outputs/archive.md"], "| `slurm` | `squeue`; `sacct`"),
    "How do I get a job's memory over time as CSV?": (["tools/extract.md"], "--format csv"),
    "How do I get the columns of GPUs as CSV?": (["tools/extract.md"], "--metrics cpu_usage,utilization-gpu"),
    "How many cores did my job use?": (["faq.md"], "used 0.45 of 2 cores on average"),
    "At which level does an alarm start?": (["faq.md", "health.md"], "an output is away for longer than `--max-age`"),
    "What is stored of me?": (["privacy.md"], "Not read and not stored: command lines"),
    "How do I go back to Colmet 0.6?": (["upgrade.md"], "**To roll back**"),
}


def links(path):
    """Pages that a page links to."""
    targets = re.findall(r"\]\(([^()\s#]+\.md)(?:#[^()\s]*)?\)", path.read_text(encoding="utf-8"))
    return {(path.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("question", ANSWERS)
def test_the_answer_is_two_pages_from_the_index_at_most(question):
    pages, answer = ANSWERS[question]
    assert len(pages) <= 2
    place = DOCS / "index.md"
    for page in pages:
        assert (DOCS / page).resolve() in links(place), f"{place} does not link {page}"
        place = DOCS / page
    assert answer in re.sub(r"\s+", " ", place.read_text(encoding="utf-8"))
