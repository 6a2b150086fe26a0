"""Where each rank was last, by its own lines; built up line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from lightning_hangcheck.report.plain_logs.lines import (
    ConsoleLine,
    Queue,
    checkpoint_in,
    console_line,
    queue_in,
    section_in,
    sentence_in,
    step_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

TRAINING_FINISHED = 12
"""The last of the contract's checkpoints."""
MOST_PROCESSES = 200_000
"""Beyond it further processes are left out, so that a hostile log fills no memory."""


class RankEnd(Struct, kw_only=True):
    """What one process said last.

    Attributes:
        rank: None where it never said.
        number, name: Of the last checkpoint; None and empty before the first.
        sections: Names of those that began and have not ended, outermost first.
        steps, step: How many it told, and its newest one; empty before the first.
        raised: What left a section last, empty where nothing did.
        last: Its newest line.
        order: Of its first line in the logs; a restarted rank has a later one.
    """

    pid: int
    order: int
    last: ConsoleLine
    rank: int | None = None
    number: int | None = None
    name: str = ""
    sections: list[str] = field(default_factory=list)
    steps: int = 0
    step: str = ""
    raised: str = ""

    @property
    def finished(self) -> bool:
        """Whether it said that its training is over."""
        return self.number == TRAINING_FINISHED and not self.sections


class Ends(Struct, frozen=True):
    """What all logs tell together.

    Attributes:
        ranks: One a rank, its newest process; then those that never said which rank they are.
        world_size: The largest that was said; None where none was.
        queues: By rank, how far NCCL's queue came.
        sentences: What ended the job, each once, in the order of the logs.
        restarted: Ranks of which a later process speaks, too.
    """

    ranks: tuple[RankEnd, ...]
    world_size: int | None
    queues: dict[int, Queue]
    sentences: tuple[str, ...]
    restarted: tuple[int, ...]


def ends_of(files: Iterable[Iterable[str]]) -> Ends:
    """Read all lines of all files.

    Args:
        files: Lines of each, in the order written. A process is known by file and id: two nodes
            may have processes of the same id, where each has a log of its own.
    """
    processes: dict[tuple[int, int], RankEnd] = {}
    world_sizes: set[int] = set()
    queues: dict[int, Queue] = {}
    sentences: dict[str, None] = {}
    for file, lines in enumerate(files):
        for line in lines:
            said = console_line(line)
            if said is not None:
                world_sizes |= {said.world_size} if said.world_size else set()
                _take(processes, (file, said.pid), said)
                continue
            queue = queue_in(line)
            if queue is not None:
                queues[queue[0]] = _joined(queues.get(queue[0], Queue()), queue[1])
            elif meaning := sentence_in(line):
                sentences[meaning] = None
    newest, restarted = _newest(processes.values())
    return Ends(newest, max(world_sizes, default=None), queues, tuple(sentences), restarted)


def _take(
    processes: dict[tuple[int, int], RankEnd], key: tuple[int, int], said: ConsoleLine
) -> None:
    known = processes.get(key)
    if known is None:
        if len(processes) >= MOST_PROCESSES:
            return
        known = processes[key] = RankEnd(pid=said.pid, order=len(processes), last=said)
    known.last = said
    known.rank = said.rank if said.rank is not None else known.rank
    passed = checkpoint_in(said.text)
    if passed is not None:
        known.number, known.name = passed
    step = step_in(said.text)
    if step:
        known.steps, known.step = known.steps + 1, step
    section = section_in(said.text)
    if section is None:
        return
    what, name, error = section
    if what == "begun":
        known.sections.append(name)
        return
    known.raised = error or known.raised
    if name in known.sections:
        known.sections.reverse()
        known.sections.remove(name)  # the innermost of that name
        known.sections.reverse()


def _newest(ends: Iterable[RankEnd]) -> tuple[tuple[RankEnd, ...], tuple[int, ...]]:
    """One end a rank, in their order, and which of them were started again."""
    by_rank: dict[int, RankEnd] = {}
    nameless: list[RankEnd] = []
    again: set[int] = set()
    for end in ends:
        if end.rank is None:
            nameless.append(end)
            continue
        earlier = by_rank.get(end.rank)
        if earlier is not None:
            again.add(end.rank)
        if earlier is None or end.order > earlier.order:
            by_rank[end.rank] = end
    return (*(by_rank[rank] for rank in sorted(by_rank)), *nameless), tuple(sorted(again))


def _joined(known: Queue, told: Queue) -> Queue:
    """What two of the watchdog's lines tell of one rank."""
    return replace(
        known,
        enqueued=told.enqueued if told.enqueued is not None else known.enqueued,
        waits_at=told.waits_at if told.waits_at is not None else known.waits_at,
        operation=told.operation or known.operation,
    )
