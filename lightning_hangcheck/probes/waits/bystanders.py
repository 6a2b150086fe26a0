"""Threads of a process that end nobody's wait, by their source: a heartbeat, a reader of a log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.naming.code_owner import is_ours, is_standard, is_users
from lightning_hangcheck.probes.proc.process_tree import began_s
from lightning_hangcheck.probes.source_code.code_notes import calls_in
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.model.evidence import ProcessStack, ThreadStack

SOURCE_LIMIT_S = 0.5


def with_bystanders(stack: ProcessStack, time_limit_s: float) -> ProcessStack:
    """Say which threads end no other one's wait.

    Only what is the user's own from end to end is asked: a library's thread does its work.

    Args:
        stack: Just taken.
        time_limit_s: Seconds.
    """
    asked = [one for one in stack.threads[1:] if any(is_users(each.file) for each in one.frames)]
    if not asked:
        return stack
    since_s = began_s(stack.pid)
    found: set[int | None] = set()
    with suppress(NoAnswer):
        limit_s = min(time_limit_s, SOURCE_LIMIT_S)
        within(limit_s, lambda: found.update(_found(asked, since_s)))
    return replace(
        stack,
        threads=tuple(
            replace(one, bystander=True) if one.tid in found else one for one in stack.threads
        ),
    )


def _found(threads: Collection[ThreadStack], unchanged_since_s: float) -> set[int | None]:
    return {one.tid for one in threads if _ends_nothing(one, unchanged_since_s)}


def _ends_nothing(thread: ThreadStack, unchanged_since_s: float) -> bool:
    for frame in thread.frames:
        if is_standard(frame.file) or is_ours(frame.file):
            continue
        calls = calls_in(frame.file, unchanged_since_s) if is_users(frame.file) else None
        if calls is None or calls.waking(frame.line) is not False:
            return False
    return True
