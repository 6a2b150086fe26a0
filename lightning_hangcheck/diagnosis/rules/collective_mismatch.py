"""collective_mismatch: ranks walk the same code, yet meet with other operations or shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.finding import Rule
from lightning_hangcheck.diagnosis.rules.parting import parted

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation


def find(situation: Situation) -> Finding | None:
    """Blame the ranks that departed, if this is why."""
    return parted(situation, "collective_mismatch")


RULE = Rule(cause="collective_mismatch", needs=("stacks",), find=find)
