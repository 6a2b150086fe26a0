"""What a rank says of its surroundings when asked."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from hooks.launching import python

SECRET = "0123456789abcdef" * 2 + "01234567"
LINE = re.compile(r"^\[[\d:.]+\]\[\+[\d.]+s\]\[R1/2\]\[LR1\]\[PID:\d+\] state(.*)$", re.MULTILINE)


def _said(code: str, **environment: str) -> tuple[list[str], list[str]]:
    """What a rank says that runs this code, behind the word ``state``, and its variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "lightning_hangcheck", "run", "--run-dir", f"{folder}/run", "--")
        program = (sys.executable, "-c", f"import lightning_hangcheck as hc\n{code}")
        ran = python(*words, *program, environment={**kept, **ranks, **environment})
        assert ran.returncode == 0, ran.stderr
        journals = [path.read_text() for path in Path(folder, "run", "ranks").glob("*.jsonl")]
    assert "Traceback" not in ran.stderr
    assert SECRET not in ran.stderr
    assert SECRET not in "".join(journals)
    entries = [json.loads(line) for text in journals for line in text.splitlines()]
    told = [one["variables"] for one in entries if one["kind"] == "environment"]
    return LINE.findall(ran.stderr), [name for variables in told for name in variables]


def test_before_torch_is_imported_it_says_so_imports_nothing_and_hides_secrets() -> None:
    """Of our own variables only options are told."""
    lines, variables = _said(
        "hc.report_state('at the start')\nimport sys\nassert 'torch' not in sys.modules",
        WANDB_API_KEY=SECRET,
        HANGCHECK_STALL_TIMEOUT="600",
    )
    (line,) = lines
    assert line.startswith(" at the start: versions: python 3.")
    assert "lightning_hangcheck " in line
    assert "CUDA: not known yet, torch is not imported" in line
    assert "process group: not initialized" in line
    assert f"{len(variables)} variables of the environment: in the journal" in line
    told = {"RANK=1", "MASTER_ADDR is not set", "WANDB_API_KEY=[redacted]"}
    assert told <= set(variables)
    ours = {one for one in variables if one.startswith("HANGCHECK_")}
    assert "HANGCHECK_STALL_TIMEOUT=600.0" in ours
    assert not any(one.startswith("HANGCHECK_SESSION") for one in ours)


def test_a_torch_that_refuses_to_answer_is_said_and_costs_nothing_else() -> None:
    (line,), _ = _said(
        "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\nhc.report_state('x')"
    )
    assert "; CUDA: unknown (AttributeError(" in line
    assert "; process group: not initialized; " in line


def test_disabled_it_says_nothing() -> None:
    assert _said("hc.report_state('x')", HANGCHECK_DISABLE="1") == ([], [])
