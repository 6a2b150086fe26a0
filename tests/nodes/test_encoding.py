"""What a node tells is short; bytes of a stranger give one clear error, and take no memory."""

from __future__ import annotations

import math
import time
import tracemalloc
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, NOW_NS, job, rank
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import rebased
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import (
    CollectiveRecord,
    FlightRecord,
    GroupFamily,
    GroupRun,
)
from lightning_hangcheck.nodes import encoding
from lightning_hangcheck.nodes.encoding import (
    MARK,
    MOST_MEMORY,
    BadMessage,
    can_be_sent,
    pack,
    read_judgement,
    read_message,
)
from lightning_hangcheck.nodes.message import (
    TAKEN_NS,
    TOO_LARGE,
    VERSION,
    Judgement,
    Message,
    RoundMark,
    class_of,
    message_of,
    shortened,
)
from lightning_hangcheck.nodes.peers import PeerState
from lightning_hangcheck.watch.joined_nodes import join_peers

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_LOAD), world_size=8)


def test_in_a_large_job_evidence_is_told_where_it_is_asked_for() -> None:
    waits, loads = message_of(LARGE, 0, 1, folded_above=0).lines
    assert (waits.ranks, loads.ranks) == ((0, 1), (2, 2))
    assert not waits.view.processes
    asked = message_of(LARGE, 0, 1, folded_above=0, wanted=[1])
    assert [bool(line.view.processes) for line in asked.lines] == [True, False]


def test_a_calm_rank_takes_no_hundred_bytes_a_second() -> None:
    calm = job(*(rank(number, silent=0.2) for number in range(8)), world_size=131_072)
    assert len(pack(message_of(calm, 0, 1))) / 8 < 100


CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)

WORD = message_of(CASE, 1, 7)

PACKED = pack(WORD)

FOLDED = message_of(CASE, 1, 7, folded_above=0, wanted=[0, 1])


def refusal(data: bytes) -> str:
    with pytest.raises(BadMessage) as caught:
        read_message(data)
    return str(caught.value)


def with_state(**fields: Any) -> bytes:
    return pack(replace(WORD, **fields))


def with_first_rank(**fields: Any) -> bytes:
    first, *others = WORD.lines
    view = replace(first.view, **fields)
    return with_state(lines=(replace(first, view=view), *others))


def with_class(**fields: Any) -> bytes:
    first, *others = FOLDED.lines
    return pack(replace(FOLDED, lines=(replace(first, **fields), *others)))


@given(st.binary(max_size=400))
@example(b"\x80")  # an empty map of msgpack
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    for one in (data, MARK + data, MARK + zlib.compress(data)):
        assert refusal(one)


@given(st.lists(st.integers(-3, 1 << 24), max_size=8))
def test_lines_of_odd_ranks_are_refused_or_joined(ranks: list[int]) -> None:
    first, *others = FOLDED.lines
    odd = replace(FOLDED, lines=(replace(first, ranks=tuple(ranks)), *others))
    with suppress(BadMessage):
        message, _ = read_message(pack(odd))
        assert (
            len(join_peers(job(rank(0, IN_BARRIER), world_size=4), [PeerState(message, 1)]).alike)
            <= 4
        )


def test_what_is_too_large_to_travel_is_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_PACKED", len(PACKED) - 1)
    assert "at most" in refusal(PACKED)


@pytest.mark.parametrize(
    "data",
    [
        with_state(world_size=1 << 40),
        with_state(software="9" * 100),
        with_state(mark=RoundMark(math.nan, 1)),
        with_state(wants=(-1,)),
        with_state(asks=("10.0.0.1",) * 1_000),
        with_state(stacks=((5_000,),)),
        with_state(stacks=()),
        with_state(lines=WORD.lines * 2),
        with_first_rank(rank=1 << 40),
        with_first_rank(silent_for_s=math.inf),
        with_first_rank(idle_for_s=-1.0),
        with_first_rank(processes=()),
        with_class(ranks=(1, 0)),
        with_class(ranks=(-1, 0)),
        with_class(ranks=(0, 3)),
        with_class(view=FOLDED.lines[0].view, groups=(), stacks=()),
    ],
)
def test_what_cannot_be_is_refused(data: bytes) -> None:
    assert refusal(data)


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), ValueError("x"), OSError()])
def test_whatever_goes_wrong_with_a_word_is_its_senders_fault(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(encoding, "can_be_reckoned_with", fails)
    assert type(error).__name__ in refusal(PACKED)
    with pytest.raises(BadMessage, match=type(error).__name__):
        read_judgement(pack(Judgement(version=VERSION, stamp=3)))


VERDICT = judge(CASE)


@pytest.mark.parametrize(
    "changes",
    [
        {"stalled_for_s": math.nan},
        {"stalled_for_s": -1.0},
        {"world_size": 1 << 40},
        {"stalled_since": "three o'clock"},
        {"detected_at": "2" * 10_000},
        {"culprits": (-1,)},
        {"summary": "x " * 50_000},
        {"remedies": VERDICT.remedies * 30_000},
    ],
)
def test_a_judgement_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    verdict = replace(VERDICT, **changes)
    with pytest.raises(BadMessage):
        read_judgement(pack(Judgement(version=VERSION, stamp=3, verdict=verdict)))


MB = 1_000_000

NOBODY: dict[str, Any] = {"version": VERSION, "node": 1, "stamp": 1}


def of_state(**fields: Any) -> dict[str, Any]:
    return {**NOBODY, **fields}


def of_rank(groups: Any = (), stacks: Any = (), **fields: Any) -> dict[str, Any]:
    return of_state(lines=[[0, {"rank": 0, **fields}, [0, 0], [], groups, stacks]])


def of_sample(**fields: Any) -> dict[str, Any]:
    look = {"pid": 1, "role": "rank", "samples": [{"taken_ns": 1, **fields}]}
    return of_rank(processes=[look])


def of_flight(**fields: Any) -> dict[str, Any]:
    return of_rank(flight={"taken_ns": 1, **fields})


FRAME = {"function": "", "file": "", "line": 1}

THREAD = {"tid": 1, "state": "", "cpu_s": 0}

KERNEL = {"pid": 1, "parent_pid": 1, "state": "", "started_ticks": 1, "cpu_s": 0}

OF_ALL: dict[str, Callable[[int], dict[str, Any]]] = {
    "lines": lambda n: of_state(lines=[[0, {"rank": 0}, [0, 0]]] * n),
    "groups": lambda n: of_rank(groups=[[]] * n),
    "threads": lambda n: of_sample(kernel={**KERNEL, "threads": [THREAD] * n}),
    "sites": lambda n: of_flight(sites={one: {} for one in range(n)}),
    "deep stacks": lambda n: of_state(frames=[FRAME], stacks=[[0] * 1_000] * (n // 1_000)),
    "many stacks": lambda n: of_state(frames=[FRAME], stacks=[[0]] * n),
}
"""Parts of each level of a message."""


def traced(read: Callable[[], object]) -> tuple[object, int]:
    """What a function gives, or its refusal, and how many bytes it took at most."""
    tracemalloc.start()
    try:
        result: object = read()
    except BadMessage as error:
        result = error
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return result, most


@pytest.mark.parametrize(
    ("kind", "many"),
    [
        (kind, many)
        for kind in OF_ALL
        for many in (150_000, 4_000_000)
        if many == 150_000 or kind != "sites"  # which does not repeat: more cannot travel
    ],
)
def test_millions_of_valid_parts_take_neither_memory_nor_time(kind: str, many: int) -> None:
    """Some are within the bounds, and are read; no more than those may take, and in seconds."""
    data = MARK + zlib.compress(msgspec.msgpack.encode(OF_ALL[kind](many)), 1)
    began = time.process_time()
    with suppress(BadMessage):
        read_message(data)
    assert time.process_time() - began < 10.0
    assert traced(lambda: read_message(data))[1] < 0.6 * MOST_MEMORY


def with_families(families: list[GroupFamily], ranks: int = 1) -> Message:
    """A message of ranks that are each in groups of these shapes."""
    flight = FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="0"),) * len(families))
    views = [RankView(rank=one, flight=flight) for one in range(ranks)]
    return replace(WORD, lines=tuple(class_of(view, tuple(families), 0) for view in views))


@pytest.mark.parametrize(
    ("shapes", "ranks"), [(16, 1), (1, 1_000)], ids=["of many shapes", "of many ranks"]
)
def test_groups_of_a_million_members_are_not_made(shapes: int, ranks: int) -> None:
    """Six bytes say a million members: of groups that differ, or of each rank once more."""
    million = 1_000_000
    families = [GroupFamily((0, 1, million - n), (GroupRun(0, 1, 1, "0"),)) for n in range(shapes)]
    refused, most = traced(lambda: read_message(pack(with_families(families, ranks))))
    assert "members" in str(refused)
    assert most < 12 * MB


def test_a_node_that_sees_too_much_says_so_instead_of_being_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one node leaves, any other may read; else it would look silent."""
    monkeypatch.setattr(encoding, "MOST_MEMORY", read_message(pack(WORD))[1] - 1)
    assert not can_be_sent(pack(WORD))
    told, _ = read_message(pack(shortened(WORD)))
    assert told.gaps == (TOO_LARGE,)
    assert [line.view.rank for line in told.lines] == [0, 1]


def test_a_bomb_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_UNPACKED", 100_000)
    assert "bytes unpacked" in refusal(MARK + zlib.compress(bytes(1_000_000)))


def test_a_word_comes_out_as_it_went_in_on_another_clock() -> None:
    message, _ = read_message(pack(message_of(CASE, 0, 1)))
    views = tuple(line.view for line in message.lines)
    assert views == rebased(CASE, TAKEN_NS - NOW_NS).ranks
