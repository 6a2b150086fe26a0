"""Decides whether a phase that is done already runs again, or its outputs are reused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.ledger.ledger_file import Fingerprint, PastPhase, difference, fingerprint
from lightning_hangcheck.text.shown import seconds_in_words, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.ledger.ledger_file import History
    from lightning_hangcheck.ledger.spending import Prices

IfDone = Literal["rerun", "reuse", "ask", "error"]
Act = Literal["run", "reuse", "ask", "refuse"]
GOOD, POOR = 0.85, 0.70
"""Thresholds of the deciding metric, a share where larger is better. From ``GOOD`` on a phase is
reused, below ``POOR`` it is run, between them a person is asked; as users do by hand."""


class Decision(Struct, frozen=True, kw_only=True):
    """Whether to run a phase; ``refuse``: it must not run twice.

    Attributes:
        earlier: The phase whose outputs are at stake; None if there is none.
        invalidated: Phases made from its outputs, which become stale if it is run again.
    """

    act: Act = "run"
    why: str
    earlier: PastPhase | None = None
    invalidated: tuple[PastPhase, ...] = ()


def decide(
    history: History,
    name: str,
    if_done: IfDone,
    inputs: Sequence[Fingerprint] | None = None,
    outputs: Sequence[str] | None = None,
    thresholds: tuple[float, float] = (GOOD, POOR),
    look: Callable[[str], Fingerprint] = fingerprint,
) -> Decision:
    """Decide whether to run a phase that may have been run before.

    Without ``inputs`` the recorded inputs are compared; without ``outputs`` any outputs count.
    """
    earlier = history.last_done(name, outputs)
    if earlier is None:
        return Decision(why="it is not done yet")
    act, why = _weigh(earlier, if_done, inputs, thresholds, look)
    invalidated = history.resting_on(earlier)
    asked_about = [
        phase.name
        for phase in invalidated
        if phase.ask_from is not None
        and (phase.metric is None or phase.metric[1] >= phase.ask_from)
    ]
    if act == "run" and asked_about:
        rest = "rests" if len(asked_about) == 1 else "rest"
        act, why = "ask", f"{why}, and {' and '.join(asked_about)} {rest} on it"
    return Decision(act=act, why=why, earlier=earlier, invalidated=invalidated)


def _weigh(
    earlier: PastPhase,
    if_done: IfDone,
    inputs: Sequence[Fingerprint] | None,
    thresholds: tuple[float, float],
    look: Callable[[str], Fingerprint],
) -> tuple[Act, str]:
    if if_done == "rerun":
        return "run", "its script runs it each time"
    good, poor = thresholds
    name, value = earlier.metric or ("", None)
    if if_done == "ask" and value is not None and value < poor:
        return "run", f"{name} {value:g} is poor (below {poor:g})"
    before = {file.path: file for file in earlier.inputs}
    now = inputs if inputs is not None else tuple(map(look, before))
    found = {file.path: file for file in now}
    changes = [f"{path} is a new input" for path in found if path not in before]
    changes += [f"{path} is not an input any more" for path in before if path not in found]
    changes += [difference(file, found[path]) for path, file in before.items() if path in found]
    changes += [difference(file, look(file.path)) for file in earlier.outputs]
    changed = "; ".join(filter(None, changes)) or earlier.stale
    if if_done == "ask":
        if changed or value is None:
            return "ask", changed or "it is done, and no metric says how well"
        if value >= good:
            return "reuse", f"{name} {value:g} is good (from {good:g})"
        return "ask", f"{name} {value:g} is between poor ({poor:g}) and good ({good:g})"
    if changed:
        return "run", changed
    if if_done == "error":
        done = f"phase {earlier.name} is done since {earlier.begun_at}, and nothing changed"
        return "refuse", done
    return "reuse", "it is done, and its inputs and outputs are as they were"


def question(decision: Decision, if_done: IfDone, prices: Prices) -> str:
    """Ask a person to choose: each option with time and price, and what becomes stale."""

    def effort(phase: PastPhase) -> str:
        if phase.duration_s is None:
            return "of unknown time"
        cost = prices.cost(phase.place.gpus, phase.place.ranks, phase.duration_s)
        money = f", price {cost:.2f}" if cost is not None else ""
        return f"{seconds_in_words(phase.duration_s)}{money}"

    earlier = decision.earlier
    if earlier is None:
        return ""
    lines = [f"phase {earlier.name}: {decision.why}"]
    if if_done != "rerun":
        lines.append(f"  reuse  what it made ({metrics_of(earlier)}): no time, no price")
    stale = "; what rests on it becomes stale:" if decision.invalidated else ""
    lines.append(f"  rerun  {effort(earlier)}, as the last time{stale}")
    lines += [
        f"         {phase.name} ({metrics_of(phase)}), {effort(phase)}"
        for phase in decision.invalidated
    ]
    return "\n".join(map(visible, lines))


def metrics_of(phase: PastPhase) -> str:
    """Show its metrics in words."""
    shown = ", ".join(f"{name} {value:g}" for name, value in phase.metrics.items())
    return shown or "no metrics"
