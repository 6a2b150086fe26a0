"""slow_progress, memory_pressure, unknown: ranks advance too slowly, or nothing more is known.

Others wait for a rank that moves: it is slow, never stuck. Or ranks make steps far below their own
pace. Or memory is full, and a rank waits for its own pages to come back from disk. Or somebody does
not advance, and the evidence does not tell who holds whom up, or why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.frames import FOR_RANKS
from lightning_hangcheck.judge.graph import Wait, WaitGraph
from lightning_hangcheck.judge.operations import PAIRED, groups_of, newest_peers
from lightning_hangcheck.judge.rule import (
    MOST_SHOWN,
    NO_RECORD,
    Finding,
    Seen,
    Situation,
    blame,
    names,
    rule,
    say,
)
from lightning_hangcheck.judge.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.model.beat import PARTS, StepTimes
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.text.shown import NANOSECONDS, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.patience import EndedBy
    from lightning_hangcheck.model.beat import Slowness, SlowRank
    from lightning_hangcheck.model.slugs import Phase

GIB = 1 << 30
FULL = 0.95
"""Share of the limit from which the kernel takes pages away from the processes."""
FAULTS_A_SECOND = 50
"""Pages read back each second. A disk with 10 ms a page gives 100; a process whose pages are in
memory needs none."""
ALIKE = 5.0
"""Multiple of the longest sustained step, for a job whose ranks are all slow: it may have been
given other work, such as a backbone that is trained from now on. A single slow rank needs less."""
OWN_SHARE = 0.5
"""Share of a step's extra time from which it is work of that rank itself."""
LEAST_LOOKS = 6
AT_WORK, WAITS = 0.4, 0.6
"""Shares of the looks in which a rank waited for others: at most for a rank at work, at least for a
rank that only waits. Between them, and if all ranks are alike, looks show nothing."""
ASPECTS = ("loader", "forward", "waiting")
PHASES: tuple[Phase, ...] = ("dataloading", "training_step", "training_step")
"""Phases of a step's parts; in the last part ranks also wait for each other."""


@rule(
    "slow_progress",
    of=("moving",),
    order=240,
    sure=(0.7, 0.7),
    needs=("stacks",),
    ended_by="moving",
)
def slow_progress(reading: RankReading) -> Seen:
    """The rank moves."""
    return Seen(
        text="{who} [is|are] slow {at} : running, but without progress for {since}", aspect="silent"
    )


@rule("memory_pressure", of=("idle", "busy"), order=170, sure=(0.8, 0.5), needs=("kernel",))
def memory_pressure(reading: RankReading) -> Seen | None:
    """The rank reads pages back from disk while memory is full."""
    looks = [(each.sample.taken_ns, each.kernel) for each in reading.own.moments]
    seen_at = [(at, kernel) for at, kernel in looks if kernel is not None][-2:]
    memory = seen_at[-1][1].memory if len(seen_at) > 1 else None
    if memory is None or memory.used_bytes < FULL * memory.limit_bytes:
        return None
    (before_ns, before), (now_ns, now) = seen_at
    seconds = max((now_ns - before_ns) / NANOSECONDS, 0.001)
    faults = (now.major_faults - before.major_faults) / seconds
    if faults < FAULTS_A_SECOND:
        return None
    share = 100 * memory.used_bytes / max(1, memory.limit_bytes)
    words = (
        f"{share:.0f} % of the {memory.scope}'s {memory.limit_bytes / GIB:.1f} GiB are in use, and "
        f"{faults:.0f} pages a second come back from disk"
    )
    return Seen(
        text="{who} [makes|make] no progress {at} for {since}: {words}",
        words={"words": words},
        evidence=[("kernel", words)],
    )


# Nothing more is known.


@rule("unknown", "collective_mismatch", order=230)
def unknown(situation: Situation, job: JobReading) -> Finding | None:
    """Report unknown if all ranks wait for each other, or if a suspect could not be seen."""
    waiting = job.waiting_in(FOR_RANKS)
    if job.world_size > 1 and 0 < len(waiting) == len(job.ranks):
        moving = any(reading.process_activity.activity == "moving" for reading in waiting)
        explained = situation.waited_for and not situation.suspects
        return None if moving or explained else _all_wait(situation, waiting)
    unseen = situation.suspects_that_are("unseen")
    if not unseen and all(reading.activity == "waiting" for reading in situation.suspects):
        unseen = situation.suspects
    if not unseen:
        return None
    text = "{who} [makes|make] no progress {at} for {since}: too little could be read to tell why"
    sentence = say(unseen, text)
    return blame(situation, unseen, "unknown", sentence, sure=0.3, ended_by="unknown_pace")


def _all_wait(situation: Situation, waiting: Sequence[RankReading]) -> Finding:
    """Ranks at different places wait for each other; at one place the work may go on.

    If each has posted as many messages as the other and none arrives, they differ in something not
    counted: their tag, group or size.
    """
    apart, elsewhere = situation.graph.between_ranks, situation.job.elsewhere
    ends = set(situation.graph.ends) if apart else {reading.rank for reading in waiting}
    culprits = [reading for reading in waiting if reading.rank in ends]
    in_messages = len(waiting) > 1 and not elsewhere
    for culprit in culprits:
        in_message = (
            culprit.wait is not None and culprit.wait.name in PAIRED and not culprit.kept_by_message
        )
        counted = culprit.view.flight is not None and culprit.view.flight.messages is not None
        in_messages = in_messages and in_message and counted
    if in_messages:  # whom a message is from or for has another in mind
        peers = {peer for reading in culprits for peer in newest_peers(reading.view)}
        culprits = [each for each in waiting if each in culprits or each.rank in peers]
    silence_s = min(reading.silence_s for reading in (culprits if in_messages else waiting))
    first, since = culprits[0], duration(silence_s)
    everybody = len(culprits) == len(waiting)
    other = next((reading for reading in culprits if reading.frames != first.frames), None)
    if len(culprits) == 1 and len(waiting) > 1:
        where = _in_what(first)
        sentence = f"rank {first.rank} has waited {where} for {since}, apart from all other ranks"
    elif other is None:
        many = everybody and len(waiting) > 1
        sentence = say(
            culprits,
            "{who} [has|have] waited {where} for {since}, it is unknown for whom{seen}",
            who=f"all {len(waiting)} ranks" if many else names(culprits),
            where=_in_what(first),
            since=since,
            seen=": not all ranks were seen" if elsewhere else "",
        )
    else:
        there = join("elsewhere" if other.wait is None else "", _in_what(other))
        who = (
            "all ranks have waited for each other"
            if everybody
            else f"{names(culprits)} have waited"
        )
        sentence = (
            f"{who} for {since}: rank {first.rank} {_in_what(first)}, rank {other.rank} {there}"
        )
    # a visitor cannot know since when ranks spin in a collective, so its text says that they do; if
    # neither a device nor a rank computes, only the network could still end the wait
    idle = all(reading.process_activity.activity == "idle" for reading in waiting)
    groups = [group for reading in waiting for group in groups_of(reading.view)]
    at_rest = idle and bool(groups) and not any(group.on_device for group in groups)
    if in_messages:
        here = at_rest and len({reading.view.host for reading in waiting}) == 1
        return blame(
            situation,
            culprits,
            "collective_mismatch",
            f"{sentence}; as many are sent as received, so their tags, groups or sizes differ",
            sure=0.6,
            ended_by=situation.patience.helpers_end(waiting) or ("nobody" if here else "inside"),
            waited_for=True,
            aspect="tags",
            silence_s=silence_s,
            pace=None,
        )
    visited = situation.job.case.seen_in == "attach"
    together: EndedBy = "outside" if visited or at_rest else "unknown_pace"
    kept = any(reading.kept_by_message for reading in waiting)
    return blame(
        situation,
        culprits,
        "unknown",
        sentence,
        sure=0.2,
        ended_by="inside" if apart and not elsewhere and not kept else together,
        waited_for=apart or together == "outside",
        silence_s=silence_s,
        pace=None,
        culprits=() if elsewhere else tuple(reading.rank for reading in culprits),
        gaps=() if all(reading.view.flight for reading in waiting) else (NO_RECORD,),
    )


def _in_what(reading: RankReading) -> str:
    return join(
        reading.in_wait, "called" if reading.place is not None else "", within(reading.place)
    )


# Steps below their own pace.


@rule("slow_progress", order=250)
def slow_steps(job: JobReading, slowness: Slowness) -> Finding | None:
    """Blame the ranks whose own work grew; all slow ranks if nobody's own work did.

    Ranks that wait for each other in each step are slow together. The cause is the rank whose own
    work explains most of the growth; otherwise the rank that was at work in most looks while others
    waited.
    """
    ranks = slowness.ranks
    if not ranks:
        return None
    own = [
        rank
        for rank in ranks
        if rank.in_parts and rank.grown.own_s >= OWN_SHARE * rank.grown.seconds > 0
    ]
    known = own
    if not own and min(rank.looks for rank in ranks) >= LEAST_LOOKS:
        shares = [rank.waited / rank.looks for rank in ranks]
        at_work = [rank for rank, share in zip(ranks, shares, strict=True) if share <= AT_WORK]
        clear = not any(AT_WORK < share < WAITS for share in shares)
        known = at_work if clear and len(at_work) < len(ranks) else []
    blamed = known or ranks
    if not known and len(job.ranks) < job.world_size:
        return None  # they may wait for a rank on another node
    alone, who = len(blamed) < max(job.world_size, len(job.ranks)), [rank.rank for rank in blamed]
    worst = max(blamed, key=lambda rank: rank.ratio)
    if not alone and worst.ratio < ALIKE:
        return None
    grown = max((rank.grown for rank in blamed), key=lambda each: each.seconds)
    part = max(range(len(PARTS)), key=lambda number: grown.parts[number])

    def changed(before_s: float, now_s: float) -> str:
        return f"{seconds_in_words(now_s)} instead of {seconds_in_words(before_s)}"

    slow = f"{name_ranks(who)} {verb(who, 'has', 'have')} been slow for {duration(slowness.for_s)}"
    where = "the parts of a step are not timed"
    if worst.in_parts:
        of_whom = f" of rank {worst.rank}" if len(who) > 1 else ""
        growth = changed(worst.before.parts[part], worst.now.parts[part])
        where = f"most of that in {PARTS[part]}{of_whom}: {growth}"
    parts = (
        f"{slow}: a step takes {changed(worst.before.seconds, worst.now.seconds)}",
        where,
        f"seen {within(worst.place)}" if known and worst.place is not None else "",
        "" if known or len(who) == 1 else "who waits for whom is unknown",
    )
    return Finding(
        cause="slow_progress",
        culprits=tuple(who),
        ended_by="pace",
        confidence=0.9 if own else 0.7 if known else 0.5,
        silence_s=0.0,
        sentence="; ".join(filter(None, parts)),
        aspect=ASPECTS[part],
        phase=PHASES[part],
        place=blamed[0].place,
        evidence=tuple(_steps(ranks)),
    )


def waits_in_each_step(job: JobReading, culprits: Sequence[int]) -> WaitGraph:
    """Draw who is slow only because others are; a single look tells less."""
    slowness = job.case.slowness
    ranks = [rank.rank for rank in slowness.ranks] if slowness is not None else []
    victims = [rank for rank in ranks if rank not in culprits]
    return WaitGraph(
        waits=(Wait(tuple(victims), tuple(culprits), ("each step",) * len(victims)),),
        ends=tuple(culprits),
        waiters=tuple(victims),
        between_ranks=bool(victims),
    )


def _steps(ranks: Sequence[SlowRank]) -> Iterator[EvidenceItem]:
    for rank in sorted(ranks, key=lambda rank: -rank.now.own_s)[:MOST_SHOWN]:
        held = f"never above {seconds_in_words(rank.known_s)} for so long before"
        steps = f"a step {_in_parts(rank.now, rank)}; before {_in_parts(rank.before, rank)}"
        yield EvidenceItem("pace", rank.rank, f"rank {rank.rank}: {steps}; {held}")
        if rank.looks:
            looks = f"rank {rank.rank} waited for others in {rank.waited} of {rank.looks} looks"
            text = join(f"{looks}, else most often" if rank.place else looks, within(rank.place))
            yield EvidenceItem("pace", rank.rank, text)


def _in_parts(step: StepTimes, rank: SlowRank) -> str:
    whole = seconds_in_words(step.seconds)
    if not rank.in_parts:
        return whole
    pairs = zip(PARTS, step.parts, strict=True)
    return f"{whole} ({', '.join(f'{name} {seconds_in_words(part)}' for name, part in pairs)})"
