"""A named rendezvous of ranks, before any process group exists, with a time limit.

The first rank of a peer group collects the others and decides, or a rank that gives up does. Only
the first decision counts, so every rank goes on, or every rank raises the same error.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous.missing_ranks import (
    LOOK_LIMIT,
    answer_question,
    describe_missing,
    name_indices,
)
from lightning_hangcheck.hooks.rendezvous.peer_group import PeerGroup, find_peer_group
from lightning_hangcheck.hooks.rendezvous.point import Arrival, Outcome, RendezvousPoint, next_point
from lightning_hangcheck.hooks.wait_limit import notice_after
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.nodes.meeting_place import DecidingPlace

# Seconds that the others wait longer, so that the first rank's verdict reaches them: it looks for
# stacks on its own node, and asks other nodes.
GRACE = 2 * LOOK_LIMIT + 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two looks


class BoundedWait:
    """How long a rank waits at a point, and what it says of that meanwhile.

    Args:
        point: Where.
        awaited: Whom it waits for, in words; asked when it is said.
        limit: Seconds.
    """

    def __init__(self, point: RendezvousPoint, awaited: Callable[[], str], limit: float) -> None:
        now = time.monotonic()
        self._point = point
        self._awaited = awaited
        self._notice_at = now + notice_after(point.time_limit)
        self.deadline = now + limit

    def remind(self) -> None:
        """Say once what is waited for, when it takes long; the first two ranks speak for all."""
        point = self._point
        if time.monotonic() < self._notice_at or point.peers.index > 1:
            return
        self._notice_at = self.deadline
        log.once(
            point.key,
            f"{point.peers.noun} {point.peers.index} waits at {point.name!r} for "
            f"{self._awaited()}, and gives up after {point.time_limit:g} s",
        )


def join_rendezvous(
    name: str, time_limit: float, payload: bytes = b"", peers: PeerGroup | None = None
) -> dict[int, bytes]:
    """Wait until all ranks have come to the point of this name.

    Under Lightning's own launchers the first rank runs before the others exist: it does not wait,
    and the others read what it left.

    Args:
        name: The same on all ranks; may be met any number of times.
        time_limit: Seconds that a rank waits; all but the first wait `GRACE` longer, for its word.
        payload: What this rank brings.
        peers: Who meets; by default all ranks of the job.

    Returns:
        What each rank brought, by rank. Without anybody to meet, only this rank's own, as rank 0.

    Raises:
        MeetingFailed: Ranks did not come in time: which, where they stand, and after how long.
    """
    peers = peers or find_peer_group(current())
    if peers is None:
        return {0: payload}
    point = next_point(peers, name, time_limit)
    if peers.index == 0:
        return _lead(point, payload)
    post_arrival(point, payload)
    return await_outcome(point, partial(describe_missing, point), GRACE).unwrap()


def post_arrival(point: RendezvousPoint, payload: bytes) -> None:
    """Leave word that this rank has come.

    Args:
        point: Where to.
        payload: What it brings.
    """
    session = point.peers.session
    node = f"{which_machine()}:{session.path if session is not None else ''}"
    arrival = Arrival(node=node, payload=payload)
    point.peers.place.post(point.arrival_of(point.peers.index), msgspec.msgpack.encode(arrival))


def wait(place: DecidingPlace, keys: Sequence[str], bound: BoundedWait) -> tuple[str, bytes] | None:
    """Wait until one of the keys is posted. The diagnosis knows a rank in a guard by this frame.

    Args:
        place: Where to look.
        keys: The first that is found counts.
        bound: How long.

    Returns:
        The key and its value; None after the deadline.
    """
    pause = FIRST_PAUSE
    while True:
        for key in keys:
            value = place.look(key)
            if value is not None:
                return key, value
        left = bound.deadline - time.monotonic()
        if left <= 0:
            return None
        bound.remind()
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def decide(point: RendezvousPoint, outcome: Outcome) -> Outcome:
    """Say what became of the rendezvous; return what stands, if another rank was first.

    Raises:
        MeetingFailed: The place cannot be written while others wait for it. Where they don't exist
            yet, that is said once instead: a single process has nobody to meet.
    """
    try:
        stands = point.peers.place.decide(point.outcome, msgspec.msgpack.encode(outcome))
    except MeetingFailed as error:
        if point.peers.peers_exist or point.peers.index:
            raise
        log.once("meeting-post", f"{error}. Ranks that start later will wait in vain")
        return outcome
    return msgpack_decoder(Outcome).decode(stands)


def await_outcome(
    point: RendezvousPoint, explain_missing: Callable[[], Outcome], grace: float = 0.0
) -> Outcome:
    """Wait for the outcome, as any rank but the first; give up if it is late.

    Args:
        point: The rendezvous.
        explain_missing: Called when the time is over; what it returns holds for the others too,
            unless there is an outcome by then.
        grace: Seconds beyond the point's time limit, where the first rank has that limit itself.
    """
    bound = BoundedWait(point, partial(_awaited, point, grace), point.time_limit + grace)
    outcome = _wait_for_outcome(point, bound, asked=grace > 0)
    if outcome is None and not _is_first_to_wait(point):
        # another rank looks where the first one stands; one look is enough
        outcome = _wait_for_outcome(
            point, BoundedWait(point, partial(_awaited, point, grace), GRACE)
        )
    return decide(point, explain_missing()) if outcome is None else outcome


def _wait_for_outcome(
    point: RendezvousPoint, bound: BoundedWait, *, asked: bool = False
) -> Outcome | None:
    keys = [point.outcome, *([point.wanted] if asked else [])]
    found = wait(point.peers.place, keys, bound)
    if found is not None and found[0] == point.wanted:
        answer_question(point, found[1])
        return _wait_for_outcome(point, bound)
    return None if found is None else msgpack_decoder(Outcome).decode(found[1])


def _is_first_to_wait(point: RendezvousPoint) -> bool:
    """Whether this is the first of those that wait for the first rank, as far as they left word."""
    earlier = range(1, point.peers.index)
    return all(point.peers.place.look(point.arrival_of(index)) is None for index in earlier)


def _awaited(point: RendezvousPoint, grace: float) -> str:
    return name_indices(point, point.missing() if grace else [0])


def _lead(point: RendezvousPoint, payload: bytes) -> dict[int, bytes]:
    return decide(point, _collect(point, payload)).unwrap()


def _collect(point: RendezvousPoint, payload: bytes) -> Outcome:
    """Wait for each rank in turn: one look at a time, however many ranks there are."""
    payloads = {0: payload}
    if not point.peers.peers_exist:
        return Outcome(payloads=payloads)
    post_arrival(point, payload)
    place = point.peers.place
    bound = BoundedWait(point, partial(_awaited, point, GRACE), point.time_limit)
    for index in range(1, point.peers.size or 1):
        found = wait(place, (point.outcome, point.arrival_of(index)), bound)
        if found is None:
            return describe_missing(point)
        key, value = found
        if key == point.outcome:
            return msgpack_decoder(Outcome).decode(value)
        payloads[index] = msgpack_decoder(Arrival).decode(value).payload
    return Outcome(payloads=payloads)
