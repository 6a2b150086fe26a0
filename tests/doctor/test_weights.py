"""Shapes are read from files of weights; nothing in them is run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from lightning_hangcheck.doctor.data_checks import CannotBeRead, read_weight_file

if TYPE_CHECKING:
    from pathlib import Path


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
