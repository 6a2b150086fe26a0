r"""Foreign text as it may be shown: nothing in it moves a cursor, hides or turns the rest.

Arguments, names of processes, threads and files, and messages of exceptions may hold anything:
escape sequences that a terminal would obey, signs that turn the writing direction, signs of no
width, bytes that are no text. Each is shown by its escape (``\x1b``), so that it can be read and
does nothing. Idempotent: an escape is itself plain text.
"""

from __future__ import annotations


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


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def _json(sign: str) -> str:
    r"""One ``\uXXXX``, or two beyond the basic plane."""
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
