"""Ranks that run out of work before the others."""

from __future__ import annotations

from corpus.generator.piece import Mechanism

LOOPS = ("plain", "ddp", "fabric", "accelerate")
UNEVEN_BARRIER = Mechanism(
    name="uneven_batches_then_barrier",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
            dist.barrier()
    """,
    cause=("uneven_work",),
    ranked=True,
    affects="one",
    least_ranks=2,
    places=("validation",),
    frameworks=LOOPS,
)
UNEVEN_GATHER = Mechanism(
    name="uneven_batches_then_gather",
    source="""
        def $function(affected):
            $noun = [None] * dist.get_world_size()
            if affected:
                mark_onset()
            dist.all_gather_object($noun, {"rank": dist.get_rank()})
            return $noun
    """,
    cause=("uneven_work",),
    ranked=True,
    affects="one",
    least_ranks=2,
    places=("validation",),
    frameworks=LOOPS,
)
ALL = (UNEVEN_BARRIER, UNEVEN_GATHER)
