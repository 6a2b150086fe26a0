"""docs/causes.md and docs/verdict.schema.json are generated, never edited."""

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


def test_schema_file_is_up_to_date() -> None:
    """After a change of the structs, run scripts/make_schema."""
    script = ROOT / "scripts" / "make_schema"
    check = subprocess.run(
        [sys.executable, str(script), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr
