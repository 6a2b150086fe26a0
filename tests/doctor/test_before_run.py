"""All checks together, while `hangcheck run` starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.doctor.seeing_checks import checks_before_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real
def test_every_check_is_made_and_says_something(tmp_path: Path) -> None:
    checks = checks_before_run(tmp_path / "run", {})
    names = [check.check for check in checks]
    assert names == [
        "stacks readable",
        "run folder writable",
        "shared memory usable",
        "python version",
        "debug settings",
    ]
    assert all(check.sentence for check in checks)
    assert checks[0].status == "ok", checks[0]
