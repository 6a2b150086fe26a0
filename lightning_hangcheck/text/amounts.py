"""Amounts as people read them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_in_words(size: float) -> str:
    """Write a number of bytes with the unit that suits it, in steps of 1000: ``3.2 GB``."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def seconds_in_words(seconds: float) -> str:
    """Write a duration as people read one: ``<1 ms``, ``0.31 s``, ``41.2 s``, ``6 h 02 min``."""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def seconds_in_short(seconds: float) -> str:
    """Write a duration for a narrow column: ``41ms``, ``0.41s``, ``41s``, ``3m12``, ``6h02``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    if seconds < 59.5:
        return f"{seconds:.0f}s"
    for unit, parts, longest in (("m", 60, 3600), ("h", 3600, 86_400)):
        if round(seconds) < longest:
            whole, left = divmod(round(seconds), parts)
            return f"{whole}{unit}{left * 60 // parts:02d}"
    days, left = divmod(round(seconds), 86_400)
    return f"{days}d{left // 3600:02d}"


def several(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 prompt``, ``2 prompts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
