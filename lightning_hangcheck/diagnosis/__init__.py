"""Explains: from the facts of a `Case` to a `Verdict`. Pure, and the same at any later time.

    case -> job (what each rank does, and where) -> graph (who waits for whom) -> rules -> verdict

What is knowledge and not logic (frames, remedies) stands in the data files of ``knowledge``.
"""

from lightning_hangcheck.diagnosis.judge import judge

__all__ = ["asked_end", "judge", "process_exit", "rounds", "rules", "verdict"]
