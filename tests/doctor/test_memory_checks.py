"""What doctor says of memory, and of weights that are to be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planning.planned import LLAMA_8B, machine

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.memory_checks import find_machine, model_memory
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.look.gpu import gpu_memory

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding
    from lightning_hangcheck.planning.plan import Machine


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "dtype": "bfloat16"}))
    return str(tmp_path)


pytest.importorskip("accelerate")
pytest.importorskip("transformers", exc_type=ImportError)


def _check(backbone: str, on: Machine) -> Finding:
    run = Subject(environment={}, run_dir=Path("runs"), backbone=backbone)
    (check,) = model_memory(run, machine=on)
    return check


@pytest.mark.real
@pytest.mark.parametrize(
    ("gpu_gb", "status", "advised"), [(24, "ok", ""), (16, "warning", "8-bit"), (0.2, "failed", "")]
)
def test_what_must_be_carried_is_a_warning_and_what_cannot_be_fails(
    llama: str, gpu_gb: float, status: str, advised: str
) -> None:
    """Only what would really help is advised."""
    check = _check(llama, machine(gpu_gb))
    assert check.status == status, check.found
    assert "16.1 GB in bfloat16" in check.found
    assert ("hangcheck plan" in check.remedy) == (status != "ok")
    assert ("--dtype int8 (fast)" in check.remedy) == (advised == "8-bit")


@pytest.mark.real
def test_without_a_gpu_nothing_fails(llama: str) -> None:
    check = _check(llama, machine(cpu_gb=4))
    assert check.status == "warning"
    assert "no GPU was found here" in check.found


@pytest.mark.skipif(isinstance(gpu_memory(), tuple) and bool(gpu_memory()), reason="has a GPU")
@pytest.mark.parametrize("arguments", [(None, None), (2, None), (None, 80)])
def test_without_a_gpu_one_sentence_says_what_to_type(
    arguments: tuple[int | None, float | None],
) -> None:
    with pytest.raises(BadUsage, match="no GPU was found here") as raised:
        find_machine(*arguments)
    assert "--gpus 2 --gpu-memory 80" in str(raised.value)
