"""What came of a scene, by how its run ended and what the ranks noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.rehearsal import Note
from lightning_hangcheck.rehearse import judge_scene
from lightning_hangcheck.smoke.sequence import Outcome, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.slugs import VerdictKind
    from lightning_hangcheck.smoke.sequence import Result

CUT_OFF = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"


def _outcome(result: Result, folder: str = "gone/run", kind: VerdictKind = "hang") -> Outcome:
    verdict = judge(job(rank(0, IN_BARRIER, silent=400.0), rank(1, IN_LOAD, silent=400.0)))
    return Outcome(
        trial=Trial(devices=2, workers=None, command=("train.py",)),
        result=result,
        seconds=1.0,
        where="" if result == "passed" else "rank 1 is stuck",
        verdict=replace(verdict, verdict=kind, culprits=(1,)),
        run_folder=folder,
    )


def _raised(number: int, text: str = "ValueError: empty") -> Note:
    return Note(kind="raised", rank=number, text=text, key=f"step (train.py:{number})")


LEFT = Note(kind="left", rank=1)


@pytest.mark.parametrize(
    ("result", "notes", "judged"),
    [
        ("passed", [], "passed"),
        ("hang", [], "hung"),
        ("late", [], "unclear"),
        ("failed", [], "crashed-on-one"),
        ("failed", [_raised(0), _raised(1)], "crashed-alike"),
        ("failed", [_raised(0), _raised(1, "KeyError: 'x'")], "crashed-on-one"),
        ("failed", [_raised(0)], "crashed-on-one"),
        ("failed", [_raised(0, CUT_OFF), LEFT], "hung"),
        ("failed", [_raised(0, CUT_OFF), _raised(1, CUT_OFF)], "hung"),
        ("failed", [_raised(0, CUT_OFF), _raised(1)], "crashed-on-one"),
        ("failed", [_raised(0, CUT_OFF)], "crashed-on-one"),
    ],
)
def test_how_a_run_ended(result: Result, notes: list[Note], judged: str) -> None:
    assert judge_scene(_outcome(result), notes, ranks=2)[0] == judged


def test_where_gloo_ended_ranks_it_says_where_they_were() -> None:
    why = judge_scene(_outcome("failed"), [_raised(0, CUT_OFF), LEFT], ranks=2)[1]
    assert why.startswith("rank 0 was in step (train.py:0), rank 1 had left")


def test_a_rank_that_an_error_ended_is_no_hang() -> None:
    judged, why = judge_scene(_outcome("hang", kind="dead"), [_raised(1)], ranks=2)
    assert (judged, why) == ("crashed-on-one", "ValueError: empty")
    assert judge_scene(_outcome("hang", kind="dead"), [LEFT], ranks=2)[0] == "hung"


def test_gloo_that_ends_a_rank_for_other_sizes_is_read_from_its_output(tmp_path: Path) -> None:
    output = tmp_path / "run.log"
    output.write_text("what(): Received data size doesn't match expected size. Is there ...\n")
    output.chmod(0o600)
    assert judge_scene(_outcome("failed", f"{tmp_path}/run"), [], ranks=2)[0] == "hung"
