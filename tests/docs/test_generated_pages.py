"""Pages that are generated from tables are never edited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("script", ["make_causes", "make_schema"])
def test_generated_pages_are_up_to_date(script: str) -> None:
    """After a change of causes.toml or verdict.py, run the script without --check."""
    check = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr
