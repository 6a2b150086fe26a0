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


def explanation(cause: Cause) -> str:
    """Return one sentence on a cause, empty where this version knows none."""
    from lightning_hangcheck.diagnosis.knowledge.loading import causes_file

    known = causes_file().cause.get(cause)
    return known.explanation if known else ""


def causes() -> Mapping[Cause, CauseKnowledge]:
    """Return what is known of every cause that a rule gives, in the knowledge file's order."""
    from lightning_hangcheck.diagnosis.knowledge.loading import causes_file

    return causes_file().cause
