"""Where transformers can be overheard while it loads: its progress bars and its opening of files.

transformers 4.48 to 5.23 go through ``transformers.utils.logging.tqdm`` for each file (4.x) or each
weight (5.x), and open files by names of ``transformers.modeling_utils``. Both are replaced while a
load is heard, and put back after the last one. A version without them is loaded unheard.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.heard_items import HeardItems, hear_updates

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import TypeAlias

    from lightning_hangcheck.hooks.pretrained.shard_progress import ShardProgress

    Function: TypeAlias = Callable[..., Any]

_hearing: dict[int, ShardProgress] = {}
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


@contextmanager
def heard(progress: ShardProgress) -> Iterator[None]:
    """Let this progress hear what transformers loads in this thread.

    A load within a load is heard by the outer one. Loads in several threads are told apart; files
    that a thread of transformers' own opens count for the load if it is the only one.
    """
    thread = threading.get_ident()
    if thread in _hearing:
        yield
        return
    with _lock:
        if not _hearing:
            attempt("the progress of loading", _install)
        _hearing[thread] = progress
    try:
        yield
    finally:
        with _lock:
            del _hearing[thread]
            if not _hearing:
                attempt("putting transformers back as it was", _remove)


def _listener() -> ShardProgress | None:
    mine = _hearing.get(threading.get_ident())
    if mine is None and len(_hearing) == 1:
        return next(iter(_hearing.values()), None)
    return mine


def _install() -> None:
    from transformers import modeling_utils
    from transformers.utils import logging

    _replace(modeling_utils, "safe_open", _announced_opening)
    _replace(modeling_utils, "load_state_dict", _announced_opening)
    _replace(type(logging.tqdm), "__call__", _heard_bar)


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


def _heard_bar(make_bar: Function) -> Function:
    @wraps(make_bar)
    def heard_bar(maker: object, *items: Collection[object], **named: object) -> object:
        listener = _listener()
        if listener is None or not str(named.get("desc")).startswith("Loading"):
            return make_bar(maker, *items, **named)
        bar = make_bar(maker, *(HeardItems(one, listener) for one in items), **named)
        if not items:
            attempt("hearing a progress bar", partial(hear_updates, bar, listener))
        return bar

    return heard_bar
