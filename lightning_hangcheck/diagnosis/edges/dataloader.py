"""A rank that waits for its next batch waits for the workers that should make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading, Scene, WorkerReading

THROUGH = "for its next batch"


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw which rank waits for which of its workers."""
    for reading in scene.ranks.values():
        if reading.wait_kind == "dataloader":
            for worker in owing_workers(reading):
                yield Edge(reading.node, f"worker:{reading.rank}/{worker.look.index}", THROUGH)


def owing_workers(reading: RankReading) -> Sequence[WorkerReading]:
    """Return the workers that may owe the batch: those that don't wait for work themselves.

    All of them where each waits for work, because then nothing tells.
    """
    owing = [worker for worker in reading.workers if not worker.wants_work]
    return owing or reading.workers
