"""Wrapping a function of a framework so that nobody can tell, except by what is said of it.

Signature, exceptions, result, pickling and copying stay as they were; only methods and functions
are wrapped, never a class. A watcher of ours that fails is switched off and said once.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsIndex

import wrapt
from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from inspect import Signature
    from types import FrameType

    Around = Callable[["Call"], AbstractContextManager[None]]
    BeforeCall = Callable[[FrameType, tuple[Any, ...], Mapping[str, Any]], None]
    AnyFunctionWrapper = wrapt.FunctionWrapper[..., Any]
    AnyMethodWrapper = wrapt.BoundFunctionWrapper[..., Any]
else:  # generic only in its stubs
    AnyFunctionWrapper, AnyMethodWrapper = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper


class Call(Struct, eq=False):
    """One call of a wrapped function.

    Attributes:
        instance: What it is a method of: an object, a class for a class method, else None.
        named: A watcher's first half may put others in their place.
        result: What it returned; set before the watcher's second half runs.
    """

    instance: Any
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    result: Any = None


def wrap(owner: Any, name: str, around: Around) -> bool:  # noqa: ANN401 - a module or a class
    """Watch a function of a module, or a method of a class.

    Args:
        owner: The module or class.
        name: Of its attribute.
        around: Makes the context manager in which a call runs. What it raises is never seen by the
            caller, and it cannot suppress what the call raises.

    Returns:
        Whether there is such a function; another version of the framework may not have it.
    """
    return _put_in_place(owner, name, _Watcher(name, around))


def _put_in_place(owner: Any, name: str, watcher: Callable[..., Any]) -> bool:  # noqa: ANN401
    before = getattr(owner, name, None)
    if not callable(before):
        return False
    ours = wrapt.wrap_object(owner, name, WatchedFunction, (watcher,))
    if isinstance(owner, ModuleType):
        for package in _packages_around(owner):
            if vars(package).get(name) is before:
                setattr(package, name, ours)
    return True


def act_before(owner: ModuleType, name: str, act: BeforeCall) -> None:
    """Have something done before each call of a function, for a tenth of what `wrap` costs.

    Args:
        owner: Its module.
        name: Of the function; another version of the framework may not have it.
        act: Gets the frame that calls, and the arguments. What it raises is never seen by the
            caller.
    """
    works = True

    def call(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None: the function is no method
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - what the function returns
        nonlocal works
        if works:
            try:
                act(sys._getframe(1), arguments, named)  # noqa: SLF001 - the one way to the caller
            except Exception as error:  # noqa: BLE001 - the hooks' boundary: the call must go on
                works = False
                say_unwatched(name, error)
        return wrapped(*arguments, **named)

    _put_in_place(owner, name, call)


def act_after(owner: type, name: str, act: Callable[[], None]) -> None:
    """Have something done after each call of a method, for a tenth of what `wrap` costs.

    Args:
        owner: The class.
        name: Of its method.
        act: Must not raise.
    """

    def call(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - of any class
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - what the method returns
        result = wrapped(*arguments, **named)
        act()
        return result

    wrapt.wrap_object(owner, name, WatchedFunction, (call,))


def _packages_around(module: ModuleType) -> Iterator[ModuleType]:
    """Packages that may hand out a module's functions as their own, as torch does: torch.save."""
    name = module.__name__.rpartition(".")[0]
    while name:
        if name in sys.modules:
            yield sys.modules[name]
        name = name.rpartition(".")[0]


def unwrap(owner: Any, name: str) -> None:  # noqa: ANN401 - a module or a class
    """Stop watching; where somebody has patched the function since, ours stays below it."""
    ours = vars(owner).get(name)
    if isinstance(ours, WatchedFunction):
        setattr(owner, name, ours.__wrapped__)


def by_name(call: Call, signature: Signature) -> Mapping[str, Any]:
    """Return the arguments of a call by their names; none if the function will refuse them."""
    first = () if call.instance is None else (call.instance,)
    try:
        return signature.bind(*first, *call.arguments, **call.named).arguments
    except TypeError:
        return {}


class _WatchedMethod(AnyMethodWrapper):
    """A wrapped method as it is found on an object or a class."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None:  # taken from the class, or static
            return resolve_name, (f"{self.__module__}:{self.__qualname__}",)
        return getattr, (owner, self.__name__)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.__reduce__()

    def __copy__(self) -> _WatchedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:  # noqa: ANN401 - the method of the copy
        owner = getattr(self.__wrapped__, "__self__", None)
        return self if owner is None else getattr(copy.deepcopy(owner, memo), self.__name__)


class WatchedFunction(AnyFunctionWrapper):
    """A wrapped function. It pickles by its name, as functions do, and copies as itself."""

    __bound_function_wrapper__ = _WatchedMethod

    def __reduce__(self) -> str:
        return str(self.__qualname__)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str:
        return self.__reduce__()

    def __copy__(self) -> WatchedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedFunction:
        return self


class _Watcher:
    """Runs the two halves of a watcher around each call, until one fails."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around
        self._works = True

    def __call__(
        self,
        wrapped: Callable[..., Any],
        instance: Any,  # noqa: ANN401 - of any class
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - what the function returns
        call = Call(instance, arguments, named)
        visit = self._begin(call)
        given = named if visit is None else call.named
        try:
            call.result = wrapped(*arguments, **given)
        except BaseException as error:
            self._end(visit, error)
            raise
        self._end(visit, None)
        return call.result

    def _begin(self, call: Call) -> AbstractContextManager[None] | None:
        if not self._works:
            return None
        try:
            visit = self._around(call)
            visit.__enter__()
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: the call must go on
            self._switch_off(error)
            return None
        return visit

    def _end(
        self, visit: AbstractContextManager[None] | None, raised: BaseException | None
    ) -> None:
        if visit is None:
            return
        try:
            if raised is None:
                visit.__exit__(None, None, None)
            else:
                visit.__exit__(type(raised), raised, raised.__traceback__)
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: the result must come back
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        self._works = False
        say_unwatched(self._name, error)


def say_unwatched(name: str, error: Exception) -> None:
    """Say once that a watcher of ours failed and is switched off."""
    log.once(
        f"watcher-{name}",
        f"{name} is no longer watched ({describe_exception(error)}); the program goes on. Please "
        "report it with the versions of the framework and of lightning-hangcheck",
    )
