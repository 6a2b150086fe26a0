"""The verdict as JSON, for programs: what verdict.json holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.codec import encode_pretty

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict


def render(verdict: Verdict) -> str:
    """Write the verdict as indented JSON that follows docs/verdict.schema.json."""
    return encode_pretty(verdict).decode()
