"""Each dump in the form that `py-spy dump` prints, a file a process; without our own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.text.moments import NANOSECONDS, before
from lightning_hangcheck.text.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import ProcessLook, ThreadStack


def render_dumps(case: Case) -> dict[str, str]:
    """Write every sample of every process that has a stack.

    Args:
        case: As it was judged.

    Returns:
        By name of file (``rank-3.txt``, ``rank-3-worker-0.txt``) the dumps, oldest first. Full
        paths of files are shown, as with ``--full-filenames``.
    """
    dumps: dict[str, str] = {}
    for view in case.ranks:
        for look in view.processes:
            name = f"rank-{view.rank}"
            if look.role != "rank":
                name = f"{name}-{look.role}-{look.index}"
            text = "\n".join(map(visible, _dumps(look, case)))
            if text:
                dumps.setdefault(f"{name}.txt", f"{text}\n")
    return dumps


def _dumps(look: ProcessLook, case: Case) -> Iterator[str]:
    for sample in look.samples:
        if sample.stack is None:
            continue
        taken_at = before(case.taken_at, (case.taken_ns - sample.taken_ns) / NANOSECONDS)
        yield f"Process {look.pid}: {case.run.command}"
        yield f"Taken {taken_at} by {sample.stack.source}"
        yield ""
        for thread in shown_threads(sample.stack):
            yield from _thread(thread)
        yield ""


def _thread(thread: ThreadStack) -> Iterator[str]:
    """Innermost call first, unlike everywhere else here."""
    does = "active" if thread.active else "idle"
    state = f"{does}+gil" if thread.owns_gil else does
    name = f': "{thread.name}"' if thread.name else ""
    yield f"Thread {thread.tid or hex(thread.ident)} ({state}){name}"
    for frame in reversed(thread.frames):
        yield f"    {frame}"
