"""init_process_group: who a rank is going to be."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hangcheck.hooks.zero_code.process_groups import announced

ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (3, 8)),
        ({"rank": 0, "world_size": 2}, (0, 2)),
        ({"rank": -1, "world_size": 2}, (3, 2)),
        ({"init_method": "env://"}, (3, 8)),
        ({"init_method": "env://?rank=1"}, (1, 8)),
        ({"init_method": "tcp://localhost:1?rank=1&world_size=4"}, (1, 4)),
        ({"init_method": "file:///tmp/meeting", "rank": 1}, (1, None)),
        ({"store": "a store"}, (None, None)),
    ],
    ids=str,
)
def test_what_is_announced_is_what_torch_will_take(
    arguments: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    assert announced(arguments, ENVIRONMENT) == expected
    assert announced({"rank": 1}, {}) == (1, None)
