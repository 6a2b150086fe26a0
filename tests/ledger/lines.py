"""Lines of a ledger in a few words."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.ledger_file import (
    Fingerprint,
    History,
    PastPhase,
    Place,
    Run,
    append,
    read,
)
from lightning_hangcheck.model.case import PhaseTime

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.spending import Stall

AT = "2026-11-20T10:00:00.000Z"
HERE = Place(host="node-1", pid=4711, ranks=2, gpus=("NVIDIA A100-SXM4-80GB",), commit="c0ffee")


def file(path: str, content: str = "1") -> Fingerprint:
    return Fingerprint(path=path, size=len(content), digest=content, how="its whole content")


def begun(id: str, phase: str, *inputs: Fingerprint, place: Place = HERE) -> PastPhase:
    return PastPhase(id=id, at=AT, begun_at=AT, name=phase, place=place, inputs=inputs)


def ended(
    id: str, *outputs: Fingerprint, duration_s: float = 3600.0, error: str = "", **metrics: float
) -> PastPhase:
    return PastPhase(
        id=id,
        at=AT,
        ended=True,
        duration_s=duration_s,
        cpu_s=duration_s,
        error=error,
        metrics=metrics,
        outputs=outputs,
    )


def discarded(id: str, why: str) -> PastPhase:
    return PastPhase(id=id, at=AT, discarded=why)


def run(run_id: str, *stalls: Stall, duration_s: float = 7200.0, loading_s: float = 0.0) -> Run:
    return Run(
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


def history(*lines: PastPhase) -> History:
    """Read a ledger of these lines."""
    with TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.jsonl")
        for line in lines:
            append(ledger, line)
        return read(ledger)
