"""Why a job ended, in a sentence with a remedy: by the batch system, else by what was measured."""

from __future__ import annotations

import signal

from colmet.common.lines import shown
from colmet.common.text import count, duration, size
from colmet.jobs import columns
from colmet.jobs.figures import BatchFacts, Ending, Number, Report

_OF_SHELL = 128  # a shell's exit code for a program that a signal ended: this and the signal's number
_MEANINGS = {
    "SIGSEGV": ("it accessed memory that is not its own", "It is a defect of the program: look for a core dump."),
    "SIGBUS": (
        "it accessed memory that could not be provided",
        "Was a file that it had mapped truncated, or a file system full?",
    ),
    "SIGFPE": ("it divided by zero or the like", "It is a defect of the program, or of its input."),
    "SIGILL": (
        "it ran an instruction that the CPU lacks",
        "Was it built for other CPUs? Build it on a node of this kind.",
    ),
    "SIGABRT": ("it ended itself after an error", "Its last lines of output have the reason."),
    "SIGKILL": (
        "it was killed",
        "The batch system, an administrator or the kernel, for lack of memory, did so: see its output.",
    ),
    "SIGTERM": ("it was asked to end", "Its user, an administrator or the batch system did so."),
    "SIGINT": ("it was interrupted", "Its user, an administrator or the batch system did so."),
    "SIGXCPU": ("it reached a limit of CPU time", "Ask for more walltime, or raise `ulimit -t`."),
    "SIGXFSZ": ("it reached a limit of file size", "Raise `ulimit -f`, or write smaller files."),
    "SIGPIPE": ("the reader of its output had ended", "Look for the program that it wrote to."),
}
_CODES = {
    126: ("a program could not be started", "Is the file executable, and built for this machine?"),
    127: ("a program was not found", "Is its name right, and its module loaded in the job's script?"),
}
_SEE_OUTPUT = "Its output has the reason."


def ending_of(report: Report) -> Ending | None:
    """Return why the job ended; None if it runs, or nothing is known of its end."""
    batch = report.batch or BatchFacts()
    if report.state == columns.RUNNING or batch.state == columns.RUNNING:
        return None
    if batch.state == columns.OUT_OF_MEMORY or (batch.state == columns.FAILED and report.memory.oom_kills):
        text = f"the batch system reports that it exceeded its memory{_limit(report)}"
        if report.memory.oom_kills:
            text = f"the kernel killed {_killed(report)} at its limit{_limit(report)}"
        return Ending(columns.OUT_OF_MEMORY, f"Out of memory: {text}.", _more_memory(report))
    word = f" ({shown(batch.reason, 80)})" if batch.reason else ""  # the batch system's own
    if batch.state == columns.DONE:
        return _done(report, batch)
    if batch.state == columns.FAILED:
        return _failed(batch, word)
    if batch.state == columns.TIMEOUT:
        of = f" of {duration(batch.requested_walltime_s)}" if batch.requested_walltime_s else ""
        return Ending(
            columns.TIMEOUT,
            f"Walltime reached: the batch system ended it at its walltime{of}.",
            "Ask for more walltime, have it save its state from time to time and continue, or divide the work.",
        )
    if batch.state == columns.CANCELLED:
        return Ending(columns.CANCELLED, f"Cancelled by its user, an administrator or a job of higher priority{word}.")
    if batch.state == columns.NODE_FAILED:
        return Ending(
            columns.NODE_FAILED,
            f"A node failed, or could not start it{word}: that is not the job's fault.",
            "Submit it again; if it happens again, name the job to your administrators.",
        )
    if report.memory.oom_kills:
        text = f"The kernel killed {_killed(report)} at its limit{_limit(report)}; how it ended is not reported."
        return Ending(columns.ENDED, text, _more_memory(report))
    return None if report.batch is None else _unreported(report, batch)


def _killed(report: Report) -> str:
    kills = report.memory.oom_kills or 0
    return "a process of it" if kills == 1 else f"{count(kills)} processes of it"


def _limit(report: Report) -> str:
    limit = _limit_bytes(report)
    return f" of {size(limit)}" if limit else ""


def _limit_bytes(report: Report) -> Number:
    if report.memory.limit_bytes is None and report.batch is not None:
        return report.batch.allocated_memory_bytes or report.batch.requested_memory_bytes
    return report.memory.limit_bytes


def _more_memory(report: Report) -> str:
    limit = _limit_bytes(report)
    more = f"more than {size(limit)}" if limit else "more memory"
    return f"Ask for {more}, or have it use less: smaller input, or fewer processes."


def _done(report: Report, batch: BatchFacts) -> Ending:
    code = "" if batch.exit_code is None else f": exit code {batch.exit_code}"
    if report.memory.oom_kills:
        return Ending(
            columns.DONE,
            f"Done{code}, though the kernel killed {_killed(report)} for lack of memory.",
            "Results may be incomplete. Ask for more memory, and let the script end at the first error (set -e).",
        )
    return Ending(columns.DONE, f"Done{code}.")


def _failed(batch: BatchFacts, word: str) -> Ending:
    code, number = batch.exit_code, batch.exit_signal
    if not number and code is not None and _OF_SHELL < code <= _OF_SHELL + max(signal.valid_signals()):
        number = code - _OF_SHELL
    if number:
        name = _signal(number)
        meaning, remedy = _MEANINGS.get(name, ("", _SEE_OUTPUT))
        by = f", exit code {code}" if code else ""
        return Ending(
            columns.FAILED, f"Failed: ended by signal {name} ({number}{by}){': ' if meaning else ''}{meaning}.", remedy
        )
    if code:
        meaning, remedy = _CODES.get(code, ("", _SEE_OUTPUT))
        return Ending(columns.FAILED, f"Failed with exit code {code}{': ' if meaning else ''}{meaning}.", remedy)
    known = "its exit code is not reported" if code is None else f"its exit code is {code}"
    return Ending(columns.FAILED, f"Failed{word}; {known}.", _SEE_OUTPUT)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _unreported(report: Report, batch: BatchFacts) -> Ending:
    asked, lasted = batch.requested_walltime_s, wall_s(report)
    if asked and lasted is not None and lasted >= asked:
        return Ending(
            columns.ENDED,
            f"It ran for {duration(lasted)} of a walltime of {duration(asked)}: it was probably ended there. The batch "
            "system has not reported how.",
            "Ask for more walltime if its output is incomplete.",
        )
    return Ending(columns.ENDED, "Ended; the batch system has not reported how.")


def wall_s(report: Report) -> Number:
    """Return the duration of the whole job: by the batch system, else by the rows; None for an interval of it."""
    batch = report.batch
    if batch is not None and batch.started is not None and batch.ended is not None:
        return max(0.0, float(batch.ended - batch.started))
    return report.wall_s if report.since is None and report.until is None else None
