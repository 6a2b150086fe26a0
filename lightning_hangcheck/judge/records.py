"""What a rank's records tell: operations it entered that have not ended, messages, its device.

Torch's flight record lists the operations, and the rank's own counts the messages between two
ranks. An operation that was started with ``async_op=True`` leaves no frame of torch behind: a rank
waits for it only where it stands at a line that asks for its end, or in torch's own code.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.frames import Wait, waits_for_ranks
from lightning_hangcheck.judge.waits import NEWEST, in_one_call
from lightning_hangcheck.model.code_owner import owner_of
from lightning_hangcheck.model.flight import MessageCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.flight import CollectiveEntry, CollectiveRecord, Message

    OpenOperation = tuple[CollectiveRecord, CollectiveEntry]

MESSAGES = ("isend", "irecv")


def open_operation(view: RankView, *, of_main: bool = True) -> OpenOperation | None:
    """Return a rank's oldest operation that has not ended, with its group; None where all have.

    The main thread waits for what it or one that runs no Python (autograd's) entered, and not for
    what another Python thread did, such as a checkpoint's barrier; without ``of_main``, only that.
    """
    helpers = threads_beside(view)
    found = [
        (record, entry)
        for record in (view.flight.groups if view.flight is not None else ())
        for entry in record.entries
        if not entry.retired and (entry.thread == 0 or (entry.thread in helpers) is not of_main)
    ]
    return min(found, key=lambda pair: pair[1].created_ns, default=None)


def threads_beside(view: RankView) -> frozenset[int]:
    """Return Python's identifiers of a rank's threads but the main one and autograd's."""
    own = view.own_process
    stacks = [one.stack for one in own.samples if one.stack is not None] if own is not None else ()
    return frozenset(
        thread.ident
        for stack in stacks
        for thread in stack.threads[1:]
        if thread.ident and thread.frames
    )


def asked_end(
    code: Sequence[CodeNote], ranks: Mapping[int, RankView], view: RankView, frames: Sequence[Frame]
) -> Wait | None:
    """Return the operation, started before, whose end a still rank asks for; None for none.

    It stands in torch's own code, but in no known wait, or at a line that asks for such an end.
    """
    here = {(frame.file, frame.line) for frame in frames[-1:]}
    asks = any(owner_of(file).package == "torch" for file, _ in here)
    if not asks and not any(note.awaits and (note.file, note.line) in here for note in code):
        return None
    found = open_operation(view)
    name = found[1].op if found is not None else _open_message(ranks, view)
    return Wait("collective", name, frames[-1]) if name else None


def at_device(view: RankView) -> Frame | None:
    """Return the line at which a rank that is busy may wait for its device.

    By default CUDA waits by spinning (cudaDeviceScheduleSpin where cores are free): ``.item()``,
    ``torch.cuda.synchronize()``, or any launch once the queue of launches is full, takes all of a
    core. That line comes long after the collective that does not end: it does not tell where the
    ranks parted.

    It is there in all samples, in a C call that gave up the interpreter lock, and has a group whose
    operations run on its device. No other thread of it waits for other ranks: else what is open may
    be that thread's.
    """
    groups, own = view.flight.groups if view.flight is not None else (), view.own_process
    if own is None or not any(group.on_device for group in groups):
        return None
    main, stacks = in_one_call(own), [one.stack for one in own.samples[-NEWEST:]]
    helpers = (thread for stack in stacks if stack is not None for thread in stack.threads[1:])
    if main is None or not main.frames or any(waits_for_ranks(one.frames) for one in helpers):
        return None
    return main.frames[-1]


def device_wait(view: RankView) -> Wait | None:
    """Return the operation for which a busy rank's device keeps it; None where that is not seen."""
    found, line = open_operation(view), at_device(view)
    if found is None or not found[0].on_device or line is None:
        return None
    return Wait("device", found[1].op, line)


def device_message(ranks: Mapping[int, RankView], view: RankView) -> Wait | None:
    """Return the message for which a busy rank's device keeps it; None where it waits for none.

    The ranks' own counts tell, where there are any: NCCL's record never ends the messages of a
    batch. Where an operation is open, too, only an older message counts, by the record.
    """
    line = at_device(view)
    name = _open_message(ranks, view) if line is not None else ""
    if line is None or not name:
        return None
    found, messages = open_operation(view), unmatched_messages(ranks, view)
    if found is not None and not any(one.created_ns < found[1].created_ns for one in messages):
        return None
    return Wait("device", name, line)


def _open_message(ranks: Mapping[int, RankView], view: RankView) -> str:
    """Name a send or receive that waits for its other end; empty where none does."""
    return next((kind for kind in MESSAGES if awaited_peers(ranks, view, kind)), "")


def awaited_peers(ranks: Mapping[int, RankView], waiter: RankView, name: str) -> tuple[int, ...]:
    """Return the other ends of messages that a rank has posted, and that have posted fewer.

    A rank's own counts tell. Where nobody counted, what torch's record of NCCL has open does.

    Args:
        ranks: Of the job, by their number.
        waiter: Whose messages.
        name: Of the operation in which it stands: of a send only what it sent counts, of a receive
            what it asked for, of any other both.
    """
    own = _counts(waiter)
    if own is None:
        still = unmatched_messages(ranks, waiter)
        kinds = (one for one in still if ("recv" if one.sends else "send") not in name)
        return tuple(sorted({waiter.rank + one.away for one in kinds}))
    asked = () if "send" in name else own.asked()
    sent = () if "recv" in name else own.sends()
    posted = [(peer, often, MessageCounts.sent_to) for peer, often in asked]
    posted += [(peer, often, MessageCounts.asked_of) for peer, often in sent]
    late = {
        peer
        for peer, often, of_theirs in posted
        if (theirs := _counts(ranks.get(peer))) is not None
        and of_theirs(theirs, waiter.rank) < often
    }
    return tuple(sorted(late))


def unmatched_messages(ranks: Mapping[int, RankView], waiter: RankView) -> Iterator[Message]:
    """Yield what a rank's record has open with a peer that has come to none of their messages.

    Both ends of a message end at about one time, so a peer with none open has not come. One that
    has any open may have ended others before this rank's record was read: nothing is said of it.
    """
    for record in waiter.flight.groups if waiter.flight is not None else ():
        for one in record.messages:
            peer = ranks.get(waiter.rank + one.away)
            if not one.retired and peer is not None and peer.flight is not None:
                theirs = (there for there in peer.flight.groups if there.group == record.group)
                posted = (message for there in theirs for message in there.messages)
                if not any(two.away == -one.away and not two.retired for two in posted):
                    yield one


def _counts(view: RankView | None) -> MessageCounts | None:
    return view.flight.messages if view is not None and view.flight is not None else None


OUT_OF_MEMORY = "OutOfMemoryError"
"""torch.OutOfMemoryError, and torch.cuda.OutOfMemoryError before 2.5; Python's is MemoryError."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = rf"(\d+(?:\.\d+)?) ({'|'.join(UNITS)})"
SIZES = {
    "wanted": ("{} more were wanted", rf"Tried to allocate {SIZE}"),
    "total": ("", rf"total capacity of {SIZE}|{SIZE} total capacity"),
    "free": ("{} were free", rf"of which {SIZE} is free|{SIZE} free"),
    "missing": ("{} were missing", ""),
    "in_use": (
        *("{} were in tensors", rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated"),
    ),
    "unused": (
        "{} were kept unused",  # the last is cut: last words have 300 characters
        rf"{SIZE} is reserved by PyTorch but unallocated|allocated by PyTorch, and {SIZE} is",
    ),
}
"""What torch says when a GPU has no room: how much was wanted, free, in use, and kept unused
(c10/cuda/CUDACachingAllocator.cpp, of torch 1.8 and of 2.1 to 2.13); each with our words for it.
Last words may be cut, so each counts by itself; without any the type still tells what happened."""


def gpu_out_of_memory(last_words: str) -> dict[str, int] | None:
    """Read a rank's last words (type, message, place); None where they tell of something else.

    Returns:
        Bytes ``wanted`` by the allocation that failed, ``total`` of the GPU, ``free`` on it,
        ``in_use`` by tensors of this process, ``unused``: kept by its allocator in pieces of which
        none was large enough, ``missing``: what would have to be freed; as far as they are told.
    """
    if not last_words.startswith(OUT_OF_MEMORY):
        return None
    sizes: dict[str, int] = {}
    for name, (_, pattern) in SIZES.items():
        found = re.search(pattern, last_words) if pattern else None
        if found is not None:
            size, unit = filter(None, found.groups())
            sizes[name] = int(float(size) * UNITS[unit])
    if sizes.get("wanted", 0) > sizes.get("free", math.inf):
        sizes["missing"] = sizes["wanted"] - sizes["free"]
    return sizes


def memory_in_words(sizes: Mapping[str, int]) -> str:
    """Write ``2.00 GiB more were wanted, 1.12 GiB of 23.65 GiB were free``."""
    shown = {name: in_binary(size) for name, size in sizes.items()}
    if "free" in shown and "total" in shown:
        shown["free"] += f" of {shown['total']}"
    said = (text.format(shown[name]) for name, (text, _) in SIZES.items() if name in shown)
    return ", ".join(filter(None, said))


def in_binary(size: int) -> str:
    """Write a number of bytes as torch does, for whoever compares it with torch's own words."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
