"""Which calls of torch.save keep a state that training could go on from."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from lightning_hangcheck.hooks.checkpoints import is_checkpoint


class Stateful:
    def state_dict(self) -> dict[str, int]:
        return {}


class Difficult:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize("what", [{"model": 1}, OrderedDict(weight=1), Stateful()])
@pytest.mark.parametrize("where", ["last.pt", Path("last.pt")])
def test_a_state_in_a_file_is_a_checkpoint(what: Any, where: Any) -> None:
    assert is_checkpoint(what, where)


def test_an_open_file_is_a_file_and_a_buffer_is_none(tmp_path: Path) -> None:
    with (tmp_path / "last.pt").open("wb") as file:
        assert is_checkpoint({}, file)
    assert not is_checkpoint({}, io.BytesIO())


@pytest.mark.parametrize("what", [1, [1], None, pytest.param(Difficult(), id="raises")])
def test_data_in_a_file_is_no_checkpoint(what: Any) -> None:
    assert not is_checkpoint(what, "samples.pt")
