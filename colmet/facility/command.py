"""colmet-facility and afmetrics_collector: logins, queues, Jupyter users and this host as documents.

Exit status: 0; 1 if a source failed, or a document is not yet delivered; 2 if the command line is invalid.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable, NamedTuple

from colmet.batch import answers
from colmet.batch.systems import find_systems
from colmet.common.config import cli
from colmet.common.config.configuration import check_effects
from colmet.common.config.secretfile import read_safe_line
from colmet.common.daemon import logs
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals, readable
from colmet.common.errors import ColmetError, ConfigError
from colmet.facility import collector_output, documents, options, people
from colmet.facility.collect import ENDED_S, Facility
from colmet.facility.collector_output import CollectorOutput
from colmet.facility.deadlines import Deadlines
from colmet.facility.documents import Document
from colmet.facility.jupyter import Jupyter, check_names
from colmet.facility.machine import DISKS, MAX_AGE_S, Disks, Network
from colmet.facility.options import TOKEN_VARIABLE, Program
from colmet.facility.people import Logins, Obscure, People, find_group
from colmet.facility.sender import DocumentSender

log = logging.getLogger(__name__)

PROGRAM = Program(
    name="colmet-facility",
    description="Send logins, batch queues, Jupyter users and this host's load to a facility's endpoint, or "
    "to colmet-collector: once, for cron or a timer, or every --interval.",
)
# colmet-facility with the options, defaults and log lines of the program of this name
AFMETRICS = Program(
    name="afmetrics_collector",
    description="Do what afmetrics_collector did, with its options.",
    cluster="UC-AF",
    url="https://af.atlas-ml.org/",
    state_file="/run/afmetrics.json",
    is_alias=True,
)
STATE_NAME = "network-{}.json"  # of a machine: several may have one home directory
SOURCE_TIMEOUT_S = 30.0  # of who, last, each disk, Kubernetes
WAKE_S = 3600.0  # for one wait between two runs
ENDED_MARGIN_S = 60  # jobs that ended during a long run are reported by the next one


class Outputs(NamedTuple):
    """Destinations of documents."""

    sender: DocumentSender | None = None  # to an endpoint; None if not selected
    collector: CollectorOutput | None = None  # to colmet-collector; None if not selected
    prints: bool = False  # to standard output
    debug: bool = False  # to files in the current directory only
    token: str | None = None  # of the documents in these files

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        for output in (self.sender, self.collector):
            if output is not None:
                output.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-facility``; return the exit status."""
    return run_program(PROGRAM, argv)


def main_of_afmetrics(argv: Sequence[str] | None = None) -> int:
    """Run ``afmetrics_collector``; return the exit status."""
    return run_program(AFMETRICS, argv)


def run_program(program: Program, argv: Sequence[str] | None) -> int:
    """Parse the command line and run the program; return the exit status."""
    service = Service.from_environment()  # first, so that child processes do not inherit it
    try:
        parser = options.build_parser(program)
        parsed = parser.parse_args(argv)
        set_up_logging(program, parsed.loglevel)
        check_effects(parser, parsed)
        if parsed.make_key is not None:
            people.make_key(parsed.make_key)
            return 0
        with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
            return _run(program, parsed, service, signals)
    except ColmetError as err:
        print(f"{logs.priority('ERROR')}{program.name}: error: {err}", file=sys.stderr)
        return cli.EXIT_CONFIG if isinstance(err, ConfigError) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's flush at exit
        return 1
    finally:
        answers.cancel()  # the commands of an abandoned source
        service.close()


def set_up_logging(program: Program, level: int | None) -> None:
    """Log to standard error, by default warnings; the alias to standard output, in its own format."""
    # libraries log whole answers and secrets of accounts at DEBUG
    of_all = level and max(level, logging.INFO)
    if program.is_alias:
        logging.basicConfig(
            level=of_all,
            stream=sys.stdout,
            format="[%(asctime)s] %(levelname)s:%(name)s:%(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
    else:
        logs.set_up(of_all or logging.WARNING)
    if level == logging.DEBUG:
        for name in ("colmet", "__main__"):
            logging.getLogger(name).setLevel(level)


def _run(program: Program, parsed: argparse.Namespace, service: Service, signals: Signals) -> int:
    def go_on() -> bool:
        service.alive()
        return not signals.stop_wanted()

    facility = facility_of(program, parsed)
    with outputs_of(parsed, lambda: not go_on()) as outputs:
        if parsed.interval is None:
            return 0 if run_once(facility, outputs, go_on) else 1
        service.ready()
        incomplete = 0
        for number in _ticks(parsed.interval, service, signals):
            incomplete += not run_once(facility, outputs, go_on)
            summary = f"runs: {number}, incomplete: {incomplete}"
            service.status(functools.partial(str, summary))
        service.stopping()
        log.info("stopping")
        return 0


def _ticks(interval_s: float, service: Service, signals: Signals) -> Iterator[int]:
    """Yield the number of each run when it is due, until SIGTERM or SIGINT; runs due during a long run are skipped."""
    start = time.monotonic()
    number = 0
    while not signals.stop_wanted():
        number += 1
        yield number
        due = start + interval_s * (math.floor((time.monotonic() - start) / interval_s) + 1)
        while not signals.stop_wanted() and (left_s := due - time.monotonic()) > 0:
            readable([signals.fd], min(left_s, service.delay_s(), WAKE_S))
            signals.drain()
            service.alive()


def run_once(facility: Facility, outputs: Outputs, go_on: Callable[[], bool] = lambda: True) -> bool:
    """Gather and deliver; return whether all sources answered and all documents are delivered; as `Facility.gather`."""
    gathered = facility.gather(go_on)
    if outputs.debug:
        documents.write_files(gathered.groups, outputs.token)
        return not gathered.failed
    found = [document for group in gathered.groups for document in group.documents]
    complete = not gathered.failed
    if outputs.collector is not None:
        outputs.collector.put(found, time.time_ns())
    if outputs.sender is not None:
        complete &= outputs.sender.send(found).complete
    if outputs.collector is not None:
        complete &= outputs.collector.finish().complete
    if outputs.prints:  # last: the reader may be slow, or gone
        complete &= _print(found, needed=outputs.sender is None and outputs.collector is None)
    return complete


def _print(found: Iterable[Document], needed: bool) -> bool:
    """Print documents; return whether it succeeded.

    BrokenPipeError where the reader has gone, and they are needed: they have no other destination.
    """
    try:
        # a file object per run: unprinted text is not retried by the next run, nor at exit
        with open(sys.stdout.fileno(), "w", encoding="ascii", closefd=False) as file:
            file.writelines(f"{json.dumps(document)}\n" for document in found)
    except OSError as err:
        if needed and isinstance(err, BrokenPipeError):
            raise
        log.error("documents cannot be printed: %s", err.strerror or err)
        return False
    return True


def facility_of(program: Program, parsed: argparse.Namespace) -> Facility:
    """Return the sources selected on the command line; raise ConfigError if they cannot be used."""
    systems = list(dict.fromkeys(parsed.batch_system or (["condor"] if parsed.batch else [])))
    if not (parsed.ssh or parsed.host or parsed.jupyter or systems) and not program.is_alias:
        raise ConfigError("no source is chosen; give one or more of --host, --ssh, --jupyter, --batch-system")
    if parsed.queue and "condor" not in systems and not program.is_alias:
        raise ConfigError("--queue names queues of HTCondor; add --batch-system condor")
    if not parsed.cluster:
        raise ConfigError("no name of the facility is given; give --cluster NAME")
    if parsed.jupyter:
        check_names(parsed.namespace, parsed.label)
    if parsed.group:
        find_group(parsed.group)
    obscure = _obscure(parsed)
    deadlines = Deadlines()
    facility = Facility(
        parsed.cluster,
        people.host(socket.gethostname(), parsed.obfuscate_hosts),
        lambda: People(parsed.group, obscure),
        batch=find_systems(systems, parsed.queue),
        ended_s=max(ENDED_S, math.ceil(parsed.interval or 0) + ENDED_MARGIN_S),
        deadlines=deadlines,
    )
    if parsed.jupyter:
        facility.jupyter = Jupyter(deadlines, SOURCE_TIMEOUT_S), parsed.namespace, parsed.label
    if parsed.ssh:
        facility.logins = Logins(parsed.ssh_history, SOURCE_TIMEOUT_S, each_once=not program.is_alias)
    if parsed.host:
        facility.network = Network(_state_file(program), max_age_s=max(MAX_AGE_S, 2 * (parsed.interval or 0)))
        facility.disks = Disks(parsed.disk or DISKS, deadlines, SOURCE_TIMEOUT_S, wanted=bool(parsed.disk))
    return facility


def _state_file(program: Program) -> str:
    """Return the path of the network counters."""
    file = program.state_file
    if file and (os.access(file, os.W_OK) if os.path.exists(file) else os.access(os.path.dirname(file), os.W_OK)):
        return file
    return os.path.join(options.find_state_directory(), STATE_NAME.format(socket.gethostname()))


def _obscure(parsed: argparse.Namespace) -> Obscure:
    """Return the command line's function for names; raise ConfigError for an invalid choice or file."""
    if parsed.key_file is not None:
        if parsed.salt_file is not None:
            raise ConfigError("--key-file excludes --salt-file: give one of them")
        return people.keyed(people.read_key("--key-file", parsed.key_file))
    if parsed.salt_file is not None:
        return people.salted(read_safe_line("--salt-file", parsed.salt_file))
    if parsed.salt:
        if not parsed.obfuscate_users:
            log.warning("users' names are sent unchanged: a salt has no effect without -o")
        _note_visible_secret("-z", "colmet-facility --salt-file")
    return people.salted(parsed.salt) if parsed.obfuscate_users else people.plain


def _note_visible_secret(option: str, remedy: str) -> None:
    # cron sends a mail for each line, every five minutes; the old program was silent
    log.info("all users of this machine can read a secret on the command line: %s; use %s", option, remedy)


def outputs_of(parsed: argparse.Namespace, stopping: Callable[[], bool]) -> Outputs:
    """Return the destinations selected on the command line; raise ConfigError for none or an invalid one."""
    inherited = os.environ.pop(TOKEN_VARIABLE, "")  # so that child processes do not inherit it
    if parsed.token:
        _note_visible_secret("-t", f"{TOKEN_VARIABLE} in the environment")
    if parsed.debug:
        return Outputs(debug=True, token=parsed.token)
    if parsed.json_lines and sys.stdout is None:
        raise ConfigError("--json-lines: standard output is closed")
    if not parsed.url and not parsed.zeromq_uri and not parsed.json_lines:
        raise ConfigError("no destination is given; give --url, --zeromq-uri or --json-lines")
    token, read_token, sender = parsed.token or inherited or None, None, None
    if parsed.token_file is not None:
        read_token = functools.partial(read_safe_line, "--token-file", parsed.token_file)
        token = read_token()
    if parsed.url:
        if token is None:
            log.info("documents are sent without a token")
        sender = DocumentSender(parsed.url, token, parsed.ca_file or None, stopping, read_token)
    # the last, as it starts a thread
    return Outputs(sender, collector_output.from_options(parsed, stopping), parsed.json_lines)


if __name__ == "__main__":
    sys.exit(main())
