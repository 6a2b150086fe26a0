r"""Foreign text as it may be shown: nothing in it moves a cursor, hides or turns the rest.

Arguments, names of processes, threads and files, and messages of exceptions may hold anything:
escape sequences that a terminal would obey, signs that turn the writing direction, signs of no
width, bytes that are no text. Each is shown by its escape (``\x1b``), so that it can be read and
does nothing. Idempotent: an escape is itself plain text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CUT = "..."
SAME_SHOWN = 20
"""Characters shown of what two texts have in common, before they differ."""


def visible(text: str) -> str:
    """Show every character that is not printable by its escape, line breaks and tabs too.

    Printable is what `str.isprintable` says: no control character (C0, DEL, C1), no format
    character (direction, zero width), no lone surrogate, no line separator, no private sign.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def one_line(text: str) -> str:
    """Join words by single blanks, whatever stood between them, and show the rest as `visible`."""
    return visible(" ".join(text.split()))


def told_apart(values: Sequence[str], longest: int) -> list[str]:
    """Cut each of several different texts so that what differs between them is still seen.

    Args:
        values: As they are; each is shown as `visible` shows it.
        longest: Characters shown of each.

    Returns:
        In the same order. Of a long one that begins as another does, the part that is the same
        is left out but for its end; where they still look alike, their lengths tell.
    """
    shown = []
    for value in values:
        same = max((_same(value, other) for other in values if other != value), default=0)
        begin = max(0, same - SAME_SHOWN) if len(value) > longest else 0
        end = begin + longest
        more = (CUT if begin else "", CUT if end < len(value) else "")
        shown.append(visible(value[begin:end]).join(more))
    return [
        text if shown.count(text) == 1 else f"{text} ({len(value)} characters)"
        for text, value in zip(shown, values, strict=True)
    ]


def text_of(thing: object) -> str:
    """``str(thing)``, whatever the object's own ``__str__`` raises."""
    try:
        return str(thing)
    except Exception:  # noqa: BLE001 - a user's object: it is said all the same
        return "(cannot be shown)"


def visible_json(data: bytes) -> bytes:
    """Escape what is not printable in JSON as JSON does; it decodes to the same.

    Encoders leave DEL, C1 and format characters as they are, and a terminal obeys them.
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    signs = (sign if sign.isprintable() or sign == "\n" else _json(sign) for sign in data.decode())
    return "".join(signs).encode()


def _same(one: str, other: str) -> int:
    """Number of characters with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def _json(sign: str) -> str:
    r"""One ``\uXXXX``, or two beyond the basic plane."""
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
