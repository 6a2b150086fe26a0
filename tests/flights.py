"""Where ranks stand in Lightning's loops, and ranks with a flight record in one line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cases import MAIN, NOW_NS, SITE, rank, torch, user
from msgspec.structs import replace

from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    MessageCounts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


TRAIN = "/home/ada/demo/train.py"
AT_ITEM = (MAIN, user("log_loss", 30))
IN_LOOP = (MAIN, user("train", 20), torch("all_reduce"))
FIT = (MAIN, Frame("_FitLoop.advance", f"{SITE}/lightning/pytorch/loops/fit_loop.py", 500))
EPOCH = f"{SITE}/lightning/pytorch/loops/training_epoch_loop.py"
EVALUATION = f"{SITE}/lightning/pytorch/loops/evaluation_loop.py"
STEP = (*FIT, Frame("_TrainingEpochLoop.advance", EPOCH, 300))
PARKED = (
    *STEP,
    Frame("_TrainingEpochLoop._broadcast_sigterm_tensor", EPOCH, 265),
    torch("broadcast"),
)
IN_HOOK = (*FIT, user("Model.on_train_epoch_end", 44), torch("barrier"))


def flying(
    view: RankView,
    *ops: str,
    group: str = "0",
    open_ops: int = 1,
    ranks: tuple[int, ...] = (),
    thread: int = 0,
    called: Sequence[CallSite] = (),
    at: Sequence[int] = (),
) -> RankView:
    """Give a rank a record of these operations; ``"all_reduce 4"`` has a size; the last is open.

    They are of one group, oldest first; ``open_ops`` of them have not ended. ``called`` says from
    where each was called, ``at`` when it was entered, where that matters.
    """
    entries = []
    sites = {site: number for number, site in enumerate(dict.fromkeys(called), start=1)}
    for number, text in enumerate(ops, start=1):
        op, _, size = text.partition(" ")
        entries.append(
            CollectiveEntry(
                seq=number,
                op=op,
                sizes=((int(size),),) if size else (),
                dtypes=("Float",) if size else (),
                retired=number <= len(ops) - open_ops,
                created_ns=at[number - 1] if at else number,
                thread=thread,
                site=sites[called[number - 1]] if called else 0,
            )
        )
    record = CollectiveRecord(
        group=group,
        description="default_pg" if group == "0" else "undefined",
        ranks=ranks,
        last_enqueued=len(ops),
        last_completed=len(ops) - open_ops,
        entries=tuple(entries),
    )
    flight = view.flight or FlightRecord(taken_ns=1)
    numbered = {number: site for site, number in sites.items()}
    return replace(view, flight=replace(flight, groups=(*flight.groups, record), sites=numbered))


def posting(
    view: RankView,
    *,
    sent: dict[int, int] | None = None,
    received: dict[int, int] | None = None,
    order: Sequence[str] = (),
) -> RankView:
    """Give a rank counts of messages: how many it sent to whom, and received from whom.

    Or the order in which it posted them, oldest first: ``"send 1"``, ``"recv 0"``.
    """
    newest = tuple(
        (int(peer) + 1) * (1 if kind == "send" else -1)
        for kind, peer in (one.split() for one in order)
    )
    if order:
        sent = Counter(one - 1 for one in newest if one > 0)
        received = Counter(-one - 1 for one in newest if one < 0)
    counts = MessageCounts(sent=sent or {}, received=received or {}, newest=(newest,))
    flight = view.flight or FlightRecord(taken_ns=1)
    return replace(view, flight=replace(flight, messages=counts))


def on_device(view: RankView, *ops: str, first: int = 1, on_device: bool = True) -> RankView:
    """Open operations, as NCCL's record shows them: what has ended is left out."""
    entries = tuple(
        CollectiveEntry(seq=number, op=op, created_ns=NOW_NS + number)
        for number, op in enumerate(ops, start=first)
    )
    record = CollectiveRecord(
        group="0",
        ranks=(0, 1, 2),
        on_device=on_device,
        last_enqueued=first + len(ops) - 1,
        last_completed=first - 1,
        entries=entries,
    )
    return replace(view, flight=FlightRecord(taken_ns=NOW_NS, groups=(record,)))


def spinning(number: int, *stacks: tuple[object, ...]) -> RankView:
    """A rank that burns a core."""
    return rank(number, *(stacks or (AT_ITEM,)), cpu=1.0)


def noted(line: int, **fields: object) -> CodeNote:
    """What was read of the source around a line of the training script."""
    return CodeNote(file=TRAIN, line=line, **fields)  # type: ignore[arg-type]
