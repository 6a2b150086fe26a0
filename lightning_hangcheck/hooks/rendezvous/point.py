"""One rendezvous: the keys that ranks leave there, and what they leave under them."""

from __future__ import annotations

from collections import Counter
from urllib.parse import quote

import msgspec

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous.peer_group import PeerGroup
from lightning_hangcheck.hooks.rendezvous.same_start import PlaceOfStart

LONGEST_NAME = 100  # of a file; Linux allows 255 bytes, quoting and number included

_times_met: Counter[str] = Counter()
"""How often each name was met in this process: ranks walk the same guards in the same order."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rendezvous, for all ranks: the first rank says it, or one that gave up.

    Attributes:
        failure: What went wrong, in one clause; empty if all went well.
        remedy: The way out, in one clause.
        details: Where the ranks stand that were waited for, in lines.
        payloads: What each rank brought, by its index.
    """

    failure: str = ""
    remedy: str = ""
    details: str = ""
    payloads: dict[int, bytes] = {}

    def unwrap(self) -> dict[int, bytes]:
        """Return the payloads.

        Raises:
            MeetingFailed: The outcome is a failure.
        """
        if self.failure:
            raise MeetingFailed(self.failure, self.remedy, self.details)
        return self.payloads


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank leaves when it comes.

    Attributes:
        node: Where it runs: ranks of one node see each other's processes.
        payload: What it brings for the others.
    """

    node: str
    payload: bytes = b""


class RendezvousPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rendezvous: the n-th of its name in this start of the job."""

    peers: PeerGroup
    name: str
    key: str
    time_limit: float

    def arrival_of(self, index: int) -> str:
        """Key under which a rank leaves what it brought."""
        return f"{self.key}/arrived-{index}"

    def stacks_by(self, index: int) -> str:
        """Key under which a rank leaves the stacks that it was asked for."""
        return f"{self.key}/stacks-by-{index}"

    @property
    def outcome(self) -> str:
        """Key of the one outcome: the first to be left there holds for every rank."""
        return f"{self.key}/outcome"

    @property
    def wanted(self) -> str:
        """Key under which the first rank asks others for stacks that it cannot take."""
        return f"{self.key}/stacks-wanted"

    def missing(self) -> list[int]:
        """Indices that have not come; the first, where all have: it has not gone on.

        Before the first has come, nobody knows which of the others are of the same start.
        """
        everyone, place = range(self.peers.size or 1), self.peers.place
        if isinstance(place, PlaceOfStart) and not place.agreed:
            return [0]
        return [index for index in everyone if place.look(self.arrival_of(index)) is None] or [0]


def next_point(peers: PeerGroup, name: str, time_limit: float) -> RendezvousPoint:
    """Open the next rendezvous of this name.

    Args:
        peers: Who meets.
        name: The same on all ranks, at most about 100 characters.
        time_limit: Seconds that each rank waits at most.
    """
    plain = quote(name, safe=" ")[:LONGEST_NAME]
    _times_met[plain] += 1
    if isinstance(peers.place, PlaceOfStart):
        peers.place.start.expect(time_limit)
    key = f"{peers.noun} {plain} {_times_met[plain]}"
    return RendezvousPoint(peers=peers, name=name, key=key, time_limit=time_limit)
