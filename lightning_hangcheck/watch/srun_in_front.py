"""`hangcheck run` in front of `srun`: the tasks are on other machines, where nobody watches them.

Seen from the processes, not from the command: a shell script may start `srun`. Where its tasks run
on this machine they are ranks of this session, and nothing is said, though slurmstepd is their
parent.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.probes.proc.process_tree import born_ns, command_line, descendants
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session

EVERY_NS = 5 * NANOSECONDS
SAID_AFTER_NS = 30 * NANOSECONDS
"""A rank on this machine is seen within seconds of its start."""
OURS = ("hangcheck", "lightning_hangcheck")


class SrunInFront:
    """Says once that `srun` hides the ranks of this run.

    Args:
        session: Of the run.
    """

    def __init__(self, session: Session) -> None:
        self._root_pid = session.facts.root_pid
        self._needless = not session.facts.launched
        self._looked_ns = 0

    def look(self, now_ns: int, *, ranks_seen: bool) -> None:
        """Look once in a while, until it is said or a rank was seen.

        Args:
            now_ns: Present time.
            ranks_seen: Whether any process of this machine records as a rank.
        """
        self._needless = self._needless or ranks_seen
        if self._needless or (self._looked_ns and now_ns - self._looked_ns < EVERY_NS):
            return
        self._looked_ns = now_ns
        pid = self._srun(now_ns)
        if pid is not None:
            self._needless = True
            log.once(
                "srun in front",
                f"no rank of srun (pid {pid}) is seen on this machine: its tasks run on others, or "
                "have not started; put hangcheck behind it, so that each node watches its own: "
                "srun hangcheck run -- python train.py",
            )

    def _srun(self, now_ns: int) -> int | None:
        """An `srun` below us that is there for long, and starts no `hangcheck` itself."""
        for process in descendants(self._root_pid):
            words = command_line(process.pid)
            if isinstance(words, Gap) or not words or PurePath(words[0]).name != "srun":
                continue
            behind = any(PurePath(word).name in OURS for word in words)
            if not behind and now_ns - born_ns(process.pid) >= SAID_AFTER_NS:
                return process.pid
        return None
