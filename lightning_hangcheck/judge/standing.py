"""In what do ranks have to be equal so that one can be told, and judged, for all of them? Pure.

In what they do, where, for what they wait, where in their life they are, and in every collective.
Moments, process ids and addresses are each rank's own, and decide nothing. Nor does it in which of
many groups of one shape a rank is, or to which peer at one distance it sends.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.judge.activity import read_process_activity
from lightning_hangcheck.judge.alike import (
    in_order,
    latest_frames,
    offsets_of,
    root_of,
    roots_apart,
)
from lightning_hangcheck.judge.exits import raised_at
from lightning_hangcheck.judge.frames import find_wait
from lightning_hangcheck.judge.job import read_rank
from lightning_hangcheck.judge.operations import threads_beside
from lightning_hangcheck.judge.processes import read_process
from lightning_hangcheck.model.codec import encode_packed
from lightning_hangcheck.model.flight import SAME_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.judge.threads import Thread
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook, WaitTarget
    from lightning_hangcheck.model.flight import CallSite, CollectiveRecord

UNLIKE = 0
"""Of a rank that is told by itself: it waits for a process of its node, or one there for it, or
one place calls from the same root in several of its groups."""
ADDRESSES = frozenset({"futex", "pipe", "shared"})
"""Kinds of wait whose names differ from process to process."""
MOST = (1 << 63) - 1


def standings_of(views: Sequence[RankView], now_ns: int) -> list[int]:
    """Return numbers that are the same for ranks that stand alike; `UNLIKE` for one that is alone.

    Args:
        views: The ranks of a node as it sees them.
        now_ns: When its case was taken, as `Case` has it.
    """
    awaited = {
        holder.pid
        for view in views
        for look in view.processes
        for target in read_process(look).targets
        for holder in target.holders
    }

    def is_alone(view: RankView) -> bool:
        if view.rivals or (view.flight is not None and roots_apart(view.flight)):
            return True
        return any(
            look.pid in awaited
            or any(one.holders or one.kind == "process" for one in read_process(look).targets)
            for look in view.processes
        )

    return [UNLIKE if is_alone(view) else _standing(view, now_ns) for view in views]


def _standing(view: RankView, now_ns: int) -> int:
    silences = view.silent_for_s, view.idle_for_s, view.nothing_new_for_s, view.slept_for_s or 0.0
    # those within a factor of two of each other are alike, mostly
    brackets = [round(math.log2(one)) if one > 1.0 else 0 for one in silences]
    seen, beat, pace, doing, page = view.process_exit, view.beat, view.pace, None, None
    end = seen and (seen.order, seen.exit_code, seen.last_words, seen.memory_kills > 0)
    if view.processes:
        read = read_rank(view, (), now_ns)
        process, stuck = read.process_activity, read.stuck
        doing = (
            (read.activity, read.carried, read.livelocked, read.circling, read.for_gpu),
            (process.activity, process.samples, process.starved),
            (read.frames, read.wait, (stuck.name, stuck.frames) if stuck is not None else None),
            read.life,
            [_of_look(look) for look in view.processes],
        )
    if beat is not None:  # but for what changes from step to step: in that, none are ever equal
        steps, mark, saved = None, beat.checkpoint, beat.save
        if view.processes:
            sections = [
                (one.name, one.item, one.goes_on_after_s, one.in_main_thread)
                for one in beat.sections
            ]
            marked = (mark.number, mark.name) if mark is not None else None
            number = saved.number if saved is not None else None
            steps = beat.epoch, beat.step, number, marked, sections
        page = (
            (beat.beats > 0, beat.pulse_ns > 0, beat.world_size, beat.round, beat.phase),
            (beat.ending, beat.last_words, beat.membership, steps),
        )
    known = view.pid is None, view.store_port, view.goes_round, view.slept_for_s is None
    paced = pace is not None and pace.known
    facts = known, paced, page, end, raised_at(view), brackets, doing, _of_flight(view)
    told = blake2b(encode_packed(facts), digest_size=8).digest()
    return max(1, int.from_bytes(told, "big") & MOST)


def _of_look(look: ProcessLook) -> tuple[Any, ...]:
    frames, read = latest_frames(look), read_process(look)
    free = [_of_thread(one, one.targets) for one in read.free_threads]
    late = [
        (caller.frames, [_of_thread(end, end.named) for end in ends])
        for caller, ends in read.late_callers()
    ]
    return (
        look.role,
        read_process_activity(look).activity,
        frames,
        find_wait(frames),
        _of_targets(read_process(look).targets),
        (read.limited, read.asks_anew, read.in_own_memory, read.waits_in_vain),
        [(one.name, one.frames) for one in read.locked],
        (read.called_back, free, late),
    )


def _of_thread(one: Thread, targets: Iterable[WaitTarget]) -> tuple[Any, ...]:
    return one.runs, one.ticks, one.timer, one.limited, one.for_ranks, _of_targets(targets)


def _of_targets(targets: Iterable[WaitTarget]) -> list[Any]:
    return [
        (one.call, one.kind, "" if one.kind in ADDRESSES else one.name, one.abandoned)
        for one in targets
    ]


def _of_flight(view: RankView) -> tuple[Any, ...] | None:
    """A group counts by its shape, and which it is of those with the same members, else by name."""
    flight = view.flight
    if flight is None:
        return None
    beside, records = threads_beside(view), in_order(flight.groups)

    def which(record: CollectiveRecord) -> Any:  # noqa: ANN401 - name or shape
        if not record.ranks:
            return record.group
        names = [(len(one.group), one.group) for one in records if one.ranks == record.ranks]
        return offsets_of(record), sorted(names).index((len(record.group), record.group))

    def from_first(call: CallSite, record: CollectiveRecord) -> int | str:
        root = root_of(call)
        return root - record.ranks[0] if root is not None and root in record.ranks else call.root

    entries = sorted(
        (entry.created_ns, at, entry.seq)
        for at, record in enumerate(records)
        for entry in record.entries
    )
    in_turn = [(at, seq) for _, at, seq in entries]
    groups = [
        (
            (record.description, which(record), record.on_device),
            (record.last_enqueued, record.last_completed),
            [
                (
                    (entry.seq, entry.op, entry.dtypes, entry.retired),
                    entry.sizes if entry.op in SAME_SIZES else len(entry.sizes),
                    (entry.thread == 0, entry.thread in beside),
                    (call.frames, from_first(call, record), call.reduction),
                )
                for entry in record.entries
                for call in [flight.call_of(entry)]
            ],
            [(one.away, one.sends, one.retired) for one in record.messages],
        )
        for record in records
    ]
    posted, counts = None, flight.messages
    if counts is not None:  # by how far the peer is; in turn likewise, where it is sent or not
        own = view.rank - counts.moved
        sent, received = (
            sorted((peer - own, count) for peer, count in told.items())
            for told in (counts.sent, counts.received)
        )
        newest = [[(one > 0, abs(one) - 1 - own) for one in thread] for thread in counts.newest]
        posted = sent, received, newest
    return groups, in_turn, flight.waits, posted, flight.reduced, flight.repeated
