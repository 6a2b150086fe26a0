"""Ranks of `hangcheck run` that tell nothing of themselves.

Where it stands in front of `srun` the tasks are on other machines, where nobody watches them. Where
they run on this machine they are ranks of this session, and nothing is said, though slurmstepd is
their parent. A Python that was told to ignore PYTHONPATH does not run our start-up file. Both are
seen from the processes, not from the command: a shell script may start them.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.probes.proc.process_tree import born_ns, command_line, descendants
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank

EVERY_NS = 5 * NANOSECONDS
SAID_AFTER_NS = 30 * NANOSECONDS
"""A rank on this machine is seen within seconds of its start."""
_OPTIONS = re.compile(r"-(?P<flags>[^WXcm]*)(?P<last>[WXcm]?)(?P<value>.*)", re.DOTALL)
"""A word of Python's own: what follows its last letter, or the next word, is that one's value."""
_IGNORING = frozenset("IES")
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


def unrecorded(ranks: Iterable[WatchedRank]) -> tuple[Gap, ...]:
    """Say of which ranks nothing is recorded, because their Python runs no start-up file.

    Args:
        ranks: Those whose processes are there.
    """
    found = []
    for rank in ranks:
        words = command_line(rank.found.pid) if rank.beat is None else []
        option = "" if isinstance(words, Gap) else _ignoring_option(words)
        if option:
            number = rank.found.rank
            why = f"its Python was started with -{option}, which leaves our start-up file out"
            way_out = f"start it without -{option}, or add HangCheck() to its callbacks"
            found.append(Gap("steps and sections", number, why, "recording", way_out))
            log.once(
                f"unrecorded {number}",
                f"rank {number} is watched from outside only: {why}; {way_out}",
            )
    return tuple(found)


def _ignoring_option(words: Sequence[str]) -> str:
    """Return which of Python's options leaves `sitecustomize` or PYTHONPATH out; empty if none."""
    rest = iter(words[1:])
    for word in rest:
        option = _OPTIONS.fullmatch(word)
        if option is None:
            return ""
        ignoring = _IGNORING.intersection(option["flags"])
        if ignoring:
            return min(ignoring)
        if option["last"] in ("c", "m"):
            return ""
        if option["last"] and not option["value"]:
            next(rest, "")
    return ""
