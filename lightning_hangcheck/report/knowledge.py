"""What the report asks of the knowledge files, which are read at the first question.

Imports stand inside the functions: the sidecar imports the report from its start, but the judgement
and its graph library (20 MB) only once it has something to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.diagnosis.knowledge.loading import CauseKnowledge
    from lightning_hangcheck.model.slugs import Cause


def explanation(cause: Cause, world_size: int) -> str:
    """Return one sentence on a cause in a job of so many ranks, empty where none is known."""
    from lightning_hangcheck.diagnosis.knowledge.loading import causes_file

    known = causes_file().cause.get(cause)
    if known is None:
        return ""
    return known.alone if world_size <= 1 and known.alone else known.explanation


def causes() -> Mapping[Cause, CauseKnowledge]:
    """Return what is known of every cause that a rule gives, in the knowledge file's order."""
    from lightning_hangcheck.diagnosis.knowledge.loading import causes_file

    return causes_file().cause
