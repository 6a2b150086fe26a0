"""rank_diverged: a rank makes a collective that the others don't make there, or skips one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.finding import Rule
from lightning_hangcheck.diagnosis.rules.parting import parted

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation


def find(situation: Situation) -> Finding | None:
    """Blame the ranks that departed, if this is why."""
    return parted(situation, "rank_diverged")


RULE = Rule(cause="rank_diverged", needs=("stacks",), find=find)
