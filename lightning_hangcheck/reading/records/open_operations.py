"""Operations of torch that a rank entered and that have not ended, and whether it waits for them.

An operation that was started with ``async_op=True`` leaves no frame of torch behind. The rank waits
for it where it stands at a line that asks for its end, or in torch's own code; one that does
something else in the meantime waits for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.naming.code_owner import owner_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.flight import CollectiveEntry, CollectiveRecord

    OpenOperation = tuple[CollectiveRecord, CollectiveEntry]


def open_operation(view: RankView, *, of_main: bool = True) -> OpenOperation | None:
    """Return a rank's oldest open operation, with its group; None where none is open.

    Args:
        view: The rank.
        of_main: Only what the main thread entered, or a thread that runs no Python (autograd's):
            what a Python thread beside it entered, such as a checkpoint's barrier, is not for the
            main thread to wait for. Else only what those beside it entered, as far as that is told.
    """
    beside = threads_beside(view)
    found = [
        pair
        for pair in _open(view)
        if pair[1].thread == 0 or (pair[1].thread in beside) is not of_main
    ]
    return min(found, key=lambda pair: pair[1].created_ns, default=None)


def asks_for_end(code: Sequence[CodeNote], frames: Sequence[Frame]) -> bool:
    """Whether a rank stands where it waits for something that it started before.

    Args:
        code: Notes on its lines.
        frames: Of its main thread, outermost first; no known wait is among them.
    """
    if not frames:
        return False
    if owner_of(frames[-1].file).package == "torch":
        return True
    here = (frames[-1].file, frames[-1].line)
    return any(note.awaits for note in code if (note.file, note.line) == here)


def threads_beside(view: RankView) -> frozenset[int]:
    """Return Python's identifiers of a rank's threads but the main one, as far as they are told."""
    own = view.own_process
    stacks = [one.stack for one in own.samples if one.stack is not None] if own is not None else []
    return frozenset(
        thread.ident for stack in stacks for thread in stack.threads[1:] if thread.ident
    )


def _open(view: RankView) -> Iterator[OpenOperation]:
    for record in view.flight.groups if view.flight is not None else ():
        for entry in record.entries:
            if not entry.retired:
                yield record, entry
