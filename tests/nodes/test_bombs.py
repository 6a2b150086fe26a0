"""A few kB that unpack to millions of valid parts: refused before they are made, and soon."""

from __future__ import annotations

import time
import tracemalloc
import zlib
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, look, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.gather.rank_set import rank_set
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import (
    CollectiveRecord,
    FlightRecord,
    GroupFamily,
    GroupRun,
)
from lightning_hangcheck.nodes import encoding, heard
from lightning_hangcheck.nodes.bounds import MOST_MEMORY, most_memory
from lightning_hangcheck.nodes.digest import (
    TOO_LARGE,
    NodeDigest,
    digest_of,
    merge_digests,
    shortened,
)
from lightning_hangcheck.nodes.encoding import (
    MARK,
    VERSION,
    BadDigest,
    can_be_told,
    memory_of,
    pack,
    unpack,
    unpack_word,
)
from lightning_hangcheck.nodes.folding import FOLDED_ABOVE, FoldedRanks, RankDigest
from lightning_hangcheck.nodes.heard import newly_heard
from lightning_hangcheck.nodes.round_end import LeftRound

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1_000_000
NOBODY: dict[str, Any] = {"version": VERSION, "nodes": [{"node": 1, "stamp": 1}]}
CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)
DIGEST = digest_of(CASE, 1, 7)
VERDICT: dict[str, Any] = msgspec.to_builtins(judge(CASE))


def of_state(**fields: Any) -> dict[str, Any]:
    return {**NOBODY, "nodes": [{"node": 1, "stamp": 1, **fields}]}


def of_rank(groups: Any = (), leaves: Any = (), **fields: Any) -> dict[str, Any]:
    return of_state(ranks=[[{"rank": 0, **fields}, leaves, groups]])


def of_sample(**fields: Any) -> dict[str, Any]:
    look = {"pid": 1, "role": "rank", "samples": [{"taken_ns": 1, **fields}]}
    return of_rank(processes=[look])


def of_flight(**fields: Any) -> dict[str, Any]:
    return of_rank(flight={"taken_ns": 1, **fields})


def of_nodes(count: int) -> dict[str, Any]:
    """All that a stranger may still tell: 1,024 ranks of each of some nodes."""
    ranks = [[{"rank": 0}]] * 1_024
    return {**NOBODY, "nodes": [{"node": n, "stamp": 1, "ranks": ranks} for n in range(count)]}


FRAME = {"function": "", "file": "", "line": 1}
THREAD = {"tid": 1, "state": "", "cpu_s": 0}
KERNEL = {"pid": 1, "parent_pid": 1, "state": "", "started_ticks": 1, "cpu_s": 0}
OF_ALL: dict[str, Callable[[int], dict[str, Any]]] = {
    "reach": lambda n: of_state(reach=[["", 0]] * n),
    "addresses": lambda n: of_state(addresses=["ab"] * n),
    "states": lambda n: {**NOBODY, "nodes": [{"node": 1, "stamp": 1}] * n},
    "ranks": lambda n: of_state(ranks=[[{"rank": 0}]] * n),
    "ranks of many nodes": lambda n: of_nodes(n // 1_024 or 1),
    "folded": lambda n: of_state(folded=list(range(300, 300 + n))),
    "leaves": lambda n: of_rank(leaves=[300] * n),
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
    "parents": lambda n: {**NOBODY, "tree": [[FRAME], [0] * n, [0] * n]},
    "frames": lambda n: {**NOBODY, "tree": [[FRAME] * n]},
}


def traced(read: Callable[[], object]) -> tuple[object, int]:
    """What a function gives, or its refusal, and how many bytes it took at most."""
    tracemalloc.start()
    try:
        result: object = read()
    except BadDigest as error:
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
        assert encoding.DECODERS[NodeDigest].decode(packed)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < most_memory(packed)


@pytest.mark.parametrize("many", [150_000, 4_000_000])
@pytest.mark.parametrize("kind", OF_ALL)
def test_millions_of_valid_parts_take_neither_memory_nor_time(kind: str, many: int) -> None:
    """Some are within the bounds, and are read; no more than those may take, and in seconds."""
    if kind in ("sites", "waits", "messages"):
        many = min(many, 150_000)  # these do not repeat, so more of them are too large to travel
    data = MARK + zlib.compress(msgspec.msgpack.encode(OF_ALL[kind](many)), 1)
    began = time.process_time()
    with suppress(BadDigest):
        unpack(data)
    assert time.process_time() - began < 10.0
    assert traced(lambda: unpack(data))[1] < 0.6 * MOST_MEMORY


@pytest.mark.parametrize("kind", ["reach", "addresses", "parents", "groups", "leaves", "ranks"])
def test_what_was_found_to_fill_a_sidecar_is_refused(kind: str) -> None:
    data = MARK + zlib.compress(msgspec.msgpack.encode(OF_ALL[kind](500_000)), 6)
    assert len(data) < 8_000
    refused, most = traced(lambda: unpack(data))
    assert isinstance(refused, BadDigest)
    assert most < 12 * MB


@pytest.mark.parametrize(
    "word",
    [
        {"asks": ["ab"] * 400_000},
        {"lost": [{"node": 1, "stamp": 1}] * 400_000},
        {"line": [300] * 400_000},
        {"verdict": {**VERDICT, "evidence": [["", 0, ""]] * 400_000}},
        {"verdict": {**VERDICT, "wait_for": [{"from": "", "to": "", "through": ""}] * 400_000}},
        {"verdict": {**VERDICT, "ranks": [{"rank": 0}] * 400_000}},
        {"verdict": {**VERDICT, "culprits": [300] * 2_000_000}},
    ],
)
def test_a_word_of_a_few_kb_takes_no_memory_either(word: dict[str, Any]) -> None:
    data = MARK + zlib.compress(msgspec.msgpack.encode({"version": 2, "stamp": 1, **word}), 6)
    assert len(data) < 50_000
    refused, most = traced(lambda: unpack_word(data))
    assert isinstance(refused, BadDigest)
    assert most < 24 * MB


def with_families(families: list[GroupFamily], ranks: int = 1) -> NodeDigest:
    """A digest of ranks that are each in groups of these shapes."""
    flight = FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="0"),) * len(families))
    (state,) = DIGEST.nodes
    told = [
        RankDigest(RankView(rank=one, flight=flight), (), tuple(families)) for one in range(ranks)
    ]
    return replace(DIGEST, nodes=(replace(state, ranks=tuple(told)),))


@pytest.mark.parametrize(
    ("shapes", "ranks"), [(16, 1), (1, 1_000)], ids=["of many shapes", "of many ranks"]
)
def test_groups_of_a_million_members_are_not_made(shapes: int, ranks: int) -> None:
    """Six bytes say a million members: of groups that differ, or of each rank once more."""
    million = 1_000_000
    families = [GroupFamily((0, 1, million - n), (GroupRun(0, 1, 1, "0"),)) for n in range(shapes)]
    refused, most = traced(lambda: unpack(pack(with_families(families, ranks))))
    assert "members" in str(refused)
    assert most < 12 * MB


def test_a_node_that_sees_too_much_says_so_instead_of_being_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one node leaves, any other may read; else it would look silent."""
    monkeypatch.setattr(encoding, "MOST_MEMORY", memory_of(DIGEST) - 1)
    assert not can_be_told(pack(DIGEST))
    _, (told,), _ = unpack(pack(shortened(DIGEST)))
    assert told.state.gaps == (TOO_LARGE,)
    assert [view.rank for view in told.views] == [0, 1]


def test_where_all_digests_together_take_too_much_one_is_kept_without_its_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (pack(replace_node(DIGEST, node)) for node in (1, 2))
    known = newly_heard(first, (), 0)
    assert known[0].views[0].processes
    monkeypatch.setattr(heard, "MOST_TOGETHER", known[0].most_memory)
    (found,) = newly_heard(second, known, 0)
    assert [view.processes for view in found.views] == [(), ()]
    assert found.state.gaps == (TOO_LARGE,)
    monkeypatch.setattr(heard, "MOST_MEMORY", 0)
    with pytest.raises(BadDigest, match="more memory"):
        newly_heard(second, known, 0)


def replace_node(digest: NodeDigest, node: int) -> NodeDigest:
    return replace(digest, nodes=(replace(digest.nodes[0], node=node),))


def test_what_the_largest_job_tells_is_read() -> None:
    """All nodes of a subtree of 16,384 nodes, with the ends of a round, and 256 ways to stand."""
    views = tuple(RankView(rank=number, host=f"node-{number:05d}") for number in range(2))
    (state,) = DIGEST.nodes
    ended = LeftRound(1, 131_072, 8, views)
    states = [replace(state, node=n, ranks=(), left=ended) for n in range(1_057)]
    first = DIGEST.nodes[0].ranks[0]
    ranks = range(0, 131_072, 2)
    folds = [
        FoldedRanks(standing, first, tuple(chain.from_iterable((n, n) for n in ranks[at::256])))
        for at, standing in enumerate(range(1, 257))
    ]
    states = [
        replace(one, folded=rank_set(range(n * 8, n * 8 + 8))) for n, one in enumerate(states)
    ]
    alike = [replace(one, ranks=tuple(n for n in one.ranks if n < 1_057 * 8)) for one in folds]
    told = merge_digests([replace(DIGEST, nodes=tuple(states), folds=tuple(alike))])
    assert can_be_told(pack(told))
    assert memory_of(told) < MOST_MEMORY / 4
    assert len(unpack(pack(told))[1]) == 1_057


def test_each_rank_of_the_largest_job_that_is_not_folded_is_told_with_its_evidence() -> None:
    """Ranks of real training were 40 to 57 kB each: as many bytes are made of workers here."""
    workers = [look(IN_LOAD, pid=9_000 + number, role="worker") for number in range(45)]
    waits = rank(0, IN_BARRIER, children=workers)
    nodes = range(FOLDED_ABOVE // 4 // 2 + 1)  # half of all nodes, with four ranks each
    told = merge_digests(
        digest_of(job(*(replace(waits, rank=4 * node + local) for local in range(4))), node, 1)
        for node in nodes
    )
    unpacked = len(msgspec.msgpack.encode(told))
    assert unpacked > 50_000 * 4 * len(nodes)
    data = pack(told)
    assert can_be_told(data)
    (first, *_) = newly_heard(data, [], 1)
    assert len(first.views[0].processes) == 46
    assert memory_of(told) < MOST_MEMORY
