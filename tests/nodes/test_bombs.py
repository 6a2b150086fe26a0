"""A few kB that unpack to millions of valid parts: refused before they are made, and soon."""

from __future__ import annotations

import time
import tracemalloc
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, look, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import CollectiveRecord, FlightRecord, GroupFamily, GroupRun
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes import encoding, peers
from lightning_hangcheck.nodes.encoding import (
    MARK,
    MOST_MEMORY,
    BadWord,
    can_be_told,
    most_memory,
    pack,
    read_judgement,
    read_word,
)
from lightning_hangcheck.nodes.meeting_place import FolderPlace
from lightning_hangcheck.nodes.peers import Peers
from lightning_hangcheck.nodes.word import TOO_LARGE, VERSION, Word, class_of, shortened, word_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MB = 1_000_000
NOBODY: dict[str, Any] = {"version": VERSION, "node": 1, "stamp": 1}
CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)
WORD = word_of(CASE, 1, 7)
VERDICT: dict[str, Any] = msgspec.to_builtins(judge(CASE))


def of_state(**fields: Any) -> dict[str, Any]:
    return {**NOBODY, **fields}


def of_rank(groups: Any = (), stacks: Any = (), **fields: Any) -> dict[str, Any]:
    return of_state(lines=[[0, [{"rank": 0, **fields}, stacks, groups], [0, 0]]])


def of_sample(**fields: Any) -> dict[str, Any]:
    look = {"pid": 1, "role": "rank", "samples": [{"taken_ns": 1, **fields}]}
    return of_rank(processes=[look])


def of_flight(**fields: Any) -> dict[str, Any]:
    return of_rank(flight={"taken_ns": 1, **fields})


FRAME = {"function": "", "file": "", "line": 1}
THREAD = {"tid": 1, "state": "", "cpu_s": 0}
KERNEL = {"pid": 1, "parent_pid": 1, "state": "", "started_ticks": 1, "cpu_s": 0}
OF_ALL: dict[str, Callable[[int], dict[str, Any]]] = {
    "reach": lambda n: of_state(reach=[["", 0]] * n),
    "addresses": lambda n: of_state(addresses=["ab"] * n),
    "lines": lambda n: of_state(lines=[[0, [{"rank": 0}], [0, 0]]] * n),
    "stacks of a rank": lambda n: of_rank(stacks=[300] * n),
    "groups": lambda n: of_rank(groups=[[]] * n),
    "gaps": lambda n: {**NOBODY, "gaps": [{"what": "", "rank": None, "why": ""}] * n},
    "steps": lambda n: of_rank(steps=[[1, 1]] * n),
    "sums": lambda n: of_rank(step_sums=[[1, 1, 1, 1]] * n),
    "threads": lambda n: of_sample(kernel={**KERNEL, "threads": [THREAD] * n}),
    "arguments": lambda n: of_sample(
        kernel={**KERNEL, "threads": [{**THREAD, "arguments": [1] * n}]}
    ),
    "gpus": lambda n: of_sample(gpus=[{"index": 1}] * n),
    "stacks": lambda n: of_sample(stack={"pid": 1, "source": "", "threads": [{"tid": 1}] * n}),
    "native calls": lambda n: of_sample(native_calls=["ab"] * n),
    "sites": lambda n: of_flight(sites={one: {} for one in range(n)}),
    "waits": lambda n: of_flight(waits={str(one): 1 for one in range(n)}),
    "messages": lambda n: of_flight(messages={"sent": dict.fromkeys(range(n), 1)}),
    "deep stacks": lambda n: of_state(frames=[FRAME], stacks=[[0] * 1_000] * (n // 1_000)),
    "many stacks": lambda n: of_state(frames=[FRAME], stacks=[[0]] * n),
    "frames": lambda n: of_state(frames=[FRAME] * n),
}


def traced(read: Callable[[], object]) -> tuple[object, int]:
    """What a function gives, or its refusal, and how many bytes it took at most."""
    tracemalloc.start()
    try:
        result: object = read()
    except BadWord as error:
        result = error
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return result, most


@pytest.mark.parametrize("kind", OF_ALL)
def test_what_parts_take_is_never_more_than_is_reckoned(kind: str) -> None:
    packed = msgspec.msgpack.encode(OF_ALL[kind](20_000))
    tracemalloc.start()
    with suppress(msgspec.ValidationError):
        assert encoding.DECODERS[Word].decode(packed)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < most_memory(packed)


@pytest.mark.parametrize(
    ("kind", "many"),
    [
        (kind, many)
        for kind in OF_ALL
        for many in (150_000, 4_000_000)
        # these do not repeat, so more of them are too large to travel
        if many == 150_000 or kind not in ("sites", "waits", "messages")
    ],
)
def test_millions_of_valid_parts_take_neither_memory_nor_time(kind: str, many: int) -> None:
    """Some are within the bounds, and are read; no more than those may take, and in seconds."""
    data = MARK + zlib.compress(msgspec.msgpack.encode(OF_ALL[kind](many)), 1)
    began = time.process_time()
    with suppress(BadWord):
        read_word(data)
    assert time.process_time() - began < 10.0
    assert traced(lambda: read_word(data))[1] < 0.6 * MOST_MEMORY


@pytest.mark.parametrize(
    "verdict",
    [
        {"evidence": [["", 0, ""]] * 1_500_000},
        {"wait_for": [{"from": "", "to": "", "through": ""}] * 900_000},
        {"ranks": [{"rank": 0}] * 1_500_000},
    ],
)
def test_a_judgement_of_a_few_kb_takes_no_memory_either(verdict: dict[str, Any]) -> None:
    told = {"version": VERSION, "stamp": 1, "verdict": {**VERDICT, **verdict}}
    data = MARK + zlib.compress(msgspec.msgpack.encode(told), 6)
    assert len(data) < 60_000
    refused, most = traced(lambda: read_judgement(data))
    assert isinstance(refused, BadWord)
    assert most < 64 * MB


def with_families(families: list[GroupFamily], ranks: int = 1) -> Word:
    """A word of ranks that are each in groups of these shapes."""
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
    refused, most = traced(lambda: read_word(pack(with_families(families, ranks))))
    assert "members" in str(refused)
    assert most < 12 * MB


def test_a_node_that_sees_too_much_says_so_instead_of_being_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one node leaves, any other may read; else it would look silent."""
    monkeypatch.setattr(encoding, "MOST_MEMORY", read_word(pack(WORD))[1] - 1)
    assert not can_be_told(pack(WORD))
    told, _ = read_word(pack(shortened(WORD)))
    assert told.gaps == (TOO_LARGE,)
    assert [line.told.view.rank for line in told.lines] == [0, 1]


def test_where_all_words_together_take_too_much_one_is_kept_without_its_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second, third = (pack(replace(WORD, node=node)) for node in (1, 2, 3))
    hears = Peers(NodePlace(number=0, nnodes=4), [FolderPlace(tmp_path)])
    assert hears.take(1, first)
    assert hears.heard[1].word.lines[0].told.view.processes
    monkeypatch.setattr(peers, "MOST_TOGETHER", hears.heard[1].memory)
    assert hears.take(2, second)
    assert hears.heard[2].word.gaps == (TOO_LARGE,)
    assert not hears.heard[2].word.lines[0].told.view.processes
    monkeypatch.setattr(peers, "MOST_MEMORY", 0)
    assert not hears.take(3, third)
    assert "more memory" in hears.unused[3]


def test_the_evidence_of_real_training_is_told_by_a_node_of_many_ranks() -> None:
    """Ranks of real training were 40 to 57 kB each: as many bytes are made of workers here."""
    workers = [look(IN_LOAD, pid=9_000 + number, role="worker") for number in range(45)]
    waits = rank(0, IN_BARRIER, children=workers)
    told = word_of(job(*(replace(waits, rank=one) for one in range(64))), 1, 1)
    unpacked = len(msgspec.msgpack.encode(told))
    assert unpacked > 40_000 * 64
    word, memory = read_word(pack(told))
    assert len(word.lines[0].told.view.processes) == 46
    assert memory < MOST_MEMORY
