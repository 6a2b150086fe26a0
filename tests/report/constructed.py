"""Constructed verdicts for the report's tests: a run of one kind of trouble each."""

from __future__ import annotations

from typing import Any

from lightning_hangcheck.model.verdict import RankState, Verdict

RUN_ID = "20261120T102301-7f3a"
FOLDER = f"hangcheck_runs/{RUN_ID}"
STALLED_SINCE = "2026-11-20T10:23:45.000000Z"


def verdict(kind: str, **fields: Any) -> Verdict:
    """A two-rank verdict; every field can be given."""
    given: dict[str, Any] = {
        "verdict": kind,
        "run_id": RUN_ID,
        "command": "torchrun --nproc_per_node=2 train.py",
        "world_size": 2,
        "started_at": "2026-11-20T10:23:01Z",
        "detected_at": "2026-11-20T10:24:16.000000Z",
    }
    return Verdict(**(given | fields))


def _state(rank: int, state: str, phase: str, **more: Any) -> RankState:
    return RankState(rank=rank, state=state, phase=phase, **more)  # type: ignore[arg-type]


def suspect() -> Verdict:
    """Rank 3 of 8 is silent for 12 s and the others wait for it."""
    return verdict(
        "suspect",
        world_size=8,
        stalled_since=STALLED_SINCE,
        stalled_for_s=12.0,
        culprits=(3,),
        victims=(0, 1, 2, 4, 5, 6, 7),
        cause="rank_stalled",
        phase="validation",
        confidence=0.5,
        summary="rank 3 is silent since 12 s in evaluate (train.py:120)",
        ranks=tuple(_state(r, "stalled" if r == 3 else "waiting", "validation") for r in range(8)),
    )


def running(kind: str, summary: str) -> Verdict:
    """Every rank runs; only the kind differs."""
    state = "gone" if kind == "finished" else "running"
    ranks = tuple(_state(r, state, "training_step", step=40 + r) for r in (0, 1))
    return verdict(kind, summary=summary, confidence=1.0, ranks=ranks)
