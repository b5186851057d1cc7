"""A report as text, readable at 80 columns, in a pipe, and without colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from colmet.common.lines import text_of
from colmet.common.measures import PROCESSES, TASKS
from colmet.common.text import (
    UNKNOWN,
    UTC,
    Clock,
    cores,
    count,
    counted,
    duration,
    energy,
    percent,
    power,
    rough_count,
    rough_percent,
    size,
)
from colmet.jobs.columns import CANCELLED, DONE, ENDED, RUNNING
from colmet.jobs.figures import BatchFacts, Energy, HostFigures, Number, Report, ratio
from colmet.jobs.grades import CORES, GPUS, MEMORY
from colmet.jobs.report import requested
from colmet.jobs.report.ending import ending_of

BAR = 20  # characters
MOST_HOSTS, FEW_HOSTS = 12, 4  # of more than MOST_HOSTS, the first and the last FEW_HOSTS are shown
MOST_LINES = 6  # of gaps, GPUs and warnings each
NOT_MEASURED = "not measured"
ASK = "ask your administrators"
ENDINGS = {DONE: "green", RUNNING: "cyan", ENDED: "", CANCELLED: "yellow"}  # of others: bold red
STATES = {"running": "running", "ended": "ended", "unknown": "silent since its last sample"}


def show(report: Report, file: IO[str], width: int | None = None, verbose: bool = False, clock: Clock = UTC) -> None:
    """Print a report, in colours on a terminal without NO_COLOR; by default as wide as it is, as COLUMNS, or 80.

    `verbose` adds the condition of each advice, and remedies for administrators.
    """
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    page = Page(clock, *(("█", "░") if console.encoding.startswith("utf") else ("#", ".")), verbose)
    with console.capture() as captured:  # one write: a pipe closed early is no error of rich
        for part in page.parts(report):
            console.print(part)
    text = captured.get()
    if not console.is_terminal:
        text = "".join([f"{line.rstrip()}\n" for line in text.splitlines()])
    file.write(text.encode(console.encoding, "replace").decode(console.encoding))


def listed(*parts: tuple[str, str]) -> str:
    """Return the known values as text, each after its name."""
    return ", ".join([f"{name} {value}" for name, value in parts if value != UNKNOWN])


@dataclass
class Page:
    """The layout of a report."""

    clock: Clock
    full: str = ""  # character of a bar's share
    empty: str = ""  # character of its rest
    verbose: bool = False  # whether to add the conditions of the rules, and remedies for administrators
    _domain: str = ""  # common to all hosts, with its dot; empty if they differ

    def parts(self, report: Report) -> Iterator[RenderableType]:
        """Yield all parts of a report, from top to bottom."""
        ends = {"".join(host.host.partition(".")[1:]) for host in report.hosts}
        self._domain = ends.pop() if len(ends) == 1 and len(report.hosts) > 1 else ""
        yield self._verdict(report)
        yield from self.title(report)
        yield ""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column()
        for label, lines in self.sections(report):
            for n, line in enumerate(lines):
                grid.add_row("" if n else label, line)
        yield grid
        if len(report.hosts) > 1:
            yield ""
            yield self._hosts(report)
        yield from self._advice(report)
        for text in report.warnings[:MOST_LINES]:
            yield Text(f"warning: {text_of(text)}", style="yellow")

    def _verdict(self, report: Report) -> Text:
        """Return the grades in a line."""
        line = Text(style="bold")
        for one in requested.verdict(report):
            line.append(" " if line else "").append(text_of(one.sentence), requested.GRADE_STYLES[one.grade])
        return line or Text(requested.no_verdict(report), style="bold")

    def title(self, report: Report) -> Iterator[Text]:
        """Yield the job, its user, its times, and the completeness of the data."""
        of = f" of {text_of(report.user)}" if report.user else ""
        hosts = f" on {counted(len(report.hosts), 'hosts')}" if report.hosts else ""
        if len(report.hosts) == 1:
            hosts = f" on {text_of(report.hosts[0].host)}"
        elif self._domain:
            hosts += f" of {text_of(self._domain[1:])}"
        batch = report.batch or BatchFacts()
        named = f" ({text_of(batch.name[: requested.LONGEST_NAME])})" if batch.name else ""
        number = batch.batch_id if batch.array and batch.batch_id else str(report.job)
        state = STATES[report.state]
        if batch.state and report.state != RUNNING:
            state = batch.state.replace("_", " ")
        yield Text(f"Job {text_of(number)}{named}{of}{hosts}: {state}", style="bold")
        every = f", one every {duration(report.period_s)}" if report.period_s else ""
        yield Text(f"{self.clock.interval(report.start, report.end)}: {duration(report.wall_s)}")
        facts = requested.about(batch, self.clock)
        if facts:
            yield Text(facts)
        if report.hosts:
            yield Text(f"{counted(report.samples, 'samples')}{every}; {self._data(report)}")
        else:
            yield Text("No node measured it: it was too short, or its nodes run no colmet-node.", style="italic")
        if report.since is not None or report.until is not None:
            yield Text("Figures are of this interval only.", style="italic")
        if report.source == "archive" and report.hosts:
            yield Text("Made from the job archive: not all of its rows are still stored here.", style="italic")
        if len(report.starts) > 1:
            yield Text(requested.others(report), style="italic")

    def _data(self, report: Report) -> str:
        found = report.completeness
        how = {
            "ledger": "",
            "steps": " (an estimate: there is no ledger)",
            "mixed": " (in part an estimate: some tables have no ledger)",
        }[found.method]
        return (f"{percent(found.here_ratio)} of the samples are stored" if found.missing else "none is missing") + how

    def sections(self, report: Report) -> Iterator[tuple[str, list[Text]]]:
        """Yield the sections with lines: a name, and the lines with figures."""
        sections = {
            **{"End": self._end, "Request": self._request},
            **{"CPU": self._cpu, "Time": self._time, "Tasks": self._tasks, "Memory": self._memory},
            **{"I/O": self._io, "Nodes": self._nodes, "GPUs": self._gpus},
            **{"Energy": self._energy, "Gaps": self._gaps},
        }
        for name, lines_of in sections.items():
            lines = list(lines_of(report))
            if lines:
                yield name, lines

    def _name(self, host: str) -> str:
        return text_of(host[: len(host) - len(self._domain)])

    def bar(self, part: Number, style: str = "cyan") -> Text:
        """Return a bar, and the share as a number."""
        if part is None:
            return Text("")
        whole = min(BAR, max(0, round(part * BAR)))
        return Text.assemble(
            (self.full * whole, style), (self.empty * (BAR - whole), "dim"), f" {rough_percent(part):<9}  "
        )

    def _end(self, report: Report) -> Iterator[Text]:
        ending = ending_of(report)
        if ending is not None:
            yield Text(text_of(ending.text), style=ENDINGS.get(ending.kind, "bold red"))
            if ending.remedy:
                yield Text(text_of(ending.remedy))

    def _request(self, report: Report) -> Iterator[Text]:
        batch = report.batch or BatchFacts()
        given = {CORES: batch.allocated_cores, MEMORY: batch.allocated_memory_bytes, GPUS: batch.allocated_gpus}
        for use in requested.uses_of(report):
            if use.ratio is not None and (use.requested is not None or given.get(use.what)):
                line = self.bar(use.ratio, requested.BARS[use.what]) + Text(requested.used_of_held(use))
                yield line.append(f", {use.grade}", requested.GRADE_STYLES[use.grade]) if use.grade else line

    def _cpu(self, report: Report) -> Iterator[Text]:
        cpu = report.cpu
        if cpu.used_s is None:
            yield Text(NOT_MEASURED)
            return
        if report.cores is not None:
            of = f" of {count(cpu.cpus)}" if cpu.cpus else ""
            what = "core" if cpu.cpus == 1 else "cores"
            yield self.bar(cpu.used_ratio) + Text(f"used {cores(report.cores)}{of} {what} on average")
        of = f" of {duration(cpu.available_s)}" if cpu.available_s else ""
        how = f", by its {cpu.source} (its cgroup was not measured)" if cpu.source in (TASKS, PROCESSES) else ""
        kinds = listed(
            ("user", rough_percent(None if cpu.system_ratio is None else (1 - cpu.system_ratio) or None)),
            ("system", rough_percent(cpu.system_ratio or None)),
        )
        yield Text(f"CPU time {duration(cpu.used_s)}{of}{how}" + (f": {kinds}" if kinds else ""))
        if not cpu.cpus:
            yield Text("The number of its cores was not measured.")
        if cpu.unattributed_s and cpu.unattributed_s >= 0.01 * cpu.used_s:
            yield Text(f"{duration(cpu.unattributed_s)} of it unattributed: tasks too short, or their ends lost")
        if cpu.throttled_s:
            yield Text(f"throttled by its quota for {duration(cpu.throttled_s)}")

    def _time(self, report: Report) -> Iterator[Text]:
        time, shares = report.time, report.shares
        waits = (
            ("waiting for a CPU", time.waiting_cpu_s, shares.waiting_cpu_ratio),
            ("block I/O", time.block_io_s, shares.block_io_ratio),
            ("swap", time.swap_s, shares.swap_ratio),
            ("reclaim", time.reclaim_s, shares.reclaim_ratio),
        )
        if time.running_s is None and all(value is None for _, value, _ in waits):
            yield Text(NOT_MEASURED)
        if time.running_s is not None:
            yield self.bar(shares.running_ratio, "green") + Text(f"running {duration(time.running_s)}")
        for name, value, part in waits:
            if value:
                yield self.bar(part, "red") + Text(f"{name} {duration(value)}")
        if shares.idle_ratio and report.cpu.available_s is not None:
            unknown = " or in waits that are missing" if any(value is None for _, value, _ in waits) else ""
            idle_s = duration(shares.idle_ratio * report.cpu.available_s)
            yield self.bar(shares.idle_ratio, "blue") + Text(f"idle{unknown} {idle_s}")
        if shares.running_ratio is not None:
            at_once = "; several tasks waited at one time" if shares.at_once else ""
            yield Text(f"Shares are of {duration(report.cpu.available_s)}, wall time by cores{at_once}.")
        if time.note:
            yield Text(f"{time.note[:1].upper()}{time.note[1:]}{self._remedy(time.remedy)}.")

    def _tasks(self, report: Report) -> Iterator[Text]:
        where = " on one host" if len(report.hosts) > 1 else ""
        parts = []
        if report.tasks_ended:
            what = "process" if report.tasks_ended == 1 else "processes and threads"
            parts.append(f"{count(report.tasks_ended)} {what} ended")
        if report.tasks_peak:
            parts.append(f"at most {count(report.tasks_peak)} at one time{where}")
        if parts:
            yield Text(", ".join(parts))

    def _memory(self, report: Report) -> Iterator[Text]:
        memory = report.memory
        if memory.peak_bytes is None:
            yield Text(f"{NOT_MEASURED}: {memory.note}{self._remedy(memory.remedy)}" if memory.note else NOT_MEASURED)
            return
        where = f" on {self._name(memory.host)}" if len(report.hosts) > 1 else ""
        of = f" of {size(memory.limit_bytes)}" if memory.limit_bytes else ", no limit is known"
        of_what = ", of its processes" if memory.source == PROCESSES else ""
        how = f" (largest sample{of_what})" if memory.sampled else ""
        line = self.bar(ratio(memory.peak_bytes, memory.limit_bytes), "magenta")
        yield line + Text(f"at most {size(memory.peak_bytes)}{of}{where}{how}")
        more = listed(
            ("without page cache", size(memory.anon_peak_bytes)),
            ("now" if report.state == "running" else "at last", size(memory.now_bytes)),
            ("swap", size(memory.swap_peak_bytes or None)),
            ("all hosts", size(memory.total_peak_bytes if len(report.hosts) > 1 else None)),
        )
        if more:
            yield Text(more)
        if memory.oom_kills:
            yield Text(f"processes killed for lack of memory: {count(memory.oom_kills)}", style="bold red")

    def _remedy(self, remedy: str) -> str:
        """Return the remedy for administrators, or the advice to ask them."""
        if not remedy:
            return ""
        return f": {remedy}" if self.verbose else f"; {ASK}"

    def _io(self, report: Report) -> Iterator[Text]:
        io = report.io
        moved = listed(("read", size(io.read_bytes or None)), ("written", size(io.written_bytes or None)))
        is_known = io.read_bytes is not None or io.written_bytes is not None
        yield Text(f"storage: {moved or 'nothing read or written'}" if is_known else NOT_MEASURED)
        asked = ("read", io.asked_read_bytes, io.read_calls), ("wrote", io.asked_written_bytes, io.write_calls)
        for did, amount, calls in asked:
            if amount:
                how_often = f" in {rough_count(calls)} calls" if calls else ""
                yield Text(f"programs {did} {size(amount)}{how_often}, page cache included")

    def _nodes(self, report: Report) -> Iterator[Text]:
        nodes = report.nodes
        network = listed(("sent", size(nodes.network_sent_bytes)), ("received", size(nodes.network_received_bytes)))
        lustre = listed(("read", size(nodes.lustre_read_bytes)), ("written", size(nodes.lustre_written_bytes)))
        if network:
            yield Text(f"InfiniBand: {network}")
        if lustre:
            yield Text(f"Lustre: {lustre}")
        if network or lustre:
            yield Text("These are totals of the whole nodes, with all jobs on them.")

    def _gpus(self, report: Report) -> Iterator[Text]:
        for gpu in report.gpus[:MOST_LINES]:
            name = text_of(gpu.name or gpu.uuid or "all of its GPUs")
            host = f" on {self._name(gpu.host)}" if len(report.hosts) > 1 else ""
            idle = f", no process of the job for {duration(gpu.idle_s)}" if gpu.idle_s else ""
            if gpu.is_used_by_others:
                idle += ": it was used by processes outside of the job, such as of a container"
            of = f" of {size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
            memory = f", memory {size(gpu.memory_peak_bytes)}{of}" if gpu.memory_peak_bytes is not None else ""
            yield self.bar(gpu.use_ratio, "blue") + Text(f"{name}{host}{memory}{idle}")
        if len(report.gpus) > MOST_LINES:
            yield Text(f"and {len(report.gpus) - MOST_LINES} more (--json has all)")

    def _energy(self, report: Report) -> Iterator[Text]:
        found = report.energy
        if not found.source:
            yield Text(f"{NOT_MEASURED}{self._remedy('--enable-RAPL or --enable-ipmipower of colmet-node')}")
        elif found.nodes_joules is None:  # those of other users are hidden
            yield Text(energy(found.job_joules))
            yield Text(f"This is of {_of(found)}: {found.method}.{_covered(found)}", style="dim")
        else:
            is_whole = (found.covered_ratio or 0) >= 0.99 and (found.unshared_joules or 0) <= 0.01 * found.nodes_joules
            mean = f", {power(ratio(found.job_joules, report.wall_s))} on average" if is_whole else ""
            line = self.bar(ratio(found.job_joules, found.nodes_joules), "yellow")
            yield line + Text(f"{energy(found.job_joules)} of {energy(found.nodes_joules)}{mean}")
            rest = listed(
                ("other jobs", energy(found.others_joules or None)), ("no job", energy(found.nobody_joules or None))
            )
            if found.others_joules is None and found.nobody_joules is not None:
                rest = f"others and no job {energy(found.nobody_joules)}"
            unshared = f", not shared {energy(found.unshared_joules)}" if found.unshared_joules else ""
            if rest:
                yield Text(f"The rest: {rest}{unshared}.")
            elif not found.job_joules:
                yield Text("Nothing could be shared.")
            busy = f" CPUs were {percent(found.busy_ratio)} busy." if found.busy_ratio is not None else ""
            yield Text(f"This is of {_of(found)}: {found.method}.{busy}{_covered(found)}", style="dim")
        if found.gpu_joules is not None:
            yield Text(f"GPUs: {energy(found.gpu_joules)}")

    def _gaps(self, report: Report) -> Iterator[Text]:
        gaps = sorted(report.completeness.gaps, key=lambda gap: -gap.rows)
        for gap in sorted(gaps[:MOST_LINES], key=lambda gap: (gap.host, gap.first)):
            when = self.clock.interval(gap.first, gap.last, named=False)
            yield Text(f"{self._name(gap.host)} {when}: {counted(gap.rows, 'rows')} {text_of(gap.why)}")
        if len(gaps) > MOST_LINES:
            yield Text(f"and {len(gaps) - MOST_LINES} smaller ones (--json has all)")

    def _hosts(self, report: Report) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        columns = host_columns(report.hosts)
        table.add_column("Host", no_wrap=True, overflow="ellipsis", max_width=24)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        order = by_use(report.hosts)
        left_out = len(order) - 2 * FEW_HOSTS if len(order) > MOST_HOSTS else 0
        for n, host in enumerate(order):
            if not left_out or n < FEW_HOSTS or n >= len(order) - FEW_HOSTS:
                table.add_row(self._name(host.host), *[text_of_host(host) for text_of_host in columns.values()])
            elif n == FEW_HOSTS:
                table.add_row(f"... {left_out} more")
        return table

    def _advice(self, report: Report) -> Iterator[RenderableType]:
        advice = requested.complete_advice(report)
        withheld = requested.no_advice(report, advice)
        if advice or withheld:
            yield ""
        if withheld:
            yield Text(withheld)
        if not advice:
            return
        yield Text("Advice", style="bold")
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for one in advice:
            rule = (f" [{one.rule}: {one.because}]", "dim")
            grid.add_row("*", Text.assemble(text_of(one.text), *([rule] if self.verbose else [])))
        yield grid


def _of(found: Energy) -> str:
    what = {"rapl": "processors and memory (RAPL)", "ipmi": "whole nodes (BMC)"}
    return " and ".join([what.get(source, "a meter unknown to this version") for source in found.source.split(" and ")])


def _covered(found: Energy) -> str:
    if found.covered_ratio is None or found.covered_ratio >= 0.99:
        return ""
    return f" It is known for {percent(found.covered_ratio)} of the time."


def host_columns(hosts: Sequence[HostFigures]) -> dict[str, Callable[[HostFigures], str]]:
    """Return the columns of the table of hosts that have a value: the text of a host, by name."""
    columns: dict[str, Callable[[HostFigures], str]] = {
        "CPU": lambda host: percent(host.cpu_used_ratio),
        "cores": lambda host: cores(host.cores),
        "memory": lambda host: size(host.memory_peak_bytes),
        "read": lambda host: size(host.read_bytes),
        "written": lambda host: size(host.written_bytes),
        "energy": lambda host: energy(host.energy_joules),
    }
    return {name: text for name, text in columns.items() if any(text(host) != UNKNOWN for host in hosts)}


def by_use(hosts: Sequence[HostFigures]) -> list[HostFigures]:
    """Return hosts by decreasing CPU use, unknown ones last."""
    used = {host.host: [-1.0 if one is None else one for one in (host.cpu_used_ratio, host.cores)] for host in hosts}
    return sorted(hosts, key=lambda host: used[host.host], reverse=True)
