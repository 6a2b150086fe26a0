"""Wrapped functions are as before to whoever calls or inspects one; what their arguments tell."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import io
import multiprocessing
import pickle
import sys
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.hooks.callbacks import is_checkpoint
from lightning_hangcheck.hooks.zero_code.groups import announced, number_of
from lightning_hangcheck.hooks.zero_code.loops import (
    WATCHED,
    instrument_sharding,
    offload_asked_for,
)
from lightning_hangcheck.hooks.zero_code.wrapping import Call, on_import, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

HERE = sys.modules[__name__]


def revived(thing: Any) -> Any:
    """Pickle it and back."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - what was pickled a moment ago


def doubled(number: int, *, add: int = 0) -> int:
    """A framework's function."""
    if number < 0:
        raise ValueError(number)
    return 2 * number + add


class Framework:
    """A framework's class."""

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def method(self, more: int) -> int:
        return self.size + more

    @classmethod
    def create(cls, size: int) -> Framework:
        return cls(size)

    @staticmethod
    def fixed() -> str:
        return "fixed"


class User(Framework):
    """A user's class derived from it."""


class Seen:
    """A watcher that notes what it saw."""

    def __init__(self, fail: str = "") -> None:
        self.calls: list[Call] = []
        self.raised: list[BaseException] = []
        self._fail = fail

    @contextmanager
    def __call__(self, call: Call) -> Iterator[None]:
        self.calls.append(call)
        if self._fail == "before":
            raise KeyError("ours")
        try:
            yield
        except BaseException as error:
            self.raised.append(error)
            raise
        finally:
            if self._fail == "after":
                raise KeyError("ours")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """Wrap an attribute for the length of a test."""

    def watch(owner: Any, name: str, fail: str = "") -> Seen:
        seen = Seen(fail)
        monkeypatch.setattr(owner, name, vars(owner)[name])  # put back at the end
        wrap(owner, name, seen)
        return seen

    return watch


def test_a_function_looks_pickles_and_copies_as_before(watched: Callable[..., Seen]) -> None:
    plain = doubled
    before = (inspect.signature(plain), pickle.dumps(plain), repr(plain).partition(" at ")[0])
    seen = watched(HERE, "doubled")
    assert doubled is not plain
    now = (inspect.signature(doubled), pickle.dumps(doubled), repr(doubled).partition(" at ")[0])
    assert now == before
    assert inspect.isfunction(doubled)
    assert inspect.getsource(doubled) == inspect.getsource(plain)
    assert doubled.__doc__ == plain.__doc__
    assert copy.copy(doubled) is copy.deepcopy(doubled) is revived(doubled) is doubled
    assert doubled(4, add=1) == 9
    assert [(call.arguments, call.named, call.result) for call in seen.calls] == [
        ((4,), {"add": 1}, 9)
    ]


def test_methods_stay_methods(watched: Callable[..., Seen]) -> None:
    made, method, create = (watched(Framework, name) for name in ("__init__", "method", "create"))
    watched(Framework, "fixed")
    user = User.create(5)
    assert type(user) is User
    assert isinstance(user, Framework)
    assert (user.method(1), User.fixed(), Framework.method(user, 2)) == (6, "fixed", 7)
    assert create.calls[0].instance is User
    assert made.calls[0].instance is user
    assert [call.instance for call in method.calls] == [user, user]
    assert [call.given() for call in method.calls] == [{"more": 1}, {"more": 2}]
    assert create.calls[0].given() == {"size": 5}
    assert revived(user.method)(3) == 8
    assert revived(User.create)(2).size == 2
    assert (revived(User.method)(user, 4), revived(user.fixed)()) == (9, "fixed")
    assert copy.deepcopy({"call": user.method})["call"](3) == 8


def test_the_very_exception_comes_out_and_the_watcher_sees_it(watched: Callable[..., Seen]) -> None:
    seen = watched(HERE, "doubled")
    with pytest.raises(ValueError, match="-1") as raised:
        doubled(-1)
    assert seen.raised == [raised.value]
    with pytest.raises(TypeError, match=r"doubled\(\)"):
        doubled()


@pytest.mark.parametrize("fail", ["before", "after"])
def test_a_watcher_that_fails_is_switched_off_and_said_once(
    fail: str, watched: Callable[..., Seen], capfd: pytest.CaptureFixture[str]
) -> None:
    name = {"before": "method", "after": "create"}[fail]  # each is said under its own name
    seen = watched(Framework, name, fail)
    calls = [getattr(Framework(1), name)(2) for _ in range(3)]
    assert [getattr(call, "size", call) for call in calls] == [[3] * 3, [2] * 3][fail == "after"]
    assert len(seen.calls) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"{name} is no longer watched (KeyError: 'ours'); the program goes on" in said


def test_what_the_call_raises_counts_even_where_the_watcher_fails(
    watched: Callable[..., Seen],
) -> None:
    watched(HERE, "doubled", "after")
    with pytest.raises(ValueError, match="-2"):
        doubled(-2)
    with pytest.raises(ValueError, match="-3"):
        doubled(-3)


def test_packages_that_hand_out_a_modules_function_hand_out_the_watched_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, module = ModuleType("package"), ModuleType("package.module")
    for one in (package, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
        one.doubled = doubled  # type: ignore[attr-defined]
    wrap(module, "doubled", Seen())
    assert package.doubled is module.doubled is not doubled


def test_what_its_module_makes_when_asked_is_watched_too() -> None:
    module = ModuleType("lazy")
    module.__getattr__ = lambda name: doubled if name == "doubled" else None  # type: ignore[method-assign]
    seen = Seen()
    wrap(module, "doubled", seen)
    assert module.doubled(4) == 8
    assert [call.arguments for call in seen.calls] == [(4,)]


def test_a_method_of_an_object_is_copied_with_the_object() -> None:
    user = Framework(1)
    wrap(user, "method", Seen())
    copied = copy.deepcopy(user)
    assert copied.method.__self__ is copied


# What is read from arguments alone: who a rank will be, what is saved, what is offloaded.

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
