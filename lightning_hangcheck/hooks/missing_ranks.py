"""Who did not come to a rendezvous, and where they are stuck: their stacks, or why there are none.

A rank sees processes of its own node only. py-spy is asked from the rank that waits. Where the
kernel lets only the sidecar read (Yama), its newest verdict has a stack, if it was suspicious.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned
from lightning_hangcheck.hooks.rendezvous import LOOK_LIMIT, Outcome
from lightning_hangcheck.judge.alike import shown_frames
from lightning_hangcheck.look.proc import has_ended, vitals
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.discovery import Pages, ProcessTree, find_ranks
from lightning_hangcheck.text.shown import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.hooks.rendezvous import RendezvousPoint
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.session.session import Session

MOST_RANKS = 8
MOST_FRAMES = 16


def describe_missing(point: RendezvousPoint) -> Outcome:
    """Name the missing ranks. One that came and did not go on is the first itself."""
    peers, missing = point.peers, point.missing()
    of = f" of {peers.size}" if peers.size else ""
    return Outcome(
        failure=f"{point.named(missing)}{of} did not come to {point.name!r} within "
        f"{point.time_limit:g} s ({peers.noun} {peers.index} waited at {peers.place.where})",
        remedy="see where they are (py-spy dump --pid PID, or the verdict of hangcheck); if they "
        "are only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
        details=details_of(point, missing),
    )


def details_of(point: RendezvousPoint, indices: Sequence[int]) -> str:
    """Say in lines where these ranks are, as far as they are seen here; takes some 4 s at most."""
    local = point.peers.noun == "local rank"
    found = look_for_missing(point.peers.session, indices, local=local)
    return "\n".join(f"  {point.peers.noun} {index}: {lines}" for index, lines in found.items())


def look_for_missing(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, str]:
    """Look for ranks on this node: process and stack of each, or why there is none."""
    shown = indices[:MOST_RANKS]
    if session is None:
        why = "no stack: the ranks have no session in common here; start the job with hangcheck run"
        return dict.fromkeys(shown, why)
    deadline = time.monotonic() + LOOK_LIMIT
    pages = Pages(session.pages)
    pages.find_new()
    beats = pages.read()
    pages.close()
    tree = ProcessTree(session.facts.root_pid, root_belongs=not session.facts.launched)
    processes: dict[int | None, tuple[int, Beat | None]] = {
        one.local_rank if local else one.rank: (one.pid, None)
        for one in find_ranks(tree.take(time.monotonic_ns()), beats)
    }
    # a page outlives its process: where a rank was started again, the process that lives counts
    for pid, beat in sorted(beats.items(), key=lambda one: has_ended(one[0]), reverse=True):
        processes[beat.local_rank if local else beat.rank] = pid, beat
    return {index: _look(session, index, processes.get(index), deadline) for index in shown}


def _look(
    session: Session, index: int, process: tuple[int, Beat | None] | None, deadline: float
) -> str:
    if process is None:
        return "no process of it is seen on this node"
    pid, beat = process
    signs = vitals(pid)
    if signs is None or has_ended(pid):
        said = f" ({beat.last_words})" if beat is not None and beat.last_words else ""
        return f"pid {pid} has ended{said}"
    who = f"pid {pid}{', which is stopped' if signs.state in 'Tt' else ''}"
    stack, gaps = python_stacks(pid, index, max(0.1, deadline - time.monotonic()))
    if stack is not None:
        frames = [str(frame) for frame in shown_frames(stack.threads[0].frames)]
        return f"{who}, main thread:{_indented(frames)}"
    file, rank = session.run_folder.verdict_file, index if beat is None else beat.rank
    try:
        verdict = decode(read_owned(file, EVIDENCE_BYTES), Verdict, str(file))
    except (OSError, UnreadableRun):
        groups = []
    else:
        groups = [one for one in verdict.stack_groups if one.process == "rank"]
    for group in groups:
        if rank in parse_ranks(group.ranks):
            return f"{who}, as the sidecar saw it:{_indented(group.frames)}"
    return f"{who}; no stack: {gaps[0].reason if gaps else 'unknown'}"


def _indented(frames: Sequence[str]) -> str:
    left_out = len(frames) - MOST_FRAMES
    shown = [f"... {left_out} outer calls", *frames[left_out:]] if left_out > 0 else frames
    return "".join(f"\n    {frame}" for frame in shown)
