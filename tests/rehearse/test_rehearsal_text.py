"""What a rehearsal says."""

from __future__ import annotations

import json

from cases import IN_BARRIER, IN_LOAD, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.rehearse import Played, Rehearsed, render, to_json

PASSED = Played(scene="as-it-is", title="as it is", result="passed", seconds=9.1)
SKIPPED = Played(scene="sigterm", title="one rank gets SIGTERM", result="skipped", why="no handler")


def _rehearsed(*played: Played) -> Rehearsed:
    return Rehearsed(command="torchrun train.py", ranks=2, batches=4, seconds=31.2, scenes=played)


def test_a_scene_that_hung_is_told_with_place_and_remedy() -> None:
    verdict = judge(job(rank(0, IN_BARRIER, silent=400.0), rank(1, IN_LOAD, silent=400.0)))
    hung = Played(
        scene="save-fails",
        title="a save of rank 0 fails",
        remedy="broadcast whether it went well",
        result="hung",
        why=verdict.summary,
        seconds=20.0,
        verdict=verdict,
        run_folder="hangcheck_runs/x-save-fails",
    )
    rehearsed = _rehearsed(PASSED, hung, SKIPPED)
    said = render(rehearsed)
    assert said.startswith("REHEARSAL  hangs in 1 of 2 scenes: a save of rank 0 fails (2 CPU rank")
    assert verdict.summary.split()[-1] in said
    assert "do       broadcast whether it went well" in said
    assert "hangcheck report hangcheck_runs/x-save-fails" in said
    scenes = json.loads(to_json(rehearsed))["scenes"]
    assert [one["result"] for one in scenes] == ["passed", "hung", "skipped"]
    assert scenes[1]["verdict"]["cause"] == verdict.cause


def test_none_that_hung() -> None:
    said = render(_rehearsed(PASSED, SKIPPED))
    assert said.startswith("REHEARSAL  1 scene played, none hangs")
    assert "skipped" in said
    assert "no handler" in said


def test_a_hang_that_gloo_ended_has_no_verdict() -> None:
    parted = Played(
        scene="no-samples", title="one rank has no samples", result="hung", why="sizes differ"
    )
    said = render(_rehearsed(PASSED, parted))
    assert said.startswith("REHEARSAL  hangs in 1 of 2 scenes: one rank has no samples")
    assert "where    sizes differ" in said
