"""Of the looks that were recorded of the corpus's programs, next to none brought neither evidence
nor a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reliability"


def test_recorded_looks_brought_evidence_or_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert int(lines[0].split()[0]) >= 1_000
    share = next(line for line in lines if line.startswith("Without unexpected: "))
    assert float(share.split()[2]) >= 99.5
