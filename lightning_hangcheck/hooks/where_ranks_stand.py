"""Where ranks of this node stand that others wait for in vain: their stacks, or why there are none.

py-spy is asked first, from the rank that waits. Where the kernel lets only the sidecar read (Yama),
the sidecar's newest verdict has a stack, if it was suspicious already.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.model.ranges import parse_ranks
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.probes.stacks import python_stacks
from lightning_hangcheck.probes.vitals import has_ended, vitals
from lightning_hangcheck.rundir.decoding import decode
from lightning_hangcheck.rundir.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.sidecar.census import Census
from lightning_hangcheck.sidecar.discovery import find_ranks
from lightning_hangcheck.sidecar.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.rundir.session import Session

LOOK_LIMIT = 4.0  # seconds for all of them; py-spy needs about 10 ms for one
MOST_RANKS = 8
MOST_FRAMES = 16
NEEDS_NO_PAUSE = "DTt"  # states in which a process cannot be paused for a look


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands, in lines.

    Attributes:
        seen: A process of it was found on this node.
    """

    lines: str
    seen: bool = True


NOT_SHARED = Standing(
    lines="no stack: the ranks have no session in common here; start the job with hangcheck run",
    seen=False,
)


def where_they_stand(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, Standing]:
    """Look for ranks on this node, within a few seconds. Never raises for what it cannot see.

    Args:
        session: Of this node.
        indices: Ranks, or local ranks; only the first 8 are looked at.
        local: Which of the two.
    """
    if session is None:
        return dict.fromkeys(indices[:MOST_RANKS], NOT_SHARED)
    deadline = time.monotonic() + LOOK_LIMIT
    processes = _processes(session, local=local)
    return {
        index: _look(session, index, processes.get(index), deadline)
        for index in indices[:MOST_RANKS]
    }


def _processes(session: Session, *, local: bool) -> dict[int, tuple[int, Beat | None]]:
    """Process id and page of each rank of this node."""
    pages = Pages(session.pages)
    pages.find_new()
    beats, _ = pages.read()
    pages.close()
    facts = session.facts
    census = Census(facts.root_pid, root_belongs=not facts.launched)
    found = find_ranks(census.take(time.monotonic_ns()), beats)
    by_environment = {one.local_rank if local else one.rank: (one.pid, None) for one in found}
    # a page outlives its process: where a rank was started again, the process that lives counts
    in_order = sorted(beats.items(), key=lambda one: has_ended(one[0]), reverse=True)
    by_page = {beat.local_rank if local else beat.rank: (pid, beat) for pid, beat in in_order}
    return {key: one for key, one in (by_environment | by_page).items() if key is not None}


def _look(
    session: Session, index: int, process: tuple[int, Beat | None] | None, deadline: float
) -> Standing:
    if process is None:
        return Standing(lines="no process of it is seen on this node", seen=False)
    pid, beat = process
    signs = vitals(pid)
    if signs is None or has_ended(pid):
        said = f" ({beat.last_words})" if beat is not None and beat.last_words else ""
        return Standing(lines=f"pid {pid} has ended{said}")
    stopped = ", which is stopped" if signs.state in "Tt" else ""
    stack, gaps = python_stacks(
        pid, index, max(0.1, deadline - time.monotonic()), signs.state in NEEDS_NO_PAUSE
    )
    if stack is not None:
        frames = [str(frame) for frame in stack.threads[0].frames]
        return Standing(lines=f"pid {pid}{stopped}, main thread:{_indented(frames)}")
    earlier = _seen_by_sidecar(session, index if beat is None else beat.rank)
    if earlier:
        return Standing(lines=f"pid {pid}{stopped}, as the sidecar saw it:{_indented(earlier)}")
    return Standing(lines=f"pid {pid}{stopped}; no stack: {gaps[0].why if gaps else 'unknown'}")


def _indented(frames: Sequence[str]) -> str:
    left_out = len(frames) - MOST_FRAMES
    shown = [f"... {left_out} outer calls", *frames[left_out:]] if left_out > 0 else frames
    return "".join(f"\n    {frame}" for frame in shown)


def _seen_by_sidecar(session: Session, rank: int | None) -> Sequence[str]:
    file = session.run_folder.verdict_file
    try:
        verdict = decode(read_owned(file, EVIDENCE_BYTES), Verdict, str(file))
    except (OSError, UnreadableRun):
        return ()
    groups = (one for one in verdict.stack_groups if one.process == "rank")
    return next((one.frames for one in groups if rank in parse_ranks(one.ranks)), ())
