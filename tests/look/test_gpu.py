"""GPUs through NVIDIA's own library in a child: with a driver that answers, hangs, or is not there.

No driver is needed: a module of the library's name, with its real structs, stands in for it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS

from lightning_hangcheck.look import gpu
from lightning_hangcheck.look.gpu import (
    HIDDEN,
    LOST,
    SEE_KERNEL_LOG,
    Device,
    gpus_here,
    gpus_of,
    shared_out,
)
from lightning_hangcheck.model.evidence import Gap, GpuState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30
OWN = os.getpid()


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine with a driver, which behaves as asked; this process uses its GPU 1."""
    monkeypatch.setattr(gpu, "DRIVER", tmp_path)

    def behave(manner: str) -> None:
        monkeypatch.syspath_prepend(str(PROGRAMS / "nvml_driver"))
        monkeypatch.setenv("HANGCHECK_TEST_NVML", manner)
        monkeypatch.setenv("HANGCHECK_TEST_GPU_USER", str(OWN))

    return behave


def test_what_the_driver_tells_of_a_rank_and_its_gpu_is_kept(driver: Callable[[str], None]) -> None:
    driver("answers")
    gpus, gaps = gpus_of([OWN, 1], 20.0)
    assert gaps == ()
    state = GpuState(
        index=1,
        name="Stand-in H200",
        busy_percent=100,
        own_busy_percent=97,
        memory_used_bytes=61 * GIB,
        memory_bytes=80 * GIB,
        own_memory_bytes=60 * GIB,
        power_w=412.0,
        clock_mhz=1200,
        full_clock_mhz=1980,
        slowed_by=("thermal",),
    )
    assert gpus == {OWN: (state,)}


def test_a_driver_that_hangs_costs_the_time_limit_and_leaves_a_gap(
    driver: Callable[[str], None],
) -> None:
    driver("hangs")
    gpus, (gap,) = gpus_of([OWN], 1.0)
    assert not gpus
    assert gap.reason == "the driver gave no answer within 1 s; ask the driver itself: nvidia-smi"


def test_a_gpu_that_is_lost_hides_no_other(driver: Callable[[str], None]) -> None:
    driver("lost")
    gpus, gaps = gpus_of([OWN], 20.0)
    assert gaps == (Gap("GPU 0", None, LOST, "gpu", SEE_KERNEL_LOG),)
    assert [gpu.index for gpu in gpus[OWN]] == [1]


def test_without_the_library_the_gap_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    gpus, (gap,) = gpus_of([OWN], 20.0)
    assert (gpus, gap.remedy) == ({}, "pip install 'lightning-hangcheck[gpu]'")


BUSY, IDLE = GpuState(index=0, busy_percent=90), GpuState(index=1, busy_percent=0)


def test_a_gpu_whose_users_are_hidden_counts_only_where_it_is_the_only_one() -> None:
    assert shared_out([Device(BUSY)], [7, 8]) == ({7: (BUSY,), 8: (BUSY,)}, ())
    assert shared_out([Device(BUSY), Device(IDLE)], [7]) == (
        {},
        (Gap("GPU of each rank", None, HIDDEN, "gpu"),),
    )
    assert shared_out([Device(IDLE), Device(IDLE)], [7]) == ({}, ())
    assert shared_out([Device(BUSY, {4711: (GIB, 90)})], [7]) == ({}, ()), "somebody else's"


def test_without_a_driver_there_are_no_gpus_and_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "DRIVER", tmp_path / "none")
    assert gpus_here(20.0) == ((), ())
    assert gpus_of([OWN], 20.0) == ({}, ())
