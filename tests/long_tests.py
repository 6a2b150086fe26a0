"""Marks of tests that run only when asked for, with ``RUN_LONG_TESTS=1``: CI has no time for them.

CI keeps one real run for each promise that nothing else shows, neither a recording that is judged
nor a test without a job. What shows more of the same, or takes minutes, runs by hand and before a
release.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

WHEN_ASKED_FOR = pytest.mark.skipif(
    "RUN_LONG_TESTS" not in os.environ, reason="not in CI; RUN_LONG_TESTS=1 runs it"
)
LONG_TEST = (pytest.mark.real, pytest.mark.timeout(1800), WHEN_ASKED_FOR)
"""Of a test that may take half an hour on a crowded machine."""


def real_when_asked_for(test: Any) -> Any:
    """Mark one that starts real processes."""
    return pytest.mark.real(WHEN_ASKED_FOR(test))
