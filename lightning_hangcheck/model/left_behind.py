"""What is left of a job that is gone: its files, and what its logs say.

A rank has two numbers in torch's messages. ``[rank3]`` is its global rank; ``[Rank 3]`` and
``[PG ... Rank 3]`` are its number within one process group. A fact keeps both apart;
`judge.postmortem_facts` decides if one may stand for the other.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.model.slugs import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FactKind = Literal[
    "timeout",  # torch's watchdog: a collective took longer than its time limit
    "status",  # numbers that the watchdog reports with it
    "dump_signal",  # numbers of a rank, reported because another rank timed out
    "call",  # where the operation that timed out was called
    "heartbeat",  # torch's watchdog thread itself was stuck
    "gil",  # the interpreter lock was not free while the process ended
    "fatal",  # native code of torch ended its process by a fatal line
    "desync",  # torch's report of which ranks are behind
    "fingerprint",  # TORCH_DISTRIBUTED_DEBUG=DETAIL: a rank's collective differs from another's
    "sizes",  # gloo: a message of another size than expected
    "barrier_echo",  # a rank reached a monitored barrier and lost rank 0 in it
    "barrier",  # ranks that did not reach a monitored barrier
    "store",  # a rank waits for another rank's NCCL id
    "rendezvous",  # fewer processes came than were announced
    "unreachable",  # the rendezvous, or a peer while connecting, did not answer
    "gave_up",  # gloo: no data came from another rank within the time limit
    "peer_lost",  # a connection broke, or no answer came: another rank may have ended
    "network",  # NCCL's warnings of the network
    "mismatch_warning",  # NCCL saw other calls on other ranks
    "ras_count",  # NCCL's RAS: so many ranks of a communicator launched so many operations
    "ras_equal",  # RAS: all ranks of a communicator are there and launched equally many
    "ras_missing",  # RAS: ranks without an answer
    "ras_dead",  # RAS: processes that cannot be reached
    "xid",  # the NVIDIA driver's report of a GPU fault
    "exit",  # a launcher's report of how a rank's process ended
    "task",  # srun: how a task ended
    "kill",  # the kernel or SLURM ended a process for lack of memory
    "cancelled",  # somebody, a time limit or a lost node ended the job
    "exception",  # a Python traceback: its last line
    "memory",  # CUDA out of memory
    "own_error",  # of a rank's own resources: its GPU, its DataLoader workers
    "communicator",  # NCCL INFO: rank, size and process of a communicator
    "process",  # a launcher: which process is which rank, and the world size
    "node_lost",  # a node that the scheduler or the launcher lost
    "summary",  # torchrun's report of all ranks of its node, as it ends
    "restart",  # a launcher starts the ranks again: what follows is another round
    "saving",
    "bar",  # a progress bar: how much is done, the total, and the time it has run
    "finished",
    "last",  # the last line of a rank; the rank is None if the log's writer is unknown
]


class LogFact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that a line of a log says.

    Attributes:
        text: The line, without the launcher's prefix, at most 300 characters.
        line: Its number in the file, from 1.
        rank: Global rank of the writer; None if unknown.
        group_rank: Its number within ``group``; of an exit or a process, its local rank.
        group: Name of a process group, equal on all ranks: ``default``, ``guid 9``; empty if not
            named. A group that is only numbered, such as ``PG 5`` of torch 2.2 and 2.3, has that
            number on one rank only.
        seq: Number of the operation; of a bar, how much is done; of a rendezvous, how many came; of
            an exit, the process of the launcher that reports it at once.
        op: Operation, as torch or NCCL names it.
        sizes: Elements in and out, or the shape.
        enqueued: Number of the last operation that the rank had entered and returned from; of a
            desync report, the operation that its ranks have not ended.
        completed: Number of the last operation that its GPU ended.
        limit_ms: Time limit of the operation.
        ran_ms: How long the operation ran; of a bar, how long the bar has existed.
        ranks: Ranks that the line is about: global ranks, or numbers within ``group``.
        count: Number of ranks, or the total.
        code: Exit code as in Python's subprocess, also for a signal; or the number of an Xid.
        error: What went wrong, in its own words.
        place: The user's line that called an operation or raised an exception.
        phase: What the calls of a traceback were about; empty if they do not show it.
        when: ``MM-DD HH:MM:SS.mmm``, or without the date if the line has none.
    """

    kind: FactKind = "last"
    text: str
    file: str
    line: int
    rank: int | None = None
    group_rank: int | None = None
    group: str = ""
    seq: int | None = None
    op: str = ""
    sizes: tuple[int, ...] = ()
    enqueued: int | None = None
    completed: int | None = None
    limit_ms: int | None = None
    ran_ms: int | None = None
    ranks: tuple[int, ...] = ()
    count: int | None = None
    code: int | None = None
    pid: int | None = None
    host: str = ""
    error: str = ""
    place: str = ""
    phase: Phase | Literal[""] = ""
    when: str = ""


class Section(Struct, frozen=True, gc=False):
    """A call that a rank announced: its number among calls of that name, and the line."""

    name: str
    times: int
    line: int


class Trail(Struct, kw_only=True, omit_defaults=True):
    """How far a rank came, by hangcheck's own console lines of the rank's newest process.

    Attributes:
        rank: -1 until the process has reported its rank.
        when: Of its newest line.
        checkpoint: Number of the last one; 0 before the first. ``passed`` is its text.
        step: Number in the newest line about a step; None if there was none.
        inside: Calls that began and have not returned, outermost first.
        returned: Calls that returned, the newest of each name, with how often.
        raised: The first exception after which it has not continued.
    """

    rank: int
    when: str = ""
    pid: int | None = None
    checkpoint: int = 0
    passed: str = ""
    step: int | None = None
    inside: list[Section] = []
    returned: list[Section] = []
    raised: LogFact | None = None


class LogReading(Struct, frozen=True, kw_only=True):
    """One log after reading.

    Attributes:
        facts: In the order of lines; only of the job's last round.
        ranks: Ranks that lines name as their writers.
        world_size: World size; 0 if no line says it.
        clock_went_back: Its times do not ascend, so they prove no order.
    """

    file: str
    facts: tuple[LogFact, ...] = ()
    last_words: tuple[LogFact, ...] = ()
    trails: tuple[Trail, ...] = ()
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    clock_went_back: bool = False


DAY_S = 86_400
YEAR_S = 12 * 31 * DAY_S  # every month counts 31 days


def elapsed(since: str, when: str) -> float:
    """Return the seconds between two moments, the shorter way over midnight or New Year."""

    def seconds(moment: str) -> float:
        date, _, time = moment.rpartition(" ")
        hours, minutes, rest = time.split(":")
        days = int(date[:2]) * 31 + int(date[3:]) if turn == YEAR_S else 0
        return days * DAY_S + int(hours) * 3600 + int(minutes) * 60 + float(rest)

    turn = YEAR_S if " " in since and " " in when else DAY_S
    return (seconds(when) - seconds(since) + turn / 2) % turn - turn / 2


def comparable(moment: str, other: str) -> bool:
    """Whether two moments are known, with or without a date both."""
    return bool(moment and other) and (" " in moment) == (" " in other)


def precedes(moment: str, other: str, by_s: float = 0.0) -> bool:
    """Whether a moment is certainly before another, by more than so many seconds."""
    cut = ("." in moment) != ("." in other)  # the fraction of one
    return comparable(moment, other) and elapsed(moment, other) > by_s + cut


def order_of(moments: Iterable[str]) -> Callable[[str], float]:
    """Return the sort key of moments that are near each other; unknown ones come first."""
    first = next(filter(None, moments), "")
    return lambda when: elapsed(first, when) if when else -inf


# The files.


class ReadFile(Struct, frozen=True):
    """A file, and what its content was recognised as.

    Attributes:
        kind: For example ``flight record``.
        ranks: Ranks that it is about; empty if unknown.
    """

    path: str
    kind: str
    ranks: tuple[int, ...] = ()


class LeftOut(Struct, frozen=True):
    """A file that was not used, and why."""

    path: str
    why: str


class LeftBehind(Struct, frozen=True, kw_only=True):
    """What was left of a job that is gone.

    Attributes:
        read: Files that were used.
        left_out: Files that were not.
        logs: What its logs say.
    """

    read: tuple[ReadFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    logs: tuple[LogReading, ...] = ()
