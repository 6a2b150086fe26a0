"""Write the golden texts: ``python tests/report/write_golden.py``; then read the difference."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_terminal import FOLDER, GOLDEN, golden_cases

from lightning_hangcheck.report import verdict_text

if __name__ == "__main__":
    for name, (case, judged) in golden_cases().items():
        (GOLDEN / f"{name}.txt").write_text(verdict_text.render(case, judged, FOLDER))
