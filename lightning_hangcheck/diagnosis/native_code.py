"""What a rank waits in below Python, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import ProcessLook

FOR_GPU = re.compile(r"^cu(da)?(Stream|Device|Ctx|Event)Synchronize")
"""Calls of CUDA's runtime and driver that return when the GPU has done its work."""
MOST_SHOWN = 6


def native_calls_of(look: ProcessLook) -> Iterator[str]:
    """Write the newest native calls that a closer look saw of a process: one sentence, or none.

    Args:
        look: Its samples.
    """
    samples = reversed(look.samples)
    calls = next((one.native_calls for one in samples if one.native_calls), ())
    if not calls:
        return
    waits = next((call for call in calls if FOR_GPU.match(call)), None)
    what = f"waits for its GPU in {waits}, " if waits is not None else ""
    yield f"{what}in native code: {' > '.join(calls[-MOST_SHOWN:])}"
