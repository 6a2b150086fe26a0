"""Must a phase run again, or will what it made do? Pure but for the fingerprints that are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.ledger.fingerprints import difference, fingerprint
from lightning_hangcheck.ledger.story import PhaseStory
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.ledger.fingerprints import Fingerprint
    from lightning_hangcheck.ledger.prices import Prices
    from lightning_hangcheck.ledger.story import Story

IfDone = Literal["rerun", "reuse", "ask", "error"]
GOOD, POOR = 0.85, 0.70
"""Thresholds of the deciding metric, a share that is better when it is larger: from ``GOOD`` on a
phase is reused, below ``POOR`` it is run, between them a person is asked. As its users do by
hand."""


class PhaseDone(HangcheckError):
    """A phase that must not run twice is done already."""


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be done about a phase.

    Attributes:
        act: ``run`` it, ``reuse`` what it made, or ``ask`` a person.
        why: In one clause.
        earlier: The phase whose outputs are at stake; None where there is none.
        invalidated: Phases that rest on it, which running it again makes stale.
        reusable: Whether its script can do without running it.
    """

    act: Literal["run", "reuse", "ask"]
    why: str
    earlier: PhaseStory | None = None
    invalidated: tuple[PhaseStory, ...] = ()
    reusable: bool = True


def decide(
    story: Story,
    name: str,
    if_done: IfDone,
    inputs: Sequence[Fingerprint] | None = None,
    outputs: Sequence[str] | None = None,
    thresholds: tuple[float, float] = (GOOD, POOR),
    look: Callable[[str], Fingerprint] = fingerprint,
) -> Decision:
    """Decide about a phase that may have been run before.

    Args:
        story: What the ledger tells.
        name: Of the phase.
        if_done: What its script asked for.
        inputs: As they are now; None for the ones that it was run with.
        outputs: Paths that it is to make; None for whichever it made.
        thresholds: Good and poor.
        look: Takes the fingerprint of a path.

    Raises:
        PhaseDone: It is done, nothing changed since, and ``if_done`` is ``error``.
    """
    earlier = story.last_done(name, outputs)
    if earlier is None:
        return Decision(act="run", why="it is not done yet")
    now = inputs if inputs is not None else tuple(look(one.path) for one in earlier.inputs)
    changes = [*_changed(earlier.inputs, now), *_changed_outputs(earlier.outputs, look)]
    if earlier.stale and not changes:
        changes = [earlier.stale]
    act, why = _weigh(earlier, if_done, changes, thresholds)
    invalidated = story.resting_on(earlier)
    asked_about = [one.name for one in invalidated if one.asked_about]
    if act == "run" and asked_about:
        rest = "rests" if len(asked_about) == 1 else "rest"
        act, why = "ask", f"{why}, and {' and '.join(asked_about)} {rest} on it"
    return Decision(
        act=act,
        why=why,
        earlier=earlier,
        invalidated=invalidated,
        reusable=if_done != "rerun",
    )


def _weigh(
    earlier: PhaseStory,
    if_done: IfDone,
    changes: Sequence[str],
    thresholds: tuple[float, float],
) -> tuple[Literal["run", "reuse", "ask"], str]:
    if if_done == "rerun":
        return "run", "its script runs it each time"
    if if_done == "ask":
        return _by_metric(earlier, changes, thresholds)
    if changes:
        return "run", "; ".join(changes)
    if if_done == "error":
        raise PhaseDone(
            f"phase {earlier.name} is done since {earlier.begun_at}, and nothing changed",
            'remove it from the script, or give it if_done="reuse" or if_done="rerun"',
        )
    return "reuse", "it is done, and its inputs and outputs are as they were"


def _by_metric(
    earlier: PhaseStory, changes: Sequence[str], thresholds: tuple[float, float]
) -> tuple[Literal["run", "reuse", "ask"], str]:
    good, poor = thresholds
    measured = earlier.metric
    if measured is not None and measured[1] < poor:
        return "run", f"{measured[0]} {measured[1]:g} is poor (below {poor:g})"
    if changes:
        return "ask", "; ".join(changes)
    if measured is None:
        return "ask", "it is done, and no metric says how well"
    if measured[1] >= good:
        return "reuse", f"{measured[0]} {measured[1]:g} is good (from {good:g})"
    return "ask", f"{measured[0]} {measured[1]:g} is between poor ({poor:g}) and good ({good:g})"


def question(decision: Decision, prices: Prices) -> str:
    """Put the choice to a person: each way with its time and price, and what it makes stale."""
    earlier = decision.earlier
    if earlier is None:
        return ""
    reuse = f"  reuse  what it made ({_metrics(earlier)}): no time, no price"
    lines = [
        f"phase {earlier.name}: {decision.why}",
        *([reuse] if decision.reusable else []),
        f"  rerun  {_price(earlier, prices)}, as the last time{_stale(decision, prices)}",
    ]
    return "\n".join(lines)


def _stale(decision: Decision, prices: Prices) -> str:
    if not decision.invalidated:
        return ""
    phases = "".join(
        f"\n         {one.name} ({_metrics(one)}), {_price(one, prices)}"
        for one in decision.invalidated
    )
    return f"; what rests on it becomes stale:{phases}"


def stale_in_words(decision: Decision) -> str:
    """Name what running it again makes stale, in a clause; empty where nothing rests on it."""
    names = ", ".join(f"{one.name} ({_metrics(one)})" for one in decision.invalidated)
    return f"; if it makes something else, this becomes stale: {names}" if names else ""


def _metrics(phase: PhaseStory) -> str:
    told = ", ".join(f"{name} {value:g}" for name, value in phase.metrics.items())
    return told or "no metrics"


def _price(phase: PhaseStory, prices: Prices) -> str:
    if phase.duration_s is None:
        return "of unknown time"
    cost = prices.cost(phase.place.gpus, phase.place.ranks, phase.duration_s)
    money = f", price {cost:.2f}" if cost is not None else ""
    return f"{seconds_in_words(phase.duration_s)}{money}"


def _changed(before: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> list[str]:
    known = {one.path: one for one in before}
    found = {one.path: one for one in now}
    new = [f"{path} is a new input" for path in found if path not in known]
    left = [f"{path} is no input any more" for path in known if path not in found]
    both = [difference(one, found[path]) for path, one in known.items() if path in found]
    return [*new, *left, *filter(None, both)]


def _changed_outputs(
    before: Sequence[Fingerprint], look: Callable[[str], Fingerprint]
) -> list[str]:
    return [words for one in before if (words := difference(one, look(one.path)))]
