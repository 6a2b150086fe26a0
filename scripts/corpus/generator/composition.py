"""Draws what a program is to be: framework, ranks, place, mechanism, thread, waiting, launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpus.generator.frameworks import huggingface, lightning, loops
from corpus.generator.mechanisms import (
    computing,
    healthy,
    outside,
    own_waits,
    parting,
    processes,
    uneven,
)
from corpus.generator.piece import Mechanism, Thread, Waiting
from corpus.generator.waiting import WAITS
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

PHASES = {
    **dict.fromkeys(("plain", "ddp", "fsdp", "fabric", "accelerate"), loops.PHASES),
    "lightning": lightning.PHASES,
    "huggingface": huggingface.PHASES,
}
FAMILIES = {
    "own_waits": own_waits.ALL,
    "outside": outside.ALL,
    "computing": computing.ALL,
    "processes": processes.ALL,
    "parting": parting.ALL,
    "uneven": uneven.ALL,
}
SHARES = (3, 3, 1, 2, 4, 1)
"""How often each family is drawn: as often as threads of users tell of it, roughly."""
PACED = ("dataset", "worker", "forward", "step", "callback", "backward", "optimizer")
"""Places that are passed in every step, so that their pace is known when something goes wrong."""
WITHOUT_SYNC = ("dataset", "worker", "forward", "backward", "optimizer")
"""Where the others wait by what the framework does next, as nobody calls a collective there."""
LONGEST_SILENCE_S, LONGEST_PACED_S = 240, 45
"""Of healthy programs: below what is called a hang, 300 s, or 60 s where a pace is known."""


class Composition(Struct, frozen=True, kw_only=True):
    """What a program is to be; ``affected`` are the ranks in which it happens."""

    framework: str
    ranks: int
    launch: str
    place: str
    mechanism: Mechanism
    thread: Thread
    waiting: Waiting
    wait_number: int
    affected: tuple[int, ...]
    seconds: int = 0

    @property
    def healthy(self) -> bool:
        """Whether it ends by itself."""
        return not self.mechanism.cause

    @property
    def phase(self) -> str:
        """Where in its life the affected ranks are, by the contract's order."""
        return PHASES[self.framework][self.place]


def draw(random: Random, healthy_one: bool, quick: bool = False) -> Composition:
    """Draw until the parts fit together.

    Args:
        random: The source of chance.
        healthy_one: Whether it is to end by itself.
        quick: Whether only what the contract calls within a minute may come.
    """
    while True:
        drawn = _draw(random, healthy_one, quick)
        if drawn is not None:
            return drawn


def _draw(random: Random, healthy_one: bool, quick: bool) -> Composition | None:
    framework = random.choice(list(PHASES))
    ranks = random.choice((1, 2, 2, 3, 3, 4))
    mechanism = random.choice(healthy.ALL if healthy_one else _hanging(random))
    place = random.choice([one for one in PHASES[framework] if _may_be(one, mechanism)])
    thread = random.choice(mechanism.threads)
    waiting = random.choice(mechanism.waiting or ("collective", "collective", *WAITS))
    affected = _affected(random, mechanism, ranks)
    if place in WITHOUT_SYNC:
        waiting = "collective"
        thread = thread if thread != "process" else "main"
    if place == "worker":
        thread = "main"
    if len(affected) == ranks and mechanism.culprits == "affected" and not mechanism.ranked:
        waiting = "nobody"
    drawn = Composition(
        framework=framework,
        ranks=ranks,
        launch=_launch(random, framework, ranks),
        place=place,
        mechanism=mechanism,
        thread=thread,
        waiting=waiting,
        wait_number=random.randrange(100),
        affected=affected,
        seconds=_seconds(random, place, quick) if healthy_one else 0,
    )
    return drawn if _fits(drawn) and not (quick and mechanism.slow) else None


def _hanging(random: Random) -> Sequence[Mechanism]:
    (family,) = random.choices(list(FAMILIES), weights=SHARES)
    return FAMILIES[family]


def _may_be(place: str, mechanism: Mechanism) -> bool:
    if mechanism.places:
        return place in mechanism.places
    return place != "worker" or not mechanism.cause


def _affected(random: Random, mechanism: Mechanism, ranks: int) -> tuple[int, ...]:
    if mechanism.affects == "first":
        return (0,)
    if mechanism.affects == "one" or random.random() < 0.6:
        return (random.randrange(ranks),)
    if random.random() < 0.5:
        return tuple(range(ranks))
    return tuple(sorted(random.sample(range(ranks), random.randint(1, ranks))))


def _launch(random: Random, framework: str, ranks: int) -> str:
    if ranks == 1:
        return "alone"
    if framework == "lightning":
        return random.choice(("torchrun", "torchrun", "alone"))  # Lightning starts ranks itself
    return random.choice(("torchrun", "torchrun", "spawn", "own"))


def _seconds(random: Random, place: str, quick: bool) -> int:
    if quick:
        return random.randint(8, 14)
    return random.randint(20, LONGEST_PACED_S if place in PACED else LONGEST_SILENCE_S)


def _fits(one: Composition) -> bool:
    mechanism, waited = one.mechanism, len(one.affected)
    if one.ranks < mechanism.least_ranks:
        return False
    if mechanism.frameworks and one.framework not in mechanism.frameworks:
        return False
    if one.ranks == 1:
        return one.framework in ("plain", "lightning", "huggingface") and not mechanism.ranked
    before_group = one.framework == "lightning" and one.place in lightning.EARLY
    if before_group and (mechanism.ranked or one.waiting != "nobody"):
        return False
    if mechanism.ranked and (one.place in WITHOUT_SYNC or one.thread != "main"):
        return False
    if one.waiting not in ("nobody", "collective") and one.place in WITHOUT_SYNC:
        return False
    if one.waiting in ("p2p", "store", "flag_file") and waited > 1:
        return False
    # a send or receive, a store's or file's wait beside a rank's own collective leads nowhere else
    if mechanism.ranked and one.waiting not in ("collective", "async", "polled"):
        return False
    return not (one.framework == "fsdp" and one.place in ("forward",))
