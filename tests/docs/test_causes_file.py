"""docs/causes.md is generated from the knowledge file, never edited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_causes_page_is_up_to_date() -> None:
    """After a change of causes.toml, run scripts/make_causes."""
    check = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_causes"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr
