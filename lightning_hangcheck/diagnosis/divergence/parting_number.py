"""Under which number of a group ranks' ways parted: by what they did, and from where they did it.

Two operations of different kinds, shapes, roots or reductions under one number prove that ways have
parted, but an extra operation that looks as those of the steps do only moves all others on. The
places that operations were called from tell it: there one sequence has what the other lacks.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    Operation,
    call_of,
    operation_of,
    way_in,
)
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.model.flight import CollectiveRecord

    Key = TypeVar("Key", bound=Hashable)

MOST_COMPARED = 500
"""Operations from the first that was called from elsewhere: comparing as many takes some 10 ms."""


class Step(Struct, frozen=True):
    """An operation of one rank, and the frames from which it was called, as far as noted."""

    operation: Operation
    called_from: tuple[Frame, ...] = ()


History = dict[int, Step]


def history_of(pending: PendingCollective, record: CollectiveRecord) -> History:
    """Return what a rank did in a group, by number."""
    reading = pending.reading
    return {
        entry.seq: Step(operation_of(reading, entry), way_in(call_of(reading, entry).frames))
        for entry in record.entries
    }


def steps_at(histories: Mapping[Key, History], seq: int) -> dict[Key, Step]:
    """Return what each rank did under a number; roots and reductions only if noted of all."""
    here = {one: history[seq] for one, history in histories.items() if seq in history}
    if all(step.operation.detail for step in here.values()):
        return here
    return {one: _without_detail(step) for one, step in here.items()}


def steps_before(history: History, seq: int, here: Collection[Step]) -> list[Step]:
    """Return what a rank did before a number, as comparable with what ranks did under it.

    Args:
        history: Of the rank.
        seq: The number.
        here: What ranks did under it, as `steps_at` tells it.
    """
    steps = [history[number] for number in sorted(history) if number < seq]
    if all(step.operation.detail for step in here):
        return steps
    return [_without_detail(step) for step in steps]


def _without_detail(step: Step) -> Step:
    return replace(step, operation=replace(step.operation, detail=""))


def parting_number(histories: Mapping[Key, History]) -> int | None:
    """Return the number under which ways parted; None where no two operations contradict.

    Args:
        histories: Of the ranks.
    """
    different = {id(history): history for history in histories.values()}
    for seq in sorted(set().union(*different.values())):
        if len({step.operation for step in steps_at(different, seq).values()}) > 1:
            first, *others = different.values()
            earlier = (_first_without_counterpart(first, other) for other in others)
            return min((seq, *(number for number in earlier if number is not None)))
    return None


def _first_without_counterpart(one: History, other: History) -> int | None:
    """Return the first number from which one sequence has a call that the other lacks.

    Calls from two places under one number are no more than that: ranks may go two ways to one
    operation.
    """
    noted = [_first_noted(one), _first_noted(other)]
    common = sorted(one.keys() & other.keys()) if None not in noted else []
    common = [seq for seq in common if seq >= max(seq or 0 for seq in noted)]
    apart = next((at for at, seq in enumerate(common) if one[seq] != other[seq]), len(common))
    numbers = common[apart : apart + MOST_COMPARED]
    left, right = [one[seq] for seq in numbers], [other[seq] for seq in numbers]
    compared = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for what, start, end, start_other, end_other in compared:
        if what != "equal" and end - start != end_other - start_other:
            return numbers[start] if start < len(numbers) else None
    return None


def _first_noted(history: History) -> int | None:
    return min((seq for seq, step in history.items() if step.called_from), default=None)
