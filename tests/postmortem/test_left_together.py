"""Logs, records and stacks of one job are joined in one verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from log_lines import raised, status, timeout
from postmortem.dumps import LEFT_BEHIND, did, dump, judged_files, write

if TYPE_CHECKING:
    from pathlib import Path

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
