"""Facts of all logs of one job, put in order: whose each is, and where each rank is in its groups.

Time-outs of torch before 2.4, and their first line ever since, name no group; it is found by what
the same rank says of the same number. Where nothing tells it, the time-out is of no group at all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.log_facts import LogFact
from lightning_hangcheck.model.slugs import Cause, VerdictKind
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.log_facts import LogReading, Trail

Certainty = Literal["", "proven", "majority", "guess"]
MOST_QUOTED = 12
SAME_SIZES = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
"""Operations to which every rank has to bring equally much."""


def known(ranks: Iterable[int | None]) -> tuple[int, ...]:
    """Return the ranks that are known, ascending, each once."""
    return tuple(sorted({one for one in ranks if one is not None}))


class GroupState(Struct, kw_only=True):
    """Where a rank is in a group: ``seq`` is the number of its oldest open operation."""

    number: int
    rank: int | None
    seq: int | None = None
    op: str = ""
    sizes: tuple[int, ...] = ()
    enqueued: int | None = None
    completed: int | None = None
    facts: list[LogFact]

    @property
    def content(self) -> str:
        """Operation, and how much where all have to bring the same."""
        sized = self.op in SAME_SIZES and self.sizes
        return f"{self.op} [{', '.join(map(str, self.sizes))}]" if sized else self.op


class LogBook:
    """All facts of one job, ranks and groups settled as far as they can be."""

    def __init__(self, readings: Sequence[LogReading]) -> None:
        facts = [_of_default(fact) for reading in readings for fact in reading.facts]
        self.by_kind: dict[str, list[LogFact]] = defaultdict(list)
        for fact in _with_groups(facts):
            self.by_kind[fact.kind].append(fact)
        self.readings = readings
        self.waiting = set(known(one.rank for one in self.of("timeout", "status")))
        self.heard = {rank for one in readings for rank in one.ranks} | self.waiting
        self.other_groups = {one.group for one in self.of("timeout", "status")} - {"", "default"}
        self.words = _newest(word for reading in readings for word in reading.last_words)
        self.trails = _newest_trails(trail for reading in readings for trail in reading.trails)
        self.clocks_agree = not any(one.clock_went_back for one in readings) and not self._slept()
        self.groups = self._groups()
        self.world = self._world()

    def of(self, *kinds: str) -> list[LogFact]:
        """Facts of these kinds, in the order of their files and lines."""
        return [fact for kind in kinds for fact in self.by_kind.get(kind, ())]

    def _slept(self) -> bool:
        return any(overslept(one) for one in self.of("timeout"))

    def _groups(self) -> dict[str, dict[int, GroupState]]:
        found: dict[str, dict[int, GroupState]] = defaultdict(dict)
        mixed = set()
        for fact in self.of("timeout", "status", "dump_signal"):
            number = fact.group_rank if fact.group_rank is not None else fact.rank
            if number is None or fact.group == "?":
                continue
            rank = number if fact.group == "default" else fact.rank
            state = found[fact.group].setdefault(
                number, GroupState(number=number, rank=rank, facts=[])
            )
            if None not in (rank, state.rank) and rank != state.rank:
                mixed.add(fact.group)  # the same number on two ranks: several groups of one name
            state.rank = state.rank if rank is None else rank
            state.facts.append(fact)
            if fact.kind == "timeout" and (state.seq is None or (fact.seq or 0) <= state.seq):
                state.seq, state.op, state.sizes = fact.seq, fact.op, fact.sizes
            elif fact.seq is not None and state.seq is None:
                state.seq = fact.seq
            if fact.enqueued is not None and fact.completed is not None:
                state.enqueued, state.completed = fact.enqueued, fact.completed
                if state.seq is None and fact.enqueued > fact.completed:
                    state.seq = fact.completed + 1  # the oldest that has not ended
        return {name: group for name, group in found.items() if name not in mixed}

    def _world(self) -> int:
        told = [one.world_size for one in self.readings]
        told += [one.count or 0 for one in self.of("communicator", "ras_equal", "rendezvous")]
        for one in self.groups.get("default", {}).values():
            if one.op == "_ALLGATHER_BASE" and len(one.sizes) == 2 and one.sizes[0]:
                told.append(one.sizes[1] // one.sizes[0])
        return max(told, default=0)

    def unseen(self, ranks: Iterable[int]) -> list[int]:
        """Ranks of the job of which nothing is known, beside these."""
        return sorted(set(range(min(self.world, 1024))) - set(ranks))

    def before_timeouts(self, fact: LogFact) -> bool | None:
        """Whether something was before the first time-out ended; None where nothing tells."""
        timeouts = self.of("timeout", "status", "heartbeat", "dump_signal")
        if not timeouts:
            return True
        same = [one for one in timeouts if one.file == fact.file]
        if same:
            return fact.line < min(one.line for one in same)
        times = [one.when for one in timeouts if len(one.when) == len(fact.when) and one.when]
        return fact.when < min(times) if times and fact.when and self.clocks_agree else None


def overslept(fact: LogFact) -> bool:
    """Whether a time-out came so late that its process, or the machine, must have stood still."""
    return bool(fact.ran_ms and fact.limit_ms and fact.ran_ms > 1.5 * fact.limit_ms + 60_000)


def _of_default(fact: LogFact) -> LogFact:
    """In the default group a rank's number is its global rank."""
    known = fact.group == "default" and fact.group_rank is not None and fact.kind != "store"
    return replace(fact, rank=fact.group_rank) if known else fact


def _with_groups(facts: Sequence[LogFact]) -> list[LogFact]:
    """Give time-outs that name no group the one that the same rank names for the same number.

    Those that are left are of the default group where no line speaks of another, and every number
    is one rank's; else of a group that is not known, ``?``.
    """

    def key(one: LogFact) -> tuple[object, ...]:
        return one.file, one.group_rank if one.rank is None else f"rank {one.rank}", one.seq

    named = {key(one): one for one in facts if one.group and one.seq is not None}
    found = []
    for one in facts:
        told = named.get(key(one)) if one.kind == "timeout" and not one.group else None
        of = {"group": told.group, "group_rank": told.group_rank} if told is not None else {}
        found.append(replace(one, **of))
    bare = [one for one in found if one.kind == "timeout" and not one.group]
    owners: dict[int | None, set[tuple[object, ...]]] = defaultdict(set)
    for one in bare:
        owners[one.group_rank].add((one.rank, one.seq, one.op, one.sizes))
    plain = all(one.rank in (None, one.group_rank) for one in bare)
    plain &= all(len(one) == 1 for one in owners.values())
    plain &= not any(one.group not in ("", "default") for one in found if one.kind != "store")
    name = "default" if plain else "?"
    return [
        _of_default(replace(one, group=name)) if one.kind == "timeout" and not one.group else one
        for one in found
    ]


def _newest_trails(trails: Iterable[Trail]) -> dict[int, Trail]:
    """How far each rank came; of several files that which was written last."""
    found: dict[int, Trail] = {}
    for one in sorted(trails, key=lambda trail: (trail.rank, trail.when)):
        found[one.rank] = one
    return found


def _newest(words: Iterable[LogFact]) -> dict[int, LogFact]:
    """The last word of each rank; a file of its own tells more than what all wrote to one."""
    found: dict[int, LogFact] = {}
    for word in words:
        if word.rank is None:
            continue
        known = found.get(word.rank)
        if known is None or (
            word.when and len(word.when) == len(known.when) and word.when > known.when
        ):
            found[word.rank] = word
    return found


# What logs say, in the form that all rules give it.


class LogFinding(Struct, frozen=True, kw_only=True):
    """What logs say of a job that is gone.

    Attributes:
        verdict: None where the logs show nothing wrong, and no end.
        cause: None where it cannot be told.
        culprits: Global ranks; empty where it cannot be told who it was.
        certainty: Of ``culprits``: ``proven``, or ``majority`` where most ranks did otherwise.
        guessed: Ranks for which little speaks; no culprits.
        victims: Ranks that waited for others.
        world_size: 0 where nothing tells.
        summary: At most two sentences.
        evidence: ``FILE:LINE`` and the line.
        gaps: What is missing, and how it is kept the next time.
        collectives: Where ranks differ or wait: group, number, and ranks of each operation.
        waits_in: Where the victims waited.
        aspect: Which remedies of the cause help, where another than the usual one.
    """

    verdict: VerdictKind | None = None
    cause: Cause | None = None
    culprits: tuple[int, ...] = ()
    certainty: Certainty = ""
    guessed: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    world_size: int = 0
    summary: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    gaps: tuple[Gap, ...] = ()
    collectives: tuple[tuple[str, int, dict[str, str]], ...] = ()
    waits_in: str = "in a collective"
    aspect: str = ""


def of_group(group: str) -> str:
    """Write the group behind an operation; the default one needs no word."""
    return "" if group == "default" else f" of group {group}"


def name_members(states: Iterable[GroupState]) -> str:
    """Name ranks globally where all are known so, else by their numbers in the group."""
    states = list(states)
    if all(one.rank is not None for one in states):
        return name_ranks(known(one.rank for one in states))
    return f"members {format_ranks(one.number for one in states)}"


def said_by(book: LogBook, ranks: Iterable[int | None]) -> list[LogFact]:
    """Return the last words of ranks, as far as kept."""
    return [book.words[one] for one in ranks if one is not None and one in book.words]


def quoted(facts: Iterable[LogFact]) -> tuple[tuple[str, str], ...]:
    """Return lines with their places, each once, without secrets."""
    told = dict.fromkeys((f"{one.file}:{one.line}", redact_text(one.text)) for one in facts)
    return tuple(told)[:MOST_QUOTED]


def missing(book: LogBook, seen: Iterable[int]) -> tuple[Gap, ...]:
    """What was not kept, and the setting that keeps it the next time."""
    gaps = []
    unseen = book.unseen(seen)
    if unseen:
        why = "no line of theirs is in these logs, so they are unknown, neither guilty nor innocent"
        what = f"log lines of {name_ranks(unseen)}"
        remedy = "keep a log of every rank: torchrun --log-dir DIR --redirects 3, or srun --output"
        gaps.append(Gap(what, unseen[0] if len(unseen) == 1 else None, why, "rank", remedy))
    if book.of("timeout", "status", "heartbeat", "ras_count", "ras_equal"):
        why = "logs do not say which operations each rank had entered, nor from which line"
        remedy = (
            "set TORCH_FR_BUFFER_SIZE=20000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, with a dump path on"
            " shared storage, or start the job with hangcheck run"
        )
        gaps.append(Gap("flight records of the ranks", None, why, "flight_record", remedy))
    if not book.clocks_agree:
        why = "times in these logs jump, so their order in time proves nothing"
        gaps.append(Gap("times that agree", None, why, "time", "keep clocks in step with NTP"))
    return tuple(gaps)


def finding(
    book: LogBook,
    verdict: VerdictKind,
    cause: Cause,
    summary: str,
    facts: Iterable[LogFact],
    who: Iterable[int] = (),
    certainty: Certainty = "proven",
    *,
    guessed: Iterable[int] = (),
    victims: Iterable[int] | None = None,
    collectives: tuple[tuple[str, int, dict[str, str]], ...] = (),
) -> LogFinding:
    """Fill in what all findings have in common.

    ``victims`` are by default the ranks that reported a time-out; without anybody in ``who``
    nothing is certain.
    """
    culprits = tuple(sorted(set(who)))
    waiting = (book.waiting if victims is None else set(victims)) - set(culprits)
    return LogFinding(
        verdict=verdict,
        cause=cause,
        culprits=culprits,
        certainty=certainty if culprits else "",
        guessed=tuple(sorted(set(guessed))),
        victims=tuple(sorted(waiting)),
        world_size=book.world,
        summary=summary[:1].upper() + summary[1:],
        evidence=quoted(facts),
        gaps=missing(book, waiting | set(culprits) | book.heard),
        collectives=collectives,
    )
