"""Judges the logs of a job that is gone: what they prove, who it was where they tell, and no more.

Rules are tried in the order of `RULES`; the first that has what it needs answers. They keep apart
what is easily mixed up:

- Who reports a time-out first is not at fault, and neither is who reports none: unknown is unknown.
- torchrun's "root cause" is the first process to end. Exit code 1 says nothing, -9 and -11 do;
  SIGABRT, SIGSEGV, broken pipes and heartbeat kills after a time-out come of it.
- ``[Rank 3]`` is a number within a group. Numbers of different groups are not compared.
- Who has entered fewer operations is not behind as long as all are in the one that does not end.
- A rank whose last operation is N-1 may be inside the call of N: torch counts it only afterwards.
- Where most ranks lack an operation, the few that have it may be those that left the common path.
- Lengths may differ from rank to rank in all_to_all, coalesced and uneven operations.
- NCCL's RAS lists the smaller set of ranks, which need not be the guilty one.
- A barrier with a progress bar that moves meanwhile is slow; where a clock jumped, no time counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.log_facts import LogFact
from lightning_hangcheck.model.naming.slugs import Cause, VerdictKind
from lightning_hangcheck.text.rank_ranges import format_ranks
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lightning_hangcheck.model.log_facts import LastWord, LogReading

Certainty = Literal["", "proven", "majority", "guess"]
SAME_SIZES = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
"""Operations to which every rank has to bring equally much."""
NEEDS_ALL = SAME_SIZES - {"BROADCAST", "REDUCE"} | {"ALLGATHER", "REDUCE_SCATTER", "BARRIER"}
"""Operations that end on no rank before all have entered them."""
CONSEQUENCES = (
    "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "ChildFailedError",
    "SignalException", "KeyboardInterrupt", "SystemExit", "BrokenPipeError", "EOFError",
    "ConnectionResetError", "ConnectionRefusedError", "ConnectionError", "CalledProcessError",
    "ProcessExitedException", "ProcessRaisedException", "ActorDiedError", "RayTaskError",
    "RendezvousConnectionError", "RendezvousTimeoutError", "RendezvousClosedError",
)  # fmt: skip
"""Exceptions of a rank that lost another, or was ended with it."""
ECHOES = (
    "NCCL", "Broken pipe", "Connection closed by peer", "Connection reset", "Socket Timeout",
    "Socket closed", "wait timeout after", "Timed out waiting", "monitoredBarrier", "gloo",
    "Detected mismatch between", "aborted", "clients joined", "store based barrier",
    "collective operation timeout", "op.nbytes", "failed to connect", "in a barrier",
)  # fmt: skip
"""Words in the message of an exception that tell of others, not of the rank that raised it."""
KILLED = {-9: "SIGKILL", -11: "SIGSEGV", -7: "SIGBUS", -4: "SIGILL", -8: "SIGFPE"}
MOST_QUOTED = 12
NEAR = 1.01
"""Lengths that differ by less come of work that the ranks do not divide evenly."""


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


class _State(Struct, kw_only=True):
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


class _Book:
    """All facts of one job, ranks and groups settled as far as they can be."""

    def __init__(self, readings: Sequence[LogReading]) -> None:
        facts = [_of_default(fact) for reading in readings for fact in reading.facts]
        self.by_kind: dict[str, list[LogFact]] = defaultdict(list)
        for fact in _with_groups(facts):
            self.by_kind[fact.kind].append(fact)
        self.readings = readings
        self.words = _newest(word for reading in readings for word in reading.last_words)
        self.clocks_agree = not any(one.clock_went_back for one in readings) and not self._slept()
        self.groups = self._groups()
        self.world = self._world()

    def of(self, *kinds: str) -> list[LogFact]:
        """Facts of these kinds, in the order of their files and lines."""
        return [fact for kind in kinds for fact in self.by_kind.get(kind, ())]

    def _slept(self) -> bool:
        return any(overslept(one) for one in self.of("timeout"))

    def _groups(self) -> dict[str, dict[int, _State]]:
        found: dict[str, dict[int, _State]] = defaultdict(dict)
        mixed = set()
        for fact in self.of("timeout", "status", "dump_signal"):
            number = fact.group_rank if fact.group_rank is not None else fact.rank
            if number is None or fact.group == "?":
                continue
            rank = number if fact.group == "default" else fact.rank
            state = found[fact.group].setdefault(number, _State(number=number, rank=rank, facts=[]))
            if None not in (rank, state.rank) and rank != state.rank:
                mixed.add(fact.group)  # the same number on two ranks: several groups of one name
            state.rank = state.rank if rank is None else rank
            state.facts.append(fact)
            if fact.kind == "timeout" and (state.seq is None or (fact.seq or 0) <= state.seq):
                state.seq, state.op, state.sizes = fact.seq, fact.op, fact.sizes
            elif fact.seq is not None and state.seq is None:
                state.seq = fact.seq
            if fact.enqueued is not None:
                state.enqueued, state.completed = fact.enqueued, fact.completed
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
    named = {
        (one.file, one.group_rank, one.seq or -1): one.group
        for one in facts
        if one.group and one.seq
    }
    found = []
    for one in facts:
        group = one.group or named.get((one.file, one.group_rank, one.seq or -1), "")
        found.append(replace(one, group=group) if one.kind == "timeout" else one)
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


def _newest(words: Iterable[LastWord]) -> dict[int, LastWord]:
    """The last word of each rank; a file of its own tells more than what all wrote to one."""
    found: dict[int, LastWord] = {}
    for word in words:
        if word.rank is None:
            continue
        known = found.get(word.rank)
        if known is None or (
            word.when and len(word.when) == len(known.when) and word.when > known.when
        ):
            found[word.rank] = word
    return found


# Words


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) != 1 else ''} {format_ranks(listed)}"


def _quoted(facts: Iterable[LogFact | LastWord]) -> tuple[tuple[str, str], ...]:
    told = dict.fromkeys((f"{one.file}:{one.line}", redact_text(one.text)) for one in facts)
    return tuple(told)[:MOST_QUOTED]


def _missing(book: _Book, seen: Iterable[int]) -> tuple[Gap, ...]:
    """What was not kept, and the setting that keeps it the next time."""
    gaps = []
    unseen = book.unseen(seen)
    if unseen:
        why = "no line of theirs is in these logs, so they are unknown, neither guilty nor innocent"
        what = f"log lines of {_ranks(unseen)}"
        remedy = "keep a log of every rank: torchrun --log-dir DIR --redirects 3, or srun --output"
        gaps.append(Gap(what, unseen[0] if len(unseen) == 1 else None, why, "rank", remedy))
    if book.of("timeout", "status", "heartbeat", "ras_count", "ras_equal"):
        why = "logs do not say which operations each rank had entered, nor from which line"
        remedy = (
            "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, with a dump path on"
            " shared storage, or start the job with hangcheck run"
        )
        gaps.append(Gap("flight records of the ranks", None, why, "flight_record", remedy))
    if not book.clocks_agree:
        why = "times in these logs jump, so their order in time proves nothing"
        gaps.append(Gap("times that agree", None, why, "time", "keep clocks in step with NTP"))
    return tuple(gaps)


def _waiting(book: _Book) -> set[int]:
    """Ranks that reported a time-out: they were in an operation that others did not end."""
    return {one.rank for one in book.of("timeout", "status") if one.rank is not None}


# Rules


def killed(book: _Book) -> LogFinding | None:
    """A process that the kernel, SLURM or a signal ended before any time-out."""
    for fact in book.of("task"):
        reason = fact.error.lower()
        if not any(
            one in reason for one in ("out of memory", "segmentation", "bus error", "killed")
        ):
            continue
        earlier = [one for one in book.of("task", "exception") if one.line < fact.line]
        if "killed" in reason and earlier:
            continue  # srun ends all tasks when one has failed
        under = any(
            "torchrun" in one.text or one.kind == "exit" for one in book.of("exit", "restart")
        )
        cause: Cause = "memory_pressure" if "memory" in reason else "process_dead"
        who = () if under or book.before_timeouts(fact) is False else fact.ranks
        task = f"SLURM task {format_ranks(fact.ranks)} on {fact.host}"
        summary = f"{_ranks(who) if who else task} ended: {fact.error}."
        return _death(book, [fact], who, cause, summary[0].upper() + summary[1:])
    exits = [one for one in book.of("exit") if one.code is not None]
    kernel = book.of("kill")
    if kernel:
        pids = {one.pid for one in kernel if one.pid}
        who = tuple({one.rank for one in exits if one.rank is not None and one.pid in pids})
        who = who or tuple({one.rank for one in exits if one.rank is not None and one.code == -9})
        if len(who) != 1 and len(who) * 2 > len({one.rank for one in exits}):
            who = ()
        named = f"{_ranks(who)}" if who else "a process of the job"
        summary = f"The kernel killed {named} for want of memory."
        return _death(book, [*kernel[:3], *exits[:3]], who, "memory_pressure", summary)
    first = [one for one in exits if one.code in KILLED and book.before_timeouts(one) is not False]
    times = [one.when for one in exits if one.when]
    if times and first:
        first = [one for one in first if not one.when or one.when == min(times)]
    ranks = {one.rank for one in first if one.rank is not None}
    if not first or (len(ranks) > 1 and len(ranks) * 2 >= max(book.world, len(exits))):
        return None
    if any(one.rank in _waiting(book) for one in first):
        return None
    sure = all(book.before_timeouts(one) for one in first)
    signals = sorted({KILLED[one.code] for one in first if one.code is not None})
    summary = f"{_ranks(ranks)} was killed by {' and '.join(signals)}; who sent it is not told."
    found = _death(book, first, tuple(ranks), "process_dead", summary[0].upper() + summary[1:])
    return found if sure else replace(found, culprits=(), certainty="", guessed=tuple(ranks))


def _death(
    book: _Book, facts: Sequence[LogFact], who: tuple[int, ...], cause: Cause, summary: str
) -> LogFinding:
    waiting = _waiting(book) - set(who)
    return LogFinding(
        verdict="dead" if waiting else "crashed",
        cause=cause,
        culprits=tuple(sorted(who)),
        certainty="proven" if who else "",
        victims=tuple(sorted(waiting)),
        summary=summary,
        evidence=_quoted(facts),
        gaps=_missing(book, waiting | set(who)),
    )


def _is_own(fact: LogFact) -> bool:
    """Whether an exception is of the rank itself, not of one that lost another."""
    return fact.op not in CONSEQUENCES and not any(word in fact.error for word in ECHOES)


def raised(book: _Book) -> LogFinding | None:
    """A rank failed by itself: an exception that is no echo, before it waited for anybody."""
    waiting = _waiting(book)
    failed = [one for one in book.of("exception") if one.error and _is_own(one)]
    failed += [
        replace(one, error=one.error or one.text, op="")
        for one in book.of("memory", "cuda_error")
        if not any(fact.error and fact.error in one.text for fact in failed)
    ]
    failed += [
        replace(one, op=one.error.partition(":")[0].rpartition(".")[2])
        for one in book.of("exit")
        if one.error
    ]
    failed = [one for one in failed if _is_own(one)]
    early = [
        one
        for one in failed
        if (one.rank not in waiting or one.rank is None) and book.before_timeouts(one) is not False
    ]
    ranks = {one.rank for one in early if one.rank is not None}
    if not early or (not ranks and waiting):
        return None  # whose it is, and whether it was caught, nothing tells
    ordered = sorted(early, key=lambda one: (one.rank is None, one.file, one.line))
    shown = ordered[0]
    same = {one.rank for one in early if one.error == shown.error and one.rank is not None}
    everybody = len(ranks) > 1 and len(ranks) * 2 >= max(book.world, len(ranks | waiting))
    who = () if everybody else tuple(sorted(ranks if len(same) == len(ranks) else same))
    certainty: Certainty = "proven" if who else ""
    if len(ranks) > len(same) and not everybody:
        certainty, who = "", ()
    guessed: tuple[int, ...] = ()
    if not ranks:
        ended = {one.rank for one in book.of("exit") if one.rank is not None}
        guessed = tuple(ended) if len(ended) == 1 else ()
    subject = _ranks(ranks) if ranks else "A rank that is not named"
    error = redact_text(shown.error)[:160].rstrip(". ")
    waited = (
        f" {_ranks(waiting)} then waited in vain.".replace("rank", "Rank", 1) if waiting else ""
    )
    return LogFinding(
        verdict="dead" if waiting else "crashed",
        cause=_cause_of(early),
        culprits=who,
        certainty=certainty,
        guessed=guessed,
        victims=tuple(sorted(waiting - ranks)),
        summary=f"{subject[0].upper()}{subject[1:]} failed with {error}.{waited}",
        evidence=_quoted(ordered),
        gaps=_missing(book, ranks | waiting),
    )


def _cause_of(failed: Sequence[LogFact]) -> Cause:
    text = " ".join(one.error for one in failed)
    if "out of memory" in text or "MemoryError" in text or "Cannot allocate memory" in text:
        return "memory_pressure"
    if "DataLoader" in text:
        return "dataloader_worker"
    return "process_dead"


def unlike_calls(book: _Book) -> LogFinding | None:
    """Ranks met with other operations or lengths: DETAIL, gloo and NCCL say so themselves."""
    prints = {(one.seq, one.ranks): one for one in book.of("fingerprint") if len(one.ranks) == 1}
    facts = book.of("fingerprint") + book.of("sizes", "mismatch_warning")
    if not facts:
        return None
    by_rank = {one.ranks[0]: one for one in prints.values()}
    contents = {rank: f"{one.op} {list(one.sizes)}" for rank, one in by_rank.items()}
    odd = _odd(contents, book.world) if not _nearly(one.sizes for one in by_rank.values()) else ()
    ops = {one.op for one in by_rank.values()}
    listed = "; ".join(
        f"{_ranks(rank for rank, one in contents.items() if one == content)} in {content}"
        for content in dict.fromkeys(contents.values())
    )
    who = (
        f"{_ranks(odd)} did otherwise than the others" if odd else "which rank is wrong is not told"
    )
    what = "in other operations" if len(ops) > 1 else "with other lengths"
    return LogFinding(
        verdict="crashed" if not book.of("timeout") else "hang",
        cause="collective_mismatch" if len(ops) < 2 or not odd else "rank_diverged",
        culprits=odd,
        certainty="majority" if odd else "",
        victims=tuple(sorted(set(by_rank) - set(odd))) if odd else (),
        summary=f"Ranks met {what}: {listed}; {who}." if listed else f"Ranks met {what}; {who}.",
        evidence=_quoted(facts),
        gaps=_missing(book, by_rank),
    )


def _nearly(sizes: Iterable[tuple[int, ...]]) -> bool:
    """Whether lengths differ so little that work was divided unevenly: nobody is the odd one."""
    shapes = [one for one in sizes if one]
    if len(shapes) < 2 or len({len(one) for one in shapes}) > 1:
        return False
    return len(set(shapes)) > 1 and all(
        max(column) <= max(min(column) * NEAR, min(column) + 1)
        for column in zip(*shapes, strict=True)
    )


def _odd(contents: dict[int, str], world: int) -> tuple[int, ...]:
    """Return the ranks that differ from a clear majority; none where there is none."""
    counts = Counter(contents.values()).most_common()
    if len(counts) < 2 or counts[0][1] < 2 or counts[0][1] * 2 <= max(len(contents), world):
        return ()
    return tuple(sorted(rank for rank, one in contents.items() if one != counts[0][0]))


def unlike_timeouts(book: _Book) -> LogFinding | None:
    """Under one number of one group ranks wait in other operations, or with other lengths."""
    for name, group in book.groups.items():
        by_seq: dict[int, list[_State]] = defaultdict(list)
        for one in group.values():
            if one.seq is not None and one.op:
                by_seq[one.seq].append(one)
        for seq, states in by_seq.items():
            contents = {one.number: one.content for one in states}
            if len(set(contents.values())) < 2 or _nearly(one.sizes for one in states):
                continue
            ops = {one.op for one in states}
            world = book.world if name == "default" else 0
            odd = {one.number for one in states if one.number in _odd(contents, world)}
            who = tuple(one.rank for one in states if one.number in odd and one.rank is not None)
            listed = "; ".join(
                f"{_ranks(one.number for one in states if one.content == content)} in {content}"
                for content in sorted(set(contents.values()), key=list(contents.values()).count)
            )
            return LogFinding(
                verdict="hang",
                cause="rank_diverged" if len(ops) > 1 and odd else "collective_mismatch",
                culprits=tuple(sorted(who)),
                certainty="majority" if who else "",
                victims=tuple(sorted(_waiting(book) - set(who))) if who else (),
                summary=f"Ranks differ in operation {seq} of group {name}: {listed}."
                + ("" if odd else " Which of them is wrong is not told."),
                evidence=_quoted(one.facts[0] for one in states),
                gaps=_missing(book, _waiting(book)),
                collectives=((name, seq, _table(states)),),
            )
    return None


def _table(states: Iterable[_State]) -> dict[str, str]:
    found: dict[str, list[int]] = defaultdict(list)
    for one in states:
        found[one.content or "not entered, or inside the call"].append(one.number)
    return {content: format_ranks(ranks) for content, ranks in found.items()}


def did_not_reach_barrier(book: _Book) -> LogFinding | None:
    """A monitored barrier names who did not come; alone in it, rank 0 may have strayed."""
    facts = book.of("barrier")
    if not facts:
        return None
    fact = max(facts, key=lambda one: len(one.ranks))
    alone = bool(book.world) and len(fact.ranks) >= book.world - 1 > 1
    who = () if alone or not fact.ranks else fact.ranks
    absent = f"{_ranks(fact.ranks)} did not reach the monitored barrier"
    within = f" within {(fact.limit_ms or 0) / 1000:.0f} s" if fact.limit_ms else ""
    only = " Rank 0 was there alone, so it may be the one that strayed." if alone else ""
    return LogFinding(
        verdict="hang",
        cause="unknown",
        culprits=who,
        certainty="proven" if who else "",
        victims=(0,) if who and 0 not in who else (),
        summary=f"{absent[0].upper()}{absent[1:]}{within}.{only}",
        evidence=_quoted([*facts, *(book.words[one] for one in who if one in book.words)]),
        gaps=_missing(book, {0, *fact.ranks}),
    )


def lagging(book: _Book) -> LogFinding | None:
    """Torch's desync report: who finished the last common operation and did not join the next."""
    reports = [one for one in book.of("desync") if one.ranks]
    if not reports:
        return None
    fact = reports[-1]
    groups = {one.group for one in book.of("status", "timeout") if one.group}
    if groups - {"default"}:
        return None  # its numbers may be those of another group
    fewer = len(fact.ranks) < (fact.count or 0) or (not fact.count and fact.seq == 0)
    who = fact.ranks if fewer else ()
    summary = f"By torch's desync report {_ranks(fact.ranks)} did not join operation {fact.seq}."
    if not fewer:
        summary += " Most ranks lack it, so the few that have it may be those that strayed."
    return LogFinding(
        verdict="hang",
        cause="unknown",
        culprits=tuple(sorted(who)),
        certainty="proven" if who else "",
        victims=tuple(sorted(_waiting(book) - set(who))),
        summary=summary,
        evidence=_quoted([fact, *book.of("timeout")[:3], *_said(book, who)]),
        gaps=_missing(book, _waiting(book) | set(fact.ranks)),
    )


def _said(book: _Book, ranks: Iterable[int | None]) -> list[LastWord]:
    return [book.words[one] for one in ranks if one is not None and one in book.words]


def slow(book: _Book) -> LogFinding | None:
    """Ranks wait while a progress bar of another one moves on."""
    timeouts = book.of("timeout")
    bars: dict[tuple[str, int | None, int | None], list[LogFact]] = defaultdict(list)
    for one in book.of("bar"):
        bars[one.file, one.rank, one.count].append(one)
    for states in bars.values():
        first, last = states[0], states[-1]
        moving = (last.seq or 0) > (first.seq or 0) and (last.seq or 0) < (last.count or 0)
        if not timeouts or not moving or last.rank in _waiting(book):
            continue
        limit = min((one.limit_ms for one in timeouts if one.limit_ms), default=0)
        same = [one.line for one in timeouts if one.file == last.file]
        since = abs((last.ran_ms or 0) - limit) < 0.2 * limit
        if not (since or (same and last.line > min(same))):
            continue
        who = (last.rank,) if last.rank is not None else ()
        subject = f"Rank {last.rank}" if who else "A rank that is not named"
        return LogFinding(
            verdict="slow",
            cause="slow_progress",
            culprits=who,
            certainty="proven" if who else "",
            guessed=() if who or 0 in _waiting(book) else (0,),
            victims=tuple(sorted(_waiting(book))),
            summary=f"{subject} was still working, at {last.seq} of {last.count}, when the others"
            f" had waited for {limit / 1000:.0f} s and gave up. The job was slow, it did not hang.",
            evidence=_quoted([first, last, *timeouts]),
            gaps=_missing(book, _waiting(book)),
        )
    return None


def saving(book: _Book) -> LogFinding | None:
    """The last thing the log tells before ranks timed out is that a checkpoint is written."""
    timeouts = book.of("timeout", "status")
    saves = [one for one in book.of("saving") if book.before_timeouts(one)]
    if not timeouts or not saves:
        return None
    last = saves[-1]
    words = [one for one in book.of("bar") if one.file == last.file and one.line > last.line]
    states = [one for group in book.groups.values() for one in group.values()]
    small = all(max(one.sizes, default=1) <= 64 for one in states if one.seq is not None)
    if any(book.before_timeouts(one) for one in words) or not small:
        return None
    waiting = _waiting(book)
    guess = (0,) if last.rank is None and 0 not in waiting else ()
    who = (last.rank,) if last.rank is not None and last.rank not in waiting else ()
    return LogFinding(
        verdict="hang",
        cause="checkpoint_io",
        culprits=(),
        guessed=who or guess,
        victims=tuple(sorted(waiting)),
        summary=f"{_ranks(waiting)} waited in a barrier after a checkpoint was begun;".capitalize()
        + " the time limit ended before the saving did, as far as the log tells.",
        evidence=_quoted([last, *timeouts]),
        gaps=_missing(book, waiting),
    )


def behind(book: _Book) -> LogFinding | None:
    """Some ranks are in an operation that a few others have not finished entering."""
    for name, group in book.groups.items():
        open_at = [one.seq for one in group.values() if one.seq is not None]
        if not open_at:
            continue
        seq = min(open_at)
        inside: list[_State] = []
        absent: list[_State] = []
        stuck: list[_State] = []
        ahead: list[_State] = []
        for one in group.values():
            done = one.completed if one.completed is not None else None
            if one.seq == seq or (one.enqueued is not None and one.enqueued >= seq > (done or -1)):
                inside.append(one)
            elif one.seq is not None or (done is not None and done >= seq):
                ahead.append(one)
            elif one.enqueued is not None and done is not None and one.enqueued < seq:
                (absent if done >= one.enqueued else stuck).append(one)
        late = absent or stuck
        if not late or ahead or not inside:
            continue
        ranks = tuple(sorted(one.rank for one in late if one.rank is not None))
        certainty: Certainty = "proven" if absent else "majority"
        if len(late) > len(inside):
            certainty = ""
        elif len(late) == len(inside) and not _is_further(book, inside, late):
            certainty = "guess"
        named = _ranks(one.number for one in late)
        where = "" if name == "default" else f" of group {name}"
        summary = (
            f"{named} ended operation {max(one.completed or 0 for one in late)}{where} and had not"
            f" finished entering {seq}, in which {_ranks(one.number for one in inside)} waited."
            if absent
            else f"The GPU of {named} had not ended operation"
            f" {min(one.completed or 0 for one in stuck) + 1}{where}, which the others had."
        )
        said = _said(book, ranks[:4])
        told = (
            f" Its last words: {redact_text(said[0].text)[:80]}."
            if said and len(ranks) == 1
            else ""
        )
        sure = certainty in ("proven", "majority") and ranks
        lead = (
            " Most ranks lack it, so those that are in it may have strayed."
            if not certainty
            else ""
        )
        return LogFinding(
            verdict="hang",
            cause="unknown",
            culprits=ranks if sure else (),
            certainty=certainty if sure else "",
            guessed=ranks if certainty == "guess" else (),
            victims=tuple(sorted(one.rank for one in inside if one.rank is not None)),
            summary=f"{summary[0].upper()}{summary[1:]}{told}{lead}",
            evidence=_quoted([*(fact for one in [*late, *inside] for fact in one.facts), *said]),
            gaps=_missing(book, [one.number for one in group.values()] if not where else ()),
            collectives=((name, seq, _table([*inside, *late])),),
        )
    return None


def _is_further(book: _Book, inside: Sequence[_State], late: Sequence[_State]) -> bool:
    """Whether more than the numbers says that some are behind, not the others a call too far.

    They went on and entered several more; or their own last words, of which none is of a time when
    others had given up, are later.
    """
    went_on = any((one.enqueued or 0) >= (one.seq or 0) + 2 for one in inside)
    words = [_said(book, [one.rank for one in some]) for some in (inside, late)]
    if not (words[0] and words[1] and book.clocks_agree):
        return went_on
    times = [[one.when for one in some if one.when] for some in words]
    return went_on or bool(times[0] and times[1] and max(times[1]) < min(times[0]))


def first_never_ended(book: _Book) -> LogFinding | None:
    """Not even the first operation of a group ended: the machine, before the program."""
    for name, group in book.groups.items():
        states = [one for one in group.values() if one.seq is not None]
        told = [one for one in states if one.completed is not None]
        first = states and all((one.seq or 0) <= 1 for one in states)
        if not first or any((one.completed or 0) > 0 for one in told):
            continue
        seen = _ranks(one.number for one in states)
        return LogFinding(
            verdict="hang",
            cause="network_wait",
            victims=tuple(sorted(one.rank for one in states if one.rank is not None)),
            summary=f"The first operation of group {name} never ended on {seen}. Look at the"
            " machine first: GPU peer traffic (NCCL_P2P_DISABLE=1 to try), IOMMU, ACS, network interface.",
            evidence=_quoted(one.facts[0] for one in states),
            gaps=_missing(book, [one.number for one in states] if name == "default" else ()),
            collectives=((name, 1, _table(states)),),
        )
    return None


def all_inside(book: _Book) -> LogFinding | None:
    """Ranks wait, and nothing says for whom."""
    waiting = _waiting(book)
    timeouts = book.of("timeout", "status")
    if not timeouts:
        return None
    for name, group in book.groups.items():
        states = [one for one in group.values() if one.seq is not None]
        if not states:
            continue
        seq = min(one.seq or 0 for one in states)
        inside = [one for one in states if one.seq == seq]
        ahead = [one for one in states if (one.seq or 0) > seq]
        op = inside[0].op
        seen = _ranks(one.number for one in inside)
        where = f"operation {seq} ({op or 'not named'}) of group {name}"
        who: tuple[int, ...] = ()
        whole = name == "default" and book.world and len(group) >= book.world
        if (
            ahead
            and op in NEEDS_ALL
            and len(inside) == 1 < len(ahead)
            and inside[0].rank is not None
        ):
            who = (inside[0].rank,)
            text = f"{where} ended on {_ranks(one.number for one in ahead)} and not on {seen}: its"
            text += " GPU, driver or link."
        elif ahead:
            text = (
                f"{seen} waited in {where}, which {_ranks(one.number for one in ahead)} had ended."
            )
            text += " A source may end before the others: this proves nobody at fault."
        elif book.of("ras_equal"):
            text = f"{seen} waited in {where}. By NCCL's RAS all ranks launched equally many"
            text += " operations, so data does not move, or lengths differ."
        elif whole:
            text = f"All {book.world} ranks were in {where} with equal lengths: the data does"
            text += " not move. Look at the network, the GPUs and their links."
        else:
            text = f"{seen} waited in {where}. The logs do not say for whom."
        return LogFinding(
            verdict="hang",
            cause="network_wait" if whole and not ahead else "unknown",
            culprits=who,
            certainty="majority" if who else "",
            victims=tuple(sorted(waiting - set(who))),
            summary=f"{text[0].upper()}{text[1:]}",
            evidence=_quoted([*timeouts, *book.of("ras_equal")]),
            gaps=_missing(book, [one.number for one in states] if name == "default" else ()),
            collectives=((name, seq, _table(states)),),
        )
    return LogFinding(
        verdict="hang",
        cause="unknown",
        victims=tuple(sorted(waiting)),
        summary="Ranks waited in operations of several groups. The logs do not say for whom.",
        evidence=_quoted(timeouts),
        gaps=_missing(book, waiting),
    )


def slept(book: _Book) -> LogFinding | None:
    """Time-outs far beyond their limit: processes or the machine stood still meanwhile."""
    late = [one for one in book.of("timeout") if overslept(one)]
    if not late:
        return None
    found = all_inside(book)
    ran = max(one.ran_ms or 0 for one in late) / 1000
    text = (
        f" The watchdog spoke after {ran:.0f} s: the process or the machine stood still meanwhile."
    )
    return replace(found, summary=found.summary + text) if found is not None else None


def never_came(book: _Book) -> LogFinding | None:
    """Processes waited at the meeting point for others that did not come."""
    stores = [one for one in book.of("store") if one.ranks]
    if stores:
        lost = all(word in one.error for one in stores for word in ("by peer",)) or all(
            "Broken pipe" in one.error or "reset" in one.error for one in stores
        )
        default = any("default_pg" in one.error for one in stores)
        waiting = {one.rank for one in stores if one.rank is not None}
        roots = {rank for one in stores for rank in one.ranks}
        whole = default and len(roots) == 1 and not lost
        text = (
            f"{_ranks(one.group_rank for one in stores if one.group_rank is not None)} waited for"
            f" {_ranks(roots)} to begin the first operation of a group"
        )
        why = ", and lost the store: the process that keeps it had ended." if lost else "."
        return LogFinding(
            verdict="dead" if lost else "hang",
            cause="process_dead" if lost else "rendezvous",
            culprits=tuple(roots) if whole else (),
            certainty="proven" if whole else "",
            guessed=() if whole or lost else tuple(sorted(roots)),
            victims=tuple(sorted(waiting)),
            summary=f"{text[0].upper()}{text[1:]}{why}",
            evidence=_quoted(stores),
            gaps=_missing(book, waiting),
        )
    facts = book.of("rendezvous")
    short = [one for one in facts if one.count and (one.seq or 0) < one.count]
    if not facts:
        return None
    fact = max(short or facts, key=lambda one: (one.seq or 0, one.line))
    came = f"{fact.seq} of {fact.count} processes came" if short else "Not all processes came"
    limit = f" within {fact.limit_ms / 1000:.0f} s" if fact.limit_ms else ""
    return LogFinding(
        verdict="hang",
        cause="rendezvous",
        summary=f"{came} to the meeting point{limit}. Whether the others started is not told.",
        evidence=_quoted(facts),
        gaps=_missing(book, {one.rank for one in facts if one.rank is not None}),
    )


def ras_differs(book: _Book) -> LogFinding | None:
    """RAS counts differ, or ranks gave no answer; a dead process is one that cannot be reached."""
    dead, missing, counts = (book.of(one) for one in ("ras_dead", "ras_missing", "ras_count"))
    if dead or any(one.ranks for one in missing):
        ranks = sorted({rank for one in missing for rank in one.ranks})
        of = f" ({_ranks(ranks)} of their communicator)" if ranks else ""
        who = ", ".join(f"process {one.pid} on {one.host}" for one in dead[:4])
        text = (
            f"NCCL's RAS cannot reach {who}{of}."
            if dead
            else f"NCCL's RAS got no answer from {_ranks(ranks)}."
        )
        return LogFinding(
            verdict="dead" if dead else "hang",
            cause="process_dead" if dead else "unknown",
            guessed=tuple(ranks),
            summary=text,
            evidence=_quoted([*dead, *missing]),
            gaps=_missing(book, ()),
        )
    if not counts and not book.of("ras_equal"):
        return None
    listed = ", ".join(f"{one.count} launched {one.seq}" for one in counts[:6])
    what = (
        f"By NCCL's RAS the ranks launched different numbers of {counts[0].op}: {listed}."
        " It lists the smaller set, which may be the faster one."
        if counts
        else "By NCCL's RAS all ranks launched equally many operations: data does not move,"
        " or is slow."
    )
    return LogFinding(
        verdict="hang",
        cause="unknown",
        summary=what,
        evidence=_quoted(counts or book.of("ras_equal")),
        gaps=_missing(book, ()),
    )


def watchdog_stuck(book: _Book) -> LogFinding | None:
    """Torch's watchdog itself stood still: a driver call, or the interpreter lock."""
    facts = book.of("heartbeat", "dump_signal", "gil")
    if not facts:
        return None
    ranks = {one.rank for one in facts if one.rank is not None}
    subject = _ranks(ranks) if ranks else "a rank"
    return LogFinding(
        verdict="hang",
        cause="unknown",
        victims=(),
        summary=f"torch's watchdog thread stood still on {subject}, in a driver call or for the"
        " interpreter lock. That does not say which rank is behind.",
        evidence=_quoted(facts),
        gaps=_missing(book, ranks),
    )


def broken_down(book: _Book) -> LogFinding | None:
    """Nothing but connections that broke, a GPU fault, a job that was cancelled, an exit code."""
    xids, links = book.of("xid"), book.of("network", "unreachable", "peer_lost")
    exits = book.of("exit", "task", "cancelled", "exception")
    if xids:
        fault = xids[0]
        owner = {
            one.rank for one in book.of("exit", "communicator") if one.pid and one.pid == fault.pid
        }
        ranks = tuple(one for one in owner if one is not None)
        text = f"The driver reported GPU fault Xid {fault.code} of the GPU at {fault.host}."
        return LogFinding(verdict="crashed", cause="process_dead", culprits=ranks,
                          certainty="proven" if ranks else "", summary=text, evidence=_quoted(xids),
                          gaps=_missing(book, ranks))  # fmt: skip
    if links:
        meeting = all(one.kind == "unreachable" for one in links)
        text = (
            "A process could not reach its meeting point or a peer."
            if meeting
            else "Connections to other ranks broke or brought nothing: another rank had ended, or"
            " the network failed. The logs do not say which."
        )
        return LogFinding(verdict="hang" if meeting else "crashed",
                          cause="rendezvous" if meeting else "network_wait", summary=text,
                          evidence=_quoted(links), gaps=_missing(book, ()))  # fmt: skip
    if not exits:
        return None
    cancelled = book.of("cancelled")
    text = (
        f"The job was ended from outside: {cancelled[0].error or 'cancelled'}."
        if cancelled
        else "Processes ended with an exit code that says nothing; torchrun's root cause is the"
        " first to end, not the cause."
    )
    return LogFinding(verdict="crashed", cause="unknown", summary=text, evidence=_quoted(exits),
                      gaps=_missing(book, ()))  # fmt: skip


def ended(book: _Book) -> LogFinding | None:
    """All that the log says is that training finished."""
    facts = book.of("finished")
    return (
        LogFinding(verdict="finished", summary="Training finished.", evidence=_quoted(facts))
        if facts
        else None
    )


RULES: tuple[Callable[[_Book], LogFinding | None], ...] = (
    killed, raised, unlike_calls, unlike_timeouts, did_not_reach_barrier, slept, slow, lagging,
    behind, saving, first_never_ended, all_inside, never_came, ras_differs,
    watchdog_stuck, broken_down, ended,
)  # fmt: skip


def find_in_logs(*readings: LogReading) -> LogFinding:
    """Say what the logs of one job tell.

    Args:
        readings: Of all its logs, in any order.

    Returns:
        A finding; without a verdict where nothing in them speaks of trouble, or of an end.
    """
    book = _Book(readings)
    for rule in RULES:
        found = rule(book)
        if found is not None:
            return replace(found, world_size=book.world)
    return LogFinding(world_size=book.world, evidence=_quoted(book.words.values()))
