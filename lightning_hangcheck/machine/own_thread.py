"""The one way in which a thread of ours that stays is started in a rank."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lightning_hangcheck.machine.room import NoRoom, require_room

if TYPE_CHECKING:
    from collections.abc import Callable


def start_thread(work: Callable[[], None], name: str, ranks: int = 1) -> threading.Thread:
    """Start a daemon thread, if that leaves training enough.

    Args:
        work: What it does.
        name: Shown in stacks; ours begin with ``hangcheck-``.
        ranks: That start as much on this machine.

    Raises:
        NoRoom: A limit is near, or the kernel refused.
    """
    require_room(1, ranks)
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoRoom("the machine gives no further thread") from error
    return thread
