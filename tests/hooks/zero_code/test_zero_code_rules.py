"""What is read from arguments alone: who a rank will be, what is saved, what is offloaded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import multiprocessing
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.hooks.callbacks import is_checkpoint
from lightning_hangcheck.hooks.zero_code.groups import announced, number_of
from lightning_hangcheck.hooks.zero_code.loops import (
    WATCHED,
    instrument_sharding,
    offload_asked_for,
)
from lightning_hangcheck.hooks.zero_code.wrapping import on_import

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (3, 8, 29500)),
        ({"rank": 0, "world_size": 2}, (0, 2, 29500)),
        ({"init_method": "env://?rank=1"}, (1, 8, 29500)),
        ({"init_method": "tcp://localhost:1?rank=1&world_size=4"}, (1, 4, 1)),
        ({"init_method": "file:///tmp/meeting", "rank": 1}, (1, None, None)),
        ({"store": "a store"}, (None, None, None)),
    ],
    ids=str,
)
def test_what_is_announced_is_what_torch_will_take(
    arguments: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert announced(arguments, ENVIRONMENT) == expected
    assert announced({"rank": 1}, {}) == (1, None, None)


def _train(rank: int, world_size: int) -> None: ...


def _read(path: str, index: int = 0) -> None: ...


def _child(target: Any, *arguments: object, **named: object) -> BaseProcess:
    return multiprocessing.Process(target=target, args=arguments, kwargs=named)


class _Trainer(multiprocessing.Process):
    """Of one's own class, which may carry its rank."""

    rank = 2


@pytest.mark.parametrize(
    ("process", "number"),
    [
        (_child(_train, 1, 2), 1),
        (_child(_train, rank=3, world_size=4), 3),
        (_child(_train, "1", 2), None),
        (_child(_read, "file", 1), None),
        (_child(None), None),
        (_Trainer(), 2),
    ],
)
def test_a_childs_number_is_what_its_target_takes_as_its_rank(
    process: BaseProcess, number: int | None
) -> None:
    assert number_of(process) == number


def test_torch_numbers_the_children_that_it_spawns() -> None:
    target = vars(pytest.importorskip("torch.multiprocessing.spawn"))["_wrap"]
    assert number_of(_child(target, _read, 5, ("file",), "errors")) == 5


class Stateful:
    def state_dict(self) -> dict[str, int]:
        return {}


class Difficult:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def test_a_state_in_a_file_is_a_checkpoint_and_data_are_none(tmp_path: Path) -> None:
    with (tmp_path / "last.pt").open("wb") as file:
        for state in ({"model": 1}, OrderedDict(weight=1), Stateful()):
            assert all(is_checkpoint(state, where) for where in ("a.pt", Path("a.pt"), file))
            assert not is_checkpoint(state, io.BytesIO())
    assert not any(is_checkpoint(data, "samples.pt") for data in (1, [1], None, Difficult()))


def test_what_fsdp_is_asked_to_offload_is_told_by_its_arguments() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp", exc_type=ImportError)
    first = offload_asked_for({"cpu_offload": fsdp.CPUOffload(offload_params=True)})
    assert first == "parameters on cpu between their uses (FSDP, cpu_offload)"
    assert offload_asked_for({"cpu_offload": fsdp.CPUOffload(offload_params=False)}) == ""
    watched = {module for module, ours in WATCHED if ours is instrument_sharding}
    assert fsdp.FullyShardedDataParallel.__module__ in watched
    # fully_shard says that it is its package's; its file says whose it is
    file = inspect.unwrap(fsdp.fully_shard).__code__.co_filename
    assert any(file.endswith(f"/{one.replace('.', '/')}.py") for one in watched)


def test_a_module_is_told_of_once_as_soon_as_it_was_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loader is as before then; one that is there already is told of at once."""
    (tmp_path / "framework_of_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    told: list[int] = []
    on_import("framework_of_test", lambda module: told.append(module.value))
    assert importlib.util.find_spec("framework_of_test") is not None  # which imports nothing
    assert told == []
    module = importlib.import_module("framework_of_test")
    assert told == [1]
    assert "exec_module" not in vars(module.__spec__.loader)  # type: ignore[union-attr]
    importlib.reload(module)
    assert told == [1]
    on_import("framework_of_test", lambda module: told.append(module.value + 1))
    assert told == [1, 2]
    monkeypatch.delitem(sys.modules, "framework_of_test")
