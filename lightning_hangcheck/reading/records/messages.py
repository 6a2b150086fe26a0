"""Messages between two ranks: who has posted one, and whose other end is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.case import RankView


def awaited_peers(ranks: Mapping[int, RankView], waiter: RankView, name: str) -> tuple[int, ...]:
    """Return the other ends of messages that a rank has posted, and that have posted fewer.

    Args:
        ranks: Of the job, by their number.
        waiter: Whose messages.
        name: Of the operation in which it stands: of a send only what it sent counts, of a receive
            what it asked for, of any other both.

    Returns:
        None of them where nobody counts messages, or none is open.
    """
    own = waiter.flight.messages if waiter.flight is not None else None
    if own is None:
        return ()
    found: set[int] = set()
    for peer in own.peers:
        flight = ranks[peer].flight if peer in ranks else None
        theirs = flight.messages if flight is not None else None
        if theirs is None:
            continue
        owes_send = own.asked_of(peer) > theirs.sent_to(waiter.rank)
        owes_receive = own.sent_to(peer) > theirs.asked_of(waiter.rank)
        if (owes_send and "send" not in name) or (owes_receive and "recv" not in name):
            found.add(peer)
    return tuple(sorted(found))
