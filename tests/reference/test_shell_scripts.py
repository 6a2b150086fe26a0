"""The shell scripts: their options, what they say when something is missing, and the versions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ["scripts/quickstart", "scripts/test"]


def _run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / script), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("script", [*SCRIPTS, "scripts/environment.sh", ".ci/run"])
def test_script_is_valid_bash(script: str) -> None:
    checked = subprocess.run(
        ["bash", "-n", str(ROOT / script)], capture_output=True, timeout=120, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_unknown_word_is_one_sentence(script: str) -> None:
    refused = _run(script, "--frobnicate")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--frobnicate" in refused.stderr
    assert "--help" in refused.stderr
