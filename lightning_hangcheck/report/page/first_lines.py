"""What a tired person reads first: who and where, why, what now, and what it has cost so far."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.verdict_text.headline import stall_cost, summary
from lightning_hangcheck.report.verdict_text.terminal import reason

if TYPE_CHECKING:
    from lightning_hangcheck.report.page.page_facts import PageFacts

_COMMAND = re.compile(
    r"(?:^|: |; )((?:cat|curl|dmesg|export|grep|hangcheck|hf|kill|lslocks|nc|nvidia-smi|py-spy"
    r"|sacct|srun|ss|timeout|torchrun) [^;\n]+)"
)
"""Programs that the remedies of causes.toml name, behind a colon."""


class FirstLines(Struct, frozen=True):
    """The head of the page.

    Attributes:
        who: The verdict's sentence.
        why: Cause, explanation and who waits; empty where the sentence says it all.
        now: The most likely remedy; empty where none is known.
        command: What can be typed now.
        cost: How long and how much; empty where nothing stands still.
        lost: What a restart throws away; empty where nobody can tell.
    """

    who: str
    why: str
    now: str
    command: str
    cost: str
    lost: str


def first_lines(facts: PageFacts) -> FirstLines:
    """Write the head of a page."""
    verdict = facts.verdict
    remedies = [remedy.text for remedy in verdict.remedies]
    commands = (found[1] for text in remedies if (found := _COMMAND.search(text)))
    explain = f"hangcheck explain {verdict.cause}" if verdict.cause else ""
    return FirstLines(
        who=summary(verdict),
        why=reason(verdict),
        now=remedies[0] if remedies else "",
        command=next(commands, explain).strip(),
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
