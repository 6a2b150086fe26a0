"""Colour over the plain text, for terminals; nothing is said by colour alone."""

from __future__ import annotations

from rich.text import Text

KIND_STYLES = {
    "HANG": "bold red",
    "DEAD": "bold red",
    "CRASHED": "bold red",
    "SUSPECT": "bold yellow",
    "SLOW": "bold yellow",
    "RECOVERED": "bold green",
    "HEALTHY": "bold green",
    "FINISHED": "bold green",
}
LABEL = r"(?m)^ {6}(?:why|proof|do|not seen|more)\b"
TROUBLED_ROW = r"(?m)^ {6}ranks? \S+ +(?:is|are|never) .*$"


def coloured(text: str) -> Text:
    """Lay colour over a report that `terminal.render` wrote; its characters stay the same."""
    painted = Text(text)
    for kind, style in KIND_STYLES.items():
        painted.highlight_regex(rf"\A{kind}\b", style)
    painted.highlight_regex(LABEL, "bold")
    painted.highlight_regex(TROUBLED_ROW, "red")
    return painted
