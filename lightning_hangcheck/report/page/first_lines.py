"""What a tired person reads first: who and where, why, what now, and what it has cost so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.verdict_text.headline import stall_cost, summary
from lightning_hangcheck.report.verdict_text.terminal import reason

if TYPE_CHECKING:
    from lightning_hangcheck.report.page.page_facts import PageFacts


class FirstLines(Struct, frozen=True):
    """The head of the page.

    Attributes:
        who: The verdict's sentence.
        why: Cause, explanation and who waits; empty where the sentence says it all.
        now: The most likely remedy; empty where none is known.
        command: What can be typed for that remedy; empty where nothing can.
        explain: The command that says more of the cause; empty where there is no cause.
        cost: How long and how much; empty where nothing stands still.
        lost: What a restart throws away; empty where nobody can tell.
    """

    who: str
    why: str
    now: str
    command: str
    explain: str
    cost: str
    lost: str


def first_lines(facts: PageFacts) -> FirstLines:
    """Write the head of a page."""
    verdict = facts.verdict
    first = next(iter(verdict.remedies), None)
    return FirstLines(
        who=summary(verdict),
        why=reason(verdict),
        now="" if first is None else first.text,
        command="" if first is None else first.command,
        explain=f"hangcheck explain {verdict.cause}" if verdict.cause else "",
        cost=_cost(facts),
        lost=next((item.text for item in verdict.evidence if item.kind == "lost"), ""),
    )


def _cost(facts: PageFacts) -> str:
    cost = stall_cost(facts.verdict)
    if not cost:
        return ""
    gpus = {
        gpu.name
        for view in (facts.case.ranks if facts.case is not None else ())
        for look in view.processes
        for sample in look.samples[-1:]
        for gpu in sample.gpus
    }
    verdict = facts.verdict
    price = facts.prices.cost(sorted(gpus), max(1, verdict.world_size), verdict.stalled_for_s)
    return cost if price is None else f"{cost} = {price:.2f} at your price"
