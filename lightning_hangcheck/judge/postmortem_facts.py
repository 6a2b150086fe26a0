"""Collects the facts of all logs of one job, and makes findings from them.

It decides which rank each fact is about, and where each rank is in its groups. Time-outs of torch
before 2.4 name no group; in later versions their first line names none. The group is then found by
what the same rank reports for the same number. If nothing shows it, the time-out has no group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.graph import Wait, WaitGraph
from lightning_hangcheck.judge.rule import Finding
from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.left_behind import (
    LogFact,
    Section,
    Trail,
    comparable,
    order_of,
    precedes,
)
from lightning_hangcheck.model.verdict import CollectiveState, EvidenceItem, State
from lightning_hangcheck.model.words import phase_of_name, words_of
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import format_ranks, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.judge.patience import EndedBy
    from lightning_hangcheck.model.left_behind import LogReading
    from lightning_hangcheck.model.slugs import Cause, Certainty, VerdictKind

    Ranks = tuple[int, ...]

MOST_QUOTED = 12
SAME_SIZES = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
"""Operations in which all ranks must have the same number of elements."""
ASPECTS: dict[Cause, str] = {
    "network_wait": "first_operation",
    "process_dead": "killed",
    "rank_diverged": "made",
    "rank_stalled": "not_entered",
    "rendezvous": "peers",
    "unknown": "not_entered",
}
"""For each cause, the aspect whose remedies help with what logs show."""

CLOSED_AT_THE_END = ("peer_lost", "network")
SURVIVED = ("exception", "own_error", "memory", "gave_up", "unreachable")
"""Facts of these kinds are no end if the rank finished well afterwards."""
ALL_PRINT = 16
"""In larger jobs only rank 0 and ranks in trouble write lines."""
TRAINING_FINISHED = 12
"""Number of the last checkpoint of the contract."""
A_GAP_S = 3.0
"""Ranks that run together write their last lines within this time."""
MEETINGS = {
    *("barrier", "barriers", "wait", "sync", "synchronize", "rendezvous", "broadcast", "scatter"),
    *("reduce", "gather", "allreduce", "allgather", "trainer", "fit", "meet"),
}
"""Words in names of calls that end on no rank before the others have entered."""
WHOLE = {"fit", "train", "training", "run", "main", "job", "test", "validate", "predict"}
"""Words in names of calls in which ranks stay as long as all is well."""
CAUSES: dict[str, Cause] = {
    "logger_init": "logger_init",
    "rendezvous": "rendezvous",
    "model_load": "model_load",
    "tokenizer": "model_load",
    "checkpoint_save": "checkpoint_io",
}
"""By the phase of the call that a rank is in."""


class LeftFinding(Finding, frozen=True, kw_only=True):
    """What files prove: no time passes any more, and nobody could end a wait.

    Attributes:
        culprits: Empty if the files prove a fault, but not of which rank.
        kind: Kind of verdict.
        certainty: Of the culprits; `guess` names none, and the evidence has the guess.
        graph: Who waits for whom.
        states: What each rank did, as far as known.
        place: The user's line from which the first culprit called its last operation.
    """

    ended_by: EndedBy = "nobody"
    silence_s: float = 0.0
    culprits: tuple[int, ...] = ()
    confidence: float = 0.0
    kind: VerdictKind = "hang"
    graph: WaitGraph = WaitGraph()
    states: dict[int, State] = {}  # noqa: RUF012 - msgspec copies it
    collectives: tuple[CollectiveState, ...] = ()


def known(ranks: Iterable[int | None]) -> tuple[int, ...]:
    """Return the known ranks, ascending, each once."""
    return tuple(sorted({rank for rank in ranks if rank is not None}))


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
        """Operation, with its sizes if they must be equal on all ranks."""
        sized = self.op in SAME_SIZES and self.sizes
        return f"{self.op} [{', '.join(map(str, self.sizes))}]" if sized else self.op


class LogBook:
    """All facts of one job, with ranks and groups decided as far as possible.

    Attributes:
        waiting: Ranks that reported a time-out.
        heard: Ranks with at least one line.
        words: The last line of each rank: the latest if times are comparable, else the first read.
        trails: How far each rank came; of several files, the one written last.
        clocks_agree: Whether times may be compared.
        groups: For each group name, the states of its members by their numbers in the group.
        told: World size, or the size of the largest communicator; 0 if unknown.
        declared: World size, as the program or its launcher says it; 0 if unknown.
        world: World size, or a lower bound.
    """

    def __init__(self, readings: Sequence[LogReading]) -> None:
        self.by_kind: dict[str, list[LogFact]] = defaultdict(list)
        for fact in _with_groups([fact for log in readings for fact in _not_survived(log.facts)]):
            self.by_kind[fact.kind].append(fact)
        waits = self.of("timeout", "status", "call")
        self.waiting = set(known(wait.rank for wait in waits))
        self.heard = {rank for reading in readings for rank in reading.ranks} | self.waiting
        self.other_groups = {wait.group for wait in waits} - {"", "default"}
        self.words: dict[int, LogFact] = {}
        for word in (word for reading in readings for word in reading.last_words):
            if word.rank is not None:
                earlier = self.words.setdefault(word.rank, word)
                if precedes(earlier.when, word.when):
                    self.words[word.rank] = word
        trails = [trail for reading in readings for trail in reading.trails]
        order = order_of(trail.when for trail in trails)
        trails.sort(key=lambda trail: (trail.rank, order(trail.when)))
        self.trails: dict[int, Trail] = {trail.rank: trail for trail in trails}
        slept = any(map(overslept, self.of("timeout")))
        self.clocks_agree = not slept and not any(reading.clock_went_back for reading in readings)
        self.groups = self._groups()
        sizes = [reading.world_size for reading in readings]
        sizes += [fact.count or 0 for fact in self.of("process", "rendezvous")]
        self.declared = max(sizes, default=0)
        for kind in ("exit", "process"):
            self.by_kind[kind] = [self._of_the_job(fact) for fact in self.of(kind)]
        sizes += [fact.count or 0 for fact in self.of("communicator", "ras_equal")]
        for state in self.groups.get("default", {}).values():
            if state.op == "_ALLGATHER_BASE" and len(state.sizes) == 2 and state.sizes[0]:
                sizes.append(state.sizes[1] // state.sizes[0])
        self.told = max(sizes, default=0)
        named = {
            rank for fact in self.of("barrier", "desync", "fingerprint") for rank in fact.ranks
        }
        self.world = max([self.told, *(rank + 1 for rank in self.heard | named)])

    def _of_the_job(self, fact: LogFact) -> LogFact:
        """On the job's only node a local rank is a rank: a second node would have as many."""
        local = fact.group_rank
        alone = local is not None and local < self.declared < 2 * (local + 1)
        return replace(fact, rank=local) if alone and fact.rank is None else fact

    def of_processes(self, pids: Iterable[int | None]) -> tuple[Ranks, Ranks]:
        """Return the ranks of processes; and of those whose rank is unknown the local ranks."""
        wanted = set(pids) - {None}
        facts = [*self.of("exit", "process"), *self._members()]
        mine = [fact for fact in facts if fact.pid in wanted]
        unknown = {fact.pid for fact in mine} - {fact.pid for fact in mine if fact.rank is not None}
        return (
            known(fact.rank for fact in mine),
            known(fact.group_rank for fact in mine if fact.pid in unknown),
        )

    def on_nodes(self, hosts: Iterable[str]) -> Ranks:
        """Return the ranks that ran on nodes, as far as lines tell."""
        names = {host.partition(".")[0] for host in hosts if host}
        facts = [*self.of("exit"), *self._members()]
        return known(fact.rank for fact in facts if fact.host.partition(".")[0] in names)

    def _members(self) -> list[LogFact]:
        """Return the members of the communicator of all ranks, by rank."""
        facts = self.of("communicator")
        return [replace(fact, rank=fact.seq) for fact in facts if fact.count == self.world]

    def of(self, *kinds: str) -> list[LogFact]:
        """Return the facts of these kinds, each kind in the order of files and lines."""
        return [fact for kind in kinds for fact in self.by_kind.get(kind, ())]

    def _groups(self) -> dict[str, dict[int, GroupState]]:
        found: dict[str, dict[int, GroupState]] = defaultdict(dict)
        mixed = set()
        for fact in self.of("timeout", "status", "dump_signal"):
            number = fact.group_rank if fact.group_rank is not None else fact.rank
            if number is None or fact.group == "?":
                continue
            rank = number if fact.group == "default" else fact.rank
            state = GroupState(number=number, rank=rank, facts=[])
            state = found[fact.group].setdefault(number, state)
            if None not in (rank, state.rank) and rank != state.rank:
                mixed.add(fact.group)  # two ranks with one number: several groups of one name
            state.rank = state.rank if rank is None else rank
            state.facts.append(fact)
            if fact.kind == "timeout" and (state.seq is None or (fact.seq or 0) <= state.seq):
                state.seq, state.op, state.sizes = fact.seq, fact.op, fact.sizes
            elif fact.seq is not None and state.seq is None:
                state.seq = fact.seq
            if fact.enqueued is not None and fact.completed is not None:
                state.enqueued, state.completed = fact.enqueued, fact.completed
                if state.seq is None and fact.enqueued > fact.completed:
                    state.seq = fact.completed + 1  # the oldest open operation
        return {name: group for name, group in found.items() if name not in mixed}

    def unseen(self, ranks: Iterable[int]) -> list[int]:
        """Return the job's other ranks; of a large job only ranks below 1,024."""
        return sorted(set(range(min(self.world, 1024))) - set(ranks))

    def before_timeouts(self, fact: LogFact) -> bool | None:
        """Whether a fact is from before the first time-out; None if unknown."""
        timeouts = self.of("timeout", "status", "heartbeat", "dump_signal")
        if not timeouts:
            return True
        when = fact.when
        same = [timeout.line for timeout in timeouts if timeout.file == fact.file]
        if same:
            return fact.line < min(same)
        times = [fact.when for fact in timeouts if comparable(fact.when, when)]
        if not times or not self.clocks_agree:
            return None
        if all(precedes(when, time) for time in times):
            return True
        return False if any(precedes(time, when) for time in times) else None

    def went_on(self, fact: LogFact) -> bool:
        """Whether the rank survived: its later last line is like another's, but for numbers."""
        last = self.words.get(fact.rank) if fact.rank is not None else None
        if last is None or last.file != fact.file or last.line <= fact.line:
            return False
        if any(raised.error.startswith(last.text[:60]) for raised in self.of("exception")):
            return False
        others = (word for rank, word in self.words.items() if rank != fact.rank)
        return _without_numbers(last.text) in {_without_numbers(fact.text) for fact in others} - {
            ""
        }

    def wrote_on(self, fact: LogFact) -> bool:
        """Whether a line only mentions an error, ends no traceback, and its rank wrote later."""
        last = self.words.get(fact.rank) if fact.rank is not None else None
        later = last is not None and last.file == fact.file and last.line > fact.line
        return later and re.match(r"[\w.]*(?:Error|Exception)\b", fact.text) is None

    def said_by(self, ranks: Iterable[int | None]) -> list[LogFact]:
        """Return the last lines of ranks, if known."""
        return [self.words[rank] for rank in ranks if rank is not None and rank in self.words]

    def finding(
        self,
        kind: VerdictKind,
        cause: Cause,
        text: str,
        facts: Iterable[LogFact],
        who: Iterable[int] = (),
        *,
        certainty: Certainty = "proven",
        guessed: Iterable[int] = (),
        victims: Iterable[int] | None = None,
        collectives: tuple[CollectiveState, ...] = (),
        waits_in: str = "in a collective",
        aspect: str = "",
    ) -> LeftFinding:
        """Make a finding from a rule's sentences, the lines to quote, and the culprits.

        Ranks with little evidence against them are guessed. Victims waited for others; by default,
        all ranks that reported a time-out. ``aspect`` says which remedies of the cause help.
        """
        culprits = known(who)
        waiting = known(set(self.waiting if victims is None else victims).difference(culprits))
        guess = f"a guess: {name_ranks(guessed)}" if (guessed := set(guessed)) else ""
        sure: Certainty | None = certainty if culprits else "guess" if guess else None
        waits = (
            (Wait(waiting, culprits, (waits_in,) * len(waiting)),) if waiting and culprits else ()
        )
        states: dict[int, State] = dict.fromkeys(waiting, "waiting")
        states |= dict.fromkeys(culprits, "gone" if kind in ("dead", "crashed") else "stalled")
        lines = dict.fromkeys(
            f"{fact.file}:{fact.line}: {redact_text(fact.text)}" for fact in facts
        )
        usual = ASPECTS.get(cause) if cause != "unknown" or culprits else "no_dump"
        return LeftFinding(
            kind=kind,
            cause=cause,
            aspect=aspect or usual,
            culprits=culprits,
            certainty=sure,
            confidence={"proven": 0.9, "majority": 0.8}.get(sure or "", 0.4),
            sentence=f"{text[:1].upper()}{text[1:]}".rstrip("."),
            graph=WaitGraph(waits=waits, ends=culprits, waiters=waiting, between_ranks=bool(waits)),
            states=states,
            collectives=collectives,
            evidence=(
                *((EvidenceItem("guess", None, guess),) if guess else ()),
                *(EvidenceItem("log", None, line) for line in list(lines)[:MOST_QUOTED]),
            ),
            gaps=tuple(self._gaps({*waiting, *culprits, *self.heard})),
        )

    def _gaps(self, seen: Iterable[int]) -> Iterator[Gap]:
        """Yield what was not kept, and the setting that keeps it the next time."""
        if unseen := self.unseen(seen):
            yield Gap(
                "log lines" if len(unseen) == 1 else f"log lines of {name_ranks(unseen)}",
                unseen[0] if len(unseen) == 1 else None,
                "none is in these logs; what is unknown is neither guilty nor innocent",
                "rank",
                "keep a log of every rank: torchrun --log-dir DIR --redirects 3, or srun --output",
            )
        if self.of("timeout", "status", "heartbeat", "ras_count", "ras_equal"):
            why = "logs do not say which operations each rank had entered"
            why += "" if self.of("call") else ", nor from which line"
            remedy = (
                "set TORCH_FR_BUFFER_SIZE=20000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, with a dump path"
                " on shared storage, or start the job with hangcheck run"
            )
            yield Gap("flight records of the ranks", None, why, "flight_record", remedy)
        if not self.clocks_agree:
            why = "times in these logs jump, so their order in time proves nothing"
            yield Gap("times that agree", None, why, "time", "keep clocks in step with NTP")


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text).strip()


def overslept(fact: LogFact) -> bool:
    """Whether a time-out came so late that its process, or the machine, must have stopped."""
    return bool(fact.ran_ms and fact.limit_ms and fact.ran_ms > 1.5 * fact.limit_ms + 60_000)


def _not_survived(facts: Sequence[LogFact]) -> Iterator[LogFact]:
    """Drop what a rank wrote before it finished well, and connections that its end closed."""
    last = {fact.rank: fact.line for fact in facts if fact.kind == "finished"}
    anybody = max(last.values(), default=0)
    for fact in facts:
        whose = max(last.get(fact.rank, 0), last.get(None, 0))
        until = anybody if fact.rank is None else whose
        early = fact.kind in SURVIVED and fact.line < until
        if not early and not (until and fact.kind in CLOSED_AT_THE_END):
            yield fact


def _of_default(fact: LogFact) -> LogFact:
    """In the default group a rank's number is its global rank."""
    is_default = fact.group == "default" and fact.group_rank is not None and fact.kind != "store"
    return replace(fact, rank=fact.group_rank) if is_default else fact


def _with_groups(facts: Iterable[LogFact]) -> Iterator[LogFact]:
    """Give time-outs without a group the group that the same rank names for the same number.

    If all other time-outs of an operation, its number and its sizes name one group, it is that
    group. The rest is of the default group if no line names another and each number belongs to one
    rank. Otherwise the group is unknown: ``?``.
    """

    def key(fact: LogFact) -> tuple[object, ...]:
        return fact.file, fact.group_rank if fact.rank is None else f"rank {fact.rank}", fact.seq

    facts = [_of_default(fact) for fact in facts]
    named = {key(fact): fact for fact in facts if fact.group and fact.seq is not None}
    alike: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for fact in facts:
        if fact.kind == "timeout" and (group := named.get(key(fact))) is not None:
            alike[fact.seq, fact.op, fact.sizes].add(group.group)
    bare = [fact for fact in facts if fact.kind == "timeout" and not fact.group]
    bare = [fact for fact in bare if key(fact) not in named]
    owners: dict[int | None, set[tuple[object, ...]]] = defaultdict(set)
    for fact in bare:
        owners[fact.group_rank].add((fact.rank, fact.seq, fact.op, fact.sizes))
    plain = all(fact.rank in (None, fact.group_rank) for fact in bare)
    plain &= all(len(owner) == 1 for owner in owners.values())
    plain &= not any(fact.group not in ("", "default") for fact in facts if fact.kind != "store")
    for fact in facts:
        if fact.kind != "timeout" or fact.group:
            yield fact
        elif (group := named.get(key(fact))) is not None:
            yield replace(fact, group=group.group, group_rank=group.group_rank)
        elif len(groups := alike[fact.seq, fact.op, fact.sizes]) == 1:
            yield _of_default(replace(fact, group=min(groups)))
        else:
            yield _of_default(replace(fact, group="default" if plain else "?"))


# Wording that several rules use.


def of_group(group: str) -> str:
    """Write the group after an operation; the default group is not named."""
    return "" if group == "default" else f" of group {group}"


def name_members(states: Iterable[GroupState]) -> str:
    """Name the ranks if all global ranks are known, else the numbers in the group."""
    states = list(states)
    if all(state.rank is not None for state in states):
        return name_ranks(known(state.rank for state in states))
    return f"members {format_ranks(state.number for state in states)}"


def collective(
    group: str, seq: int, ops: Mapping[str, Sequence[int]], members: Iterable[int] = ()
) -> CollectiveState:
    """Make a row of the verdict: which members (by default only these) are in which operation."""
    ranks = format_ranks(members or (rank for ranks in ops.values() for rank in ranks))
    shown = {op: format_ranks(ranks) for op, ranks in ops.items()}
    return CollectiveState(group=group, ranks=ranks, seq=seq, ops=shown)


# hangcheck's own console lines show what was announced, not what is: a silent rank may work. Only
# this is proof: a rank is in an announced call, and others have left it and wait in a later one.


def held_in_a_call(book: LogBook) -> LeftFinding | None:
    """Ranks are in an announced call while all others wait in a later one."""
    trails = list(book.trails.values())
    for call in sorted({_place(trail) for trail in trails if trail.inside}):
        held = [trail for trail in trails if _place(trail) == call]
        others = [trail for trail in trails if _place(trail) != call]
        places = {_place(trail)[0] for trail in others}
        if len(places) != 1 or not _meets(place := places.pop()):
            continue
        name = call[0]
        if not all(_is_past(trail, held[0].inside[-1], held) for trail in others):
            continue
        who, waiting = [trail.rank for trail in held], [trail.rank for trail in others]
        text = (
            f"{name_ranks(who)} began {_shown(name)} and did not come back from it, while "
            f"{name_ranks(waiting)} waited in {_shown(place)}."
        )
        return _told(book, text, call=name, culprits=who, victims=waiting,
                     waits_in=f"in {_shown(place)}")  # fmt: skip
    return None


def _place(trail: Trail) -> tuple[str, int]:
    return (trail.inside[-1].name, trail.inside[-1].times) if trail.inside else ("", 0)


def _is_past(other: Trail, section: Section, held: Sequence[Trail]) -> bool:
    """Whether a rank waits in a call that it began after ``section``, and ``held`` did not.

    If the rank never announced ``section``, which perhaps only one rank calls, that is known only
    if ranks do not meet inside ``section``.
    """
    waits = other.inside[-1]
    passed = [section for each in held for section in (*each.inside, *each.returned)]
    if any(section.name == waits.name and section.times >= waits.times for section in passed):
        return False
    through = next((open_one for open_one in other.returned if open_one.name == section.name), None)
    if through is None:
        return not _meets(section.name) and all(
            inner.name != section.name for inner in other.inside
        )
    return through.times >= section.times and waits.line > through.line


def stopped_earlier(book: LogBook) -> LeftFinding | None:
    """Guess the culprits: who came less far than others, fell silent first, or came last."""
    trails = list(book.trails.values())
    if not trails or all(
        trail.checkpoint == TRAINING_FINISHED and not trail.inside for trail in trails
    ):
        return None

    passed = {
        trail.checkpoint: f"CHECKPOINT {trail.checkpoint}: {_shown(trail.passed)}"
        for trail in trails
    }
    passed[0] = "no checkpoint"
    if finding := _behind(
        book, {trail.rank: trail.checkpoint for trail in trails}, passed.__getitem__
    ):
        return finding
    if finding := _in_calls(book, trails):
        return finding
    if book.of("finished"):
        return None
    steps = {trail.rank: trail.step for trail in trails if trail.step is not None}
    if len(steps) == len(trails) and (finding := _behind(book, steps, "step {}".format)):
        return finding
    if finding := _silent_first(book, trails):
        return finding
    unseen = book.unseen(book.heard)
    if not unseen or book.world > ALL_PRINT:
        return None
    text = f"no line of {name_ranks(unseen)} is in these logs: either it never came so far, or"
    return _told(book, f"{text} its log is missing.")


def _behind(
    book: LogBook, came: Mapping[int, int], shown: Callable[[int], str]
) -> LeftFinding | None:
    """Say how far the ranks came that came least far, and what they had begun there."""
    least, most = min(came.values()), max(came.values())
    if least == most:
        return None
    ranks = [rank for rank, far in came.items() if far == least]
    who = name_ranks(ranks)
    calls = {_place(book.trails[rank])[0] for rank in ranks}
    call = calls.pop() if len(calls) == 1 else ""
    text = (
        f"{who} came to {shown(least)}{f' and began {_shown(call)}' if call else ''}, while "
        f"{name_ranks(set(book.trails) - set(ranks))} came as far as {shown(most)}. Look first at "
        f"what {who} did after that."
    )
    return _told(book, text, ranks, call)


def _in_calls(book: LogBook, trails: Sequence[Trail]) -> LeftFinding | None:
    """All passed one checkpoint: say who is in a call from which nobody, or others, returned."""
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for trail in trails:
        at[_place(trail)].append(trail.rank)
    outside = at.pop(("", 0), [])
    names = {name for name, _ in at}
    together = len(at) == 1 and not outside
    if not at or (together and WHOLE & set(words_of(min(names)))):
        return None
    first = min(at)  # the earliest call of the name
    if together and len(trails) >= book.world:
        text = f"all ranks began {_shown(first[0])}, and none came back from it."
        if phase_of_name(first[0]) == "trainer_init":
            text += ' Name the strategy, Trainer(strategy="ddp") in place of "auto".'
        return _told(book, text, (), first[0])
    which = " #{}" if len(at) > len(names) else ""
    parts = [
        f"{name_ranks(ranks)} began {_shown(name)}{which.format(times)}"
        " and did not come back from it"
        for (name, times), ranks in sorted(at.items())[:4]
    ]
    parts += [f"{name_ranks(outside)} had none such open"] if outside else []
    alone = len(names) == 1 and not (outside and len(at) > 1)
    who, call = (at[first], first[0]) if alone else ([], "")
    return _told(book, f"{'; '.join(parts)}.", who, call)


def _silent_first(book: LogBook, trails: Sequence[Trail]) -> LeftFinding | None:
    """If last lines are far apart in time: who fell silent first, or wrote the same line last."""
    times = {trail.rank: trail.when for trail in trails}
    if not book.clocks_agree or "" in times.values() or len({" " in t for t in times.values()}) > 1:
        return None
    since = order_of(times.values())
    moments = {rank: since(when) for rank, when in times.items()}
    order = sorted(moments, key=lambda rank: moments[rank])
    gaps = [moments[later] - moments[earlier] for earlier, later in pairwise(order)]
    if max(gaps, default=0) < A_GAP_S:
        return None
    widest = gaps.index(max(gaps))
    early, late = order[: widest + 1], order[widest + 1 :]
    gap = seconds_in_words(gaps[widest])
    if len({book.words[rank].text for rank in order}) == 1:
        text = f"all said the same last, {name_ranks(late)} {gap} after {name_ranks(early)}."
        return _told(book, f"{text} Look first at what {name_ranks(late)} did before it.", late)
    text = f"{name_ranks(early)} fell silent first, {gap} before {name_ranks(late)}."
    return _told(book, text, early if len(early) <= len(late) else ())


def _told(
    book: LogBook,
    text: str,
    guessed: Iterable[int] = (),
    call: str = "",
    *,
    culprits: Iterable[int] = (),
    victims: Iterable[int] = (),
    waits_in: str = "",
) -> LeftFinding:
    """Make a finding with the newest lines of the ranks concerned, and how the job was ended.

    Without culprits it is a guess. ``call`` is the call that these ranks are in, if any.
    """
    ends = book.of("cancelled")
    if ends:
        text += f" The job was ended from outside: {ends[0].error.lower() or 'cancelled'}."
    words = book.said_by(dict.fromkeys([*sorted(culprits), *sorted(guessed), *book.trails]))[:4]
    phase = phase_of_name(call) if call else ""
    cause = CAUSES.get(phase or "", "rank_stalled" if culprits else "unknown")
    aspect = "" if book.unseen(book.heard) else "heard"  # nobody's log is missing
    if phase == "logger_init":
        aspect = "wandb" if "wandb" in call.lower() else "own"
    kind: VerdictKind = "hang" if culprits else "suspect"
    return book.finding(kind, cause, text, [*words, *ends[:1]], culprits, guessed=guessed,
                        victims=victims, waits_in=waits_in, aspect=aspect)  # fmt: skip


def _meets(name: str) -> bool:
    return bool(MEETINGS & set(words_of(name)))


def _shown(text: str) -> str:
    return redact_text(text)[:80]
