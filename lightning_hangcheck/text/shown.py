"""Writes facts for people: moments, amounts, rank ranges, commands; makes foreign text harmless.

Nothing in foreign text can move a cursor, or hide or turn the rest.
"""

from __future__ import annotations

import re
import shlex
import time
from functools import lru_cache
from itertools import groupby

from lightning_hangcheck.text.redaction import HIDDEN, is_secret, looks_random, redact_text, telling

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def visible(text: str) -> str:
    """Replace every character that is not printable by its escape, also line breaks and tabs."""
    # Printable is what `str.isprintable` says: no control character (C0, DEL, C1), no format
    # character (direction, zero width), no lone surrogate, no line separator, no private character.
    if text.isprintable():
        return text
    signs = (s if s.isprintable() else s.encode("unicode_escape").decode() for s in text)
    return "".join(signs)


def one_line(text: str) -> str:
    """Join words by single blanks, and show the rest as in `visible`."""
    return visible(" ".join(text.split()))


def text_of(thing: object) -> str:
    """Return ``str(thing)``, whatever the object's own ``__str__`` raises."""
    try:
        return str(thing)
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return "(cannot be shown)"


def visible_json(data: bytes) -> bytes:
    """Escape what is not printable in JSON, as JSON does; the result decodes to the same."""
    # Encoders leave DEL, C1 and format characters unchanged, and a terminal obeys them.
    if data.isascii() and b"\x7f" not in data:
        return data
    shown = ""
    for sign in data.decode():
        if sign.isprintable() or sign == "\n":
            shown += sign
        else:  # one ``\uXXXX``, or two beyond the basic plane
            units = sign.encode("utf-16-be", "surrogatepass").hex()
            shown += "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return shown.encode()


def bytes_in_words(size: float) -> str:
    """Write a number of bytes with the unit that suits it, in steps of 1000: ``3.2 GB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def seconds_in_words(seconds: float) -> str:
    """Write a duration for people: ``<1 ms``, ``0.31 s``, ``41.2 s``, ``6 h 02 min``."""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(min(seconds, 1e15)), 60)  # a foreign file may say anything
    if minutes < 60:
        return f"{minutes} min {left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def several(count: int, noun: str) -> str:
    """``1 prompt``, ``2 prompts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


NANOSECONDS = 1_000_000_000  # Of a second


def utc_now(digits: int = 3) -> str:
    """Return the present moment as ISO 8601 UTC, with so many digits of a second."""
    return clock_text(time.time_ns(), digits)


def clock_text(clock_ns: int, digits: int = 6) -> str:
    """Write nanoseconds since 1970 as ISO 8601 UTC, with so many digits of a second."""
    seconds, rest_ns = divmod(clock_ns, NANOSECONDS)
    return f"{_whole_seconds(seconds)}.{f'{rest_ns:09}'[:digits]}Z"


@lru_cache(maxsize=2)  # a rank writes many lines a second
def _whole_seconds(since_1970: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_1970))


LARGEST_RANK = 10_000_000


def format_ranks(ranks: Iterable[int]) -> str:
    """Write ranks as ascending ranges, such as ``"0-6,8"``; empty for no rank."""
    parts = []
    for _, run in groupby(enumerate(sorted(set(ranks))), key=lambda pair: pair[1] - pair[0]):
        first, *more = [rank for _, rank in run]
        parts.append(f"{first}-{more[-1]}" if more else str(first))
    return ",".join(parts)


def parse_ranks(text: str, most: int = LARGEST_RANK + 1) -> tuple[int, ...]:
    """Read what `format_ranks` wrote, with blanks around numbers: ascending, each once.

    ValueError, with the offending part, if it is no list of ranges of ranks from 0 to 10,000,000.
    ValueError too if it has more than ``most`` ranks; these are not expanded.
    """
    ranks: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{part!r} is not a rank or range of ranks; write for example 0-6,8")
        low, high = int(first), int(last)
        if high < low or high > LARGEST_RANK:
            raise ValueError(f"{part!r} is not an ascending range of ranks up to {LARGEST_RANK}")
        if len(ranks) + high - low >= most:
            raise ValueError(f"{text[:40]!r} has more than {most} ranks")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


KIND_STYLES = (
    dict.fromkeys(("HANG", "DEAD", "CRASHED"), "bold red")
    | dict.fromkeys(("SUSPECT", "SLOW"), "bold yellow")
    | dict.fromkeys(("RECOVERED", "HEALTHY", "FINISHED"), "bold green")
)


# --wandb_key=V, KEY=V, wandb.key=V, and hydra's +trainer.token=V and ++trainer.token=V
_ASSIGNED = re.compile(r"(?s)(?P<head>[+~]{0,2}(?P<name>-{0,2}\w[\w.-]*)=)(?P<value>.+)")
_SHORT_WITH_VALUE = re.compile(r"(?s)(?P<flag>-[A-Za-z])(?P<value>[^-=].+)")


def show_command(words: Sequence[str]) -> str:
    """Show a command line for a POSIX shell, with ``[redacted]`` in place of secrets."""
    # Every command line that leaves this process goes through this function.
    shown, flag = [], ""
    for word in words:
        has_value = bool(flag) and (not word.startswith("-") or looks_random(word))
        secret = has_value and is_secret(telling(flag), word)
        flag = word if word.startswith("-") and "=" not in word else ""
        shown_word = HIDDEN if secret else _redacted(word)
        # ``[redacted]`` needs no quotes: nobody types it again
        around = shown_word.replace(HIDDEN, "")
        plain = shown_word and shlex.quote(around) in (around, "''")
        shown.append(shown_word if plain else shlex.quote(shown_word))
    return visible(" ".join(shown))


def _redacted(word: str) -> str:
    """Redact one word; the value assigned in it is one value, with its blanks and commas."""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned and is_secret(telling(assigned["name"]), assigned["value"]):
        return f"{assigned['head']}{HIDDEN}"
    short = _SHORT_WITH_VALUE.fullmatch(word)
    if short and looks_random(short["value"]):
        return f"{short['flag']}{HIDDEN}"
    return redact_text(word)


DISTRIBUTIONS = (
    *("lightning-hangcheck", "torch", "lightning", "pytorch-lightning"),
    *("transformers", "wandb", "deepspeed", "py-spy"),
)
"""Each is imported by its own name, with underscores."""
_READ_BY_TRAINING = (
    *("ACCELERATE_", "CUDA_", "FI_", "FSDP_", "GLOO_", "GROUP_", "HANGCHECK_", "HF_", "KMP_"),
    *("LIGHTNING_", "LOCAL_", "MASTER_", "MKL_", "NCCL_", "NODE_RANK", "NVIDIA_", "OMP_", "PL_"),
    *("PYTHON", "PYTORCH_", "RANK", "SLURM_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_"),
    *("UCX_", "WANDB_", "WORLD_SIZE"),
)
"""Beginnings of names of variables."""


def published_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the variables to publish, by name; their values are not redacted yet."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_READ_BY_TRAINING)
    }
