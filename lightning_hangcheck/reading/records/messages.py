"""Messages between two ranks: who has posted one, and whose other end is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.flight import MessageCounts


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
    own, found = _messages(waiter), set[int]()
    if own is not None and "send" not in name:
        for peer, number in own.asked():
            theirs = _messages(ranks.get(peer))
            if theirs is not None and theirs.sent_to(waiter.rank) < number:
                found.add(peer)
    if own is not None and "recv" not in name:
        for peer, number in own.sends():
            theirs = _messages(ranks.get(peer))
            if theirs is not None and theirs.asked_of(waiter.rank) < number:
                found.add(peer)
    return tuple(sorted(found))


def _messages(view: RankView | None) -> MessageCounts | None:
    return view.flight.messages if view is not None and view.flight is not None else None
