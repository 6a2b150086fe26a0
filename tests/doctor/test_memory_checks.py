"""What doctor says of memory, and of weights that are to be loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from doctor.checkpoints import write_safetensors
from planning.planned import LLAMA_8B, machine

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.data_checks import CannotBeRead, read_weight_file
from lightning_hangcheck.doctor.memory_checks import find_machine, model_memory
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.look.gpu import gpu_memory
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.planning.plan import GB, Extra

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding
    from lightning_hangcheck.planning.plan import Machine


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "dtype": "bfloat16"}))
    return str(tmp_path)


def _check(backbone: str, on: Machine | None, *extras: Extra) -> Finding:
    run = Subject(environment={}, run_dir=Path("runs"), backbone=backbone, extras=extras)
    (check,) = model_memory(run, machine=on)
    return check


@pytest.mark.parametrize(
    ("gpu_gb", "status"), [(24, "ok"), (16, "warning"), (8, "warning"), (0.2, "failed")]
)
def test_what_must_be_carried_is_a_warning_and_what_cannot_be_fails(
    llama: str, gpu_gb: float, status: str
) -> None:
    check = _check(llama, machine(gpu_gb))
    assert check.status == status, check.sentence
    assert "16.1 GB in bfloat16" in check.sentence
    assert ("hangcheck plan" in check.remedy) == (status != "ok")


def test_only_what_would_really_help_is_advised(llama: str) -> None:
    advice = _check(llama, machine(16)).remedy
    assert "8-bit: --dtype int8 (fast)" in advice
    assert "--dtype" not in _check(llama, machine(0.2)).remedy


def test_what_stands_beside_it_counts(llama: str) -> None:
    check = _check(llama, machine(24), Extra("operators", 10 * GB))
    assert (check.status, "10.0 GB beside it" in check.sentence) == ("warning", True)
    assert _check(llama, machine(24), Extra("operators", 10 * GB, on_cpu=True)).status == "ok"


@pytest.mark.parametrize(("cpu_gb", "status"), [(64, "ok"), (4, "warning")])
def test_without_a_gpu_nothing_fails(llama: str, cpu_gb: int, status: str) -> None:
    check = _check(llama, machine(cpu_gb=cpu_gb))
    assert check.status == status
    assert "no GPU was found here" in check.sentence


def test_a_model_that_is_none_of_text_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert _check(str(tmp_path), machine(24)).status == "warning"


def test_without_a_backbone_or_its_configuration_nothing_is_asked(tmp_path: Path) -> None:
    empty = Subject(environment={}, run_dir=tmp_path)
    assert model_memory(empty) == ()
    (tmp_path / "model.pt").touch()
    for name in (tmp_path / "none", tmp_path / "model.pt"):
        run = Subject(environment={}, run_dir=tmp_path, backbone=str(name))
        assert model_memory(run, machine=machine(24)) == ()


FOUND = gpu_memory()

HAS_GPU = not isinstance(FOUND, Gap) and bool(FOUND)


def test_main_memory_is_found_here() -> None:
    """Some of it, and not all: a tenth of what is free stays for the process itself."""
    machine = find_machine(0)
    assert machine.gpus == ()
    assert 0 < machine.cpu < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize("arguments", [(None, None), (2, None), (None, 80)])
def test_without_a_gpu_one_sentence_says_what_to_type(
    arguments: tuple[int | None, float | None],
) -> None:
    with pytest.raises(BadUsage, match="no GPU was found here") as raised:
        find_machine(*arguments)
    assert "--gpus 2 --gpu-memory 80" in str(raised.value)


def test_a_checkpoint_of_torch_tells_shapes_and_what_it_began_with(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    content = {
        "state_dict": model.state_dict(),
        "hyper_parameters": {"model_name": "Qwen/Qwen2.5-1.5B", "where": tmp_path},
        "extra": [torch.nn.Parameter(torch.ones(2))],
    }
    torch.save(content, tmp_path / "a.ckpt")
    shapes, base = read_weight_file(tmp_path / "a.ckpt")
    assert base == "Qwen/Qwen2.5-1.5B"
    assert shapes == {
        "state_dict.0.weight": (4, 3),
        "state_dict.0.bias": (4,),
        "state_dict.1.weight": (4,),
        "state_dict.1.bias": (4,),
        "extra.0": (2,),
    }


class _Foreign:
    """What somebody may hide in a file of torch."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_foreign_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    torch.save({"w": torch.ones(5), "e": _Foreign(mark)}, tmp_path / "a.pt")
    assert read_weight_file(tmp_path / "a.pt")[0] == {"w": (5,)}
    assert not mark.exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert mark.exists()  # it would have been


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.safetensors", b"", "empty"),
        ("a.pt", b"", "empty"),
        ("a.safetensors", POINTER, "git lfs pull"),
        ("a.bin", POINTER, "git lfs pull"),
        ("a.safetensors", b"\x04\0\0\0\0\0\0\0nope", "damaged"),
        ("a.safetensors", b"x" * 999, "no safetensors"),
        ("a.ckpt", b"PK\x03\x04", "cut off"),
    ],
)
def test_a_file_that_cannot_be_weights_says_so(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotBeRead, match=said):
        read_weight_file(tmp_path / name)


def test_a_format_that_is_not_known_is_no_damage(tmp_path: Path) -> None:
    """Torch's own before 1.6 among them, in which many older models on the hub still are."""
    file = tmp_path / "a.bin"
    torch.save({"w": torch.ones(5)}, file, _use_new_zipfile_serialization=False)
    assert read_weight_file(file)[0] == {}
    file.write_bytes(b"tokens" * 9)
    assert read_weight_file(file)[0] == {}


def test_a_safetensors_file_tells_its_shapes(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x.weight": (3, 4), "x.bias": (3,)})
    shapes, _ = read_weight_file(tmp_path / "a.safetensors")
    assert shapes == {"x.weight": (3, 4), "x.bias": (3,)}


def test_this_machine_is_asked_where_none_is_given(llama: str) -> None:
    assert "16.1 GB in bfloat16" in _check(llama, None).sentence
