"""Summarises a ledger's phases and runs, and decides whether a phase is run again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.ledger.ledger_file import (
    Begun,
    Ended,
    Fingerprint,
    Measured,
    Place,
    Reused,
    Run,
    difference,
    fingerprint,
)
from lightning_hangcheck.machine import is_alive
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lightning_hangcheck.ledger.ledger_file import Pages
    from lightning_hangcheck.ledger.spending import Prices

Status = Literal["running", "done", "failed", "interrupted", "unknown"]


class PastPhase(Struct, frozen=True, kw_only=True):
    """A phase, from all its lines.

    Attributes:
        status: ``interrupted``: the process is gone and recorded no end. ``unknown``: it recorded
            no end, and ran on another host.
        duration_s: None if unknown; without a recorded end, the least duration known.
        deciding: Name of the metric that rates the phase; empty for its only metric.
        discarded: Why its outputs no longer count; empty while they do.
        stale: Why its outputs exist, but were made from older inputs; empty if they were not.
    """

    id: str
    name: str
    status: Status
    begun_at: str
    place: Place
    duration_s: float | None = None
    cpu_s: float = 0.0
    deciding: str = ""
    ask_from: float | None = None
    metrics: dict[str, float] = {}
    error: str = ""
    inputs: tuple[Fingerprint, ...] = ()
    outputs: tuple[Fingerprint, ...] = ()
    reused: int = 0
    discarded: str = ""
    stale: str = ""
    offloaded: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether its outputs can be used."""
        return self.status == "done" and not self.discarded

    @property
    def metric(self) -> tuple[str, float] | None:
        """The metric that rates the phase; None if it was not recorded."""
        if self.deciding:
            value = self.metrics.get(self.deciding)
            return None if value is None else (self.deciding, value)
        return next(iter(self.metrics.items())) if len(self.metrics) == 1 else None

    @property
    def asked_about(self) -> bool:
        """Whether a person is asked before its outputs are lost or become stale."""
        measured = self.metric
        return self.ask_from is not None and (measured is None or measured[1] >= self.ask_from)

    @property
    def made(self) -> frozenset[str]:
        """Paths of its outputs."""
        return frozenset(output.path for output in self.outputs)

    def made_same(self, outputs: Collection[Fingerprint]) -> bool:
        """Whether its outputs are exactly these files, with this content, as far as known."""
        mine, others = (
            {file.path: file.digest for file in some} for some in (self.outputs, outputs)
        )
        return bool(mine) and all(mine.values()) and mine == others


class PhaseHistory(Struct, frozen=True, kw_only=True):
    """All phases and runs, oldest first. ``state.json`` holds the same."""

    schema_version: int = 1
    phases: tuple[PastPhase, ...] = ()
    runs: tuple[Run, ...] = ()
    unreadable: int = 0

    def last_done(self, name: str, outputs: Collection[str] | None = None) -> PastPhase | None:
        """Return the newest usable phase of this name, with exactly these outputs if named."""
        named = (phase for phase in reversed(self.phases) if phase.name == name and phase.counts)
        return next(
            (phase for phase in named if outputs is None or phase.made == set(outputs)), None
        )

    def resting_on(self, phase: PastPhase) -> tuple[PastPhase, ...]:
        """Return phases made from this phase's outputs, directly or not, that are not stale yet."""
        made = set(phase.made)
        found: list[PastPhase] = []
        # what was made from the same files of an earlier run counts too
        same = (
            at
            for at, other in enumerate(self.phases)
            if other.id == phase.id or (other.name == phase.name and other.made_same(phase.outputs))
        )
        for later in self.phases[next(same, -1) + 1 :]:
            if later.id == phase.id or not later.counts:
                continue
            # an input is an output, is inside an output folder, or contains an output
            pairs = ((file.path, path) for file in later.inputs for path in made)
            if any(a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") for a, b in pairs):
                found.append(later)
                made |= later.made
        return tuple(phase for phase in found if not phase.stale)


def process_alive(place: Place) -> bool | None:
    """Whether the process of a phase is alive; None if it is on another host."""
    return is_alive(place.pid, place.started_ticks) if place.host == os.uname().nodename else None


def tell(pages: Pages, alive: Callable[[Place], bool | None] = process_alive) -> PhaseHistory:
    """Summarise the lines of a ledger."""
    phases: dict[str, PastPhase] = {}
    runs = tuple(line for line in pages.lines if isinstance(line, Run))
    for line in pages.lines:
        if isinstance(line, Begun):
            phases[line.id] = PastPhase(
                id=line.id,
                name=line.phase,
                status="running",
                begun_at=line.at,
                place=line.place,
                deciding=line.deciding,
                ask_from=line.ask_from,
                inputs=line.inputs,
            )
        elif line.id in phases and not isinstance(line, Run):
            phase = phases[line.id]
            if isinstance(line, Measured):
                metrics = {**phase.metrics, **line.metrics}
                changed = replace(phase, metrics=metrics, duration_s=max(0.0, line.after_s))
            elif isinstance(line, Ended):
                changed = replace(
                    phase,
                    status="failed" if line.error else "done",
                    duration_s=max(0.0, line.duration_s),
                    cpu_s=line.cpu_s,
                    error=line.error,
                    metrics={**phase.metrics, **line.metrics},
                    outputs=line.outputs,
                    offloaded=line.offloaded,
                )
            elif isinstance(line, Reused):
                changed = replace(phase, reused=phase.reused + 1)
            else:
                # if the phase itself ran again, its files are replaced; otherwise only stale
                by = phases.get(line.by)
                if by is None or (by.name == phase.name and by.made == phase.made):
                    changed = replace(phase, discarded=line.why)
                else:
                    changed = replace(phase, stale=phase.stale or line.why)
            phases[line.id] = changed
    for id_, phase in phases.items():
        if phase.status == "running":
            there = alive(phase.place)
            status: Status = "unknown" if there is None else "running" if there else "interrupted"
            phases[id_] = replace(phase, status=status)
    return PhaseHistory(phases=tuple(phases.values()), runs=runs, unreadable=pages.unreadable)


IfDone = Literal["rerun", "reuse", "ask", "error"]
Answer = Literal["ask", "reuse", "rerun"]
Act = Literal["run", "reuse", "ask"]
GOOD, POOR = 0.85, 0.70
"""Thresholds of the deciding metric, a share where larger is better. From ``GOOD`` on a phase is
reused, below ``POOR`` it is run, between them a person is asked; as users do by hand."""


class PhaseDone(HangcheckError):
    """A phase that must not run twice is already done."""


class Decision(Struct, frozen=True, kw_only=True):
    """Whether to run a phase.

    Attributes:
        earlier: The phase whose outputs are at stake; None if there is none.
        invalidated: Phases made from its outputs, which become stale if it is run again.
        reusable: Whether its script works without running it.
    """

    act: Act
    why: str
    earlier: PastPhase | None = None
    invalidated: tuple[PastPhase, ...] = ()
    reusable: bool = True


def decide(
    history: PhaseHistory,
    name: str,
    if_done: IfDone,
    inputs: Sequence[Fingerprint] | None = None,
    outputs: Sequence[str] | None = None,
    thresholds: tuple[float, float] = (GOOD, POOR),
    look: Callable[[str], Fingerprint] = fingerprint,
) -> Decision:
    """Decide whether to run a phase that may have been run before.

    Without ``inputs`` the recorded inputs are compared; without ``outputs`` any outputs count.

    Raises:
        PhaseDone: It is done, nothing changed since, and ``if_done`` is ``error``.
    """
    earlier = history.last_done(name, outputs)
    if earlier is None:
        return Decision(act="run", why="it is not done yet")
    now = inputs if inputs is not None else tuple(look(file.path) for file in earlier.inputs)
    known, found = ({file.path: file for file in some} for some in (earlier.inputs, now))
    pairs = [(file, found[path]) for path, file in known.items() if path in found]
    pairs += [(output, look(output.path)) for output in earlier.outputs]
    changes = [f"{path} is a new input" for path in found if path not in known]
    changes += [f"{path} is not an input any more" for path in known if path not in found]
    changes += filter(None, (difference(before, after) for before, after in pairs))
    changes = changes or [earlier.stale] * bool(earlier.stale)
    act, why = _weigh(earlier, if_done, "; ".join(changes), thresholds)
    invalidated = history.resting_on(earlier)
    asked_about = [phase.name for phase in invalidated if phase.asked_about]
    if act == "run" and asked_about:
        rest = "rests" if len(asked_about) == 1 else "rest"
        act, why = "ask", f"{why}, and {' and '.join(asked_about)} {rest} on it"
    return Decision(
        act=act, why=why, earlier=earlier, invalidated=invalidated, reusable=if_done != "rerun"
    )


def _weigh(
    earlier: PastPhase, if_done: IfDone, changes: str, thresholds: tuple[float, float]
) -> tuple[Act, str]:
    if if_done == "rerun":
        return "run", "its script runs it each time"
    if if_done != "ask":
        if changes:
            return "run", changes
        if if_done == "error":
            raise PhaseDone(
                f"phase {earlier.name} is done since {earlier.begun_at}, and nothing changed",
                'remove it from the script, or give it if_done="reuse" or if_done="rerun"',
            )
        return "reuse", "it is done, and its inputs and outputs are as they were"
    good, poor = thresholds
    name, value = earlier.metric or ("", None)
    if value is not None and value < poor:
        return "run", f"{name} {value:g} is poor (below {poor:g})"
    if changes:
        return "ask", changes
    if value is None:
        return "ask", "it is done, and no metric says how well"
    if value >= good:
        return "reuse", f"{name} {value:g} is good (from {good:g})"
    return "ask", f"{name} {value:g} is between poor ({poor:g}) and good ({good:g})"


def answered(decision: Decision, answer: Answer) -> Decision:
    """Apply HANGCHECK_IF_DONE: it answers the question, and ``rerun`` overrides a reuse."""
    if answer == "ask" or decision.act == "run" or decision.act == answer:
        return decision
    act: Act = "reuse" if answer == "reuse" and decision.reusable else "run"
    return replace(decision, act=act, why=f"{decision.why}; HANGCHECK_IF_DONE={answer}")


def question(decision: Decision, prices: Prices) -> str:
    """Ask a person to choose: each option with time and price, and what becomes stale."""
    earlier = decision.earlier
    if earlier is None:
        return ""
    lines = [f"phase {earlier.name}: {decision.why}"]
    if decision.reusable:
        lines.append(f"  reuse  what it made ({_metrics(earlier)}): no time, no price")
    stale = "; what rests on it becomes stale:" if decision.invalidated else ""
    lines.append(f"  rerun  {_price(earlier, prices)}, as the last time{stale}")
    rest = [(phase, _price(phase, prices)) for phase in decision.invalidated]
    lines += [f"         {phase.name} ({_metrics(phase)}), {price}" for phase, price in rest]
    return "\n".join(lines)


def stale_in_words(decision: Decision) -> str:
    """Name the phases that running it again makes stale, in a clause; empty if none."""
    names = ", ".join(f"{phase.name} ({_metrics(phase)})" for phase in decision.invalidated)
    return f"; if it makes something else, this becomes stale: {names}" if names else ""


def _metrics(phase: PastPhase) -> str:
    shown = ", ".join(f"{name} {value:g}" for name, value in phase.metrics.items())
    return shown or "no metrics"


def _price(phase: PastPhase, prices: Prices) -> str:
    if phase.duration_s is None:
        return "of unknown time"
    cost = prices.cost(phase.place.gpus, phase.place.ranks, phase.duration_s)
    money = f", price {cost:.2f}" if cost is not None else ""
    return f"{seconds_in_words(phase.duration_s)}{money}"
