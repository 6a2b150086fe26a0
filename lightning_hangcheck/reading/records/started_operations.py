"""For what does a rank wait that stands in no function of torch: an operation started before? Pure.

It asks for the end of what it started with ``async_op=True``, or its device keeps it because a
message on it has no other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.records.device_waits import at_device
from lightning_hangcheck.reading.records.messages import awaited_peers, unmatched_messages
from lightning_hangcheck.reading.records.open_operations import asks_for_end, open_operation
from lightning_hangcheck.reading.waits.torch_waits import Wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.evidence import Frame


MESSAGES = ("isend", "irecv")


def asked_end(
    code: Sequence[CodeNote], ranks: Mapping[int, RankView], view: RankView, frames: Sequence[Frame]
) -> Wait | None:
    """Return the operation whose end a rank asks for; None where it asks for none.

    Args:
        code: Notes on the lines where ranks stand.
        ranks: Of the job, by their number.
        view: The rank, still.
        frames: Of its main thread, outermost first; no known wait is among them.
    """
    if not asks_for_end(code, frames):
        return None
    found = open_operation(view)
    name = found[1].op if found is not None else _open_message(ranks, view)
    return Wait("collective", name, frames[-1]) if name else None


def device_message(ranks: Mapping[int, RankView], view: RankView) -> Wait | None:
    """Return the message for which a busy rank's device keeps it; None where it waits for none.

    The ranks' own counts tell, where there are any: NCCL's record never ends the messages of a
    batch. Beside an open operation only an older message counts, which the record must tell, too.

    Args:
        ranks: Of the job, by their number.
        view: The rank, busy.
    """
    line = at_device(view)
    if line is None:
        return None
    found, name = open_operation(view), _open_message(ranks, view)
    if found is not None and name:
        began = (one.created_ns for one in unmatched_messages(ranks, view))
        name = name if min(began, default=found[1].created_ns) < found[1].created_ns else ""
    return Wait("device", name, line) if name else None


def asks_peers(code: Sequence[CodeNote], view: RankView, frames: Sequence[Frame]) -> bool:
    """Whether it takes the counts of a rank's peers to tell for what it waits.

    Args:
        code: Notes on the lines where ranks stand.
        view: The rank, still.
        frames: Of its main thread, outermost first; no known wait is among them.
    """
    if view.flight is None or view.flight.messages is None:
        return False
    asks = asks_for_end(code, frames) and open_operation(view) is None
    return asks or at_device(view) is not None


def _open_message(ranks: Mapping[int, RankView], view: RankView) -> str:
    """Name a send or receive that waits for its other end; empty where none does."""
    for kind in MESSAGES:
        if awaited_peers(ranks, view, kind):
            return kind
    return ""
