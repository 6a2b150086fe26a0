"""Wraps functions of frameworks without visible effect, except for what is reported.

Signature, exceptions, result, pickling and copying stay unchanged: a wrapped function is a plain
function again, of the same kind and name. Only methods and functions are wrapped, never a class. If
our own code fails, it is switched off and that is logged once.

`in_section` makes the watcher of most calls: a section around the outermost call of its kind. Only
the first calls of a kind are printed; all are on the page, unless the script itself has opened a
section of that name.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pkgutil import resolve_name
from types import FrameType, MethodType, ModuleType
from typing import Any, TypeAlias, TypeVar

import wrapt
from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import attempt, describe_exception
from lightning_hangcheck.recorder.lifecycle import Section, current

Around: TypeAlias = Callable[["Call"], AbstractContextManager[None]]
Before: TypeAlias = Callable[[FrameType, tuple[Any, ...], Mapping[str, Any]], None]
Function: TypeAlias = Callable[..., Any]
Guest = TypeVar("Guest")
FAMILIES = {
    "LIGHTNING": ("lightning.pytorch", "pytorch_lightning"),
    "FABRIC": ("lightning.fabric", "lightning_fabric"),
}
"""Packages with two names each; names of modules may begin with these words."""
HOOK_NAMES = ("setup", "teardown")  # besides all that begin with on_
SPOKEN = 3
"""Calls of a kind that are printed: calls of every step must not fill the console."""


class Call(Struct, eq=False):
    """One call of a wrapped function, bound, on an instance (or a class, or None)."""

    # A watcher may replace the arguments before the call, and read the result after it. In a
    # section, ``spoken`` says whether the call is printed.

    instance: Any
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    function: Any = None
    result: Any = None
    spoken: bool = True

    def go(self, **changed: Any) -> Any:  # noqa: ANN401 - a guest's
        """Make the call, with other values for these named arguments."""
        return self.function(*self.arguments, **{**self.named, **changed})

    def bound(self) -> dict[str, Any]:
        """Return all arguments by name; TypeError if the function will refuse them."""
        given = inspect.signature(self.function).bind(*self.arguments, **self.named).arguments
        return {**given.pop("kwargs", {}), **given}

    def given(self) -> dict[str, Any]:
        """Return all arguments by name; empty if the function will refuse them."""
        try:
            return self.bound()
        except TypeError:
            return {}


def put(
    owner: Any,  # noqa: ANN401 - a module, a class or an object
    name: str,
    make: Callable[[Function, Callable[..., Call]], Function],
) -> None:
    """Put a function in the place of one, if there is one.

    ``make`` gets the function, unbound, and what makes a `Call` of all its arguments.
    """
    plain = getattr(owner, name, None)
    if not callable(plain):
        return
    bound = isinstance(plain, MethodType) and plain.__self__ is owner
    function = plain.__func__ if bound else plain
    static = isinstance(inspect.getattr_static(owner, name, None), staticmethod)
    is_method = bound or (isinstance(owner, type) and not static)

    def called(arguments: Any, named: Any, result: Any = None) -> Call:  # noqa: ANN401
        if not (is_method and arguments):
            return Call(None, arguments, named, function, result)
        instance = arguments[0]
        return Call(instance, arguments[1:], named, MethodType(function, instance), result)

    ours: Any = wraps(function)(make(function, called))
    if isinstance(owner, type) and (bound or static):
        setattr(owner, name, classmethod(ours) if bound else staticmethod(ours))
    else:
        setattr(owner, name, MethodType(ours, owner) if bound else ours)
    # packages re-export functions of their modules, such as torch.save
    package = owner.__name__ if isinstance(owner, ModuleType) else ""
    while package := package.rpartition(".")[0]:
        around_it = sys.modules.get(package)
        if around_it is not None and vars(around_it).get(name) is plain:
            setattr(around_it, name, ours)


def wrap(
    owner: Any,  # noqa: ANN401 - as above
    name: str,
    around: Around | None = None,
    *,
    before: Before | None = None,
    after: Callable[[Call], object] | None = None,
) -> None:
    """Watch a function, if there is one; the caller never sees an exception of a watcher.

    A call runs in the context manager of ``around``, which cannot suppress exceptions. At a tenth
    of that cost, ``before`` alone gets each call's frame and all its arguments, or ``after`` a call
    that has returned.
    """
    works = True

    def fail(error: Exception) -> None:
        nonlocal works
        works = False
        switched_off(f"{name} is no longer watched", error, "; the program goes on")

    def ask(work: Function, *given: Any) -> Any:  # noqa: ANN401 - what a watcher takes
        try:
            return work(*given)
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: the call must go on
            if error not in given:  # else it is what the call itself raised
                fail(error)

    def make(function: Function, called: Callable[..., Call]) -> Function:
        if before is not None:  # the quickest of the three
            note, frame = before, sys._getframe  # noqa: SLF001 - the one way to the caller

            def watched_before(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - a guest's
                if works:
                    try:
                        note(frame(1), arguments, named)
                    except Exception as error:  # noqa: BLE001 - as above
                        fail(error)
                return function(*arguments, **named)

            return watched_before

        def watched(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - a guest's
            call = visit = None
            if around is not None and works:
                call = called(arguments, named)
                visit = ask(around, call)
            if visit is not None:
                ask(visit.__enter__)
            if call is None or visit is None or not works:
                result = function(*arguments, **named)
                if after is not None and works:
                    ask(after, called(arguments, named, result))
                return result
            try:
                call.result = call.go()
            except BaseException as raised:
                ask(visit.__exit__, type(raised), raised, raised.__traceback__)
                raise
            ask(visit.__exit__, None, None, None)
            return call.result

        return watched

    put(owner, name, make)


def replace(owner: Any, name: str, instead: Callable[[Call], Any]) -> None:  # noqa: ANN401
    """Replace a function of a module or class by ours, if it has one of this name."""

    def make(_: Function, called: Callable[..., Call]) -> Function:
        return lambda *arguments, **named: instead(called(arguments, named))

    put(owner, name, make)


def on_import(named: str, ours: str | Callable[[ModuleType], None]) -> None:
    """Call ours, also named by its file of hooks, with a module once it is imported, or now."""

    def act(module: ModuleType) -> None:
        (resolve_name(f"lightning_hangcheck.hooks.{ours}") if isinstance(ours, str) else ours)(
            module
        )

    def instrument(module: ModuleType) -> None:
        attempt(
            f"watching {module.__name__}", act, module
        )  # else the framework's import would fail

    for name in modules_of(named):
        wrapt.register_post_import_hook(instrument, name)


def modules_of(named: str) -> list[str]:
    """Return a module's names: two, if it is in a family."""
    family, _, rest = named.partition(".")
    return [f"{package}.{rest}" for package in FAMILIES[family]] if family in FAMILIES else [named]


_inside = threading.local()  # attribute kinds: kinds of the calls that a thread is in
_calls: Counter[str] = Counter()


def in_section(
    kind: str,
    name: str | Callable[[Call], str] = "",
    then: Callable[[Call], object] | None = None,
    around: Around | None = None,
) -> Around:
    """Make a watcher that opens a section around the outermost call of its kind."""
    # Nested calls of one kind count as one call: ``from_pretrained`` of an AutoModel calls that of
    # the model's class. A section without a name has that of its kind. ``around`` surrounds the
    # section, if one is opened.

    @contextmanager
    def visit(call: Call) -> Iterator[None]:
        if kind in _inside.__dict__.get("kinds", ()):
            yield
            return
        title = name(call) if callable(name) else name or kind
        with inside(kind):
            if current().is_in(title):
                yield
            else:
                _calls[kind] += 1
                call.spoken = _calls[kind] <= SPOKEN
                with (
                    around(call) if around is not None else nullcontext(),
                    Section(current(), title, spoken=call.spoken),
                ):
                    yield
        if then is not None:
            then(call)

    return visit


@contextmanager
def inside(kind: str) -> Iterator[None]:
    """Treat calls of this kind, in this thread, as nested calls."""
    kinds = _inside.__dict__.setdefault("kinds", set())
    kinds.add(kind)
    try:
        yield
    finally:
        kinds.discard(kind)


@contextmanager
def later(seconds: float, what: str, work: Callable[..., object], *given: object) -> Iterator[None]:
    """Run our own work in another thread, once the body has taken so many seconds."""
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), attempt, (what, work, *given))
    timer.daemon = True  # the process must not wait for it at exit
    attempt(f"the timer of {what}", timer.start)  # skipped if no thread can start
    try:
        yield
    finally:
        timer.cancel()


def switched_off(what: str, error: Exception, goes_on: str) -> None:
    """Log once that something of ours failed and is switched off."""
    log.once(
        f"off-{what}",
        f"{what} ({describe_exception(error)}){goes_on}. Please report it with the versions of "
        "the framework and of lightning-hangcheck",
    )


def guard_hooks(guest: type[Guest]) -> type[Guest]:
    """Class decorator: if a hook of an object raises, all hooks of the object are switched off."""

    def guarded(name: str, hook: Callable[..., None]) -> Callable[..., None]:
        @wraps(hook)
        def guarded_hook(guest: object, *arguments: object, **named: object) -> None:
            try:
                hook(guest, *arguments, **named)
            except Exception as error:  # noqa: BLE001 - the hooks' boundary: training must go on
                switch_off(guest)
                failed = f"{type(guest).__name__}.{name} failed"
                switched_off(failed, error, " and is switched off; training goes on")

        return guarded_hook

    for name, function in list(vars(guest).items()):
        if callable(function) and (name.startswith("on_") or name in HOOK_NAMES):
            setattr(guest, name, guarded(name, function))
    return guest


def switch_off(guest: object) -> None:
    """Make all hooks of one object do nothing, from now on."""
    for name in dir(type(guest)):
        if name.startswith("on_") or name in HOOK_NAMES:
            setattr(guest, name, lambda *_, **__: None)
