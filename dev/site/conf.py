"""Settings of the documentation site (Sphinx): `make docs` builds docs/ into build/site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "Colmet"
author = "the authors of Colmet"
html_title = "Colmet"
extensions = ["myst_parser"]
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
myst_heading_anchors = 4  # links to headings work as on a code host
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # examples with "..." in them

# The pages, in the order of the reader: caption, pages without ".md". index.md is the first page.
NAVIGATION = (
    ("Start", ("tutorial", "measured", "kernels", "faq", "recipes", "comparison")),
    (
        "Users",
        (
            *("guide", "tools/page", "tools/commands", "tools/login", "tools/report", "tools/jobs", "tools/usage"),
            *("tools/plot", "tools/extract", "tools/top", "completeness"),
        ),
    ),
    (
        "Administrators",
        (
            *(
                "sites/slurm",
                "sites/oar",
                "administrator",
                "sizing",
                "install",
                "rpm",
                "containers",
                "ansible",
                "upgrade",
                "configuration",
                "keys",
                "security",
                "privacy",
                "operations",
                "health",
            ),
            *("tools/doctor", "troubleshooting", "messages", "tools/notices", "retention", "tools/archive"),
            *("tools/http", "tools/grafana", "tools/mem", "tools/facility"),
        ),
    ),
    (
        "Reference",
        (
            *("metrics", "inputs/taskstats", "inputs/perfhw", "inputs/nvidia", "inputs/rapl", "inputs/temperature"),
            *("inputs/ipmipower", "inputs/infiniband", "inputs/lustre", "outputs/hdf5", "outputs/archive"),
            *("outputs/elasticsearch", "outputs/stdout", "link", "journal", "stability", "wire", "plugins"),
        ),
    ),
    ("Developers", ("architecture", "testing", "decisions")),
)


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append the navigation to the first page: code hosts would show the directives as code."""
    if name == "index":
        for caption, pages in NAVIGATION:
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def setup(app: Any) -> dict[str, bool]:
    """Connect the events of Sphinx."""
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
