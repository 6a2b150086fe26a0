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


@pytest.mark.parametrize("script", SCRIPTS)
def test_unusable_python_is_named_with_its_version(script: str, tmp_path: Path) -> None:
    """A Python that is too old answers the version check with an error, as this one does."""
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.8.18 ;; *) exit 1 ;; esac\n")
    old.chmod(0o755)
    refused = _run(script, "--no-venv", PYTHON=str(old))
    assert refused.returncode == 1
    assert f"PYTHON={old} is no Python 3.10 to 3.14 (Python 3.8.18)" in refused.stderr
