"""Programs that hang in one scene are found, robust ones are not accused; it takes an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from long_tests import LONG_TEST
from rehearse.rehearsing import ACCELERATE, PYTHON, TORCHRUN, is_found, rehearse, scenes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = list(LONG_TEST)
HANGS = [
    ("ddp_uneven_shards", "fewer-samples", TORCHRUN),
    ("ddp_validates_where_samples_are", "no-samples", TORCHRUN),
    ("ddp_counts_full_batches", "smaller-last-batch", TORCHRUN),
    ("ddp_skips_none", "unusable-batch", TORCHRUN),
    ("ddp_save_fails_before_barrier", "save-fails", TORCHRUN),
    ("ddp_looks_for_saved", "save-slow", TORCHRUN),
    ("ddp_own_patience", "early-stop", TORCHRUN),
    ("ddp_leaves_on_sigterm", "sigterm", TORCHRUN),
    ("lightning_skips_nan", "non-finite-loss", PYTHON),
    ("lightning_stops_alone", "early-stop", PYTHON),
    ("lightning_save_fails", "save-fails", PYTHON),
    ("accelerate_uneven_batches", "fewer-samples", ACCELERATE),
    ("accelerate_stops_alone", "early-stop", ACCELERATE),
    ("transformers_stops_alone", "early-stop", TORCHRUN),
]
ROBUST = [
    ("robust_ddp", TORCHRUN),
    ("robust_ddp_join", PYTHON),
    ("robust_ddp_agrees", TORCHRUN),
    ("robust_ddp_save", TORCHRUN),
    ("robust_ddp_stream", TORCHRUN),
    ("robust_ddp_endless", TORCHRUN),
    ("robust_lightning", PYTHON),
    ("robust_accelerate", ACCELERATE),
    ("robust_transformers", TORCHRUN),
]


@pytest.mark.parametrize(("program", "scene", "launcher"), HANGS)
def test_a_program_that_hangs_in_a_scene_is_found(
    program: str, scene: str, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    is_found(rehearse(tmp_path, program, launcher, "--scene", scene), scene)


@pytest.mark.parametrize(("program", "launcher"), ROBUST)
def test_a_robust_program_is_not_accused(
    program: str, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    ran = rehearse(tmp_path, program, launcher)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not [one for one in scenes(ran).values() if one["result"] == "hung"]
