"""What torch's default process group says of the ranks, once it exists. Never loads torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed import Store


class Joined(NamedTuple):
    """A process group of several ranks that this process is in.

    Attributes:
        store: Through which they found each other; None where this torch does not show it.
    """

    rank: int
    size: int
    store: Store | None


def joined_group() -> Joined | None:
    """Return the default group's facts; None before `init_process_group`, and for a group of one.

    No collective is called: one that timed out would leave the user's group unusable.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    internals = sys.modules.get("torch.distributed.distributed_c10d")
    find_store = getattr(internals, "_get_default_store", None)  # private, torch 1.x to 2.13
    store = find_store() if find_store is not None else None
    return Joined(distributed.get_rank(), size, store)
