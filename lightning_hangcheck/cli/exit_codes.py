"""The exit codes by which scripts know an outcome.

`launch.run.ABORTED` is 75, a job that ``--on-hang`` ended; `errors` has 4, no job was found. doctor
and lint return 1 and 2 by how grave their findings are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

BAD_USAGE = 2
HANG = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells do
FOUND = ("hang", "dead", "crashed")
WELL = ("healthy", "finished", "recovered")


def exit_code_of(verdict: Verdict) -> int:
    """Return 3 for a hang that was found, else 0: a script may end a job on 3."""
    return HANG if verdict.verdict in FOUND else 0


def exit_code_after_death(verdict: Verdict) -> int:
    """Return 0 if a dead job ended well, else 3: also an explanation in part is one."""
    return 0 if verdict.verdict in WELL else HANG
