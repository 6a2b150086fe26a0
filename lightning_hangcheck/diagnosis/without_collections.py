"""Work that makes no circles is not searched for them: garbage is not collected meanwhile."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_collections() -> Iterator[None]:
    """Have no collection of garbage begin in the process meanwhile; also decorates a function.

    Reading a hundred thousand ranks makes some million objects that are all still in use, and each
    collection would go through them again: a third of the time. Who switched collections off
    switches them on again, so calls may be nested, and one in another thread may end first: then
    the longer one goes on with them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
