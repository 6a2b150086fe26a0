"""What is idle on the CPU but waits for a busy GPU is not idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import GpuState

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

GIB = 1 << 30
WAITS = rank(0, IN_ALL_REDUCE)


def with_gpu(view: RankView, **told: Any) -> RankView:
    """The rank with a GPU in every sample."""
    own, *others = view.processes
    gpu = GpuState(index=3, **told)
    samples = tuple(replace(one, gpus=(gpu,)) for one in own.samples)
    return replace(view, processes=(replace(own, samples=samples), *others))


def test_a_rank_that_waits_for_its_busy_gpu_gets_the_patience_of_a_busy_one() -> None:
    """Idle for 31 s would be a hang."""
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), busy_percent=100)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (1,), "spinning")
    assert "has waited for a busy GPU in load (demo/train.py:41) for 31 s" in verdict.summary
    assert "CUDA_LAUNCH_BLOCKING=1" in verdict.remedies[0].text


def test_a_kernel_that_never_ends_is_a_hang_once_the_ranks_pace_is_exceeded() -> None:
    endless = rank(1, IN_LOAD, silent=121.0, pace=Pace(longest_pause_s=0.5, pauses=9))
    verdict = judge(job(WAITS, with_gpu(endless, busy_percent=100)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "spinning")


@pytest.mark.parametrize(
    "told", [{"busy_percent": 0}, {"busy_percent": 100, "own_busy_percent": 0}, {}]
)
def test_a_gpu_that_does_not_work_for_the_rank_changes_nothing(told: dict[str, Any]) -> None:
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), **told)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "rank_stalled")


def test_the_gpu_of_the_culprit_is_among_the_facts() -> None:
    told = {
        "busy_percent": 100,
        "own_busy_percent": 97,
        "memory_used_bytes": 79 * GIB,
        "memory_bytes": 80 * GIB,
        "clock_mhz": 1200,
        "full_clock_mhz": 1980,
        "power_w": 412.4,
        "slowed_by": ("thermal",),
        "uncorrected_errors": 2,
    }
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), **told)))
    (fact,) = [item for item in verdict.evidence if item.kind == "gpu"]
    assert fact.rank == 1
    assert fact.text == (
        "GPU 3: 100 % busy, 97 % with this process, 79 of 80 GiB in use, nearly full, "
        "1200 of 1980 MHz, 412 W, slowed down (thermal), 2 uncorrected memory errors"
    )
