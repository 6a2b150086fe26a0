"""Wrapped functions: whoever calls, pickles, copies or inspects one finds what was there before."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.hooks.zero_code.wrapping import Call, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
