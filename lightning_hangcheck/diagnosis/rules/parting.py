"""What the three causes of parted ways have in common: one finding, told by its nature."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.code_reading import left_loop, parked_in, rank_conditions
from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation, blame
from lightning_hangcheck.diagnosis.wording import join, name_ranks, verb, within
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.departing import Telling
    from lightning_hangcheck.diagnosis.divergence import Divergence
    from lightning_hangcheck.diagnosis.scene import RankReading, Scene
    from lightning_hangcheck.diagnosis.standings import Standing
    from lightning_hangcheck.model.slugs import Cause

NO_RECORD = Gap(
    what=FLIGHT_RECORD,
    rank=None,
    why="none was taken of all ranks: which collective each is in is told from stacks alone",
)
DEFAULT_GROUP = "0"
MOST_SHOWN = 4
TOLD_BY: dict[Telling, str] = {
    "majority": "most ranks do otherwise",
    "sequence": "earlier steps followed another sequence of operations",
    "condition": "it is there under a test of the rank",
    "loop": "it has left a loop that the others are in",
    "novelty": "no earlier step had this operation",
    "parked": "the others are where every rank begins its next step",
    "nothing": "nothing tells which of them departed",
}


def parted(situation: Situation, cause: Cause) -> Finding | None:
    """Return the finding if the ranks' ways part, and by this cause."""
    scene, divergence = situation.scene, situation.divergence
    if divergence is None or nature_of(scene, divergence) != cause:
        return None
    culprits = [scene.ranks[rank] for rank in divergence.departed]
    known = divergence.telling != "nothing"
    confidence = (0.95 if known else 0.6) if divergence.proven else (0.6 if known else 0.4)
    finding = blame(
        culprits,
        cause,
        "proven" if divergence.proven else "idle",
        confidence,
        _sentence(scene, divergence, culprits),
        waited_for=True,
    )
    return replace(
        finding,
        silence_s=min(one.reading.silence_s for one in divergence.standings),
        pace=None,
        evidence=tuple(_evidence(scene, divergence)),
        gaps=() if divergence.proven else (NO_RECORD,),
    )


def nature_of(scene: Scene, divergence: Divergence) -> Cause:
    """Tell the three causes apart.

    A rank under a test of its rank diverged, wherever it stands. One that has left the loop that
    the others are in ran out of work. Where all came the same way, they only meet with other
    operations, shapes or groups.
    """
    code = scene.case.code
    culprits = set(divergence.departed)
    departed = {one.reading.doing.frames for one in divergence.standings if one.rank in culprits}
    rest = {one.reading.doing.frames for one in divergence.standings if one.rank not in culprits}
    if any(rank_conditions(code, stack) for stack in departed):
        return "rank_diverged"
    if divergence.same_way:
        return "collective_mismatch"
    if rest and all(left_loop(code, stack, other) for stack, other in product(departed, rest)):
        return "uneven_work"
    return "rank_diverged"


def group_name(scene: Scene, group: str) -> str:
    """Return what people call a process group."""
    if group == DEFAULT_GROUP:
        return "the default group"
    for reading in scene.ranks.values():
        flight = reading.view.flight
        for record in flight.groups if flight is not None else ():
            if record.group == group and record.description not in ("", "undefined"):
                return f"group {record.description}"
    return f"group {group}"


def _sentence(scene: Scene, divergence: Divergence, culprits: list[RankReading]) -> str:
    first = next(one for one in divergence.standings if one.rank == culprits[0].rank)
    who = [reading.rank for reading in culprits]
    agreed = ""
    if divergence.group is not None and divergence.last_agreed:
        agreed = f"last agreed #{divergence.last_agreed} of {group_name(scene, divergence.group)}:"
    if len(who) == len(divergence.standings):
        others = [one for one in divergence.standings if one.rank != first.rank]
        deed = _does(scene, divergence, first)
        other = next((one for one in others if _does(scene, divergence, one) != deed), others[0])
        return join(
            f"ranks wait for each other, {agreed or 'nothing tells which departed:'}",
            f"rank {first.rank} {deed}, rank {other.rank}",
            _does(scene, divergence, other),
        )
    tests = rank_conditions(scene.case.code, first.reading.doing.frames)
    under = f"under {tests[0][2]}" if tests else ""
    left = f"{name_ranks(who)} {verb(who, 'has', 'have')} left the common way, {agreed}".rstrip()
    return join(left if agreed else left.rstrip(",") + ":", _does(scene, divergence, first), under)


def _does(scene: Scene, divergence: Divergence, standing: Standing) -> str:
    reading = standing.reading
    wait = reading.doing.wait
    now = wait.name if wait is not None else standing.operation.name
    parked = parked_in(reading.doing.frames)
    place = within(reading.place)
    operation = divergence.operations[standing.rank]
    instead = (
        f"did {operation}, now waits" if operation.name != standing.operation.name else "waits"
    )
    if divergence.group is None and standing.group not in (None, DEFAULT_GROUP):
        now = f"{now} of {group_name(scene, str(standing.group))}"
    what = f"{now} ({parked})" if parked else now
    return join(f"{instead} in {what}", f"called {place}" if place else "")


def _evidence(scene: Scene, divergence: Divergence) -> list[EvidenceItem]:
    together: dict[str, list[int]] = {}
    for rank, operation in divergence.operations.items():
        together.setdefault(str(operation), []).append(rank)
    told = ", ".join(f"{name_ranks(ranks)} {name}" for name, ranks in together.items())
    number = f"#{divergence.last_agreed + 1}" if divergence.last_agreed is not None else "now"
    where = group_name(scene, divergence.group) if divergence.group is not None else "collectives"
    items = [EvidenceItem("collective", None, f"{where}, {number}: {told}")]
    who = name_ranks(divergence.departed)
    items.append(EvidenceItem("departed", None, f"{who}: {TOLD_BY[divergence.telling]}"))
    for one in divergence.standings[:MOST_SHOWN]:
        for file, line, test in rank_conditions(scene.case.code, one.reading.doing.frames)[:1]:
            where = f"{file}:{line}" if line else file
            items.append(EvidenceItem("code", one.rank, f"stands under {test} ({where})"))
    return items
