"""What a progress bar of transformers goes through, told to whoever wants to know how far it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from lightning_hangcheck.hooks.pretrained.attempt import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lightning_hangcheck.hooks.pretrained.shard_progress import ShardProgress


class ProgressBar(Protocol):
    """What is used of a progress bar."""

    update: Callable[..., object]


class HeardItems:
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


def hear_updates(bar: ProgressBar, listener: ShardProgress) -> None:
    """Beat at each update of a bar that is moved by hand, as where several threads load."""
    update = bar.update

    def heard_update(*arguments: object, **named: object) -> object:
        attempt("telling of a weight", partial(listener.loaded_weights, ()))
        return update(*arguments, **named)

    bar.update = heard_update


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
