"""One line of a log: the console line of a rank, or a known sentence of what ran the ranks.

Launchers and terminals write around what a rank says (``srun --label``, ``torchrun --tee``,
colours), so a line is searched and not matched from its beginning.
"""

from __future__ import annotations

import re

from msgspec import Struct

_CONSOLE = re.compile(
    r"\[(?P<clock>\d\d:\d\d:\d\d\.\d{3})\]\[\+(?P<elapsed>\d+\.\d{3})s\]"
    r"\[R(?P<rank>\d{1,7}|\?)/(?P<world>\d{1,7}|\?)\]\[LR(?:\d{1,7}|\?)\]\[PID:(?P<pid>\d{1,10})\] "
    r"(?P<text>.*)"
)
_CHECKPOINT = re.compile(r"CHECKPOINT (\d{1,9}): (.*)")
_BEGUN = re.compile(r"About to call (.*)\.\.\.$")
_RETURNED = re.compile(r"(.*) returned \(\d+\.\d{3}s\)$")
_RAISED = re.compile(r"(.*?) raised (.*) \(\d+\.\d{3}s\)$")
_STEP = re.compile(r"step \d{1,9}: .*")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# https://github.com/pytorch/pytorch/blob/v2.9.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
)
_ENQUEUED = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_ENQUEUED_BY = re.compile(r"\[(?:PG .*?)?Rank (\d{1,7})\]")

SENTENCES = (
    (re.compile(r"DUE TO TIME LIMIT"), "SLURM ended the job at its time limit"),
    (re.compile(r"DUE TO PREEMPTION"), "SLURM preempted the job"),
    (
        re.compile(r"oom[-_]kill|OUT_OF_MEMORY|Out Of Memory", re.IGNORECASE),
        "the kernel killed a process for memory",
    ),
    (re.compile(r"CUDA out of memory"), "a GPU ran out of memory"),
    (
        re.compile(r"Timed out waiting \d+ms for (?:recv|send) operation"),
        "gloo gave up waiting for another rank",
    ),
    (re.compile(r"\(SIGKILL\)|exitcode: -9\b"), "a rank was killed by SIGKILL"),
)
"""What SLURM, the kernel, torch and torchrun write when they end a job, and what it means."""


class ConsoleLine(Struct, frozen=True, kw_only=True):
    """A line of section 1 of the contract.

    Attributes:
        rank: None where the line has ``R?``.
        world_size: None where it has ``/?``.
        clock: Local wall clock, ``10:23:45.123``.
        elapsed_s: Seconds since the process started.
        text: What happened.
    """

    rank: int | None
    world_size: int | None
    pid: int
    clock: str
    elapsed_s: float
    text: str


class Queue(Struct, frozen=True):
    """How far a rank's NCCL queue came, by its own watchdog.

    Attributes:
        enqueued: Number of the last operation that the rank called; None where not told.
        waits_at: Number of the operation that ended in a timeout; None where not told.
        operation: Its name, ``ALLREDUCE``; empty where not told.
    """

    enqueued: int | None = None
    waits_at: int | None = None
    operation: str = ""


def console_line(line: str) -> ConsoleLine | None:
    """Read a rank's console line; None where there is none in it."""
    found = _CONSOLE.search(_COLOURS.sub("", line))
    if found is None:
        return None
    return ConsoleLine(
        rank=_number(found["rank"]),
        world_size=_number(found["world"]),
        pid=int(found["pid"]),
        clock=found["clock"],
        elapsed_s=float(found["elapsed"]),
        text=found["text"].rstrip(),
    )


def checkpoint_in(text: str) -> tuple[int, str] | None:
    """Number and name, where the text says that a checkpoint was passed."""
    found = _CHECKPOINT.match(text)
    return (int(found[1]), found[2]) if found else None


def section_in(text: str) -> tuple[str, str, str] | None:
    """What became of a section: ``begun``, ``returned`` or ``raised``, its name, and the error."""
    for what, pattern in (("begun", _BEGUN), ("returned", _RETURNED), ("raised", _RAISED)):
        found = pattern.match(text)
        if found:
            return what, found[1], found[2] if what == "raised" else ""
    return None


def step_in(text: str) -> str:
    """The whole text, where it tells a step that ended (``hc.step``); empty for any other."""
    return text if _STEP.fullmatch(text) else ""


def queue_in(line: str) -> tuple[int, Queue] | None:
    """The rank and how far its queue came, where the line is one of NCCL's watchdog."""
    timeout = _WATCHDOG.search(line)
    if timeout:
        return int(timeout[1]), Queue(waits_at=int(timeout[2]), operation=timeout[3])
    enqueued, by = _ENQUEUED.search(line), _ENQUEUED_BY.search(line)
    if enqueued and by:
        return int(by[1]), Queue(enqueued=int(enqueued[1]))
    return None


def sentence_in(line: str) -> str:
    """What a line of SLURM, the kernel, torch or the launcher means; empty for any other."""
    return next((meaning for pattern, meaning in SENTENCES if pattern.search(line)), "")


def _number(text: str) -> int | None:
    return None if text == "?" else int(text)
