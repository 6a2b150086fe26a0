"""Write the golden texts: ``python tests/report/write_golden.py``; then read the difference."""

from __future__ import annotations

from test_terminal import CASES, FOLDER, GOLDEN

from lightning_hangcheck.report import verdict_text

if __name__ == "__main__":
    for name, (case, judged) in CASES.items():
        (GOLDEN / f"{name}.txt").write_text(verdict_text.render(case, judged, FOLDER))
