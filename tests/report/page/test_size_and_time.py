"""How large a page is and how long it takes; bounds have room for a machine that is busy."""

from __future__ import annotations

import tracemalloc
from time import process_time
from typing import TYPE_CHECKING

import pytest
from page_runs import alike, all_different, written

from lightning_hangcheck.diagnosis import judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.model.case import Case

MB = 1_000_000


@pytest.mark.parametrize(
    ("make", "world_size", "largest", "most_s"),
    [
        (alike, 8, MB, 2.0),
        (alike, 64, MB, 4.0),
        (all_different, 64, MB, 4.0),
        (alike, 4096, 3 * MB, 20.0),
        (all_different, 1024, 3 * MB, 20.0),
    ],
)
def test_size_and_time(
    make: Callable[[int], Case], world_size: int, largest: int, most_s: float, tmp_path: Path
) -> None:
    """Processor time of one page, its templates included; four times what is promised."""
    case = make(world_size)
    verdict = judge(case)
    began = process_time()
    page = written(tmp_path, case, verdict)
    assert process_time() - began < most_s
    assert len(page.encode()) < largest


def test_memory_for_4096_ranks(tmp_path: Path) -> None:
    """What rendering adds to the case that is there already."""
    case = alike(4096)
    verdict = judge(case)
    tracemalloc.start()
    try:
        written(tmp_path, case, verdict)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500 * MB
