"""What is said of ranks that did not come to a meeting: who, and where they stand.

A rank sees processes of its own node only, so the first rank asks one rank of each other node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.hooks.meeting_point import Arrival, Outcome
from lightning_hangcheck.hooks.where_ranks_stand import LOOK_LIMIT, Standing, where_they_stand
from lightning_hangcheck.model.ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.hooks.meeting_point import Point

ASK_INTERVAL = 0.05  # seconds between two looks for an answer


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The first rank's question.

    Attributes:
        indices: Whose stacks.
        asked: Indices that came, the first of each other node.
    """

    indices: list[int]
    asked: list[int]


def absence(point: Point) -> Outcome:
    """Name the ranks that did not come. One that came and did not go on is the first itself."""
    circle, absent = point.circle, point.absent()
    of = f" of {circle.size}" if circle.size else ""
    return Outcome(
        failure=f"{name_indices(point, absent)}{of} did not come to {point.name!r} within "
        f"{point.time_limit:g} s ({circle.noun} {circle.index} waited at {circle.place.where})",
        remedy="see where they are (py-spy dump --pid PID, or the verdict of hangcheck); if they "
        "are only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
        details=details_of(point, absent),
    )


def name_indices(point: Point, indices: Sequence[int]) -> str:
    """Write ``ranks 1-2``, or ``local rank 0``."""
    return f"{point.circle.noun}{'s' if len(indices) > 1 else ''} {format_ranks(indices)}"


def details_of(point: Point, indices: Sequence[int]) -> str:
    """Say in lines where these ranks stand, as far as anybody sees them; takes 8 s at most."""
    found = _look_here(point, indices)
    unseen = [index for index in indices if index not in found or not found[index].seen]
    if unseen and point.circle.index == 0:
        found |= _ask_others(point, unseen)
    return "\n".join(
        f"  {point.circle.noun} {index}: {standing.lines}" for index, standing in found.items()
    )


def answer_question(point: Point, question: bytes) -> None:
    """As a rank of another node, leave the stacks that the first rank asks for, if it asks us."""
    wanted = msgspec.msgpack.decode(question, type=_Wanted)
    if point.circle.index not in wanted.asked:
        return
    found = _look_here(point, wanted.indices)
    seen = {index: standing for index, standing in found.items() if standing.seen}
    point.circle.place.post(point.stacks_by(point.circle.index), msgspec.msgpack.encode(seen))


def _look_here(point: Point, indices: Sequence[int]) -> dict[int, Standing]:
    circle = point.circle
    return where_they_stand(circle.session, indices, local=circle.noun == "local rank")


def _ask_others(point: Point, unseen: list[int]) -> Mapping[int, Standing]:
    place = point.circle.place
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
        found.update(msgspec.msgpack.decode(answer, type=dict[int, Standing]))
        waiting.pop(0)
    return found


def _first_of_each_other_node(point: Point) -> list[int]:
    place = point.circle.place
    nodes: dict[str, int] = {}
    for index in range(point.circle.size or 1):
        value = place.look(point.arrival(index))
        if value is not None:
            nodes.setdefault(msgspec.msgpack.decode(value, type=Arrival).node, index)
    return [index for index in nodes.values() if index != 0]
