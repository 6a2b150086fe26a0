"""Where ranks are stuck that did not come to a rendezvous: their stacks, or why there are none.

A rank sees processes of its own node only. py-spy is asked from the rank that waits; where the
kernel lets only the sidecar read (Yama), its verdict has the stack.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.rendezvous import LOOK_LIMIT
from lightning_hangcheck.judge.alike import shown_frames
from lightning_hangcheck.look.proc import has_ended, vitals
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.observe.discovery import Pages, ProcessTree, find_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.session.session import Session

MOST_RANKS = 8
MOST_FRAMES = 16


def look_for_missing(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, str]:
    """Look for ranks on this node: process and stack of each, or why there is none; some 4 s."""
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
    absent = "no process of it is seen on this node"
    return {
        index: _look(index, *processes[index], deadline) if index in processes else absent
        for index in shown
    }


def _look(index: int, pid: int, beat: Beat | None, deadline: float) -> str:
    signs = vitals(pid)
    if signs is None or has_ended(pid):
        said = f" ({beat.last_words})" if beat is not None and beat.last_words else ""
        return f"pid {pid} has ended{said}"
    who = f"pid {pid}{', which is stopped' if signs.state in 'Tt' else ''}"
    stack, gaps = python_stacks(pid, index, max(0.1, deadline - time.monotonic()))
    if stack is None:
        return f"{who}; no stack: {gaps[0].reason if gaps else 'unknown'}"
    frames = [str(frame) for frame in shown_frames(stack.threads[0].frames)]
    left_out = len(frames) - MOST_FRAMES
    shown = [f"... {left_out} outer calls", *frames[left_out:]] if left_out > 0 else frames
    return "".join([f"{who}, main thread:", *(f"\n    {frame}" for frame in shown)])
