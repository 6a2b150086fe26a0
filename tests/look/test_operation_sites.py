"""Operations of torch's record and the calls that a rank noted, brought together by their times."""

from __future__ import annotations

from msgspec.structs import replace

from lightning_hangcheck.look.flight_record import with_sites
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
)
from lightning_hangcheck.session.collectives.call_sites import NotedCall

STEP = CallSite((Frame("step", "/home/ada/train.py", 9),), reduction="SUM")
SAVE = CallSite((Frame("save", "/home/ada/train.py", 30),))


def recorded(*entries: tuple[int, int]) -> FlightRecord:
    """A record of operations, by when each was entered and in which thread."""
    found = tuple(
        CollectiveEntry(seq=seq, op="all_reduce", created_ns=at_ns, thread=thread)
        for seq, (at_ns, thread) in enumerate(entries, start=1)
    )
    group = CollectiveRecord(group="0", last_enqueued=len(found), entries=found)
    return FlightRecord(taken_ns=1, groups=(group,))


def sites_of(flight: FlightRecord) -> list[int]:
    return [entry.site for entry in flight.groups[0].entries]


def test_a_call_belongs_to_the_operation_that_follows_it() -> None:
    """What C++ enters between two calls has none."""
    flight = recorded((11, 7), (14, 7), (21, 7))
    calls = (NotedCall(10, 7, 1), NotedCall(20, 7, 2))
    found = with_sites(flight, calls, {1: STEP, 2: SAVE})
    assert sites_of(found) == [1, 0, 2]
    assert found.sites == {1: STEP, 2: SAVE}


def test_threads_call_beside_each_other() -> None:
    flight = recorded((12, 7), (13, 8))
    calls = (NotedCall(10, 8, 2), NotedCall(11, 7, 1))
    assert sites_of(with_sites(flight, calls, {1: STEP, 2: SAVE})) == [1, 2]


def test_a_record_without_threads_takes_the_newest_call() -> None:
    assert sites_of(with_sites(recorded((11, 0)), (NotedCall(10, 7, 1),), {1: STEP})) == [1]


def test_reductions_are_counted_though_the_record_dropped_them() -> None:
    """As NCCL's does with all that has ended."""
    calls = tuple(NotedCall(at_ns, 7, 1) for at_ns in range(5)) + (NotedCall(9, 7, 2),) * 9
    found = with_sites(FlightRecord(taken_ns=1), calls, {1: STEP, 2: SAVE})
    assert (found.reduced, found.repeated) == (5, 9)
    assert with_sites(found, calls, {1: STEP, 2: replace(SAVE, root="root 0")}).repeated == 5
