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
STACK = """Process 900: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 900 (idle): "MainThread"
    read (/home/ada/demo/data.py:12)
    step (/home/ada/demo/train.py:88)
    <module> (/home/ada/demo/train.py:140)
"""


def late(folder: Path, rank: int) -> Path:
    """Write the records of a job of four ranks, of which one did not come to its #70."""
    dumps = {
        f"dump_{one}": dump(
            one, did(69, ended=True), *([] if one == rank else [did(70)]), groups=FOUR
        )
        for one in range(4)
    }
    return write(folder, dumps)


def test_what_a_log_adds_to_records_is_told_beside_them(tmp_path: Path) -> None:
    folder = late(tmp_path / "left", 2)
    (folder / "job.out").write_text("\n".join([timeout(0, 70), status(0, 70, 70, 69)]) + "\n")
    verdict = judged_files([folder])
    assert (verdict.verdict, verdict.culprits) == ("hang", (2,))
    assert any(one.kind == "also" for one in verdict.evidence)
    assert any("job.out:1" in one.text for one in verdict.evidence)
    assert not any(gap.what == "logs" for gap in verdict.gaps)
    assert not any("flight record" in gap.what for gap in verdict.gaps)


def test_a_rank_that_raised_explains_why_others_waited(tmp_path: Path) -> None:
    folder = late(tmp_path / "left", 2)
    (folder / "job.out").write_text(raised(2, "ValueError: bad sample") + "\n")
    verdict = judged_files([folder])
    assert verdict.culprits == (2,)
    assert "ValueError: bad sample" in verdict.summary
    assert "has not entered all_reduce #70" in verdict.summary


def test_a_stack_tells_the_line_where_nothing_else_names_a_rank(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    (folder / "stack_of_rank_0.txt").write_text(STACK)
    verdict = judged_files([folder])
    assert verdict.seen_in == "files"
    assert (verdict.stalled_since, verdict.stalled_for_s) == (None, 0.0), "a stack does not tell"
    assert verdict.stack_groups[0].frames[-1] == "read (/home/ada/demo/data.py:12)"


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
