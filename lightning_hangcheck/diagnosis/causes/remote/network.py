"""network_wait: a rank waits at a connection, and the remote end does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.wording import (
    duration,
    join,
    name_ranks,
    process_name,
    verb,
    within,
)

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.evidence import WaitTarget


def network_wait(situation: Situation) -> Finding | None:
    """Blame the suspects that wait for a remote end, unless that is a rank or the ranks' store.

    Such a rank has its own state, and that is the cause; of the store a rank waits for a key.
    """
    waiting = [
        (reading, target)
        for reading in situation.suspects_that_are("idle")
        for target in reading.targets
        if target.kind == "socket" and target.name and not target.call.startswith("accept")
        if not any(situation.job.rank_of(reading, one) for one in target.holders)
        if not reading.keeps_store(target)
    ]
    if not waiting:
        return None
    first, target = waiting[0]
    for_key = first.asks_store and target.call != "connect"
    there = (first.place, target.call, target.name)
    alike = [one for one, other in waiting if (one.place, other.call, other.name) == there]
    who = list(dict.fromkeys(one.rank for one in alike))
    sentence = join(
        name_ranks(who),
        f"{verb(who, 'has', 'have')} waited {duration(first.silence_s)}",
        f"for {_what(target, for_key=for_key)},",
        within(first.place),
    )
    culprits = list({reading.rank: reading for reading, _ in waiting}.values())
    return blame(
        culprits,
        cause="network_wait",
        ended_by=who_ends(situation, culprits),
        confidence=0.85 if situation.waited_for else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
        aspect="store" if for_key else "remote",
        evidence=[_evidence(*pair) for pair in waiting[:4]],
    )


def _what(target: WaitTarget, *, for_key: bool) -> str:
    """Say what does not come: a store answers only once somebody has set the key."""
    if for_key:
        return f"a key of the store at {_end(target)}, which nobody has set"
    does = "does not accept the connection" if target.call == "connect" else "does not answer"
    return f"{_end(target)}, which {does}"


def _end(target: WaitTarget) -> str:
    owners = ", ".join(process_name(holder) for holder in target.holders)
    return f"{target.name} ({owners})" if owners else target.name


def _evidence(reading: RankReading, target: WaitTarget) -> EvidenceItem:
    text = f"{reading.waiter} is in {target.call} on a connection to {_end(target)}"
    return EvidenceItem("kernel", reading.rank, text)


NETWORK_WAIT = Rule(cause="network_wait", needs=("kernel",), find=network_wait)
