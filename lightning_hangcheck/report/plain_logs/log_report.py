"""`hangcheck report --log`: where each rank was last by its own lines, and what that means.

A log tells what was said, not what is: a rank that is silent may work. So nothing here is a
verdict; it says who said less than the others, or fell silent first, and what to look at.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct, field

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.judge.wording import duration
from lightning_hangcheck.model.slugs import phase_of_name
from lightning_hangcheck.report.paragraphs import INDENT, aligned, listed, plain
from lightning_hangcheck.report.plain_logs.lines import (
    CHECKPOINT,
    ENQUEUED,
    EXCEPTION,
    OWN_STEP,
    SECTION,
    STEP,
    WATCHDOG,
    Line,
    ending_in,
    read_line,
)
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.slugs import Phase

MOST_BYTES = 32_000_000
"""Of all files: 300,000 lines, read in about 10 s."""
LONGEST_LINE = 65_536
TIME_LIMIT_S = 60.0
MOST_PROCESSES = 200_000
"""Beyond it further processes are left out, so that a hostile log fills no memory."""
TRAINING_FINISHED = 12
"""The last of the contract's checkpoints."""
A_GAP_S = 1.0
LINES_APART = 3
"""Of each rank: ranks that go on together write their last lines nearer than these."""
DAY_S = 86_400
FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
NUMBERS = re.compile(r"(\d+)")
RANK_IN_A_NAME = re.compile(r"rank[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
NO_RANK = re.compile(r"(?:node|host|attempt|restart|job|part|try)[_.-]?$", re.IGNORECASE)
"""What else is numbered in the names of files, before the number."""
LINES_OF_A_HEAD = 200
TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|(?:During handling of the|The) above exception"
)
ASKED_TO_END = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|SignalException)\b")
FOLLOWS = re.compile(
    r"[Cc]onnection (?:closed|reset) by peer|remote process exited"
    r"|Timed out waiting \d+ms for (?:recv|send)"
)
"""What a rank raises because another one failed."""
MOST_ROWS = 16
MOST_MEANINGS = 14
WHAT_NOW = (
    "while it still runs: hangcheck attach, which reads what each rank does now",
    "next time: hangcheck run -- COMMAND, which tells it by itself",
)
ALL_IN_ONE: dict[Phase, str] = {
    "logger_init": (
        "every rank is at the logger: each creates one of its own, or its server does not answer. "
        "Let rank 0 alone create it (`hc.guarded_wandb_logger`), or set WANDB_MODE=disabled for "
        "rank != 0"
    ),
    "trainer_init": (
        "every rank is at the Trainer: they may wait for each other. Name the strategy "
        '(`strategy="ddp"` in place of `"auto"`), and set NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME '
        "where GPUs are used"
    ),
    "rendezvous": "every rank waits for the process group: count the ranks that were to come",
    "model_load": "every rank loads the model: a slow or locked cache, or no network",
}
"""By phase of the section in which all ranks are: the pictures that are known by name."""


class Said(Struct, frozen=True):
    """A line of a process, and when it came.

    Attributes:
        clock_s: On one scale for all files; None where the line has no clock.
        elapsed_s: Since the process began, as the line says.
        position: Number of the line in its file.
    """

    text: str
    file: int
    position: int
    clock_s: float | None = None
    elapsed_s: float | None = None


class Process(Struct, kw_only=True):
    """What one process said last.

    Attributes:
        name: What is known of one that never said its rank: its id, or the launcher's label.
        newest: Its newest line of each file.
        local_rank: The rank, where nothing else tells that and there is one node.
        number, passed: Of the last checkpoint; None and empty before the first.
        sections: Names of those that began and have not ended, outermost first.
        steps: How many lines about steps it wrote.
        step, reached: The newest of them, and the numbers in it up to the step's.
        raised: The line that told of an exception, where the process did not go on after it.
        error: That exception.
        in_traceback: Whether its next lines are the calls of a traceback.
    """

    name: str
    newest: dict[int, Said]
    rank: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    number: int | None = None
    passed: str = ""
    sections: list[str] = field(default_factory=list)
    steps: int = 0
    step: str = ""
    reached: tuple[int, ...] = ()
    raised: Said | None = None
    error: str = ""
    in_traceback: bool = False

    def is_other(self, rank: int | None, pid: int | None) -> bool:
        """Whether a line of this rank and id is one of another process."""
        return bool(
            (self.pid is not None and pid is not None and self.pid != pid)
            or (self.rank is not None and rank is not None and self.rank != rank)
        )

    def hear(self, said: Said, *, indented: bool) -> None:
        """Take a line; those of one file come in their order."""
        text = said.text
        within, self.in_traceback = self.in_traceback, TRACEBACK.match(text) is not None
        if self.in_traceback:
            return
        if within and indented:
            self.in_traceback = True
            return
        section = SECTION.match(text)
        error = section["error"] if section else text if within or EXCEPTION.match(text) else None
        if error is not None and not ASKED_TO_END.match(error):
            self.raised, self.error = self.raised or said, error
        if error is not None and not section:
            return
        self.newest[said.file] = said
        if passed := CHECKPOINT.match(text):
            self.number, self.passed = int(passed[1]), passed[2]
        elif section and section["begun"]:
            self.sections.append(section["begun"])
        elif section:
            name = section["returned"] or section["raised"]
            if name in self.sections:
                innermost = len(self.sections) - 1 - self.sections[::-1].index(name)
                del self.sections[innermost]
        elif step := (OWN_STEP if self.pid and said.elapsed_s else STEP).match(text):
            self.steps, self.step = self.steps + 1, text
            self.reached = tuple(map(int, NUMBERS.findall(step[0])))
        else:
            return
        if error is None and self.raised and self.raised.file == said.file:
            self.raised, self.error = None, ""  # it went on

    @property
    def last(self) -> Said:
        """Its newest line, by the clocks of its files where these have some."""
        return max(reversed(self.newest.values()), key=lambda line: line.clock_s or -1.0)

    @property
    def finished(self) -> bool:
        """Whether it said that its training is over."""
        return self.number == TRAINING_FINISHED and not self.sections

    @property
    def stands(self) -> tuple[str, str, str, str]:
        """Checkpoint, section, step, and its last words where they are others."""
        passed = "" if self.number is None else f"CHECKPOINT {self.number}: {self.passed}"
        inside = self.sections[-1] if self.sections else ""
        told = (passed, f"About to call {inside}...", self.step)
        lines = dict.fromkeys(line.text for line in self.newest.values())
        words = [text for text in lines if text not in told and text != self.error]
        if self.error and not any(self.error in text for text in words):
            words.append(f"raised {self.error}")
        return passed, f"in {inside}" if inside else "", self.step, "; ".join(words)

    @property
    def same(self) -> tuple[object, ...]:
        """Equal for processes that said the same, whatever figures (a loss, a time) they told."""
        words = tuple(FIGURE.sub("#", text) for text in self.stands)
        return (*words, self.number, self.reached)


class Logs(Struct):
    """What all logs tell together.

    Attributes:
        processes: One a rank, its newest; then those that never said which rank they are.
        world_size: The largest that was said; 0 where none was.
        enqueued: By rank, number of the last operation that NCCL's watchdog knows of.
        waits_at: By rank, number and name of the operation that ended in a timeout.
        endings: What ended the job, each once, in the order of the logs.
        restarted: Ranks of which a later process speaks, too.
        nameless_error: The first exception that stands in a line of no known process.
    """

    processes: tuple[Process, ...] = ()
    world_size: int = 0
    enqueued: dict[int, int] = field(default_factory=dict)
    waits_at: dict[int, tuple[int, str]] = field(default_factory=dict)
    endings: dict[str, None] = field(default_factory=dict)
    restarted: tuple[int, ...] = ()
    nameless_error: str = ""


class _Clocks:
    """The clocks of all files on one scale: those without a date go on over midnight."""

    def __init__(self) -> None:
        self._newest: dict[int, float] = {}
        self._day_before: int | None = None

    def read(self, file: int, line: Line) -> float | None:
        """Seconds; within 12 hours of the file's line before, where a line has no date."""
        if line.clock_s is None:
            return None
        near = self._newest.get(file, next(iter(self._newest.values()), line.clock_s))
        days = round((near - line.clock_s) / DAY_S)
        if line.day is not None:
            if self._day_before is None:
                self._day_before = line.day - days
            days = line.day - self._day_before
        self._newest[file] = line.clock_s + days * DAY_S
        return self._newest[file]


def logs_of(files: Sequence[tuple[str, Iterable[str]]]) -> Logs:
    """Read all lines of all files.

    A process is known by its id within one file (two nodes may have processes of the same id), by
    its rank in all files, and else by its launcher's label, or by what its file is called.

    Args:
        files: The name of each, and its lines in the order written.
    """
    logs, clocks = Logs(), _Clocks()
    processes: list[Process] = []
    known: dict[tuple[int, str], Process] = {}
    ranks_of_files = _ranks_in_names([name for name, _ in files])
    for file, ((file_name, every_line), file_rank) in enumerate(
        zip(files, ranks_of_files, strict=True)
    ):
        lines = iter(every_line)
        head = list(islice(lines, LINES_OF_A_HEAD))
        if {line.rank for line in map(read_line, head)} - {None, file_rank}:
            file_rank = None  # lines of several ranks: one without a mark may be of any of them
        for position, raw in enumerate(chain(head, lines)):
            if "Rank " in raw:
                if timeout := WATCHDOG.search(raw):
                    logs.waits_at[int(timeout[1])] = (int(timeout[2]), timeout[3])
                if queue := ENQUEUED.search(raw):
                    logs.enqueued[int(queue[1])] = int(queue[2])
            if ending := ending_in(raw):
                logs.endings[ending] = None
            line = read_line(raw)
            logs.world_size = max(logs.world_size, line.world_size or 0)
            if not line.text or line.library:
                continue
            clock_s = clocks.read(file, line)
            rank = file_rank if line.rank is None else line.rank
            keys = [
                (where, what)
                for where, what, is_known in (
                    (file, f"process {line.pid}", line.pid is not None),
                    (-1, f"rank {rank}", rank is not None),
                    (file, f"{line.label} of {file_name}", line.label),
                )
                if is_known
            ]
            if not keys:
                if EXCEPTION.match(line.text) and not ASKED_TO_END.match(line.text):
                    logs.nameless_error = logs.nameless_error or line.text
                continue
            said = Said(line.text, file, position, clock_s, line.elapsed_s)
            of_keys = (known[key] for key in keys if key in known)
            process = next((one for one in of_keys if not one.is_other(rank, line.pid)), None)
            if process is None:
                if len(processes) >= MOST_PROCESSES:
                    continue
                process = Process(name=keys[-1][1], newest={file: said})
                processes.append(process)
            process.rank = process.rank if rank is None else rank
            process.pid = process.pid if line.pid is None else line.pid
            if len(files) == 1 and line.local_rank is not None:
                process.local_rank = line.local_rank
            known.update(dict.fromkeys(keys, process))
            process.hear(said, indented=line.indented)
    logs.processes, logs.restarted = _newest(processes)
    return logs


def _ranks_in_names(names: Sequence[str]) -> list[int | None]:
    """The rank that each file's name tells: by ``rank3``, or by the only number that differs."""
    parts = [NUMBERS.split(name) for name in names]  # words and numbers in turn
    ranks: list[int | None] = []
    for name, own in zip(names, parts, strict=True):
        alike = [other for other in parts if other[::2] == own[::2]]
        differing = {at for other in alike for at in range(1, len(own), 2) if other[at] != own[at]}
        said = RANK_IN_A_NAME.findall(name)
        if said:
            ranks.append(int(said[-1]))
        elif len(differing) == 1 and not NO_RANK.search(own[min(differing) - 1]):
            ranks.append(int(own[min(differing)]))
        else:
            ranks.append(None)
    return ranks


def _newest(processes: Sequence[Process]) -> tuple[tuple[Process, ...], tuple[int, ...]]:
    """One process a rank, in their order, and which of them were started again."""
    by_rank: dict[int, Process] = {}
    nameless: list[Process] = []
    again: set[int] = set()
    taken = {process.rank for process in processes}
    for process in processes:
        if process.rank is None and process.local_rank not in taken:
            process.rank = process.local_rank
        if process.rank is None:
            nameless.append(process)
            continue
        earlier = by_rank.setdefault(process.rank, process)
        if earlier is not process:
            again.add(process.rank)
            ended_s, began_s = earlier.last.clock_s, process.last.clock_s
            if ended_s is None or began_s is None or ended_s <= began_s:
                by_rank[process.rank] = process
    return (*(by_rank[rank] for rank in sorted(by_rank)), *nameless), tuple(sorted(again))


def log_report(files: Sequence[Path]) -> str:
    """Read logs and write what they tell, at most 40 lines.

    Args:
        files: Plain logs: what was written to a terminal, or SLURM's.

    Raises:
        UnreadableRun: One cannot be read, or in none is anything that tells of a rank.
    """
    try:
        logs, silent_for_s, cut = apart(TIME_LIMIT_S, partial(_read, tuple(files)))
    except NoAnswerFromStorage as error:
        raise UnreadableRun(
            f"the logs cannot be read: {error}", "copy them to a local disk"
        ) from error
    except OSError as error:
        raise UnreadableRun(
            f"{error.filename} cannot be read ({error.strerror})",
            "name files that you may read: hangcheck report --log FILE...",
        ) from error
    if logs == Logs(world_size=logs.world_size):
        raise UnreadableRun(
            "no line in these logs tells of a rank",
            "name the ranks' own logs, a file for each rank (train-rank0.log), or lines such as "
            "[rank 0] step 5 ... in one file",
        )
    rows = list(_rows(logs.processes))
    shown = aligned(rows[:MOST_ROWS], shrinking=(1,), tails=-1) if rows else []
    if len(rows) > MOST_ROWS:
        shown.append(f"{INDENT}... and {len(rows) - MOST_ROWS} more rows")
    ranks = {process.rank for process in logs.processes if process.rank is not None}
    ranks |= {*logs.enqueued, *logs.waits_at}
    of = f" of {logs.world_size}" if logs.world_size else ""
    nameless = sum(process.rank is None for process in logs.processes)
    more = f" and of {several(nameless, 'other')} without a rank" if nameless else ""
    lines = [
        f"logs of {len(ranks)}{of} ranks{more}, last written {duration(silent_for_s)} ago",
        "",
        *shown,
        *([""] if shown else []),
        *listed("means", map(plain, meanings(logs)), MOST_MEANINGS),
        *listed("do", WHAT_NOW, len(WHAT_NOW)),
        *listed(
            "not seen", [*cut[:2], "what the ranks do now: a log tells only what they said"], 4
        ),
    ]
    return "\n".join(lines) + "\n"


def _read(files: tuple[Path, ...]) -> tuple[Logs, float, list[str]]:
    """What they tell, seconds since the newest was written, and what was left out."""
    silent_for_s = max(0.0, time.time() - max(file.stat().st_mtime for file in files))
    most = MOST_BYTES // len(files)
    cut = [
        f"{file} is long: only its newest {bytes_in_words(most)} were read"
        for file in files
        if file.stat().st_size > most
    ]
    return logs_of([(str(file), _lines(file, most)) for file in files]), silent_for_s, cut


def _lines(file: Path, most: int) -> Iterator[str]:
    """The lines of its newest part; one without end is cut, and no byte is too strange."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            stream.seek(size - most)
            stream.readline(LONGEST_LINE)  # the rest of a line whose beginning is not read
        while line := stream.readline(LONGEST_LINE):
            yield line.decode(errors="replace").rstrip("\r\n")


def _rows(processes: Sequence[Process]) -> Iterator[tuple[str, str, str]]:
    """Ranks that said the same last share a row; those that have been silent longest come first."""
    groups: dict[tuple[object, ...], list[Process]] = {}
    moments, _ = _moments([process.last for process in processes])
    order = range(len(processes))
    for index in sorted(order, key=lambda index: moments[index]) if moments else order:
        groups.setdefault(processes[index].same, []).append(processes[index])
    for members in groups.values():
        yield (
            _names(members),
            "  ".join(filter(None, map(plain, members[0].stands))),
            _when([member.last for member in members]),
        )


def _when(said: Sequence[Said]) -> str:
    """``last line 10:24:31.007 (+2.1 s)``, or from when to when several wrote theirs."""

    def span(form: Callable[[float], str], values: Iterable[float | None]) -> str:
        known = sorted(value for value in values if value is not None)
        return " to ".join(dict.fromkeys(map(form, known[:1] + known[-1:])))

    clocks = span(_clock, (line.clock_s for line in said))
    elapsed = span("+{:.1f}".format, (line.elapsed_s for line in said))
    when = " ".join(filter(None, (clocks, f"({elapsed} s)" if elapsed else "")))
    place = span(str, (line.position + 1 for line in said))
    return f"last line{'s' if len(said) > 1 else ''} {when or f'number {place} of its file'}"


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(at_s % DAY_S, 60)
    return f"{int(minutes // 60):02}:{int(minutes % 60):02}:{seconds:06.3f}"


def meanings(logs: Logs) -> list[str]:
    """Say what the logs mean, what matters most first; a sentence or two each.

    Args:
        logs: Of at least one rank, or with a queue or a sentence.
    """
    ranks = [process for process in logs.processes if process.rank is not None]
    said = [
        *_raised(logs),
        *logs.endings,
        *_missing(ranks, logs.world_size),
        *_queues(logs),
        *_behind(ranks),
        *_in_sections(ranks),
        *_silent_first(logs.processes),
    ]
    if logs.restarted:
        said.append(
            f"{name_ranks(logs.restarted)} was started again: what its last process said is shown"
        )
    if not said and logs.processes:
        if all(process.finished for process in logs.processes):
            said.append("every rank that spoke said that its training is over")
        elif len(logs.processes) > 1:
            said.append("the ranks said the same, together: the logs do not tell who is behind")
        else:
            said.append("only one rank speaks in these logs: name those of the others, too")
    return said


def _raised(logs: Logs) -> Iterator[str]:
    failed = [process for process in logs.processes if process.raised]
    lines = [process.raised for process in failed if process.raised]
    moments, _ = _moments(lines)
    in_order = sorted(zip(moments, lines, failed, strict=False), key=lambda one: one[0])
    if len({line.file for line in lines}) == 1:  # of one moment: the line above
        in_order.sort(key=lambda one: (one[0], one[1].position))
    elif len(in_order) > 1 and in_order[0][0] == in_order[1][0]:
        in_order = []
    by_itself = [process for process in failed if not FOLLOWS.search(process.error)]
    if not failed:
        if logs.nameless_error:
            yield f"a rank that the log does not name raised {logs.nameless_error}"
    elif not by_itself:
        yield f"{_names(failed)} raised what mostly follows another rank's end: {failed[0].error}"
    elif in_order or len(by_itself) == 1:
        first = in_order[0][2] if in_order else by_itself[0]
        others = [process for process in failed if process is not first]
        later = f" ({_names(others)} raised later)" if others and in_order else ""
        yield (
            f"{_names([first])} raised {first.error}{later}: the others wait for it, or were ended "
            "because of it"
        )
    else:
        errors = "; ".join(f"{_names([process])} {process.error}" for process in by_itself[:4])
        yield f"{_names(by_itself)} raised, in an order that the logs do not tell: {errors}"


def _missing(ranks: Sequence[Process], world_size: int) -> Iterator[str]:
    missing = sorted(set(range(world_size)) - {process.rank for process in ranks})
    if missing and ranks:
        yield (
            f"{name_ranks(missing)} of {world_size} wrote no line: not started, its log is not "
            "among these files, or it was told to be quiet (above 16 ranks only rank 0 and ranks "
            "in trouble speak)"
        )


def _queues(logs: Logs) -> Iterator[str]:
    """Who called fewer collectives than the others, by NCCL's own watchdog."""
    called, waited = logs.enqueued, logs.waits_at
    if called and min(called.values()) < max(called.values()):
        least = min(called.values())
        behind = sorted(rank for rank, number in called.items() if number == least)
        yield (
            f"{name_ranks(behind)} called {least} collectives, others {max(called.values())}: "
            "what it does after them is what the others wait for"
        )
    elif waited:
        stands = [
            f"{name_ranks([rank for rank in sorted(waited) if waited[rank] == at])} in "
            f"{at[1]} number {at[0]}"
            for at in sorted(set(waited.values()))
        ]
        silent = sorted(set(range(logs.world_size)) - {*called, *waited})
        who = f"; {name_ranks(silent)} reported none, and may not have come" if silent else ""
        yield f"NCCL gave up waiting: {', '.join(stands[:4])}{who}"


def _behind(ranks: Sequence[Process]) -> Iterator[str]:
    """Who passed fewer checkpoints, else who came to an earlier step."""
    came: list[tuple[int, ...]] = [(process.number or 0,) for process in ranks]
    at = [process.stands[0] or "no checkpoint" for process in ranks]
    if len(set(came)) < 2:
        same_kind = len({FIGURE.sub("#", process.step) for process in ranks}) == 1
        came = [process.reached if same_kind else (process.steps,) for process in ranks]
        at = [repr(process.step) if process.step else "no step" for process in ranks]
    if len(set(came)) < 2:
        return
    ahead, behind = (
        [index for index, reached in enumerate(came) if reached == end(came)] for end in (max, min)
    )
    names = _names([ranks[index] for index in behind])
    inside = _common_section([ranks[index] for index in behind])
    doing = f" and began {inside}" if inside and not _common_section(ranks) else ""
    advice = (
        f"{names} did not come so far, or only some ranks tell of it"
        if at[behind[0]] == "no step"
        else f"look first at what {names} does after it"
    )
    yield (
        f"{_names([ranks[index] for index in ahead])} came to {at[ahead[0]]}, {names} to "
        f"{at[behind[0]]}{doing}: {advice}"
    )


def _in_sections(ranks: Sequence[Process]) -> Iterator[str]:
    """All passed the same checkpoint: who is in a section in which others are not?"""
    inside = [process for process in ranks if process.sections]
    numbers = {process.number for process in ranks}
    if not inside or len(numbers) > 1 or all(process.finished for process in ranks):
        return
    common = _common_section(ranks)
    if common:
        known = ALL_IN_ONE.get(phase_of_name(common) or "startup")
        yield known or f"all ranks began {common}, and none came back from it"
        return
    outside = [process for process in ranks if not process.sections]
    for name in dict.fromkeys(process.sections[-1] for process in inside):
        members = [process for process in inside if process.sections[-1] == name]
        rest = f"; {_names(outside)} said nothing of it" if outside else ""
        yield f"{_names(members)} began {name} and did not come back from it{rest}"


def _silent_first(processes: Sequence[Process]) -> Iterator[str]:
    """Where the last lines lie apart: who stopped first, or who came last to the same line."""
    moments, unit = _moments([process.last for process in processes])
    if len(moments) < 2 or all(process.finished for process in processes):
        return
    order = sorted(range(len(moments)), key=lambda index: moments[index])
    gaps = [moments[later] - moments[earlier] for earlier, later in pairwise(order)]
    widest = gaps.index(max(gaps))
    if gaps[widest] < (A_GAP_S if unit == "s" else len(processes) * LINES_APART):
        return
    early = [processes[index] for index in sorted(order[: widest + 1])]
    late = [processes[index] for index in sorted(order[widest + 1 :])]
    gap = seconds_in_words(gaps[widest]) if unit == "s" else f"{gaps[widest]:.0f} lines"
    if len({process.same for process in processes}) == 1:
        yield (
            f"all said the same last, {_names(late)} {gap} after {_names(early)}: look first at "
            f"what {_names(late)} did before it"
        )
    elif len(early) <= len(late):
        yield (
            f"{_names(early)} fell silent first, {gap} before the others; its last line: "
            f"{early[0].last.text!r}"
        )
    else:
        yield (
            f"{_names(late)} fell silent last, {gap} after the others; its last line: "
            f"{late[0].last.text!r}"
        )


def _moments(lines: Sequence[Said]) -> tuple[list[float], str]:
    """When lines came, on one scale, and its unit; empty where they do not tell.

    By their clocks, by the time since each process began, or by their numbers in one file.
    """
    clocks = [line.clock_s for line in lines if line.clock_s is not None]
    if len(clocks) == len(lines):
        return clocks, "s"
    elapsed = [line.elapsed_s for line in lines if line.elapsed_s is not None]
    if len(elapsed) == len(lines):
        return elapsed, "s"
    in_one_file = len({line.file for line in lines}) == 1
    return ([line.position for line in lines] if in_one_file else []), "lines"


def _common_section(processes: Sequence[Process]) -> str:
    """The section in which all of them are, innermost; empty where there is none."""
    inside = {process.sections[-1] if process.sections else "" for process in processes}
    return inside.pop() if len(inside) == 1 else ""


def _names(processes: Sequence[Process]) -> str:
    ranks = [process.rank for process in processes if process.rank is not None]
    others = [process.name for process in processes if process.rank is None]
    more = [*others[:2], *([f"{len(others) - 2} more"] if len(others) > 2 else [])]
    return " and ".join([*([name_ranks(ranks)] if ranks else []), *more])
