"""The configuration of hosted CI calls what .ci/run calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAGES = re.findall(r"^ *(?:[A-Z]+=(?:\"[a-z ]+\"|\S+) )?stage ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.M)
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))


def parse(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def gitlab():
    jobs = parse(".gitlab-ci.yml")
    scripts = [job["script"] for job in jobs.values() if isinstance(job, dict) and "script" in job]
    return {target for script in scripts for target in script.split()[1:]}


def github():
    matrices = [job["strategy"]["matrix"] for job in parse(".github/workflows/ci.yml")["jobs"].values()]
    return {
        target
        for matrix in matrices
        for target in [*matrix.get("target", ()), *[one["target"] for one in matrix.get("include", ())]]
    }


@pytest.mark.parametrize("targets", [gitlab, github], ids=lambda function: function.__name__)
def test_each_stage_of_ci_is_a_job_of_hosted_ci_and_a_target_of_make(targets):
    assert len(set(STAGES)) >= 5 and set(STAGES) <= TARGETS
    # test-all has the slow tests, too.
    assert {"test", "test-all", *STAGES} - {"test-slow"} <= targets() <= TARGETS


def test_ci_runs_the_quick_start_with_a_containers_rights_and_with_all():
    places = re.findall(r"^ *stage test-bare \w+ root (\w+)$", (ROOT / ".ci/run").read_text(), re.M)
    assert sorted(places) == ["container", "root"]


def test_jobs_of_hosted_ci_name_stages_and_templates_that_there_are():
    jobs = parse(".gitlab-ci.yml")
    for name, job in jobs.items():
        if isinstance(job, dict) and "script" in job:
            template = jobs[job["extends"]] if "extends" in job else job
            assert template["stage"] in jobs["stages"], name
