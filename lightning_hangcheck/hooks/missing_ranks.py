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
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.hooks.rendezvous import Arrival, Outcome
from lightning_hangcheck.judge.alike import shown_frames
from lightning_hangcheck.look.proc import has_ended, vitals
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.discovery import find_ranks
from lightning_hangcheck.observe.pages import Pages
from lightning_hangcheck.observe.process_tree import ProcessTree
from lightning_hangcheck.text.rank_ranges import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.hooks.rendezvous import RendezvousPoint
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.session.session import Session


LOOK_LIMIT = 4.0  # seconds for all of them; py-spy needs about 10 ms for one
MOST_RANKS = 8
MOST_FRAMES = 16
ASK_INTERVAL = 0.05  # seconds between two looks for an answer


class MissingRank(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of a rank that others wait for.

    Attributes:
        lines: Its process and stack, or why there is none.
        seen: A process of it was found on this node.
    """

    lines: str
    seen: bool = True


NOT_SHARED = MissingRank(
    lines="no stack: the ranks have no session in common here; start the job with hangcheck run",
    seen=False,
)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The first rank's question.

    Attributes:
        indices: Whose stacks.
        asked: Indices that came, the first of each other node.
    """

    indices: list[int]
    asked: list[int]


def describe_missing(point: RendezvousPoint) -> Outcome:
    """Name the missing ranks. One that came and did not go on is the first itself."""
    peers, missing = point.peers, point.missing()
    of = f" of {peers.size}" if peers.size else ""
    return Outcome(
        failure=f"{name_indices(point, missing)}{of} did not come to {point.name!r} within "
        f"{point.time_limit:g} s ({peers.noun} {peers.index} waited at {peers.place.where})",
        remedy="see where they are (py-spy dump --pid PID, or the verdict of hangcheck); if they "
        "are only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
        details=details_of(point, missing),
    )


def name_indices(point: RendezvousPoint, indices: Sequence[int]) -> str:
    """Write ``ranks 1-2``, or ``local rank 0``."""
    return f"{point.peers.noun}{'s' if len(indices) > 1 else ''} {format_ranks(indices)}"


def details_of(point: RendezvousPoint, indices: Sequence[int]) -> str:
    """Say in lines where these ranks are, as far as anybody sees them; takes 8 s at most."""
    found = _look_here(point, indices)
    unseen = [index for index in indices if index not in found or not found[index].seen]
    if unseen and point.peers.index == 0:
        found |= _ask_others(point, unseen)
    return "\n".join(f"  {point.peers.noun} {index}: {rank.lines}" for index, rank in found.items())


def answer_question(point: RendezvousPoint, question: bytes) -> None:
    """As a rank of another node, leave the stacks that the first rank asks for, if it asks us."""
    wanted = msgpack_decoder(_Wanted).decode(question)
    if point.peers.index not in wanted.asked:
        return
    found = _look_here(point, wanted.indices)
    seen = {index: rank for index, rank in found.items() if rank.seen}
    point.peers.place.post(point.stacks_by(point.peers.index), msgspec.msgpack.encode(seen))


def _look_here(point: RendezvousPoint, indices: Sequence[int]) -> dict[int, MissingRank]:
    peers = point.peers
    return look_for_missing(peers.session, indices, local=peers.noun == "local rank")


def _ask_others(point: RendezvousPoint, unseen: list[int]) -> Mapping[int, MissingRank]:
    place = point.peers.place
    asked = _first_of_each_other_node(point)
    if not asked:
        return {}
    place.post(point.wanted, msgspec.msgpack.encode(_Wanted(indices=unseen, asked=asked)))
    deadline, found = time.monotonic() + LOOK_LIMIT, {}
    waiting = list(asked)
    while waiting and time.monotonic() < deadline:
        answer = place.look(point.stacks_by(waiting[0]))
        if answer is None:
            time.sleep(ASK_INTERVAL)
            continue
        found.update(msgpack_decoder(dict[int, MissingRank]).decode(answer))
        waiting.pop(0)
    return found


def _first_of_each_other_node(point: RendezvousPoint) -> list[int]:
    place = point.peers.place
    nodes: dict[str, int] = {}
    for index in range(point.peers.size or 1):
        value = place.look(point.arrival_of(index))
        if value is not None:
            nodes.setdefault(msgpack_decoder(Arrival).decode(value).node, index)
    return [index for index in nodes.values() if index != 0]


def look_for_missing(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, MissingRank]:
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
    stopped = ", which is stopped" if signs.state in "Tt" else ""
    stack, gaps = python_stacks(pid, index, max(0.1, deadline - time.monotonic()))
    if stack is not None:
        frames = [str(frame) for frame in shown_frames(stack.threads[0].frames)]
        return MissingRank(lines=f"pid {pid}{stopped}, main thread:{_indented(frames)}")
    earlier = _seen_by_sidecar(session, index if beat is None else beat.rank)
    if earlier:
        return MissingRank(lines=f"pid {pid}{stopped}, as the sidecar saw it:{_indented(earlier)}")
    why = gaps[0].reason if gaps else "unknown"
    return MissingRank(lines=f"pid {pid}{stopped}; no stack: {why}")


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
