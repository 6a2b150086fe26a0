"""The folder of a run, without a verdict yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cli.commands.report.reported_run import RECORD

from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "hangcheck_runs" / "run")
    prepare_run_folder(made)
    made.run_file.write_bytes(encode_pretty(RECORD))
    return made
