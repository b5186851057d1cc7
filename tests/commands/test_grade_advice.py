"""Verdicts and advice of many made-up jobs: each bad grade has a sentence on what to do, none is contradicted."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest

from colmet.jobs.advice import RULES, advise, withheld
from colmet.jobs.columns import CANCELLED, DONE, ENDED, FAILED, OUT_OF_MEMORY, RUNNING, TIMEOUT
from colmet.jobs.figures import BatchFacts, GpuUse, Report
from colmet.jobs.grades import BLAMES, EXCEEDED, EXPLAINS, GOOD, LOW, POOR
from colmet.jobs.report import page
from colmet.jobs.report.document import document_of, report_of
from colmet.jobs.report.ending import ending_of
from colmet.jobs.report.requested import NAMES, complete_advice, uses_of
from colmet.jobs.report.rows import gather
from colmet.jobs.report.text import show
from colmet.stored.job_rows import JobInterval
from tests.support.made_up_history import START, MadeUp, job_rows

MIB = 1 << 20
JOBS = 400


def busy_job():
    history = MadeUp()
    job_rows(history, host="node-1", cores=3.0)
    return gather(history, JobInterval(42), START + 10**6)


BUSY = busy_job()


def random_job(number):
    """A job with random figures: idle or busy, short or long, with or without a batch system, GPUs and waits."""
    pick = random.Random(number)

    def some(*values):
        return pick.choice((None, *values))

    def share():
        return pick.choice((0.0, 0.01, pick.random(), 0.5, 1.0))

    wall_s = pick.choice((3.0, 29.0, 31.0, 72.0, 600.0, 7200.0, 86400.0))
    hosts = []
    for n in range(pick.choice((1, 1, 2, 4))):
        cpus = pick.choice((1, 2, 4, 64))
        limit = pick.choice((None, 100 * MIB, 1024 * MIB, 65536 * MIB))
        peak = share() * (limit or 4096 * MIB)
        hosts.append(
            replace(
                BUSY.hosts[0],
                host=f"node-{n}",
                wall_s=wall_s,
                cpus=cpus,
                cpu_used_s=share() * cpus * wall_s,
                memory_peak_bytes=peak,
                memory_limit_bytes=limit,
                memory_anon_peak_bytes=share() * peak,
            )
        )
    used_s, cpus = sum(host.cpu_used_s for host in hosts), sum(host.cpus for host in hosts)
    fullest = max(hosts, key=lambda host: host.memory_peak_bytes / (host.memory_limit_bytes or 1 << 60))
    waits = {name: some(share() * used_s) for name in ("waiting_cpu_s", "block_io_s", "swap_s", "reclaim_s")}
    start, ran_s = BUSY.start, wall_s + pick.choice((0, 5))
    batch = BatchFacts(
        state=pick.choice((DONE, DONE, ENDED, FAILED, CANCELLED, OUT_OF_MEMORY, TIMEOUT, RUNNING)),
        started=start,
        ended=int(start + ran_s),
        requested_cores=some(1, cpus),
        requested_memory_bytes=some(100 * MIB, 200 * MIB, 65536 * MIB),
        requested_gpus=some(0, 1, 4),
        requested_walltime_s=some(60, 120, 3600, 7 * 86400),
    )
    gpus = [
        GpuUse(f"node-{n}", f"GPU-{n}", held_s=held_s, idle_s=some(share() * held_s), use_ratio=some(share()))
        for n, held_s in enumerate([wall_s] * pick.choice((0, 0, 1, 4)))
    ]
    report = replace(
        BUSY,
        state="running" if batch.state == RUNNING else "ended",
        wall_s=wall_s,
        end=int(start + wall_s),
        samples=pick.choice((1, 100, 100)),
        cpu=replace(BUSY.cpu, used_s=used_s, cpus=cpus, available_s=cpus * wall_s, throttled_s=some(share() * used_s)),
        time=replace(BUSY.time, running_s=used_s, **waits),
        memory=replace(
            BUSY.memory,
            host=fullest.host,
            peak_bytes=fullest.memory_peak_bytes,
            limit_bytes=fullest.memory_limit_bytes,
            total_peak_bytes=sum(host.memory_peak_bytes for host in hosts),
            oom_kills=some(0, 0, 0, 1),
        ),
        gpus=tuple(gpus),
        hosts=tuple(hosts),
        curves=(),
        batch=pick.choice((None, batch, batch)),
    )
    why = withheld(report)
    return replace(report, advice_withheld=why, advice=() if why else advise(report))


def text_of(report: Report):
    file = io.StringIO()
    show(report, file, 100)
    return file.getvalue()


def faults(report):
    """What is wrong with the verdict of a job."""
    advice = complete_advice(report)
    rules = [one.rule for one in advice]
    ending = ending_of(report)
    assert len(set(rules)) == len(rules)
    for use in uses_of(report):
        has_sentence = bool(EXPLAINS[use.what].intersection(rules))
        if use.grade in (LOW, POOR) and not has_sentence:
            yield f"{use.what} is {use.grade}, and nothing says what to do"
        if use.grade == EXCEEDED and not has_sentence and not (ending and ending.remedy):
            yield f"{use.what} is exceeded, and nothing says what to do"
        if use.grade == GOOD and BLAMES[use.what].intersection(rules):
            yield f"{use.what} is good, and blamed by {rules}"
        if "memory-low" in rules and {"oom", "memory-high", "swap", "reclaim"}.intersection(rules):
            yield "ask for less memory, and for more"


def test_each_bad_grade_has_a_sentence_and_nothing_is_good_and_bad():
    seen = set()
    for number in range(JOBS):
        report = random_job(number)
        assert list(faults(report)) == [], number
        seen |= {(use.what, use.grade) for use in uses_of(report)} | {one.rule for one in complete_advice(report)}
    bad = {(what, grade) for what in NAMES for grade in (LOW, POOR)}
    assert seen >= {*bad, *NAMES.values(), ("memory", EXCEEDED), ("walltime", EXCEEDED), ("cores", GOOD)}


def test_all_forms_say_the_same():
    for number in range(0, JOBS, 40):
        report = random_job(number)
        advice = complete_advice(report)
        document = document_of(report)
        assert [one["text"] for one in document["advice"]] == [one.text for one in advice]
        assert complete_advice(report_of(document)) == advice, "a client adds nothing"
        words, html = " ".join(text_of(report).split()), page.html(report).decode()
        for one in advice:
            assert one.text in words and page.escape(page.capital(one.text)) in html
        assert ("Advice" in words) == bool(advice)


@pytest.mark.parametrize("rule", [one.name for one in RULES])
def test_a_rule_that_blames_what_is_graded_is_known_to_the_grades(rule):
    """Each rule is either of a thing that is graded, or of another: a new one has to be sorted."""
    others = {"cpu-wait", "throttled", "block-io", "kernel-time", "short-tasks", "small-io"}
    assert (rule in others) != any(rule in names for names in BLAMES.values())


def of_batch(report=BUSY, **values):
    return replace(report, batch=BatchFacts(**{"state": DONE, "started": 0, "ended": 3600, **values}))


def one_text(report, what):
    (found,) = [one.text for one in complete_advice(report) if one.rule == NAMES[what]]
    return found


@pytest.mark.parametrize(
    ("ran_s", "asked_s", "text"),
    [
        (72, 3600, "Ran for 1 min 12 s of the requested 1 h 0 min. Ask for less, such as 2 min 0 s, and it may start"),
        (3, 3600, "such as 1 min 0 s, and it may start sooner. Starting a job this short costs about as much"),
        (3, 60, "Ran for 3 s of the requested 1 min 0 s. Starting a job this short costs about as much as running it"),
    ],
)
def test_the_advice_on_walltime_says_what_to_ask_for(ran_s, asked_s, text):
    assert text in one_text(of_batch(ended=ran_s, requested_walltime_s=asked_s), "walltime")


@pytest.mark.parametrize(
    ("peak", "held", "text"),
    [
        (3 * MIB, 300 * MIB, "Used 3.00 MiB of 300 MiB of memory at most. Ask for less, such as 16.0 MiB, and it"),
        (195 * MIB, 1024 * MIB, "such as 240 MiB"),
        (1 * MIB, 10 * MIB, "Used 1.00 MiB of 10.0 MiB of memory at most: the least that the batch system gives"),
    ],
)
def test_the_advice_on_little_memory_says_what_to_ask_for(peak, held, text):
    memory = replace(BUSY.memory, peak_bytes=peak, total_peak_bytes=peak, limit_bytes=held)
    assert text in one_text(replace(BUSY, memory=memory), "memory")


def test_a_wait_for_a_cpu_of_less_than_a_minute_is_in_the_advice_on_cores():
    cpu = replace(BUSY.cpu, used_s=55.0, cpus=4, available_s=240.0)
    report = replace(BUSY, wall_s=60.0, cpu=cpu, time=replace(BUSY.time, running_s=55.0, waiting_cpu_s=12.0))
    assert "while its tasks waited 12 s for a CPU" in one_text(report, "cores")


# -- a GPU that a process outside of the job's cgroup uses, such as of a container --

CONTAINER = replace(BUSY, gpus=(GpuUse("node-1", "GPU-a", "A100", held_s=1800.0, idle_s=1800.0, use_ratio=0.95),))


def test_a_gpu_that_is_used_outside_of_the_job_is_not_called_unused():
    report = replace(CONTAINER, advice=advise(CONTAINER))
    text = text_of(report)
    assert "GPU use 95 %: good." in text and "unused" not in text
    assert "used by processes outside of the job" in " ".join(text.split())
