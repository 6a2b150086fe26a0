"""Who did not come to a rendezvous, and where they are stuck: their stacks, or why there are none.

A rank sees processes of its own node only, so the first rank asks one rank of each other node.
py-spy is asked from the rank that waits. Where the kernel lets only the sidecar read (Yama), the
sidecar's newest verdict has a stack, if it was suspicious already.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned
from lightning_hangcheck.hooks.rendezvous import LOOK_LIMIT, Arrival, Outcome
from lightning_hangcheck.judge.alike import shown_frames
from lightning_hangcheck.look.proc import has_ended, vitals
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.codec import msgpack_decoder
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.discovery import Pages, ProcessTree, find_ranks
from lightning_hangcheck.text.shown import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.hooks.rendezvous import RendezvousPoint
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.session.session import Session

MOST_RANKS = 8
MOST_FRAMES = 16
ASK_INTERVAL = 0.05  # seconds between two looks for an answer


class MissingRank(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of a rank that others wait for: its process and stack, or why there is none."""

    lines: str
    seen: bool = True  # a process of it was found on this node


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
    """Say in lines where these ranks are, as far as anybody sees them; takes 8 s at most."""
    local = point.peers.noun == "local rank"
    found = look_for_missing(point.peers.session, indices, local=local)
    unseen = [index for index in indices if index not in found or not found[index].seen]
    if unseen and point.peers.index == 0:
        found |= _ask_others(point, unseen)
    return "\n".join(f"  {point.peers.noun} {index}: {rank.lines}" for index, rank in found.items())


def answer_question(point: RendezvousPoint, question: Outcome) -> None:
    """As a rank of another node, leave the stacks that the first rank asks for, if it asks us."""
    peers = point.peers
    if peers.index in question.asked:
        found = look_for_missing(peers.session, question.wanted, local=peers.noun == "local rank")
        seen = {number: rank for number, rank in found.items() if rank.seen}
        peers.place.post(point.stacks_by(peers.index), msgspec.msgpack.encode(seen))


def _ask_others(point: RendezvousPoint, unseen: Sequence[int]) -> Mapping[int, MissingRank]:
    """Ask the first of each other node; one that never answers leaves the others' answers."""
    place = point.peers.place
    nodes: dict[str, int] = {}
    for index in range(point.peers.size or 1):
        value = place.look(point.arrival_of(index))
        if value is not None:
            nodes.setdefault(msgpack_decoder(Arrival).decode(value).node, index)
    waiting = {index for index in nodes.values() if index != 0}
    if not waiting:
        return {}
    question = msgspec.msgpack.encode(Outcome(asked=tuple(sorted(waiting)), wanted=tuple(unseen)))
    if place.decide(point.word(1), question) != question:  # a rank has given up
        return {}
    deadline = time.monotonic() + LOOK_LIMIT
    found: dict[int, MissingRank] = {}
    while waiting and time.monotonic() < deadline:
        for index in sorted(waiting):
            answer = place.look(point.stacks_by(index))
            if answer is not None:
                found |= msgpack_decoder(dict[int, MissingRank]).decode(answer)
                waiting.discard(index)
        time.sleep(ASK_INTERVAL)
    return found


def look_for_missing(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, MissingRank]:
    """Look for ranks on this node, within a few seconds. Never raises for what it cannot see."""
    shown = indices[:MOST_RANKS]
    if session is None:
        lines = (
            "no stack: the ranks have no session in common here; start the job with hangcheck run"
        )
        return dict.fromkeys(shown, MissingRank(lines=lines, seen=False))
    deadline = time.monotonic() + LOOK_LIMIT
    processes = _processes(session, local=local)
    return {index: _look(session, index, processes.get(index), deadline) for index in shown}


def _processes(session: Session, *, local: bool) -> dict[int, tuple[int, Beat | None]]:
    """Process id and page of each rank of this node."""
    pages = Pages(session.pages)
    pages.find_new()
    beats = pages.read()
    pages.close()
    facts = session.facts
    process_tree = ProcessTree(facts.root_pid, root_belongs=not facts.launched)
    found = find_ranks(process_tree.take(time.monotonic_ns()), beats)
    by_environment = {one.local_rank if local else one.rank: (one.pid, None) for one in found}
    # a page outlives its process: where a rank was started again, the process that lives counts
    in_order = sorted(beats.items(), key=lambda one: has_ended(one[0]), reverse=True)
    by_page = {beat.local_rank if local else beat.rank: (pid, beat) for pid, beat in in_order}
    return {key: one for key, one in (by_environment | by_page).items() if key is not None}


def _look(
    session: Session, index: int, process: tuple[int, Beat | None] | None, deadline: float
) -> MissingRank:
    if process is None:
        return MissingRank(lines="no process of it is seen on this node", seen=False)
    pid, beat = process
    signs = vitals(pid)
    if signs is None or has_ended(pid):
        said = f" ({beat.last_words})" if beat is not None and beat.last_words else ""
        return MissingRank(lines=f"pid {pid} has ended{said}")
    who = f"pid {pid}{', which is stopped' if signs.state in 'Tt' else ''}"
    stack, gaps = python_stacks(pid, index, max(0.1, deadline - time.monotonic()))
    if stack is not None:
        frames = [str(frame) for frame in shown_frames(stack.threads[0].frames)]
        return MissingRank(lines=f"{who}, main thread:{_indented(frames)}")
    earlier = _seen_by_sidecar(session, index if beat is None else beat.rank)
    if earlier:
        return MissingRank(lines=f"{who}, as the sidecar saw it:{_indented(earlier)}")
    return MissingRank(lines=f"{who}; no stack: {gaps[0].reason if gaps else 'unknown'}")


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
