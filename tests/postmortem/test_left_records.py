"""What records and logs that a run left tell, each alone and together."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from log_lines import raised, status, timeout
from postmortem.dumps import (
    LEFT_BEHIND,
    REAL_RECORDS,
    did,
    dump,
    judged,
    judged_files,
    posted,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Dumps = dict[int, dict[str, Any]]

ALL = range(8)
ONE = {"0": list(ALL)}
MESH = {"0": list(ALL), "1": [0, 1, 2, 3], "2": [4, 5, 6, 7], "3": [0, 4], "4": [1, 5]}
OTHER = {"0": list(ALL), "1": [0, 1]}
real = pytest.mark.skipif(not REAL_RECORDS.exists(), reason=f"{REAL_RECORDS} is not there")
DRAWS = 40
REMOVED = 6


def whole(*entries: dict[str, Any], groups: Mapping[str, Sequence[int]] = ONE) -> Dumps:
    """The same of all ranks."""
    return {rank: dump(rank, *entries, groups=groups) for rank in ALL}


@real
@pytest.mark.parametrize("culprits", [(9, 14), (12, 14)])
def test_a_real_job_is_explained_whatever_dumps_are_lost(culprits: tuple[int, ...]) -> None:
    files = sorted((REAL_RECORDS / f"ranks-{culprits[0]}-{culprits[1]}").iterdir())
    verdict = judged_files(files)
    assert (verdict.verdict, verdict.culprits) == ("hang", culprits)
    assert (verdict.seen_in, verdict.certainty) == ("files", "proven")
    assert verdict.victims == tuple(rank for rank in range(16) if rank not in culprits)
    assert verdict.world_size == 16
    draw, named = random.Random(7), 0
    for _ in range(DRAWS):
        verdict = judged_files(draw.sample(files, 16 - REMOVED))
        assert set(verdict.culprits) <= set(culprits), "nobody innocent is named"
        named += bool(verdict.culprits)
        assert any("no dump of it is here" in gap.why for gap in verdict.gaps)
    assert named > DRAWS / 2


def test_a_rank_with_nothing_open_that_others_wait_for_is_in_its_own_code(tmp_path: Path) -> None:
    line = (("step", "/home/ada/demo/train.py", 88), ("main", "/home/ada/demo/train.py", 120))
    dumps = whole(did(6, ended=True), did(7))
    dumps[3] = dump(3, did(6, ended=True, frames=line), groups=ONE)
    verdict = judged(tmp_path, dumps)
    assert (verdict.culprits, verdict.cause) == ((3,), "rank_stalled")
    assert "rank 3 has not entered all_reduce #7 of the default group" in verdict.summary
    assert "after its last call at demo/train.py:88" in verdict.summary
    assert "or inside that call" in verdict.summary, "torch counts it only once NCCL returned"
    assert verdict.victims == (0, 1, 2, 4, 5, 6, 7)


def test_waits_are_followed_through_groups_and_messages(tmp_path: Path) -> None:
    """Ranks 0 to 3 wait for rank 4's message, rank 4 and its group for rank 6."""
    dumps = {
        **{rank: dump(rank, did(40, group="1"), groups=MESH) for rank in (1, 2, 3)},
        0: dump(0, posted(9, "recv 0<-1", group="3"), did(40, group="1"), groups=MESH),
        **{rank: dump(rank, did(900, group="2"), groups=MESH) for rank in (4, 5, 7)},
        6: dump(6, groups=MESH, counted={"0": (3, 3), "2": (899, 899)}),
    }
    verdict = judged(tmp_path, dumps)
    assert verdict.culprits == (6,)
    edges = {(one.source, one.target) for one in verdict.wait_for}
    assert edges >= {("rank:1", "rank:0"), ("rank:0", "rank:4"), ("rank:4", "rank:6")}


def test_an_operation_that_ended_on_others_is_its_own_gpus(tmp_path: Path) -> None:
    dumps = whole(did(5, ended=True), did(6)) | {2: dump(2, did(5), did(6), groups=ONE)}
    verdict = judged(tmp_path, dumps)
    assert verdict.culprits == (2,)
    assert "GPU, driver or link of rank 2" in verdict.summary
    assert "dcgmi diag" in verdict.remedies[0].text


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_the_root_may_be_through_before_the_others(tmp_path: Path, op: str) -> None:
    """Which proves nothing of those that still stand in it."""
    dumps = whole(did(5, op)) | {0: dump(0, did(5, op, ended=True), groups=ONE)}
    assert judged(tmp_path, dumps).culprits == ()


def test_a_first_operation_that_never_ends_is_the_machine(tmp_path: Path) -> None:
    verdict = judged(tmp_path, whole(did(1)))
    assert (verdict.culprits, verdict.cause) == ((), "network_wait")
    assert "NCCL_P2P_DISABLE=1" in verdict.remedies[0].text


def test_other_sizes_under_one_number_are_told_by_the_majority(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path, whole(did(7, size=628)) | {5: dump(5, did(7, size=1140), groups=ONE)}
    )
    assert (verdict.culprits, verdict.cause) == ((5,), "collective_mismatch")
    assert verdict.certainty == "majority"
    assert verdict.collectives[0].ops == {
        "all_reduce [628] Float": "0-4,6-7",
        "all_reduce [1140] Float": "5",
    }


def test_of_two_ranks_that_differ_none_is_named(tmp_path: Path) -> None:
    pair = {"0": [0, 1]}
    dumps = {0: dump(0, did(7), groups=pair), 1: dump(1, did(7, "broadcast"), groups=pair)}
    verdict = judged(tmp_path, dumps)
    assert (verdict.culprits, verdict.cause) == ((), "collective_mismatch")
    assert "which of them is wrong is not told" in verdict.summary


@pytest.mark.parametrize("op", ["all_to_all", "reduce_scatter", "gather"])
def test_sizes_are_not_compared_where_they_may_differ(tmp_path: Path, op: str) -> None:
    dumps = {rank: dump(rank, did(7, op, size=rank + 1), groups=ONE) for rank in ALL}
    assert judged(tmp_path, dumps).cause == "network_wait"


def test_parts_of_a_coalesced_block_end_with_it(tmp_path: Path) -> None:
    """Torch never marks them as ended."""
    block = [
        *(did(5, "all_gather", size=size) for size in (1, 9)),
        did(5, "coalesced", ended=True, of_block=True),
    ]
    verdict = judged(tmp_path, whole(*block, did(6)) | {1: dump(1, *block, groups=ONE)})
    assert verdict.culprits == (1,)
    assert "#6" in verdict.summary


def test_ranks_of_groups_are_read_as_global_ones(tmp_path: Path) -> None:
    """Member 1 of the group is rank 5."""
    pair = {"0": list(ALL), "7": [2, 5]}
    dumps = {rank: dump(rank, groups=pair, counted={"0": (3, 3)}) for rank in ALL}
    dumps[2] = dump(2, posted(41, "recv 0<-1", group="7"), groups=pair)
    dumps[5] = dump(5, groups=pair, counted={"0": (3, 3), "7": (40, 40)})
    assert judged(tmp_path, dumps).culprits == (5,)


def test_numbers_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    """Rank 4 is at #2 of its group, the others at #900 of theirs: none is behind another."""
    groups = {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}
    dumps = {
        **{rank: dump(rank, did(900, group="1"), groups=groups) for rank in (0, 1, 3)},
        2: dump(2, did(899, group="1", ended=True), groups=groups),
        **{rank: dump(rank, did(2, group="2", ended=True), groups=groups) for rank in (4, 5, 6, 7)},
    }
    assert judged(tmp_path, dumps).culprits == (2,)


def test_one_that_is_ahead_is_not_behind(tmp_path: Path) -> None:
    """All but rank 6 have nothing open and have not entered #8: nothing tells who is wrong."""
    ended = did(7, ended=True)
    verdict = judged(tmp_path, whole(ended) | {6: dump(6, ended, did(8), groups=ONE)})
    assert (verdict.culprits, verdict.certainty) == ((), "guess")
    assert any(one.kind == "guess" for one in verdict.evidence)


def test_a_rank_without_a_dump_is_unknown_and_not_guilty(tmp_path: Path) -> None:
    dumps = whole(did(7))
    del dumps[4]
    verdict = judged(tmp_path, dumps)
    assert (verdict.verdict, verdict.culprits) == ("hang", ())
    assert "no dump of rank 4 is here" in verdict.summary
    (gap,) = [one for one in verdict.gaps if "flight record" in one.what]
    assert "TORCH_FR_BUFFER_SIZE" in gap.why
    assert next(row.state for row in verdict.ranks if row.rank == 4) == "unseen"


def test_what_a_dump_does_not_list_may_have_ended(tmp_path: Path) -> None:
    """Its ring has wrapped: rank 1 lists nothing of group 1, and has no count of it."""
    dumps = whole(did(50, ended=True), groups=OTHER)
    dumps[0] = dump(0, did(9, group="1"), groups=OTHER)
    dumps[1]["pg_status"] = {}
    assert judged(tmp_path, dumps).culprits == ()


def test_a_clock_that_jumped_orders_nothing(tmp_path: Path) -> None:
    """Rank 0's clock went back an hour between two operations of two groups."""
    first, second = did(9, group="1", at_s=3_700.0), did(5, at_s=100.0)
    dumps = whole(did(5), groups=OTHER)
    dumps[0] = dump(0, first, second, groups=OTHER)
    dumps[1] = dump(1, groups=OTHER, counted={"0": (4, 4), "1": (8, 8)})
    verdict = judged(tmp_path, dumps)
    assert verdict.culprits == (1,)
    edges = {(one.source, one.target, one.through) for one in verdict.wait_for}
    assert ("rank:0", "rank:1", "in all_reduce #9") in edges


def test_groups_entered_in_another_order_are_a_mismatch_of_nobody(tmp_path: Path) -> None:
    groups = {"0": [0, 1], "1": [0, 1]}
    dumps = {
        0: dump(0, did(9, group="1"), groups=groups, counted={"0": (3, 3)}),
        1: dump(1, did(4, group="0"), groups=groups, counted={"1": (8, 8)}),
    }
    verdict = judged(tmp_path, dumps)
    assert (verdict.culprits, verdict.cause) == ((), "collective_mismatch")
    assert "ranks wait for each other" in verdict.summary


def test_what_several_wait_for_has_not_ended_on_a_rank_with_nothing_open(tmp_path: Path) -> None:
    """Rank 3 lists nothing of the group, and has no count: one witness is a guess, two are not."""
    groups = {"0": list(ALL), "1": [0, 1, 2, 3]}
    calm = whole(did(50, ended=True), groups=groups)
    calm[3]["pg_status"] = {}
    stuck = {rank: dump(rank, did(9, group="1"), groups=groups) for rank in (0, 1, 2)}
    assert judged(tmp_path / "a", calm | stuck).culprits == (3,)
    alone = {"0": list(ALL), "1": [0, 3]}
    pair = {0: dump(0, did(9, group="1"), groups=alone), 3: dump(3, groups=alone)}
    pair[3]["pg_status"] = {}
    verdict = judged(tmp_path / "b", pair)
    assert (verdict.culprits, verdict.certainty) == ((), "guess")


@pytest.mark.parametrize("posts", [["send 0->1", "recv 1<-0"], ["recv 0<-1", "recv 1<-0"]])
def test_ends_of_one_message_that_wait_for_each_other_blame_nobody(
    tmp_path: Path, posts: list[str]
) -> None:
    pair = {"0": list(ALL), "7": [2, 5]}
    dumps = whole(did(3, ended=True), groups=pair)
    for rank, post in zip((2, 5), posts, strict=True):
        dumps[rank] = dump(rank, posted(41, post, group="7"), groups=pair)
    verdict = judged(tmp_path, dumps)
    assert (verdict.verdict, verdict.culprits) == ("hang", ())


FOUR = {"0": [0, 1, 2, 3]}
PIECES = sorted(one.parent for one in LEFT_BEHIND.glob("*/truth.json"))
LOADER = """Process 700: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 700 (idle): "MainThread"
    wait (threading.py:331)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1295)
    __next__ (torch/utils/data/dataloader.py:741)
    fit (/home/ada/demo/train.py:41)
    <module> (/home/ada/demo/train.py:90)
"""


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """The records of a job of four ranks, of which rank 2 did not come to its #70."""
    entries = [did(69, ended=True), did(70)]
    dumps = {
        f"dump_{rank}": dump(rank, *entries[: 1 if rank == 2 else 2], groups=FOUR)
        for rank in range(4)
    }
    return write(tmp_path / "left", dumps)


def test_what_a_log_adds_to_records_is_told_beside_them(late: Path) -> None:
    (late / "job.out").write_text("\n".join([timeout(0, 70), status(0, 70, 70, 69)]) + "\n")
    verdict = judged_files([late])
    assert (verdict.verdict, verdict.culprits) == ("hang", (2,))
    assert any(one.kind == "also" for one in verdict.evidence)
    assert any("job.out:1" in one.text for one in verdict.evidence)
    assert not any(gap.what == "logs" for gap in verdict.gaps)
    assert not any("flight record" in gap.what for gap in verdict.gaps)


def test_a_rank_that_raised_explains_why_others_waited(late: Path) -> None:
    (late / "job.out").write_text(raised(2, "ValueError: bad sample") + "\n")
    verdict = judged_files([late])
    assert verdict.culprits == (2,)
    assert "ValueError: bad sample" in verdict.summary
    assert "has not entered all_reduce #70" in verdict.summary


def test_the_line_comes_from_a_stack_that_somebody_took(late: Path) -> None:
    (late / "rank2.txt").write_text(LOADER)
    verdict = judged_files([late])
    assert (verdict.culprits, verdict.certainty) == ((2,), "proven")
    assert "train.py:41" in verdict.summary


def test_a_stack_of_an_unnamed_rank_is_left_out_with_the_way_to_name_it(late: Path) -> None:
    (late / "stack.txt").write_text(LOADER)
    verdict = judged_files([late])
    assert any("put the rank into the file's name" in gap.why for gap in verdict.gaps)


@pytest.mark.parametrize("name", ["stack_of_rank_0.txt", "stack.txt"])
def test_a_stack_alone_tells_the_line_and_no_duration(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LOADER)
    verdict = judged_files([tmp_path])
    assert (verdict.culprits, verdict.cause) == ((0,), "dataloader_worker")
    assert (verdict.stalled_since, verdict.stalled_for_s) == (None, 0.0)
    assert "an unknown time" in verdict.summary
    assert verdict.stack_groups[0].frames[1] == "fit (/home/ada/demo/train.py:41)"
    assert any("it is shown as rank 0" in gap.why for gap in verdict.gaps) is (name == "stack.txt")


@pytest.mark.skipif(not PIECES, reason=f"{LEFT_BEHIND} is not there")
def test_given_pieces_name_nobody_innocent() -> None:
    for piece in PIECES:
        truth = json.loads((piece / "truth.json").read_bytes())
        verdict = judged_files([piece])
        assert set(verdict.culprits) <= set(truth["culprits"] or ()), piece
        if truth["truth_from"] == "evidence" and truth["culprits"]:
            assert verdict.culprits == tuple(truth["culprits"]), piece
        if truth["truth_from"] == "evidence" and truth["cause"]:
            assert verdict.cause in (truth["cause"], *truth["also_ok"]), piece


def test_a_job_of_which_nothing_is_open_is_not_called_a_hang(tmp_path: Path) -> None:
    verdict = judged(tmp_path, whole(did(7, ended=True)))
    assert (verdict.verdict, verdict.culprits) == ("healthy", ())
    assert "no operation was open" in verdict.summary
