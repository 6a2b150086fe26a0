"""Lines of a ledger in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.ledger_file import (
    Begun,
    Discarded,
    Ended,
    Fingerprint,
    Pages,
    Place,
    Run,
)
from lightning_hangcheck.ledger.phase_history import PhaseHistory, tell
from lightning_hangcheck.model.case import PhaseTime

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.ledger_file import AnyLine
    from lightning_hangcheck.ledger.spending import Stall

AT = "2026-11-20T10:00:00.000Z"
HERE = Place(host="node-1", pid=4711, ranks=2, gpus=("NVIDIA A100-SXM4-80GB",), commit="c0ffee")


def file(path: str, content: str = "1") -> Fingerprint:
    return Fingerprint(path=path, size=len(content), digest=content, how="its whole content")


def begun(id: str, phase: str, *inputs: Fingerprint, place: Place = HERE) -> Begun:
    return Begun(id=id, at=AT, phase=phase, place=place, inputs=inputs)


def ended(
    id: str, *outputs: Fingerprint, duration_s: float = 3600.0, error: str = "", **metrics: float
) -> Ended:
    return Ended(
        id=id,
        at=AT,
        duration_s=duration_s,
        cpu_s=duration_s,
        error=error,
        metrics=metrics,
        outputs=outputs,
    )


def discarded(id: str, phase: str, why: str) -> Discarded:
    return Discarded(id=id, at=AT, phase=phase, by="new", why=why)


def run(run_id: str, *stalls: Stall, duration_s: float = 7200.0, loading_s: float = 0.0) -> Run:
    return Run(
        id=run_id,
        at=AT,
        run_id=run_id,
        command="torchrun train.py",
        started_at=AT,
        duration_s=duration_s,
        ranks=2,
        gpus=HERE.gpus,
        verdict="finished",
        spent=(
            PhaseTime("dataloading", loading_s),
            PhaseTime("training_step", 2 * duration_s - loading_s),
        ),
        stalls=stalls,
    )


def history(*lines: AnyLine, alive: bool | None = True) -> PhaseHistory:
    return tell(Pages(lines), lambda _: alive)
