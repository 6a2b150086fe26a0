"""Looks frames up: what does this function of that file mean?"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache, lru_cache

from lightning_hangcheck.reading.knowledge.loading import FrameRule, frames_file

DISTINCT_FRAMES = (
    65_536  # a job of 1,024 ranks has a few hundred; beyond this the oldest are dropped
)


@lru_cache(maxsize=DISTINCT_FRAMES)
def meanings(function: str, file: str) -> tuple[FrameRule, ...]:
    """Return the rules of frames.toml that match, in the file's order.

    Args:
        function: As a sampler names it: ``DDPStrategy.barrier``, ``f.<locals>.g``, or bare.
        file: Path as the interpreter knows it.
    """
    bare = function.rpartition(".")[2]
    by_name, folders = _index()
    near = (*by_name.get(file.rpartition("/")[2], ()), *folders)
    return tuple(rule for rule in near if _in_file(rule.file, file) and _named(rule, bare))


@cache
def _index() -> tuple[dict[str, list[FrameRule]], list[FrameRule]]:
    by_name: dict[str, list[FrameRule]] = defaultdict(list)
    folders: list[FrameRule] = []
    for rule in frames_file().frame:
        name = rule.file.rpartition("/")[2]
        (by_name[name] if name else folders).append(rule)
    return by_name, folders


def _in_file(wanted: str, file: str) -> bool:
    rooted = f"/{file}"
    return f"/{wanted}" in rooted if wanted.endswith("/") else rooted.endswith(f"/{wanted}")


def _named(rule: FrameRule, bare: str) -> bool:
    return re.fullmatch(rule.functions, bare) is not None
