"""Makes what a recording process prints one clean line: no newlines, no secrets, bounded length.

So are its last words: the exception, its cause, and where in the user's code it was raised. A
console line is one write(2) to stderr, from every rank that should print.
"""

from __future__ import annotations

import os
import re
import sys
import time
from functools import lru_cache

from lightning_hangcheck import log
from lightning_hangcheck.machine import TICKS_PER_SECOND, read_process_stat
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.recorder.page import Call
from lightning_hangcheck.text import shown as plain_text
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import NANOSECONDS

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    from lightning_hangcheck.identity import Identity

    Result = TypeVar("Result")


LONGEST_NAME = 200
LONGEST_LAST_WORDS = 300
_HANDED_ON = r"(?s)Caught \w+ (?P<where>in [^\n]{1,80})\.\nOriginal Traceback[^\n]*\n(?P<calls>.*)"
_WRITTEN_CALL = r'(?m)^  File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)$'


@lru_cache(maxsize=256)
def clean_name(name: str) -> str:
    """Return a checkpoint's or section's name in printable form, at most 200 characters."""
    return one_line(name, LONGEST_NAME)


def one_line(text: str, longest: int) -> str:
    """Redact a text, join its lines and cut it, with an ellipsis if something is missing."""
    if len(text) > 4000:  # enough for what is shown
        # half a secret has no shape, 64 characters identify any: leave an unfinished last word out
        text = text[:3936] + re.sub(r"\S+\Z", "", text[3936:4000]) + "..."
    line = plain_text.one_line(redact_text(text))
    return line if len(line) <= longest else line[: longest - 3] + "..."


def describe_exception(error: BaseException, longest: int = LONGEST_LAST_WORDS) -> str:
    """Type and message in one redacted line, for example ``ValueError: no such split``."""
    kind = one_line(type(error).__name__, longest // 2)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything; the type is still shown
        message = "(its message cannot be shown)"
    shown = one_line(message, longest - len(kind) - 2)
    return f"{kind}: {shown}" if shown else kind


def attempt(what: str, work: Callable[..., Result], *given: Any) -> Result | None:  # noqa: ANN401
    """Run our own work around a user's call; if it fails, log that once and return None."""
    try:
        return work(*given)
    except Exception as error:  # noqa: BLE001 - our additions must not end the user's own call
        shown = describe_exception(error)
        log.once(f"attempt-{what}", f"{what} failed ({shown}) and is left out; all else goes on")
        return None


def last_words(error: BaseException) -> str:
    """Return the exception, its cause and the innermost frame of the user's own code.

    At most 300 characters, for example ``ValueError: no such split (from KeyError: 'dev') in
    load_vocab (data.py:41)``; a long message is cut first.
    """
    elsewhere = _raised_in_worker(error)
    frame = elsewhere[1] if elsewhere is not None else user_frame(error.__traceback__)
    place = "" if frame is None else " " + one_line(f"in {frame}", LONGEST_LAST_WORDS // 2)
    longest = LONGEST_LAST_WORDS - len(place)
    if elsewhere is not None:
        return one_line(elsewhere[0], longest) + place
    chain = [error]  # back to the first exception, as Python's traceback shows
    while True:
        last = chain[-1]
        before = last.__cause__ if last.__suppress_context__ else last.__context__
        if before is None or any(before is earlier for earlier in chain):
            break
        chain.append(before)
    if len(chain) > 1:
        place = f" (from {describe_exception(chain[-1], LONGEST_LAST_WORDS // 3)}){place}"
    return describe_exception(error, LONGEST_LAST_WORDS - len(place)) + place


def _raised_in_worker(error: BaseException) -> tuple[str, Call | None] | None:
    """Return what a DataLoader worker or another thread raised, and where in the user's code."""
    # torch (ExceptionWrapper in torch/_utils.py, 2.5 to 2.13) raises the same type again; the
    # message holds the original traceback as text, and nothing else of it is left.
    try:
        match = re.match(_HANDED_ON, str(error)[:100_000])
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything; then return None
        return None
    if match is None:
        return None
    calls = list(re.finditer(_WRITTEN_CALL, match["calls"]))
    users = [call for call in calls if is_users(call["file"])]
    after = match["calls"][calls[-1].end() :] if calls else match["calls"]
    words = [line for line in after.splitlines() if not line.startswith("  ")]
    place = users[-1] if users else None
    frame = place and Call(place["function"], _shorten(place["file"]), int(place["line"]))
    return f"{' '.join(filter(None, words)) or type(error).__name__} ({match['where']})", frame


def user_frame(traceback: TracebackType | None) -> Call | None:
    """Return the innermost frame of the user's own code; if there is none, the innermost of all."""
    innermost = users = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        innermost = (code, traceback.tb_lineno)
        users = innermost if is_users(code.co_filename) else users
        traceback = traceback.tb_next
    found = users or innermost
    if found is None:
        return None
    code, line = found
    return Call(code.co_name, _shorten(code.co_filename), line)


def _shorten(file: str) -> str:
    """Make the path relative to the script's folder, if it lies below that."""
    folder = sys.path[0] if sys.path else ""
    return file.removeprefix(f"{folder}{os.sep}") if folder else file


def process_start_ns() -> int:
    """Return when this process started, in nanoseconds on CLOCK_BOOTTIME."""
    # The kernel gives it in clock ticks since boot (proc(5), field 22), up to 10 ms too early. If
    # /proc does not show it, or shows an impossible value (gVisor), return the present time.
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    stat = read_process_stat(os.getpid())
    if stat is None:
        return now
    start = stat.started_ticks * NANOSECONDS // TICKS_PER_SECOND
    return start if 0 < start <= now else now


# POSIX keeps a write to a pipe whole up to PIPE_BUF, 4096 on Linux
LONGEST_LINE = 4096
RANKS_THAT_ALL_SPEAK = 16


CONSOLE_MODES = ("auto", "all", "off")


class Console:
    """Prints lines, unless that could block; ranks that should be quiet only if ``in_trouble``."""

    def __init__(self, mode: str, identity: Identity) -> None:
        self.in_trouble = False
        self._mode = mode
        self._start_ns = 0 if mode == "off" else process_start_ns()
        self.identify(identity)

    def identify(self, identity: Identity) -> None:
        """Print as this rank."""
        rank, local_rank = (
            "?" if number is None else number for number in (identity.rank, identity.local_rank)
        )
        ranks = "?/?" if identity.world_size is None else f"{rank}/{identity.world_size}"
        self._who = f"[R{ranks}][LR{local_rank}][PID:{os.getpid()}]"
        self._is_spokesman = (
            identity.rank == 0 or (identity.world_size or 1) <= RANKS_THAT_ALL_SPEAK
        )

    def say(self, text: str) -> None:
        """Print one line, or drop it if stderr would block; the journal has it."""
        if self._mode == "off":
            return
        if not (self._is_spokesman or self.in_trouble or self._mode == "all"):
            return
        elapsed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._start_ns
        log.write_at_once(format_line(time.time(), elapsed_ns / NANOSECONDS, self._who, text))


def format_line(at_s: float, elapsed_s: float, who: str, text: str) -> bytes:
    """Format one line as the contract, section 1, says; with its newline at most 4096 bytes."""
    clock = f"{_clock(int(at_s))}.{int(at_s % 1 * 1000):03}"
    data = f"[{clock}][+{elapsed_s:.3f}s]{who} {text}\n".encode(errors="replace")
    if len(data) > LONGEST_LINE:
        data = data[: LONGEST_LINE - 1].decode(errors="ignore").encode() + b"\n"
    return data


@lru_cache(maxsize=2)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))
