"""Exit codes of verdicts, which scripts act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from report.constructed import verdict

from lightning_hangcheck.cli.showing import exit_code_of
from lightning_hangcheck.model.slugs import VERDICT_KINDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import VerdictKind

HANGS = ("hang", "dead", "crashed")


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_only_a_hang_that_was_found_gives_three(kind: VerdictKind) -> None:
    """A script may end a job on 3; a suspicion, a slow job and a recovery are no reason to."""
    assert exit_code_of(verdict(kind)) == (3 if kind in HANGS else 0)
