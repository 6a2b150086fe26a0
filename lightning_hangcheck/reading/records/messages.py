"""Messages between two ranks: who has posted one, and whose other end is missing.

A rank's own counts tell. Where nobody counted, what torch's record of NCCL still has open does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.flight import Message, MessageCounts


def awaited_peers(ranks: Mapping[int, RankView], waiter: RankView, name: str) -> tuple[int, ...]:
    """Return the other ends of messages that a rank has posted, and that have posted fewer.

    Args:
        ranks: Of the job, by their number.
        waiter: Whose messages.
        name: Of the operation in which it stands: of a send only what it sent counts, of a receive
            what it asked for, of any other both.

    Returns:
        None of them where none is open, as far as that is told.
    """
    own, found = _messages(waiter), set[int]()
    if own is None:
        kinds = [sends for sends in (True, False) if ("recv" if sends else "send") not in name]
        unmatched = (one for one in unmatched_messages(ranks, waiter) if one.sends in kinds)
        return tuple(sorted({waiter.rank + one.away for one in unmatched}))
    if "send" not in name:
        for peer, number in own.asked():
            theirs = _messages(ranks.get(peer))
            if theirs is not None and theirs.sent_to(waiter.rank) < number:
                found.add(peer)
    if "recv" not in name:
        for peer, number in own.sends():
            theirs = _messages(ranks.get(peer))
            if theirs is not None and theirs.asked_of(waiter.rank) < number:
                found.add(peer)
    return tuple(sorted(found))


def unmatched_messages(ranks: Mapping[int, RankView], waiter: RankView) -> Iterator[Message]:
    """Yield what a rank's record has open with a peer that has come to none of their messages.

    Both ends of a message end at about one time, so a peer with none open has not come. One that
    has any open may have ended others before this rank's record was read: nothing is said of it.

    Args:
        ranks: Of the job, by their number.
        waiter: Whose messages.
    """
    for record in waiter.flight.groups if waiter.flight is not None else ():
        for one in record.messages:
            peer = ranks.get(waiter.rank + one.away)
            if not one.retired and peer is not None and peer.flight is not None:
                theirs = (there for there in peer.flight.groups if there.group == record.group)
                posted = (message for there in theirs for message in there.messages)
                if not any(two.away == -one.away and not two.retired for two in posted):
                    yield one


def _messages(view: RankView | None) -> MessageCounts | None:
    return view.flight.messages if view is not None and view.flight is not None else None
