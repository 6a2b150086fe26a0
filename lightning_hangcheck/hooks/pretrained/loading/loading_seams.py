"""Where a load of transformers can be followed: its progress bars and its opening of files.

transformers 4.48 to 5.23 go through ``transformers.utils.logging.tqdm`` for each file (4.x) or each
weight (5.x), and open files by names of ``transformers.modeling_utils``. Both are replaced while a
load is followed, and put back after the last one. A version without them is loaded all the same.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol

from lightning_hangcheck.hooks.pretrained.attempt import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import TypeAlias

    from lightning_hangcheck.hooks.pretrained.loading.shard_progress import ShardProgress

    Function: TypeAlias = Callable[..., Any]

_following: dict[int, ShardProgress] = {}
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


@contextmanager
def follow_loading(progress: ShardProgress) -> Iterator[None]:
    """Tell this progress what transformers loads in this thread.

    A load within a load is followed by the outer one. Loads in several threads are told apart;
    files that a thread of transformers' own opens count for the load if it is the only one.
    """
    thread = threading.get_ident()
    if thread in _following:
        yield
        return
    with _lock:
        if not _following:
            attempt("the progress of loading", _install)
        _following[thread] = progress
    try:
        yield
    finally:
        with _lock:
            del _following[thread]
            if not _following:
                attempt("putting transformers back as it was", _remove)


class ProgressBar(Protocol):
    """What is used of a progress bar."""

    update: Callable[..., object]


class FollowedItems:
    """The items of a bar, each told once the one after it is asked for.

    Args:
        items: What the bar was to go through.
        listener: Is told.
    """

    def __init__(self, items: Collection[object], listener: ShardProgress) -> None:
        self._items = items
        self._listener = listener

    def __len__(self) -> int:
        """As many as there are; a TypeError where the items know no number."""
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        """Yield each item as it is."""
        for item in self._items:
            names = attempt("telling of a weight", partial(weight_names, item))
            yield item
            attempt("telling of a weight", partial(_tell, self._listener, item, names))
        attempt("telling of a weight", self._listener.ended)


def follow_updates(bar: ProgressBar, listener: ShardProgress) -> None:
    """Beat at each update of a bar that is moved by hand, as where several threads load."""
    update = bar.update

    def followed_update(*arguments: object, **named: object) -> object:
        attempt("telling of a weight", partial(listener.loaded_weights, ()))
        return update(*arguments, **named)

    bar.update = followed_update


def weight_names(item: object) -> tuple[str, ...]:
    """Names in the files of the weights that an item of transformers 5 makes: (name, mapping).

    Empty for an item of transformers 4, which is a file.
    """
    match item:
        case (str() as name, mapping) if not isinstance(mapping, str):
            targets = getattr(mapping, "layer_targets", None)
            found = {key for keys in targets.values() for key in keys} if targets else {name}
            return tuple(found)
    return ()


def _tell(listener: ShardProgress, item: object, names: tuple[str, ...] | None) -> None:
    match item:
        case str() as path:
            listener.loaded_file(path)
        case (str() as path, *_) if not names:  # the arguments of one file's load (4.5x)
            listener.loaded_file(path)
        case _:
            listener.loaded_weights(names or ())


def _listener() -> ShardProgress | None:
    mine = _following.get(threading.get_ident())
    if mine is None and len(_following) == 1:
        return next(iter(_following.values()), None)
    return mine


def _install() -> None:
    from transformers import modeling_utils
    from transformers.utils import logging

    _replace(modeling_utils, "safe_open", _announced_opening)
    _replace(modeling_utils, "load_state_dict", _announced_opening)
    _replace(type(logging.tqdm), "__call__", _followed_bar)


def _replace(owner: object, name: str, wrapping: Callable[[Function], Function]) -> None:
    original = getattr(owner, name)
    ours = wrapping(original)
    setattr(owner, name, ours)
    _undo.append(partial(_put_back, owner, name, ours, original))


def _put_back(owner: object, name: str, ours: object, original: object) -> None:
    if getattr(owner, name) is ours:  # else somebody patched over it, and calls ours
        setattr(owner, name, original)


def _remove() -> None:
    while _undo:
        _undo.pop()()


def _announced_opening(opener: Function) -> Function:
    @wraps(opener)
    def opening(path: object, *arguments: object, **named: object) -> object:
        listener = _listener()
        if listener is not None:
            attempt("telling of a file", partial(listener.opening, str(path)))
        return opener(path, *arguments, **named)

    return opening


def _followed_bar(make_bar: Function) -> Function:
    @wraps(make_bar)
    def followed_bar(maker: object, *items: Collection[object], **named: object) -> object:
        listener = _listener()
        if listener is None or not str(named.get("desc")).startswith("Loading"):
            return make_bar(maker, *items, **named)
        bar = make_bar(maker, *(FollowedItems(one, listener) for one in items), **named)
        if not items:
            attempt("hearing a progress bar", partial(follow_updates, bar, listener))
        return bar

    return followed_bar
