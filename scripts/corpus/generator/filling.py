"""Fills templates of source text: a block takes the indentation of the line that it stands for."""

from __future__ import annotations

import re
from string import Template
from textwrap import dedent, indent

_BLOCK = re.compile(r"^([ ]*)\$(\w+)[ ]*\n", re.MULTILINE)


def fill(template: str, **values: object) -> str:
    """Return the template with each ``$name`` replaced.

    Args:
        template: Of source text; a line that is only ``$name`` becomes a block, or nothing.
        **values: What stands for each name.
    """
    text = {name: str(value) for name, value in values.items()}

    def block(match: re.Match[str]) -> str:
        if match.group(2) not in text:
            return match.group(0)
        lines = text[match.group(2)].strip("\n")
        return indent(lines, match.group(1)) + "\n" if lines else ""

    return Template(_BLOCK.sub(block, dedent(template))).safe_substitute(text)
