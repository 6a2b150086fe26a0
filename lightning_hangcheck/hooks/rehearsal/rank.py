"""What a rank knows and notes of the scene, and how it takes a function's place and ends."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.model.rehearsal import GLOO, Note, NoteKind, Part
from lightning_hangcheck.recorder.announcer import user_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lightning_hangcheck.hooks.zero_code.wrapping import Call

Foreign: TypeAlias = Any
"""An object of a framework or of the program."""

AT_CALL = 3
"""The call of a kind at which a scene begins: by then the ranks have met in a step."""
RAISED_WAIT_S, PARTED_WAIT_S = 3.0, 8.0
"""A rank that raises waits for the others to do the same before its launcher ends them: not so long
that those who wait for it look hung, longer where gloo has ended the wait of all."""
KEEPER = """
n=0
while [ $n -lt 1000 ] && kill -0 $1 2>/dev/null && [ $(ls "$2" | grep -c '^left-') -lt $3 ]
do n=$((n+1)); sleep 0.3; done
"""


class Rehearsal:
    """The scene that this process takes part in, and its notes."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.calls: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.at_end: dict[str, Callable[[], None]] = {}
        self.has_failed = False
        self.keeper: subprocess.Popen[bytes] | None = None
        self._noted: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """Of this process; 0 before anybody has told."""
        if has_joined():
            return int(sys.modules["torch.distributed"].get_rank())
        told = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
        return int(told) if told.isdecimal() else 0

    @property
    def is_odd_one(self) -> bool:
        """Whether this is the rank to which something happens: the last."""
        return self.rank == self.part.ranks - 1

    def plays(self, *scenes: str) -> bool:
        """Whether one of these is on."""
        return self.part.scene in scenes

    def comes_to(self, what: str) -> bool:
        """Whether this call of a kind is the one at which a scene begins."""
        with self._lock:
            self.calls[what] += 1
            return self.calls[what] == AT_CALL

    def provoke(self) -> None:
        """Note that the scene takes place."""
        self.note("provoked", self.part.scene)

    def note(self, kind: NoteKind, text: str = "", **more: Any) -> None:  # noqa: ANN401 - of a Note
        """Write a note, each once a process."""
        about = (kind, more.get("key", text))
        if about in self._noted:
            return
        self._noted.add(about)
        note = Note(kind=kind, rank=self.rank, text=text[:300], **more)
        path = Path(self.part.folder) / f"{os.getpid()}.jsonl"
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, msgspec.json.encode(note) + b"\n")
            finally:
                os.close(file)

    def mark_end(self) -> Path:
        """Show the other ranks that this one is at its end; return the folder of all marks."""
        folder = Path(self.part.folder)
        folder.joinpath(f"left-{self.rank}").touch()
        return folder


def arguments_of(call: Call) -> dict[str, Foreign]:
    """All arguments by name; what the function will refuse raises TypeError here already."""
    given = inspect.signature(call.function).bind(*call.arguments, **call.named).arguments
    return {**given.pop("kwargs", {}), **given}


def tell_exceptions(rehearsal: Rehearsal) -> None:
    """Note the exception with which this rank ends."""
    before = sys.excepthook

    def wait_for_others(limit_s: float) -> None:
        """Wait until all ranks are at their end, so that each can still say how it came to it."""
        folder, until = rehearsal.mark_end(), time.monotonic() + limit_s
        while time.monotonic() < until and len(list(folder.glob("left-*"))) < rehearsal.part.ranks:
            time.sleep(0.05)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if kind in (KeyboardInterrupt, SystemExit):
            return
        rehearsal.has_failed = True
        place = str(user_frame(trace) or "")
        rehearsal.note("raised", f"{kind.__name__}: {error}", key=place)
        limit_s = PARTED_WAIT_S if GLOO in str(error) else RAISED_WAIT_S
        attempt("waiting for other ranks", wait_for_others, limit_s)

    sys.excepthook = hook


def has_joined() -> bool:
    """Whether this process is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(getattr(distributed, "is_initialized", bool)())


def stay_connected(rehearsal: Rehearsal) -> None:
    """Keep the connections of a rank that leaves open, as long as others may wait for it.

    gloo fails at once where a peer's connection is closed; with NCCL the others would wait. So a
    process that does nothing else holds them until all ranks, or their launcher, have left. Not so
    where the rank fails: that is a crash with NCCL, too.
    """
    if rehearsal.has_failed or rehearsal.keeper is not None or not has_joined():
        return
    for key, act in rehearsal.at_end.items():
        attempt(key, act)
    rehearsal.note("left")
    folder = rehearsal.mark_end()
    sockets = []
    for one in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers, no paths
        with suppress(OSError):  # the descriptor with which they were listed
            sockets += [one] if stat.S_ISSOCK(os.fstat(one).st_mode) else []
    given = (str(os.getppid()), str(folder), str(rehearsal.part.ranks))
    rehearsal.keeper = subprocess.Popen(
        ["sh", "-c", KEEPER, "sh", *given],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        pass_fds=sockets,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
