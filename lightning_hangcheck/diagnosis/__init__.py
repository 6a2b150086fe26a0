"""Explains: from the facts of a `Case` to a `Verdict`. Pure, and the same at any later time.

    case -> job (what each rank does, and where) -> divergence -> graph (who waits for whom)
         -> rules and causes (what is wrong, by whom) -> verdict (in words)

`judge` is all of it. Outsiders may also ask how a process or a round ended (`process_exit`,
`asked_end`, `rounds`) and how long a finding must last (`rules.patience`).
What is knowledge and not logic (frames, remedies) stands in the data files of ``knowledge``.
"""

from lightning_hangcheck.diagnosis.judge import judge

__all__ = ["asked_end", "judge", "process_exit", "rounds", "verdict"]
