"""How large a page is and how long it takes; bounds have room for a machine that is busy."""

from __future__ import annotations

import json
from time import process_time
from typing import TYPE_CHECKING

import pytest
from page_runs import alike, all_different, deep, written

from lightning_hangcheck.judge import judge

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
        (deep, 8, MB, 4.0),
        (deep, 64, MB, 8.0),
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


def test_long_journals(tmp_path: Path) -> None:
    """As many lanes as there may be, each with a thousand lines, beside deep stacks."""
    (tmp_path / "ranks").mkdir()
    at = [f"2026-11-20T10:23:{number // 20:02}.{number % 20:02}Z" for number in range(1000)]
    lines = [{"kind": "checkpoint", "at": at[0], "number": 1, "name": "Script started"}]
    for number in range(1, 1000, 2):
        name = f"section {number} of the user's own code"
        lines.append({"kind": "section_begin", "at": at[number - 1], "name": name})
        lines.append({"kind": "section_end", "at": at[number], "name": name})
    text = "\n".join(map(json.dumps, lines)) + "\n"
    for rank in range(32):
        (tmp_path / "ranks" / f"rank-{rank}.jsonl").write_text(text)
    page = written(tmp_path, deep(32))
    assert page.count('<g class="lane') == 32
    assert "shorter or older ones are left out" in page
    assert len(page.encode()) < MB
